// Values of C where all patterns are known: the products of each entry of C in a list, made once for many values.
//
//   count_products   how many products each entry of C has
//   list_products    the entry of A and the entry of B of each
//   sort_lists       each list in the order of k
//   find_heads       where the lists of 32 entries begin, in memory and in A, and how far apart their entries of A lie
//   pack_lists       both entries of a product in one word of 32 bits
//   numeric_list,    values of C, a thread for each entry; rows are not looked at
//   numeric_packed
//
//   for each entry e of C:  c[e] = the sum of a[p] b[q] over the products (p, q) of its list, in order
//
// Invariant: a list holds each product of its entry once, in the order of k, so sums are those of the other kernels.

#include "rows/rows.cuh"
#include "search.cuh"

namespace {

using u16 = unsigned short;

constexpr int READERS = 8;  // lanes that read the row of B of an entry of A
constexpr u32 ALONE = 256;  // products of a list that one thread sorts

// visit(e, p, q) for every product: entry e of C is met by entry p of A and entry q of B.
template <class Visit>
__device__ __forceinline__ void every_product(int nnz_a, int rows, const int* ptr_a, const int* idx_a, const int* ptr_b, const int* idx_b,
                                              const int* ptr_c, const int* idx_c, Visit visit) {
    const int lane = threadIdx.x & (READERS - 1), stride = gridDim.x * blockDim.x / READERS;
    for (int p = (blockIdx.x * blockDim.x + threadIdx.x) / READERS; p < nnz_a; p += stride) {
        const int row = last_at(ptr_a, 0, rows - 1, p), k = idx_a[p], first = ptr_b[k], last = ptr_b[k + 1];
        for (int q = first + lane; q < last; q += READERS) {
            const int column = idx_b[q];
            int low = ptr_c[row], high = ptr_c[row + 1] - 1;
            while (low < high) {
                const int middle = low + (high - low) / 2;
                if (idx_c[middle] < column) low = middle + 1;
                else high = middle;
            }
            visit(low, p, q);
        }
    }
}

// Sorts a list by all lanes: halves that are sorted become wholes, bitonically.  Each comparison puts the lesser word first, so
// whatever would lie beyond the end counts as greater than all and stays there.
__device__ __forceinline__ void sort_by_warp(u64* list, u32 count, int lane) {
    for (u32 half = 1; half < count; half *= 2)
        for (u32 step = half; step; step /= 2) {
            for (u32 t = lane;; t += 32) {
                const u32 within = t & (step - 1), low = 2 * t - within;
                const u32 high = low + (step == half ? 2 * (step - within) - 1 : step);  // first the halves' mirror images
                if (low >= count) break;
                if (high < count) {
                    const u64 x = list[low], y = list[high];
                    if (x > y) list[low] = y, list[high] = x;
                }
            }
            __syncwarp();
        }
}

// Products as two words of 32 bits, of entries that begin at starts[e].
struct Wide {
    using Word = u64;
    const u32* starts;
    const u64* lists;
    __device__ __forceinline__ void locate(int e, int nnz_c, int, u32& at, u32& end) {
        at = e < nnz_c ? starts[e] : 0;
        end = e < nnz_c ? starts[e + 1] : 0;
    }
    __device__ __forceinline__ u32 of_a(u64 word) const { return word >> 32; }
    __device__ __forceinline__ u32 of_b(u64 word) const { return u32(word); }
};

// Products as one word: the entry of B in the low bits, that of A above, counted from the first that a warp meets.
struct Packed {
    using Word = u32;
    const uint2* heads;
    const u16* counts;
    const u32* lists;
    int bits;
    u32 base;
    __device__ __forceinline__ void locate(int e, int nnz_c, int lane, u32& at, u32& end) {
        const uint2 head = e - lane < nnz_c ? heads[e >> 5] : make_uint2(0, 0);
        const u32 count = e < nnz_c ? counts[e] : 0;
        base = head.x;
        end = head.y + prefix_scan<32>(count, lane, ALL);
        at = end - count;
    }
    __device__ __forceinline__ u32 of_a(u32 word) const { return base + (word >> bits); }
    __device__ __forceinline__ u32 of_b(u32 word) const { return word & ((1u << bits) - 1u); }
};

template <class Form>
__device__ __forceinline__ void add_lists(int nnz_c, Form form, const VALUE* val_a, const VALUE* val_b, VALUE* val_c) {
    constexpr int TOGETHER = 2, FEW = 4;  // products of an entry loaded side by side, and entries left for all lanes
    const int e = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    u32 at, end;
    form.locate(e, nnz_c, lane, at, end);
    VALUE sum = 0;
    while (__popc(__ballot_sync(ALL, at < end)) > FEW) {
        typename Form::Word words[TOGETHER];
        VALUE a[TOGETHER], b[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j)
            if (at + j < end) words[j] = form.lists[at + j];
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j)
            if (at + j < end) {
                a[j] = val_a[form.of_a(words[j])];
                b[j] = val_b[form.of_b(words[j])];
            }
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j)
            if (at + j < end) sum = add_product(a[j], b[j], sum);
        at += TOGETHER;
    }
    // The few entries of a warp with more products than the others: all lanes load for one of them at a time.
    for (u32 longer = __ballot_sync(ALL, at < end); longer; longer &= longer - 1) {
        const int of = __ffs(longer) - 1;
        const u32 stop = __shfl_sync(ALL, end, of);
        VALUE total = __shfl_sync(ALL, sum, of);
        for (u32 t = __shfl_sync(ALL, at, of); t < stop; t += 32) {
            const typename Form::Word word = t + lane < stop ? form.lists[t + lane] : 0;
            const VALUE a = val_a[form.of_a(word)], b = val_b[form.of_b(word)];
            const int many = min(32u, stop - t);
            for (int i = 0; i < many; ++i) total = add_product(__shfl_sync(ALL, a, i), __shfl_sync(ALL, b, i), total);
        }
        if (lane == of) sum = total;
    }
    if (e < nnz_c) val_c[e] = sum;
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) count_products(int nnz_a, int rows, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                                      const int* idx_b, const int* ptr_c, const int* idx_c, u32* counts) {
    every_product(nnz_a, rows, ptr_a, idx_a, ptr_b, idx_b, ptr_c, idx_c, [&](int e, int, int) { atomicAdd(&counts[e], 1u); });
}

// starts[e] is the first product of entry e; `counts` are used up.
__global__ void __launch_bounds__(256) list_products(int nnz_a, int rows, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                                     const int* idx_b, const int* ptr_c, const int* idx_c, u32* counts, const u32* starts,
                                                     u64* lists) {
    every_product(nnz_a, rows, ptr_a, idx_a, ptr_b, idx_b, ptr_c, idx_c,
                  [&](int e, int p, int q) { lists[starts[e + 1] - atomicSub(&counts[e], 1u)] = u64(p) << 32 | u32(q); });
}

// An entry of A occurs once in a list, so the words are in the order of k once they are sorted.
__global__ void __launch_bounds__(256) sort_lists(int nnz_c, const u32* starts, u64* lists) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    const u32 begin = e < nnz_c ? starts[e] : 0, end = e < nnz_c ? starts[e + 1] : 0;
    const bool is_long = end - begin > ALONE;
    for (u32 i = begin + 1; i < end && !is_long; ++i) {
        const u64 word = lists[i];
        u32 at = i;
        for (; at > begin && lists[at - 1] > word; --at) lists[at] = lists[at - 1];
        lists[at] = word;
    }
    for (u32 longer = __ballot_sync(ALL, is_long); longer; longer &= longer - 1) {
        const int of = __ffs(longer) - 1;
        const u32 first = __shfl_sync(ALL, begin, of);
        sort_by_warp(lists + first, __shfl_sync(ALL, end, of) - first, lane);
    }
}

// heads[w]: the first entry of A that the products of entries 32 w to 32 w + 31 meet, and the number of their first product.
__global__ void __launch_bounds__(256) find_heads(int nnz_c, const u32* starts, const u64* lists, uint2* heads, u32* widest) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 begin = e < nnz_c ? starts[e] : 0, end = e < nnz_c ? starts[e + 1] : 0;
    const u32 least = __reduce_min_sync(ALL, begin < end ? u32(lists[begin] >> 32) : ALL);
    const u32 most = __reduce_max_sync(ALL, begin < end ? u32(lists[end - 1] >> 32) : 0);
    if ((threadIdx.x & 31) || e >= nnz_c) return;
    heads[e >> 5] = make_uint2(least, begin);
    if (most > least) atomicMax(widest, most - least);
}

__global__ void __launch_bounds__(256) pack_lists(int nnz_c, int bits, const u32* starts, const u64* lists, const uint2* heads, u16* counts,
                                                  u32* packed) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= nnz_c) return;
    const u32 begin = starts[e], end = starts[e + 1], base = heads[e >> 5].x;
    counts[e] = u16(end - begin);
    for (u32 t = begin; t < end; ++t) packed[t] = (u32(lists[t] >> 32) - base) << bits | u32(lists[t]);
}

__global__ void __launch_bounds__(256) numeric_list(int nnz_c, const u32* starts, const u64* lists, const VALUE* val_a, const VALUE* val_b,
                                                    VALUE* val_c) {
    add_lists(nnz_c, Wide{starts, lists}, val_a, val_b, val_c);
}

__global__ void __launch_bounds__(256) numeric_packed(int nnz_c, int bits, const uint2* heads, const u16* counts, const u32* lists,
                                                      const VALUE* val_a, const VALUE* val_b, VALUE* val_c) {
    add_lists(nnz_c, Packed{heads, counts, lists, bits, 0}, val_a, val_b, val_c);
}

}  // extern "C"
