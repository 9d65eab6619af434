// The paper's ways to sum over the lanes of a 32-block (its Eqs. 3 and 4), in place of norm_map.cu's shuffles.
#include "spectile.nearsparse.cuda.kernels:norms.cuh"

#define SUM_LANES
#define TREE 1
#define ONES 2

// The first of 32 / elements of 16 bytes neighbours gets the sum.
__device__ __forceinline__ Square sum_lanes(Square sum) {
    constexpr int kLanes = 32 / (16 / sizeof(Element));
#if REDUCTION == TREE  // in shared memory
    __shared__ Square values[128];
    volatile Square* mine = values + threadIdx.x;
    *mine = sum;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        __syncwarp();
        if (threadIdx.x % kLanes < offset) *mine = sum = sum + mine[offset];
    }
    __syncwarp();
    return sum;
#else  // a product with a matrix of ones
    // As the operand B (k = lane % 4, n = lane / 4) the sums of four lanes are one column of ones * B (Eq. 3), of which
    // every lane holds the columns 2 t and 2 t + 1, t = lane % 4: pairs of fours.
#if INPUT_BITS == 64
    Square fours[2] = {0, 0};
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(fours[0]), "+d"(fours[1])
        : "d"(1.0), "d"(sum));
#else
    // A TF32 keeps 11 bits: the sum goes in as three addends.
    float fours[4] = {0, 0, 0, 0}, rest = sum;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const unsigned high = __float_as_uint(rest) & 0xffffe000u;
        rest -= __uint_as_float(high);
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%6}, {%0,%1,%2,%3};"
            : "+f"(fours[0]), "+f"(fours[1]), "+f"(fours[2]), "+f"(fours[3])
            : "r"(0x3f800000u), "r"(high), "r"(0u));
    }
#endif
    // Four t is in the lane 4 t / 2 of every group; the blocks of more lanes add neighbours (Eq. 4 with two columns).
    const int lane = threadIdx.x % 32, four = lane / 4;
    Square total = 0;
#pragma unroll
    for (int i = 0; i < kLanes / 4; ++i) {
        const int source = (four + i) % 8;
        const Square even = __shfl_sync(~0u, fours[0], source / 2), odd = __shfl_sync(~0u, fours[1], source / 2);
        total += source % 2 ? odd : even;
    }
    return total;
#endif
}
