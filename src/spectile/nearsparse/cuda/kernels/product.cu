// SpAMM product on mma.sync and FFMA, for sm_80 and later: C = alpha * sum_k valid(i,k,j) A_ik B_kj + beta * C.
//
// A thread block computes a tile of 64 x (64 BLOCKS) of C.  It first tests all k against the two norm maps and compacts the
// union of the valid steps (32 wide) into a list with one bit for each 32 x 32 block of the tile, then runs a cp.async
// pipeline over the list.  Each of its four warps owns BLOCKS blocks side by side and multiplies exactly those whose bit is
// set: loads follow the union, arithmetic the valid set.  Where C has few tiles, several blocks (along z) take the entries
// of a tile's list in turn, and `join_parts` adds up their sums in order.
//
//   for each kListSteps of k:
//     list = steps of which any block of the tile has a product of norms that reaches tau, with those blocks' bits
//     for each entry of the list:                              # kStages - 1 of them are on their way
//       sums[blocks whose bit is set] += A B
//   C = alpha sums + beta C
//
// Invariant: a product of 32 x 32 blocks is multiplied if and only if one of its products of tiles is valid.  The number of
// blocks that share a tile decides the order of its sums.
#include "operands.cuh"
#include "tiles.cuh"

constexpr int kBlocks = BLOCKS;  // 32 x 32 blocks of a warp
constexpr int kTileM = 64, kTileN = 64 * kBlocks, kThreads = 128;
constexpr int kTileBlocksM = kTileM / 32, kTileBlocksN = kTileN / 32;
constexpr int kStep = 32;  // k covered by one entry of the list, and by one stage of the pipeline
constexpr int kStages = STAGES;
constexpr int kListSteps = LIST_STEPS;  // k steps listed at a time
#ifdef LIST_ALL_STEPS                   // the study's: the list holds every step, and those that no block needs are passed over
constexpr bool kCompact = false;
#else
constexpr bool kCompact = true;
#endif
// Row pitches in elements, chosen so that the fragment loads below meet no bank twice.
constexpr int kPitchA = kStep + PAD_A, kPitchB = kTileN + PAD_B;
constexpr int kStageA = kTileM * kPitchA, kStageB = kStep * kPitchB;
// Elements that a copy takes: one where rows are not aligned, but in float16 no copy is so short.
constexpr int kVector = ALIGNED || sizeof(Element) < 4 ? 16 / sizeof(Element) : 1;

// What a block shares beside its stages.
struct Shared {
    unsigned list[kListSteps];  // of the valid steps: step << 16 | bits
    unsigned short bits[kListSteps];
    int warp_totals[kThreads / 32];
};

// Copy a vector to shared memory, of which `bytes` are read and the rest is zero.
__device__ __forceinline__ void copy_vector(Element* to, const Element* from, int bytes) {
    if constexpr (ALIGNED) copy_async(shared_address(to), from, bytes);
    else if constexpr (kVector == 1) copy_async_of<sizeof(Element)>(shared_address(to), from, bytes);
    else
#pragma unroll
        for (int e = 0; e < kVector; ++e) to[e] = e * static_cast<int>(sizeof(Element)) < bytes ? from[e] : Element(0.0f);
}

// Copy a ROWS x COLUMNS block to shared memory, zero outside of the matrix; `whole` says that all of it is inside.
template <int kRows, int kColumns, int kPitch>
__device__ __forceinline__ void load_block(Element* target, const Element* source, long long leading, int rows, int columns, bool whole) {
    constexpr int kChunks = kColumns / kVector, kPass = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kRows % kPass == 0, "every thread copies one column of chunks");
    constexpr int kBytes = sizeof(Element);
    const int first = threadIdx.x / kChunks, column = threadIdx.x % kChunks * kVector;
    const Element* from = source + first * leading + column;
    Element* to = target + first * kPitch + column;
    const long long step = kPass * leading;
    if (whole) {
#pragma unroll
        for (int row = 0; row < kRows; row += kPass, from += step) copy_vector(to + row * kPitch, from, kVector * kBytes);
        return;
    }
#pragma unroll
    for (int row = 0; row < kRows; row += kPass, from += step, to += kPass * kPitch) {
        const int inside = first + row < rows ? max(0, min(kVector, columns - column)) : 0;
        copy_vector(to, inside ? from : source, inside * kBytes);
    }
}

// One bit for each 32 x 32 block of the tile (row block * kTileBlocksN + column block): is its product with this k step
// valid?
__device__ __forceinline__ unsigned valid_bits(const Product& p, const Norm* norms_a, const Norm* norms_b, Norm tau, int row0, int column0,
                                               int step) {
    unsigned bits = 0;
    const int log2_block = p.log2_block;
    if (log2_block >= 5) {
        const int k = (step * kStep) >> log2_block;
        Norm norm_a[kTileBlocksM], norm_b[kTileBlocksN];
        // No load waits for a test: outside of the matrix the last norm is read and then replaced by -1.
#pragma unroll
        for (int i = 0; i < kTileBlocksM; ++i)
            norm_a[i] = __ldg(norms_a + static_cast<long long>(min(row0 + 32 * i, p.m - 1) >> log2_block) * p.norm_k + k);
#pragma unroll
        for (int j = 0; j < kTileBlocksN; ++j)
            norm_b[j] = __ldg(norms_b + static_cast<long long>(min(column0 + 32 * j, p.n - 1) >> log2_block) * p.norm_k + k);
#pragma unroll
        for (int i = 0; i < kTileBlocksM; ++i)
            if (row0 + 32 * i >= p.m) norm_a[i] = Norm(-1);
#pragma unroll
        for (int j = 0; j < kTileBlocksN; ++j)
            if (column0 + 32 * j >= p.n) norm_b[j] = Norm(-1);
#pragma unroll
        for (int i = 0; i < kTileBlocksM; ++i)
#pragma unroll
            for (int j = 0; j < kTileBlocksN; ++j)
                // Not below tau, so that a NaN is multiplied; a block outside of the matrix never is.
                if (!(norm_a[i] * norm_b[j] < tau) && !(norm_a[i] < 0) && !(norm_b[j] < 0)) bits |= 1u << (kTileBlocksN * i + j);
    } else {
        const int block = 1 << log2_block;
        for (int k = step * kStep; k < min((step + 1) * kStep, p.k); k += block)
            for (int row = row0; row < min(row0 + kTileM, p.m); row += block) {
                const Norm norm_a = norms_a[static_cast<long long>(row >> log2_block) * p.norm_k + (k >> log2_block)];
                for (int column = column0; column < min(column0 + kTileN, p.n); column += block) {
                    const Norm norm_b = norms_b[static_cast<long long>(column >> log2_block) * p.norm_k + (k >> log2_block)];
                    if (!(norm_a * norm_b < tau)) bits |= 1u << (kTileBlocksN * ((row - row0) / 32) + (column - column0) / 32);
                }
            }
    }
    return bits;
}

// Compact those valid steps of [first, first + kListSteps) that this block takes into the list; return their number.
__device__ __forceinline__ int build_list(const Product& p, const Norm* norms_a, const Norm* norms_b, Norm tau, int row0, int column0,
                                          int first, int steps, Shared& shared) {
    constexpr int kEach = kListSteps / kThreads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int split = blockIdx.z, splits = gridDim.z;
#pragma unroll 2
    for (int i = 0; i < kEach; ++i) {
        const int step = first + threadIdx.x + i * kThreads;
        const unsigned found = first + i * kThreads < steps ? valid_bits(p, norms_a, norms_b, tau, row0, column0, min(step, steps - 1)) : 0;
        shared.bits[threadIdx.x + i * kThreads] = step < steps ? found : 0;
    }
    __syncthreads();
    const unsigned short* mine = shared.bits + threadIdx.x * kEach;
    bool listed[kEach];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        listed[i] = kCompact ? mine[i] != 0 : first + static_cast<int>(threadIdx.x) * kEach + i < steps;
        count += listed[i];
    }
    int before = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(~0u, before, offset);
        if (lane >= offset) before += other;
    }
    if (lane == 31) shared.warp_totals[warp] = before;
    __syncthreads();
    int total = 0, position = before - count;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
        if (w < warp) position += shared.warp_totals[w];
        total += shared.warp_totals[w];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (!listed[i]) continue;
        const unsigned entry = static_cast<unsigned>(first + threadIdx.x * kEach + i) << 16 | mine[i];
        if (splits == 1) shared.list[position] = entry;
        else if (position % splits == split) shared.list[position / splits] = entry;
        ++position;
    }
    __syncthreads();
    return splits == 1 ? total : (total + splits - 1 - split) / splits;
}

#include "fragments.cuh"

// Vectors of a thread's sums that lie side by side in C.
constexpr int kVectors = sizeof(Sums) / sizeof(Accumulator) / kStored;

struct alignas(sizeof(Accumulator) * kStored) SumVector {
    Accumulator value[kStored];
};

// Where a vector of each thread of the blocks lies that share a tile, and from one of those blocks to the next.
__device__ __forceinline__ SumVector* part_of(const Product& p, int split, int vector) {
    const long long tile = (static_cast<long long>(split) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    return reinterpret_cast<SumVector*>(p.parts) + (tile * kVectors + vector) * kThreads + threadIdx.x;
}

// Multiply the blocks of the warp whose bits are set, all at once where it is all of them.
template <int kBlock = 0, typename Sum>
__device__ __forceinline__ void multiply_valid(unsigned bits, const Element* a, const Element* b, Sum& sum) {
    if constexpr (kBlock == 0) {
        if (bits == (1u << kBlocks) - 1) {
            multiply<0, kBlocks>(a, b, sum);
            return;
        }
    }
    if constexpr (kBlocks > 1) {
        if (bits >> kBlock & 1) multiply<kBlock, kBlock + 1>(a, b, sum);
        if constexpr (kBlock + 1 < kBlocks) multiply_valid<kBlock + 1>(bits, a, b, sum);
    }
}

__device__ __forceinline__ void store(const Product& p, const Output* c, Output* out, int row, int column, Accumulator value) {
    if (row >= p.m || column >= p.n) return;
    value *= static_cast<Accumulator>(p.alpha);
    if (p.beta != 0) value += static_cast<Accumulator>(p.beta) * static_cast<Accumulator>(c[row * p.ldc + column]);
    out[row * p.ldo + column] = static_cast<Output>(value);
}

// Store W neighbouring values, as one vector where the row pitch allows it.
template <int W>
__device__ __forceinline__ void store_vector(const Product& p, const Output* c, Output* out, int row, int column,
                                             const Accumulator* values) {
    if (ALIGNED && p.beta == 0 && row < p.m && column + W <= p.n) {
        struct alignas(sizeof(Output) * W) Vector {
            Output value[W];
        } vector;
#pragma unroll
        for (int e = 0; e < W; ++e) vector.value[e] = static_cast<Output>(values[e] * static_cast<Accumulator>(p.alpha));
        Output* to = out + row * p.ldo + column;
        // C leaves the L2 before A and B, which are read again; where a warp has several blocks this is slower.
        if constexpr (kBlocks == 1 && sizeof(Vector) == 16) __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
        else *reinterpret_cast<Vector*>(to) = vector;
    } else {
#pragma unroll
        for (int e = 0; e < W; ++e) store(p, c, out, row, column + e, values[e]);
    }
}

// A warp's part of a tile of C.
struct Place {
    const Output* c;
    Output* out;
    int row, column;

    __device__ __forceinline__ Place(const Product& p, TilePlace tile)
        : c(p.c + blockIdx.y * p.stride_c), out(p.out + blockIdx.y * p.stride_o) {
        const int warp = threadIdx.x / 32;
        row = tile.row * kTileM + warp % kTileBlocksM * 32;
        column = tile.column * kTileN + warp / kTileBlocksM * kBlocks * 32;
    }

    // Store a vector of this thread's sums.
    __device__ __forceinline__ void store(const Product& p, int vector, const Accumulator* values) const {
        const TilePlace within = vector_place(vector, threadIdx.x % 32);
        store_vector<kStored>(p, c, out, row + within.row, column + within.column, values);
    }
};

// Fill a tile of C in which nothing is valid: rows by 16 bytes wherever they begin, a vector of each a thread.
__device__ __forceinline__ void fill_tile(const Product& p, TilePlace tile, Output value) {
    constexpr int kWide = 16 / sizeof(Output), kLanes = kTileN / kWide;
    struct alignas(16) Vector {
        Output value[kWide];
    } vector;
#pragma unroll
    for (int e = 0; e < kWide; ++e) vector.value[e] = value;
    const int row0 = tile.row * kTileM, column0 = tile.column * kTileN, lane = threadIdx.x % kLanes;
    const int end = min(row0 + kTileM, p.m), columns = min(kTileN, p.n - column0);
    Output* out = p.out + blockIdx.y * p.stride_o + column0;
    for (int row = row0 + threadIdx.x / kLanes; row < end; row += kThreads / kLanes) {
        Output* to = out + row * p.ldo;
        const int past = ALIGNED ? 0 : static_cast<int>(reinterpret_cast<unsigned long long>(to) % 16 / sizeof(Output));
        const int before = min((kWide - past) % kWide, columns), vectors = (columns - before) / kWide;
        const int after = before + vectors * kWide + lane;
        if (lane < vectors) __stcs(reinterpret_cast<uint4*>(to + before) + lane, *reinterpret_cast<const uint4*>(&vector));
        if (lane < before) to[lane] = value;
        if (after < columns) to[after] = value;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) product(const Product p) {
    DYNAMIC_SHARED(Element, stage_a);
    STATIC_SHARED(Shared, shared);
    Element* stage_b = stage_a + kStages * kStageA;

    // The kernel before, of whose end this block need not have waited to start, wrote the norms.
    wait_for_previous();
    if (is_cancelled(p.cancelled)) return;
#ifdef STRIDE  // the study's: a block takes 2 x 2 tiles at equal distances, as the paper's kernel with s = 2
    const int down = (p.tiles_m + 1) / 2, across = (p.tiles_n + 1) / 2;
    for (int turn = 0; turn < 4; ++turn) {
        const TilePlace tile = {blockIdx.x / across + turn / 2 * down, blockIdx.x % across + turn % 2 * across};
        if (tile.row >= p.tiles_m || tile.column >= p.tiles_n) continue;
        __syncthreads();
#else
    const TilePlace tile = tile_place(blockIdx.x, p.tiles_m, p.tiles_n, BAND_ROWS / kTileM);
#endif
        const int row0 = tile.row * kTileM, column0 = tile.column * kTileN;
        const long long batch = blockIdx.y;
        const Element* a = p.a + batch * p.stride_a + row0 * p.lda;
        const Element* b = p.b + batch * p.stride_b + column0;
        const Norm* norms_a = p.norms_a + batch * p.stride_norms_a;
        const Norm* norms_b = p.norms_b + batch * p.stride_norms_b;
        const Norm tau = static_cast<Norm>(p.tau_device ? p.tau_device[batch] : p.tau);
        const int steps = (p.k + kStep - 1) / kStep;
        const bool whole = row0 + kTileM <= p.m && column0 + kTileN <= p.n;
        // Blocks from the corner of the tile to the corner of this warp's part.
        const int block_m = threadIdx.x / 32 % kTileBlocksM, block_n = threadIdx.x / 32 / kTileBlocksM * kBlocks;

        Sums sum;
        clear(sum);
        bool listed = false;

        for (int first = 0; first < steps; first += kListSteps) {
            const int count = build_list(p, norms_a, norms_b, tau, row0, column0, first, steps, shared);
            listed |= count > 0;
            auto load = [&](int index) {
                const unsigned entry = shared.list[index];
                const int k = static_cast<int>(entry >> 16) * kStep;
                const int slot = index % kStages;
                if (!kCompact && (entry & 0xffff) == 0) return;
                load_block<kTileM, kStep, kPitchA>(stage_a + slot * kStageA, a + k, p.lda, p.m - row0, p.k - k, whole && k + kStep <= p.k);
                load_block<kStep, kTileN, kPitchB>(stage_b + slot * kStageB, b + k * p.ldb, p.ldb, p.k - k, p.n - column0,
                                                   whole && k + kStep <= p.k);
            };
#pragma unroll
            for (int index = 0; index < kStages - 1; ++index) {
                if (index < count) load(index);
                commit_copies();
            }
            for (int index = 0; index < count; ++index) {
                if constexpr (kStages > 1) {
                    wait_copies<(kStages > 1 ? kStages - 2 : 0)>();
                    __syncthreads();
                    if (index + kStages - 1 < count) load(index + kStages - 1);
                    commit_copies();
                } else {
                    __syncthreads();
                    load(index);
                    commit_copies();
                    wait_copies<0>();
                    __syncthreads();
                }
                const unsigned mine = shared.list[index] >> (kTileBlocksN * block_m + block_n) & ((1u << kBlocks) - 1);
                multiply_valid(mine, stage_a + index % kStages * kStageA + 32 * block_m * kPitchA,
                               stage_b + index % kStages * kStageB + 32 * block_n, sum);
            }
            wait_copies<0>();
            __syncthreads();
        }

        const Accumulator* sums = reinterpret_cast<const Accumulator*>(&sum);
        const Place place(p, tile);
        if (gridDim.z == 1 && !listed && p.beta == 0) {
            fill_tile(p, tile, static_cast<Output>(Accumulator(0) * static_cast<Accumulator>(p.alpha)));
        } else if (gridDim.z == 1) {
#pragma unroll
            for (int v = 0; v < kVectors; ++v) place.store(p, v, sums + v * kStored);
        } else {
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                SumVector own;
#pragma unroll
                for (int e = 0; e < kStored; ++e) own.value[e] = sums[v * kStored + e];
                *part_of(p, blockIdx.z, v) = own;
            }
        }
#ifdef STRIDE
    }
#endif
}

// Add up what `splits` blocks have of each tile, and store it; blocks along z take vectors in turn.
extern "C" __global__ void __launch_bounds__(kThreads) join_parts(const Product p, int splits) {
    wait_for_previous();
    if (is_cancelled(p.cancelled)) return;
    const Place place(p, tile_place(blockIdx.x, p.tiles_m, p.tiles_n, BAND_ROWS / kTileM));
    for (int v = blockIdx.z; v < kVectors; v += gridDim.z) {
        SumVector sum = *part_of(p, 0, v);
#pragma unroll
        for (int split = 1; split < splits; ++split) {
            const SumVector part = *part_of(p, split, v);
#pragma unroll
            for (int e = 0; e < kStored; ++e) sum.value[e] += part.value[e];
        }
        place.store(p, v, sum.value);
    }
}
