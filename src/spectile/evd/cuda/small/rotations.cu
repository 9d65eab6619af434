// Eigenpairs of small Hermitian matrices by Jacobi rotations: a block a matrix, from the caller's memory and back to it.
//
// The m indices, n rounded up to an even number, are paired as in a tournament: in each of the m - 1 steps of a sweep all
// of them meet another one, so that the m / 2 rotations of a step are independent, and so are the 2 x 2 blocks
// (pair I, pair J) of A that they change.  Of A the lower triangle is kept, rows of m + 1 elements.
#include "small/exponents.cuh"

#define MOST_SWEEPS 40

__device__ __forceinline__ real_t magnitude(scalar_t a) {
#if COMPLEX
    return (real_t)hypot(a.x, a.y);
#else
    return a;  // with its sign, which stands for the phase
#endif
}

__device__ __forceinline__ scalar_t entry(const scalar_t* a, int ld, int i, int j) {
    return i >= j ? a[i * ld + j] : conj(a[j * ld + i]);
}

__device__ __forceinline__ void put(scalar_t* a, int ld, int i, int j, scalar_t value) {
    if (i >= j) a[i * ld + j] = value; else a[j * ld + i] = conj(value);
}

// Pair number `pair` of a step: m - 1 meets `step`, and of the others those meet whose sum is 2 step, modulo m - 1.
__device__ __forceinline__ void indices(int pair, int step, int m, int* p, int* q) {
    int up = step + pair, down = step - pair;
    if (up >= m - 1) up -= m - 1;
    if (down < 0) down += m - 1;
    *p = pair == 0 ? m - 1 : up;
    *q = down;
}

// a(i, j) of matrix b is at b * stride + i * along_i + j * along_j for i >= j, conjugated if it is read from an upper
// triangle; v likewise.  Status: whether an entry is not finite, and how many sweeps were not enough; w and v are NaN then.
extern "C" __global__ void __launch_bounds__(128)
rotate_small(const scalar_t* a, long long stride, long long along_i, long long along_j, int n, int conjugate, int vectors,
             real_t* w, scalar_t* v, int along_row, int along_column, int* status)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int m = n + (n & 1), ld = m + 1, half = m / 2, thread = threadIdx.x, threads = blockDim.x;
    scalar_t* matrix = (scalar_t*)shared;        // m x ld
    scalar_t* basis = matrix + m * ld;           // m x ld
    scalar_t* phase = basis + m * ld;            // half
    real_t* cosine = (real_t*)(phase + half);    // half
    real_t* sine = cosine + half;                // half
    int* order = (int*)(sine + half);            // m
    int* exponent = order + m;                   // 1
    a += blockIdx.x * stride;
    w += (long long)blockIdx.x * n;
    v += (long long)blockIdx.x * n * n;

    if (thread == 0) *exponent = -NOT_FINITE;
    __syncthreads();
    const bool rows = along_j * along_j < along_i * along_i;  // neighbours of a row are closer than those of a column
    int most = -NOT_FINITE;
    for (int at = thread; at < m * m; at += threads) {
        const int slow = at / m, fast = at - slow * m, i = rows ? slow : fast, j = rows ? fast : slow;
        basis[i * ld + j] = i == j ? one() : zero();
        if (i < j) continue;
        scalar_t value = zero();
        if (i < n) {
            value = a[i * along_i + j * along_j];
            if (i == j) value = make_scalar(real_part(value), 0);
            if (conjugate) value = conj(value);
            most = max(most, max(exponent_of(real_part(value)), exponent_of(imag_part(value))));
        }
        matrix[i * ld + j] = value;
    }
    atomicMax(exponent, most);
    __syncthreads();
    const int scale = *exponent;
    const bool finite = scale < NOT_FINITE;
    // A is brought near 1 by a power of two, which is exact.
    if (finite && scale > -NOT_FINITE)
        for (int at = thread; at < m * m; at += threads) {
            const int i = at / m, j = at - i * m;
            if (i >= j) matrix[i * ld + j] = scaled(matrix[i * ld + j], -scale);
        }
    __syncthreads();

    const real_t negligible = (sizeof(real_t) == 8 ? (real_t)1.1102230246251565e-16 : (real_t)5.9604645e-8) / 8;
    const int pair = thread % half, row = thread / half, together = threads / half;
    bool converged = !finite;
    for (int sweep = 0; sweep < MOST_SWEEPS && !converged; ++sweep) {
        converged = true;
        for (int step = 0; step < m - 1; ++step) {
            int p, q;
            indices(pair, step, m, &p, &q);
            bool turns = false;
            if (row == 0) {
                const scalar_t beside = entry(matrix, ld, p, q);
                const real_t size = magnitude(beside);
                turns = fabs(size) > negligible;
                real_t c = 1, s = 0;
                scalar_t e = one();
                if (turns) {
                    const real_t alpha = real_part(matrix[p * ld + p]), gamma = real_part(matrix[q * ld + q]);
                    const real_t theta = (gamma - alpha) / (2 * size);
                    const real_t t = copysign(1 / (fabs(theta) + sqrt(theta * theta + 1)), theta);
                    c = 1 / sqrt(t * t + 1);
                    s = t * c;
#if COMPLEX
                    e = (1 / size) * beside;
#endif
                    matrix[p * ld + p] = make_scalar(alpha - t * size, 0);
                    matrix[q * ld + q] = make_scalar(gamma + t * size, 0);
                    put(matrix, ld, p, q, zero());
                }
                cosine[pair] = c;
                sine[pair] = s;
                phase[pair] = e;
            }
            if (!__syncthreads_or(turns)) continue;
            converged = false;
            if (row < together) {
                // U = [c s; -s conj(e) c conj(e)] of this pair from the right.
                const real_t c = cosine[pair], s = sine[pair];
                const scalar_t e = conj(phase[pair]), minus_se = negative(s * e), ce = c * e;
                // Each pair of pairs once: this one and those that follow it in a circle, half of the way round.
                for (int ahead = row + 1; 2 * ahead <= half; ahead += together) {
                    if (2 * ahead == half && pair >= ahead) continue;
                    const int other = pair + ahead < half ? pair + ahead : pair + ahead - half;
                    int r, t;
                    indices(other, step, m, &r, &t);
                    const scalar_t rp = entry(matrix, ld, r, p), rq = entry(matrix, ld, r, q);
                    const scalar_t tp = entry(matrix, ld, t, p), tq = entry(matrix, ld, t, q);
                    const scalar_t rp1 = fma_(minus_se, rq, c * rp), rq1 = fma_(ce, rq, s * rp);
                    const scalar_t tp1 = fma_(minus_se, tq, c * tp), tq1 = fma_(ce, tq, s * tp);
                    const real_t c2 = cosine[other], s2 = sine[other];
                    const scalar_t e2 = phase[other], minus_se2 = negative(s2 * e2), ce2 = c2 * e2;
                    put(matrix, ld, r, p, fma_(minus_se2, tp1, c2 * rp1));
                    put(matrix, ld, t, p, fma_(ce2, tp1, s2 * rp1));
                    put(matrix, ld, r, q, fma_(minus_se2, tq1, c2 * rq1));
                    put(matrix, ld, t, q, fma_(ce2, tq1, s2 * rq1));
                }
                if (vectors && s != 0)
                    for (int i = row; i < n; i += together) {
                        const scalar_t x = basis[i * ld + p], y = basis[i * ld + q];
                        basis[i * ld + p] = fma_(minus_se, y, c * x);
                        basis[i * ld + q] = fma_(ce, y, s * x);
                    }
            }
            __syncthreads();
        }
    }

    // The lengths of the columns have gathered the roundoff of the rotations.
    real_t* inverse_length = (real_t*)phase;  // m at most, in the place of the rotations
    for (int k = thread; k < n; k += threads) {
        const real_t own = real_part(matrix[k * ld + k]);
        int rank = 0;
        for (int other = 0; other < n; ++other) {
            const real_t value = real_part(matrix[other * ld + other]);
            rank += value < own || (value == own && other < k);
        }
        if (finite) order[rank] = k;
        w[finite ? rank : k] = finite && converged ? (scale > -NOT_FINITE ? (real_t)scalbn(own, scale) : 0) : NO_NUMBER;
        if (vectors) {
            real_t sum = 0;
            for (int i = 0; i < n; ++i) sum += square(basis[i * ld + k]);
            inverse_length[k] = 1 / sqrt(sum);
        }
    }
    if (thread == 0 && !finite) status[0] = 1;
    if (thread == 0 && !converged) status[1] = MOST_SWEEPS;
    if (!vectors) return;
    __syncthreads();
    for (int at = thread; at < n * n; at += threads) {
        const int slow = at / n, fast = at - slow * n;
        const int i = along_row == 1 ? fast : slow, k = along_row == 1 ? slow : fast;
        const int from = finite ? order[k] : k;
        const real_t factor = finite && converged ? inverse_length[from] : NO_NUMBER;
        v[i * along_row + k * along_column] = factor * basis[i * ld + from];
    }
}
