// The products of the tasks, two tiles of C a warp, by tensor cores or without them.  One value of PRECISION a unit:
//   16  float16 in, float32 sums     mma.sync.m16n8k16, two tasks at a time
//   19  TF32 in, float32 sums        mma.sync.m16n8k8
//   32  float32, no tensor cores
//   64  float64                      mma.sync.m8n8k4
// TENSOR 0 counts and multiplies without tensor cores (the paper's nonTCU, Algorithm 2).
//
//   find_tiles CSR to tiles
//   count      bitmap and number of elements of each tile of C: products of zeros and ones, four tasks at a time
//              (mma.sync.m16n8k32)
//   multiply   elements of C; tells whether one cancelled
//   find_zeros bitmaps without what cancelled
//   to_csr     tiles to CSR with sorted columns

#include "elements.cuh"
#include "tiles/bitmaps.cuh"

namespace {

constexpr int WARPS = 8;

// Four rows of a tile: their bits, and the place of their first element.
struct Part {
    u32 bits;
    int index;
};

// Tiles of the tasks that a warp looked up, the upper rows of a tile before the lower ones; a task that there is not has
// empty tiles.
struct Tasks {
    Part a[32][2], b[32][2];
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

// Value of one place of four rows, 0 where its bit is clear.
__device__ __forceinline__ Element element(Part part, const Element* elements, int place) {
    return (part.bits >> place) & 1 ? elements[part.index + __popc(part.bits & ((1u << place) - 1))] : Element(0);
}

__device__ __forceinline__ void put(Part (&parts)[2], u64 bitmap, int index) {
    parts[0] = {u32(bitmap), index};
    parts[1] = {u32(bitmap >> 32), index + __popc(u32(bitmap))};
}

// Look 32 tasks up from `at` on, before `end`.
__device__ __forceinline__ void look_up(Tasks& tasks, int at, int end, const int2* list, const u64* a_bitmaps,
                                        const int* a_index, const u64* b_bitmaps, const int* b_index) {
    const int lane = threadIdx.x & 31;
    u64 a = 0, b = 0;
    int a_first = 0, b_first = 0;
    if (at + lane < end) {
        const int2 task = list[at + lane];
        a = a_bitmaps[task.x];
        b = b_bitmaps[task.y];
        if (a_index) {
            a_first = a_index[task.x];
            b_first = b_index[task.y];
        }
    }
    __syncwarp();
    put(tasks.a[lane], a, a_first);
    put(tasks.b[lane], b, b_first);
    __syncwarp();
}

// sums += A B for the tasks from `step` on.  Lane 4 g + t holds columns 2 t and 2 t + 1, of row g of the upper tile of C in its
// first two sums and of the lower tile in the last two.  Tasks below `upper` belong to the upper tile: their tiles of A fill
// the upper half of the fragment, the others the lower one, and zeros the rest (Figure 5).
#if !TENSOR
constexpr int TASKS_A_STEP = 1;
__device__ __forceinline__ void multiply_step(Accumulator (&sums)[4], const Tasks& tasks, int step, int upper, const Element* a_elements,
                                              const Element* b_elements, Element* dense) {
    // Algorithm 2: the tiles dense, and each lane the sums of two places.
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    __syncwarp();
    for (int i = 0; i < 2; ++i) {
        dense[32 * i + lane] = element(tasks.a[step][i], a_elements, lane);
        dense[64 + 32 * i + lane] = element(tasks.b[step][i], b_elements, lane);
    }
    __syncwarp();
    Accumulator left = 0, right = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        left += Accumulator(dense[8 * g + k]) * Accumulator(dense[64 + 8 * k + 2 * t]);
        right += Accumulator(dense[8 * g + k]) * Accumulator(dense[64 + 8 * k + 2 * t + 1]);
    }
    const int at = step < upper ? 0 : 2;
    sums[0] += at ? Accumulator(0) : left;
    sums[1] += at ? Accumulator(0) : right;
    sums[2] += at ? left : Accumulator(0);
    sums[3] += at ? right : Accumulator(0);
}
#elif PRECISION == 16
constexpr int TASKS_A_STEP = 2;
__device__ __forceinline__ void multiply_step(float (&sums)[4], const Tasks& tasks, int step, int upper,
                                              const __half* a_elements, const __half* b_elements, __half*) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int left = 8 * (g & 3) + 2 * t, right = 16 * (t & 1) + g;
    u32 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Part x = tasks.a[step + i][g >> 2], y = tasks.b[step + i][t >> 1];
        const u32 bits = x.bits >> left;
        const __half* from = a_elements + (x.index + __popc(x.bits & ((1u << left) - 1)));
        const __half x0 = bits & 1 ? from[0] : __half(0), x1 = bits & 2 ? from[bits & 1] : __half(0);
        const __half2 u = __halves2half2(x0, x1);
        const __half2 v = __halves2half2(element(y, b_elements, right), element(y, b_elements, right + 8));
        a[i] = *(const u32*)&u;
        b[i] = *(const u32*)&v;
    }
    const bool high[2] = {step < upper, step + 1 < upper};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(high[0] ? a[0] : 0), "r"(high[0] ? 0 : a[0]), "r"(high[1] ? a[1] : 0), "r"(high[1] ? 0 : a[1]),
                   "r"(b[0]), "r"(b[1]));
}
#elif PRECISION == 19
constexpr int TASKS_A_STEP = 1;
__device__ __forceinline__ void multiply_step(float (&sums)[4], const Tasks& tasks, int step, int upper,
                                              const float* a_elements, const float* b_elements, float*) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const Part x = tasks.a[step][g >> 2];
    const u32 x0 = __float_as_uint(element(x, a_elements, 8 * (g & 3) + t));
    const u32 x1 = __float_as_uint(element(x, a_elements, 8 * (g & 3) + t + 4));
    const u32 y0 = __float_as_uint(element(tasks.b[step][0], b_elements, 8 * t + g));
    const u32 y1 = __float_as_uint(element(tasks.b[step][1], b_elements, 8 * t + g));
    const bool high = step < upper;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(high ? x0 : 0), "r"(high ? 0 : x0), "r"(high ? x1 : 0), "r"(high ? 0 : x1), "r"(y0), "r"(y1));
}
#else
constexpr int TASKS_A_STEP = 1;
__device__ __forceinline__ void multiply_doubles(double& left, double& right, double x, double y) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(left), "+d"(right)
                 : "d"(x), "d"(y));
}

__device__ __forceinline__ void multiply_step(double (&sums)[4], const Tasks& tasks, int step, int upper,
                                              const double* a_elements, const double* b_elements, double*) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const Part x = tasks.a[step][g >> 2];
    const double x0 = element(x, a_elements, 8 * (g & 3) + t), x1 = element(x, a_elements, 8 * (g & 3) + t + 4);
    const double y0 = element(tasks.b[step][0], b_elements, 8 * t + g);
    const double y1 = element(tasks.b[step][1], b_elements, 8 * t + g);
    if (step < upper) {  // the same for all lanes
        multiply_doubles(sums[0], sums[1], x0, y0);
        multiply_doubles(sums[0], sums[1], x1, y1);
    } else {
        multiply_doubles(sums[2], sums[3], x0, y0);
        multiply_doubles(sums[2], sums[3], x1, y1);
    }
}
#endif

// Patterns of four tasks from `step` on, as products of zeros and ones: lane 4 g + t takes four columns of row g of A's tile and
// as many rows of column g of B's, of task t / 2 and of the next but one.
__device__ __forceinline__ void count_step(int (&sums)[4], const Tasks& tasks, int step, int upper) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = step + (t >> 1);
    u32 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 row = tasks.a[first + 2 * i][g >> 2].bits >> (8 * (g & 3) + 4 * (t & 1)) & 0xf;
        a[i] = row * 0x00204081u & 0x01010101u;  // one byte a bit
        b[i] = tasks.b[first + 2 * i][t & 1].bits >> g & 0x01010101u;
    }
    const bool high[2] = {first < upper, first + 2 < upper};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(high[0] ? a[0] : 0), "r"(high[0] ? 0 : a[0]), "r"(high[1] ? a[1] : 0), "r"(high[1] ? 0 : a[1]),
                   "r"(b[0]), "r"(b[1]));
}

}  // namespace

extern "C" {

// CSR to tiles: columns, bitmaps, and elements, whose values are rounded already.
__global__ void __launch_bounds__(128) find_tiles(int rows, const int* ptr, const int* idx, const int* tile_ptr,
                                                  const Accumulator* values, int* tile_rows, int* tile_column, u64* bitmaps,
                                                  int* index, Element* elements) {
    const int tile_row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (8 * tile_row >= rows) return;
    int tile = tile_ptr[tile_row], element = ptr[8 * tile_row];
    walk(rows, ptr, idx, tile_row, [&](int column, u32 byte, int first, u32 mask, int lane) {
        const u64 bits = u64(byte) << (8 * lane);
        const u64 bitmap = u64(__reduce_or_sync(mask, u32(bits >> 32))) << 32 | __reduce_or_sync(mask, u32(bits));
        int at = element + __popcll(bitmap & ((1ull << (8 * lane)) - 1));
        int taken = 0;
        for (; byte; byte &= byte - 1) elements[at++] = Element(values[first + taken++]);
        if (lane == 0) {
            tile_rows[tile] = tile_row;
            tile_column[tile] = column;
            bitmaps[tile] = bitmap;
            index[tile] = element;
        }
        ++tile;
        element += __popcll(bitmap);
    });
    if (threadIdx.x % 8 == 0 && 8 * tile_row + 8 >= rows) index[tile] = element;
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
    int sums[4] = {};
    for (int base = first[0]; base < first[2]; base += 32) {
        look_up(tasks, base, first[2], list, a_bitmaps, nullptr, b_bitmaps, nullptr);
        for (int step = 0; step < min(32, first[2] - base); step += 4) count_step(sums, tasks, step, first[1] - base);
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
                                                       const int* a_index, const Element* a_elements, const u64* b_bitmaps,
                                                       const int* b_index, const Element* b_elements, const u64* c_bitmaps,
                                                       const int* c_index, Accumulator* c_elements, int* cancelled) {
    const int pair = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    __shared__ Tasks s_tasks[WARPS];
#if TENSOR
    Element* dense = nullptr;
#else
    __shared__ Element s_dense[WARPS][128];
    Element* dense = s_dense[threadIdx.x >> 5];
#endif
    if (2 * pair >= tiles) return;
    Tasks& tasks = s_tasks[threadIdx.x >> 5];
    const int head = heads[min(2 * pair + min(lane, 2), tiles)].x;
    int first[3];
    for (int i = 0; i < 3; ++i) first[i] = __shfl_sync(ALL, head, i);
    Accumulator sums[4] = {};
    for (int base = first[0]; base < first[2]; base += 32) {
        look_up(tasks, base, first[2], list, a_bitmaps, a_index, b_bitmaps, b_index);
        for (int step = 0; step < min(32, first[2] - base); step += TASKS_A_STEP)
            multiply_step(sums, tasks, step, first[1] - base, a_elements, b_elements, dense);
    }
    bool zero = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int c = 2 * pair + half;
        if (c >= tiles) break;
        const u64 bitmap = c_bitmaps[c];
        const u32 bits = u32(bitmap >> (2 * lane)) & 3;
        Accumulator* out = c_elements + c_index[c] + __popcll(bitmap & ((1ull << (2 * lane)) - 1));
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
__global__ void __launch_bounds__(256) find_zeros(int tiles, u64* bitmaps, const int* index, const Accumulator* elements, int* counts) {
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
                                              const int* index, const Accumulator* elements, int* ptr, int* idx, Accumulator* val) {
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
