// A matrix by columns, and a symmetric one of which the entries from the diagonal on are known.
//
//   count_columns  entries of each column
//   list_columns   each entry, its row and its place, somewhere among those of its column
//   order_columns  the same in the order of rows, and of places within one
//   mirror         row i = the entries (j, i) before the diagonal, conjugated or not, and those that are known
//
// Invariant: an entry's place within its column is the number of lesser words, all different, so that the order is one
// and the same whichever thread came first.  With `strict` those on the diagonal are left out.

#include "search.cuh"
#include "shared.cuh"

namespace {

// How many words of a list are less than one of them.
__device__ __forceinline__ int lesser(const u64* list, int count, u64 word) {
    int before = 0;
    for (int t = 0; t < count; ++t) before += list[t] < word;
    return before;
}

__device__ __forceinline__ float conjugate(float x) { return x; }
__device__ __forceinline__ double conjugate(double x) { return x; }
template <class REAL>
__device__ __forceinline__ Complex<REAL> conjugate(const Complex<REAL>& z) {
    return {z.x, -z.y};
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) count_columns(int rows, u32 nnz, int strict, const int* ptr, const int* idx, int* counts) {
    for (u32 p = blockIdx.x * blockDim.x + threadIdx.x; p < nnz; p += gridDim.x * blockDim.x) {
        if (strict && last_at(ptr, 0, rows - 1, p) == idx[p]) continue;
        atomicAdd(&counts[idx[p]], 1);
    }
}

// `free` is where the next entry of each column goes.
__global__ void __launch_bounds__(256) list_columns(int rows, u32 nnz, int strict, const int* ptr, const int* idx, int* free, u64* words) {
    for (u32 p = blockIdx.x * blockDim.x + threadIdx.x; p < nnz; p += gridDim.x * blockDim.x) {
        const int row = last_at(ptr, 0, rows - 1, p), column = idx[p];
        if (strict && row == column) continue;
        words[atomicAdd(&free[column], 1)] = u64(row) << 32 | p;
    }
}

// Eight lanes a column.
__global__ void __launch_bounds__(256) order_columns(int columns, const int* starts, const u64* words, int* row_of, int* place_of) {
    const long long column = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    if (column >= columns) return;
    const int begin = starts[column], count = starts[column + 1] - begin;
    for (int e = threadIdx.x & 7; e < count; e += 8) {
        const u64 word = words[begin + e];
        const int at = begin + lesser(words + begin, count, word);
        row_of[at] = int(word >> 32);
        place_of[at] = int(u32(word));
    }
}

// A warp a row: `ptr` and what follows of the entries from the diagonal on, `starts` and what follows of those before.
__global__ void __launch_bounds__(256) mirror(int rows, int adjoint, const int* ptr, const int* idx, const STORED* val, const int* starts,
                                              const int* row_of, const int* place_of, int* idx_c, STORED* val_c) {
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (row >= rows) return;
    const int lane = threadIdx.x & 31, shift = ptr[row], skip = starts[row + 1];
    for (int e = starts[row] + lane; e < starts[row + 1]; e += 32) {
        const VALUE value = val[place_of[e]];
        idx_c[shift + e] = row_of[e];
        val_c[shift + e] = adjoint ? conjugate(value) : value;
    }
    for (int e = ptr[row] + lane; e < ptr[row + 1]; e += 32) {
        idx_c[skip + e] = idx[e];
        val_c[skip + e] = val[e];
    }
}

}  // extern "C"
