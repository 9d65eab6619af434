// KPM on the topological insulator without a stored matrix, one or two Chebyshev steps a sweep (temporal blocking).
//
// Vectors lie one after the other, each as [x][y][orbital][z].  A block owns a tile of TY lines (y) with all of z and
// walks along x: planes of V and W come into rings of shared memory by asynchronous copies, each thread owns one (y, z) and
// keeps what it needs of the plane behind in registers.  With STEPS = 2 the first step is done on one line more on both
// sides, its result stays in shared memory, and the second step follows one plane behind: V and W cross the memory bus
// once for two steps (64 instead of 96 bytes a row and vector).
//
// Groups of blocks (all tiles) share the vectors' planes evenly; a group's blocks stay near the same x, so the lines that
// neighbouring tiles both read come from the L2 cache.
//
// A hop has rank 2: (Gamma^1 -+ i Gamma^(j+1))/2 projects onto two components, as in lattice QCD's Wilson fermions.
//
// Set by the launch code: REAL (float, double), NZ, TY, STEPS (1, 2), AHEAD (planes on their way while one is worked on).

#include "phases.cuh"
#include "ptx.cuh"

typedef REAL real;
struct alignas(2 * sizeof(real)) number {
    real x, y;
};

constexpr int LINE = 4 * NZ;                   // numbers of one (x, y) line
constexpr int V_LINES = TY + 2 * STEPS;        // lines of V that a tile reads
constexpr int U_LINES = TY + 2 * (STEPS - 1);  // lines of the first step
constexpr int V_RING = AHEAD + 2, W_RING = AHEAD + 1;
constexpr int THREADS = (U_LINES * NZ + 31) / 32 * 32;

static __device__ __forceinline__ number operator+(number a, number b) { return {a.x + b.x, a.y + b.y}; }
static __device__ __forceinline__ number operator-(number a, number b) { return {a.x - b.x, a.y - b.y}; }
static __device__ __forceinline__ number plus_i(number a, number b) { return {a.x - b.y, a.y + b.x}; }   // a + i b
static __device__ __forceinline__ number minus_i(number a, number b) { return {a.x + b.y, a.y - b.x}; }  // a - i b

struct spinor {
    number c[4];
};

static __device__ __forceinline__ void clear(spinor& s) {
#pragma unroll
    for (int o = 0; o < 4; ++o) s.c[o] = {real(0), real(0)};
}

static __device__ __forceinline__ spinor read(const number* line, int z) {
    spinor s;
#pragma unroll
    for (int o = 0; o < 4; ++o) s.c[o] = line[o * NZ + z];
    return s;
}

// Twice the hops over -t: from n - e_j (the block itself) and from n + e_j (its adjoint).
static __device__ __forceinline__ void from_behind_x(number* a, number s, number t) {  // s = v0 + v1, t = v2 + v3
    a[0] = a[0] + s, a[1] = a[1] - s, a[2] = a[2] + t, a[3] = a[3] - t;
}
static __device__ __forceinline__ void from_ahead_x(number* a, const spinor& v) {
    const number s = v.c[0] - v.c[1], t = v.c[2] - v.c[3];
    a[0] = a[0] + s, a[1] = a[1] + s, a[2] = a[2] + t, a[3] = a[3] + t;
}
static __device__ __forceinline__ void from_behind_y(number* a, const spinor& v) {
    const number s = minus_i(v.c[0], v.c[3]), t = plus_i(v.c[1], v.c[2]);
    a[0] = a[0] + s, a[3] = minus_i(a[3], s), a[1] = a[1] - t, a[2] = minus_i(a[2], t);
}
static __device__ __forceinline__ void from_ahead_y(number* a, const spinor& v) {
    const number s = plus_i(v.c[0], v.c[3]), t = minus_i(v.c[1], v.c[2]);
    a[0] = a[0] + s, a[3] = plus_i(a[3], s), a[1] = a[1] - t, a[2] = plus_i(a[2], t);
}
static __device__ __forceinline__ void from_behind_z(number* a, const spinor& v) {
    const number s = v.c[0] - v.c[3], t = v.c[1] + v.c[2];
    a[0] = a[0] + s, a[3] = a[3] + s, a[1] = a[1] - t, a[2] = a[2] + t;
}
static __device__ __forceinline__ void from_ahead_z(number* a, const spinor& v) {
    const number s = v.c[0] + v.c[3], t = v.c[1] - v.c[2];
    a[0] = a[0] + s, a[3] = a[3] - s, a[1] = a[1] - t, a[2] = a[2] - t;
}

// One site: out = hop * hops + (on_site +- mass) v - keep w.  `plane` is the shared plane of v, `line` the site's line in it.
static __device__ __forceinline__ spinor update(number s_behind, number t_behind, const spinor& v, const spinor& ahead, const number* plane,
                                                int line, int z, const spinor& w, real hop, real on_site, real mass, real keep) {
    spinor a;
    clear(a);
    from_behind_x(a.c, s_behind, t_behind);
    from_ahead_x(a.c, ahead);
    from_behind_y(a.c, read(plane + (line - 1) * LINE, z));
    from_ahead_y(a.c, read(plane + (line + 1) * LINE, z));
    if (z > 0) from_behind_z(a.c, read(plane + line * LINE, z - 1));
    if (z < NZ - 1) from_ahead_z(a.c, read(plane + line * LINE, z + 1));
#pragma unroll
    for (int o = 0; o < 4; ++o) {
        const real diagonal = o % 2 ? on_site - mass : on_site + mass;
        a.c[o].x = hop * a.c[o].x + diagonal * v.c[o].x - keep * w.c[o].x;
        a.c[o].y = hop * a.c[o].y + diagonal * v.c[o].y - keep * w.c[o].y;
    }
    return a;
}

static __device__ __forceinline__ double dot(const spinor& a, const spinor& b) {
    double sum = 0;
#pragma unroll
    for (int o = 0; o < 4; ++o) sum += double(a.c[o].x) * b.c[o].x + double(a.c[o].y) * b.c[o].y;
    return sum;
}

// Copies of whole lines from global to shared memory, in groups that arrive in order.  On Hopper and later one thread
// hands them to the bulk copy engine; before, every thread copies 16 (8) bytes at a time.
#if __CUDA_ARCH__ >= 900
struct Copies {
    unsigned long long* arrived;  // one mbarrier a group in flight
    int issued, awaited;

    static constexpr int SLOTS = AHEAD + 1;

    __device__ void start(unsigned long long* barriers) {
        arrived = barriers, issued = awaited = 0;
        if (threadIdx.x == 0)
            for (int n = 0; n < SLOTS; ++n) barrier_init(arrived[n], 1);
        fence_barrier_init();
        __syncthreads();
    }

    // Lines `from`, from + 1, ... (mod ny) of a plane.
    __device__ void lines(number* shared, const number* plane, int from, int count, int ny) {
        if (threadIdx.x) return;
        for (int done = 0; done < count;) {
            const int run = min(count - done, ny - from);
            copy_bulk(shared + done * LINE, plane + from * LINE, run * LINE * int(sizeof(number)), arrived[issued % SLOTS]);
            done += run, from = 0;
        }
    }
    __device__ void begin(int count) {  // a group of so many lines follows
        if (threadIdx.x == 0) barrier_expect(arrived[issued % SLOTS], count * LINE * int(sizeof(number)));
    }
    __device__ void end() { ++issued; }
    __device__ void none() {}
    template <int LEFT>
    __device__ void await() {  // the oldest group, while LEFT younger ones are on their way
        barrier_wait_back(arrived[awaited % SLOTS], awaited / SLOTS & 1);
        ++awaited;
    }
};
#else
struct Copies {
    __device__ void start(unsigned long long*) {}
    __device__ void lines(number* shared, const number* plane, int from, int count, int ny) {
        for (int e = threadIdx.x; e < count * LINE; e += THREADS) {
            const unsigned target = shared_address(shared + e);
            const number* const source = plane + (from + e / LINE) % ny * LINE + e % LINE;
            if constexpr (sizeof(number) == 16) copy_async_16(target, source);
            else copy_async_of<8>(target, source);
        }
    }
    __device__ void begin(int) {}
    __device__ void end() { commit_copies(); }
    __device__ void none() { end(); }  // an empty group, so that the count of groups in flight stays
    template <int LEFT>
    __device__ void await() {
        wait_copies<LEFT>();
    }
};
#endif

static __device__ __forceinline__ void write(number* line, int z, const spinor& s) {
#pragma unroll
    for (int o = 0; o < 4; ++o) {
        if constexpr (sizeof(number) == 16) __stcs(reinterpret_cast<double2*>(line + o * NZ + z), make_double2(s.c[o].x, s.c[o].y));
        else __stcs(reinterpret_cast<float2*>(line + o * NZ + z), make_float2(s.c[o].x, s.c[o].y));
    }
}

// v, w: nu_m and nu_m-1.  STEPS = 1: w_out = nu_m+1 (may be w itself).  STEPS = 2: w_out = nu_m+1, v_out = nu_m+2 (neither
// may be v or w).  scale, shift, keep belong to the first step; the second always is a recurrence step.
//
// The blocks hold nx planes, plane_stride apart, of vectors vector_stride apart (in numbers).  Computed are `planes` planes
// from `first_plane` on: a slab without its halo, or all nx planes of the periodic sample.
// partial: (vectors, groups, tiles, 2 * STEPS) scalar products; entries of vectors and groups that do not meet stay as they
// are (zero).
extern "C" __global__ void __launch_bounds__(THREADS, 1) sweep(const number* __restrict__ v, const number* w, number* v_out, number* w_out,
                                                               const real* __restrict__ potential, double* __restrict__ partial, int nx,
                                                               int ny, int tiles, int groups, int vectors, double scale, double shift,
                                                               double keep, double hopping, double mass, long long plane_stride,
                                                               long long vector_stride, int first_plane, int planes) {
    extern __shared__ __align__(16) unsigned char memory[];
    number* const v_ring = reinterpret_cast<number*>(memory);  // V_RING planes of V_LINES
    number* const w_ring = v_ring + V_RING * V_LINES * LINE;   // W_RING planes of U_LINES
    number* const u_ring = w_ring + W_RING * U_LINES * LINE;   // 2 planes of U_LINES, if STEPS = 2
    __shared__ double sums[2 * STEPS][THREADS / 32];
    __shared__ unsigned long long barriers[AHEAD + 1];
    Copies copies;
    copies.start(barriers);

    const int group = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const int y0 = tile * TY, lines = min(TY, ny - y0);
    const int thread = threadIdx.x, line = thread / NZ, z = thread % NZ;
    const bool active = thread < U_LINES * NZ;
    const bool own = active && line >= STEPS - 1 && line < STEPS - 1 + lines;
    const int y = (y0 + line - (STEPS - 1) + ny) % ny;
    const real hop = real(-0.5 * hopping * scale), mass_1 = real(mass * scale), keep_1 = real(keep);

    const long long total = (long long)vectors * planes;
    long long position = total * group / groups;
    const long long last = total * (group + 1) / groups;
    while (position < last) {
        const int vector = int(position / planes), offset = int(position % planes);
        const int begin = first_plane + offset;
        const int end = begin + int(min((long long)(planes - offset), last - position));
        position += end - begin;
        const number* const v_in = v + vector * vector_stride;
        const number* const w_in = w + vector * vector_stride;

        auto v_plane = [&](int x) { return v_ring + (x + 2 * V_RING) % V_RING * (V_LINES * LINE); };
        auto w_plane = [&](int x) { return w_ring + (x + 2 * W_RING) % W_RING * (U_LINES * LINE); };
        const int v_from = (y0 - STEPS + ny) % ny, w_from = (y0 - (STEPS - 1) + ny) % ny;
        auto fetch = [&](int v_x, int w_x) {  // one group: a plane of V and a plane of W
            copies.begin(V_LINES + U_LINES);
            copies.lines(v_plane(v_x), v_in + (v_x + nx) % nx * plane_stride, v_from, V_LINES, ny);
            copies.lines(w_plane(w_x), w_in + (w_x + nx) % nx * plane_stride, w_from, U_LINES, ny);
            copies.end();
        };

        const int first = begin - (STEPS - 1), stop = end + (STEPS - 1);
        __syncthreads();  // the rings of the segment before are read to the end
        copies.begin(2 * V_LINES);
        copies.lines(v_plane(first - 1), v_in + (first - 1 + nx) % nx * plane_stride, v_from, V_LINES, ny);
        copies.lines(v_plane(first), v_in + (first + nx) % nx * plane_stride, v_from, V_LINES, ny);
        copies.end();
#pragma unroll
        for (int d = 1; d <= AHEAD; ++d) {
            if (first + d <= stop) fetch(first + d, first + d - 1);
            else copies.none();
        }
        copies.await<AHEAD>();
        __syncthreads();
        spinor v_now, v_behind, u_now;
        number s_u = {real(0), real(0)}, t_u = {real(0), real(0)};
        clear(v_now), clear(v_behind), clear(u_now);
        if (active) {
            v_behind = read(v_plane(first - 1) + (line + 1) * LINE, z);
            v_now = read(v_plane(first) + (line + 1) * LINE, z);
        }
        double even_1 = 0, odd_1 = 0, even_2 = 0, odd_2 = 0;
        real behind_site = 0;
        for (int x = first; x < stop; ++x) {
            copies.await<AHEAD - 1>();
            __syncthreads();
            if (x + AHEAD < stop) fetch(x + AHEAD + 1, x + AHEAD);
            else copies.none();
            if (!active) continue;
            const int wrapped = x < 0 ? x + nx : x >= nx ? x - nx : x;
            const bool inside = x >= begin && x < end;
            const real site = potential[((long long)wrapped * ny + y) * NZ + z];
            const spinor ahead = read(v_plane(x + 1) + (line + 1) * LINE, z);
            const spinor old = read(w_plane(x) + line * LINE, z);
            const spinor u = update(v_behind.c[0] + v_behind.c[1], v_behind.c[2] + v_behind.c[3], v_now, ahead, v_plane(x), line + 1, z,
                                    old, hop, real(shift + scale * site), mass_1, keep_1);
            if (own && inside) {
                write(w_out + vector * vector_stride + wrapped * plane_stride + y * LINE, z, u);
                even_1 += dot(v_now, v_now);
                odd_1 += dot(u, v_now);
            }
#if STEPS == 2
            number* const u_plane = u_ring + (x & 1) * (U_LINES * LINE) + line * LINE;
#pragma unroll
            for (int o = 0; o < 4; ++o) u_plane[o * NZ + z] = u.c[o];
            if (own && x > begin) {
                const int back = x - 1;
                const spinor next = update(s_u, t_u, u_now, u, u_ring + (back & 1) * (U_LINES * LINE), line, z, v_behind, hop,
                                           real(shift + scale * behind_site), mass_1, real(1));
                write(v_out + vector * vector_stride + back * plane_stride + y * LINE, z, next);
                even_2 += dot(u_now, u_now);
                odd_2 += dot(next, u_now);
            }
            s_u = u_now.c[0] + u_now.c[1], t_u = u_now.c[2] + u_now.c[3];
            u_now = u;
            behind_site = site;
#endif
            v_behind = v_now;
            v_now = ahead;
        }

        double mine[4] = {even_1, odd_1, even_2, odd_2};
#pragma unroll
        for (int q = 0; q < 2 * STEPS; ++q) {
#pragma unroll
            for (int distance = 16; distance; distance /= 2) mine[q] += __shfl_xor_sync(0xffffffffu, mine[q], distance);
            if (thread % 32 == 0) sums[q][thread / 32] = mine[q];
        }
        __syncthreads();
        if (thread < 2 * STEPS) {
            double sum = 0;
            for (int n = 0; n < THREADS / 32; ++n) sum += sums[thread][n];
            partial[(((long long)vector * groups + group) * tiles + tile) * (2 * STEPS) + thread] = sum;
        }
    }
}

// etas[q * vectors + r] = sum of a vector's `count` partial sums, in a fixed order: one warp for each sum.
extern "C" __global__ void sum_sweeps(const double* __restrict__ partial, double* __restrict__ etas, int count, int vectors) {
    const int j = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (j >= 2 * STEPS * vectors) return;
    const int q = j / vectors, r = j % vectors;
    double total = 0;
    for (int n = lane; n < count; n += 32) total += partial[((long long)r * count + n) * (2 * STEPS) + q];
#pragma unroll
    for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
    if (lane == 0) etas[j] = total;
}

// The numbers of spectile.kpm.reference.random_phases on `planes` planes from plane `first_plane` (mod nx) of the sample.
extern "C" __global__ void random_spinors(number* __restrict__ block, int planes, int ny, int vectors, long long plane_stride,
                                          long long vector_stride, long long first_plane, long long nx, unsigned long long seed,
                                          unsigned long long first) {
    const long long plane_size = (long long)ny * LINE;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < planes * plane_size * vectors;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long r = i / vector_stride % vectors, at = i % plane_size;
        const unsigned long long line = (first_plane + i / plane_stride % planes) % nx * ny + at / LINE;
        const unsigned long long row = (line * NZ + at % NZ) * 4 + at % LINE / NZ;
        const unsigned long long bits = phase_bits(seed, row, first + r);
        const int quarter = int(bits >> 62);
        block[i] = {real(quarter == 0 ? 1 : quarter == 2 ? -1 : 0), real(quarter == 1 ? 1 : quarter == 3 ? -1 : 0)};
    }
}
