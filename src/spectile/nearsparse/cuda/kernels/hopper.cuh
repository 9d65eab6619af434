// What the kernels for Hopper share: the copy engine, barriers, tiles drawn by persistent blocks, lists of valid steps.
//
// A thread block computes tiles of 128 x TILE_N of C in pieces of 64 x GROUP_N; a cluster of CLUSTER blocks stacks
// their rows.  LISTERS warps test the k steps (32 wide) of the next tile against the norm maps and list those that any
// piece of the cluster needs, with one bit for each piece of the block.
#include <cuda_fp16.h>

#include "cancelled.cuh"
#include "tiles.cuh"

// How tiles are given to clusters: drawn from a counter, unless the study says one in so many (the paper's stride) or
// runs.
#define DRAWN 0
#define STRIDE 1
#define RUNS 2
#ifndef SCHEDULE
#define SCHEDULE DRAWN
#endif

// Norm, as in norms.cuh, is given by the kernel.
#if OUTPUT_BITS == 16
using Output = __half;
#else
using Output = float;
#endif

// COPY_STORES: C leaves through the copy engine, where beta is 0 and the rows are aligned.  The two ways are compiled apart,
// since a product takes one of them.
constexpr int kTileM = 128, kTileN = TILE_N;
constexpr int kPartN = GROUP_N, kPartsN = kTileN / kPartN;
constexpr int kStep = 32;           // k of a list entry and of a pipeline stage
constexpr int kSublists = LISTERS;  // one a listing warp
constexpr int kSublistSteps = LIST_STEPS / kSublists;
// Lists in flight, one of them in use: a tile drawn earlier would be computed far from its neighbours in time.
constexpr int kSlots = 2;
constexpr int kStages = STAGES;  // steps loaded, or on their way

struct Product {
    TensorMap map_a, map_b, map_c;
    const Output* c;
    Output* out;
    const Norm* norms_a;        // [row block][k block]
    const Norm* norms_b;        // [column block][k block]
    const double* tau_device;   // one threshold a batch item, or null: use tau
    unsigned* counter;          // tiles drawn, zero at launch
    const unsigned* cancelled;  // not zero where the dense product is taken instead, or null
    double tau, alpha, beta;
    long long ldc, ldo, stride_c, stride_o, stride_norms_a, stride_norms_b;
    int m, n, k;
    int norm_k, log2_block;
    int tiles_m, tiles_n, batches;  // tiles of a whole cluster
    int batch_a, batch_b;           // 0 where all items of the batch share the matrix
};

struct Tile {
    int row, column, batch;  // of the cluster
};

struct List {
    Tile tile;  // batch is -1 where there is none left
    int count[kSublists];
    unsigned short entry[kSublists][kSublistSteps];  // step << 4 | one bit a piece of the tile, by rows
};

// Barriers and lists that every kernel has; its own barriers follow.
struct Lists {
    unsigned long long list_full[kSlots], list_empty[kSlots], ticket_full[kSlots], ticket_empty[kSlots];
    int ticket[kSlots];
    List list[kSlots];
    unsigned long long full[kStages], empty[kStages];
};

__device__ __forceinline__ unsigned block_rank() {
    unsigned rank = 0;
#if CLUSTER > 1
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// Where the blocks of a cluster start together.  What they hand over, the barriers, has a fence of its own; release
// would wait for the L2.  They end apart, each when all that the others send it has come.
__device__ __forceinline__ void cluster_start() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Operands c[i], c[i + 1], ... of wgmma, and their places in its text.
#define SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)
#define PLACES_32                                           \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PLACES_64                                                      \
    PLACES_32                                                          \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PLACES_128                                                                 \
    PLACES_64                                                                      \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

__device__ __forceinline__ float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

__device__ __forceinline__ double max_nan(double x, double y) { return x > y || x != x ? x : y; }

// Draw one more tile; the answer is needed, and waited for, once the current list is made.
__device__ __forceinline__ unsigned draw_tile(const Product& p, bool asks) {
    unsigned drawn = 0;
    asm volatile("{\n.reg .pred asks;\nsetp.ne.b32 asks, %2, 0;\n@asks atom.relaxed.gpu.global.add.u32 %0, [%1], 1;\n}"
                 : "+r"(drawn)
                 : "l"(p.counter), "r"(static_cast<int>(asks))
                 : "memory");
    return drawn;
}

// Pass what was drawn to all blocks of the cluster; one thread of each calls.
__device__ __forceinline__ void pass_tile(Lists& shared, int draw, int rank, unsigned drawn) {
    const int slot = draw % kSlots;
    const unsigned ticket = gridDim.x / CLUSTER + drawn;
#if CLUSTER > 1
    barrier_expect(shared.ticket_full[slot], 4);
    if (rank > 0) return;
    // Every block has read what the slot held before.
    barrier_wait(shared.ticket_empty[slot], (draw / kSlots & 1) ^ 1);
#pragma unroll
    for (int to = 0; to < CLUSTER; ++to)
        asm volatile(
            "{\n.reg .b32 slot, done;\nmapa.shared::cluster.u32 slot, %0, %2;\nmapa.shared::cluster.u32 done, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [slot], %3, [done];\n}" ::"r"(shared_address(&shared.ticket[slot])),
            "r"(shared_address(&shared.ticket_full[slot])), "r"(to), "r"(ticket)
            : "memory");
#else
    shared.ticket[slot] = ticket;
#endif
}

// Return what was drawn to every listing thread.
__device__ __forceinline__ int drawn_tile(Lists& shared, int draw, bool leader) {
    const int slot = draw % kSlots;
#if CLUSTER > 1
    barrier_wait(shared.ticket_full[slot], draw / kSlots & 1);
    const int index = *const_cast<volatile int*>(&shared.ticket[slot]);
    sync_threads(1, 32 * kSublists);
    if (leader) barrier_arrive_at(shared.ticket_empty[slot], 0);
    return index;
#else
    sync_threads(1, 32 * kSublists);
    return shared.ticket[slot];
#endif
}

__device__ __forceinline__ Tile locate(const Product& p, int index) {
    const int tiles = p.tiles_m * p.tiles_n;
    const int batch = index / tiles;
    const TilePlace place = tile_place(index - batch * tiles, p.tiles_m, p.tiles_n, BAND_ROWS / (kTileM * CLUSTER));
    return {place.row * kTileM * CLUSTER, place.column * kTileN, batch};
}

constexpr int kPartsM = 2 * CLUSTER;  // pieces of the cluster along m

// What decides which steps a tile needs; in each lane.
struct Panels {
    const Norm* norms_a;
    const Norm* norms_b;
    int row_a[2 * kPartsM], row_b[kTileN / 32];  // where the tile's rows of the maps begin
    unsigned inside;                             // pieces that hold some of C
    Norm tau;
};

// The norms of one step.
struct Norms {
    Norm a[2 * kPartsM], b[kTileN / 32];
};

__device__ __forceinline__ void find_panels(const Product& p, const Tile& tile, Panels& panels) {
    const int lane = threadIdx.x % 32;
    // A lane finds one row and tells the others.
    const int at = lane < 2 * kPartsM ? min(tile.row + 32 * lane, p.m - 1) : min(tile.column + 32 * (lane - 2 * kPartsM), p.n - 1);
    const int row = (at >> p.log2_block) * p.norm_k;
#pragma unroll
    for (int i = 0; i < 2 * kPartsM; ++i) panels.row_a[i] = __shfl_sync(~0u, row, i);
#pragma unroll
    for (int j = 0; j < kTileN / 32; ++j) panels.row_b[j] = __shfl_sync(~0u, row, 2 * kPartsM + j);
    panels.norms_a = p.norms_a + tile.batch * p.stride_norms_a;
    panels.norms_b = p.norms_b + tile.batch * p.stride_norms_b;
    panels.tau = static_cast<Norm>(p.tau_device ? p.tau_device[tile.batch] : p.tau);
    panels.inside = 0;
#pragma unroll
    for (int i = 0; i < kPartsM; ++i)
#pragma unroll
        for (int j = 0; j < kPartsN; ++j)
            if (tile.row + 64 * i < p.m && tile.column + kPartN * j < p.n) panels.inside |= 1u << (i * kPartsN + j);
}

// Every load is started before the first is used, and none waits for a test.
__device__ __forceinline__ void load_norms(const Product& p, const Panels& panels, int step, Norms& norms) {
    const int k = step * kStep >> p.log2_block;
#pragma unroll
    for (int i = 0; i < 2 * kPartsM; ++i) norms.a[i] = __ldg(panels.norms_a + (panels.row_a[i] + k));
#pragma unroll
    for (int j = 0; j < kTileN / 32; ++j) norms.b[j] = __ldg(panels.norms_b + (panels.row_b[j] + k));
}

// Return which pieces of the cluster need a step, one bit each.
__device__ __forceinline__ unsigned needed_pieces(const Panels& panels, const Norms& norms) {
    Norm most_a[kPartsM], most_b[kPartsN];
#pragma unroll
    for (int i = 0; i < kPartsM; ++i) most_a[i] = max_nan(norms.a[2 * i], norms.a[2 * i + 1]);
#pragma unroll
    for (int j = 0; j < kPartsN; ++j) {
        most_b[j] = norms.b[j * (kPartN / 32)];
#pragma unroll
        for (int q = 1; q < kPartN / 32; ++q) most_b[j] = max_nan(most_b[j], norms.b[j * (kPartN / 32) + q]);
    }
    unsigned valid = 0;
#pragma unroll
    for (int i = 0; i < kPartsM; ++i)
#pragma unroll
        for (int j = 0; j < kPartsN; ++j)
            // Not below tau, so that a NaN is multiplied.
            if (!(most_a[i] * most_b[j] < panels.tau)) valid |= 1u << (i * kPartsN + j);
    return valid & panels.inside;
}

// List the steps of one tile after the other; warp `sublist` of the listing warps lists its share of k.
__device__ __forceinline__ void list_tiles(const Product& p, Lists& shared, int sublist) {
    const int lane = threadIdx.x % 32, rank = block_rank();
    const bool leader = sublist == 0 && lane == 0;
    const int tiles = p.tiles_m * p.tiles_n * p.batches, steps = (p.k + kStep - 1) / kStep;
    const int first = steps * sublist / kSublists, last = steps * (sublist + 1) / kSublists;
    // Everything else follows from the lists: only they wait for the norms of the kernel before.
    wait_for_previous();
    for (int turn = 0;; ++turn) {
        const int slot = turn % kSlots;
        List& list = shared.list[slot];
        int index = blockIdx.x / CLUSTER;
#if SCHEDULE == DRAWN
        // The first tile is the cluster's own; each other one was drawn while the list before it was made.
        if (turn > 0) index = drawn_tile(shared, turn - 1, leader);
#elif SCHEDULE == STRIDE
        index += turn * (gridDim.x / CLUSTER);
#else
        const int each = (tiles + gridDim.x / CLUSTER - 1) / (gridDim.x / CLUSTER);
        index = turn < each ? index * each + turn : tiles;
#endif
        const bool ends = index >= tiles;
        Tile tile{0, 0, -1};
        Panels panels;
        Norms norms;
        if (!ends) {
            tile = locate(p, index);
            find_panels(p, tile, panels);
            // The first norms arrive while the slot is still in use.
            load_norms(p, panels, min(first + lane, steps - 1), norms);
        }
        barrier_wait(shared.list_empty[slot], (turn / kSlots & 1) ^ 1);
#if SCHEDULE == DRAWN
        const bool draws = leader && !ends;
        const unsigned drawn = draw_tile(p, draws && rank == 0);
#endif
        if (!ends) {
            int count = 0;
            for (int base = first; base < last; base += 32) {
                if (base > first) load_norms(p, panels, min(base + lane, steps - 1), norms);
                const int step = base + lane;
                const unsigned valid = step < last ? needed_pieces(panels, norms) : 0;
                const unsigned vote = __ballot_sync(~0u, valid != 0);
                if (valid)
                    list.entry[sublist][count + __popc(vote & ((1u << lane) - 1))] =
                        static_cast<unsigned short>(step << 4 | (valid >> 2 * kPartsN * rank & ((1u << 2 * kPartsN) - 1)));
                count += __popc(vote);
            }
            if (lane == 0) list.count[sublist] = count;
        }
        if (leader) list.tile = tile;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.list_full[slot]);
        if (ends) {
#if SCHEDULE == DRAWN && CLUSTER > 1
            // The first block lasts until the others' last messages have come.
            if (leader && rank == 0)
                for (int draw = max(turn - kSlots, 0); draw < turn; ++draw)
                    barrier_wait(shared.ticket_empty[draw % kSlots], draw / kSlots & 1);
#endif
            return;
        }
#if SCHEDULE == DRAWN
        if (draws) pass_tile(shared, turn, rank, drawn);
#endif
    }
}

// Set up the barriers that every kernel has, in one thread: so many arrivals free a stage, and a list.
__device__ __forceinline__ void init_barriers(Lists& shared, int stage_readers, int list_readers) {
    for (int s = 0; s < kStages; ++s) {
        barrier_init(shared.full[s], 1);
        barrier_init(shared.empty[s], stage_readers);
    }
    for (int s = 0; s < kSlots; ++s) {
        barrier_init(shared.list_full[s], kSublists);
        barrier_init(shared.list_empty[s], list_readers);
        barrier_init(shared.ticket_full[s], 1);
        barrier_init(shared.ticket_empty[s], CLUSTER);
    }
}
