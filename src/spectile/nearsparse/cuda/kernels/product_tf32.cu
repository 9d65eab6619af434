// SpAMM product in float32 by three TF32 products for Hopper (sm_90a), on hopper.cuh: TMA, wgmma, warp specialisation.
//
// wgmma takes TF32 from shared memory along k alone, and A lies that way, so a warpgroup computes 64 columns of C
// transposed: C^T = B^T A^T.  Its operand from registers is B, read across the rows of the stage and split into
// high + low on the way; the operand from shared memory is A, whose high part is what the tensor core sees of the
// stage itself (it drops the last 13 bits), and whose low part a warpgroup of its own writes beside it.  The tensor
// core, which truncates its sums, adds up 32 k; each such sum is added to C rounding to nearest.
//
//   listers:      for each tile drawn: list its k steps that are needed
//   loader:       for each listed step: wait for an empty stage, copy A and B into it
//   low writers:  for each listed step: low(A) = A - high(A), beside the stage
//   multipliers:  for each listed step whose bit is set: part = low(B) A + B low(A) + B A, 32 k;  sum += part
//                 C = alpha sum + beta C
//
// Invariant: all roles walk the same lists in the same order, and a stage is filled again when all multipliers and the
// low writers have released it.
using Norm = double;
#include "hopper.cuh"

constexpr int kConsumers = 2;  // warpgroups that multiply, 64 columns each
constexpr int kThreads = 128 * (kConsumers + 2);
constexpr int kLows = 2;  // low parts of A held
constexpr int kBytesA = kTileM * kStep * 4, kBytesB = kStep * kTileN * 4;
constexpr int kBoxBytesA = 64 * kStep * 4, kBoxBytesB = kStep * 32 * 4;
constexpr int kStagingBytes = 2 * 64 * 128;  // 64 x 64 of C

struct Shared : Lists {
    unsigned long long low_full[kLows], low_empty[kLows];
};

// c (64 x 64) = or += B^T (64 x 8, registers) A^T (8 x 64, rows of A along k).
__device__ __forceinline__ void wgmma(float (&c)[32], const unsigned (&b)[4], unsigned long long a, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" PLACES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1;\n}"
        : SUMS_16(0), SUMS_16(16)
        : "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "l"(a), "r"(add));
}

// x = high + low, both TF32: high is x rounded to nearest, low the exact rest (the unit drops its last bits).
__device__ __forceinline__ void split(unsigned x, unsigned& high, unsigned& low) {
    high = (x + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high));
}

__device__ __forceinline__ void load_stages(const Product& p, unsigned char* stages, Shared& shared) {
    for (const TensorMap* map : {&p.map_a, &p.map_b}) prefetch_map(map);
    int stage = 0;
    unsigned parity = 1;
    for (int turn = 0;; ++turn) {
        const int slot = turn % kSlots;
        const List& list = shared.list[slot];
        barrier_wait(shared.list_full[slot], turn / kSlots & 1);
        const Tile tile = list.tile;
        if (tile.batch < 0) return;
        const int batch_a = tile.batch * p.batch_a, batch_b = tile.batch * p.batch_b;
        for (int sublist = 0; sublist < kSublists; ++sublist) {
            const int count = list.count[sublist];
            for (int e = 0; e < count; ++e) {
                const unsigned entry = list.entry[sublist][e];
                const int k = static_cast<int>(entry >> 4) * kStep;
                const unsigned rows = (entry & 3) != 0 | ((entry & 12) != 0) << 1, columns = (entry | entry >> 2) & 3;
                const unsigned target = shared_address(stages) + stage * (kBytesA + kBytesB);
                barrier_wait(shared.empty[stage], parity);
                barrier_expect(shared.full[stage], __popc(rows) * kBoxBytesA + __popc(columns) * 2 * kBoxBytesB);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (rows >> half & 1)
                        load_box(target + half * kBoxBytesA, &p.map_a, k, tile.row + 64 * half, batch_a, shared.full[stage]);
                    if (columns >> half & 1)
#pragma unroll
                        for (int box = 2 * half; box < 2 * half + 2; ++box)
                            load_box(target + kBytesA + box * kBoxBytesB, &p.map_b, tile.column + 32 * box, k, batch_b, shared.full[stage]);
                }
                if (++stage == kStages) stage = 0, parity ^= 1;
            }
        }
        barrier_arrive(shared.list_empty[slot]);
    }
}

// Write what the tensor core does not see of A's stage, rounded to what it will see of that.
__device__ __forceinline__ void write_lows(unsigned char* stages, unsigned char* lows, Shared& shared) {
    const int thread = threadIdx.x % 128;
    int stage = 0, low = 0;
    unsigned parity = 0, low_parity = 1;
    for (int turn = 0;; ++turn) {
        const int slot = turn % kSlots;
        const List& list = shared.list[slot];
        barrier_wait(shared.list_full[slot], turn / kSlots & 1);
        if (list.tile.batch < 0) return;
        for (int sublist = 0; sublist < kSublists; ++sublist) {
            const int count = list.count[sublist];
            for (int e = 0; e < count; ++e) {
                const unsigned entry = list.entry[sublist][e];
                barrier_wait(shared.full[stage], parity);
                barrier_wait(shared.low_empty[low], low_parity);
                const uint4* from = reinterpret_cast<const uint4*>(stages + stage * (kBytesA + kBytesB)) + thread;
                uint4* to = reinterpret_cast<uint4*>(lows + low * kBytesA) + thread;
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (entry >> 2 * half & 3) {
                        uint4 x[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) x[i] = from[(4 * half + i) * 128];
                        auto rest = [](unsigned bits) {
                            return __float_as_uint(__uint_as_float(bits) - __uint_as_float(bits & 0xffffe000u)) + 0x1000u;
                        };
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            to[(4 * half + i) * 128] = make_uint4(rest(x[i].x), rest(x[i].y), rest(x[i].z), rest(x[i].w));
                    }
                fence_async_shared();
                __syncwarp();
                if (threadIdx.x % 32 == 0) barrier_arrive(shared.low_full[low]);
                if (++stage == kStages) stage = 0, parity ^= 1;
                if (++low == kLows) low = 0, low_parity ^= 1;
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared.list_empty[slot]);
    }
}

// Column of C, in the 32 of a pair of warps, that row g + 8 h of the transposed tile holds: so that a warp's reads of B
// meet every bank once.
__device__ __forceinline__ int column_of(int g, int h, int warp) { return g % 4 + g / 4 * 16 + 4 * h + warp % 2 * 8; }

// Store 128 rows of 64 columns by halves: registers to swizzled shared memory, from there the copy engine.
__device__ __forceinline__ void copy_part(const Product& p, const float (&sum)[2][32], int row0, int column0, int batch, unsigned staging) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, barrier = 2 + threadIdx.x / 128;
    const bool leader = threadIdx.x % 128 == 0;
    const float alpha = static_cast<float>(p.alpha);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (leader) wait_stores<0>();
        sync_threads(barrier, 128);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, column = column_of(lane / 4, i / 2 % 2, warp);
            const unsigned to = staging + warp / 2 * (64 * 128) + row * 128 + (column * 4 ^ (row % 8 << 4));
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(alpha * sum[half][i]) : "memory");
        }
        fence_async_shared();
        sync_threads(barrier, 128);
        if (leader) {
#pragma unroll
            for (int box = 0; box < 2; ++box) store_box(&p.map_c, column0 + 32 * box, row0 + 64 * half, batch, staging + box * 64 * 128);
            commit_stores();
        }
    }
}

// Store a part element by element: remainders of the alignment, and beta C.
__device__ __forceinline__ void store_part(const Product& p, const float (&sum)[2][32], int row0, int column0, int batch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    const Output* c = p.c + batch * p.stride_c;
    Output* out = p.out + batch * p.stride_o;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = row0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int column = column0 + warp / 2 * 32 + column_of(lane / 4, i / 2 % 2, warp);
        if (row >= p.m || column >= p.n) continue;
        float value = alpha * sum[i / 32][i % 32];
        if (beta != 0) value += beta * c[row * p.ldc + column];
        out[row * p.ldo + column] = value;
    }
}

__device__ __forceinline__ void consume(const Product& p, unsigned char* stages, unsigned char* lows, unsigned char* out, Shared& shared) {
    const int consumer = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned base = shared_address(stages), staging = shared_address(out) + consumer * kStagingBytes;
    // Rows of 128 bytes, swizzled by 128; 8 rows are 1024 bytes.
    const unsigned long long first_high = wgmma_descriptor(base, 16, 1024, 1);
    const unsigned long long first_low = wgmma_descriptor(shared_address(lows), 16, 1024, 1);
    unsigned from[2][2];  // of k = t + 4 e, row g + 8 h of the transposed tile
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int k = lane % 4 + 4 * e;
            from[h][e] = base + kBytesA + (2 * consumer + warp / 2) * kBoxBytesB + k * 128 + (column_of(lane / 4, h, warp) * 4 ^ (k << 4));
        }
    int stage = 0, low = 0;
    unsigned parity = 0, low_parity = 0;
    float sum[2][32];
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
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[i / 32][i % 32] = 0.0f;
        for (int sublist = 0; sublist < sublists; ++sublist) {
            const int count = list.count[sublist];
            for (int e = 0; e < count; ++e) {
                const unsigned mine = __shfl_sync(~0u, list.entry[sublist][e] >> consumer & 5, 0);
                barrier_wait(shared.full[stage], parity);
                if (mine) {
                    unsigned high[4][4], rest[4][4];
#pragma unroll
                    for (int s = 0; s < 4; ++s)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            asm volatile("ld.shared.b32 %0, [%1];"
                                         : "=r"(high[s][i])
                                         : "r"(from[i % 2][i / 2] + stage * (kBytesA + kBytesB) + s * 1024));
#pragma unroll
                    for (int s = 0; s < 4; ++s)
#pragma unroll
                        for (int i = 0; i < 4; ++i) split(high[s][i], high[s][i], rest[s][i]);
                    barrier_wait(shared.low_full[low], low_parity);
                    const unsigned long long a_high = first_high + stage * ((kBytesA + kBytesB) >> 4);
                    const unsigned long long a_low = first_low + low * (kBytesA >> 4);
                    float part[2][32];
                    wgmma_fence();
#pragma unroll
                    for (int g = 0; g < 2; ++g)
                        if (mine >> 2 * g & 1) {
                            const int offset = g * (kBoxBytesA >> 4);
#pragma unroll
                            for (int s = 0; s < 4; ++s) {
                                wgmma(part[g], rest[s], a_high + offset + s * 2, s > 0);
                                wgmma(part[g], high[s], a_low + offset + s * 2, 1);
                                wgmma(part[g], high[s], a_high + offset + s * 2, 1);
                            }
                        }
                    wgmma_commit();
                    wgmma_wait<0>();
                    // Nothing that reads the sums may move above the wait.
#pragma unroll
                    for (int g = 0; g < 2; ++g)
                        if (mine >> 2 * g & 1)
#pragma unroll
                            for (int i = 0; i < 32; ++i) {
                                asm volatile("" : "+f"(part[g][i])::"memory");
                                sum[g][i] += part[g][i];
                            }
                } else {
                    barrier_wait(shared.low_full[low], low_parity);
                }
                if (lane == 0) {
                    barrier_arrive(shared.empty[stage]);
                    barrier_arrive(shared.low_empty[low]);
                }
                if (++stage == kStages) stage = 0, parity ^= 1;
                if (++low == kLows) low = 0, low_parity ^= 1;
            }
        }
        if (lane == 0) barrier_arrive(shared.list_empty[slot]);
#if COPY_STORES
        copy_part(p, sum, tile.row, tile.column + 64 * consumer, tile.batch, staging);
#else
        store_part(p, sum, tile.row, tile.column + 64 * consumer, tile.batch);
#endif
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) product_tf32(const __grid_constant__ Product p) {
    if (is_cancelled(p.cancelled)) return;
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* stages = memory;
    unsigned char* lows = stages + kStages * (kBytesA + kBytesB);
    unsigned char* out = lows + kLows * kBytesA;
    Shared& shared = *reinterpret_cast<Shared*>(out + kConsumers * kStagingBytes);
    if (threadIdx.x == 0) {
        init_barriers(shared, 4 * kConsumers, 4 * kConsumers + 4 + 1);
        for (int s = 0; s < kLows; ++s) {
            barrier_init(shared.low_full[s], 4);
            barrier_init(shared.low_empty[s], 4 * kConsumers);
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x >= 128 * (kConsumers + 1)) {
        give_registers<80>();
        const int warp = threadIdx.x / 32 - 4 * (kConsumers + 1);
        if (warp > 0) list_tiles(p, shared, warp - 1);
        else if (elected()) load_stages(p, stages, shared);
    } else if (threadIdx.x >= 128 * kConsumers) {
        give_registers<56>();
        write_lows(stages, lows, shared);
    } else {
        take_registers<184>();
        consume(p, stages, lows, out, shared);
    }
}
