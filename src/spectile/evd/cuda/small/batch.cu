// What surrounds a vendor's batched solver: the matrices brought into its memory, scaled, and its eigenvalues back.
#include "small/exponents.cuh"

// The solver squares entries.  In single precision a matrix comes to it as large as squares allow, its norm below 2^61, so
// that those of a graded matrix's small entries do not underflow; in double precision it comes near 1.
__device__ __forceinline__ int most_exponent(int n) { return sizeof(real_t) == 4 ? 61 - (32 - __clz(n - 1)) : 0; }

// By how many times n units of roundoff results may be off, an order above those of a good solver.
#define MOST_OFF 10
#define UNIT (sizeof(real_t) == 8 ? 2.220446049250313e-16 : 1.1920928955078125e-7)

// Whether eigenvalues are numbers, and none below those before it by more than is allowed; it becomes as large as they are.
__device__ inline bool ascend(real_t* w, int n, double allowed) {
    double top = w[0];
    for (int k = 0; k < n; ++k) {
        if (!isfinite(w[k]) || top - w[k] > allowed) return false;
        top = fmax(top, (double)w[k]);
    }
    for (int k = 1; k < n; ++k) w[k] = (real_t)fmax((double)w[k - 1], (double)w[k]);
    return true;
}

// ||V V^H x - x||^2 of n columns, by 128 threads, for a vector x of signs: on average the square of ||V V^H - I||_F.
__device__ inline double drift(const scalar_t* v, int n, double* y) {  // y: 2 n + 128
    const auto sign = [](int i) { return i * 0x9e3779b1u >> 31 ? -1.0 : 1.0; };
    for (int j = threadIdx.x; j < n; j += 128) {
        double re = 0, im = 0;
#pragma unroll 8
        for (int i = 0; i < n; ++i) {
            const scalar_t own = v[i + (long long)j * n];
            re += sign(i) * real_part(own);
            im -= sign(i) * imag_part(own);
        }
        y[2 * j] = re;
        y[2 * j + 1] = im;
    }
    __syncthreads();
    double sum = 0, *sums = y + 2 * n;
    for (int i = threadIdx.x; i < n; i += 128) {
        double re = -sign(i), im = 0;
#pragma unroll 8
        for (int j = 0; j < n; ++j) {
            const scalar_t own = v[i + (long long)j * n];
            re += real_part(own) * y[2 * j] - imag_part(own) * y[2 * j + 1];
            im += real_part(own) * y[2 * j + 1] + imag_part(own) * y[2 * j];
        }
        sum += re * re + im * im;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int t = 0; t < 128; ++t) sum += sums[t];
    return sum;
}

// One triangle of matrix b, column-major, times 2^-exponents[b]: a(i, j), i >= j, is at b * stride + i * along_i +
// j * along_j, conjugated if it is read from an upper triangle.  The lower triangle is written, or, where neighbours of a
// row are closer than those of a column, the upper one, so that it is copied as it lies.  All of a matrix that is not finite is 0, so that the solver comes to an end.
extern "C" __global__ void __launch_bounds__(512) load_batch(const scalar_t* a, long long stride, long long along_i, long long along_j,
                                                             int n, int conjugate, scalar_t* out, int* exponents) {
    extern __shared__ unsigned char shared[];
    int* exponent = (int*)shared;
    a += blockIdx.x * stride;
    out += (long long)blockIdx.x * n * n;
    if (threadIdx.x == 0) *exponent = -NOT_FINITE;
    __syncthreads();
    const bool rows = along_j * along_j < along_i * along_i;
    const long long along_fast = rows ? along_j : along_i, along_slow = rows ? along_i : along_j;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int most = -NOT_FINITE;
    for (int slow = warp; slow < n; slow += warps) {
        const int first = rows ? 0 : slow, last = rows ? slow : n - 1;
#pragma unroll 4
        for (int fast = first + lane; fast <= last; fast += 32) {
            const scalar_t value = a[fast * along_fast + slow * along_slow];
            most = max(most, exponent_of(real_part(value)));
            if (fast != slow) most = max(most, exponent_of(imag_part(value)));
        }
    }
    atomicMax(exponent, most);
    __syncthreads();
    const int most_given = *exponent;
    const int scale = abs(most_given) == NOT_FINITE ? most_given : most_given - most_exponent(n);
    if (threadIdx.x == 0) exponents[blockIdx.x] = scale == -NOT_FINITE ? 0 : scale;
    for (int slow = warp; slow < n; slow += warps) {
        const int first = rows ? 0 : slow, last = rows ? slow : n - 1;
#pragma unroll 4
        for (int fast = first + lane; fast <= last; fast += 32) {
            scalar_t value = a[fast * along_fast + slow * along_slow];
            if (fast == slow) value = make_scalar(real_part(value), 0);
            if (conjugate != (int)rows) value = conj(value);  // A(j, i) is the conjugate of A(i, j)
            if (scale == NOT_FINITE) value = zero();
            else if (scale != -NOT_FINITE) value = scaled(value, -scale);
            out[fast + (long long)slow * n] = value;
        }
    }
}

// Eigenvalues k of matrix b times 2^exponents[b], ascending.  Status: whether a matrix is not finite, what the solver
// reports, whether an eigenvalue is too large, and whether results of a matrix are none, which the solver does not tell: its
// eigenvalues are out of order by more than roundoff, or the vectors V, if any, not orthonormal; which matrices those are is
// left in info.
extern "C" __global__ void __launch_bounds__(128) finish_batch(real_t* w, const scalar_t* v, const int* exponents, int* info, int n,
                                                               int* status) {
    extern __shared__ unsigned char shared[];
    const int exponent = exponents[blockIdx.x], reported = info[blockIdx.x];
    const double allowed = MOST_OFF * n * UNIT;
    w += (long long)blockIdx.x * n;
    int failed = 0;
    for (int first = 0; first < n; first += 128) {
        const int k = first + (int)threadIdx.x;
        const real_t own = k < n ? w[k] : 0, before = k < n && k > 0 ? w[k - 1] : own;
        failed |= __syncthreads_or(!(before <= own) || isinf(own));
    }
    if (failed) failed = __syncthreads_or(threadIdx.x == 0 && !ascend(w, n, scalbn(allowed, most_exponent(n))));
    if (v != nullptr) failed |= !(drift(v + (long long)blockIdx.x * n * n, n, (double*)shared) <= allowed * allowed);
    if (exponent == NOT_FINITE) failed = 0;
    for (int k = threadIdx.x; k < n; k += 128) {
        const real_t own = w[k], value = exponent == NOT_FINITE ? NO_NUMBER : (real_t)scalbn(own, exponent);
        if (isinf(value) && !isinf(own)) status[2] = 1;
        w[k] = value;
    }
    if (threadIdx.x != 0) return;
    info[blockIdx.x] = failed;
    if (exponent == NOT_FINITE) status[0] = 1;
    if (reported != 0) status[1] = abs(reported);
    if (failed) status[3] = 1;
}
