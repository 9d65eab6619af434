// Eigenpairs of a Hermitian matrix in the shared memory of a block by Jacobi rotations.
//
// The m indices, n rounded up to an even number, are paired as in a tournament: in each of the m - 1 steps of a sweep all
// of them meet another one, so that the m / 2 rotations of a step are independent, and so are the 2 x 2 blocks
// (pair I, pair J) of A that they change.  The threads of the first row compute the rotations while all others read their
// blocks and rows of the basis; behind a barrier each thread turns its own, and writes the block where the pairs of the next
// step are neighbours, into a second buffer: addresses are the same in all steps.  Of A the lower triangle is kept; the
// threads of a warp go along its diagonals, and elements m + 1 apart, an odd number, lie in different banks.
#include "scalar.cuh"

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

// Rows of A and of the basis, and all that lies before the basis: A twice, and a step's rotations.
__device__ __forceinline__ int row_length(int m) { return m; }
__device__ __forceinline__ int buffers_length(int m) { return 2 * m * row_length(m) + m; }
__device__ __forceinline__ int basis_length(int m) { return m + m / 2; }  // two rows of threads meet in no bank

// What is taken for 0 in a matrix of entries below 1.  Less than the roundoff of such entries would be turned again and again.
#define UNIT_ROUNDOFF (sizeof(real_t) == 8 ? (real_t)1.1102230246251565e-16 : (real_t)5.9604645e-8)

// Turn the matrix until nothing beside its diagonal is larger than `negligible`; return false where MOST_SWEEPS do not do it.
// buffers: of `buffers_length`, A in the first m rows, element (i, j) of its lower triangle at the places of `position_of`; basis: n rows.
// At the end A begins at buffers + now, and all threads have met.
__device__ __forceinline__ bool diagonalize(scalar_t* buffers, scalar_t* basis, int n, bool vectors, real_t negligible, int& now) {
    const int m = n + (n & 1), ld = row_length(m), half = m / 2, thread = threadIdx.x, threads = blockDim.x, wide = basis_length(m);
    const int pair = thread % half, row = thread / half, together = threads / half;
    // Each pair of pairs once: this one and those that follow it in a circle, half of the way round; one for a thread.
    const int ahead = row + 1;
    const bool works = row < together, has_block = 2 * ahead < half || (2 * ahead == half && pair < ahead);
    const int other = !has_block ? pair : pair + ahead < half ? pair + ahead : pair + ahead - half;
    const int p = pair, q = half + pair, r = other, t = half + other;
    const int p1 = next_position(p, half), q1 = next_position(q, half);
    const int r1 = next_position(r, half), t1 = next_position(t, half);
    const int pp = p * ld + p, qq = q * ld + q, qp = q * ld + p;
    const Place rp = place(r, p, ld), rq = place(r, q, ld), tp = place(t, p, ld), tq = place(t, q, ld);
    const Place rp1 = place(r1, p1, ld), rq1 = place(r1, q1, ld), tp1 = place(t1, p1, ld), tq1 = place(t1, q1, ld);
    const Place pq1 = place(p1, q1, ld);
    scalar_t *sines = buffers + 2 * m * ld, *cosines = sines + half;
    now = 0;
    for (int sweep = 0;; ++sweep) {
        bool rest = false;
        for (int at = thread; at < m * m; at += threads) {
            const int i = at / m, j = at - i * m;
            if (i > j) rest |= square(buffers[now + i * ld + j]) > negligible * negligible;
        }
        if (!__syncthreads_or(rest)) return true;
        if (sweep == MOST_SWEEPS) return false;
        int x = pair == 0 ? m - 1 : pair, y = pair == 0 ? 0 : m - 1 - pair;  // the indices of the pair
        for (int step = 0; step < m - 1; ++step) {
            const scalar_t* a0 = buffers + now;
            scalar_t* a1 = buffers + (m * ld - now);
            scalar_t one[ROWS], two[ROWS], b00 = zero(), b01 = zero(), b10 = zero(), b11 = zero();
            if (works) {
                if (vectors)
#pragma unroll
                    for (int u = 0; u < ROWS; ++u) {
                        const int i = row + u * together;
                        one[u] = i < n ? basis[i * wide + x] : zero();
                        two[u] = i < n ? basis[i * wide + y] : zero();
                    }
                if (has_block) {
                    b00 = get(a0, rp);
                    b01 = get(a0, rq);
                    b10 = get(a0, tp);
                    b11 = get(a0, tq);
                }
            }
            if (row == 0) {
                const real_t alpha = real_part(a0[pp]), gamma = real_part(a0[qq]);
                const scalar_t beta = conj(a0[qp]);
                const Rotation own = rotation_of(alpha, gamma, beta, negligible);
                cosines[pair] = make_scalar(own.c, 0);
                sines[pair] = own.s;
                a1[p1 * ld + p1] = make_scalar(alpha - own.change, 0);
                a1[q1 * ld + q1] = make_scalar(gamma + own.change, 0);
                put(a1, pq1, own.change != 0 ? zero() : beta);
            }
            __syncthreads();
            if (works) {
                const real_t c = real_part(cosines[pair]);
                const scalar_t s = sines[pair], minus_conj = negative(conj(s));
                if (has_block) {
                    const real_t left_c = real_part(cosines[other]);
                    const scalar_t left_s = sines[other], minus_left = negative(left_s), conj_left = conj(left_s);
                    const scalar_t c00 = fma_(minus_conj, b01, c * b00), c01 = fma_(s, b00, c * b01);
                    const scalar_t c10 = fma_(minus_conj, b11, c * b10), c11 = fma_(s, b10, c * b11);
                    put(a1, rp1, fma_(minus_left, c10, left_c * c00));
                    put(a1, rq1, fma_(minus_left, c11, left_c * c01));
                    put(a1, tp1, fma_(conj_left, c00, left_c * c10));
                    put(a1, tq1, fma_(conj_left, c01, left_c * c11));
                }
                if (vectors) {
#pragma unroll
                    for (int u = 0; u < ROWS; ++u) {
                        const int i = row + u * together;
                        if (i < n) {
                            basis[i * wide + x] = fma_(minus_conj, two[u], c * one[u]);
                            basis[i * wide + y] = fma_(s, one[u], c * two[u]);
                        }
                    }
                    for (int i = row + ROWS * together; i < n; i += together) {
                        const scalar_t first = basis[i * wide + x], second = basis[i * wide + y];
                        basis[i * wide + x] = fma_(minus_conj, second, c * first);
                        basis[i * wide + y] = fma_(s, first, c * second);
                    }
                }
            }
            if (pair != 0) x = x == m - 2 ? 0 : x + 1;
            y = y == m - 2 ? 0 : y + 1;
            now = m * ld - now;
            __syncthreads();
        }
    }
}

// Of index k: its eigenvalue, how many are less, and one over the length of its vector, which has gathered the roundoff of
// the rotations.
struct Pair {
    real_t value, inverse_length;
    int rank;
};
__device__ __forceinline__ Pair pair_of(const scalar_t* matrix, const scalar_t* basis, int n, int k, bool vectors) {
    const int m = n + (n & 1), ld = row_length(m), wide = basis_length(m), own_place = position_of(k, m);
    Pair own = {real_part(matrix[own_place * (ld + 1)]), 1, 0};
    for (int index = 0; index < n; ++index) {
        const int at = position_of(index, m);
        const real_t value = real_part(matrix[at * (ld + 1)]);
        own.rank += value < own.value || (value == own.value && index < k);
    }
    if (!vectors) return own;
    real_t sum = 0;
    for (int i = 0; i < n; ++i) sum += square(basis[i * wide + k]);
    own.inverse_length = 1 / sqrt(sum);
    return own;
}
