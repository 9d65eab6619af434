// What the kernels on stored matrices share: arithmetic, streams, the end of the scalar products.
//
// Block vectors are row-major (N, R).  LANES threads share a row, each holding COLUMNS vectors.
//
// Set by the launch code besides number.cuh's: LANES, COLUMNS, UNROLL, THREADS, BLOCKS (resident blocks a
// multiprocessor), MODE (0 plain product, 1 augmented without dots, 2 with dots), EXACT (1
// if every column exists), SERIES (series.cuh).

#include "number.cuh"
#include "ptx.cuh"

constexpr int ROWS = 32 / LANES;  // rows of a warp
constexpr int WARPS = THREADS / 32;
constexpr int SPAN = LANES * COLUMNS;   // columns of a warp
constexpr int PARTS = COMPLEX ? 2 : 1;  // real numbers of a number

#include "series.cuh"

static __device__ __forceinline__ void multiply_add(number& sum, number a, number v) {
    sum.x += a.x * v.x;
#if COMPLEX
    sum.x -= a.y * v.y;
    sum.y += a.x * v.y;
    sum.y += a.y * v.x;
#endif
}

// Streams are read and written once a step: they must not push the vector V out of the caches.
static __device__ __forceinline__ number load_stream(const number* p) {
    number n;
#if COMPLEX
    if constexpr (sizeof(real) == 8) {
        const double2 d = __ldcs(reinterpret_cast<const double2*>(p));
        n.x = d.x, n.y = d.y;
    } else {
        const float2 d = __ldcs(reinterpret_cast<const float2*>(p));
        n.x = d.x, n.y = d.y;
    }
#else
    n.x = __ldcs(reinterpret_cast<const real*>(p));
#endif
    return n;
}

// One element of the new W, and its part of the scalar products (MODE 0: the sum alone).
static __device__ __forceinline__ number advanced(number sum, number own, number old, real scale, real shift, real keep, double& even,
                                                  double& odd) {
#if MODE == 0
    return sum;
#else
    number fresh;
    fresh.x = scale * sum.x + shift * own.x - keep * old.x;
#if COMPLEX
    fresh.y = scale * sum.y + shift * own.y - keep * old.y;
#endif
#if MODE == 2
    even += double(own.x) * own.x, odd += double(fresh.x) * own.x;
#if COMPLEX
    even += double(own.y) * own.y, odd += double(fresh.y) * own.y;
#endif
#endif
    return fresh;
#endif
}

// Sums over the rows of a warp, to sums: (warps, 2, SPAN).  Four adjacent threads share HELD adjacent columns, and the others
// as many of every LANES HELD.
template <int HELD>
static __device__ __forceinline__ void sum_quads(double* even, double* odd, double* sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            even[c] += __shfl_xor_sync(0xffffffffu, even[c], distance);
            odd[c] += __shfl_xor_sync(0xffffffffu, odd[c], distance);
        }
        if (lane % 4 == 0) {
            const int column = (c / HELD * LANES + lane / 4) * HELD + c % HELD;
            sums[2 * warp * SPAN + column] = even[c];
            sums[(2 * warp + 1) * SPAN + column] = odd[c];
        }
    }
}

// Sums over the warps, one after another.  sums: (warps, 2, SPAN);  partial: (gridDim.x, 2, R)
static __device__ __forceinline__ void sum_warps(const double* sums, int warps, double* partial, int width) {
    for (int t = threadIdx.x; t < 2 * SPAN; t += THREADS) {
        const int which = t / SPAN, column = t % SPAN, target = blockIdx.y * SPAN + column;
        double total = 0;
        for (int n = 0; n < warps; ++n) total += sums[(2 * n + which) * SPAN + column];
        if (EXACT || target < width) partial[((long long)blockIdx.x * 2 + which) * width + target] = total;
    }
}

// Both sums, in a fixed order, where a thread of the first SUMMED warps holds HELD adjacent columns of every LANES HELD.
template <int HELD, int SUMMED = WARPS>
static __device__ __forceinline__ void sum_block(double* even, double* odd, double* sums, double* partial, int width) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2) {
            even[c] += __shfl_xor_sync(0xffffffffu, even[c], distance);
            odd[c] += __shfl_xor_sync(0xffffffffu, odd[c], distance);
        }
        if ((SUMMED == WARPS || warp < SUMMED) && lane < LANES) {
            const int column = (c / HELD * LANES + lane) * HELD + c % HELD;
            sums[2 * warp * SPAN + column] = even[c];
            sums[(2 * warp + 1) * SPAN + column] = odd[c];
        }
    }
    __syncthreads();
    sum_warps(sums, SUMMED, partial, width);
}
