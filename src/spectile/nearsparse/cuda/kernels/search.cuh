// What both searches of a threshold share: norms and their keys, the parameters, where blocks meet, and sums of a block.
//
// A key is the bits of a norm: an integer that is larger where the norm is, so that neighbouring keys are neighbouring
// numbers.  All blocks of a search are resident and wait for each other between passes: its launch is cooperative.
#include "ptx.cuh"

#if NORM_BITS == 32
using Norm = float;
using Key = unsigned;
__device__ __forceinline__ Key key_of(Norm x) { return __float_as_uint(x); }
__device__ __forceinline__ Norm norm_of(Key x) { return __uint_as_float(x); }
#else
using Norm = double;
using Key = unsigned long long;
__device__ __forceinline__ Key key_of(Norm x) { return __double_as_longlong(x); }
__device__ __forceinline__ Norm norm_of(Key x) { return __longlong_as_double(x); }
#endif

struct Search {
    const Norm* norms_a;         // [row block][k block]
    const Norm* norms_b;         // [column block][k block]
    Norm* columns_a;             // [k block][row block]: written here
    Norm* sorted;                // [k block][column block]: rising in each chunk
    double* partial;             // sums of blocks
    unsigned long long* counts;  // valid products of each candidate of each pass; of an error: curves, and products listed
    unsigned* arrived;           // zero at launch
    double* result;              // tau, and the share that it leaves
    int rows, columns, depth, iterations;
    int held, slot;            // pieces that a block keeps in shared memory, and the norms of each with its own of A;
                               // of an error: products that it lists
    double wanted, tolerance;  // of the valid ratio
    double rtol, atol, slack, relative, lift_a, lift_b, underflow;  // of the error: see bounds.py
    double highest, operand;  // the largest product of norms, and the largest norm, of which nothing overflows
};

// Wait until all blocks are here; what they wrote can be read.  Meanwhile the threads but the first of each block may do
// something else.
template <typename Meanwhile>
__device__ __forceinline__ void wait_for_blocks(unsigned* arrived, unsigned& round, Meanwhile meanwhile) {
    __syncthreads();
    ++round;
    meanwhile();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while (static_cast<unsigned>(load_acquire(reinterpret_cast<const int*>(arrived))) < round * gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

__device__ __forceinline__ double warp_max(double x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, offset));
    return x;
}

// Over all threads of a block, the same whatever their timing; every thread gets it.
template <int kThreads, bool kMax>
__device__ double block_reduce(double x, double* shared) {
    x = kMax ? warp_max(x) : warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    double all = shared[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) all = kMax ? fmax(all, shared[warp]) : all + shared[warp];
    return all;
}
