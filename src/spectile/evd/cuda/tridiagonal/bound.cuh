// The norm of a tridiagonal matrix, found by one block.

#define BOUND_THREADS 256

// Largest absolute row sum, for all threads of the block; NaN where a number is NaN or infinite.  `parts`: BOUND_THREADS numbers.
__device__ __forceinline__ double norm_bound(const double* d, const double* e, int n, double* parts) {
    double largest = 0;
    for (int i = threadIdx.x; i < n; i += BOUND_THREADS) {
        const double size = fabs(d[i]) + (i > 0 ? fabs(e[i - 1]) : 0) + (i + 1 < n ? fabs(e[i]) : 0);
        if (size > largest || size != size) largest = size;  // fmax drops NaN, which must stay
    }
    parts[threadIdx.x] = largest;
    __syncthreads();
    for (int half = BOUND_THREADS / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) {
            const double other = parts[threadIdx.x + half];
            if (other > parts[threadIdx.x] || other != other) parts[threadIdx.x] = other;
        }
        __syncthreads();
    }
    return parts[0] - parts[0] == 0 ? parts[0] : __longlong_as_double(0x7ff8000000000000ll);
}
