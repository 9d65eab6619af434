// Row-wise sparse product, CSR times CSR to CSR with sorted columns, for one type of value (VALUE = float, double, or Complex
// of these); those of matrices may be another (STORED = bool, whose sums count).
//
//   prepare   ../check.cu                    round the values, check indices and values             one thread per entry
//   analyse   analysis.cu                    products, window of columns and bin of each row of C   lanes per row
//   symbolic  symbolic.cu, symbolic_block.cu entries of each row of C                               by family of bins
//   place     place.cu                       row pointer of C (prefix scan), bins of the numeric phase
//   numeric   sort.cu, window.cu, hash.cu,   columns and values of C                                by bin
//             block.cu
//   reuse     the same                       values of C, its columns known (REUSE = 1 of blocks)   by bin
//
// This file is what they share.
//
// Four ways to gather a row, chosen by the window of its columns [low, low + span) and its number of products:
//   sort      rows of few products: all of them side by side, sorted by column and summed.  One group of lanes a row.
//   window    a bitmap of the window in shared memory; a column's place in C is the number of bits before its own, so the
//             row is sorted and needs no hash and no sort.  One group of lanes a row; the symbolic phase keeps the bitmaps.
//   hash      a table in shared memory for short rows with a wide window; sorted afterwards.  One group of lanes a row.
//   block     the bitmap again, one block for each row, for long rows with a wide window; sums in shared or global memory.
//
// Sums run over k in the order of A's row with a barrier between two k, and the columns of one row of B are distinct: each
// entry of C is added in one fixed order, so the same product gives the same bits every time.

#include "shared.cuh"

namespace {

template <int G>
__device__ __forceinline__ u32 group_mask() {
    return G == 32 ? ALL : ((1u << (G & 31)) - 1u) << (threadIdx.x & 31 & ~(G - 1));
}

// Products an entry of A, which is the mean length of the rows of B that it meets, and the lanes that such a row takes.
__device__ __forceinline__ float mean_row(const int* head, int nnz) { return float(*(const u64*)&head[PRODUCTS]) / float(max(nnz, 1)); }
// Its logarithm.
__device__ __forceinline__ int lanes_of(float mean) {
    int log = 2;
    while (log < 5 && float(1 << log) < mean) ++log;
    return log;
}

__device__ __forceinline__ int insert(int* keys, int log, int column, bool& added) {
    u32 slot = (u32(column) * 2654435769u) >> (32 - log);
    while (true) {
        const int key = *(volatile int*)&keys[slot];
        if (key == column) return slot;
        if (key == -1) {
            const int old = atomicCAS(&keys[slot], -1, column);
            if (old == -1) added = true;
            if (old == -1 || old == column) return slot;
        }
        slot = (slot + 1) & ((1 << log) - 1);
    }
}

// The slot of a column that the table holds.
template <int LOG>
__device__ __forceinline__ int slot_of(const int* keys, int column) {
    u32 slot = (u32(column) * 2654435769u) >> (32 - LOG);
    while (keys[slot] != column) slot = (slot + 1) & ((1 << LOG) - 1);
    return slot;
}

// A group of lanes reads rows of B side by side, 2^log lanes each, and AHEAD times as many at a time (the hash kernels
// twice), of each row the first PIECES pieces: that many loads are in flight together.  What is longer is read by all lanes.
constexpr int AHEAD = 4;

// The row of B that an entry of A meets; past the end of A's row, none.
struct Met {
    int first = 0, last = 0;
};
__device__ __forceinline__ Met row_met(int at, int end, const int* idx_a, const int* ptr_b) {
    Met met;
    if (at < end) {
        const int k = idx_a[at];
        met.first = ptr_b[k];
        met.last = ptr_b[k + 1];
    }
    return met;
}

// Which of the rows of B that a group of G lanes reads side by side is this lane's, and its place in that row.
template <int G>
struct Side {
    int width, rows, row, place;
    __device__ __forceinline__ Side(int log, int lane)
        : width(min(1 << log, G)), rows(max(G >> log, 1)), row(lane >> log), place(lane & (width - 1)) {}
};

// visit(column) for every product of a row, in any order, by a group of G lanes.  With ALONE a row of B that takes the whole
// group is read by a loop of its own: faster where visits are short (bitmaps), slower where they are long (tables).
template <int G, int PIECES, bool ALONE, class Visit>
__device__ __forceinline__ void each_column(int begin, int end, const int* idx_a, const int* ptr_b, const int* idx_b, int log, int lane,
                                            u32 mask, Visit visit) {
    const Side<G> side(log, lane);
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const int steps = min(G, end - base);
        if (ALONE && side.rows == 1) {
            for (int s = 0; s < steps; s += AHEAD) {
                int columns[AHEAD][PIECES];
#pragma unroll
                for (int d = 0; d < AHEAD; ++d) {
                    const int from = __shfl_sync(mask, met.first, s + d, G) + lane;
                    const int stop = s + d < steps ? __shfl_sync(mask, met.last, s + d, G) : 0;
#pragma unroll
                    for (int c = 0; c < PIECES; ++c) columns[d][c] = from + c * G < stop ? idx_b[from + c * G] : -1;
                }
#pragma unroll
                for (int d = 0; d < AHEAD; ++d)
#pragma unroll
                    for (int c = 0; c < PIECES; ++c)
                        if (columns[d][c] >= 0) visit(columns[d][c]);
            }
        } else {
            for (int s = 0; s < steps; s += AHEAD * side.rows) {
                int columns[AHEAD][PIECES];
#pragma unroll
                for (int d = 0; d < AHEAD; ++d) {
                    const int at = s + d * side.rows + side.row;
                    const int first = __shfl_sync(mask, met.first, at, G), last = __shfl_sync(mask, met.last, at, G);
                    const int from = first + side.place, stop = at < steps ? last : 0;
#pragma unroll
                    for (int c = 0; c < PIECES; ++c) columns[d][c] = from + c * side.width < stop ? idx_b[from + c * side.width] : -1;
                }
#pragma unroll
                for (int d = 0; d < AHEAD; ++d)
#pragma unroll
                    for (int c = 0; c < PIECES; ++c)
                        if (columns[d][c] >= 0) visit(columns[d][c]);
            }
        }
        // What is longer, once for all of these rows of B: written once, it is compiled once.
        const u32 longer = __ballot_sync(mask, met.last - met.first > PIECES * side.width);
        for (u32 rest = (longer & mask) >> (threadIdx.x & 31 & ~(G - 1)); rest; rest &= rest - 1) {
            const int at = __ffs(rest) - 1;
            const int first = __shfl_sync(mask, met.first, at, G), last = __shfl_sync(mask, met.last, at, G);
#pragma unroll 1
            for (int q = first + PIECES * side.width + lane; q < last; q += G) visit(idx_b[q]);
        }
    }
}

// add(locate(column), a, b) for every product of a row, in the order of k.  All lanes of the group call `locate` together,
// some with column -1, for which it returns -1, as for what is not theirs, and nothing is added; rows of B that are read
// side by side are located together and added one after the other.
template <int G, int PIECES, int ROWS, class Locate, class Add>
__device__ __forceinline__ void each_product(int begin, int end, const int* idx_a, const STORED* val_a, const int* ptr_b, const int* idx_b,
                                             const STORED* val_b, int log, int lane, u32 mask, Locate locate, Add add) {
    const Side<G> side(log, lane);
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const VALUE factor = base + lane < end ? VALUE(val_a[base + lane]) : VALUE(0);
        const int steps = min(G, end - base);
        if (side.rows == 1) {
            for (int s = 0; s < steps; s += ROWS) {
                int columns[ROWS][PIECES], from[ROWS], stop[ROWS];
                VALUE values[ROWS][PIECES];
#pragma unroll
                for (int d = 0; d < ROWS; ++d) {
                    from[d] = __shfl_sync(mask, met.first, s + d, G);
                    stop[d] = s + d < steps ? __shfl_sync(mask, met.last, s + d, G) : 0;
#pragma unroll
                    for (int c = 0; c < PIECES; ++c) {
                        const int q = from[d] + c * G + lane;
                        columns[d][c] = q < stop[d] ? idx_b[q] : -1;
                        values[d][c] = q < stop[d] ? VALUE(val_b[q]) : VALUE(0);
                    }
                }
#pragma unroll
                for (int d = 0; d < ROWS; ++d) {
                    if (s + d >= steps) break;
                    const VALUE a = __shfl_sync(mask, factor, s + d, G);
#pragma unroll
                    for (int c = 0; c < PIECES; ++c) {
                        const int place = locate(columns[d][c]);
                        if (place >= 0) add(place, a, values[d][c]);
                    }
#pragma unroll 1
                    for (int q = from[d] + PIECES * G; q < stop[d]; q += G) {
                        const bool present = q + lane < stop[d];
                        const int place = locate(present ? idx_b[q + lane] : -1);
                        if (place >= 0) add(place, a, val_b[q + lane]);
                    }
                    __syncwarp(mask);
                }
            }
            continue;
        }
        for (int s = 0; s < steps; s += ROWS * side.rows) {
            int columns[ROWS][PIECES];
            VALUE values[ROWS][PIECES];
            bool longer[ROWS];
#pragma unroll
            for (int d = 0; d < ROWS; ++d) {
                const int at = s + d * side.rows + side.row;
                const int first = __shfl_sync(mask, met.first, at, G), last = __shfl_sync(mask, met.last, at, G);
                const int from = first + side.place, stop = at < steps ? last : 0;
                longer[d] = stop > first + PIECES * side.width;
#pragma unroll
                for (int c = 0; c < PIECES; ++c) {
                    const int q = from + c * side.width;
                    columns[d][c] = q < stop ? idx_b[q] : -1;
                    values[d][c] = q < stop ? VALUE(val_b[q]) : VALUE(0);
                }
            }
#pragma unroll
            for (int d = 0; d < ROWS; ++d) {
                const int from = s + d * side.rows, to = min(from + side.rows, steps);
                if (from >= steps) break;
                const VALUE mine = __shfl_sync(mask, factor, from + side.row, G);
                const bool any_longer = __any_sync(mask, longer[d]);
                int places[PIECES];
#pragma unroll
                for (int c = 0; c < PIECES; ++c) places[c] = locate(columns[d][c]);
                __syncwarp(mask);
                for (int at = from; at < to; ++at) {
                    if (side.row == at - from)
#pragma unroll
                        for (int c = 0; c < PIECES; ++c)
                            if (places[c] >= 0) add(places[c], mine, values[d][c]);
                    if (any_longer) {
                        const int first = __shfl_sync(mask, met.first, at, G), last = __shfl_sync(mask, met.last, at, G);
                        const VALUE a = __shfl_sync(mask, factor, at, G);
#pragma unroll 1
                        for (int q = first + PIECES * side.width; q < last; q += G) {
                            const bool present = q + lane < last;
                            const int place = locate(present ? idx_b[q + lane] : -1);
                            if (place >= 0) add(place, a, val_b[q + lane]);
                        }
                    }
                    __syncwarp(mask);
                }
            }
        }
    }
}

// Set a column's bit.  Most columns are met many times: reading first spares the atomic, which serialises within a word.
__device__ __forceinline__ void set_bit(u32* word, int offset) {
    const u32 bit = 1u << (offset & 31);
    if (!(*(volatile u32*)word & bit)) atomicOr(word, bit);
}

struct Word {
    u32 bits, before;  // columns met, and entries of the row before this word
};

__device__ __forceinline__ int place_of(const Word* words, int offset) {
    const Word word = words[offset >> 5];
    return word.before + __popc(word.bits & ((1u << (offset & 31)) - 1u));
}

// The bitmap of a row's columns, its first column `start`.
template <int G>
__device__ __forceinline__ void mark_columns(int row, int start, int words, u32* bits, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                             const int* idx_b, int log, int lane, u32 mask) {
    for (int w = lane; w < words; w += G) bits[w] = 0;
    __syncwarp(mask);
    each_column<G, G == 32 ? 2 : 1, true>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, idx_b, log, lane, mask, [&](int column) {
        const int offset = column - start;
        set_bit(&bits[offset >> 5], offset);
    });
    __syncwarp(mask);
}

constexpr int LONG_B = 256;  // entries of a row of B from which the whole block reads it

// set(column) for every product of a row, in any order: sub-groups of `width` lanes take a short row of B each, the whole
// block takes the long ones.  met_at(i) are those rows for i from `begin` on, and none from `end` on.
template <int THREADS, class MetAt, class Set>
__device__ __forceinline__ void block_columns(int begin, int end, int width, MetAt met_at, const int* idx_b, int* s_first, int* s_last,
                                              Set set) {
    __shared__ int s_long[THREADS], longs;
    const int t = threadIdx.x;
    Met met = met_at(begin + t);
    for (int base = begin; base < end; base += THREADS) {
        __syncthreads();
        if (t == 0) longs = 0;
        __syncthreads();
        s_first[t] = met.first;
        s_last[t] = met.last;
        if (met.last - met.first >= LONG_B) s_long[atomicAdd(&longs, 1)] = t;
        __syncthreads();
        met = met_at(base + THREADS + t);  // while these are met
        const int steps = min(THREADS, end - base), rows = THREADS / width, lane = t & (width - 1);
        for (int p = t / width; p < steps; p += AHEAD * rows) {
            int columns[AHEAD];
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
                const int at = p + d * rows, q = at < steps ? s_first[at] + lane : 0;
                columns[d] = at < steps && q < s_last[at] && s_last[at] - s_first[at] < LONG_B ? idx_b[q] : -1;
            }
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
                if (columns[d] < 0) continue;
                set(columns[d]);
                const int stop = s_last[p + d * rows];
                for (int q = s_first[p + d * rows] + width + lane; q < stop; q += width) set(idx_b[q]);
            }
        }
        for (int l = 0; l < longs; ++l) {
            const int first = s_first[s_long[l]], stop = s_last[s_long[l]];
#pragma unroll 4
            for (int q = first + t; q < stop; q += THREADS) set(idx_b[q]);
        }
    }
}

}  // namespace
