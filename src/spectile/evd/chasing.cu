// Bulge chasing (Algorithm 2): a persistent kernel, one sweep a block at a time, sweeps in order by tickets.
//
// Sweep s, task t: rows I = s + 1 + t B ..., a reflector that clears the first column of the block O left of the
// diagonal block D.  Sweep s + 1 works one row and column further.  Of what sweep s does, the first row of O and D and
// the first column of D come by mail: as lines that carry their own flag, sent as soon as they are computed, and never
// stored in the band by sweep s.  The rest is stored and released, O as soon as it is done, D at the end of the task, so
// that each of them is on its way between two sweeps while the other is worked on.
// A ticket is drawn by a block that runs, and waits only for tickets drawn before: no occupancy can deadlock.
//
// Two more warps wait, so that those that compute need not: one receives the mail and looks what the sweep before has
// released, the other publishes what has been stored.
//
// Warp w holds the columns w CPW ... of O and D in registers; lane l holds rows l and, for B = 64, l + 32.

#define CHASE_WARPS (CHASE_THREADS / 32)
#define CPW (B / CHASE_WARPS)
#define RPL ((B + 31) / 32)
#define LINES (2 * B * (COMPLEX ? 2 : 1))  // of a task: the first row of O, the first column of D

__device__ __forceinline__ void send(uint4* slot, int line, scalar_t value, unsigned tag) {
    if (COMPLEX) {
        store_line(slot + 2 * line, real_part(value), tag);
        store_line(slot + 2 * line + 1, imag_part(value), tag);
    } else {
        store_line(slot + line, real_part(value), tag);
    }
}

__device__ __forceinline__ bool try_receive(const uint4* slot, int line, unsigned tag, scalar_t& value) {
    double x, y = 0;
    bool here;
    if (COMPLEX) {
        here = try_line(slot + 2 * line, tag, x);
        here &= try_line(slot + 2 * line + 1, tag, y);
    } else {
        here = try_line(slot + line, tag, x);
    }
    value = make_scalar(x, y);
    return here;
}

// Barriers of some of the block's warps.
__device__ __forceinline__ void sync_warps(int barrier, int warps) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
__device__ __forceinline__ void arrive_warps(int barrier, int warps) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
#define WORKING 1      // the barrier of those that compute
#define EDGE_IS_HERE 2 // of the warp that holds O's last column, with the first helper
#define ROW_IS_HERE 3  // with the first helper
#define MAY_LOAD_D 4   // with both
#define STORED_O 5     // with the second
#define STORED_D 6     // with the second
#define HELPERS 2      // warps
#define FINISHED (1 << 30)

__device__ __forceinline__ void wait_for(const int* released, int phase, int lane) {
    if (lane == 0)
        while (load_acquire(released) < phase) {}
    __syncwarp();
}

// Sum of one entry of the parts of all warps, B apart.
__device__ __forceinline__ scalar_t sum_of_warps(const scalar_t* part) {
    scalar_t sum[2] = {part[0], part[B]};
#pragma unroll
    for (int w = 2; w < CHASE_WARPS; ++w) sum[w & 1] = sum[w & 1] + part[w * B];
    return sum[0] + sum[1];
}

// `rows` rows of O (columns start - B + c), with or without its last column.
__device__ __forceinline__ void
load_o(const scalar_t* band, int start, int rows, bool last, int lane, int c0, scalar_t (&o)[RPL][CPW])
{
    const long long ld = 2 * B - 1;
#pragma unroll
    for (int h = 0; h < RPL; ++h) {
        const int r = lane + 32 * h;
#pragma unroll
        for (int c = 0; c < CPW; ++c) {
            o[h][c] = zero();
            if (r < rows && (c < CPW - 1 || last)) o[h][c] = load(band + start + r + (long long)(start - B + c0 + c) * ld);
        }
    }
}

// The lower triangle of D: `rows` rows.
__device__ __forceinline__ void load_d(const scalar_t* band, int start, int rows, int lane, int c0, scalar_t (&d)[RPL][CPW])
{
    const long long ld = 2 * B - 1;
#pragma unroll
    for (int h = 0; h < RPL; ++h) {
        const int r = lane + 32 * h;
#pragma unroll
        for (int c = 0; c < CPW; ++c)
            d[h][c] = r < rows && c0 + c <= r ? load(band + start + r + (long long)(start + c0 + c) * ld) : zero();
    }
}

// band: element (i, j) at i + j (2 B - 1).  done[s]: released phases of sweep s, two a task; ticket: next sweep.
// mail: gridDim.x + 1 sweeps x (n / B + 2) tasks x LINES.
// vectors: element of sweep s at row i at vectors[s * sweep_stride + i * row_stride], or null.
extern "C" __global__ void __launch_bounds__(CHASE_THREADS + 32 * HELPERS, COMPLEX ? 1 : CHASE_BLOCKS)
chase(scalar_t* band, int n, int* done, int* ticket, uint4* mail, scalar_t* vectors, long long sweep_stride,
      long long row_stride)
{
    extern __shared__ unsigned char shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c0 = warp * CPW;
    scalar_t* full = (scalar_t*)shared;     // B x (B + 1): D with both triangles
    scalar_t* partial = full + B * (B + 1); // CHASE_WARPS x B
    scalar_t* column = partial + CHASE_WARPS * B; // B: the column to be cleared
    scalar_t* edge = column + B;                  // B: the last column of O, by mail
    scalar_t* inner = edge + B + warp * (2 * B + CPW);  // CPW of the warp: v^H O
    scalar_t* shared_q = inner + CPW;                 // B of the warp
    scalar_t* shared_v = shared_q + B;                // B of the warp: the reflector
    int* next = (int*)(edge + B + CHASE_WARPS * (2 * B + CPW));  // 2, in turns
    const long long ld = 2 * B - 1;
    const int slots = n / B + 2;

    for (int round = 0;; ++round) {
        if (threadIdx.x == 0) next[round & 1] = atomicAdd(ticket, 1);
        __syncthreads();
        const int sweep = next[round & 1];
        if (sweep >= n - 1) return;
        const int tasks = (n - 2 - sweep) / B + 1;
        const int* released = done + sweep - 1;
        // A slot is used again when its sweep and the one that reads it are done: no more than gridDim.x are not.
        const uint4* inbox = mail + (long long)((sweep + gridDim.x) % (gridDim.x + 1)) * slots * LINES;
        const unsigned inbox_tag = (unsigned)(sweep - 1) * slots + 1;
        if (warp == CHASE_WARPS) {
            if (sweep > 0) wait_for(released, 2, lane);
            __syncthreads();
            for (int task = 0; task < tasks; ++task) {
                const int start = sweep + 1 + task * B;
                const bool follows = sweep > 0 && task + 1 < tasks;
                if (sweep > 0) {
                    // Last column of O: the first of D of the same task, then the first entry of the next task's O.
                    const bool whole = n - start >= B;
                    const int rows = whole ? B - 1 : n - start;
                    const uint4* slot = inbox + task * LINES;
                    scalar_t value[RPL];
                    bool here;
                    do {
                        here = true;
#pragma unroll
                        for (int h = 0; h < RPL; ++h) {
                            const int r = lane + 32 * h;
                            value[h] = zero();
                            if (r < rows) here &= try_receive(slot, B + r + 1, inbox_tag + task, value[h]);
                            if (whole && r == B - 1) here &= try_receive(slot + LINES, 0, inbox_tag + task + 1, value[h]);
                        }
                    } while (!here);
#pragma unroll
                    for (int h = 0; h < RPL; ++h)
                        if (lane + 32 * h < B) edge[lane + 32 * h] = value[h];
                    sync_warps(EDGE_IS_HERE, 2);
                    if (whole) {
                        do {
                            here = true;
#pragma unroll
                            for (int h = 0; h < RPL; ++h)
                                if (lane + 32 * h < B)
                                    here &= try_receive(slot + LINES, lane + 32 * h + 1, inbox_tag + task + 1, value[h]);
                        } while (!here);
                        // The place is free: EDGE_IS_HERE came after all warps had read D of the task before.
#pragma unroll
                        for (int h = 0; h < RPL; ++h) {
                            const int j = lane + 32 * h;
                            if (j < B) {
                                full[B - 1 + j * (B + 1)] = value[h];
                                if (j < B - 1) full[j + (B - 1) * (B + 1)] = conj(value[h]);
                            }
                        }
                    }
                }
                if (follows) wait_for(released, 2 * task + 3, lane);
                sync_warps(ROW_IS_HERE, CHASE_WARPS + 1);
                if (follows) wait_for(released, 2 * task + 4, lane);
                arrive_warps(MAY_LOAD_D, CHASE_WARPS + HELPERS);
            }
            continue;
        }
        __syncthreads();
        if (warp == CHASE_WARPS + 1) {
            // MAY_LOAD_D keeps the warps that compute from storing again before what they stored is seen here.
            for (int task = 0; task < tasks; ++task) {
                sync_warps(STORED_O, CHASE_WARPS + 1);
                if (lane == 0) store_release(done + sweep, 2 * task + 1);
                __syncwarp();
                sync_warps(STORED_D, CHASE_WARPS + 1);
                arrive_warps(MAY_LOAD_D, CHASE_WARPS + HELPERS);
                if (lane == 0) store_release(done + sweep, task + 1 == tasks ? FINISHED : 2 * task + 2);
                __syncwarp();
            }
            continue;
        }
        uint4* outbox = mail + (long long)(sweep % (gridDim.x + 1)) * slots * LINES;
        const unsigned outbox_tag = (unsigned)sweep * slots + 1;
        scalar_t v[RPL], tau = zero();  // the reflector: own rows
#pragma unroll
        for (int h = 0; h < RPL; ++h) v[h] = zero();
        const scalar_t* vc = shared_v + c0;  // own columns

        scalar_t o[RPL][CPW], d[RPL][CPW];
#pragma unroll
        for (int h = 0; h < RPL; ++h)
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const int r = lane + 32 * h;
                o[h][c] = zero();
                if (c == 0 && sweep == 0 && warp == 0 && r < min(n - 1, B)) o[h][c] = load(band + 1 + r);
            }
        load_d(band, sweep + 1, sweep > 0 && n - sweep - 1 >= B ? B - 1 : min(n - sweep - 1, B), lane, c0, d);
        for (int task = 0; task < tasks; ++task) {
            const int start = sweep + 1 + task * B;
            const int m = min(n - start, B), next_m = min(n - start - B, B);
            const bool by_mail = sweep > 0 && m == B;  // the last row
            if (sweep > 0 && warp == (task > 0 ? CHASE_WARPS - 1 : 0)) {
                sync_warps(EDGE_IS_HERE, 2);
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    if (lane + 32 * h < B) {
                        if (task > 0) o[h][CPW - 1] = edge[lane + 32 * h];
                        else o[h][0] = edge[lane + 32 * h];
                    }
            }
            // The reflector before, from the right: O - tau (O v) v^H.
            if (task > 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    scalar_t even = zero(), odd = zero();
#pragma unroll
                    for (int c = 0; c < CPW; c += 2) {
                        even = fma_(o[h][c], vc[c], even);
                        odd = fma_(o[h][c + 1], vc[c + 1], odd);
                    }
                    if (lane + 32 * h < B) partial[warp * B + lane + 32 * h] = even + odd;
                }
            if (warp == 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    if (lane + 32 * h < B) column[lane + 32 * h] = o[h][0];
            sync_warps(WORKING, CHASE_WARPS);
            scalar_t x[RPL];  // the column to be cleared
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                x[h] = r < B ? column[r] : zero();
                if (task > 0) {
                    const scalar_t f = r < B ? negative(tau) * sum_of_warps(partial + r) : zero();
                    x[h] = x[h] + f;
#pragma unroll
                    for (int c = 0; c < CPW; ++c) o[h][c] = fma_(f, conj(vc[c]), o[h][c]);
                }
            }
            // The new reflector, found by every warp; next to its norm the products of its tail with O.
            const scalar_t head = shuffle(x[0], 0);
            if (lane == 0) {
                x[0] = zero();
#pragma unroll
                for (int c = 0; c < CPW; ++c) inner[c] = o[0][c];
            }
            real_t tail = 0;
            scalar_t part[CPW];
#pragma unroll
            for (int h = 0; h < RPL; ++h) tail += square(x[h]);
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                part[c] = zero();
#pragma unroll
                for (int h = 0; h < RPL; ++h) part[c] = fma_(conj(x[h]), o[h][c], part[c]);
            }
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes >>= 1) tail += __shfl_xor_sync(0xffffffffu, tail, lanes);
            fold<CPW / 2>(part, lane);
#pragma unroll
            for (int lanes = CPW; lanes < 32; lanes *= 2) part[0] = part[0] + shuffle_xor(part[0], lanes);
            const Reflector reflector = make_reflector(head, tail);
            tau = reflector.tau;
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                v[h] = lane + 32 * h == 0 ? one() : x[h] * reflector.scale;
                if (lane + 32 * h < B) shared_v[lane + 32 * h] = v[h];
            }
            // O from the left: O - conj(tau) v (v^H O), first column beta e1; its first row is mail for the next sweep.
            uint4* slot = outbox + task * LINES;
            __syncwarp();
            if (lane < CPW) {
                const scalar_t first = inner[lane];
                const scalar_t f = negative(conj(tau)) * fma_(conj(reflector.scale), part[0], first);
                inner[lane] = f;
                if (task > 0)
                    send(slot, c0 + lane, c0 + lane == 0 ? make_scalar(reflector.beta, 0) : first + f, outbox_tag + task);
            }
            __syncwarp();
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const scalar_t f = inner[c];
#pragma unroll
                for (int h = 0; h < RPL; ++h) o[h][c] = fma_(v[h], f, o[h][c]);
            }
            if (warp == 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    o[h][0] = lane + 32 * h == 0 ? make_scalar(reflector.beta, 0) : zero();
            // The first row is stored by the sweep that gets it, but for the entries of the result.
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    if (task > 0 && r > 0 && r < m) band[start + r + (long long)(start - B + c0 + c) * ld] = o[h][c];
                    if (task == 0 && c0 + c == 0 && r < m) band[start + r + (long long)sweep * ld] = o[h][c];
                }
            }
            arrive_warps(STORED_O, CHASE_WARPS + 1);
            if (vectors != nullptr && warp == CHASE_WARPS - 1)
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    if (r < m) vectors[sweep * sweep_stride + (start + r) * row_stride] = r == 0 ? tau : v[h];
                }
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h, own = by_mail ? B - 1 : B;
#pragma unroll
                for (int c = 0; c < CPW; ++c)
                    if (r < own && c0 + c <= r) full[r + (c0 + c) * (B + 1)] = d[h][c];
#pragma unroll
                for (int c = 0; c < CPW; ++c)
                    if (r < own && c0 + c < r) full[c0 + c + r * (B + 1)] = conj(d[h][c]);
            }
            sync_warps(ROW_IS_HERE, CHASE_WARPS + 1);
            // On their way while D is worked on; the last column comes by mail.
            if (task + 1 < tasks)
                load_o(band, start + B, sweep > 0 && next_m == B ? B - 1 : next_m, sweep == 0 || warp < CHASE_WARPS - 1, lane,
                       c0, o);
            // D v, own columns; the upper half comes from the other warps.
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                scalar_t even = zero(), odd = zero();
                if (r < B) {
#pragma unroll
                    for (int c = 0; c < CPW; ++c) d[h][c] = full[r + (c0 + c) * (B + 1)];
#pragma unroll
                    for (int c = 0; c < CPW; c += 2) {
                        even = fma_(d[h][c], vc[c], even);
                        odd = fma_(d[h][c + 1], vc[c + 1], odd);
                    }
                    partial[warp * B + r] = even + odd;
                }
            }
            sync_warps(WORKING, CHASE_WARPS);
            // D from both sides: q = tau y, D - v q^H - q v^H + |tau|^2 (v^H y) v v^H.
            scalar_t q[RPL];
            real_t gamma = 0;
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                const scalar_t y = r < B ? sum_of_warps(partial + r) : zero();
                gamma += real_part(conj(v[h]) * y);
                q[h] = tau * y;
                if (r < B) shared_q[r] = q[h];
            }
            __syncwarp();
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const scalar_t qc_conj = conj(shared_q[c0 + c]), vc_conj = conj(vc[c]);
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    d[h][c] = fma_(negative(v[h]), qc_conj, d[h][c]);
                    d[h][c] = fma_(negative(q[h]), vc_conj, d[h][c]);
                }
            }
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes >>= 1) gamma += __shfl_xor_sync(0xffffffffu, gamma, lanes);
            gamma *= square(tau);
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const scalar_t f = gamma * v[h];
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    d[h][c] = fma_(f, conj(vc[c]), d[h][c]);
                    if (COMPLEX && lane + 32 * h == c0 + c) d[h][c] = make_scalar(real_part(d[h][c]), 0);
                }
            }
            if (warp == 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    if (lane + 32 * h < m) send(slot, B + lane + 32 * h, d[h][0], outbox_tag + task);
            // The first column is stored by the next sweep, as the last of its O.
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int j = c0 + c;
                    if (r < m && j <= r && (j > 0 || (r == 0 && task == 0)))
                        band[start + r + (long long)(start + j) * ld] = d[h][c];
                }
            }
            arrive_warps(STORED_D, CHASE_WARPS + 1);
            sync_warps(MAY_LOAD_D, CHASE_WARPS + HELPERS);
            if (task + 1 < tasks)
                load_d(band, start + B, sweep > 0 && next_m == B ? B - 1 : next_m, lane, c0, d);
        }
    }
}
