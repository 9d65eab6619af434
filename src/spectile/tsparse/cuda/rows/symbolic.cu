// Entries of each row of C but those of the block bin: the rows of one FAMILY of bins (WINDOWS, TABLES or SORTS), since most
// products have rows of one or two.  With BY_BLOCKS a block counts a row of a window bin, else a group of lanes.
//
//   for each bin, long rows first; for each row of its list, a group of lanes a row:
//       WINDOWS  set the bit of each product's column;  entries = bits set;  keep the bitmap if there is room
//       TABLES   insert each product's column into a hash table;  entries = insertions of new columns
//       SORTS    list all products, sort their columns;  entries = columns that differ from the one before
//
// Invariant: a bin's table has room for every row of its list, so no search for a free place runs on without end.

#include "rows/sort.cuh"

#define WINDOWS 0
#define TABLES 1
#define SORTS 2

namespace {

#if FAMILY == WINDOWS && BY_BLOCKS
constexpr int TABLE = SYMBOLIC_WINDOW_8192_WORDS / 4;  // words a warp: four have a bitmap together
#elif FAMILY == WINDOWS
constexpr int TABLE = WINDOW_WARP_WORDS;
#elif FAMILY == TABLES
constexpr int TABLE = TABLE_WARP_WORDS;
#else
constexpr int TABLE = SORT_WARP_WORDS;
#endif

template <int G>
__device__ __forceinline__ void symbolic_window(int row, u32* bits, const int* ptr_a, const int* idx_a, const int* ptr_b, const int* idx_b,
                                                const int* low, const int* span, const int* slot, int* entries, u32* kept, int capacity,
                                                int log, int lane, u32 mask) {
    const int words = (span[row] + 31) >> 5, at = slot[row];
    mark_columns<G>(row, low[row], words, bits, ptr_a, idx_a, ptr_b, idx_b, log, lane, mask);
    const bool keep = at + words <= capacity;
    int total = 0;
    for (int w = lane; w < words; w += G) {
        if (keep) kept[at + w] = bits[w];
        total += __popc(bits[w]);
    }
    for (int d = G / 2; d; d >>= 1) total += __shfl_xor_sync(mask, total, d, G);
    if (lane == 0) entries[row] = total;
}

template <int G, int LOG>
__device__ __forceinline__ void symbolic_hash(int row, int* keys, const int* ptr_a, const int* idx_a, const int* ptr_b, const int* idx_b,
                                              int* entries, int log, int lane, u32 mask) {
    for (int t = lane; t < 1 << LOG; t += G) keys[t] = -1;
    __syncwarp(mask);
    int total = 0;
    each_column<G, 1, false>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, idx_b, log, lane, mask, [&](int column) {
        bool added = false;
        insert(keys, LOG, column, added);
        total += added;
    });
    __syncwarp(mask);
    for (int d = G / 2; d; d >>= 1) total += __shfl_xor_sync(mask, total, d, G);
    if (lane == 0) entries[row] = total;
}

template <int G>
__device__ __forceinline__ void symbolic_sort(int row, int* met, const int* ptr_a, const int* idx_a, const int* ptr_b, const int* idx_b,
                                              int* entries, int lane, u32 mask) {
    const int total = list_products<G>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, lane, mask, [&](int slot, int, int q) { met[slot] = q; });
    __syncwarp(mask);
    u32 words[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) words[i] = i * G + lane < total ? u32(idx_b[met[i * G + lane]]) : ALL;
    sort_words<G, EACH>(words, lane, mask);
    bool head[EACH];
    find_heads<G>(words, 0, lane, mask, head);
    int heads = head[0] + head[1] + head[2] + head[3];
    for (int d = G / 2; d; d >>= 1) heads += __shfl_xor_sync(mask, heads, d, G);
    if (lane == 0) entries[row] = heads;
}

// The symbolic phase by warps: bin after bin, long rows first, each warp as many rows at a time as it has groups of lanes.
struct Rows {
    int rows;
    const int *lists, *ptr_a, *idx_a, *ptr_b, *idx_b, *low, *span, *slot;
    int* entries;
    u32* kept;
    int capacity;
    const int* head;
    int log;     // lanes that read a row of B
    u32* table;  // of this warp
    int item;    // the next of this warp, counted from the bin's first
};

// do_row(row, table, lane, mask) for the rows of a bin that fall to this warp; a group of G lanes has a table of SIZE words.
template <int G, int SIZE, class Row>
__device__ __forceinline__ void rows_of_bin(Rows& of, int bin, Row do_row) {
    constexpr int GROUPS = 32 / G, STRIDE = G < 32 ? SIZE + G : SIZE;  // groups of one warp start in different banks
    const int count = of.head[SYMBOLIC + bin], items = (count + GROUPS - 1) / GROUPS;
    const int lane = threadIdx.x & (G - 1), group = (threadIdx.x & 31) / G;
    const int* list = list_of(of.lists, bin, of.rows, count);
    static_assert(GROUPS * STRIDE <= TABLE, "tables of a warp");
    for (; of.item < items; of.item += gridDim.x * (blockDim.x >> 5)) {
        const int place = of.item * GROUPS + group;
        if (place < count) do_row(list[place], of.table + group * STRIDE, lane, group_mask<G>());
        __syncwarp();
    }
    of.item -= items;
}

template <int G, int WORDS>
__device__ __forceinline__ void window_rows(Rows& of, int bin) {
    // 16 lanes take a row where the mean is above MIDDLE_MEAN: all of them read one row of B, which spares the other code.
    static_assert(MIDDLE_MEAN >= 8, "means that 16 lanes meet");
    const int log = G == 16 ? 4 : of.log;
    rows_of_bin<G, WORDS>(of, bin, [&](int row, u32* table, int lane, u32 mask) {
        symbolic_window<G>(row, table, of.ptr_a, of.idx_a, of.ptr_b, of.idx_b, of.low, of.span, of.slot, of.entries, of.kept, of.capacity,
                           log, lane, mask);
    });
}

// The same by the whole block, a row at a time: each warp takes a part of A's row.  For matrices of few rows, which would
// leave the device half empty at a warp a row.
__device__ __forceinline__ void window_rows_by_blocks(const Rows& of, int bin, u32* bits) {
    const int count = of.head[SYMBOLIC + bin], warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int* list = list_of(of.lists, bin, of.rows, count);
    for (int place = blockIdx.x; place < count; place += gridDim.x) {
        const int row = list[place], start = of.low[row], words = (of.span[row] + 31) >> 5, at = of.slot[row];
        for (int w = threadIdx.x; w < words; w += blockDim.x) bits[w] = 0;
        __syncthreads();
        const int begin = of.ptr_a[row], part = (of.ptr_a[row + 1] - begin + 3) >> 2, from = begin + warp * part;
        each_column<32, 2, true>(from, min(from + part, of.ptr_a[row + 1]), of.idx_a, of.ptr_b, of.idx_b, of.log, lane, ALL,
                                 [&](int column) {
                                     const int offset = column - start;
                                     set_bit(&bits[offset >> 5], offset);
                                 });
        __syncthreads();
        int total = 0;
        for (int w = threadIdx.x; w < words; w += blockDim.x) {
            if (at + words <= of.capacity) of.kept[at + w] = bits[w];
            total += __popc(bits[w]);
        }
        total = __reduce_add_sync(ALL, total);
        if (lane == 0 && total) atomicAdd(&of.entries[row], total);
        __syncthreads();
    }
}

template <int G, int LOG>
__device__ __forceinline__ void hash_rows(Rows& of, int bin) {
    rows_of_bin<G, 1 << LOG>(of, bin, [&](int row, u32* table, int lane, u32 mask) {
        symbolic_hash<G, LOG>(row, (int*)table, of.ptr_a, of.idx_a, of.ptr_b, of.idx_b, of.entries, of.log, lane, mask);
    });
}

template <int G>
__device__ __forceinline__ void sorted_rows(Rows& of, int bin) {
    rows_of_bin<G, EACH * G>(of, bin, [&](int row, u32* table, int lane, u32 mask) {
        symbolic_sort<G>(row, (int*)table, of.ptr_a, of.idx_a, of.ptr_b, of.idx_b, of.entries, lane, mask);
    });
}

}  // namespace

extern "C" {

// Entries of the rows of the family's bins.
__global__ void __launch_bounds__(128) symbolic_groups(int rows, int nnz, const int* lists, const int* ptr_a, const int* idx_a,
                                                       const int* ptr_b, const int* idx_b, const int* low, const int* span, const int* slot,
                                                       int* entries, u32* kept, int capacity, const int* head) {
    __shared__ __align__(16) u32 s_tables[4][TABLE];
    if (invalid(head)) return;
    const float mean = mean_row(head, nnz);
    Rows of = {rows, lists, ptr_a, idx_a, ptr_b, idx_b, low, span, slot, entries, kept, capacity, head, lanes_of(mean)};
    of.table = s_tables[threadIdx.x >> 5];
    of.item = blockIdx.x + gridDim.x * (threadIdx.x >> 5);  // neighbours go to different multiprocessors
#if FAMILY == WINDOWS && BY_BLOCKS
#pragma unroll 1
    for (int bin = SYMBOLIC_WINDOW_8192; bin >= SYMBOLIC_WINDOW_2048; --bin) window_rows_by_blocks(of, bin, s_tables[0]);
#elif FAMILY == WINDOWS
    // Both bins go through one copy of the code for a whole warp.
    const int last = mean > LONG_MEAN ? SYMBOLIC_WINDOW_2048 : SYMBOLIC_WINDOW_8192;
#pragma unroll 1
    for (int bin = SYMBOLIC_WINDOW_8192; bin >= last; --bin) window_rows<32, SYMBOLIC_WINDOW_8192_WORDS>(of, bin);
    if (mean > MIDDLE_MEAN && mean <= LONG_MEAN) window_rows<16, SYMBOLIC_WINDOW_2048_WORDS>(of, SYMBOLIC_WINDOW_2048);
    else if (mean <= MIDDLE_MEAN) window_rows<8, SYMBOLIC_WINDOW_2048_WORDS>(of, SYMBOLIC_WINDOW_2048);
#elif FAMILY == TABLES
#define COUNT(BIN, LANES, LOG) hash_rows<LANES, LOG>(of, BIN);
    EACH_SYMBOLIC_TABLE(COUNT)
#else
#define COUNT(BIN, LANES, LOG) sorted_rows<LANES>(of, BIN);
    EACH_SYMBOLIC_SORT(COUNT)
#endif
}

}  // extern "C"
