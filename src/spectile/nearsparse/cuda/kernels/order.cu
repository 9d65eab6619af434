// The tiles of a product by falling work, so that the last ones to start are the shortest.
//
// A warp counts the k steps that one tile needs.  Blocks of `product` find their tiles in the bins themselves.
//
//   for each tile of C, a warp:
//     count = k steps of which any product of norms reaches tau
//     put the tile into the bin of its work
//
// Invariant: every tile is in one bin, so that the product computes each once.
#include "cancelled.cuh"
#include "tiles.cuh"

#if NORM_BITS == 32
using Norm = float;
#else
using Norm = double;
#endif

constexpr int kThreads = 256;
constexpr int kMost = 4;  // 32-blocks on a side of a tile

struct Order {
    const Norm* norms_a;        // [row block][k block]
    const Norm* norms_b;        // [column block][k block]
    const double* tau_device;   // or null: use tau
    unsigned* bins;             // tiles in each bin of work, zero between products
    unsigned* places;           // numbers of the tiles in each bin, with space for all
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
            Norm a[kMost], b[kMost];
#pragma unroll
            for (int i = 0; i < kMost; ++i) a[i] = norm_a(i), b[i] = norm_b(i);
#pragma unroll
            for (int i = 1; i < kMost; ++i) a[0] = larger(a[0], a[i]), b[0] = larger(b[0], b[i]);
            const bool needed = step < steps && !(a[0] * b[0] < tau);
            count += __popc(__ballot_sync(~0u, needed));
        }
        if (lane == 0) {
            const int bin = falling_bin(count, steps);
            p.places[static_cast<long long>(bin) * tiles + atomicAdd(p.bins + bin, 1)] = index;
        }
    }
}
