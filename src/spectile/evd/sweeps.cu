// The chasing reflectors of one group of B sweeps on 64 columns of Z, all diamonds in one pass (float64).
//
// A block keeps a window of 2 B rows of its columns in shared memory and slides it down by B rows a diamond:
// Z - W (Y^T Z), by FP64 tensor cores.  So Z is read and written once a group, and the zero parts of the parallelogram Y
// (column c holds rows c ... c + B - 1) and of W (rows 0 ... c + B - 1) are left out.

#define NC 64
#define LD (2 * B + 4)      // leading dimensions = 4 mod 16 doubles: fragments without bank conflicts
#define LS (B + 4)
#define YS (B * LD > NC * LS ? B * LD : NC * LS)  // Y, and later S in its place
#define CT (B / 16)         // tiles of 16 columns of Y
#define NW (8 / CT)         // warps side by side over the columns of Z
#define NT (NC / NW / 8)    // 8-column tiles of a warp
#define EACH (B * NC / 256) // elements of half a window a thread

extern "C" __global__ void __launch_bounds__(256, 1)
apply_sweeps(double* z, long long ldz, int columns, const double* y, const double* w, int steps, int start)
{
    extern __shared__ unsigned char shared[];
    double* ys = (double*)shared;  // B columns of 2 B rows
    double* ws = ys + YS;          // B columns of 2 B rows
    double* zs = ws + B * LD;      // NC columns of 2 B rows; rows turn with `off`
    double* ss = ys;               // Y^T Z, NC columns of B rows, when Y has been read
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    const int tile = warp / NW, n0 = warp % NW * (NC / NW), c0 = tile * 16;
    const int first = blockIdx.x * NC;
    double* zg = z + start + (long long)first * ldz;

    for (int i = thread; i < 2 * B * NC; i += 256) {
        const int r = i % (2 * B), c = i / (2 * B);
        zs[r + c * LD] = first + c < columns ? zg[r + c * ldz] : 0;
    }
    int off = 0;
    for (int step = 0; step < steps; ++step) {
        for (int i = thread; i < B * B; i += 256) copy_16_bytes(ys + 2 * (i % B) + i / B * LD, y + 2 * i);
        end_copies();
        for (int i = thread; i < B * B; i += 256) copy_16_bytes(ws + 2 * (i % B) + i / B * LD, w + 2 * i);
        end_copies();
        y += 2 * B * B;
        w += 2 * B * B;
        // The rows that enter the window after this diamond.
        double entering[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int i = thread + e * 256, r = i % B, c = i / B;
            entering[e] = step + 1 < steps && first + c < columns ? zg[(step + 2) * B + r + c * ldz] : 0;
        }
        wait_copies<1>();
        __syncthreads();
        double acc[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
        const int end = c0 + B + 16 < 2 * B ? c0 + B + 16 : 2 * B;
#pragma unroll 4
        for (int k = c0; k < end; k += 4) {
            const double a0 = ys[k + t + (c0 + g) * LD], a1 = ys[k + t + (c0 + 8 + g) * LD];
            const double* row = zs + ((k + off) & (2 * B - 1)) + t + (n0 + g) * LD;
#pragma unroll
            for (int n = 0; n < NT; ++n) multiply_add(acc[n], a0, a1, row[n * 8 * LD]);
        }
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) ss[c0 + g + (i & 2) * 4 + (n0 + n * 8 + 2 * t + (i & 1)) * LS] = acc[n][i];
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 2; ++part) {  // a long and a short tile of rows for every warp
            const int r0 = 16 * (part ? 2 * CT - 1 - tile : tile);
            double* target = zs + ((r0 + off) & (2 * B - 1)) + g;
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[n][i] = target[(i & 2) * 4 + (n0 + n * 8 + 2 * t + (i & 1)) * LD];
#pragma unroll 4
            for (int k = r0 < B ? 0 : r0 - B; k < B; k += 4) {
                const double a0 = -ws[r0 + g + (k + t) * LD], a1 = -ws[r0 + 8 + g + (k + t) * LD];
                const double* row = ss + k + t + (n0 + g) * LS;
#pragma unroll
                for (int n = 0; n < NT; ++n) multiply_add(acc[n], a0, a1, row[n * 8 * LS]);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) target[(i & 2) * 4 + (n0 + n * 8 + 2 * t + (i & 1)) * LD] = acc[n][i];
        }
        __syncthreads();
        // The upper half of the window is done; the entering rows take its place.
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int i = thread + e * 256, r = i % B, c = i / B;
            double* place = zs + ((r + off) & (2 * B - 1)) + c * LD;
            if (first + c < columns) zg[step * B + r + c * ldz] = *place;
            *place = entering[e];
        }
        off ^= B;
        __syncthreads();
    }
    for (int i = thread; i < B * NC; i += 256) {
        const int r = i % B, c = i / B;
        if (first + c < columns) zg[steps * B + r + c * ldz] = zs[((r + off) & (2 * B - 1)) + c * LD];
    }
}
