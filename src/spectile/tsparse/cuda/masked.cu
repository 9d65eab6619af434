// Entries of C that a mask names, over a semiring (KIND, its code: 0 plus_times, 1 min_plus, 2 max_plus, 3 max_min).
//
//   count_met    products of each row
//   list_pieces  cuts the rows of the mask into pieces of MASK_PIECE entries at most, of MASK_PRODUCTS products about; of a row
//                whose products are far more than its entries each is a piece, and searched for in B's rows
//   by_rows      a warp a piece:  a table of its columns;  for k in A's row, in order; for each entry (j, b) of B's row k:
//                where the table holds j:  c_j += a b;  or where B's row k is far longer than the piece, for each of its columns
//                that is found there
//   by_blocks    where values are all 1, a block a larger piece: the same, its sums in whatever order; a hub row's entries of A
//                are shared by several
//   compact      the entries that some product fell on
//
// Where the check of the factors found something, those before by_rows leave all as it is.
// Invariant: products are added in the order of k, with the bits that the kernels of the rows method give.

#include "search.cuh"
#include "shared.cuh"

namespace {

#if KIND
// old + a b, or where it is the first a b; what is no number stays.
__device__ __forceinline__ VALUE join(VALUE a, VALUE b, VALUE old, bool first) {
    const VALUE product = KIND < 3 ? a + b : b < a || b != b ? b : a;
    const bool better = KIND == 1 ? product < old : product > old;
    return first || better || product != product ? product : old;
}
#else
__device__ __forceinline__ VALUE join(VALUE a, VALUE b, VALUE old, bool) { return add_product(a, b, old); }
#endif

__device__ __forceinline__ u32 slot_from(int column, int log) { return (u32(column) * 2654435769u) >> (32 - log); }

// A table of columns of a row of the mask in shared memory.
struct Table {
    int* keys;
    int log;

    __device__ __forceinline__ u32 insert(int column) {
        u32 slot = slot_from(column, log);
        while (atomicCAS(&keys[slot], -1, column) != -1) slot = (slot + 1) & ((1 << log) - 1);
        return slot;
    }

    __device__ __forceinline__ int slot_of(int column) const {
        u32 slot = slot_from(column, log);
        while (true) {
            const int key = keys[slot];
            if (key == column) return int(slot);
            if (key == -1) return -1;
            slot = (slot + 1) & ((1 << log) - 1);
        }
    }
};

// Those of a warp, an eighth full at most, with the place of each and its sum, made in order.
struct Piece : Table {
    static constexpr bool ORDERED = true;
    unsigned char *places, *met;
    VALUE* sums;

    __device__ __forceinline__ int find(int column) const {
        const int slot = slot_of(column);
        return slot < 0 ? -1 : places[slot];
    }

    __device__ __forceinline__ void add(int place, VALUE a, VALUE b) {
        sums[place] = join(a, b, sums[place], !met[place]);
        met[place] = 1;
    }
};

// Those of a block, a quarter full at most, with a count in each slot.
struct Counts : Table {
    static constexpr bool ORDERED = false;
    int* counts;

    __device__ __forceinline__ int find(int column) const { return slot_of(column); }
    __device__ __forceinline__ void add(int slot, VALUE, VALUE) { atomicAdd(&counts[slot], 1); }
};

__device__ __forceinline__ void add_count(float* sum, int count) { atomicAdd(sum, float(count)); }
__device__ __forceinline__ void add_count(double* sum, int count) { atomicAdd(sum, double(count)); }
template <class REAL>
__device__ __forceinline__ void add_count(Complex<REAL>* sum, int count) {
    add_count(&sum->x, count);
}

constexpr int TABLE = 8 * MASK_PIECE, WARPS = 4, WARPS_OF_BLOCK = 8, AHEAD = 4;

// Values that are all 1 are not there.
__device__ __forceinline__ VALUE value_at(const VALUE* values, int at) { return values == nullptr ? VALUE(1) : values[at]; }

// Of AHEAD entries of B, those at `from` that are not negative, the places in a piece, or -1, and the values.
struct Met {
    int places[AHEAD];
    VALUE values[AHEAD];

    template <class PIECE>
    __device__ __forceinline__ Met(const PIECE& piece, const int (&from)[AHEAD], const int* idx_b, const VALUE* val_b) {
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) places[c] = from[c] < 0 ? -1 : idx_b[from[c]];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) places[c] = places[c] < 0 ? -1 : piece.find(places[c]);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) values[c] = places[c] < 0 ? VALUE(0) : value_at(val_b, from[c]);
    }
};

// Sums of the products with some rows of B, a lane's from `first` to `last`, each after the other by all lanes.
template <class PIECE>
__device__ __forceinline__ void add_long(PIECE& piece, int rows, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b,
                                         int lane) {
    for (int s = 0; s < rows; s += AHEAD) {
        int from[AHEAD];
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            const int at = __shfl_sync(ALL, first, (s + d) & 31) + lane, stop = __shfl_sync(ALL, last, (s + d) & 31);
            from[d] = s + d < rows && at < stop ? at : -1;
        }
        const Met met(piece, from, idx_b, val_b);
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            if (s + d >= rows) break;
            const VALUE a = __shfl_sync(ALL, factor, s + d);
            const int begin = __shfl_sync(ALL, first, s + d), stop = __shfl_sync(ALL, last, s + d);
            if (met.places[d] >= 0) piece.add(met.places[d], a, met.values[d]);
            for (int q = begin + 32; q < stop; q += 32 * AHEAD) {
#pragma unroll
                for (int c = 0; c < AHEAD; ++c) from[c] = q + 32 * c + lane < stop ? q + 32 * c + lane : -1;
                const Met more(piece, from, idx_b, val_b);
#pragma unroll
                for (int c = 0; c < AHEAD; ++c)
                    if (more.places[c] >= 0) piece.add(more.places[c], a, more.values[c]);
            }
            if (PIECE::ORDERED) __syncwarp();
        }
    }
}

// The same where these rows are short: all their products side by side, and those that the mask holds row after row.
template <class PIECE>
__device__ __forceinline__ void add_short(PIECE& piece, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b, int lane) {
    const int upto = prefix_scan<32>(last - first, lane, ALL), before = upto - (last - first), total = __shfl_sync(ALL, upto, 31);
    for (int base = 0; base < total; base += 32 * AHEAD) {
        int owners[AHEAD], from[AHEAD];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const int t = base + 32 * c + lane;
            int owner = 0;  // the last lane whose products begin no later
#pragma unroll
            for (int d = 16; d; d >>= 1)
                if (__shfl_sync(ALL, before, owner + d) <= t) owner += d;
            owners[c] = owner;
            const int at = __shfl_sync(ALL, first, owner) + t - __shfl_sync(ALL, before, owner);
            from[c] = t < total ? at : -1;
        }
        const Met met(piece, from, idx_b, val_b);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const VALUE a = __shfl_sync(ALL, factor, owners[c]);
            if (!PIECE::ORDERED) {
                if (met.places[c] >= 0) piece.add(met.places[c], a, met.values[c]);
                continue;
            }
            for (u32 hits = __ballot_sync(ALL, met.places[c] >= 0); hits;) {
                const int next = __shfl_sync(ALL, owners[c], __ffs(hits) - 1);
                const bool mine = met.places[c] >= 0 && owners[c] == next;
                if (mine) piece.add(met.places[c], a, met.values[c]);
                hits &= ~__ballot_sync(ALL, mine);
                __syncwarp();
            }
        }
    }
}

// The same of one row of B, in which the columns of a piece are searched for.
template <class PIECE>
__device__ __forceinline__ void add_searched(PIECE& piece, const int* columns, int n, int first, int last, VALUE factor, const int* idx_b,
                                             const VALUE* val_b, int lane) {
    for (int e = lane; e < n; e += 32) {
        const int at = place_from(idx_b, first, last, columns[e]),
                  place = at < last && idx_b[at] == columns[e] ? piece.find(columns[e]) : -1;
        if (place >= 0) piece.add(place, factor, value_at(val_b, at));
    }
    if (PIECE::ORDERED) __syncwarp();
}

// Sums of the products of entries of A from `begin` to `end`, so many `at_once` of each `stride`, with the n columns of a piece.  Rows of
// B that are far longer are not walked.
template <class PIECE>
__device__ __forceinline__ void add_rows(PIECE& piece, int begin, int end, int at_once, int stride, bool whole, const int* columns, int n,
                                         const int* idx_a, const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b,
                                         int lane) {
    for (int base = begin; base < end; base += stride) {
        const int steps = min(at_once, end - base), longest = 1 << 20;  // sums of lengths have 32 bits
        int first = 0, last = 0;
        VALUE factor = 0;
        if (lane < steps) {
            const int k = idx_a[base + lane];
            first = ptr_b[k];
            last = ptr_b[k + 1];
            factor = value_at(val_a, base + lane);
            if (!whole) {
                first = place_from(idx_b, first, last, columns[0]);
                last = place_from(idx_b, first, last, columns[n - 1] + 1);
            }
        }
        const u32 far = __ballot_sync(ALL, last - first > MASK_SEARCH * max(n, 32));
        u32 left = far;
        for (int done = 0; done < 32;) {
            const int next = PIECE::ORDERED && left ? __ffs(left) - 1 : 32;
            const int stop = lane < done || lane >= next || (far >> lane & 1) ? first : last;
            if (int(__reduce_add_sync(ALL, min(stop - first, longest))) >= MASK_LONG * steps)
                add_long(piece, steps, first, stop, factor, idx_b, val_b, lane);
            else add_short(piece, first, stop, factor, idx_b, val_b, lane);
            for (u32 now = next < 32 ? 1u << next : left; now; now &= now - 1) {
                const int from = __ffs(now) - 1;
                add_searched(piece, columns, n, __shfl_sync(ALL, first, from), __shfl_sync(ALL, last, from), __shfl_sync(ALL, factor, from),
                             idx_b, val_b, lane);
            }
            left &= left - 1;
            done = next + 1;
        }
    }
}

}  // namespace

// Of each row of A the products with B.
extern "C" __global__ void __launch_bounds__(256) count_met(int rows, const int* ptr_a, const int* idx_a, const int* ptr_b, u64* met,
                                                            const int* head) {
    if (invalid(head)) return;
    const int stride = gridDim.x * blockDim.x, end = ptr_a[rows];
    for (long long p = ptr_a[0] + blockIdx.x * blockDim.x + threadIdx.x; p < end; p += stride)
        atomicAdd(&met[last_at(ptr_a, 0, rows - 1, u32(p))], u64(ptr_b[idx_a[p] + 1] - ptr_b[idx_a[p]]));
}

// `met` are the products of each row; `counted` tells whether blocks take larger pieces.
extern "C" __global__ void __launch_bounds__(256) list_pieces(int rows, int counted, const u64* met, const int* ptr_a, const int* ptr_m,
                                                              int4* pieces, int* head) {
    if (invalid(head)) return;
    const int row = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    int count = 0, parts = 1, begin = 0, entries = 0;
    bool large = false, searched = false;
    if (row < rows) {
        begin = ptr_m[row], entries = ptr_m[row + 1] - begin;
        if (const u64 all = entries ? met[row] : 0) {
            const u64 each = MASK_SEARCH * u64(ptr_a[row + 1] - ptr_a[row]);
            large = counted && (entries > MASK_PIECE || all > MASK_PRODUCTS);
            searched = !large && entries * each < all;
            const u64 most = large ? MASK_BLOCK : MASK_PIECE, products = large ? MASK_BLOCK_PRODUCTS : MASK_PRODUCTS;
            const u64 least = (entries + most - 1) / most, wanted = min((all + products - 1) / products, u64(entries));
            // A block's pieces share columns or A's entries: of the latter each has an equal part of its columns.
            if (large) parts = int(max(u64(1), wanted / least));
            count = searched ? entries : large ? int(least) * parts : int(max(least, wanted));
        }
    }
    const int small = large ? 0 : count, upto = prefix_scan<32>(count, lane, ALL), upto_small = prefix_scan<32>(small, lane, ALL);
    u64 before = 0, before_small = 0;
    if (lane == 31 && upto_small) before_small = atomicAdd((u64*)&head[MASK_PIECES], u64(upto_small));
    if (lane == 31 && upto > upto_small) before = atomicAdd((u64*)&head[MASK_BLOCKS], u64(upto - upto_small));
    before_small = __shfl_sync(ALL, before_small, 31) + upto_small - small;
    before = __shfl_sync(ALL, before, 31) + upto - upto_small - (count - small);
    for (int n = 0; n < count; ++n) {
        const int of = n / parts, all_of = count / parts;
        const long long place = large ? ptr_m[rows] - 1 - (long long)(before + n) : (long long)(before_small + n);
        pieces[place] = make_int4(row, begin + int((long long)entries * of / all_of), begin + int((long long)entries * (of + 1) / all_of),
                                  large ? n % parts << 16 | parts : searched);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) by_rows(int count, const int4* pieces, const int* ptr_m, const int* idx_m,
                                                                 const unsigned char* held, const int* ptr_a, const int* idx_a,
                                                                 const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b,
                                                                 VALUE* val_c, unsigned char* found) {
    __shared__ int s_keys[WARPS][TABLE];
    __shared__ unsigned char s_places[WARPS][TABLE], s_met[WARPS][MASK_PIECE];
    __shared__ VALUE s_sums[WARPS][MASK_PIECE];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, item = blockIdx.x * WARPS + warp;
    if (item >= count) return;
    const int4 which = pieces[item];
    const int row = which.x, begin = which.y, n = which.z - begin;
    Piece piece = {{s_keys[warp], 5}, s_places[warp], s_met[warp], s_sums[warp]};
    while ((1 << piece.log) < 8 * n) ++piece.log;
    for (int t = lane; t < 1 << piece.log; t += 32) piece.keys[t] = -1;
    for (int e = lane; e < n; e += 32) {
        piece.sums[e] = 0;
        piece.met[e] = 0;
    }
    __syncwarp();
    for (int e = lane; e < n; e += 32)
        if (held == nullptr || held[begin + e]) piece.places[piece.insert(idx_m[begin + e])] = (unsigned char)e;
    __syncwarp();
    const bool whole = !which.w && n == ptr_m[row + 1] - ptr_m[row];
    add_rows(piece, ptr_a[row], ptr_a[row + 1], 32, 32, whole, idx_m + begin, n, idx_a, val_a, ptr_b, idx_b, val_b, lane);
    for (int e = lane; e < n; e += 32)
        if (piece.met[e]) {
            val_c[begin + e] = piece.sums[e];
            found[begin + e] = 1;
        }
}

// Pieces stand at the end of the list.  `val_c` is 0 before.
extern "C" __global__ void __launch_bounds__(32 * WARPS_OF_BLOCK) by_blocks(int entries, const int4* pieces, const int* ptr_m,
                                                                            const int* idx_m, const unsigned char* held, const int* ptr_a,
                                                                            const int* idx_a, const int* ptr_b, const int* idx_b,
                                                                            VALUE* val_c, unsigned char* found) {
    __shared__ int s_keys[4 * MASK_BLOCK], s_counts[4 * MASK_BLOCK];
    const int4 which = pieces[entries - 1 - int(blockIdx.x)];
    const int t = threadIdx.x, row = which.x, begin = which.y, n = which.z - begin, part = which.w >> 16, parts = which.w & 0xffff;
    Counts piece = {{s_keys, 5}, s_counts};
    while ((1 << piece.log) < 4 * n) ++piece.log;
    for (int slot = t; slot < 1 << piece.log; slot += blockDim.x) {
        s_keys[slot] = -1;
        s_counts[slot] = 0;
    }
    __syncthreads();
    for (int e = begin + t; e < begin + n; e += blockDim.x)
        if (held == nullptr || held[e]) piece.insert(idx_m[e]);
    __syncthreads();
    const bool whole = n == ptr_m[row + 1] - ptr_m[row];
    const long long length = ptr_a[row + 1] - ptr_a[row];
    const int from = ptr_a[row] + int(length * part / parts), to = ptr_a[row] + int(length * (part + 1) / parts);
    const int at_once = min(max((to - from + WARPS_OF_BLOCK - 1) / WARPS_OF_BLOCK, 4), 32);  // so that all warps have some
    add_rows(piece, from + (t >> 5) * at_once, to, at_once, WARPS_OF_BLOCK * at_once, whole, idx_m + begin, n, idx_a, (const VALUE*)nullptr,
             ptr_b, idx_b, (const VALUE*)nullptr, t & 31);
    __syncthreads();
    for (int e = begin + t; e < begin + n; e += blockDim.x) {
        const int slot = held == nullptr || held[e] ? piece.slot_of(idx_m[e]) : -1, count = slot < 0 ? 0 : s_counts[slot];
        if (count == 0) continue;
        if (parts == 1) val_c[e] = VALUE(count);
        else add_count(&val_c[e], count);
        found[e] = 1;
    }
}

// `upto` counts the entries that are found, up to and with each.
extern "C" __global__ void __launch_bounds__(256) compact(int entries, int rows, const int* upto, const unsigned char* found,
                                                          const int* ptr_m, const int* idx_m, const VALUE* val_m, int* ptr_c, int* idx_c,
                                                          VALUE* val_c) {
    const int stride = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int e = first; e < entries; e += stride)
        if (found[e]) {
            idx_c[upto[e] - 1] = idx_m[e];
            val_c[upto[e] - 1] = val_m[e];
        }
    for (int i = first; i <= rows; i += stride) ptr_c[i] = ptr_m[i] ? upto[ptr_m[i] - 1] : 0;
}
