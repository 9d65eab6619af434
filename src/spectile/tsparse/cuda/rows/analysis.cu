// What is known of each row of C before its entries are counted: products, window, bin.

#include "rows/bins.cuh"

namespace {

// Bin of a row for the symbolic phase, or -1 for an empty one.
__device__ int symbolic_bin(u64 products, int span) {
    if (products == 0) return -1;
    const u64 bound = products < u64(span) ? products : u64(span);
    const bool window = span <= 8192 && u64(span) <= 32 * bound;
    if (products <= SORTED && span < SORTED_SPAN)
        return SORT_BIN + (products > 16) + (products > 32) + (products > 64);
    if (products < HEAVY && window) return span <= 2048 ? 0 : 1;
    if (products < HEAVY) {
        if (bound <= 24) return 2;
        if (bound <= 48) return 3;
        if (bound <= 192) return 4;
        if (bound <= GROUPED) return 5;
    }
    return 6;
}

}  // namespace

// Products, window and symbolic bin of each row; a group of 2^group_log lanes takes a row, all warps the long ones.
extern "C" __global__ void __launch_bounds__(ANALYSTS) analyse(int rows, int inner, int group_log, const int* ptr_a, const int* idx_a,
                                               const int* ptr_b, const int* idx_b, int* low, int* span, int* entries,
                                               int* slot, int* lists, int* head) {
    __shared__ u64 s_products[ANALYSTS];
    __shared__ int s_low[ANALYSTS], s_high[ANALYSTS], s_long[ANALYSTS], longs, kept_words, s_widest;
    __shared__ u64 s_kept, s_all;
    if (invalid(head)) return;
    const int group = 1 << group_log, per_block = ANALYSTS >> group_log, lane = threadIdx.x & (group - 1);
    const int local = threadIdx.x >> group_log, row = blockIdx.x * per_block + local;
    if (threadIdx.x == 0) longs = kept_words = s_widest = 0, s_all = 0;
    __syncthreads();
    auto gather = [&](int p, u64& products, int& lo, int& hi) {
        const int k = idx_a[p];
        if (u32(k) >= u32(inner)) return;
        const int first = ptr_b[k], last = ptr_b[k + 1];
        if (first >= last) return;
        products += last - first;
        lo = min(lo, idx_b[first]);
        hi = max(hi, idx_b[last - 1]);
    };
    u64 products = 0;
    int lo = 0x7fffffff, hi = -1;
    if (row < rows) {
        const int begin = ptr_a[row], end = ptr_a[row + 1];
        if (end - begin > 32 * group) {
            if (lane == 0) s_long[atomicAdd(&longs, 1)] = local;
        } else {
            for (int p = begin + lane; p < end; p += group) gather(p, products, lo, hi);
        }
    }
    for (int d = group / 2; d; d >>= 1) {
        products += __shfl_xor_sync(ALL, products, d);
        lo = min(lo, __shfl_xor_sync(ALL, lo, d));
        hi = max(hi, __shfl_xor_sync(ALL, hi, d));
    }
    if (lane == 0) {
        s_products[local] = products;
        s_low[local] = lo;
        s_high[local] = hi;
    }
    __syncthreads();
    // Pieces of 128 entries of the long rows, distributed over the warps.
    for (int l = 0, piece = threadIdx.x >> 5; l < longs;) {
        const int at = s_long[l], begin = ptr_a[blockIdx.x * per_block + at], end = ptr_a[blockIdx.x * per_block + at + 1];
        const int pieces = (end - begin + 127) >> 7;
        if (piece >= pieces) {
            piece -= pieces;
            ++l;
            continue;
        }
        products = 0, lo = 0x7fffffff, hi = -1;
        const int from = begin + 128 * piece + (threadIdx.x & 31);
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (from + 32 * c < end) gather(from + 32 * c, products, lo, hi);
        if (products) {
            atomicAdd(&s_products[at], products);
            atomicMin(&s_low[at], lo);
            atomicMax(&s_high[at], hi);
        }
        piece += ANALYSTS / 32;
    }
    __syncthreads();
    int bin = -1, width = 0;
    const int mine = blockIdx.x * per_block + threadIdx.x;
    u64 sum = 0;
    if (threadIdx.x < per_block && mine < rows) {
        sum = s_products[threadIdx.x];
        width = sum ? s_high[threadIdx.x] - s_low[threadIdx.x] + 1 : 0;
        bin = symbolic_bin(sum, width);
        entries[mine] = 0;
        if (sum) {
            low[mine] = s_low[threadIdx.x];
            span[mine] = width;
        }
    }
    append<BINS_SYMBOLIC>(mine, bin, rows, head + SYMBOLIC, lists);
    const bool window = bin == 0 || bin == 1;
    const int words = words_of(width), at = window ? atomicAdd(&kept_words, words) : 0;
    __syncthreads();
    if (threadIdx.x == 0 && kept_words) s_kept = atomicAdd((u64*)&head[KEPT], u64(kept_words));
    __syncthreads();
    if (bin >= 0)
        slot[mine] = window            ? int(min(s_kept + at, u64(MOST_KEPT)))
                     : bin >= SORT_BIN ? FEW_PRODUCTS - (bin - SORT_BIN)
                     : sum >= HEAVY    ? MANY_PRODUCTS
                                       : NO_BITMAP;
    const int widest = __reduce_max_sync(ALL, bin == 6 ? width : 0);
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
    if ((threadIdx.x & 31) == 0) {
        if (widest) atomicMax(&s_widest, widest);
        if (sum) atomicAdd(&s_all, sum);
    }
    __syncthreads();  // one global atomic a block: all go to the same address
    if (threadIdx.x == 0) {
        if (s_widest) atomicMax(&head[MAX_SPAN], s_widest);
        if (s_all) atomicAdd((u64*)&head[PRODUCTS], s_all);
    }
}
