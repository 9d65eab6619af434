// The chasing reflectors of 64 neighbouring sweeps (a group) on Z, all tasks in one pass, on the FP64 tensor cores;
// Z is in double precision, whatever the reflectors are in (SOURCE).
//
// Task t of the group acts on a window of 64 + B rows from g 64 + t B on, of which the first stays as it is.  Its
// reflectors fall into four tiles of 16 sweeps; tile c acts on B + 16 rows from row 16 c of the window on, with
// Z - (Y T) (Y^H Z), tile 3 first.  A warp keeps the window of its 16 columns (or of 8, real and imaginary parts one
// below the other) in registers, transposed: as C fragments of m16n8k16, which are A fragments of the next product if
// the rows of Y and T are taken in the order of the registers.  So Z is read and written once a group, nothing is
// exchanged between warps, and Y and Y T come from memory as ready-made B fragments.

#define GROUP 64
#define TILES (GROUP / 16)
#define STEPS ((B + 16) / 16)  // of 16 rows in a tile
#define PARTS (COMPLEX ? 2 : 1)
// Doubles of a tile: Y (STEPS x 2 fragments of 16 x 8), then -Y T (2 STEPS fragments of 16 x 8, transposed); for
// complex numbers the real parts of both, then the imaginary ones.
#define FRAGMENT 128
#define TILE_PART (4 * STEPS * FRAGMENT)
#define TILE (PARTS * TILE_PART)
#define WINDOW ((GROUP + B) / 8)  // C fragments
#define COLUMNS (16 / PARTS)      // of Z a warp

// Where element (k, n) of fragment f is: lane 4 g + t holds rows 2 t, 2 t + 1, 8 + 2 t, 8 + 2 t + 1 of column g.
__device__ __forceinline__ int place(int f, int k, int n) { return f * FRAGMENT + k / 8 * 64 + (n * 4 + k % 8 / 2) * 2 + k % 2; }

struct source_t {
    SOURCE part[PARTS];
};

__device__ __forceinline__ scalar_t widen(const source_t& value) { return make_scalar(value.part[0], value.part[PARTS - 1]); }

// Tiles of the groups first_group, first_group - 1, ...: `width` tasks each, a warp a tile, in the order of their use.
// Element i of sweep s is at vectors[s * sweep_stride + i * row_stride], with tau in place of the leading 1.
extern "C" __global__ void __launch_bounds__(32 * TILES)
sweep_tiles(const source_t* vectors, long long sweep_stride, long long row_stride, int n, int first_group, int width, double* tiles)
{
    extern __shared__ unsigned char shared[];
    const int lane = threadIdx.x & 31, c = threadIdx.x >> 5, t = blockIdx.x, g = first_group - blockIdx.y;
    const int rows = 16 * STEPS, ld = rows + 1;
    const int sweep0 = g * GROUP + 16 * c, row0 = sweep0 + t * B;
    if (g * GROUP + 1 + t * B >= n) return;
    scalar_t* y = (scalar_t*)shared + c * (16 * ld + 16 * 17 + 16);  // rows x 16
    scalar_t* factor = y + 16 * ld;                                  // 16 x 16: above the diagonal v_i^H v_j, then T
    scalar_t* tau = factor + 16 * 17;
    double* out = tiles + (((long long)blockIdx.y * width + t) * TILES + (TILES - 1 - c)) * TILE;
    if (lane < 16) {
        const int sweep = sweep0 + lane, row = row0 + lane + 1;
        tau[lane] = sweep < n - 1 && row < n ? widen(vectors[sweep * sweep_stride + row * row_stride]) : zero();
    }
    __syncwarp();
    for (int j = 0; j < 16; ++j)
        for (int r = lane; r < rows; r += 32) {
            const int row = row0 + r;
            scalar_t value = zero();
            if (row < n && r > j && r <= j + B && square(tau[j]) > 0)
                value = r == j + 1 ? one() : widen(vectors[(sweep0 + j) * sweep_stride + row * row_stride]);
            y[r + j * ld] = value;
        }
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
        const int r = i % 16, j = i / 16;
        scalar_t sum = zero();
        if (r < j)
            for (int l = j + 1; l <= r + B; ++l) sum = fma_(conj(y[l + r * ld]), y[l + j * ld], sum);
        factor[r + j * 17] = r == j ? tau[j] : sum;
    }
    __syncwarp();
    for (int j = 1; j < 16; ++j) {  // T(:j, j) = -tau_j T(:j, :j) gram(:j, j)
        scalar_t sum = zero();
        if (lane < j)
            for (int l = lane; l < j; ++l) sum = fma_(factor[lane + l * 17], factor[l + j * 17], sum);
        __syncwarp();
        if (lane < j) factor[lane + j * 17] = negative(tau[j]) * sum;
        __syncwarp();
    }
    for (int i = lane; i < 16 * rows; i += 32) {
        const int k = i % 16, step = i / 256, column = i / 16 % 16;
        const scalar_t value = y[step * 16 + k + column * ld];
        const int at = place(step * 2 + column / 8, k, column % 8);
        out[at] = real_part(value);
        if (COMPLEX) out[TILE_PART + at] = imag_part(value);
    }
    out += 2 * STEPS * FRAGMENT;
    for (int r = lane; r < rows; r += 32) {
        for (int j = 0; j < 16; ++j) {
            scalar_t sum = zero();
            for (int l = 0; l <= j; ++l) sum = fma_(y[r + l * ld], factor[l + j * 17], sum);
            const int at = place(r / 8, j, r % 8);
            out[at] = -real_part(sum);
            if (COMPLEX) out[TILE_PART + at] = -imag_part(sum);
        }
    }
}

__device__ __forceinline__ void load_fragment(const double* p, int lane, double (&b)[4]) {
    const double2 low = *(const double2*)(p + 2 * lane), high = *(const double2*)(p + 64 + 2 * lane);
    b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
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
    } else {        // the rows of the columns g and g + 8
        c[0] = first.x, c[1] = first.y, c[2] = second.x, c[3] = second.y;
    }
}

// One group: Z = (product of its reflectors) Z; tiles as `sweep_tiles` leaves them, `steps` tasks, first row `start`.
// z has `columns` columns of n rows, on 16 bytes, and ldz is even.
extern "C" __global__ void __launch_bounds__(256, 1)
apply_sweeps(double* z, long long ldz, int n, int columns, const double* tiles, int steps, int start)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
    double* ring = (double*)shared;
    double* entering = ring + TILES * TILE + warp * 16 * B;  // the next B rows of this warp's columns
    const int column = (blockIdx.x * warps + warp) * COLUMNS;
    double* zg = z + column * ldz * PARTS;

#if __CUDA_ARCH__ >= 900
    unsigned long long* full = (unsigned long long*)(ring + TILES * TILE + warps * 16 * B);
    unsigned long long* empty = full + TILES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, warps);
        }
        barriers_ready();
        for (int i = 0; i < TILES; ++i) copy_bulk(ring + i * TILE, tiles + i * TILE, TILE * 8, full + i);
    }
    __syncthreads();
#endif

    // 16 bytes: two rows of one column, or one row of a complex one; chunks of odd columns are swapped in halves of 64
    // bytes, so that the lanes of a fragment find all banks.
    const int chunks = B * PARTS / 2;  // of a column
    auto fetch = [&](int row0) {
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
        wait_copies();
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
            const int first = 2 * (TILES - 1 - i);  // C fragment where the tile begins
#if __CUDA_ARCH__ >= 900
            // The place of the tile before the last one: all warps have left it, or will soon.
            if (threadIdx.x == 0) {
                const int slot = (i + TILES - 2) % TILES, next = step * TILES + i + TILES - 2;
                if (next >= TILES && next < steps * TILES) {
                    barrier_wait(empty + slot, (next / TILES - 1) & 1);
                    copy_bulk(ring + slot * TILE, tiles + (long long)next * TILE, TILE * 8, full + slot);
                }
            }
            __syncwarp();
            barrier_wait(full + i, step & 1);
#else
            __syncthreads();
            for (int k = threadIdx.x; k < TILE / 2; k += blockDim.x)
                copy_16_bytes(ring + i * TILE + 2 * k, tiles + ((long long)step * TILES + i) * TILE + 2 * k, 16);
            wait_copies();
            __syncthreads();
#endif
            const double* y = ring + i * TILE;
            double s[PARTS][2][4], a[8], b[4];
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int j = 0; j < 2; ++j) s[part][j][0] = s[part][j][1] = s[part][j][2] = s[part][j][3] = 0;
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                as_left(c[first + 2 * k], c[first + 2 * k + 1], a);
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        load_fragment(y + part * TILE_PART + (2 * k + j) * FRAGMENT, lane, b);
                        multiply_add(s[part][j], a, b);
                    }
            }
            double turned[8];
            if (COMPLEX) {
                // Y^H Z from Z^T Re Y and Z^T Im Y; and i times it.
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const double re = s[0][j][h] + s[PARTS - 1][j][2 + h], im = s[0][j][2 + h] - s[PARTS - 1][j][h];
                        s[0][j][h] = re, s[0][j][2 + h] = im;
                        s[PARTS - 1][j][h] = -im, s[PARTS - 1][j][2 + h] = re;
                    }
                as_left(s[PARTS - 1][0], s[PARTS - 1][1], turned);
            }
            as_left(s[0][0], s[0][1], a);
#pragma unroll
            for (int r = 0; r < 2 * STEPS; ++r) {
                load_fragment(y + (2 * STEPS + r) * FRAGMENT, lane, b);
                multiply_add(c[first + r], a, b);
                if (COMPLEX) {
                    load_fragment(y + TILE_PART + (2 * STEPS + r) * FRAGMENT, lane, b);
                    multiply_add(c[first + r], turned, b);
                }
            }
#if __CUDA_ARCH__ >= 900
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + i);
#endif
        }
        // The first B rows are done; in the last task the whole window is.
        const bool last = step + 1 == steps;
#pragma unroll
        for (int i = 0; i < WINDOW; ++i) {
            if (i >= B / 8 && !last) break;
            const int row = start + step * B + 8 * i + 2 * t;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int own = column + g + (COMPLEX ? 0 : 8 * h);
                double* to = COMPLEX ? zg + (g * ldz + row + h) * 2 : zg + (g + 8 * h) * ldz + row;
                const double x = COMPLEX ? c[i][h] : c[i][2 * h], y = COMPLEX ? c[i][h + 2] : c[i][2 * h + 1];
                if (own >= columns) continue;
                if (COMPLEX ? row + h < n : row + 1 < n) *(double2*)to = make_double2(x, y);
                else if (!COMPLEX && row < n) *to = x;
            }
        }
        if (last) break;
        wait_copies();
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
}
