// KPM on a stored matrix in sliced ELLPACK, rows of about as many entries as their neighbours (csr/kernel.cu's operation).
//
//   a slice is SLICE adjacent rows, stored slot by slot: slot s of row r of slice j is entry start[j] + s * SLICE + r
//   for every row i, ROWS of them a warp side by side:
//       for s in the slots of its slice, UNROLL of them in flight:  sum += value[s] * V[index[s]]
//       write W[i], add to the scalar products
//
// Every row of a slice has as many slots as its longest; a row with fewer entries reads its own V, times zero.  LANES
// threads share a row, each holding PIECES pieces of VECTOR adjacent vectors.
//
// Invariant: while a row's V is on its way, all else of the thread's next row is: its first UNROLL slots, its own V and W.
// With UNIFORM all slices have UNROLL slots, whose places need no table.  With KEEP, V and W are small enough to stay in
// the L2 cache from step to step: the matrix, read once a step, must not push them out.
#include "block.cuh"
#include "piece.cuh"

constexpr int SLICE = 32;

// Keeps a number as it is here in a register, instead of converting it anew in every turn.
static __device__ __forceinline__ void settle(float& x) { asm volatile("" : "+f"(x)); }
static __device__ __forceinline__ void settle(double& x) { asm volatile("" : "+d"(x)); }

// Rows first_row, ..., rows - 1 are computed; columns may lie beyond them.  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sliced(const entry* __restrict__ start, const int* __restrict__ indices,
                                                                     const number* __restrict__ data, const number* __restrict__ v,
                                                                     number* w, double* __restrict__ partial, long long first_row,
                                                                     long long rows, int width, double scale_, double shift_,
                                                                     double keep_ SERIES_PARAMETER) {
    real scale = scale_, shift = shift_, keep = keep_;
    settle(scale), settle(shift), settle(keep);
    const int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
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
    if (SPAN == 1) width = 1;
    const int row_bytes = width * int(sizeof(number));
    auto element = [&](const number* block, int row, int p) {
        const char* const first = reinterpret_cast<const char*>(block + held[p]);
        return reinterpret_cast<const number*>(first + (long long)row * row_bytes);
    };

    // What a row needs but the V that its columns name.  Beyond the last row the last one is read again.
    struct Row {
        int at, more;  // more: slots beyond the first UNROLL
        entry slot;
        int index[UNROLL];
        number value[UNROLL];
        piece own[PIECES], old[PIECES];
#if SERIES
        piece total[PIECES];
#endif
    };
    // All blocks take rows side by side.
    const int last = int(rows);
    const unsigned step = gridDim.x * WARPS * ROWS;
    unsigned place = unsigned(first_row) + (blockIdx.x * WARPS + warp) * ROWS + sub;
    entry ahead_first = 0, ahead_end = 0;  // the slots of the slice of the row at `place`
    auto find = [&]() {
        if (UNIFORM) return;
        const unsigned slice = min(place, unsigned(last - 1)) / SLICE;
        ahead_first = __ldg(start + slice), ahead_end = __ldg(start + slice + 1);
    };
    auto load_slots = [&](Row& r) {
        r.at = int(min(place, unsigned(last)));
        const unsigned row = min(r.at, last - 1);
        int slots = UNROLL;
        if (UNIFORM) {
            r.slot = entry(row / SLICE) * (SLICE * UNROLL) + row % SLICE;
        } else {
            r.slot = ahead_first + row % SLICE;
            slots = int((ahead_end - ahead_first) / SLICE);
        }
        r.more = slots - UNROLL;
        place += step;
        find();
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const entry from = r.slot + (UNIFORM ? u : min(u, slots - 1)) * SLICE;
            r.index[u] = __ldcs(indices + from), r.value[u] = load_stream(data + from);
            if (!UNIFORM && u >= slots) r.value[u] = zero();
        }
    };
    auto load_vectors = [&](Row& r) {
        const int row = min(r.at, last - 1);
        if (MODE > 0)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                r.own[p] = load(element(v, row, p));
                r.old[p] = KEEP ? load_kept(element(w, row, p)) : load_once(element(w, row, p));
#if SERIES
                r.total[p] = piece_of<piece>(series, 0, (long long)row * width + held[p]);
#endif
            }
    };
    number sum[COLUMNS];
    auto add = [&](const int (&index)[UNROLL], const number(&value)[UNROLL], Row* next) {
        piece other[UNROLL][PIECES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) other[u][p] = load(element(v, index[u], p));
        if (next) load_slots(*next), load_vectors(*next);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value[u], other[u][c / VECTOR].n[c % VECTOR]);
    };
    auto turn = [&](Row& now, Row& next) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
        add(now.index, now.value, &next);
        if (!UNIFORM)
            for (int k = 0; k < now.more; k += UNROLL) {
                int index[UNROLL];
                number value[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    const entry from = now.slot + (UNROLL + min(k + u, now.more - 1)) * SLICE;
                    index[u] = __ldcs(indices + from), value[u] = load_stream(data + from);
                    if (k + u >= now.more) value[u] = zero();
                }
                add(index, value, nullptr);
            }
        if (now.at < last)
#pragma unroll
            for (int p = 0; p < PIECES; ++p)
                if (exists[p]) {
                    piece fresh;
#pragma unroll
                    for (int n = 0; n < VECTOR; ++n)
                        fresh.n[n] = advanced(sum[p * VECTOR + n], now.own[p].n[n], now.old[p].n[n], scale, shift, keep,
                                              even[p * VECTOR + n], odd[p * VECTOR + n]);
                    number* const target = const_cast<number*>(element(w, now.at, p));
                    if (KEEP) store(target, fresh);
                    else store_once(target, fresh);
#if SERIES
                    const piece terms[] = {now.old[p], now.own[p], fresh};
                    add_terms(series, (long long)now.at * width + held[p], now.total[p], terms);
#endif
                }
    };

    // Two rows take turns: a register that is moved waits for its load.
    Row one, two;
    find();
    load_slots(one);
    load_vectors(one);
    while (__any_sync(0xffffffffu, one.at < last)) {
        turn(one, two);
        if (!__any_sync(0xffffffffu, two.at < last)) break;
        turn(two, one);
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
    sum_block<VECTOR>(even, odd, sums, partial, width);
#endif
}
