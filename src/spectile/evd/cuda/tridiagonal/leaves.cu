// The leaves of divide.cu.

#include "ptx.cuh"

#define EPS 1.1102230246251565e-16

constexpr int N = MOST_LEAF;

constexpr int AHEAD = N < 32 ? N / 2 : 16;  // pairs that are loaded before the first of them is stored

// Turn pairs of elements, `step` apart, of a row or a column.  No element is in two pairs.
__device__ __forceinline__ void turn(double* line, int step, int half, const int* pairs, const double* cs) {
    for (int first = 0; first < half; first += AHEAD) {
        double x[AHEAD], y[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int k = min(first + u, half - 1);
            x[u] = line[pairs[2 * k] * step];
            y[u] = line[pairs[2 * k + 1] * step];
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int k = min(first + u, half - 1);
            const double c = cs[k], s = cs[N / 2 + k];
            line[pairs[2 * k] * step] = c * x[u] - s * y[u];
            line[pairs[2 * k + 1] * step] = s * x[u] + c * y[u];
        }
    }
}

// Eigenvalues (ascending) and vectors of each leaf x leaf diagonal block by Jacobi rotations; one block of N threads a
// leaf of at most N.  d, e: the torn matrix; e at the end of a leaf is not read.
extern "C" __global__ void __launch_bounds__(N) leaves(const double* d, const double* e, int leaf, double* w, double* q, long long ldq) {
    DYNAMIC_SHARED(double, a);     // N x (N + 1)
    double* v = a + N * (N + 1);   // N x (N + 1)
    double* cs = v + N * (N + 1);  // N / 2 cosines, N / 2 sines
    int* pairs = (int*)(cs + N);   // N / 2 x 2
    int* partner = pairs + N;      // N: with whom an index was turned, or -1
    const int lane = threadIdx.x;
    const long long base = (long long)blockIdx.x * leaf;
    for (int j = 0; j < N; ++j) {
        double value = 0;
        if (lane < leaf && j < leaf) {
            if (lane == j) value = d[base + j];
            if (lane == j + 1) value = e[base + j];
            if (lane + 1 == j) value = e[base + lane];
        }
        a[lane + j * (N + 1)] = value;
        v[lane + j * (N + 1)] = lane == j ? 1 : 0;
    }
    partner[lane] = -1;
    __syncthreads();
    const int half = (leaf + 1) / 2, players = 2 * half;
    for (int sweep = 0; sweep < 30; ++sweep) {
        int rotated = 0;
        for (int round = 0; round < players - 1; ++round) {
            // Round-robin pairs: player `players - 1` stays, the others turn.
            if (lane < half) {
                int i = lane == 0 ? players - 1 : (round + lane) % (players - 1);
                int j = (round + players - 1 - lane) % (players - 1);
                if (i > j) {
                    const int k = i;
                    i = j;
                    j = k;
                }
                double c = 1, s = 0;
                if (j < leaf && i != j) {
                    const double off = a[i + j * (N + 1)], p = a[i + i * (N + 1)], r = a[j + j * (N + 1)];
                    if (fabs(off) > 0.25 * EPS * sqrt(fabs(p)) * sqrt(fabs(r)) && fabs(off) > 1e-30) {
                        const double tau = (r - p) / (2 * off);
                        const double t = copysign(1.0, tau) / (fabs(tau) + sqrt(1 + tau * tau));
                        c = 1 / sqrt(1 + t * t);
                        s = t * c;
                        rotated = 1;
                    }
                }
                cs[lane] = c;
                cs[N / 2 + lane] = s;
                pairs[2 * lane] = i;
                pairs[2 * lane + 1] = j;
                partner[i] = s != 0 ? j : -1;
                partner[j] = s != 0 ? i : -1;
            }
            __syncthreads();
            turn(a + lane, N + 1, half, pairs, cs);  // columns, and V: row `lane`
            turn(v + lane, N + 1, half, pairs, cs);
            __syncthreads();
            turn(a + lane * (N + 1), 1, half, pairs, cs);  // rows: column `lane`
            // What is left of it by rounding would be turned away again in each sweep.
            if (partner[lane] >= 0) a[partner[lane] + lane * (N + 1)] = 0;
            __syncthreads();
        }
        if (!__syncthreads_or(rotated)) break;
    }
    if (lane < leaf) {
        const double mine = a[lane + lane * (N + 1)];
        int rank = 0;
        for (int j = 0; j < leaf; ++j) {
            const double other = a[j + j * (N + 1)];
            rank += other < mine || (other == mine && j < lane);
        }
        w[base + rank] = mine;
        for (int i = 0; i < leaf; ++i) q[base + i + (base + rank) * ldq] = v[i + lane * (N + 1)];
    }
}
