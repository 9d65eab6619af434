// Rows of few products: expanded, sorted, and summed; a group of LANES lanes takes a row.
//
//   list the products of the row in the order of k: entry p of A times entry q of B
//   sort words (column - low, number of the product) in registers (bitonic network)
//   each run of equal columns is an entry of C:  its sum is added in the order of the numbers
//
// Invariant: words are distinct and equal columns stay in the order of k, so sums are those of the other kernels.

#include "rows/sort.cuh"

extern "C" __global__ void __launch_bounds__(GROUP_THREADS) NAME(int count, const int* list, const int* ptr_a, const int* idx_a,
                                                                 const STORED* val_a, const int* ptr_b, const int* idx_b,
                                                                 const STORED* val_b, const int* low, const int* ptr_c, int* idx_c,
                                                                 STORED* val_c) {
    constexpr int G = LANES;
    extern __shared__ u64 shared[];
    constexpr int N = EACH * G, STRIDE = (2 * sizeof(VALUE) + 6) * N + 8;  // bytes
    constexpr int LOG = G == 1 ? 2 : G == 4 ? 4 : G == 8 ? 5 : G == 16 ? 6 : 7;
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    char* own = (char*)shared + group * STRIDE;
    int2* met = (int2*)own;  // of each product, its entries of A and of B; then their values
    VALUE* left = (VALUE*)own;
    VALUE* right = left + N;
    u32* sorted = (u32*)(right + N);
    unsigned short* starts = (unsigned short*)(sorted + N);
    const int row = list[item], out = ptr_c[row], start = low[row];
    const int total = list_products<G>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, lane, mask,
                                       [&](int slot, int p, int q) { met[slot] = make_int2(p, q); });
    __syncwarp(mask);
    // A column's place in the window and the product's number in one word: equal columns stay in the order of k.
    u32 words[EACH];
    VALUE a[EACH], b[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int t = i * G + lane;
        words[i] = ALL;
        a[i] = b[i] = 0;
        if (t < total) {
            const int2 at = met[t];
            words[i] = u32(idx_b[at.y] - start) << LOG | u32(t);
            a[i] = val_a[at.x];
            b[i] = val_b[at.y];
        }
    }
    __syncwarp(mask);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        left[i * G + lane] = a[i];
        right[i * G + lane] = b[i];
    }
    sort_words<G, EACH>(words, lane, mask);
    bool head[EACH];
    find_heads<G>(words, LOG, lane, mask, head);
    int heads = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        sorted[EACH * lane + i] = words[i];
        heads += head[i];
    }
    const int sum = prefix_scan<G>(heads, lane, mask), n = __shfl_sync(mask, sum, G - 1, G);
    int place = sum - heads;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (head[i]) starts[place++] = EACH * lane + i;
    if (lane == 0) starts[n] = total;
    __syncwarp(mask);
    for (int e = lane; e < n; e += G) {
        const int stop = starts[e + 1];
        int r = starts[e];
        idx_c[out + e] = start + int(sorted[r] >> LOG);
        VALUE total_of = 0;
        for (; r < stop; ++r) {
            const int t = sorted[r] & (N - 1);
            total_of = add_product(left[t], right[t], total_of);
        }
        val_c[out + e] = total_of;
    }
}
