// Values of short rows with a wide window whose columns are known: table of 2^LOG columns with their places in the row, a
// group of G lanes per row.

#include "rows/rows.cuh"

namespace {

template <int G, int LOG>
__device__ void numeric_hash(int count, int log, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a,
                             const int* ptr_b, const int* idx_b, const VALUE* val_b, const int* low, const int* ptr_c,
                             const int* idx_c, VALUE* val_c) {
    extern __shared__ u64 shared[];
    constexpr int TABLE = 1 << LOG, STRIDE = G < 32 ? TABLE + G : TABLE;
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    VALUE* sums = (VALUE*)shared + group * STRIDE;
    int* keys = (int*)((VALUE*)shared + (blockDim.x / G) * STRIDE) + group * (STRIDE + TABLE / 2);
    unsigned short* places = (unsigned short*)(keys + STRIDE);
    const int row = list[item], out = ptr_c[row], n = ptr_c[row + 1] - out;
    for (int t = 4 * lane; t < TABLE; t += 4 * G) *(int4*)&keys[t] = make_int4(-1, -1, -1, -1);
    for (int e = lane; e < n; e += G) sums[e] = 0;
    __syncwarp(mask);
    for (int e = lane; e < n; e += G) {
        bool added = false;
        places[insert<LOG>(keys, idx_c[out + e], added)] = e;
    }
    __syncwarp(mask);
    each_product<G, 1, 4>(
        ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, log, lane, mask,
        [&](int column) { return column >= 0 ? int(places[slot_of<LOG>(keys, column)]) : -1; },
        [&](int place, VALUE a, VALUE b) { sums[place] = add_product(a, b, sums[place]); });
    for (int e = lane; e < n; e += G) val_c[out + e] = sums[e];
}

}  // namespace

extern "C" {

#define NUMERIC_HASH(BIN, G, LOG)                                                                                         \
    __global__ void __launch_bounds__(128) numeric_hash_##G##_##LOG(                                                      \
        int count, int log, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a, const int* ptr_b,             \
        const int* idx_b, const VALUE* val_b, const int* low, const int* ptr_c, const int* idx_c, VALUE* val_c) {         \
        numeric_hash<G, LOG>(count, log, list, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, low, ptr_c, idx_c, val_c);            \
    }
NUMERIC_HASHES(NUMERIC_HASH)

}  // extern "C"
