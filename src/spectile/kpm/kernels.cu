// KPM on a stored matrix: the augmented sparse matrix times block vector kernel of the paper (Figures 4 and 5).
//
//   aug_spmmv      W = scale H V + shift V - keep W, with <V|V> and Re <W|V> of each column on the fly
//   sum_partials   the deterministic end of the dot products
//   random_phases  start vectors, the same numbers as spectile.kpm.reference.random_phases
//
// Block vectors are row-major (N, R).  LANES threads share a matrix row, each holding COLUMNS vectors; a warp works on
// 32 / LANES adjacent rows in lockstep, so rows that share columns (the orbitals of one site) share their loads.
// One persistent block a multiprocessor walks "waves" of rows: it takes the same share of every wave, so that where a
// wave is a plane of the lattice, the plane before and the plane after are still in its L1 cache.
//
// Set by the launch code: REAL (float, double), COMPLEX (0, 1), LANES, COLUMNS, UNROLL, THREADS, BLOCKS (resident blocks
// a multiprocessor), WIDE (64-bit row pointers), SELL (chunk height, 0 = CSR), MODE (0 plain product, 1 augmented
// without dots, 2 with dots), EXACT (1 if every column exists).

typedef REAL real;
#if WIDE
typedef long long entry;  // position of a matrix entry
#else
typedef int entry;
#endif
#if COMPLEX
struct alignas(2 * sizeof(real)) number {
    real x, y;
};
#else
struct number {
    real x;
};
#endif

constexpr int ROWS = 32 / LANES;  // rows of a warp
constexpr int WARPS = THREADS / 32;
static __device__ __forceinline__ number zero() {
    number n;
    n.x = 0;
#if COMPLEX
    n.y = 0;
#endif
    return n;
}

static __device__ __forceinline__ void multiply_add(number &sum, number a, number v) {
    sum.x += a.x * v.x;
#if COMPLEX
    sum.x -= a.y * v.y;
    sum.y += a.x * v.y;
    sum.y += a.y * v.x;
#endif
}

// Streams are read and written once a step: they must not push the vector V out of the caches.
static __device__ __forceinline__ number load_stream(const number *p) {
    number n;
#if COMPLEX
    if constexpr (sizeof(real) == 8) {
        const double2 d = __ldcs(reinterpret_cast<const double2 *>(p));
        n.x = d.x, n.y = d.y;
    } else {
        const float2 d = __ldcs(reinterpret_cast<const float2 *>(p));
        n.x = d.x, n.y = d.y;
    }
#else
    n.x = __ldcs(reinterpret_cast<const real *>(p));
#endif
    return n;
}

static __device__ __forceinline__ void store_stream(number *p, number n) {
#if COMPLEX
    if constexpr (sizeof(real) == 8)
        __stcs(reinterpret_cast<double2 *>(p), make_double2(n.x, n.y));
    else
        __stcs(reinterpret_cast<float2 *>(p), make_float2(n.x, n.y));
#else
    __stcs(reinterpret_cast<real *>(p), n.x);
#endif
}

// Where a row's entries lie.
struct Row {
    long long number;
    entry at;
    int count;
};

static __device__ __forceinline__ Row find(const entry *pointer, const int *length, long long row, long long rows) {
    if (row >= rows) return {rows, 0, 0};
#if SELL
    return {row, entry(pointer[row / SELL] + row % SELL), length[row]};
#else
    const entry at = pointer[row];
    return {row, at, int(pointer[row + 1] - at)};
#endif
}

static __device__ __forceinline__ void prefetch_l1(const void *p) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

static __device__ __forceinline__ void prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// rows: matrix rows;  wave: rows of a wave, in units of ROWS;  width: R;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    aug_spmmv(const entry *__restrict__ pointer, const int *__restrict__ length, const int *__restrict__ indices,
              const number *__restrict__ data, const number *__restrict__ v, number *__restrict__ w,
              double *__restrict__ partial, long long rows, long long wave, int width, double scale_, double shift_,
              double keep_) {
    const real scale = scale_, shift = shift_, keep = keep_;
    const int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    const int column = blockIdx.y * LANES * COLUMNS + lane;
    const long long low = wave * blockIdx.x / gridDim.x;
    const int share = int(wave * (blockIdx.x + 1) / gridDim.x - low);
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;
    bool exists[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) exists[c] = EXACT || column + c * LANES < width;

    // A task is ROWS adjacent rows; its row is `rows` where the block has no more.
    auto row_of = [&](int task) {
        const int turn = task / share;
        return min((turn * wave + low + (task - turn * share)) * ROWS + sub, rows);
    };
    const int tasks = share > 0 ? int((rows + wave * ROWS - 1) / (wave * ROWS)) * share : 0;
    Row next{rows, 0, 0};
    if (warp < tasks) next = find(pointer, length, row_of(warp), rows);
    for (int task = warp; task < tasks; task += WARPS) {
        const Row row = next;
        const bool live = row.number < rows;
        next = {rows, 0, 0};
        if (task + WARPS < tasks) next = find(pointer, length, row_of(task + WARPS), rows);

        number sum[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = zero();
        constexpr int STRIDE = SELL ? SELL : 1;
        entry at = row.at;
        int k = 0;
        // With a thread or two a row the last batch is masked, so that its loads are in flight together; with more, the
        // masked instructions cost more than that (measured), and the rest is looped over.
        for (; k + UNROLL <= row.count || (LANES < 4 && k < row.count); k += UNROLL, at += UNROLL * STRIDE) {
            int index[UNROLL];
            number value[UNROLL], other[UNROLL][COLUMNS];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const bool stored = LANES >= 4 || k + u < row.count;
                index[u] = stored ? __ldg(indices + at + u * STRIDE) : -1;
                value[u] = stored ? data[at + u * STRIDE] : zero();
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
                    other[u][c] = (LANES >= 4 || index[u] >= 0) && exists[c]
                                      ? v[(long long)index[u] * width + column + c * LANES]
                                      : zero();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value[u], other[u][c]);
        }
        for (; k < row.count; ++k, at += STRIDE) {
            const number value = data[at];
            const long long line = (long long)__ldg(indices + at) * width + column;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) multiply_add(sum[c], value, exists[c] ? v[line + c * LANES] : zero());
        }

#if LANES >= 4 && !SELL
        // The next row's entries and W come from memory: have them under way, at no cost in registers.
        if (next.count > 0) {
            const char *const entries = reinterpret_cast<const char *>(data + next.at);
            for (int byte = lane * 128; byte < next.count * int(sizeof(number)); byte += LANES * 128)
                prefetch_l1(entries + byte);
            if (lane == LANES - 1) prefetch_l1(indices + next.at);
#if MODE > 0
            const char *const line = reinterpret_cast<const char *>(w + next.number * width + column - lane);
            for (int byte = lane * 128; byte < LANES * COLUMNS * int(sizeof(number)); byte += LANES * 128)
                prefetch_l2(line + byte);
#endif
        }
#endif
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (!live || !exists[c]) continue;
            const long long place = row.number * width + column + c * LANES;
#if MODE == 0
            store_stream(w + place, sum[c]);
#else
            const number own = v[place], old = load_stream(w + place);
            number fresh;
            fresh.x = scale * sum[c].x + shift * own.x - keep * old.x;
#if COMPLEX
            fresh.y = scale * sum[c].y + shift * own.y - keep * old.y;
#endif
            store_stream(w + place, fresh);
#if MODE == 2
            even[c] += double(own.x) * own.x, odd[c] += double(fresh.x) * own.x;
#if COMPLEX
            even[c] += double(own.y) * own.y, odd[c] += double(fresh.y) * own.y;
#endif
#endif
#endif
        }
    }

#if MODE == 2
    // Sum over the rows of the block in a fixed order: lanes of a warp by shuffles, warps one after the other.
    __shared__ double sums[WARPS][2][LANES * COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2) {
            even[c] += __shfl_xor_sync(0xffffffffu, even[c], distance);
            odd[c] += __shfl_xor_sync(0xffffffffu, odd[c], distance);
        }
        if (sub == 0) sums[warp][0][c * LANES + lane] = even[c], sums[warp][1][c * LANES + lane] = odd[c];
    }
    __syncthreads();
    for (int t = threadIdx.x; t < 2 * LANES * COLUMNS; t += THREADS) {
        const int which = t / (LANES * COLUMNS), offset = t % (LANES * COLUMNS);
        const int target = blockIdx.y * LANES * COLUMNS + offset;
        double total = 0;
        for (int n = 0; n < WARPS; ++n) total += sums[n][which][offset];
        if (EXACT || target < width) partial[((long long)blockIdx.x * 2 + which) * width + target] = total;
    }
#endif
}

// etas[j] = sum over n of partial[n * size + j], in order.
extern "C" __global__ void sum_partials(const double *__restrict__ partial, double *__restrict__ etas, int count, int size) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= size) return;
    double total = 0;
    for (int n = 0; n < count; ++n) total += partial[(long long)n * size + j];
    etas[j] = total;
}

static __device__ __forceinline__ unsigned long long mix(unsigned long long z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Element (row, column) of a row-major block; `order` names the original row, or is null.
extern "C" __global__ void random_phases(number *__restrict__ block, const int *__restrict__ order, long long rows,
                                         int width, unsigned long long seed, unsigned long long first) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * width;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long row = order ? order[i / width] : i / width;
        const unsigned long long vector = seed + (first + i % width) * 0x9E3779B97F4A7C15ull;
        const unsigned long long bits = mix(mix(vector) + row * 0xD1B54A32D192ED03ull);
        number n = zero();
#if COMPLEX
        const int quarter = int(bits >> 62);
        n.x = quarter == 0 ? 1 : quarter == 2 ? -1 : 0;
        n.y = quarter == 1 ? 1 : quarter == 3 ? -1 : 0;
#else
        n.x = bits >> 63 ? -1 : 1;
#endif
        block[i] = n;
    }
}
