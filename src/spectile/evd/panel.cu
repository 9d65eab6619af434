// Householder QR of a tall panel of B columns, one row a thread, all blocks at work on every column; and the small
// kernels around it.  The launch has at most one block a multiprocessor, so that all blocks run at the same time.
//
// Column k: every block publishes sum over its rows i > k of conj(a_ik) a_ij for all j, the owner of row k publishes
// that row, and every block adds up all parts in the same order.  One exchange a column gives the reflector, the
// update of the columns to the right and, from the columns to the left, the next column of T.

#define PANEL_WARPS (PANEL_THREADS / 32)
#define PARTS (COMPLEX ? 2 : 1)

__device__ __forceinline__ double get_part(scalar_t a, int part) { return part ? imag_part(a) : real_part(a); }

// Sum over the warp of each of 2 WIDTH values: lane l ends with that of value l, in part[0].
template <int WIDTH>
__device__ __forceinline__ void fold(scalar_t (&part)[32], int lane) {
    const bool upper = lane & WIDTH;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const scalar_t keep = upper ? part[j + WIDTH] : part[j];
        const scalar_t give = upper ? part[j] : part[j + WIDTH];
        part[j] = keep + shuffle_xor(give, WIDTH);
    }
    if constexpr (WIDTH > 1) fold<WIDTH / 2>(part, lane);
}

// lines: 2 phases x (blocks x B x PARTS partial sums, then B x PARTS values of row k).
extern "C" __global__ void __launch_bounds__(PANEL_THREADS, 1)
panel_qr(scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, uint4* lines, unsigned epoch)
{
    extern __shared__ unsigned char shared[];
    scalar_t* sums = (scalar_t*)shared;              // PANEL_WARPS x B; `collected` below needs doubles there
    scalar_t* total = (scalar_t*)((double*)shared + PANEL_WARPS * B * PARTS);  // B: sums over all rows below k
    scalar_t* pivot = total + B;                     // B: row k
    scalar_t* gram = pivot + B;                      // B: v_j^H v_k of the last column, for T
    scalar_t* tau = gram + B;                        // B
    scalar_t* tt = tau + B;                          // B x B, block 0 only
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int row = blockIdx.x * PANEL_THREADS + thread;
    const int columns = m < B ? m : B;
    const int stride = (gridDim.x + 1) * B * PARTS;  // lines of a phase

    scalar_t r[B];
#pragma unroll
    for (int j = 0; j < B; ++j) r[j] = row < m ? a[row + j * lda] : zero();
    if (blockIdx.x == 0)
        for (int i = thread; i < B * B; i += PANEL_THREADS) tt[i] = zero();

    scalar_t x = r[0];
    for (int k = 0; k < columns; ++k) {
        uint4* phase = lines + (long long)(k & 1) * stride;
        const unsigned flag = epoch + k + 1;
        // Sums of this warp: lane j ends with that of column j (and j + 32).
        const scalar_t factor = row > k ? conj(x) : zero();
#pragma unroll
        for (int base = 0; base < B; base += 32) {
            scalar_t part[32];
#pragma unroll
            for (int j = 0; j < 32; ++j) part[j] = base + j < B ? factor * r[(base + j) % B] : zero();
            fold<16>(part, lane);
            if (base + lane < B) sums[warp * B + base + lane] = part[0];
        }
        if (row == k) {
#pragma unroll
            for (int j = 0; j < B; ++j)
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
                    store_line(phase + ((long long)gridDim.x * B + j) * PARTS + p, get_part(r[j], p), flag);
        }
        __syncthreads();
        for (int i = thread; i < B * PARTS; i += PANEL_THREADS) {
            double sum = 0;
            for (int w = 0; w < PANEL_WARPS; ++w) sum += get_part(sums[w * B + i / PARTS], i % PARTS);
            store_line(phase + (long long)blockIdx.x * B * PARTS + i, sum, flag);
        }
        // While the others arrive: the column of T that belongs to the reflector before.
        if (blockIdx.x == 0 && warp == PANEL_WARPS - 1 && k > 0) {
            const int c = k - 1;
            for (int i = lane; i < c; i += 32) {
                scalar_t sum = zero();
                for (int j = i; j < c; ++j) sum = fma_(tt[i + j * B], gram[j], sum);
                tt[i + c * B] = negative(tau[c]) * sum;
            }
            if (lane == c % 32) tt[c + c * B] = tau[c];  // the lane that reads row c later
        }
        __syncthreads();
        // All blocks' sums in the same order; line i of the last "block" is row k.
        double* collected = (double*)sums;  // PANEL_WARPS x B real parts at a time
        for (int i = lane; i < B * PARTS; i += 32) {
            double sum = 0;
            for (int from = warp; from < gridDim.x; from += PANEL_WARPS) {
                double value;
                while (!try_line(phase + (long long)from * B * PARTS + i, flag, value)) {}
                sum += value;
            }
            collected[warp * B * PARTS + i] = sum;
        }
        if (warp == 0)
            for (int i = lane; i < B * PARTS; i += 32) {
                double value;
                while (!try_line(phase + (long long)gridDim.x * B * PARTS + i, flag, value)) {}
                ((real_t*)pivot)[i] = value;
            }
        __syncthreads();
        for (int i = thread; i < B * PARTS; i += PANEL_THREADS) {
            double sum = 0;
            for (int w = 0; w < PANEL_WARPS; ++w) sum += collected[w * B * PARTS + i];
            ((real_t*)total)[i] = sum;
        }
        __syncthreads();
        const Reflector h = make_reflector(pivot[k], real_part(total[k]));
        const scalar_t v = row == k ? one() : (row > k ? x * h.scale : zero());
        const scalar_t scale_conj = conj(h.scale), minus_v = negative(v);
        if (warp == 0)
            for (int j = lane; j < B; j += 32) {
                const scalar_t product = fma_(scale_conj, total[j], pivot[j]);  // v_k^H a_j
                gram[j] = conj(product);
                if (j == 0) tau[k] = h.tau;
            }
        const scalar_t tau_conj = conj(h.tau);
        scalar_t next = zero();
#pragma unroll
        for (int j = 0; j < B; ++j) {
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
    if (blockIdx.x == 0 && columns > 0) {
        const int c = columns - 1;
        for (int i = thread; i < c; i += PANEL_THREADS) {
            scalar_t sum = zero();
            for (int j = i; j < c; ++j) sum = fma_(tt[i + j * B], gram[j], sum);
            tt[i + c * B] = negative(tau[c]) * sum;
        }
        if (thread == 0) tt[c + c * B] = tau[c];
        __syncthreads();
        for (int i = thread; i < B * B; i += PANEL_THREADS) t[i] = tt[i];
    }
    if (row >= m) return;
#pragma unroll
    for (int j = 0; j < B; ++j) {
        a[row + j * lda] = r[j];
        const scalar_t y = row > j ? r[j] : (row == j ? one() : zero());
        const scalar_t value = j < columns ? y : zero();
        y1[row + j * ldy] = value;
        y2[row + j * ldy] = value;
    }
}

// Z = P T + Y K with K = -1/2 T^H M T, written to both buffers; p is overwritten (z1 is p).
extern "C" __global__ void __launch_bounds__(PANEL_THREADS)
finish_z(scalar_t* p, const scalar_t* y, long long ldy, int m, const scalar_t* t, const scalar_t* mm, scalar_t* z2)
{
    extern __shared__ unsigned char shared[];
    scalar_t* ts = (scalar_t*)shared;  // B x B, column-major
    scalar_t* ms = ts + B * B;
    scalar_t* ks = ms + B * B;
    for (int i = threadIdx.x; i < B * B; i += PANEL_THREADS) {
        ts[i] = t[i];
        ms[i] = mm[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < B * B; i += PANEL_THREADS) {  // M T
        const int row = i % B, column = i / B;
        scalar_t sum = zero();
        for (int l = 0; l <= column; ++l) sum = fma_(ms[row + l * B], ts[l + column * B], sum);
        ks[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < B * B; i += PANEL_THREADS) {  // T^H (M T)
        const int row = i % B, column = i / B;
        scalar_t sum = zero();
        for (int l = 0; l <= row; ++l) sum = fma_(conj(ts[l + row * B]), ks[l + column * B], sum);
        ms[i] = (real_t)-0.5 * sum;
    }
    __syncthreads();
    const int row = blockIdx.x * PANEL_THREADS + threadIdx.x;
    if (row >= m) return;
    scalar_t pr[B], yr[B];
#pragma unroll
    for (int j = 0; j < B; ++j) {
        pr[j] = p[row + j * ldy];
        yr[j] = y[row + j * ldy];
    }
    for (int j = 0; j < B; ++j) {
        scalar_t sum = zero();
#pragma unroll
        for (int l = 0; l < B; ++l) {
            sum = fma_(pr[l], ts[l + j * B], sum);
            sum = fma_(yr[l], ms[l + j * B], sum);
        }
        p[row + j * ldy] = sum;
        z2[row + j * ldy] = sum;
    }
}
