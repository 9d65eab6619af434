// KPM on a stored matrix in CSR whose rows of V are one load of a thread, rows of any length (csr/kernel.cu's operation).
//
//   tile t is rows tile[t], ..., tile[t + 1] - 1, whose entries and rows together are at most CHUNK but for the last row's
//   for every tile, a block at a time:
//       products[k] = value[k] * V[index[k]] for its first CHUNK entries, UNROLL of each thread in flight
//       the same for what its last row has beyond them, summed by the block
//       for every row:  sum its products, write W[i], add to the scalar products
//
// Adjacent threads take adjacent entries: they wait neither for longer rows nor for lines of the matrix that others share.
// SPLIT threads sum a row's products, a warp those of a row of more than LONG.
//
// Invariant: every row of a tile begins within the first chunk, so that its last one alone goes on behind it.  The order of
// every sum is fixed by the tiles and the shape.
#include "block.cuh"
#include "piece.cuh"

constexpr int CHUNK = THREADS * UNROLL, LONG = 16 * SPLIT;
constexpr int ROOM = (CHUNK + WARPS) * int(sizeof(piece)), SUMS = WARPS * 2 * SPAN * 8;

// tile: (tiles + 1);  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flat(const int* __restrict__ tile, const entry* __restrict__ pointer,
                                                                   const int* __restrict__ indices, const number* __restrict__ data,
                                                                   const number* __restrict__ v, number* __restrict__ w,
                                                                   double* __restrict__ partial, int tiles, double scale_, double shift_,
                                                                   double keep_ SERIES_PARAMETER) {
    alignas(16) __shared__ double shared[(ROOM > SUMS ? ROOM : SUMS) / 8];
    piece* const products = reinterpret_cast<piece*>(shared);
    piece* const beyond = products + CHUNK;  // each warp's part of what the last row has beyond the chunk
    const real scale = real(scale_), shift = real(shift_), keep = real(keep_);
    const int lane = threadIdx.x % 32, part = lane % SPLIT, warp = threadIdx.x / 32;
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;

    auto add = [](piece& sum, const piece& more) {
#pragma unroll
        for (int n = 0; n < VECTOR; ++n) {
            sum.n[n].x += more.n[n].x;
#if COMPLEX
            sum.n[n].y += more.n[n].y;
#endif
        }
    };
    // Adds up what lanes hold that are less than `lanes` apart.
    auto together = [](piece& sum, int lanes) {
        for (int distance = 1; distance < lanes; distance *= 2)
#pragma unroll
            for (int n = 0; n < VECTOR; ++n) {
                sum.n[n].x += __shfl_xor_sync(0xffffffffu, sum.n[n].x, distance);
#if COMPLEX
                sum.n[n].y += __shfl_xor_sync(0xffffffffu, sum.n[n].y, distance);
#endif
            }
    };
    piece nothing;
#pragma unroll
    for (int n = 0; n < VECTOR; ++n) nothing.n[n] = zero();

    // Entries of this thread from `at` on, of which UNROLL are in flight; behind the end the first of all, times zero.
    struct Entries {
        int index[UNROLL];
        number value[UNROLL];
    };
    auto entries = [&](entry at, entry end) {
        Entries e;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const entry k = at + u * THREADS + int(threadIdx.x), held = k < end ? k : 0;
            e.index[u] = __ldcs(indices + held), e.value[u] = load_stream(data + held);
            if (k >= end) e.value[u] = zero();
        }
        return e;
    };
    auto multiplied = [&](const Entries& e, piece(&product)[UNROLL]) {
        piece other[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) other[u] = load(v + (long long)e.index[u] * VECTOR), product[u] = nothing;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int n = 0; n < VECTOR; ++n) multiply_add(product[u].n[n], e.value[u], other[u].n[n]);
    };
    struct Row {
        int row;
        entry begin, end;
        piece own, old;
    };

    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int first = tile[t], last = tile[t + 1];
        if (first == last) continue;
        const entry from = pointer[first], end = pointer[last], until = end - from > CHUNK ? from + CHUNK : end;
        const Entries mine = entries(from, until);
        // The rows of this warp's next turn, which arrive while products, or sums before them, are made.
        auto look = [&](int base) {
            Row r;
            r.row = base + lane / SPLIT;
            const int held = r.row < last ? r.row : last - 1;
            r.begin = pointer[held], r.end = pointer[held + 1];
            if (MODE > 0) r.own = load(v + (long long)held * VECTOR), r.old = load_once(w + (long long)held * VECTOR);
            return r;
        };
        int base = first + warp * (32 / SPLIT);
        Row next = look(base);
        piece product[UNROLL];
        multiplied(mine, product);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) products[u * THREADS + threadIdx.x] = product[u];
        if (until < end) {
            piece sum = nothing;
#pragma unroll 1
            for (entry at = until; at < end; at += CHUNK) {
                multiplied(entries(at, end), product);
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) add(sum, product[u]);
            }
            together(sum, 32);
            if (lane == 0) beyond[warp] = sum;
        }
        __syncthreads();
        while (base < last) {
            const Row r = next;
            base += THREADS / SPLIT;
            if (base < last) next = look(base);
            const bool here = r.row < last;
            const int begin = int(r.begin - from), stop = here ? int((r.end < until ? r.end : until) - from) : 0;
            const bool is_long = stop - begin > LONG;
            piece sum = nothing;
            if (!is_long)
                for (int k = begin + part; k < stop; k += SPLIT) add(sum, products[k]);
            together(sum, SPLIT);
            for (unsigned rows = __ballot_sync(0xffffffffu, is_long && part == 0); rows; rows &= rows - 1) {
                const int whose = __ffs(rows) - 1;
                const int low = __shfl_sync(0xffffffffu, begin, whose), high = __shfl_sync(0xffffffffu, stop, whose);
                piece all = nothing;
                for (int k = low + lane; k < high; k += 32) add(all, products[k]);
                together(all, 32);
                if (lane == whose) sum = all;
            }
            if (!here || part > 0) continue;
            if (r.end > until)
                for (int n = 0; n < WARPS; ++n) add(sum, beyond[n]);
            piece fresh;
            const long long place = (long long)r.row * VECTOR;
#pragma unroll
            for (int n = 0; n < VECTOR; ++n) fresh.n[n] = advanced(sum.n[n], r.own.n[n], r.old.n[n], scale, shift, keep, even[n], odd[n]);
            store_once(w + place, fresh);
#if SERIES
            const piece terms[] = {r.old, r.own, fresh};
            add_terms(series, place, piece_of<piece>(series, 0, place), terms);
#endif
        }
        __syncthreads();
    }
#if MODE == 2
    sum_block<VECTOR>(even, odd, shared, partial, VECTOR);
#endif
}
