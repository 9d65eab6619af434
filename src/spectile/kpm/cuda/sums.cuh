// The sum of a block's threads, in a fixed order, for all of them.
static __device__ __forceinline__ double sum_of_block(double value, double* shared) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    double total = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) total += shared[warp];
    return total;
}
