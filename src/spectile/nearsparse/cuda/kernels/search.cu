// Thresholds found on the device by one launch: the one of a wanted valid ratio, and the largest one of a wanted error.
//
// Both are bisections whose trials depend on one another.  A pass tries many candidates at once, every one that the next
// few steps of the bisection could ask for; then each block walks these steps by itself, so that all blocks know what the
// next pass tries.  Blocks wait for each other between passes: the launch is cooperative.
#include "ptx.cuh"

#if NORM_BITS == 32
using Norm = float;
using Key = unsigned;
__device__ __forceinline__ Key key_of(Norm x) { return __float_as_uint(x); }
__device__ __forceinline__ Norm norm_of(Key x) { return __uint_as_float(x); }
#else
using Norm = double;
using Key = unsigned long long;
__device__ __forceinline__ Key key_of(Norm x) { return __double_as_longlong(x); }
__device__ __forceinline__ Norm norm_of(Key x) { return __longlong_as_double(x); }
#endif

constexpr int kChunk = CHUNK;       // norms that are sorted together
constexpr int kMostPasses = 24;     // more than any search takes: at most 50 doublings and 60 bisections

struct Search {
  const Norm* norms_a;              // [row block][k block]
  const Norm* norms_b;              // [column block][k block]
  Norm* columns_a;                  // [k block][row block]: written here
  Norm* sorted;                     // [k block][column block]: rising in each chunk
  double* partial;                  // sums of blocks
  unsigned long long* counts;       // valid products of each candidate of each pass
  unsigned* arrived;                // zero at launch
  double* result;                   // tau, and the share that it leaves
  int rows, columns, depth, iterations;
  int held, slot;                   // pieces that a block keeps in shared memory, and the norms of each with its own of A
  double wanted, tolerance;         // of the valid ratio
  double rtol, slack, relative, underflow;   // of the error: see bounds.py
  double highest, operand;          // the largest product of norms, and the largest norm, of which nothing overflows
};

// Wait until all blocks are here; what they wrote can be read.
__device__ __forceinline__ void wait_for_blocks(unsigned* arrived, unsigned& round) {
  __syncthreads();
  ++round;
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (static_cast<unsigned>(load_acquire(reinterpret_cast<const int*>(arrived))) < round * gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ double warp_max(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// Over all threads of a block, the same whatever their timing; every thread gets it.
template <int kThreads, bool kMax>
__device__ double block_reduce(double x, double* shared) {
  x = kMax ? warp_max(x) : warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double all = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) all = kMax ? fmax(all, shared[warp]) : all + shared[warp];
  return all;
}

// --- A wanted valid ratio -------------------------------------------------------------------------------------------

// The paper's binary search (Section 3.5.2): the upper bound grows until it leaves little enough, then bisection.
struct Trial {
  double tau, low, high, best_tau, best_ratio;
  int iterations;                   // bisections left
  bool growing, done;
};

__device__ void next_trial(Trial& s, double ratio, double wanted, double tolerance) {
  if (s.growing && ratio > wanted + tolerance && s.high < 1e300) {
    s.low = s.high;
    s.high *= 2;
    s.tau = s.high;
    return;
  }
  if (fabs(ratio - wanted) < fabs(s.best_ratio - wanted)) {
    s.best_tau = s.tau;
    s.best_ratio = ratio;
  }
  if (!s.growing) {
    (ratio > wanted ? s.low : s.high) = s.tau;
    --s.iterations;
  }
  s.growing = false;
  if (s.iterations == 0 || fabs(s.best_ratio - wanted) < tolerance) {
    s.tau = s.best_tau;
    s.done = true;
  } else {
    s.tau = 0.5 * (s.low + s.high);
  }
}

// A threshold of the bisection of [low, high] between its ends, in the tree of its steps: 1 is the first, 2 and 3 those
// that may follow.
__device__ double step_between(double low, double high, int node) {
  for (int bit = 30 - __clz(node); bit >= 0; --bit) {
    const double middle = 0.5 * (low + high);
    (node >> bit & 1 ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// What a lane tries: at first doublings of the mean and two steps between each two of them, then five steps.
__device__ double candidate(const Trial& s, bool first, int lane) {
  if (!s.growing) return lane == 0 ? s.tau : step_between(s.low, s.high, lane);
  if (!first || lane < 8) return scalbn(s.tau, lane);
  const int octave = (lane - 8) / 3;
  const double high = scalbn(s.high, octave);
  return step_between(octave == 0 ? 0 : 0.5 * high, high, 1 + (lane - 8) % 3);
}

// Sorted norms lie in shared memory with a gap after each 32, so that those a power of two apart are in different banks.
__device__ __forceinline__ int with_gaps(int i) { return i + (i >> 5); }

// The largest power of two that is not above a number of norms, at which a search among them starts.
__device__ __forceinline__ int first_step(int count) { return 1 << (31 - __clz(count)); }

// Sort keys, a power of two of them; a thread compares one pair, and pairs of one warp meet in steps up to 32.
__device__ void sort_keys(Key* keys, int count) {
  for (int size = 2; size <= count; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      const int pair = threadIdx.x;
      if (pair < count / 2) {
        const int i = 2 * pair - (pair & (step - 1)), j = i + step;
        const Key x = keys[with_gaps(i)], y = keys[with_gaps(j)];
        if ((x > y) == ((i & size) == 0)) keys[with_gaps(i)] = y, keys[with_gaps(j)] = x;
      }
      const int next = step > 1 ? step / 2 : size;
      if (step > 32 || next > 32)
        __syncthreads();
      else
        __syncwarp();
    }
  __syncthreads();
}

constexpr int kThreads = 1024, kWarps = kThreads / 32;

extern "C" __global__ void __launch_bounds__(kThreads) search_ratio(const Search p) {
  extern __shared__ Key slots[];     // sorted norms of B with gaps and a tail of NaN, then those of A
  __shared__ double sums[kWarps], trials[32];
  __shared__ unsigned long long valid[32];
  __shared__ bool over;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = (p.columns + kChunk - 1) / kChunk;
  const long long pieces = static_cast<long long>(p.depth) * chunks;
  unsigned round = 0;

  // A piece is a k and a chunk of columns.
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < 32 * kMostPasses; i += kThreads) p.counts[i] = 0;
  int number = 0;
  for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x, ++number) {
    const int k = piece / chunks, chunk = piece % chunks, first = chunk * kChunk;
    const int count = min(kChunk, p.columns - first), tail = 2 * first_step(count);
    const bool held = number < p.held;
    Key* keys = slots + min(number, p.held) * p.slot;
    Key* column = keys + with_gaps(tail);
    double sum_a = 0, sum_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kThreads) {
      const Norm x = p.norms_a[static_cast<long long>(i) * p.depth + k];
      sum_a += x;
      if (held)
        column[i] = key_of(x);
      else if (chunk == 0)
        p.columns_a[static_cast<long long>(k) * p.rows + i] = x;
    }
    for (int j = threadIdx.x; j < tail; j += kThreads) {
      const Norm x = j < count ? p.norms_b[static_cast<long long>(first + j) * p.depth + k] : Norm(0);
      sum_b += x;
      keys[with_gaps(j)] = j < count ? key_of(x) : ~Key(0);
    }
    sum_a = block_reduce<kThreads, false>(sum_a, sums);
    sum_b = block_reduce<kThreads, false>(sum_b, sums);
    if (threadIdx.x == 0) p.partial[piece] = sum_a * sum_b;
    sort_keys(keys, count == tail / 2 ? count : tail);
    if (held) continue;
    for (int j = threadIdx.x; j < count; j += kThreads)
      p.sorted[static_cast<long long>(k) * p.columns + first + j] = norm_of(keys[with_gaps(j)]);
    __syncthreads();
  }
  wait_for_blocks(p.arrived, round);

  double mean = 0;
  for (long long piece = threadIdx.x; piece < pieces; piece += kThreads) mean += p.partial[piece];
  const double total = static_cast<double>(p.rows) * p.columns * p.depth;
  mean = block_reduce<kThreads, false>(mean, sums) / total;
  // The trials are followed by the first warp of each block.
  Trial s = {mean, 0, mean, 0, 1, p.iterations, true, p.wanted >= 1 || !(mean > 0)};
  if (isnan(mean)) s.best_tau = mean;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    if (warp == 0) {
      trials[lane] = candidate(s, pass == 0, lane);
      valid[lane] = 0;
      if (lane == 0) over = s.done;
    }
    __syncthreads();
    if (over) break;
    const Norm tau = static_cast<Norm>(trials[lane]);
    unsigned long long mine = 0;
    number = 0;
    for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x, ++number) {
      const int k = piece / chunks, first = static_cast<int>(piece % chunks) * kChunk;
      const int count = min(kChunk, p.columns - first), start = first_step(count);
      const bool held = number < p.held;
      Key* keys = slots + min(number, p.held) * p.slot;
      const Norm* column = p.columns_a + static_cast<long long>(k) * p.rows;
      if (!held) {
        __syncthreads();
        for (int j = threadIdx.x; j < 2 * start; j += kThreads)
          keys[with_gaps(j)] =
              j < count ? key_of(p.sorted[static_cast<long long>(k) * p.columns + first + j]) : ~Key(0);
        __syncthreads();
      }
      // A lane counts for one candidate: the norms of B from the first one on that reaches it with a norm of A.
      constexpr int kEach = 4;
      for (int i = warp; i < p.rows; i += kEach * kWarps) {
        Norm a[kEach];
        int below[kEach] = {};
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
          const int row = min(i + r * kWarps, p.rows - 1);
          a[r] = held ? norm_of(keys[with_gaps(2 * start) + row]) : column[row];
        }
        for (int step = start; step > 0; step /= 2)
#pragma unroll
          for (int r = 0; r < kEach; ++r)
            if (a[r] * norm_of(keys[with_gaps(below[r] + step - 1)]) < tau) below[r] += step;
#pragma unroll
        for (int r = 0; r < kEach; ++r)
          if (i + r * kWarps < p.rows) mine += count - below[r];
      }
    }
    atomicAdd(valid + lane, mine);
    __syncthreads();
    if (warp == 0 && valid[lane]) atomicAdd(p.counts + 32 * pass + lane, valid[lane]);
    wait_for_blocks(p.arrived, round);
    if (warp == 0) {
      const double tried = trials[lane], ratio = __ldcg(p.counts + 32 * pass + lane) / total;
      while (!s.done) {
        const unsigned found = __ballot_sync(~0u, tried == s.tau);
        if (!found) break;
        next_trial(s, __shfl_sync(~0u, ratio, __ffs(found) - 1), p.wanted, p.tolerance);
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.result[0] = s.best_tau;
    p.result[1] = s.best_ratio;
  }
}

// --- A wanted error -------------------------------------------------------------------------------------------------

constexpr int kErrorThreads = 512;
constexpr int kPairs = 16, kDepth = 32, kTries = 16;          // a block sums for 16 x 16 tiles of C
constexpr int kSampledPairs = 8, kEvery = 4;                  // of a sample: one of 4 rows and columns
constexpr double kNear = 0x1p-9, kGuard = 0x1p-6;             // what a sample finds, and what it may be wrong by
enum Mode { kTree, kEstimate, kGuided, kKnown };
constexpr int kPitch = kDepth + 16 / static_cast<int>(sizeof(Norm)), kPitchWide = kDepth + 2;

template <typename T>
struct __align__(16) Four {
  T value[4];
};

template <typename T>
__device__ __forceinline__ Four<T> four(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

struct Bracket {
  double low, high;                 // allowed and not, as bounds.largest_tau keeps them
  bool started, done;
};

// In rising order: the steps that the bisection may take next, and its upper end; at first fewer of them, between its
// lower end and infinity.
__device__ double bracket_candidate(const Bracket& s, int lane) {
  double low = s.low, high = s.high;
  int place = lane + 1, at = kTries / 2;
  if (!s.started) {
    if (lane == 0) return low;
    if (lane >= kTries / 2) return infinity();
    place = lane, at = kTries / 4;
  }
  if (place == kTries) return high;
  for (int step = at / 2;; step /= 2) {
    const double middle = sqrt(low) * sqrt(high);
    if (place == at) return middle;
    (place < at ? high : low) = middle;
    at += place < at ? -step : step;
  }
}

// Walk the steps that were tried: `tried` and `allowed` are of the candidates, a lane each.
__device__ void next_bracket(Bracket& s, double tried, bool allowed) {
  const unsigned all = __ballot_sync(~0u, allowed);
  int at = kTries / 2 - 1;
  if (!s.started) {
    s.started = true;
    if (all >> (kTries / 2) & 1) {                            // infinity
      s.low = infinity();
      s.done = true;
      return;
    }
    if (!(all & 1)) {
      // A threshold that skips nothing but zeros is always allowed.
      s.high = s.low;
      s.low = __longlong_as_double(1);
      s.done = !(s.high / s.low > 1 + 1e-6);
      return;
    }
    at = kTries / 4;
  }
  for (int step = (at + 1) / 2;; step /= 2) {
    s.done = !(s.high / s.low > 1 + 1e-6);
    if (s.done) return;
    const double middle = __shfl_sync(~0u, tried, at);
    const bool higher = all >> at & 1;
    (higher ? s.low : s.high) = middle;
    if (step == 0) break;
    at += higher ? step : -step;
  }
  s.done = !(s.high / s.low > 1 + 1e-6);
}

// How many of the candidates, which rise, a product reaches; it reaches the first and not the last.
__device__ __forceinline__ int bucket_of(Norm product, const Norm* taus) {
  const bool far = !(product < taus[7]);
  const bool half = !(product < (far ? taus[11] : taus[3]));
  const bool fourth = !(product < (far ? half ? taus[13] : taus[9] : half ? taus[5] : taus[1]));
  const Norm low = half ? fourth ? taus[6] : taus[4] : fourth ? taus[2] : taus[0];
  const Norm high = half ? fourth ? taus[14] : taus[12] : fourth ? taus[10] : taus[8];
  return 8 * far + 4 * half + 2 * fourth + !(product < (far ? high : low));
}

// A node of the tree of a bisection's steps: the lower end of interval `number` of the 2^depth that it cuts its own into.
__device__ double node_of(double low, double high, long long number, int depth) {
  for (int bit = depth - 1; bit >= 0; --bit) {
    const double middle = sqrt(low) * sqrt(high);
    (number >> bit & 1 ? low : high) = middle;
  }
  return low;
}

// What a search knows: the largest threshold that was found to be allowed, and the least that was not.
struct Known {
  double allowed, denied;
};

// Take the steps that what is known decides.
__device__ void walk(Bracket& s, const Known& known) {
  for (;;) {
    s.done = !(s.high / s.low > 1 + 1e-6);
    if (s.done) return;
    const double middle = sqrt(s.low) * sqrt(s.high);
    if (middle <= known.allowed)
      s.low = middle;
    else if (middle >= known.denied)
      s.high = middle;
    else
      return;
  }
}

// In rising order: steps of the bisection between what is known to be allowed and what is not.
__device__ double known_candidate(const Bracket& s, const Known& known, int lane) {
  const double width = log2(s.high / s.low), from = fmax(0.0, log2(known.allowed / s.low) / width);
  const double part = fmin(1.0, log2(known.denied / s.low) / width) - from;
  int depth = 1;
  while (depth < 40 && part * 2 * (1ll << depth) <= kTries - 2 && width / (1ll << depth) > 1.4e-6) ++depth;
  const long long first = static_cast<long long>(from * (1ll << depth)), number = first + lane;
  return number >= 1ll << depth ? s.high : node_of(s.low, s.high, number, depth);
}

struct State {
  Bracket exact, estimate;
  Known known;
  Mode mode;
};

struct Panels {
  Norm (*a)[kPitch];
  Norm (*b)[kPitch];
  double (*wide_a)[kPitchWide];
  double (*wide_b)[kPitchWide];
  double* buckets;                  // [bucket][thread]
};

// Of each `every` rows or columns of tiles of C one is in a sample, not the same in each.
__device__ __forceinline__ int sampled(int index, int every) {
  return index * every + static_cast<int>((static_cast<unsigned>(index) * 2654435761u >> 16) % every);
}

// Sum over tiles of C of the squares of what the candidate of this warp skips, shared among its lanes.  A block sums for
// kSide x kSide tiles at a time.
template <int kSide>
__device__ __forceinline__ double skipped_squares(const Search& p, const double* trials, double unit, int every,
                                                  const Panels& panels) {
  constexpr int kSplit = kErrorThreads / (kSide * kSide);     // threads that share the k of one tile
  double* buckets = panels.buckets;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide % kSide, part = threadIdx.x / (kSide * kSide);
  const int rows = (p.rows + every - 1) / every, columns = (p.columns + every - 1) / every;
  const int tiles_n = (columns + kSide - 1) / kSide;
  const long long tiles = static_cast<long long>((rows + kSide - 1) / kSide) * tiles_n;
  Norm taus[kTries];                                        // in registers
#pragma unroll
  for (int t = 0; t < kTries; ++t) taus[t] = static_cast<Norm>(trials[t]);
  const Norm least = taus[0], top = taus[kTries - 1];
  double total = 0;                                         // of the candidate of this warp
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int row0 = static_cast<int>(tile / tiles_n) * kSide, column0 = static_cast<int>(tile % tiles_n) * kSide;
    double below = 0;
#pragma unroll
    for (int t = 1; t < kTries; ++t) buckets[t * kErrorThreads + threadIdx.x] = 0;
    for (int k0 = 0; k0 < p.depth; k0 += kDepth) {
      __syncthreads();
      for (int e = threadIdx.x; e < 2 * kSide * kDepth; e += kErrorThreads) {
        const int side = e / (kSide * kDepth), r = e / kDepth % kSide, k = e % kDepth;
        const int number = (side ? column0 : row0) + r, index = every == 1 ? number : sampled(number, every);
        // Outside of the maps are zeros, which add nothing.
        const Norm x = index < (side ? p.columns : p.rows) && k0 + k < p.depth
                           ? (side ? p.norms_b : p.norms_a)[static_cast<long long>(index) * p.depth + k0 + k]
                           : Norm(0);
        (side ? panels.b : panels.a)[r][k] = x;
        (side ? panels.wide_b : panels.wide_a)[r][k] = x;
      }
      __syncthreads();
#pragma unroll 1
      for (int k = part * (kDepth / kSplit); k < (part + 1) * (kDepth / kSplit); k += 4) {
        const Four<Norm> x = four(&panels.a[ty][k]), y = four(&panels.b[tx][k]);
        // Summed in float64: the product of small float32 norms underflows.
        const Four<double> wide_x = four(&panels.wide_a[ty][k]), wide_y = four(&panels.wide_b[tx][k]);
        Norm product[4];
        bool within[4], any = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product[i] = x.value[i] * y.value[i];
          const bool skipped = product[i] < least;
          if (skipped) below += wide_x.value[i] * wide_y.value[i];
          any |= within[i] = !skipped && product[i] < top;
        }
        // Most passes have few products between their candidates.
        if (!__any_sync(~0u, any)) continue;
        int bucket[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) bucket[i] = bucket_of(product[i], taus);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (within[i]) buckets[bucket[i] * kErrorThreads + threadIdx.x] += wide_x.value[i] * wide_y.value[i];
      }
    }
    buckets[threadIdx.x] = below;
    __syncthreads();
    if (part == 0) {
      double sum = 0;
      for (int t = 0; t < kTries; ++t) {
#pragma unroll
        for (int other = 0; other < kSplit; ++other)
          sum += buckets[t * kErrorThreads + other * kSide * kSide + threadIdx.x];
        buckets[t * kErrorThreads + threadIdx.x] = (unit * sum) * (unit * sum);
      }
    }
    __syncthreads();
    for (int pair = lane; pair < kSide * kSide; pair += 32) total += buckets[warp * kErrorThreads + pair];
    __syncthreads();
  }
  return total;
}

// With kSampled a sample of the tiles of C says about where the threshold lies; what all of them say decides.
template <bool kSampled>
__device__ __forceinline__ void find_error(const Search& p) {
  extern __shared__ double buckets[];                         // [bucket][thread]
  __shared__ __align__(16) Norm a[kPairs][kPitch], b[kPairs][kPitch];
  __shared__ __align__(16) double wide_a[kPairs][kPitchWide], wide_b[kPairs][kPitchWide];
  __shared__ double sums[kErrorThreads / 32], trials[kTries];
  __shared__ bool over, sampling;
  __shared__ State state;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned round = 0;

  // The largest norms and the least that are not zero, and so of each k the largest and the least product of two.
  double* most = p.partial;
  for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
    double most_a = 0, most_b = 0, least_a = infinity(), least_b = infinity();
    for (int i = threadIdx.x; i < p.rows; i += kErrorThreads) {
      const double x = p.norms_a[static_cast<long long>(i) * p.depth + k];
      most_a = fmax(most_a, x);
      if (x > 0) least_a = fmin(least_a, x);
    }
    for (int j = threadIdx.x; j < p.columns; j += kErrorThreads) {
      const double x = p.norms_b[static_cast<long long>(j) * p.depth + k];
      most_b = fmax(most_b, x);
      if (x > 0) least_b = fmin(least_b, x);
    }
    most_a = block_reduce<kErrorThreads, true>(most_a, sums);
    most_b = block_reduce<kErrorThreads, true>(most_b, sums);
    least_a = -block_reduce<kErrorThreads, true>(-least_a, sums);
    least_b = -block_reduce<kErrorThreads, true>(-least_b, sums);
    if (threadIdx.x == 0) {
      most[k] = most_a, most[p.depth + k] = most_b;
      most[2 * p.depth + k] = least_a * least_b;
    }
  }
  wait_for_blocks(p.arrived, round);
  double most_a = 0, most_b = 0, largest = 0, smallest = infinity();
  for (int k = threadIdx.x; k < p.depth; k += kErrorThreads) {
    most_a = fmax(most_a, most[k]);
    most_b = fmax(most_b, most[p.depth + k]);
    largest = fmax(largest, most[k] * most[p.depth + k]);
    smallest = fmin(smallest, most[2 * p.depth + k]);
  }
  most_a = block_reduce<kErrorThreads, true>(most_a, sums);
  most_b = block_reduce<kErrorThreads, true>(most_b, sums);
  largest = block_reduce<kErrorThreads, true>(largest, sums);
  smallest = -block_reduce<kErrorThreads, true>(-smallest, sums);
  // Frobenius norms, scaled by powers of two, so that squares stay in range.
  const int exponent_a = most_a > 0 ? ilogb(most_a) : 0, exponent_b = most_b > 0 ? ilogb(most_b) : 0;
  double* squares = p.partial + 3 * p.depth;
  for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
    double sum_a = 0, sum_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kErrorThreads) {
      const double x = scalbn(static_cast<double>(p.norms_a[static_cast<long long>(i) * p.depth + k]), -exponent_a);
      sum_a += x * x;
    }
    for (int j = threadIdx.x; j < p.columns; j += kErrorThreads) {
      const double x = scalbn(static_cast<double>(p.norms_b[static_cast<long long>(j) * p.depth + k]), -exponent_b);
      sum_b += x * x;
    }
    sum_a = block_reduce<kErrorThreads, false>(sum_a, sums);
    sum_b = block_reduce<kErrorThreads, false>(sum_b, sums);
    if (threadIdx.x == 0) squares[k] = sum_a, squares[p.depth + k] = sum_b;
  }
  wait_for_blocks(p.arrived, round);
  double norm_a = 0, norm_b = 0;
  for (int k = threadIdx.x; k < p.depth; k += kErrorThreads) norm_a += squares[k], norm_b += squares[p.depth + k];
  norm_a = scalbn(sqrt(block_reduce<kErrorThreads, false>(norm_a, sums)), exponent_a);
  norm_b = scalbn(sqrt(block_reduce<kErrorThreads, false>(norm_b, sums)), exponent_b);
  const double scale = norm_a * norm_b / (p.slack * p.slack);
  const double product = (norm_a * p.slack) * (norm_b * p.slack);
  const double limit = p.rtol * scale - (p.relative * product + p.underflow);
  // Products of float32 norms have squares that float64 holds; others are squared as multiples of about the largest.
  const double unit = NORM_BITS == 32 ? 1.0 : scalbn(1.0, -max(-1000, min(1000, ilogb(largest))));

  const double high = largest < infinity() ? __longlong_as_double(__double_as_longlong(largest) + 1) : largest;
  Bracket s = {high * 0x1p-80, high, false, false};
  if (norm_a == 0 || norm_b == 0) {
    s.low = infinity(), s.done = true;
  } else if (!(limit >= 0) || product > p.highest || fmax(norm_a, norm_b) * p.slack > p.operand) {
    s.low = __longlong_as_double(-1), s.done = true;    // no threshold: a NaN leaves every product valid
  }
  // Below the least product nothing but zeros is skipped, which needs no trial.
  while (!s.done && s.high / s.low > 1 + 1e-6) {
    const double middle = sqrt(s.low) * sqrt(s.high);
    if (!(static_cast<Norm>(middle) <= static_cast<Norm>(smallest))) break;
    s.low = middle;
  }
  double* found = p.partial + 5 * p.depth;                    // [pass & 1][block][candidate]
  const Panels panels = {a, b, wide_a, wide_b, buckets};
  const double share = static_cast<double>((p.rows + kEvery - 1) / kEvery) * ((p.columns + kEvery - 1) / kEvery) /
                       (static_cast<double>(p.rows) * p.columns);
  // Between passes, which need all registers, the first warp keeps its state in shared memory.
  if (threadIdx.x == 0) state = {s, s, {0, infinity()}, kSampled ? kEstimate : kTree};
  __syncthreads();
  for (int pass = 0;; ++pass) {
    if (warp == 0) {
      const Bracket s = state.exact, estimate = state.estimate;
      const Known known = state.known;
      Mode mode = kSampled ? state.mode : kTree;
      if (mode == kEstimate && (estimate.done || !(estimate.high / estimate.low > 1 + kNear) || pass == 8))
        mode = estimate.started && estimate.low >= s.low && estimate.low < infinity() ? kGuided : kTree;
      double tried = 0;
      if (mode == kGuided) {
        const double low = fmax(estimate.low * (1 - kGuard), s.low), high = fmin(estimate.high * (1 + kGuard), s.high);
        tried = lane == kTries - 1 ? high : low * exp2(log2(high / low) * lane / (kTries - 1));
      } else if (lane < kTries) {
        tried = mode == kKnown ? known_candidate(s, known, lane) : bracket_candidate(mode == kTree ? s : estimate, lane);
      }
      if (lane < kTries) trials[lane] = tried;
      __syncwarp();
      if (lane == 0) over = s.done || pass == kMostPasses, sampling = mode == kEstimate, state.mode = mode;
    }
    __syncthreads();
    if (over) break;
    const bool part = sampling;
    double total = kSampled && part ? skipped_squares<kSampledPairs>(p, trials, unit, kEvery, panels)
                                    : skipped_squares<kPairs>(p, trials, unit, 1, panels);
    total = warp_sum(total);
    if (lane == 0) found[((pass & 1) * gridDim.x + blockIdx.x) * kTries + warp] = total;
    wait_for_blocks(p.arrived, round);
    double all = 0;
    for (int block = lane; block < gridDim.x; block += 32)
      all += __ldcg(found + ((pass & 1) * gridDim.x + block) * kTries + warp);
    all = warp_sum(all);
    if (lane == 0) sums[warp] = sqrt(kSampled && part ? all / share : all) * p.slack;
    __syncthreads();
    if (warp == 0) {
      Bracket s = state.exact, estimate = state.estimate;
      Known known = state.known;
      Mode mode = kSampled ? state.mode : kTree;
      const double tried = lane < kTries ? trials[lane] : -1;
      const bool allowed = lane < kTries && sums[lane] <= limit * unit;
      if (mode == kTree) {
        next_bracket(s, tried, allowed);
      } else if (mode == kEstimate) {
        next_bracket(estimate, tried, allowed);
      } else {
        const int count = __ffs(~__ballot_sync(~0u, allowed)) - 1;      // that are allowed: the first ones
        if (count > 0) known.allowed = fmax(known.allowed, __shfl_sync(~0u, tried, count - 1));
        if (count < kTries) known.denied = fmin(known.denied, __shfl_sync(~0u, tried, count));
        if (known.allowed > 0 && known.denied < infinity()) {
          s.started = true, mode = kKnown;
          walk(s, known);
        } else {
          mode = kTree;
        }
      }
      __syncwarp();
      if (lane == 0) state = {s, estimate, known, mode};
    }
    __syncthreads();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) p.result[0] = state.exact.low;
}

extern "C" __global__ void __launch_bounds__(kErrorThreads, 2) search_error(const Search p) { find_error<false>(p); }

extern "C" __global__ void __launch_bounds__(kErrorThreads, 2) search_error_sampled(const Search p) { find_error<true>(p); }
