// KPM on a stored matrix, row by row: the augmented sparse matrix times block vector of the paper (Figures 4 and 5).
//
//   W = scale H V + shift V - keep W, with <V|V> and Re <W|V> of each column on the fly
//
// LANES threads share a row, each holding PIECES pieces of VECTOR adjacent vectors, 16 bytes where R allows.  UNROLL
// entries of a row are in flight together, and the numbers and values of the next row's: a load that depends on a condition
// would be waited for by itself, so a short row reads its last entry again, times zero.  Blocks walk through the rows side
// by side, so that near ones find each other in the L1 cache, and farther ones in L2; with AHEAD, V and W come into L2 a
// few turns before a warp needs them, which costs no registers.
#include "block.cuh"
#include "piece.cuh"

// The lines of V and W that a warp's rows from `row` on take: a thread a line of 128 bytes comes into the L2 cache.
static __device__ __forceinline__ void fetch_ahead(const number *v, const number *w, int width, long long rows,
                                                   long long row, int lines) {
    const int thread = threadIdx.x % 32, line = thread % 16;
    const long long byte = row * width * int(sizeof(number)) + line * 128;
    if (line < lines && byte < rows * width * int(sizeof(number)))
        prefetch_l2(reinterpret_cast<const char *>(thread < 16 ? v : w) + byte);
}

// Rows first_row, ..., rows - 1 are computed; columns may lie beyond them.  Of every `wave` rows a block takes the same
// part, so that what lies a wave before and after may still be in its L1 cache.  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gather(const entry *__restrict__ pointer, const int *__restrict__ indices, const number *__restrict__ data,
           const number *__restrict__ v, number *__restrict__ w, double *__restrict__ partial, long long first_row,
           long long rows, long long wave, int width, double scale_, double shift_, double keep_) {
    const real scale = scale_, shift = shift_, keep = keep_;
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

    const long long low = wave * blockIdx.x / gridDim.x;
    const int part = int(wave * (blockIdx.x + 1) / gridDim.x - low), last = part ? int(rows) : 0;
    // Rows of this thread, one after another, and where the entries of each lie.
    long long start = first_row + low;  // of the part that the row just looked for lies in
    int offset = warp * ROWS + sub;     // its place there
    struct Place {
        int row, count;
        entry at;
    };
    auto find = [&]() {
        while (offset >= part && start < last) offset -= part, start += wave;
        const int row = int(min(start + offset, (long long)last));
        offset += WARPS * ROWS;
        if (row >= last) return Place{last, 0, 0};
        const entry at = pointer[row];
        return Place{row, int(pointer[row + 1] - at), at};
    };
    // UNROLL entries of a row from the k-th on; beyond its end its last one (of an empty row the matrix's first), times zero.
    struct Entries {
        int index[UNROLL];
        number value[UNROLL];
    };
    auto entries = [&](const Place &place, int k) {
        Entries e;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const entry from = place.count > 0 ? place.at + min(k + u, place.count - 1) : 0;
            e.index[u] = __ldg(indices + from);
            e.value[u] = data[from];
            if (k + u >= place.count) e.value[u] = zero();
        }
        return e;
    };
    number sum[COLUMNS];
    auto add = [&](const Entries &e) {
        piece other[UNROLL][PIECES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) other[u][p] = load(v + (long long)e.index[u] * width + held[p]);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], e.value[u], other[u][c / VECTOR].n[c % VECTOR]);
    };

    Place mine = find(), next = find(), later = find();
    const int lines = min((ROWS * width * int(sizeof(number)) + 127) / 128, 16);
    Entries now = entries(mine, 0);
    while (__any_sync(0xffffffffu, mine.row < last)) {
        const Place place = mine;
        const bool live = place.row < last;
        const long long line = (long long)min(place.row, last - 1) * width;
        piece own[PIECES], old[PIECES];
        if (MODE > 0) {
#pragma unroll
            for (int p = 0; p < PIECES; ++p) old[p] = load_once(w + line + held[p]), own[p] = load(v + line + held[p]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
        // The next row's entries are on their way while this one's are computed.
        mine = next, next = later, later = find();
        const Entries soon = entries(mine, 0);
        add(now);
        now = soon;
        for (int k = UNROLL; k < place.count; k += UNROLL) add(entries(place, k));
        if (AHEAD) fetch_ahead(v, w, width, last, __shfl_sync(0xffffffffu, later.row, 0), lines);
        // The entries of the next row but one: a lane a line of 128 bytes.
        if (lane * 128 < next.count * int(sizeof(number)))
            prefetch_l2(reinterpret_cast<const char *>(data + next.at) + lane * 128);
        if (lane == LANES - 1 && next.count > 0) prefetch_l2(indices + next.at);
        if (!live) continue;
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
            if (exists[p]) {
                piece fresh;
#pragma unroll
                for (int n = 0; n < VECTOR; ++n)
                    fresh.n[n] = advanced(sum[p * VECTOR + n], own[p].n[n], old[p].n[n], scale, shift, keep,
                                          even[p * VECTOR + n], odd[p * VECTOR + n]);
                store_once(w + line + held[p], fresh);
            }
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
