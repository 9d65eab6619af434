// Eigenpairs of small Hermitian matrices by Jacobi rotations: a block a matrix, from the caller's memory and back to it.
//
// The m indices, n rounded up to an even number, are paired as in a tournament: in each of the m - 1 steps of a sweep all
// of them meet another one, so that the m / 2 rotations of a step are independent, and so are the 2 x 2 blocks
// (pair I, pair J) of A that they change.  A thread computes the rotations of both pairs of its block itself, and writes
// the block where the pairs of the next step are neighbours, into a second buffer: addresses are the same in all steps, and
// one barrier a step is enough.  Of A the lower triangle is kept, rows of m + 1 elements.
#include "small/exponents.cuh"

#define MOST_SWEEPS 40
#define ROWS 4  // of the basis that a thread turns, in most cases

// To two units in the last place; a correction follows where that is not enough.
__device__ __forceinline__ double inverse_square_root(double x) { return rsqrt(x); }
__device__ __forceinline__ float inverse_square_root(float x) { return rsqrtf(x); }

// U = [c s; -conj(s) c] with U^H [alpha beta; conj(beta) gamma] U diagonal, or the identity where beta is negligible.
struct Rotation {
    real_t c, change;  // cosine; by how much alpha becomes less and gamma more
    scalar_t s;
};

// Without branches, so that two of them are computed side by side.
__device__ __forceinline__ Rotation rotation_of(real_t alpha, real_t gamma, scalar_t beta, real_t negligible) {
    const real_t size = square(beta), half = (real_t)0.5 * (gamma - alpha);
    const bool turns = size > negligible * negligible;
    const real_t inverse = inverse_square_root(fma(half, half, turns ? size : (real_t)1));
    const real_t square_c = fma((real_t)0.5 * fabs(half), inverse, (real_t)0.5);
    const real_t inverse_c = inverse_square_root(square_c);
    const real_t factor = copysign((real_t)0.5 * inverse * inverse_c, half);
    real_t c = square_c * inverse_c;
    scalar_t s = factor * beta;
    if (sizeof(real_t) == 4) {
        const real_t length = fma((real_t)-0.5, fma(c, c, square(s)), (real_t)1.5);
        c *= length;
        s = length * s;
    }
    Rotation u;
    u.c = turns ? c : (real_t)1;
    u.s = turns ? s : zero();
    u.change = turns ? factor * inverse_c * size : (real_t)0;
    return u;
}

// Where an element of the lower triangle is, and whether it stands for the conjugate of the one that is asked for.
struct Place {
    int at;
    bool conjugate;
};
__device__ __forceinline__ Place place(int i, int j, int ld) {
    Place result;
    result.at = i >= j ? i * ld + j : j * ld + i;
    result.conjugate = i < j;
    return result;
}
__device__ __forceinline__ scalar_t get(const scalar_t* a, Place where) { return where.conjugate ? conj(a[where.at]) : a[where.at]; }
__device__ __forceinline__ void put(scalar_t* a, Place where, scalar_t value) { a[where.at] = where.conjugate ? conj(value) : value; }

// Pair k of step s is (s + k, s - k) modulo m - 1, and pair 0 is (m - 1, s); the first of pair k stands at position k, the
// second at m / 2 + k.  Position of index i in step 0, and where a position moves from one step to the next.
__device__ __forceinline__ int position_of(int i, int m) {
    const int half = m / 2;
    return i == m - 1 ? 0 : i == 0 ? half : i < half ? i : half + m - 1 - i;
}
__device__ __forceinline__ int next_position(int position, int half) {
    if (position == 0 || half == 1) return position;
    if (position < half) return position == 1 ? half : position - 1;
    return position == 2 * half - 1 ? half - 1 : position + 1;
}

// Tell the host that all matrices have been read, and whether all their eigenvalues will be finite.  Called by one thread of each
// block; the last of them tells.  `arrived` counts blocks in its lower half and failures in its upper one, and is 0 again
// when the host has been told.
__device__ __forceinline__ void tell(bool finite, volatile int* told, unsigned long long* arrived) {
    if (gridDim.x > 1) {
        const unsigned long long before = atomicAdd(arrived, finite ? 1ull : 1ull << 32 | 1ull);
        if ((unsigned)before + 1 != gridDim.x) return;
        finite = finite && before >> 32 == 0;
        *(volatile unsigned long long*)arrived = 0;
        __threadfence_system();
    }
    *told = finite ? 1 : 2;
}

// a(i, j) of matrix b is at b * stride + i * along_i + j * along_j for i >= j, conjugated if it is read from an upper
// triangle; v in rows.  Told, if there is one, becomes 1 as soon as all matrices have been read, or 2 where an entry is not
// finite, or so large that an eigenvalue may not be.  w and v of a matrix that is not finite are NaN, and those of one that
// MOST_SWEEPS do not diagonalize.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) rotate_small(const scalar_t* a, long long stride, long long along_i,
                                                                        long long along_j, int n, int conjugate, int vectors, real_t* w,
                                                                        scalar_t* v, int* told, unsigned long long* arrived) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int m = n + (n & 1), ld = m + 1, half = m / 2, thread = threadIdx.x, threads = blockDim.x;
    const int wide = m + half;               // row of the basis: two rows of threads meet in no bank
    scalar_t* buffers = (scalar_t*)shared;   // 2 x m x ld
    scalar_t* basis = buffers + 2 * m * ld;  // n x wide
    int* order = (int*)(basis + n * wide);   // m
    int* exponent = order + m;               // 1
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

    const real_t negligible = (sizeof(real_t) == 8 ? (real_t)1.1102230246251565e-16 : (real_t)5.9604645e-8) / 8;
    const int pair = thread % half, row = thread / half, together = threads / half;
    // Each pair of pairs once: this one and those that follow it in a circle, half of the way round; one for a thread.
    const int ahead = row + 1;
    const bool works = row < together, has_block = 2 * ahead < half || (2 * ahead == half && pair < ahead);
    const int other = !has_block ? pair : pair + ahead < half ? pair + ahead : pair + ahead - half;
    const int p = pair, q = half + pair, r = other, t = half + other;
    const int p1 = next_position(p, half), q1 = next_position(q, half);
    const int r1 = next_position(r, half), t1 = next_position(t, half);
    const int pp = p * ld + p, qq = q * ld + q, qp = q * ld + p, rr = r * ld + r, tt = t * ld + t, tr = t * ld + r;
    const Place rp = place(r, p, ld), rq = place(r, q, ld), tp = place(t, p, ld), tq = place(t, q, ld);
    const Place rp1 = place(r1, p1, ld), rq1 = place(r1, q1, ld), tp1 = place(t1, p1, ld), tq1 = place(t1, q1, ld);
    const Place pq1 = place(p1, q1, ld);
    int now = 0;  // where the buffer begins that is read
    bool converged = !finite;
    for (int sweep = 0; sweep <= MOST_SWEEPS && !converged; ++sweep) {
        bool rest = false;
        for (int at = thread; at < m * m; at += threads) {
            const int i = at / m, j = at - i * m;
            if (i > j) rest |= square(buffers[now + i * ld + j]) > negligible * negligible;
        }
        converged = !__syncthreads_or(rest);
        if (converged || sweep == MOST_SWEEPS) break;
        int x = pair == 0 ? m - 1 : pair, y = pair == 0 ? 0 : m - 1 - pair;  // the indices of the pair
        for (int step = 0; step < m - 1; ++step) {
            const scalar_t* a0 = buffers + now;
            scalar_t* a1 = buffers + (m * ld - now);
            if (works) {
                // All that is read comes first, so that it comes at the same time.
                scalar_t one[ROWS], two[ROWS];
                if (vectors)
#pragma unroll
                    for (int u = 0; u < ROWS; ++u) {
                        const int i = row + u * together;
                        one[u] = i < n ? basis[i * wide + x] : zero();
                        two[u] = i < n ? basis[i * wide + y] : zero();
                    }
                const real_t alpha = real_part(a0[pp]), gamma = real_part(a0[qq]);
                const scalar_t beta = conj(a0[qp]), other_beta = conj(a0[tr]);
                const real_t other_alpha = real_part(a0[rr]), other_gamma = real_part(a0[tt]);
                const scalar_t b00 = get(a0, rp), b01 = get(a0, rq), b10 = get(a0, tp), b11 = get(a0, tq);
                const Rotation right = rotation_of(alpha, gamma, beta, negligible);
                const Rotation left = rotation_of(other_alpha, other_gamma, other_beta, negligible);
                const scalar_t minus_conj = negative(conj(right.s));
                if (has_block) {
                    const scalar_t c00 = fma_(minus_conj, b01, right.c * b00), c01 = fma_(right.s, b00, right.c * b01);
                    const scalar_t c10 = fma_(minus_conj, b11, right.c * b10), c11 = fma_(right.s, b10, right.c * b11);
                    const scalar_t minus_left = negative(left.s), conj_left = conj(left.s);
                    put(a1, rp1, fma_(minus_left, c10, left.c * c00));
                    put(a1, rq1, fma_(minus_left, c11, left.c * c01));
                    put(a1, tp1, fma_(conj_left, c00, left.c * c10));
                    put(a1, tq1, fma_(conj_left, c01, left.c * c11));
                }
                if (row == 0) {
                    a1[p1 * ld + p1] = make_scalar(alpha - right.change, 0);
                    a1[q1 * ld + q1] = make_scalar(gamma + right.change, 0);
                    put(a1, pq1, right.change != 0 ? zero() : beta);
                }
                if (vectors) {
#pragma unroll
                    for (int u = 0; u < ROWS; ++u) {
                        const int i = row + u * together;
                        if (i < n) {
                            basis[i * wide + x] = fma_(minus_conj, two[u], right.c * one[u]);
                            basis[i * wide + y] = fma_(right.s, one[u], right.c * two[u]);
                        }
                    }
                    for (int i = row + ROWS * together; i < n; i += together) {
                        const scalar_t first = basis[i * wide + x], second = basis[i * wide + y];
                        basis[i * wide + x] = fma_(minus_conj, second, right.c * first);
                        basis[i * wide + y] = fma_(right.s, first, right.c * second);
                    }
                }
            }
            if (pair != 0) x = x == m - 2 ? 0 : x + 1;
            y = y == m - 2 ? 0 : y + 1;
            now = m * ld - now;
            __syncthreads();
        }
    }

    // The lengths of the columns have gathered the roundoff of the rotations.
    const scalar_t* matrix = buffers + now;
    real_t* inverse_length = (real_t*)(buffers + (m * ld - now));
    for (int k = thread; k < n; k += threads) {
        const int own_place = position_of(k, m);
        const real_t own = real_part(matrix[own_place * ld + own_place]);
        int rank = 0;
        for (int index = 0; index < n; ++index) {
            const int at = position_of(index, m);
            const real_t value = real_part(matrix[at * ld + at]);
            rank += value < own || (value == own && index < k);
        }
        if (finite) order[rank] = k;
        w[finite ? rank : k] = finite && converged ? (scale > -NOT_FINITE ? (real_t)scalbn(own, scale) : 0) : NO_NUMBER;
        if (vectors) {
            real_t sum = 0;
            for (int i = 0; i < n; ++i) sum += square(basis[i * wide + k]);
            inverse_length[k] = 1 / sqrt(sum);
        }
    }
    if (!vectors) return;
    __syncthreads();
    for (int at = thread; at < n * n; at += threads) {
        const int i = at / n, k = at - i * n, from = finite ? order[k] : k;
        const real_t factor = finite && converged ? inverse_length[from] : NO_NUMBER;
        v[at] = factor * basis[i * wide + from];
    }
}
