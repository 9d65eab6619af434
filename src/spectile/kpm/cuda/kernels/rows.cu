// KPM on a stored matrix, row by row: the augmented sparse matrix times block vector of the paper (Figures 4 and 5).
//
//   W = scale H V + shift V - keep W, with <V|V> and Re <W|V> of each column on the fly
//
// A warp works on 32 / LANES adjacent rows in lockstep, so rows that part columns (the orbitals of one site) part their
// loads.  One persistent block a multiprocessor walks "waves" of rows: it takes the same part of every wave, so that
// where a wave is a plane of the lattice, the plane before and the plane after are still in its L1 cache.

#include "block.cuh"

// Where a row's entries lie.
struct Row {
    long long number;
    entry at;
    int count;
};

static __device__ __forceinline__ Row find(const entry *pointer, const int *length, long long row, long long rows) {
    if (row >= rows) return {rows, 0, 0};
#if SELL
    return {row, entry(pointer[row / SELL] + row % SELL), length[row]};
#else
    const entry at = pointer[row];
    return {row, at, int(pointer[row + 1] - at)};
#endif
}

// Rows first_row, ..., rows - 1 are computed; columns may lie beyond them.  wave: rows of a wave, in units of ROWS;  width: R;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    aug_spmmv(const entry *__restrict__ pointer, const int *__restrict__ length, const int *__restrict__ indices,
              const number *__restrict__ data, const number *__restrict__ v, number *__restrict__ w,
              double *__restrict__ partial, long long first_row, long long rows, long long wave, int width,
              double scale_, double shift_, double keep_) {
    const real scale = scale_, shift = shift_, keep = keep_;
    const int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    const int column = blockIdx.y * LANES * COLUMNS + lane;
    const long long low = wave * blockIdx.x / gridDim.x;
    const int part = int(wave * (blockIdx.x + 1) / gridDim.x - low);
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;
    bool exists[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) exists[c] = EXACT || column + c * LANES < width;

    // A task is ROWS adjacent rows; its row is `rows` where the block has no more.
    auto row_of = [&](int task) {
        const int turn = task / part;
        return min(first_row + (turn * wave + low + (task - turn * part)) * ROWS + sub, rows);
    };
    const int tasks = part > 0 ? int((rows - first_row + wave * ROWS - 1) / (wave * ROWS)) * part : 0;
    Row next{rows, 0, 0};
    if (warp < tasks) next = find(pointer, length, row_of(warp), rows);
    for (int task = warp; task < tasks; task += WARPS) {
        const Row row = next;
        const bool live = row.number < rows;
        next = {rows, 0, 0};
        if (task + WARPS < tasks) next = find(pointer, length, row_of(task + WARPS), rows);

        number sum[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
        constexpr int STRIDE = SELL ? SELL : 1;
        entry at = row.at;
        int k = 0;
        // With a thread or two a row the last batch is masked, so that its loads are in flight together; with more, the
        // masked instructions cost more than that (measured), and the rest is looped over.
        for (; k + UNROLL <= row.count || (LANES < 4 && k < row.count); k += UNROLL, at += UNROLL * STRIDE) {
            int index[UNROLL];
            number value[UNROLL], other[UNROLL][COLUMNS];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const bool stored = LANES >= 4 || k + u < row.count;
                index[u] = stored ? __ldg(indices + at + u * STRIDE) : -1;
                value[u] = stored ? data[at + u * STRIDE] : zero();
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
                    other[u][c] = (LANES >= 4 || index[u] >= 0) && exists[c]
                                      ? v[(long long)index[u] * width + column + c * LANES]
                                      : zero();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value[u], other[u][c]);
        }
        for (; k < row.count; ++k, at += STRIDE) {
            const number value = data[at];
            const long long line = (long long)__ldg(indices + at) * width + column;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value, exists[c] ? v[line + c * LANES] : zero());
        }

#if LANES >= 4 && !SELL
        // The next row's entries and W come from memory: have them under way, at no cost in registers.
        if (next.count > 0) {
            const char *const entries = reinterpret_cast<const char *>(data + next.at);
            for (int byte = lane * 128; byte < next.count * int(sizeof(number)); byte += LANES * 128)
                prefetch_l1(entries + byte);
            if (lane == LANES - 1) prefetch_l1(indices + next.at);
#if MODE > 0
            const char *const line = reinterpret_cast<const char *>(w + next.number * width + column - lane);
            for (int byte = lane * 128; byte < LANES * COLUMNS * int(sizeof(number)); byte += LANES * 128)
                prefetch_l2(line + byte);
#endif
        }
#endif
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            if (live && exists[c])
                finish(sum[c], v, w, row.number * width + column + c * LANES, scale, shift, keep, even[c], odd[c]);
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
    sum_rows(even, odd);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (sub == 0) {
            sums[2 * warp * SPAN + c * LANES + lane] = even[c];
            sums[(2 * warp + 1) * SPAN + c * LANES + lane] = odd[c];
        }
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
