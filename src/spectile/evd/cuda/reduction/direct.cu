// Householder tridiagonalization of a Hermitian matrix in one launch: its columns lie in the shared memory of the blocks,
// which exchange two vectors a column.
//
// Block p of P owns columns p, p + P, ..., both triangles of them; the first `far` of them, which are used up first, stay
// in global memory.  Step k, with v and tau the reflector of column k, subtracts v w^H + w v^H, where y = A v and
// w = tau y - |tau|^2 / 2 (v^H y) v.  The product with an own column gives the whole entry of y.  So one exchange a step
// will do: with the entries of y goes column k + 1 before the subtraction, and every block then finds w, that column and
// its reflector by itself.  What a step subtracts from the own columns is subtracted on the way of the next product.
//
// Messages carry their step, in two sets that take turns: who sends in step k + 2 has received in step k + 1 from all that
// have received in step k.  A block leaves when its columns are used up; the one of the last column writes the results.

#include "messages.cuh"

#define PARTS (COMPLEX ? 2 : 1)
#define WARPS (DIRECT_THREADS / 32)
#define TOGETHER (COMPLEX ? 4 : 8)  // columns that a thread works on at a time

// What a step needs of the vectors: v of this step, v and w of the one before.
struct Step {
    const scalar_t *v, *before, *w;
    int n, top;  // the first row of this thread
    unsigned tag;
};

// Bring `count` columns, ld apart in memory and `apart` in the matrix from column j on, up to date, and multiply them with v: one
// sum for each warp and column.  The first is a message where `next` is not null.
__device__ __forceinline__ void multiply_columns(const Step& step, scalar_t* columns, int ld, int count, int j, int apart, uint4* next,
                                                 scalar_t* sums) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (; count > 0; count -= TOGETHER) {
        scalar_t sum[TOGETHER], wc[TOGETHER], vc[TOGETHER];
        int offset[TOGETHER];  // past the last column that one again, which then is stored twice alike
#pragma unroll
        for (int c = 0; c < TOGETHER; ++c) {
            const int own = min(c, count - 1), column = j + own * apart;
            offset[c] = own * ld;
            sum[c] = zero();
            wc[c] = negative(conj(step.w[column]));
            vc[c] = negative(conj(step.before[column]));
        }
#pragma unroll
        for (int t = 0; t < ROWS; ++t) {
            const int i = step.top + t * DIRECT_THREADS;
            if (i >= step.n) break;
            const scalar_t vi = step.before[i], wi = step.w[i], ni = step.v[i];
            scalar_t* row = columns + i;
            scalar_t value[TOGETHER];
#pragma unroll
            for (int c = 0; c < TOGETHER; ++c) value[c] = row[offset[c]];
#pragma unroll
            for (int c = 0; c < TOGETHER; ++c) value[c] = fma_(vi, wc[c], fma_(wi, vc[c], value[c]));
            if (next != nullptr) send(next, i, value[0], step.tag);
#pragma unroll
            for (int c = 0; c < TOGETHER; ++c) row[offset[c]] = value[c];
#pragma unroll
            for (int c = 0; c < TOGETHER; ++c) sum[c] = fma_(conj(value[c]), ni, sum[c]);
        }
        fold<TOGETHER / 2>(sum, lane);
#pragma unroll
        for (int lanes = TOGETHER; lanes < 32; lanes *= 2) sum[0] = sum[0] + shuffle_xor(sum[0], lanes);
        if (lane < TOGETHER) sums[warp * TOGETHER + lane] = sum[0];
        columns += TOGETHER * ld;
        j += TOGETHER * apart;
        sums += WARPS * TOGETHER;
        next = nullptr;
    }
}

// Sum over the block, for all of its threads.  `parts`: WARPS numbers, written again after another barrier at the earliest.
__device__ __forceinline__ real_t block_sum(real_t x, real_t* parts) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    real_t sum[4] = {parts[0], parts[1], parts[2], parts[3]};
#pragma unroll
    for (int w = 4; w < WARPS; ++w) sum[w & 3] += parts[w];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Receive rows of y and of the next column, R of them this warp has, all on their way at the same time.
template <int R>
__device__ __forceinline__ void receive(int rows, const uint4* products, const uint4* next, const Step& step, scalar_t (&y)[ROWS],
                                        scalar_t (&x)[ROWS]) {
    if (rows == R) {
        bool arrived;
        do {
            arrived = true;
#pragma unroll
            for (int t = 0; t < R; ++t) {
                const int i = min(step.top + t * DIRECT_THREADS, step.n - 1);
                arrived &= try_receive(next, i, step.tag, x[t]);
                arrived &= try_receive(products, i, step.tag, y[t]);
            }
        } while (!arrived);
    } else if constexpr (R > 1) {
        receive<R - 1>(rows, products, next, step, y, x);
    }
}

// a: n x n, both triangles, overwritten; with `keep` the reflectors come below its subdiagonal.  d, e: of the result;
// taus: n - 1.  messages: 2 x 2 x n scalars, zeros before.
extern "C" __global__ void __launch_bounds__(DIRECT_THREADS, 1) tridiagonalize(scalar_t* a, long long lda, int n, int far, int keep,
                                                                               double* d, double* e, scalar_t* taus, uint4* messages) {
    DYNAMIC_SHARED(scalar_t, vectors);  // 2 x n: v of this step and of the one before
    const int thread = threadIdx.x, blocks = gridDim.x, block = blockIdx.x;
    const int own = (n - block + blocks - 1) / blocks, most = (n + blocks - 1) / blocks;
    const bool writes = block == (n - 1) % blocks;
    scalar_t* w = vectors + 2 * n;                                                       // n: of the step before
    scalar_t* sums = w + n;                                                              // of each TOGETHER columns: warps x TOGETHER
    scalar_t* heads = sums + ((most + TOGETHER - 1) / TOGETHER + 1) * WARPS * TOGETHER;  // 2
    real_t* parts = (real_t*)(heads + 2);                                                // 2 x warps
    scalar_t* near = (scalar_t*)(parts + 2 * WARPS);                                     // columns from the far ones on

    for (int c = far; c < own; ++c)
        for (int i = thread; i < n; i += DIRECT_THREADS) near[(c - far) * n + i] = a[i + (block + c * blocks) * lda];
    for (int i = thread; i < n; i += DIRECT_THREADS) vectors[n + i] = w[i] = zero();
    scalar_t x[ROWS];  // column k from row k on
#pragma unroll
    for (int t = 0; t < ROWS; ++t) x[t] = thread + t * DIRECT_THREADS < n ? a[thread + t * DIRECT_THREADS] : zero();
    if (writes && thread == 0) d[0] = real_part(x[0]);

    for (int k = 0, first = 0; k < n - 1; ++k) {
        scalar_t *v = vectors + (k & 1) * n, *before = vectors + (~k & 1) * n;
        const unsigned tag = k + 1;
        uint4* products = messages + (k & 1) * 2 * n * PARTS;
        uint4* next = products + n * PARTS;
        real_t tail = 0;
#pragma unroll
        for (int t = 0; t < ROWS; ++t)
            if (thread + t * DIRECT_THREADS > 1) tail += square(x[t]);
        if (thread == 1) heads[0] = x[0];
        tail = block_sum(tail, parts);
        const Reflector h = make_reflector(heads[0], tail);
#pragma unroll
        for (int t = 0; t < ROWS; ++t) {
            const int i = thread + t * DIRECT_THREADS;
            if (i > 0 && k + i < n) v[k + i] = i == 1 ? one() : x[t] * h.scale;
        }
        if (writes && thread == 0) {
            e[k] = h.beta;
            taus[k] = h.tau;
        }
        __syncthreads();

        const int top = k + 1 + thread;
        while (block + first * blocks <= k) ++first;
        const int middle = max(first, far), farther = middle - first, aside = (farther + TOGETHER - 1) / TOGETHER * TOGETHER;
        const Step step = {v, before, w, n, top, tag};
        uint4* sent = block + first * blocks == k + 1 ? next : nullptr;
        multiply_columns(step, a + (block + first * blocks) * lda, blocks * lda, min(farther, own - first), block + first * blocks, blocks,
                         sent, sums);
        multiply_columns(step, near + (middle - far) * n, n, own - middle, block + middle * blocks, blocks, farther > 0 ? nullptr : sent,
                         sums + aside * WARPS);
        __syncthreads();
        for (int c = thread; c < own - first; c += DIRECT_THREADS) {
            const int place = c < farther ? c : c - farther + aside;
            const scalar_t* part = sums + place / TOGETHER * WARPS * TOGETHER + place % TOGETHER;
            scalar_t sum[2] = {part[0], part[TOGETHER]};
#pragma unroll
            for (int u = 2; u < WARPS; ++u) sum[u & 1] = sum[u & 1] + part[u * TOGETHER];
            send(products, block + (first + c) * blocks, sum[0] + sum[1], tag);
        }
        if (!writes && block + (own - 1) * blocks <= k + 1) return;

        scalar_t y[ROWS];
        const int reach = n - (top - (thread & 31)), rows = reach > 0 ? (reach + DIRECT_THREADS - 1) / DIRECT_THREADS : 0;
        receive<ROWS>(rows, products, next, step, y, x);
#pragma unroll
        for (int t = 0; t < ROWS; ++t)
            if (top + t * DIRECT_THREADS >= n) y[t] = x[t] = zero();
        real_t inner = 0;  // v^H y, of a Hermitian matrix
#pragma unroll
        for (int t = 0; t < ROWS; ++t)
            if (top + t * DIRECT_THREADS < n) inner += real_part(conj(v[top + t * DIRECT_THREADS]) * y[t]);
        if (thread == 0) heads[1] = y[0];
        const real_t share = (real_t)0.5 * square(h.tau) * block_sum(inner, parts + WARPS);
        const scalar_t first_w = h.tau * heads[1] - make_scalar(share, 0);
#pragma unroll
        for (int t = 0; t < ROWS; ++t) {
            const int i = top + t * DIRECT_THREADS;
            if (i >= n) break;
            const scalar_t vi = v[i], wi = h.tau * y[t] - share * vi;
            w[i] = wi;
            x[t] = x[t] - vi * conj(first_w) - wi;
            if (writes && keep && i > k + 1) a[i + k * lda] = vi;
        }
        if (writes && thread == 0) d[k + 1] = real_part(x[0]);
    }
}
