// Bulge chasing (Algorithm 2): a persistent kernel whose blocks each do one sweep at a time; tickets keep the order.
//
// Sweep s, task t: rows I = s + 1 + t B ..., a reflector that clears the first column of the block O left of the
// diagonal block D.  O of the next task needs only that reflector, so one group of warps goes from O to O, and another
// follows from D to D.
// Sweep s + 1 works one row and column further.  Of what sweep s does, the first row of O and D and the first column of D
// come by flagged messages, which carry their own flag, sent as soon as they are computed, and never stored in the band by
// sweep s.  The rest is stored and released, O and D apart.
// A ticket is drawn by a block that runs, and waits only for tickets drawn before: no occupancy can deadlock.
//
// With TURNS devices that chase one band take GROUP sweeps in turns, each by tickets of its own.  What a sweep leaves, it leaves in the
// memory of the device that has the next one, so that all loads are from a device's own.
//
// Each group has two more warps that wait, so that those that compute need not: one receives messages and looks what the
// sweep before has released, the other publishes what has been stored.
//
// Warp w of a group holds the columns w CPW ... of O or D in registers; lane l holds rows l and, for B = 64, l + 32.

#include "messages.cuh"

#define CHASE_WARPS (CHASE_THREADS / 32)  // of a group
#define CPW (B / CHASE_WARPS)
#define RPL ((B + 31) / 32)
#define MESSAGES (2 * B * (COMPLEX ? 2 : 1))  // of a task: the first row of O, the first column of D
#define AHEAD 4                               // tasks whose messages are brought to the L2 cache before it is written
#define GROUP 64                              // sweeps: beside their lags, 4 us each, one way to another device is little

__device__ __forceinline__ void prefetch(const uint4* slot, int lane) {
    for (int i = lane; i < MESSAGES / 8; i += 32) prefetch_l2(slot + 8 * i);
}

// Barriers of part of the block's warps.
__device__ __forceinline__ void sync_warps(int barrier, int warps) {
    __syncwarp();
    sync_threads(barrier, 32 * warps);
}
__device__ __forceinline__ void arrive_warps(int barrier, int warps) {
    __syncwarp();
    arrive_threads(barrier, 32 * warps);
}
enum Barrier {            // G: 0 for O, 1 for D
    WORKING = 1,          // + G: those that compute
    STORED = 3,           // + G: with the one that publishes
    MAY_LOAD = 5,         // + G: with both helpers
    EDGE_ARRIVED = 7,     // the warp that holds O's last column, with the one that receives
    ROW_ARRIVED = 8,      // D, with the one that receives
    REFLECTOR = 9,        // + task % 2: O's first warp has written it for D
    REFLECTOR_READ = 11,  // + task % 2: D has read it
    HEAD_ARRIVED = 13,    // O, with the one that receives
    CORNER_ARRIVED = 14   // D, with the one that receives
};

__device__ __forceinline__ int device_of(int sweep, int parts) { return sweep / GROUP % parts; }

// Sum of one entry of the parts of all warps, B apart.
__device__ __forceinline__ scalar_t sum_of_warps(const scalar_t* part) {
    scalar_t sum[2] = {part[0], part[B]};
#pragma unroll
    for (int w = 2; w < CHASE_WARPS; ++w) sum[w & 1] = sum[w & 1] + part[w * B];
    return sum[0] + sum[1];
}

struct Sweep {
    scalar_t* band;  // element (i, j) at i + j (2 B - 1)
    int n, sweep, tasks;
    const int* before;        // of the sweep before: tasks whose O is released, tasks whose D is
    int* done;                // of this one
    bool from_afar, to_afar;  // the sweep before, or the next one, is another device's
    const uint4* inbox;       // of its tasks, MESSAGES each
    uint4* outbox;
    unsigned inbox_tag, outbox_tag;  // of task 0

    __device__ __forceinline__ int start(int task) const { return sweep + 1 + task * B; }
    __device__ __forceinline__ int rows(int task) const { return min(n - start(task), B); }
    // Rows that do not come by message.
    __device__ __forceinline__ int own_rows(int task) const { return sweep > 0 && n - start(task) >= B ? B - 1 : rows(task); }
};

__device__ __forceinline__ void wait_for(const Sweep& s, int group, int tasks, int lane) {
    if (lane == 0)
        while ((s.from_afar ? load_acquire_system(s.before + group) : load_acquire(s.before + group)) < tasks) {}
    __syncwarp();
}

struct Workspace {         // in shared memory
    scalar_t* full;        // B x (B + 1): D with both triangles
    scalar_t* partial[2];  // CHASE_WARPS x B of each group
    scalar_t* column;      // B: the column to be cleared
    scalar_t* edge;        // 2 x B: the last column of O, by message
    scalar_t* reflector;   // 2 x (B + 1): v and tau
    scalar_t* own;         // CHASE_WARPS x B of each group: v of a warp of O, q of one of D
    scalar_t* inner;       // CHASE_WARPS x CPW: v^H O
    scalar_t* last;        // CHASE_WARPS x CPW: the last row of O, for a last entry of 1
    scalar_t* late;        // 2: the last entry of O, and of D, by message
    scalar_t** next_band;  // as the band, of the next sweep
};
#define WORKSPACE (B * (B + 1) + 4 * CHASE_WARPS * B + 7 * B + 4)  // scalars

__device__ __forceinline__ void receive_edges(const Sweep& s, const Workspace& work, int lane) {
    if (s.sweep > 0)
        for (int task = 0; task < min(s.tasks, AHEAD); ++task) prefetch(s.inbox + task * MESSAGES, lane);
    for (int task = 0; task < s.tasks; ++task) {
        if (s.sweep > 0) {
            // The first column of the same task's D; in place of the last entry, which comes late, stands a 1.
            const bool whole = s.rows(task) == B;
            const int rows = s.own_rows(task);
            const uint4* slot = s.inbox + task * MESSAGES;
            const unsigned tag = s.inbox_tag + task;
            if (task + AHEAD <= s.tasks) prefetch(slot + AHEAD * MESSAGES, lane);
            scalar_t value[RPL];
            bool arrived;
            do {
                arrived = true;
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    const int r = lane + 32 * h;
                    value[h] = whole && r == B - 1 ? one() : zero();
                    if (r < rows) arrived &= try_receive(slot, B + r + 1, tag, value[h]);
                }
            } while (!arrived);
#pragma unroll
            for (int h = 0; h < RPL; ++h)
                if (lane + 32 * h < B) work.edge[(task & 1) * B + lane + 32 * h] = value[h];
            sync_warps(EDGE_ARRIVED, 2);
            if (whole) {
                // The first entry of the next task's O.
                do arrived = try_receive(slot + MESSAGES, 0, tag + 1, value[0]);
                while (!arrived);
                if (lane == 0) work.late[0] = value[0];
                sync_warps(HEAD_ARRIVED, CHASE_WARPS + 1);
            }
            if (task + 1 < s.tasks) wait_for(s, 0, task + 2, lane);
            arrive_warps(MAY_LOAD, CHASE_WARPS + 2);
        } else {
            sync_warps(MAY_LOAD, CHASE_WARPS + 2);
        }
    }
}

__device__ __forceinline__ void receive_rows(const Sweep& s, const Workspace& work, int lane) {
    for (int task = 0; task < s.tasks; ++task) {
        const bool by_message = s.sweep > 0 && s.rows(task) == B;
        const uint4* slot = s.inbox + (task + 1) * MESSAGES;
        const unsigned tag = s.inbox_tag + task + 1;
        if (by_message) {
            scalar_t value[RPL];
            bool arrived;
            do {
                arrived = true;
#pragma unroll
                for (int h = 0; h < RPL; ++h) {
                    value[h] = zero();  // of the last entry, which comes late
                    if (lane + 32 * h < B - 1) arrived &= try_receive(slot, lane + 32 * h + 1, tag, value[h]);
                }
            } while (!arrived);
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int j = lane + 32 * h;
                if (j < B) {
                    work.full[B - 1 + j * (B + 1)] = value[h];
                    if (j < B - 1) work.full[j + (B - 1) * (B + 1)] = conj(value[h]);
                }
            }
        }
        sync_warps(ROW_ARRIVED, CHASE_WARPS + 1);
        if (by_message) {
            scalar_t value;
            while (!try_receive(slot, B, tag, value)) {}
            if (lane == 0) work.late[1] = value;
            sync_warps(CORNER_ARRIVED, CHASE_WARPS + 1);
        }
        if (s.sweep > 0 && task + 1 < s.tasks) wait_for(s, 1, task + 2, lane);
        // From now on the place of the row is free.
        sync_warps(MAY_LOAD + 1, CHASE_WARPS + 2);
    }
}

__device__ __forceinline__ void publish(const Sweep& s, int group, int lane) {
    for (int task = 0; task < s.tasks; ++task) {
        sync_warps(STORED + group, CHASE_WARPS + 1);
        // Before this nothing more is stored that would be taken for this task's.
        arrive_warps(MAY_LOAD + group, CHASE_WARPS + 2);
        if (lane == 0) s.to_afar ? store_release_system(s.done + group, task + 1) : store_release(s.done + group, task + 1);
        __syncwarp();
    }
}

// vectors: element of the sweep at row i at vectors[i * row_stride], or null.
__device__ __forceinline__ void work_on_o(const Sweep& s, const Workspace& work, int warp, int lane, scalar_t* vectors,
                                          long long row_stride) {
    const long long ld = 2 * B - 1;
    const int c0 = warp * CPW, last_lane = (B - 1) % 32;
    scalar_t* shared_v = work.own + warp * B;
    scalar_t* inner = work.inner + warp * CPW;
    scalar_t* last = work.last + warp * CPW;
    const scalar_t* vc = shared_v + c0;  // own columns
    scalar_t o[RPL][CPW], tau = zero();
#pragma unroll
    for (int h = 0; h < RPL; ++h)
#pragma unroll
        for (int c = 0; c < CPW; ++c) {
            // Task 0: the one column of the sweep.
            const int r = lane + 32 * h;
            o[h][c] = zero();
            if (c == 0 && s.sweep == 0 && warp == 0 && r < s.rows(0)) o[h][c] = load(s.band + 1 + r);
        }
    for (int task = 0; task < s.tasks; ++task) {
        const int start = s.start(task), m = s.rows(task);
        const bool by_message = s.sweep > 0 && m == B;  // the last row, which the last entry, still 1, scales
        if (s.sweep > 0 && warp == (task > 0 ? CHASE_WARPS - 1 : 0)) {
            sync_warps(EDGE_ARRIVED, 2);
#pragma unroll
            for (int h = 0; h < RPL; ++h)
                if (lane + 32 * h < B) {
                    const scalar_t value = work.edge[(task & 1) * B + lane + 32 * h];
                    if (task > 0) o[h][CPW - 1] = value;
                    else o[h][0] = value;
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
                if (lane + 32 * h < B) work.partial[0][warp * B + lane + 32 * h] = even + odd;
            }
        if (warp == 0)
#pragma unroll
            for (int h = 0; h < RPL; ++h)
                if (lane + 32 * h < B) work.column[lane + 32 * h] = o[h][0];
        sync_warps(WORKING, CHASE_WARPS);
        scalar_t x[RPL];  // the column to be cleared
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
            x[h] = r < B ? work.column[r] : zero();
            if (task > 0) {
                const scalar_t f = r < B ? negative(tau) * sum_of_warps(work.partial[0] + r) : zero();
                x[h] = x[h] + f;
#pragma unroll
                for (int c = 0; c < CPW; ++c) o[h][c] = fma_(f, conj(vc[c]), o[h][c]);
            }
        }
        // The new reflector, made by every warp; next to its norm the products of its tail with O.
        const scalar_t head = shuffle(x[0], 0), unit = shuffle(x[RPL - 1], last_lane);
        if (lane == 0) {
            x[0] = zero();
#pragma unroll
            for (int c = 0; c < CPW; ++c) inner[c] = o[0][c];
        }
        if (by_message && lane == last_lane) {
            x[RPL - 1] = zero();
#pragma unroll
            for (int c = 0; c < CPW; ++c) last[c] = o[RPL - 1][c];
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
        if (by_message) {
            sync_warps(HEAD_ARRIVED, CHASE_WARPS + 1);
            const scalar_t entry = work.late[0], end = entry * unit;
            tail += square(end);
            if (lane < CPW) part[0] = fma_(conj(end), entry * last[lane], part[0]);
            if (lane == last_lane) {
                x[RPL - 1] = end;
#pragma unroll
                for (int c = 0; c < CPW; ++c) o[RPL - 1][c] = entry * o[RPL - 1][c];
            }
        }
        const Reflector reflector = make_reflector(head, tail);
        tau = reflector.tau;
        __syncwarp();  // every lane has read the reflector before, which this one overwrites
        scalar_t v[RPL];
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            v[h] = lane + 32 * h == 0 ? one() : x[h] * reflector.scale;
            if (lane + 32 * h < B) shared_v[lane + 32 * h] = v[h];
        }
        if (warp == 0) {
            scalar_t* place = work.reflector + (task & 1) * (B + 1);
            if (task > 1) sync_warps(REFLECTOR_READ + (task & 1), CHASE_WARPS + 1);
#pragma unroll
            for (int h = 0; h < RPL; ++h)
                if (lane + 32 * h < B) place[lane + 32 * h] = v[h];
            if (lane == 0) place[B] = tau;
            arrive_warps(REFLECTOR + (task & 1), CHASE_WARPS + 1);
        }
        // O from the left: O - conj(tau) v (v^H O), first column beta e1; its first row is a message to the next sweep.
        __syncwarp();
        if (lane < CPW) {
            const scalar_t first = inner[lane];
            const scalar_t f = negative(conj(tau)) * fma_(conj(reflector.scale), part[0], first);
            inner[lane] = f;
            if (task > 0)
                send(s.outbox + task * MESSAGES, c0 + lane, c0 + lane == 0 ? make_scalar(reflector.beta, 0) : first + f,
                     s.outbox_tag + task);
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
            for (int h = 0; h < RPL; ++h) o[h][0] = lane + 32 * h == 0 ? make_scalar(reflector.beta, 0) : zero();
        // The first row is stored by the sweep that gets it, but for the entries of the result.
        scalar_t* const next_band = TURNS ? *work.next_band : s.band;
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                if (task > 0 && r > 0 && r < m) next_band[start + r + (long long)(start - B + c0 + c) * ld] = o[h][c];
                if (task == 0 && c0 + c == 0 && r < m) next_band[start + r + (long long)s.sweep * ld] = o[h][c];
            }
        }
        arrive_warps(STORED, CHASE_WARPS + 1);
        if (vectors != nullptr && warp == CHASE_WARPS - 1)
#pragma unroll
            for (int h = 0; h < RPL; ++h) {
                const int r = lane + 32 * h;
                if (r < m) vectors[(start + r) * row_stride] = r == 0 ? tau : v[h];
            }
        sync_warps(MAY_LOAD, CHASE_WARPS + 2);
        if (task + 1 < s.tasks) {
            const int own = s.own_rows(task + 1);
            const bool last = s.sweep == 0 || warp < CHASE_WARPS - 1;  // else the last column comes by message
#pragma unroll
            for (int h = 0; h < RPL; ++h)
#pragma unroll
                for (int c = 0; c < CPW; ++c) {
                    const int r = lane + 32 * h;
                    o[h][c] = zero();
                    if (r < own && (c < CPW - 1 || last)) o[h][c] = load(s.band + start + B + r + (long long)(start + c0 + c) * ld);
                }
        }
    }
    if (warp == 0)
        for (int task = max(s.tasks - 2, 0); task < s.tasks; ++task) sync_warps(REFLECTOR_READ + (task & 1), CHASE_WARPS + 1);
}

__device__ __forceinline__ void work_on_d(const Sweep& s, const Workspace& work, int warp, int lane) {
    const long long ld = 2 * B - 1;
    const int c0 = warp * CPW;
    scalar_t* shared_q = work.own + (CHASE_WARPS + warp) * B;
    scalar_t d[RPL][CPW];
    for (int task = 0; task < s.tasks; ++task) {
        const int start = s.start(task), m = s.rows(task), own = s.own_rows(task);
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
#pragma unroll
            for (int c = 0; c < CPW; ++c)
                d[h][c] = r < own && c0 + c <= r ? load(s.band + start + r + (long long)(start + c0 + c) * ld) : zero();
        }
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h, written = m == B ? own : B;
#pragma unroll
            for (int c = 0; c < CPW; ++c)
                if (r < written && c0 + c <= r) work.full[r + (c0 + c) * (B + 1)] = d[h][c];
#pragma unroll
            for (int c = 0; c < CPW; ++c)
                if (r < written && c0 + c < r) work.full[c0 + c + r * (B + 1)] = conj(d[h][c]);
        }
        sync_warps(REFLECTOR + (task & 1), CHASE_WARPS + 1);
        const scalar_t* shared_v = work.reflector + (task & 1) * (B + 1);
        const scalar_t tau = shared_v[B], end = conj(tau * shared_v[B - 1]);
        scalar_t v[RPL], vc[CPW];
#pragma unroll
        for (int h = 0; h < RPL; ++h) v[h] = lane + 32 * h < B ? shared_v[lane + 32 * h] : zero();
#pragma unroll
        for (int c = 0; c < CPW; ++c) vc[c] = shared_v[c0 + c];
        arrive_warps(REFLECTOR_READ + (task & 1), CHASE_WARPS + 1);
        sync_warps(ROW_ARRIVED, CHASE_WARPS + 1);
        // D v, own columns; the upper half comes from the other warps.
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
            scalar_t even = zero(), odd = zero();
            if (r < B) {
#pragma unroll
                for (int c = 0; c < CPW; ++c) d[h][c] = work.full[r + (c0 + c) * (B + 1)];
#pragma unroll
                for (int c = 0; c < CPW; c += 2) {
                    even = fma_(d[h][c], vc[c], even);
                    odd = fma_(d[h][c + 1], vc[c + 1], odd);
                }
                work.partial[1][warp * B + r] = even + odd;
            }
        }
        sync_warps(WORKING + 1, CHASE_WARPS);
        // D from both sides: q = tau y, D - v q^H - q v^H + |tau|^2 (v^H y) v v^H.
        scalar_t q[RPL];
        real_t gamma = 0;
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
            const scalar_t y = r < B ? sum_of_warps(work.partial[1] + r) : zero();
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
            for (int c = 0; c < CPW; ++c) d[h][c] = fma_(f, conj(vc[c]), d[h][c]);
        }
        if (s.sweep > 0 && m == B) {
            // The last entry times u u^H, u the last column of H^H.
            sync_warps(CORNER_ARRIVED, CHASE_WARPS + 1);
            const real_t corner = real_part(work.late[1]);
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const scalar_t u = (c0 + c == B - 1 ? one() : zero()) - end * vc[c], f = corner * conj(u);
#pragma unroll
                for (int h = 0; h < RPL; ++h) d[h][c] = fma_((lane + 32 * h == B - 1 ? one() : zero()) - end * v[h], f, d[h][c]);
            }
        }
        if (COMPLEX)
#pragma unroll
            for (int h = 0; h < RPL; ++h)
#pragma unroll
                for (int c = 0; c < CPW; ++c)
                    if (lane + 32 * h == c0 + c) d[h][c] = make_scalar(real_part(d[h][c]), 0);
        // The first column is a message, which the next sweep stores as the last of its O.
        if (warp == 0)
#pragma unroll
            for (int h = 0; h < RPL; ++h)
                if (lane + 32 * h < m) send(s.outbox + task * MESSAGES, B + lane + 32 * h, d[h][0], s.outbox_tag + task);
        scalar_t* const next_band = TURNS ? *work.next_band : s.band;
#pragma unroll
        for (int h = 0; h < RPL; ++h) {
            const int r = lane + 32 * h;
#pragma unroll
            for (int c = 0; c < CPW; ++c) {
                const int j = c0 + c;
                if (r < m && j <= r && (j > 0 || (r == 0 && task == 0))) next_band[start + r + (long long)(start + j) * ld] = d[h][c];
            }
        }
        arrive_warps(STORED + 1, CHASE_WARPS + 1);
        sync_warps(MAY_LOAD + 1, CHASE_WARPS + 2);
    }
}

// Part `part` of `parts` of the sweeps, each with its own band, done, messages and ticket, and those of the next part.
// done: of each sweep the released tasks of O and of D; ticket: next sweep of this part.
// messages: gridDim.x + 1 sweeps x (n / B + 2) tasks x MESSAGES; all parts have as many blocks.
// vectors: element of sweep s at row i at vectors[s * sweep_stride + i * row_stride], or null.
extern "C" __global__ void __launch_bounds__(2 * CHASE_THREADS + 4 * 32, CHASE_BLOCKS) chase(scalar_t* band, int n, int* done, int* ticket,
                                                                                             uint4* messages, scalar_t* vectors,
                                                                                             long long sweep_stride, long long row_stride,
                                                                                             int part, int parts, scalar_t* next_band,
                                                                                             int* next_done, uint4* next_messages) {
    DYNAMIC_SHARED(unsigned char, shared);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    Workspace work;
    work.full = (scalar_t*)shared;
    work.partial[0] = work.full + B * (B + 1);
    work.partial[1] = work.partial[0] + CHASE_WARPS * B;
    work.own = work.partial[1] + CHASE_WARPS * B;
    work.inner = work.own + 2 * CHASE_WARPS * B;
    work.column = work.inner + B;
    work.edge = work.column + B;
    work.reflector = work.edge + 2 * B;
    work.last = work.reflector + 2 * (B + 1);
    work.late = work.last + B;
    work.next_band = (scalar_t**)(work.full + WORKSPACE);
    int* next = (int*)(work.next_band + 1);  // 2, in turns
    const int slots = n / B + 2;

    for (int round = 0;; ++round) {
        if (threadIdx.x == 0) next[round & 1] = atomicAdd(ticket, 1);
        __syncthreads();
        const int drawn = next[round & 1], turn = drawn / GROUP, last = parts - 1;
        Sweep s;
        s.n = n;
        s.sweep = TURNS ? (turn * parts + part) * GROUP + drawn % GROUP : drawn;
        if (s.sweep >= n - 1) return;
        s.tasks = (n - 2 - s.sweep) / B + 1;
        s.from_afar = TURNS && drawn % GROUP == 0;
        s.to_afar = TURNS && drawn % GROUP == GROUP - 1;
        s.band = band;
        if (TURNS && threadIdx.x == 0) *work.next_band = s.to_afar ? next_band : band;
        s.before = done + 2 * (s.sweep - 1);
        s.done = (s.to_afar ? next_done : done) + 2 * s.sweep;
        // A slot is used again when the sweep that reads it is done: no more than gridDim.x of a device are not, and none of
        // those before one that is.
        const int reader = s.to_afar ? (turn + (part == last)) * GROUP : drawn + 1;  // the next sweep's ticket
        s.inbox = messages + (long long)(drawn % (gridDim.x + 1)) * slots * MESSAGES;
        s.outbox = (s.to_afar ? next_messages : messages) + (long long)(reader % (gridDim.x + 1)) * slots * MESSAGES;
        s.outbox_tag = (unsigned)s.sweep * slots + 1;
        s.inbox_tag = s.outbox_tag - slots;
        if (warp == 2 * CHASE_WARPS + 1 && s.sweep > 0) wait_for(s, 1, 1, lane);
        __syncthreads();
        if (warp < CHASE_WARPS) work_on_o(s, work, warp, lane, vectors == nullptr ? nullptr : vectors + s.sweep * sweep_stride, row_stride);
        else if (warp < 2 * CHASE_WARPS) work_on_d(s, work, warp - CHASE_WARPS, lane);
        else if (warp == 2 * CHASE_WARPS) receive_edges(s, work, lane);
        else if (warp == 2 * CHASE_WARPS + 1) receive_rows(s, work, lane);
        else publish(s, warp - 2 * CHASE_WARPS - 2, lane);
    }
}

// band[j * 2 b + (i - j)] = a(i, j) for 0 <= i - j <= b, zero up to 2 b.
extern "C" __global__ void __launch_bounds__(256) extract_band(const scalar_t* a, long long lda, int n, int b, scalar_t* band) {
    const int offset = threadIdx.x % (2 * b);
    for (long long j = blockIdx.x; j < n; j += gridDim.x)
        for (int d = offset; d < 2 * b; d += blockDim.x) band[j * 2 * b + d] = d <= b && j + d < n ? a[j + d + j * lda] : zero();
}

// d and e of the finished band, those that lie in a part's memory; complex chasing leaves e real.
extern "C" __global__ void __launch_bounds__(256) tridiagonal_of_band(const scalar_t* band, int n, int b, double* d, double* e, int part,
                                                                      int parts) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < n && device_of(j, parts) == part) d[j] = real_part(band[(long long)j * 2 * b]);
    if (j < n - 1 && device_of(j + 1, parts) == part) e[j] = real_part(band[(long long)j * 2 * b + 1]);
}
