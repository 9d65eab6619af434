// Columns and values of long rows with a wide window: bitmap of the window in shared memory, one block per row.
//
//   for each part of the window, all of it where it fits:
//       set the bit of each product's column;  before[w] = entries before word w;  write the columns
//       for k in A's row, in order, with a barrier after each:
//           for each entry (j, b) of B's row k in the part, a thread each:  sums[before[j / 32] + bits below j] += a b
//
// Where a window has several words for each entry (SPARSE), a coarse bitmap says which words have bits, and only these are held.
//
// Where rows of B are short a thread takes a product, whatever row of B it is of:  warps claim the sums that they add to, the
// first of each wins and adds its products one after the other, and the others claim again, until none is left.
//
// Sums are in shared memory where all of the row is (WHOLE), else in C.  There `parts` blocks may share a row, a part each, by the
// order of tickets: each tells how many entries its part holds, and waits for those before it.  Of `listed` entries of A at
// most, behind the bitmap, it lists those whose rows of B have a column in its part, and walks through these.  With REUSE the columns are known,
// and the values alone are made.
// Invariant: columns of one row of B are distinct, so between two barriers no two threads add to one sum; of the products of
// one sum the first in the order of k is always added first.

#include "rows/rows.cuh"
#include "search.cuh"

namespace {

// So many blocks find their registers on a multiprocessor.
constexpr int RESIDENT = (sizeof(VALUE) > 8 ? 512 : 1024) / BLOCK_THREADS;

// Write how many entries lie before each word, and return how many the words hold; every
// thread sums a run of words (an odd number, so that banks do not collide).
template <int THREADS>
__device__ __forceinline__ int rank_words(Word* words, int used) {
    const int t = threadIdx.x, run = ((used + THREADS - 1) / THREADS) | 1, from = min(t * run, used), to = min(from + run, used);
    int sum = 0, held;
    for (int w = from; w < to; ++w) sum += __popc(words[w].bits);
    int before = scan_block<THREADS>(sum, held);
    for (int w = from; w < to; ++w) {
        words[w].before = before;
        before += __popc(words[w].bits);
    }
    __syncthreads();
    return held;
}

__device__ __forceinline__ void write_columns(Word word, int column, int* columns) {
    int* at = columns + word.before;
    for (u32 bits = word.bits; bits; bits &= bits - 1) *at++ = column + __ffs(bits) - 1;
}

// List the entries of A whose rows of B have one of 32 `used` columns from `start` on, in their order and `most` of them, and return
// how many there are; more than `most` are not all counted.  Each thread looks at several, whose loads are in flight together.
template <int THREADS>
__device__ __forceinline__ int list_entries(int begin, int end, const int* idx_a, const int* ptr_b, const int* idx_b, int start, int used,
                                            int* list, int most) {
    constexpr int EACH = 4;
    const int t = threadIdx.x;
    const long long stop = start + 32ll * used;
    int many = 0;
    for (int base = begin; base < end && many <= most; base += min(EACH * THREADS, end - base)) {
        int first[EACH], high[EACH], last[EACH];
#pragma unroll
        for (int d = 0; d < EACH; ++d) {
            const Met met = base + (long long)(EACH * t + d) < end ? row_met(base + EACH * t + d, end, idx_a, ptr_b) : Met();
            first[d] = met.first, high[d] = last[d] = met.last;
        }
        for (bool searching = true; searching;) {
            searching = false;
#pragma unroll
            for (int d = 0; d < EACH; ++d) {
                if (first[d] >= high[d]) continue;
                const int middle = first[d] + (high[d] - first[d]) / 2;
                if (idx_b[middle] < start) first[d] = middle + 1;
                else high[d] = middle;
                searching |= first[d] < high[d];
            }
        }
        int own = 0, found;
#pragma unroll
        for (int d = 0; d < EACH; ++d) own += first[d] < last[d] && idx_b[first[d]] < stop ? 1 << 8 * d : 0;
        int at = many + scan_block<THREADS>(__popc(own), found);
#pragma unroll
        for (int d = 0; d < EACH; ++d) {
            if (!(own >> 8 * d & 1)) continue;
            if (at < most) list[at] = base + EACH * t + d;
            ++at;
        }
        many += found;
        __syncthreads();
    }
    return many;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, RESIDENT) NAME(int count, int log, int capacity, const int* list,
                                                                           const int* ptr_a, const int* idx_a, const STORED* val_a,
                                                                           const int* ptr_b, const int* idx_b, const STORED* val_b,
                                                                           const int* low, const int* span, const int* ptr_c, int* idx_c,
                                                                           STORED* val_c, int parts, int* states, int listed) {
    constexpr int THREADS = BLOCK_THREADS, CLAIMS = 2 * THREADS;
    extern __shared__ u64 shared[];
    __shared__ int s_first[THREADS], s_last[THREADS];
    __shared__ u32 s_claims[CLAIMS];
    __shared__ VALUE s_factor[THREADS];
    const int t = threadIdx.x, width = 1 << log;
    for (int item = blockIdx.x; item < count * parts; item += gridDim.x) {
        int number = item;
#if !WHOLE
        __shared__ int s_ticket;
        if (parts > 1) {
            if (t == 0) s_ticket = atomicAdd(states, 1);
            __syncthreads();
            number = s_ticket;
        }
#endif
        const int row = list[number % count], all = words_of(span[row]), out = ptr_c[row], step = WHOLE ? all : capacity;
        const int n = ptr_c[row + 1] - out, begin = ptr_a[row], end = ptr_a[row + 1];
        const int from = number / count * step, to = parts > 1 ? min(from + step, all) : all;
        for (int part = from, done = 0; part < to; part += step) {
            Word* const coarse = (Word*)shared;
            Word* const words = coarse + (SPARSE ? (all + 31) / 32 : 0);
            const int start = low[row] + 32 * part;
            int used = min(all - part, step);
            const auto within = [&](int column) { return WHOLE || u32(column - start) < 32u * used; };
            // The entries of A that are walked through: all, or those that are listed.
            int walk = begin, walked = end;
            const int* list_a = nullptr;
#if !WHOLE
            if (listed) {
                int* const found = (int*)(words + capacity);
                const int many = list_entries<THREADS>(begin, end, idx_a, ptr_b, idx_b, start, used, found, listed);
                if (many <= listed) walk = 0, walked = many, list_a = found;
            }
#endif
            const auto entry_at = [&](int i) { return list_a ? list_a[i] : i; };
            const auto met_at = [&](int i) { return i < walked ? row_met(entry_at(i), end, idx_a, ptr_b) : Met(); };
            const auto word_at = [&](int offset) { return SPARSE ? place_of(coarse, offset >> 5) : offset >> 5; };
            // Sets the bit of each column of the part, more than once perhaps: of its word, or of the word that holds it.
            const auto set_here = [&](bool of_words) {
                const auto set = [&](int offset) {
                    if (of_words) set_bit(&coarse[offset >> 10].bits, offset >> 5);
                    else set_bit(&words[word_at(offset)].bits, offset);
                };
#if REUSE
                for (int e = out + t; e < out + n; e += THREADS)
                    if (within(idx_c[e])) set(idx_c[e] - start);
#else
                block_columns<THREADS>(walk, walked, width, met_at, idx_b, s_first, s_last, [&](int column) {
                    if (within(column)) set(column - start);
                });
#endif
                __syncthreads();
            };
            if (SPARSE) {
                for (int w = t; w < (all + 31) / 32; w += THREADS) coarse[w].bits = 0;
                __syncthreads();
                set_here(true);
                used = rank_words<THREADS>(coarse, (all + 31) / 32);
            }
#if WHOLE
            VALUE* const sums = (VALUE*)(words + used);
#else
            STORED* const sums = val_c + out;
#endif
#if WHOLE
            for (int e = t; e < n; e += THREADS) sums[e] = 0;
#endif
            for (int w = t; w < used; w += THREADS) words[w].bits = 0;
            __syncthreads();
            set_here(false);
            const int held = rank_words<THREADS>(words, used);
#if !WHOLE
            if (parts > 1) {
                // The parts of a row have every count-th ticket, and what they tell is above zero.
                volatile int* told = states + 1;
                if (t == 0) told[number] = held + 1;
                int sum = 0;
                for (int before = number - count * (1 + t); before >= 0; before -= count * THREADS) {
                    int seen;
                    do { seen = told[before]; } while (seen == 0);
                    sum += seen - 1;
                }
                scan_block<THREADS>(sum, done);
                __syncthreads();
            }
            for (int e = t; e < held; e += THREADS) sums[done + e] = 0;
#endif
#if !REUSE
            for (int w = t; w < (SPARSE ? (all + 31) / 32 : used); w += THREADS) {
                if (SPARSE) {
                    const Word of = coarse[w];
                    int at = of.before;
                    for (u32 bits = of.bits; bits; bits &= bits - 1)
                        write_columns(words[at++], start + 32 * (32 * w + __ffs(bits) - 1), idx_c + out + done);
                } else write_columns(words[w], start + 32 * w, idx_c + out + done);
            }
#endif
            const auto place_here = [&](int column) {
                const Word word = words[word_at(column - start)];
                return done + word.before + __popc(word.bits & ((1u << (column - start & 31)) - 1u));
            };
            Met met = met_at(walk + t);
            VALUE factor = walk + t < walked ? VALUE(val_a[entry_at(walk + t)]) : VALUE(0);
            for (int base = walk; base < walked; base += THREADS) {
                __syncthreads();
                const int first = WHOLE ? met.first : place_from(idx_b, met.first, met.last, start);
                const int last = WHOLE ? met.last : place_from(idx_b, first, met.last, int(min(start + 32ll * used, 0x7fffffffll)));
                s_factor[t] = factor;
                s_claims[t] = s_claims[t + THREADS] = ALL;
                // Products of the entries of A before, of which long rows of B need not all be counted.
                const int steps = min(THREADS, walked - base), own = min(last - first, 1 << 20);
                int many;
                const int before = scan_block<THREADS>(own, many);
                const bool by_products = many <= SHORT_B * steps;
                s_first[t] = by_products ? first - before : first;
                s_last[t] = by_products ? before : last;
                __syncthreads();
                met = met_at(base + THREADS + t);  // while these are met
                factor = base + THREADS + t < walked ? VALUE(val_a[entry_at(base + THREADS + t)]) : VALUE(0);
                if (by_products) {
                    int column = -1;
                    VALUE a = 0, b = 0;
                    const auto fetch = [&](int i) {
                        column = -1;
                        if (i >= many) return;
                        const int e = last_at(s_last, 0, steps - 1, i), q = s_first[e] + i;
                        column = idx_b[q], a = s_factor[e], b = val_b[q];
                    };
                    fetch(t);
                    u32 claim = ALL / THREADS * THREADS + t;
                    for (int i = t; i - t < many; i += THREADS) {
                        const int place = column < 0 ? -1 : place_here(column);
                        const VALUE left = a, right = b;
                        fetch(i + THREADS);
                        // The first lane of a sum claims it for the others of its warp, who add after it, in order.
                        const u32 same = __match_any_sync(ALL, place), below = same & ((1u << (t & 31)) - 1u);
                        const int turn = __popc(below), before_me = 31 - __clz(below), ahead = (t & 31) - (__ffs(same) - 1);
                        const int turns = __reduce_max_sync(ALL, place < 0 ? 0 : turn);
                        bool open = place >= 0;
                        u32* const wanted = &s_claims[u32(place) % CLAIMS];
                        while (__syncthreads_or(open)) {
                            claim -= THREADS;
                            if (open && turn == 0) atomicMin(wanted, claim);
                            __syncthreads();
                            const bool won = open && *wanted == claim - ahead;
                            if (!__any_sync(ALL, won)) continue;
                            VALUE sum = 0;
                            if (won && turn == 0) sum = add_product(left, right, VALUE(sums[place]));
                            for (int k = 1; k <= turns; ++k) {
                                const VALUE of_last = __shfl_sync(ALL, sum, before_me & 31);
                                if (turn == k) sum = add_product(left, right, of_last);
                            }
                            if (won && (same >> (t & 31)) == 1) sums[place] = sum;
                            if (won) open = false;
                        }
                    }
                    continue;
                }
                int columns[AHEAD];
                VALUE values[AHEAD];
                const auto fetch = [&](int s) {
#pragma unroll
                    for (int d = 0; d < AHEAD; ++d) {
                        const int q = s + d < steps ? s_first[s + d] + t : 0;
                        const bool present = s + d < steps && q < s_last[s + d];
                        columns[d] = present ? idx_b[q] : -1;
                        values[d] = present ? VALUE(val_b[q]) : VALUE(0);
                    }
                };
                fetch(0);
                for (int s = 0; s < steps; s += AHEAD) {
                    int places[AHEAD];
                    VALUE met[AHEAD];
#pragma unroll
                    for (int d = 0; d < AHEAD; ++d) {
                        places[d] = columns[d] >= 0 ? place_here(columns[d]) : -1;
                        met[d] = values[d];
                    }
                    if (s + AHEAD < steps) fetch(s + AHEAD);
#pragma unroll
                    for (int d = 0; d < AHEAD; ++d) {
                        if (s + d >= steps) break;
                        const VALUE a = s_factor[s + d];
                        if (places[d] >= 0) sums[places[d]] = add_product(a, met[d], VALUE(sums[places[d]]));
#pragma unroll 4
                        for (int q = s_first[s + d] + THREADS + t; q < s_last[s + d]; q += THREADS) {
                            const int place = place_here(idx_b[q]);
                            sums[place] = add_product(a, VALUE(val_b[q]), VALUE(sums[place]));
                        }
                        __syncthreads();
                    }
                }
            }
            done += held;
            __syncthreads();
#if WHOLE
            for (int e = t; e < n; e += THREADS) val_c[out + e] = sums[e];
            __syncthreads();
#endif
        }
    }
}
