// What a threshold leaves: counts of valid products, and the bound of what is skipped.
//
// In `survey` a thread block tests 64 x 64 pairs (row block, column block) against all k, 16 pairs per thread; in
// `count_valid`, which alone says whether the dense product is to be taken, 64 x 32 pairs against 32 k at a time.
//
//   survey:       for each pair (i, j): for each k: if a[i][k] b[j][k] reaches tau, count; else skipped += a b
//                 squares += (unit skipped)^2
//   count_valid:  the count alone;  the last block: cancelled = count is above its limit
//
// Invariant: a product that is NaN counts as valid; sums of a block do not depend on the order of its warps.
#include "ptx.cuh"

#if NORM_BITS == 32
using Norm = float;
#else
using Norm = double;
#endif

constexpr int kTile = 64, kDepth = 32, kThreads = 256;

struct Survey {
    const Norm* norms_a;   // [row block][k block]
    const Norm* norms_b;   // [column block][k block]
    const int* weights_a;  // blocks that a row stands for, or null: one
    const int* weights_b;
    unsigned long long* count;  // valid products, added to
    double* squares;            // a thread block's sum of (unit * sum_k of skipped norm products)^2, or null
    const double* tau_device;   // or null: use tau
    double tau, unit;
    int rows, columns, depth;
    int k_group;  // k blocks that are multiplied together when one of their products is valid
};

extern "C" __global__ void __launch_bounds__(kThreads) survey(const Survey p) {
    __shared__ Norm a[kTile][kDepth + 1], b[kTile][kDepth + 1];
    __shared__ double total_squares;
    __shared__ unsigned long long total_count;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    // All thread blocks lie along x, where a grid has the most.
    const unsigned across = (p.columns + kTile - 1) / kTile;
    const int row0 = blockIdx.x / across * kTile, column0 = blockIdx.x % across * kTile;
    const Norm tau = static_cast<Norm>(p.tau_device ? *p.tau_device : p.tau);
    if (threadIdx.x == 0) total_squares = 0, total_count = 0;
    int count[4][4] = {};
    double skipped[4][4] = {};
    unsigned any = 0;
    for (int k0 = 0; k0 < p.depth; k0 += kDepth) {
        __syncthreads();
        for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
            const int r = e / kDepth, k = e % kDepth;
            a[r][k] = row0 + r < p.rows && k0 + k < p.depth ? p.norms_a[static_cast<long long>(row0 + r) * p.depth + k0 + k] : 0;
            b[r][k] = column0 + r < p.columns && k0 + k < p.depth ? p.norms_b[static_cast<long long>(column0 + r) * p.depth + k0 + k] : 0;
        }
        __syncthreads();
        const int last = min(kDepth, p.depth - k0);
        for (int k = 0; k < last; ++k) {
            const bool closes = (k + 1) % p.k_group == 0 || k0 + k + 1 == p.depth;
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const Norm product = a[ty + 16 * i][k] * b[tx + 16 * j][k];
                    const bool valid = !(product < tau);
                    if (p.squares && !valid)  // in float64: the product of small float32 norms underflows
                        skipped[i][j] += static_cast<double>(a[ty + 16 * i][k]) * b[tx + 16 * j][k];
                    any |= static_cast<unsigned>(valid) << (4 * i + j);
                    if (closes) count[i][j] += (any >> (4 * i + j) & 1) * ((k0 + k) % p.k_group + 1);
                }
            if (closes) any = 0;
        }
    }
    double squares = 0;
    unsigned long long mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = row0 + ty + 16 * i, column = column0 + tx + 16 * j;
            if (row < p.rows && column < p.columns) {
                mine += static_cast<unsigned long long>(count[i][j]) * (p.weights_a ? p.weights_a[row] : 1) *
                        (p.weights_b ? p.weights_b[column] : 1);
                squares += (p.unit * skipped[i][j]) * (p.unit * skipped[i][j]);
            }
        }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        mine += __shfl_xor_sync(~0u, mine, offset);
        squares += __shfl_xor_sync(~0u, squares, offset);
    }
    // The warps of a block add in turn, so that the sum does not depend on their order.
    for (int warp = 0; warp < kThreads / 32; ++warp) {
        __syncthreads();
        if (threadIdx.x == 32 * warp) total_squares += squares, total_count += mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (p.squares) p.squares[blockIdx.x] = total_squares;
        atomicAdd(p.count, total_count);
    }
}

struct Count {
    const Norm* norms_a;        // [row block][k block]
    const Norm* norms_b;        // [column block][k block]
    const double* tau_device;   // or null: use tau
    unsigned long long* count;  // valid products, added to
    unsigned* ended;            // thread blocks that ended, zero at launch
    unsigned* cancelled;        // whether more than `limit` of all products are valid, or null
    unsigned* verdict;          // the same in memory of the host
    double tau, limit;
    int rows, columns, depth;
};

constexpr int kCountRows = 64, kCountColumns = 32, kEach = kCountRows * kCountColumns / kThreads;

extern "C" __global__ void __launch_bounds__(kThreads) count_valid(const Count p) {
    __shared__ Norm a[kCountRows][kDepth + 1], b[kCountColumns][kDepth + 1];
    __shared__ unsigned long long total;
    const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    // Little code, in little arithmetic: after a norm map it comes from memory, and each line of it is waited for.
    const unsigned across = (p.columns + kCountColumns - 1) / kCountColumns, deep = (p.depth + kDepth - 1) / kDepth;
    const unsigned pieces = (p.rows + kCountRows - 1) / kCountRows * across * deep;
    launch_dependents();
    wait_for_previous();
    const Norm tau = static_cast<Norm>(p.tau_device ? *p.tau_device : p.tau);
    unsigned long long mine = 0;
    for (unsigned piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const int k0 = piece % deep * kDepth, column0 = piece / deep % across * kCountColumns;
        const int row0 = piece / deep / across * kCountRows, last = min(kDepth, p.depth - k0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int r = ty + kThreads / 32 * i;
            a[r][tx] = row0 + r < p.rows && tx < last ? p.norms_a[static_cast<long long>(row0 + r) * p.depth + k0 + tx] : Norm(0);
        }
#pragma unroll
        for (int i = 0; i < kCountColumns / (kThreads / 32); ++i) {
            const int r = ty + kThreads / 32 * i;
            b[r][tx] = column0 + r < p.columns && tx < last ? p.norms_b[static_cast<long long>(column0 + r) * p.depth + k0 + tx] : Norm(0);
        }
        __syncthreads();
        int count[kEach] = {};
#pragma unroll 1
        for (int k = 0; k < last; ++k) {
            const Norm y = b[tx][k];
#pragma unroll
            for (int i = 0; i < kEach; ++i) count[i] += !(a[ty + kThreads / 32 * i][k] * y < tau);
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (row0 + ty + kThreads / 32 * i < p.rows && column0 + tx < p.columns) mine += count[i];
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    if (tx == 0) atomicAdd(&total, mine);
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicAdd(p.count, total);
    if (!p.cancelled) return;
    __threadfence();
    if (atomicAdd(p.ended, 1u) != gridDim.x - 1) return;
    __threadfence();
    const double all = static_cast<double>(p.rows) * p.columns * p.depth;
    const unsigned dense = __ldcg(p.count) / all > p.limit;
    *p.cancelled = dense;
    *p.verdict = dense;
}
