// What is known of each row of C before its entries are counted: products, window, bin.
//
//   for each row i, some lanes a row:
//       products = sum over k in A's row of the length of B's row k
//       [low, low + span) = from the least first column of these rows of B to the greatest last one, which is not looked for
//                           where so few products are sorted and their numbers fit beside any column
//       bin = the first that holds so many products and columns (`symbolic_bin`);  append i to its list
//       of few products: entries = columns that differ once sorted
//
// Rows much longer than their lanes are cut into pieces for all warps of the block.
// Invariant: rows of B ascend, so first and last column bound them: every column of C's row i is in its window.

#include "rows/bins.cuh"
#include "rows/sort.cuh"

namespace {

// Steps of the block that fills a row: of short rows of B it meets many at a time.
__device__ u64 row_steps(u64 products, int length) {
    if (products <= u64(SHORT_B) * length) return (length + products) / SHORT_STEP;
    return length + products / STEP_PRODUCTS;
}

// Bin of a row for the symbolic phase, or NO_BIN for an empty one.  A window has a column of 32 or more in use, and a bin
// of sorted rows room for so many products at least.
__device__ int symbolic_bin(u64 products, int span, int length, int least_sorted) {
    if (products == 0) return NO_BIN;
    const int long_bin = row_steps(products, length) >= HUB_STEPS ? SYMBOLIC_HUB : SYMBOLIC_BLOCK;
    if (products >= BLOCK_PRODUCTS) return long_bin;
    const int terms = int(products), most = min(terms, span);
    int bin = span < SORTED_SPAN && length <= THREAD_LENGTH ? symbolic_few_bin(terms) : NO_BIN;
    if (bin == NO_BIN && span < SORTED_SPAN) bin = symbolic_sort_bin(max(terms, least_sorted));
    if (bin == NO_BIN && u64(span) <= 32 * u64(most)) bin = symbolic_window_bin(span);
    if (bin == NO_BIN) bin = symbolic_table_bin(most);
    if (bin == NO_BIN && words_of(span) > 4 * terms) bin = symbolic_block_table_bin(terms);
    return bin == NO_BIN ? long_bin : bin;
}

// How many columns differ of the first products of a row, where these are in B, of `most` products at most in the warp.
__device__ __forceinline__ int few_columns(int products, int most, const int* met, const int* idx_b) {
    u32 words[FEW_MOST];
#pragma unroll
    for (int t = 0; t < FEW_MOST; ++t) words[t] = t < products ? u32(idx_b[met[t * ANALYSIS_THREADS]]) : ALL;
    sort_few(words, most);
    int n = 0;
#pragma unroll
    for (int t = 0; t < FEW_MOST; ++t) n += words[t] != ALL && (t == 0 || words[t] != words[max(t - 1, 0)]);
    return n;
}

}  // namespace

// Products, window and symbolic bin of each row; a group of 2^group_log lanes takes a row, all warps the long ones.  Where C's
// columns are so few that a word holds any of them beside the number of a product, a window is looked for last, if it is needed.
extern "C" __global__ void __launch_bounds__(ANALYSIS_THREADS) analyse(int rows, int columns, int group_log, int least_sorted,
                                                                       const int* ptr_a, const int* idx_a, const int* ptr_b,
                                                                       const int* idx_b, int* low, int* span, int* entries, int* slot,
                                                                       int* lists, int* head) {
    __shared__ u64 s_products[ANALYSIS_THREADS];
    __shared__ int s_low[ANALYSIS_THREADS], s_high[ANALYSIS_THREADS], s_long[ANALYSIS_THREADS], longs, kept_words, s_widest;
    __shared__ int s_met[FEW_MOST * ANALYSIS_THREADS];  // products of few, where they are in B
    __shared__ u64 s_kept, s_all;
    if (invalid(head)) return;
    const int group = 1 << group_log, per_block = ANALYSIS_THREADS >> group_log, lane = threadIdx.x & (group - 1);
    const int local = threadIdx.x >> group_log, row = blockIdx.x * per_block + local;
    if (threadIdx.x == 0) longs = kept_words = s_widest = 0, s_all = 0;
    __syncthreads();
    u64 products = 0;
    int lo = 0x7fffffff, hi = -1, n = 0;
    const auto look = [&](Met met) {
        if (met.first >= met.last) return;
        lo = min(lo, idx_b[met.first]);
        hi = max(hi, idx_b[met.last - 1]);
    };
    const auto put = [&](int t, int, int q) { s_met[t * ANALYSIS_THREADS + threadIdx.x] = q; };
    const int begin = row < rows ? ptr_a[row] : 0, end = row < rows ? ptr_a[row + 1] : 0;
    const bool is_long = end - begin > 32 * group;
    if (is_long && lane == 0) s_long[atomicAdd(&longs, 1)] = local;
    const bool later = columns < SORTED_SPAN;
    const auto at_once = [&](Met met) {
        if (!later) look(met);
    };
    products = each_of_few(is_long ? end : begin + lane, end, group, idx_a, ptr_b, at_once, put);
    // A thread that meets a row counts what few products it has at once.
    const bool counted = group == 1 && row < rows && !is_long;
    const int own = counted && products <= FEW_MOST ? int(products) : 0;
    if (const int most = __reduce_max_sync(ALL, own)) n = few_columns(own, most, &s_met[threadIdx.x], idx_b);
    for (int d = group / 2; d; d >>= 1) products += __shfl_xor_sync(ALL, products, d);
    if (later && products > SORTED_MOST)
        for (int at = is_long ? end : begin + lane; at < end; at += group) look(row_met(at, end, idx_a, ptr_b));
    else if (later && products) lo = 0, hi = columns - 1;
    for (int d = group / 2; d; d >>= 1) {
        lo = min(lo, __shfl_xor_sync(ALL, lo, d));
        hi = max(hi, __shfl_xor_sync(ALL, hi, d));
    }
    if (lane == 0) {
        s_products[local] = products;
        s_low[local] = lo;
        s_high[local] = hi;
    }
    __syncthreads();
    // Pieces of the long rows, distributed over the warps, whose loads wait together: the entries', and the rows' of B.
    constexpr int LOADS = 8, PIECE = 32 * LOADS;
    for (int l = 0, piece = threadIdx.x >> 5; l < longs;) {
        const int at = s_long[l], begin = ptr_a[blockIdx.x * per_block + at], end = ptr_a[blockIdx.x * per_block + at + 1];
        const int pieces = (end - begin + PIECE - 1) / PIECE;
        if (piece >= pieces) {
            piece -= pieces;
            ++l;
            continue;
        }
        Met met[LOADS];
#pragma unroll
        for (int c = 0; c < LOADS; ++c) met[c] = row_met(begin + PIECE * piece + 32 * c + (threadIdx.x & 31), end, idx_a, ptr_b);
        products = 0, lo = 0x7fffffff, hi = -1;
#pragma unroll
        for (int c = 0; c < LOADS; ++c) {
            products += met[c].last - met[c].first;
            look(met[c]);
        }
        for (int d = 16; d; d >>= 1) products += __shfl_xor_sync(ALL, products, d);
        lo = __reduce_min_sync(ALL, lo), hi = __reduce_max_sync(ALL, hi);
        if ((threadIdx.x & 31) == 0 && products) {
            atomicAdd(&s_products[at], products);
            atomicMin(&s_low[at], lo);
            atomicMax(&s_high[at], hi);
        }
        piece += ANALYSIS_THREADS / 32;
    }
    __syncthreads();
    int bin = NO_BIN, width = 0;
    const int mine = blockIdx.x * per_block + threadIdx.x;
    u64 sum = 0;
    if (threadIdx.x < per_block && mine < rows) {
        sum = s_products[threadIdx.x];
        width = sum ? s_high[threadIdx.x] - s_low[threadIdx.x] + 1 : 0;
        const int length = ptr_a[mine + 1] - ptr_a[mine];
        bin = symbolic_bin(sum, width, length, least_sorted);
        if (bin == SYMBOLIC_HUB) {
            atomicAdd((u64*)&head[HUB_PRODUCTS], sum);
            atomicAdd(&head[HUB_ENTRIES], length);
            atomicMax(&head[MOST_STEPS], int(min(row_steps(sum, length), u64(0x7fffffff))));
        }
    }
    const bool left = bin == SYMBOLIC_FEW && !counted;
    if (const int most = __reduce_max_sync(ALL, left ? int(sum) : 0)) {
        each_of_few(left ? ptr_a[mine] : 0, left ? ptr_a[mine + 1] : 0, 1, idx_a, ptr_b, [](Met) {}, put);
        const int differ = few_columns(left ? int(sum) : 0, most, &s_met[threadIdx.x], idx_b);
        if (left) n = differ;
    }
    if (bin != SYMBOLIC_FEW) n = 0;
    if (threadIdx.x < per_block && mine < rows) {
        entries[mine] = bin == SYMBOLIC_BLOCK_TABLE ? int(sum) : n;
        if (sum) {
            low[mine] = s_low[threadIdx.x];
            span[mine] = bin == SYMBOLIC_FEW ? int(sum) : width;
            if (bin == SYMBOLIC_FEW) slot[mine] = FEW_ROW;
        }
    }
    const int few = __syncthreads_count(bin == SYMBOLIC_FEW);
    if (bin == SYMBOLIC_FEW) bin = NO_BIN;
    if (threadIdx.x == 0 && few) atomicAdd(&head[SYMBOLIC + SYMBOLIC_FEW], few);
    const bool listed = __syncthreads_or(bin != NO_BIN);
    if (listed) append<SYMBOLIC_BINS>(mine, bin, rows, head + SYMBOLIC, lists);
    const bool window = bin >= SYMBOLIC_FIRST_WINDOW && bin < SYMBOLIC_FIRST_WINDOW + SYMBOLIC_WINDOWS;
    const int words = words_of(width), at = window ? atomicAdd(&kept_words, words) : 0;
    __syncthreads();
    if (threadIdx.x == 0 && kept_words) s_kept = atomicAdd((u64*)&head[KEPT], u64(kept_words));
    __syncthreads();
    if (bin != NO_BIN)
        slot[mine] = window                       ? int(min(s_kept + at, u64(MOST_KEPT)))
                     : bin >= SYMBOLIC_FIRST_SORT ? SORTED_ROW - (bin - SYMBOLIC_FIRST_SORT)
                     : bin == SYMBOLIC_HUB        ? HUB_ROW
                     : sum >= BLOCK_PRODUCTS      ? MANY_PRODUCTS
                                                  : NO_BITMAP;
    const int widest = __reduce_max_sync(ALL, bin == SYMBOLIC_BLOCK || bin == SYMBOLIC_HUB ? width : 0);
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
