// KPM on a stored matrix whose adjacent rows couple the same columns: groups of them on tensor cores, V through shared
// memory, on Hopper and later (csr/kernel.cu's operation).
//
//   for every tile of up to TILE groups, DEPTH of them in flight or at work:
//       the copy engine brings the tile's codes and values, and the boxes of V that its codes name
//       for every group of the tile, a warp each:
//           sum[rows of the group] = 0
//           for the group's columns, eight at a time, UNROLL times in flight:   sum += values * V[boxes at the codes]
//           write W of the group's rows, add to the scalar products
//
// Invariant: while a tile is computed, all that the next DEPTH - SETS tiles read is on its way; the last group of a tile
// hands its place to the engine, once every warp has read it.
//
// The rows of V that the groups of a tile name, and their own, lie in boxes of BOX adjacent rows, a multiple of eight, which
// an inspector (inspector.cu) has chosen: bytes in flight cost no registers, and a row that several groups of a tile name
// leaves the L2 cache once.  The next group's W a warp brings into the L2 cache meanwhile, and from there into registers.
//
// Vectors are the tall operand: m16n8k8, sixteen real columns, eight rows of V, in float64, or in TF32 in three parts for
// float32.  The four rows that a load names together must lie in different banks, so the engine swizzles them (16 bytes n of
// row r of a box lie at n ^ r), and a thread takes every other of eight columns of the matrix.
//
// A code is the place of a row's first piece, in pieces.
//
// Set by the launch code besides block.cuh's: TILE, DEPTH, BOX, SLOTS (boxes of a tile), LENGTH (codes of a group: entries of
// the longest row, a multiple of 8 UNROLL), DOUBLE (float64).
#include "block.cuh"
#if DOUBLE
typedef double Parts;
static __device__ __forceinline__ double parts_of(double x) { return x; }
static __device__ __forceinline__ void multiply(double (&c)[4], double a0, double a1, double a2, double a3, double b0, double b1) {
    const double a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    mma_f64(c, a, b);
}
#else
#include "boxed/thirds.cuh"
#endif

constexpr int MOST_ROWS = 8;  // of a group
constexpr int ROW_BYTES = SPAN * int(sizeof(number));
constexpr int PIECE_BYTES = ROW_BYTES % 128 == 0 ? 128 : 64;  // of a row that lie together in a box
constexpr int PIECES = ROW_BYTES / PIECE_BYTES;
constexpr int VECTOR = PIECE_BYTES / 8 / int(sizeof(real));  // that a thread reads at once
constexpr int HALVES = VECTOR / 2;
constexpr int BOX_BYTES = BOX * ROW_BYTES;
constexpr int SETS = WARPS / TILE;         // sets of warps take tiles in turn
constexpr int CODES = LENGTH + MOST_ROWS;  // a group's columns, and its own rows
constexpr int CODE_BYTES = TILE * CODES * 2;
constexpr int VALUE_BYTES = MOST_ROWS * LENGTH * int(sizeof(number)) + 16;  // of a group
constexpr int LISTS = (SLOTS + 31) / 32;
static_assert(BOX % 8 == 0 && LANES == 8 && ROW_BYTES % 64 == 0 && VECTOR >= 2, "");
// A barrier's parity tells a set only one phase: a stage belongs to one set.
static_assert(WARPS % TILE == 0 && DEPTH % SETS == 0 && LENGTH % (8 * UNROLL) == 0 && CODE_BYTES % 16 == 0, "");

struct alignas(VECTOR * sizeof(real)) piece {
    real n[VECTOR];
};

// A group: its first row, how many there are, entries of each, and where they begin.
struct alignas(16) Place {
    int begin;
    short rows, count;
    long long at;
};

// Where in the boxes a thread finds its part of a row's first piece.
static __device__ __forceinline__ int locate(int code, int part) {
    const int line = code * PIECE_BYTES, row = code % 8;
    return PIECE_BYTES == 128 ? line + (part ^ row) * 16 : line + ((part / 2 ^ row / 2) * 16 + part % 2 * 8);
}

static __device__ __forceinline__ void prefetch_bulk(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Count another warp that has read what it needed, and return how many had before.
static __device__ __forceinline__ int leave(int& left) {
    __threadfence_block();
    const int before = atomicAdd(&left, 1);
    __threadfence_block();
    return before;
}

static __device__ __forceinline__ long long address_of(const void* p) { return reinterpret_cast<long long>(p); }

// A group's values, and what lies before and behind them up to multiples of 16 bytes.
struct Range {
    const void* from;
    int bytes;
};

static __device__ __forceinline__ Range values_of(const number* data, const Place& group) {
    const int entries = group.rows * group.count;
    const long long from = address_of(data + group.at) & -16, to = (address_of(data + group.at + entries) + 15) & -16;
    return {reinterpret_cast<const void*>(from), entries ? int(to - from) : 0};
}

// places: (tiles + 1, TILE);  starts: (tiles, SLOTS) first rows of boxes, -1 where there is none;  codes: (tiles, TILE,
// CODES);  map: V, boxes of PIECES x BOX x PIECE_BYTES;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, 1) boxed(const Place* __restrict__ places, const int* __restrict__ starts,
                                                               const unsigned short* __restrict__ codes, const number* __restrict__ data,
                                                               const real* __restrict__ v, real* __restrict__ w,
                                                               double* __restrict__ partial, const __grid_constant__ TensorMap map,
                                                               int tiles, int width, double scale_, double shift_,
                                                               double keep_ SERIES_PARAMETER) {
    extern __shared__ unsigned char unaligned[];
    __shared__ unsigned long long full[DEPTH];
    __shared__ int left[DEPTH];  // warps that have left each stage so far
    unsigned char* const boxes = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    unsigned char* const stage_values = boxes + DEPTH * SLOTS * BOX_BYTES;
    unsigned char* const stage_codes = stage_values + DEPTH * TILE * VALUE_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int outer = lane / 4, inner = lane % 4;
    const long long stride = (long long)width * PARTS;
    if (threadIdx.x == 0)
        for (int n = 0; n < DEPTH; ++n) barrier_init(full[n], 1), left[n] = 0;
    fence_barrier_init();
    __syncthreads();

    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;

    // What is copied for a tile: a lane has the first rows of boxes, and a group.
    struct List {
        int start[LISTS];
        Place group;
    };
    auto list_of = [&](int tile) {
        List found;
        const long long held = min(tile, tiles - 1);
#pragma unroll
        for (int n = 0; n < LISTS; ++n) found.start[n] = n * 32 + lane < SLOTS ? __ldg(starts + held * SLOTS + n * 32 + lane) : -1;
        found.group = places[lane < TILE ? held * TILE + lane : (long long)tiles * TILE];
        return found;
    };
    auto issue = [&](int tile, int stage, const List& list) {
        const Range values = values_of(data, list.group);
        int bytes = values.bytes;
#pragma unroll
        for (int k = 0; k < LISTS; ++k) bytes += list.start[k] >= 0 ? BOX_BYTES : 0;
        bytes = __reduce_add_sync(0xffffffffu, bytes);
        if (lane == 0) {
            barrier_expect(full[stage], bytes + CODE_BYTES);
            copy_bulk(stage_codes + stage * CODE_BYTES, codes + (long long)tile * (TILE * CODES), CODE_BYTES, full[stage]);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < LISTS; ++k)
            if (list.start[k] >= 0)
                load_box(shared_address(boxes) + (stage * SLOTS + k * 32 + lane) * BOX_BYTES, &map, 0, list.start[k], blockIdx.y * PIECES,
                         full[stage]);
        if (values.bytes) copy_bulk(stage_values + (stage * TILE + lane) * VALUE_BYTES, values.from, values.bytes, full[stage]);
        __syncwarp();
    };
    for (int n = warp; n < DEPTH; n += WARPS) {
        const int tile = blockIdx.x + n * gridDim.x;
        if (tile < tiles) issue(tile, n, list_of(tile));
    }

    const real scale = scale_, shift = shift_, keep = keep_;
    const int slot = warp % TILE, set = warp / TILE, step = SETS * gridDim.x;
    // A tile's place is read while the one before it is computed.
    auto place_of = [&](int tile) { return places[(long long)min(tile, tiles) * TILE + slot]; };
    int tile = blockIdx.x + set * gridDim.x;
    Place next = place_of(tile);
    for (int n = set; tile < tiles; n += SETS, tile += step) {
        const Place mine = next;
        const int stage = n % DEPTH, rows = mine.rows, count = mine.count;
        next = place_of(tile + step);
        const int later = tile + DEPTH * gridDim.x;
        const List list = list_of(later);

        // A thread holds VECTOR adjacent numbers of two rows in each piece.
        real* target[2];
        piece old[2][PIECES];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = mine.begin + max(0, min(2 * inner + half, rows - 1));
            target[half] = w + row * stride + blockIdx.y * (SPAN * PARTS) + outer * VECTOR;
            if (MODE > 0)
#pragma unroll
                for (int p = 0; p < PIECES; ++p) old[half][p] = *reinterpret_cast<const piece*>(target[half] + p * 8 * VECTOR);
        }
        const unsigned char* const staged = stage_values + (stage * TILE + slot) * VALUE_BYTES;
        const number* values = reinterpret_cast<const number*>(staged + (address_of(data + mine.at) & 15));
        // Rows that a group lacks are computed as its first one, and left.
        values += outer < rows ? outer * count : 0;

        // Sums with real and with imaginary parts of the matrix, which meet at the end: V need not be turned for each group.
        real sum[PIECES][HALVES][PARTS][4];
#pragma unroll
        for (int n = 0; n < PIECES * HALVES * PARTS; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[n / PARTS / HALVES][n / PARTS % HALVES][n % PARTS][e] = 0;

        const unsigned char* const mine_boxes = boxes + stage * SLOTS * BOX_BYTES;
        const unsigned short* const code = reinterpret_cast<const unsigned short*>(stage_codes + stage * CODE_BYTES) + slot * CODES;
        auto fetch = [&](int from, int p) { return *reinterpret_cast<const piece*>(mine_boxes + from + p * BOX * PIECE_BYTES); };
        barrier_wait_back(full[stage], n / DEPTH & 1);
        if (MODE > 0 && lane == 0 && blockIdx.y == 0 && next.rows > 0)
            prefetch_bulk(w + next.begin * stride, next.rows * width * int(sizeof(number)));
#if SERIES
        if (lane < series.count && blockIdx.y == 0 && next.rows > 0)
            prefetch_bulk(series.total[lane] + next.begin * stride, next.rows * width * int(sizeof(number)));
#endif
        for (int from = 0; from < count; from += 8 * UNROLL) {
            piece other[UNROLL][2][PIECES];
            number factor[UNROLL][2];
#pragma unroll
            for (int u = 0; u < 2 * UNROLL; ++u)  // something lies behind the last row's end, too
                factor[u / 2][u % 2] = values[from + u / 2 * 8 + 2 * inner + u % 2];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const unsigned both = *reinterpret_cast<const unsigned*>(code + from + u * 8 + 2 * inner);
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int at = locate(j ? both >> 16 : both & 0xffff, outer);
#pragma unroll
                    for (int p = 0; p < PIECES; ++p) other[u][j][p] = fetch(at, p);
                }
            }
            // Behind a row's end.
            if (from + 8 * UNROLL > count)
#pragma unroll
                for (int u = 0; u < 2 * UNROLL; ++u)
                    if (from + u / 2 * 8 + 2 * inner + u % 2 >= count) factor[u / 2][u % 2] = zero();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const Parts x0 = parts_of(factor[u][0].x), x1 = parts_of(factor[u][1].x);
#if COMPLEX
                const Parts y0 = parts_of(factor[u][0].y), y1 = parts_of(factor[u][1].y);
#endif
#pragma unroll
                for (int p = 0; p < PIECES; ++p)
#pragma unroll
                    for (int j = 0; j < HALVES; ++j) {
                        const Parts a0 = parts_of(other[u][0][p].n[2 * j]), a1 = parts_of(other[u][0][p].n[2 * j + 1]);
                        const Parts a2 = parts_of(other[u][1][p].n[2 * j]), a3 = parts_of(other[u][1][p].n[2 * j + 1]);
                        multiply(sum[p][j][0], a0, a1, a2, a3, x0, x1);
#if COMPLEX
                        multiply(sum[p][j][1], a0, a1, a2, a3, y0, y1);
#endif
                    }
            }
        }
        piece own[2][PIECES];
        if (MODE > 0) {
            const unsigned both = *reinterpret_cast<const unsigned*>(code + LENGTH + 2 * inner);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int p = 0; p < PIECES; ++p) own[half][p] = fetch(locate(half ? both >> 16 : both & 0xffff, outer), p);
        }
        __syncwarp();
        // Who is the last to leave a stage lets the next tile come to it.
        int before = 0;
        if (lane == 0) before = leave(left[stage]);
        if (__shfl_sync(0xffffffffu, before, 0) % TILE == TILE - 1 && later < tiles) issue(later, stage, list);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (2 * inner + half >= rows) continue;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                piece fresh;
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) {
                    real total = sum[p][e / 2][0][e % 2 * 2 + half];
#if COMPLEX
                    const real turned = sum[p][e / 2][1][(e + 1) % 2 * 2 + half];
                    total += e % 2 ? turned : -turned;
#endif
#if MODE == 0
                    fresh.n[e] = total;
#else
                    fresh.n[e] = scale * total + shift * own[half][p].n[e] - keep * old[half][p].n[e];
#endif
#if MODE == 2
                    const int c = (p * VECTOR + e) / PARTS;
                    const double mine_ = own[half][p].n[e];
                    even[c] += mine_ * mine_, odd[c] += fresh.n[e] * mine_;
#endif
                }
                *reinterpret_cast<piece*>(target[half] + p * 8 * VECTOR) = fresh;
#if SERIES
                const long long place = (target[half] + p * 8 * VECTOR - w) / PARTS;
                const piece terms[] = {old[half][p], own[half][p], fresh};
                add_terms(series, place, piece_of<piece>(series, 0, place), terms);
#endif
            }
        }
    }
#if MODE == 2
    __syncthreads();  // the boxes are read to the end: the sums take their place
    double* const sums = reinterpret_cast<double*>(boxes);
    sum_quads<VECTOR / PARTS>(even, odd, sums);
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
