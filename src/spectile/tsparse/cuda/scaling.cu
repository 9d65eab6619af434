// The powers of two of float16, for the products whose entries leave its range.
//
//   exponents_*  for each row of A, or column of B:  e = the exponent of its largest entry, EMPTY if it has none
//   scale_*      for each entry:  out = value / 2^(e - HALF_TOP), rounded to eleven bits; note one that would be lost
//   unscale      for each entry (i, j) of C:  c *= 2^(e_i - HALF_TOP) 2^(e_j - HALF_TOP); note one that overflows
//
// Invariant: division and multiplication by powers of two are exact, so that the roundoff is that of the scaled product.

#include "half.cuh"

namespace {

// float16 with powers of two: the exponent of the largest entry of each row (of A) or column (of B), the entries divided by
// it, and C multiplied back.  EMPTY marks a row or column without a nonzero; the largest entry comes below 2^HALF_TOP.
__device__ __forceinline__ int half_shift(const int* exponents, int owner) {
    const int exponent = exponents == nullptr ? EMPTY : exponents[owner];
    return exponent == EMPTY ? 0 : exponent - HALF_TOP;
}

template <class IN>
__device__ void find_exponents(int rows, int by_row, const int* ptr, const int* idx, const IN* in, int* exponents) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    int largest = EMPTY;
    if (row < rows)
        for (int p = ptr[row] + lane; p < ptr[row + 1]; p += 8) {
            if (in[p] == 0 || !isfinite(in[p])) continue;
            const int exponent = ilogb(in[p]) + 1;
            largest = max(largest, exponent);
            if (!by_row && exponents[idx[p]] < exponent) atomicMax(&exponents[idx[p]], exponent);
        }
    for (int d = 4; d; d >>= 1) largest = max(largest, __shfl_xor_sync(ALL, largest, d, 8));
    if (by_row && row < rows && lane == 0) exponents[row] = largest;
}

template <class IN>
__device__ void scale_entries(int rows, int by_row, const int* ptr, const int* idx, const IN* in, const int* exponents, VALUE* out,
                              int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    int lost = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const double scaled = scalbn(double(in[p]), -half_shift(exponents, by_row ? row : idx[p]));
            if (scaled != 0 && fabs(scaled) < HALF_LOST) lost = LOST;
            out[p] = isfinite(scaled) ? eleven_bits(scaled) : VALUE(scaled);
        }
    lost = __reduce_or_sync(ALL, lost);
    if (lost && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], lost);
}

}  // namespace

extern "C" {

#define HALF_SCALING(TYPE)                                                                                                        \
    __global__ void __launch_bounds__(256) exponents_##TYPE(int rows, int by_row, const int* ptr, const int* idx, const TYPE* in, \
                                                            int* exponents) {                                                     \
        find_exponents<TYPE>(rows, by_row, ptr, idx, in, exponents);                                                              \
    }                                                                                                                             \
    __global__ void __launch_bounds__(256) scale_##TYPE(int rows, int by_row, const int* ptr, const int* idx, const TYPE* in,     \
                                                        const int* exponents, VALUE* out, int* head) {                            \
        scale_entries<TYPE>(rows, by_row, ptr, idx, in, exponents, out, head);                                                    \
    }
HALF_SCALING(float)
HALF_SCALING(double)

__global__ void __launch_bounds__(256) unscale(int rows, const int* ptr, const int* idx, VALUE* val, const int* row_exponents,
                                               const int* column_exponents, int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    int found = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const int shift = half_shift(row_exponents, row) + half_shift(column_exponents, idx[p]);
            const VALUE scaled = scalbn(val[p], shift);
            if (isfinite(val[p]) && !isfinite(scaled)) found = FLOAT_RANGE;
            val[p] = scaled;
        }
    found = __reduce_or_sync(ALL, found);
    if (found && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], found);
}

}  // extern "C"
