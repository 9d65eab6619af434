// SpAMM product in float16 for Hopper (sm_90a): TMA, wgmma, warp specialisation, persistent thread blocks.
//
// A thread block computes tiles of 128 x (128 * WGS_N) of C; a cluster of CLUSTER blocks stacks their rows and shares B
// by multicast.  The last warps feed: all but one of them test the k steps (32 wide) of the next tile against the norm
// maps and list those that any 64 x PART_N part of the tile needs, one thread starts their TMA loads.  Every
// warpgroup before them owns one 64 x PART_N part, keeps it in registers, and multiplies the listed steps whose bit it finds set: the
// loads follow the union of the big tile, the arithmetic the lists of the parts.  C leaves through shared memory and the
// copy engine, so that a warpgroup goes on to the next tile while the last is still on its way to memory.
#include <cuda_fp16.h>

#if OUTPUT_BITS == 16
using Output = __half;
#else
using Output = float;
#endif

constexpr int kTileM = 128, kTileN = 128 * WGS_N;
constexpr int kPartN = PART_N, kPartsN = kTileN / kPartN;    // a warpgroup multiplies 64 x PART_N
constexpr int kConsumers = 2 * kPartsN;
constexpr int kFeeders = WGS_N == 1 ? 2 : 4;                // warps that feed: one loads, the others list
constexpr int kThreads = 128 * kConsumers + 32 * kFeeders;
constexpr int kStep = 32;                                   // k of a list entry and of a pipeline stage
constexpr int kStages = STAGES;
constexpr int kBytesA = kTileM * kStep * 2, kBytesB = kStep * kTileN * 2;
constexpr int kBox = 64;                                    // columns of one TMA box of B: 128 bytes
constexpr int kBoxes = kTileN / kBox, kBoxBytes = kStep * kBox * 2;
constexpr int kOutBox = 128 / sizeof(Output);               // columns of one TMA box of C, 64 rows
constexpr int kRoundBoxes = PART_N == 256 ? 2 : 1;          // boxes that a warpgroup stores at a time
constexpr int kRoundBytes = kRoundBoxes * 64 * 128;         // two rounds are under way
constexpr int kSublists = kFeeders - 1;                     // one a listing warp
constexpr int kSublistSteps = LIST_STEPS / kSublists;
// Lists in flight, one of them in use: a tile drawn earlier would be computed far from its neighbours in time.
constexpr int kSlots = 2;

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

struct Product {
  TensorMap map_a, map_b, map_c;
  const Output* c;
  Output* out;
  const float* norms_a;        // [row block][k block]
  const float* norms_b;        // [column block][k block]
  const double* tau_device;    // one threshold a batch item, or null: use tau
  unsigned* counter;           // next tile, zero at launch
  double tau, alpha, beta;
  long long ldc, ldo, stride_c, stride_o, stride_norms_a, stride_norms_b;
  int m, n, k;
  int norm_k, log2_block;
  int tiles_m, tiles_n, batches;   // tiles of a whole cluster
  int batch_a, batch_b;            // 0 where all items of the batch share the matrix
  int copy_stores;                 // C through the copy engine: beta is 0 and the rows are aligned
};

struct List {
  int tile;
  int count[kSublists];
  unsigned short entry[kSublists][kSublistSteps];   // step << 4 | one bit a consumer
};

struct Shared {
  unsigned long long full[kStages], empty[kStages], list_full[kSlots], list_empty[kSlots];
  unsigned long long ticket_full[kSlots], ticket_empty[kSlots];
  int ticket[kSlots];
  List list[kSlots];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ unsigned block_rank() {
  unsigned rank = 0;
#if CLUSTER > 1
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

__device__ __forceinline__ void cluster_barrier() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

__device__ __forceinline__ void barrier_init(unsigned long long& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned long long& barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrive at the same barrier of a block of the cluster.  Without a scope: release at the cluster's would flush to the
// L2 at every step, and what the barrier guards is only read here and overwritten by the copy engine.
__device__ __forceinline__ void barrier_arrive_at(unsigned long long& barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void barrier_expect(unsigned long long& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned long long& barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra wait;\nready:\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// Wait for what another block of the cluster wrote.
__device__ __forceinline__ void barrier_wait_cluster(unsigned long long& barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra wait;\nready:\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void load_tile(unsigned target, const TensorMap* map, int x, int y, int z,
                                          unsigned long long& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          target),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void load_tile_everywhere(unsigned target, const TensorMap* map, int x, int y, int z,
                                                     unsigned long long& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)),
      "h"(static_cast<unsigned short>((1 << CLUSTER) - 1))
      : "memory");
}

// Shared-memory matrix descriptor: strides in bytes, swizzle 1 = 128 bytes, 2 = 64 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride,
                                                         unsigned long long swizzle) {
  return static_cast<unsigned long long>((address & 0x3ffff) >> 4) |
         static_cast<unsigned long long>(leading >> 4) << 16 | static_cast<unsigned long long>(stride >> 4) << 32 |
         swizzle << 62;
}

// c (64 x PART_N of a warpgroup) += A (64 x 16, rows along k) B (16 x PART_N, rows along n).
#if PART_N == 128
__device__ __forceinline__ void wgmma(float (&c)[64], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15, "
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31, "
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47, "
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, 1, 1, 1, 0, 1;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "l"(a), "l"(b));
}
#else
__device__ __forceinline__ void wgmma(float (&c)[128], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15, "
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31, "
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47, "
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63, "
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79, "
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95, "
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111, "
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, %128, %129, 1, 1, 1, 0, 1;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]),
        "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
        "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]),
        "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]),
        "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]),
        "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),
        "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]),
        "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]),
        "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
      : "l"(a), "l"(b));
}
#endif

__device__ __forceinline__ float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

struct Tile {
  int row, column, batch;   // of the cluster
};

// Draw the next tile, the same for all blocks of the cluster, and return its index to every listing thread.
__device__ __forceinline__ int draw_tile(const Product& p, Shared& shared, int turn, int rank, bool speaker) {
  const int slot = turn % kSlots;
#if CLUSTER > 1
  const unsigned parity = turn / kSlots & 1;
  if (speaker) {
    barrier_expect(shared.ticket_full[slot], 4);
    if (rank == 0) {
      // Every block has read what the slot held before.
      barrier_wait(shared.ticket_empty[slot], parity ^ 1);
      const unsigned ticket = atomicAdd(p.counter, 1);
#pragma unroll
      for (int to = 0; to < CLUSTER; ++to)
        asm volatile(
            "{\n.reg .b32 slot, done;\nmapa.shared::cluster.u32 slot, %0, %2;\nmapa.shared::cluster.u32 done, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [slot], %3, [done];\n}" ::"r"(
                shared_address(&shared.ticket[slot])),
            "r"(shared_address(&shared.ticket_full[slot])), "r"(to), "r"(ticket)
            : "memory");
    }
  }
  barrier_wait_cluster(shared.ticket_full[slot], parity);
  const int index = *const_cast<volatile int*>(&shared.ticket[slot]);
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kSublists) : "memory");
  if (speaker) barrier_arrive_at(shared.ticket_empty[slot], 0);
  return index;
#else
  if (speaker) shared.ticket[slot] = atomicAdd(p.counter, 1);
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kSublists) : "memory");
  return shared.ticket[slot];
#endif
}

// Neighbouring tiles form bands of 2048 rows, taken column by column, so that their panels stay in the L2.
__device__ __forceinline__ Tile locate(const Product& p, int index) {
  constexpr int kBand = 2048 / (kTileM * CLUSTER);
  const int tiles = p.tiles_m * p.tiles_n;
  const int batch = index / tiles;
  index -= batch * tiles;
  const int band = index / (kBand * p.tiles_n);
  const int height = min(kBand, p.tiles_m - band * kBand);
  const int within = index - band * kBand * p.tiles_n;
  return {(band * kBand + within % height) * kTileM * CLUSTER, within / height * kTileN, batch};
}

// Warp `sublist` lists the steps of its third of k.
__device__ __forceinline__ void build_sublist(const Product& p, const Tile& tile, List& list, int sublist, int rank) {
  const int lane = threadIdx.x % 32;
  const int steps = (p.k + kStep - 1) / kStep;
  const int first = steps * sublist / kSublists, last = steps * (sublist + 1) / kSublists;
  const float tau = static_cast<float>(p.tau_device ? p.tau_device[tile.batch] : p.tau);
  const float* norms_a = p.norms_a + tile.batch * p.stride_norms_a;
  const float* norms_b = p.norms_b + tile.batch * p.stride_norms_b;
  int count = 0;
  for (int base = first; base < last; base += 32) {
    const int step = base + lane;
    unsigned mine = 0, anyone = 0;
    {
      // Every load is started before the first is used, and none waits for a test: outside of the matrix the last norm
      // is read and then replaced by -1.
      const int k = min(step, last - 1) * kStep >> p.log2_block;
      float raw_a[CLUSTER * 4], raw_b[kTileN / 32];
#pragma unroll
      for (int i = 0; i < CLUSTER * 4; ++i)
        raw_a[i] = __ldg(norms_a + (min(tile.row + 32 * i, p.m - 1) >> p.log2_block) * p.norm_k + k);
#pragma unroll
      for (int j = 0; j < kTileN / 32; ++j)
        raw_b[j] = __ldg(norms_b + (min(tile.column + 32 * j, p.n - 1) >> p.log2_block) * p.norm_k + k);
      float norm_a[CLUSTER * 2], norm_b[kPartsN];
#pragma unroll
      for (int i = 0; i < CLUSTER * 2; ++i) {
        norm_a[i] = -1.0f;
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e)
          norm_a[i] = max_nan(norm_a[i], tile.row + 32 * e < p.m ? raw_a[e] : -1.0f);
      }
#pragma unroll
      for (int j = 0; j < kPartsN; ++j) {
        norm_b[j] = -1.0f;
#pragma unroll
        for (int e = kPartN / 32 * j; e < kPartN / 32 * (j + 1); ++e)
          norm_b[j] = max_nan(norm_b[j], tile.column + 32 * e < p.n ? raw_b[e] : -1.0f);
      }
#pragma unroll
      for (int i = 0; i < CLUSTER * 2; ++i)
#pragma unroll
        for (int j = 0; j < kPartsN; ++j)
          // Not below tau, so that a NaN is multiplied; what lies outside of the matrix never is.
          if (step < last && !(norm_a[i] * norm_b[j] < tau) && !(norm_a[i] < 0) && !(norm_b[j] < 0)) {
            anyone = 1;
            if (i / 2 == rank) mine |= 1u << (i % 2 * kPartsN + j);
          }
    }
    const unsigned vote = __ballot_sync(~0u, anyone);
    if (anyone) list.entry[sublist][count + __popc(vote & ((1u << lane) - 1))] =
          static_cast<unsigned short>(step << 4 | mine);
    count += __popc(vote);
  }
  if (lane == 0) list.count[sublist] = count;
}

__device__ __forceinline__ void feed(const Product& p, unsigned char* stages, Shared& shared) {
  const int warp = threadIdx.x / 32 - 4 * kConsumers, lane = threadIdx.x % 32, rank = block_rank();
  const bool speaker = warp == 1 && lane == 0;
  const int tiles = p.tiles_m * p.tiles_n * p.batches;
  if (warp > 0) {
    for (int turn = 0;; ++turn) {
      const int slot = turn % kSlots;
      List& list = shared.list[slot];
      barrier_wait(shared.list_empty[slot], (turn / kSlots & 1) ^ 1);
      int index = draw_tile(p, shared, turn, rank, speaker);
      if (index >= tiles) index = -1;
      if (index >= 0) build_sublist(p, locate(p, index), list, warp - 1, rank);
      if (speaker) list.tile = index;
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.list_full[slot]);
      if (index < 0) return;
    }
  } else if (lane == 0) {
    int stage = 0;
    unsigned parity = 1;
    for (int turn = 0;; ++turn) {
      const int slot = turn % kSlots;
      const List& list = shared.list[slot];
      barrier_wait(shared.list_full[slot], turn / kSlots & 1);
      if (list.tile < 0) return;
      const Tile tile = locate(p, list.tile);
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
          if (need_a) load_tile(target, &p.map_a, k, row, batch_a, shared.full[stage]);
#pragma unroll
          for (int box = 0; box < kBoxes / CLUSTER; ++box) {
            const int number = box + rank * (kBoxes / CLUSTER);
            const unsigned to = target + kBytesA + number * kBoxBytes;
#if CLUSTER > 1
            load_tile_everywhere(to, &p.map_b, tile.column + number * kBox, k, batch_b, shared.full[stage]);
#else
            load_tile(to, &p.map_b, tile.column + number * kBox, k, batch_b, shared.full[stage]);
#endif
          }
          if (++stage == kStages) stage = 0, parity ^= 1;
        }
      }
      barrier_arrive(shared.list_empty[slot]);
    }
  }
}

__device__ __forceinline__ void release(Shared& shared, int stage) {
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
__device__ __forceinline__ void copy_part(const Product& p, const float (&sum)[kPartN / 2], int row0, int column0,
                                          int batch, unsigned staging) {
  constexpr int kRounds = kPartN / (kRoundBoxes * kOutBox), kFragments = kPartN / 8 / kRounds;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, barrier = 2 + threadIdx.x / 128;
  const bool speaker = threadIdx.x % 128 == 0;
  const float alpha = static_cast<float>(p.alpha);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const unsigned target = staging + round % 2 * kRoundBytes;
    // The round before the last has left this half.
    if (speaker) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
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
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
    if (speaker) {
#pragma unroll
      for (int box = 0; box < kRoundBoxes; ++box)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&p.map_c),
                     "r"(column0 + (round * kRoundBoxes + box) * kOutBox), "r"(row0), "r"(batch),
                     "r"(target + box * 64 * 128)
                     : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
}

// Store a part element by element: remainders of the alignment, and beta C.
__device__ __forceinline__ void store_part(const Product& p, const float (&sum)[kPartN / 2], int row0, int column0,
                                           int batch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const Output* c = p.c + batch * p.stride_c;
  Output* out = p.out + batch * p.stride_o;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int row = row0 + warp * 16 + lane / 4 + 8 * (e / 2);
    if (row >= p.m) continue;
#pragma unroll
    for (int j = 0; j < kPartN / 8; ++j) {
      const int column = column0 + 8 * j + lane % 4 * 2 + e % 2;
      if (column >= p.n) continue;
      float value = alpha * sum[4 * j + e];
      if (beta != 0) value += beta * static_cast<float>(c[row * p.ldc + column]);
      out[row * p.ldo + column] = static_cast<Output>(value);
    }
  }
}

__device__ __forceinline__ void consume(const Product& p, unsigned char* stages, unsigned char* out, Shared& shared) {
  const int consumer = threadIdx.x / 128, rank = block_rank();
  const int part_row = consumer / kPartsN * 64, part_column = consumer % kPartsN * kPartN;
  const unsigned base = shared_address(stages), staging = shared_address(out) + consumer * 2 * kRoundBytes;
  // A: 64-byte rows, 8 rows are 512 bytes.  B: boxes of 64 columns, 8 k are 1024 bytes.
  const unsigned long long first_a = descriptor(base + part_row * kStep * 2, 16, 512, 2);
  const unsigned long long first_b = descriptor(base + kBytesA + part_column / kBox * kBoxBytes, kBoxBytes, 1024, 1);
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
    const int index = list.tile;
    if (index < 0) {
      // The copy engine reads shared memory, which lasts as long as the block.
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      return;
    }
    int pending = -1;   // stage whose product is still running
#pragma unroll
    for (int i = 0; i < kPartN / 2; ++i) sum[i] = 0.0f;
    for (int sublist = 0; sublist < sublists; ++sublist) {
      const int count = list.count[sublist];
      for (int e = 0; e < count; ++e) {
        const unsigned entry = list.entry[sublist][e];
        barrier_wait(shared.full[stage], parity);
        if (entry >> consumer & 1) {
          const unsigned long long offset = stage * ((kBytesA + kBytesB) >> 4);
          asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
          wgmma(sum, first_a + offset, first_b + offset);
          wgmma(sum, first_a + offset + (32 >> 4), first_b + offset + (2048 >> 4));
          asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
          if (pending >= 0) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release(shared, pending);
          }
          pending = stage;
        } else {
          if (pending >= 0) {
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release(shared, pending);
            pending = -1;
          }
          release(shared, stage);
        }
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (pending >= 0) release(shared, pending);
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.list_empty[slot]);
    // Nothing that reads the sums may move above the wait.
#pragma unroll
    for (int i = 0; i < kPartN / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
    const Tile tile = locate(p, index);
    const int row = tile.row + kTileM * rank + part_row, column = tile.column + part_column;
    if (p.copy_stores)
      copy_part(p, sum, row, column, tile.batch, staging);
    else
      store_part(p, sum, row, column, tile.batch);
  }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(kThreads, WGS_N == 1 ? 2 : 1) product_wgmma(const __grid_constant__ Product p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned char* stages = memory;
  unsigned char* out = stages + kStages * (kBytesA + kBytesB);
  Shared& shared = *reinterpret_cast<Shared*>(out + kConsumers * 2 * kRoundBytes);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.full[s], 1);
      barrier_init(shared.empty[s], 4 * kConsumers * CLUSTER);
    }
    for (int s = 0; s < kSlots; ++s) {
      barrier_init(shared.list_full[s], kSublists);
      barrier_init(shared.list_empty[s], 4 * kConsumers + 1);
      barrier_init(shared.ticket_full[s], 1);
      barrier_init(shared.ticket_empty[s], CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_barrier();
  // With one block an SM the listing warps lend registers to those that multiply.
  if (threadIdx.x >= 128 * kConsumers) {
#if WGS_N > 1
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PART_N == 128 ? 64 : 56));
#endif
    feed(p, stages, shared);
  } else {
#if WGS_N > 1
    // All threads start alike; what the feeding warps give back the others share, to the last multiple of 8.
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(PART_N == 128 ? 104 : 224));
#endif
    consume(p, stages, out, shared);
  }
  __syncwarp();
  cluster_barrier();
}
