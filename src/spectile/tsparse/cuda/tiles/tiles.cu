// Product of matrices in bitmap tiles, on tensor cores.  One value of PRECISION a unit:
//   16  float16 in, float32 sums     mma.sync.m16n8k8
//   19  TF32 in, float32 sums        mma.sync.m16n8k8
//   32  float32, no tensor cores     (the paper's nonTCU)
//   64  float64                      mma.sync.m16n8k8, before sm_90 four m8n8k4
//
// Tiles are kept in twos, 16x8, the upper 8x8 bitmap and the lower: one m16n8k8 multiplies two 8x8 tiles of A by the 8x8
// tile of B that they share, and the unit is full.  A block takes a row of such tiles; each warp computes tiles of C
// whole, so C is written once and every entry is summed in one order.
//
//   coarsen          rows by sixteens and columns by eights, from which the pattern of the tiles follows
//   mark, scatter    CSR to tiles: bitmaps, then elements at their ranks
//   multiply         bitmaps and dense values of each tile of C
//   compact          dense values to the element array (the kernels' format)
//   count_rows, to_csr   tiles to CSR with sorted columns

#include "elements.cuh"
#include "scan.cuh"

namespace {

constexpr int LISTED = 512;  // tiles of A's row kept in shared memory

__device__ __forceinline__ int find(const int* values, int begin, int end, int wanted) {
    while (begin < end) {
        const int middle = (begin + end) >> 1;
        if (values[middle] < wanted)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

// Value of one place of a tile, 0 where its bit is clear.
__device__ __forceinline__ Element element(u64 bitmap, const Element* elements, int place) {
    return (bitmap >> place) & 1 ? elements[__popcll(bitmap & ((1ull << place) - 1))] : Element(0);
}

// The pattern of a product of two tiles.
__device__ __forceinline__ u64 boolean_product(u64 a, u64 b) {
    u64 product = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) product |= ((a >> k) & 0x0101010101010101ull) * ((b >> (8 * k)) & 0xff);
    return product;
}

__device__ __forceinline__ u32 columns_met(u64 bitmap) {
    bitmap |= bitmap >> 32;
    bitmap |= bitmap >> 16;
    return u32(bitmap | bitmap >> 8) & 0xff;
}

__device__ __forceinline__ u32 rows_met(u64 bitmap) {
    u32 rows = 0;
#pragma unroll
    for (int r = 0; r < 8; ++r) rows |= ((bitmap >> (8 * r)) & 0xff ? 1u : 0u) << r;
    return rows;
}

// sums += A B for a 16x8 tile (upper, lower) and an 8x8 tile.  Lane 4 g + t holds the sums of rows g and g + 8, columns
// 2 t and 2 t + 1.
__device__ __forceinline__ void multiply_tile(Accumulator (&sums)[4], u64 upper, const Element* a0, u64 lower,
                                              const Element* a1, u64 right, const Element* b) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#if PRECISION == 16
    const __half2 x0 = __halves2half2(element(upper, a0, 8 * g + 2 * t), element(upper, a0, 8 * g + 2 * t + 1));
    const __half2 x1 = __halves2half2(element(lower, a1, 8 * g + 2 * t), element(lower, a1, 8 * g + 2 * t + 1));
    const __half2 y = __halves2half2(element(right, b, 16 * t + g), element(right, b, 16 * t + 8 + g));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(*(const u32*)&x0), "r"(*(const u32*)&x1), "r"(*(const u32*)&y));
#elif PRECISION == 19
    const u32 x0 = __float_as_uint(element(upper, a0, 8 * g + t)), x1 = __float_as_uint(element(lower, a1, 8 * g + t));
    const u32 x2 = __float_as_uint(element(upper, a0, 8 * g + t + 4));
    const u32 x3 = __float_as_uint(element(lower, a1, 8 * g + t + 4));
    const u32 y0 = __float_as_uint(element(right, b, 8 * t + g)), y1 = __float_as_uint(element(right, b, 8 * t + 32 + g));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(y0), "r"(y1));
#elif PRECISION == 64 && __CUDA_ARCH__ >= 900
    const double x0 = element(upper, a0, 8 * g + t), x1 = element(lower, a1, 8 * g + t);
    const double x2 = element(upper, a0, 8 * g + t + 4), x3 = element(lower, a1, 8 * g + t + 4);
    const double y0 = element(right, b, 8 * t + g), y1 = element(right, b, 8 * t + 32 + g);
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
                 : "d"(x0), "d"(x1), "d"(x2), "d"(x3), "d"(y0), "d"(y1));
#elif PRECISION == 64
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const double x0 = element(upper, a0, 8 * g + 4 * half + t), x1 = element(lower, a1, 8 * g + 4 * half + t);
        const double y = element(right, b, 8 * (4 * half + t) + g);
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(sums[0]), "+d"(sums[1])
                     : "d"(x0), "d"(y));
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(sums[2]), "+d"(sums[3])
                     : "d"(x1), "d"(y));
    }
#else
    // Lane 4 g + t loads columns t and t + 4 of rows g and g + 8, and of B column g of rows t and t + 4.
    const float x0 = element(upper, a0, 8 * g + t), x1 = element(upper, a0, 8 * g + t + 4);
    const float x2 = element(lower, a1, 8 * g + t), x3 = element(lower, a1, 8 * g + t + 4);
    const float y0 = element(right, b, 8 * t + g), y1 = element(right, b, 8 * t + 32 + g);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const float left0 = __shfl_sync(ALL, k < 4 ? x0 : x1, 4 * g + (k & 3));
        const float left1 = __shfl_sync(ALL, k < 4 ? x2 : x3, 4 * g + (k & 3));
        const float right0 = __shfl_sync(ALL, k < 4 ? y0 : y1, 8 * t + (k & 3));
        const float right1 = __shfl_sync(ALL, k < 4 ? y0 : y1, 8 * t + 4 + (k & 3));
        sums[0] += left0 * right0;
        sums[1] += left0 * right1;
        sums[2] += left1 * right0;
        sums[3] += left1 * right1;
    }
#endif
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) coarsen(int rows, int nnz, const int* idx, int* groups, int* coarse) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, tile_rows = (rows + 15) / 16;
    if (i <= tile_rows) groups[i] = min(16 * i, rows);
    if (i < rows) groups[tile_rows + 1 + i] = i;
    if (i < nnz) coarse[i] = idx[i] >> 3;
}

// Bitmaps of a CSR matrix whose tiles are known; eight lanes a row.
__global__ void __launch_bounds__(256) mark(int rows, const int* ptr, const int* idx, const int* tile_ptr,
                                            const int* tile_column, u64* bitmaps) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (row >= rows) return;
    const int begin = tile_ptr[row >> 4], end = tile_ptr[(row >> 4) + 1];
    for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
        const int column = idx[p], tile = find(tile_column, begin, end, column >> 3);
        atomicOr(&bitmaps[2 * tile + ((row >> 3) & 1)], 1ull << (8 * (row & 7) + (column & 7)));
    }
}

// Elements at their ranks; index[part] is the first element of an 8x8 tile.
__global__ void __launch_bounds__(256) scatter(int rows, const int* ptr, const int* idx, const Accumulator* val,
                                               const int* tile_ptr, const int* tile_column, const u64* bitmaps,
                                               const int* index, Element* elements) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (row >= rows) return;
    const int begin = tile_ptr[row >> 4], end = tile_ptr[(row >> 4) + 1];
    for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
        const int column = idx[p], part = 2 * find(tile_column, begin, end, column >> 3) + ((row >> 3) & 1);
        const int place = 8 * (row & 7) + (column & 7);
        elements[index[part] + __popcll(bitmaps[part] & ((1ull << place) - 1))] = Element(val[p]);
    }
}

__global__ void __launch_bounds__(256) count_bits(int count, const u64* bitmaps, int* entries) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) entries[i] = __popcll(bitmaps[i]);
}

// Tiles of C: one block for a row of tiles, one warp for each tile.  For each tile of A's row the tile of B in C's column is sought.
__global__ void __launch_bounds__(256) multiply(const int* a_ptr, const int* a_column, const u64* a_bitmaps,
                                                const int* a_index, const Element* a_elements, const int* b_ptr,
                                                const int* b_column, const u64* b_bitmaps, const int* b_index,
                                                const Element* b_elements, const int* c_ptr, const int* c_column,
                                                u64* c_bitmaps, Accumulator* c_dense) {
    __shared__ int s_column[LISTED];
    __shared__ u64 s_bitmaps[LISTED][2];
    const int row = blockIdx.x, begin = a_ptr[row], tiles = a_ptr[row + 1] - begin, lane = threadIdx.x & 31;
    for (int i = threadIdx.x; i < min(tiles, LISTED); i += blockDim.x) {
        s_column[i] = a_column[begin + i];
        s_bitmaps[i][0] = a_bitmaps[2 * (begin + i)];
        s_bitmaps[i][1] = a_bitmaps[2 * (begin + i) + 1];
    }
    __syncthreads();
    for (int c = c_ptr[row] + (threadIdx.x >> 5); c < c_ptr[row + 1]; c += blockDim.x >> 5) {
        const int column = c_column[c];
        Accumulator sums[4] = {};
        u64 pattern[2] = {};
        for (int base = 0; base < tiles; base += 32) {
            const int i = base + lane;
            int b = -1;
            u64 upper = 0, lower = 0, right = 0;
            if (i < tiles) {
                const int k = i < LISTED ? s_column[i] : a_column[begin + i];
                const int last = b_ptr[(k >> 1) + 1], at = find(b_column, b_ptr[k >> 1], last, column);
                if (at < last && b_column[at] == column) {
                    upper = i < LISTED ? s_bitmaps[i][0] : a_bitmaps[2 * (begin + i)];
                    lower = i < LISTED ? s_bitmaps[i][1] : a_bitmaps[2 * (begin + i) + 1];
                    b = 2 * at + (k & 1);
                    right = b_bitmaps[b];
                    // The filter: no column of A's tile meets a row of B's.
                    if (!(columns_met(upper | lower) & rows_met(right))) b = -1;
                }
            }
            u32 tasks = __ballot_sync(ALL, b >= 0);
            if (b >= 0) {
                pattern[0] |= boolean_product(upper, right);
                pattern[1] |= boolean_product(lower, right);
            }
            const int a_first = b >= 0 ? a_index[2 * (begin + i)] : 0, b_first = b >= 0 ? b_index[b] : 0;
            for (; tasks; tasks &= tasks - 1) {
                const int from = __ffs(tasks) - 1;
                const u64 x = __shfl_sync(ALL, upper, from), y = __shfl_sync(ALL, lower, from);
                const u64 z = __shfl_sync(ALL, right, from);
                const Element* a = a_elements + __shfl_sync(ALL, a_first, from);
                multiply_tile(sums, x, a, y, a + __popcll(x), z, b_elements + __shfl_sync(ALL, b_first, from));
            }
        }
        const int at = 8 * (lane >> 2) + 2 * (lane & 3);
        Accumulator* dense = c_dense + 128ll * c;
        dense[at] = sums[0];
        dense[at + 1] = sums[1];
        dense[at + 64] = sums[2];
        dense[at + 65] = sums[3];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u64 high = __reduce_or_sync(ALL, u32(pattern[half] >> 32)), low = __reduce_or_sync(ALL, u32(pattern[half]));
            if (lane == half) c_bitmaps[2 * c + half] = high << 32 | low;
        }
    }
}

// Element array of C: one warp an 8x8 tile, two places a lane.
__global__ void __launch_bounds__(256) compact(int count, const u64* bitmaps, const int* index, const Accumulator* dense,
                                               Accumulator* elements) {
    const int tile = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (tile >= count) return;
    const u64 bitmap = bitmaps[tile];
    for (int place = threadIdx.x & 31; place < 64; place += 32)
        if ((bitmap >> place) & 1)
            elements[index[tile] + __popcll(bitmap & ((1ull << place) - 1))] = dense[64ll * tile + place];
}

// Entries of each row of C: one block for a row of tiles, one warp for two of its rows.
__global__ void __launch_bounds__(256) count_rows(int rows, const int* c_ptr, const u64* bitmaps, int* entries) {
    for (int r = threadIdx.x >> 5; r < 16; r += 8) {
        const int row = 16 * blockIdx.x + r;
        if (row >= rows) return;
        int sum = 0;
        for (int c = c_ptr[blockIdx.x] + (threadIdx.x & 31); c < c_ptr[blockIdx.x + 1]; c += 32)
            sum += __popc(u32(bitmaps[2 * c + (r >> 3)] >> (8 * (r & 7))) & 0xff);
        sum = __reduce_add_sync(ALL, sum);
        if ((threadIdx.x & 31) == 0) entries[row] = sum;
    }
}

__global__ void __launch_bounds__(256) to_csr(int rows, const int* c_ptr, const int* c_column, const u64* bitmaps,
                                              const Accumulator* dense, const int* ptr, int* idx, Accumulator* val) {
    const int lane = threadIdx.x & 31;
    for (int r = threadIdx.x >> 5; r < 16; r += 8) {
        const int row = 16 * blockIdx.x + r, end = c_ptr[blockIdx.x + 1];
        if (row >= rows) return;
        int out = ptr[row];
        for (int base = c_ptr[blockIdx.x]; base < end; base += 32) {
            const int c = base + lane;
            u32 bits = c < end ? u32(bitmaps[2 * c + (r >> 3)] >> (8 * (r & 7))) & 0xff : 0;
            const int scan = prefix_scan<32>(__popc(bits), lane, ALL);
            int at = out + scan - __popc(bits);
            out += __shfl_sync(ALL, scan, 31);
            for (; bits; bits &= bits - 1) {
                const int j = __ffs(bits) - 1;
                idx[at] = 8 * c_column[c] + j;
                val[at++] = dense[128ll * c + 8 * r + j];
            }
        }
    }
}

}  // extern "C"
