// Corrections of eigenvectors, between their products.  S = X^H A X and G = X^H B X are Hermitian, column-major, and read below
// the diagonal alone; `scale` makes the diagonal of G ones, and w are the quotients of the two diagonals.
#include "ptx.cuh"
#include "scalar.cuh"

#if COMPLEX
struct __align__(8) low_t {
    float x, y;
};
__device__ __forceinline__ low_t lowered(scalar_t a) {
    low_t r;
    r.x = (float)a.x;
    r.y = (float)a.y;
    return r;
}
__device__ __forceinline__ scalar_t raised(low_t a) { return make_scalar(a.x, a.y); }
__device__ __forceinline__ real_t size_of(scalar_t a) { return (real_t)hypot((double)a.x, (double)a.y); }
#else
typedef float low_t;
__device__ __forceinline__ low_t lowered(scalar_t a) { return (float)a; }
__device__ __forceinline__ scalar_t raised(low_t a) { return a; }
__device__ __forceinline__ real_t size_of(scalar_t a) { return fabs(a); }
#endif

// Of vectors i > j: S and -G, what couples them and its size, and the gap w_j - w_i.
struct Pair {
    scalar_t s, r, coupling;
    real_t size, gap;
};

__device__ __forceinline__ Pair pair_of(const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale, const real_t* w, int i,
                                        int j) {
    Pair pair;
    const real_t lengths = scale[i] * scale[j];
    pair.s = lengths * s[i + j * ld];
    pair.r = -lengths * g[i + j * ld];
    pair.coupling = pair.s + ((w[i] + w[j]) / 2) * pair.r;
    pair.size = size_of(pair.coupling);
    pair.gap = w[j] - w[i];
    return pair;
}

#define LEVELS 3

// A block for each column j, which writes its part of sums to sums[(3 + LEVELS) j]: |S_ij - w_j G_ij|^2 and |G_ij|^2 off the diagonal,
// the squares of couplings over gaps of pairs that are not strong, and how many are strong for each of the shares, which ascend.  A pair
// is strong where its coupling is above rounding, *noise, and above a share of its gap.
extern "C" __global__ void __launch_bounds__(256) survey(const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale,
                                                         const real_t* w, int n, const real_t* noise, const float* shares, double* sums) {
    DYNAMIC_SHARED(double, part);  // (3 + LEVELS) x 256
    const int j = blockIdx.x, t = threadIdx.x;
    double found[3 + LEVELS] = {};
    for (int i = j + 1 + t; i < n; i += 256) {
        const Pair pair = pair_of(s, g, ld, scale, w, i, j);
        found[0] += (double)square(pair.s + w[j] * pair.r) + (double)square(pair.s + w[i] * pair.r);
        found[1] += 2 * (double)square(pair.r);
        if (!(pair.size > *noise)) continue;
        const real_t gap = fabs(pair.gap);
        if (!(pair.size > shares[0] * gap)) found[2] += 2 * (double)(pair.size / gap) * (double)(pair.size / gap);
#pragma unroll
        for (int k = 0; k < LEVELS; ++k) found[3 + k] += pair.size > shares[k] * gap;
    }
#pragma unroll
    for (int k = 0; k < 3 + LEVELS; ++k) part[256 * k + t] = found[k];
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half)
            for (int k = 0; k < 3 + LEVELS; ++k) part[256 * k + t] += part[256 * k + t + half];
        __syncthreads();
    }
    if (t < 3 + LEVELS) sums[(3 + LEVELS) * j + t] = part[256 * t];
}

// The pairs that are strong for one share, in any order: i and j of each, of as many as fit; *count is 0 before.
extern "C" __global__ void __launch_bounds__(256) strong_pairs(const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale,
                                                               const real_t* w, int n, const real_t* noise, float share, int* pairs,
                                                               int* count, int most) {
    const int j = blockIdx.x;
    for (int i = j + 1 + threadIdx.x; i < n; i += 256) {
        const Pair pair = pair_of(s, g, ld, scale, w, i, j);
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

// Couplings C, turns E and E + R in single precision, whole matrices of leading dimension ldo.
extern "C" __global__ void __launch_bounds__(256) lower_turns(const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale,
                                                              const real_t* w, int n, const real_t* noise, const int* cluster,
                                                              low_t* couplings, low_t* turns, low_t* left, long long ldo) {
    DYNAMIC_SHARED(scalar_t, across);  // 3 x 32 x 33
    if (blockIdx.y > blockIdx.x) return;
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        scalar_t coupling = zero(), turn = zero(), r = zero();
        if (i < n && j < i) {
            const Pair pair = pair_of(s, g, ld, scale, w, i, j);
            turn = turn_of(pair, cluster, i, j, *noise), r = pair.r;
            if (square(turn) > 0) coupling = pair.coupling;
        }
        across[c * 33 + x] = conj(coupling), across[(32 + c) * 33 + x] = negative(conj(turn));
        across[(64 + c) * 33 + x] = conj(r) - conj(turn);
        if (i >= n || j > i) continue;
        couplings[i + j * ldo] = lowered(coupling), turns[i + j * ldo] = lowered(turn), left[i + j * ldo] = lowered(turn + r);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;  // above the diagonal
        if (j >= n || i >= j) continue;
        couplings[i + j * ldo] = lowered(across[x * 33 + c]);
        turns[i + j * ldo] = lowered(across[(32 + x) * 33 + c]);
        left[i + j * ldo] = lowered(across[(64 + x) * 33 + c]);
    }
}

// Y, by which X becomes X + X Y: E + R / 2 and, where `product` = C E and `squared` = (E + R) E are given, the second order of the turn,
// up to `share`, and that of its exponential.
extern "C" __global__ void __launch_bounds__(256) correct(const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale,
                                                          const real_t* w, int n, const real_t* noise, const int* cluster, float share,
                                                          const low_t* product, const low_t* squared, long long ldo, scalar_t* out,
                                                          long long ldy) {
    DYNAMIC_SHARED(scalar_t, across);  // 2 x 32 x 33
    if (blockIdx.y > blockIdx.x) return;
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    if (product != nullptr)
        for (int c = y; c < 32; c += 8) {
            const int i = j0 + x, j = i0 + c;
            const bool inside = i < n && j < n;
            across[c * 33 + x] = inside ? raised(product[i + j * ldo]) : zero();
            across[(32 + c) * 33 + x] = inside ? raised(squared[i + j * ldo]) : zero();
        }
    __syncthreads();
    scalar_t other[4];
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        scalar_t turn = zero(), even = zero(), own = zero(), there = zero();
        if (product != nullptr && i < n && j <= i)
            own = (real_t)0.5 * raised(squared[i + j * ldo]), there = (real_t)0.5 * across[(32 + x) * 33 + c];
        if (i < n && j < i) {
            const Pair pair = pair_of(s, g, ld, scale, w, i, j);
            turn = turn_of(pair, cluster, i, j, *noise), even = (real_t)0.5 * pair.r;
            if (product != nullptr && pair.gap != 0 && cluster[i] != cluster[j]) {
                const scalar_t both = (real_t)0.5 * (raised(product[i + j * ldo]) + conj(across[x * 33 + c]));
                if (size_of(both) <= share * (real_t)fabs(pair.gap)) turn = turn + (1 / pair.gap) * both;
            }
        }
        if (i < n && j <= i) out[i + j * ldy] = turn + even + own;
        other[c >> 3] = conj(even) - conj(turn) + there;
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) across[c * 33 + x] = other[c >> 3];
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;
        if (j < n && i < j) out[i + j * ldy] = across[x * 33 + c];
    }
}
