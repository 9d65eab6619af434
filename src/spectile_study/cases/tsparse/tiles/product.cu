// The products of the tasks, a warp several tiles of C one after the other, by tensor cores or without them.  One value of PRECISION a unit:
//   16  float16 in, float32 sums     mma.sync.m16n8k16, two tasks at a time
//   19  TF32 in, float32 sums        mma.sync.m16n8k8
//   32  float32, no tensor cores
//   64  float64                      mma.sync.m8n8k4
// TENSOR 0 counts and multiplies without tensor cores (the paper's nonTCU, Algorithm 2).
//
//   for each tile of C, a warp several of them one after the other:
//       count     bitmap = union of the Boolean products of its tasks' bitmaps;  elements = bits set
//       multiply  sums = sum of the products of its tasks' tiles, in their order;  write those whose bit is set
//
// Invariant: an element of C is written once, at the number of bits before its own, whether its terms cancel or not.
//
//   find_tiles CSR to tiles
//   count      bitmap and number of elements of each tile of C: products of zeros and ones, four tasks at a time
//              (mma.sync.m16n8k32)
//   multiply   elements of C; tells whether one cancelled.  Of a task only those columns of A's tile take part that meet a row
//              of B's: its inner places.  Those of all tasks of a tile of C fill the steps, however few each task has.
//   find_zeros, squeeze   what did not cancel
//   to_csr     tiles to CSR with sorted columns

#include "elements.cuh"
#include "bitmaps.cuh"

namespace {

constexpr int WARPS = 8;

// Four rows of a tile: their bits, and the place of their first element.
struct alignas(8) Part {
    u32 bits;
    int index;
};

// Tiles of the tasks that a warp looked up, the upper rows of a tile before the lower ones; a task that there is not has
// empty tiles.
struct Tasks {
    Part a[32][2], b[32][2];
};

// The same with their inner places, in order, each as 16 times its task, 8 if it is in the lower half of B's tile, and k.
struct Inner {
    Part a[33][2], b[33][2];  // the last are empty
    unsigned short places[32 * 8];
};
constexpr u32 NO_PLACE = 32 * 16;

// Bits of the even places of a word of 64.
__device__ __forceinline__ u64 spread(u32 bits) {
    u64 x = bits;
    x = (x | x << 16) & 0x0000ffff0000ffffull;
    x = (x | x << 8) & 0x00ff00ff00ff00ffull;
    x = (x | x << 4) & 0x0f0f0f0f0f0f0f0full;
    x = (x | x << 2) & 0x3333333333333333ull;
    return (x | x << 1) & 0x5555555555555555ull;
}

// Value of one place of four rows, with `above` places above it; 0 where its bit is clear.
__device__ __forceinline__ Element element(Part part, const Element* elements, u32 above) {
    const u32 up_to = part.bits << above;  // its own bit is the highest
    return int(up_to) < 0 ? elements[part.index + __popc(up_to) - 1] : Element(0);
}

__device__ __forceinline__ void put(Part (&parts)[2], u64 bitmap, int index) {
    parts[0] = {u32(bitmap), index};
    parts[1] = {u32(bitmap >> 32), index + __popc(u32(bitmap))};
}

// Look 32 tasks up from `at` on, before `end`.
template <class Tiles>
__device__ __forceinline__ void look_up(Tiles& tasks, int at, int end, const int2* list, const u64* a_bitmaps, const int* a_index,
                                        const u64* b_bitmaps, const int* b_index) {
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

// Look up 32 tasks from `at` on with their inner places; returns the number of those up to and with the lane's own task.
__device__ __forceinline__ int look_up_inner(Inner& inner, int& own, int at, int end, const int2* list, const u64* a_bitmaps,
                                             const int* a_index, const u64* b_bitmaps, const int* b_index) {
    look_up(inner, at, end, list, a_bitmaps, a_index, b_bitmaps, b_index);
    const int lane = threadIdx.x & 31;
    const Part *a = inner.a[lane], *b = inner.b[lane];
    u32 met = columns_met(u64(a[1].bits) << 32 | a[0].bits) & rows_met(u64(b[1].bits) << 32 | b[0].bits);
    own = __popc(met);
    const int through = prefix_scan<32>(own, lane, ALL);
    for (unsigned short* out = inner.places + through - own; met; met &= met - 1) {
        const int k = __ffs(met) - 1;
        *out++ = (unsigned short)(16 * lane + 2 * (k & 4) + k);
    }
    __syncwarp();
    return through;
}

// Entry of row `row` of A's tile, and of column `column` of B's, at an inner place.  The arrays of parts are walked flat.
__device__ __forceinline__ Element of_a(const Inner& inner, u32 place, int row, const Element* elements) {
    return element((&inner.a[0][row >> 2])[place >> 3 & ~1u], elements, (place & 7) ^ (31 - 8 * (row & 3)));
}

__device__ __forceinline__ Element of_b(const Inner& inner, u32 place, int column, const Element* elements) {
    return element((&inner.b[0][0])[place >> 3], elements, (8 * place & 24) ^ (31 - column));
}

// sums += A B for at most INNER of the `left` inner places from `first` on.  Lane 4 g + t holds row g and columns 2 t and 2 t + 1.
// They are of tasks of one tile of C, in the upper half of A's fragment; so sums do not depend on other tiles.
#if !TENSOR
constexpr int INNER = 8;
__device__ __forceinline__ void multiply_step(Accumulator (&sums)[4], const Inner& inner, int first, int left, const Element* a_elements,
                                              const Element* b_elements, Element* dense) {
    // Algorithm 2: what takes part dense, and each lane the sums of two places.
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const unsigned short* places = inner.places + first;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int column = lane & 7, row = 4 * i + (lane >> 3);
        dense[32 * i + lane] = of_a(inner, column < left ? places[column] : NO_PLACE, row, a_elements);
        dense[64 + 32 * i + lane] = of_b(inner, row < left ? places[row] : NO_PLACE, column, b_elements);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        sums[0] += Accumulator(dense[8 * g + k]) * Accumulator(dense[64 + 8 * k + 2 * t]);
        sums[1] += Accumulator(dense[8 * g + k]) * Accumulator(dense[64 + 8 * k + 2 * t + 1]);
    }
}
#elif PRECISION == 16
constexpr int INNER = 16;
__device__ __forceinline__ void multiply_step(float (&sums)[4], const Inner& inner, int first, int left, const __half* a_elements,
                                              const __half* b_elements, __half*) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int at = 4 * t + 2 * i;
        const u32 one = at < left ? inner.places[first + at] : NO_PLACE;
        const u32 two = at + 1 < left ? inner.places[first + at + 1] : NO_PLACE;
        const __half2 u = __halves2half2(of_a(inner, one, g, a_elements), of_a(inner, two, g, a_elements));
        const __half2 v = __halves2half2(of_b(inner, one, g, b_elements), of_b(inner, two, g, b_elements));
        a[i] = *(const u32*)&u;
        b[i] = *(const u32*)&v;
    }
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(0), "r"(a[1]), "r"(0), "r"(b[0]), "r"(b[1]));
}
#else
constexpr int INNER = 8;
__device__ __forceinline__ void multiply_step(Accumulator (&sums)[4], const Inner& inner, int first, int left, const Element* a_elements,
                                              const Element* b_elements, Element*) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Element x[2], y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = 4 * half + t;
        const u32 place = at < left ? inner.places[first + at] : NO_PLACE;
        x[half] = of_a(inner, place, g, a_elements);
        y[half] = of_b(inner, place, g, b_elements);
    }
#if PRECISION == 19
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(__float_as_uint(x[0])), "r"(0), "r"(__float_as_uint(x[1])), "r"(0), "r"(__float_as_uint(y[0])),
                   "r"(__float_as_uint(y[1])));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(sums[0]), "+d"(sums[1])
                     : "d"(x[half]), "d"(y[half]));
#endif
}
#endif

// Patterns of at most COUNTED of the `left` tasks from `step` on, as products of zeros and ones.
#if TENSOR
constexpr int COUNTED = 4;
__device__ __forceinline__ void count_step(int (&sums)[4], const Tasks& tasks, int step, int left) {
    // Lane 4 g + t takes four columns of row g of A's tile and as many rows of column g of B's, of task t / 2 and the next but one.
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = t >> 1;
    u32 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int task = first + 2 * i;
        const u32 row = tasks.a[step + task][g >> 2].bits >> (8 * (g & 3) + 4 * (t & 1)) & 0xf;
        a[i] = task < left ? row * 0x00204081u & 0x01010101u : 0;  // one byte a bit
        b[i] = tasks.b[step + task][t & 1].bits >> g & 0x01010101u;
    }
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a[0]), "r"(0), "r"(a[1]), "r"(0), "r"(b[0]), "r"(b[1]));
}
#else
constexpr int COUNTED = 32;
__device__ __forceinline__ void count_step(int (&pattern)[4], const Tasks& tasks, int step, int left) {
    const int lane = threadIdx.x & 31;
    if (lane >= left) return;
    const Part *a = tasks.a[step + lane], *b = tasks.b[step + lane];
    const u64 product = boolean_product(u64(a[1].bits) << 32 | a[0].bits, u64(b[1].bits) << 32 | b[0].bits);
    pattern[0] |= int(u32(product));
    pattern[1] |= int(u32(product >> 32));
}
#endif

// Look up the tasks from `step` on where fewer than `many` of them are at hand; returns the first at hand.
__device__ __forceinline__ int at_hand(Tasks& tasks, int base, int step, int many, int end, const int2* list, const u64* a_bitmaps,
                                       const int* a_index, const u64* b_bitmaps, const int* b_index) {
    if (step + many <= base + 32) return base;
    look_up(tasks, step, end, list, a_bitmaps, a_index, b_bitmaps, b_index);
    return step;
}

}  // namespace

extern "C" {

// CSR to tiles: columns, bitmaps, and elements, whose values are rounded already.  One warp a row of tiles.
__global__ void __launch_bounds__(128) find_tiles(int rows, const int* ptr, const int* idx, const int* tile_ptr, const Accumulator* values,
                                                  int* tile_rows, int* tile_column, u64* bitmaps, int* index, Element* elements) {
    constexpr int MOST = 192;  // tiles of a row that a warp holds
    __shared__ u32 s_bits[4][WINDOW_WORDS], s_halves[4][MOST][2];
    __shared__ int s_before[4][WINDOW_WORDS], s_index[4][MOST];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tile_row = blockIdx.x * 4 + warp;
    if (8 * tile_row >= rows) return;
    const TileRow row(rows, ptr, idx, tile_row);
    const int first = tile_ptr[tile_row], tiles = tile_ptr[tile_row + 1] - first;
    if (row.words <= WINDOW_WORDS && tiles <= MOST) {
        u32 *bits = s_bits[warp], (*halves)[2] = s_halves[warp];
        int *before = s_before[warp], *own_index = s_index[warp];
        mark_tiles(row, idx, bits, before);
        for (int i = lane; i < tiles; i += 32) halves[i][0] = halves[i][1] = 0;
        __syncwarp();
        for (int p = row.begin + lane; p < row.end; p += 32) {
            const int entry = idx[p], column = (entry >> 3) - row.low, r = row.row_of(p);
            const int tile = before[column >> 5] + __popc(bits[column >> 5] & ((1u << (column & 31)) - 1));
            atomicOr(&halves[tile][r >> 2], 1u << (8 * (r & 3) + (entry & 7)));
            tile_column[first + tile] = entry >> 3;
        }
        __syncwarp();
        int element = row.begin;
        for (int base = 0; base < tiles; base += 32) {
            const int i = base + lane;
            const u64 bitmap = i < tiles ? u64(halves[i][1]) << 32 | halves[i][0] : 0;
            const int count = __popcll(bitmap), scan = prefix_scan<32>(count, lane, ALL);
            if (i < tiles) {
                own_index[i] = index[first + i] = element + scan - count;
                tile_rows[first + i] = tile_row;
                bitmaps[first + i] = bitmap;
            }
            element += __shfl_sync(ALL, scan, 31);
        }
        __syncwarp();
        for (int p = row.begin + lane; p < row.end; p += 32) {
            const int entry = idx[p], column = (entry >> 3) - row.low, r = row.row_of(p);
            const int tile = before[column >> 5] + __popc(bits[column >> 5] & ((1u << (column & 31)) - 1));
            const u64 bitmap = u64(halves[tile][1]) << 32 | halves[tile][0];
            elements[own_index[tile] + __popcll(bitmap & ((1ull << (8 * r + (entry & 7))) - 1))] = Element(values[p]);
        }
    } else {
        int tile = first, element = row.begin;
        walk(row, idx, [&](int column, u32 byte, int p) {
            const u64 own = u64(byte) << (8 * lane);
            const u64 bitmap = u64(__reduce_or_sync(0xffu, u32(own >> 32))) << 32 | __reduce_or_sync(0xffu, u32(own));
            int at = element + __popcll(bitmap & ((1ull << (8 * lane)) - 1));
            for (; byte; byte &= byte - 1) elements[at++] = Element(values[p++]);
            if (lane == 0) {
                tile_rows[tile] = tile_row;
                tile_column[tile] = column;
                bitmaps[tile] = bitmap;
                index[tile] = element;
            }
            ++tile;
            element += __popcll(bitmap);
        });
    }
    if (lane == 0 && 8 * tile_row + 8 >= rows) index[first + tiles] = row.end;
}

// `many` tiles of C a warp, below 32.
__global__ void __launch_bounds__(32 * WARPS) count(int tiles, int many, const int2* heads, const int2* list, const u64* a_bitmaps,
                                                    const u64* b_bitmaps, int* c_column, u64* c_bitmaps, int* counts) {
    __shared__ Tasks s_tasks[WARPS];
    Tasks& tasks = s_tasks[threadIdx.x >> 5];
    const int c = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * many, lane = threadIdx.x & 31;
    if (c >= tiles) return;
    const int here = min(many, tiles - c);
    const int2 head = heads[c + min(lane, here)];
    const int last = __shfl_sync(ALL, head.x, here);
    int base = -32;
    u64 bitmap = 0;  // lane i: of tile c + i
    for (int i = 0; i < here; ++i) {
        const int begin = __shfl_sync(ALL, head.x, i), end = __shfl_sync(ALL, head.x, i + 1);
        int sums[4] = {};
        for (int step = begin; step < end; step += COUNTED) {
            const int need = TENSOR ? COUNTED : min(COUNTED, end - step);
            base = at_hand(tasks, base, step, need, last, list, a_bitmaps, nullptr, b_bitmaps, nullptr);
            count_step(sums, tasks, step - base, end - step);
        }
#if TENSOR
        const u32 even = __ballot_sync(ALL, sums[0] > 0), odd = __ballot_sync(ALL, sums[1] > 0);
        if (lane == i) bitmap = spread(even) | spread(odd) << 1;
#else
        const u32 low = __reduce_or_sync(ALL, u32(sums[0])), high = __reduce_or_sync(ALL, u32(sums[1]));
        if (lane == i) bitmap = u64(high) << 32 | low;
#endif
    }
    if (lane < here) {
        c_column[c + lane] = head.y;
        c_bitmaps[c + lane] = bitmap;
        counts[c + lane] = __popcll(bitmap);
    }
}

__global__ void __launch_bounds__(32 * WARPS) multiply(int tiles, int many, const int2* heads, const int2* list, const u64* a_bitmaps,
                                                       const int* a_index, const Element* a_elements, const u64* b_bitmaps,
                                                       const int* b_index, const Element* b_elements, const u64* c_bitmaps,
                                                       const int* c_index, Accumulator* c_elements, int* cancelled) {
    __shared__ Inner s_inner[WARPS];
    Inner& inner = s_inner[threadIdx.x >> 5];
#if TENSOR
    Element* dense = nullptr;
#else
    __shared__ Element s_dense[WARPS][128];
    Element* dense = s_dense[threadIdx.x >> 5];
#endif
    const int c = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * many, lane = threadIdx.x & 31;
    if (c >= tiles) return;
    const int here = min(many, tiles - c), own = c + min(lane, here - 1);
    const int head = heads[c + min(lane, here)].x, own_index = c_index[own];
    const u64 own_bitmap = c_bitmaps[own];
    const int last = __shfl_sync(ALL, head, here);
    if (lane == 0) {
        put(inner.a[32], 0, 0);
        put(inner.b[32], 0, 0);
    }
    int base = -32, through = 0, inner_own = 0;
    const auto look = [&](int at) {
        base = at;
        through = look_up_inner(inner, inner_own, at, last, list, a_bitmaps, a_index, b_bitmaps, b_index);
    };
    bool zero = false;
    for (int i = 0; i < here; ++i) {
        const int begin = __shfl_sync(ALL, head, i), end = __shfl_sync(ALL, head, i + 1);
        Accumulator sums[4] = {};
        // From its first task on where not all are at hand, so that steps do not depend on other tiles either.
        if (end > base + 32) look(begin);
        for (int at = begin;;) {
            const int stop = min(end, base + 32), to = __shfl_sync(ALL, through, stop - 1 - base);
            for (int k = __shfl_sync(ALL, through - inner_own, at - base); k < to; k += INNER)
                multiply_step(sums, inner, k, to - k, a_elements, b_elements, dense);
            if (stop == end) break;
            look(at = stop);
        }
        const u64 bitmap = __shfl_sync(ALL, own_bitmap, i);
        const u32 bits = u32(bitmap >> (2 * lane)) & 3;
        Accumulator* out = c_elements + __shfl_sync(ALL, own_index, i) + __popcll(bitmap & ((1ull << (2 * lane)) - 1));
        if (bits & 1) *out++ = sums[0];
        if (bits & 2) *out = sums[1];
        zero |= ((bits & 1) && sums[0] == 0) || ((bits & 2) && sums[1] == 0);
    }
    if (__any_sync(ALL, zero) && lane == 0) *cancelled = 1;
}

// Bitmaps of what did not cancel, how much that is, and whether it is anything; one thread a tile.
__global__ void __launch_bounds__(256) find_zeros(int tiles, const u64* bitmaps, const int* index, const Accumulator* elements, u64* kept,
                                                  int* counts, int* any) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= tiles) return;
    u64 own = 0;
    int at = index[c];
    for (u64 bits = bitmaps[c]; bits; bits &= bits - 1)
        if (elements[at++] != 0) own |= bits & -bits;
    kept[c] = own;
    counts[c] = __popcll(own);
    any[c] = own != 0;
}

// The tiles and elements that are kept, one after the other; eight lanes a tile.
__global__ void __launch_bounds__(256) squeeze(int tiles, const u64* bitmaps, const int* index, const int* columns,
                                               const Accumulator* elements, const u64* kept, const int* new_index, const int* number,
                                               u64* new_bitmaps, int* dense_index, int* new_columns, Accumulator* new_elements) {
    const int c = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    if (c >= tiles) return;
    const u64 own = kept[c], all = bitmaps[c];
    if (lane == 0 && own) {
        new_bitmaps[number[c]] = own;
        dense_index[number[c]] = new_index[c];
        new_columns[number[c]] = columns[c];
    }
    for (u64 bits = own & 0xffull << (8 * lane); bits; bits &= bits - 1) {
        const u64 below = (bits & -bits) - 1;
        new_elements[new_index[c] + __popcll(own & below)] = elements[index[c] + __popcll(all & below)];
    }
}

// One block for a row of tiles, one warp for each of its rows.
__global__ void __launch_bounds__(256) to_csr(int rows, const int* c_ptr, const int* c_column, const u64* bitmaps, const int* index,
                                              const Accumulator* elements, int* ptr, int* idx, Accumulator* val) {
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
