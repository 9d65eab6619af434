// Inspector of staged/kernel.cu: which pages of V each tile needs, which slot holds each, and the tiles' codes and values.
//
// Three passes (inspector.py): `count_needs` and `list_needs` find the pages of each tile in the order in which its
// entries name them; `link_needs` joins each need to the worker's next one of the same page; `assign_slots` follows
// Belady's rule, a warp for a worker, since each copy depends on those before it; `write_tiles` writes what kernel.cu reads.
// In all but the last but one a warp takes a tile.  `pages` are those of all workers one after the other, worker w's from
// begin[w] on, its tiles from first[w] on.
//
// Set by the launch code: WIDE (64-bit row pointers), BYTES (of a value), THREADS (of a block of tiles).

constexpr int PAGE = 4;
constexpr unsigned ALL = 0xffffffffu;

#if WIDE
typedef long long position;
#else
typedef int position;
#endif
#if BYTES == 16
typedef uint4 item;
#elif BYTES == 8
typedef uint2 item;
#else
typedef unsigned item;
#endif

// The last w with first[w] <= tile: workers without tiles have the same first as the next.
static __device__ int worker_of(const int* first, int workers, int tile) {
    int low = 0, high = workers;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= tile) low = middle;
        else high = middle;
    }
    return low;
}

// A set of pages in shared memory, open addressing; -1 is an empty place.
static __device__ unsigned place_of(int page, unsigned mask) { return (unsigned(page) * 2654435761u >> 16) & mask; }

// Return the page's place, and whether it is new there.
static __device__ bool insert(int* set, unsigned mask, int page, unsigned& place) {
    for (place = place_of(page, mask);; place = (place + 1) & mask) {
        const int old = atomicCAS(set + place, -1, page);
        if (old == -1 || old == page) return old == -1;
    }
}

// Entries of the longest of a page's rows; lanes 0 to 3 get the bounds of their row.
static __device__ int longest_row(const position* indptr, long long rows, int page, int lane, position& from, position& to) {
    const long long row = (long long)page * PAGE + lane;
    from = to = 0;
    if (lane < PAGE && row < rows) from = indptr[row], to = indptr[row + 1];
    return __reduce_max_sync(ALL, int(to - from));
}

template <bool LIST>
static __device__ void needs(const position* indptr, const int* indices, long long rows, const int* pages, const int* begin,
                             const int* first, int workers, int tiles, int tile, int slots, unsigned mask, long long* counts,
                             const long long* start, long long* keys, int* needed, int* tile_of, int* failed) {
    extern __shared__ int shared[];
    const int lane = threadIdx.x % 32, t = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (t >= tiles) return;
    int* const set = shared + (threadIdx.x / 32) * (mask + 1);
    for (unsigned n = lane; n <= mask; n += 32) set[n] = -1;
    __syncwarp();
    const int worker = worker_of(first, workers, t), n_begin = begin[worker] + (t - first[worker]) * tile;
    const int n_end = min(n_begin + tile, begin[worker + 1]);
    long long count = 0, quads = 0, lengths = 0;
    for (int n = n_begin; n < n_end; ++n) {
        const int page = pages[n];
        const position from = indptr[(long long)page * PAGE];
        const int entries = int(indptr[min(rows, (long long)page * PAGE + PAGE)] - from);
        // The page itself, then those that its rows name.
        for (int base = 0; base <= entries; base += 32) {
            const int k = base + lane;
            const int other = k > entries ? -1 : k == 0 ? page : indices[from + k - 1] / PAGE;
            const unsigned same = __match_any_sync(ALL, other);
            unsigned place;
            const bool fresh = other >= 0 && (same & ((1u << lane) - 1)) == 0 && insert(set, mask, other, place);
            const unsigned news = __ballot_sync(ALL, fresh);
            if (LIST && fresh) {
                const long long at = start[t] + count + __popc(news & ((1u << lane) - 1));
                keys[at] = (long long)other << 32 | at;
                needed[at] = other, tile_of[at] = t;
            }
            count += __popc(news);
            if (count > slots) {  // more than the slots hold
                if (lane == 0) *failed = 1;
                return;
            }
        }
        if (!LIST) {
            position row_from, row_to;
            const int length = longest_row(indptr, rows, page, lane, row_from, row_to);
            quads += (length + 3) / 4, lengths += length;
        }
    }
    if (!LIST && lane == 0) {
        counts[t + 1] = count;
        counts[tiles + 1 + t + 1] = tile + 2 * quads;
        counts[2 * (tiles + 1ll) + t + 1] = lengths;
    }
}

// counts: three rows of (tiles + 1): needs, 16 bytes of codes and four values of each tile, from the second number on.
extern "C" __global__ void __launch_bounds__(THREADS) count_needs(const position* __restrict__ indptr, const int* __restrict__ indices,
                                                                  long long rows, const int* __restrict__ pages,
                                                                  const int* __restrict__ begin, const int* __restrict__ first, int workers,
                                                                  int tiles, int tile, int slots, unsigned mask,
                                                                  long long* __restrict__ counts, int* __restrict__ failed) {
    needs<false>(indptr, indices, rows, pages, begin, first, workers, tiles, tile, slots, mask, counts, nullptr, nullptr, nullptr, nullptr,
                 failed);
}

// keys: page and number of each need, to be sorted.
extern "C" __global__ void __launch_bounds__(THREADS) list_needs(const position* __restrict__ indptr, const int* __restrict__ indices,
                                                                 long long rows, const int* __restrict__ pages,
                                                                 const int* __restrict__ begin, const int* __restrict__ first, int workers,
                                                                 int tiles, int tile, int slots, unsigned mask,
                                                                 const long long* __restrict__ start, long long* __restrict__ keys,
                                                                 int* __restrict__ needed, int* __restrict__ tile_of,
                                                                 int* __restrict__ failed) {
    needs<true>(indptr, indices, rows, pages, begin, first, workers, tiles, tile, slots, mask, nullptr, start, keys, needed, tile_of,
                failed);
}

// next_use: the worker's tile that needs the page next, its number of tiles if none does; previous: the need before, or -1.
extern "C" __global__ void link_needs(const long long* __restrict__ keys, int count, const int* __restrict__ tile_of,
                                      const int* __restrict__ first, int workers, int* __restrict__ next_use, int* __restrict__ previous) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= count) return;
    const long long key = keys[n], after = n + 1 < count ? keys[n + 1] : -1, before = n > 0 ? keys[n - 1] : -1;
    const int need = int(key), worker = worker_of(first, workers, tile_of[need]);
    const int next = int(after), last = int(before);
    const bool again = after >> 32 == key >> 32 && tile_of[next] < first[worker + 1];
    const bool known = before >> 32 == key >> 32 && tile_of[last] >= first[worker];
    next_use[need] = (again ? tile_of[next] : first[worker + 1]) - first[worker];
    previous[need] = known ? last : -1;
}

// Lanes hold HELD slots each.
template <int HELD>
static __device__ __forceinline__ void assign(const long long* start, const int* needed, const int* next_use, const int* previous,
                                              const int* first, int slots, int depth, int last_page, int* slot_of_need, int2* loads,
                                              long long* counts, int4* table, int* failed) {
    extern __shared__ int shared[];
    int *const page_in = shared, *const next_of = page_in + slots, *const last_of = next_of + slots;
    // A tile's needs that are in no slot: their numbers, pages, and next uses.
    int *const missing = last_of + slots, *const missing_page = missing + slots, *const missing_next = missing_page + slots;
    const int lane = threadIdx.x, begin = first[blockIdx.x], tiles = first[blockIdx.x + 1] - begin;
    for (int slot = lane; slot < slots; slot += 32) page_in[slot] = -1, next_of[slot] = tiles, last_of[slot] = -depth;
    __syncwarp();
    // All that is read of a tile's first needs is on its way while the tile before it is done, where they end before that.
    struct Need {
        int before, page, next;
    };
    auto read = [&](long long need, long long to) {
        return need < to ? Need{previous[need], needed[need], next_use[need]} : Need{-1, -1, 0};
    };
    auto end_of = [&](int t) { return start[begin + min(t + 1, tiles)]; };
    long long from = start[begin], load = from, to = end_of(0), after = end_of(1);
    Need now = read(from + lane, to);
    for (int t = 0; t < tiles; ++t) {
        const long long beyond = end_of(t + 2);
        const Need then = read(to + lane, after);
        int misses = 0;
        for (long long base = from; base < to; base += 32) {
            const long long need = base + lane;
            if (base > from) now = read(need, to);
            bool missed = false;
            if (need < to) {
                const int slot = now.before < 0 ? -1 : slot_of_need[now.before];
                missed = slot < 0 || page_in[slot] != now.page;
                if (!missed) next_of[slot] = now.next, last_of[slot] = t, slot_of_need[need] = slot;
            }
            const unsigned all = __ballot_sync(ALL, missed);
            const int place = misses + __popc(all & ((1u << lane) - 1));
            if (missed) missing[place] = int(need), missing_page[place] = now.page, missing_next[place] = now.next;
            misses += __popc(all);
        }
        __syncwarp();
        // The slots that no tile in flight reads, in the order in which they are taken: those whose page is needed last,
        // of these the first.
        int order[HELD];
#pragma unroll
        for (int n = 0; n < HELD; ++n) {
            const int slot = lane + 32 * n;
            order[n] = slot < slots && last_of[slot] <= t - depth ? next_of[slot] * slots + slots - 1 - slot : -1;
        }
        __syncwarp();
        for (int base = 0; base < misses; base += 32) {
            const int count = min(32, misses - base);
            int mine = -1;
            for (int m = 0; m < count; ++m) {
                int top = -1;
#pragma unroll
                for (int n = 0; n < HELD; ++n) top = max(top, order[n]);
                top = __reduce_max_sync(ALL, top);
                if (top < 0) {
                    if (lane == 0) *failed = 1;
                    return;
                }
#pragma unroll
                for (int n = 0; n < HELD; ++n)
                    if (order[n] == top) order[n] = -1;
                if (lane == m) mine = top;
            }
            if (lane < count) {
                const int m = base + lane, slot = slots - 1 - mine % slots, page = missing_page[m];
                page_in[slot] = page, next_of[slot] = missing_next[m], last_of[slot] = t;
                slot_of_need[missing[m]] = slot;
                loads[load + m] = make_int2(page, slot);
                if (page == last_page) table[begin + t].w = 1;
            }
        }
        __syncwarp();
        if (lane == 0) counts[begin + t + 1] = misses;
        load += misses, from = to, to = after, after = beyond, now = then;
    }
}

// A warp for each worker.  loads: {page, slot} of each copy, a worker's from its first need on; counts: copies of each
// tile from the second number on; table: the tiles as kernel.cu reads them, of which this sets the last column.  A
// worker's tiles times the slots, of which there are 512 at most, are a number of 31 bits.
extern "C" __global__ void __launch_bounds__(32) assign_slots(const long long* __restrict__ start, const int* __restrict__ needed,
                                                              const int* __restrict__ next_use, const int* __restrict__ previous,
                                                              const int* __restrict__ first, int slots, int depth, int last_page,
                                                              int* slot_of_need, int2* __restrict__ loads, long long* __restrict__ counts,
                                                              int4* __restrict__ table, int* __restrict__ failed) {
    if (slots <= 128)
        assign<4>(start, needed, next_use, previous, first, slots, depth, last_page, slot_of_need, loads, counts, table, failed);
    else assign<16>(start, needed, next_use, previous, first, slots, depth, last_page, slot_of_need, loads, counts, table, failed);
}

// loads: those of all tiles one after the other, from `copies`, which assign_slots wrote.
extern "C" __global__ void __launch_bounds__(THREADS) write_tiles(
    const position* __restrict__ indptr, const int* __restrict__ indices, const item* __restrict__ data, long long rows,
    const int* __restrict__ pages, const int* __restrict__ begin, const int* __restrict__ first, int workers, int tiles, int tile,
    int groups, unsigned mask, const long long* __restrict__ start, const int* __restrict__ needed, const int* __restrict__ slot_of_need,
    const long long* __restrict__ load_start, const long long* __restrict__ code_start, const long long* __restrict__ value_start,
    const int2* __restrict__ copies, int4* __restrict__ table, int2* __restrict__ loads, uint4* __restrict__ codes,
    item* __restrict__ values) {
    extern __shared__ int shared[];
    const int lane = threadIdx.x % 32, t = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (t >= tiles) return;
    int *const set = shared + 2 * (threadIdx.x / 32) * (mask + 1), *const slot_at = set + mask + 1;
    for (unsigned n = lane; n <= mask; n += 32) set[n] = -1;
    __syncwarp();
    for (long long need = start[t] + lane; need < start[t + 1]; need += 32) {
        unsigned place;
        insert(set, mask, needed[need], place);
        slot_at[place] = slot_of_need[need];
    }
    __syncwarp();
    auto code_of = [&](int page) {
        unsigned place = place_of(page, mask);
        while (set[place] != page) place = (place + 1) & mask;
        return slot_at[place] * PAGE;
    };
    const int worker = worker_of(first, workers, t);
    const long long from_copy = start[first[worker]] + load_start[t] - load_start[first[worker]];
    const int num_copies = int(load_start[t + 1] - load_start[t]);
    for (int n = lane; n < num_copies; n += 32) loads[load_start[t] + n] = copies[from_copy + n];
    if (lane < 2 && (lane == 0 || t == tiles - 1)) {
        table[t + lane].x = int(load_start[t + lane]);
        table[t + lane].y = int(code_start[t + lane]);
        table[t + lane].z = int(value_start[t + lane]);
    }

    const int n_begin = begin[worker] + (t - first[worker]) * tile, n_end = begin[worker + 1];
    uint4* const head = codes + code_start[t];
    unsigned short* const words = reinterpret_cast<unsigned short*>(head);
    item* const target = values + PAGE * value_start[t];
    int at = 8 * tile, value = 0;  // words of codes, and four values
    for (int n = 0; n < tile; ++n) {
        if (n_begin + n >= n_end) {
            if (lane == 0) head[n] = make_uint4(ALL, 0, 0, 0);
            continue;
        }
        const int page = pages[n_begin + n], own = code_of(page);
        position row_from, row_to;
        const int length = longest_row(indptr, rows, page, lane, row_from, row_to);
        if (lane == 0) {
            const int later = n_begin + groups * tile + n;
            const unsigned next = later < n_end ? unsigned(pages[later]) : ALL;
            head[n] = make_uint4(unsigned(page), unsigned(own) | unsigned(length) << 16, unsigned(at / 4) | unsigned(value) << 16, next);
        }
        const int places = (length + 3) / 4 * 16;
        for (int base = 0; base < places; base += 32) {
            const int q = base + lane, r = q / 4 % PAGE, k = q / 16 * 4 + q % 4;
            const position entry = __shfl_sync(ALL, row_from, r) + k, end = __shfl_sync(ALL, row_to, r);
            if (q >= places) continue;
            const bool stored = entry < end;
            int code = own + r;
            if (stored) code = code_of(indices[entry] / PAGE) + indices[entry] % PAGE;
            words[at + q] = (unsigned short)code;
            if (k < length) target[PAGE * (value + k) + r] = stored ? data[entry] : item{};
        }
        at += places, value += length;
    }
}
