// The largest threshold of a wanted error, found by one launch.
//
//   skipped(tau) = sqrt(sum over tiles of C of (sum of the products of norms below tau)^2)        # bounds.py
//   limit = what skipped(tau) may be: the wanted error without the bound of rounding
//   bracket = from 2^-80 of the largest product to just above it                                  # bounds.largest_tau
//
//   curve = about skipped(tau)^2, from a sample of the tiles of C, finer around its crossing of limit^2
//   until the thresholds of the bisection are decided:
//     low, high = where the curve says that the crossing is, with few products between
//       (where the sample misled, around the power of tau that leads through what passes have found)
//     base = skipped(low)^2, a pass over all tiles of C; the threshold may as well be the next product above low
//     list the products from low up to high, each with what it adds to base when the threshold rises above it
//     known.allowed, known.denied = what base, and base with all that is listed, say of low and high
//     if low is allowed and high denied:
//       narrow known by the prefix sums of what is listed, in ever finer intervals, and stop
//   bisect the bracket by what is known, to a relative 1e-6; what is not known counts as denied
//
// Invariant: skipped(known.allowed) <= limit, and skipped(known.denied) is above it or nothing is known there; thresholds
// are compared as keys, so that the answer is that of the comparisons of products themselves.  All blocks hold the same
// `known`, `low` and `high` from one meeting to the next.
#include "search.cuh"

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kTileRows = 32, kTileColumns = 16;  // of C: a block's at a time, 16 tiles a lane
constexpr int kPairs = kTileRows * kTileColumns;
constexpr int kDeep = NORM_BITS == 32 ? 128 : 64;  // k's of their norms in shared memory, twice
constexpr int kPitch = kDeep + 16 / static_cast<int>(sizeof(Norm)), kPanel = (kTileRows + kTileColumns) * kPitch;
constexpr int kCurve = 256, kLevels = 3;          // intervals of the curve, and how often it is refined
constexpr int kFine = NORM_BITS == 32 ? 16 : 45;  // bits of a key in an interval that is narrow enough
constexpr int kBins = kThreads, kSelections = 6;  // intervals of the products listed, and how often
constexpr int kFew = 512;                         // products that a block lists in little time
constexpr int kMostTrials = 96;
constexpr int kMostSteps = 64;  // of the bisection: MOST_BISECTIONS of bounds.py
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

// The next larger one of numbers from 0 on.
__device__ __forceinline__ double next_above(double x) { return __longlong_as_double(__double_as_longlong(x) + 1); }

// The bisection of bounds.largest_tau, and what its steps are decided by: keys of thresholds, the largest one that is
// allowed and the least one that is not.
struct Bracket {
    double low, high, root_low, root_high;
    int steps;
    bool started, done;
};

struct Known {
    Key allowed, denied;
};

// What a block shares beside its panels.
struct Shared {
    double base[kPairs];                  // of a tile of C: what is skipped at the lower end
    double curve[kCurve], tally[kCurve];  // at the upper end of each interval: sum of squares; products in it
    double sums[kWarps];
    unsigned long long bins[kWarps];
    int heads[kPairs];  // of the chains of listed products of one tile
    int listed;
    Bracket bracket;
    Known known;
    Key low, high;  // of the pass
    bool over;
};

// Products that are listed: value, then by how much it raises the sum of squares, tile of C, next one in the chain.
struct List {
    double* value;
    double* weight;
    int* pair;
    int* next;
};

// What a block works with: the parameters, and its shared memory.
struct Block {
    const Search& p;
    Shared& s;
    Norm* panels;
    double* parts;
    List list;
    unsigned round;
};

// Intervals of 2^shift keys from a first one, at whose lower end the curve is `start`.
struct Curve {
    Key from;
    int shift;
    double start;
};

// What the norms come to: the largest and the least product of two that is not zero, and the norms of A and B.
struct Sizes {
    double largest, smallest, norm_a, norm_b;
};

// What may be skipped, as a multiple of 1 / unit whose squares float64 holds, and about its square without the slack.
struct Goal {
    double limit, unit, target, slack;

    __device__ bool allows(double square) const { return sqrt(square) * slack <= limit * unit; }
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
        if (key <= allowed) s.low = middle, s.root_low = sqrt(middle);
        else if (key >= denied) s.high = middle, s.root_high = sqrt(middle);
        else return;
        ++s.steps;
    }
}

template <bool kMax>
__device__ __noinline__ double reduce(double x, double* shared) {
    return block_reduce<kThreads, kMax>(x, shared);
}

// While the first thread waits, the last one takes the steps that are decided: the same ones in each block.
__device__ __forceinline__ void meet(Block& b) {
    wait_for_blocks(b.p.arrived, b.round, [&] {
        if (threadIdx.x == kThreads - 1) walk(b.s.bracket, b.s.known.allowed, b.s.known.denied);
    });
}

// --- Sizes ----------------------------------------------------------------------------------------------------------

// The largest and the least norm that is not zero of each k, and the sums of their squares, to device memory.
__device__ __forceinline__ void measure_columns(Block& b) {
    const Search& p = b.p;
    double* most = p.partial;
    double* squares = p.partial + 3 * p.depth;
    for (int k = blockIdx.x; k < p.depth; k += gridDim.x) {
        double largest[2] = {}, least[2] = {infinity(), infinity()}, sum[2] = {};
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const Norm* norms = side == 0 ? p.norms_a : p.norms_b;
            const int count = side == 0 ? p.rows : p.columns;
#pragma unroll 1
            for (int i = threadIdx.x; i < count; i += kThreads) {
                const double x = norms[static_cast<long long>(i) * p.depth + k];
                largest[side] = fmax(largest[side], x);
                if (x > 0) least[side] = fmin(least[side], x);
                sum[side] += x * x;
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            largest[side] = reduce<true>(largest[side], b.s.sums);
            least[side] = -reduce<true>(-least[side], b.s.sums);
            if (NORM_BITS == 32) sum[side] = reduce<false>(sum[side], b.s.sums);
            if (threadIdx.x == 0) {
                most[side * p.depth + k] = largest[side];
                if (NORM_BITS == 32) squares[side * p.depth + k] = sum[side];
            }
        }
        if (threadIdx.x == 0) most[2 * p.depth + k] = least[0] * least[1];
    }
}

// The sums of squares of each k, scaled by powers of two, so that squares stay in range; those of float32 norms do.
__device__ __forceinline__ void square_scaled(Block& b, const int (&exponent)[2]) {
    const Search& p = b.p;
    for (int k = blockIdx.x; k < p.depth; k += gridDim.x)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const Norm* norms = side == 0 ? p.norms_a : p.norms_b;
            const int count = side == 0 ? p.rows : p.columns;
            double sum = 0;
#pragma unroll 1
            for (int i = threadIdx.x; i < count; i += kThreads) {
                const double x = scalbn(static_cast<double>(norms[static_cast<long long>(i) * p.depth + k]), -exponent[side]);
                sum += x * x;
            }
            sum = reduce<false>(sum, b.s.sums);
            if (threadIdx.x == 0) p.partial[(3 + side) * p.depth + k] = sum;
        }
}

__device__ __forceinline__ Sizes measure(Block& b) {
    const Search& p = b.p;
    measure_columns(b);
    meet(b);
    double most[2] = {}, largest = 0, smallest = infinity();
    for (int k = threadIdx.x; k < p.depth; k += kThreads) {
        const double most_a = p.partial[k], most_b = p.partial[p.depth + k];
        most[0] = fmax(most[0], most_a), most[1] = fmax(most[1], most_b);
        largest = fmax(largest, most_a * most_b);
        smallest = fmin(smallest, p.partial[2 * p.depth + k]);
    }
    largest = reduce<true>(largest, b.s.sums);
    smallest = -reduce<true>(-smallest, b.s.sums);
    int exponent[2] = {};
    if (NORM_BITS == 64) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            most[side] = reduce<true>(most[side], b.s.sums);
            exponent[side] = most[side] > 0 ? ilogb(most[side]) : 0;
        }
        square_scaled(b, exponent);
        meet(b);
    }
    double norm[2] = {};
    const double* squares = p.partial + 3 * p.depth;
    for (int k = threadIdx.x; k < p.depth; k += kThreads) norm[0] += squares[k], norm[1] += squares[p.depth + k];
#pragma unroll
    for (int side = 0; side < 2; ++side) norm[side] = scalbn(sqrt(reduce<false>(norm[side], b.s.sums)), exponent[side]);
    return {largest, smallest, norm[0], norm[1]};
}

__device__ __forceinline__ double largest_norms(const Search& p, const Sizes& z) { return (z.norm_a * p.slack) * (z.norm_b * p.slack); }

__device__ __forceinline__ Goal goal_of(const Search& p, const Sizes& z) {
    const double scale = z.norm_a * z.norm_b / (p.slack * p.slack);
    const double lifted = (z.norm_a * p.slack + p.lift_a) * (z.norm_b * p.slack + p.lift_b);
    const double limit = p.rtol * scale + p.atol - (p.relative * lifted + p.underflow);
    // Products of float32 norms have squares that float64 holds; others are squared as multiples of about the largest.
    const double unit = NORM_BITS == 32 ? 1.0 : scalbn(1.0, -max(-1000, min(1000, ilogb(z.largest))));
    const double target = (limit * unit / p.slack) * (limit * unit / p.slack);
    return {limit, unit, target, p.slack};
}

// All products but zeros, or none, where no search is needed; else 0.
__device__ __forceinline__ double without_search(const Search& p, const Sizes& z, double limit) {
    if (z.norm_a == 0 || z.norm_b == 0 || (limit >= 0 && !(z.smallest < infinity()))) return infinity();
    const bool refused = !(limit >= 0) || largest_norms(p, z) > p.highest || fmax(z.norm_a, z.norm_b) * p.slack > p.operand ||
                         fmin(z.norm_a, z.norm_b) < kLeastNorm;
    return refused ? __longlong_as_double(-1) : 0;  // a NaN leaves every product valid
}

// --- The curve ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Key edge_of(const Curve& c, int interval) { return c.from + (static_cast<Key>(interval) << c.shift); }

__device__ __forceinline__ double value_of(Key key) { return static_cast<double>(norm_of(key)); }

// Put the products of a row of A and a column of B into intervals, and return the sum of those below them; by one warp.
__device__ __forceinline__ double put_into_intervals(const Search& p, const Curve& c, int row, int column, unsigned* own) {
    const Norm* x = p.norms_a + static_cast<long long>(row) * p.depth;
    const Norm* y = p.norms_b + static_cast<long long>(column) * p.depth;
    const Norm low = norm_of(c.from);
    double below = 0;
#pragma unroll 4
    for (int k = threadIdx.x % 32; k < p.depth; k += 32) {
        const Norm product = x[k] * y[k];
        if (product < low) {
            below += product;
        } else {
            const Key interval = (key_of(product) - c.from) >> c.shift;
            if (interval < kCurve) atomicAdd(own + (interval % (kCurve / 32) * 32 + interval / (kCurve / 32)), 1u);
        }
    }
    return warp_sum(below);
}

// Sums of squares of one of about `share` pairs of a row and a column of tiles, at the upper end of each interval.
__device__ void sample(const Block& b, const Curve& c, double unit, long long samples, double* squares, double* counts) {
    const Search& p = b.p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int kEach = kCurve / 32;
    const long long pairs = static_cast<long long>(p.rows) * p.columns;
    unsigned* own = reinterpret_cast<unsigned*>(b.panels) + warp * kCurve;
    double square[kEach] = {};
    unsigned count[kEach] = {};
#pragma unroll
    for (int m = 0; m < kEach; ++m) own[m * 32 + lane] = 0;
    __syncwarp();
    for (long long s = blockIdx.x * kWarps + warp; s < samples; s += gridDim.x * kWarps) {
        // All of them, or a lattice: no row or column of tiles is in two samples that are near each other.
        const unsigned number = static_cast<unsigned>(s);
        const int row = samples == pairs ? static_cast<int>(s / p.columns) : __umulhi(number * 3242174889u, p.rows);
        const int column = samples == pairs ? static_cast<int>(s % p.columns) : __umulhi(number * 2447445414u, p.columns);
        const double below = put_into_intervals(p, c, row, column, own);
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
        for (int m = 0; m < kEach; ++m) b.parts[warp * kCurve + lane * kEach + m] = turn == 0 ? square[m] : count[m];
        __syncthreads();
        if (threadIdx.x < kCurve) {
            double sum = 0;
            for (int other = 0; other < kWarps; ++other) sum += b.parts[other * kCurve + threadIdx.x];
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

// Draw the curve between two keys, finer around the crossing where it has to be.
__device__ __forceinline__ Curve draw_curve(Block& b, const Goal& goal, Key least, Key top, long long samples) {
    const long long pairs = static_cast<long long>(b.p.rows) * b.p.columns;
    Curve c = {max(least, Key(1)), 0, 0};
    for (Key span = max(top, c.from + 1) - c.from; (span - 1) >> c.shift >= kCurve;) ++c.shift;
    double* global = reinterpret_cast<double*>(b.p.counts);
    for (int level = 0;; ++level) {
        double* own = global + 2 * level * kCurve;
        sample(b, c, goal.unit, samples, own, own + kCurve);
        meet(b);
        if (threadIdx.x < kCurve) {
            const double share = static_cast<double>(pairs) / samples;
            b.s.curve[threadIdx.x] = __ldcg(own + threadIdx.x) * share;
            b.s.tally[threadIdx.x] = __ldcg(own + kCurve + threadIdx.x) * share;
        }
        __syncthreads();
        if (c.shift <= kFine || level + 1 == kLevels) return c;
        // Three intervals around the crossing; every warp finds them.
        const int interval = min(interval_above(b.s, goal.target), kCurve - 1), first = max(interval - 1, 0);
        c.start = first == 0 ? c.start : b.s.curve[first - 1];
        c.from = edge_of(c, first);
        c.shift = max(c.shift + 2 - 8, 0);
        __syncthreads();
    }
}

// --- A pass over all tiles of C -------------------------------------------------------------------------------------

// This block's steps through its tiles of C, kDeep k's of one tile each.
struct Steps {
    int across, chunks, count;
    bool aligned;

    __device__ explicit Steps(const Search& p)
        : across((p.columns + kTileColumns - 1) / kTileColumns), chunks((p.depth + kDeep - 1) / kDeep) {
        const long long tiles = static_cast<long long>((p.rows + kTileRows - 1) / kTileRows) * across;
        const int mine = tiles > blockIdx.x ? static_cast<int>((tiles - 1 - blockIdx.x) / gridDim.x) + 1 : 0;
        count = mine * chunks;
        aligned =
            (reinterpret_cast<unsigned long long>(p.norms_a) | reinterpret_cast<unsigned long long>(p.norms_b) | p.depth * sizeof(Norm)) %
                16 ==
            0;
    }
};

// Begin to copy the norms of a step to its half of the panels; outside of the maps are zeros, which add nothing.
__device__ __forceinline__ void stage(const Search& p, const Steps& steps, int step, Norm* panels) {
    constexpr int kPiece = 16 / sizeof(Norm), kPieces = kDeep / kPiece;
    if (step < steps.count) {
        const long long tile = blockIdx.x + static_cast<long long>(step / steps.chunks) * gridDim.x;
        const int row0 = static_cast<int>(tile / steps.across) * kTileRows;
        const int column0 = static_cast<int>(tile % steps.across) * kTileColumns;
        const int k0 = step % steps.chunks * kDeep;
        Norm* panel = panels + (step & 1) * kPanel;
        if (steps.aligned) {
            for (int e = threadIdx.x; e < (kTileRows + kTileColumns) * kPieces; e += kThreads) {
                const int r = e / kPieces, k = k0 + e % kPieces * kPiece, index = r < kTileRows ? row0 + r : column0 + r - kTileRows;
                const bool there = k < p.depth && index < (r < kTileRows ? p.rows : p.columns);
                const Norm* map = r < kTileRows ? p.norms_a : p.norms_b;
                copy_async(shared_address(panel + r * kPitch + e % kPieces * kPiece),
                           there ? map + static_cast<long long>(index) * p.depth + k : map, there ? 16 : 0);
            }
        } else {
#pragma unroll 4
            for (int e = threadIdx.x; e < (kTileRows + kTileColumns) * kDeep; e += kThreads) {
                const int r = e / kDeep, k = k0 + e % kDeep, index = r < kTileRows ? row0 + r : column0 + r - kTileRows;
                const bool there = k < p.depth && index < (r < kTileRows ? p.rows : p.columns);
                panel[r * kPitch + e % kDeep] =
                    there ? (r < kTileRows ? p.norms_a : p.norms_b)[static_cast<long long>(index) * p.depth + k] : Norm(0);
            }
        }
    }
    commit_copies();
}

// List products, given as bits of a lane's 4 x 4, of one k of the panels of A and B.
__device__ __forceinline__ void list_products(const Block& b, unsigned hits, const Norm* row, const Norm* column, int held) {
    for (; hits; hits &= hits - 1) {
        const int at = __ffs(hits) - 1, number = atomicAdd(&b.s.listed, 1), pair = at * 32 + threadIdx.x % 32;
        if (number >= held) continue;
        b.list.value[number] = static_cast<double>(row[8 * (at / 4) * kPitch]) * static_cast<double>(column[4 * (at % 4) * kPitch]);
        b.list.pair[number] = pair;
        b.list.next[number] = atomicExch(b.s.heads + pair, number);
    }
}

// Sum what is skipped of a lane's 4 x 4 tiles of C over the k's of a step, and list what lies between low and high.  The
// warps share the k; each sums for all tiles of C.
__device__ __forceinline__ void sum_step(const Block& b, const Norm* a, int deep, Key from, Key width, double (&sum)[4][4], Key& nearest) {
    const int lane = threadIdx.x % 32, ty = lane / 4, tx = lane % 4;
    const Norm low = norm_of(from);
    const Norm* panel_b = a + kTileRows * kPitch;
#pragma unroll 1
    for (int k = 4 * (threadIdx.x / 32); k < deep; k += 4 * kWarps) {
        Four<Norm> x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = four(a + (ty + 8 * i) * kPitch + k), y[i] = four(panel_b + (tx + 4 * i) * kPitch + k);
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
                    add_where_below(sum[i][j], product, low, wide_x[i], wide_y[j]);
                    const Key above = key_of(product) - from;  // below it is a large number
                    least = above < least ? above : least;
                }
            nearest = least < nearest ? least : nearest;
            if (least >= width) continue;
            unsigned hits = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    hits |= static_cast<unsigned>(key_of(x[i].value[kk] * y[j].value[kk]) - from < width) << (4 * i + j);
            list_products(b, hits, a + ty * kPitch + k + kk, panel_b + tx * kPitch + k + kk, b.p.held);
        }
    }
}

// Add the warps' sums of a tile of C to its base, set them to zero, and return this thread's share of the squares.
__device__ __forceinline__ double square_bases(const Block& b, double unit, double (&sum)[4][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double total = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            b.parts[(warp * 8 + e) * 32 + lane] = sum[half * 2 + e / 4][e % 4];
            sum[half * 2 + e / 4][e % 4] = 0;
        }
        __syncthreads();
        const int pair = threadIdx.x / 2, side = threadIdx.x % 2;
        double all = 0;
#pragma unroll
        for (int other = 0; other < kWarps / 2; ++other) all += b.parts[(side * (kWarps / 2) + other) * 256 + pair];
        all += __shfl_xor_sync(~0u, all, 1);
        if (side == 0) {
            b.s.base[half * 256 + pair] = all;
            total += (unit * all) * (unit * all);
        }
        __syncthreads();
    }
    return total;
}

// What each product that was listed of a tile of C, from the first one on, adds to the squares after those below it.
__device__ __forceinline__ int weigh(const Block& b, double unit, int first) {
    const List& list = b.list;
    const int listed = min(b.s.listed, b.p.held);
    if (listed <= first) return first;
    for (int n = first + threadIdx.x; n < listed; n += kThreads) {
        const double value = list.value[n];
        double before = b.s.base[list.pair[n]];
        for (int other = b.s.heads[list.pair[n]]; other >= 0; other = list.next[other])
            if (list.value[other] < value || (list.value[other] == value && other < n)) before += list.value[other];
        list.weight[n] = (unit * value) * (unit * (2 * before + value));
    }
    __syncthreads();
    for (int n = first + threadIdx.x; n < listed; n += kThreads) b.s.heads[list.pair[n]] = -1;
    return listed;
}

// Sum over this block's tiles of C of the squares of what the threshold `low` skips, shared among its threads.  Products
// from `low` up to `high` are listed with what each adds to the squares when the threshold rises above it; `next` is the
// least of them that this thread met, or a larger one.
__device__ double skipped_squares(const Block& b, double unit, double& next) {
    const Key from = b.s.low, width = b.s.high - b.s.low;
    const Steps steps(b.p);
    if (threadIdx.x == 0) b.s.listed = 0;
    for (int i = threadIdx.x; i < kPairs; i += kThreads) b.s.heads[i] = -1;
    double total = 0, sum[4][4] = {};
    Key nearest = ~Key(0);
    int first = 0;
    stage(b.p, steps, 0, b.panels);
    for (int step = 0; step < steps.count; ++step) {
        stage(b.p, steps, step + 1, b.panels);
        wait_copies<1>();
        __syncthreads();
        const int deep = min(kDeep, b.p.depth - step % steps.chunks * kDeep);
        sum_step(b, b.panels + (step & 1) * kPanel, deep, from, width, sum, nearest);
        if ((step + 1) % steps.chunks == 0) {
            total += square_bases(b, unit, sum);
            first = weigh(b, unit, first);
        }
        __syncthreads();
    }
    wait_copies<0>();
    __syncthreads();
    // Below `from` they wrap around.
    next = from + nearest >= from ? value_of(from + nearest) : infinity();
    return total;
}

// --- Passes ---------------------------------------------------------------------------------------------------------

// What the passes so far have found, the same in every thread.
struct State {
    double total, few;                     // products of all tiles, and how many may be listed
    double factor, doubt;                  // of the curve, and how far off it may be
    double allowed_square, denied_square;  // of what is known; 0 and infinity where no pass told
    double reach;                          // how far to both sides of a guess products are listed
    bool crossed;                          // low is allowed and high is not
};

// What a pass sums over all blocks: skipped(low)^2, what the products listed add, and blocks whose lists were too short.
struct Sums {
    double square, added, lost;
    double next;  // the least product that is not below low
};

// The threshold at which a power of it has a value: through what is known below and above, or, where these are far apart,
// from the nearer one, as squares of sums of few products rise.
__device__ __forceinline__ double guess(const State& state, double target, Key allowed, Key denied) {
    const double low = value_of(allowed), high = value_of(denied);
    const double below = log(target / state.allowed_square), above = log(state.denied_square / target);
    if (high < 64 * low && below + above < infinity()) return low * pow(high / low, fmin(fmax(below / (below + above), 0.05), 0.95));
    return below < above ? low * exp(0.4 * below) : high * exp(-0.4 * above);
}

// Choose the thresholds of a pass, or see that no pass is needed; by one warp.
__device__ __forceinline__ void choose_thresholds(Shared& s, const Curve& c, const State& state, double target, Key top, int pass) {
    const Key allowed = s.known.allowed, denied = s.known.denied;
    const Key least_low = allowed + 1, most_high = min(denied, top);
    Key low, high;
    const double value = target / state.factor;
    const bool drawn = value > c.start && value <= s.curve[kCurve - 1];
    if (state.total <= state.few || products_between(s, c, least_low, most_high) <= state.few) {
        low = least_low, high = most_high;
    } else if (pass == 0 || (pass < 4 && drawn)) {
        low = key_at(s, c, value * (1 - state.doubt), least_low, most_high);
        high = min(key_at(s, c, value * (1 + state.doubt), least_low, most_high) + 1, most_high);
        if (!(low < high) || products_between(s, c, low, high) > state.few) low = high = key_at(s, c, value, allowed + 1, denied - 1);
    } else if (pass % 8 == 7 || (state.allowed_square == 0 && isinf(state.denied_square))) {
        low = high = allowed + (denied - allowed) / 2;
    } else {
        const double middle = guess(state, target, allowed, denied);
        low = min(max(key_of(static_cast<Norm>(middle / (1 + state.reach))), least_low), denied - 1);
        high = min(max(key_of(static_cast<Norm>(middle * (1 + state.reach))), low), most_high);
    }
    // The steps may all be decided before it is known whether everything may be skipped.
    if (threadIdx.x % 32 == 0) s.low = low, s.high = high, s.over = denied - allowed <= 1 || (denied <= top && s.bracket.done);
}

__device__ __forceinline__ Sums pass_over_tiles(Block& b, const Goal& goal, int pass) {
    double* found = b.p.partial + 5 * b.p.depth + (pass & 1) * 4 * gridDim.x;  // [block][4]
    double next, square = skipped_squares(b, goal.unit, next), added = 0;
    const int listed = b.s.listed;
    for (int n = threadIdx.x; n < min(listed, b.p.held); n += kThreads) added += b.list.weight[n];
    square = reduce<false>(square, b.s.sums);
    added = reduce<false>(added, b.s.sums);
    next = -reduce<true>(-next, b.s.sums);
    if (threadIdx.x == 0) {
        double* own = found + 4 * blockIdx.x;
        own[0] = square, own[1] = added, own[2] = listed > b.p.held, own[3] = next;
    }
    meet(b);
    Sums all = {0, 0, 0, infinity()};
    for (int block = threadIdx.x; block < gridDim.x; block += kThreads) {
        all.square += __ldcg(found + 4 * block);
        all.added += __ldcg(found + 4 * block + 1);
        all.lost += __ldcg(found + 4 * block + 2);
        all.next = fmin(all.next, __ldcg(found + 4 * block + 3));
    }
    all.square = reduce<false>(all.square, b.s.sums);
    all.added = reduce<false>(all.added, b.s.sums);
    all.lost = reduce<false>(all.lost, b.s.sums);
    all.next = -reduce<true>(-all.next, b.s.sums);
    return all;
}

// Let what a pass found change what is known, and how the curve is read.
__device__ __forceinline__ void learn(Shared& s, const Curve& c, const Goal& goal, const Sums& sums, State& state, Key top) {
    const Key low = s.low, high = s.high;
    const bool low_allowed = goal.allows(sums.square), high_allowed = goal.allows(sums.square + sums.added);
    const bool complete = sums.lost == 0;
    if (!complete) state.few /= 8, state.reach /= 8;  // they lie in few tiles
    state.crossed = complete && low < high && low_allowed && !high_allowed;
    (low_allowed ? state.allowed_square : state.denied_square) = sums.square;
    // The upper end says nothing where products were lost.
    const bool ends = complete && low_allowed && low < high;
    if (ends) (high_allowed ? state.allowed_square : state.denied_square) = sums.square + sums.added;
    if (threadIdx.x == 0) {
        if (!low_allowed) s.known.denied = low;
        // The product next above skips no more.
        else s.known.allowed = min(isinf(sums.next) ? top : key_of(static_cast<Norm>(sums.next)), s.known.denied - 1);
        if (ends) (high_allowed ? s.known.allowed : s.known.denied) = high_allowed ? max(s.known.allowed, high) : high;
    }
    const bool upper = complete && high_allowed && low < high;
    const double here = upper ? sums.square + sums.added : sums.square, expected = curve_at(s, c, upper ? high : low);
    if (here > 0 && expected > 0) {
        state.factor = here / expected;
        // A bracket that missed is made wider: many equal products make steps that a sample does not show.
        const double off = fabs(here / goal.target - 1);
        state.doubt = fmin(low < high ? fmax(off, 4 * state.doubt) : fmax(0.06 * off, 1e-4), 0.5);
    }
    __syncthreads();
}

// The sum of a number over the threads up to this one.
__device__ __forceinline__ unsigned long long prefix_sum(unsigned long long sum, Shared& s) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
    }
    if (lane == 31) s.bins[warp] = sum;
    __syncthreads();
    for (int other = 0; other < warp; ++other) sum += s.bins[other];
    return sum;
}

// The products listed, in ever finer intervals, as multiples of a small part of the sum: the same in any order.
__device__ __forceinline__ void select_listed(Block& b, const Goal& goal, double low_square) {
    Shared& s = b.s;
    const double quantum = goal.target * 0x1p-40;
    unsigned long long before = 0;
    for (int selection = 0; selection < kSelections; ++selection) {
        const Key from = s.known.allowed, span = s.known.denied - from;
        if (span <= 1 || s.bracket.done) break;
        int shift = 0;
        while ((span - 1) >> shift >= kBins) ++shift;
        unsigned long long* bins = b.p.counts + 2 * kLevels * kCurve + selection * kBins;
        for (int n = threadIdx.x; n < s.listed; n += kThreads) {
            const Key above = key_of(static_cast<Norm>(b.list.value[n])) - from;
            if (above < span)
                atomicAdd(bins + (above >> shift), static_cast<unsigned long long>(fmin(b.list.weight[n] / quantum, 0x1p42) + 0.5));
        }
        meet(b);
        const unsigned long long sum = prefix_sum(__ldcg(bins + threadIdx.x), s);
        // At the upper end of its interval.
        const bool allowed = goal.allows(low_square + quantum * static_cast<double>(before + sum));
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

extern "C" __global__ void __launch_bounds__(kThreads, 1) search_error(const Search p) {
    DYNAMIC_SHARED(Norm, panels);
    STATIC_SHARED(Shared, s);
    double* parts = reinterpret_cast<double*>(panels + 2 * kPanel);
    double* values = parts + kWarps * 256;
    int* numbers = reinterpret_cast<int*>(values + 2 * p.held);
    Block b = {p, s, panels, parts, {values, values + p.held, numbers, numbers + p.held}, 0};
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < 2 * kLevels * kCurve + kSelections * kBins; i += gridDim.x * kThreads)
        p.counts[i] = 0;
    if (threadIdx.x == 0) s.bracket = {0, 0, 0, 0, 0, true, true};

    const Sizes sizes = measure(b);
    const Goal goal = goal_of(p, sizes);
    if (const double result = without_search(p, sizes, goal.limit); result != 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) p.result[0] = result;
        return;
    }
    const Key least = key_of(static_cast<Norm>(sizes.smallest)), top = key_of(static_cast<Norm>(sizes.largest)) + 1;
    const double high = next_above(fmin(sizes.largest, 0x1.ffffffffffffep1023)), low = fmax(high * 0x1p-80, next_above(0));
    if (threadIdx.x == 0) {
        s.bracket = {low, high, 0, 0, 0, false, false};
        // Below the least product nothing but zeros is skipped; the largest threshold is not yet known to be denied.
        s.known = {least, top + 1};
    }

    const long long pairs = static_cast<long long>(p.rows) * p.columns;
    const long long samples = min(pairs, static_cast<long long>(gridDim.x) * kWarps * (p.depth > 300 ? 4 : 2));
    // Not from the least product on: a curve of all exponents has to be refined once more.
    const Curve c = draw_curve(b, goal, max(least, key_of(static_cast<Norm>(low))), top, samples);

    const long long tiles = static_cast<long long>((p.rows + kTileRows - 1) / kTileRows) * ((p.columns + kTileColumns - 1) / kTileColumns);
    State state = {static_cast<double>(pairs) * p.depth,
                   kFew * static_cast<double>(min(tiles, static_cast<long long>(gridDim.x))),
                   1,
                   samples == pairs ? 0.01 : 0.02,
                   0,
                   infinity(),
                   0.25,
                   false};
    for (int pass = 0; pass < kMostTrials && !state.crossed; ++pass) {
        if (threadIdx.x < 32) choose_thresholds(s, c, state, goal.target, top, pass);
        __syncthreads();
        if (s.over) break;
        learn(s, c, goal, pass_over_tiles(b, goal, pass), state, top);
    }
    if (state.crossed) select_listed(b, goal, state.allowed_square);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        // What is not known counts as not allowed.
        walk(s.bracket, s.known.allowed, s.known.allowed + 1);
        p.result[0] = s.known.allowed >= top ? infinity() : s.bracket.low;
    }
}
