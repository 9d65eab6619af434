// Columns and values of C.

namespace {

// ---- window: bitmap of at most 32 WORDS columns, a group of G lanes a row

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
