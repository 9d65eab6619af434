// Bulge chasing (Algorithm 2): a persistent kernel, one sweep a block at a time, sweeps in order by tickets.
//
// Sweep s, task t: rows I = s + 1 + t B ..., a reflector that clears the first column of the block O left of the
// diagonal block D.  It may run once sweep s - 1 has finished task t + 1 (its frontier is then 3 B columns ahead).
// A ticket is drawn by a block that runs, and waits only for tickets drawn before: no occupancy can deadlock.
//
// Warp w holds the columns w CPW ... of O and D in registers; lane l holds rows l and, for B = 64, l + 32.

#define CHASE_WARPS (CHASE_THREADS / 32)
#define CPW (B / CHASE_WARPS)
#define RPL ((B + 31) / 32)

// band: element (i, j) at i + j (2 B - 1).  done[s]: finished tasks of sweep s; ticket: next sweep.
// vectors: element of sweep s at row i at vectors[s * sweep_stride + i * row_stride], or null.
extern "C" __global__ void __launch_bounds__(CHASE_THREADS)
chase(scalar_t* band, int n, int* done, int* ticket, scalar_t* vectors, long long sweep_stride, long long row_stride)
{
    extern __shared__ unsigned char shared[];
    scalar_t* full = (scalar_t*)shared;     // B x (B + 1): D with both triangles
    scalar_t* partial = full + B * (B + 1); // CHASE_WARPS x B
    scalar_t* column = partial + CHASE_WARPS * B; // B: the column to be cleared
    int* next = (int*)(column + B);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c0 = warp * CPW;
    const long long ld = 2 * B - 1;

    while (true) {
        if (threadIdx.x == 0) *next = atomicAdd(ticket, 1);
        __syncthreads();
        const int sweep = *next;
        __syncthreads();
        if (sweep >= n - 1) return;
        const int tasks = (n - 2 - sweep) / B + 1;
        scalar_t v[RPL], vc[CPW], tau = zero();  // the reflector: own rows, own columns
#pragma unroll
        for (int h = 0; h < RPL; ++h) v[h] = zero();
#pragma unroll
        for (int c = 0; c < CPW; ++c) vc[c] = zero();

        for (int task = 0; task < tasks; ++task) {
            const int start = sweep + 1 + task * B;
            const int m = n - start < B ? n - start : B;
            if (sweep > 0) {
                if (threadIdx.x == 0)
                    while (load_acquire(done + sweep - 1) < task + 2) {}
                __syncthreads();
            }
            // Load O (columns start - B + c) or, in task 0, the one column of the sweep; and the lower triangle of D.
            scalar_t o[RPL][CPW], d[RPL][CPW];
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int j = c0 + c;
                    o[h][c] = zero();
                    if (task > 0) {
                        if (r < m) o[h][c] = load(band + start + r + (long long)(start - B + j) * ld);
                    } else if (j == 0 && r < m) {
                        o[h][c] = load(band + start + r + (long long)sweep * ld);
                    }
                    d[h][c] = r < m && j <= r ? load(band + start + r + (long long)(start + j) * ld) : zero();
                }
            }
            // The reflector before, from the right: O - tau (O v) v^H.
            if (task > 0) {
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    scalar_t sum = zero();
#pragma unroll
                    for (int c = 0; c < CPW; ++c) sum = fma_(o[h][c], vc[c], sum);
                    if (lane + 32 * h < B) partial[warp * B + lane + 32 * h] = sum;
                }
            }
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int j = c0 + c;
                    if (r < B && j <= r) {
                        full[r + j * (B + 1)] = d[h][c];
                        if (j < r) full[j + r * (B + 1)] = conj(d[h][c]);
                    }
                }
            }
            __syncthreads();
            if (task > 0) {
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    scalar_t sum = zero();
                    if (r < B)
#pragma unroll
                        for (int w = 0; w < CHASE_WARPS; ++w) sum = sum + partial[w * B + r];
                    const scalar_t f = negative(tau) * sum;
#pragma unroll
                    for (int c = 0; c < CPW; ++c) o[h][c] = fma_(f, conj(vc[c]), o[h][c]);
                }
            }
            if (warp == 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    if (lane + 32 * h < B) column[lane + 32 * h] = o[h][0];
            __syncthreads();
            // The new reflector, found by every warp.
            real_t tail = 0;
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                v[h] = r < B ? column[r] : zero();
                if (r > 0) tail += square(v[h]);
            }
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes >>= 1) tail += __shfl_xor_sync(0xffffffffu, tail, lanes);
            const Reflector reflector = make_reflector(column[0], tail);
            tau = reflector.tau;
#pragma unroll
            for (int h = 0; h < RPL; ++h) v[h] = lane + 32 * h == 0 ? one() : v[h] * reflector.scale;
#pragma unroll
            for (int c = 0; c < CPW; ++c) vc[c] = c0 + c == 0 ? one() : column[c0 + c] * reflector.scale;
            // D v, own columns; the upper half comes from the other warps.
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                scalar_t sum = zero();
                if (r < B)
#pragma unroll
                    for (int c = 0; c < CPW; ++c) {
                        d[h][c] = full[r + (c0 + c) * (B + 1)];
                        sum = fma_(d[h][c], vc[c], sum);
                    }
                if (r < B) partial[warp * B + r] = sum;
            }
            __syncthreads();
            // O from the left while the partial sums settle: O - conj(tau) v (v^H O), first column beta e1.
            if (task > 0) {
                const scalar_t tau_conj = conj(tau);
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    scalar_t sum = zero();
#pragma unroll
                    for (int h = 0; h < RPL; ++h) sum = fma_(conj(v[h]), o[h][c], sum);
#pragma unroll
                    for (int lanes = 16; lanes > 0; lanes >>= 1) sum = sum + shuffle_xor(sum, lanes);
                    const scalar_t f = negative(tau_conj * sum);
#pragma unroll
                    for (int h = 0; h < RPL; ++h) o[h][c] = fma_(v[h], f, o[h][c]);
                }
            }
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                if (warp == 0) o[h][0] = r == 0 ? make_scalar(reflector.beta, 0) : zero();
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int j = c0 + c;
                    if (r < m && task > 0) band[start + r + (long long)(start - B + j) * ld] = o[h][c];
                    if (r < m && task == 0 && j == 0) band[start + r + (long long)sweep * ld] = o[h][c];
                }
            }
            // D from both sides: q = tau y - 1/2 |tau|^2 (v^H y) v; D - v q^H - q v^H.
            scalar_t q[RPL];
            real_t gamma = 0;
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                q[h] = zero();
                if (lane + 32 * h < B)
#pragma unroll
                    for (int w = 0; w < CHASE_WARPS; ++w) q[h] = q[h] + partial[w * B + lane + 32 * h];
                gamma += real_part(conj(v[h]) * q[h]);
            }
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes >>= 1) gamma += __shfl_xor_sync(0xffffffffu, gamma, lanes);
            gamma *= (real_t)-0.5 * square(tau);
#pragma unroll
            for (int h = 0; h < RPL; ++h) q[h] = tau * q[h] + gamma * v[h];
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const int j = c0 + c;
                scalar_t qc = zero();
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const scalar_t other = shuffle(q[h], j & 31);
                    if (j / 32 == h) qc = other;
                }
                const scalar_t qc_conj = conj(qc), vc_conj = conj(vc[c]);
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    scalar_t value = fma_(negative(v[h]), qc_conj, d[h][c]);
                    value = fma_(negative(q[h]), vc_conj, value);
                    if (r == j) value = make_scalar(real_part(value), 0);
                    if (r < m && j <= r) band[start + r + (long long)(start + j) * ld] = value;
                }
            }
            if (vectors != nullptr && warp == CHASE_WARPS - 1)
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    if (r < m) vectors[sweep * sweep_stride + (start + r) * row_stride] = r == 0 ? tau : v[h];
                }
            __syncthreads();
            if (threadIdx.x == 0) store_release(done + sweep, task + 1 == tasks ? n + 2 : task + 1);
        }
    }
}
