// Bulge chasing of wide bands (B = 128 or 256) by Algorithm 2 as printed: a block does one sweep at a time and works in
// global memory, where a window of the library's kernel, which lives in registers, would not fit.
//
// Element (i, j) of the lower band stands at i + j (2 B - 1).  Sweep s, task t: rows I = s + 1 + t B ..., a reflector that
// clears the first column of the block O left of the diagonal block D.  Task t of a sweep touches what tasks 0 to t + 1 of
// the sweep before have written, and nothing that its later tasks write.
// A ticket is drawn by a block that runs, and waits only for tickets drawn before: no occupancy can deadlock.

#define WARPS (THREADS / 32)
#define PER_LANE (B / 32)
#define FINISHED (1 << 30)

// Past the first-level cache, which does not see what other blocks write.
__device__ __forceinline__ double load(const double* at) { return __ldcg(at); }

__device__ __forceinline__ double sum_of_lanes(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

__device__ __forceinline__ void wait_for(const volatile int* done, int tasks) {
    if (threadIdx.x == 0) {
        while (*done < tasks) {}
        __threadfence();
    }
    __syncthreads();
}

struct Shared {
    double v[B], before[B], y[B], part[WARPS][B];
    double tau, beta;
    int sweep;
};

// v, tau and beta of the reflector that clears the column x but for its first entry: by one warp.
__device__ __forceinline__ void make_reflector(Shared& shared, const double (&x)[PER_LANE], int lane) {
    double tail = 0;
#pragma unroll
    for (int h = 0; h < PER_LANE; ++h)
        if (lane + h > 0) tail += x[h] * x[h];
    tail = sum_of_lanes(tail);
    const double head = __shfl_sync(0xffffffffu, x[0], 0);
    const double beta = tail == 0 ? head : -copysign(sqrt(head * head + tail), head);
    const double scale = tail == 0 ? 0 : 1 / (head - beta);
#pragma unroll
    for (int h = 0; h < PER_LANE; ++h) shared.v[lane + 32 * h] = lane + h == 0 ? 1 : x[h] * scale;
    if (lane == 0) {
        shared.tau = tail == 0 ? 0 : (beta - head) / beta;
        shared.beta = beta;
    }
}

// O, m x B at `corner`: the reflector before from the right, then a new one that clears its first column, from the left.
__device__ __forceinline__ void work_on_o(Shared& shared, double* corner, int m, int warp, int lane) {
    const long long ld = 2 * B - 1;
    const double tau = shared.tau;
    double sums[PER_LANE] = {};
    for (int c = warp; c < B; c += WARPS)
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            if (r < m) sums[h] = fma(load(corner + r + c * ld), shared.v[c], sums[h]);
        }
#pragma unroll
    for (int h = 0; h < PER_LANE; ++h) shared.part[warp][lane + 32 * h] = sums[h];
    __syncthreads();
    for (int r = threadIdx.x; r < B; r += THREADS) {
        double sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += shared.part[w][r];
        shared.y[r] = tau * sum;
        shared.before[r] = shared.v[r];
    }
    __syncthreads();
    if (warp == 0) {
        double x[PER_LANE];
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            x[h] = r < m ? load(corner + r) - shared.y[r] * shared.before[0] : 0;
        }
        make_reflector(shared, x, lane);
    }
    __syncthreads();
    for (int c = warp; c < B; c += WARPS) {
        double* column = corner + c * ld;
        double x[PER_LANE], product = 0;
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            x[h] = r < m ? load(column + r) - shared.y[r] * shared.before[c] : 0;
            product = fma(shared.v[r], x[h], product);
        }
        product = shared.tau * sum_of_lanes(product);
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            if (r < m) column[r] = c > 0 ? x[h] - product * shared.v[r] : r == 0 ? shared.beta : 0;
        }
    }
}

// D, the lower triangle of m x m at `corner`, from both sides: D - v w^T - w v^T.
__device__ __forceinline__ void work_on_d(Shared& shared, double* corner, int m, int warp, int lane) {
    const long long ld = 2 * B - 1;
    double sums[PER_LANE] = {};
    for (int c = warp; c < m; c += WARPS) {
        double product = 0;
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            if (r < c || r >= m) continue;
            const double x = load(corner + r + c * ld);
            product = fma(x, shared.v[r], product);
            if (r > c) sums[h] = fma(x, shared.v[c], sums[h]);
        }
        product = sum_of_lanes(product);
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h)
            if (lane + 32 * h == c) sums[h] += product;
    }
#pragma unroll
    for (int h = 0; h < PER_LANE; ++h) shared.part[warp][lane + 32 * h] = sums[h];
    __syncthreads();
    if (warp == 0) {
        double p[PER_LANE], product = 0;
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            p[h] = 0;
            for (int w = 0; w < WARPS; ++w) p[h] += shared.part[w][lane + 32 * h];
            p[h] *= shared.tau;
            product = fma(p[h], shared.v[lane + 32 * h], product);
        }
        product = shared.tau / 2 * sum_of_lanes(product);
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) shared.y[lane + 32 * h] = p[h] - product * shared.v[lane + 32 * h];
    }
    __syncthreads();
    for (int c = warp; c < m; c += WARPS)
#pragma unroll
        for (int h = 0; h < PER_LANE; ++h) {
            const int r = lane + 32 * h;
            if (r < c || r >= m) continue;
            double* at = corner + r + c * ld;
            *at = load(at) - shared.v[r] * shared.y[c] - shared.y[r] * shared.v[c];
        }
}

// done: of each sweep the finished tasks; then the ticket.
extern "C" __global__ void __launch_bounds__(THREADS) chase_wide(double* band, int n, int* done) {
    __shared__ Shared shared;
    const long long ld = 2 * B - 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    while (true) {
        if (threadIdx.x == 0) shared.sweep = atomicAdd(done + n, 1);
        __syncthreads();
        const int sweep = shared.sweep;
        if (sweep >= n - 2) return;
        for (int task = 0, start = sweep + 1; start < n; ++task, start += B) {
            const int m = min(n - start, B);
            if (sweep > 0) wait_for(done + sweep - 1, task + 2);
            if (task > 0) {
                work_on_o(shared, band + start + (start - B) * ld, m, warp, lane);
            } else {
                double* column = band + start + sweep * ld;
                if (warp == 0) {
                    double x[PER_LANE];
#pragma unroll
                    for (int h = 0; h < PER_LANE; ++h) x[h] = lane + 32 * h < m ? load(column + lane + 32 * h) : 0;
                    make_reflector(shared, x, lane);
                }
                __syncthreads();
                for (int r = threadIdx.x; r < m; r += THREADS) column[r] = r == 0 ? shared.beta : 0;
            }
            work_on_d(shared, band + start + start * ld, m, warp, lane);
            __syncthreads();
            if (threadIdx.x == 0) {
                __threadfence();
                atomicExch(done + sweep, start + B < n ? task + 1 : FINISHED);
            }
        }
        __syncthreads();
    }
}
