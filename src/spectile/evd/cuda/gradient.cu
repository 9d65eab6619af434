// The derivative of eigenpairs, between its products: entries off the clusters divided by the gaps of the eigenvalues.
#include "ptx.cuh"
#include "scalar.cuh"

__device__ __forceinline__ real_t size_of(scalar_t a) {
    return COMPLEX ? (real_t)hypot((double)real_part(a), (double)imag_part(a)) : (real_t)fabs((double)real_part(a));
}

// The larger, or a NaN.
__device__ __forceinline__ double larger(double a, double b) { return b > a || b != b ? b : a; }

// Of each matrix the number of the cluster of each of its ascending eigenvalues, within which no gap is above `resolution` times the
// largest; and sizes[0], how far rounding moves them, `unit` times that, and sizes[1], the norm of their cotangents.  A block a matrix.
extern "C" __global__ void __launch_bounds__(256) number_clusters(const real_t* w, const real_t* w_bar, int n, real_t resolution,
                                                                  real_t unit, int* cluster, real_t* sizes) {
    DYNAMIC_SHARED(double, sums);  // 2 x 256
    const int t = threadIdx.x, each = (n + 255) / 256, first = min(t * each, n), last = min(first + each, n);
    const long long start = (long long)blockIdx.x * n;
    w += start, cluster += start;
    const real_t low = fabs(w[0]), high = fabs(w[n - 1]), most = low > high ? low : high;
    int steps = 0;
    double total = 0;
    for (int i = first; i < last; ++i) {
        steps += i > 0 && w[i] - w[i - 1] > resolution * most;
        if (w_bar != nullptr) total += (double)w_bar[start + i] * (double)w_bar[start + i];
    }
    sums[t] = steps, sums[256 + t] = total;
    __syncthreads();
    int number = 0;
    for (int k = 0; k < t; ++k) number += (int)sums[k];
    for (int i = first; i < last; ++i) {
        number += i > 0 && w[i] - w[i - 1] > resolution * most;
        cluster[i] = number;
    }
    if (t > 0) return;
    total = 0;
    for (int k = 0; k < 256; ++k) total += sums[256 + k];
    sizes[2 * blockIdx.x] = unit * most, sizes[2 * blockIdx.x + 1] = (real_t)sqrt(total);
}

// out = S - S^H over w_j - w_i, 0 where i and j are of one cluster, plus twice the cotangents of w on the diagonal, of matrices in
// rows; in place is allowed.  Each block of two tiles tells the sum of the squares of its part of S, and the largest anti-Hermitian part
// of a pair of one cluster.  fault: set where cotangents of w of such a pair differ by more than `told` of theirs, or by more than
// `turned` of it over how far rounding turns one vector to the other: fully for gaps up to sizes[0].  w_bar may be null.
extern "C" __global__ void __launch_bounds__(256) divide_by_gaps(const scalar_t* s, const real_t* w, const int* cluster,
                                                                 const real_t* w_bar, const real_t* sizes, int n, real_t told,
                                                                 real_t turned, scalar_t* out, double* parts, int* fault) {
    DYNAMIC_SHARED(scalar_t, own);  // 32 x 33: the tile, and the one across the diagonal
    scalar_t* across = own + 32 * 33;
    if (blockIdx.y > blockIdx.x) return;
    const long long matrix = blockIdx.z;
    s += matrix * n * n, out += matrix * n * n, w += matrix * n, cluster += matrix * n, sizes += 2 * matrix;
    parts += 2 * ((matrix * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    if (w_bar != nullptr) w_bar += matrix * n;
    const int i0 = blockIdx.y * 32, j0 = blockIdx.x * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int r = y; r < 32; r += 8) {
        const bool inside = i0 + r < n && j0 + x < n, other = j0 + r < n && i0 + x < n;
        own[r * 33 + x] = inside ? s[(long long)(i0 + r) * n + j0 + x] : zero();
        across[r * 33 + x] = other ? s[(long long)(j0 + r) * n + i0 + x] : zero();
    }
    __syncthreads();
    bool found = false;
    double total = 0, most = 0;
    // Both tiles: of the pair (i, j) and of (j, i).
    for (int side = 0; side < 2; ++side) {
        const scalar_t *here = side ? across : own, *there = side ? own : across;
        const int top = side ? j0 : i0, left = side ? i0 : j0;
        if (side && i0 == j0) break;
        for (int r = y; r < 32; r += 8) {
            const int i = top + r, j = left + x;
            if (i >= n || j >= n) continue;
            const double size = size_of(here[r * 33 + x]);
            total += size * size;
            const scalar_t anti = (real_t)0.5 * (here[r * 33 + x] - conj(there[x * 33 + r]));
            const real_t gap = w[j] - w[i];
            scalar_t value = zero();
            if (cluster[i] != cluster[j]) {
                value = (2 / gap) * anti;
            } else {
                most = larger(most, size_of(anti));
                if (w_bar != nullptr) {
                    const real_t apart = fabs(w_bar[j] - w_bar[i]), norm = sizes[1], width = fabs(gap);
                    const real_t turn = width <= sizes[0] ? (real_t)1 : sizes[0] / width;
                    found |= !(apart <= told * norm) || !(apart * turn <= turned * norm);
                }
            }
            if (i == j && w_bar != nullptr) value = value + make_scalar(2 * w_bar[i], 0);
            out[(long long)i * n + j] = value;
        }
    }
    if (found) *fault = 1;
    __syncthreads();
    double *totals = (double*)own, *largest = totals + 256;
    const int t = threadIdx.x;
    totals[t] = total, largest[t] = most;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) totals[t] += totals[t + half], largest[t] = larger(largest[t], largest[t + half]);
        __syncthreads();
    }
    if (t == 0) parts[0] = totals[0], parts[1] = largest[0];
}

// fault: set where the largest part of a matrix is above `most` |S|, or a norm is not finite.  A block a matrix.
extern "C" __global__ void __launch_bounds__(256) judge_gauge(const double* parts, const real_t* sizes, int tiles, double most,
                                                              int* fault) {
    DYNAMIC_SHARED(double, totals);  // 2 x 256
    double* largest = totals + 256;
    const int t = threadIdx.x;
    parts += 2 * (long long)blockIdx.x * tiles * tiles;
    totals[t] = largest[t] = 0;
    for (int k = t; k < tiles * tiles; k += 256)
        if (k / tiles <= k % tiles) totals[t] += parts[2 * k], largest[t] = larger(largest[t], parts[2 * k + 1]);
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) totals[t] += totals[t + half], largest[t] = larger(largest[t], largest[t + half]);
        __syncthreads();
    }
    const double norm = sqrt(totals[0]), size = sizes[2 * blockIdx.x + 1];
    if (t == 0 && !(largest[0] <= most * norm && norm - norm == 0 && size - size == 0)) *fault = 1;
}
