// Lanczos steps on a stored matrix: all of them in one cooperative launch (`lanczos`), or what comes after each product
// (`next_vector`) where the product is a step of the recurrence.
//
//   x = v_k times its norm;  y = v_(k-1) times its norm
//   y = H v_k - beta_k v_(k-1),    alpha_k = Re <v_k|y>
//   y = y - alpha_k v_k,           beta_(k+1) = |y|,  and x and y change places
//
// In one launch the blocks meet where all need a sum, so that a step reads and writes vectors six times and waits for nothing
// else.  The order of every sum is fixed by the launch.
//
// Set by the launch code besides number.cuh's: THREADS, BLOCKS (resident blocks a multiprocessor), TURNS (entries of a thread in
// the longest row that is not the whole warp's).
#include "sums.cuh"
#include "random.cuh"
#include "meet.cuh"

// The sum over the blocks of what each of their threads has, for all of them.  part: (gridDim.x,)
static __device__ __forceinline__ double sum_of_all(double mine, double* part, double* shared, unsigned long long* arrived) {
    mine = sum_of_block(mine, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = mine;
    meet_blocks(arrived);
    double sum = 0;
    for (int n = threadIdx.x; n < gridDim.x; n += THREADS) sum += part[n];
    return sum_of_block(sum, shared);
}

static __device__ __forceinline__ double product(const number& a, const number& b) {
#if COMPLEX
    return double(a.x) * b.x + double(a.y) * b.y;
#else
    return double(a.x) * b.x;
#endif
}

static __device__ __forceinline__ number scaled(number n, double factor) {
    n.x = real(n.x * factor);
#if COMPLEX
    n.y = real(n.y * factor);
#endif
    return n;
}

// Element i of random vector number 0 of `seed`, by 1 to 2 longer, as its last 32 bits say.
static __device__ __forceinline__ number start_entry(unsigned long long seed, long long i) {
    return scaled(random_phase(seed, i, 0), 1 + 0x1p-32 * unsigned(phase_bits(seed, i, 0)));
}

constexpr int FLIGHT = 4;

// The part of a row's product with x times `by` that a thread has: the entries from `at` on, every `apart`-th, FLIGHT of them on
// their way at once.  Beyond its end a row reads its last entry again, times zero.
static __device__ __forceinline__ number part_of_row(const int* __restrict__ indices, const number* __restrict__ data, const number* x,
                                                     double by, entry at, entry end, int apart) {
    number u = zero();
    for (; at < end; at += FLIGHT * apart) {
        number a[FLIGHT], v[FLIGHT];
        int column[FLIGHT];
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            const entry from = min(at + k * apart, end - 1);
            a[k] = at + k * apart < end ? data[from] : zero(), column[k] = indices[from];
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) v[k] = x[column[k]];
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            const number q = scaled(v[k], by);
            u.x += a[k].x * q.x;
#if COMPLEX
            u.x -= a[k].y * q.y;
            u.y += a[k].x * q.y;
            u.y += a[k].y * q.x;
#endif
        }
    }
    return u;
}

// The sum over a group of so many threads, a power of two, for all of them.
static __device__ __forceinline__ number sum_of_group(number u, int threads) {
    for (int distance = threads / 2; distance; distance /= 2) {
        u.x += __shfl_xor_sync(0xffffffffu, u.x, distance);
#if COMPLEX
        u.y += __shfl_xor_sync(0xffffffffu, u.y, distance);
#endif
    }
    return u;
}

// From `start_entry`.  `lanes` threads share a row of H, a power of two up to 32.  x, y: (rows,), overwritten;  sums: (2, gridDim.x);  alphas: (steps,);  betas: (steps + 1,)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) lanczos(const entry* __restrict__ pointer, const int* __restrict__ indices,
                                                                      const number* __restrict__ data, number* x, number* y, long long rows,
                                                                      int lanes, unsigned long long seed, int steps,
                                                                      double* __restrict__ alphas, double* __restrict__ betas, double* sums,
                                                                      unsigned long long* arrived) {
    __shared__ double shared[32];
    const long long thread = blockIdx.x * (long long)THREADS + threadIdx.x, threads = gridDim.x * (long long)THREADS;
    const int lane = threadIdx.x % lanes;
    double* const squares = sums + gridDim.x;

    double sum = 0;
    for (long long i = thread; i < rows; i += threads) {
        const number n = start_entry(seed, i);
        sum += product(n, n);
        x[i] = n, y[i] = zero();
    }
    double beta = sqrt(sum_of_all(sum, squares, shared, arrived)), before = 0;
    for (int step = 0;; ++step) {
        const double by = beta > 0 ? 1 / beta : 0;  // times x has length one, as y times `before`
        if (thread == 0) betas[step] = beta;
        if (step == steps) break;

        sum = 0;
        // Whole warps go on together: `first` is the row of their first thread.  While the entries of a row are on their way,
        // so are its own x and y, and where the thread's next row begins and ends.
        const long long turn = threads / lanes, mine = threadIdx.x % 32 / lanes;
        long long first = thread / 32 * 32 / lanes;
        entry begin = first + mine < rows ? pointer[first + mine] : 0, end = first + mine < rows ? pointer[first + mine + 1] : 0;
        for (; first < rows; first += turn) {
            const long long row = first + mine, next = row + turn;
            const bool exists = row < rows && lane == 0;
            const entry next_begin = next < rows ? pointer[next] : 0, next_end = next < rows ? pointer[next + 1] : 0;
            const number own = exists ? x[row] : zero(), old = exists ? y[row] : zero();
            // A row that would keep its threads for long is the whole warp's.
            const bool is_long = end - begin > TURNS * lanes;
            number u = part_of_row(indices, data, x, by, begin + lane, is_long ? begin : end, lanes);
            for (unsigned left = __ballot_sync(0xffffffffu, is_long && lane == 0); left; left &= left - 1) {
                const int owner = __ffs(left) - 1;
                const entry from = __shfl_sync(0xffffffffu, begin, owner), to = __shfl_sync(0xffffffffu, end, owner);
                const number whole = sum_of_group(part_of_row(indices, data, x, by, from + threadIdx.x % 32, to, 32), 32);
                if (threadIdx.x % 32 == owner) u = whole;
            }
            begin = next_begin, end = next_end;
            u = sum_of_group(u, lanes);
            if (!exists) continue;
            u.x = real(u.x - beta * (before * old.x));
#if COMPLEX
            u.y = real(u.y - beta * (before * old.y));
#endif
            sum += product(scaled(own, by), u);
            y[row] = u;
        }
        const double alpha = sum_of_all(sum, sums, shared, arrived);
        if (thread == 0) alphas[step] = alpha;

        sum = 0;
        for (long long i = thread; i < rows; i += threads) {
            const number v = scaled(x[i], by);
            number u = y[i];
            u.x = real(u.x - alpha * v.x);
#if COMPLEX
            u.y = real(u.y - alpha * v.y);
#endif
            sum += product(u, u);
            y[i] = u;
        }
        before = by;
        beta = sqrt(sum_of_all(sum, squares, shared, arrived));
        number* other = x;
        x = y, y = other;
    }
}

// The vector from which products start, and a zero one before it.
extern "C" __global__ void __launch_bounds__(THREADS) first_vector(number* __restrict__ x, number* __restrict__ y, long long rows,
                                                                   unsigned long long seed) {
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < rows; i += threads) x[i] = start_entry(seed, i), y[i] = zero();
}

// What is read at each launch: which step it is, counted from 0, and the last one, of which only the norm counts.
struct Turn {
    int step, last;
};

// y = w / beta - alpha x / beta - beta y / before: the next v_k times its norm, from w = H x.  partial: (blocks, 2), the parts of
// <x|x> and Re <w|x>, which are beta^2 and alpha beta^2.  alphas, betas: (last + 1,)
extern "C" __global__ void __launch_bounds__(THREADS) next_vector(const number* __restrict__ w, const number* __restrict__ x,
                                                                  number* __restrict__ y, long long rows,
                                                                  const double* __restrict__ partial, int blocks, double* alphas,
                                                                  double* betas, Turn turn) {
    __shared__ double shared[32];
    double even = 0, odd = 0;
    for (int n = threadIdx.x; n < blocks; n += THREADS) even += partial[2 * n], odd += partial[2 * n + 1];
    even = sum_of_block(even, shared), odd = sum_of_block(odd, shared);
    const double beta = sqrt(even), by = beta > 0 ? 1 / beta : 0, alpha = odd * by * by;
    const double before = turn.step && betas[turn.step - 1] > 0 ? 1 / betas[turn.step - 1] : 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) alphas[turn.step] = alpha, betas[turn.step] = beta;
    if (turn.step == turn.last) return;
    const double own = alpha * by, old = beta * before;
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long at = blockIdx.x * (long long)THREADS + threadIdx.x; at < rows; at += FLIGHT * threads) {
        number a[FLIGHT], b[FLIGHT], c[FLIGHT];
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            const long long i = min(at + k * threads, rows - 1);
            a[k] = w[i], b[k] = x[i], c[k] = y[i];
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            if (at + k * threads >= rows) break;
            a[k].x = real(by * a[k].x - own * b[k].x - old * c[k].x);
#if COMPLEX
            a[k].y = real(by * a[k].y - own * b[k].y - old * c[k].y);
#endif
            y[at + k * threads] = a[k];
        }
    }
}
