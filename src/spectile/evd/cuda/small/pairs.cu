// Eigenpairs of small generalized problems by Jacobi rotations: a block a problem, from the caller's memory and back to it.
//
//     B = L L^H;  C = L^-1 A L^-H, or L^H A L for the types 2 and 3;  C Y = Y W by rotations;  V = L^-H Y, or L Y for type 3
//
// Triangular systems go row by row, one barrier each: what a row leaves of the others is subtracted at once, and each row is
// divided by its own diagonal element at the end.
#include "ptx.cuh"
#include "small/exponents.cuh"
#include "small/jacobi.cuh"

// Element (i, j) of the lower triangle of a matrix of the caller.
struct Given {
    const scalar_t* a;
    long long stride, along_i, along_j;  // of the batch; within a matrix
};
__device__ __forceinline__ scalar_t element(const Given& given, int i, int j, int conjugate) {
    const scalar_t value = given.a[blockIdx.x * given.stride + i * given.along_i + j * given.along_j];
    if (i == j) return make_scalar(real_part(value), 0);
    return conjugate ? conj(value) : value;
}
__device__ __forceinline__ int exponent_of(scalar_t value, int most) {
    return max(most, max(exponent_of(real_part(value)), exponent_of(imag_part(value))));
}

// status: 0, the order of the first minor of B that is not positive definite, -1 where an entry is not finite, or -2 where an
// eigenvalue is not.  w and v of what cannot be solved are NaN.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2) rotate_pairs(const scalar_t* a, long long stride_a, long long along_ai,
                                                                           long long along_aj, const scalar_t* b, long long stride_b,
                                                                           long long along_bi, long long along_bj, int n, int conjugate,
                                                                           int kind, int vectors, real_t* w, scalar_t* v, int* status) {
    DYNAMIC_SHARED(scalar_t, buffers);  // 2 x m rows
    const int m = n + (n & 1), ld = row_length(m), wide = basis_length(m), thread = threadIdx.x, threads = blockDim.x;
    scalar_t* basis = buffers + buffers_length(m);  // n rows
    scalar_t* lower = basis + n * wide;             // n rows of ld: L
    real_t* inverse = (real_t*)(lower + n * ld);    // n: of the diagonal of L
    real_t* factors = inverse + n;                  // n: of the vectors' lengths
    int* order = (int*)(factors + n);               // n
    int* exponents = order + n;                     // 3: of A, B and C
    scalar_t* full = buffers + m * ld;              // n rows: A, and what becomes of it
    const Given given_a = {a, stride_a, along_ai, along_aj}, given_b = {b, stride_b, along_bi, along_bj};
    w += (long long)blockIdx.x * n;
    v += (long long)blockIdx.x * n * n;

    if (thread < 3) exponents[thread] = -NOT_FINITE;
    __syncthreads();
    int most_a = -NOT_FINITE, most_b = -NOT_FINITE;
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, j = at - i * n;
        if (i < j) continue;
        const scalar_t of_a = element(given_a, i, j, conjugate), of_b = element(given_b, i, j, conjugate);
        most_a = exponent_of(of_a, most_a);
        most_b = exponent_of(of_b, most_b);
        full[i * ld + j] = of_a;
        full[j * ld + i] = conj(of_a);
        lower[i * ld + j] = of_b;
    }
    atomicMax(exponents, most_a);
    atomicMax(exponents + 1, most_b);
    __syncthreads();
    const bool finite = exponents[0] < NOT_FINITE && exponents[1] < NOT_FINITE;
    const int scale_a = finite && exponents[0] > -NOT_FINITE ? exponents[0] : 0;
    const int scale_b = finite && exponents[1] > -NOT_FINITE ? exponents[1] & ~1 : 0;  // even, for B has a root
    if (finite)
        for (int at = thread; at < n * n; at += threads) {
            const int i = at / n, j = at - i * n;
            full[i * ld + j] = scaled(full[i * ld + j], -scale_a);
            if (i >= j) lower[i * ld + j] = scaled(lower[i * ld + j], -scale_b);
        }
    __syncthreads();

    int minor = 0;
    for (int k = 0; k < n && finite; ++k) {
        const real_t pivot = real_part(lower[k * ld + k]);
        if (!(pivot > 0) || !isfinite(pivot)) {
            minor = k + 1;
            break;
        }
        const int rest = n - k - 1;
        for (int at = thread; at < rest * rest; at += threads) {
            const int i = k + 1 + at / rest, j = k + 1 + at % rest;
            if (i >= j) lower[i * ld + j] = fma_(negative((1 / pivot) * lower[i * ld + k]), conj(lower[j * ld + k]), lower[i * ld + j]);
        }
        __syncthreads();
    }
    if (!finite || minor) {
        if (thread == 0) status[blockIdx.x] = finite ? minor : -1;
        for (int at = thread; at < n * n; at += threads) {
            if (at < n) w[at] = NO_NUMBER;
            if (vectors) v[at] = make_scalar(NO_NUMBER, 0);
        }
        return;
    }
    for (int k = thread; k < n; k += threads) inverse[k] = 1 / sqrt(real_part(lower[k * ld + k]));
    __syncthreads();
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, j = at - i * n;
        if (i >= j) lower[i * ld + j] = inverse[j] * lower[i * ld + j];
    }
    __syncthreads();

    if (kind == 1) {
        for (int k = 0; k < n; ++k) {
            for (int at = thread; at < (n - k - 1) * n; at += threads) {
                const int i = k + 1 + at / n, j = at % n;
                full[i * ld + j] = fma_(negative(inverse[k] * lower[i * ld + k]), full[k * ld + j], full[i * ld + j]);
            }
            __syncthreads();
        }
        for (int k = 0; k < n; ++k) {
            const int rest = n - k - 1;
            for (int at = thread; at < rest * n; at += threads) {
                const int i = at / rest, j = k + 1 + at % rest;
                full[i * ld + j] = fma_(negative(inverse[k] * full[i * ld + k]), conj(lower[j * ld + k]), full[i * ld + j]);
            }
            __syncthreads();
        }
    } else {
        for (int at = thread; at < n * n; at += threads) {
            const int i = at / n, j = at - i * n;
            scalar_t sum = zero();
            for (int k = j; k < n; ++k) sum = fma_(full[i * ld + k], lower[k * ld + j], sum);
            buffers[i * ld + j] = sum;
        }
        __syncthreads();
        for (int at = thread; at < n * n; at += threads) {
            const int i = at / n, j = at - i * n;
            scalar_t sum = zero();
            for (int k = i; k < n; ++k) sum = fma_(conj(lower[k * ld + i]), buffers[k * ld + j], sum);
            full[i * ld + j] = sum;
        }
        __syncthreads();
    }
    int most = -NOT_FINITE;
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, j = at - i * n;
        if (i < j) continue;
        if (kind == 1) full[i * ld + j] = (inverse[i] * inverse[j]) * full[i * ld + j];
        most = exponent_of(full[i * ld + j], most);
    }
    atomicMax(exponents + 2, most);
    __syncthreads();
    const int found = exponents[2], scale_c = found > -NOT_FINITE && found < NOT_FINITE ? found : 0;
    for (int at = thread; at < m * m; at += threads) {
        const int i = at / m, j = at - i * m;
        if (i < n) basis[i * wide + j] = i == j ? one() : zero();
        if (i < j) continue;
        scalar_t value = i < n ? scaled(full[i * ld + j], -scale_c) : zero();
        if (i == j) value = make_scalar(real_part(value), 0);
        put(buffers, place(position_of(i, m), position_of(j, m), ld), value);
    }
    __syncthreads();
    int now = 0;
    const bool solved = found < NOT_FINITE && diagonalize(buffers, basis, n, vectors, UNIT_ROUNDOFF, now);

    const int scale = scale_a + scale_c + (kind == 1 ? -scale_b : scale_b);
    bool beyond = false;
    for (int k = thread; k < n; k += threads) {
        const Pair own = pair_of(buffers + now, basis, n, k, vectors);
        const real_t value = solved ? (real_t)scalbn(own.value, scale) : NO_NUMBER;
        w[solved ? own.rank : k] = value;
        beyond |= !isfinite(value);
        if (solved) order[own.rank] = k;
        factors[k] = own.inverse_length;
    }
    beyond = __syncthreads_or(beyond);
    if (thread == 0) status[blockIdx.x] = beyond ? -2 : 0;
    if (!vectors) return;
    scalar_t* turned = buffers + (m * ld - now);  // n rows: Y in the order of the eigenvalues, and what becomes of it
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, k = at - i * n, from = solved ? order[k] : k;
        turned[i * ld + k] = solved ? factors[from] * basis[i * wide + from] : make_scalar(NO_NUMBER, 0);
    }
    __syncthreads();
    if (kind != 3)
        for (int k = n - 1; k > 0; --k) {
            for (int at = thread; at < k * n; at += threads) {
                const int i = at / n, j = at - i * n;
                turned[i * ld + j] = fma_(negative(inverse[k] * conj(lower[k * ld + i])), turned[k * ld + j], turned[i * ld + j]);
            }
            __syncthreads();
        }
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, k = at - i * n;
        scalar_t value = inverse[i] * turned[i * ld + k];
        if (kind == 3) {
            value = zero();
            for (int j = 0; j <= i; ++j) value = fma_(lower[i * ld + j], turned[j * ld + k], value);
        }
        v[at] = scaled(value, kind == 3 ? scale_b / 2 : -scale_b / 2);
    }
}
