// Householder QR of a tall panel of B columns, one row per thread, all blocks at work on every column.  Blocks wait for
// each other: they are a cluster of CLUSTER, or the launch is cooperative, with at most one block per multiprocessor.
//
// Column k: every block publishes sum over its rows i > k of conj(a_ik) a_ij for all j, the owner of row k publishes
// that row, and every block adds up all parts in the same order.  One exchange a column gives the reflector, the
// update of the columns to the right and, from the columns to the left, the next column of T.
//
// A cluster's blocks send to each other's shared memory, in two sets of places that take turns: who sends in column
// k + 2 has received in column k + 1 from all, each of which has read before it sent what it received in column k.

#include "messages.cuh"
#if CLUSTER
#include "reduction/cluster.cuh"
#endif

#define PARTS (COMPLEX ? 2 : 1)

__device__ __forceinline__ double get_part(scalar_t a, int part) { return part ? imag_part(a) : real_part(a); }

// What the columns of a panel share.
struct Panel {
#if CLUSTER
    double* received;          // 2 x (CLUSTER x W x PARTS partial sums, then W x PARTS values of row k)
    unsigned long long* full;  // 2 barriers, which count what has been received
#else
    uint4* messages;  // 2 phases x (blocks x W x PARTS partial sums, then W x PARTS values of row k)
    unsigned epoch;
    double* collected;  // (warps + 1) x W x PARTS: of all blocks, by the warp that read them; then row k
#endif
    int row, columns;
    scalar_t* sums;     // SETS x warps x W: of the block's warps
    scalar_t* head;     // SETS x W: row k, in the block that has it
    scalar_t* total;    // W of the warp: sums over all rows below k
    scalar_t* factors;  // W of the warp: what v is multiplied with in each column
    scalar_t* tau;      // W
    scalar_t* gram;     // W x W, above the diagonal: v_j^H v_k
};

#define SETS (CLUSTER ? 2 : 1)

// Exchange the sums of the block's warps for those of all blocks, which come to `total`; return where row k is.
#if CLUSTER
// Every warp adds up the warps, sends that to every so many-th block, and adds up the blocks.
__device__ __forceinline__ const double* exchange(const Panel& panel, const scalar_t* sums, const scalar_t* head, int k) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    double* received = panel.received + (k & 1) * (CLUSTER + 1) * W * PARTS;
    unsigned long long& full = panel.full[k & 1];
    if (threadIdx.x == 0) barrier_expect(full, 8 * (CLUSTER + 1) * W * PARTS);
    for (int i = lane; i < W * PARTS; i += 32) {
        double sum = 0;
#pragma unroll 8
        for (int w = 0; w < warps; ++w) sum += get_part(sums[w * W + i / PARTS], i % PARTS);
        for (int to = warp; to < CLUSTER; to += warps) send_to(received + blockIdx.x * W * PARTS + i, sum, full, to);
        if (blockIdx.x == 0) {  // row k < W is the first block's
            const double value = get_part(head[i / PARTS], i % PARTS);
            for (int to = warp; to < CLUSTER; to += warps) send_to(received + CLUSTER * W * PARTS + i, value, full, to);
        }
    }
    barrier_wait(full, k >> 1 & 1);
    for (int i = lane; i < W * PARTS; i += 32) {
        double sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int from = 0; from < CLUSTER; ++from) sum[from & 3] += received[from * W * PARTS + i];
        ((real_t*)panel.total)[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    return received + CLUSTER * W * PARTS;
}
#else
__device__ __forceinline__ const double* exchange(const Panel& panel, const scalar_t* sums, const scalar_t* head, int k) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    uint4* phase = panel.messages + (long long)(k & 1) * (gridDim.x + 1) * W * PARTS;
    const unsigned flag = panel.epoch + k + 1;
    if (warp == 0)
        for (int i = lane; i < W * PARTS; i += 32) {
            double sum = 0;
#pragma unroll 8
            for (int w = 0; w < warps; ++w) sum += get_part(sums[w * W + i / PARTS], i % PARTS);
            store_flagged(phase + (long long)blockIdx.x * W * PARTS + i, sum, flag);
        }
    if (warp == 1 && blockIdx.x == 0)  // row k < W is the first block's
        for (int i = lane; i < W * PARTS; i += 32)
            store_flagged(phase + (long long)gridDim.x * W * PARTS + i, get_part(head[i / PARTS], i % PARTS), flag);
    // All blocks' sums in the same order, eight messages on their way at a time; after the last block comes row k.
    for (int i = lane; i < W * PARTS; i += 32) {
        double sum = 0;
        for (int from = warp; from <= gridDim.x; from += 8 * warps) {
            double value[8];
            bool all;
            do {
                all = true;
#pragma unroll
                for (int u = 0; u < 8; ++u) {
                    const int source = min(from + u * warps, (int)gridDim.x);
                    all &= try_flagged(phase + (long long)source * W * PARTS + i, flag, value[u]);
                }
            } while (!all);
#pragma unroll
            for (int u = 0; u < 8; ++u) {
                const int source = from + u * warps;
                if (source < gridDim.x) sum += value[u];
                if (source == gridDim.x) panel.collected[warps * W * PARTS + i] = value[u];
            }
        }
        panel.collected[warp * W * PARTS + i] = sum;
    }
    __syncthreads();
    for (int i = lane; i < W * PARTS; i += 32) {
        double sum = 0;
#pragma unroll 8
        for (int w = 0; w < warps; ++w) sum += panel.collected[w * W * PARTS + i];
        ((real_t*)panel.total)[i] = sum;
    }
    return panel.collected + warps * W * PARTS;
}
#endif

#define GROUP 8  // columns between two that the code distinguishes

// Apply the reflector of column k to it and to those on its right: those left of FIRST are not touched, and k is one of the
// next GROUP, or is looked for further on.  Only this differs from column to column, so that the rest is compiled once.
template <int FIRST>
__device__ __forceinline__ void update_columns(const Panel& panel, const Reflector& h, int k, scalar_t (&r)[W], scalar_t& x) {
    if constexpr (FIRST + GROUP < W)
        if (k >= FIRST + GROUP) {
            update_columns<FIRST + GROUP>(panel, h, k, r, x);
            return;
        }
    const int row = panel.row;
    const scalar_t v = row == k ? one() : (row > k ? x * h.scale : zero()), minus_v = negative(v);
    scalar_t next = zero();
#pragma unroll
    for (int j = FIRST; j < W; ++j) {
        scalar_t value = fma_(minus_v, panel.factors[j], r[j]);
        if (j < FIRST + GROUP && j == k && row >= k) value = row == k ? make_scalar(h.beta, 0) : v;
        if (j <= FIRST + GROUP && j == k + 1) next = value;
        r[j] = value;
    }
    x = next;
}

__device__ __forceinline__ void factor_columns(const Panel& panel, scalar_t (&r)[W], scalar_t& x) {
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, warps = blockDim.x >> 5, row = panel.row;
#pragma unroll 1
    for (int k = 0; k < panel.columns; ++k) {
        scalar_t* sums = panel.sums + (SETS - 1) * (k & 1) * warps * W;
        scalar_t* head = panel.head + (SETS - 1) * (k & 1) * W;
        // Sums of this warp: lane j ends with that of column j (and j + 16).
        const scalar_t factor = row > k ? conj(x) : zero();
#pragma unroll
        for (int base = 0; base < W; base += 16) {
            scalar_t part[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) part[j] = factor * r[base + j];
            fold<8>(part, lane);
            const scalar_t sum = part[0] + shuffle_xor(part[0], 16);
            if (lane < 16) sums[warp * W + base + lane] = sum;
        }
        if (row == k)
#pragma unroll
            for (int j = 0; j < W; ++j) head[j] = r[j];
        __syncthreads();
        const double* pivot = exchange(panel, sums, head, k);
        __syncwarp();
#define PIVOT(j) make_scalar(pivot[(j) * PARTS], COMPLEX ? pivot[(j) * PARTS + PARTS - 1] : 0)
        const Reflector h = make_reflector(PIVOT(k), real_part(panel.total[k]));
        if (lane < W) {
            const scalar_t inner = fma_(conj(h.scale), panel.total[lane], PIVOT(lane));  // v_k^H a_j
            panel.factors[lane] = lane > k ? conj(h.tau) * inner : zero();
            if (warp == 0) panel.gram[lane + k * W] = conj(inner);
            if (warp == 0 && lane == 0) panel.tau[k] = h.tau;
        }
        __syncwarp();
        update_columns<0>(panel, h, k, r, x);
    }
}

// T column by column, each lane its row: T(:, j) = -T Y^H y_j tau_j; gram and tau are this warp's own.  A copy for each GROUP of
// columns holds as many products as its last column has; one for each column would be six times as much to compile.
template <int FIRST>
__device__ __forceinline__ void form_t(const Panel& panel, int lane, scalar_t (&own)[W], scalar_t* t) {
#pragma unroll 1
    for (int j = FIRST; j < FIRST + GROUP; ++j) {
        scalar_t even = zero(), odd = zero();
#pragma unroll
        for (int h = 0; h < FIRST + GROUP; ++h)
            if (h < j) {
                if (h & 1) odd = fma_(own[h], panel.gram[h + j * W], odd);
                else even = fma_(own[h], panel.gram[h + j * W], even);
            }
        const scalar_t scale = j < panel.columns ? panel.tau[j] : zero();
        const scalar_t value = lane == j ? scale : (lane < j && j < panel.columns ? negative(even + odd) * scale : zero());
#pragma unroll
        for (int h = FIRST; h < FIRST + GROUP; ++h)
            if (h == j) own[h] = value;
        if (lane < W) t[lane + j * B] = value;
    }
    if constexpr (FIRST + GROUP < W) form_t<FIRST + GROUP>(panel, lane, own, t);
}

// Y goes to y1 and y2; above the Y of the next `clear` columns come zeros.
__device__ __forceinline__ void factor_panel(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t,
                                             int clear, uint4* messages, unsigned epoch) {
    DYNAMIC_SHARED(double, shared);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const int columns = m < W ? m : W;
    Panel panel;
    panel.row = row;
    panel.columns = columns;
#if CLUSTER
    panel.received = shared;
    panel.full = (unsigned long long*)(shared + 2 * (CLUSTER + 1) * W * PARTS);
    panel.sums = (scalar_t*)(panel.full + 2);
    if (threadIdx.x == 0) {
        barrier_init(panel.full[0], 1);
        barrier_init(panel.full[1], 1);
        fence_barrier_init();
    }
    cluster_start();
#else
    panel.messages = messages;
    panel.epoch = epoch;
    panel.collected = shared;
    panel.sums = (scalar_t*)(shared + (warps + 1) * W * PARTS);
#endif
    panel.total = panel.sums + (SETS * warps + 2 * warp) * W;
    panel.factors = panel.total + W;
    panel.head = panel.sums + (SETS + 2) * warps * W;
    panel.tau = panel.head + SETS * W;
    panel.gram = panel.tau + W;

    scalar_t r[W];
#pragma unroll
    for (int j = 0; j < W; ++j) r[j] = row < m ? a[row + j * lda] : zero();
    scalar_t x = r[0];
    factor_columns(panel, r, x);
    if (row < m)
#pragma unroll
        for (int j = 0; j < W; ++j) {
            a[row + j * lda] = r[j];
            const scalar_t y = row > j ? r[j] : (row == j ? one() : zero());
            const scalar_t value = j < columns ? y : zero();
            y1[row + j * ldy] = value;
            y2[row + j * ldy] = value;
            if (row < W && j < clear) y1[row + (W + j) * ldy] = y2[row + (W + j) * ldy] = zero();
        }
    if (blockIdx.x == 0 && warp == 0) {
        __syncwarp();
        scalar_t own[W];
        form_t<0>(panel, lane, own, t);
    }
}

// With all registers that half the threads allow, or for panels of more rows; apart, because each takes a second to
// compile and few matrices need all.
#if CLUSTER
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(PANEL_THREADS / 2, 1)
cluster_panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, int clear) {
    factor_panel(a, lda, m, y1, y2, ldy, t, clear, nullptr, 0);
}
#elif TALL
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1) tall_panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2,
                                                                             long long ldy, scalar_t* t, int clear, uint4* messages,
                                                                             unsigned epoch) {
    factor_panel(a, lda, m, y1, y2, ldy, t, clear, messages, epoch);
}
#else
extern "C" __global__ void __launch_bounds__(PANEL_THREADS / 2, 1) panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2,
                                                                            long long ldy, scalar_t* t, int clear, uint4* messages,
                                                                            unsigned epoch) {
    factor_panel(a, lda, m, y1, y2, ldy, t, clear, messages, epoch);
}
#endif
