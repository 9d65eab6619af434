// What the kernels of a merge share.

#define EPS 1.1102230246251565e-16

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

__device__ __forceinline__ double warp_product(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x *= __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}
