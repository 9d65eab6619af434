// Sums of products of two tiles in registers.
//
// A warp has 16 DOWN rows and 8 ACROSS columns of a tile of C, the first `row` and `column`: lane l = 4 g + t of each 16 x 8 of
// them the columns 2 t and 2 t + 1 of rows g and g + 8, as the matrix units want it.  What lies outside of a tile counts as zero.
#include "ptx.cuh"
#include "tiles.cuh"

typedef value Sums[DOWN][ACROSS][4];

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = zero();
}

// Tiles of one size, where it is known.
#ifndef SIZE
#define SIZE 0
#endif

// Tile A, height x depth, times tile B, depth x width, is added.
__device__ __forceinline__ void multiply_add_tiles(Sums& sums, const value* __restrict__ tile_a, int depth,
                                                   const value* __restrict__ tile_b, int height, int width, int row, int column, int g,
                                                   int t) {
#if MATRIX_UNITS
    for (int k = 0; k < depth; k += 8) {
        double x[DOWN][4], y[ACROSS][2];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = row + 16 * i + g + 8 * (e % 2), p = k + t + 4 * (e / 2);
                x[i][e] = r < height && p < depth ? tile_a[r * depth + p] : 0;
            }
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int p = k + t + 4 * e, s = column + 8 * j + g;
                y[j][e] = s < width && p < depth ? tile_b[p * width + s] : 0;
            }
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) mma_f64(sums[i][j], x[i], y[j]);
    }
#else
#pragma unroll 2
    for (int k = 0; k < depth; ++k) {
        value x[DOWN][2], y[ACROSS][2];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int r = row + 16 * i + g + 8 * e;
                x[i][e] = r < height ? tile_a[r * depth + k] : zero();
            }
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int s = column + 8 * j + 2 * t + e;
                y[j][e] = s < width ? tile_b[k * width + s] : zero();
            }
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j][e] = multiply_add(x[i][e / 2], y[j][e % 2], sums[i][j][e]);
    }
#endif
}
