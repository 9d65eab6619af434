// Products with a dense matrix, or into one.
//
//   times_dense   C = A X:  lanes of a row of A share its entries and the columns of X; a long row is cut into pieces
//   long_rows     a piece of a long row, a block each; the last piece of a row that is done adds the sums of all in order
//   place_rows    the entries of C in CSR, into a dense C that is 0
//
// Invariant: sums are made in an order that sizes alone decide, whichever piece is done last.

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

// What another block has written, past this multiprocessor's cache.
__device__ __forceinline__ float written(const float* at) { return __ldcg(at); }
__device__ __forceinline__ double written(const double* at) { return __ldcg(at); }
template <class REAL>
__device__ __forceinline__ Complex<REAL> written(const Complex<REAL>* at) {
    return {__ldcg(&at->x), __ldcg(&at->y)};
}

// The sum of a part of a row of A, every `step`th entry from p on, times a column of X.
__device__ __forceinline__ VALUE part_of(int p, int end, int step, const int* idx, const VALUE* val, const VALUE* x, long long columns) {
    VALUE sum = 0;
#pragma unroll 4
    for (; p < end; p += step) sum = add_product(val[p], x[idx[p] * columns], sum);
    return sum;
}

// A piece of a long row: one of `pieces`, whose sums are at `sums` from the first piece on, if there are several.
struct alignas(16) Piece {
    int row, piece, pieces, sums;
};

// The sums of all threads that meet the same of 2^across columns, for the first threads; called by all.
__device__ __forceinline__ VALUE sum_of_parts(VALUE sum, int across, VALUE* s_sums) {
    s_sums[threadIdx.x] = sum;
    __syncthreads();
    for (int d = LONG_THREADS / 2; d >= 1 << across; d >>= 1) {
        if (threadIdx.x < d) s_sums[threadIdx.x] = s_sums[threadIdx.x] + s_sums[threadIdx.x + d];
        __syncthreads();
    }
    sum = s_sums[threadIdx.x];
    __syncthreads();
    return sum;
}

}  // namespace

extern "C" {

// 2^(parts + across) lanes a row: 2^across columns of X side by side, 2^parts parts of the row.  Long rows are listed by the
// first of the launches for `count` columns each, and counted in `head`; `done` counts the pieces of each.
__global__ void __launch_bounds__(256) times_dense(int rows, long long columns, int parts, int across, const int* ptr, const int* idx,
                                                   const VALUE* val, const VALUE* X, VALUE* C, Piece* listed, int* done, int* head) {
    const int lanes = 1 << (parts + across), lane = threadIdx.x & (lanes - 1), column = lane & ((1 << across) - 1);
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> (parts + across);
    int begin = 0, end = 0;
    if (row < rows) begin = ptr[row], end = ptr[row + 1];
    const bool mine = row < rows && end - begin <= LONG_ROW;
    if (row < rows && !mine && lane == 0) {
        const int pieces = (end - begin + PIECE - 1) / PIECE, at = atomicAdd(&head[LONG_PIECES], pieces);
        const int sums = pieces > 1 ? atomicAdd(&head[LONG_SUMS], pieces) : 0;
        for (int piece = 0; piece < pieces; ++piece) {
            listed[at + piece] = {int(row), piece, pieces, sums};
            if (pieces > 1) done[sums + piece] = 0;
        }
    }
    for (long long base = 0; base < columns; base += 1 << across) {
        const bool held = mine && base + column < columns;
        VALUE sum = 0;
        if (held) sum = part_of(begin + (lane >> across), end, 1 << parts, idx, val, X + base + column, columns);
        for (int d = 1 << across; d < lanes; d <<= 1) sum = sum + beside(sum, d);
        if (held && lane >> across == 0) C[row * columns + base + column] = sum;
    }
}

// `count` columns of X from `first` on, 2^across of them side by side; all other threads take parts.
__global__ void __launch_bounds__(LONG_THREADS) long_rows(long long columns, long long first, int count, int across, const int* ptr,
                                                          const int* idx, const VALUE* val, const VALUE* X, VALUE* C, const Piece* listed,
                                                          int* done, VALUE* sums, const int* head) {
    __shared__ VALUE s_sums[LONG_THREADS];
    __shared__ int s_last;
    const int wide = 1 << across, part = threadIdx.x >> across, parts = LONG_THREADS >> across;
    for (int item = blockIdx.x; item < head[LONG_PIECES]; item += gridDim.x) {
        const Piece of = listed[item];
        const int begin = ptr[of.row] + of.piece * PIECE, end = min(begin + PIECE, ptr[of.row + 1]);
        VALUE* out = of.pieces > 1 ? sums + (long long)(of.sums + of.piece) * count : C + of.row * columns + first;
        for (int from = 0; from < count; from += wide) {
            const int column = from + (threadIdx.x & (wide - 1));
            VALUE sum = 0;
            if (column < count) sum = part_of(begin + part, end, parts, idx, val, X + first + column, columns);
            sum = sum_of_parts(sum, across, s_sums);
            if (part == 0 && column < count) out[column] = sum;
        }
        if (of.pieces == 1) continue;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            s_last = atomicAdd(&done[of.sums], 1) == of.pieces - 1;
            if (s_last) done[of.sums] = 0;
        }
        __syncthreads();
        if (!s_last) continue;
        __threadfence();
        for (int from = 0; from < count; from += wide) {
            const int column = from + (threadIdx.x & (wide - 1));
            VALUE sum = 0;
            if (column < count) {
#pragma unroll 4
                for (int p = part; p < of.pieces; p += parts) sum = sum + written(&sums[(long long)(of.sums + p) * count + column]);
            }
            sum = sum_of_parts(sum, across, s_sums);
            if (part == 0 && column < count) C[of.row * columns + first + column] = sum;
        }
    }
}

// 2^log lanes a row of C, at most a warp.
__global__ void __launch_bounds__(256) place_rows(int rows, long long columns, int log, const int* ptr, const int* idx, const VALUE* val,
                                                  VALUE* C) {
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> log;
    if (row >= rows) return;
    for (int e = ptr[row] + (threadIdx.x & ((1 << log) - 1)); e < ptr[row + 1]; e += 1 << log) C[row * columns + idx[e]] = val[e];
}

}  // extern "C"
