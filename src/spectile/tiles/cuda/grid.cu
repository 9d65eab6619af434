// Products and sums of matrices with room for every tile.
#include "sums.cuh"
#include "grid.cuh"

// Where entry (r, s) of a tile is.  Tiles of float64 that are all of one size, a multiple of 8, are 8 x 8 blocks by rows, with
// columns in the order 0 4 1 5 2 6 3 7: a lane of the matrix units has the two that it reads side by side, and what a warp
// reads follows one another.
#define BLOCKS (MATRIX_UNITS && SIZE > 0 && SIZE % 8 == 0)

__device__ __forceinline__ int entry(int r, int s, int width) {
    if (BLOCKS) return (r / 8 * (SIZE / 8) + s / 8) * 64 + r % 8 * 8 + s % 4 * 2 + s % 8 / 4;
    return r * width + s;
}

// The row and the column of the entry that is stored as number `at`.
__device__ __forceinline__ int2 row_and_column(int at, int width) {
#if BLOCKS
    const int block = at / 64, within = at % 64;
    return make_int2(block / (SIZE / 8) * 8 + within / 8, block % (SIZE / 8) * 8 + within % 8 / 2 + within % 2 * 4);
#else
    return make_int2(at / width, at % width);
#endif
}

#if BLOCKS
// Tile A times tile B is added, all of them of SIZE rows and columns.
__device__ __forceinline__ void multiply_add_blocks(Sums& sums, const double* __restrict__ tile_a, const double* __restrict__ tile_b,
                                                    int lane) {
    constexpr int kBlocks = SIZE / 8;
    const int g = lane / 4, t = lane % 4;
    const double2* left = reinterpret_cast<const double2*>(tile_a) + lane;
    const double* right = tile_b + entry(t, g, SIZE);
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
        double x[DOWN][4], y[ACROSS][2];
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            const double2 upper = left[(2 * i * kBlocks + k) * 32];
            const double2 lower = 2 * i + 1 < kBlocks ? left[((2 * i + 1) * kBlocks + k) * 32] : make_double2(0, 0);
            x[i][0] = upper.x, x[i][1] = lower.x, x[i][2] = upper.y, x[i][3] = lower.y;
        }
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) y[j][0] = right[(k * kBlocks + j) * 64], y[j][1] = right[(k * kBlocks + j) * 64 + 32];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) mma_f64(sums[i][j], x[i], y[j]);
    }
}
#endif

// Maps that are written for each result: the norm of each tile, that of what it differs from D by, a bound of what it is off
// by through rounding, and the products in it.
constexpr int kNorms = 0, kApart = 1, kLost = 2, kProducts = 3, kMaps = 4;

// How the result is rounded: of real numbers, the unit round-off and the smallest number.
struct Rounding {
    double unit, least;
    int hermitian;  // the half above the diagonal is computed, and stands for the other
};

__device__ __forceinline__ double whole_warp(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

__device__ __forceinline__ double most_of_warp(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

// What a sum of so many products is off by, at most, relative to the sum of their moduli (types.gamma).
__device__ __forceinline__ double gamma_of(double terms, double unit) {
    const double steps = (COMPLEX ? 2 * terms : terms) * unit;
    return steps < 0.5 ? (COMPLEX ? 1.4142135623730952 : 1.0) * steps / (1 - steps) : kInfinity;
}

// What a sum of scaled tiles and a shifted diagonal is off by: `sum` is what the moduli of its terms add up to.
__device__ __forceinline__ double rounded(double sum, int entries, const Rounding& how) {
    return 8 * how.unit * sum + 8 * how.least * sqrt(double(entries));
}

__device__ __forceinline__ void write(double* __restrict__ maps, const Grid& grid, int i, int j, bool both, double norm, double apart,
                                      double lost, double products) {
    const long long all = static_cast<long long>(grid.size) * grid.size, here = grid.place(i, j), there = grid.place(j, i);
    maps[kNorms * all + here] = norm, maps[kApart * all + here] = apart;
    maps[kLost * all + here] = lost, maps[kProducts * all + here] = products;
    if (both && i != j) {
        maps[kNorms * all + there] = norm, maps[kApart * all + there] = apart;
        maps[kLost * all + there] = lost, maps[kProducts * all + there] = 0;
    }
}

// C = alpha A B + beta D + gamma I, of A B the products of tiles whose norms' product is at least tau.
//
// norms_b is the map of B transposed, so that both are read along k.  A warp has a tile of C, and a block DOWN_TILES x
// ACROSS_TILES of them: they go along k together, so that what one reads the others find near.
extern "C" __global__ void __launch_bounds__(32 * DOWN_TILES * ACROSS_TILES, 2) grid_multiply(
    const value* __restrict__ a, const double* __restrict__ norms_a, const value* __restrict__ b, const double* __restrict__ norms_b,
    const value* __restrict__ d, const double* __restrict__ norms_d, const double* __restrict__ threshold, double alpha, double beta,
    double shift, Grid grid, Rounding how, value* __restrict__ c, double* __restrict__ maps, int down, int across) {
    // Blocks that run together have few tile rows and tile columns.
    const int first_row = blockIdx.x / (GROUP * across) * GROUP, rows_here = min(GROUP, down - first_row);
    const int within = blockIdx.x % (GROUP * across), warp = threadIdx.x / 32;
    const int i = (first_row + within % rows_here) * DOWN_TILES + warp / ACROSS_TILES;
    const int j = within / rows_here * ACROSS_TILES + warp % ACROSS_TILES;
    const int last_column = (within / rows_here + 1) * ACROSS_TILES - 1;
    if (how.hermitian && last_column < (first_row + within % rows_here) * DOWN_TILES) return;
    const bool own = i < grid.size && j < grid.size && !(how.hermitian && j < i);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int height = SIZE ? SIZE : own ? grid.height(i) : 0, width = SIZE ? SIZE : own ? grid.height(j) : 0;
    const double tau = *threshold;

    Sums sums;
    clear(sums);
    double total = 0;
    int terms = 0, count = 0;
    for (int first = 0; first < grid.size; first += 32) {
        const int k = first + lane;
        bool wanted = false;
        long long at_k = 0;
        int own_depth = SIZE;
        if (own && k < grid.size) {
            const double both = norms_a[grid.place(i, k)] * norms_b[grid.place(j, k)];
            wanted = both > 0 && both >= tau;
            at_k = grid.rows[k];
            if (!SIZE) own_depth = grid.height(k);
            if (wanted) total += both, terms += own_depth;
        }
        unsigned left = __ballot_sync(0xffffffffu, wanted);
        count += __popc(left);
        if (left) {
            const value* strip_a = a + grid.rows[i] * grid.rows[grid.size];
            while (left) {
                const int next = __ffs(left) - 1;
                left &= left - 1;
                const long long at = __shfl_sync(0xffffffffu, at_k, next);
                const int depth = SIZE ? SIZE : __shfl_sync(0xffffffffu, own_depth, next);
                const value* tile_a = strip_a + height * at;
                const value* tile_b = b + at * grid.rows[grid.size] + depth * grid.rows[j];
#if BLOCKS
                multiply_add_blocks(sums, tile_a, tile_b, lane);
#else
                multiply_add_tiles(sums, tile_a, depth, tile_b, height, width, 0, 0, g, t);
#endif
            }
        }
        __syncthreads();
    }
    if (!own) return;
    total = whole_warp(total) * kSlack;
    const double length = whole_warp(double(terms));
    const double norm_d = d ? norms_d[grid.place(i, j)] : 0;
    const bool twice = how.hermitian && i == j;  // what is above the diagonal counts for what is below it
    const bool any = count > 0 || norm_d > 0 || (shift != 0 && i == j);
    double squares = 0, most = 0, squares_apart = 0, most_apart = 0;
    if (any) {
        const value* tile_d = d + grid.start(i, j);
        value *to = c + grid.start(i, j), *mirror = c + grid.start(j, i);
#pragma unroll
        for (int m = 0; m < DOWN; ++m)
#pragma unroll
            for (int n = 0; n < ACROSS; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int r = 16 * m + g + 8 * (e / 2), s = 8 * n + 2 * t + e % 2;
                    if (r >= height || s >= width || (twice && s < r)) continue;
                    const value other = norm_d > 0 ? tile_d[entry(r, s, width)] : zero();
                    const value apart = difference(other, sums[m][n][e]);
                    value made = sum(scaled(sums[m][n][e], real(alpha)), scaled(other, real(beta)));
                    if (i == j && r == s) made = on_diagonal(made, real(shift), how.hermitian);
                    to[entry(r, s, width)] = made;
                    if (how.hermitian && !(twice && r == s)) mirror[entry(s, r, height)] = conjugate(made);
                    const double weight = twice && s > r ? 2 : 1;
                    squares += weight * square(made, 1.0), squares_apart += weight * square(apart, 1.0);
                    most = fmax(most, largest_part(made)), most_apart = fmax(most_apart, largest_part(apart));
                }
    }
    squares = whole_warp(squares), squares_apart = whole_warp(squares_apart);
    most = most_of_warp(most), most_apart = most_of_warp(most_apart);
    if (lane == 0) {
        const int entries = (COMPLEX ? 2 : 1) * height * width;
        const double diagonal = i == j ? fabs(shift) * sqrt(double(height)) : 0;
        double lost = fabs(alpha) * (gamma_of(length, how.unit) * total + 4 * length * how.least * sqrt(double(height * width)));
        lost += any ? rounded(fabs(alpha) * total + fabs(beta) * norm_d + diagonal, height * width, how) : 0;
        write(maps, grid, i, j, how.hermitian, norm_of(squares, most, entries), norm_of(squares_apart, most_apart, entries),
              lost * kSlack * (twice ? 1.4142135623730952 : 1.0), count);
    }
}

// C = alpha A + beta B + gamma I; of Hermitian matrices the half above the diagonal is computed.  A warp a tile.
extern "C" __global__ void __launch_bounds__(256) grid_combine(const value* __restrict__ a, const double* __restrict__ norms_a,
                                                               double alpha, const value* __restrict__ b,
                                                               const double* __restrict__ norms_b, double beta, double shift, Grid grid,
                                                               Rounding how, value* __restrict__ c, double* __restrict__ maps) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32;
    if (i >= grid.size || (how.hermitian && j < i)) return;
    const int height = grid.height(i), width = grid.height(j);
    const double norm_a = norms_a[grid.place(i, j)], norm_b = b ? norms_b[grid.place(i, j)] : 0;
    const double diagonal = i == j ? fabs(shift) * sqrt(double(height)) : 0;
    const bool any = norm_a > 0 || norm_b > 0 || diagonal > 0;
    double squares = 0, most = 0;
    if (any) {
        const value *tile_a = a + grid.start(i, j), *tile_b = b + grid.start(i, j);
        value *to = c + grid.start(i, j), *mirror = c + grid.start(j, i);
        for (int at = lane; at < height * width; at += 32) {
            const int2 here = row_and_column(at, width);
            const int r = here.x, s = here.y;
            value made = zero();
            if (norm_a > 0) made = scaled(tile_a[at], real(alpha));
            if (norm_b > 0) made = sum(made, scaled(tile_b[at], real(beta)));
            if (i == j && r == s) made = on_diagonal(made, real(shift), how.hermitian);
            to[at] = made;
            if (how.hermitian && i != j) mirror[entry(s, r, height)] = conjugate(made);
            squares += square(made, 1.0), most = fmax(most, largest_part(made));
        }
    }
    squares = whole_warp(squares), most = most_of_warp(most);
    if (lane == 0) {
        const double lost = any ? rounded(fabs(alpha) * norm_a + fabs(beta) * norm_b + diagonal, height * width, how) : 0;
        write(maps, grid, i, j, how.hermitian, norm_of(squares, most, (COMPLEX ? 2 : 1) * height * width), 0, lost * kSlack, 0);
    }
}

// Inner products of the rows of tiles of two matrices, the first conjugate: real and imaginary part of each tile.
extern "C" __global__ void __launch_bounds__(256) grid_dots(const value* __restrict__ a, const double* __restrict__ norms_a,
                                                            const value* __restrict__ b, const double* __restrict__ norms_b, Grid grid,
                                                            double* __restrict__ out) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32;
    if (i >= grid.size) return;
    double first = 0, second = 0;
    if (norms_a[tile] > 0 && norms_b[tile] > 0) {
        const value *x = a + grid.start(i, j), *y = b + grid.start(i, j);
        const int entries = grid.height(i) * grid.height(j);
        for (int at = lane; at < entries; at += 32) first += product_x(x[at], y[at]), second += product_y(x[at], y[at]);
    }
    first = whole_warp(first), second = whole_warp(second);
    if (lane == 0) {
        out[tile] = first;
        out[static_cast<long long>(grid.size) * grid.size + tile] = second;
    }
}

// Sums of moduli over each row of the matrix.  A warp a row.
extern "C" __global__ void __launch_bounds__(256) grid_row_sums(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                                                const int* __restrict__ tile_rows, double* __restrict__ out) {
    const long long row = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= grid.rows[grid.size]) return;
    const int i = tile_rows[row], within = int(row - grid.rows[i]);
    double total = 0;
    for (int j = 0; j < grid.size; ++j) {
        if (norms[grid.place(i, j)] == 0) continue;
        const int width = grid.height(j);
        const value* from = a + grid.start(i, j);
        for (int s = lane; s < width; s += 32) total += modulus(from[entry(within, s, width)]);
    }
    total = whole_warp(total);
    if (lane == 0) out[row] = total * kSlack;
}

// The real parts of the diagonal.
extern "C" __global__ void __launch_bounds__(256) grid_diagonal(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                                                const int* __restrict__ tile_rows, double* __restrict__ out) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= grid.rows[grid.size]) return;
    const int i = tile_rows[row], within = int(row - grid.rows[i]);
    out[row] = norms[grid.place(i, i)] > 0 ? real_part(a[grid.start(i, i) + entry(within, within, grid.height(i))]) : 0;
}

// Tiles of a dense matrix, by rows, whose row i is row order[i] of it; of a Hermitian one the mean with the transposed, with
// the norm of half the difference.
extern "C" __global__ void __launch_bounds__(256) grid_of_dense(const value* __restrict__ a, const long long* __restrict__ order, Grid grid,
                                                                int hermitian, value* __restrict__ c, double* __restrict__ maps) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32;
    if (i >= grid.size || (hermitian && j < i)) return;
    const int height = grid.height(i), width = grid.height(j);
    const long long n = grid.rows[grid.size];
    double squares = 0, most = 0, squares_apart = 0, most_apart = 0;
    for (int at = lane; at < height * width; at += 32) {
        const int r = at / width, s = at % width;
        const long long x = grid.rows[i] + r, y = grid.rows[j] + s;
        const long long row = order ? order[x] : x, column = order ? order[y] : y;
        value made = a[row * n + column];
        if (hermitian) {
            const value other = conjugate(a[column * n + row]), half = scaled(difference(made, other), real(0.5));
            squares_apart += square(half, 1.0), most_apart = fmax(most_apart, largest_part(half));
            made = sum(scaled(made, real(0.5)), scaled(other, real(0.5)));
            c[grid.start(j, i) + entry(s, r, height)] = conjugate(made);
        }
        c[grid.start(i, j) + entry(r, s, width)] = made;
        squares += square(made, 1.0), most = fmax(most, largest_part(made));
    }
    squares = whole_warp(squares), squares_apart = whole_warp(squares_apart);
    most = most_of_warp(most), most_apart = most_of_warp(most_apart);
    const int entries = (COMPLEX ? 2 : 1) * height * width;
    if (lane == 0) write(maps, grid, i, j, hermitian, norm_of(squares, most, entries), norm_of(squares_apart, most_apart, entries), 0, 0);
}

// Listed tiles to and from a flat array: where they begin there, and which places of the map they are.
extern "C" __global__ void __launch_bounds__(256) grid_copy(value* __restrict__ flat, const long long* __restrict__ starts,
                                                            const long long* __restrict__ places, Grid grid, int to_grid,
                                                            value* __restrict__ c, int tiles) {
    const int tile = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (tile >= tiles) return;
    const int i = int(places[tile] / grid.size), j = int(places[tile] % grid.size);
    const int width = grid.height(j), entries = grid.height(i) * width;
    value *one = flat + starts[tile], *other = c + grid.start(i, j);
    for (int at = lane; at < entries; at += 32) {
        const int there = entry(at / width, at % width, width);
        if (to_grid) other[there] = one[at];
        else one[at] = other[there];
    }
}
