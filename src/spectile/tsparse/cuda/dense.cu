// Products with a dense matrix, or into one.
//
//   times_dense   C = A X:  lanes of a row of A share its entries and the columns of X; a long row is left out
//   long_rows     the same for long rows, a block each
//   dense_rows    C = A B, dense:  for k in A's row, in order; for each entry (j, b) of B's row k:  C[i, j] += a b
//
// Invariant: sums are made in an order that sizes alone decide.  Columns of one row of B are distinct, so no two lanes add
// to one entry of C between two barriers.

#include "shared.cuh"

namespace {

// The value of the lane whose number differs by the bit `other`, for all lanes of a warp.
template <class T>
__device__ __forceinline__ T beside(const T& value, int other) {
    return __shfl_xor_sync(ALL, value, other);
}
template <class REAL>
__device__ __forceinline__ Complex<REAL> beside(const Complex<REAL>& value, int other) {
    return {beside(value.x, other), beside(value.y, other)};
}

// The sum of a part of a row of A, every `step`th entry from p on, times a column of X.
__device__ __forceinline__ VALUE part_of(int p, int end, int step, const int* idx, const VALUE* val, const VALUE* x, long long columns) {
    VALUE sum = 0;
#pragma unroll 4
    for (; p < end; p += step) sum = add_product(val[p], x[idx[p] * columns], sum);
    return sum;
}

}  // namespace

extern "C" {

// 2^(parts + across) lanes a row: 2^across columns of X side by side, 2^parts parts of the row.
__global__ void __launch_bounds__(256) times_dense(int rows, long long columns, int parts, int across, const int* ptr, const int* idx,
                                                   const VALUE* val, const VALUE* X, VALUE* C) {
    const int lanes = 1 << (parts + across), lane = threadIdx.x & (lanes - 1), column = lane & ((1 << across) - 1);
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> (parts + across);
    int begin = 0, end = 0;
    if (row < rows) begin = ptr[row], end = ptr[row + 1];
    const bool mine = row < rows && end - begin <= LONG_ROW;
    for (long long base = 0; base < columns; base += 1 << across) {
        const bool held = mine && base + column < columns;
        VALUE sum = 0;
        if (held) sum = part_of(begin + (lane >> across), end, 1 << parts, idx, val, X + base + column, columns);
        for (int d = 1 << across; d < lanes; d <<= 1) sum = sum + beside(sum, d);
        if (held && lane >> across == 0) C[row * columns + base + column] = sum;
    }
}

// 2^across columns of X side by side, and other blocks along y for those that follow; all other threads take parts.
__global__ void __launch_bounds__(LONG_THREADS) long_rows(int rows, long long columns, int across, const int* ptr, const int* idx,
                                                          const VALUE* val, const VALUE* X, VALUE* C) {
    __shared__ int s_rows[LONG_THREADS], s_count;
    __shared__ VALUE s_sums[LONG_THREADS];
    const int wide = 1 << across;
    for (long long base = (long long)blockIdx.x * LONG_THREADS; base < rows; base += (long long)gridDim.x * LONG_THREADS) {
        if (threadIdx.x == 0) s_count = 0;
        __syncthreads();
        const long long mine = base + threadIdx.x;
        if (mine < rows && ptr[mine + 1] - ptr[mine] > LONG_ROW) s_rows[atomicAdd(&s_count, 1)] = int(mine);
        __syncthreads();
        for (int found = 0; found < s_count; ++found) {
            const int row = s_rows[found], begin = ptr[row] + (threadIdx.x >> across), end = ptr[row + 1];
            for (long long from = (long long)blockIdx.y * wide; from < columns; from += (long long)gridDim.y * wide) {
                const long long column = from + (threadIdx.x & (wide - 1));
                VALUE sum = 0;
                if (column < columns) sum = part_of(begin, end, LONG_THREADS >> across, idx, val, X + column, columns);
                s_sums[threadIdx.x] = sum;
                __syncthreads();
                for (int d = LONG_THREADS / 2; d >= wide; d >>= 1) {
                    if (threadIdx.x < d) s_sums[threadIdx.x] = s_sums[threadIdx.x] + s_sums[threadIdx.x + d];
                    __syncthreads();
                }
                if (threadIdx.x < wide && column < columns) C[row * columns + column] = s_sums[threadIdx.x];
                __syncthreads();
            }
        }
        __syncthreads();
    }
}

// 2^log lanes a row of A, at most a warp; C is 0 before.
__global__ void __launch_bounds__(256) dense_rows(int rows, long long columns, int log, const int* ptr_a, const int* idx_a,
                                                  const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b, VALUE* C) {
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> log;
    if (row >= rows) return;
    const int lanes = 1 << log, lane = threadIdx.x & (lanes - 1);
    const u32 mask = log == 5 ? ALL : ((1u << lanes) - 1) << (threadIdx.x & 31 & ~(lanes - 1));
    VALUE* out = C + row * columns;
    for (int p = ptr_a[row]; p < ptr_a[row + 1]; ++p) {
        const int k = idx_a[p];
        const VALUE a = val_a[p];
        for (int q = ptr_b[k] + lane; q < ptr_b[k + 1]; q += lanes) out[idx_b[q]] = add_product(a, val_b[q], out[idx_b[q]]);
        __syncwarp(mask);
    }
}

}  // extern "C"
