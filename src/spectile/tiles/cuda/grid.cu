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
// Tile rows that a warp has of C.  Two where a tile is an odd number of blocks of 8 rows, so that no part of 16 rows is half empty.
constexpr int kPair = PAIR, kBlocks = SIZE / 8;

// Two tiles of A, one below the other, times tile B are added, the first and the second as wanted.
//
// B is given by its conjugate transpose, so that lanes read it as they do A.
template <bool first, bool second>
__device__ __forceinline__ void multiply_add_blocks(Sums& sums, const double* __restrict__ tile_a, long long below,
                                                    const double* __restrict__ turned_b, int lane) {
    const double2 *upper_a = reinterpret_cast<const double2*>(tile_a) + lane, *lower_a = upper_a + below / 2;
    const double2* right = reinterpret_cast<const double2*>(turned_b) + lane;
    const auto rows_of = [&](int row, int k) {
        if (row < kBlocks) return first ? upper_a[(row * kBlocks + k) * 32] : make_double2(0, 0);
        return second && row < kPair * kBlocks ? lower_a[((row - kBlocks) * kBlocks + k) * 32] : make_double2(0, 0);
    };
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
        double x[DOWN][4], y[ACROSS][2];
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            const double2 both = right[(j * kBlocks + k) * 32];
            y[j][0] = both.x, y[j][1] = both.y;
        }
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            if (!(first && 2 * i < kBlocks) && !(second && 2 * i + 1 >= kBlocks)) continue;
            const double2 upper = rows_of(2 * i, k), lower = rows_of(2 * i + 1, k);
            x[i][0] = upper.x, x[i][1] = lower.x, x[i][2] = upper.y, x[i][3] = lower.y;
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) mma_f64(sums[i][j], x[i], y[j]);
        }
    }
}

// Tiles that a block copies to shared memory, kStages steps of k at a time: those of A, then those of B, that any of its warps wants.
constexpr int kRows = DOWN_TILES * kPair, kTile = SIZE * SIZE, kStages = STAGES, kWarps = DOWN_TILES * ACROSS_TILES;
constexpr int kStage = (kRows + ACROSS_TILES) * kTile;

// The k that a block goes along, one after the other: those of which any of its warps wants a product.
//
// `wanted` has a bit for each of 32 k, by warp and by tile of the warp.
struct Steps {
    const unsigned* wanted;
    int windows, window;
    unsigned left;
    int bit;
    __device__ __forceinline__ bool next() {
        while (!left && window + 1 < windows) {
            ++window;
            for (int w = 0; w < kWarps * kPair; ++w) left |= wanted[window * kWarps * kPair + w];
        }
        if (!left) return false;
        bit = __ffs(left) - 1;
        left &= left - 1;
        return true;
    }
    __device__ __forceinline__ bool wants(int warp, int p) const { return wanted[(window * kWarps + warp) * kPair + p] >> bit & 1; }
    // Whether any warp reads a tile of a stage.
    __device__ __forceinline__ bool reads(int tile) const {
        bool found = false;
        if (tile < kRows)
            for (int c = 0; c < ACROSS_TILES; ++c) found |= wants(tile / kPair * ACROSS_TILES + c, tile % kPair);
        else
            for (int r = 0; r < kRows; ++r) found |= wants(r / kPair * ACROSS_TILES + tile - kRows, r % kPair);
        return found;
    }
};
#else
constexpr int kPair = 1;
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
// norms_b is the map of B transposed, so that both are read along k; where tiles are in blocks, b is its conjugate transpose.  A
// warp has kPair tiles of C, one below the other, and a block DOWN_TILES x ACROSS_TILES of them: they go along k together, so that
// what one reads the others find near.
extern "C" __global__ void __launch_bounds__(32 * DOWN_TILES * ACROSS_TILES, RESIDENT) grid_multiply(
    const value* __restrict__ a, const double* __restrict__ norms_a, const value* __restrict__ b, const double* __restrict__ norms_b,
    const value* __restrict__ d, const double* __restrict__ norms_d, const double* __restrict__ threshold, double alpha, double beta,
    double shift, Grid grid, Rounding how, value* __restrict__ c, double* __restrict__ maps, int down, int across) {
    // Blocks that run together have few tile rows and tile columns.
    const int first_row = blockIdx.x / (GROUP * across) * GROUP, rows_here = min(GROUP, down - first_row);
    const int within = blockIdx.x % (GROUP * across), warp = threadIdx.x / 32;
    const int own_row = (first_row + within % rows_here) * DOWN_TILES;
    const int top = (own_row + warp / ACROSS_TILES) * kPair, j = within / rows_here * ACROSS_TILES + warp % ACROSS_TILES;
    if (how.hermitian && (within / rows_here + 1) * ACROSS_TILES - 1 < own_row * kPair) return;
    bool own[kPair];
#pragma unroll
    for (int p = 0; p < kPair; ++p) own[p] = top + p < grid.size && j < grid.size && !(how.hermitian && j < top + p);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int width = SIZE ? SIZE : own[0] ? grid.height(j) : 0;
    const double tau = *threshold;

    Sums sums;
    clear(sums);
#if BLOCKS
    extern __shared__ float shared[];
    double* stages = reinterpret_cast<double*>(shared);
    unsigned* listed = reinterpret_cast<unsigned*>(stages + kStages * kStage);
#endif
    double total[kPair] = {};
    int terms[kPair] = {}, count[kPair] = {};
    for (int first = 0; first < grid.size; first += 32) {
        const int k = first + lane;
        const int own_depth = SIZE ? SIZE : k < grid.size ? grid.height(k) : 0;
        const double norm_b = own[0] && k < grid.size ? norms_b[grid.place(j, k)] : 0;
        unsigned wanted[kPair], left = 0;
#pragma unroll
        for (int p = 0; p < kPair; ++p) {
            const double both = own[p] && k < grid.size ? norms_a[grid.place(top + p, k)] * norm_b : 0;
            const bool kept = both > 0 && both >= tau;
            if (kept) total[p] += both, terms[p] += own_depth;
            wanted[p] = __ballot_sync(0xffffffffu, kept);
            count[p] += __popc(wanted[p]), left |= wanted[p];
        }
#if BLOCKS
        if (lane < kPair) listed[(first / 32 * kWarps + warp) * kPair + lane] = wanted[kPair == 2 ? lane : 0];
#else
        for (; left; left &= left - 1) {
            const int next = first + __ffs(left) - 1, depth = grid.height(next);
            multiply_add_tiles(sums, a + grid.start(top, next), depth, b + grid.start(next, j), grid.height(top), width, 0, 0, g, t);
        }
        __syncthreads();
#endif
    }
#if BLOCKS
    __syncthreads();
    const int windows = (grid.size + 31) / 32, left_column = within / rows_here * ACROSS_TILES;
    Steps ahead{listed, windows, -1, 0, 0}, now = ahead;
    const auto copy = [&](double* stage) {
        if (ahead.next()) {
            const int k = 32 * ahead.window + ahead.bit;
            for (int tile = warp; tile < kRows + ACROSS_TILES; tile += kWarps) {
                if (!ahead.reads(tile)) continue;
                const double* from = tile < kRows ? a + grid.place(own_row * kPair + tile, k) * kTile
                                                  : b + grid.place(left_column + tile - kRows, k) * kTile;
                for (int at = 2 * lane; at < kTile; at += 64) copy_async_16(shared_address(stage + tile * kTile + at), from + at);
            }
        }
        commit_copies();
    };
    for (int s = 0; s < kStages - 1; ++s) copy(stages + s * kStage);
    for (int s = 0; now.next(); s = s + 1 < kStages ? s + 1 : 0) {
        wait_copies<kStages - 2>();
        __syncthreads();
        copy(stages + (s ? s - 1 : kStages - 1) * kStage);
        const double *tiles_a = stages + s * kStage + warp / ACROSS_TILES * kPair * kTile,
                     *tile_b = stages + s * kStage + (kRows + warp % ACROSS_TILES) * kTile;
        const bool upper = now.wants(warp, 0), lower = kPair == 2 && now.wants(warp, kPair - 1);
        if (upper && (lower || kPair == 1)) multiply_add_blocks<true, kPair == 2>(sums, tiles_a, kTile, tile_b, lane);
        else if (upper) multiply_add_blocks<true, false>(sums, tiles_a, kTile, tile_b, lane);
        else if (lower) multiply_add_blocks<false, true>(sums, tiles_a, kTile, tile_b, lane);
    }
#endif
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
        if (!own[p]) continue;
        const int i = top + p, height = SIZE ? SIZE : grid.height(i);
        const double sum_of_norms = whole_warp(total[p]) * kSlack, length = whole_warp(double(terms[p]));
        const double norm_d = d ? norms_d[grid.place(i, j)] : 0;
        const bool twice = how.hermitian && i == j;  // what is above the diagonal counts for what is below it
        const bool any = count[p] > 0 || norm_d > 0 || (shift != 0 && i == j);
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
                        const int r = 16 * m + g + 8 * (e / 2) - (SIZE ? SIZE * p : 0), s = 8 * n + 2 * t + e % 2;
                        if (r < 0 || r >= height || s >= width || (twice && s < r)) continue;
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
            double lost = fabs(alpha) * (gamma_of(length, how.unit) * sum_of_norms + 4 * length * how.least * sqrt(double(height * width)));
            lost += any ? rounded(fabs(alpha) * sum_of_norms + fabs(beta) * norm_d + diagonal, height * width, how) : 0;
            write(maps, grid, i, j, how.hermitian, norm_of(squares, most, entries), norm_of(squares_apart, most_apart, entries),
                  lost * kSlack * (twice ? 1.4142135623730952 : 1.0), count[p]);
        }
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

// The conjugate transpose, whose map of norms is given.  A warp a tile.
extern "C" __global__ void __launch_bounds__(256) grid_adjoint(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                                               value* __restrict__ c) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32;
    if (i >= grid.size || norms[tile] == 0) return;
    const int height = grid.height(i), width = grid.height(j);
    for (int at = lane; at < height * width; at += 32) {
        const int2 here = row_and_column(at, width);
        c[grid.start(i, j) + at] = conjugate(a[grid.start(j, i) + entry(here.y, here.x, height)]);
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
