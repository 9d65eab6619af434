// The list of the products of tiles, and what needs no values: tiles of a CSR matrix, scans, tasks, tiles of C.
//
//   count_tiles, find_tiles   CSR to tiles of 8x8: their number in each row of tiles, then columns and bitmaps
//   scan                      counts to offsets
//   count_tasks, list_tasks   tasks of each tile of A after the filter, then the list with its keys
//   segment                   sorted keys to sorted tasks, tiles of C and the row pointer of these
//
// A key holds, from the top, the row of tiles of C, the column of tiles and the place in the list, so that sorting is stable
// and a tile of C is a run of equal tops.

#include "tasks/bitmaps.cuh"

namespace {

constexpr int SCAN_ITEMS = 8;                    // of a thread
constexpr int SCAN_BLOCK = 256 * SCAN_ITEMS;     // of a block
constexpr int NONE = 0x7fffffff;

// Walk the tiles of a row of tiles; eight lanes, one for each row of entries.  `use(column, byte, p)` is called by all lanes
// for each tile, with the lane's row of the bitmap and the place of its first entry.
template <class Use> __device__ __forceinline__ void walk(int rows, const int* ptr, const int* idx, int tile_row, Use use) {
    const int lane = threadIdx.x & 7, row = 8 * tile_row + lane;
    const u32 mask = 0xffu << (threadIdx.x & 24);
    int p = row < rows ? ptr[row] : 0;
    const int end = row < rows ? ptr[row + 1] : 0;
    int next = p < end ? idx[p] : NONE;
    for (;;) {
        const int column = __reduce_min_sync(mask, next >> 3);
        if (column == NONE >> 3) break;
        const int first = p;
        u32 byte = 0;
        while (next >> 3 == column) {
            byte |= 1u << (next & 7);
            ++p;
            next = p < end ? idx[p] : NONE;
        }
        use(column, byte, first, mask, lane);
    }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(128) count_tiles(int rows, const int* ptr, const int* idx, int* counts) {
    const int tile_row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (8 * tile_row >= rows) return;
    int count = 0;
    walk(rows, ptr, idx, tile_row, [&](int, u32, int, u32, int) { ++count; });
    if ((threadIdx.x & 7) == 0) counts[tile_row] = count;
}

// Arrays of the tiles; `place[p]` is the place of entry p among the elements.
__global__ void __launch_bounds__(128) find_tiles(int rows, const int* ptr, const int* idx, const int* tile_ptr,
                                                  int* tile_row_of, int* tile_column, u64* bitmaps, int* index, int* place) {
    const int tile_row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (8 * tile_row >= rows) return;
    int tile = tile_ptr[tile_row], element = ptr[8 * tile_row];
    walk(rows, ptr, idx, tile_row, [&](int column, u32 byte, int first, u32 mask, int lane) {
        const u64 bits = u64(byte) << (8 * lane);
        const u64 bitmap = u64(__reduce_or_sync(mask, u32(bits >> 32))) << 32 | __reduce_or_sync(mask, u32(bits));
        int at = element + __popcll(bitmap & ((1ull << (8 * lane)) - 1));
        for (int p = first; byte; byte &= byte - 1) place[p++] = at++;
        if (lane == 0) {
            tile_row_of[tile] = tile_row;
            tile_column[tile] = column;
            bitmaps[tile] = bitmap;
            index[tile] = element;
        }
        ++tile;
        element += __popcll(bitmap);
    });
    if (threadIdx.x % 8 == 0 && 8 * tile_row + 8 >= rows) index[tile] = element;
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
            keys[place] = (top | u32(b_column[b])) << place_bits | u32(place);
        }
        at += __popc(all);
    }
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
