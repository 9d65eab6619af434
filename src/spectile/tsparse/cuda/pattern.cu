// What the check leaves out: duplicates, indices of 64 bits, and the comparison of a factor with a known pattern.
//
//   sum_*    for each group g:  out[g] = the sum of in[order[first[g]]] .. in[order[first[g + 1] - 1]], in that order
//   narrow   for each index:    the same in 32 bits, or -1
//   compare  for each place of row pointer and columns:  note where they differ
//
// Invariant: sums are made in one fixed order, and whatever 32 bits do not hold is an index that the check finds.

#include "shared.cuh"

namespace {

// The sums of the values that are stored more than once: those of group g at order[first[g]] to order[first[g + 1]].
template <class IN, class SUM>
__device__ void sum_places(int groups, int nnz, const long long* order, const long long* first, const IN* in, SUM* out) {
    for (int g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += gridDim.x * blockDim.x) {
        const long long end = g + 1 < groups ? first[g + 1] : nnz;
        SUM sum = 0;
        for (long long p = first[g]; p < end; p++) sum = sum + SUM(in[order[p]]);
        out[g] = sum;
    }
}

}  // namespace

extern "C" {

#define SUM_PLACES(NAME, IN, SUM)                                                                                                        \
    __global__ void __launch_bounds__(256) sum_##NAME(int groups, int nnz, const long long* order, const long long* first, const IN* in, \
                                                      SUM* out) {                                                                        \
        sum_places<IN, SUM>(groups, nnz, order, first, in, out);                                                                         \
    }
SUM_PLACES(float, float, double)
SUM_PLACES(double, double, double)
SUM_PLACES(integer, long long, long long)
SUM_PLACES(complex64, Complex<float>, Complex<double>)
SUM_PLACES(complex128, Complex<double>, Complex<double>)

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

}  // extern "C"
