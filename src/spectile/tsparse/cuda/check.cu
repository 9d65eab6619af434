// The check of the factors, their values as the precision takes them, and the powers of two of float16.

#include <cuda_fp16.h>

#include "shared.cuh"

namespace {

__device__ __forceinline__ float tf32(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// 11 significant bits, ties to even: float16's where x is in its normal range, and the same precision elsewhere.
__device__ __forceinline__ float eleven_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return __uint_as_float((bits + 0xfffu + ((bits >> 13) & 1)) & 0xffffe000u);
}
__device__ __forceinline__ float eleven_bits(double x) {
    const u64 bits = __double_as_longlong(x);
    return float(__longlong_as_double((bits + 0x1ffffffffffull + ((bits >> 42) & 1)) & ~0x3ffffffffffull));
}

// The range of entries for float16 (types.py: BY_ENTRY, IN_TILES), and the size below which scaled ones are lost.
__device__ __forceinline__ double least(int rounding) { return rounding == HALF ? 0x1p-126 : 0x1p-14; }
__device__ __forceinline__ double most(int rounding) { return rounding == HALF ? 0x1p48 : 65504; }
__device__ __forceinline__ double lost_below(int rounding) { return rounding == HALF ? 0x1p-62 : 0x1p-24; }

// Values as the precision takes them, and the checks that the later phases rely on.  One thread an entry: columns increase
// within every row if and only if every descent of the column array is at a row's start.
template <class IN>
__device__ void prepare_entries(int rows, int columns, int nnz, int rounding, const int* ptr, const int* idx, const IN* in,
                                VALUE* out, int* head, int which) {
    int found = 0, descents = 0;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    for (int p = first; p < nnz; p += stride) {
        const int column = idx[p];
        if (u32(column) >= u32(columns)) found |= BAD_INDEX;
        descents += p > 0 && idx[p - 1] >= column;
        const IN x = in[p];
        if (!isfinite(x)) found |= NOT_FINITE;
        VALUE y = VALUE(x);
        if (sizeof(IN) > sizeof(VALUE) && !isfinite(y)) found |= FLOAT_RANGE;
        if (rounding == TF32) y = tf32(float(y));
        if (rounding >= HALF) {
            const IN size = x < 0 ? -x : x;
            if (size > IN(most(rounding)) || (size > 0 && size < IN(least(rounding)))) found |= HALF_RANGE;
            y = eleven_bits(x);
        }
        if (out != nullptr) out[p] = y;
    }
    for (int row = first; row < rows; row += stride) {
        const int begin = ptr[row], end = ptr[row + 1];
        if (begin < 0 || begin > end || end > nnz || (row == 0 && begin != 0)) {
            found |= BAD_POINTER;
            continue;
        }
        descents -= begin > 0 && begin < end && idx[begin - 1] >= idx[begin];
    }
    found = __reduce_or_sync(ALL, found);
    descents = __reduce_add_sync(ALL, descents);
    if ((threadIdx.x & 31) == 0) {
        if (found) atomicOr(&head[FLAGS + which], found);
        if (descents) atomicAdd(&head[DESCENTS + which], descents);
    }
}

// float16 with powers of two: the exponent of the largest entry of each row (of A) or column (of B), the entries divided by
// it, and C multiplied back.  EMPTY marks a row or column without a nonzero; the largest entry comes below 2^top.
__device__ __forceinline__ int half_shift(const int* exponents, int owner, int top) {
    const int exponent = exponents == nullptr ? EMPTY : exponents[owner];
    return exponent == EMPTY ? 0 : exponent - top;
}

template <class IN>
__device__ void find_exponents(int rows, int by_row, const int* ptr, const int* idx, const IN* in, int* exponents) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    int largest = EMPTY;
    if (row < rows)
        for (int p = ptr[row] + lane; p < ptr[row + 1]; p += 8) {
            if (in[p] == 0) continue;
            const int exponent = ilogb(in[p]) + 1;
            largest = max(largest, exponent);
            if (!by_row && exponents[idx[p]] < exponent) atomicMax(&exponents[idx[p]], exponent);
        }
    for (int d = 4; d; d >>= 1) largest = max(largest, __shfl_xor_sync(ALL, largest, d, 8));
    if (by_row && row < rows && lane == 0) exponents[row] = largest;
}

template <class IN>
__device__ void scale_entries(int rows, int by_row, int rounding, int top, const int* ptr, const int* idx, const IN* in,
                              const int* exponents, VALUE* out, int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    int lost = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const double scaled = scalbn(double(in[p]), -half_shift(exponents, by_row ? row : idx[p], top));
            if (scaled != 0 && fabs(scaled) < lost_below(rounding)) lost = LOST;
            out[p] = rounding == HALF ? eleven_bits(scaled) : __half2float(__double2half(scaled));
        }
    lost = __reduce_or_sync(ALL, lost);
    if (lost && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], lost);
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) prepare_float(int rows, int columns, int nnz, int rounding, const int* ptr,
                                                     const int* idx, const float* in, VALUE* out, int* head, int which) {
    prepare_entries<float>(rows, columns, nnz, rounding, ptr, idx, in, out, head, which);
}

__global__ void __launch_bounds__(256) prepare_double(int rows, int columns, int nnz, int rounding, const int* ptr,
                                                      const int* idx, const double* in, VALUE* out, int* head, int which) {
    prepare_entries<double>(rows, columns, nnz, rounding, ptr, idx, in, out, head, which);
}

// Indices of 64 bits as 32; what these do not hold is -1, which the check finds.
__global__ void __launch_bounds__(256) narrow(int count, const long long* in, int* out) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const long long index = in[i];
        out[i] = index >= 0 && index <= 0x7fffffff ? int(index) : -1;
    }
}

// Whether row pointer and columns of a factor are those of the pattern that was analysed, of the same sizes.
__global__ void __launch_bounds__(256) compare(int rows, int nnz, const int* ptr, const int* idx, const int* known_ptr,
                                               const int* known_idx, int* head, int which) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    bool differs = false;
    for (int i = first; i <= rows; i += stride) differs |= ptr[i] != known_ptr[i];
    for (int i = first; i < nnz; i += stride) differs |= idx[i] != known_idx[i];
    if (__any_sync(ALL, differs) && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS + which], OTHER_PATTERN);
}

#define HALF_SCALING(TYPE)                                                                                                \
    __global__ void __launch_bounds__(256) exponents_##TYPE(int rows, int by_row, const int* ptr, const int* idx,         \
                                                            const TYPE* in, int* exponents) {                             \
        find_exponents<TYPE>(rows, by_row, ptr, idx, in, exponents);                                                      \
    }                                                                                                                     \
    __global__ void __launch_bounds__(256) scale_##TYPE(int rows, int by_row, int rounding, int top, const int* ptr,      \
                                                        const int* idx, const TYPE* in, const int* exponents, VALUE* out, \
                                                        int* head) {                                                      \
        scale_entries<TYPE>(rows, by_row, rounding, top, ptr, idx, in, exponents, out, head);                             \
    }
HALF_SCALING(float)
HALF_SCALING(double)

__global__ void __launch_bounds__(256) unscale(int rows, int top, const int* ptr, const int* idx, VALUE* val,
                                               const int* row_exponents, const int* column_exponents, int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    int found = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const int shift = half_shift(row_exponents, row, top) + half_shift(column_exponents, idx[p], top);
            val[p] = scalbn(val[p], shift);
            if (!isfinite(val[p])) found = FLOAT_RANGE;
        }
    found = __reduce_or_sync(ALL, found);
    if (found && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], found);
}

}  // extern "C"
