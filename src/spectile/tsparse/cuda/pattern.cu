// What the check leaves out: indices of 64 bits, and the comparison of a factor with a known pattern.

#include "shared.cuh"

extern "C" {

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
