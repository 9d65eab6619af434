// grouped.cu's operation on float32, real or complex, in TF32 in three parts on the tensor core (thirds.cuh).
//
// Vectors are the tall operand, so that a group's eight rows are the short one: m16n8k8, sixteen real columns, eight rows of V.
// Nothing is converted to float64, and a thread reads 16 bytes of V, not 8.  UNROLL steps of eight columns of the matrix are
// in flight together, and the numbers and values of the next ones behind them.
#include "block.cuh"
#include "thirds.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;
constexpr int REALS = SPAN * PARTS;               // real columns of a warp
constexpr int VECTOR = REALS % 32 == 0 ? 4 : 2;   // that a thread reads at once
constexpr int PIECES = REALS / (8 * VECTOR), TILES = VECTOR / 2;
static_assert(LANES == 8 && REALS % 16 == 0 && sizeof(real) == 4, "");

struct alignas(VECTOR * sizeof(real)) piece {
    real n[VECTOR];
};

// first: (groups + 1) rows;  partial: (gridDim.x, 2, R)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    thirds(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
           const number *__restrict__ data, const real *__restrict__ v, real *__restrict__ w,
           double *__restrict__ partial, int groups, int width, double scale_, double shift_, double keep_) {
    const real scale = scale_, shift = shift_, keep = keep_;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int outer = lane / 4, inner = lane % 4;
    const long long stride = (long long)width * PARTS;
    const real *const base = v + blockIdx.y * REALS + outer * VECTOR;
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
        const int *const columns = indices + mine.at;
        // Rows that a group lacks are computed as its first one, and left.
        const number *const values = data + mine.at + (outer < rows ? outer * count : 0);

        float sum[PIECES][TILES][4];
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int n = 0; n < 4; ++n) sum[p][j][n] = 0;

        int index[UNROLL][2];
        number value[UNROLL][2];
        auto load = [&](int from) {
#pragma unroll
            for (int u = 0; u < 2 * UNROLL; ++u) {
                const int held = min(from + 4 * u + inner, count - 1);
                index[u / 2][u % 2] = __ldg(columns + held);
                value[u / 2][u % 2] = load_stream(values + held);
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
        for (int from = 0; from < count; from += 8 * UNROLL) {
            piece other[UNROLL][2][PIECES];
            number factor[UNROLL][2];
#pragma unroll
            for (int u = 0; u < 2 * UNROLL; ++u) {
                factor[u / 2][u % 2] = value[u / 2][u % 2];
                // Behind a row's end.  Not where values are loaded: it would wait for them.
                if (from + 4 * u + inner >= count) factor[u / 2][u % 2] = zero();
#pragma unroll
                for (int p = 0; p < PIECES; ++p)
                    other[u / 2][u % 2][p] =
                        *reinterpret_cast<const piece *>(base + index[u / 2][u % 2] * stride + p * 8 * VECTOR);
            }
            if (from + 8 * UNROLL < count) load(from + 8 * UNROLL);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const Parts x0 = parts_of(factor[u][0].x), x1 = parts_of(factor[u][1].x);
#if COMPLEX
                const Parts y0 = parts_of(factor[u][0].y), y1 = parts_of(factor[u][1].y);
#endif
#pragma unroll
                for (int p = 0; p < PIECES; ++p)
#pragma unroll
                    for (int j = 0; j < TILES; ++j) {
                        const Parts a0 = parts_of(other[u][0][p].n[2 * j]), a1 = parts_of(other[u][0][p].n[2 * j + 1]);
                        const Parts a2 = parts_of(other[u][1][p].n[2 * j]), a3 = parts_of(other[u][1][p].n[2 * j + 1]);
                        multiply(sum[p][j], a0, a1, a2, a3, x0, x1);
#if COMPLEX
                        multiply(sum[p][j], minus(a1), a0, minus(a3), a2, y0, y1);
#endif
                    }
            }
        }
        // A thread holds VECTOR adjacent numbers of two rows.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (2 * inner + half >= rows) continue;
            const long long place = (begin + 2 * inner + half) * stride + blockIdx.y * REALS + outer * VECTOR;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                piece *const target = reinterpret_cast<piece *>(w + place + p * 8 * VECTOR);
                piece fresh;
#if MODE > 0
                const piece own = *reinterpret_cast<const piece *>(v + place + p * 8 * VECTOR), old = *target;
#endif
#pragma unroll
                for (int n = 0; n < VECTOR; ++n) {
                    const real total = sum[p][n / 2][n % 2 * 2 + half];
#if MODE == 0
                    fresh.n[n] = total;
#else
                    fresh.n[n] = scale * total + shift * own.n[n] - keep * old.n[n];
#endif
#if MODE == 2
                    const int c = (p * VECTOR + n) / PARTS;
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
    sum_quads<VECTOR / PARTS>(even, odd, sums);
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
