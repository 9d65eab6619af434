// Bitmaps of 8x8 tiles: bit 8 r + c stands for the entry (r, c) of the tile.

#include "spectile.tsparse.cuda:scan.cuh"

namespace {

constexpr int NONE = 0x7fffffff;

// The pattern of a product of two tiles.
__device__ __forceinline__ u64 boolean_product(u64 a, u64 b) {
    u64 product = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) product |= ((a >> k) & 0x0101010101010101ull) * ((b >> (8 * k)) & 0xff);
    return product;
}

// Columns of a tile that hold an entry, one bit each.
__device__ __forceinline__ u32 columns_met(u64 bitmap) {
    bitmap |= bitmap >> 32;
    bitmap |= bitmap >> 16;
    return u32(bitmap | bitmap >> 8) & 0xff;
}

// Rows of a tile that hold an entry, one bit each.
__device__ __forceinline__ u32 rows_met(u64 bitmap) {
    u32 rows = 0;
#pragma unroll
    for (int r = 0; r < 8; ++r) rows |= ((bitmap >> (8 * r)) & 0xff ? 1u : 0u) << r;
    return rows;
}

// The eight rows of entries of a row of tiles, and their window of columns of tiles; one warp.
struct TileRow {
    int begin, end, low, words;
    int ends[8];

    __device__ __forceinline__ TileRow(int rows, const int* ptr, const int* idx, int tile_row) {
        const int lane = threadIdx.x & 31, row = min(8 * tile_row + min(lane, 8), rows);
        const int own = ptr[row], next = __shfl_down_sync(ALL, own, 1);
        const bool any = lane < 8 && own < next;
        low = __reduce_min_sync(ALL, any ? idx[own] >> 3 : NONE);
        words = (__reduce_max_sync(ALL, any ? idx[next - 1] >> 3 : -1) - low) / 32 + 1;
        begin = __shfl_sync(ALL, own, 0);
        end = __shfl_sync(ALL, own, 8);
#pragma unroll
        for (int r = 0; r < 8; ++r) ends[r] = __shfl_sync(ALL, next, r);
        if (begin == end) words = 0;
    }

    // The row, of the eight, of an entry.
    __device__ __forceinline__ int row_of(int p) const {
        int row = 0;
#pragma unroll
        for (int r = 0; r < 7; ++r) row += p >= ends[r];
        return row;
    }
};

constexpr int WINDOW_WORDS = 128;  // of 32 columns of tiles, that a warp finds the tiles of a row with

// Mark the columns of tiles that hold an entry; returns how many there are, and their sums before each word.
__device__ __forceinline__ int mark_tiles(const TileRow& row, const int* idx, u32* bits, int* before) {
    const int lane = threadIdx.x & 31;
    for (int w = lane; w < row.words; w += 32) bits[w] = 0;
    __syncwarp();
    for (int p = row.begin + lane; p < row.end; p += 32) {
        const int column = (idx[p] >> 3) - row.low;
        atomicOr(&bits[column >> 5], 1u << (column & 31));
    }
    __syncwarp();
    int tiles = 0;
    for (int base = 0; base < row.words; base += 32) {
        const int count = base + lane < row.words ? __popc(bits[base + lane]) : 0;
        const int scan = prefix_scan<32>(count, lane, ALL);
        if (base + lane < row.words) before[base + lane] = tiles + scan - count;
        tiles += __shfl_sync(ALL, scan, 31);
    }
    __syncwarp();
    return tiles;
}

// Walk the tiles of a row of tiles whose window is wide; a warp, one lane for each row of entries.  `use(column, byte, p)` is
// called by eight lanes for each tile, with the lane's row of the bitmap and the place of its first entry.
template <class Use>
__device__ __forceinline__ void walk(const TileRow& row, const int* idx, Use use) {
    const int lane = threadIdx.x & 31;
    if (lane >= 8) return;
    int p = row.begin, end = row.end;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        if (r == lane) end = row.ends[r];
        if (r < lane) p = row.ends[r];
    }
    int next = p < end ? idx[p] : NONE;
    for (;;) {
        const int column = __reduce_min_sync(0xffu, next >> 3);
        if (column == NONE >> 3) break;
        const int first = p;
        u32 byte = 0;
        while (next >> 3 == column) {
            byte |= 1u << (next & 7);
            ++p;
            next = p < end ? idx[p] : NONE;
        }
        use(column, byte, first);
    }
}

}  // namespace
