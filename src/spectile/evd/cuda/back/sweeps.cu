// The chasing reflectors of 64 neighbouring sweeps (a group) on Z, all tasks in one pass, on the FP64 tensor cores;
// Z is in double precision, whatever the reflectors are in (SOURCE).
//
// Task t of the group acts on a window of 64 + B rows from g 64 + t B on, of which the first stays as it is.  Its
// reflectors fall into two tiles of 32 sweeps; tile c acts on B + 32 rows from row 32 c of the window on, with
// Z - (Y T) (Y^H Z), tile 1 first.  A warp keeps the window of its 16 columns (or of 8, real and imaginary parts one
// below the other) in registers, transposed: as C fragments of m16n8k16, which are A fragments of the next product if
// the rows of Y and T are taken in the order of the registers.  So Z is read and written once a group, nothing is
// exchanged between warps, and Y and Y T come from memory as ready-made B fragments, in units of 8 x 8 of which those
// that hold zeros alone are left out.
//
// One unit applies a group a launch, or (TOGETHER) several that follow one another: a call needs one of them.

#include "back/sweeps.cuh"

#if RING
// The barrier counts the bytes, and this copy's thread is its one arrival.
__device__ __forceinline__ void copy_tile(double* shared, const double* global, unsigned long long& barrier) {
    barrier_expect(barrier, TILE * 8);
    copy_bulk(shared, global, TILE * 8, barrier);
}
#endif

// 16 bytes, of which `bytes` are read and the rest is zero.
__device__ __forceinline__ void copy_16_bytes(double* shared, const double* global, int bytes) {
    copy_async(shared_address(shared), global, bytes);
}

// Waits for the copies of all threads of the warp.
__device__ __forceinline__ void wait_warp_copies() {
    wait_all_copies();
    __syncwarp();
}

// c += a b, of which b is one or two neighbouring units; a fragment's half that meets no unit is not multiplied.
__device__ __forceinline__ void multiply_units(double (&c)[4], const double (&a)[8], bool low, bool high, const double* p) {
    const double2 first = *(const double2*)p;
    if (low && high) {
        const double2 second = *(const double2*)(p + UNIT);
        const double b[4] = {first.x, first.y, second.x, second.y};
        mma_f64(c, a, b);
    } else {
        const double half[4] = {a[low ? 0 : 4], a[low ? 1 : 5], a[low ? 2 : 6], a[low ? 3 : 7]}, b[2] = {first.x, first.y};
        mma_f64(c, half, b);
    }
}

// Two neighbouring C fragments as one A fragment.
__device__ __forceinline__ void as_left(const double (&first)[4], const double (&second)[4], double (&a)[8]) {
    a[0] = first[0], a[1] = first[2], a[2] = first[1], a[3] = first[3];
    a[4] = second[0], a[5] = second[2], a[6] = second[1], a[7] = second[3];
}

// Rows 2 t, 2 t + 1 of 8 rows of this lane's columns.
__device__ __forceinline__ void set_rows(double (&c)[4], const double* p, const double* q) {
    const double2 first = *(const double2*)p, second = *(const double2*)q;
    if (COMPLEX) {  // p and q: the two rows of one column
        c[0] = first.x, c[2] = first.y, c[1] = second.x, c[3] = second.y;
    } else {  // the rows of the columns g and g + 8
        c[0] = first.x, c[1] = first.y, c[2] = second.x, c[3] = second.y;
    }
}

// Tasks from one report of a warp to the next: a report waits for memory.
#define REPORT 4

// One group: Z = (product of its reflectors) Z for the columns of block `share`; tiles as `sweep_tiles` leaves them,
// `steps` tasks, first row `start`.  z has `columns` columns of n rows, on 16 bytes, and ldz is even.
//
// With FOLLOW, other blocks are at the groups before and after it: a warp reports at progress[own] how many tasks it has
// stored, and `warps_a_group` places before that is the report of the warp that takes the group before to its columns.
template <bool FOLLOW>
__device__ __forceinline__ void apply_group(double* z, long long ldz, int n, int columns, const double* tiles, int steps, int start,
                                            int share, int* progress, int own, int warps_a_group) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
    int stored = own <= warps_a_group ? 0x7fffffff : 0;  // of the group before, as far as known; the first has none
    double* ring = (double*)shared;
    double* entering = ring + SLOTS * TILE + warp * 16 * B;  // the next B rows of this warp's columns
    const int column = (share * warps + warp) * COLUMNS;
    double* zg = z + column * ldz * PARTS;

#if RING
    unsigned long long* full = (unsigned long long*)(ring + SLOTS * TILE + warps * 16 * B);
    unsigned long long* empty = full + SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(full[i], 1);
            barrier_init(empty[i], warps);
        }
        fence_async_shared();
        for (int i = 0; i < min(SLOTS, steps * TILES); ++i) copy_tile(ring + i * TILE, tiles + i * TILE, full[i]);
    }
    __syncthreads();
#endif

    // 16 bytes: two rows of one column, or one row of a complex one; chunks of odd columns are swapped in halves of 64
    // bytes, so that the lanes of a fragment find all banks.
    const int chunks = B * PARTS / 2;  // of a column
    auto fetch = [&](int row0) {
        if (FOLLOW) {
            const int there = (n - 2 - start - GROUP) / B + 1, needed = min((row0 - start - GROUP) / B + 1, there);
            if (stored < needed) {
                if (lane == 0) do
                        stored = load_acquire(progress + own - warps_a_group);
                    while (stored < needed);
                stored = __shfl_sync(0xffffffffu, stored, 0);
                __syncwarp();
            }
        }
#pragma unroll(FOLLOW ? 2 : 4)  // more needs registers that are not there
        for (int i = lane; i < COLUMNS * chunks; i += 32) {
            const int c = i / chunks, chunk = i % chunks, row = row0 + chunk * 2 / PARTS;
            const bool inside = column + c < columns && row < n;
            const double* from = inside ? zg + (c * ldz + row) * PARTS : z;
            copy_16_bytes(entering + (c * chunks + (chunk ^ (c & 1) << 2)) * 2, from, inside ? (!COMPLEX && row + 1 == n ? 8 : 16) : 0);
        }
    };
    auto chunk_of = [&](int c, int chunk) { return entering + (c * chunks + (chunk ^ (c & 1) << 2)) * 2; };

    double c[WINDOW][4];
    // The first window comes through `entering`, too, B rows at a time.
#pragma unroll
    for (int part = 0; part < WINDOW * 8 / B; ++part) {
        __syncwarp();
        fetch(start + part * B);
        wait_warp_copies();
#pragma unroll
        for (int i = 0; i < B / 8; ++i) {
            if (COMPLEX) set_rows(c[part * (B / 8) + i], chunk_of(g, 8 * i + 2 * t), chunk_of(g, 8 * i + 2 * t + 1));
            else set_rows(c[part * (B / 8) + i], chunk_of(g, 4 * i + t), chunk_of(g + 8, 4 * i + t));
        }
    }
    for (int step = 0; step < steps; ++step) {
        __syncwarp();
        if (step + 1 < steps) fetch(start + GROUP + (step + 1) * B);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int first = WIDTH / 8 * (TILES - 1 - i);  // C fragment where the tile begins
#if RING
            const unsigned item = step * TILES + i, slot = item % SLOTS, next = item + SLOTS - 2, place = next % SLOTS;
            // The place of the tile before the last one: all warps have left it, or will soon.
            if (threadIdx.x == 0 && next >= SLOTS && next < steps * TILES) {
                barrier_wait_back(empty[place], (next / SLOTS - 1) & 1);
                copy_tile(ring + place * TILE, tiles + (long long)next * TILE, full[place]);
            }
            __syncwarp();
            barrier_wait_back(full[slot], item / SLOTS & 1);
#else
            const int slot = 0;
            __syncthreads();
            for (int k = threadIdx.x; k < TILE / 2; k += blockDim.x)
                copy_16_bytes(ring + 2 * k, tiles + ((long long)step * TILES + i) * TILE + 2 * k, 16);
            wait_warp_copies();
            __syncthreads();
#endif
            // What the task before has stored is in memory by now.
            if (FOLLOW && i == TILES - 1 && step % REPORT == 0 && lane == 0) store_release(progress + own, step);
            const double* y = ring + slot * TILE + 2 * lane;
            double s[PARTS][WIDTH / 8][4] = {}, a[8];
#pragma unroll
            for (int u = 0; u < SPAN; u += 2) {
                as_left(c[first + u], c[first + u + 1], a);
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
#pragma unroll
                    for (int v = 0; v < WIDTH / 8; ++v) {
                        const bool low = in_y(u, v), high = in_y(u + 1, v);
                        if (low || high) multiply_units(s[part][v], a, low, high, y + part * TILE_PART + y_unit(low ? u : u + 1, v) * UNIT);
                    }
            }
            if (COMPLEX) {
                // Y^H Z from Z^T Re Y and Z^T Im Y; and i times it.
#pragma unroll
                for (int v = 0; v < WIDTH / 8; ++v)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const double re = s[0][v][h] + s[PARTS - 1][v][2 + h], im = s[0][v][2 + h] - s[PARTS - 1][v][h];
                        s[0][v][h] = re, s[0][v][2 + h] = im;
                        s[PARTS - 1][v][h] = -im, s[PARTS - 1][v][2 + h] = re;
                    }
            }
#pragma unroll
            for (int v = 0; v < WIDTH / 8; v += 2)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    as_left(s[part][v], s[part][v + 1], a);
#pragma unroll
                    for (int u = 0; u < SPAN; ++u) {
                        const bool low = in_yt(u, v), high = in_yt(u, v + 1);
                        if (low || high)
                            multiply_units(c[first + u], a, low, high, y + part * TILE_PART + yt_unit(u, low ? v : v + 1) * UNIT);
                    }
                }
#if RING
            __syncwarp();
            if (lane == 0) barrier_arrive(empty[slot]);
#endif
        }
        // The first B rows are done; in the last task the whole window is.
        const bool last = step + 1 == steps;
        const int done = start + step * B;
        double* to = zg + (g * ldz + done + 2 * t) * PARTS;
        if (!last && done + B <= n && column + COLUMNS <= columns) {
#pragma unroll
            for (int i = 0; i < B / 8; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    *(double2*)(to + 8 * i * PARTS + (COMPLEX ? 2 * h : 8 * h * ldz)) =
                        COMPLEX ? make_double2(c[i][h], c[i][h + 2]) : make_double2(c[i][2 * h], c[i][2 * h + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < WINDOW; ++i) {
                if (i >= B / 8 && !last) break;
                const int row = done + 8 * i + 2 * t;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    double* at = to + 8 * i * PARTS + (COMPLEX ? 2 * h : 8 * h * ldz);
                    const double x = COMPLEX ? c[i][h] : c[i][2 * h], y = COMPLEX ? c[i][h + 2] : c[i][2 * h + 1];
                    if (column + g + (COMPLEX ? 0 : 8 * h) >= columns) continue;
                    if (COMPLEX ? row + h < n : row + 1 < n) *(double2*)at = make_double2(x, y);
                    else if (!COMPLEX && row < n) *at = x;
                }
            }
        }
        if (last) break;
        wait_warp_copies();
#pragma unroll
        for (int i = 0; i < WINDOW; ++i) {
            if (i + B / 8 < WINDOW) {
#pragma unroll
                for (int j = 0; j < 4; ++j) c[i][j] = c[(i + B / 8) % WINDOW][j];
            } else {
                const int k = i + B / 8 - WINDOW;
                if (COMPLEX) set_rows(c[i], chunk_of(g, 8 * k + 2 * t), chunk_of(g, 8 * k + 2 * t + 1));
                else set_rows(c[i], chunk_of(g, 4 * k + t), chunk_of(g + 8, 4 * k + t));
            }
        }
    }
    if (FOLLOW) {
        __syncwarp();
        if (lane == 0) store_release(progress + own, steps);
    }
}

#if TOGETHER
// Groups first_group, first_group - 1, ..., `groups` in all, with `width` tasks' tiles each.  Blocks take their work in
// the order of the groups (the ticket), so who is waited for is under way.  progress: the ticket, then what each warp of
// each block reports, all 0.
extern "C" __global__ void __launch_bounds__(256, 1) follow_sweeps(double* z, long long ldz, int n, int columns, const double* tiles,
                                                                   int width, int first_group, int groups, int* progress) {
    __shared__ int ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(progress, 1);
    __syncthreads();
    const int blocks = gridDim.x / groups, warps = blockDim.x >> 5, start = (first_group - ticket / blocks) * GROUP;
    apply_group<true>(z, ldz, n, columns, tiles + (long long)(ticket / blocks) * width * TILES * TILE, (n - 2 - start) / B + 1, start,
                      ticket % blocks, progress, 1 + ticket * warps + (threadIdx.x >> 5), blocks * warps);
}
#else
extern "C" __global__ void __launch_bounds__(256, 1) apply_sweeps(double* z, long long ldz, int n, int columns, const double* tiles,
                                                                  int steps, int start) {
    apply_group<false>(z, ldz, n, columns, tiles, steps, start, blockIdx.x, nullptr, 0, 0);
}
#endif
