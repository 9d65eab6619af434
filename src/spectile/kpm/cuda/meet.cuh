// Where the blocks of a cooperative launch meet.

#include "ptx.cuh"

// Wait until all blocks are here; what they wrote can be read.  `arrived` is zero before the first launch that uses it, and
// counts on in later ones: each block meets as often as the others.
static __device__ __forceinline__ void meet_blocks(unsigned long long* arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned long long blocks = (unsigned long long)gridDim.x * gridDim.y;
        __threadfence();
        const unsigned long long mine = atomicAdd(arrived, 1ull), all = (mine / blocks + 1) * blocks;
        while (load_acquire(arrived) < all) {}
        __threadfence();
    }
    __syncthreads();
}
