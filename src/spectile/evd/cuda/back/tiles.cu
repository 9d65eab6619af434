// The tiles of sweeps.cu: Y and Y T of 32 neighbouring sweeps, a task each, from the reflectors of the chasing (of type SOURCE).

#include "back/sweeps.cuh"

struct source_t {
    SOURCE part[PARTS];
};

__device__ __forceinline__ scalar_t widen(const source_t& value) { return make_scalar(value.part[0], value.part[PARTS - 1]); }

// Tiles of the groups first_group, first_group - 1, ...: `width` tasks each, one block for each tile, in the order of their use.
// Element i of sweep s is at vectors[s * sweep_stride + i * row_stride], with tau in place of the leading 1.
extern "C" __global__ void __launch_bounds__(128) sweep_tiles(const source_t* vectors, long long sweep_stride, long long row_stride, int n,
                                                              int first_group, int width, double* tiles) {
    extern __shared__ unsigned char shared[];
    const int c = blockIdx.z, t = blockIdx.x, g = first_group - blockIdx.y, rows = 8 * SPAN, ld = rows + 1;
    const int sweep0 = g * GROUP + WIDTH * c, row0 = sweep0 + t * B;
    if (g * GROUP + 1 + t * B >= n) return;
    scalar_t* y = (scalar_t*)shared;    // rows x WIDTH
    scalar_t* factor = y + WIDTH * ld;  // WIDTH x WIDTH: above the diagonal v_i^H v_j, then T
    scalar_t* tau = factor + WIDTH * (WIDTH + 1);
    double* out = tiles + (((long long)blockIdx.y * width + t) * TILES + (TILES - 1 - c)) * TILE;
    if (threadIdx.x < WIDTH) {
        const int sweep = sweep0 + threadIdx.x, row = row0 + threadIdx.x + 1;
        tau[threadIdx.x] = sweep < n - 1 && row < n ? widen(vectors[sweep * sweep_stride + row * row_stride]) : zero();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < WIDTH * rows; i += 128) {
        const int r = i % rows, j = i / rows, row = row0 + r;
        scalar_t value = zero();
        if (row < n && r > j && r <= j + B && square(tau[j]) > 0)
            value = r == j + 1 ? one() : widen(vectors[(sweep0 + j) * sweep_stride + row * row_stride]);
        y[r + j * ld] = value;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < WIDTH * WIDTH; i += 128) {
        const int r = i % WIDTH, j = i / WIDTH;
        scalar_t sum = zero();
        if (r < j)
            for (int l = j + 1; l <= r + B; ++l) sum = fma_(conj(y[l + r * ld]), y[l + j * ld], sum);
        factor[r + j * (WIDTH + 1)] = r == j ? tau[j] : sum;
    }
    __syncthreads();
    if (threadIdx.x < WIDTH)
        for (int j = 1, r = threadIdx.x; j < WIDTH; ++j) {  // T(:j, j) = -tau_j T(:j, :j) gram(:j, j)
            scalar_t sum = zero();
            for (int l = r; l < j; ++l) sum = fma_(factor[r + l * (WIDTH + 1)], factor[l + j * (WIDTH + 1)], sum);
            __syncwarp();
            if (r < j) factor[r + j * (WIDTH + 1)] = negative(tau[j]) * sum;
            __syncwarp();
        }
    __syncthreads();
    // Element (k, n) of a unit is at 8 n + k: lane 4 g + t holds rows 2 t and 2 t + 1 of column g.
    for (int i = threadIdx.x; i < WIDTH * rows; i += 128) {
        const int u = i / (8 * WIDTH), v = i / UNIT % (WIDTH / 8), n8 = i / 8 % 8, k8 = i % 8;
        if (in_y(u, v)) {
            const scalar_t value = y[8 * u + k8 + (8 * v + n8) * ld];
            const int at = y_unit(u, v) * UNIT + i % UNIT;
            out[at] = real_part(value);
            if (COMPLEX) out[TILE_PART + at] = imag_part(value);
        }
        if (in_yt(u, v)) {
            const int r = 8 * u + n8, j = 8 * v + k8;
            scalar_t sum = zero();
            for (int l = 0; l <= j; ++l) sum = fma_(y[r + l * ld], factor[l + j * (WIDTH + 1)], sum);
            const int at = yt_unit(u, v) * UNIT + i % UNIT;
            out[at] = -real_part(sum);
            if (COMPLEX) out[TILE_PART + at] = -imag_part(sum);
        }
    }
}
