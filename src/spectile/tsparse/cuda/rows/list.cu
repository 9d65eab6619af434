// Values of C where all patterns are known: the products of each entry of C in a list, made once for many values.
//
//   count_products   how many products each entry of C has
//   list_products    the entry of A and the entry of B of each
//   sort_lists       each list in the order of k
//   numeric_list     values of C, a thread for each entry; rows are not looked at

#include "rows/rows.cuh"

namespace {

constexpr int READERS = 8;  // lanes that read the row of B of an entry of A

// The last row in [low, high] that begins at or before an entry.
__device__ __forceinline__ int row_of(const int* ptr, int low, int high, int entry) {
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (ptr[middle] <= entry)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// visit(e, p, q) for every product: entry e of C is met by entry p of A and entry q of B.
template <class Visit>
__device__ __forceinline__ void every_product(int nnz_a, int rows, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                              const int* idx_b, const int* ptr_c, const int* idx_c, Visit visit) {
    const int lane = threadIdx.x & (READERS - 1), stride = gridDim.x * blockDim.x / READERS;
    for (int p = (blockIdx.x * blockDim.x + threadIdx.x) / READERS; p < nnz_a; p += stride) {
        const int row = row_of(ptr_a, 0, rows - 1, p), k = idx_a[p], first = ptr_b[k], last = ptr_b[k + 1];
        for (int q = first + lane; q < last; q += READERS) {
            const int column = idx_b[q];
            int low = ptr_c[row], high = ptr_c[row + 1] - 1;
            while (low < high) {
                const int middle = low + (high - low) / 2;
                if (idx_c[middle] < column)
                    low = middle + 1;
                else
                    high = middle;
            }
            visit(low, p, q);
        }
    }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) count_products(int nnz_a, int rows, const int* ptr_a, const int* idx_a,
                                                      const int* ptr_b, const int* idx_b, const int* ptr_c,
                                                      const int* idx_c, u32* counts) {
    every_product(nnz_a, rows, ptr_a, idx_a, ptr_b, idx_b, ptr_c, idx_c,
                  [&](int e, int, int) { atomicAdd(&counts[e], 1u); });
}

// starts[e] is the first product of entry e; `counts` are used up.
__global__ void __launch_bounds__(256) list_products(int nnz_a, int rows, const int* ptr_a, const int* idx_a,
                                                     const int* ptr_b, const int* idx_b, const int* ptr_c,
                                                     const int* idx_c, u32* counts, const u32* starts, u64* lists) {
    every_product(nnz_a, rows, ptr_a, idx_a, ptr_b, idx_b, ptr_c, idx_c, [&](int e, int p, int q) {
        lists[starts[e + 1] - atomicSub(&counts[e], 1u)] = u64(p) << 32 | u32(q);
    });
}

// An entry of A occurs once in a list, so the words are in the order of k once they are sorted.
__global__ void __launch_bounds__(256) sort_lists(int nnz_c, const u32* starts, u64* lists) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= nnz_c) return;
    const u32 begin = starts[e], end = starts[e + 1];
    for (u32 i = begin + 1; i < end; ++i) {
        const u64 word = lists[i];
        u32 at = i;
        for (; at > begin && lists[at - 1] > word; --at) lists[at] = lists[at - 1];
        lists[at] = word;
    }
}

__global__ void __launch_bounds__(256) numeric_list(int nnz_c, const u32* starts, const u64* lists, const VALUE* val_a,
                                                    const VALUE* val_b, VALUE* val_c) {
    constexpr int TOGETHER = 2, FEW = 4;  // products of an entry loaded side by side, and entries left for all lanes
    const int e = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    u32 at = 0, end = 0;
    if (e < nnz_c) {
        at = starts[e];
        end = starts[e + 1];
    }
    VALUE sum = 0;
    while (__popc(__ballot_sync(ALL, at < end)) > FEW) {
        u64 words[TOGETHER];
        VALUE a[TOGETHER], b[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j)
            if (at + j < end) words[j] = lists[at + j];
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j)
            if (at + j < end) {
                a[j] = val_a[words[j] >> 32];
                b[j] = val_b[u32(words[j])];
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
            const u64 word = t + lane < stop ? lists[t + lane] : 0;
            const VALUE a = val_a[word >> 32], b = val_b[u32(word)];
            const int many = min(32u, stop - t);
            for (int i = 0; i < many; ++i) total = add_product(__shfl_sync(ALL, a, i), __shfl_sync(ALL, b, i), total);
        }
        if (lane == of) sum = total;
    }
    if (e < nnz_c) val_c[e] = sum;
}

}  // extern "C"
