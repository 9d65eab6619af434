// SpAMM product on mma.sync and FFMA, for sm_80 and later: C = alpha * sum_k valid(i,k,j) A_ik B_kj + beta * C.
//
// A thread block computes a TILE_M x TILE_N tile of C.  It first tests all k against the two norm maps and compacts the
// union of the valid steps (32 wide) into a list with one bit for each 32 x 32 block of the tile, then runs a cp.async
// pipeline over the list.  Each warp owns BLOCKS_M x BLOCKS_N blocks and multiplies exactly those whose bit is set:
// loads follow the union, arithmetic the valid set.
#define FP16 0
#define TF32X3 1
#define FP64 2
#define FP32 3

constexpr int kTileM = TILE_M, kTileN = TILE_N;
constexpr int kBlocksM = BLOCKS_M, kBlocksN = BLOCKS_N;    // 32 x 32 blocks of a warp
constexpr int kWarpsM = kTileM / (32 * kBlocksM), kWarpsN = kTileN / (32 * kBlocksN);
constexpr int kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kTileBlocksM = kTileM / 32, kTileBlocksN = kTileN / 32;
constexpr int kStep = 32;                                  // k covered by one entry of the list
constexpr int kStageK = STAGE_K;                           // k of one pipeline stage
constexpr int kParts = kStep / kStageK;                    // stages of an entry
constexpr int kStages = STAGES;
constexpr int kListSteps = LIST_STEPS;                     // k steps listed at a time
constexpr int kBins = 64;                                  // of work, from which blocks find their tiles
// Without compaction the list holds every step, and those that no block needs are passed over in the loop.
constexpr bool kCompact = COMPACT;
// Row pitches in elements, chosen so that the fragment loads below meet no bank twice.
#if PRECISION == FP16
constexpr int kPitchA = kStageK + 8, kPitchB = kTileN + 8;
#elif PRECISION == TF32X3
constexpr int kPitchA = kStageK + 4, kPitchB = kTileN + 8;
#elif PRECISION == FP64
constexpr int kPitchA = kStageK + 4, kPitchB = kTileN + 4;
#else
constexpr int kPitchA = kStageK + 4, kPitchB = kTileN;
#endif
constexpr int kStageA = kTileM * kPitchA, kStageB = kStageK * kPitchB;
constexpr int kVector = 16 / sizeof(Element);

// Copy a ROWS x COLUMNS block to shared memory, zero outside of the matrix; `whole` says that all of it is inside.
template <int kRows, int kColumns, int kPitch>
__device__ __forceinline__ void load_block(Element* target, const Element* source, long long leading, int rows,
                                           int columns, bool whole) {
  constexpr int kChunks = kColumns / kVector, kPass = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kPass == 0, "every thread copies one column of chunks");
  const int first = threadIdx.x / kChunks, column = threadIdx.x % kChunks * kVector;
  const Element* from = source + first * leading + column;
  Element* to = target + first * kPitch + column;
#if ALIGNED
  if (whole) {
    const long long step = kPass * leading;
#pragma unroll
    for (int row = 0; row < kRows; row += kPass, from += step)
      copy_async(shared_address(to) + row * kPitch * static_cast<int>(sizeof(Element)), from, 16);
    return;
  }
#endif
#pragma unroll
  for (int row = 0; row < kRows; row += kPass, from += kPass * leading, to += kPass * kPitch) {
    const int inside = first + row < rows ? max(0, min(kVector, columns - column)) : 0;
#if ALIGNED
    copy_async(shared_address(to), inside ? from : source, inside * static_cast<int>(sizeof(Element)));
#else
#pragma unroll
    for (int e = 0; e < kVector; ++e) to[e] = e < inside ? from[e] : Element(0.0f);
#endif
  }
}

// One bit for each 32 x 32 block of the tile (row block * kTileBlocksN + column block): is its product with this k step
// valid?
__device__ __forceinline__ unsigned valid_bits(const Product& p, const Norm* norms_a, const Norm* norms_b, Norm tau,
                                               int row0, int column0, int step) {
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

// Compact the valid steps of [first, first + kListSteps) into entries (step << 16 | bits); return their number.
__device__ __forceinline__ int build_list(const Product& p, const Norm* norms_a, const Norm* norms_b, Norm tau, int row0,
                                          int column0, int first, int steps, unsigned* list, unsigned short* bits,
                                          int* warp_totals) {
  constexpr int kEach = kListSteps / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 2
  for (int i = 0; i < kEach; ++i) {
    const int step = first + threadIdx.x + i * kThreads;
    const unsigned found = first + i * kThreads < steps
                               ? valid_bits(p, norms_a, norms_b, tau, row0, column0, min(step, steps - 1))
                               : 0;
    bits[threadIdx.x + i * kThreads] = step < steps ? found : 0;
  }
  __syncthreads();
  const unsigned short* mine = bits + threadIdx.x * kEach;
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
  if (lane == 31) warp_totals[warp] = before;
  __syncthreads();
  int total = 0, position = before - count;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) position += warp_totals[w];
    total += warp_totals[w];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (listed[i]) list[position++] = static_cast<unsigned>(first + threadIdx.x * kEach + i) << 16 | mine[i];
  __syncthreads();
  return total;
}

// Block r takes the r-th tile by falling work: its number and its k steps.  Each warp finds it for itself.
__device__ __forceinline__ uint2 find_place(const Product& p) {
  const int lane = threadIdx.x % 32;
  const uint2 pair = __ldcg(reinterpret_cast<const uint2*>(p.bins) + lane);
  unsigned end = pair.x + pair.y;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned other = __shfl_up_sync(~0u, end, offset);
    if (lane >= offset) end += other;
  }
  const int owner = __ffs(__ballot_sync(~0u, blockIdx.x < end)) - 1;
  unsigned place = blockIdx.x - (end - pair.x - pair.y), bin = 2 * lane;
  if (place >= pair.x) place -= pair.x, ++bin;
  return __ldcg(p.places + __shfl_sync(~0u, bin * gridDim.x + place, owner));
}

// Every multiply<M0, M1, N0, N1> takes the blocks [M0, M1) x [N0, N1) of the warp.
#if PRECISION == FP32
// Thread (r, c) of a warp's 4 x 8 owns rows r + 4 i and columns 4 c + j of each block: A is read along k.
template <int M0, int M1, int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b,
                                         Accumulator (&sum)[8 * kBlocksM][4 * kBlocksN]) {
  const int lane = threadIdx.x % 32;
  const float* rows = a + lane / 8 * kPitchA;
  const float* columns = b + lane % 8 * 4;
  float value_a[2][8][4], value_b[4][4 * kBlocksN];
  auto load_a = [&](float (&to)[8][4], int k, int r) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      *reinterpret_cast<float4*>(to[i]) = *reinterpret_cast<const float4*>(rows + (32 * r + 4 * i) * kPitchA + k);
  };
  auto load_b = [&](int kk, int k) {
#pragma unroll
    for (int s = N0; s < N1; ++s)
      *reinterpret_cast<float4*>(value_b[kk] + 4 * s) =
          *reinterpret_cast<const float4*>(columns + (k + kk) * kPitchB + 32 * s);
  };
  // The operands of the next four k (or of the next row block) are on their way while these are multiplied; after the
  // last the first are read again, for nothing, unless the loop is unrolled.
  load_a(value_a[0], 0, M0);
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) load_b(kk, 0);
  constexpr int kTurns = (M1 - M0) % 2 ? 2 : 1;
  // All of a stage in a row where the warp has one block; with several there is too much code of it.
  constexpr int kUnroll = kBlocksM * kBlocksN == 1 ? kStageK / (4 * kTurns) : 1;
#pragma unroll kUnroll
  for (int k0 = 0; k0 < kStageK; k0 += 4 * kTurns) {
#pragma unroll
    for (int phase = 0; phase < kTurns * (M1 - M0); ++phase) {
      const int r = M0 + phase % (M1 - M0), next = (k0 + 4 * (phase / (M1 - M0)) + 4) % kStageK;
      const bool last = r + 1 == M1;
      if (kUnroll == 1 || !last || next != 0)
        load_a(value_a[(phase + 1) % 2], last ? next : next == 0 ? kStageK - 4 : next - 4, last ? M0 : r + 1);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
          for (int turn = 4 * N0; turn < 4 * N1; ++turn) {
            // There and back: where a row ends, the next begins with the same element of B, which is read once.
            const int j = i % 2 ? 4 * (N0 + N1) - 1 - turn : turn;
            sum[8 * r + i][j] = fmaf(value_a[phase % 2][i][kk], value_b[kk][j], sum[8 * r + i][j]);
          }
        if (last && (kUnroll == 1 || next != 0)) load_b(kk, next);
      }
    }
  }
}
#else
// Fragments of m16n8: lane = 4 g + t holds rows g and g + 8, columns 2 t and 2 t + 1 of C.  A block
// is 2 x 4 of them.
#if PRECISION == FP16
template <int M0, int M1, int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Accumulator (&sum)[2 * kBlocksM][4 * kBlocksN][4]) {
  const int lane = threadIdx.x % 32;
  const unsigned rows = shared_address(a + lane % 16 * kPitchA + lane / 16 * 8);
  const unsigned columns = shared_address(b + lane % 16 * kPitchB + lane / 16 * 8);
#pragma unroll
  for (int k = 0; k < kStageK; k += 16) {
    unsigned fragment_a[2 * kBlocksM][4], fragment_b[4 * kBlocksN][2];
#pragma unroll
    for (int i = 2 * M0; i < 2 * M1; ++i)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fragment_a[i][0]), "=r"(fragment_a[i][1]), "=r"(fragment_a[i][2]), "=r"(fragment_a[i][3])
                   : "r"(rows + (16 * i * kPitchA + k) * 2));
#pragma unroll
    for (int j = 4 * N0; j < 4 * N1; j += 2)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fragment_b[j][0]), "=r"(fragment_b[j][1]), "=r"(fragment_b[j + 1][0]),
                     "=r"(fragment_b[j + 1][1])
                   : "r"(columns + (k * kPitchB + 8 * j) * 2));
#pragma unroll
    for (int i = 2 * M0; i < 2 * M1; ++i)
#pragma unroll
      for (int j = 4 * N0; j < 4 * N1; ++j) mma_f16(sum[i][j], fragment_a[i], fragment_b[j]);
  }
}
#elif PRECISION == TF32X3
// x = high + low, both TF32: high is x rounded to nearest, low the exact rest (the unit drops its last bits).
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// Three TF32 products (low*high, high*low, high*high) a step; the tensor core, which truncates its sums, adds up 32 k,
// and each such sum is added to C rounding to nearest.
template <int M0, int M1, int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Accumulator (&sum)[2 * kBlocksM][4 * kBlocksN][4]) {
  const int lane = threadIdx.x % 32;
  const float* rows = a + lane / 4 * kPitchA + lane % 4;
  const float* columns = b + lane % 4 * kPitchB + lane / 4;
  constexpr int kChunk = 32;
#pragma unroll
  for (int k0 = 0; k0 < kStageK; k0 += kChunk) {
    float chunk[2 * kBlocksM][4 * kBlocksN][4];
#pragma unroll
    for (int k = k0; k < k0 + kChunk; k += 8) {
      unsigned high_a[2 * kBlocksM][4], low_a[2 * kBlocksM][4];
#pragma unroll
      for (int i = 2 * M0; i < 2 * M1; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          split(rows[(16 * i + e % 2 * 8) * kPitchA + k + e / 2 * 4], high_a[i][e], low_a[i][e]);
#pragma unroll
      for (int j = 4 * N0; j < 4 * N1; ++j) {
        unsigned high_b[2], low_b[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) split(columns[(k + 4 * e) * kPitchB + 8 * j], high_b[e], low_b[e]);
#pragma unroll
        for (int i = 2 * M0; i < 2 * M1; ++i) {
          if (k == k0) {
#pragma unroll
            for (int e = 0; e < 4; ++e) chunk[i][j][e] = 0.0f;
          }
          mma_tf32(chunk[i][j], low_a[i], high_b);
        }
#pragma unroll
        for (int i = 2 * M0; i < 2 * M1; ++i) mma_tf32(chunk[i][j], high_a[i], low_b);
#pragma unroll
        for (int i = 2 * M0; i < 2 * M1; ++i) mma_tf32(chunk[i][j], high_a[i], high_b);
      }
    }
#pragma unroll
    for (int i = 2 * M0; i < 2 * M1; ++i)
#pragma unroll
      for (int j = 4 * N0; j < 4 * N1; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] += chunk[i][j][e];
  }
}
#else
// k-fragments of 8, or of 4 before sm_90, which has nothing deeper.
template <int M0, int M1, int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Accumulator (&sum)[2 * kBlocksM][4 * kBlocksN][4]) {
  const int lane = threadIdx.x % 32;
  const double* rows = a + lane / 4 * kPitchA + lane % 4;
  const double* columns = b + lane % 4 * kPitchB + lane / 4;
#if __CUDA_ARCH__ >= 900
  constexpr int kDepth = 8;
#else
  constexpr int kDepth = 4;
#endif
#pragma unroll
  for (int k = 0; k < kStageK; k += kDepth) {
    double fragment_a[2 * kBlocksM][kDepth / 2];
#pragma unroll
    for (int i = 2 * M0; i < 2 * M1; ++i)
#pragma unroll
      for (int d = 0; d < kDepth / 4; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) fragment_a[i][2 * d + e] = rows[(16 * i + 8 * e) * kPitchA + k + 4 * d];
#pragma unroll
    for (int j = 4 * N0; j < 4 * N1; ++j) {
      double fragment_b[kDepth / 4];
#pragma unroll
      for (int d = 0; d < kDepth / 4; ++d) fragment_b[d] = columns[(k + 4 * d) * kPitchB + 8 * j];
#pragma unroll
      for (int i = 2 * M0; i < 2 * M1; ++i) mma_f64(sum[i][j], fragment_a[i], fragment_b);
    }
  }
}
#endif
#endif

// Multiply the blocks of the warp whose bits are set, all at once where it is all of them.
template <int kBlock = 0, typename Sum>
__device__ __forceinline__ void multiply_valid(unsigned bits, const Element* a, const Element* b, Sum& sum) {
  constexpr int kAll = kBlocksM * kBlocksN;
  if constexpr (kBlock == 0) {
    if (bits == (1u << kAll) - 1) {
      multiply<0, kBlocksM, 0, kBlocksN>(a, b, sum);
      return;
    }
  }
  if constexpr (kAll > 1) {
    constexpr int i = kBlock / kBlocksN, j = kBlock % kBlocksN;
    if (bits >> kBlock & 1) multiply<i, i + 1, j, j + 1>(a, b, sum);
    if constexpr (kBlock + 1 < kAll) multiply_valid<kBlock + 1>(bits, a, b, sum);
  }
}

__device__ __forceinline__ void store(const Product& p, const Output* c, Output* out, int row, int column,
                                      Accumulator value) {
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
    for (int e = 0; e < W; ++e)
      vector.value[e] = static_cast<Output>(values[e] * static_cast<Accumulator>(p.alpha));
    Output* to = out + row * p.ldo + column;
    // C leaves the L2 before A and B, which are read again; for large tiles this is slower.
    if constexpr (kBlocksM * kBlocksN == 1 && sizeof(Vector) == 16)
      __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
    else
      *reinterpret_cast<Vector*>(to) = vector;
  } else {
#pragma unroll
    for (int e = 0; e < W; ++e) store(p, c, out, row, column + e, values[e]);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) product(const Product p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Element* stage_a = reinterpret_cast<Element*>(memory);
  Element* stage_b = stage_a + kStages * kStageA;
  __shared__ unsigned list[kListSteps];
  __shared__ unsigned short bits[kListSteps];
  __shared__ int warp_totals[kThreads / 32];

  // The kernel before, of whose end this block need not have waited to start, wrote the norms and the order.
  wait_for_previous();
  // Neighbouring tiles form bands of 512 rows, taken column by column, so that their panels stay in the L2.
  constexpr int kBand = 512 / kTileM;
  const uint2 place = p.bins ? find_place(p) : make_uint2(blockIdx.x, 0);
  const int index = place.x;
  const int band = index / (kBand * p.tiles_n);
  const int height = min(kBand, p.tiles_m - band * kBand);
  const int within = index - band * kBand * p.tiles_n;
  const int row0 = (band * kBand + within % height) * kTileM, column0 = within / height * kTileN;
  const long long batch = blockIdx.y;
  const Element* a = p.a + batch * p.stride_a + row0 * p.lda;
  const Element* b = p.b + batch * p.stride_b + column0;
  const Norm* norms_a = p.norms_a + batch * p.stride_norms_a;
  const Norm* norms_b = p.norms_b + batch * p.stride_norms_b;
  const Norm tau = static_cast<Norm>(p.tau_device ? p.tau_device[batch] : p.tau);
  const int steps = (p.k + kStep - 1) / kStep;
  const bool whole = row0 + kTileM <= p.m && column0 + kTileN <= p.n;
  const int lane = threadIdx.x % 32;
  // Blocks from the corner of the tile to the corner of this warp's part.
  const int block_m = threadIdx.x / 32 % kWarpsM * kBlocksM, block_n = threadIdx.x / 32 / kWarpsM * kBlocksN;

#if PRECISION == FP32
  Accumulator sum[8 * kBlocksM][4 * kBlocksN];
#pragma unroll
  for (int i = 0; i < 8 * kBlocksM; ++i)
#pragma unroll
    for (int j = 0; j < 4 * kBlocksN; ++j) sum[i][j] = 0;
#else
  Accumulator sum[2 * kBlocksM][4 * kBlocksN][4];
#pragma unroll
  for (int i = 0; i < 2 * kBlocksM; ++i)
#pragma unroll
    for (int j = 0; j < 4 * kBlocksN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][j][e] = 0;
#endif

  const bool given = GIVEN_LISTS && p.lists;
  const int listed = given ? static_cast<int>(place.y) : steps;
  for (int first = 0; first < listed; first += kListSteps) {
    int count = min(kListSteps, listed - first);
    if (given) {
      const unsigned* entries = p.lists + static_cast<long long>(index) * steps + first;
#pragma unroll
      for (int i = threadIdx.x; i < kListSteps; i += kThreads)
        // Not waiting for the length: there is room for all steps.
        if (first + i < steps) list[i] = entries[i];
      __syncthreads();
    } else {
      count = build_list(p, norms_a, norms_b, tau, row0, column0, first, steps, list, bits, warp_totals);
    }
    count *= kParts;
    auto load = [&](int index) {
      const int k = static_cast<int>(list[index / kParts] >> 16) * kStep + index % kParts * kStageK;
      const int slot = index % kStages;
      if (!kCompact && (list[index / kParts] & 0xffff) == 0) return;
      load_block<kTileM, kStageK, kPitchA>(stage_a + slot * kStageA, a + k, p.lda, p.m - row0, p.k - k,
                                            whole && k + kStageK <= p.k);
      load_block<kStageK, kTileN, kPitchB>(stage_b + slot * kStageB, b + k * p.ldb, p.ldb, p.k - k, p.n - column0,
                                            whole && k + kStageK <= p.k);
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
      unsigned mine = 0;
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i)
        mine |= (list[index / kParts] >> (kTileBlocksN * (block_m + i) + block_n) & ((1u << kBlocksN) - 1)) << kBlocksN * i;
      multiply_valid(mine, stage_a + index % kStages * kStageA + 32 * block_m * kPitchA,
                     stage_b + index % kStages * kStageB + 32 * block_n, sum);
    }
    wait_copies<0>();
    __syncthreads();
  }

  const Output* c = p.c + batch * p.stride_c;
  Output* out = p.out + batch * p.stride_o;
  const int row = row0 + 32 * block_m, column = column0 + 32 * block_n;
#if PRECISION == FP32
#pragma unroll
  for (int i = 0; i < 8 * kBlocksM; ++i)
#pragma unroll
    for (int s = 0; s < kBlocksN; ++s)
      store_vector<4>(p, c, out, row + lane / 8 + 4 * i, column + 32 * s + lane % 8 * 4, sum[i] + 4 * s);
#else
#pragma unroll
  for (int i = 0; i < 2 * kBlocksM; ++i)
#pragma unroll
    for (int j = 0; j < 4 * kBlocksN; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        store_vector<2>(p, c, out, row + 16 * i + 8 * e + lane / 4, column + 8 * j + lane % 4 * 2, sum[i][j] + 2 * e);
#endif
  if (p.bins) {
    // The last block to end empties the bins, which all warps of all blocks have read.
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(p.bins + kBins, 1) == gridDim.x - 1)
      for (int bin = 0; bin <= kBins; ++bin) p.bins[bin] = 0;
  }
}
