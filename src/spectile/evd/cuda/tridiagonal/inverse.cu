// Eigenvectors of a symmetric tridiagonal matrix of norm near 1 for given eigenvalues, by inverse iteration: a thread a
// vector, each with its own random start, so that those of a cluster are independent; they are made orthogonal later.
//
// T - lambda = P L U with partial pivoting; U has two superdiagonals.  Element i of vector j is at i * count + j.

#define TINY 1.1102230246251565e-16  // least pivot
#define LARGE 1e100                  // beyond, a vector is scaled by SHRINK
#define SHRINK 1e-200

__device__ __forceinline__ double pivot_of(double x) { return fabs(x) < TINY ? copysign(TINY, x) : x; }

// In (-1, 1), from the number of the element (splitmix64).
__device__ __forceinline__ double random_start(unsigned long long x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (double)(long long)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

// factors: 4 x n x count: reciprocal pivots, first and second superdiagonal of U, multipliers; swapped: n x count.
extern "C" __global__ void __launch_bounds__(32)
inverse_iteration(const double* __restrict__ d, const double* __restrict__ e, int n, const double* __restrict__ w, int count,
                  int steps, double* __restrict__ factors, unsigned char* __restrict__ swapped, double* __restrict__ x)
{
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
    for (int i = 0; i < n - 1; ++i) {
        const double below = e[i], next = d[i + 1] - lambda, beyond = i + 2 < n ? e[i + 1] : 0;
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
    }
    inverse[(long long)(n - 1) * count] = 1 / pivot_of(a);

    double scale = 1;
    int top = n;  // from here on the vector is 0: it has been scaled since it was written
    for (int step = 0; step < steps; ++step) {
        if (step > 0) {  // L y = P x, in place
            double rest = top > 0 ? x[0] * scale : 0;
#pragma unroll 4
            for (int i = 0; i < n - 1; ++i) {
                const long long at = (long long)i * count;
                const double own = i + 1 < top ? x[at + count] * scale : 0, m = multiplier[at];
                const bool swap = swapped[at];
                x[at] = swap ? own : rest;
                rest = swap ? rest - m * own : own - m * rest;
            }
            x[(long long)(n - 1) * count] = rest;
        }
        top = n;
        double above = 0, beyond = 0, factor = 1, sum = 0;  // above: element i + 1, beyond: i + 2
#pragma unroll 4
        for (int i = n - 1; i >= 0; --i) {
            const long long at = (long long)i * count;
            const double y = step > 0 ? x[at] : random_start(at + j);
            double value = factor * y;
            if (i + 1 < n) value -= first[at] * above + second[at] * beyond;
            value *= inverse[at];
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
        scale = 1 / sqrt(sum);
    }
    for (int i = 0; i < n; ++i) {
        const long long at = (long long)i * count;
        x[at] = i < top ? x[at] * scale : 0;
    }
}
