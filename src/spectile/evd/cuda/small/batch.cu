// What surrounds a vendor's batched solver: the matrices brought into its memory, scaled, and its eigenvalues back.
#include "small/exponents.cuh"

// The solver squares entries.  In single precision a matrix comes to it as large as squares allow, its norm below 2^61, so
// that those of a graded matrix's small entries do not underflow; in double precision it comes near 1.
__device__ __forceinline__ int most_exponent(int n) { return sizeof(real_t) == 4 ? 61 - (32 - __clz(n - 1)) : 0; }

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

// Eigenvalues k of matrix b times 2^exponents[b].  Status: whether a matrix is not finite, what the solver reports, whether
// an eigenvalue is too large, and whether what the solver calls the eigenvalues of a matrix are not ascending numbers; which
// matrices those are is left in info.  The last go first, so that what is before a tile is still as the solver left it.
extern "C" __global__ void __launch_bounds__(128) finish_batch(real_t* w, const int* exponents, int* info, int n, int* status) {
    const int exponent = exponents[blockIdx.x], reported = info[blockIdx.x];
    w += (long long)blockIdx.x * n;
    int disordered = 0;
    for (int first = (n - 1) / 128 * 128; first >= 0; first -= 128) {
        const int k = first + (int)threadIdx.x;
        const real_t own = k < n ? w[k] : 0, before = k < n && k > 0 ? w[k - 1] : own;
        disordered |= __syncthreads_or(!(before <= own) || isinf(own));  // nobody writes before all have read
        const real_t value = exponent == NOT_FINITE ? NO_NUMBER : (real_t)scalbn(own, exponent);
        if (isinf(value) && !isinf(own) && status != nullptr) status[2] = 1;
        if (k < n) w[k] = value;
    }
    if (threadIdx.x != 0) return;
    if (exponent == NOT_FINITE) disordered = 0;
    info[blockIdx.x] = disordered != 0;
    if (status == nullptr) return;
    if (exponent == NOT_FINITE) status[0] = 1;
    if (reported != 0) status[1] = abs(reported);
    if (disordered) status[3] = 1;
}
