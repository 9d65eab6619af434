// Row-wise sparse product, CSR times CSR to CSR with sorted columns, for one type of value (VALUE = float or double).
//
//   prepare   round the values, check indices and values                         one thread an entry
//   analyse   products, window of columns and bin of each row of C               one group of lanes a row
//   symbolic  entries of each row of C                                           by bin
//   place     row pointer of C (single-pass scan), bins for the numeric phase
//   numeric   columns and values of C                                            by bin
//
// Three ways to gather a row, chosen by the window of its columns [low, low + span) and its number of products:
//   window    a bitmap of the window in shared memory; a column's place in C is the number of bits before its own, so the
//             row is sorted and needs no hash and no sort.  One group of lanes a row; the symbolic phase keeps the bitmaps.
//   hash      a table in shared memory for short rows with a wide window; sorted afterwards.  One group of lanes a row.
//   block     the bitmap again, one block a row, for long rows with a wide window; sums in shared or global memory.
//
// Sums run over k in the order of A's row with a barrier between two k, and the columns of one row of B are distinct: each
// entry of C is added in one fixed order, so the same product gives the same bits every time.

#include <cuda_fp16.h>

using u32 = unsigned int;
using u64 = unsigned long long;

namespace {

constexpr u32 ALL = 0xffffffffu;
constexpr int BINS_SYMBOLIC = 7;  // window 2048, window 8192, hash 32, 64, 256, 1024, block
constexpr int BINS_NUMERIC = 12;  // window 2048 (256 sums, 2048 sums), window 8192, hash 32, 64, 256, 512, 1024, block (4)
constexpr int ANALYSTS = 512;     // threads of a block of the analysis
constexpr int HEAVY = 1 << 14;    // products from which a block gathers the row, however narrow it is
constexpr int MOST_KEPT = 0x7ffffc00;  // words of kept bitmaps that a slot can name, and add 256 to

// The head: counters that a call clears before and the host reads between the phases.
enum Head {
    SYMBOLIC = 0,       // rows in each symbolic bin
    NUMERIC = 8,        // rows in each numeric bin (12)
    FLAGS = 20,         // bad input of A and of B, see Flag
    MAX_SPAN = 22,      // widest window among the rows of the symbolic block bin
    MAX_BYTES = 24,     // most shared memory among the rows of each numeric block bin (4)
    TICKET = 28,
    DESCENTS = 34,      // places in A and in B where a column is not above the one before, less those at a row's start
    PRODUCTS = 30,      // 64 bits
    ENTRIES = 32,       // 64 bits: stored entries of C
    KEPT = 36,          // 64 bits: words of the bitmaps that the rows of the window bins keep
};
enum Flag { BAD_INDEX = 1, NOT_FINITE = 4, HALF_RANGE = 8, FLOAT_RANGE = 16, LOST = 32 };
enum Rounding { KEEP = 0, TF32 = 1, HALF = 2, HALF_TILE = 3 };

template <int G> __device__ __forceinline__ u32 group_mask() {
    return G == 32 ? ALL : ((1u << (G & 31)) - 1u) << (threadIdx.x & 31 & ~(G - 1));
}

__device__ __forceinline__ float tf32(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// 11 significant bits, ties to even: float16's where x is in its normal range, and the same precision elsewhere.
__device__ __forceinline__ float eleven_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return __uint_as_float((bits + 0xfffu + ((bits >> 13) & 1)) & 0xffffe000u);
}
__device__ __forceinline__ float eleven_bits(double x) {
    const u64 bits = __double_as_longlong(x);
    return float(__longlong_as_double((bits + 0x1ffffffffffull + ((bits >> 42) & 1)) & ~0x3ffffffffffull));
}

// The range of entries for float16: as such in tiles; row by row so that neither a product in float32 nor a sum of 2^31 of
// them leaves the normal range.
__device__ __forceinline__ double least(int rounding) { return rounding == HALF ? 0x1p-62 : 0x1p-14; }
__device__ __forceinline__ double most(int rounding) { return rounding == HALF ? 0x1p48 : 65504; }

// Values as the precision takes them, and the checks that the later phases rely on.  One thread an entry: columns increase
// within every row if and only if every descent of the column array is at a row's start.
template <class IN>
__device__ void prepare_entries(int rows, int columns, int nnz, int rounding, const int* ptr, const int* idx, const IN* in,
                                VALUE* out, int* head, int which) {
    int found = 0, descents = 0;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    for (int p = first; p < nnz; p += stride) {
        const int column = idx[p];
        if (u32(column) >= u32(columns)) found |= BAD_INDEX;
        descents += p > 0 && idx[p - 1] >= column;
        const IN x = in[p];
        if (!isfinite(x)) found |= NOT_FINITE;
        VALUE y = VALUE(x);
        if (sizeof(IN) > sizeof(VALUE) && !isfinite(y)) found |= FLOAT_RANGE;
        if (rounding == TF32) y = tf32(float(y));
        if (rounding >= HALF) {
            const IN size = x < 0 ? -x : x;
            if (size > IN(most(rounding)) || (size > 0 && size < IN(least(rounding)))) found |= HALF_RANGE;
            y = eleven_bits(x);
        }
        if (out != nullptr) out[p] = y;
    }
    for (int row = first; row < rows; row += stride) {
        const int begin = ptr[row];
        descents -= begin > 0 && begin < ptr[row + 1] && idx[begin - 1] >= idx[begin];
    }
    found = __reduce_or_sync(ALL, found);
    descents = __reduce_add_sync(ALL, descents);
    if ((threadIdx.x & 31) == 0) {
        if (found) atomicOr(&head[FLAGS + which], found);
        if (descents) atomicAdd(&head[DESCENTS + which], descents);
    }
}

// float16 with powers of two: the exponent of the largest entry of each row (of A) or column (of B), the entries divided by
// it, and C multiplied back.  EMPTY marks a row or column without a nonzero; the largest entry comes below 2^top.
constexpr int EMPTY = -(1 << 20);

__device__ __forceinline__ int half_shift(const int* exponents, int owner, int top) {
    const int exponent = exponents == nullptr ? EMPTY : exponents[owner];
    return exponent == EMPTY ? 0 : exponent - top;
}

template <class IN>
__device__ void find_exponents(int rows, int by_row, const int* ptr, const int* idx, const IN* in, int* exponents) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3, lane = threadIdx.x & 7;
    int largest = EMPTY;
    if (row < rows)
        for (int p = ptr[row] + lane; p < ptr[row + 1]; p += 8) {
            if (in[p] == 0) continue;
            const int exponent = ilogb(in[p]) + 1;
            largest = max(largest, exponent);
            if (!by_row && exponents[idx[p]] < exponent) atomicMax(&exponents[idx[p]], exponent);
        }
    for (int d = 4; d; d >>= 1) largest = max(largest, __shfl_xor_sync(ALL, largest, d, 8));
    if (by_row && row < rows && lane == 0) exponents[row] = largest;
}

template <class IN>
__device__ void scale_entries(int rows, int by_row, int rounding, int top, const int* ptr, const int* idx, const IN* in,
                              const int* exponents, VALUE* out, int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    const double smallest = rounding == HALF ? least(HALF) : 0x1p-24;
    int lost = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const double scaled = scalbn(double(in[p]), -half_shift(exponents, by_row ? row : idx[p], top));
            if (scaled != 0 && fabs(scaled) < smallest) lost = LOST;
            out[p] = rounding == HALF ? eleven_bits(scaled) : __half2float(__double2half(scaled));
        }
    lost = __reduce_or_sync(ALL, lost);
    if (lost && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], lost);
}

// Whether the check of the factors found what the kernels must not walk.
__device__ __forceinline__ bool unfit(const int* head) {
    return head[FLAGS] | head[FLAGS + 1] | head[DESCENTS] | head[DESCENTS + 1];
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

// Bin of a row for the symbolic phase, or -1 for an empty one.
__device__ int symbolic_bin(u64 products, int span) {
    if (products == 0) return -1;
    const u64 bound = products < u64(span) ? products : u64(span);
    if (products < HEAVY && span <= 8192 && u64(span) <= 32 * bound) return span <= 2048 ? 0 : 1;
    if (products < HEAVY) {
        if (bound <= 24) return 2;
        if (bound <= 48) return 3;
        if (bound <= 192) return 4;
        if (bound <= 768) return 5;
    }
    return 6;
}

// Bin of a row for the numeric phase; `window` tells that the symbolic phase kept its bitmap.
__device__ int numeric_bin(int entries, int span, bool window, bool heavy, int shared_bytes, int* need) {
    *need = 0;
    if (entries == 0) return -1;
    if (window && span <= 2048) return entries <= 256 ? 0 : 1;
    if (window && entries <= 1024) return 2;
    if (!heavy && !window && (span >> 22) == 0) {
        if (entries <= 16) return 3;
        if (entries <= 32) return 4;
        if (entries <= 128) return 5;
        if (entries <= 256) return 6;
        if (entries <= 512) return 7;
    }
    const long long words = 8LL * ((span + 31) / 32), sums = (long long)entries * sizeof(VALUE);
    *need = int(min(words + sums, (long long)shared_bytes));
    if (words + sums <= 48 * 1024) return 8;
    if (words + sums <= shared_bytes) return 9;
    *need = int(min(words, (long long)shared_bytes));
    return words <= shared_bytes ? 10 : 11;
}

// Write `row` to the list of its bin; one global atomic a block and bin.  Called by all threads; bin < 0 writes nothing.
template <int BINS> __device__ int append(int row, int bin, int rows, int* counters, int* lists) {
    __shared__ int local[BINS], base[BINS];
    __syncthreads();
    if (threadIdx.x < BINS) local[threadIdx.x] = 0;
    __syncthreads();
    int place = 0;
    if (bin >= 0) place = atomicAdd(&local[bin], 1);
    __syncthreads();
    if (threadIdx.x < BINS && local[threadIdx.x]) base[threadIdx.x] = atomicAdd(&counters[threadIdx.x], local[threadIdx.x]);
    __syncthreads();
    if (bin < 0) return -1;
    place += base[bin];
    lists[(long long)bin * rows + place] = row;
    return place;
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

// ---- window: bitmap of at most 32 WORDS columns, a group of G lanes a row

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

template <int G>
__device__ __forceinline__ void symbolic_window(int row, u32* bits, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                                const int* idx_b, const int* low, const int* span, const int* slot,
                                                int* entries, u32* kept, int capacity, int lane, u32 mask) {
    const int words = (span[row] + 31) >> 5, at = slot[row];
    mark_columns<G>(row, low[row], words, bits, ptr_a, idx_a, ptr_b, idx_b, lane, mask);
    const bool keep = at + words <= capacity;
    int total = 0;
    for (int w = lane; w < words; w += G) {
        if (keep) kept[at + w] = bits[w];
        total += __popc(bits[w]);
    }
    for (int d = G / 2; d; d >>= 1) total += __shfl_xor_sync(mask, total, d, G);
    if (lane == 0) entries[row] = total;
}

template <int G, int WORDS, int SUMS>
__device__ void numeric_window(int count, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a,
                               const int* ptr_b, const int* idx_b, const VALUE* val_b, const int* low, const int* span,
                               const int* slot, const u32* kept, int capacity, const int* ptr_c, int* idx_c,
                               VALUE* val_c) {
    extern __shared__ u64 shared[];
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    constexpr int PAD = G < 32 ? G : 0;  // groups of one warp start in different banks
    Word* words = (Word*)shared + group * (WORDS + PAD);
    VALUE* sums = (VALUE*)((Word*)shared + (blockDim.x / G) * (WORDS + PAD)) + group * (SUMS + PAD);
    const int row = list[item], start = low[row], used = (span[row] + 31) >> 5, out = ptr_c[row];
    const u32* keep = kept + slot[row];
    if (slot[row] + used > capacity) {
        // No room was left for its bitmap: it is made again where the sums will be.
        mark_columns<G>(row, start, used, (u32*)sums, ptr_a, idx_a, ptr_b, idx_b, lane, mask);
        keep = (u32*)sums;
    }
    int before = 0;
    for (int base = 0; base < used; base += G) {
        const int w = base + lane;
        u32 bits = w < used ? keep[w] : 0;
        int sum = __popc(bits);
        for (int d = 1; d < G; d <<= 1) {
            const int other = __shfl_up_sync(mask, sum, d, G);
            if (lane >= d) sum += other;
        }
        const int place = before + sum - __popc(bits);
        before += __shfl_sync(mask, sum, G - 1, G);
        if (w < used) words[w] = {bits, u32(place)};
        for (int at = out + place; bits; bits &= bits - 1) idx_c[at++] = start + 32 * w + __ffs(bits) - 1;
    }
    __syncwarp(mask);
    for (int e = lane; e < before; e += G) sums[e] = 0;
    __syncwarp(mask);
    each_product<G, G == 32 ? 2 : 1>(
        ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, lane, mask,
        [&](int column, VALUE a, VALUE b) { sums[place_of(words, column - start)] += a * b; });
    for (int e = lane; e < before; e += G) val_c[out + e] = sums[e];
}

// ---- hash: table of 2^LOG columns, a group of G lanes a row

template <int G, int LOG>
__device__ __forceinline__ void symbolic_hash(int row, int* keys, const int* ptr_a, const int* idx_a, const int* ptr_b,
                                              const int* idx_b, int* entries, int lane, u32 mask) {
    for (int t = lane; t < 1 << LOG; t += G) keys[t] = -1;
    __syncwarp(mask);
    int total = 0;
    each_column<G, 1>(ptr_a[row], ptr_a[row + 1], idx_a, ptr_b, idx_b, lane, mask, [&](int column) {
        bool added = false;
        insert<LOG>(keys, column, added);
        total += added;
    });
    __syncwarp(mask);
    for (int d = G / 2; d; d >>= 1) total += __shfl_xor_sync(mask, total, d, G);
    if (lane == 0) entries[row] = total;
}

// The symbolic phase by warps: bin after bin, long rows first, each warp as many rows at a time as it has groups of lanes.
struct Rows {
    int rows;
    const int *lists, *ptr_a, *idx_a, *ptr_b, *idx_b, *low, *span, *slot;
    int* entries;
    u32* kept;
    int capacity;
    const int* head;
    u32* table;  // of this warp
    int item;    // the next of this warp, counted from the bin's first
};

// do_row(row, table, lane, mask) for the rows of a bin that fall to this warp; a group of G lanes has a table of SIZE words.
template <int G, int SIZE, class Row> __device__ __forceinline__ void rows_of_bin(Rows& of, int bin, Row do_row) {
    constexpr int GROUPS = 32 / G, STRIDE = G < 32 ? SIZE + G : SIZE;  // groups of one warp start in different banks
    const int count = of.head[SYMBOLIC + bin], items = (count + GROUPS - 1) / GROUPS;
    const int lane = threadIdx.x & (G - 1), group = (threadIdx.x & 31) / G;
    const int* list = of.lists + (long long)bin * of.rows;
    for (; of.item < items; of.item += gridDim.x * (blockDim.x >> 5)) {
        const int place = of.item * GROUPS + group;
        if (place < count) do_row(list[place], of.table + group * STRIDE, lane, group_mask<G>());
        __syncwarp();
    }
    of.item -= items;
}

template <int G, int WORDS> __device__ __forceinline__ void window_rows(Rows& of, int bin) {
    rows_of_bin<G, WORDS>(of, bin, [&](int row, u32* table, int lane, u32 mask) {
        symbolic_window<G>(row, table, of.ptr_a, of.idx_a, of.ptr_b, of.idx_b, of.low, of.span, of.slot, of.entries, of.kept,
                           of.capacity, lane, mask);
    });
}

// The same by the whole block, a row at a time: each warp takes a part of A's row.  For matrices of few rows, which would
// leave the device half empty at a warp a row.
__device__ __forceinline__ void window_rows_by_blocks(const Rows& of, int bin, u32* bits) {
    const int count = of.head[SYMBOLIC + bin], warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int* list = of.lists + (long long)bin * of.rows;
    for (int place = blockIdx.x; place < count; place += gridDim.x) {
        const int row = list[place], start = of.low[row], words = (of.span[row] + 31) >> 5, at = of.slot[row];
        for (int w = threadIdx.x; w < words; w += blockDim.x) bits[w] = 0;
        __syncthreads();
        const int begin = of.ptr_a[row], part = (of.ptr_a[row + 1] - begin + 3) >> 2, from = begin + warp * part;
        each_column<32, 2>(from, min(from + part, of.ptr_a[row + 1]), of.idx_a, of.ptr_b, of.idx_b, lane, ALL,
                           [&](int column) {
                               const int offset = column - start;
                               set_bit(&bits[offset >> 5], offset);
                           });
        __syncthreads();
        int total = 0;
        for (int w = threadIdx.x; w < words; w += blockDim.x) {
            if (at + words <= of.capacity) of.kept[at + w] = bits[w];
            total += __popc(bits[w]);
        }
        total = __reduce_add_sync(ALL, total);
        if (lane == 0 && total) atomicAdd(&of.entries[row], total);
        __syncthreads();
    }
}

template <int G, int LOG> __device__ __forceinline__ void hash_rows(Rows& of, int bin) {
    rows_of_bin<G, 1 << LOG>(of, bin, [&](int row, u32* table, int lane, u32 mask) {
        symbolic_hash<G, LOG>(row, (int*)table, of.ptr_a, of.idx_a, of.ptr_b, of.idx_b, of.entries, lane, mask);
    });
}

// Sort K words a lane, lane by lane in increasing order over a group of G lanes: a bitonic network whose short steps stay
// within a lane.
template <int G, int K> __device__ __forceinline__ void sort_words(u32 (&words)[K], int lane, u32 mask) {
#pragma unroll
    for (int size = 2; size <= G * K; size <<= 1) {
#pragma unroll
        for (int step = size >> 1; step; step >>= 1) {
            if (step >= K) {
                // The partner holds the same number in another lane; the lower one keeps the lesser where sizes ascend.
                const bool lesser = ((lane * K & step) == 0) == ((lane * K & size) == 0);
#pragma unroll
                for (int i = 0; i < K; ++i) {
                    const u32 other = __shfl_xor_sync(mask, words[i], step / K, G);
                    words[i] = lesser ? min(words[i], other) : max(words[i], other);
                }
            } else {
#pragma unroll
                for (int i = 0; i < K; ++i)
                    if ((i & step) == 0) {
                        const bool ascending = size < K ? (i & size) == 0 : (lane * K & size) == 0;
                        const u32 x = words[i], y = words[i + step];
                        words[i] = ascending ? min(x, y) : max(x, y);
                        words[i + step] = ascending ? max(x, y) : min(x, y);
                    }
            }
        }
    }
}

// New columns are listed with their slot in one word, which the sort orders: a window of 2^(32 - LOG) columns fits.
template <int G, int LOG>
__device__ void numeric_hash(int count, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a,
                             const int* ptr_b, const int* idx_b, const VALUE* val_b, const int* low, const int* ptr_c,
                             int* idx_c, VALUE* val_c) {
    extern __shared__ u64 shared[];
    constexpr int TABLE = 1 << LOG, STRIDE = G < 32 ? TABLE + G : TABLE, K = TABLE / 2 / G;
    const int lane = threadIdx.x & (G - 1), group = threadIdx.x / G, item = (blockIdx.x * blockDim.x + threadIdx.x) / G;
    if (item >= count) return;
    const u32 mask = group_mask<G>();
    VALUE* sums = (VALUE*)shared + group * STRIDE;
    int* keys = (int*)((VALUE*)shared + (blockDim.x / G) * STRIDE) + group * (STRIDE + TABLE / 2);
    u32* listed = (u32*)keys + STRIDE;
    const int row = list[item], out = ptr_c[row], start = low[row];
    for (int t = 4 * lane; t < TABLE; t += 4 * G) *(int4*)&keys[t] = make_int4(-1, -1, -1, -1);
    __syncwarp(mask);
    int n = 0;
    each_product<G>(ptr_a[row], ptr_a[row + 1], idx_a, val_a, ptr_b, idx_b, val_b, lane, mask,
                    [&](bool present, int column, VALUE product) {
                        bool added = false;
                        if (present) {
                            const int slot = insert<LOG>(keys, column, added);
                            sums[slot] = added ? product : sums[slot] + product;
                            column = ((column - start) << LOG) | slot;
                        }
                        const u32 all = __ballot_sync(mask, added) & mask;
                        if (added) listed[n + __popc(all & ((1u << (threadIdx.x & 31)) - 1u))] = column;
                        n += __popc(all);
                    });
    u32 words[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
        const int e = i * G + lane;
        words[i] = e < n ? listed[e] : ALL;
    }
    sort_words<G, K>(words, lane, mask);
    __syncwarp(mask);
#pragma unroll
    for (int i = 0; i < K; ++i) listed[lane * K + i] = words[i];
    __syncwarp(mask);
    for (int e = lane; e < n; e += G) {
        const u32 word = listed[e];
        idx_c[out + e] = start + int(word >> LOG);
        val_c[out + e] = sums[word & (TABLE - 1)];
    }
}

// ---- block: bitmap of the whole window, one block a row

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

template <bool SHARED>
__device__ void symbolic_block(int rows, int nnz, const int* lists, const int* ptr_a, const int* idx_a, const int* ptr_b,
                               const int* idx_b, const int* low, const int* span, int* entries, const int* head,
                               u32* scratch, int scratch_words) {
    extern __shared__ u64 shared[];
    __shared__ int total, s_first[256], s_last[256];
    if (unfit(head)) return;
    u32* bits = SHARED ? (u32*)shared : scratch + (long long)blockIdx.x * scratch_words;
    const int count = head[SYMBOLIC + 6], width = width_of(mean_row(head, nnz));
    for (int item = blockIdx.x; item < count; item += gridDim.x) {
        const int row = lists[6ll * rows + item], start = low[row], words = (span[row] + 31) >> 5;
        for (int w = threadIdx.x; w < words; w += blockDim.x) bits[w] = 0;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        block_columns<256>(ptr_a[row], ptr_a[row + 1], width, idx_a, ptr_b, idx_b, s_first, s_last, [&](int column) {
            const int offset = column - start;
            set_bit(&bits[offset >> 5], offset);
        });
        __syncthreads();
        int sum = 0;
        for (int w = threadIdx.x; w < words; w += blockDim.x) sum += __popc(bits[w]);
        sum = __reduce_add_sync(ALL, sum);
        if ((threadIdx.x & 31) == 0 && sum) atomicAdd(&total, sum);
        __syncthreads();
        if (threadIdx.x == 0) entries[row] = total;
        __syncthreads();
    }
}

template <int THREADS, bool SHARED_WORDS, bool SHARED_SUMS>
__device__ void numeric_block(int count, int width, const int* list, const int* ptr_a, const int* idx_a,
                              const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b, const int* low,
                              const int* span, const int* ptr_c, int* idx_c, VALUE* val_c, Word* scratch,
                              int scratch_words) {
    extern __shared__ u64 shared[];
    __shared__ int warp_sums[THREADS / 32], s_first[THREADS], s_last[THREADS];
    __shared__ VALUE s_factor[THREADS];
    const int t = threadIdx.x, lane = t & 31;
    Word* words = SHARED_WORDS ? (Word*)shared : scratch + (long long)blockIdx.x * scratch_words;
    for (int item = blockIdx.x; item < count; item += gridDim.x) {
        const int row = list[item], start = low[row], used = (span[row] + 31) >> 5, out = ptr_c[row];
        const int n = ptr_c[row + 1] - out, begin = ptr_a[row], end = ptr_a[row + 1];
        VALUE* sums = SHARED_SUMS ? (VALUE*)((Word*)shared + used) : val_c + out;
        for (int w = t; w < used; w += THREADS) words[w].bits = 0;
        for (int e = t; e < n; e += THREADS) sums[e] = 0;
        __syncthreads();
        block_columns<THREADS>(begin, end, width, idx_a, ptr_b, idx_b, s_first, s_last, [&](int column) {
            const int offset = column - start;
            set_bit(&words[offset >> 5].bits, offset);
        });
        __syncthreads();
        // Entries before each word: every thread sums a run of words (an odd number, so that banks do not collide).
        const int run = ((used + THREADS - 1) / THREADS) | 1, from = min(t * run, used), to = min(from + run, used);
        int sum = 0;
        for (int w = from; w < to; ++w) sum += __popc(words[w].bits);
        int scan = sum;
        for (int d = 1; d < 32; d <<= 1) {
            const int other = __shfl_up_sync(ALL, scan, d);
            if (lane >= d) scan += other;
        }
        if (lane == 31) warp_sums[t / 32] = scan;
        __syncthreads();
        int before = scan - sum;
        for (int w = 0; w < t / 32; ++w) before += warp_sums[w];
        for (int w = from; w < to; ++w) {
            words[w].before = before;
            before += __popc(words[w].bits);
        }
        __syncthreads();
        for (int w = t; w < used; w += THREADS) {
            const Word word = words[w];
            int at = out + word.before;
            for (u32 bits = word.bits; bits; bits &= bits - 1) idx_c[at++] = start + 32 * w + __ffs(bits) - 1;
        }
        for (int base = begin; base < end; base += THREADS) {
            __syncthreads();
            if (base + t < end) {
                const int k = idx_a[base + t];
                s_first[t] = ptr_b[k];
                s_last[t] = ptr_b[k + 1];
                s_factor[t] = val_a[base + t];
            }
            __syncthreads();
            const int steps = min(THREADS, end - base);
            int columns[AHEAD][2];
            VALUE values[AHEAD][2];
            const auto fetch = [&](int s) {
#pragma unroll
                for (int d = 0; d < AHEAD; ++d)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int q = s + d < steps ? s_first[s + d] + c * THREADS + t : 0;
                        const bool present = s + d < steps && q < s_last[s + d];
                        columns[d][c] = present ? idx_b[q] : -1;
                        values[d][c] = present ? val_b[q] : VALUE(0);
                    }
            };
            fetch(0);
            for (int s = 0; s < steps; s += AHEAD) {
                int places[AHEAD][2];
                VALUE products[AHEAD][2];
#pragma unroll
                for (int d = 0; d < AHEAD; ++d)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        places[d][c] = columns[d][c] >= 0 ? place_of(words, columns[d][c] - start) : -1;
                        products[d][c] = s + d < steps ? s_factor[s + d] * values[d][c] : VALUE(0);
                    }
                if (s + AHEAD < steps) fetch(s + AHEAD);
#pragma unroll
                for (int d = 0; d < AHEAD; ++d) {
                    if (s + d >= steps) break;
#pragma unroll
                    for (int c = 0; c < 2; ++c)
                        if (places[d][c] >= 0) sums[places[d][c]] += products[d][c];
                    const VALUE a = s_factor[s + d];
#pragma unroll 4
                    for (int q = s_first[s + d] + 2 * THREADS + t; q < s_last[s + d]; q += THREADS)
                        sums[place_of(words, idx_b[q] - start)] += a * val_b[q];
                    __syncthreads();
                }
            }
        }
        if (SHARED_SUMS)
            for (int e = t; e < n; e += THREADS) val_c[out + e] = sums[e];
        __syncthreads();
    }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) prepare_float(int rows, int columns, int nnz, int rounding, const int* ptr,
                                                     const int* idx, const float* in, VALUE* out, int* head, int which) {
    prepare_entries<float>(rows, columns, nnz, rounding, ptr, idx, in, out, head, which);
}

__global__ void __launch_bounds__(256) prepare_double(int rows, int columns, int nnz, int rounding, const int* ptr,
                                                      const int* idx, const double* in, VALUE* out, int* head, int which) {
    prepare_entries<double>(rows, columns, nnz, rounding, ptr, idx, in, out, head, which);
}

#define HALF_SCALING(TYPE)                                                                                                \
    __global__ void __launch_bounds__(256) exponents_##TYPE(int rows, int by_row, const int* ptr, const int* idx,         \
                                                            const TYPE* in, int* exponents) {                             \
        find_exponents<TYPE>(rows, by_row, ptr, idx, in, exponents);                                                      \
    }                                                                                                                     \
    __global__ void __launch_bounds__(256) scale_##TYPE(int rows, int by_row, int rounding, int top, const int* ptr,      \
                                                        const int* idx, const TYPE* in, const int* exponents, VALUE* out, \
                                                        int* head) {                                                      \
        scale_entries<TYPE>(rows, by_row, rounding, top, ptr, idx, in, exponents, out, head);                             \
    }
HALF_SCALING(float)
HALF_SCALING(double)

__global__ void __launch_bounds__(256) unscale(int rows, int top, const int* ptr, const int* idx, VALUE* val,
                                               const int* row_exponents, const int* column_exponents, int* head) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
    int found = 0;
    if (row < rows)
        for (int p = ptr[row] + (threadIdx.x & 7); p < ptr[row + 1]; p += 8) {
            const int shift = half_shift(row_exponents, row, top) + half_shift(column_exponents, idx[p], top);
            val[p] = scalbn(val[p], shift);
            if (!isfinite(val[p])) found = FLOAT_RANGE;
        }
    found = __reduce_or_sync(ALL, found);
    if (found && (threadIdx.x & 31) == 0) atomicOr(&head[FLAGS], found);
}

// Products, window and symbolic bin of each row; a group of 2^group_log lanes, at least four, takes a row, all warps the long ones.
__global__ void __launch_bounds__(ANALYSTS) analyse(int rows, int inner, int group_log, const int* ptr_a, const int* idx_a,
                                               const int* ptr_b, const int* idx_b, int* low, int* span, int* entries,
                                               int* slot, int* lists, int* head) {
    __shared__ u64 s_products[ANALYSTS / 4];
    __shared__ int s_low[ANALYSTS / 4], s_high[ANALYSTS / 4], s_long[ANALYSTS / 4], longs, kept_words;
    __shared__ u64 s_kept;
    const int group = 1 << group_log, per_block = ANALYSTS >> group_log, lane = threadIdx.x & (group - 1);
    const int local = threadIdx.x >> group_log, row = blockIdx.x * per_block + local;
    if (threadIdx.x == 0) longs = kept_words = 0;
    __syncthreads();
    auto gather = [&](int p, u64& products, int& lo, int& hi) {
        const int k = idx_a[p];
        if (u32(k) >= u32(inner)) return;
        const int first = ptr_b[k], last = ptr_b[k + 1];
        if (first >= last) return;
        products += last - first;
        lo = min(lo, idx_b[first]);
        hi = max(hi, idx_b[last - 1]);
    };
    u64 products = 0;
    int lo = 0x7fffffff, hi = -1;
    if (row < rows) {
        const int begin = ptr_a[row], end = ptr_a[row + 1];
        if (end - begin > 32 * group) {
            if (lane == 0) s_long[atomicAdd(&longs, 1)] = local;
        } else {
            for (int p = begin + lane; p < end; p += group) gather(p, products, lo, hi);
        }
    }
    for (int d = group / 2; d; d >>= 1) {
        products += __shfl_xor_sync(ALL, products, d);
        lo = min(lo, __shfl_xor_sync(ALL, lo, d));
        hi = max(hi, __shfl_xor_sync(ALL, hi, d));
    }
    if (lane == 0) {
        s_products[local] = products;
        s_low[local] = lo;
        s_high[local] = hi;
    }
    __syncthreads();
    // Pieces of 128 entries of the long rows, dealt to the warps.
    for (int l = 0, piece = threadIdx.x >> 5; l < longs;) {
        const int at = s_long[l], begin = ptr_a[blockIdx.x * per_block + at], end = ptr_a[blockIdx.x * per_block + at + 1];
        const int pieces = (end - begin + 127) >> 7;
        if (piece >= pieces) {
            piece -= pieces;
            ++l;
            continue;
        }
        products = 0, lo = 0x7fffffff, hi = -1;
        const int from = begin + 128 * piece + (threadIdx.x & 31);
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (from + 32 * c < end) gather(from + 32 * c, products, lo, hi);
        if (products) {
            atomicAdd(&s_products[at], products);
            atomicMin(&s_low[at], lo);
            atomicMax(&s_high[at], hi);
        }
        piece += ANALYSTS / 32;
    }
    __syncthreads();
    int bin = -1, width = 0;
    const int mine = blockIdx.x * per_block + threadIdx.x;
    u64 sum = 0;
    if (threadIdx.x < per_block && mine < rows) {
        sum = s_products[threadIdx.x];
        width = sum ? s_high[threadIdx.x] - s_low[threadIdx.x] + 1 : 0;
        bin = symbolic_bin(sum, width);
        low[mine] = s_low[threadIdx.x];
        span[mine] = width;
        entries[mine] = 0;
    }
    append<BINS_SYMBOLIC>(mine, bin, rows, head + SYMBOLIC, lists);
    // The place of a kept bitmap; -1 without one, -2 for a row with many products.
    const bool window = bin == 0 || bin == 1;
    const int words = (width + 31) >> 5, at = window ? atomicAdd(&kept_words, words) : 0;
    __syncthreads();
    if (threadIdx.x == 0 && kept_words) s_kept = atomicAdd((u64*)&head[KEPT], u64(kept_words));
    __syncthreads();
    if (threadIdx.x < per_block && mine < rows)
        slot[mine] = window ? int(min(s_kept + at, u64(MOST_KEPT))) : sum >= HEAVY ? -2 : -1;
    const int widest = __reduce_max_sync(ALL, bin == 6 ? width : 0);
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
    if ((threadIdx.x & 31) == 0) {
        if (widest) atomicMax(&head[MAX_SPAN], widest);
        if (sum) atomicAdd((u64*)&head[PRODUCTS], sum);
    }
}

// Row pointer of C by a single-pass scan with look-back (2048 rows a block), and the numeric bins.
__global__ void __launch_bounds__(256) place(int rows, int shared_bytes, const int* entries, const int* span,
                                             const int* slot, int* ptr_c, int* lists, int* head, u64* state) {
    constexpr u64 VALUE_BITS = (1ull << 62) - 1;
    __shared__ u64 warp_sums[8], s_before;
    __shared__ int s_ticket;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) s_ticket = atomicAdd(&head[TICKET], 1);
    __syncthreads();
    const int ticket = s_ticket, first = ticket * 2048 + threadIdx.x * 8;
    int held[8];
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        held[i] = first + i < rows ? entries[first + i] : 0;
        sum += held[i];
    }
    u64 scan = sum;
    for (int d = 1; d < 32; d <<= 1) {
        const u64 other = __shfl_up_sync(ALL, scan, d);
        if (lane >= d) scan += other;
    }
    if (lane == 31) warp_sums[warp] = scan;
    __syncthreads();
    u64 before = scan - sum, block_sum = 0;
    for (int w = 0; w < 8; ++w) {
        if (w < warp) before += warp_sums[w];
        block_sum += warp_sums[w];
    }
    volatile u64* states = state;
    if (warp == 0) {
        if (lane == 0) {
            __threadfence();
            states[ticket] = (ticket == 0 ? 2ull << 62 : 1ull << 62) | block_sum;
        }
        u64 prefix = 0;
        for (int at = ticket - 1 - lane; ticket > 0; at -= 32) {
            u64 seen;
            do {
                seen = at >= 0 ? states[at] : 2ull << 62;
            } while (__any_sync(ALL, (seen >> 62) == 0));
            const u32 done = __ballot_sync(ALL, (seen >> 62) == 2);
            const int last = done ? __ffs(done) - 1 : 31;
            u64 part = lane <= last ? seen & VALUE_BITS : 0;
            for (int d = 16; d; d >>= 1) part += __shfl_xor_sync(ALL, part, d);
            prefix += part;
            if (done) break;
        }
        if (lane == 0) {
            __threadfence();
            if (ticket > 0) states[ticket] = (2ull << 62) | (prefix + block_sum);
            s_before = prefix;
            if (ticket == (rows - 1) / 2048) {
                *(u64*)&head[ENTRIES] = prefix + block_sum;
                ptr_c[rows] = int(prefix + block_sum);
            }
        }
    }
    __syncthreads();
    before += s_before;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = first + i;
        int bin = -1, need = 0;
        if (row < rows) {
            ptr_c[row] = int(before);
            before += held[i];
            bin = numeric_bin(held[i], span[row], slot[row] >= 0, slot[row] == -2, shared_bytes, &need);
        }
        append<BINS_NUMERIC>(row, bin, rows, head + NUMERIC, lists);
        if (bin >= 8) atomicMax(&head[MAX_BYTES + bin - 8], need);
    }
}

// Entries of the rows of all bins but the block's.
__global__ void __launch_bounds__(128) symbolic_groups(int rows, int nnz, const int* lists, const int* ptr_a,
                                                       const int* idx_a, const int* ptr_b, const int* idx_b,
                                                       const int* low, const int* span, const int* slot, int* entries,
                                                       u32* kept, int capacity, const int* head, int by_blocks) {
    __shared__ __align__(16) u32 s_tables[4][1024];
    if (unfit(head)) return;
    const float mean = mean_row(head, nnz);
    Rows of = {rows, lists, ptr_a, idx_a, ptr_b, idx_b, low, span, slot, entries, kept, capacity, head};
    of.table = s_tables[threadIdx.x >> 5];
    of.item = blockIdx.x + gridDim.x * (threadIdx.x >> 5);  // neighbours go to different multiprocessors
    if (by_blocks) {
        window_rows_by_blocks(of, 1, s_tables[0]);
        window_rows_by_blocks(of, 0, s_tables[0]);
    } else {
        window_rows<32, 256>(of, 1);
    }
    hash_rows<32, 10>(of, 5);
    hash_rows<32, 8>(of, 4);
    if (!by_blocks && mean > 24)
        window_rows<32, 64>(of, 0);
    else if (!by_blocks && mean > 10)
        window_rows<16, 64>(of, 0);
    else if (!by_blocks)
        window_rows<8, 64>(of, 0);
    if (mean > 6) {
        hash_rows<8, 6>(of, 3);
        hash_rows<8, 5>(of, 2);
    } else {
        hash_rows<4, 6>(of, 3);
        hash_rows<4, 5>(of, 2);
    }
}

#define NUMERIC_WINDOW(G, WORDS, SUMS)                                                                                    \
    __global__ void __launch_bounds__(128) numeric_window_##G##_##WORDS##_##SUMS(                                         \
        int count, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a, const int* ptr_b,             \
        const int* idx_b, const VALUE* val_b, const int* low, const int* span, const int* slot, const u32* kept,          \
        int capacity, const int* ptr_c, int* idx_c, VALUE* val_c) {                                                       \
        numeric_window<G, WORDS, SUMS>(count, list, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, low, span, slot, kept,      \
                                       capacity, ptr_c, idx_c, val_c);                                                    \
    }
NUMERIC_WINDOW(8, 64, 256)
NUMERIC_WINDOW(16, 64, 256)
NUMERIC_WINDOW(32, 64, 256)
NUMERIC_WINDOW(32, 64, 2048)
NUMERIC_WINDOW(32, 256, 1024)

#define NUMERIC_HASH(G, LOG)                                                                                              \
    __global__ void __launch_bounds__(128) numeric_hash_##G##_##LOG(                                                      \
        int count, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a, const int* ptr_b,             \
        const int* idx_b, const VALUE* val_b, const int* low, const int* ptr_c, int* idx_c, VALUE* val_c) {               \
        numeric_hash<G, LOG>(count, list, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, low, ptr_c, idx_c, val_c);            \
    }
NUMERIC_HASH(4, 5)
NUMERIC_HASH(8, 5)
NUMERIC_HASH(4, 6)
NUMERIC_HASH(8, 6)
NUMERIC_HASH(32, 8)
NUMERIC_HASH(32, 9)
NUMERIC_HASH(32, 10)

#define SYMBOLIC_BLOCK(NAME, SHARED)                                                                                      \
    __global__ void __launch_bounds__(256) NAME(int rows, int nnz, const int* lists, const int* ptr_a, const int* idx_a,  \
                                                const int* ptr_b, const int* idx_b, const int* low, const int* span,      \
                                                int* entries, const int* head, u32* scratch, int scratch_words) {         \
        symbolic_block<SHARED>(rows, nnz, lists, ptr_a, idx_a, ptr_b, idx_b, low, span, entries, head, scratch,           \
                               scratch_words);                                                                            \
    }
SYMBOLIC_BLOCK(symbolic_block_shared, true)
SYMBOLIC_BLOCK(symbolic_block_global, false)

#define NUMERIC_BLOCK(NAME, THREADS, SHARED_WORDS, SHARED_SUMS)                                                           \
    __global__ void __launch_bounds__(THREADS) NAME(                                                                      \
        int count, int width, const int* list, const int* ptr_a, const int* idx_a, const VALUE* val_a, const int* ptr_b,  \
        const int* idx_b, const VALUE* val_b, const int* low, const int* span, const int* ptr_c, int* idx_c,              \
        VALUE* val_c, Word* scratch, int scratch_words) {                                                                 \
        numeric_block<THREADS, SHARED_WORDS, SHARED_SUMS>(count, width, list, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b,   \
                                                          low, span, ptr_c, idx_c, val_c, scratch, scratch_words);        \
    }
NUMERIC_BLOCK(numeric_block_small, 128, true, true)
NUMERIC_BLOCK(numeric_block_large, 512, true, true)
NUMERIC_BLOCK(numeric_block_sums_global, 512, true, false)
NUMERIC_BLOCK(numeric_block_global, 256, false, false)

}  // extern "C"
