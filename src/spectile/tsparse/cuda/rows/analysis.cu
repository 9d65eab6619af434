// What is known of each row of C before and after its entries are counted: bins, windows, the row pointer.

#include "rows/rows.cuh"

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

// What the symbolic phase leaves of a row: the place of its kept bitmap if it is not negative, or one of these.
constexpr int NO_BITMAP = -1;
constexpr int MANY_PRODUCTS = -2;
constexpr int FEW_PRODUCTS = -3;  // and -4, -5, -6: the bins of sorted rows

// Bin of a row for the numeric phase, and the shared memory that it needs in a block bin (in the last, the words of its
// bitmap in global memory).
__device__ int numeric_bin(int entries, int span, int slot, int shared_bytes, int* need) {
    const bool window = slot >= 0, heavy = slot == MANY_PRODUCTS;
    *need = 0;
    if (entries == 0) return -1;
    if (slot <= FEW_PRODUCTS) return 12 + FEW_PRODUCTS - slot;
    if (window && span <= 2048) return entries <= 256 ? 0 : 1;
    if (window && entries <= 1024) return 2;
    if (!heavy && !window) {
        if (entries <= 16) return 3;
        if (entries <= 32) return 4;
        if (entries <= 128) return 5;
        if (entries <= 256) return 6;
        if (entries <= 512) return 7;
    }
    const long long words = 8LL * words_of(span), sums = (long long)entries * sizeof(VALUE);
    *need = int(min(words + sums, (long long)shared_bytes));
    if (words + sums <= 48 * 1024) return 8;
    if (words + sums <= shared_bytes) return 9;
    *need = words <= shared_bytes ? int(words) : words_of(span);
    return words <= shared_bytes ? 10 : 11;
}

// Write `row` to the list of its bin; one global atomic a block and bin.  Called by all threads; bin < 0 writes nothing.
template <int BINS> __device__ int append(int row, int bin, int rows, int* counters, int* lists) {
    __shared__ int local[BINS], base[BINS];
    __syncthreads();
    if (threadIdx.x < BINS) local[threadIdx.x] = 0;
    __syncthreads();
    int place = 0;
    if (bin >= 0) place = atomicAdd(&local[bin], 1);
    __syncthreads();
    if (threadIdx.x < BINS && local[threadIdx.x]) base[threadIdx.x] = atomicAdd(&counters[threadIdx.x], local[threadIdx.x]);
    __syncthreads();
    if (bin < 0) return -1;
    place += base[bin];
    lists[(long long)(bin >> 1) * rows + (bin & 1 ? rows - 1 - place : place)] = row;
    return place;
}

}  // namespace

extern "C" {

// Products, window and symbolic bin of each row; a group of 2^group_log lanes takes a row, all warps the long ones.
__global__ void __launch_bounds__(ANALYSTS) analyse(int rows, int inner, int group_log, const int* ptr_a, const int* idx_a,
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

// Row pointer of C by a single-pass scan with look-back (SCAN_ROWS rows a block), and the numeric bins.
__global__ void __launch_bounds__(256) place(int rows, int shared_bytes, const int* entries, const int* span,
                                             const int* slot, int* ptr_c, int* lists, int* head, u64* state) {
    __shared__ u64 warp_sums[8], s_before;
    __shared__ int s_ticket;
    if (invalid(head)) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) s_ticket = atomicAdd(&head[TICKET], 1);
    __syncthreads();
    const int ticket = s_ticket, first = ticket * SCAN_ROWS + threadIdx.x * 8;
    int held[8];
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        held[i] = first + i < rows ? entries[first + i] : 0;
        sum += held[i];
    }
    const u64 scan = prefix_scan<32>(sum, lane, ALL);
    if (lane == 31) warp_sums[warp] = scan;
    __syncthreads();
    u64 before = scan - sum, block_sum = 0;
    for (int w = 0; w < 8; ++w) {
        if (w < warp) before += warp_sums[w];
        block_sum += warp_sums[w];
    }
    if (warp == 0) {
        const u64 prefix = look_back(ticket, block_sum, state);
        if (lane == 0) {
            s_before = prefix;
            if (ticket == (rows - 1) / SCAN_ROWS) {
                *(u64*)&head[ENTRIES] = prefix + block_sum;
                ptr_c[rows] = int(prefix + block_sum);
            }
        }
    }
    __syncthreads();
    before += s_before;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = first + i;
        int bin = -1, need = 0;
        if (row < rows) {
            ptr_c[row] = int(before);
            before += held[i];
            if (held[i]) bin = numeric_bin(held[i], span[row], slot[row], shared_bytes, &need);
        }
        if (!__syncthreads_or(bin >= 0)) continue;  // of hypersparse matrices most rows are empty
        append<BINS_NUMERIC>(row, bin, rows, head + NUMERIC, lists);
        if (need) atomicMax(&head[MAX_BYTES + bin - 8], need);
    }
}

}  // extern "C"
