// Values of short rows with a wide window whose columns are known: table of 2^TABLE_LOG columns with their places in the
// row, a group of LANES lanes per row.
//
//   insert each known column of C's row with its place
//   for k in A's row, in order; for each entry (j, b) of B's row k:  sums[place of j] += a b
//
// Invariant: the table holds every column that a product meets, and its order is that of the known columns.

#include "rows/rows.cuh"

extern "C" __global__ void __launch_bounds__(GROUP_THREADS) NAME(int count, int log, const int* list, const int* ptr_a, const int* idx_a,
                                                                 const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b,
                                                                 const int* low, const int* ptr_c, const int* idx_c, VALUE* val_c) {
    constexpr int G = LANES, LOG = TABLE_LOG;
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
        places[insert(keys, LOG, idx_c[out + e], added)] = e;
    }
    __syncwarp(mask);
    each_product<G, 1, 4>(
        ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, log, lane, mask,
        [&](int column) { return column >= 0 ? int(places[slot_of<LOG>(keys, column)]) : -1; },
        [&](int place, VALUE a, VALUE b) { sums[place] = add_product(a, b, sums[place]); });
    for (int e = lane; e < n; e += G) val_c[out + e] = sums[e];
}
