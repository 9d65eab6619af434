// The listed products of tiles, added up in registers in the order of the lists.
//
// A warp is a block.
#include "sums.cuh"

extern "C" __global__ void __launch_bounds__(32) multiply(const value* __restrict__ a, const long long* __restrict__ starts_a,
                                                          const int* __restrict__ widths_a, const value* __restrict__ b,
                                                          const long long* __restrict__ starts_b, const long long* __restrict__ pointer,
                                                          const int* __restrict__ left, const int* __restrict__ right,
                                                          value* __restrict__ c, const long long* __restrict__ starts_c,
                                                          const int* __restrict__ heights, const int* __restrict__ widths,
                                                          const int* __restrict__ order, int down, int across) {
    const int parts = down * across, part = blockIdx.x % parts, tile = order[blockIdx.x / parts];
    const int height = heights[tile], width = widths[tile];
    const int row = part / across * (16 * DOWN), column = part % across * (8 * ACROSS);
    if (row >= height || column >= width) return;
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;

    Sums sums;
    clear(sums);

    const long long end = pointer[tile + 1];
    for (long long first = pointer[tile]; first < end; first += 32) {
        const int count = int(min(32ll, end - first));
        long long own_a = 0, own_b = 0;
        int own_depth = 0;
        if (lane < count) {
            const int number = left[first + lane];
            own_a = starts_a[number], own_depth = widths_a[number], own_b = starts_b[right[first + lane]];
        }
        for (int product = 0; product < count; ++product) {
            const value* tile_a = a + __shfl_sync(0xffffffffu, own_a, product);
            const value* tile_b = b + __shfl_sync(0xffffffffu, own_b, product);
            const int depth = __shfl_sync(0xffffffffu, own_depth, product);
            multiply_add_tiles(sums, tile_a, depth, tile_b, height, width, row, column, g, t);
        }
    }

    value* to = c + starts_c[tile];
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = row + 16 * i + g + 8 * (e / 2), s = column + 8 * j + 2 * t + e % 2;
                if (r < height && s < width) to[r * width + s] = sums[i][j][e];
            }
}
