// The sum and the largest of the numbers of a warp; each lane gets them.
__device__ __forceinline__ double over_warp(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

__device__ __forceinline__ double largest_of_warp(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}
