// The threshold of a wanted valid ratio, found by one launch: the paper's binary search (Section 3.5.2).
//
//   for each k: sort the norms of row k of B                       # pieces of a k and a chunk of columns, dealt to blocks
//   tau = mean product of norms
//   while ratio(tau) > wanted + tolerance: tau *= 2                # ratio(tau): share of the products that reach tau
//   bisect between the last two, until the ratio is within the tolerance or the iterations are used up
//   return the threshold whose ratio was nearest, and that ratio
//
// ratio(tau) is one binary search in the sorted norms for each norm of A.  The trials depend on one another, but a pass
// counts for 32 candidates at once, one a lane: every one that the next steps could ask for.  Then each block walks these
// steps by itself.
//
// Invariant: at the start of a pass all blocks hold the same state of the search, and s.tau is among the candidates.
#include "search.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kChunk = CHUNK;    // norms that are sorted together
constexpr int kMostPasses = 24;  // more than any search takes: at most 50 doublings and 60 bisections

struct Trial {
    double tau, low, high, best_tau, best_ratio;
    int iterations;  // bisections left
    bool growing, done;
};

struct Shared {
    double sums[kWarps], trials[32];
    unsigned long long valid[32];
    bool over;
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
            if (step > 32 || next > 32) __syncthreads();
            else __syncwarp();
        }
    __syncthreads();
}

// A k and a chunk of columns.  Its slot in shared memory holds sorted norms of B, a tail of NaN, and norms of A; one that
// has no slot of its own lies in device memory, and shares the last.
struct Piece {
    int k, chunk, first, count, start;  // the chunk's number, first column and columns; see first_step
    bool held;
    Key* keys;
    Key* column;
};

__device__ __forceinline__ Piece piece_of(const Search& p, Key* slots, long long piece, int chunks, int number) {
    Piece q;
    q.k = piece / chunks, q.chunk = piece % chunks, q.first = q.chunk * kChunk;
    q.count = min(kChunk, p.columns - q.first), q.start = first_step(q.count);
    q.held = number < p.held;
    q.keys = slots + min(number, p.held) * p.slot;
    q.column = q.keys + with_gaps(2 * q.start);
    return q;
}

// Read a piece and sort it; the product of its sums is its share of the sum of all products.
__device__ __forceinline__ void prepare(const Search& p, const Piece& q, bool spilled, double* partial, double* sums) {
    double sum_a = 0, sum_b = 0;
    for (int i = threadIdx.x; i < p.rows; i += kThreads) {
        const Norm x = p.norms_a[static_cast<long long>(i) * p.depth + q.k];
        sum_a += x;
        if (q.held) q.column[i] = key_of(x);
        // Of a k that is held here other pieces may not be.
        if (spilled && q.chunk == 0) p.columns_a[static_cast<long long>(q.k) * p.rows + i] = x;
    }
    for (int j = threadIdx.x; j < 2 * q.start; j += kThreads) {
        const Norm x = j < q.count ? p.norms_b[static_cast<long long>(q.first + j) * p.depth + q.k] : Norm(0);
        sum_b += x;
        q.keys[with_gaps(j)] = j < q.count ? key_of(x) : ~Key(0);
    }
    sum_a = block_reduce<kThreads, false>(sum_a, sums);
    sum_b = block_reduce<kThreads, false>(sum_b, sums);
    if (threadIdx.x == 0) *partial = sum_a * sum_b;
    sort_keys(q.keys, q.count == q.start ? q.count : 2 * q.start);
    if (q.held) return;
    for (int j = threadIdx.x; j < q.count; j += kThreads)
        p.sorted[static_cast<long long>(q.k) * p.columns + q.first + j] = norm_of(q.keys[with_gaps(j)]);
    __syncthreads();
}

// Count the products of a piece that reach a lane's candidate: with a norm of A, those of B from the first that does.
__device__ __forceinline__ unsigned long long count_valid(const Search& p, const Piece& q, Norm tau) {
    const Norm* column = p.columns_a + static_cast<long long>(q.k) * p.rows;
    if (!q.held) {
        __syncthreads();
        for (int j = threadIdx.x; j < 2 * q.start; j += kThreads)
            q.keys[with_gaps(j)] = j < q.count ? key_of(p.sorted[static_cast<long long>(q.k) * p.columns + q.first + j]) : ~Key(0);
        __syncthreads();
    }
    constexpr int kEach = 4;
    unsigned long long mine = 0;
    for (int i = threadIdx.x / 32; i < p.rows; i += kEach * kWarps) {
        Norm a[kEach];
        int below[kEach] = {};
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
            const int row = min(i + r * kWarps, p.rows - 1);
            a[r] = q.held ? norm_of(q.column[row]) : column[row];
        }
        for (int step = q.start; step > 0; step /= 2)
#pragma unroll
            for (int r = 0; r < kEach; ++r)
                if (a[r] * norm_of(q.keys[with_gaps(below[r] + step - 1)]) < tau) below[r] += step;
#pragma unroll
        for (int r = 0; r < kEach; ++r)
            if (i + r * kWarps < p.rows) mine += q.count - below[r];
    }
    return mine;
}

// Walk the steps whose candidates were counted; by one warp.
__device__ __forceinline__ void walk(const Search& p, Trial& s, double tried, double ratio) {
    while (!s.done) {
        const unsigned found = __ballot_sync(~0u, tried == s.tau);
        if (!found) break;
        next_trial(s, __shfl_sync(~0u, ratio, __ffs(found) - 1), p.wanted, p.tolerance);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) search_ratio(const Search p) {
    DYNAMIC_SHARED(Key, slots);
    STATIC_SHARED(Shared, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int chunks = (p.columns + kChunk - 1) / kChunk;
    const long long pieces = static_cast<long long>(p.depth) * chunks;
    const bool spilled = pieces > static_cast<long long>(p.held) * gridDim.x;
    unsigned round = 0;

    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < 32 * kMostPasses; i += kThreads) p.counts[i] = 0;
    int number = 0;
    for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x, ++number)
        prepare(p, piece_of(p, slots, piece, chunks, number), spilled, p.partial + piece, shared.sums);
    wait_for_blocks(p.arrived, round, [] {});

    double mean = 0;
    for (long long piece = threadIdx.x; piece < pieces; piece += kThreads) mean += p.partial[piece];
    const double total = static_cast<double>(p.rows) * p.columns * p.depth;
    mean = block_reduce<kThreads, false>(mean, shared.sums) / total;
    // The trials are followed by the first warp of each block.
    Trial s = {mean, 0, mean, 0, 1, p.iterations, true, p.wanted >= 1 || !(mean > 0)};
    // Products beyond the largest number are not told apart: a NaN leaves all of them valid, as where norms are NaN.
    if (isnan(mean) || (mean > 0x1.fffffffffffffp1023 && p.wanted < 1)) s.best_tau = mean - mean, s.done = true;
    for (int pass = 0; pass < kMostPasses; ++pass) {
        if (warp == 0) {
            shared.trials[lane] = candidate(s, pass == 0, lane);
            shared.valid[lane] = 0;
            if (lane == 0) shared.over = s.done;
        }
        __syncthreads();
        if (shared.over) break;
        const Norm tau = static_cast<Norm>(shared.trials[lane]);
        unsigned long long mine = 0;
        number = 0;
        for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x, ++number)
            mine += count_valid(p, piece_of(p, slots, piece, chunks, number), tau);
        atomicAdd(shared.valid + lane, mine);
        __syncthreads();
        if (warp == 0 && shared.valid[lane]) atomicAdd(p.counts + 32 * pass + lane, shared.valid[lane]);
        wait_for_blocks(p.arrived, round, [] {});
        if (warp == 0) walk(p, s, shared.trials[lane], __ldcg(p.counts + 32 * pass + lane) / total);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.result[0] = s.best_tau;
        p.result[1] = s.best_ratio;
    }
}
