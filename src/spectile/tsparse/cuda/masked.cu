// Entries of C that a mask names, over a semiring (KIND, its code: 0 plus_times, 1 min_plus, 2 max_plus, 3 max_min; 4 counts products).
//
//   count_met    products of each row of the mask that has entries, and of all
//   list_pieces  cuts the rows of the mask into pieces of MASK_PIECE entries at most, of as many products as leave all warps of the
//                device some pieces; of a row whose products are far more than its entries each is a piece, and searched for in
//                B's rows
//   fill         pieces, as they are taken, by a warp each:  a table of its columns;  for k in A's row, in order; for each entry
//                (j, b) of B's row k, where the table holds j:  c_j += a b;  or where B's row k is far longer than the piece, for each
//                of its columns that is found there.  Counts are added in whatever order: first by blocks, which have larger pieces;
//                a hub row's entries of A are shared by several
//   number       how many entries some product fell on, up to and with each
//   compact      these
//
// Nothing waits for the host before C is allocated.  Where the check of the factors found something, there are no pieces.
// Invariant: products are added in the order of k, with the bits that the kernels of the rows method give.

#include "search.cuh"
#include "shared.cuh"

namespace {

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

constexpr int TABLE = 8 * MASK_PIECE, AHEAD = 4, BLOCK_WARPS = KIND == 4 ? COUNTING_WARPS : MASK_WARPS;
constexpr bool ORDERED = KIND != 4;

#if KIND == 4
// With a count in each slot.
struct Piece : Table {
    int* counts;

    __device__ __forceinline__ void clear(int slot) { keys[slot] = -1, counts[slot] = 0; }
    __device__ __forceinline__ void hold(int, int column) { insert(column); }
    __device__ __forceinline__ int find(int column) const { return slot_of(column); }
    __device__ __forceinline__ void add(int slot, VALUE, VALUE) { atomicAdd(&counts[slot], 1); }
};
#else
// With the place of each column and its sum, made in order.
struct Piece : Table {
    unsigned char *places, *met;
    VALUE* sums;

    __device__ __forceinline__ void clear(int slot) { keys[slot] = -1; }
    __device__ __forceinline__ void hold(int e, int column) { places[insert(column)] = (unsigned char)e; }
    __device__ __forceinline__ int find(int column) const {
        const int slot = slot_of(column);
        return slot < 0 ? -1 : places[slot];
    }
    // The first product of an entry replaces what stands there; what is no number stays.
    __device__ __forceinline__ void add(int place, VALUE a, VALUE b) {
#if KIND == 0
        sums[place] = add_product(a, b, met[place] ? sums[place] : VALUE(0));
#else
        const VALUE product = KIND < 3 ? a + b : b < a || b != b ? b : a, old = sums[place];
        const bool better = KIND == 1 ? product < old : product > old;
        sums[place] = !met[place] || better || product != product ? product : old;
#endif
        met[place] = 1;
    }
};
#endif

// The mask's columns, and its values: `reals` numbers of so many `words` each, or where that is 0 a byte.
struct Mask {
    const int *ptr, *idx;
    const u32* values;
    int words, reals;

    // Whether an entry is not 0; all count where no values are given.
    __device__ __forceinline__ bool holds(int e) const {
        if (values == nullptr) return true;
        if (words == 0) return ((const unsigned char*)values)[e];
        const u32* own = values + (long long)e * words * reals;
        u32 bits = 0;
        for (int w = 1; w <= words * reals; ++w) bits |= own[w - 1] << (w % words == 0);  // without the sign
        return bits;
    }
};

__device__ __forceinline__ VALUE value_at(const VALUE* values, int at) { return KIND == 4 ? VALUE(1) : values[at]; }

// Of AHEAD entries of B, those at `from` that are not negative, the places in a piece, or -1, and the values.
struct Met {
    int places[AHEAD];
    VALUE values[AHEAD];

    __device__ __forceinline__ Met(const Piece& piece, const int (&from)[AHEAD], const int* idx_b, const VALUE* val_b) {
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) places[c] = from[c] < 0 ? -1 : idx_b[from[c]];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) places[c] = places[c] < 0 ? -1 : piece.find(places[c]);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) values[c] = places[c] < 0 ? VALUE(0) : value_at(val_b, from[c]);
    }
};

// Sums of the products with some rows of B, a lane's from `first` to `last`, each after the other by all lanes.
__device__ __forceinline__ void add_long(Piece& piece, int rows, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b,
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
            if (ORDERED) __syncwarp();
        }
    }
}

// The same where these rows are short: all their products side by side, and those that the mask holds row after row.
__device__ __forceinline__ void add_short(Piece& piece, int first, int last, VALUE factor, const int* idx_b, const VALUE* val_b, int lane) {
    const int upto = prefix_scan<32>(last - first, lane, ALL), before = upto - (last - first), total = __shfl_sync(ALL, upto, 31);
    for (int base = 0; base < total; base += 32 * AHEAD) {
        int owners[AHEAD], from[AHEAD];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const int t = base + 32 * c + lane;
            const int owner = owners[c] = last_lane(before, t);  // whose products begin no later
            const int at = __shfl_sync(ALL, first, owner) + t - __shfl_sync(ALL, before, owner);
            from[c] = t < total ? at : -1;
        }
        const Met met(piece, from, idx_b, val_b);
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            const VALUE a = __shfl_sync(ALL, factor, owners[c]);
            if (!ORDERED && met.places[c] >= 0) piece.add(met.places[c], a, met.values[c]);
            // Those of one entry in the order of lanes, which is that of k.
            const u32 same = ORDERED ? __match_any_sync(ALL, met.places[c]) : 0;
            const int turn = __popc(same & ((1u << lane) - 1u));
            const int turns = ORDERED ? __reduce_max_sync(ALL, met.places[c] < 0 ? -1 : turn) : -1;
            for (int k = 0; k <= turns; ++k) {
                if (met.places[c] >= 0 && turn == k) piece.add(met.places[c], a, met.values[c]);
                __syncwarp();
            }
        }
    }
}

// The same of one row of B, in which the columns of a piece are searched for.
__device__ __forceinline__ void add_searched(Piece& piece, const int* columns, int n, int first, int last, VALUE factor, const int* idx_b,
                                             const VALUE* val_b, int lane) {
    for (int e = lane; e < n; e += 32) {
        const int at = place_from(idx_b, first, last, columns[e]),
                  place = at < last && idx_b[at] == columns[e] ? piece.find(columns[e]) : -1;
        if (place >= 0) piece.add(place, factor, value_at(val_b, at));
    }
    if (ORDERED) __syncwarp();
}

// Sums of the products of entries of A from `begin` to `end`, so many `at_once` of each `stride`, with the n columns of a piece.  Rows of
// B that are far longer are not walked.
__device__ __forceinline__ void add_rows(Piece& piece, int begin, int end, int at_once, int stride, bool whole, const int* columns, int n,
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
            const int next = ORDERED && left ? __ffs(left) - 1 : 32;
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

// Fills a piece of WARPS warps, or counts one of its parts.
template <int WARPS>
__device__ __forceinline__ void fill_piece(int4 which, Piece piece, const Mask& mask, const int* ptr_a, const int* idx_a,
                                           const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b, VALUE* val_c,
                                           unsigned char* found) {
    constexpr int THREADS = 32 * WARPS;
    const auto wait = [] {
        if (WARPS > 1) __syncthreads();
        else __syncwarp();
    };
    const int t = threadIdx.x & (THREADS - 1), row = which.x, begin = which.y, n = which.z - begin;
    const int part = which.w >> 16, parts = max(which.w & 0xffff, 1);
    while ((1 << piece.log) < (WARPS > 1 ? 4 : 8) * n) ++piece.log;
    for (int slot = t; slot < 1 << piece.log; slot += THREADS) piece.clear(slot);
#if KIND < 4
    for (int e = t; e < n; e += THREADS) piece.met[e] = 0;
#endif
    wait();
    for (int e = t; e < n; e += THREADS)
        if (mask.holds(begin + e)) piece.hold(e, mask.idx[begin + e]);
    wait();
    const bool whole = which.w && n == mask.ptr[row + 1] - mask.ptr[row];
    const long long length = ptr_a[row + 1] - ptr_a[row];
    const int from = ptr_a[row] + int(length * part / parts), to = ptr_a[row] + int(length * (part + 1) / parts);
    const int at_once = min(max((to - from + WARPS - 1) / WARPS, 4), 32);  // so that all warps have some
    add_rows(piece, from + (t >> 5) * at_once, to, at_once, WARPS * at_once, whole, mask.idx + begin, n, idx_a, val_a, ptr_b, idx_b, val_b,
             t & 31);
    wait();
    for (int e = t; e < n; e += THREADS) {
#if KIND == 4
        const int slot = mask.holds(begin + e) ? piece.slot_of(mask.idx[begin + e]) : -1, products = slot < 0 ? 0 : piece.counts[slot];
        if (products == 0) continue;
        using Real = Parts<VALUE>::Real;
        if (parts > 1) atomicAdd((Real*)&val_c[begin + e], Real(products));
        else val_c[begin + e] = VALUE(products);
#else
        if (!piece.met[e]) continue;
        val_c[begin + e] = piece.sums[e];
#endif
        found[begin + e] = 1;
    }
    wait();
}

}  // namespace

// Of each row of A the products with B, where the mask has entries.
extern "C" __global__ void __launch_bounds__(256) count_met(int rows, const int* ptr_m, const int* ptr_a, const int* idx_a,
                                                            const int* ptr_b, u64* met, int* head) {
    if (invalid(head)) return;
    const int stride = gridDim.x * blockDim.x, end = ptr_a[rows];
    u64 own = 0, all;
    for (long long p = ptr_a[0] + blockIdx.x * blockDim.x + threadIdx.x; p < end; p += stride) {
        const int row = last_at(ptr_a, 0, rows - 1, u32(p));
        if (ptr_m[row] == ptr_m[row + 1]) continue;
        const int length = ptr_b[idx_a[p] + 1] - ptr_b[idx_a[p]];
        atomicAdd(&met[row], u64(length));
        own += length;
    }
    scan_block(own, all);
    if (threadIdx.x == 0 && all) atomicAdd((u64*)&head[PRODUCTS], all);
}

// `met` are the products of each row; `warps` are at work.
extern "C" __global__ void __launch_bounds__(256) list_pieces(int rows, int warps, const u64* met, const int* ptr_a, const int* ptr_m,
                                                              int4* pieces, int* head) {
    if (invalid(head)) return;
    const int row = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    const u64 fair = max(*(const u64*)&head[PRODUCTS] / (MASK_SHARES * u64(warps)), u64(MASK_LEAST));
    int count = 0, parts = 1, begin = 0, entries = 0;
    bool large = false, searched = false;
    if (row < rows) {
        begin = ptr_m[row], entries = ptr_m[row + 1] - begin;
        if (const u64 all = entries ? met[row] : 0) {
            // Each piece is searched for in all rows of B that are met: where sums have an order, for a quarter of its products at most.
            const u64 each = MASK_SEARCH * u64(ptr_a[row + 1] - ptr_a[row]);
            const u64 of_warp = min(max(fair, (ORDERED ? 4 : 1) * each), u64(MASK_PRODUCTS));
            large = KIND == 4 && (entries > MASK_PIECE || all > of_warp);
            searched = !large && entries * each < all;
            const u64 most = large ? MASK_BLOCK : MASK_PIECE;
            const u64 products = large ? min(BLOCK_WARPS * fair, u64(MASK_BLOCK_PRODUCTS)) : of_warp;
            const u64 least = (entries + most - 1) / most, wanted = min((all + products - 1) / products, u64(entries));
            // A block's pieces share columns or A's entries: of the latter each has an equal part of its columns.
            if (large) parts = int(max(u64(1), wanted / least));
            count = searched ? entries : large ? int(least) * parts : int(max(least, wanted));
        }
    }
    const int small = large ? 0 : count, upto = prefix_scan<32>(count, lane, ALL), upto_small = prefix_scan<32>(small, lane, ALL);
    int before = 0, before_small = 0;
    if (lane == 31 && upto_small) before_small = atomicAdd(&head[MASK_PIECES], upto_small);
    if (lane == 31 && upto > upto_small) before = atomicAdd(&head[MASK_PIECES + 1], upto - upto_small);
    before_small = __shfl_sync(ALL, before_small, 31) + upto_small - small;
    before = __shfl_sync(ALL, before, 31) + upto - upto_small - (count - small);
    const int place_of_first = large ? ptr_m[rows] - 1 - before : before_small;
    // All lanes list the pieces of each.
    for (int base = 0, total = __shfl_sync(ALL, upto, 31); base < total; base += 32) {
        const int owner = last_lane(upto - count, base + lane), n = base + lane - __shfl_sync(ALL, upto - count, owner);
        const auto its = [&](int value) { return __shfl_sync(ALL, value, owner); };
        const int its_row = its(row), first = its(begin), of_all = its(parts), columns = its(count) / of_all, of = n / of_all;
        const long long length = its(entries);
        const int place = its(place_of_first), is_large = its(large), is_whole = its(!searched);
        if (base + lane < total)
            pieces[is_large ? place - n : place + n] =
                make_int4(its_row, first + int(length * of / columns), first + int(length * (of + 1) / columns),
                          is_large ? n % of_all << 16 | of_all : is_whole);
    }
}

// Pieces for blocks stand at the end of the list.  Counts are 0 before.
extern "C" __global__ void __launch_bounds__(32 * BLOCK_WARPS, KIND == 4 ? COUNTING_BLOCKS : MASK_BLOCKS - (sizeof(VALUE) > 8)) fill(
    int entries, int words, int reals, const int4* pieces, const int* ptr_m, const int* idx_m, const u32* held, const int* ptr_a,
    const int* idx_a, const VALUE* val_a, const int* ptr_b, const int* idx_b, const VALUE* val_b, VALUE* val_c, unsigned char* found,
    int* head) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Mask mask = {ptr_m, idx_m, held, words, reals};
#if KIND == 4
    constexpr int SLOTS = 4 * MASK_BLOCK > TABLE * BLOCK_WARPS ? 4 * MASK_BLOCK : TABLE * BLOCK_WARPS;
    __shared__ int s_keys[SLOTS], s_counts[SLOTS], s_item;
    for (const int count = head[MASK_PIECES + 1]; count;) {
        if (threadIdx.x == 0) s_item = atomicAdd(&head[MASK_TAKEN + 1], 1);
        __syncthreads();
        if (s_item >= count) break;
        const Piece piece = {{s_keys, 5}, s_counts};
        fill_piece<BLOCK_WARPS>(pieces[entries - 1 - s_item], piece, mask, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, val_c, found);
    }
    const Piece own = {{s_keys + warp * TABLE, 5}, s_counts + warp * TABLE};
#else
    __shared__ int s_keys[BLOCK_WARPS][TABLE];
    __shared__ unsigned char s_places[BLOCK_WARPS][TABLE], s_met[BLOCK_WARPS][MASK_PIECE];
    __shared__ VALUE s_sums[BLOCK_WARPS][MASK_PIECE];
    const Piece own = {{s_keys[warp], 5}, s_places[warp], s_met[warp], s_sums[warp]};
#endif
    // Several at a time where there are many, and then far apart: those of a long row follow each other.
    const u32 count = head[MASK_PIECES], apart = min(count, MASK_TURNS * BLOCK_WARPS * gridDim.x);
    for (u32 item = count;; item += apart) {
        if (item >= count) {
            if (lane == 0) item = atomicAdd((u32*)&head[MASK_TAKEN], 1u);
            item = __shfl_sync(ALL, item, 0);
            if (item >= apart) break;
        }
        fill_piece<1>(pieces[item], own, mask, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, val_c, found);
    }
}

// How many of the entries up to and with each are found, by a single-pass scan (`look_back`); bytes beyond the last are 0.
extern "C" __global__ void __launch_bounds__(256) number(int entries, const u64* found, int* upto, int* head, u64* state) {
    __shared__ int s_ticket;
    if (threadIdx.x == 0) s_ticket = atomicAdd(&head[TICKET], 1);
    __syncthreads();
    const int ticket = s_ticket, first = ticket * SCAN_ROWS + threadIdx.x * 8;
    const u64 bytes = first < entries ? found[first / 8] : 0;
    u64 all, before = scan_block(bytes * 0x0101010101010101ull >> 56, all);
    before += sum_before(ticket, all, state);
    for (int i = 0; i < 8 && first + i < entries; ++i) upto[first + i] = int(before += bytes >> 8 * i & 1);
    if (first < entries && first + 8 >= entries) *(u64*)&head[ENTRIES] = before;
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
