// Entries of C that a mask names, over a semiring (KIND, its code: 0 plus_times, 1 min_plus, 2 max_plus, 3 max_min).
//
//   list_pieces  cuts the rows of the mask into pieces of MASK_PIECE entries at most, of MASK_PRODUCTS products about; tells
//                the rows whose entries are better searched for
//   by_rows      a warp a piece:  a table of its columns;  for k in A's row, in order; for each entry (j, b) of B's row k:
//                where the table holds j:  c_j += a b
//   by_columns   a warp an entry (i, j):  the entries of the shorter of A's row i and B's column j, searched in the longer
//   compact      the entries that some product fell on
//
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

// A piece of a row of the mask in shared memory: a table of its columns, an eighth full at most, each with its place.
struct Piece {
    int* keys;
    unsigned char *places, *met;
    VALUE* sums;
    int log;

    __device__ __forceinline__ void insert(int column, int place) {
        u32 slot = slot_from(column, log);
        while (atomicCAS(&keys[slot], -1, column) != -1) slot = (slot + 1) & ((1 << log) - 1);
        places[slot] = (unsigned char)place;
    }

    __device__ __forceinline__ int find(int column) const {
        u32 slot = slot_from(column, log);
        while (true) {
            const int key = keys[slot];
            if (key == column) return places[slot];
            if (key == -1) return -1;
            slot = (slot + 1) & ((1 << log) - 1);
        }
    }

    __device__ __forceinline__ void add(int place, VALUE a, VALUE b) {
        sums[place] = join(a, b, sums[place], !met[place]);
        met[place] = 1;
    }
};

constexpr int TABLE = 8 * MASK_PIECE, WARPS = 4, AHEAD = 4;

// Values that are all 1 are not there.
__device__ __forceinline__ VALUE value_at(const VALUE* values, int at) { return values == nullptr ? VALUE(1) : values[at]; }

// Sums of the products with some rows of B, a lane's from `first` to `last`, each after the other by all lanes.
__device__ __forceinline__ void add_long(Piece& piece, int rows, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b,
                                         int lane) {
    for (int s = 0; s < rows; s += AHEAD) {
        int from[AHEAD], stop[AHEAD], places[AHEAD];
        VALUE values[AHEAD];
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            from[d] = __shfl_sync(ALL, first, (s + d) & 31) + lane;
            stop[d] = __shfl_sync(ALL, last, (s + d) & 31);
            if (s + d >= rows) stop[d] = 0;
            places[d] = from[d] < stop[d] ? idx_b[from[d]] : -1;
        }
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) places[d] = places[d] < 0 ? -1 : piece.find(places[d]);
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) values[d] = places[d] < 0 ? VALUE(0) : value_at(val_b, from[d]);
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            if (s + d >= rows) break;
            const VALUE a = __shfl_sync(ALL, factor, s + d);
            if (places[d] >= 0) piece.add(places[d], a, values[d]);
            for (int q = from[d] + 32; q - lane < stop[d]; q += 32 * AHEAD) {
                int more[AHEAD];
                VALUE met[AHEAD];
#pragma unroll
                for (int c = 0; c < AHEAD; ++c) more[c] = q + 32 * c < stop[d] ? idx_b[q + 32 * c] : -1;
#pragma unroll
                for (int c = 0; c < AHEAD; ++c) more[c] = more[c] < 0 ? -1 : piece.find(more[c]);
#pragma unroll
                for (int c = 0; c < AHEAD; ++c) met[c] = more[c] < 0 ? VALUE(0) : value_at(val_b, q + 32 * c);
#pragma unroll
                for (int c = 0; c < AHEAD; ++c)
                    if (more[c] >= 0) piece.add(more[c], a, met[c]);
            }
            __syncwarp();
        }
    }
}

// The same where these rows are short: all their products side by side, and those that the mask holds row after row.
__device__ __forceinline__ void add_short(Piece& piece, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b, int lane) {
    const int upto = prefix_scan<32>(last - first, lane, ALL), before = upto - (last - first), total = __shfl_sync(ALL, upto, 31);
    for (int base = 0; base < total; base += 32 * AHEAD) {
        int owners[AHEAD], from[AHEAD], places[AHEAD];
        VALUE values[AHEAD];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const int t = base + 32 * c + lane;
            int owner = 0;  // the last lane whose products begin no later
#pragma unroll
            for (int d = 16; d; d >>= 1)
                if (__shfl_sync(ALL, before, owner + d) <= t) owner += d;
            owners[c] = owner;
            from[c] = __shfl_sync(ALL, first, owner) + t - __shfl_sync(ALL, before, owner);
            places[c] = t < total ? idx_b[from[c]] : -1;
        }
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) places[c] = places[c] < 0 ? -1 : piece.find(places[c]);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) values[c] = places[c] < 0 ? VALUE(0) : value_at(val_b, from[c]);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const VALUE a = __shfl_sync(ALL, factor, owners[c]);
            for (u32 hits = __ballot_sync(ALL, places[c] >= 0); hits;) {
                const int next = __shfl_sync(ALL, owners[c], __ffs(hits) - 1);
                const bool mine = places[c] >= 0 && owners[c] == next;
                if (mine) piece.add(places[c], a, values[c]);
                hits &= ~__ballot_sync(ALL, mine);
                __syncwarp();
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) list_pieces(int rows, const long long* products, const long long* steps, const int* ptr_a,
                                                              const int* ptr_m, int mean_column, int4* pieces, unsigned char* columns,
                                                              u64* counts) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    int count = 0, begin = 0, entries = 0;
    u64 spared = 0, slowest = 0, all = 0;
    if (row < rows) {
        const int first = ptr_a[row], length = ptr_a[row + 1] - first;
        begin = ptr_m[row], entries = ptr_m[row + 1] - begin;
        const long long met = products[first + length] - products[first];
        if (entries && met) {
            const long long least = (entries + MASK_PIECE - 1) / MASK_PIECE, wanted = (met + MASK_PRODUCTS - 1) / MASK_PRODUCTS;
            const long long searched =
                MASK_SEARCH * (steps != nullptr ? steps[begin + entries] - steps[begin] : (long long)entries * min(length, mean_column));
            count = int(max(least, min(wanted, (long long)entries)));
            all = met;
            if (met > searched) {
                spared = met - searched;
                slowest = met / count + MASK_STEP * (long long)length;
            }
            if (steps != nullptr && spared) {
                columns[row] = 1;
                count = 0;
            }
        }
    }
    const int upto = prefix_scan<32>(count, lane, ALL);
    u64 before = 0;
    if (lane == 31 && upto) before = atomicAdd(&counts[0], u64(upto));
    before = __shfl_sync(ALL, before, 31) + upto - count;
    for (int n = 0; n < count; ++n)
        pieces[before + n] =
            make_int4(row, begin + int((long long)entries * n / count), begin + int((long long)entries * (n + 1) / count), 0);
    for (int d = 16; d; d >>= 1) {
        all += __shfl_xor_sync(ALL, all, d);
        spared += __shfl_xor_sync(ALL, spared, d);
        slowest = max(slowest, __shfl_xor_sync(ALL, slowest, d));
    }
    if (lane == 0 && all) {
        atomicAdd(&counts[1], all);
        if (spared) atomicAdd(&counts[2], spared);
        if (spared) atomicMax(&counts[3], slowest);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) by_rows(const u64* counts, const int4* pieces, const int* ptr_m, const int* idx_m,
                                                                 const unsigned char* held, const int* ptr_a, const int* idx_a,
                                                                 const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b,
                                                                 VALUE* val_c, unsigned char* found) {
    __shared__ int s_keys[WARPS][TABLE];
    __shared__ unsigned char s_places[WARPS][TABLE], s_met[WARPS][MASK_PIECE];
    __shared__ VALUE s_sums[WARPS][MASK_PIECE];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, item = blockIdx.x * WARPS + warp;
    if (item >= counts[0]) return;
    const int4 which = pieces[item];
    const int row = which.x, begin = which.y, n = which.z - begin;
    Piece piece = {s_keys[warp], s_places[warp], s_met[warp], s_sums[warp], 5};
    while ((1 << piece.log) < 8 * n) ++piece.log;
    for (int t = lane; t < 1 << piece.log; t += 32) piece.keys[t] = -1;
    for (int e = lane; e < n; e += 32) {
        piece.sums[e] = 0;
        piece.met[e] = 0;
    }
    __syncwarp();
    for (int e = lane; e < n; e += 32)
        if (held == nullptr || held[begin + e]) piece.insert(idx_m[begin + e], e);
    __syncwarp();
    const bool whole = n == ptr_m[row + 1] - ptr_m[row];
    const int least = idx_m[begin], most = idx_m[begin + n - 1], end = ptr_a[row + 1];
    for (int base = ptr_a[row]; base < end; base += 32) {
        int first = 0, last = 0;
        VALUE factor = 0;
        if (base + lane < end) {
            const int k = idx_a[base + lane];
            first = ptr_b[k];
            last = ptr_b[k + 1];
            factor = value_at(val_a, base + lane);
            if (!whole) {
                first = place_from(idx_b, first, last, least);
                last = place_from(idx_b, first, last, most + 1);
            }
        }
        const int steps = min(32, end - base), longest = 1 << 20;  // sums of lengths have 32 bits
        if (int(__reduce_add_sync(ALL, min(last - first, longest))) >= MASK_LONG * steps)
            add_long(piece, steps, first, last, factor, idx_b, val_b, lane);
        else add_short(piece, first, last, factor, idx_b, val_b, lane);
    }
    for (int e = lane; e < n; e += 32)
        if (piece.met[e]) {
            val_c[begin + e] = piece.sums[e];
            found[begin + e] = 1;
        }
}

extern "C" __global__ void __launch_bounds__(256) by_columns(int entries, int rows, const unsigned char* columns, const int* ptr_m,
                                                             const int* idx_m, const unsigned char* held, const int* ptr_a,
                                                             const int* idx_a, const VALUE* val_a, const int* ptr_t, const int* idx_t,
                                                             const VALUE* val_t, VALUE* val_c, unsigned char* found) {
    const int lane = threadIdx.x & 31, e = blockIdx.x * blockDim.x + threadIdx.x;
    int row = -1;
    if (e < entries && (held == nullptr || held[e])) row = last_at(ptr_m, 0, rows - 1, e);
    for (u32 todo = __ballot_sync(ALL, row >= 0 && columns[max(row, 0)]); todo; todo &= todo - 1) {
        const int at = __ffs(todo) - 1, i = __shfl_sync(ALL, row, at), entry = e - lane + at, j = idx_m[entry];
        const int p_end = ptr_a[i + 1], q_end = ptr_t[j + 1];
        int p = ptr_a[i], q = ptr_t[j];
        const bool by_row = p_end - p <= q_end - q;  // the entries of A's row are searched
        bool any = false;
        VALUE sum = 0;
        while (p < p_end && q < q_end) {
            const int mine = (by_row ? p : q) + lane, mine_end = by_row ? p_end : q_end, other_end = by_row ? q_end : p_end;
            const int* theirs = by_row ? idx_t : idx_a;
            int place = other_end;
            bool met = false;
            if (mine < mine_end) {
                const int k = by_row ? idx_a[mine] : idx_t[mine];
                place = place_from(theirs, by_row ? q : p, other_end, k);
                met = place < other_end && theirs[place] == k;
            }
            const VALUE a = met ? value_at(val_a, by_row ? mine : place) : VALUE(0);
            const VALUE b = met ? value_at(val_t, by_row ? place : mine) : VALUE(0);
            for (u32 hits = __ballot_sync(ALL, met); hits; hits &= hits - 1) {
                const int from = __ffs(hits) - 1;
                sum = join(__shfl_sync(ALL, a, from), __shfl_sync(ALL, b, from), sum, !any);
                any = true;
            }
            const int next = __shfl_sync(ALL, place, min(31, mine_end - (mine - lane) - 1));
            p = by_row ? p + 32 : next;
            q = by_row ? next : q + 32;
        }
        if (lane == 0 && any) {
            val_c[entry] = sum;
            found[entry] = 1;
        }
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
