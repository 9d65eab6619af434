// Eigenvalues of a symmetric tridiagonal matrix by multi-section on Sturm counts.
//
// LANES neighbouring threads share one eigenvalue: each pass counts the eigenvalues below LANES interior points, so the
// interval shrinks by LANES + 1.  The count is the number of sign changes in p_i = (d_i - x) p_{i-1} - e_{i-1}^2 p_{i-2},
// scaled every 8 steps; no division, one dependent multiply-add a step.  e^2 has a floor, so that two zeros in a row
// cannot happen.  The number of passes is fixed: no input, not even NaN, can make it run on.
//
// w: `count` eigenvalues from number `first` on, in ascending order, of n.

#include "tridiagonal/bound.cuh"

#define CHUNK 512

// The matrix over its norm for the kernels below, and the norm: NaN, beside zeros, of one that is not finite.
extern "C" __global__ void __launch_bounds__(256) scale_tridiagonal(const double* d, const double* e, int n, double* diagonal,
                                                                    double* squares, double* bound) {
    extern __shared__ unsigned char shared[];
    const double found = norm_bound(d, e, n, (double*)shared), scale = found > 0 ? found : 1;
    for (int i = threadIdx.x; i < n; i += 256) {
        diagonal[i] = found == found ? d[i] / scale : 0;
        // Not 0: after a zero of the recurrence all would be 0.
        const double beside = i + 1 < n && found == found ? e[i] / scale : 0;
        squares[i] = fmax(beside * beside, 1e-60);
    }
    if (threadIdx.x == 0) *bound = found;
}

// Counts the eigenvalues below x: a step for each row.
struct Count {
    double x, p = 1, before = 0;
    int below = 0;

    __device__ explicit Count(double point) : x(point) {}

    __device__ void step(double diagonal, double square) {
        const double next = fma(diagonal - x, p, -square * before);
        below += (unsigned)(__double2hiint(next) ^ __double2hiint(p)) >> 31;
        before = p;
        p = next;
    }

    // Times the power of two that brings the larger of the two near 1.
    __device__ void rescale() {
        const int exponent = max(__double2hiint(p) & 0x7ff00000, __double2hiint(before) & 0x7ff00000);
        const double scale = __hiloint2double(min(max(0x7fe00000 - exponent, 0x00100000), 0x7fd00000), 0);
        p *= scale;
        before *= scale;
    }
};

extern "C" __global__ void __launch_bounds__(STURM_THREADS) multisect(const double* d, const double* e2, int n, int first, int count,
                                                                      double low, double high, int passes, double* w) {
    extern __shared__ unsigned char shared[];
    double2* tile = (double2*)shared;  // CHUNK pairs (d_i, e_{i-1}^2)
    const int own = (blockIdx.x * STURM_THREADS + threadIdx.x) / LANES, point = threadIdx.x % LANES;
    double a = low, b = high;
    for (int pass = 0; pass < passes; ++pass) {
        Count counted(a + (b - a) * ((point + 1) / (double)(LANES + 1)));
        for (int base = 0; base < n; base += CHUNK) {
            __syncthreads();
            for (int i = threadIdx.x; i < CHUNK; i += STURM_THREADS) {
                double2 pair;
                pair.x = base + i < n ? d[base + i] : 0;
                pair.y = base + i < n && base + i > 0 ? e2[base + i - 1] : 0;
                tile[i] = pair;
            }
            __syncthreads();
            const int length = n - base < CHUNK ? n - base : CHUNK;
            int i = 0;
            for (; i + 8 <= length; i += 8) {
#pragma unroll
                for (int u = 0; u < 8; ++u) {
                    const double2 pair = tile[i + u];
                    counted.step(pair.x, pair.y);
                }
                counted.rescale();
            }
            for (; i < length; ++i) counted.step(tile[i].x, tile[i].y);
        }
        // Points with at most as many eigenvalues below them as the eigenvalue has lie left of it.
        int left = counted.below <= first + own;
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes >>= 1) left += __shfl_xor_sync(0xffffffffu, left, lanes);
        const double width = b - a;
        const double new_a = left > 0 ? a + width * (left / (double)(LANES + 1)) : a;
        const double new_b = left < LANES ? a + width * ((left + 1) / (double)(LANES + 1)) : b;
        a = new_a;
        b = new_b;
    }
    if (own < count && point == 0) w[own] = 0.5 * (a + b);
}

// w times the norm, ascending: what roundoff has put below an eigenvalue before it becomes as large.
extern "C" __global__ void __launch_bounds__(256) ascend(double* w, int count, const double* bound) {
    extern __shared__ unsigned char shared[];
    double* tops = (double*)shared;  // 256
    const int share = (count + 255) / 256, first = min(count, (int)threadIdx.x * share), stop = min(count, first + share);
    double top = -2;  // below all
    for (int i = first; i < stop; ++i) top = fmax(top, w[i]);
    tops[threadIdx.x] = top;
    __syncthreads();
    top = -2;
    for (int t = 0; t < threadIdx.x; ++t) top = fmax(top, tops[t]);
    for (int i = first; i < stop; ++i) {
        top = fmax(top, w[i]);
        w[i] = *bound * top;
    }
}

// counts: the eigenvalues below `low`, and below `high`.
extern "C" __global__ void __launch_bounds__(32) count_below(const double* __restrict__ d, const double* __restrict__ e2, int n, double low,
                                                             double high, int* counts) {
    if (threadIdx.x > 1) return;
    Count counted(threadIdx.x == 0 ? low : high);
    for (int base = 0; base < n; base += 8) {
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            const int i = base + u;
            if (i < n) counted.step(d[i], i > 0 ? e2[i - 1] : 0);
        }
        counted.rescale();
    }
    counts[threadIdx.x] = counted.below;
}
