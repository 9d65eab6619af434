// Eigenvectors of a symmetric tridiagonal matrix of norm near 1 for given eigenvalues, by inverse iteration: a thread a
// vector, each with its own random start, so that those of a cluster are independent; they are made orthogonal later.
//
// T - lambda = P L U with partial pivoting; U has two superdiagonals.  Element i of vector j is at i * count + j.
//
// A warp or a few share a multiprocessor, so nothing hides the latency of memory but the thread itself: it loads the
// AHEAD rows after those that it works on.

#define TINY 1.1102230246251565e-16  // least pivot
#define LARGE 1e100                  // beyond, a vector is scaled by SHRINK
#define SHRINK 1e-200
#define AHEAD 8

__device__ __forceinline__ double pivot_of(double x) { return fabs(x) < TINY ? copysign(TINY, x) : x; }

// In (-1, 1), from the number of the element (splitmix64).
__device__ __forceinline__ double random_start(unsigned long long x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (double)(long long)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

// What a row of the back-substitution reads, and of the forward one.
struct Upper {
    double y, first, second, inverse;
};
struct Lower {
    double x, multiplier;
    bool swapped;
};

// factors: 4 x n x count: reciprocal pivots, first and second superdiagonal of U, multipliers; swapped: n x count.
extern "C" __global__ void __launch_bounds__(32) inverse_iteration(const double* __restrict__ d, const double* __restrict__ e, int n,
                                                                   const double* __restrict__ w, int count, int steps,
                                                                   double* __restrict__ factors, unsigned char* __restrict__ swapped,
                                                                   double* __restrict__ x) {
    const int j = blockIdx.x * 32 + threadIdx.x;
    if (j >= count) return;
    const long long plane = (long long)n * count;
    double* inverse = factors + j;
    double* first = inverse + plane;
    double* second = first + plane;
    double* multiplier = second + plane;
    swapped += j;
    x += j;
    const double lambda = w[j];
    double a = d[0] - lambda, b = n > 1 ? e[0] : 0;
    double below = b, diagonal = n > 1 ? d[1] : 0, beyond = n > 2 ? e[1] : 0;
    for (int i = 0; i < n - 1; ++i) {
        const double diagonal_ahead = i + 2 < n ? d[i + 2] : 0, beyond_ahead = i + 3 < n ? e[i + 2] : 0;
        const double next = diagonal - lambda;
        const bool swap = fabs(a) < fabs(below);
        const double reciprocal = 1 / pivot_of(swap ? below : a), m = (swap ? a : below) * reciprocal;
        const long long at = (long long)i * count;
        inverse[at] = reciprocal;
        first[at] = swap ? next : b;
        second[at] = swap ? beyond : 0;
        multiplier[at] = m;
        swapped[at] = swap;
        a = swap ? b - m * next : next - m * b;
        b = swap ? -m * beyond : beyond;
        below = beyond;
        diagonal = diagonal_ahead;
        beyond = beyond_ahead;
    }
    const long long end = (long long)(n - 1) * count;
    inverse[end] = 1 / pivot_of(a);
    first[end] = second[end] = 0;

    double scale = 1;
    int top = n;  // from here on the vector is 0: it has been scaled since it was written
    for (int step = 0; step < steps; ++step) {
        if (step > 0) {  // L y = P x, in place
            auto row = [&](int i) -> Lower {
                const long long at = (long long)min(i, n - 2) * count;
                return {i + 1 < top ? x[at + count] * scale : 0, multiplier[at], swapped[at] != 0};
            };
            double rest = top > 0 ? x[0] * scale : 0;
            Lower ahead[AHEAD];
            if (n > 1) {
#pragma unroll
                for (int u = 0; u < AHEAD; ++u) ahead[u] = row(u);
            }
            for (int base = 0; base < n - 1; base += AHEAD) {
                Lower rows[AHEAD];
#pragma unroll
                for (int u = 0; u < AHEAD; ++u) rows[u] = ahead[u];
#pragma unroll
                for (int u = 0; u < AHEAD; ++u) ahead[u] = row(base + AHEAD + u);
#pragma unroll
                for (int u = 0; u < AHEAD; ++u) {
                    if (base + u >= n - 1) break;
                    const double own = rows[u].x, m = rows[u].multiplier;
                    const bool swap = rows[u].swapped;
                    x[(long long)(base + u) * count] = swap ? own : rest;
                    rest = swap ? rest - m * own : own - m * rest;
                }
            }
            x[end] = rest;
        }
        top = n;
        auto row = [&](int i) -> Upper {
            const long long at = (long long)max(i, 0) * count;
            return {step > 0 ? x[at] : random_start(at + j), first[at], second[at], inverse[at]};
        };
        double above = 0, beyond = 0, factor = 1, sum = 0;  // above: element i + 1, beyond: i + 2
        Upper ahead[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) ahead[u] = row(n - 1 - u);
        for (int base = n - 1; base >= 0; base -= AHEAD) {
            Upper rows[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) rows[u] = ahead[u];
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) ahead[u] = row(base - AHEAD - u);
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const int i = base - u;
                if (i < 0) break;
                const long long at = (long long)i * count;
                double value = factor * rows[u].y - (rows[u].first * above + rows[u].second * beyond);
                value *= rows[u].inverse;
                if (fabs(value) > LARGE) {
                    value *= SHRINK;
                    above *= SHRINK;
                    factor *= SHRINK;
                    if (i + 1 < n) x[at + count] = above;
                    sum = above * above;
                    top = min(i + 2, n);
                }
                x[at] = value;
                sum += value * value;
                beyond = above;
                above = value;
            }
        }
        scale = 1 / sqrt(sum);
    }
    for (int base = 0; base < n; base += AHEAD) {
        double rows[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) rows[u] = x[(long long)min(base + u, n - 1) * count];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (base + u < n) x[(long long)(base + u) * count] = base + u < top ? rows[u] * scale : 0;
        }
    }
}
