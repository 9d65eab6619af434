// Eigenpairs of small Hermitian matrices by Jacobi rotations: a block a matrix, from the caller's memory and back to it.
#include "small/exponents.cuh"
#include "small/jacobi.cuh"
#include "told.cuh"

// a(i, j) of matrix b is at b * stride + i * along_i + j * along_j for i >= j, conjugated if it is read from an upper
// triangle; v in rows.  Told, if there is one, becomes 1 as soon as all matrices have been read, or 2 where an entry is not
// finite, or so large that an eigenvalue may not be.  w and v of a matrix that is not finite are NaN, and those of one that
// MOST_SWEEPS do not diagonalize.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2) rotate_small(const scalar_t* a, long long stride, long long along_i,
                                                                           long long along_j, int n, int conjugate, int vectors, real_t* w,
                                                                           scalar_t* v, int* told, unsigned long long* arrived) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int m = n + (n & 1), ld = row_length(m), wide = basis_length(m), thread = threadIdx.x, threads = blockDim.x;
    scalar_t* buffers = (scalar_t*)shared;          // A, 2 x m x ld
    scalar_t* basis = buffers + buffers_length(m);  // n x wide
    int* order = (int*)(basis + n * wide);          // m
    int* exponent = order + m;                      // 1
    a += blockIdx.x * stride;
    w += (long long)blockIdx.x * n;
    v += (long long)blockIdx.x * n * n;

    if (thread == 0) *exponent = -NOT_FINITE;
    __syncthreads();
    const bool rows = along_j * along_j < along_i * along_i;  // neighbours of a row are closer than those of a column
    int most = -NOT_FINITE;
    for (int at = thread; at < m * m; at += threads) {
        const int slow = at / m, fast = at - slow * m, i = rows ? slow : fast, j = rows ? fast : slow;
        if (i < n) basis[i * wide + j] = i == j ? one() : zero();
        if (i < j) continue;
        scalar_t value = zero();
        if (i < n) {
            value = a[i * along_i + j * along_j];
            if (i == j) value = make_scalar(real_part(value), 0);
            if (conjugate) value = conj(value);
            most = max(most, max(exponent_of(real_part(value)), exponent_of(imag_part(value))));
        }
        put(buffers, place(position_of(i, m), position_of(j, m), ld), value);
    }
    atomicMax(exponent, most);
    __syncthreads();
    const int scale = *exponent;
    const bool finite = scale < NOT_FINITE;
    // No eigenvalue is larger than the sum of a row: what is below this is not beyond the range.
    const int most_exponent = sizeof(real_t) == 8 ? 1024 : 128;
    if (thread == 0 && told != nullptr) tell(finite && scale + 33 - __clz(n) < most_exponent, told, arrived);
    // A is brought near 1 by a power of two, which is exact.
    if (finite && scale > -NOT_FINITE)
        for (int at = thread; at < m * m; at += threads) {
            const int i = at / m, j = at - i * m;
            if (i >= j) buffers[i * ld + j] = scaled(buffers[i * ld + j], -scale);
        }
    __syncthreads();

    int now = 0;  // where the buffer begins that is read
    const bool converged = !finite || diagonalize(buffers, basis, n, vectors, UNIT_ROUNDOFF, now);

    const scalar_t* matrix = buffers + now;
    real_t* inverse_length = (real_t*)(buffers + (m * ld - now));
    for (int k = thread; k < n; k += threads) {
        const Pair own = pair_of(matrix, basis, n, k, vectors);
        if (finite) order[own.rank] = k;
        w[finite ? own.rank : k] = finite && converged ? (scale > -NOT_FINITE ? (real_t)scalbn(own.value, scale) : 0) : NO_NUMBER;
        inverse_length[k] = own.inverse_length;
    }
    if (!vectors) return;
    __syncthreads();
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, k = at - i * n, from = finite ? order[k] : k;
        const real_t factor = finite && converged ? inverse_length[from] : NO_NUMBER;
        v[at] = factor * basis[i * wide + from];
    }
}
