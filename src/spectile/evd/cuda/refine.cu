// Corrections of eigenvectors, between their products.  S = X^H A X is Hermitian, column-major, and read below the diagonal alone; w is its
// diagonal.
#include <cuda_fp16.h>

#include "ptx.cuh"
#include "scalar.cuh"

// What tensor cores multiply: the first eleven bits of a number times a power of two, in float16, complex ones in float32.
#if COMPLEX
struct __align__(8) low_t {
    float x, y;
};
typedef low_t part_t;
// The first ten bits after the leading one, as they read a number of float32.
__device__ __forceinline__ float leading(float a) { return __int_as_float((__float_as_int(a) + 0x1000) & 0xffffe000); }
__device__ __forceinline__ part_t part_of(scalar_t a) {
    low_t r;
    r.x = leading((float)a.x);
    r.y = leading((float)a.y);
    return r;
}
__device__ __forceinline__ scalar_t raised(low_t a) { return make_scalar(a.x, a.y); }
__device__ __forceinline__ real_t size_of(scalar_t a) { return (real_t)hypot((double)a.x, (double)a.y); }
#else
typedef float low_t;
typedef __half part_t;
__device__ __forceinline__ part_t part_of(scalar_t a) { return __float2half_rn(fminf(fmaxf((float)a, -32768), 32768)); }
__device__ __forceinline__ scalar_t raised(low_t a) { return a; }
__device__ __forceinline__ scalar_t raised(part_t a) { return __half2float(a); }
__device__ __forceinline__ real_t size_of(scalar_t a) { return fabs(a); }
#endif

// Of vectors i > j: what couples them and its size, and the gap w_j - w_i.
struct Pair {
    scalar_t coupling;
    real_t size, gap;
};

__device__ __forceinline__ Pair pair_of(const scalar_t* s, long long ld, const real_t* w, int i, int j) {
    Pair pair;
    pair.coupling = s[i + j * ld];
    pair.size = size_of(pair.coupling);
    pair.gap = w[j] - w[i];
    return pair;
}

#define LEVELS 3

#define SUMS (1 + 2 * LEVELS)

// A block for each column j, which writes its part of sums to sums[SUMS j]: the squares of couplings, and for each of the shares, which
// ascend, the squares of couplings over gaps of pairs that are not strong, and how many are.  A pair is strong where its coupling is above
// rounding, *noise, and above a share of its gap.
extern "C" __global__ void __launch_bounds__(256) survey(const scalar_t* s, long long ld, const real_t* w, int n, const real_t* noise,
                                                         const float* shares, double* sums) {
    DYNAMIC_SHARED(double, part);  // SUMS x 256
    const int j = blockIdx.x, t = threadIdx.x;
    double found[SUMS] = {};
    for (int i = j + 1 + t; i < n; i += 256) {
        const Pair pair = pair_of(s, ld, w, i, j);
        found[0] += 2 * (double)square(pair.coupling);
        if (!(pair.size > *noise)) continue;
        const real_t gap = fabs(pair.gap);
        const double turned = (double)(pair.size / gap);
#pragma unroll
        for (int k = 0; k < LEVELS; ++k)
            if (pair.size > shares[k] * gap) found[1 + LEVELS + k] += 1;
            else found[1 + k] += 2 * turned * turned;
    }
#pragma unroll
    for (int k = 0; k < SUMS; ++k) part[256 * k + t] = found[k];
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half)
            for (int k = 0; k < SUMS; ++k) part[256 * k + t] += part[256 * k + t + half];
        __syncthreads();
    }
    if (t < SUMS) sums[SUMS * j + t] = part[256 * t];
}

// The pairs that are strong for one share, in any order: i and j of each, of as many as fit; *count is 0 before.
extern "C" __global__ void __launch_bounds__(256) strong_pairs(const scalar_t* s, long long ld, const real_t* w, int n, const real_t* noise,
                                                               float share, int* pairs, int* count, int most) {
    const int j = blockIdx.x;
    for (int i = j + 1 + threadIdx.x; i < n; i += 256) {
        const Pair pair = pair_of(s, ld, w, i, j);
        if (!(pair.size > *noise) || !(pair.size > share * (real_t)fabs(pair.gap))) continue;
        const int at = atomicAdd(count, 1);
        if (at < most) pairs[2 * at] = i, pairs[2 * at + 1] = j;
    }
}

// The anti-Hermitian turn of vectors i > j to first order: none within a cluster, nor where rounding is all that couples them.
__device__ __forceinline__ scalar_t turn_of(const Pair& pair, const int* cluster, int i, int j, real_t noise) {
    if (!(pair.size > noise) || pair.gap == 0 || cluster[i] == cluster[j]) return zero();
    return (1 / pair.gap) * pair.coupling;
}

// The first part of a number times `scale`, and, n columns further on, what that leaves, times 2^11.
__device__ __forceinline__ void write_parts(part_t* out, long long ldo, int n, int i, int j, scalar_t value, float scale) {
    const part_t part = part_of((real_t)scale * value);
    out[i + j * ldo] = part, out[i + (j + n) * ldo] = part_of((real_t)2048 * ((real_t)scale * value - raised(part)));
}

// Couplings C and turns K of pairs that are turned, whole matrices of leading dimension ldo, each times its scale.
extern "C" __global__ void __launch_bounds__(256) lower_turns(const scalar_t* s, long long ld, const real_t* w, int n, const real_t* noise,
                                                              const int* cluster, part_t* couplings, part_t* turns, long long ldo,
                                                              float couplings_scale, float turns_scale) {
    DYNAMIC_SHARED(scalar_t, across);  // 2 x 32 x 33
    if (blockIdx.y > blockIdx.x) return;
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        scalar_t coupling = zero(), turn = zero();
        if (i < n && j < i) {
            const Pair pair = pair_of(s, ld, w, i, j);
            turn = turn_of(pair, cluster, i, j, *noise);
            if (square(turn) > 0) coupling = pair.coupling;
        }
        across[c * 33 + x] = conj(coupling), across[(32 + c) * 33 + x] = negative(conj(turn));
        if (i >= n || j > i) continue;
        write_parts(couplings, ldo, n, i, j, coupling, couplings_scale), write_parts(turns, ldo, n, i, j, turn, turns_scale);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;  // above the diagonal
        if (j >= n || i >= j) continue;
        write_parts(couplings, ldo, n, i, j, across[x * 33 + c], couplings_scale);
        write_parts(turns, ldo, n, i, j, across[(32 + x) * 33 + c], turns_scale);
    }
}

// Turns K, whole and anti-Hermitian: to first order (`order` 2), or as they are (3), and of D = product + product^H, halved for the second
// order, what is up to a share of the gaps, over these: M.  values: w grows by the diagonal.  Where the third order follows, half is M / 2,
// and left is D / 3 - gap M / 2, each times its scale.
extern "C" __global__ void __launch_bounds__(256) raise_order(const scalar_t* s, long long ld, const real_t* w, int n, const real_t* noise,
                                                              const int* cluster, float share, int order, const low_t* product,
                                                              long long ldp, part_t* half, part_t* left, long long ldo, float half_scale,
                                                              float left_scale, scalar_t* turns, long long ldt, real_t* values) {
    DYNAMIC_SHARED(scalar_t, across);  // 3 x 32 x 33
    if (blockIdx.y > blockIdx.x) return;
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;
        across[c * 33 + x] = i < n && j < n ? raised(product[i + j * ldp]) : zero();
    }
    __syncthreads();
    scalar_t turned[4], more[4], rest[4];
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c, k = c >> 3;
        turned[k] = more[k] = rest[k] = zero();
        if (i >= n || j > i) continue;
        const scalar_t both = raised(product[i + j * ldp]) + conj(across[x * 33 + c]), part = (order == 2 ? (real_t)0.5 : (real_t)1) * both;
        rest[k] = (real_t)(1.0 / 3) * both;
        if (i == j) {
            values[i] += real_part(part);
        } else {
            const Pair pair = pair_of(s, ld, w, i, j);
            turned[k] = order == 2 ? turn_of(pair, cluster, i, j, *noise) : turns[i + j * ldt];
            if (pair.gap != 0 && size_of(part) <= share * (real_t)fabs(pair.gap)) more[k] = (1 / pair.gap) * part;
            turned[k] = turned[k] + more[k];
            rest[k] = rest[k] - (pair.gap / 2) * more[k];
        }
        more[k] = (real_t)0.5 * more[k];
        turns[i + j * ldt] = turned[k];
        if (half == nullptr) continue;
        half[i + j * ldo] = part_of((real_t)half_scale * more[k]), left[i + j * ldo] = part_of((real_t)left_scale * rest[k]);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        across[c * 33 + x] = negative(conj(turned[c >> 3])), across[(32 + c) * 33 + x] = negative(conj(more[c >> 3]));
        across[(64 + c) * 33 + x] = conj(rest[c >> 3]);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;
        if (j >= n || i >= j) continue;
        turns[i + j * ldt] = across[x * 33 + c];
        if (half == nullptr) continue;
        half[i + j * ldo] = part_of((real_t)half_scale * across[(32 + x) * 33 + c]);
        left[i + j * ldo] = part_of((real_t)left_scale * across[(64 + x) * 33 + c]);
    }
}

// Of turns K and, below the diagonal, K^H K = -K^2: K + K^2 / 2 in place, and K^2 and K / 6 + K^2 / 24, whose product is what the
// exponential lacks, as `lower_turns` writes them, if anywhere.
extern "C" __global__ void __launch_bounds__(256) exponent(scalar_t* turns, long long ldt, const scalar_t* gram, long long ld, int n,
                                                           part_t* squared, part_t* left, long long ldo, float squared_scale,
                                                           float left_scale) {
    DYNAMIC_SHARED(scalar_t, across);  // 2 x 32 x 33
    if (blockIdx.y > blockIdx.x) return;
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const auto write = [=](int i, int j, scalar_t turn, scalar_t square) {
        turns[i + j * ldt] = turn + (real_t)0.5 * square;
        if (squared == nullptr) return;
        write_parts(squared, ldo, n, i, j, square, squared_scale);
        write_parts(left, ldo, n, i, j, (real_t)(1.0 / 6) * turn + (real_t)(1.0 / 24) * square, left_scale);
    };
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        const bool inside = i < n && j <= i;
        const scalar_t turn = inside ? turns[i + j * ldt] : zero(), square = inside ? negative(gram[i + j * ld]) : zero();
        across[c * 33 + x] = negative(conj(turn)), across[(32 + c) * 33 + x] = conj(square);
        if (inside) write(i, j, turn, square);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;
        if (j < n && i < j) write(i, j, across[x * 33 + c], across[(32 + x) * 33 + c]);
    }
}
