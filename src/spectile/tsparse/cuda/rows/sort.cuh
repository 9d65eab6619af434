// Rows of few products: all products of a row side by side in the registers of a group of lanes, sorted by column.

#include "rows/rows.cuh"

namespace {

// Sort K words a lane, lane by lane in increasing order over a group of G lanes: a bitonic network whose short steps stay
// within a lane.  The first step of a size compares mirror images, so that all of them put the lesser word first.
template <int G, int K>
__device__ __forceinline__ void sort_words(u32 (&words)[K], int lane, u32 mask) {
#pragma unroll
    for (int size = 2; size <= G * K; size <<= 1) {
#pragma unroll
        for (int step = size >> 1; step; step >>= 1) {
            const bool mirrored = step == size >> 1;
            if (step >= K) {
                const bool upper = lane & step / K;
                u32 others[K];
#pragma unroll
                for (int i = 0; i < K; ++i)
                    others[i] = __shfl_xor_sync(mask, words[mirrored ? K - 1 - i : i], mirrored ? size / K - 1 : step / K, G);
#pragma unroll
                for (int i = 0; i < K; ++i) words[i] = (others[i] < words[i]) != upper ? others[i] : words[i];
            } else {
#pragma unroll
                for (int i = 0; i < K; ++i)
                    if ((i & step) == 0) {
                        const int other = mirrored ? i ^ (size - 1) : i + step;
                        const u32 x = words[i], y = words[other];
                        words[i] = min(x, y);
                        words[other] = max(x, y);
                    }
            }
        }
    }
}

// Sort the words of each lane by itself, those that are not ALL among the first `most`: a bitonic network, as far as it is needed.
__device__ __forceinline__ void sort_few(u32 (&words)[FEW_MOST], int most) {
#pragma unroll
    for (int size = 2; size <= FEW_MOST; size <<= 1) {
        if (size > 2 && most <= size / 2) break;
#pragma unroll
        for (int step = size >> 1; step; step >>= 1)
#pragma unroll
            for (int i = 0; i < FEW_MOST; ++i)
                if ((i & step) == 0) {
                    const u32 x = words[i], y = words[i + step];
                    words[i] = (i & size) == 0 ? min(x, y) : max(x, y);
                    words[i + step] = (i & size) == 0 ? max(x, y) : min(x, y);
                }
    }
}

constexpr int TOGETHER = 4;  // entries of A whose rows of B a thread looks up side by side

// look(row of B) for the entries of A that a thread meets, each `stride`-th, and put(slot, p, q) for their first products, in the
// order of k, as `list_products`.  Returns how many products there are.
template <class Look, class Put>
__device__ __forceinline__ u64 each_of_few(int begin, int end, int stride, const int* idx_a, const int* ptr_b, Look look, Put put) {
    u64 products = 0;
    for (int base = begin; base < end; base += TOGETHER * stride) {
        Met met[TOGETHER];
#pragma unroll
        for (int d = 0; d < TOGETHER; ++d) met[d] = row_met(base + d * stride, end, idx_a, ptr_b);
#pragma unroll
        for (int d = 0; d < TOGETHER; ++d) look(met[d]);
#pragma unroll
        for (int d = 0; d < TOGETHER; ++d) {
            const int length = met[d].last - met[d].first;
            for (int i = 0; i < length && products + i < FEW_MOST; ++i) put(int(products) + i, base + d * stride, met[d].first + i);
            products += length;
        }
    }
    return products;
}

// Products that a lane of a sorting group holds: a group of G lanes takes a row of at most 4 G products.
constexpr int EACH = 4;

// put(slot, p, q) for every product of a row, its slots in the order of k: entry p of A times entry q of B.  Returns how
// many there are.
template <int G, class Put>
__device__ __forceinline__ int list_products(int begin, int end, const int* idx_a, const int* ptr_b, int lane, u32 mask, Put put) {
    int total = 0;
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const int sum = prefix_scan<G>(met.last - met.first, lane, mask);
        int slot = total + sum - (met.last - met.first);
        for (int q = met.first; q < met.last; ++q) put(slot++, base + lane, q);
        total += __shfl_sync(mask, sum, G - 1, G);
    }
    return total;
}

// Which of a lane's sorted words begin a new column; `log` low bits are not the column's.
template <int G>
__device__ __forceinline__ void find_heads(const u32 (&words)[EACH], int log, int lane, u32 mask, bool (&head)[EACH]) {
    const u32 before = __shfl_up_sync(mask, words[EACH - 1], 1, G);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const u32 previous = i ? words[i - 1] : before;
        head[i] = words[i] != ALL && ((lane == 0 && i == 0) || words[i] >> log != previous >> log);
    }
}

}  // namespace
