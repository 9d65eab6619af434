// The list of the products of tiles, and what needs no values: tiles of a CSR matrix, scans, tasks, tiles of C.
//
//   count_tiles               tiles of 8x8 in each row of tiles of a CSR matrix
//   scan                      counts to offsets
//   count_tasks, list_tasks   tasks of each tile of A after the filter, then the list
//   bound_rows                window of columns of each row of tiles of C, and the largest of what follows from it
//   order_warp, order_block   the tasks of a row in their order, counted by columns, where its window fits shared memory
//   order_long                the same for long rows
//   heads_of_rows             tiles of C without the gaps between rows
//   segment                   after a sort by keys in place of these two: sorted tasks, tiles of C and their row pointer
//
//   for each tile A[i, j], for each tile B[j, k] that meets it (a column of the one holds an entry where a row of the other does):
//       list the task (A[i, j], B[j, k])
//   sort the tasks of a row i of tiles by k, and those of one k by j;  a run of equal (i, k) is the tile C[i, k]
//
// Invariant: every tile of C has a task, and its tasks are in the order of j: sums are added in one fixed order.
//
// The order is by column of C and then by place in the list, that is by column of A.  A key holds, from the top, the row of
// tiles of C, the column of tiles and the place in the list, so that a tile of C is a run of equal tops.

#include "bitmaps.cuh"

namespace {

constexpr int SCAN_ITEMS = 8;                 // of a thread
constexpr int SCAN_BLOCK = 256 * SCAN_ITEMS;  // of a block

// Bytes of a tile of B of which any bit set says that it meets an entry of a tile of A.
__device__ __forceinline__ u64 rows_needed(u64 a_bitmap) {
    u64 columns = columns_met(a_bitmap);  // bit k to bit 8 k, then all of its byte
    columns = (columns | columns << 28) & 0x0000000f0000000full;
    columns = (columns | columns << 14) & 0x0003000300030003ull;
    columns = (columns | columns << 7) & 0x0101010101010101ull;
    return columns * 0xff;
}

// The lanes of a warp that work with this one: 8 or all of them.
__device__ __forceinline__ u32 group_mask(int lanes) { return lanes == 32 ? ALL : 0xffu << (threadIdx.x & 24); }

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
    if (row.words <= WINDOW_WORDS) count = mark_tiles(row, idx, s_bits[warp], s_before[warp]);
    else walk(row, idx, [&](int, u32, int) { ++count; });
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

// Tasks of each tile of A after the filter: a column of it meets a row of B's tile.  8 or 32 lanes a tile.
__global__ void __launch_bounds__(256) count_tasks(int lanes, int tiles, const int* a_column, const u64* a_bitmaps, const int* b_ptr,
                                                   const u64* b_bitmaps, int* counts) {
    const int a = (blockIdx.x * 256 + threadIdx.x) / u32(lanes), lane = threadIdx.x & (lanes - 1);
    if (a >= tiles) return;
    const u64 needed = rows_needed(a_bitmaps[a]);
    const int k = a_column[a], end = b_ptr[k + 1];
    int count = 0;
    for (int b = b_ptr[k] + lane; b < end; b += lanes) count += (b_bitmaps[b] & needed) != 0;
    count = __reduce_add_sync(group_mask(lanes), count);
    if (lane == 0) counts[a] = count;
}

// The tasks of tiles [first, first + tiles) of A, whose first row of tiles is `row`.
__global__ void __launch_bounds__(256) list_tasks(int lanes, int first, int tiles, int row, int column_bits, int place_bits,
                                                  const int* a_row, const int* a_column, const u64* a_bitmaps, const int* b_ptr,
                                                  const int* b_column, const u64* b_bitmaps, const int* offsets, int2* list, u64* keys) {
    const int a = first + (blockIdx.x * 256 + threadIdx.x) / u32(lanes), lane = threadIdx.x & (lanes - 1);
    if (a >= first + tiles) return;
    const u32 mask = group_mask(lanes);
    const u64 needed = rows_needed(a_bitmaps[a]);
    const int k = a_column[a], end = b_ptr[k + 1];
    const u64 top = u64(a_row[a] - row) << column_bits;
    int at = int(u32(offsets[a]) - u32(offsets[first]));
    int b = b_ptr[k] + lane;
    u64 next = b < end ? b_bitmaps[b] : 0;
    for (; b - lane < end; b += lanes) {
        const bool kept = (next & needed) != 0;
        next = b + lanes < end ? b_bitmaps[b + lanes] : 0;
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
// tiles of A among the rows go to `most`.  8 or 32 lanes a row.
__global__ void __launch_bounds__(256) bound_rows(int lanes, int rows, const int* a_ptr, const int* a_column, const int* b_ptr,
                                                  const int* b_column, const int* offsets, int* low, int* words, int* most) {
    const int row = (blockIdx.x * 256 + threadIdx.x) / u32(lanes), lane = threadIdx.x & (lanes - 1);
    int first = NONE, last = -1, tasks = 0, tiles = 0;
    if (row < rows) {
        const int begin = a_ptr[row], end = a_ptr[row + 1];
        for (int a = begin + lane; a < end; a += lanes) {
            const int k = a_column[a], from = b_ptr[k], to = b_ptr[k + 1];
            if (from == to) continue;
            first = min(first, b_column[from]);
            last = max(last, b_column[to - 1]);
        }
        tiles = end - begin;
        tasks = int(u32(offsets[end]) - u32(offsets[begin]));
    }
    for (int d = lanes / 2; d; d >>= 1) {
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

template <int THREADS>
__device__ __forceinline__ void wait() {
    if (THREADS == 32) __syncwarp();
    else __syncthreads();
}

// Exclusive sums of `count` values in place over a group of THREADS; returns the total.
template <int THREADS>
__device__ __forceinline__ int sum_up(int count, int* values, int thread) {
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

// What a group of threads needs of a product's rows to sort one, and its shared memory: `words` words for each of `bits` and
// `before`, and for `room` tiles of C at a time a place and a number of 16 bits for each warp.
struct Sort {
    int words, room;
    const int2* list;
    const int* b_column;
    int2 *sorted, *heads;
};

__device__ constexpr int sort_words(int threads, int words, int room) { return 2 * words + room + (threads / 32 * room + 1) / 2; }

// Tasks of a row that a warp takes.
struct Run {
    int from, to, low;
    const int2* list;
    const int* b_column;

    // `use(task, column)` for all of them, 32 after 32; the column counts from `low`, and is -1 where there is no task.
    template <class Use>
    __device__ __forceinline__ void each(Use use) const {
        constexpr int AHEAD = 4;
        const int lane = threadIdx.x & 31;
        for (int base = from; base < to; base += 32 * AHEAD) {
            int2 task[AHEAD];
            int column[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int t = base + 32 * i + lane;
                task[i] = t < to ? list[t] : make_int2(0, -1);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) column[i] = task[i].y >= 0 ? b_column[task[i].y] - low : -1;
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                if (base + 32 * i < to) use(task[i], column[i]);
        }
    }
};

// The tasks of one row of tiles of C in their order, and its tiles of C from the place of its first task on; returns how many.
// Each warp takes a run of the tasks.  How many of each tile of C every warp has is counted first, so each knows its places.
template <int THREADS>
__device__ __forceinline__ int order_row(int thread, int begin, int tasks, int low, int own_words, int* shared, const Sort& sort) {
    constexpr int WARPS = THREADS / 32;
    u32* bits = (u32*)shared;
    int *before = shared + sort.words, *places = before + sort.words;
    unsigned short* counts = (unsigned short*)(places + sort.room);
    int2 *sorted = sort.sorted + begin, *heads = sort.heads + begin;
    const int warp = thread >> 5, lane = thread & 31;
    const int length = (tasks + THREADS - 1) / THREADS * 32, from = min(warp * length, tasks);
    const Run run = {from, min(from + length, tasks), low, sort.list + begin, sort.b_column};
    for (int w = thread; w < own_words; w += THREADS) bits[w] = 0;
    wait<THREADS>();
    run.each([&](int2, int column) {
        if (column >= 0) atomicOr(&bits[column >> 5], 1u << (column & 31));
    });
    wait<THREADS>();
    for (int w = thread; w < own_words; w += THREADS) before[w] = __popc(bits[w]);
    wait<THREADS>();
    const int tiles = sum_up<THREADS>(own_words, before, thread);
    int start = 0;  // tasks of the tiles of C before
    for (int first = 0; first < tiles; first += sort.room) {
        const int here = min(sort.room, tiles - first);
        const auto number = [&](int column) {
            if (column < 0) return -1;
            const int c = before[column >> 5] + __popc(bits[column >> 5] & ((1u << (column & 31)) - 1)) - first;
            return u32(c) < u32(here) ? c : -1;
        };
        for (int i = thread; i < (WARPS * here + 1) / 2; i += THREADS) ((u32*)counts)[i] = 0;
        wait<THREADS>();
        run.each([&](int2, int column) {
            const int c = number(column), at = warp * here + c;
            if (c >= 0) atomicAdd((u32*)counts + (at >> 1), 1u << (16 * (at & 1)));
        });
        wait<THREADS>();
        for (int c = thread; c < here; c += THREADS) {
            int sum = 0;
            for (int w = 0; w < WARPS; ++w) {
                const int count = counts[w * here + c];
                counts[w * here + c] = (unsigned short)sum;
                sum += count;
            }
            places[c] = sum;
        }
        wait<THREADS>();
        const int sum = sum_up<THREADS>(here, places, thread);
        run.each([&](int2 task, int column) {
            const int c = number(column);
            const u32 same = __match_any_sync(ALL, c), earlier = same & ((1u << lane) - 1);
            const int had = c >= 0 ? counts[warp * here + c] : 0;
            __syncwarp();
            if (c >= 0) {
                const int head = start + places[c], at = head + had + __popc(earlier);
                if (earlier == 0) counts[warp * here + c] = (unsigned short)(had + __popc(same));
                sorted[at] = task;
                if (at == head) heads[first + c] = make_int2(begin + at, low + column);
            }
            __syncwarp();
        });
        start += sum;
        wait<THREADS>();
    }
    return tiles;
}

// First task of a row of tiles of C among those of the rows from `first` on.
__device__ __forceinline__ int first_task(int first, int row, const int* a_ptr, const int* offsets) {
    return int(u32(offsets[a_ptr[first + row]]) - u32(offsets[a_ptr[first]]));
}

}  // namespace

extern "C" {

// The rows [first, first + rows) of tiles of at most `most` tasks; the others are counted in long_rows[0] and listed behind it.
#define ORDER(NAME, THREADS)                                                                                                       \
    __global__ void __launch_bounds__(256, 6) NAME(int first, int rows, int most, int* long_rows, int most_words, int room,        \
                                                   const int* a_ptr, const int* offsets, const int* low, const int* words,         \
                                                   const int2* list, const int* b_column, int2* sorted, int2* heads, int* tiles) { \
        extern __shared__ int s_all[];                                                                                             \
        const int group = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;                                                   \
        const int row = blockIdx.x * (256 / THREADS) + group;                                                                      \
        if (row >= rows) return;                                                                                                   \
        const int begin = first_task(first, row, a_ptr, offsets);                                                                  \
        const int tasks = first_task(first, row + 1, a_ptr, offsets) - begin;                                                      \
        if (tasks > most) {                                                                                                        \
            if (thread == 0) long_rows[1 + atomicAdd(long_rows, 1)] = row;                                                         \
            return;                                                                                                                \
        }                                                                                                                          \
        int* own = s_all + group * sort_words(THREADS, most_words, room);                                                          \
        const Sort sort = {most_words, room, list, b_column, sorted, heads};                                                       \
        const int count = order_row<THREADS>(thread, begin, tasks, low[first + row], words[first + row], own, sort);               \
        if (thread == 0) tiles[row] = count;                                                                                       \
    }
ORDER(order_warp, 32)
ORDER(order_block, 256)

// Those long rows, in any order: what is written does not depend on it.
__global__ void __launch_bounds__(1024) order_long(int first, const int* long_rows, int most_words, int room, const int* a_ptr,
                                                   const int* offsets, const int* low, const int* words, const int2* list,
                                                   const int* b_column, int2* sorted, int2* heads, int* tiles) {
    extern __shared__ int s_all[];
    const Sort sort = {most_words, room, list, b_column, sorted, heads};
    const int count = long_rows[0];
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        const int row = long_rows[1 + i], begin = first_task(first, row, a_ptr, offsets);
        const int tasks = first_task(first, row + 1, a_ptr, offsets) - begin;
        const int own = order_row<1024>(threadIdx.x, begin, tasks, low[first + row], words[first + row], s_all, sort);
        if (threadIdx.x == 0) tiles[row] = own;
    }
}

// Tiles of C one after the other; 8 or 32 lanes a row.
__global__ void __launch_bounds__(256) heads_of_rows(int lanes, int first, int rows, int count, const int* a_ptr, const int* offsets,
                                                     const int* c_ptr, const int2* __restrict__ heads, int2* __restrict__ dense) {
    const int row = (blockIdx.x * 256 + threadIdx.x) / u32(lanes), lane = threadIdx.x & (lanes - 1);
    if (row >= rows) return;
    const int begin = first_task(first, row, a_ptr, offsets), to = c_ptr[row], count_here = c_ptr[row + 1] - to;
    for (int c = lane; c < count_here; c += lanes) dense[to + c] = heads[begin + c];
    if (row == rows - 1 && lane == 0) dense[c_ptr[rows]] = make_int2(count, 0);
}

// Sorted tasks, and each tile of C: its first task and its column, written over the keys, which begin one place later.  So a
// head lies below the keys of its block, and what is there was read by the blocks before, whose sums have been handed in.
__global__ void __launch_bounds__(256) segment(int count, int rows, int column_bits, int place_bits, const int2* list, int2* heads,
                                               int2* sorted, int* c_ptr, int* ticket, u64* states, u64* total) {
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
