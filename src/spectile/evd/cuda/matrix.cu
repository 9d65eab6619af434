// The input: one triangle read, searched for its largest entry, and completed to a Hermitian matrix; and what brings
// numbers of any size near 1 and back, exactly.  CuPy's own kernels take single-precision numbers below 2^-126 for 0.
#include "small/exponents.cuh"

#define PARTS (COMPLEX + 1)

// A word holds the exponent of the largest part of a matrix, plus BIAS; 0 for a matrix of zeros, and at least NOT_FINITE
// where a part is NaN or infinite.
#define BIAS 2048
__device__ __forceinline__ int word_of(real_t x) { return x == 0 ? 0 : exponent_of(x) + BIAS; }

__device__ __forceinline__ void raise_word(int* word, int most) {
    most = __reduce_max_sync(0xffffffffu, most);
    if ((threadIdx.x & 31) == 0 && *(volatile int*)word < most) atomicMax(word, most);
}

// The power of two that brings the largest part to 2^target or half of that, even; 0 within 2^slack of it.
__device__ __forceinline__ int shift_of(int word, int target, int slack) {
    if (word == 0 || word >= NOT_FINITE) return 0;
    const int shift = target - (word - BIAS);
    return abs(shift) <= slack ? 0 : shift & ~1;
}

// Upper triangle = conjugate transpose of the lower one, whose diagonal becomes real; 32 x 32 tiles.
extern "C" __global__ void __launch_bounds__(256) symmetrize(scalar_t* a, long long lda, int n) {
    if (blockIdx.y > blockIdx.x) return;
    extern __shared__ unsigned char shared[];
    scalar_t* tile = (scalar_t*)shared;  // 32 x 33
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        const scalar_t value = i < n && j <= i ? a[i + j * lda] : zero();
        if (i < n && i == j) a[i + j * lda] = make_scalar(real_part(value), 0);
        tile[x + c * 33] = conj(value);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        const int i = j0 + x, j = i0 + c;
        if (j < n && i < j) a[i + j * lda] = tile[c + x * 33];
    }
}

// Lower triangle of `out` = a(i, j) at i * along_i + j * along_j, conjugated if it is read from an upper triangle; `out` may be
// the same memory.  NaN and infinity become 0; the word tells of them.
template <bool WIDE>
__device__ __forceinline__ void load(const scalar_t* a, long long along_i, long long along_j, int n, int conjugate, void* out,
                                     long long ldo, int* word) {
    if (blockIdx.y > blockIdx.x) return;
    extern __shared__ unsigned char shared[];
    scalar_t* tile = (scalar_t*)shared;  // 32 x 33
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const bool rows = along_j * along_j < along_i * along_i;  // neighbours of a row are closer than those of a column
    int most = 0;
    for (int c = y; c < 32; c += 8) {
        const int i = rows ? c : x, j = rows ? x : c;
        if (i0 + i >= n || i0 + i < j0 + j) continue;
        const scalar_t read = a[(i0 + i) * along_i + (j0 + j) * along_j];
        scalar_t value = make_scalar(real_part(read), i0 + i == j0 + j ? 0 : imag_part(read));
        const int own = max(word_of(real_part(value)), word_of(imag_part(value)));
        if (own >= NOT_FINITE) value = zero();
        most = max(most, own);
        tile[i + j * 33] = conjugate ? conj(value) : value;
    }
    raise_word(word, most);
    __syncthreads();
    for (int c = y; c < 32; c += 8)
        if (i0 + x < n && i0 + x >= j0 + c) {
            const long long at = i0 + x + (j0 + c) * ldo;
            const scalar_t value = tile[x + c * 33];
            if (WIDE) {
                double* parts = (double*)out + PARTS * at;
                parts[0] = real_part(value);
                if (COMPLEX) parts[PARTS - 1] = imag_part(value);
            } else ((scalar_t*)out)[at] = value;
        }
}

extern "C" __global__ void __launch_bounds__(256) load_triangle(const scalar_t* a, long long along_i, long long along_j, int n,
                                                                int conjugate, scalar_t* out, long long ldo, int* word) {
    load<false>(a, along_i, along_j, n, conjugate, out, ldo, word);
}

// The same in double precision.
extern "C" __global__ void __launch_bounds__(256) load_wide(const scalar_t* a, long long along_i, long long along_j, int n, int conjugate,
                                                            double* out, long long ldo, int* word) {
    load<true>(a, along_i, along_j, n, conjugate, out, ldo, word);
}

// The lower triangle times the power of two that `shift_of` says.
extern "C" __global__ void __launch_bounds__(256) scale_triangle(scalar_t* a, long long lda, int n, const int* word, int target,
                                                                 int slack) {
    const int shift = shift_of(*word, target, slack);
    if (shift == 0) return;
    for (int j = blockIdx.x; j < n; j += gridDim.x)
        for (int i = j + threadIdx.x; i < n; i += 256) a[i + j * lda] = scaled(a[i + j * lda], shift);
}

// The word of `count` real numbers.
extern "C" __global__ void __launch_bounds__(256) find_word(const real_t* x, long long count, int* word) {
    int most = 0;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) most = max(most, word_of(x[i]));
    raise_word(word, most);
}

// `count` real numbers times 2^exponent, in place.
extern "C" __global__ void __launch_bounds__(256) scale_parts(real_t* x, long long count, int exponent) {
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) x[i] = (real_t)scalbn(x[i], exponent);
}

// `count` real numbers in double precision.
extern "C" __global__ void __launch_bounds__(256) widen(const real_t* x, long long count, double* out) {
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) out[i] = x[i];
}

// out = 2^exponent factor w, in the precision of the matrix; where there is a word, without what `shift_of` says of it.
extern "C" __global__ void __launch_bounds__(256) scale_values(const double* w, int n, double factor, int exponent, const int* word,
                                                               int target, int slack, real_t* out) {
    const int i = blockIdx.x * 256 + threadIdx.x, shift = word != nullptr ? shift_of(*word, target, slack) : 0;
    if (i < n) out[i] = (real_t)scalbn(factor * w[i], exponent - shift);
}
