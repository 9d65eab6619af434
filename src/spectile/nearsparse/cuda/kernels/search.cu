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

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kChunk = CHUNK;       // norms that are sorted together, two for each thread
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
  double wanted, tolerance;         // of the valid ratio
  double rtol, slack, relative, underflow;   // of the error: see bounds.py
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
template <bool kMax>
__device__ double block_reduce(double x, double* shared) {
  x = kMax ? warp_max(x) : warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double all = shared[0];
  for (int warp = 1; warp < kWarps; ++warp) all = kMax ? fmax(all, shared[warp]) : all + shared[warp];
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

__device__ double candidate(const Trial& s, bool first, int lane) {
  if (!s.growing) return lane == 0 ? s.tau : step_between(s.low, s.high, lane);
  if (first && lane >= 16) return step_between(0, s.high, lane - 15);
  return scalbn(s.tau, lane);
}

// Sort `count` keys of a power of two; a thread compares one pair, and pairs of one warp meet in steps up to 32.
__device__ void sort_keys(Key* keys, int count) {
  for (int size = 2; size <= count; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      const int pair = threadIdx.x;
      if (pair < count / 2) {
        const int i = 2 * pair - (pair & (step - 1)), j = i + step;
        const Key x = keys[i], y = keys[j];
        if ((x > y) == ((i & size) == 0)) keys[i] = y, keys[j] = x;
      }
      const int next = step > 1 ? step / 2 : size;
      if (step > 32 || next > 32)
        __syncthreads();
      else
        __syncwarp();
    }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads) search_ratio(const Search p) {
  __shared__ Key keys[kChunk];
  __shared__ double sums[kWarps];
  __shared__ unsigned long long valid[32];
  __shared__ double trials[32];
  __shared__ bool over;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = (p.columns + kChunk - 1) / kChunk;
  const long long pieces = static_cast<long long>(p.depth) * chunks;
  unsigned round = 0;

  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < 32 * kMostPasses; i += kThreads) p.counts[i] = 0;
  for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int k = piece / chunks, chunk = piece % chunks, first = chunk * kChunk;
    const int count = min(kChunk, p.columns - first);
    int padded = 2;
    while (padded < count) padded *= 2;
    double sum_a = 0, sum_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kThreads) {
      const Norm x = p.norms_a[static_cast<long long>(i) * p.depth + k];
      sum_a += x;
      if (chunk == 0) p.columns_a[static_cast<long long>(k) * p.rows + i] = x;
    }
    for (int j = threadIdx.x; j < padded; j += kThreads) {
      const Norm x = j < count ? p.norms_b[static_cast<long long>(first + j) * p.depth + k] : Norm(0);
      sum_b += x;
      keys[j] = j < count ? key_of(x) : ~Key(0);
    }
    sum_a = block_reduce<false>(sum_a, sums);
    sum_b = block_reduce<false>(sum_b, sums);
    if (threadIdx.x == 0) p.partial[piece] = sum_a * sum_b;
    sort_keys(keys, padded);
    for (int j = threadIdx.x; j < count; j += kThreads)
      p.sorted[static_cast<long long>(k) * p.columns + first + j] = norm_of(keys[j]);
    __syncthreads();
  }
  wait_for_blocks(p.arrived, round);

  double mean = 0;
  for (long long piece = threadIdx.x; piece < pieces; piece += kThreads) mean += p.partial[piece];
  const double total = static_cast<double>(p.rows) * p.columns * p.depth;
  mean = block_reduce<false>(mean, sums) / total;
  // The trials are followed by the first warp of each block.
  Trial s = {mean, 0, mean, 0, 1, p.iterations, true, p.wanted >= 1 || !(mean > 0)};
  if (isnan(mean)) s.best_tau = mean;
  // A piece is cut by rows until all blocks have work.
  const int slabs = max(1LL, min(p.rows / (4LL * kWarps), 2 * gridDim.x / pieces));
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
    for (long long item = blockIdx.x; item < pieces * slabs; item += gridDim.x) {
      const long long piece = item / slabs;
      const int slab = item % slabs, k = piece / chunks, first = static_cast<int>(piece % chunks) * kChunk;
      const int count = min(kChunk, p.columns - first);
      __syncthreads();
      for (int j = threadIdx.x; j < count; j += kThreads)
        keys[j] = key_of(p.sorted[static_cast<long long>(k) * p.columns + first + j]);
      __syncthreads();
      const int each = (p.rows + slabs - 1) / slabs, last = min(p.rows, (slab + 1) * each);
      const Norm* column = p.columns_a + static_cast<long long>(k) * p.rows;
      int start = 1;
      while (2 * start <= count) start *= 2;
      // A lane counts for one candidate: the norms of B from the first one on that reaches it with a norm of A.
      for (int i = slab * each + warp; i < last; i += 4 * kWarps) {
        Norm a[4];
        int below[4] = {};
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = column[min(i + r * kWarps, last - 1)];
        for (int step = start; step > 0; step /= 2)
#pragma unroll
          for (int r = 0; r < 4; ++r)
            if (below[r] + step <= count && a[r] * norm_of(keys[below[r] + step - 1]) < tau) below[r] += step;
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (i + r * kWarps < last) mine += count - below[r];
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

constexpr int kPairs = 16, kDepth = 32, kTries = 16;          // a block sums for 16 x 16 tiles of C
constexpr int kSplit = kThreads / (kPairs * kPairs);          // threads that share the k of one
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

__device__ void next_bracket(Bracket& s, double tried, bool allowed) {
  if (!s.started) {
    s.started = true;
    if (__ballot_sync(~0u, allowed && isinf(tried))) {
      s.low = infinity();
      s.done = true;
      return;
    }
    if (!__shfl_sync(~0u, allowed, 0)) {
      // A threshold that skips nothing but zeros is always allowed.
      s.high = s.low;
      s.low = __longlong_as_double(1);
    }
  }
  while (!(s.done = !(s.high / s.low > 1 + 1e-6))) {
    const double middle = sqrt(s.low) * sqrt(s.high);
    const unsigned found = __ballot_sync(~0u, tried == middle);
    if (!found) return;
    (__shfl_sync(~0u, allowed, __ffs(found) - 1) ? s.low : s.high) = middle;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) search_error(const Search p) {
  extern __shared__ double buckets[];                         // [bucket][thread]
  __shared__ __align__(16) Norm a[kPairs][kPitch], b[kPairs][kPitch];
  __shared__ __align__(16) double wide_a[kPairs][kPitchWide], wide_b[kPairs][kPitchWide];
  __shared__ double sums[kWarps], trials[kTries];
  __shared__ Norm taus[kTries];
  __shared__ bool over;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tx = threadIdx.x % kPairs, ty = threadIdx.x / kPairs % kPairs, part = threadIdx.x / (kPairs * kPairs);
  unsigned round = 0;

  // The largest norms, and of each k the largest product of two.
  double* most = p.partial;
  for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
    double most_a = 0, most_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kThreads)
      most_a = fmax(most_a, static_cast<double>(p.norms_a[static_cast<long long>(i) * p.depth + k]));
    for (int j = threadIdx.x; j < p.columns; j += kThreads)
      most_b = fmax(most_b, static_cast<double>(p.norms_b[static_cast<long long>(j) * p.depth + k]));
    most_a = block_reduce<true>(most_a, sums);
    most_b = block_reduce<true>(most_b, sums);
    if (threadIdx.x == 0) most[k] = most_a, most[p.depth + k] = most_b;
  }
  wait_for_blocks(p.arrived, round);
  double most_a = 0, most_b = 0, largest = 0;
  for (int k = threadIdx.x; k < p.depth; k += kThreads) {
    most_a = fmax(most_a, most[k]);
    most_b = fmax(most_b, most[p.depth + k]);
    largest = fmax(largest, most[k] * most[p.depth + k]);
  }
  most_a = block_reduce<true>(most_a, sums);
  most_b = block_reduce<true>(most_b, sums);
  largest = block_reduce<true>(largest, sums);
  // Frobenius norms, scaled by powers of two, so that squares stay in range.
  const int exponent_a = most_a > 0 ? ilogb(most_a) : 0, exponent_b = most_b > 0 ? ilogb(most_b) : 0;
  double* squares = p.partial + 2 * p.depth;
  for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
    double sum_a = 0, sum_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kThreads) {
      const double x = scalbn(static_cast<double>(p.norms_a[static_cast<long long>(i) * p.depth + k]), -exponent_a);
      sum_a += x * x;
    }
    for (int j = threadIdx.x; j < p.columns; j += kThreads) {
      const double x = scalbn(static_cast<double>(p.norms_b[static_cast<long long>(j) * p.depth + k]), -exponent_b);
      sum_b += x * x;
    }
    sum_a = block_reduce<false>(sum_a, sums);
    sum_b = block_reduce<false>(sum_b, sums);
    if (threadIdx.x == 0) squares[k] = sum_a, squares[p.depth + k] = sum_b;
  }
  wait_for_blocks(p.arrived, round);
  double norm_a = 0, norm_b = 0;
  for (int k = threadIdx.x; k < p.depth; k += kThreads) norm_a += squares[k], norm_b += squares[p.depth + k];
  norm_a = scalbn(sqrt(block_reduce<false>(norm_a, sums)), exponent_a);
  norm_b = scalbn(sqrt(block_reduce<false>(norm_b, sums)), exponent_b);
  const double scale = norm_a * norm_b / (p.slack * p.slack);
  const double rounding = p.relative * ((norm_a * p.slack) * (norm_b * p.slack)) + p.underflow;
  const double limit = p.rtol * scale - rounding;

  const double high = largest < infinity() ? __longlong_as_double(__double_as_longlong(largest) + 1) : largest;
  Bracket s = {high * 0x1p-80, high, false, false};
  if (norm_a == 0 || norm_b == 0) {
    s.low = infinity(), s.done = true;
  } else if (!(limit >= 0)) {
    s.low = __longlong_as_double(-1), s.done = true;    // no threshold: a NaN leaves every product valid
  }
  double* found = p.partial + 4 * p.depth;                    // [pass & 1][block][candidate]
  const int tiles_n = (p.columns + kPairs - 1) / kPairs;
  const long long tiles = static_cast<long long>((p.rows + kPairs - 1) / kPairs) * tiles_n;
  for (int pass = 0;; ++pass) {
    if (warp == 0) {
      if (lane < kTries) trials[lane] = bracket_candidate(s, lane), taus[lane] = static_cast<Norm>(trials[lane]);
      if (lane == 0) over = s.done || pass == kMostPasses;
    }
    __syncthreads();
    if (over) break;
    const Norm least = taus[0], top = taus[kTries - 1];
    double total = 0;                                         // of the candidate of this warp
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int row0 = static_cast<int>(tile / tiles_n) * kPairs, column0 = static_cast<int>(tile % tiles_n) * kPairs;
      double below = 0;
#pragma unroll
      for (int t = 1; t < kTries; ++t) buckets[t * kThreads + threadIdx.x] = 0;
      for (int k0 = 0; k0 < p.depth; k0 += kDepth) {
        __syncthreads();
        for (int e = threadIdx.x; e < 2 * kPairs * kDepth; e += kThreads) {
          const int side = e / (kPairs * kDepth), r = e / kDepth % kPairs, k = e % kDepth;
          const int index = (side ? column0 : row0) + r;
          // Outside of the maps are zeros, which add nothing.
          const Norm x = index < (side ? p.columns : p.rows) && k0 + k < p.depth
                             ? (side ? p.norms_b : p.norms_a)[static_cast<long long>(index) * p.depth + k0 + k]
                             : Norm(0);
          (side ? b : a)[r][k] = x;
          (side ? wide_b : wide_a)[r][k] = x;
        }
        __syncthreads();
#pragma unroll
        for (int k = part * (kDepth / kSplit); k < (part + 1) * (kDepth / kSplit); k += 4) {
          const Four<Norm> x = four(&a[ty][k]), y = four(&b[tx][k]);
          // Summed in float64: the product of small float32 norms underflows.
          const Four<double> wide_x = four(&wide_a[ty][k]), wide_y = four(&wide_b[tx][k]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const Norm product = x.value[i] * y.value[i];
            if (product < least) below += wide_x.value[i] * wide_y.value[i];
            if (product < top && !(product < least)) {
              int bucket = 0;
#pragma unroll
              for (int step = kTries / 2; step > 0; step /= 2)
                if (!(product < taus[bucket + step - 1])) bucket += step;
              buckets[bucket * kThreads + threadIdx.x] += wide_x.value[i] * wide_y.value[i];
            }
          }
        }
      }
      buckets[threadIdx.x] = below;
      __syncthreads();
      if (part == 0) {
        double sum = 0;
        for (int t = 0; t < kTries; ++t) {
#pragma unroll
          for (int other = 0; other < kSplit; ++other)
            sum += buckets[t * kThreads + other * kPairs * kPairs + threadIdx.x];
          buckets[t * kThreads + threadIdx.x] = sum * sum;
        }
      }
      __syncthreads();
      for (int pair = lane; pair < kPairs * kPairs; pair += 32) total += buckets[warp * kThreads + pair];
      __syncthreads();
    }
    total = warp_sum(total);
    if (lane == 0) found[((pass & 1) * gridDim.x + blockIdx.x) * kTries + warp] = total;
    wait_for_blocks(p.arrived, round);
    double all = 0;
    for (int block = lane; block < gridDim.x; block += 32)
      all += __ldcg(found + ((pass & 1) * gridDim.x + block) * kTries + warp);
    all = warp_sum(all);
    if (lane == 0) sums[warp] = sqrt(all) * p.slack;
    __syncthreads();
    if (warp == 0) next_bracket(s, lane < kTries ? trials[lane] : -1, lane < kTries && sums[lane] <= limit);
    __syncthreads();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) p.result[0] = s.low;
}
