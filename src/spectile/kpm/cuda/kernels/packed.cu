// The product of one vector for Lanczos steps, where groups of adjacent rows couple the same columns (grouped.cu), as
// dense blocks do.  All that counts there is bytes: values are float16, (h - center) * unit, vectors are float32, and the
// column numbers of a group are read once for all of its rows.  The bounds' margin covers the rounding (packed.py).
//
// Set by the launch code: REAL (that of the matrix), COMPLEX, WIDE (64-bit row pointers), THREADS, BLOCKS.
#include "number.cuh"

constexpr int MOST_ROWS = 8, WARPS = THREADS / 32;

#if COMPLEX
typedef ushort2 packed;
typedef float2 value;
#else
typedef unsigned short packed;
typedef float value;
#endif

static __device__ __forceinline__ unsigned short to_half(double x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(float(x)));
    return bits;
}

static __device__ __forceinline__ float from_half(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// A warp takes groups in turns.  Rows of a group, and where the entries of each lie.
struct Place {
    int begin, rows, count;
    entry at;
};

static __device__ __forceinline__ Place find(const int *__restrict__ first, const entry *__restrict__ pointer, int group,
                                             int groups) {
    if (group >= groups) return Place{0, 0, 0, 0};
    const int begin = first[group];
    const entry at = pointer[begin];
    return Place{begin, first[group + 1] - begin, int(pointer[begin + 1] - at), at};
}

// Values of all entries, where they lie in CSR.  `diagonal` counts the rows that have an entry there: only if all do, all
// are without their center.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pack(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
         const number *__restrict__ data, packed *__restrict__ values, int *diagonal, int groups, double center,
         double unit) {
    const int lane = threadIdx.x % 32, step = gridDim.x * WARPS;
    int met = 0;
    for (int group = blockIdx.x * WARPS + threadIdx.x / 32; group < groups; group += step) {
        const Place here = find(first, pointer, group, groups);
        for (int k = lane; k < here.count; k += 32) {
            const int column = indices[here.at + k];
            met += column >= here.begin && column < here.begin + here.rows;
#pragma unroll
            for (int r = 0; r < MOST_ROWS; ++r)
                if (r < here.rows) {
                    const entry at = here.at + entry(r) * here.count + k;
                    const number n = data[at];
                    const double real_part = (n.x - (column == here.begin + r ? center : 0.0)) * unit;
#if COMPLEX
                    values[at] = make_ushort2(to_half(real_part), to_half(n.y * unit));
#else
                    values[at] = to_half(real_part);
#endif
                }
        }
    }
    met = __reduce_add_sync(0xffffffffu, met);
    if (lane == 0 && met) atomicAdd(diagonal, met);
}

// Sums over the lanes of eight numbers of each: lane 4 r has that of number r.
static __device__ __forceinline__ float sum_of_rows(float (&s)[MOST_ROWS], int lane) {
#pragma unroll
    for (int half = MOST_ROWS / 2, distance = 16; half; half /= 2, distance /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float give = upper ? s[i] : s[i + half], keep = upper ? s[i + half] : s[i];
            s[i] = keep + __shfl_xor_sync(0xffffffffu, give, distance);
        }
    }
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    return s[0] + __shfl_xor_sync(0xffffffffu, s[0], 1);
}

// u = H v;  partial: Re <u|v> of each block.  Rows of no group are none: first names all of them.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    packed_product(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
                   const packed *__restrict__ values, const value *__restrict__ v, value *__restrict__ u,
                   double *__restrict__ partial, int groups) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x * WARPS;
    double dot = 0;
    int group = blockIdx.x * WARPS + warp;
    Place here = find(first, pointer, group, groups);
    for (; group < groups; group += step) {
        const Place next = find(first, pointer, group + step, groups);
        float x[MOST_ROWS];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; ++r) x[r] = 0;
#if COMPLEX
        float y[MOST_ROWS];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; ++r) y[r] = 0;
#endif
        for (int k = lane; k < here.count; k += 32) {
            const value other = v[__ldg(indices + here.at + k)];
            packed held[MOST_ROWS];
#pragma unroll
            for (int r = 0; r < MOST_ROWS; ++r)  // beyond the last row that row again, which counts nowhere
                held[r] = values[here.at + entry(min(r, here.rows - 1)) * here.count + k];
#pragma unroll
            for (int r = 0; r < MOST_ROWS; ++r) {
#if COMPLEX
                const float2 h = make_float2(from_half(held[r].x), from_half(held[r].y));
                x[r] = fmaf(h.x, other.x, fmaf(-h.y, other.y, x[r]));
                y[r] = fmaf(h.x, other.y, fmaf(h.y, other.x, y[r]));
#else
                x[r] = fmaf(from_half(held[r]), other, x[r]);
#endif
            }
        }
        value sum;
#if COMPLEX
        sum.x = sum_of_rows(x, lane), sum.y = sum_of_rows(y, lane);
#else
        sum = sum_of_rows(x, lane);
#endif
        if (lane % 4 == 0 && lane / 4 < here.rows) {
            const int row = here.begin + lane / 4;
            const value own = v[row];
            u[row] = sum;
#if COMPLEX
            dot += double(sum.x) * own.x + double(sum.y) * own.y;
#else
            dot += double(sum) * own;
#endif
        }
        here = next;
    }
    __shared__ double sums[WARPS];
#pragma unroll
    for (int distance = 16; distance; distance /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, distance);
    if (lane == 0) sums[warp] = dot;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (int w = 0; w < WARPS; ++w) total += sums[w];
        partial[blockIdx.x] = total;
    }
}
