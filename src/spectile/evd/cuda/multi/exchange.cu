// What devices that share the columns of a Hermitian matrix exchange.  Columns come in blocks of `width`: device `part` of
// `parts` owns blocks part, part + parts, ... and stores them side by side, each whole and with leading dimension ld.

#include "scalar.cuh"

// Column of the matrix that an own column is.
__device__ __forceinline__ int column_of(int own, int width, int part, int parts) {
    return (own / width * parts + part) * width + own % width;
}

// What is above the diagonal in own columns `first` to before `columns`, from row `top` on: the conjugates of what lies
// below it, in the memory of whoever owns that.  Neighbouring blocks read on in the same columns of the owner, so that few
// pages of its memory are in use at a time: addresses of another device are translated more slowly than one's own.
extern "C" __global__ void __launch_bounds__(256) mirror(const unsigned long long* owners, long long ld, int width, int part, int parts,
                                                         int top, int first, int columns) {
    extern __shared__ unsigned char shared[];
    scalar_t* tile = (scalar_t*)shared;  // 32 x 33
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5, c0 = first + blockIdx.x * 32, i0 = top + blockIdx.y * 32;
    if (column_of(min(c0 + 31, columns - 1), width, part, parts) <= i0) return;
    for (int i = y; i < 32; i += 8) {
        const int row = i0 + i, column = column_of(c0 + x, width, part, parts);
        if (c0 + x >= columns || row >= column) continue;
        const scalar_t* below = (const scalar_t*)owners[row / width % parts];
        const long long at = row / (width * parts) * width + row % width;
        tile[x + i * 33] = conj(below[column + at * ld]);
    }
    __syncthreads();
    scalar_t* own = (scalar_t*)owners[part];
    for (int c = y; c < 32; c += 8)
        if (c0 + c < columns && i0 + x < column_of(c0 + c, width, part, parts)) own[i0 + x + (c0 + c) * ld] = tile[c + x * 33];
}

// Rows of a product, one for each own column from `first` on, to their places among the rows from `top` on.
extern "C" __global__ void __launch_bounds__(256) place_rows(const scalar_t* product, long long ldp, int width, int part, int parts,
                                                             int top, int first, int columns, scalar_t* out, long long ldo) {
    const int own = first + blockIdx.x * 256 + threadIdx.x;
    if (own < columns) out[column_of(own, width, part, parts) - top + blockIdx.y * ldo] = product[own - first + blockIdx.y * ldp];
}
