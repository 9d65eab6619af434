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
  unsigned long long* counts;       // valid products of each candidate of each pass; of an error: curves, and products listed
  unsigned* arrived;                // zero at launch
  double* result;                   // tau, and the share that it leaves
  int rows, columns, depth, iterations;
  int held, slot;                   // pieces that a block keeps in shared memory, and the norms of each with its own of A;
                                    // of an error: products that it lists
  double wanted, tolerance;         // of the valid ratio
  double rtol, slack, relative, lift_a, lift_b, underflow;   // of the error: see bounds.py
  double highest, operand;          // the largest product of norms, and the largest norm, of which nothing overflows
};

// Wait until all blocks are here; what they wrote can be read.  Meanwhile the threads but the first of each block may do
// something else.
template <typename Meanwhile>
__device__ __forceinline__ void wait_for_blocks(unsigned* arrived, unsigned& round, Meanwhile meanwhile) {
  __syncthreads();
  ++round;
  meanwhile();
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
  wait_for_blocks(p.arrived, round, [] {});

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
    wait_for_blocks(p.arrived, round, [] {});
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
//
// A sample of the tiles of C gives the curve of the error over the threshold.  A pass over all tiles sums what is skipped
// at the lower end of a bracket around the crossing, and lists the products inside it: these decide every threshold there.

constexpr int kErrorThreads = 512, kErrorWarps = kErrorThreads / 32;
constexpr int kTileRows = 32, kTileColumns = 16;              // of C: a block's at a time, 16 tiles a lane
constexpr int kPairs = kTileRows * kTileColumns;
constexpr int kDeep = NORM_BITS == 32 ? 128 : 64;             // k's of their norms in shared memory, twice
constexpr int kPitch = kDeep + 16 / static_cast<int>(sizeof(Norm)), kPanel = (kTileRows + kTileColumns) * kPitch;
constexpr int kCurve = 256, kLevels = 3;                      // intervals of the curve, and how often it is refined
constexpr int kFine = NORM_BITS == 32 ? 16 : 45;              // bits of a key in an interval that is narrow enough
constexpr int kBins = kErrorThreads, kSelections = 6;         // intervals of the products listed, and how often
constexpr int kFew = 512;                                     // products that a block lists in little time
constexpr int kMostTrials = 96;
constexpr int kMostSteps = 64;                                // of the bisection: MOST_BISECTIONS of bounds.py
// Below it the norm of a matrix may be off by more than its slack: LEAST_NORM of bounds.py.
constexpr double kLeastNorm = NORM_BITS == 32 ? 0x1p-110 : 0x1p-960;

template <typename T>
struct __align__(16) Four {
  T value[4];
};

template <typename T>
__device__ __forceinline__ Four<T> four(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

// The bisection of bounds.largest_tau, whose steps are decided by what is known: keys of thresholds, the largest one that
// is allowed and the least one that is not.
struct Bracket {
  double low, high, root_low, root_high;
  int steps;
  bool started, done;
};

// The next larger one of numbers from 0 on.
__device__ __forceinline__ double next_above(double x) { return __longlong_as_double(__double_as_longlong(x) + 1); }

struct Known {
  Key allowed, denied;
};

// Not inline, here and below: code that runs once comes from memory, and each line of it is waited for.
__device__ __noinline__ void walk(Bracket& s, Key allowed, Key denied) {
  if (!s.started) {
    const Key low = key_of(static_cast<Norm>(s.low));
    if (low > allowed && low < denied) return;
    if (low > allowed) s.high = s.low, s.low = __longlong_as_double(1);
    s.root_low = sqrt(s.low), s.root_high = sqrt(s.high);
    s.started = true;
  }
  while (!s.done) {
    // Numbers near 0 are further apart.
    s.done = !(s.high > fmax(s.low * (1 + 1e-6), next_above(s.low))) || s.steps == kMostSteps;
    if (s.done) return;
    const double middle = s.root_low * s.root_high;
    const Key key = key_of(static_cast<Norm>(middle));
    if (key <= allowed)
      s.low = middle, s.root_low = sqrt(middle);
    else if (key >= denied)
      s.high = middle, s.root_high = sqrt(middle);
    else
      return;
    ++s.steps;
  }
}

template <bool kMax>
__device__ __noinline__ double reduce(double x, double* shared) {
  return block_reduce<kErrorThreads, kMax>(x, shared);
}

// What a block shares beside its panels.
struct Shared {
  double base[kPairs];              // of a tile of C: what is skipped at the lower end
  double curve[kCurve], tally[kCurve];   // at the upper end of each interval: sum of squares; products in it
  double sums[kErrorWarps];
  unsigned long long bins[kErrorWarps];
  int heads[kPairs];                // of the chains of listed products of one tile
  int listed;
  Bracket bracket;
  Known known;
  Key low, high;                    // of the pass
  bool over;
};

// Products that are listed: value, then by how much it raises the sum of squares, tile of C, next one in the chain.
struct List {
  double* value;
  double* weight;
  int* pair;
  int* next;
};

// The curve: intervals of 2^shift keys from a first one, at whose lower end it is `start`.
struct Curve {
  Key from;
  int shift;
  double start;
};

__device__ __forceinline__ Key edge_of(const Curve& c, int interval) { return c.from + (static_cast<Key>(interval) << c.shift); }

__device__ __forceinline__ double value_of(Key key) { return static_cast<double>(norm_of(key)); }

// Sums of squares of one of about `share` pairs of a row and a column of tiles, at the upper end of each interval.
__device__ void sample(const Search& p, const Curve& c, double unit, long long samples, unsigned* own, double* parts,
                       double* squares, double* counts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kEach = kCurve / 32;
  const long long pairs = static_cast<long long>(p.rows) * p.columns;
  const Norm low = norm_of(c.from);
  double square[kEach] = {};
  unsigned count[kEach] = {};
#pragma unroll
  for (int m = 0; m < kEach; ++m) own[m * 32 + lane] = 0;
  __syncwarp();
  for (long long s = blockIdx.x * kErrorWarps + warp; s < samples; s += gridDim.x * kErrorWarps) {
    // All of them, or a lattice: no row or column of tiles is in two samples that are near each other.
    const unsigned number = static_cast<unsigned>(s);
    const int row = samples == pairs ? static_cast<int>(s / p.columns) : __umulhi(number * 3242174889u, p.rows);
    const int column = samples == pairs ? static_cast<int>(s % p.columns) : __umulhi(number * 2447445414u, p.columns);
    const Norm* x = p.norms_a + static_cast<long long>(row) * p.depth;
    const Norm* y = p.norms_b + static_cast<long long>(column) * p.depth;
    double below = 0;
#pragma unroll 4
    for (int k = lane; k < p.depth; k += 32) {
      const Norm product = x[k] * y[k];
      if (product < low) {
        below += product;
      } else {
        const Key interval = (key_of(product) - c.from) >> c.shift;
        if (interval < kCurve) atomicAdd(own + (interval % kEach * 32 + interval / kEach), 1u);
      }
    }
    below = warp_sum(below);
    __syncwarp();
    double run = 0, up_to[kEach];
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      const unsigned found = own[m * 32 + lane];
      own[m * 32 + lane] = 0;
      count[m] += found;
      if (found) run += found * value_of(edge_of(c, lane * kEach + m) + (static_cast<Key>(1) << c.shift >> 1));
      up_to[m] = run;
    }
    double before = run;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double other = __shfl_up_sync(~0u, before, offset);
      if (lane >= offset) before += other;
    }
    before = __shfl_up_sync(~0u, before, 1);
    if (lane == 0) before = 0;
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      const double sum = unit * (below + before + up_to[m]);
      square[m] += sum * sum;
    }
    __syncwarp();
  }
  __syncthreads();
  for (int turn = 0; turn < 2; ++turn) {
#pragma unroll
    for (int m = 0; m < kEach; ++m) parts[warp * kCurve + lane * kEach + m] = turn == 0 ? square[m] : count[m];
    __syncthreads();
    if (threadIdx.x < kCurve) {
      double sum = 0;
      for (int other = 0; other < kErrorWarps; ++other) sum += parts[other * kCurve + threadIdx.x];
      if (sum > 0) atomicAdd((turn == 0 ? squares : counts) + threadIdx.x, sum);
    }
    __syncthreads();
  }
}

// The first interval at whose upper end the curve is above a value, or kCurve; by one warp.
__device__ int interval_above(const Shared& s, double value) {
  int count = 0;
#pragma unroll
  for (int m = 0; m < kCurve / 32; ++m) count += __popc(__ballot_sync(~0u, s.curve[m * 32 + threadIdx.x % 32] <= value));
  return count;
}

// The threshold at which the curve has a value, between two keys; by one warp.
__device__ __noinline__ Key key_at(const Shared& s, const Curve& c, double value, Key least, Key most) {
  const int interval = interval_above(s, value);
  Key key = most;
  if (interval < kCurve) {
    const double before = interval == 0 ? c.start : s.curve[interval - 1], step = s.curve[interval] - before;
    const double width = scalbn(1.0, c.shift);
    key = edge_of(c, interval) + static_cast<Key>(fmin(fmax((value - before) / step, 0.0), 1.0) * width);
  }
  return key < least ? least : key > most ? most : key;
}

// The curve at a threshold.
__device__ __noinline__ double curve_at(const Shared& s, const Curve& c, Key key) {
  if (key <= c.from) return c.start;
  const Key interval = (key - c.from) >> c.shift;
  if (interval >= kCurve) return s.curve[kCurve - 1];
  const double before = interval == 0 ? c.start : s.curve[interval - 1];
  return before + (s.curve[interval] - before) * scalbn(static_cast<double>(key - edge_of(c, interval)), -c.shift);
}

// About how many products lie between two keys, of the samples; by one warp.
__device__ __noinline__ double products_between(const Shared& s, const Curve& c, Key low, Key high) {
  if (low < c.from || high > edge_of(c, kCurve)) return infinity();
  double sum = 0;
  for (int m = threadIdx.x % 32; m < kCurve; m += 32) {
    const Key first = edge_of(c, m), last = edge_of(c, m + 1);
    const Key from = first > low ? first : low, to = last < high ? last : high;
    if (from < to) sum += s.tally[m] * scalbn(static_cast<double>(to - from), -c.shift);
  }
  return warp_sum(sum);
}

// Add x y where the product of norms is below a threshold, with a predicate: the compiler takes two selections instead.
__device__ __forceinline__ void add_below(double& sum, Norm product, Norm threshold, double x, double y) {
#if NORM_BITS == 32
  asm("{\n.reg .pred below;\nsetp.lt.f32 below, %1, %2;\n@below fma.rn.f64 %0, %3, %4, %0;\n}"
      : "+d"(sum) : "f"(product), "f"(threshold), "d"(x), "d"(y));
#else
  asm("{\n.reg .pred below;\nsetp.lt.f64 below, %1, %2;\n@below fma.rn.f64 %0, %3, %4, %0;\n}"
      : "+d"(sum) : "d"(product), "d"(threshold), "d"(x), "d"(y));
#endif
}

// Sum over this block's tiles of C of the squares of what the threshold `low` skips, shared among its threads.  Products
// from `low` up to `high` are listed with what each adds to the squares when the threshold rises above it.
__device__ double skipped_squares(const Search& p, Shared& s, const List& list, Norm* panels, double* parts, double unit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, ty = lane / 4, tx = lane % 4;
  const Key from = s.low, width = s.high - s.low;
  const Norm low = norm_of(from);
  const int across = (p.columns + kTileColumns - 1) / kTileColumns, chunks = (p.depth + kDeep - 1) / kDeep;
  const long long tiles = static_cast<long long>((p.rows + kTileRows - 1) / kTileRows) * across;
  const int mine = tiles > blockIdx.x ? static_cast<int>((tiles - 1 - blockIdx.x) / gridDim.x) + 1 : 0, steps = mine * chunks;
  constexpr int kPiece = 16 / sizeof(Norm), kPieces = kDeep / kPiece;
  const bool aligned = (reinterpret_cast<unsigned long long>(p.norms_a) | reinterpret_cast<unsigned long long>(p.norms_b) |
                        p.depth * sizeof(Norm)) % 16 == 0;

  auto stage = [&](int step) {
    if (step < steps) {
      const long long tile = blockIdx.x + static_cast<long long>(step / chunks) * gridDim.x;
      const int row0 = static_cast<int>(tile / across) * kTileRows, column0 = static_cast<int>(tile % across) * kTileColumns;
      const int k0 = step % chunks * kDeep;
      Norm* panel = panels + (step & 1) * kPanel;
      // Outside of the maps are zeros, which add nothing.
      if (aligned) {
        for (int e = threadIdx.x; e < (kTileRows + kTileColumns) * kPieces; e += kErrorThreads) {
          const int r = e / kPieces, k = k0 + e % kPieces * kPiece, index = r < kTileRows ? row0 + r : column0 + r - kTileRows;
          const bool there = k < p.depth && index < (r < kTileRows ? p.rows : p.columns);
          const Norm* map = r < kTileRows ? p.norms_a : p.norms_b;
          copy_async(shared_address(panel + r * kPitch + e % kPieces * kPiece),
                     there ? map + static_cast<long long>(index) * p.depth + k : map, there ? 16 : 0);
        }
      } else {
#pragma unroll 4
        for (int e = threadIdx.x; e < (kTileRows + kTileColumns) * kDeep; e += kErrorThreads) {
          const int r = e / kDeep, k = k0 + e % kDeep, index = r < kTileRows ? row0 + r : column0 + r - kTileRows;
          const bool there = k < p.depth && index < (r < kTileRows ? p.rows : p.columns);
          panel[r * kPitch + e % kDeep] =
              there ? (r < kTileRows ? p.norms_a : p.norms_b)[static_cast<long long>(index) * p.depth + k] : Norm(0);
        }
      }
    }
    commit_copies();
  };

  if (threadIdx.x == 0) s.listed = 0;
  for (int i = threadIdx.x; i < kPairs; i += kErrorThreads) s.heads[i] = -1;
  double total = 0, sum[4][4] = {};
  int first = 0;
  stage(0);
  for (int step = 0; step < steps; ++step) {
    stage(step + 1);
    wait_copies<1>();
    __syncthreads();
    const Norm* a = panels + (step & 1) * kPanel;
    const Norm* b = a + kTileRows * kPitch;
    const int deep = min(kDeep, p.depth - step % chunks * kDeep);
    // The warps share the k; each sums for all tiles of C.
#pragma unroll 1
    for (int k = 4 * warp; k < deep; k += 4 * kErrorWarps) {
      Four<Norm> x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = four(a + (ty + 8 * i) * kPitch + k), y[i] = four(b + (tx + 4 * i) * kPitch + k);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        // Summed in float64: the product of small float32 norms underflows.
        double wide_x[4], wide_y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) wide_x[i] = x[i].value[kk], wide_y[i] = y[i].value[kk];
        Key least = ~Key(0);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const Norm product = x[i].value[kk] * y[j].value[kk];
            add_below(sum[i][j], product, low, wide_x[i], wide_y[j]);
            const Key above = key_of(product) - from;         // below it is a large number
            least = above < least ? above : least;
          }
        if (least >= width) continue;
        unsigned hits = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            hits |= static_cast<unsigned>(key_of(x[i].value[kk] * y[j].value[kk]) - from < width) << (4 * i + j);
        for (; hits; hits &= hits - 1) {
          const int at = __ffs(hits) - 1, number = atomicAdd(&s.listed, 1), pair = at * 32 + lane;
          if (number >= p.held) continue;
          list.value[number] = static_cast<double>(a[(ty + 8 * (at / 4)) * kPitch + k + kk]) *
                               static_cast<double>(b[(tx + 4 * (at % 4)) * kPitch + k + kk]);
          list.pair[number] = pair;
          list.next[number] = atomicExch(s.heads + pair, number);
        }
      }
    }
    if ((step + 1) % chunks == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          parts[(warp * 8 + e) * 32 + lane] = sum[half * 2 + e / 4][e % 4];
          sum[half * 2 + e / 4][e % 4] = 0;
        }
        __syncthreads();
        const int pair = threadIdx.x / 2, side = threadIdx.x % 2;
        double all = 0;
#pragma unroll
        for (int other = 0; other < kErrorWarps / 2; ++other) all += parts[(side * (kErrorWarps / 2) + other) * 256 + pair];
        all += __shfl_xor_sync(~0u, all, 1);
        if (side == 0) {
          s.base[half * 256 + pair] = all;
          total += (unit * all) * (unit * all);
        }
        __syncthreads();
      }
      const int listed = min(s.listed, p.held);
      if (listed > first) {
        for (int n = first + threadIdx.x; n < listed; n += kErrorThreads) {
          const double value = list.value[n];
          double before = s.base[list.pair[n]];
          for (int other = s.heads[list.pair[n]]; other >= 0; other = list.next[other])
            if (list.value[other] < value || (list.value[other] == value && other < n)) before += list.value[other];
          list.weight[n] = (unit * value) * (unit * (2 * before + value));
        }
        __syncthreads();
        for (int n = first + threadIdx.x; n < listed; n += kErrorThreads) s.heads[list.pair[n]] = -1;
        first = listed;
      }
    }
    __syncthreads();
  }
  wait_copies<0>();
  __syncthreads();
  return total;
}

extern "C" __global__ void __launch_bounds__(kErrorThreads, 1) search_error(const Search p) {
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ Shared s;
  Norm* panels = reinterpret_cast<Norm*>(room);
  double* parts = reinterpret_cast<double*>(panels + 2 * kPanel);
  double* values = parts + kErrorWarps * 256;
  const List list = {values, values + p.held, reinterpret_cast<int*>(values + 2 * p.held),
                     reinterpret_cast<int*>(values + 2 * p.held) + p.held};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned round = 0;
  // While the first thread waits, the last one takes the steps that are decided: the same ones in each block.
  auto meet = [&] {
    wait_for_blocks(p.arrived, round, [&] {
      if (threadIdx.x == kErrorThreads - 1) walk(s.bracket, s.known.allowed, s.known.denied);
    });
  };
  for (int i = blockIdx.x * kErrorThreads + threadIdx.x; i < 2 * kLevels * kCurve + kSelections * kBins;
       i += gridDim.x * kErrorThreads)
    p.counts[i] = 0;
  if (threadIdx.x == 0) s.bracket = {0, 0, 0, 0, 0, true, true};

  // The largest norms and the least that are not zero, and so of each k the largest and the least product of two.
  double* most = p.partial;
  double* squares = p.partial + 3 * p.depth;
  for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
    double most_a = 0, most_b = 0, least_a = infinity(), least_b = infinity(), sum_a = 0, sum_b = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.rows; i += kErrorThreads) {
      const double x = p.norms_a[static_cast<long long>(i) * p.depth + k];
      most_a = fmax(most_a, x);
      if (x > 0) least_a = fmin(least_a, x);
      sum_a += x * x;
    }
#pragma unroll 1
    for (int j = threadIdx.x; j < p.columns; j += kErrorThreads) {
      const double x = p.norms_b[static_cast<long long>(j) * p.depth + k];
      most_b = fmax(most_b, x);
      if (x > 0) least_b = fmin(least_b, x);
      sum_b += x * x;
    }
    most_a = reduce<true>(most_a, s.sums);
    most_b = reduce<true>(most_b, s.sums);
    least_a = -reduce<true>(-least_a, s.sums);
    least_b = -reduce<true>(-least_b, s.sums);
    if (NORM_BITS == 32) {
      sum_a = reduce<false>(sum_a, s.sums);
      sum_b = reduce<false>(sum_b, s.sums);
    }
    if (threadIdx.x == 0) {
      most[k] = most_a, most[p.depth + k] = most_b;
      most[2 * p.depth + k] = least_a * least_b;
      if (NORM_BITS == 32) squares[k] = sum_a, squares[p.depth + k] = sum_b;
    }
  }
  meet();
  double most_a = 0, most_b = 0, largest = 0, smallest = infinity();
  for (int k = threadIdx.x; k < p.depth; k += kErrorThreads) {
    most_a = fmax(most_a, most[k]);
    most_b = fmax(most_b, most[p.depth + k]);
    largest = fmax(largest, most[k] * most[p.depth + k]);
    smallest = fmin(smallest, most[2 * p.depth + k]);
  }
  largest = reduce<true>(largest, s.sums);
  smallest = -reduce<true>(-smallest, s.sums);
  int exponent_a = 0, exponent_b = 0;
  if (NORM_BITS == 64) {
    // Frobenius norms, scaled by powers of two, so that squares stay in range; those of float32 norms do.
    most_a = reduce<true>(most_a, s.sums);
    most_b = reduce<true>(most_b, s.sums);
    exponent_a = most_a > 0 ? ilogb(most_a) : 0, exponent_b = most_b > 0 ? ilogb(most_b) : 0;
    for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
      double sum_a = 0, sum_b = 0;
  #pragma unroll 1
    for (int i = threadIdx.x; i < p.rows; i += kErrorThreads) {
        const double x = scalbn(static_cast<double>(p.norms_a[static_cast<long long>(i) * p.depth + k]), -exponent_a);
        sum_a += x * x;
      }
  #pragma unroll 1
    for (int j = threadIdx.x; j < p.columns; j += kErrorThreads) {
        const double x = scalbn(static_cast<double>(p.norms_b[static_cast<long long>(j) * p.depth + k]), -exponent_b);
        sum_b += x * x;
      }
      sum_a = reduce<false>(sum_a, s.sums);
      sum_b = reduce<false>(sum_b, s.sums);
      if (threadIdx.x == 0) squares[k] = sum_a, squares[p.depth + k] = sum_b;
    }
    meet();
  }
  double norm_a = 0, norm_b = 0;
  for (int k = threadIdx.x; k < p.depth; k += kErrorThreads) norm_a += squares[k], norm_b += squares[p.depth + k];
  norm_a = scalbn(sqrt(reduce<false>(norm_a, s.sums)), exponent_a);
  norm_b = scalbn(sqrt(reduce<false>(norm_b, s.sums)), exponent_b);
  const double scale = norm_a * norm_b / (p.slack * p.slack);
  const double product = (norm_a * p.slack) * (norm_b * p.slack);
  const double lifted = (norm_a * p.slack + p.lift_a) * (norm_b * p.slack + p.lift_b);
  const double limit = p.rtol * scale - (p.relative * lifted + p.underflow);
  // Products of float32 norms have squares that float64 holds; others are squared as multiples of about the largest.
  const double unit = NORM_BITS == 32 ? 1.0 : scalbn(1.0, -max(-1000, min(1000, ilogb(largest))));
  const double target = (limit * unit / p.slack) * (limit * unit / p.slack);
  auto allows = [&](double square) { return sqrt(square) * p.slack <= limit * unit; };

  // All products but zeros, or none, where no search is needed.
  double result = 0;
  if (norm_a == 0 || norm_b == 0 || (limit >= 0 && !(smallest < infinity())))
    result = infinity();
  else if (!(limit >= 0) || product > p.highest || fmax(norm_a, norm_b) * p.slack > p.operand ||
           fmin(norm_a, norm_b) < kLeastNorm)
    result = __longlong_as_double(-1);                  // a NaN leaves every product valid
  if (result != 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.result[0] = result;
    return;
  }
  const Key least = key_of(static_cast<Norm>(smallest)), top = key_of(static_cast<Norm>(largest)) + 1;
  if (threadIdx.x == 0) {
    const double high = next_above(fmin(largest, 0x1.ffffffffffffep1023));
    s.bracket = {fmax(high * 0x1p-80, next_above(0)), high, 0, 0, 0, false, false};
    // Below the least product nothing but zeros is skipped; the largest threshold is not yet known to be denied.
    s.known = {least, top + 1};
  }

  // The curve, finer around the crossing where it has to be.
  const long long pairs = static_cast<long long>(p.rows) * p.columns;
  const long long samples = min(pairs, static_cast<long long>(gridDim.x) * kErrorWarps * (p.depth > 300 ? 4 : 2));
  Curve c = {max(least, Key(1)), 0, 0};
  for (Key span = max(top, c.from + 1) - c.from; (span - 1) >> c.shift >= kCurve;) ++c.shift;
  double* global = reinterpret_cast<double*>(p.counts);
  for (int level = 0;; ++level) {
    double* own = global + 2 * level * kCurve;
    sample(p, c, unit, samples, reinterpret_cast<unsigned*>(panels) + warp * kCurve, parts, own, own + kCurve);
    meet();
    if (threadIdx.x < kCurve) {
      const double share = static_cast<double>(pairs) / samples;
      s.curve[threadIdx.x] = __ldcg(own + threadIdx.x) * share;
      s.tally[threadIdx.x] = __ldcg(own + kCurve + threadIdx.x) * share;
    }
    __syncthreads();
    if (c.shift <= kFine || level + 1 == kLevels) break;
    // Three intervals around the crossing; every warp finds them.
    const int interval = min(interval_above(s, target), kCurve - 1), first = max(interval - 1, 0);
    c.start = first == 0 ? c.start : s.curve[first - 1];
    c.from = edge_of(c, first);
    c.shift = max(c.shift + 2 - 8, 0);
    __syncthreads();
  }

  // Passes over all tiles, until two thresholds between which the products are listed are an allowed one and a denied.
  const long long tiles =
      static_cast<long long>((p.rows + kTileRows - 1) / kTileRows) * ((p.columns + kTileColumns - 1) / kTileColumns);
  const double total = static_cast<double>(pairs) * p.depth;
  double few = kFew * static_cast<double>(min(tiles, static_cast<long long>(gridDim.x)));
  double* found = p.partial + 5 * p.depth;                    // [pass & 1][block][3]
  double factor = 1, doubt = samples == pairs ? 0.01 : 0.02;  // of the curve, and how far off it may be
  double low_square = 0;
  bool crossed = false;
  for (int pass = 0; pass < kMostTrials; ++pass) {
    if (warp == 0) {
      const Key allowed = s.known.allowed, denied = s.known.denied;
      const Key least_low = max(allowed, Key(1)), most_high = min(denied, top);
      Key low, high;
      const double value = target / factor;
      if (total <= few || products_between(s, c, least_low, most_high) <= few) {
        low = least_low, high = most_high;
      } else if (pass < 6) {
        low = key_at(s, c, value * (1 - doubt), least_low, most_high);
        high = min(key_at(s, c, value * (1 + doubt), least_low, most_high) + 1, most_high);
        if (!(low < high) || products_between(s, c, low, high) > few)
          low = high = key_at(s, c, value, allowed + 1, denied - 1);
      } else {
        low = high = allowed + (denied - allowed) / 2;
      }
      // The steps may all be decided before it is known whether everything may be skipped.
      if (lane == 0) s.low = low, s.high = high, s.over = denied - allowed <= 1 || (denied <= top && s.bracket.done);
    }
    __syncthreads();
    if (s.over) break;
    double square = skipped_squares(p, s, list, panels, parts, unit), added = 0;
    const int listed = s.listed;
    for (int n = threadIdx.x; n < min(listed, p.held); n += kErrorThreads) added += list.weight[n];
    square = reduce<false>(square, s.sums);
    added = reduce<false>(added, s.sums);
    double* own = found + (pass & 1) * 3 * gridDim.x;
    if (threadIdx.x == 0) {
      own[3 * blockIdx.x] = square;
      own[3 * blockIdx.x + 1] = added;
      own[3 * blockIdx.x + 2] = listed > p.held;
    }
    meet();
    square = 0, added = 0;
    double lost = 0;
    for (int block = threadIdx.x; block < gridDim.x; block += kErrorThreads) {
      square += __ldcg(own + 3 * block);
      added += __ldcg(own + 3 * block + 1);
      lost += __ldcg(own + 3 * block + 2);
    }
    square = reduce<false>(square, s.sums);
    added = reduce<false>(added, s.sums);
    lost = reduce<false>(lost, s.sums);
    const Key low = s.low, high = s.high;
    const bool low_allowed = allows(square), high_allowed = allows(square + added);
    if (lost > 0) few /= 8;                                 // they lie in few tiles
    crossed = lost == 0 && low < high && low_allowed && !high_allowed;
    low_square = square;
    if (threadIdx.x == 0) {
      // The upper end says nothing where products were lost.
      Known& known = s.known;
      (low_allowed ? known.allowed : known.denied) = low;
      if (lost == 0 && low_allowed && low < high) (high_allowed ? known.allowed : known.denied) = high;
    }
    const bool upper = lost == 0 && high_allowed && low < high;
    const double here = upper ? square + added : square, expected = curve_at(s, c, upper ? high : low);
    if (here > 0 && expected > 0) {
      factor = here / expected;
      // A bracket that missed is made wider: many equal products make steps that a sample does not show.
      const double off = fabs(here / target - 1);
      doubt = fmin(low < high ? fmax(off, 4 * doubt) : fmax(0.06 * off, 1e-4), 0.5);
    }
    __syncthreads();
    if (crossed) break;
  }

  // The products listed, in ever finer intervals, as multiples of a small part of the sum: the same in any order.
  if (crossed) {
    const double quantum = target * 0x1p-40;
    unsigned long long before = 0;
    for (int selection = 0; selection < kSelections; ++selection) {
      const Key from = s.known.allowed, span = s.known.denied - from;
      if (span <= 1 || s.bracket.done) break;
      int shift = 0;
      while ((span - 1) >> shift >= kBins) ++shift;
      unsigned long long* bins = p.counts + 2 * kLevels * kCurve + selection * kBins;
      for (int n = threadIdx.x; n < s.listed; n += kErrorThreads) {
        const Key above = key_of(static_cast<Norm>(list.value[n])) - from;
        if (above < span)
          atomicAdd(bins + (above >> shift), static_cast<unsigned long long>(fmin(list.weight[n] / quantum, 0x1p42) + 0.5));
      }
      meet();
      unsigned long long sum = __ldcg(bins + threadIdx.x);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
      }
      if (lane == 31) s.bins[warp] = sum;
      __syncthreads();
      for (int other = 0; other < warp; ++other) sum += s.bins[other];
      // At the upper end of its interval.
      const bool allowed = allows(low_square + quantum * static_cast<double>(before + sum));
      const int last = static_cast<int>((span - 1) >> shift);
      const int count = __syncthreads_count(allowed && static_cast<int>(threadIdx.x) < last);
      if (threadIdx.x == max(count - 1, 0)) s.sums[0] = __longlong_as_double(count > 0 ? before + sum : before);
      if (threadIdx.x == 0) {
        s.known.allowed = from + (static_cast<Key>(count) << shift);
        s.known.denied = min(from + span, s.known.allowed + (static_cast<Key>(1) << shift));
      }
      __syncthreads();
      before = __double_as_longlong(s.sums[0]);
      __syncthreads();
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    // What is not known counts as not allowed.
    walk(s.bracket, s.known.allowed, s.known.allowed + 1);
    p.result[0] = s.known.allowed >= top ? infinity() : s.bracket.low;
  }
}
