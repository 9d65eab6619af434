// KPM on a stored matrix whose adjacent rows couple the same columns, as the orbitals of a cell do (gather.cu's operation).
//
// A warp takes a group of up to eight such rows.  Their entries lie one row after the other, each as long as the first, so
// that CSR is a dense block already: it is an operand of the tensor core (float64, whatever is stored), and the rows of V
// that its columns name are the other, sixteen vectors at a time (m16n8k8: vectors, rows, columns of the block).  A row of
// V is read once for a group instead of once for each of its rows, and the columns' numbers are, too.  UNROLL steps of
// four columns are in flight together, and the numbers and values of the next ones behind them.
//
// Block vectors are seen as real numbers: complex ones as pairs, which take two products.
#include "block.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;
constexpr int REALS = SPAN * PARTS;                 // real columns of a warp
constexpr int VECTOR = REALS % 16 == 0 ? 2 : 1;     // that a thread reads at once
constexpr int PAIRS = REALS / (8 * VECTOR);
static_assert(LANES == 8 && COLUMNS == PAIRS * VECTOR / PARTS && UNROLL % 2 == 0 && (VECTOR == 2 || !COMPLEX), "");

struct alignas(VECTOR * sizeof(real)) piece {
    real n[VECTOR];
};

// Sums of eight columns of the block: of this thread's vectors (`VECTOR` adjacent ones) in two rows of the group.
static __device__ __forceinline__ void multiply(double (&sum)[VECTOR][2], const piece &first, const piece &second,
                                                double a, double b) {
    if constexpr (VECTOR == 2) {
        double c[4] = {sum[0][0], sum[0][1], sum[VECTOR - 1][0], sum[VECTOR - 1][1]};
        mma_f64(c, {first.n[0], first.n[VECTOR - 1], second.n[0], second.n[VECTOR - 1]}, {a, b});
        sum[0][0] = c[0], sum[0][1] = c[1], sum[VECTOR - 1][0] = c[2], sum[VECTOR - 1][1] = c[3];
    } else {
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+d"(sum[0][0]), "+d"(sum[0][1])
            : "d"(double(first.n[0])), "d"(a));
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+d"(sum[0][0]), "+d"(sum[0][1])
            : "d"(double(second.n[0])), "d"(b));
    }
}

// i times a complex number
static __device__ __forceinline__ piece turned(const piece &a) {
    piece b = a;
    b.n[0] = -a.n[VECTOR - 1], b.n[VECTOR - 1] = a.n[0];
    return b;
}

// first: (groups + 1) rows;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    grouped(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
            const number *__restrict__ data, const real *__restrict__ v, real *__restrict__ w,
            double *__restrict__ partial, int groups, int width, double scale_, double shift_, double keep_) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int outer = lane / 4, inner = lane % 4;
    const long long stride = (long long)width * PARTS;
    const int mine_from = blockIdx.y * REALS + VECTOR * outer;  // this thread's first vector
    double even[COLUMNS], odd[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) even[c] = odd[c] = 0;

    const int step = gridDim.x * WARPS;
    // Rows of a group, and where the entries of each lie: this group's, and the next one's.
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
        const number *const values = data + mine.at + (live ? outer * count : 0);

        double sum[PAIRS][VECTOR][2];
#pragma unroll
        for (int p = 0; p < PAIRS; ++p)
#pragma unroll
            for (int n = 0; n < VECTOR; ++n) sum[p][n][0] = sum[p][n][1] = 0;

        int index[UNROLL];
        number value[UNROLL];
        // Loads without conditions are in flight together: beyond the end the last entry is read again, times zero.
        auto load = [&](int from) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int k = from + 4 * u + inner, held = min(k, count - 1);
                index[u] = __ldg(columns + held);
                value[u] = load_stream(values + held);
                if (k >= count || !live) value[u] = zero();
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
#if AHEAD
        // So do the rows of V that its last columns name, which nobody may have read before.
        const int farthest = next.count > lane ? __ldg(indices + next.at + next.count - 1 - lane) : -1;
#endif
        mine = next, next = find(group + 2 * step);
        for (int from = 0; from < count; from += 4 * UNROLL) {
            piece other[UNROLL][PAIRS];
            number factor[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                factor[u] = value[u];
#pragma unroll
                for (int p = 0; p < PAIRS; ++p)
                    other[u][p] =
                        *reinterpret_cast<const piece *>(v + index[u] * stride + mine_from + p * 8 * VECTOR);
            }
            if (from + 4 * UNROLL < count) load(from + 4 * UNROLL);
#pragma unroll
            for (int u = 0; u < UNROLL; u += 2)
#pragma unroll
                for (int p = 0; p < PAIRS; ++p) {
                    multiply(sum[p], other[u][p], other[u + 1][p], factor[u].x, factor[u + 1].x);
#if COMPLEX
                    multiply(sum[p], turned(other[u][p]), turned(other[u + 1][p]), factor[u].y, factor[u + 1].y);
#endif
                }
        }
#if AHEAD
        if (farthest >= 0)
            for (int byte = 0; byte < REALS * int(sizeof(real)); byte += 128)
                prefetch_l2(reinterpret_cast<const char *>(v + farthest * stride + blockIdx.y * REALS) + byte);
#endif
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            if (2 * inner + row >= rows) continue;
            const long long line = (begin + 2 * inner + row) * stride + mine_from;
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                piece *const target = reinterpret_cast<piece *>(w + line + p * 8 * VECTOR);
                piece fresh;
#if MODE > 0
                const piece own = *reinterpret_cast<const piece *>(v + line + p * 8 * VECTOR), old = *target;
#endif
#pragma unroll
                for (int n = 0; n < VECTOR; ++n) {
                    const double total = sum[p][n][row];
#if MODE == 0
                    fresh.n[n] = real(total);
#else
                    fresh.n[n] = real(scale_ * total + shift_ * own.n[n] - keep_ * old.n[n]);
#endif
#if MODE == 2
                    const int c = COMPLEX ? p : p * VECTOR + n;
                    even[c] += double(own.n[n]) * own.n[n], odd[c] += double(fresh.n[n]) * own.n[n];
#endif
                }
                *target = fresh;
            }
        }
        __syncwarp();
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2 * SPAN];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            even[c] += __shfl_xor_sync(0xffffffffu, even[c], distance);
            odd[c] += __shfl_xor_sync(0xffffffffu, odd[c], distance);
        }
        // A thread's columns of each 16 (complex: 8) adjacent ones.
        constexpr int HELD = VECTOR / PARTS;
        const int column = c / HELD * HELD * LANES + outer * HELD + c % HELD;
        if (inner == 0) sums[2 * warp * SPAN + column] = even[c], sums[(2 * warp + 1) * SPAN + column] = odd[c];
    }
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
