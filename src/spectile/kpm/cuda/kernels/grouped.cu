// KPM on a stored matrix whose adjacent rows couple the same columns, as the orbitals of a cell do (gather.cu's operation).
//
// A warp takes a group of up to eight such rows.  Their entries lie one row after the other, each as long as the first, so
// that CSR is a dense block already: four of its columns at a time are an operand of the tensor core (m8n8k4, float64,
// whatever is stored), the rows of V that they name are the other.  A row of V is read once for a group instead of once
// for each of its rows, and the columns' numbers are, too.  UNROLL steps of four columns are in flight together, and the
// numbers and values of the next ones behind them.
//
// Block vectors are seen as real numbers: complex ones as pairs, which take four products.
#include "block.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;
constexpr int REALS = SPAN * PARTS;                 // real columns of a warp
constexpr int VECTOR = REALS % 16 == 0 ? 2 : 1;     // that a thread reads at once
constexpr int PAIRS = REALS / (8 * VECTOR);
static_assert(LANES == 4 && REALS % 8 == 0 && (VECTOR == 2 || !COMPLEX), "");

struct alignas(VECTOR * sizeof(real)) piece {
    real n[VECTOR];
};

static __device__ __forceinline__ void multiply(double (&c)[2], double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(c[0]), "+d"(c[1])
        : "d"(a), "d"(b));
}

// first: (groups + 1) rows;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    grouped(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
            const number *__restrict__ data, const real *__restrict__ v, real *__restrict__ w,
            double *__restrict__ partial, int groups, int width, double scale_, double shift_, double keep_) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int outer = lane / 4, inner = lane % 4;
    const long long stride = (long long)width * PARTS;
    const real *const base = v + blockIdx.y * REALS;
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;

    const int step = gridDim.x * WARPS;
    // Rows of a group, and where the entries of each lie: this group's, the next one's, and the one's after it.
    struct Place {
        int begin, rows, count;
        entry at;
    };
    auto find = [&](int group) {
        if (group >= groups) return Place{0, 0, 0, 0};
        const int begin = first[group];
        const entry at = pointer[begin];
        return Place{begin, first[group + 1] - begin, int(pointer[begin + 1] - at), at};
    };
    int group = blockIdx.x * WARPS + warp;
    Place mine = find(group), next = find(group + step);
    for (; group < groups; group += step) {
        const int begin = mine.begin, rows = mine.rows, count = mine.count;
        const bool live = outer < rows;
        const int *const columns = indices + mine.at;
        // Rows that a group lacks are computed as its first one, and left.
        const number *const values = data + mine.at + (live ? outer * count : 0);
        // W, and V's own rows, of this thread's row, or of the group's first.
        const long long line = (begin + (live ? outer : 0)) * stride + blockIdx.y * REALS + inner * 2 * VECTOR;

        double sum[PAIRS][VECTOR][2];
#pragma unroll
        for (int p = 0; p < PAIRS; ++p)
#pragma unroll
            for (int n = 0; n < VECTOR; ++n) sum[p][n][0] = sum[p][n][1] = 0;

        int index[UNROLL];
        number value[UNROLL];
        auto load = [&](int from) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int held = min(from + 4 * u + inner, count - 1);
                index[u] = __ldg(columns + held);
                value[u] = load_stream(values + held);
            }
        };
        if (count > 0) load(0);
        // The next group's entries, and its W, come into L2 meanwhile.
        for (int byte = lane * 128; byte < next.rows * next.count * int(sizeof(number)); byte += 4096)
            prefetch_l2(reinterpret_cast<const char *>(data + next.at) + byte);
        if (lane * 32 < next.count) prefetch_l2(indices + next.at + lane * 32);
        if (MODE > 0 && outer < next.rows)
            for (int byte = inner * 128; byte < REALS * int(sizeof(real)); byte += 512)
                prefetch_l2(reinterpret_cast<const char *>(w + (next.begin + outer) * stride + blockIdx.y * REALS) + byte);
        mine = next, next = find(group + 2 * step);
        for (int from = 0; from < count; from += 4 * UNROLL) {
            piece other[UNROLL][PAIRS];
            number factor[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                factor[u] = value[u];
                // Behind a row's end.  Not where values are loaded: it would wait for them.
                if (from + 4 * u + inner >= count) factor[u] = zero();
#pragma unroll
                for (int p = 0; p < PAIRS; ++p)
                    other[u][p] =
                        *reinterpret_cast<const piece *>(base + index[u] * stride + VECTOR * (8 * p + outer));
            }
            if (from + 4 * UNROLL < count) load(from + 4 * UNROLL);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int p = 0; p < PAIRS; ++p) {
#if COMPLEX
                    multiply(sum[p][0], factor[u].x, other[u][p].n[0]);
                    multiply(sum[p][1], factor[u].x, other[u][p].n[1]);
                    multiply(sum[p][0], -double(factor[u].y), other[u][p].n[1]);
                    multiply(sum[p][1], factor[u].y, other[u][p].n[0]);
#else
#pragma unroll
                    for (int n = 0; n < VECTOR; ++n) multiply(sum[p][n], factor[u].x, other[u][p].n[n]);
#endif
                }
        }
        if (live) {
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                // A thread holds 2 VECTOR adjacent numbers of its row.
                piece *const target = reinterpret_cast<piece *>(w + line + p * 8 * VECTOR);
                const piece *const source = reinterpret_cast<const piece *>(v + line + p * 8 * VECTOR);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    piece fresh;
#if MODE > 0
                    const piece own = source[half], old = target[half];
#endif
#pragma unroll
                    for (int n = 0; n < VECTOR; ++n) {
                        const double total = sum[p][n][half];
#if MODE == 0
                        fresh.n[n] = real(total);
#else
                        fresh.n[n] = real(scale_ * total + shift_ * own.n[n] - keep_ * old.n[n]);
#endif
#if MODE == 2
                        const int c = COMPLEX ? 2 * p + half : (2 * p + half) * VECTOR + n;
                        even[c] += double(own.n[n]) * own.n[n], odd[c] += double(fresh.n[n]) * own.n[n];
#endif
                    }
                    target[half] = fresh;
                }
            }
        }
        __syncwarp();
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
    sum_rows(even, odd);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (outer == 0) {
            // Columns that a thread holds of 16 (complex: 8) adjacent ones.
            constexpr int HELD = 2 * VECTOR / PARTS;
            const int column = c / HELD * HELD * LANES + inner * HELD + c % HELD;
            sums[2 * warp * SPAN + column] = even[c];
            sums[(2 * warp + 1) * SPAN + column] = odd[c];
        }
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
