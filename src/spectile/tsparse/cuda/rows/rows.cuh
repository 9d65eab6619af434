// Row-wise sparse product, CSR times CSR to CSR with sorted columns, for one type of value (VALUE = float or double).
//
//   prepare   ../check.cu                    round the values, check indices and values             one thread per entry
//   analyse   analysis.cu                    products, window of columns and bin of each row of C   lanes per row
//   symbolic  symbolic.cu                    entries of each row of C                               by bin
//   place     analysis.cu                    row pointer of C (prefix scan), bins of the numeric phase
//   numeric   window.cu, hash.cu, block.cu   columns and values of C                                by bin
//   reuse     the same, and reuse.cu         values of C alone, its columns known (REUSE = 1)       by bin
//
// This file is what they share.
//
// Three ways to gather a row, chosen by the window of its columns [low, low + span) and its number of products:
//   window    a bitmap of the window in shared memory; a column's place in C is the number of bits before its own, so the
//             row is sorted and needs no hash and no sort.  One group of lanes a row; the symbolic phase keeps the bitmaps.
//   hash      a table in shared memory for short rows with a wide window; sorted afterwards.  One group of lanes a row.
//   block     the bitmap again, one block for each row, for long rows with a wide window; sums in shared or global memory.
//
// Sums run over k in the order of A's row with a barrier between two k, and the columns of one row of B are distinct: each
// entry of C is added in one fixed order, so the same product gives the same bits every time.

#include "shared.cuh"

namespace {

template <int G> __device__ __forceinline__ u32 group_mask() {
    return G == 32 ? ALL : ((1u << (G & 31)) - 1u) << (threadIdx.x & 31 & ~(G - 1));
}

// Products an entry of A, which is the mean length of the rows of B that it meets, and the lanes that such a row takes.
__device__ __forceinline__ float mean_row(const int* head, int nnz) {
    return float(*(const u64*)&head[PRODUCTS]) / float(max(nnz, 1));
}
__device__ __forceinline__ int width_of(float mean) {
    int width = 4;
    while (width < 32 && float(width) < mean) width *= 2;
    return width;
}

template <int LOG> __device__ __forceinline__ int insert(int* keys, int column, bool& added) {
    u32 slot = (u32(column) * 2654435769u) >> (32 - LOG);
    while (true) {
        const int key = *(volatile int*)&keys[slot];
        if (key == column) return slot;
        if (key == -1) {
            const int old = atomicCAS(&keys[slot], -1, column);
            if (old == -1) added = true;
            if (old == -1 || old == column) return slot;
        }
        slot = (slot + 1) & ((1 << LOG) - 1);
    }
}

// The slot of a column that the table holds.
template <int LOG> __device__ __forceinline__ int slot_of(const int* keys, int column) {
    u32 slot = (u32(column) * 2654435769u) >> (32 - LOG);
    while (keys[slot] != column) slot = (slot + 1) & ((1 << LOG) - 1);
    return slot;
}

// A product that is rounded before it is added: the same bits whichever kernel adds it, with columns known or not.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

// Rows of B are read AHEAD (by the hash kernels two) at a time, and of each the first PIECES pieces of as many entries as
// there are lanes: that many loads are in flight together.  What is longer is read piece by piece.
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

// visit(column) for every product of a row, in any order, by a group of G lanes.
template <int G, int PIECES, class Visit>
__device__ __forceinline__ void each_column(int begin, int end, const int* idx_a, const int* ptr_b, const int* idx_b,
                                            int lane, u32 mask, Visit visit) {
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const int steps = min(G, end - base);
        for (int s = 0; s < steps; s += AHEAD) {
            int columns[AHEAD][PIECES], from[AHEAD], stop[AHEAD];
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
                from[d] = __shfl_sync(mask, met.first, s + d, G) + lane;
                stop[d] = s + d < steps ? __shfl_sync(mask, met.last, s + d, G) : 0;
#pragma unroll
                for (int c = 0; c < PIECES; ++c) columns[d][c] = from[d] + c * G < stop[d] ? idx_b[from[d] + c * G] : -1;
            }
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
#pragma unroll
                for (int c = 0; c < PIECES; ++c)
                    if (columns[d][c] >= 0) visit(columns[d][c]);
#pragma unroll 1
                for (int q = from[d] + PIECES * G; q < stop[d]; q += G) visit(idx_b[q]);
            }
        }
    }
}

// add(column, a, b) for every product of a row, in the order of k.
template <int G, int PIECES, class Add>
__device__ __forceinline__ void each_product(int begin, int end, const int* idx_a, const VALUE* val_a, const int* ptr_b,
                                             const int* idx_b, const VALUE* val_b, int lane, u32 mask, Add add) {
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const VALUE factor = base + lane < end ? val_a[base + lane] : VALUE(0);
        const int steps = min(G, end - base);
        for (int s = 0; s < steps; s += AHEAD) {
            int columns[AHEAD][PIECES], from[AHEAD], stop[AHEAD];
            VALUE values[AHEAD][PIECES];
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
                from[d] = __shfl_sync(mask, met.first, s + d, G) + lane;
                stop[d] = s + d < steps ? __shfl_sync(mask, met.last, s + d, G) : 0;
#pragma unroll
                for (int c = 0; c < PIECES; ++c) {
                    const int q = from[d] + c * G;
                    columns[d][c] = q < stop[d] ? idx_b[q] : -1;
                    values[d][c] = q < stop[d] ? val_b[q] : VALUE(0);
                }
            }
#pragma unroll
            for (int d = 0; d < AHEAD; ++d) {
                if (s + d >= steps) break;
                const VALUE a = __shfl_sync(mask, factor, s + d, G);
#pragma unroll
                for (int c = 0; c < PIECES; ++c)
                    if (columns[d][c] >= 0) add(columns[d][c], a, values[d][c]);
#pragma unroll 1
                for (int q = from[d] + PIECES * G; q < stop[d]; q += G) add(idx_b[q], a, val_b[q]);
                __syncwarp(mask);
            }
        }
    }
}

// step(present, column, a * b) for every product of a row, in the order of k; all lanes of the group take every step.
template <int G, class Step>
__device__ __forceinline__ void each_product(int begin, int end, const int* idx_a, const VALUE* val_a, const int* ptr_b,
                                             const int* idx_b, const VALUE* val_b, int lane, u32 mask, Step step) {
    for (int base = begin; base < end; base += G) {
        const Met met = row_met(base + lane, end, idx_a, ptr_b);
        const VALUE factor = base + lane < end ? val_a[base + lane] : VALUE(0);
        const int steps = min(G, end - base);
        for (int s = 0; s < steps; s += 2) {
            int columns[2], from[2], stop[2];
            VALUE values[2];
#pragma unroll
            for (int d = 0; d < 2; ++d) {
                from[d] = __shfl_sync(mask, met.first, s + d, G);
                stop[d] = s + d < steps ? __shfl_sync(mask, met.last, s + d, G) : 0;
                const int q = from[d] + lane;
                columns[d] = q < stop[d] ? idx_b[q] : -1;
                values[d] = q < stop[d] ? val_b[q] : VALUE(0);
            }
#pragma unroll
            for (int d = 0; d < 2; ++d) {
                if (s + d >= steps) break;
                const VALUE a = __shfl_sync(mask, factor, s + d, G);
                step(columns[d] >= 0, columns[d], a * values[d]);
#pragma unroll 1
                for (int q = from[d] + G; q < stop[d]; q += G) {
                    const bool present = q + lane < stop[d];
                    step(present, present ? idx_b[q + lane] : 0, present ? a * val_b[q + lane] : VALUE(0));
                }
                __syncwarp(mask);
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
__device__ __forceinline__ void mark_columns(int row, int start, int words, u32* bits, const int* ptr_a, const int* idx_a,
                                             const int* ptr_b, const int* idx_b, int lane, u32 mask) {
    for (int w = lane; w < words; w += G) bits[w] = 0;
    __syncwarp(mask);
    each_column<G, G == 32 ? 2 : 1>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, idx_b, lane, mask, [&](int column) {
        const int offset = column - start;
        set_bit(&bits[offset >> 5], offset);
    });
    __syncwarp(mask);
}

// The bits of the columns of a row of C, where they are known; `thread` of `threads`.
__device__ __forceinline__ void mark_known(int begin, int end, const int* idx_c, int start, u32* bits, int stride,
                                           int thread, int threads) {
    for (int e = begin + thread; e < end; e += threads) {
        const int offset = idx_c[e] - start;
        set_bit(&bits[(offset >> 5) * stride], offset);
    }
}

constexpr int LONG_B = 256;  // entries of a row of B from which the whole block reads it

// set(column) for every product of a row, in any order: sub-groups of `width` lanes take a short row of B each, the whole
// block takes the long ones.
template <int THREADS, class Set>
__device__ __forceinline__ void block_columns(int begin, int end, int width, const int* idx_a, const int* ptr_b,
                                              const int* idx_b, int* s_first, int* s_last, Set set) {
    __shared__ int s_long[THREADS], longs;
    const int t = threadIdx.x;
    for (int base = begin; base < end; base += THREADS) {
        __syncthreads();
        if (t == 0) longs = 0;
        __syncthreads();
        if (base + t < end) {
            const int k = idx_a[base + t], first = ptr_b[k], last = ptr_b[k + 1];
            s_first[t] = first;
            s_last[t] = last;
            if (last - first >= LONG_B) s_long[atomicAdd(&longs, 1)] = t;
        }
        __syncthreads();
        for (int p = t / width; p < min(THREADS, end - base); p += THREADS / width) {
            const int stop = s_last[p];
            if (stop - s_first[p] < LONG_B)
                for (int q = s_first[p] + (t & (width - 1)); q < stop; q += width) set(idx_b[q]);
        }
        for (int l = 0; l < longs; ++l) {
            const int first = s_first[s_long[l]], stop = s_last[s_long[l]];
#pragma unroll 4
            for (int q = first + t; q < stop; q += THREADS) set(idx_b[q]);
        }
    }
}

}  // namespace
