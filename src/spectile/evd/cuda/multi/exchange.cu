// What devices that share the columns of a Hermitian matrix exchange.  Columns come in blocks of `width`: device `part` of
// `parts` owns blocks part, part + parts, ... and stores them side by side, each whole and with leading dimension ld.

#include "ptx.cuh"
#include "scalar.cuh"

// Column of the matrix that an own column is.
__device__ __forceinline__ int column_of(int own, int width, int part, int parts) {
    return (own / width * parts + part) * width + own % width;
}

// What is above the diagonal in own columns `first` to before `columns`, of rows `top` to before `stop`: the conjugates of what
// lies below it, in the memory of whoever owns that.  Neighbouring blocks read on in the same columns of the owner, so that few
// pages of its memory are in use at a time: addresses of another device are translated more slowly than one's own.
extern "C" __global__ void __launch_bounds__(256) mirror(const unsigned long long* owners, long long ld, int width, int part, int parts,
                                                         int top, int stop, int first, int columns) {
    DYNAMIC_SHARED(scalar_t, tile);  // 32 x 33
    scalar_t* own = (scalar_t*)owners[part];
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5, across = (columns - first + 31) / 32;
    for (int t = blockIdx.x; t < across * ((stop - top + 31) / 32); t += gridDim.x) {
        const int c0 = first + t % across * 32, i0 = top + t / across * 32;
        if (column_of(min(c0 + 31, columns - 1), width, part, parts) <= i0) continue;
        const int column = column_of(c0 + x, width, part, parts), end = c0 + x < columns ? min(column, stop) : 0;
        scalar_t read[4];  // all four on their way before the first is there
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = i0 + y + 8 * i;
            const scalar_t* below = (const scalar_t*)owners[row / width % parts];
            read[i] = row < end ? below[column + (row / (width * parts) * width + row % width) * ld] : zero();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[x + (y + 8 * i) * 33] = conj(read[i]);
        __syncthreads();
        for (int c = y; c < 32; c += 8)
            if (c0 + c < columns && i0 + x < min(stop, column_of(c0 + c, width, part, parts)))
                own[i0 + x + (c0 + c) * ld] = tile[c + x * 33];
        __syncthreads();
    }
}

// Rows of a product, one for each own column from `first` on, to their places among the rows from `top` on.
extern "C" __global__ void __launch_bounds__(256) place_rows(const scalar_t* product, long long ldp, int width, int part, int parts,
                                                             int top, int first, int columns, scalar_t* out, long long ldo) {
    const int own = first + blockIdx.x * 256 + threadIdx.x;
    if (own < columns) out[column_of(own, width, part, parts) - top + blockIdx.y * ldo] = product[own - first + blockIdx.y * ldp];
}
