// Products and sums of matrices with room for every tile.
#include "sums.cuh"
#include "grid.cuh"
#include "warps.cuh"

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

constexpr int kTile = SIZE * SIZE;

// --- Products of tiles in float16 ---------------------------------------------------------------------------------------------
//
// A tile in float16 is its 8 x 8 blocks by rows, a word of each a lane, four blocks side by side and the ninth alone.  It is
// scaled by a power of two, by its norm, so that no entry reaches 2^8 and the largest are far from what float16 loses.  What
// that rounds away follows it, times 2^11, in the same way.

constexpr int kUp = 1030;  // the exponent of float64, biased, of a norm whose tile is stored as it is
constexpr int kAll = kBlocks * kBlocks, kFours = kAll / 4;
typedef unsigned Halves[kAll];

__device__ __forceinline__ int exponent(double norm) { return int(__double_as_longlong(norm) >> 52) & 0x7ff; }

__device__ __forceinline__ void load_halves(Halves& to, const unsigned* __restrict__ tile, bool wanted, int lane) {
    if (wanted) {
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
            const uint4 four = reinterpret_cast<const uint4*>(tile)[32 * f + lane];
            to[4 * f] = four.x, to[4 * f + 1] = four.y, to[4 * f + 2] = four.z, to[4 * f + 3] = four.w;
        }
        if (kAll % 4) to[kAll - 1] = tile[128 * kFours + lane];
    } else {
#pragma unroll
        for (int block = 0; block < kAll; ++block) to[block] = 0;
    }
}

// A float, less than 2^15, rounded to the nearest of float16; what is below 2^-14 is 0.
__device__ __forceinline__ unsigned half_of(float x) {
    const unsigned bits = unsigned(__float_as_int(x)), modulus = bits & 0x7fffffffu, rounded = modulus + 0xfffu + (modulus >> 13 & 1u);
    return (rounded >> 23 < 113 ? 0u : (rounded >> 13) - (112u << 10)) | bits >> 16 & 0x8000u;
}

__device__ __forceinline__ float of_half(unsigned half) {
    return __int_as_float(int((half & 0x7fffu ? ((half & 0x7fffu) + (112u << 10)) << 13 : 0u) | (half & 0x8000u) << 16));
}

// What a warp multiplies of one k: which of its tiles of A, and what the products are scaled by.
struct Product {
    bool wanted[kPair];
    float scale[kPair];
};

// The tiles of A times B, which is turned, are added.
__device__ __forceinline__ void multiply_add_halves(float (&sums)[DOWN][ACROSS][4], const Halves (&a)[kPair], const Halves& b,
                                                    const Product& product, float factor) {
#pragma unroll
    for (int m = 0; m < DOWN; ++m) {
        const int upper = 2 * m / kBlocks, lower = (2 * m + 1) / kBlocks;
        if (!product.wanted[upper] && !product.wanted[lower]) continue;
#pragma unroll
        for (int n = 0; n < ACROSS; ++n) {
            float sum[4] = {};
#pragma unroll
            for (int k = 0; k < kBlocks; k += 2) {
                const int first = 2 * m % kBlocks * kBlocks + k, second = (2 * m + 1) % kBlocks * kBlocks + k;
                const bool both = k + 1 < kBlocks;
                const unsigned x[4] = {a[upper][first], a[lower][second], both ? a[upper][first + both] : 0u,
                                       both ? a[lower][second + both] : 0u};
                const unsigned y[2] = {b[n * kBlocks + k], both ? b[n * kBlocks + k + both] : 0u};
                mma_f16(sum, x, y);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[m][n][e] = fmaf(sum[e], product.scale[e < 2 ? upper : lower] * factor, sums[m][n][e]);
        }
    }
}

// What products in float16 are off by, at most: `once` and `twofold` are the sums of the products of the norms, each of so many.
//
// One float16 is off by 2^-11, by 2^-16 for what is lost and by 2^-23; two are by 2^-22 and 2^-27, and what the second ones add
// to each other is left out, 2^-22.  Sums of a tile are off by 2^-17, since the matrix units may truncate; each addition in
// float32 by 2^-24 of what is summed.
__device__ __forceinline__ double coarse(double once, double twofold, int products) {
    return 0x1p-10 * 1.06 * once + 0x1p-17 * 1.2 * twofold + products * 0x1p-23 * (once + twofold);
}

#else
constexpr int kPair = 1;
#endif

// What of a product is made in float64, of one and of two float16.
constexpr int kWhole = 0, kOnce = 1, kTwofold = 2, kKinds = 3;

// The k of a warp's tiles of C, one after the other, of lists of a kind: for each tile a bit for each k.
struct Steps {
    const unsigned* lists[kPair];  // or null
    int windows, lane, window;
    unsigned words[kPair], filled, now[kPair], left;
    int bit;
    __device__ __forceinline__ Steps(const unsigned* const (&of_tiles)[kPair], int kind, int windows, int lane)
        : windows(windows), lane(lane), window(-1), filled(0), left(0), bit(0) {
        for (int p = 0; p < kPair; ++p) lists[p] = of_tiles[p] ? of_tiles[p] + kind * windows : nullptr;
    }
    __device__ __forceinline__ bool next() {
        while (!left) {
            if (++window >= windows) return false;
            if (window % 32 == 0) {
                bool some = false;
#pragma unroll
                for (int p = 0; p < kPair; ++p) {
                    words[p] = lists[p] && window + lane < windows ? lists[p][window + lane] : 0;
                    some = some || words[p];
                }
                filled = __ballot_sync(0xffffffffu, some);
            }
            // What one warp of a block reads the others find near.
            if (window % TOGETHER == 0) __syncthreads();
            if (!(filled >> window % 32 & 1)) continue;
#pragma unroll
            for (int p = 0; p < kPair; ++p) now[p] = __shfl_sync(0xffffffffu, words[p], window % 32), left |= now[p];
        }
        bit = __ffs(left) - 1, left &= left - 1;
        return true;
    }
    __device__ __forceinline__ int k() const { return 32 * window + bit; }
    __device__ __forceinline__ bool wants(int p) const { return now[p] >> bit & 1; }
};

// Maps that are written for each result: the norm of each tile, that of what it differs from D by, a bound of what it is off
// by through rounding, and the products in it.
// and a bound of what was left out.
constexpr int kNorms = 0, kApart = 1, kLost = 2, kProducts = 3, kSkipped = 4;

// How the result is rounded: of real numbers, the unit round-off and the smallest number.
struct Rounding {
    double unit, least;
    int hermitian;  // the half above the diagonal is computed, and stands for the other
};

// What a sum of so many products is off by, at most, relative to the sum of their moduli (types.gamma).
__device__ __forceinline__ double gamma_of(double terms, double unit) {
    const double steps = (COMPLEX ? 2 * terms : terms) * unit;
    return steps < 0.5 ? (COMPLEX ? 1.4142135623730952 : 1.0) * steps / (1 - steps) : kInfinity;
}

// What a sum of scaled tiles and a shifted diagonal is off by: `sum` is what the moduli of its terms add up to.
__device__ __forceinline__ double rounded(double sum, int entries, const Rounding& how) {
    return 8 * how.unit * sum + 8 * how.least * sqrt(double(entries));
}

// A number of a tile, and of its mirror image, in a map.
__device__ __forceinline__ void write(double* __restrict__ maps, int map, const Grid& grid, int i, int j, bool both, double value) {
    double* own = maps + map * static_cast<long long>(grid.size) * grid.size;
    own[grid.place(i, j)] = value;
    if (both && i != j) own[grid.place(j, i)] = value;
}

// What is added up in each tile of C = alpha A B + beta D + gamma I, and how: the products of tiles whose norms' product is at
// least the first threshold; those below others in float16, if `halves`, in sums of float32 in `unit`.  With what that is off by.
//
// norms_b is the map of B transposed, so that both are read along k.  A warp a tile.
extern "C" __global__ void __launch_bounds__(256) grid_list(const double* __restrict__ norms_a, const double* __restrict__ norms_b,
                                                            const double* __restrict__ norms_d, const double* __restrict__ threshold,
                                                            int halves, double unit, double alpha, double beta, double shift, Grid grid,
                                                            Rounding how, unsigned* __restrict__ lists, double* __restrict__ maps) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32, windows = (grid.size + 31) / 32;
    if (i >= grid.size || (how.hermitian && j < i)) return;
    const double tau = threshold[kBest], second = threshold[kTwo], fine = halves ? threshold[kFine] : 0, least = 0x1p-90 * unit;
    const double *row = norms_a + grid.place(i, 0), *column = norms_b + grid.place(j, 0);
    unsigned* to = lists + tile * kKinds * windows;
    double whole = 0, once = 0, twofold = 0, skipped = 0;
    int terms = 0, count = 0, roundings = 0;
    unsigned words[kKinds] = {};
#pragma unroll 4
    for (int window = 0; window < windows; ++window) {
        const int k = 32 * window + lane;
        const double both = k < grid.size ? row[k] * column[k] : 0;
        const bool kept = both > 0 && both >= tau;
        if (!kept) skipped += both;
        if (__ballot_sync(0xffffffffu, kept)) {
            const bool rough = kept && both < fine && both >= least, one = rough && !(both >= second);
            const unsigned found[kKinds] = {__ballot_sync(0xffffffffu, kept && !rough), __ballot_sync(0xffffffffu, one),
                                            __ballot_sync(0xffffffffu, rough && !one)};
            if (kept) terms += grid.height(k);
            if (one) once += both;
            else if (rough) twofold += both;
            else if (kept) whole += both;
            count += __popc(found[kWhole]) + __popc(found[kOnce]) + __popc(found[kTwofold]);
            roundings += __popc(found[kOnce]) + 3 * __popc(found[kTwofold]);
            if (lane == window % 32)
                for (int kind = 0; kind < kKinds; ++kind) words[kind] = found[kind];
        }
        if (window % 32 == 31 || window == windows - 1) {
            if (window / 32 * 32 + lane < windows)
                for (int kind = 0; kind < kKinds; ++kind) to[kind * windows + window / 32 * 32 + lane] = words[kind], words[kind] = 0;
        }
    }
    skipped = over_warp(skipped);
    double length = 0;
    if (count) {
        whole = over_warp(whole), length = over_warp(double(terms));
        if (roundings) once = over_warp(once) * kSlack, twofold = over_warp(twofold) * kSlack;
    }
    if (lane) return;
    const int height = grid.height(i), width = grid.height(j);
    const double norm_d = norms_d ? norms_d[tile] : 0, sum_of_norms = (whole + 1.01 * (once + twofold)) * kSlack;
    const double diagonal = i == j ? fabs(shift) * sqrt(double(height)) : 0, area = sqrt(double(height * width));
    double lost = fabs(alpha) * (gamma_of(length, how.unit) * sum_of_norms + 4 * length * how.least * area);
#if BLOCKS
    lost += fabs(alpha) * coarse(once, twofold, roundings);
#endif
    if (count || norm_d > 0 || diagonal > 0)
        lost += rounded(fabs(alpha) * sum_of_norms + fabs(beta) * norm_d + diagonal, height * width, how);
    // What is above the diagonal of a tile counts for what is below it.
    const double twice = kSlack * (how.hermitian && i == j ? 1.4142135623730952 : 1.0);
    write(maps, kLost, grid, i, j, how.hermitian, lost * twice);
    write(maps, kSkipped, grid, i, j, how.hermitian, (skipped + grid.size * 0x1p-1000) * twice);
    write(maps, kProducts, grid, i, j, how.hermitian, 0);
    maps[kProducts * static_cast<long long>(grid.size) * grid.size + tile] = count;
    write(maps, kNorms, grid, i, j, how.hermitian, 0);
    write(maps, kApart, grid, i, j, how.hermitian, 0);
}

// The sum whose products are listed; the norms of its tiles, and of what they differ from D by.
//
// Where tiles are in blocks, b is its conjugate transpose.  A warp has kPair tiles of C, one below the other, and a block
// DOWN_TILES x ACROSS_TILES of them.
extern "C" __global__ void __launch_bounds__(32 * DOWN_TILES * ACROSS_TILES, RESIDENT) grid_multiply(
    const value* __restrict__ a, const double* __restrict__ norms_a, const value* __restrict__ b, const double* __restrict__ norms_b,
    const unsigned* __restrict__ halves_a, const unsigned* __restrict__ halves_b, const value* __restrict__ d,
    const double* __restrict__ norms_d, const unsigned* __restrict__ lists, double unit, double alpha, double beta, double shift, Grid grid,
    int hermitian, value* __restrict__ c, double* __restrict__ maps, int down, int across) {
    // Blocks that run together have few tile rows and tile columns.
    const int first_row = blockIdx.x / (GROUP * across) * GROUP, rows_here = min(GROUP, down - first_row);
    const int within = blockIdx.x % (GROUP * across), warp = threadIdx.x / 32;
    const int own_row = (first_row + within % rows_here) * DOWN_TILES;
    const int top = (own_row + warp / ACROSS_TILES) * kPair, j = within / rows_here * ACROSS_TILES + warp % ACROSS_TILES;
    if (hermitian && (within / rows_here + 1) * ACROSS_TILES - 1 < own_row * kPair) return;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, windows = (grid.size + 31) / 32;
    const unsigned* own_lists[kPair];
    double norm_d[kPair];
    bool any[kPair], some = false;
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
        own_lists[p] = nullptr, any[p] = false, norm_d[p] = 0;
        if (top + p >= grid.size || j >= grid.size || (hermitian && j < top + p)) continue;
        const long long place = grid.place(top + p, j);
        if (maps[kProducts * static_cast<long long>(grid.size) * grid.size + place] > 0) own_lists[p] = lists + place * kKinds * windows;
        if (d) norm_d[p] = norms_d[place];
        any[p] = own_lists[p] || norm_d[p] > 0 || (shift != 0 && j == top + p);
        some = some || any[p];
    }
    if (!__syncthreads_or(some)) return;
    const int width = SIZE ? SIZE : grid.height(j);
    Sums sums;
    clear(sums);
#if BLOCKS
    {
        float sums_in_unit[DOWN][ACROSS][4] = {};
        const int power_of_unit = exponent(unit) - 1023 + 2 * kUp - 127;
        const auto product_of = [&](const Steps& at) {
            Product product;
            const int power = exponent(norms_b[grid.place(j, at.k())]) - power_of_unit;
#pragma unroll
            for (int p = 0; p < kPair; ++p) {
                product.wanted[p] = at.wants(p);
                product.scale[p] = at.wants(p) ? __int_as_float((exponent(norms_a[grid.place(top + p, at.k())]) + power) << 23) : 0;
            }
            return product;
        };
        const auto load = [&](Halves(&x)[kPair], Halves& y, const Steps& at, int part) {
            load_halves(y, halves_b + grid.place(j, at.k()) * kTile + part * (kTile / 2), true, lane);
#pragma unroll
            for (int p = 0; p < kPair; ++p)
                load_halves(x[p], halves_a + grid.place(top + p, at.k()) * kTile + part * (kTile / 2), at.wants(p), lane);
        };
        {
            // One k ahead of what is multiplied.
            Steps at(own_lists, kOnce, windows, lane);
            Halves x[2][kPair], y[2];
            Product product[2];
            const auto fetch = [&](int s) {
                if (!at.next()) return false;
                load(x[s], y[s], at, 0);
                product[s] = product_of(at);
                return true;
            };
            for (bool more = fetch(0); more;) {
                more = fetch(1);
                multiply_add_halves(sums_in_unit, x[0], y[0], product[0], 1);
                if (!more) break;
                more = fetch(0);
                multiply_add_halves(sums_in_unit, x[1], y[1], product[1], 1);
            }
        }
        for (Steps at(own_lists, kTwofold, windows, lane); at.next();) {
            Halves x[2][kPair], y[2];
            load(x[0], y[0], at, 0), load(x[1], y[1], at, 1);
            const Product product = product_of(at);
            multiply_add_halves(sums_in_unit, x[0], y[0], product, 1);
            multiply_add_halves(sums_in_unit, x[0], y[1], product, 0x1p-11f);
            multiply_add_halves(sums_in_unit, x[1], y[0], product, 0x1p-11f);
        }
#pragma unroll
        for (int m = 0; m < DOWN; ++m)
#pragma unroll
            for (int n = 0; n < ACROSS; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[m][n][e] = sums_in_unit[m][n][e] * unit;
    }
    const long long below = static_cast<long long>(grid.size) * kTile;
    for (Steps at(own_lists, kWhole, windows, lane); at.next();) {
        const double *tiles_a = a + grid.place(top, at.k()) * kTile, *tile_b = b + grid.place(j, at.k()) * kTile;
        const bool upper = at.wants(0), lower = kPair == 2 && at.wants(kPair - 1);
        if (upper && (lower || kPair == 1)) multiply_add_blocks<true, kPair == 2>(sums, tiles_a, below, tile_b, lane);
        else if (upper) multiply_add_blocks<true, false>(sums, tiles_a, below, tile_b, lane);
        else if (lower) multiply_add_blocks<false, true>(sums, tiles_a, below, tile_b, lane);
    }
#else
    for (Steps at(own_lists, kWhole, windows, lane); at.next();)
        multiply_add_tiles(sums, a + grid.start(top, at.k()), grid.height(at.k()), b + grid.start(at.k(), j), grid.height(top), width, 0, 0,
                           g, t);
#endif
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
        if (!any[p]) continue;
        const int i = top + p, height = SIZE ? SIZE : grid.height(i);
        const bool twice = hermitian && i == j;  // what is above the diagonal counts for what is below it
        double squares = 0, most = 0, squares_apart = 0, most_apart = 0;
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
                    const value other = norm_d[p] > 0 ? tile_d[entry(r, s, width)] : zero();
                    const value apart = difference(other, sums[m][n][e]);
                    value made = sum(scaled(sums[m][n][e], real(alpha)), scaled(other, real(beta)));
                    if (i == j && r == s) made = on_diagonal(made, real(shift), hermitian);
                    to[entry(r, s, width)] = made;
                    if (hermitian && !(twice && r == s)) mirror[entry(s, r, height)] = conjugate(made);
                    const double weight = twice && s > r ? 2 : 1;
                    squares += weight * square(made, 1.0), squares_apart += weight * square(apart, 1.0);
                    most = fmax(most, largest_part(made)), most_apart = fmax(most_apart, largest_part(apart));
                }
        squares = over_warp(squares), squares_apart = over_warp(squares_apart);
        most = largest_of_warp(most), most_apart = largest_of_warp(most_apart);
        const int entries = (COMPLEX ? 2 : 1) * height * width;
        if (lane == 0) write(maps, kNorms, grid, i, j, hermitian, norm_of(squares, most, entries));
        if (lane == 0) write(maps, kApart, grid, i, j, hermitian, norm_of(squares_apart, most_apart, entries));
    }
}

// Maps of a matrix that is no product.
__device__ __forceinline__ void write_all(double* __restrict__ maps, const Grid& grid, int i, int j, bool both, double norm, double apart,
                                          double lost) {
    write(maps, kNorms, grid, i, j, both, norm), write(maps, kApart, grid, i, j, both, apart);
    write(maps, kLost, grid, i, j, both, lost);
    write(maps, kProducts, grid, i, j, both, 0), write(maps, kSkipped, grid, i, j, both, 0);
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
    squares = over_warp(squares), most = largest_of_warp(most);
    if (lane == 0) {
        const double lost = any ? rounded(fabs(alpha) * norm_a + fabs(beta) * norm_b + diagonal, height * width, how) : 0;
        write_all(maps, grid, i, j, how.hermitian, norm_of(squares, most, (COMPLEX ? 2 : 1) * height * width), 0, lost * kSlack);
    }
}

// The tiles in float16.  A warp a tile.
extern "C" __global__ void __launch_bounds__(256) grid_halved(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                                              unsigned* __restrict__ out) {
#if BLOCKS
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (tile >= static_cast<long long>(grid.size) * grid.size || norms[tile] == 0) return;
    const double scale = __longlong_as_double(static_cast<long long>(min(1023 + kUp - exponent(norms[tile]), 2046)) << 52);
    Halves words[2];
#pragma unroll
    for (int block = 0; block < kAll; ++block) {
        words[0][block] = words[1][block] = 0;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const double x = a[tile * kTile + block * 64 + entry(g, 2 * t + e, 8)] * scale;
            const unsigned half = half_of(float(x));
            words[0][block] |= half << 16 * e, words[1][block] |= half_of(float((x - of_half(half)) * 2048)) << 16 * e;
        }
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        unsigned* to = out + tile * kTile + part * (kTile / 2);
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
            const unsigned* four = words[part] + 4 * f;
            reinterpret_cast<uint4*>(to)[32 * f + lane] = make_uint4(four[0], four[1], four[2], four[3]);
        }
        if (kAll % 4) to[128 * kFours + lane] = words[part][kAll - 1];
    }
#endif
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
    first = over_warp(first), second = over_warp(second);
    if (lane == 0) {
        out[tile] = first;
        out[static_cast<long long>(grid.size) * grid.size + tile] = second;
    }
}

// Sums of moduli over each row of the matrix.  A block a tile row, a warp a row.
extern "C" __global__ void __launch_bounds__(256) grid_row_sums(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                                                double* __restrict__ out) {
    const int i = blockIdx.x, lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < grid.height(i); r += blockDim.x / 32) {
        double total = 0;
        for (int j = 0; j < grid.size; ++j) {
            if (norms[grid.place(i, j)] == 0) continue;
            const int width = grid.height(j);
            const value* from = a + grid.start(i, j);
            for (int s = lane; s < width; s += 32) total += modulus(from[entry(r, s, width)]);
        }
        total = over_warp(total);
        if (lane == 0) out[grid.rows[i] + r] = total * kSlack;
    }
}

// The real parts of the diagonal.  A warp a tile row.
extern "C" __global__ void grid_diagonal(const value* __restrict__ a, const double* __restrict__ norms, Grid grid,
                                         double* __restrict__ out) {
    const int i = blockIdx.x, height = grid.height(i);
    const bool filled = norms[grid.place(i, i)] > 0;
    for (int r = threadIdx.x; r < height; r += 32)
        out[grid.rows[i] + r] = filled ? real_part(a[grid.start(i, i) + entry(r, r, height)]) : 0;
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
    squares = over_warp(squares), squares_apart = over_warp(squares_apart);
    most = largest_of_warp(most), most_apart = largest_of_warp(most_apart);
    const int entries = (COMPLEX ? 2 : 1) * height * width;
    if (lane == 0) write_all(maps, grid, i, j, hermitian, norm_of(squares, most, entries), norm_of(squares_apart, most_apart, entries), 0);
}

// A matrix as a dense one, by rows, whose row order[i] is row i of it.  A warp a tile.
extern "C" __global__ void __launch_bounds__(256) grid_to_dense(const value* __restrict__ a, const double* __restrict__ norms,
                                                                const long long* __restrict__ order, Grid grid, value* __restrict__ out) {
    const long long tile = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const int i = int(tile / grid.size), j = int(tile % grid.size), lane = threadIdx.x % 32;
    if (i >= grid.size) return;
    const int width = grid.height(j), entries = grid.height(i) * width;
    const bool filled = norms[tile] > 0;
    for (int at = lane; at < entries; at += 32) {
        const int r = at / width, s = at % width;
        const long long x = grid.rows[i] + r, y = grid.rows[j] + s;
        out[(order ? order[x] : x) * grid.rows[grid.size] + (order ? order[y] : y)] =
            filled ? a[grid.start(i, j) + entry(r, s, width)] : zero();
    }
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
