// Householder QR of a tall panel of B columns, one row a thread, all blocks at work on every column; and the small
// kernels around it.  The launch has at most one block a multiprocessor, so that all blocks run at the same time.
//
// Column k: every block publishes sum over its rows i > k of conj(a_ik) a_ij for all j, the owner of row k publishes
// that row, and every block adds up all parts in the same order.  One exchange a column gives the reflector, the
// update of the columns to the right and, from the columns to the left, the next column of T.

#define PARTS (COMPLEX ? 2 : 1)

__device__ __forceinline__ double get_part(scalar_t a, int part) { return part ? imag_part(a) : real_part(a); }

// Sum over the warp of each of 2 WIDTH values: lane l ends with that of value l, in part[0].
template <int WIDTH>
__device__ __forceinline__ void fold(scalar_t (&part)[16], int lane) {
    const bool upper = lane & WIDTH;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const scalar_t keep = upper ? part[j + WIDTH] : part[j];
        const scalar_t give = upper ? part[j] : part[j + WIDTH];
        part[j] = keep + shuffle_xor(give, WIDTH);
    }
    if constexpr (WIDTH > 1) fold<WIDTH / 2>(part, lane);
}

// Y goes to y1 and y2; above the Y of the next `clear` columns come zeros.
// lines: 2 phases x (blocks x W x PARTS partial sums, then W x PARTS values of row k).
__device__ __forceinline__ void
factor_panel(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, int clear, uint4* lines, unsigned epoch)
{
    extern __shared__ unsigned char shared[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, threads = blockDim.x, warps = threads >> 5;
    scalar_t* sums = (scalar_t*)shared;              // warps x W; `collected` below needs doubles there
    scalar_t* total = (scalar_t*)((double*)shared + warps * W * PARTS);  // W: sums over all rows below k
    scalar_t* pivot = total + W;                     // W: row k
    scalar_t* tau = pivot + W;                       // W
    scalar_t* gram = tau + W;                        // W x W, above the diagonal: v_j^H v_k; then T
    scalar_t* product = gram + W * W;                // W x W
    const int row = blockIdx.x * threads + thread;
    const int columns = m < W ? m : W;
    const int stride = (gridDim.x + 1) * W * PARTS;  // lines of a phase

    scalar_t r[W];
#pragma unroll
    for (int j = 0; j < W; ++j) r[j] = row < m ? a[row + j * lda] : zero();
    scalar_t x = r[0];
    for (int k = 0; k < columns; ++k) {
        uint4* phase = lines + (long long)(k & 1) * stride;
        const unsigned flag = epoch + k + 1;
        // Sums of this warp: lane j ends with that of column j (and j + 32).
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
        if (row == k) {
#pragma unroll
            for (int j = 0; j < W; ++j)
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
                    store_line(phase + ((long long)gridDim.x * W + j) * PARTS + p, get_part(r[j], p), flag);
        }
        __syncthreads();
        for (int i = thread; i < W * PARTS; i += threads) {
            double sum = 0;
            for (int w = 0; w < warps; ++w) sum += get_part(sums[w * W + i / PARTS], i % PARTS);
            store_line(phase + (long long)blockIdx.x * W * PARTS + i, sum, flag);
        }
        __syncthreads();
        // All blocks' sums in the same order, eight lines on their way at a time; after the last block comes row k.
        double* collected = (double*)sums;
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
                        all &= try_line(phase + (long long)source * W * PARTS + i, flag, value[u]);
                    }
                } while (!all);
#pragma unroll
                for (int u = 0; u < 8; ++u) {
                    const int source = from + u * warps;
                    if (source < gridDim.x) sum += value[u];
                    if (source == gridDim.x) ((real_t*)pivot)[i] = value[u];
                }
            }
            collected[warp * W * PARTS + i] = sum;
        }
        __syncthreads();
        for (int i = thread; i < W * PARTS; i += threads) {
            double sum = 0;
            for (int w = 0; w < warps; ++w) sum += collected[w * W * PARTS + i];
            ((real_t*)total)[i] = sum;
        }
        __syncthreads();
        const Reflector h = make_reflector(pivot[k], real_part(total[k]));
        const scalar_t v = row == k ? one() : (row > k ? x * h.scale : zero());
        const scalar_t scale_conj = conj(h.scale), minus_v = negative(v);
        if (warp == 0)
            for (int j = lane; j < W; j += 32) {
                const scalar_t inner = fma_(scale_conj, total[j], pivot[j]);  // v_k^H a_j
                gram[j + k * W] = conj(inner);
                if (j == 0) tau[k] = h.tau;
            }
        const scalar_t tau_conj = conj(h.tau);
        scalar_t next = zero();
#pragma unroll
        for (int j = 0; j < W; ++j) {
            if (j == k) {
                r[j] = row == k ? make_scalar(h.beta, 0) : (row > k ? v : r[j]);
            } else if (j > k) {
                r[j] = fma_(minus_v, tau_conj * fma_(scale_conj, total[j], pivot[j]), r[j]);
                if (j == k + 1) next = r[j];
            }
        }
        x = next;
    }
    __syncthreads();
    if (blockIdx.x == 0) {
        // T of neighbouring groups of columns: [[T1, -T1 (Y1^H Y2) T2], [0, T2]], from single columns on.
        for (int i = thread; i < W * W; i += threads) {
            const int l = i % W, j = i / W;
            if (l == j) gram[i] = j < columns ? tau[j] : zero();
            if (l > j || (l < j && j >= columns)) gram[i] = zero();
        }
        __syncthreads();
        for (int width = 1; width < W; width *= 2) {
            // Entry (l, j) of a corner: the column's group starts at `second`, the row's at `second - width`.
            for (int i = thread; i < W * W; i += threads) {
                const int l = i % W, j = i / W, second = j / width * width;
                if (j & width && l / width * width + width == second) {
                    scalar_t sum = zero();
                    for (int h = second; h <= j; ++h) sum = fma_(gram[l + h * W], gram[h + j * W], sum);
                    product[i] = sum;
                }
            }
            __syncthreads();
            for (int i = thread; i < W * W; i += threads) {
                const int l = i % W, j = i / W, second = j / width * width;
                if (j & width && l / width * width + width == second) {
                    scalar_t sum = zero();
                    for (int h = l; h < second; ++h) sum = fma_(gram[l + h * W], product[h + j * W], sum);
                    gram[i] = negative(sum);
                }
            }
            __syncthreads();
        }
        for (int i = thread; i < W * W; i += threads) t[i % W + i / W * B] = gram[i];
    }
    if (row >= m) return;
#pragma unroll
    for (int j = 0; j < W; ++j) {
        a[row + j * lda] = r[j];
        const scalar_t y = row > j ? r[j] : (row == j ? one() : zero());
        const scalar_t value = j < columns ? y : zero();
        y1[row + j * ldy] = value;
        y2[row + j * ldy] = value;
        if (row < W && j < clear) y1[row + (W + j) * ldy] = y2[row + (W + j) * ldy] = zero();
    }
}

// With all registers that half the threads allow, and for panels of more rows.
extern "C" __global__ void __launch_bounds__(PANEL_THREADS / 2, 1)
panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, int clear, uint4* lines, unsigned epoch)
{
    factor_panel(a, lda, m, y1, y2, ldy, t, clear, lines, epoch);
}

extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1)
tall_panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, int clear, uint4* lines, unsigned epoch)
{
    factor_panel(a, lda, m, y1, y2, ldy, t, clear, lines, epoch);
}

// T of a panel in two halves of W columns: T12 = -T1 (Y1^H Y2) T2; gram holds Y1^H Y2; one block.
extern "C" __global__ void __launch_bounds__(256)
join_halves(scalar_t* t, const scalar_t* gram, long long ldg)
{
    extern __shared__ unsigned char shared[];
    scalar_t* product = (scalar_t*)shared;  // W x W
    for (int i = threadIdx.x; i < W * W; i += 256) {
        const int r = i % W, c = i / W;
        scalar_t sum = zero();
#pragma unroll 4
        for (int l = 0; l <= c; ++l) sum = fma_(gram[r + l * ldg], t[W + l + (W + c) * B], sum);
        product[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < W * W; i += 256) {
        const int r = i % W, c = i / W;
        scalar_t sum = zero();
#pragma unroll 4
        for (int l = r; l < W; ++l) sum = fma_(t[r + l * B], product[l + c * W], sum);
        t[r + (W + c) * B] = negative(sum);
    }
}

// M = Y^H (A Y - V S) = (A Y)^H Y - swap(S)^H S: the rows of S = X^H Y are those of V^H Y with neighbouring groups of B
// exchanged.  s: p rows of S, then B rows of (A Y)^H Y; one warp an entry of M.
extern "C" __global__ void __launch_bounds__(256)
correct_gram(const scalar_t* s, long long lds, int p, scalar_t* mm)
{
    const int c = blockIdx.x, lane = threadIdx.x & 31, r = blockIdx.y * 8 + (threadIdx.x >> 5);
    scalar_t sum = zero();
#pragma unroll 8
    for (int q = lane; q < p; q += 32) sum = fma_(conj(s[(q ^ B) + r * lds]), s[q + c * lds], sum);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) sum = sum + shuffle_xor(sum, lanes);
    if (lane == 0) mm[r + c * B] = s[p + r + c * lds] - sum;
}

// T and below it K = -1/2 T^H M T; one block a column.
extern "C" __global__ void __launch_bounds__(256)
small_factor(const scalar_t* mm, const scalar_t* t, scalar_t* k)
{
    extern __shared__ unsigned char shared[];
    scalar_t* ts = (scalar_t*)shared;    // B x (B + 1)
    scalar_t* parts = ts + B * (B + 1);  // 256
    const int c = blockIdx.x, thread = threadIdx.x, r = thread % B, share = thread / B;
    for (int i = thread; i < B * B; i += 256) ts[i % B + i / B * (B + 1)] = t[i];
    __syncthreads();
    scalar_t sum = zero();
#pragma unroll 4
    for (int l = share; l <= c; l += 256 / B) sum = fma_(mm[r + l * B], ts[l + c * (B + 1)], sum);
    parts[thread] = sum;
    __syncthreads();
    if (thread < B) {
        for (int i = 1; i < 256 / B; ++i) sum = sum + parts[thread + i * B];
        parts[thread] = sum;
    }
    __syncthreads();
    if (thread < B) {
        sum = zero();
        for (int l = 0; l <= thread; ++l) sum = fma_(conj(ts[l + thread * (B + 1)]), parts[l], sum);
        k[thread + c * 2 * B] = ts[thread + c * (B + 1)];
        k[B + thread + c * 2 * B] = (real_t)-0.5 * sum;
    }
}

// B columns of m rows.
extern "C" __global__ void __launch_bounds__(256)
copy_panel(const scalar_t* from, long long ldf, scalar_t* to, long long ldt, int m)
{
    const int i = blockIdx.x * 1024 + threadIdx.x;
    from += blockIdx.y * ldf;
    to += blockIdx.y * ldt;
    scalar_t value[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) value[u] = i + 256 * u < m ? from[i + 256 * u] : zero();
#pragma unroll
    for (int u = 0; u < 4; ++u)
        if (i + 256 * u < m) to[i + 256 * u] = value[u];
}
