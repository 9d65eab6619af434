// Thresholds of products of tiles, and of tiles, found on the device by what they leave out.
//
// Norms are sorted by half octaves: a product of norms is in bin q where it is below edge q and not below the edge before, so
// that one look at all triples of tiles tells what each of the edges leaves out.
#include "grid.cuh"
#include "warps.cuh"

// Half octaves that a look sorts norms into: kBins edges, what is below the first, and what is not below the last.
constexpr int kBins = 48, kSums = kBins + 1, kThreads = 256;
// Norms are at least 2^-60 of the unit, so that their products are exact but for rounding, and thresholds of more than twice
// that know whatever is below them.
constexpr int kLowest = 2 * (127 - 118), kHighest = 2 * (127 + 36);

// What is known (kBest, kTwo, kFine): the largest threshold that leaves out at most what is allowed; those below which products
// of one and of two float16 are off by no more than their parts of it; bounds of what is left out in both norms; what is allowed;
// the first half octave of the next look, in units of float32; whether there is no need of one.
struct Search {
    double best, twofold, fine, fro, spectral, allowed, base, done;
};
// Parts of what is allowed that products of one and of two float16 may be off by, and what they are off by, about, relative to
// the products of the norms.
constexpr double kParts[2] = {0.18, 0.07}, kOff[2] = {1.1e-3, 2e-5};

// Norms in float32, not below the exact ones, in a unit that makes the largest about 1.
extern "C" __global__ void __launch_bounds__(256) grid_narrowed(const double* __restrict__ norms, double unit, float* __restrict__ out,
                                                                long long tiles) {
    const long long tile = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (tile >= tiles) return;
    const double norm = norms[tile] / unit * (1 + 0x1p-21);
    out[tile] = norm > 0 ? __double2float_ru(fmax(norm, 0x1p-60)) : norm == 0 ? 0 : __double2float_ru(norm);
}

__device__ __forceinline__ int half_octave(float x) { return __float_as_int(x) >> 22; }

__device__ __forceinline__ void sort_into(float* bins, float x, int base) {
    const int bin = min(max(half_octave(x) - base + 1, 0), kBins);
    bins[bin * kThreads] += x;
}

// Sums over the block of what the bins up to each have.
//
// `bins` has a column for each thread.  Warps take the bins in turn; lane 0 adds to `sums` and `squares`.
__device__ __forceinline__ void add_up(const float* bins, float weight, float* shared_weight, double* sums, double* squares) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    shared_weight[threadIdx.x] = weight;
    __syncthreads();
    for (int q = warp; q < kSums; q += kThreads / 32) {
        double sum = 0, square = 0;
        for (int column = lane; column < kThreads; column += 32) {
            const double x = double(bins[q * kThreads + column]) * shared_weight[column];
            sum += x, square += x * x;
        }
        sum = over_warp(sum), square = over_warp(square);
        if (lane == 0) sums[q] += sum, squares[q] += square;
    }
    __syncthreads();
}

// Of each tile row of C what thresholds leave out: the sum of its tiles, and of their squares.
//
// Of a product of which the half above the diagonal is computed, and stands for the other, that of the transposed place.  The
// maps are given as they are and transposed.  One of `stride` rows is looked at, by parts of kThreads columns.
extern "C" __global__ void __launch_bounds__(kThreads) grid_left_out(const float* __restrict__ a, const float* __restrict__ turned_a,
                                                                     const float* __restrict__ b, const float* __restrict__ turned_b,
                                                                     int inner, int hermitian, int stride,
                                                                     const Search* __restrict__ search, int first, int begin,
                                                                     double* __restrict__ rows) {
    if (!first && search->done != 0) return;
    extern __shared__ float shared[];
    __shared__ double sums[kSums], squares[kSums];
    float *bins = shared + threadIdx.x, *weights = shared + kSums * kThreads, *own_a = weights + kThreads, *own_b = own_a + inner;
    const int parts = (inner + kThreads - 1) / kThreads, i = blockIdx.x / parts * stride + stride / 2;
    const int base = first ? begin : int(search->base), j = blockIdx.x % parts * kThreads + threadIdx.x;
    const long long size = inner;
    for (int k = threadIdx.x; k < inner; k += kThreads) own_a[k] = a[i * size + k], own_b[k] = turned_b[i * size + k];
    for (int q = threadIdx.x; q < kSums; q += kThreads) sums[q] = squares[q] = 0;
    for (int q = 0; q < kSums; ++q) bins[q * kThreads] = 0;
    __syncthreads();
    if (j < inner) {
        const bool turned = hermitian && j < i;
        const float *left = turned ? own_b : own_a, *right = (turned ? turned_a : b) + j;
#pragma unroll 4
        for (int k = 0; k < inner; ++k) sort_into(bins, left[k] * right[k * size], base);
        for (int q = 1; q < kSums; ++q) bins[q * kThreads] += bins[(q - 1) * kThreads];
    }
    add_up(shared, hermitian && i == j ? 1.4142137f : 1.0f, weights, sums, squares);
    for (int q = threadIdx.x; q < kSums; q += kThreads)
        rows[2 * q * gridDim.x + blockIdx.x] = sums[q], rows[(2 * q + 1) * gridDim.x + blockIdx.x] = squares[q];
}

// Of each tile row of a matrix what is left out with the tiles whose norms are below thresholds.
extern "C" __global__ void __launch_bounds__(kThreads) grid_dropped(const float* __restrict__ a, int inner,
                                                                    const Search* __restrict__ search, int first, int begin,
                                                                    double* __restrict__ rows) {
    if (!first && search->done != 0) return;
    extern __shared__ float shared[];
    __shared__ double sums[kSums], squares[kSums];
    float *bins = shared + threadIdx.x, *weights = shared + kSums * kThreads;
    const int i = blockIdx.x, base = first ? begin : int(search->base);
    for (int q = threadIdx.x; q < kSums; q += kThreads) sums[q] = squares[q] = 0;
    for (int start = 0; start < inner; start += kThreads) {
        const int j = start + threadIdx.x;
        for (int q = 0; q < kSums; ++q) bins[q * kThreads] = 0;
        if (j < inner) sort_into(bins, a[static_cast<long long>(i) * inner + j], base);
        // A tile is in one bin, and below all later thresholds.
        for (int q = 1; q < kSums; ++q) bins[q * kThreads] += bins[(q - 1) * kThreads];
        add_up(shared, 1.0f, weights, sums, squares);
    }
    for (int q = threadIdx.x; q < kSums; q += kThreads) rows[2 * q * inner + i] = sums[q], rows[(2 * q + 1) * inner + i] = squares[q];
}

// Take the largest of the thresholds that leaves out what is allowed, or choose where to look next.  One block.
//
// `share` of what is left out with everything, and `least`, are kept back for rounding, at most half of the limit.  So many rows
// were looked at of `inner`, each in parts; `halves` tells whether products may be made in float16.
extern "C" __global__ void __launch_bounds__(1024) grid_narrow(Search* __restrict__ search, const double* __restrict__ rows, int looked,
                                                               int parts, int inner, int first, int begin, double unit, double limit,
                                                               double share, double least, int halves, int spectral) {
    if (!first && search->done != 0) return;
    __shared__ double fro[kSums], both[kSums];
    const int lane = threadIdx.x % 32;
    for (int q = threadIdx.x / 32; q < kSums; q += 32) {
        double squares = 0, largest = 0;
        bool known = true;
        for (int i = lane; i < looked; i += 32) {
            double sum = 0;
            for (int at = 2 * q * looked * parts + i * parts, end = at + parts; at < end; ++at)
                sum += rows[at], squares += rows[at + looked * parts];
            known = known && isfinite(sum);
            largest = fmax(largest, sum);
        }
        squares = over_warp(squares), largest = largest_of_warp(largest);
        if (!__all_sync(0xffffffffu, known)) squares = largest = kInfinity;
        if (lane == 0) {
            // Sums in float32 of products that were rounded to nearest.
            const double slack = (1 + (inner + 64) * 0x1p-22) * unit;
            fro[q] = sqrt(squares * inner / looked) * slack;
            both[q] = fmin(fro[q], largest * slack);
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const int base = first ? begin : int(search->base);
    if (first) {
        search->best = search->twofold = search->fine = search->fro = search->spectral = 0;
        search->allowed = limit - fmin(share * fro[kBins] + least, limit / 2);
    }
    const double allowed = search->allowed;
    int found = -1, once = -1, twofold = -1;
    // Where nothing may be left out, rows that were not looked at may have what those do not.
    for (int q = 0; q < kSums && (allowed > 0 || looked == inner); ++q) {
        const double size = spectral ? both[q] : fro[q];
        if (size <= (halves ? 1 - kParts[0] - kParts[1] : 1) * allowed) found = q;
        if (kOff[0] * size <= kParts[0] * allowed) once = q;
        if (kOff[1] * size <= kParts[1] * allowed) twofold = q;
    }
    // Norms are exact where products are selected.
    const auto edge = [&](int q) { return q == kBins ? kInfinity : __int_as_float((base + q) << 22) * (1 - 0x1p-19) * unit; };
    if (found >= 0) search->best = edge(found), search->fro = fro[found], search->spectral = both[found];
    if (halves && once >= 0) search->twofold = edge(once), search->fine = edge(twofold);
    const bool above = found == kBins - 1 && base < kHighest, below = found < 0 && base > kLowest;
    search->done = !(above || below);
    search->base = above ? min(base + kBins - 8, kHighest) : below ? max(base - kBins + 8, kLowest) : base;
}

// Tiles whose norms are below the best threshold are dropped.
extern "C" __global__ void __launch_bounds__(256) grid_drop(double* __restrict__ norms, const Search* __restrict__ search,
                                                            long long tiles) {
    const long long tile = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (tile < tiles && norms[tile] < search->best) norms[tile] = 0;
}

// Of each tile row of each map the sum, the sum of squares and how many are not 0.  A block a row and a map.
extern "C" __global__ void __launch_bounds__(256) grid_rows(const double* __restrict__ maps, int inner, double* __restrict__ out) {
    __shared__ double work[3][8];
    const int i = blockIdx.x % inner, map = blockIdx.x / inner, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const double* row = maps + (static_cast<long long>(map) * inner + i) * inner;
    double found[3] = {0, 0, 0};
    for (int j = threadIdx.x; j < inner; j += blockDim.x) {
        const double x = row[j];
        found[0] += x, found[1] += x * x, found[2] += x != 0;
    }
    for (int f = 0; f < 3; ++f) {
        found[f] = over_warp(found[f]);
        if (lane == 0) work[f][warp] = found[f];
    }
    __syncthreads();
    if (threadIdx.x < 3) {
        double total = 0;
        for (int w = 0; w < 8; ++w) total += work[threadIdx.x][w];
        out[(3 * map + threadIdx.x) * inner + i] = total;
    }
}

// Of each map the root of its squares, the largest sum over a row, the sum, and how many are not 0.  A warp a map.
extern "C" __global__ void grid_totals(const double* __restrict__ rows, int inner, double* __restrict__ out) {
    const int map = threadIdx.x / 32, lane = threadIdx.x % 32;
    double squares = 0, largest = 0, total = 0, filled = 0;
    for (int i = lane; i < inner; i += 32) {
        const double sum = rows[3 * map * inner + i];
        largest = isnan(sum) ? kInfinity : fmax(largest, sum), total += sum;
        squares += rows[(3 * map + 1) * inner + i], filled += rows[(3 * map + 2) * inner + i];
    }
    squares = over_warp(squares), total = over_warp(total), filled = over_warp(filled), largest = largest_of_warp(largest);
    if (lane == 0) out[4 * map] = sqrt(squares), out[4 * map + 1] = largest, out[4 * map + 2] = total, out[4 * map + 3] = filled;
}

// A step of the power method on a map of norms N: N y, and the quotients N y / y, whose largest bounds the spectral norm of a
// Hermitian matrix, for a positive y: ones at first, then what came of the step before, scaled.  A block a tile row.
extern "C" __global__ void __launch_bounds__(256) grid_sharpen(const double* __restrict__ norms, const double* __restrict__ before,
                                                               int inner, double* __restrict__ image, double* __restrict__ quotients) {
    __shared__ double work[8];
    const int i = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double largest = 0, total = 0;
    if (before)
        for (int j = lane; j < inner; j += 32) largest = fmax(largest, before[j]);
    largest = largest_of_warp(largest);
    // Not 0, that the quotients stay finite.
    const auto y = [&](int j) { return before ? before[j] / (largest + 1e-290) + 1e-3 : 1.0; };
    for (int j = threadIdx.x; j < inner; j += 256) total += norms[static_cast<long long>(i) * inner + j] * y(j);
    total = over_warp(total);
    if (lane == 0) work[warp] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; ++w) total += work[w];
    image[i] = total, quotients[i] = total / y(i);
}
