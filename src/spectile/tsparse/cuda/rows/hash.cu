// Columns and values of short rows with a wide window: table of 2^TABLE_LOG columns, a group of LANES lanes per row.
//
//   for k in A's row, in order; for each entry (j, b) of B's row k:
//       slot = the place of j in the table;  where it is new, list it;  sums[slot] += a b
//   sort the listed columns;  write each with the sum of its slot
//
// New columns are listed with their slot in one word, which the sort orders: a window of 2^(32 - TABLE_LOG) columns fits.  In
// wider ones (WIDE) they are listed alone, and their slots are looked up after the sort.
//
// Invariant: at most half of the slots are taken, so that searches are short and end; a slot never changes its column.

#include "rows/sort.cuh"

extern "C" __global__ void __launch_bounds__(GROUP_THREADS) NAME(int count, int log, const int* list, const int* ptr_a, const int* idx_a,
                                                                 const STORED* val_a, const int* ptr_b, const int* idx_b,
                                                                 const STORED* val_b, const int* low, const int* ptr_c, int* idx_c,
                                                                 STORED* val_c) {
    constexpr int G = LANES, LOG = TABLE_LOG;
    extern __shared__ u64 shared[];
    constexpr int TABLE = 1 << LOG, STRIDE = G < 32 ? TABLE + G : TABLE, K = TABLE / 2 / G;
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    VALUE* sums = (VALUE*)shared + group * STRIDE;
    int* keys = (int*)((VALUE*)shared + (blockDim.x / G) * STRIDE) + group * (STRIDE + TABLE / 2);
    u32* listed = (u32*)keys + STRIDE;
    const int row = list[item], out = ptr_c[row], start = low[row];
    for (int t = 4 * lane; t < TABLE; t += 4 * G) *(int4*)&keys[t] = make_int4(-1, -1, -1, -1);
    __syncwarp(mask);
    int n = 0;
    each_product<G, 1, 2>(
        ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, log, lane, mask,
        [&](int column) {
            bool added = false;
            int slot = -1;
            if (column >= 0) {
                slot = insert(keys, LOG, column, added);
                if (added) sums[slot] = 0;
            }
            const u32 all = __ballot_sync(mask, added) & mask;
            if (added)
                listed[n + __popc(all & ((1u << (threadIdx.x & 31)) - 1u))] = WIDE ? column - start : ((column - start) << LOG) | slot;
            n += __popc(all);
            return slot;
        },
        [&](int slot, VALUE a, VALUE b) { sums[slot] = add_product(a, b, sums[slot]); });
    u32 words[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
        const int e = i * G + lane;
        words[i] = e < n ? listed[e] : ALL;
    }
    sort_words<G, K>(words, lane, mask);
    __syncwarp(mask);
#pragma unroll
    for (int i = 0; i < K; ++i) listed[lane * K + i] = words[i];
    __syncwarp(mask);
    for (int e = lane; e < n; e += G) {
        const u32 word = listed[e];
        const int column = start + int(WIDE ? word : word >> LOG);
        idx_c[out + e] = column;
        val_c[out + e] = sums[WIDE ? slot_of<LOG>(keys, column) : word & (TABLE - 1)];
    }
}
