// The list of the products of tiles, and what needs no values: tiles of a CSR matrix, scans, tasks, tiles of C.
//
//   count_tiles               tiles of 8x8 in each row of tiles of a CSR matrix
//   scan                      counts to offsets
//   count_tasks, list_tasks   tasks of each tile of A after the filter, then the list
//   bound_rows                window of columns of each row of tiles of C, and the largest of what follows from it
//   order_warp, order_block   the tasks of a row in their order, counted by columns, where its window fits shared memory
//   heads_of_rows             tiles of C without the gaps between rows
//   segment                   after a sort by keys in place of these two: sorted tasks, tiles of C and their row pointer
//
// The order is by column of C and then by place in the list, that is by column of A.  A key holds, from the top, the row of
// tiles of C, the column of tiles and the place in the list, so that a tile of C is a run of equal tops.

#include "tiles/bitmaps.cuh"

namespace {

constexpr int SCAN_ITEMS = 8;                    // of a thread
constexpr int SCAN_BLOCK = 256 * SCAN_ITEMS;     // of a block

}  // namespace

extern "C" {

// One warp a row of tiles.
__global__ void __launch_bounds__(128) count_tiles(int rows, const int* ptr, const int* idx, int* counts) {
    __shared__ u32 s_bits[4][WINDOW_WORDS];
    __shared__ int s_before[4][WINDOW_WORDS];
    const int warp = threadIdx.x >> 5, tile_row = blockIdx.x * 4 + warp;
    if (8 * tile_row >= rows) return;
    const TileRow row(rows, ptr, idx, tile_row);
    int count = 0;
    if (row.words <= WINDOW_WORDS)
        count = mark_tiles(row, idx, s_bits[warp], s_before[warp]);
    else
        walk(row, idx, [&](int, u32, int) { ++count; });
    if ((threadIdx.x & 31) == 0) counts[tile_row] = count;
}

// Offsets of `count` counts, and their sum at the end; `ticket` and `states` begin as 0.
__global__ void __launch_bounds__(256) scan(int count, const int* counts, int* offsets, int* ticket, u64* states, u64* total) {
    __shared__ int s_ticket;
    if (threadIdx.x == 0) s_ticket = atomicAdd(ticket, 1);
    __syncthreads();
    const int first = s_ticket * SCAN_BLOCK + threadIdx.x * SCAN_ITEMS;
    int held[SCAN_ITEMS];
    u64 own = 0, sum;
#pragma unroll
    for (int i = 0; i < SCAN_ITEMS; ++i) {
        held[i] = first + i < count ? counts[first + i] : 0;
        own += held[i];
    }
    u64 before = scan_block(own, sum);
    before += sum_before(s_ticket, sum, states);
#pragma unroll
    for (int i = 0; i < SCAN_ITEMS; ++i) {
        if (first + i < count) offsets[first + i] = int(before);
        before += held[i];
        if (first + i == count - 1) {
            offsets[count] = int(before);
            *total = before;
        }
    }
}

// Tasks of each tile of A after the filter: a column of it meets a row of B's tile.  Eight lanes a tile.
__global__ void __launch_bounds__(256) count_tasks(int tiles, const int* a_column, const u64* a_bitmaps, const int* b_ptr,
                                                   const u64* b_bitmaps, int* counts) {
    const int a = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    if (a >= tiles) return;
    const u32 mask = 0xffu << (threadIdx.x & 24), columns = columns_met(a_bitmaps[a]);
    const int k = a_column[a], end = b_ptr[k + 1];
    int count = 0;
    for (int b = b_ptr[k] + lane; b < end; b += 8) count += (columns & rows_met(b_bitmaps[b])) != 0;
    count = __reduce_add_sync(mask, count);
    if (lane == 0) counts[a] = count;
}

// The tasks of tiles [first, first + tiles) of A, whose first row of tiles is `row`.
__global__ void __launch_bounds__(256) list_tasks(int first, int tiles, int row, int column_bits, int place_bits,
                                                  const int* a_row, const int* a_column, const u64* a_bitmaps,
                                                  const int* b_ptr, const int* b_column, const u64* b_bitmaps,
                                                  const int* offsets, int2* list, u64* keys) {
    const int a = first + ((blockIdx.x * blockDim.x + threadIdx.x) >> 3), lane = threadIdx.x & 7;
    if (a >= first + tiles) return;
    const u32 mask = 0xffu << (threadIdx.x & 24), columns = columns_met(a_bitmaps[a]);
    const int k = a_column[a], end = b_ptr[k + 1];
    const u64 top = u64(a_row[a] - row) << column_bits;
    int at = int(u32(offsets[a]) - u32(offsets[first]));
    for (int base = b_ptr[k]; base < end; base += 8) {
        const int b = base + lane;
        const bool kept = b < end && (columns & rows_met(b_bitmaps[b])) != 0;
        const u32 all = __ballot_sync(mask, kept) & mask;
        if (kept) {
            const int place = at + __popc(all & ((1u << (threadIdx.x & 31)) - 1));
            list[place] = make_int2(a, b);
            if (keys) keys[place] = (top | u32(b_column[b])) << place_bits | u32(place);
        }
        at += __popc(all);
    }
}

// The window of each row of tiles of C: its first column of tiles and its words.  The largest number of words, of tasks and of
// tiles of A among the rows go to `most`.  Eight lanes a row.
__global__ void __launch_bounds__(256) bound_rows(int rows, const int* a_ptr, const int* a_column, const int* b_ptr,
                                                  const int* b_column, const int* offsets, int* low, int* words, int* most) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    int first = NONE, last = -1, tasks = 0, tiles = 0;
    if (row < rows) {
        const int begin = a_ptr[row], end = a_ptr[row + 1];
        for (int a = begin + lane; a < end; a += 8) {
            const int k = a_column[a], from = b_ptr[k], to = b_ptr[k + 1];
            if (from == to) continue;
            first = min(first, b_column[from]);
            last = max(last, b_column[to - 1]);
        }
        tiles = end - begin;
        tasks = int(u32(offsets[end]) - u32(offsets[begin]));
    }
    for (int d = 4; d; d >>= 1) {
        first = min(first, __shfl_xor_sync(ALL, first, d));
        last = max(last, __shfl_xor_sync(ALL, last, d));
    }
    const int count = last < 0 ? 0 : (last - first) / 32 + 1;
    if (row < rows && lane == 0) {
        low[row] = first;
        words[row] = count;
    }
    const int largest[3] = {__reduce_max_sync(ALL, count), __reduce_max_sync(ALL, tasks), __reduce_max_sync(ALL, tiles)};
    if ((threadIdx.x & 31) < 3) atomicMax(&most[threadIdx.x & 31], largest[threadIdx.x & 31]);
}

}  // extern "C"

namespace {

template <int THREADS> __device__ __forceinline__ void wait() {
    if (THREADS == 32)
        __syncwarp();
    else
        __syncthreads();
}

// Exclusive sums of `count` values in place over a group of THREADS; returns the total.
template <int THREADS> __device__ __forceinline__ int sum_up(int count, int* values, int thread) {
    __shared__ int s_sums[THREADS / 32];
    int total = 0;
    for (int base = 0; base < count; base += THREADS) {
        const int at = base + thread, value = at < count ? values[at] : 0;
        int before = prefix_scan<32>(value, thread & 31, ALL) - value, sum = __shfl_sync(ALL, before + value, 31);
        if (THREADS > 32) {
            if ((thread & 31) == 0) s_sums[thread >> 5] = sum;
            __syncthreads();
            sum = 0;
            for (int w = 0; w < THREADS / 32; ++w) {
                if (w < thread >> 5) before += s_sums[w];
                sum += s_sums[w];
            }
            __syncthreads();
        }
        if (at < count) values[at] = total + before;
        total += sum;
    }
    wait<THREADS>();
    return total;
}

// The tasks of one row of tiles of C in their order, and its tiles of C from the place of its first task on.  `words` words
// of shared memory for each of `bits` and `before`, and one for each tile of C in `counts`.
template <int THREADS>
__device__ __forceinline__ void order_row(int thread, int begin, int tasks, int low, int words, u32* bits, int* before,
                                          int* counts, const int2* list, const int* b_column, int* slots, int2* sorted,
                                          int2* heads, int* tiles) {
    for (int w = thread; w < words; w += THREADS) bits[w] = 0;
    wait<THREADS>();
    list += begin, sorted += begin, slots += begin, heads += begin;
    for (int t = thread; t < tasks; t += THREADS) {
        const int column = b_column[list[t].y] - low;
        atomicOr(&bits[column >> 5], 1u << (column & 31));
    }
    wait<THREADS>();
    for (int w = thread; w < words; w += THREADS) before[w] = __popc(bits[w]);
    wait<THREADS>();
    const int count = sum_up<THREADS>(words, before, thread);
    const auto rank = [&](int column) {
        return before[column >> 5] + __popc(bits[column >> 5] & ((1u << (column & 31)) - 1));
    };
    for (int c = thread; c < count; c += THREADS) counts[c] = 0;
    wait<THREADS>();
    for (int t = thread; t < tasks; t += THREADS) atomicAdd(&counts[rank(b_column[list[t].y] - low)], 1);
    wait<THREADS>();
    sum_up<THREADS>(count, counts, thread);
    // In any order within a tile of C; then each finds its place among them.
    for (int t = thread; t < tasks; t += THREADS) slots[atomicAdd(&counts[rank(b_column[list[t].y] - low)], 1)] = t;
    wait<THREADS>();
    for (int p = thread; p < tasks; p += THREADS) {
        const int t = slots[p];
        const int2 task = list[t];
        const int column = b_column[task.y], c = rank(column - low);
        const int first = c ? counts[c - 1] : 0, end = counts[c];
        int at = first;
        for (int q = first; q < end; ++q) at += slots[q] < t;
        sorted[at] = task;
        if (at == first) heads[c] = make_int2(begin + first, column);
    }
    if (thread == 0) *tiles = count;
}

}  // namespace

extern "C" {

// The rows [first, first + rows) of tiles; `most_words` and `most_tiles` are what shared memory holds for each.
#define ORDER(NAME, THREADS)                                                                                              \
    __global__ void __launch_bounds__(256) NAME(int first, int rows, int most_words, int most_tiles, const int* a_ptr,    \
                                                const int* offsets, const int* low, const int* words, const int2* list,   \
                                                const int* b_column, int* slots, int2* sorted, int2* heads, int* tiles) { \
        extern __shared__ int s_all[];                                                                                    \
        const int group = threadIdx.x / THREADS, row = blockIdx.x * (256 / THREADS) + group;                              \
        if (row >= rows) return;                                                                                          \
        int* own = s_all + group * (2 * most_words + most_tiles);                                                         \
        const u32 start = offsets[a_ptr[first]];                                                                          \
        const int begin = int(u32(offsets[a_ptr[first + row]]) - start);                                                  \
        const int tasks = int(u32(offsets[a_ptr[first + row + 1]]) - start) - begin;                                      \
        order_row<THREADS>(threadIdx.x % THREADS, begin, tasks, low[first + row], words[first + row], (u32*)own,          \
                           own + most_words, own + 2 * most_words, list, b_column, slots, sorted, heads, tiles + row);    \
    }
ORDER(order_warp, 32)
ORDER(order_block, 256)

// Tiles of C one after the other; eight lanes a row.
__global__ void __launch_bounds__(256) heads_of_rows(int first, int rows, int count, const int* a_ptr, const int* offsets,
                                                     const int* c_ptr, const int2* heads, int2* dense) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (row >= rows) return;
    const int begin = int(u32(offsets[a_ptr[first + row]]) - u32(offsets[a_ptr[first]])), to = c_ptr[row];
    for (int c = threadIdx.x & 7; c < c_ptr[row + 1] - to; c += 8) dense[to + c] = heads[begin + c];
    if (row == rows - 1 && (threadIdx.x & 7) == 0) dense[c_ptr[rows]] = make_int2(count, 0);
}

// Sorted tasks, and each tile of C: its first task and its column, written over the keys, which begin one place later.  So a
// head lies below the keys of its block, and what is there was read by the blocks before, whose sums have been handed in.
__global__ void __launch_bounds__(256) segment(int count, int rows, int column_bits, int place_bits, const int2* list,
                                               int2* heads, int2* sorted, int* c_ptr, int* ticket, u64* states, u64* total) {
    const u64* keys = (const u64*)heads + 1;
    __shared__ int s_ticket;
    if (threadIdx.x == 0) s_ticket = atomicAdd(ticket, 1);
    __syncthreads();
    // Thread by thread a strip of keys, so that the strips of a warp follow each other.
    const int first = s_ticket * SCAN_BLOCK + threadIdx.x * SCAN_ITEMS;
    u64 held[SCAN_ITEMS + 1];
#pragma unroll
    for (int i = 0; i <= SCAN_ITEMS; ++i) {
        const int at = first + i - 1;
        held[i] = at >= 0 && at < count ? keys[at] : ~0ull;
    }
    u64 own = 0, sum;
#pragma unroll
    for (int i = 1; i <= SCAN_ITEMS; ++i)
        own += first + i - 1 < count && (held[i] >> place_bits != held[i - 1] >> place_bits || first + i == 1);
    u64 before = scan_block(own, sum);
    before += sum_before(s_ticket, sum, states);
    int tile = int(before);
    const u64 places = (1ull << place_bits) - 1;
    const u32 columns = u32((1ull << column_bits) - 1);
    int row = 0;
#pragma unroll
    for (int i = 1; i <= SCAN_ITEMS; ++i) {
        const int at = first + i - 1;
        if (at >= count) break;
        sorted[at] = list[held[i] & places];
        const u64 top = held[i] >> place_bits;
        row = int(top >> column_bits);
        if (at > 0 && top == held[i - 1] >> place_bits) continue;
        const int last = at > 0 ? int(held[i - 1] >> place_bits >> column_bits) : -1;
        for (int r = last + 1; r <= row; ++r) c_ptr[r] = tile;
        heads[tile++] = make_int2(at, int(u32(top) & columns));
    }
    if (first < count && first + SCAN_ITEMS >= count) {
        for (int r = row + 1; r <= rows; ++r) c_ptr[r] = tile;
        heads[tile] = make_int2(count, 0);
        *total = u64(tile);
    }
}

}  // extern "C"
