// What is left of a step after the vendor's product, W = alpha H V - W: the shift, and both scalar products, in one pass.
//
//     for each row and column:  W += factor V;  sums[0, column] += |V|^2;  sums[1, column] += Re(conj(W) V)
//
// A block holds whole rows, a thread one column of them; a column's sums of a block meet in shared memory, those of the
// blocks by atomics.  Invariant: every element is read and written by one thread.
#define PARTS (1 + COMPLEX)

extern "C" __global__ void shift_and_dots(const REAL* __restrict__ v, REAL* __restrict__ w, long long rows, int width, double factor,
                                          double* __restrict__ sums) {
    __shared__ double part[2][THREADS];
    const int lanes = THREADS / width, column = threadIdx.x % width, lane = threadIdx.x / width;
    double square = 0, dot = 0;
    if (lane < lanes)
        for (long long row = blockIdx.x * (long long)lanes + lane; row < rows; row += gridDim.x * (long long)lanes) {
            const long long at = PARTS * (row * width + column);
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                const double x = v[at + p], y = w[at + p] + (REAL)factor * v[at + p];
                w[at + p] = (REAL)y;
                square += x * x;
                dot += x * (double)(REAL)y;
            }
        }
    part[0][threadIdx.x] = square;
    part[1][threadIdx.x] = dot;
    __syncthreads();
    if (lane == 0)
        for (int k = 0; k < 2; ++k) {
            double total = 0;
            for (int other = 0; other < lanes; ++other) total += part[k][other * width + column];
            atomicAdd(&sums[k * width + column], total);
        }
}
