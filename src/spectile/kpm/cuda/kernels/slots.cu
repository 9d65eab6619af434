// KPM on a stored matrix whose rows have WIDTH entries at most, and hardly fewer (gather.cu's operation).
//
// Every row has WIDTH slots: those of 32 adjacent rows lie side by side, slot by slot, so that a slot's place needs no
// table, and a warp reads whole lines.  A row with fewer entries reads its own V, times zero.  LANES threads share a row,
// each holding PIECES pieces of VECTOR adjacent vectors.  While a row's V is on its way, all else of the thread's next row
// is: slots, own V, W.  With KEEP, V and W are small enough to stay in the L2 cache from step to step: the matrix, read
// once a step, must not push them out.
#include "block.cuh"
#include "piece.cuh"

// Keeps a number as it is here in a register, instead of converting it anew in every turn.
static __device__ __forceinline__ void settle(float &x) { asm volatile("" : "+f"(x)); }
static __device__ __forceinline__ void settle(double &x) { asm volatile("" : "+d"(x)); }

// Rows first_row, ..., rows - 1 are computed; columns may lie beyond them.  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    slots(const int *__restrict__ indices, const number *__restrict__ data, const number *__restrict__ v, number *w,
          double *__restrict__ partial, long long first_row, long long rows, int width, double scale_, double shift_,
          double keep_) {
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
    auto element = [&](const number *block, int row, int p) {
        const char *const first = reinterpret_cast<const char *>(block + held[p]);
        return reinterpret_cast<const number *>(first + (long long)row * row_bytes);
    };

    // What a row needs but the V that its columns name.  Beyond the last row the last one is read again.
    struct Row {
        int at, index[WIDTH];
        number value[WIDTH];
        piece own[PIECES], old[PIECES];
    };
    // All blocks take rows side by side.
    const int last = int(rows);
    const unsigned step = gridDim.x * WARPS * ROWS;
    unsigned place = unsigned(first_row) + (blockIdx.x * WARPS + warp) * ROWS + sub;
    auto load_slots = [&](Row &r) {
        r.at = int(min(place, unsigned(last)));
        place += step;
        const unsigned row = min(r.at, last - 1), slot = row / 32 * (32 * WIDTH) + row % 32;
#pragma unroll
        for (int u = 0; u < WIDTH; ++u)
            r.index[u] = __ldcs(indices + slot + u * 32), r.value[u] = load_stream(data + slot + u * 32);
    };
    auto load_vectors = [&](Row &r) {
        const int row = min(r.at, last - 1);
        if (MODE > 0)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                r.own[p] = load(element(v, row, p));
                r.old[p] = KEEP ? load_kept(element(w, row, p)) : load_once(element(w, row, p));
            }
    };
    auto turn = [&](Row &now, Row &next) {
        piece other[WIDTH][PIECES];
#pragma unroll
        for (int u = 0; u < WIDTH; ++u)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) other[u][p] = load(element(v, now.index[u], p));
        load_slots(next);
        load_vectors(next);
        number sum[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
#pragma unroll
        for (int u = 0; u < WIDTH; ++u)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], now.value[u], other[u][c / VECTOR].n[c % VECTOR]);
        if (now.at < last)
#pragma unroll
            for (int p = 0; p < PIECES; ++p)
                if (exists[p]) {
                    piece fresh;
#pragma unroll
                    for (int n = 0; n < VECTOR; ++n)
                        fresh.n[n] = advanced(sum[p * VECTOR + n], now.own[p].n[n], now.old[p].n[n], scale, shift, keep,
                                              even[p * VECTOR + n], odd[p * VECTOR + n]);
                    number *const target = const_cast<number *>(element(w, now.at, p));
                    if (KEEP)
                        store(target, fresh);
                    else
                        store_once(target, fresh);
                }
    };

    // Two rows take turns: a register that is moved waits for its load.
    Row one, two;
    load_slots(one);
    // The matrix may be read before the step before this one has ended, V and W may not.
    launch_dependents();
    wait_for_previous();
    load_vectors(one);
    while (__any_sync(0xffffffffu, one.at < last)) {
        turn(one, two);
        if (!__any_sync(0xffffffffu, two.at < last)) break;
        turn(two, one);
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
    sum_rows(even, odd);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (sub == 0) {
            const int target = (c / VECTOR * LANES + lane) * VECTOR + c % VECTOR;
            sums[2 * warp * SPAN + target] = even[c];
            sums[(2 * warp + 1) * SPAN + target] = odd[c];
        }
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
