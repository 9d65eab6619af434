// The product of one vector for Lanczos steps, where groups of adjacent rows couple the same columns (grouped.cu), as
// dense blocks do.  All that counts there is bytes: values are float16, (h - center) * unit, vectors are float32, and the
// column numbers of a group are read once for all of its rows.  The bounds' margin covers the rounding (packed.py).
//
// Set by the launch code: REAL (that of the matrix), COMPLEX, WIDE (64-bit row pointers), THREADS, BLOCKS.
#include "number.cuh"
#include "ptx.cuh"
#include "sums.cuh"

constexpr int MOST_ROWS = 8, WARPS = THREADS / 32, COLUMNS = 2;

#if COMPLEX
typedef unsigned packed;  // the real part below
typedef float2 value;
#else
typedef unsigned short packed;
typedef float value;
#endif

static __device__ __forceinline__ unsigned short to_half(double x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(float(x)));
    return bits;
}

static __device__ __forceinline__ float from_half(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// A warp takes groups in turns.  The first row of one, and of the next one.
struct Edges {
    int begin, end;
};

// Rows of a group, and where the entries of the first one lie.  Nothing is computed of what is still on its way.
struct Place {
    int begin, rows;
    entry at, end;
};

static __device__ __forceinline__ Edges edges_of(const int *__restrict__ first, int group, int groups) {
    return group < groups ? Edges{first[group], first[group + 1]} : Edges{0, 0};
}

static __device__ __forceinline__ Place place_of(Edges edges, const entry *__restrict__ pointer) {
    if (edges.begin == edges.end) return Place{0, 0, 0, 0};
    return Place{edges.begin, edges.end - edges.begin, pointer[edges.begin], pointer[edges.begin + 1]};
}

// Values of all entries, where they lie in CSR.  `diagonal` counts the rows that have an entry there: only if all do, all
// are without their center.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pack(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
         const number *__restrict__ data, packed *__restrict__ values, int *diagonal, int groups, double center,
         double unit) {
    const int lane = threadIdx.x % 32, step = gridDim.x * WARPS;
    int met = 0;
    for (int group = blockIdx.x * WARPS + threadIdx.x / 32; group < groups; group += step) {
        const Place here = place_of(edges_of(first, group, groups), pointer);
        const int count = int(here.end - here.at);
        for (int k = lane; k < count; k += 32) {
            const int column = indices[here.at + k];
            met += column >= here.begin && column < here.begin + here.rows;
#pragma unroll
            for (int r = 0; r < MOST_ROWS; ++r)
                if (r < here.rows) {
                    const entry at = here.at + entry(r) * count + k;
                    const number n = data[at];
                    const double real_part = (n.x - (column == here.begin + r ? center : 0.0)) * unit;
#if COMPLEX
                    values[at] = to_half(real_part) | unsigned(to_half(n.y * unit)) << 16;
#else
                    values[at] = to_half(real_part);
#endif
                }
        }
    }
    met = __reduce_add_sync(0xffffffffu, met);
    if (lane == 0 && met) atomicAdd(diagonal, met);
}

// Sums over the lanes of eight numbers of each: lane 4 r has that of number r.
static __device__ __forceinline__ float sum_of_rows(float (&s)[MOST_ROWS], int lane) {
#pragma unroll
    for (int half = MOST_ROWS / 2, distance = 16; half; half /= 2, distance /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float give = upper ? s[i] : s[i + half], keep = upper ? s[i + half] : s[i];
            s[i] = keep + __shfl_xor_sync(0xffffffffu, give, distance);
        }
    }
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    return s[0] + __shfl_xor_sync(0xffffffffu, s[0], 1);
}

// The columns of the first entries of a group's rows, `COLUMNS` to a lane.
static __device__ __forceinline__ void columns_of(Place here, const int *__restrict__ indices, int lane,
                                                  int (&column)[COLUMNS]) {
#pragma unroll
    for (int p = 0; p < COLUMNS; ++p)
        column[p] = here.at + lane + 32 * p < here.end ? __ldg(indices + here.at + lane + 32 * p) : 0;
}

// u = H v;  partial: Re <u|v> of each block.  Rows of no group are none: first names all of them.  All that a group reads
// is on its way at once: its columns are read one group ahead, where they lie two, its edges three.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    packed_product(const int *__restrict__ first, const entry *__restrict__ pointer, const int *__restrict__ indices,
                   const packed *__restrict__ values, const value *__restrict__ v, value *__restrict__ u,
                   double *__restrict__ partial, int groups) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x * WARPS;
    double dot = 0;
    int group = blockIdx.x * WARPS + warp;
    Place here = place_of(edges_of(first, group, groups), pointer);
    Place next = place_of(edges_of(first, group + step, groups), pointer);
    Edges ahead = edges_of(first, group + 2 * step, groups);
    int column[COLUMNS];
    columns_of(here, indices, lane, column);
    // The matrix may be read before the step before this one has ended, v may not.
    launch_dependents();
    wait_for_previous();
    for (; group < groups; group += step) {
        const Edges later = edges_of(first, group + 3 * step, groups);
        const Place after = place_of(ahead, pointer);
        const bool writes = lane % 4 == 0 && lane / 4 < here.rows;
        const int row = here.begin + lane / 4;
        const value own = v[writes ? row : 0];
        float x[MOST_ROWS];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; ++r) x[r] = 0;
#if COMPLEX
        float y[MOST_ROWS];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; ++r) y[r] = 0;
#endif
        const int count = int(here.end - here.at);
        Place rest = here;  // what is left of the first row
        do {
            value other[COLUMNS];
            packed held[COLUMNS][MOST_ROWS];
#pragma unroll
            for (int p = 0; p < COLUMNS; ++p) other[p] = v[column[p]];
#pragma unroll
            for (int p = 0; p < COLUMNS; ++p) {
                const bool mine = rest.at + lane + 32 * p < rest.end;
                const packed *at = values + rest.at + lane + 32 * p;
#pragma unroll
                for (int r = 0; r < MOST_ROWS; ++r)
                    held[p][r] = mine && r < here.rows ? at[entry(r) * count] : 0;
            }
            rest.at += 32 * COLUMNS;
            columns_of(rest.at < rest.end ? rest : next, indices, lane, column);
#pragma unroll
            for (int p = 0; p < COLUMNS; ++p)
#pragma unroll
                for (int r = 0; r < MOST_ROWS; ++r) {
#if COMPLEX
                    const float2 h = make_float2(from_half(held[p][r]), from_half(held[p][r] >> 16));
                    x[r] = fmaf(h.x, other[p].x, fmaf(-h.y, other[p].y, x[r]));
                    y[r] = fmaf(h.x, other[p].y, fmaf(h.y, other[p].x, y[r]));
#else
                    x[r] = fmaf(from_half(held[p][r]), other[p], x[r]);
#endif
                }
        } while (rest.at < rest.end);
        value sum;
#if COMPLEX
        sum.x = sum_of_rows(x, lane), sum.y = sum_of_rows(y, lane);
#else
        sum = sum_of_rows(x, lane);
#endif
        if (writes) {
            u[row] = sum;
#if COMPLEX
            dot += double(sum.x) * own.x + double(sum.y) * own.y;
#else
            dot += double(sum) * own;
#endif
        }
        here = next, next = after, ahead = later;
    }
    __shared__ double shared[WARPS];
    const double total = sum_of_block(dot, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// What is left of Lanczos step k.  Vectors keep their length: v is beta_k times the unit vector, and u = H v.  Leaves in
// `before` the next one, u / beta_k - alpha_k v / beta_k - beta_k / beta_(k-1) before, where `dots` are parts of Re <u|v>
// and `squares`, one of each block, of |v|^2; writes alpha_k, beta_k and the parts of the next |v|^2.
extern "C" __global__ void __launch_bounds__(THREADS)
    packed_step(const value *__restrict__ u, const value *__restrict__ v, value *before, const double *__restrict__ dots,
                int products, const double *__restrict__ squares, double *__restrict__ next_squares, double *alphas,
                double *betas, int k, long long size) {
    __shared__ double shared[WARPS];
    launch_dependents();
    wait_for_previous();
    double mine[2] = {0, 0};
    for (int n = threadIdx.x; n < gridDim.x; n += THREADS) mine[0] += squares[n];
    for (int n = threadIdx.x; n < products; n += THREADS) mine[1] += dots[n];
    const double square = sum_of_block(mine[0], shared), dot = sum_of_block(mine[1], shared), beta = sqrt(square);
    const double alpha = square > 0 ? dot / square : 0, scale = square > 0 ? 1 / beta : 0, own = alpha * scale;
    const double back = k > 0 && betas[k - 1] > 0 ? beta / betas[k - 1] : 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) alphas[k] = alpha, betas[k] = beta;
    double sum = 0;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < size; i += (long long)gridDim.x * THREADS) {
        const value h = u[i], here = v[i], last = before[i];
        value next;
#if COMPLEX
        next.x = float(scale * h.x - own * here.x - back * last.x);
        next.y = float(scale * h.y - own * here.y - back * last.y);
        sum += double(next.x) * next.x + double(next.y) * next.y;
#else
        next = float(scale * h - own * here - back * last);
        sum += double(next) * next;
#endif
        before[i] = next;
    }
    const double total = sum_of_block(sum, shared);
    if (threadIdx.x == 0) next_squares[blockIdx.x] = total;
}
