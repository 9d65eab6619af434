// The scalar products of the chain of library calls: of each column <v|v> and Re <w|v>, added to etas[2][width].
// Columns lie one after the other (a block reads one), or beside each other (a thread reads one: the threads of a block
// are a multiple of the width).
#if COMPLEX
struct number {
    real x, y;
};
__device__ double product(number a, number b) { return double(a.x) * b.x + double(a.y) * b.y; }
#else
typedef real number;
__device__ double product(number a, number b) { return double(a) * b; }
#endif

extern "C" __global__ void dots(const number* __restrict__ v, const number* __restrict__ w, double* __restrict__ etas, long long rows,
                                int width, int beside) {
    extern __shared__ double sums[];
    const int held = beside ? width : 1;
    for (int i = threadIdx.x; i < 2 * held; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    const long long size = beside ? rows * width : rows;
    const long long base = beside ? 0 : rows * blockIdx.y;
    double vv = 0, wv = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < size; i += (long long)gridDim.x * blockDim.x) {
        const number one = v[base + i], two = w[base + i];
        vv += product(one, one);
        wv += product(two, one);
    }
    const int own = beside ? threadIdx.x % width : 0;
    atomicAdd(&sums[own], vv);
    atomicAdd(&sums[held + own], wv);
    __syncthreads();
    const int first = beside ? 0 : blockIdx.y;
    for (int i = threadIdx.x; i < 2 * held; i += blockDim.x) atomicAdd(&etas[(i / held) * width + first + i % held], sums[i]);
}
