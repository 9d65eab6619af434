// The products of the tasks, two tiles of C a warp, by tensor cores or without them.  One value of PRECISION a unit:
//   16  float16 in, float32 sums     mma.sync.m16n8k16: the two tiles on the diagonal of the fragment (Figure 5)
//   19  TF32 in, float32 sums        mma.sync.m16n8k8, one tile at a time
//   32  float32, no tensor cores
//   64  float64                      mma.sync.m8n8k4, the shape of the tiles
// TENSOR 0 counts and multiplies without tensor cores (the paper's nonTCU, Algorithm 2).
//
//   scatter    elements of a tile matrix, rounded already, at their places
//   count      bitmap and number of elements of each tile of C: a product of zeros and ones
//   multiply   elements of C; counts those that cancelled
//   to_csr     tiles to CSR with sorted columns

#include <cuda_fp16.h>

#include "tasks/bitmaps.cuh"

#if PRECISION == 16
using IN = __half;
using SUM = float;
#elif PRECISION == 64
using IN = double;
using SUM = double;
#else
using IN = float;
using SUM = float;
#endif

namespace {

constexpr int STEPS = 16;  // tasks of each of a warp's two tiles of C that are looked up at a time
constexpr int WARPS = 8;

struct Tile {
    u64 bitmap;
    int index;
    int unused;
};

// What a warp looked up: tasks of its upper tile of C, then of the lower; a task that there is not has empty tiles.
struct Tasks {
    Tile a[2 * STEPS], b[2 * STEPS];
};

// Bits of the even places of a word of 64.
__device__ __forceinline__ u64 spread(u32 bits) {
    u64 x = bits;
    x = (x | x << 16) & 0x0000ffff0000ffffull;
    x = (x | x << 8) & 0x00ff00ff00ff00ffull;
    x = (x | x << 4) & 0x0f0f0f0f0f0f0f0full;
    x = (x | x << 2) & 0x3333333333333333ull;
    return (x | x << 1) & 0x5555555555555555ull;
}

// Value of one place of a tile, 0 where its bit is clear.
__device__ __forceinline__ IN element(const Tile& tile, const IN* elements, int place) {
    return (tile.bitmap >> place) & 1 ? elements[tile.index + __popcll(tile.bitmap & ((1ull << place) - 1))] : IN(0);
}

// One or zero.
__device__ __forceinline__ u32 half_bit(u64 bitmap, int place) { return u32(bitmap >> place & 1) * 0x3c00u; }

// Rows g of the upper tile lie in a lane's first two sums, rows g of the lower one in the last two; lane 4 g + t holds
// columns 2 t and 2 t + 1.
__device__ __forceinline__ void multiply_halves(float (&sums)[4], u32 a0, u32 a1, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(0), "r"(0), "r"(a1), "r"(b0), "r"(b1));
}

// Look up at most STEPS tasks of each of the two tiles of C, from `base` on.
__device__ __forceinline__ void look_up(Tasks& tasks, const int (&first)[3], int base, const int2* list,
                                       const u64* a_bitmaps, const int* a_index, const u64* b_bitmaps, const int* b_index) {
    const int lane = threadIdx.x & 31, which = lane >> 4, at = first[which] + base + (lane & 15);
    Tile a = {}, b = {};
    if (at < first[which + 1]) {
        const int2 task = list[at];
        a.bitmap = a_bitmaps[task.x];
        b.bitmap = b_bitmaps[task.y];
        if (a_index) {
            a.index = a_index[task.x];
            b.index = b_index[task.y];
        }
    }
    __syncwarp();
    tasks.a[lane] = a;
    tasks.b[lane] = b;
    __syncwarp();
}

// sums += A B for task `step` of both tiles of C.
__device__ __forceinline__ void multiply_step(SUM (&sums)[4], const Tasks& tasks, int step, const IN* a_elements,
                                              const IN* b_elements, IN* dense) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const Tile a0 = tasks.a[step], a1 = tasks.a[step + STEPS], b0 = tasks.b[step], b1 = tasks.b[step + STEPS];
#if !TENSOR
    // Algorithm 2: the tiles dense, and each lane the sums of two places.
    IN *x0 = dense, *x1 = dense + 64, *y0 = dense + 128, *y1 = dense + 192;
    __syncwarp();
    for (int i = 0; i < 2; ++i) {
        const int place = lane + 32 * i;
        x0[place] = element(a0, a_elements, place);
        x1[place] = element(a1, a_elements, place);
        y0[place] = element(b0, b_elements, place);
        y1[place] = element(b1, b_elements, place);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        sums[0] += SUM(x0[8 * g + k]) * SUM(y0[8 * k + 2 * t]);
        sums[1] += SUM(x0[8 * g + k]) * SUM(y0[8 * k + 2 * t + 1]);
        sums[2] += SUM(x1[8 * g + k]) * SUM(y1[8 * k + 2 * t]);
        sums[3] += SUM(x1[8 * g + k]) * SUM(y1[8 * k + 2 * t + 1]);
    }
#elif PRECISION == 16
    const int left = 8 * g + 2 * t, right = 16 * t + g;
    const __half2 u0 = __halves2half2(element(a0, a_elements, left), element(a0, a_elements, left + 1));
    const __half2 u1 = __halves2half2(element(a1, a_elements, left), element(a1, a_elements, left + 1));
    const __half2 v0 = __halves2half2(element(b0, b_elements, right), element(b0, b_elements, right + 8));
    const __half2 v1 = __halves2half2(element(b1, b_elements, right), element(b1, b_elements, right + 8));
    multiply_halves(sums, *(const u32*)&u0, *(const u32*)&u1, *(const u32*)&v0, *(const u32*)&v1);
#elif PRECISION == 19
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const Tile& a = half ? a1 : a0;
        const Tile& b = half ? b1 : b0;
        const u32 u0 = __float_as_uint(element(a, a_elements, 8 * g + t));
        const u32 u1 = __float_as_uint(element(a, a_elements, 8 * g + t + 4));
        const u32 v0 = __float_as_uint(element(b, b_elements, 8 * t + g));
        const u32 v1 = __float_as_uint(element(b, b_elements, 8 * t + 32 + g));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(half ? 0 : u0), "r"(half ? u0 : 0), "r"(half ? 0 : u1), "r"(half ? u1 : 0), "r"(v0), "r"(v1));
    }
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
            const double u = element(half ? a1 : a0, a_elements, 8 * g + k + t);
            const double v = element(half ? b1 : b0, b_elements, 8 * (k + t) + g);
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                         : "+d"(sums[2 * half]), "+d"(sums[2 * half + 1])
                         : "d"(u), "d"(v));
        }
    }
#endif
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) scatter(int nnz, const SUM* values, const int* place, IN* elements) {
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p < nnz) elements[place[p]] = IN(values[p]);
}

__global__ void __launch_bounds__(32 * WARPS) count(int tiles, const int2* heads, const int2* list, const u64* a_bitmaps,
                                                    const u64* b_bitmaps, int* c_column, u64* c_bitmaps, int* counts) {
    const int pair = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (2 * pair >= tiles) return;
    const int2 head = heads[min(2 * pair + min(lane, 2), tiles)];
    int first[3];
    for (int i = 0; i < 3; ++i) first[i] = __shfl_sync(ALL, head.x, i);
    u64 bitmap = 0;  // lane 0: of the upper tile, lane 1: of the lower
#if TENSOR
    __shared__ Tasks s_tasks[WARPS];
    Tasks& tasks = s_tasks[threadIdx.x >> 5];
    const int left = 8 * (lane >> 2) + 2 * (lane & 3), right = 16 * (lane & 3) + (lane >> 2);
    float sums[4] = {};
    const int longest = max(first[1] - first[0], first[2] - first[1]);
    for (int base = 0; base < longest; base += STEPS) {
        look_up(tasks, first, base, list, a_bitmaps, nullptr, b_bitmaps, nullptr);
        for (int step = 0; step < min(STEPS, longest - base); ++step) {
            const u64 a0 = tasks.a[step].bitmap, a1 = tasks.a[step + STEPS].bitmap;
            const u64 b0 = tasks.b[step].bitmap, b1 = tasks.b[step + STEPS].bitmap;
            multiply_halves(sums, half_bit(a0, left) | half_bit(a0, left + 1) << 16,
                            half_bit(a1, left) | half_bit(a1, left + 1) << 16,
                            half_bit(b0, right) | half_bit(b0, right + 8) << 16,
                            half_bit(b1, right) | half_bit(b1, right + 8) << 16);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const u32 even = __ballot_sync(ALL, sums[2 * half] > 0), odd = __ballot_sync(ALL, sums[2 * half + 1] > 0);
        if (lane == half) bitmap = spread(even) | spread(odd) << 1;
    }
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u64 own = 0;
        for (int at = first[half] + lane; at < first[half + 1]; at += 32)
            own |= boolean_product(a_bitmaps[list[at].x], b_bitmaps[list[at].y]);
        const u64 all = u64(__reduce_or_sync(ALL, u32(own >> 32))) << 32 | __reduce_or_sync(ALL, u32(own));
        if (lane == half) bitmap = all;
    }
#endif
    const int c = 2 * pair + lane;
    if (lane < 2 && c < tiles) {
        c_column[c] = head.y;
        c_bitmaps[c] = bitmap;
        counts[c] = __popcll(bitmap);
    }
}

__global__ void __launch_bounds__(32 * WARPS) multiply(int tiles, const int2* heads, const int2* list, const u64* a_bitmaps,
                                                       const int* a_index, const IN* a_elements, const u64* b_bitmaps,
                                                       const int* b_index, const IN* b_elements, const u64* c_bitmaps,
                                                       const int* c_index, SUM* c_elements, int* cancelled) {
    const int pair = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    __shared__ Tasks s_tasks[WARPS];
#if TENSOR
    IN* dense = nullptr;
#else
    __shared__ IN s_dense[WARPS][256];
    IN* dense = s_dense[threadIdx.x >> 5];
#endif
    if (2 * pair >= tiles) return;
    Tasks& tasks = s_tasks[threadIdx.x >> 5];
    const int head = heads[min(2 * pair + min(lane, 2), tiles)].x;
    int first[3];
    for (int i = 0; i < 3; ++i) first[i] = __shfl_sync(ALL, head, i);
    SUM sums[4] = {};
    const int longest = max(first[1] - first[0], first[2] - first[1]);
    for (int base = 0; base < longest; base += STEPS) {
        look_up(tasks, first, base, list, a_bitmaps, a_index, b_bitmaps, b_index);
        for (int step = 0; step < min(STEPS, longest - base); ++step)
            multiply_step(sums, tasks, step, a_elements, b_elements, dense);
    }
    bool zero = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int c = 2 * pair + half;
        if (c >= tiles) break;
        const u64 bitmap = c_bitmaps[c];
        const u32 bits = u32(bitmap >> (2 * lane)) & 3;
        SUM* out = c_elements + c_index[c] + __popcll(bitmap & ((1ull << (2 * lane)) - 1));
        if (bits & 1) {
            zero |= sums[2 * half] == 0;
            *out++ = sums[2 * half];
        }
        if (bits & 2) {
            zero |= sums[2 * half + 1] == 0;
            *out = sums[2 * half + 1];
        }
    }
    if (__any_sync(ALL, zero) && lane == 0) *cancelled = 1;
}

// The bitmap of what did not cancel, and how much that is; one thread a tile.
__global__ void __launch_bounds__(256) find_zeros(int tiles, u64* bitmaps, const int* index, const SUM* elements, int* counts) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= tiles) return;
    u64 kept = 0;
    int at = index[c];
    for (u64 bits = bitmaps[c]; bits; bits &= bits - 1)
        if (elements[at++] != 0) kept |= bits & -bits;
    bitmaps[c] = kept;
    counts[c] = __popcll(kept);
}

// One block for a row of tiles, one warp for each of its rows.
__global__ void __launch_bounds__(256) to_csr(int rows, const int* c_ptr, const int* c_column, const u64* bitmaps,
                                              const int* index, const SUM* elements, int* ptr, int* idx, SUM* val) {
    __shared__ int s_count[8];
    const int lane = threadIdx.x & 31, r = threadIdx.x >> 5, row = 8 * blockIdx.x + r;
    const int begin = c_ptr[blockIdx.x], end = c_ptr[blockIdx.x + 1];
    int count = 0;
    for (int c = begin + lane; c < end; c += 32) count += __popc(u32(bitmaps[c] >> (8 * r)) & 0xff);
    count = __reduce_add_sync(ALL, count);
    if (lane == 0) s_count[r] = count;
    __syncthreads();
    int out = index[begin];
    for (int i = 0; i < r; ++i) out += s_count[i];
    if (lane == 0) {
        if (row < rows) ptr[row] = out;
        if (row == rows - 1) ptr[rows] = out + count;
    }
    for (int base = begin; base < end; base += 32) {
        const int c = base + lane;
        const u64 bitmap = c < end ? bitmaps[c] : 0;
        u32 bits = u32(bitmap >> (8 * r)) & 0xff;
        const int scan = prefix_scan<32>(__popc(bits), lane, ALL);
        int at = out + scan - __popc(bits), from = 0, column = 0;
        out += __shfl_sync(ALL, scan, 31);
        if (bits) {
            from = index[c] + __popcll(bitmap & ((1ull << (8 * r)) - 1));
            column = 8 * c_column[c];
        }
        for (; bits; bits &= bits - 1) {
            idx[at] = column + __ffs(bits) - 1;
            val[at++] = elements[from++];
        }
    }
}

}  // extern "C"
