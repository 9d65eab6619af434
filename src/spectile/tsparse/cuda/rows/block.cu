// Columns and values of long rows with a wide window: bitmap of the window in shared memory, one block per row.
// With REUSE the columns are known, and the values alone are made.
//
//   for each part of the window, all of it where it fits:
//       set the bit of each product's column;  before[w] = entries before word w;  write the columns
//       for k in A's row, in order, with a barrier after each:
//           for each entry (j, b) of B's row k in the part, a thread each:  sums[before[j / 32] + bits below j] += a b
//
// Where rows of B are short (`by_warps`) each warp meets all products and adds those of its own share of the part, so that no
// block waits after each k.
//
// Sums are in shared memory where all of the row is (WHOLE), else in C.
// Invariant: columns of one row of B are distinct, so between two barriers no two threads add to one sum.

#include "rows/rows.cuh"
#include "search.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) NAME(int count, int log, int by_warps, int capacity, const int* list,
                                                                 const int* ptr_a, const int* idx_a, const STORED* val_a, const int* ptr_b,
                                                                 const int* idx_b, const STORED* val_b, const int* low, const int* span,
                                                                 const int* ptr_c, int* idx_c, STORED* val_c) {
    constexpr int THREADS = BLOCK_THREADS, WARPS = THREADS / 32;
    extern __shared__ u64 shared[];
    __shared__ int warp_sums[WARPS], s_first[THREADS], s_last[THREADS];
    __shared__ VALUE s_factor[THREADS];
    const int t = threadIdx.x, lane = t & 31, width = 1 << log;
    Word* words = (Word*)shared;
    for (int item = blockIdx.x; item < count; item += gridDim.x) {
        const int row = list[item], all = words_of(span[row]), out = ptr_c[row];
        const int n = ptr_c[row + 1] - out, begin = ptr_a[row], end = ptr_a[row + 1];
#if WHOLE
        VALUE* sums = (VALUE*)(words + all);
#else
        STORED* sums = val_c + out;
#endif
        for (int e = t; e < n; e += THREADS) sums[e] = 0;
        for (int part = 0, done = 0; part < all; part += capacity) {
            const int used = min(all - part, capacity), start = low[row] + 32 * part;
            const auto within = [&](int column) { return WHOLE || u32(column - start) < 32u * used; };
            for (int w = t; w < used; w += THREADS) words[w].bits = 0;
            __syncthreads();
#if REUSE
            for (int e = out + done + t; e < out + n; e += THREADS)
                if (within(idx_c[e])) set_bit(&words[(idx_c[e] - start) >> 5].bits, idx_c[e] - start);
#else
            block_columns<THREADS>(begin, end, width, idx_a, ptr_b, idx_b, s_first, s_last, [&](int column) {
                if (within(column)) set_bit(&words[(column - start) >> 5].bits, column - start);
            });
#endif
            __syncthreads();
            // Entries before each word: every thread sums a run of words (an odd number, so that banks do not collide).
            const int run = ((used + THREADS - 1) / THREADS) | 1, from = min(t * run, used), to = min(from + run, used);
            int sum = 0;
            for (int w = from; w < to; ++w) sum += __popc(words[w].bits);
            const int scan = prefix_scan<32>(sum, lane, ALL);
            if (lane == 31) warp_sums[t / 32] = scan;
            __syncthreads();
            int before = done + scan - sum, held = 0;
            for (int w = 0; w < WARPS; ++w) {
                if (w < t / 32) before += warp_sums[w];
                held += warp_sums[w];
            }
            for (int w = from; w < to; ++w) {
                words[w].before = before;
                before += __popc(words[w].bits);
            }
            __syncthreads();
#if !REUSE
            for (int w = t; w < used; w += THREADS) {
                const Word word = words[w];
                int at = out + word.before;
                for (u32 bits = word.bits; bits; bits &= bits - 1) idx_c[at++] = start + 32 * w + __ffs(bits) - 1;
            }
#endif
            if (by_warps && n / SHORT_B <= end - begin) {
                const int first = done + int((long long)held * (t / 32) / WARPS), last = done + int((long long)held * (t / 32 + 1) / WARPS);
                each_product<32, 2, 4>(
                    begin, end, idx_a, val_a, ptr_b, idx_b, val_b, log, lane, ALL,
                    [&](int column) {
                        const int place = column >= 0 && within(column) ? place_of(words, column - start) : -1;
                        return place >= first && place < last ? place : -1;
                    },
                    [&](int place, VALUE a, VALUE b) { sums[place] = add_product(a, b, VALUE(sums[place])); });
                __syncthreads();
            } else
                for (int base = begin; base < end; base += THREADS) {
                    __syncthreads();
                    if (base + t < end) {
                        const int k = idx_a[base + t];
                        const int first = ptr_b[k], last = ptr_b[k + 1];
                        s_first[t] = WHOLE ? first : place_from(idx_b, first, last, start);
                        s_last[t] = WHOLE ? last : place_from(idx_b, first, last, int(min(start + 32ll * used, 0x7fffffffll)));
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
                                values[d][c] = present ? VALUE(val_b[q]) : VALUE(0);
                            }
                    };
                    fetch(0);
                    for (int s = 0; s < steps; s += AHEAD) {
                        int places[AHEAD][2];
                        VALUE met[AHEAD][2];
#pragma unroll
                        for (int d = 0; d < AHEAD; ++d)
#pragma unroll
                            for (int c = 0; c < 2; ++c) {
                                places[d][c] = columns[d][c] >= 0 ? place_of(words, columns[d][c] - start) : -1;
                                met[d][c] = values[d][c];
                            }
                        if (s + AHEAD < steps) fetch(s + AHEAD);
#pragma unroll
                        for (int d = 0; d < AHEAD; ++d) {
                            if (s + d >= steps) break;
                            const VALUE a = s_factor[s + d];
#pragma unroll
                            for (int c = 0; c < 2; ++c)
                                if (places[d][c] >= 0) sums[places[d][c]] = add_product(a, met[d][c], VALUE(sums[places[d][c]]));
#pragma unroll 4
                            for (int q = s_first[s + d] + 2 * THREADS + t; q < s_last[s + d]; q += THREADS) {
                                auto* sum = &sums[place_of(words, idx_b[q] - start)];
                                *sum = add_product(a, VALUE(val_b[q]), VALUE(*sum));
                            }
                            __syncthreads();
                        }
                    }
                }
            done += held;
            __syncthreads();
        }
        if (WHOLE)
            for (int e = t; e < n; e += THREADS) val_c[out + e] = sums[e];
        __syncthreads();
    }
}
