// The tiles of a product by falling work, so that the last ones to start are the shortest.
//
// A warp counts the k steps that one tile needs, and lists them where the product asks for it.  Blocks of `product` find
// their tiles themselves, from bins of work in which the tiles are put at once; for others the block that ends last sorts
// by the counts (a counting sort).
//
//   for each tile of C, a warp:
//     count = k steps of which any product of norms reaches tau  # and the list of them, each with a bit for each block
//     put the tile into the bin of its work, or write its count
//   the last block: order = tiles by falling count
//
// Invariant: every tile is in one bin, or in `order` once, so that the product computes each once.
#include "cancelled.cuh"
#include "tiles.cuh"

#if NORM_BITS == 32
using Norm = float;
#else
using Norm = double;
#endif

constexpr int kThreads = 256, kBins = 1024;
constexpr int kMost = 8, kMostListed = 4;  // 32-blocks on a side of a tile

struct Order {
    const Norm* norms_a;       // [row block][k block]
    const Norm* norms_b;       // [column block][k block]
    const double* tau_device;  // or null: use tau
    unsigned* counts;          // one a tile
    unsigned* order;
    unsigned* finished;         // zero between launches
    unsigned* bins;             // tiles in each bin of work, zero between products, or null: sort
    uint2* places;              // number and count of the tiles in each bin, with space for all
    unsigned* lists;            // entries (step << 16 | one bit a 32 x 32 block, by rows) of each tile, or null
    const unsigned* cancelled;  // not zero where the dense product is taken instead, or null
    double tau;
    int m, n, k;
    int norm_k, log2_block;
    int tiles_m, tiles_n;
    int tile_m, tile_n;  // rows and columns of a tile, multiples of 32
    int band;            // rows of tiles in a band
};

__device__ __forceinline__ Norm larger(Norm x, Norm y) { return x < y ? y : x; }

extern "C" __global__ void __launch_bounds__(kThreads) order_tiles(const Order p) {
    __shared__ unsigned bins[kBins], sums[kThreads / 32], last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = p.tiles_m * p.tiles_n;
    launch_dependents();
    wait_for_previous();
    if (is_cancelled(p.cancelled)) return;
    const int steps = (p.k + 31) / 32, index = blockIdx.x * (kThreads / 32) + warp;
    const Norm tau = static_cast<Norm>(p.tau_device ? *p.tau_device : p.tau);
    if (index < tiles) {
        const TilePlace place = tile_place(index, p.tiles_m, p.tiles_n, p.band);
        const int row0 = place.row * p.tile_m, column0 = place.column * p.tile_n;
        int count = 0;
#pragma unroll 2
        for (int base = 0; base < steps; base += 32) {
            const int step = base + lane, k = min(step, steps - 1) * 32 >> p.log2_block;
            auto norm_a = [&](int i) {
                const int row = min(row0 + min(32 * i, p.tile_m - 32), p.m - 1);
                return __ldg(p.norms_a + static_cast<long long>(row >> p.log2_block) * p.norm_k + k);
            };
            auto norm_b = [&](int j) {
                const int column = min(column0 + min(32 * j, p.tile_n - 32), p.n - 1);
                return __ldg(p.norms_b + static_cast<long long>(column >> p.log2_block) * p.norm_k + k);
            };
            bool needed = step < steps;
            if (p.lists) {
                Norm a[kMostListed], b[kMostListed];
#pragma unroll
                for (int i = 0; i < kMostListed; ++i) a[i] = norm_a(i), b[i] = norm_b(i);
                unsigned bits = 0;
#pragma unroll
                for (int i = 0; i < kMostListed; ++i)
#pragma unroll
                    for (int j = 0; j < kMostListed; ++j)
                        if (32 * i < min(p.tile_m, p.m - row0) && 32 * j < min(p.tile_n, p.n - column0) && !(a[i] * b[j] < tau))
                            bits |= 1u << (p.tile_n / 32 * i + j);
                needed = needed && bits != 0;
                const unsigned before = __ballot_sync(~0u, needed) & ((1u << lane) - 1);
                if (needed)
                    p.lists[static_cast<long long>(index) * steps + count + __popc(before)] = static_cast<unsigned>(step) << 16 | bits;
            } else {
                Norm a[kMost], b[kMost];
#pragma unroll
                for (int i = 0; i < kMost; ++i) a[i] = norm_a(i), b[i] = norm_b(i);
#pragma unroll
                for (int i = 1; i < kMost; ++i) a[0] = larger(a[0], a[i]), b[0] = larger(b[0], b[i]);
                needed = needed && !(a[0] * b[0] < tau);
            }
            count += __popc(__ballot_sync(~0u, needed));
        }
        if (lane == 0) {
            if (p.bins) {
                const int bin = falling_bin(count, steps, kWorkBins);
                p.places[static_cast<long long>(bin) * tiles + atomicAdd(p.bins + bin, 1)] = make_uint2(index, count);
            } else {
                p.counts[index] = count;
            }
        }
    }
    if (p.bins) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.finished, 1) == gridDim.x - 1;
    for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    if (!last) return;
    __threadfence();
    auto bin = [&](int tile) { return falling_bin(__ldcg(p.counts + tile), steps, kBins); };
    for (int i = threadIdx.x; i < tiles; i += kThreads) atomicAdd(bins + bin(i), 1);
    __syncthreads();
    constexpr int kEach = kBins / kThreads;
    unsigned mine = 0;
    for (int i = 0; i < kEach; ++i) mine += bins[threadIdx.x * kEach + i];
    unsigned before = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned other = __shfl_up_sync(~0u, before, offset);
        if (lane >= offset) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    unsigned start = before - mine;
    for (int w = 0; w < warp; ++w) start += sums[w];
    for (int i = 0; i < kEach; ++i) {
        const unsigned count = bins[threadIdx.x * kEach + i];
        bins[threadIdx.x * kEach + i] = start;
        start += count;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tiles; i += kThreads) p.order[atomicAdd(bins + bin(i), 1)] = i;
    if (threadIdx.x == 0) *p.finished = 0;
}
