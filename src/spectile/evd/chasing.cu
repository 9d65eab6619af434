// Bulge chasing (Algorithm 2): a persistent kernel, one sweep a block at a time, sweeps in order by tickets.
//
// Sweep s, task t: rows I = s + 1 + t B ..., a reflector that clears the first column of the block O left of the
// diagonal block D.  Of what sweep s - 1 does in task t + 1 it needs one row, the last of I.  That row comes by mail: as
// lines that carry their own flag, sent as soon as they are computed.  The rest is final once sweep s - 1 has released
// task t; and nothing is stored before it has released task t + 1 (its frontier is then 3 B columns ahead), since both
// write that row.  A mail slot is soon used again; who comes too late for a line finds the row in the band.
// A ticket is drawn by a block that runs, and waits only for tickets drawn before: no occupancy can deadlock.
//
// Two more warps wait, so that those that compute need not: one receives the row of D and looks whether the sweep before
// has released the next task, the other publishes what has been stored.
//
// Warp w holds the columns w CPW ... of O and D in registers; lane l holds rows l and, for B = 64, l + 32.

#define CHASE_WARPS (CHASE_THREADS / 32)
#define CPW (B / CHASE_WARPS)
#define RPL ((B + 31) / 32)
#define SLOTS 8192  // of mail: four for each of 2,048 sweeps
#define LINES ((B + 1) * (COMPLEX ? 2 : 1))

__device__ __forceinline__ void send(uint4* slot, int line, scalar_t value, unsigned tag) {
    if (COMPLEX) {
        store_line(slot + 2 * line, real_part(value), tag);
        store_line(slot + 2 * line + 1, imag_part(value), tag);
    } else {
        store_line(slot + line, real_part(value), tag);
    }
}

// The value from its line or, once `released` says that it is there, from its place in the band.
__device__ __forceinline__ scalar_t
receive(const uint4* slot, int line, unsigned tag, const int* released, int needed, const scalar_t* place) {
    while (true) {
        const int count = load_relaxed(released);  // on its way together with the line
        double x, y = 0;
        bool here;
        if (COMPLEX) {
            here = try_line(slot + 2 * line, tag, x);
            here &= try_line(slot + 2 * line + 1, tag, y);
        } else {
            here = try_line(slot + line, tag, x);
        }
        if (here) return make_scalar(x, y);
        if (count >= needed && load_acquire(released) >= needed) return load(place);
    }
}

// Sum over the warp of each of 2 WIDTH values: lane l ends with that of value l mod 2 WIDTH, in part[0].
template <int WIDTH>
__device__ __forceinline__ void fold_columns(scalar_t (&part)[CPW], int lane) {
    const bool upper = lane & WIDTH;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const scalar_t keep = upper ? part[j + WIDTH] : part[j];
        const scalar_t give = upper ? part[j] : part[j + WIDTH];
        part[j] = keep + shuffle_xor(give, WIDTH);
    }
    if constexpr (WIDTH > 1) fold_columns<WIDTH / 2>(part, lane);
}

// Barriers of some of the block's warps.
__device__ __forceinline__ void sync_warps(int barrier, int warps) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
__device__ __forceinline__ void arrive_warps(int barrier, int warps) {
    __threadfence_block();
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
#define WORKING 1      // the barrier of those that compute
#define ROW_IS_HERE 2  // with the first helper
#define MAY_STORE 3    // with both
#define STORED 4       // with the second
#define HELPERS 2      // warps

// Load O (columns start - B + c) or, in task 0, the one column of the sweep; and the lower triangle of D.  Without the
// parts of the last row that come by mail.
__device__ __forceinline__ void load_blocks(const scalar_t* band, int start, int m, int task, int sweep, bool by_mail, int lane,
                                            int c0, scalar_t (&o)[RPL][CPW], scalar_t (&d)[RPL][CPW])
{
    const long long ld = 2 * B - 1;
    const int own = by_mail ? B - 1 : m;
#pragma unroll
    for (int h = 0; h < RPL; ++h) {
        const int r = lane + 32 * h;
#pragma unroll
        for (int c = 0; c < CPW; ++c) {
            const int j = c0 + c;
            o[h][c] = zero();
            if (task > 0) {
                if (r < own) o[h][c] = load(band + start + r + (long long)(start - B + j) * ld);
            } else if (j == 0 && r < own) {
                o[h][c] = load(band + start + r + (long long)sweep * ld);
            }
            d[h][c] = r < own && j <= r ? load(band + start + r + (long long)(start + j) * ld) : zero();
        }
    }
}

// band: element (i, j) at i + j (2 B - 1).  done[s]: released tasks of sweep s; ticket: next sweep; mail: SLOTS x LINES.
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
    scalar_t* inner = column + B + warp * (2 * B + CPW);  // CPW of the warp: v^H O
    scalar_t* shared_q = inner + CPW;                 // B of the warp
    scalar_t* shared_v = shared_q + B;                // B of the warp: the reflector
    int* next = (int*)(column + B + CHASE_WARPS * (2 * B + CPW));
    const long long ld = 2 * B - 1;

    while (true) {
        if (threadIdx.x == 0) *next = atomicAdd(ticket, 1);
        __syncthreads();
        const int sweep = *next;
        __syncthreads();
        if (sweep >= n - 1) return;
        const int tasks = (n - 2 - sweep) / B + 1;
        const int* released = done + sweep - 1;
        if (sweep > 0) {
            if (threadIdx.x == 0)
                while (load_acquire(released) < 1) {}
            __syncthreads();
        }
        if (warp == CHASE_WARPS) {
            // Receives the last row of D, then waits for the sweep before.
            for (int task = 0; task < tasks; ++task) {
                const int start = sweep + 1 + task * B;
                const bool by_mail = sweep > 0 && n - start >= B;
                if (by_mail) {
                    const unsigned tag = (unsigned)(sweep - 1) * (n / B + 2) + task + 2;
                    const uint4* slot = mail + (((sweep - 1) * 4 + ((task + 1) & 3)) & (SLOTS - 1)) * (long long)LINES;
                    const scalar_t* row = band + start + B - 1;
                    scalar_t value[RPL];
#pragma unroll
                    for (int h = 0; h < RPL; ++h) {
                        const int j = lane + 32 * h;
                        if (j < B) value[h] = receive(slot, j + 1, tag, released, task + 2, row + (long long)(start + j) * ld);
                    }
                    // The place is free: the warps that compute have left the task before when they were told to store.
#pragma unroll
                    for (int h = 0; h < RPL; ++h) {
                        const int j = lane + 32 * h;
                        if (j < B) {
                            full[B - 1 + j * (B + 1)] = value[h];
                            if (j < B - 1) full[j + (B - 1) * (B + 1)] = conj(value[h]);
                        }
                    }
                }
                sync_warps(ROW_IS_HERE, CHASE_WARPS + 1);
                if (by_mail && lane == 0)
                    while (load_acquire(released) < task + 2) {}
                __syncwarp();
                sync_warps(MAY_STORE, CHASE_WARPS + HELPERS);
            }
            continue;
        }
        if (warp == CHASE_WARPS + 1) {
            // Publishes; it has done so for the task before when it lets store.
            for (int task = 0; task < tasks; ++task) {
                sync_warps(MAY_STORE, CHASE_WARPS + HELPERS);
                sync_warps(STORED, CHASE_WARPS + 1);
                if (lane == 0) store_release(done + sweep, task + 1 == tasks ? n + 2 : task + 1);
                __syncwarp();
            }
            continue;
        }
        scalar_t v[RPL], tau = zero();  // the reflector: own rows
#pragma unroll
        for (int h = 0; h < RPL; ++h) v[h] = zero();
        const scalar_t* vc = shared_v + c0;  // own columns

        scalar_t o[RPL][CPW], d[RPL][CPW];
        for (int task = 0; task < tasks; ++task) {
            const int start = sweep + 1 + task * B;
            const int m = n - start < B ? n - start : B;
            const bool by_mail = sweep > 0 && m == B;  // the last row
            if (task == 0) load_blocks(band, start, m, task, sweep, by_mail, lane, c0, o, d);
            if (by_mail) {
                const unsigned tag = (unsigned)(sweep - 1) * (n / B + 2) + task + 2;
                const uint4* slot = mail + (((sweep - 1) * 4 + ((task + 1) & 3)) & (SLOTS - 1)) * (long long)LINES;
                const scalar_t* row = band + start + B - 1;
                const int owner = task > 0 ? CHASE_WARPS - 1 : 0;
                if (warp == owner && lane == (B - 1) % 32) {
                    const scalar_t head = receive(slot, 0, tag, released, task + 2, row + (long long)(start - 1) * ld);
                    if (task > 0) o[RPL - 1][CPW - 1] = head; else o[RPL - 1][0] = head;
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
                    if (r < B && j <= r && !(by_mail && r == B - 1)) {
                        full[r + j * (B + 1)] = d[h][c];
                        if (j < r) full[j + r * (B + 1)] = conj(d[h][c]);
                    }
                }
            }
            sync_warps(WORKING, CHASE_WARPS);
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
            sync_warps(WORKING, CHASE_WARPS);
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
            for (int h = 0; h < RPL; ++h) {
                v[h] = lane + 32 * h == 0 ? one() : v[h] * reflector.scale;
                if (lane + 32 * h < B) shared_v[lane + 32 * h] = v[h];
            }
            // O from the left, because its first row is waited for: O - conj(tau) v (v^H O), first column beta e1.
            if (task > 0) {
                const scalar_t minus_tau_conj = negative(conj(tau));
                scalar_t part[CPW];
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    part[c] = zero();
#pragma unroll
                    for (int h = 0; h < RPL; ++h) part[c] = fma_(conj(v[h]), o[h][c], part[c]);
                }
                fold_columns<CPW / 2>(part, lane);
#pragma unroll
                for (int lanes = CPW; lanes < 32; lanes *= 2) part[0] = part[0] + shuffle_xor(part[0], lanes);
                if (lane < CPW) inner[lane] = minus_tau_conj * part[0];
                __syncwarp();
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const scalar_t f = inner[c];
#pragma unroll
                    for (int h = 0; h < RPL; ++h) o[h][c] = fma_(v[h], f, o[h][c]);
                }
            }
            if (warp == 0)
#pragma unroll
                for (int h = 0; h < RPL; ++h)
                    o[h][0] = lane + 32 * h == 0 ? make_scalar(reflector.beta, 0) : zero();
            // Mail for the next sweep: the first row.
            const unsigned tag = (unsigned)sweep * (n / B + 2) + task + 1;
            uint4* slot = mail + ((sweep * 4 + (task & 3)) & (SLOTS - 1)) * (long long)LINES;
            if (task > 0 && lane == 0)
#pragma unroll
                for (int c = 0; c < CPW; ++c) send(slot, c0 + c, o[0][c], tag);
            sync_warps(ROW_IS_HERE, CHASE_WARPS + 1);
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
            sync_warps(WORKING, CHASE_WARPS);
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
            for (int h = 0; h < RPL; ++h) {
                q[h] = tau * q[h] + gamma * v[h];
                if (lane + 32 * h < B) shared_q[lane + 32 * h] = q[h];
            }
            __syncwarp();
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const int j = c0 + c;
                const scalar_t qc_conj = conj(shared_q[j]), vc_conj = conj(vc[c]);
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    scalar_t value = fma_(negative(v[h]), qc_conj, d[h][c]);
                    value = fma_(negative(q[h]), vc_conj, value);
                    if (r == j) value = make_scalar(real_part(value), 0);
                    d[h][c] = value;
                }
            }
            if (task > 0 && threadIdx.x == 0) {
                send(slot, B, d[0][0], tag);
            }
            sync_warps(MAY_STORE, CHASE_WARPS + HELPERS);
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int j = c0 + c;
                    if (r < m && task > 0) band[start + r + (long long)(start - B + j) * ld] = o[h][c];
                    if (r < m && task == 0 && j == 0) band[start + r + (long long)sweep * ld] = o[h][c];
                    if (r < m && j <= r) band[start + r + (long long)(start + j) * ld] = d[h][c];
                }
            }
            if (vectors != nullptr && warp == CHASE_WARPS - 1)
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    if (r < m) vectors[sweep * sweep_stride + (start + r) * row_stride] = r == 0 ? tau : v[h];
                }
            arrive_warps(STORED, CHASE_WARPS + 1);
            if (task + 1 < tasks) {
                // On their way while this task is released; task + 1 of the sweep before is done, by the wait above.
                const int next_m = n - start - B < B ? n - start - B : B;
                load_blocks(band, start + B, next_m, task + 1, sweep, sweep > 0 && next_m == B, lane, c0, o, d);
            }
        }
    }
}
