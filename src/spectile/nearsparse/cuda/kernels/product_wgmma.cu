// SpAMM product in float16 for Hopper (sm_90a), on hopper.cuh: TMA, wgmma, warp specialisation, persistent blocks.
//
// The blocks of a cluster share B by multicast.  The last warps feed: one thread starts the TMA loads of the listed
// steps, the others list.  Every warpgroup before them owns one 64 x GROUP_N part, keeps it in registers, and
// multiplies the listed steps whose bit it finds set: the loads follow the union of the big tile, the arithmetic the
// lists of the parts.  C leaves through shared memory and the copy engine, so that a warpgroup goes on to the next tile
// while the last is still on its way to memory.
//
//   listers:      for each tile drawn: list its k steps that any part of the cluster needs, with a bit for each part
//   loader:       for each listed step: wait for an empty stage, copy A into it, and B into those of the cluster
//   multipliers:  for each listed step: if the bit of the part is set, sum += A B;  release the stage
//                 C = alpha sum + beta C
//
// Invariant: all roles walk the same lists in the same order; a stage is released once by each warp of every multiplier
// of the cluster, whether it multiplied or not.
using Norm = float;
#include "hopper.cuh"

constexpr int kConsumers = 2 * kPartsN;  // warpgroups, each of 64 x kPartN
constexpr int kFeeders = 1 + kSublists;
constexpr int kThreads = 128 * kConsumers + 32 * kFeeders;
constexpr int kBytesA = kTileM * kStep * 2, kBytesB = kStep * kTileN * 2;
constexpr int kBox = 64;  // columns of one TMA box of B: 128 bytes
constexpr int kBoxes = kTileN / kBox, kBoxBytes = kStep * kBox * 2;
constexpr int kOutBox = 128 / sizeof(Output);  // columns of one TMA box of C, 64 rows
constexpr int kRoundBoxes = ROUND_BOXES;       // boxes that a warpgroup stores at a time
constexpr int kRoundBytes = kRoundBoxes * 64 * 128;
constexpr int kRounds = 2;  // such stores under way

// c (64 x kPartN of a warpgroup) += A (64 x 16, rows along k) B (16 x kPartN, rows along n).
__device__ __forceinline__ void wgmma(float (&c)[kPartN / 2], unsigned long long a, unsigned long long b) {
#if GROUP_N == 128
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" PLACES_64 "}, %64, %65, 1, 1, 1, 0, 1;"
                 : SUMS_64(0)
                 : "l"(a), "l"(b));
#else
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" PLACES_128 "}, %128, %129, 1, 1, 1, 0, 1;"
                 : SUMS_64(0), SUMS_64(64)
                 : "l"(a), "l"(b));
#endif
}

__device__ __forceinline__ void load_stages(const Product& p, unsigned char* stages, Lists& shared) {
    const int rank = block_rank();
    for (const TensorMap* map : {&p.map_a, &p.map_b}) prefetch_map(map);
    int stage = 0;
    unsigned parity = 1;
    for (int turn = 0;; ++turn) {
        const int slot = turn % kSlots;
        const List& list = shared.list[slot];
        barrier_wait(shared.list_full[slot], turn / kSlots & 1);
        const Tile tile = list.tile;
        if (tile.batch < 0) {
#if CLUSTER > 1
            // This block lasts until the others have released every stage for the last time.
            for (int s = 0; s < kStages; ++s) {
                barrier_wait(shared.empty[stage], parity);
                if (++stage == kStages) stage = 0, parity ^= 1;
            }
#endif
            return;
        }
        const int row = tile.row + kTileM * rank, batch_a = tile.batch * p.batch_a, batch_b = tile.batch * p.batch_b;
        for (int sublist = 0; sublist < kSublists; ++sublist) {
            const int count = list.count[sublist];
            for (int e = 0; e < count; ++e) {
                const unsigned entry = list.entry[sublist][e];
                const int k = static_cast<int>(entry >> 4) * kStep;
                const unsigned target = shared_address(stages) + stage * (kBytesA + kBytesB);
                const bool need_a = (entry & 0xf) != 0;
                barrier_wait(shared.empty[stage], parity);
                barrier_expect(shared.full[stage], kBytesB + (need_a ? kBytesA : 0));
                if (need_a) load_box(target, &p.map_a, k, row, batch_a, shared.full[stage]);
#pragma unroll
                for (int box = 0; box < kBoxes / CLUSTER; ++box) {
                    const int number = box + rank * (kBoxes / CLUSTER);
                    const unsigned to = target + kBytesA + number * kBoxBytes;
#if CLUSTER > 1
                    load_box_everywhere<CLUSTER>(to, &p.map_b, tile.column + number * kBox, k, batch_b, shared.full[stage]);
#else
                    load_box(to, &p.map_b, tile.column + number * kBox, k, batch_b, shared.full[stage]);
#endif
                }
                if (++stage == kStages) stage = 0, parity ^= 1;
            }
        }
        barrier_arrive(shared.list_empty[slot]);
    }
}

__device__ __forceinline__ void release(Lists& shared, int stage) {
    if (threadIdx.x % 32 == 0) {
#if CLUSTER > 1
#pragma unroll
        for (int rank = 0; rank < CLUSTER; ++rank) barrier_arrive_at(shared.empty[stage], rank);
#else
        barrier_arrive(shared.empty[stage]);
#endif
    }
}

// Store a part by rounds of kRoundBoxes boxes: registers to swizzled shared memory, from there the copy engine.
__device__ __forceinline__ void copy_part(const Product& p, const float (&sum)[kPartN / 2], int row0, int column0, int batch,
                                          unsigned staging) {
    constexpr int kTurns = kPartN / (kRoundBoxes * kOutBox), kFragments = kPartN / 8 / kTurns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, barrier = 2 + threadIdx.x / 128;
    const bool leader = threadIdx.x % 128 == 0;
    const float alpha = static_cast<float>(p.alpha);
#pragma unroll
    for (int round = 0; round < kTurns; ++round) {
        const unsigned target = staging + round % kRounds * kRoundBytes;
        // What lay here has left.
        if (leader) wait_stores<kRounds - 1>();
        sync_threads(barrier, 128);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
            const int byte = f * 8 * static_cast<int>(sizeof(Output));
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int row = warp * 16 + lane / 4 + 8 * e;
                const float* pair = sum + 4 * (round * kFragments + f) + 2 * e;
                const int inner = byte % 128 + lane % 4 * 2 * static_cast<int>(sizeof(Output));
                const unsigned to = target + byte / 128 * (64 * 128) + row * 128 + (inner ^ (row % 8 << 4));
#if OUTPUT_BITS == 16
                const __half2 packed = __floats2half2_rn(alpha * pair[0], alpha * pair[1]);
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(*reinterpret_cast<const unsigned*>(&packed)) : "memory");
#else
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(alpha * pair[0]), "f"(alpha * pair[1]) : "memory");
#endif
            }
        }
        fence_async_shared();
        sync_threads(barrier, 128);
        if (leader) {
#pragma unroll
            for (int box = 0; box < kRoundBoxes; ++box)
                store_box(&p.map_c, column0 + (round * kRoundBoxes + box) * kOutBox, row0, batch, target + box * 64 * 128);
            commit_stores();
        }
    }
}

// Store a part element by element: remainders of the alignment, and beta C.
__device__ __forceinline__ void store_part(const Product& p, const float (&sum)[kPartN / 2], int row0, int column0, int batch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    const Output* c = p.c + batch * p.stride_c;
    Output* out = p.out + batch * p.stride_o;
    const int column = column0 + lane % 4 * 2, left = p.n - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + warp * 16 + lane / 4 + 8 * half;
        if (row >= p.m) break;
        const Output* from = c + row * p.ldc + column;
        Output* to = out + row * p.ldo + column;
        float value[kPartN / 4];
#pragma unroll
        for (int i = 0; i < kPartN / 4; ++i) value[i] = alpha * sum[4 * (i / 2) + 2 * half + i % 2];
        // Tested once: a branch for each element took half of this file's time to compile.
        if (beta != 0) {
#pragma unroll
            for (int i = 0; i < kPartN / 4; ++i) {
                const int at = 8 * (i / 2) + i % 2;
                if (at < left) value[i] += beta * static_cast<float>(from[at]);
            }
        }
#pragma unroll
        for (int i = 0; i < kPartN / 4; ++i) {
            const int at = 8 * (i / 2) + i % 2;
            if (at < left) to[at] = static_cast<Output>(value[i]);
        }
    }
}

__device__ __forceinline__ void consume(const Product& p, unsigned char* stages, unsigned char* out, Lists& shared) {
    const int consumer = threadIdx.x / 128, rank = block_rank();
    const int part_row = consumer / kPartsN * 64, part_column = consumer % kPartsN * kPartN;
    const unsigned base = shared_address(stages), staging = shared_address(out) + consumer * kRounds * kRoundBytes;
    // A: 64-byte rows, 8 rows are 512 bytes.  B: boxes of 64 columns, 8 k are 1024 bytes.
    const unsigned long long first_a = wgmma_descriptor(base + part_row * kStep * 2, 16, 512, 2);
    const unsigned long long first_b = wgmma_descriptor(base + kBytesA + part_column / kBox * kBoxBytes, kBoxBytes, 1024, 1);
    int stage = 0;
    unsigned parity = 0;
    float sum[kPartN / 2];
    // With one sublist known to the compiler, it merges the loops and then serialises wgmma (C7515).
    int sublists = kSublists;
    asm volatile("" : "+r"(sublists));
    for (int turn = 0;; ++turn) {
        const int slot = turn % kSlots;
        const List& list = shared.list[slot];
        barrier_wait(shared.list_full[slot], turn / kSlots & 1);
        const Tile tile = list.tile;
        if (tile.batch < 0) {
            // The copy engine reads shared memory, which lasts as long as the block.
            wait_stores<0>();
            return;
        }
        int pending = -1;  // stage whose product is still running
#pragma unroll
        for (int i = 0; i < kPartN / 2; ++i) sum[i] = 0.0f;
        for (int sublist = 0; sublist < sublists; ++sublist) {
            const int count = list.count[sublist];
            for (int e = 0; e < count; ++e) {
                const unsigned entry = list.entry[sublist][e];
                barrier_wait(shared.full[stage], parity);
                if (entry >> consumer & 1) {
                    const unsigned long long offset = stage * ((kBytesA + kBytesB) >> 4);
                    wgmma_fence();
                    wgmma(sum, first_a + offset, first_b + offset);
                    wgmma(sum, first_a + offset + (32 >> 4), first_b + offset + (2048 >> 4));
                    wgmma_commit();
                    if (pending >= 0) {
                        wgmma_wait<1>();
                        release(shared, pending);
                    }
                    pending = stage;
                } else {
                    if (pending >= 0) {
                        wgmma_wait<0>();
                        release(shared, pending);
                        pending = -1;
                    }
                    release(shared, stage);
                }
                if (++stage == kStages) stage = 0, parity ^= 1;
            }
        }
        wgmma_wait<0>();
        if (pending >= 0) release(shared, pending);
        if (threadIdx.x % 32 == 0) barrier_arrive(shared.list_empty[slot]);
        // Nothing that reads the sums may move above the wait.
#pragma unroll
        for (int i = 0; i < kPartN / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
        const int row = tile.row + kTileM * rank + part_row, column = tile.column + part_column;
#if COPY_STORES
        copy_part(p, sum, row, column, tile.batch, staging);
#else
        store_part(p, sum, row, column, tile.batch);
#endif
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
    __launch_bounds__(kThreads, TILE_N == 128 ? 2 : 1) product_wgmma(const __grid_constant__ Product p) {
    if (is_cancelled(p.cancelled)) return;
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* stages = memory;
    unsigned char* out = stages + kStages * (kBytesA + kBytesB);
    Lists& shared = *reinterpret_cast<Lists*>(out + kConsumers * kRounds * kRoundBytes);
    if (threadIdx.x == 0) {
        init_barriers(shared, 4 * kConsumers * CLUSTER, 4 * kConsumers + 1);
        fence_barrier_init();
    }
    cluster_start();
    // With one block an SM the listing warps lend registers to those that multiply.
    if (threadIdx.x >= 128 * kConsumers) {
#if TILE_N > 128
        give_registers<(GROUP_N == 128 ? 64 : 104)>();
#endif
        const int warp = threadIdx.x / 32 - 4 * kConsumers;
        if (warp > 0) list_tiles(p, shared, warp - 1);
        else if (elected()) load_stages(p, stages, shared);
    } else {
#if TILE_N > 128
        // All threads start with the same number of registers; the others share what the feeding warps release, in eights.
        take_registers<(GROUP_N == 128 ? 104 : 200)>();
#endif
        consume(p, stages, out, shared);
    }
}
