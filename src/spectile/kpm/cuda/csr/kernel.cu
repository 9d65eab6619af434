// KPM on a stored matrix in CSR, rows of any length: the augmented product of the paper (Figures 4 and 5).
//
//   W = scale H V + shift V - keep W, with <V|V> and Re <W|V> of each column on the fly
//
//   for every row i, ROWS of them a warp side by side:
//       sum = 0
//       for k in the row's entries, SPLIT threads taking every SPLIT-th, UNROLL of each thread in flight:
//           sum += value[k] * V[index[k]]             LANES threads hold PIECES pieces of VECTOR adjacent vectors
//       add the SPLIT sums; the first of the SPLIT threads writes W[i] and adds to its scalar products
//
// With TURNED (0, 1) the plain product H V is written with each vector in one piece, number (i, r) to W[r apart + i].
// With HUBS (0, 1) a row of more than hubs.most entries was cut into pieces of as many, whose products an earlier launch has
// left: its entries are then these sums, each times one.
//
// Invariant: when a row's V is asked for, its entries are in registers, the entries of the warp's next row are on their
// way, and the places of the row after that are known.  A load that depends on a condition would be waited for by itself,
// so beyond its end a row reads its last entry again, times zero.  The order of every sum is fixed by the shape.
#include "block.cuh"
#include "piece.cuh"
#include "meet.cuh"

// V and W take turns where one launch makes many steps: what is written in one is read in the next.
#if WALK
#define UNCHANGED
#else
#define UNCHANGED __restrict__
#endif

static __device__ __forceinline__ piece load_v(const number* p) {
#if WALK
    const word bits = *reinterpret_cast<const word*>(p);
    return from_bits(bits);
#else
    return load(p);
#endif
}

#if HUBS
// Rows that were cut, in ascending order, and the first of each one's sums (pieces, R).
struct Hubs {
    const number* sums;
    const int *row, *first;
    int count, most;
};
#define HUBS_PARAMETER const number *__restrict__ sums, const int *__restrict__ hub, const int *__restrict__ first, int hubs, int most,
#define HUBS_REFERENCE const Hubs &hubs,
#define HUBS_ARGUMENT Hubs{sums, hub, first, hubs, most},
#else
#define HUBS_PARAMETER
#define HUBS_REFERENCE
#define HUBS_ARGUMENT
#endif

#if TURNED
#define TURNED_PARAMETER long long apart,
#define TURNED_ARGUMENT apart,
#else
#define TURNED_PARAMETER
#define TURNED_ARGUMENT
#endif

// A step.  Row i has the entries from pointer[i] to until[i].  Rows first_row, ..., rows - 1 are computed; columns may lie
// beyond them.  partial: (gridDim.x, 2, R)
static __device__ __forceinline__ void step_of(const entry* __restrict__ pointer, const entry* __restrict__ until,
                                               const int* __restrict__ indices, const number* __restrict__ data,
                                               HUBS_REFERENCE const number* UNCHANGED v, number* UNCHANGED w, double* __restrict__ partial,
                                               long long first_row, long long rows, int width, TURNED_PARAMETER real scale, real shift,
                                               real keep SERIES_REFERENCE) {
    const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES % SPLIT;
    const int sub = threadIdx.x % 32 / (LANES * SPLIT), warp = threadIdx.x / 32;
    constexpr int ROWS_A_TURN = 32 / (LANES * SPLIT);
    const int column = blockIdx.y * SPAN + lane * VECTOR;
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;
    // Columns that do not exist read the first one instead: loads without conditions are in flight together.
    bool exists[PIECES];
    int held[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        exists[p] = EXACT || column + p * LANES * VECTOR < width;
        held[p] = exists[p] ? column + p * LANES * VECTOR : 0;
    }

    // Blocks walk through the rows side by side, so that near ones find each other in the L1 cache.
    const long long last = rows, step = (long long)gridDim.x * WARPS * ROWS_A_TURN;
    long long place = first_row + ((long long)blockIdx.x * WARPS + warp) * ROWS_A_TURN + sub;
    struct Place {
        long long row;
        entry at;
        int count;
        bool cut;  // its entries are sums
    };
    auto find = [&]() {
        const long long row = min(place, last);
        place += step;
        if (row >= last) return Place{last, 0, 0, false};
        const entry at = pointer[row];
        const int count = int(until[row] - at);
#if HUBS
        if (count > hubs.most) {
            int low = 0;
            for (int high = hubs.count; high - low > 1;) {
                const int middle = (low + high) / 2;
                if (hubs.row[middle] <= row) low = middle;
                else high = middle;
            }
            return Place{row, entry(hubs.first[low]), (count + hubs.most - 1) / hubs.most, true};
        }
#endif
        return Place{row, at, count, false};
    };
    // UNROLL entries of this thread from its k-th on.
    struct Entries {
        int index[UNROLL];
        number value[UNROLL];
        const number* of;
    };
    auto entries = [&](const Place& place, int k) {
        Entries e;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int wanted = (k + u) * SPLIT + part;
            const entry from = place.count > 0 ? place.at + min(wanted, place.count - 1) : 0;
            e.index[u] = __ldg(indices + from);
            e.value[u] = data[from];
#if HUBS
            if (place.cut) e.index[u] = int(from), e.value[u] = zero(), e.value[u].x = 1;
#endif
            if (wanted >= place.count) e.value[u] = zero();
        }
#if HUBS
        e.of = place.cut ? hubs.sums : v;
#else
        e.of = v;
#endif
        return e;
    };
    number sum[COLUMNS];
    auto add = [&](const Entries& e) {
        piece other[UNROLL][PIECES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) other[u][p] = load_v(e.of + (long long)e.index[u] * width + held[p]);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], e.value[u], other[u][c / VECTOR].n[c % VECTOR]);
    };

    Place mine = find(), next = find(), later = find();
    Entries now = entries(mine, 0);
    while (__any_sync(0xffffffffu, mine.row < last)) {
        const Place row = mine;
        const long long line = min(row.row, last - 1) * width;
        piece own[PIECES], old[PIECES];
        if (MODE > 0 && part == 0) {
#pragma unroll
            for (int p = 0; p < PIECES; ++p) old[p] = load_once(w + line + held[p]), own[p] = load_v(v + line + held[p]);
        }
#if SERIES
        piece total[PIECES];
        if (part == 0)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) total[p] = piece_of<piece>(series, 0, line + held[p]);
#endif
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
        mine = next, next = later, later = find();
        const Entries soon = entries(mine, 0);
        add(now);
        now = soon;
        for (int k = UNROLL; k * SPLIT < row.count; k += UNROLL) add(entries(row, k));
        // The entries of the next row but one: a thread of the row a line of 128 bytes.
        const int thread = threadIdx.x % (LANES * SPLIT);
        if (thread * 128 < next.count * int(sizeof(number))) prefetch_l2(reinterpret_cast<const char*>(data + next.at) + thread * 128);
        if (thread * 128 < next.count * int(sizeof(int))) prefetch_l2(reinterpret_cast<const char*>(indices + next.at) + thread * 128);
#pragma unroll
        for (int distance = LANES; distance < LANES * SPLIT; distance *= 2)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                sum[c].x += __shfl_xor_sync(0xffffffffu, sum[c].x, distance);
#if COMPLEX
                sum[c].y += __shfl_xor_sync(0xffffffffu, sum[c].y, distance);
#endif
            }
        if (row.row >= last || part > 0) continue;
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
            if (exists[p]) {
                piece fresh;
#pragma unroll
                for (int n = 0; n < VECTOR; ++n)
                    fresh.n[n] = advanced(sum[p * VECTOR + n], own[p].n[n], old[p].n[n], scale, shift, keep, even[p * VECTOR + n],
                                          odd[p * VECTOR + n]);
#if TURNED
#pragma unroll
                for (int n = 0; n < VECTOR; ++n) w[(held[p] + n) * apart + row.row] = fresh.n[n];
#else
                store_once(w + line + held[p], fresh);
#endif
#if SERIES
                const piece terms[] = {old[p], own[p], fresh};
                add_terms(series, line + held[p], total[p], terms);
#endif
            }
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
    sum_block<VECTOR>(even, odd, sums, partial, width);
#endif
}

#if WALK
// Many steps, in a cooperative launch.
struct Walk {
    double* partial;              // (steps, gridDim.x, 2, R)
    unsigned long long* arrived;  // as for meet_blocks
    int steps, first;             // whether the first of them is that of the recurrence
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) walk(const entry* __restrict__ pointer, const entry* __restrict__ until,
                                                                   const int* __restrict__ indices, const number* __restrict__ data,
                                                                   number* v, number* w, const Walk walk, long long first_row,
                                                                   long long rows, int width, double scale, double shift, double keep) {
    double* partial = walk.partial;
    for (int step = 0; step < walk.steps; ++step) {
        const bool first = walk.first && step == 0;
        const double half = first ? 0.5 : 1;
        if (step) meet_blocks(walk.arrived);
        step_of(pointer, until, indices, data, v, w, partial, first_row, rows, width, real(half * scale), real(half * shift),
                first ? real(0) : real(keep));
        number* other = v;
        v = w, w = other;
        partial += (long long)gridDim.x * 2 * width;
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) csr(const entry* __restrict__ pointer, const entry* __restrict__ until,
                                                                  const int* __restrict__ indices, const number* __restrict__ data,
                                                                  HUBS_PARAMETER const number* __restrict__ v, number* __restrict__ w,
                                                                  double* __restrict__ partial, long long first_row, long long rows,
                                                                  int width, TURNED_PARAMETER double scale, double shift,
                                                                  double keep SERIES_PARAMETER) {
    step_of(pointer, until, indices, data, HUBS_ARGUMENT v, w, partial, first_row, rows, width, TURNED_ARGUMENT real(scale), real(shift),
            real(keep) SERIES_ARGUMENT);
}
#endif
