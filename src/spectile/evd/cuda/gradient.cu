// The derivative of eigenpairs, between its products: entries off the clusters divided by the gaps of the eigenvalues.
#include "ptx.cuh"
#include "scalar.cuh"
#include "told.cuh"

__device__ __forceinline__ real_t size_of(scalar_t a) {
    return COMPLEX ? (real_t)hypot((double)real_part(a), (double)imag_part(a)) : (real_t)fabs((double)real_part(a));
}

// The larger, or a NaN.
__device__ __forceinline__ double larger(double a, double b) { return b > a || b != b ? b : a; }

// The largest absolute value of ascending eigenvalues, and whether the one before eigenvalue i is of another cluster.
__device__ __forceinline__ real_t largest_of(const real_t* w, int n) {
    const real_t low = fabs(w[0]), high = fabs(w[n - 1]);
    return low > high ? low : high;
}
__device__ __forceinline__ bool parted(const real_t* w, int i, real_t least) { return i > 0 && w[i] - w[i - 1] > least; }

// The sum and the largest of the numbers of all threads, in totals[0] and totals[256]; all have come when it ends.
__device__ __forceinline__ void add_up(double* totals, double total, double most) {
    const int t = threadIdx.x;
    totals[t] = total, totals[256 + t] = most;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) totals[t] += totals[t + half], totals[256 + t] = larger(totals[256 + t], totals[256 + t + half]);
        __syncthreads();
    }
}

// Of each matrix the first member of the cluster of each of its ascending eigenvalues, within which no gap is above `resolution` times the
// largest, and whether any coincide.  A block a matrix.
extern "C" __global__ void __launch_bounds__(256) find_clusters(const real_t* w, int n, real_t resolution, int* cluster, int* coinciding) {
    w += (long long)blockIdx.x * n, cluster += (long long)blockIdx.x * n;
    const real_t least = resolution * largest_of(w, n);
    bool coincide = false;
    for (int i = threadIdx.x; i < n; i += 256) {
        int first = i;
        while (first > 0 && !parted(w, first, least)) --first;
        cluster[i] = first, coincide |= first < i;
    }
    coincide = __syncthreads_or(coincide);
    if (threadIdx.x == 0) coinciding[blockIdx.x] = coincide;
}

// A number between 0 and 1 that looks like a random one, the same for the same i and k.
__device__ __forceinline__ double scattered(unsigned i, unsigned k) {
    unsigned x = i * 0x9e3779b1u ^ (k + 1) * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) / 4294967296.0;
}

// Vectors in rows of memory, complex ones with other phases: out(i, j) of v at i along_i + j along_j.  A block for each tile of each matrix.
extern "C" __global__ void __launch_bounds__(256) arrange(const scalar_t* v, long long along_matrix, long long along_i, long long along_j,
                                                          int n, scalar_t* out) {
    DYNAMIC_SHARED(scalar_t, tile);  // 32 x 33
    const int i0 = blockIdx.y * 32, j0 = blockIdx.z * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const bool rows = along_j * along_j < along_i * along_i;
    v += blockIdx.x * along_matrix, out += (long long)blockIdx.x * n * n;
    for (int c = y; c < 32; c += 8) {
        const int i = rows ? c : x, j = rows ? x : c;
        if (i0 + i < n && j0 + j < n) tile[i * 33 + j] = v[(i0 + i) * along_i + (j0 + j) * along_j];
    }
    __syncthreads();
    const double angle = 6.283185307179586 * scattered(j0 + x, 0);
    const scalar_t phase = COMPLEX ? make_scalar((real_t)cos(angle), (real_t)sin(angle)) : one();
    for (int r = y; r < 32; r += 8)
        if (i0 + r < n && j0 + x < n) out[(long long)(i0 + r) * n + j0 + x] = COMPLEX ? phase * tile[r * 33 + x] : tile[r * 33 + x];
}

// Vectors of one cluster turned among themselves: each pair whose places in it differ by one bit, bit after bit and back, by angles from
// pi / 8 to 3 pi / 8.  A block for each row of each matrix.
extern "C" __global__ void __launch_bounds__(256) mix_clusters(scalar_t* v, int n, const int* cluster, const int* coinciding) {
    const long long matrix = blockIdx.x / n;
    if (coinciding[matrix] == 0) return;
    v += (long long)blockIdx.x * n, cluster += matrix * n;
    for (int step = 1, falling = 0; step > 0; falling |= 2 * step >= n, step = falling ? step >> 1 : step << 1) {
        for (int j = threadIdx.x; j + step < n; j += 256) {
            if (cluster[j] != cluster[j + step] || ((j - cluster[j]) & step)) continue;
            const double angle = 0.39269908169872414 * (1 + 2 * scattered(j, 2 * step + falling));
            const real_t c = (real_t)cos(angle), s = (real_t)sin(angle);
            const scalar_t left = v[j], right = v[j + step];
            v[j] = c * left - s * right, v[j + step] = s * left + c * right;
        }
        __syncthreads();
    }
}

// The norm of n numbers, by all threads.
__device__ __forceinline__ real_t norm_of(const real_t* x, int n, double* totals) {
    double total = 0;
    for (int k = threadIdx.x; k < n; k += 256) total += (double)x[k] * (double)x[k];
    add_up(totals, total, 0);
    total = totals[0];
    __syncthreads();
    return (real_t)sqrt(total);
}

// out = S - S^H over w_j - w_i, 0 where i and j are of one cluster, within which no gap is above `resolution` times the largest
// eigenvalue, plus twice the cotangents of w on the diagonal, of matrices in rows; in place is allowed.  w_bar may be null; so may S,
// and there is no out.  The host is told of a fault: where cotangents of w of a pair of one cluster differ by more than `told` of their
// norm, or by more than `turned` of it over how far rounding, `unit` times the largest, turns one vector to the other: fully for gaps up
// to that; where the anti-Hermitian part of a pair is above `anti` |S|; and where a norm is not finite.  Each block of two tiles leaves
// the sum of the squares of its part of S, and the largest anti-Hermitian part, infinite at a fault; the last of a matrix's judges.
// `arrivals`, one a matrix, are 0 before and after.
extern "C" __global__ void __launch_bounds__(256) divide_by_gaps(const scalar_t* s, const real_t* w, const real_t* w_bar, int n,
                                                                 real_t resolution, real_t unit, real_t told, real_t turned, double anti,
                                                                 scalar_t* out, double* parts, int* arrivals, int* word,
                                                                 unsigned long long* arrived) {
    DYNAMIC_SHARED(scalar_t, own);  // 32 x 33: the tile, and the one across the diagonal
    scalar_t* across = own + 32 * 33;
    double* totals = (double*)(across + 32 * 33);  // 2 x 256
    int* start = (int*)(totals + 512);             // 32
    if (blockIdx.y > blockIdx.z) return;
    const long long matrix = blockIdx.x;
    w += matrix * n, arrivals += matrix;
    // The tiles on and above the diagonal, column by column.
    const int tiles = gridDim.z * (gridDim.z + 1) / 2, here = blockIdx.z * (blockIdx.z + 1) / 2 + blockIdx.y;
    parts += 2 * matrix * tiles;
    if (s != nullptr) s += matrix * n * n, out += matrix * n * n;
    if (w_bar != nullptr) w_bar += matrix * n;
    const int i0 = blockIdx.y * 32, j0 = blockIdx.z * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const real_t largest = largest_of(w, n), least = resolution * largest;
    for (int r = y; r < 32; r += 8) {
        const bool inside = i0 + r < n && j0 + x < n, other = j0 + r < n && i0 + x < n;
        own[r * 33 + x] = inside && s != nullptr ? s[(long long)(i0 + r) * n + j0 + x] : zero();
        across[r * 33 + x] = other && s != nullptr ? s[(long long)(j0 + r) * n + i0 + x] : zero();
    }
    // Where the cluster of each column's eigenvalue begins, as far as the tile's rows reach.
    bool cut = false;
    for (int top = j0; top > i0 + 31 && !cut; top -= 256) {
        const int k = top - (int)threadIdx.x;
        cut = __syncthreads_or(k > i0 + 31 && parted(w, k, least));
    }
    bool beside = false;
    if (threadIdx.x < 32) {
        const int j = min(j0 + x, n - 1);
        int k = j;
        while (k > j0 && !parted(w, k, least)) --k;
        if (k == j0 && !cut)
            for (k = min(j0, i0 + 31); k > i0 && !parted(w, k, least);) --k;
        start[x] = k, beside = k <= i0 + 31 && k < j;
    }
    beside = __syncthreads_or(beside);
    const real_t norm = beside && w_bar != nullptr ? norm_of(w_bar, n, totals) : 0;
    bool found = false;
    double total = 0, most = 0;
    for (int r = y; r < 32; r += 8) {
        const int i = i0 + r, j = j0 + x;
        if (i >= n || j >= n) continue;
        const scalar_t near = own[r * 33 + x], far = across[x * 33 + r], skew = (real_t)0.5 * (near - conj(far));
        const double size = size_of(near), other = i0 == j0 ? 0 : size_of(far);
        total += size * size + other * other;
        const real_t gap = w[j] - w[i];
        scalar_t value = zero();
        if (start[max(i, j) - j0] > min(i, j)) {
            value = (2 / gap) * skew;
        } else {
            most = larger(most, size_of(skew));
            if (w_bar != nullptr && i != j) {
                const real_t apart = fabs(w_bar[j] - w_bar[i]), width = fabs(gap), rounding = unit * largest;
                const real_t turn = width <= rounding ? (real_t)1 : rounding / width;
                found |= (s != nullptr && !(apart <= told * norm)) || !(apart * turn <= turned * norm);
            }
        }
        if (i == j && w_bar != nullptr) value = value + make_scalar(2 * w_bar[i], 0);
        if (s != nullptr) out[(long long)i * n + j] = value;
        across[x * 33 + r] = conj(value);  // which is Hermitian
    }
    __syncthreads();
    if (s != nullptr && i0 < j0)
        for (int r = y; r < 32; r += 8)
            if (j0 + r < n && i0 + x < n) out[(long long)(j0 + r) * n + i0 + x] = across[r * 33 + x];
    if (found) most = __int_as_float(0x7f800000);
    add_up(totals, total, most);
    bool* last = (bool*)start;
    if (threadIdx.x == 0) {
        parts[2 * here] = totals[0], parts[2 * here + 1] = totals[256];
        __threadfence();
        *last = atomicAdd(arrivals, 1) == tiles - 1;
    }
    __syncthreads();
    if (!*last) return;
    __threadfence();
    total = most = 0;
    for (int k = threadIdx.x; k < tiles; k += 256)
        total += ((volatile double*)parts)[2 * k], most = larger(most, ((volatile double*)parts)[2 * k + 1]);
    add_up(totals, total, most);
    total = sqrt(totals[0]), most = totals[256];
    __syncthreads();
    const double size = w_bar == nullptr ? 0 : norm_of(w_bar, n, totals);
    if (threadIdx.x > 0) return;
    *arrivals = 0;
    __threadfence_system();
    tell(most <= anti * total && total - total == 0 && size - size == 0, word, arrived);
}

// Of Hermitian matrices in rows one triangle, and half of the real diagonal; 0 elsewhere.  A block for each row of each matrix.
extern "C" __global__ void __launch_bounds__(256) take_triangle(scalar_t* a, int n, int lower) {
    const int i = blockIdx.x % n;
    a += (long long)blockIdx.x * n;
    if (threadIdx.x == 0) a[i] = make_scalar(real_part(a[i]) / 2, 0);
    for (int j = (lower ? i + 1 : 0) + threadIdx.x; j < (lower ? n : i); j += 256) a[j] = zero();
}
