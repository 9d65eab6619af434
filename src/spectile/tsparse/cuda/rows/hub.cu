// Rows of C with so much work that a block each would keep all others waiting: their products are spread over all threads.
//
//   hub_starts    starts[h] = entries of A in the hub rows before row h
//   hub_lengths   lengths[e] = products of the e-th of these entries;  before = their prefix sums
//   hub_products  words[i] = (h, column, e) of the i-th product;  the words are sorted
//   hub_heads     heads[i] = whether word i has another row or column than the one before;  ranks = their prefix sums
//   hub_entries   entries of row h = heads among its words
//   hub_values    at each head its column, and the sum of the products of its run, in the order of e, which is that of k
//   hub_long      the same sums of long runs, a block each
//
// Invariant: columns of one row of B are distinct, so all words are different and have one order, and every sum is made in
// the order of A's row, as the other kernels make it.

#include "search.cuh"
#include "shared.cuh"

namespace {

__device__ __forceinline__ u32 thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }

// What the kernels that sum know of the hub rows.
struct Hubs {
    int columns;
    const u64* words;
    const int *ranks, *rows, *starts, *before, *ptr_a, *idx_a;
    const STORED* val_a;
    const int *ptr_b, *idx_b;
    const STORED* val_b;
    const int* ptr_c;

    __device__ __forceinline__ int row_of(u32 key) const { return int(key / u32(columns)); }
    __device__ __forceinline__ int column_of(u32 key) const { return int(key % u32(columns)); }

    // The place in C of the head at word i.
    __device__ __forceinline__ int place(u32 i, int h) const {
        const int first = before[starts[h]];
        return ptr_c[rows[h]] + ranks[i] - 1 - (first ? ranks[first - 1] : 0);
    }

    // The entries of A and of B that a word stands for.
    __device__ __forceinline__ void factors(u64 word, int h, int column, VALUE& a, VALUE& b) const {
        const int p = ptr_a[rows[h]] + int(u32(word)) - starts[h], k = idx_a[p], first = ptr_b[k];
        a = val_a[p];
        b = val_b[first + last_at(idx_b + first, 0, ptr_b[k + 1] - first - 1, u32(column))];
    }
};

}  // namespace

extern "C" {

// `list` is overwritten by what follows, and `rows` keeps it.
__global__ void __launch_bounds__(256) hub_starts(int hubs, const int* list, const int* ptr_a, int* rows, int* starts) {
    const int h = thread_number();
    if (h > hubs) return;
    if (h < hubs) rows[h] = list[h];
    int sum = 0;
#pragma unroll 8
    for (int other = 0; other < h; ++other) sum += ptr_a[list[other] + 1] - ptr_a[list[other]];
    starts[h] = sum;
}

__global__ void __launch_bounds__(256) hub_lengths(int hubs, int entries, const int* rows, const int* starts, const int* ptr_a,
                                                   const int* idx_a, const int* ptr_b, int* before) {
    const u32 e = thread_number();
    if (e == 0) before[0] = 0;
    if (e >= u32(entries)) return;
    const int h = last_at(starts, 0, hubs - 1, e), k = idx_a[ptr_a[rows[h]] + int(e) - starts[h]];
    before[e + 1] = ptr_b[k + 1] - ptr_b[k];
}

__global__ void __launch_bounds__(256) hub_products(int hubs, int entries, int products, int columns, const int* rows, const int* starts,
                                                    const int* before, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                                    const int* idx_b, u64* words) {
    const u32 i = thread_number();
    if (i >= u32(products)) return;
    const int e = last_at(before, 0, entries - 1, i), h = last_at(starts, 0, hubs - 1, e);
    const int k = idx_a[ptr_a[rows[h]] + e - starts[h]];
    words[i] = u64(u32(h) * u32(columns) + u32(idx_b[ptr_b[k] + int(i) - before[e]])) << 32 | u32(e);
}

__global__ void __launch_bounds__(256) hub_heads(int products, const u64* words, int* heads) {
    const u32 i = thread_number();
    if (i < u32(products)) heads[i] = i == 0 || words[i] >> 32 != words[i - 1] >> 32;
}

__global__ void __launch_bounds__(256) hub_entries(int hubs, const int* rows, const int* starts, const int* before, const int* ranks,
                                                   int* counts) {
    const int h = thread_number();
    if (h >= hubs) return;
    const int first = before[starts[h]], last = before[starts[h + 1]];
    counts[rows[h]] = ranks[last - 1] - (first ? ranks[first - 1] : 0);
}

// `longs` takes the number of long runs, which is 0 before, and the words that they begin at.
__global__ void __launch_bounds__(256) hub_values(int products, int columns, const u64* words, const int* ranks, const int* rows,
                                                  const int* starts, const int* before, const int* ptr_a, const int* idx_a,
                                                  const STORED* val_a, const int* ptr_b, const int* idx_b, const STORED* val_b,
                                                  const int* ptr_c, int* idx_c, STORED* val_c, int* longs) {
    const u32 i = thread_number(), end = products;
    if (i >= end) return;
    const u32 key = u32(words[i] >> 32);
    if (i && u32(words[i - 1] >> 32) == key) return;
    const Hubs of = {columns, words, ranks, rows, starts, before, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, ptr_c};
    const int h = of.row_of(key), column = of.column_of(key), at = of.place(i, h);
    idx_c[at] = column;
    if (i + HUB_RUN < end && u32(words[i + HUB_RUN] >> 32) == key) {
        longs[1 + atomicAdd(longs, 1)] = int(i);
        return;
    }
    VALUE sum = 0;
    for (u32 j = i; j < end; ++j) {
        const u64 word = words[j];
        if (u32(word >> 32) != key) break;
        VALUE a, b;
        of.factors(word, h, column, a, b);
        sum = add_product(a, b, sum);
    }
    val_c[at] = sum;
}

// The first thread sums what the other warps have read before, while they read what follows.
__global__ void __launch_bounds__(HUB_THREADS) hub_long(int products, int columns, const u64* words, const int* ranks, const int* rows,
                                                        const int* starts, const int* before, const int* ptr_a, const int* idx_a,
                                                        const STORED* val_a, const int* ptr_b, const int* idx_b, const STORED* val_b,
                                                        const int* ptr_c, STORED* val_c, const int* longs) {
    constexpr int READ = HUB_THREADS - 32;
    __shared__ VALUE s_a[2][READ], s_b[2][READ];
    const Hubs of = {columns, words, ranks, rows, starts, before, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, ptr_c};
    for (int item = blockIdx.x; item < longs[0]; item += gridDim.x) {
        const u32 first = longs[1 + item], key = u32(words[first] >> 32);
        const int h = of.row_of(key), column = of.column_of(key), t = int(threadIdx.x) - 32;
        VALUE sum = 0;
        int held = 0, turn = 0;
        u32 base = first;
        do {
            bool mine = false;
            if (t >= 0 && base + t < u32(products)) {
                const u64 word = words[base + t];
                mine = u32(word >> 32) == key;
                if (mine) of.factors(word, h, column, s_a[turn][t], s_b[turn][t]);
            }
            if (threadIdx.x == 0) {
#pragma unroll 8
                for (int j = 0; j < held; ++j) sum = add_product(s_a[turn ^ 1][j], s_b[turn ^ 1][j], sum);
            }
            held = __syncthreads_count(mine);
            base += READ;
            turn ^= 1;
        } while (held);
        if (threadIdx.x == 0) val_c[of.place(first, h)] = sum;
    }
}

}  // extern "C"
