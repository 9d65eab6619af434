// KPM on a stored matrix, V staged through shared memory by a plan, on Hopper and later (csr/kernel.cu's operation).
//
//   for every tile of a worker's pages, GROUPS of tiles at work and DEPTH in flight or at work:
//       PRODUCERS warps hand to the copy engine: the tile's codes and values, and the pages of V that are not yet in a slot
//       for every page of the tile, a warp each:
//           sum[its four rows] = 0
//           for the entries of the rows:  sum += value * V[slot of the code]
//           write W of the page, add to the scalar products
//
// Invariant: a page of V stays in its slot until the last tile that needs it has been computed, and no copy into a slot is
// begun before; which page lies in which slot while a tile is computed was decided once for the matrix (inspector.py).
//
// A page is four adjacent rows; a code is a slot and a row in it.  Bytes in flight cost no registers and the L1 cache is not
// needed.  Eight threads share a row, 16 bytes of it a thread and piece; one warp needs 75 ns to hand over a copy (measured).
//
// Set by the launch code besides block.cuh's: PIECES (16-byte pieces of a row a thread), TILE (pages), DEPTH (tiles in flight
// or at work), SLOTS, CODE_BYTES and VALUE_BYTES (of one stage).

#include "block.cuh"

constexpr int PAGE = 4;
constexpr int VECTOR = 16 / int(sizeof(number));  // numbers of a piece
constexpr int ROW_BYTES = 128 * PIECES;
constexpr int WORKERS = THREADS / 32 - PRODUCERS;  // warps that compute
constexpr int GROUPS = WORKERS / TILE;             // tiles at work
constexpr int STAGE_BYTES = CODE_BYTES + VALUE_BYTES;

static_assert(COLUMNS == PIECES * VECTOR && LANES == 8 && 32 % PRODUCERS == 0, "");
static_assert(WORKERS % TILE == 0 && DEPTH > GROUPS, "");

struct alignas(16) piece {
    number n[VECTOR];
};

static __device__ __forceinline__ void fetch(const unsigned char* mine, unsigned code, piece* line) {
#pragma unroll
    for (int p = 0; p < PIECES; ++p) line[p] = *reinterpret_cast<const piece*>(mine + code * ROW_BYTES + p * 128);
}

static __device__ __forceinline__ void add(number* sum, number value, const piece* line) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value, line[c / VECTOR].n[c % VECTOR]);
}

// UNTIL entries of a row, of the four whose codes are given.
template <int UNTIL>
static __device__ __forceinline__ void batch(uint2 codes, const number* values, const unsigned char* mine, number* sum) {
    const unsigned word[4] = {codes.x & 0xffff, codes.x >> 16, codes.y & 0xffff, codes.y >> 16};
    piece line[UNTIL][PIECES];
    number value[UNTIL];
#pragma unroll
    for (int u = 0; u < UNTIL; ++u) fetch(mine, word[u], line[u]), value[u] = values[u * PAGE];
#pragma unroll
    for (int u = 0; u < UNTIL; ++u) add(sum, value[u], line[u]);
}

// What a warp must know of its page: its number, the code of its first row, entries of its longest row, and where its
// codes (8 bytes) and values begin in the stage, and the warp's next page.  Without a page: page = -1.
struct alignas(16) Header {
    int page;
    unsigned short own, length, codes, values;
    int next;
};

static __device__ __forceinline__ int4 shuffle(int4 a, int lane) {
    a.x = __shfl_sync(0xffffffffu, a.x, lane), a.y = __shfl_sync(0xffffffffu, a.y, lane);
    a.z = __shfl_sync(0xffffffffu, a.z, lane), a.w = __shfl_sync(0xffffffffu, a.w, lane);
    return a;
}

// tiles: (tiles + 1) of {first copy, first 16 bytes of codes, first 4 values, 1 if the matrix's last page is copied};
// first: first tile of each worker;  loads: {page, slot};  partial: (workers, 2, R).  Block (worker, chunk of columns).
// Rows of a chunk are row_stride numbers apart, chunks chunk_stride: (R, SPAN) where block vectors are row-major, (SPAN,
// rows SPAN) where chunks follow one another, so that a page is one copy.
extern "C" __global__ void __launch_bounds__(THREADS, 1) staged(const int4* __restrict__ tiles, const int* __restrict__ first,
                                                                const int2* __restrict__ loads, const uint4* __restrict__ codes,
                                                                const number* __restrict__ values, const number* __restrict__ v,
                                                                number* __restrict__ w, double* __restrict__ partial, long long rows,
                                                                int width, int row_stride, long long chunk_stride, double scale_,
                                                                double shift_, double keep_ SERIES_PARAMETER) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* const slots = memory;
    unsigned char* const stages = slots + SLOTS * PAGE * ROW_BYTES;
    __shared__ unsigned long long full[DEPTH], empty[DEPTH];
    const int warp = threadIdx.x / 32, thread = threadIdx.x % 32;
    const int begin = blockIdx.y * SPAN;
    v += blockIdx.y * chunk_stride, w += blockIdx.y * chunk_stride;
    const int first_tile = first[blockIdx.x], count = first[blockIdx.x + 1] - first_tile;
    if (threadIdx.x == 0)
        for (int n = 0; n < DEPTH; ++n) {
            barrier_init(full[n], PRODUCERS);
            barrier_init(empty[n], WORKERS);
        }
    fence_barrier_init();
    __syncthreads();

    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;

    if (warp >= WORKERS) {
        const int producer = warp - WORKERS;
        const int bytes = min(SPAN, width - begin) * int(sizeof(number));
        const bool whole = row_stride == SPAN;
        const int last = int((rows - 1) / PAGE), rows_of_last = int((rows - 1) % PAGE) + 1;
        // What is to be copied is read far ahead, one item by each lane: 32 to 64 tiles, and as many copies.
        auto tile = [&](int n) { return tiles[first_tile + min(n + thread, count)]; };
        int4 now = tile(0), soon = tile(32), from = shuffle(now, 0);
        const int end = tiles[first_tile + count].x;
        int base = from.x;
        auto window = [&](int at) { return loads[max(0, min(at + thread, end - 1))]; };
        int2 near = window(base), far = window(base + 32);
        for (int n = 0; n < count; ++n) {
            if ((n + 1) % 32 == 0) now = soon, soon = tile(n + 33);
            const int4 to = shuffle(now, (n + 1) % 32);
            const int stage = n % DEPTH;
            if (n >= DEPTH) barrier_wait_back(empty[stage], (n / DEPTH - 1) & 1);
            if (thread == 0 && producer > 0) barrier_arrive(full[stage]);
            if (thread == 0 && producer == 0) {
                const int code_bytes = (to.y - from.y) * 16, value_bytes = (to.z - from.z) * 4 * int(sizeof(number));
                const int missing = from.w ? (PAGE - rows_of_last) * bytes : 0;
                const int total = (to.x - from.x) * PAGE * bytes - missing + code_bytes + value_bytes;
                barrier_expect(full[stage], total);
                copy_bulk(stages + stage * STAGE_BYTES, codes + from.y, code_bytes, full[stage]);
                if (value_bytes) copy_bulk(stages + stage * STAGE_BYTES + CODE_BYTES, values + 4ll * from.z, value_bytes, full[stage]);
            }
            __syncwarp();
            for (int at = from.x; at < to.x; at += 32) {
                while (at - base >= 32) near = far, base += 32, far = window(base + 32);
                const int item = at - base + thread;
                const int page_1 = __shfl_sync(0xffffffffu, near.x, item), page_2 = __shfl_sync(0xffffffffu, far.x, item);
                const int slot_1 = __shfl_sync(0xffffffffu, near.y, item), slot_2 = __shfl_sync(0xffffffffu, far.y, item);
                if (at + thread >= to.x || thread % PRODUCERS != producer) continue;
                const int page = item < 32 ? page_1 : page_2, slot = item < 32 ? slot_1 : slot_2;
                const int present = page == last ? rows_of_last : PAGE;
                const number* const source = v + (long long)page * PAGE * row_stride;
                unsigned char* const target = slots + slot * PAGE * ROW_BYTES;
                if (whole) copy_bulk(target, source, present * bytes, full[stage]);
                else
                    for (int r = 0; r < present; ++r)
                        copy_bulk(target + r * ROW_BYTES, source + (long long)r * row_stride, bytes, full[stage]);
            }
            from = to;
        }
    } else {
        const real scale = scale_, shift = shift_, keep = keep_;
        const int lane = thread % LANES, row = thread / LANES;
        const unsigned char* const mine = slots + lane * 16;
        for (int n = 0; n < count; ++n) {
            const int stage = n % DEPTH;
            const unsigned char* const code_stage = stages + stage * STAGE_BYTES;
            // Every warp waits for every tile in turn, since copies overtake one another and a tile needs pages of those
            // before it; and no barrier may be two phases ahead of a warp, which sees its parity only.
            barrier_wait_back(full[stage], n / DEPTH & 1);
            if (n % GROUPS != warp / TILE) {
                __syncwarp();
                if (thread == 0) barrier_arrive(empty[stage]);
                continue;
            }
            const Header header = reinterpret_cast<const Header*>(code_stage)[warp % TILE];
            const long long number_of_row = (long long)header.page * PAGE + row;
            const bool live = header.page >= 0 && number_of_row < rows;
            number* const target = w + number_of_row * row_stride + lane * VECTOR;
            bool exists[PIECES];
            piece old[PIECES];
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                exists[p] = live && (EXACT || begin + (p * LANES + lane) * VECTOR < width);
#if MODE > 0
                if (exists[p]) {
                    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(target + p * LANES * VECTOR));
                    memcpy(&old[p], &bits, 16);
                }
#endif
            }
#if MODE > 0
            // W of the warp's next page comes into the L2 cache meanwhile.
            const long long next_row = (long long)header.next * PAGE + row;
            if (header.next >= 0 && lane < PIECES && next_row < rows)
                prefetch_l2(reinterpret_cast<const char*>(w + next_row * row_stride) + lane * 128);
#endif
#if SERIES
            const long long chunk_begin = blockIdx.y * chunk_stride, place = chunk_begin + number_of_row * row_stride + lane * VECTOR;
            if (header.next >= 0 && lane < PIECES && next_row < rows)
                for (int k = 0; k < series.count; ++k)
                    prefetch_l2(reinterpret_cast<const char*>(series.total[k] + (chunk_begin + next_row * row_stride) * PARTS) +
                                lane * 128);
#endif
            number sum[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();

            const uint2* code = reinterpret_cast<const uint2*>(code_stage + header.codes * 8) + row;
            const number* value = reinterpret_cast<const number*>(code_stage + CODE_BYTES) + header.values * 4 + row;
            for (int k = 0; k < header.length; k += 4, code += PAGE, value += 4 * PAGE) {
                const uint2 four = *code;
                switch (header.length - k) {
                    case 1:
                        batch<1>(four, value, mine, sum);
                        break;
                    case 2:
                        batch<2>(four, value, mine, sum);
                        break;
                    case 3:
                        batch<3>(four, value, mine, sum);
                        break;
                    default:
                        batch<4>(four, value, mine, sum);
                }
            }
            piece own[PIECES];
            fetch(mine, header.own + row, own);
            __syncwarp();
            if (thread == 0) barrier_arrive(empty[stage]);
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                if (!exists[p]) continue;
                piece fresh;
#pragma unroll
                for (int c = 0; c < VECTOR; ++c)
                    fresh.n[c] = advanced(sum[p * VECTOR + c], own[p].n[c], old[p].n[c], scale, shift, keep, even[p * VECTOR + c],
                                          odd[p * VECTOR + c]);
                uint4 bits;
                memcpy(&bits, &fresh, 16);
                __stcs(reinterpret_cast<uint4*>(target + p * LANES * VECTOR), bits);
#if SERIES
                const long long at = place + p * LANES * VECTOR;
                const piece terms[] = {old[p], own[p], fresh};
                add_terms(series, at, piece_of<piece>(series, 0, at), terms);
#endif
            }
        }
    }
#if MODE == 2
    __syncthreads();  // the slots are read to the end: the sums take their item
    sum_block<VECTOR, WORKERS>(even, odd, reinterpret_cast<double*>(memory), partial, width);
#endif
}
