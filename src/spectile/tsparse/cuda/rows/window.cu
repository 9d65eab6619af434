// Columns and values of rows with a narrow window: bitmap of at most 32 WORDS columns, a group of LANES lanes per row.
//
//   bits = the bitmap that the symbolic phase kept, or made anew
//   before[w] = bits set in the words before word w (prefix scan);  write the columns that the bits stand for
//   for k in A's row, in order; for each entry (j, b) of B's row k:  sums[before[j / 32] + bits below j] += a b
//
// Invariant: the place of a column is the number of columns before it, so the row is sorted; columns of one row of B are
// distinct, so no two lanes add to one sum between two barriers.

#include "rows/rows.cuh"

// So many blocks find their registers on a multiprocessor, and the compiler spills none.
constexpr int RESIDENT = Parts<VALUE>::COMPLEX ? 4 : sizeof(VALUE) == 4 ? 9 : LANES == 32 ? 7 : 9;

extern "C" __global__ void __launch_bounds__(GROUP_THREADS, RESIDENT) NAME(int count, int log, const int* list, const int* ptr_a,
                                                                           const int* idx_a, const STORED* val_a, const int* ptr_b,
                                                                           const int* idx_b, const STORED* val_b, const int* low,
                                                                           const int* span, const int* slot, const u32* kept, int capacity,
                                                                           const int* ptr_c, int* idx_c, STORED* val_c) {
    constexpr int G = LANES;
    extern __shared__ u64 shared[];
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    constexpr int PAD = G < 32 ? G : 0;  // groups of one warp start in different banks
    Word* words = (Word*)shared + group * (WORDS + PAD);
    VALUE* sums = (VALUE*)((Word*)shared + (blockDim.x / G) * (WORDS + PAD)) + group * (SUMS + PAD);
    const int row = list[item], start = low[row], used = (span[row] + 31) >> 5, out = ptr_c[row];
    const u32* keep = kept + slot[row];
    if (slot[row] + used > capacity) {
        // Its bitmap did not fit and is gathered again, where the sums will be.
        mark_columns<G>(row, start, used, (u32*)sums, ptr_a, idx_a, ptr_b, idx_b, log, lane, mask);
        keep = (u32*)sums;
    }
    int before = 0;
    for (int base = 0; base < used; base += G) {
        const int w = base + lane;
        u32 bits = w < used ? keep[w] : 0;
        const int sum = prefix_scan<G>(__popc(bits), lane, mask);
        const int place = before + sum - __popc(bits);
        before += __shfl_sync(mask, sum, G - 1, G);
        if (w < used) words[w] = {bits, u32(place)};
        for (int at = out + place; bits; bits &= bits - 1) idx_c[at++] = start + 32 * w + __ffs(bits) - 1;
    }
    __syncwarp(mask);
    for (int e = lane; e < before; e += G) sums[e] = 0;
    __syncwarp(mask);
    each_product<G, G == 32 ? 2 : 1, 4>(
        ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, log, lane, mask,
        [&](int column) { return column >= 0 ? place_of(words, column - start) : -1; },
        [&](int place, VALUE a, VALUE b) { sums[place] = add_product(a, b, sums[place]); });
    for (int e = lane; e < before; e += G) val_c[out + e] = sums[e];
}
