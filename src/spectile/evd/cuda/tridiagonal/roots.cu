// Roots of the merges of divide.cu, and z that fits them.

#include "tridiagonal/merge.cuh"

// Root j of 1 / rho + sum z_i^2 / (d_i - lambda), in (d_j, d_j+1): the nearer pole as origin, and the offset from it.
// A warp a root: the rational step of R.-C. Li's middle way, inside a bracket that halves when a step leaves it.
extern "C" __global__ void __launch_bounds__(128) secular(const double* coupling, int m, const int* count, const double* dk,
                                                          const double* zk, int* origin, double* offset) {
    const int merge = blockIdx.y, j = (blockIdx.x * 128 + threadIdx.x) / 32, lane = threadIdx.x & 31;
    const long long base = (long long)merge * m;
    const int k = count[merge];
    if (j >= k) return;
    const double* d = dk + base;
    const double* z = zk + base;
    const double rho_inverse = 0.5 / fabs(coupling[base + m / 2 - 1]);
    const bool last = j == k - 1;
    const double gap = last ? 0 : d[j + 1] - d[j];
    int from = j;
    double low = 0, high = 0, mu = 0;
    if (last) {
        double sum = 0;
        for (int i = lane; i < k; i += 32) sum += z[i] * z[i];
        sum = warp_sum(sum);
        high = sum / rho_inverse * (1 + 64 * EPS);
        mu = 0.5 * high;
    } else {
        high = gap;
        mu = 0.5 * gap;
    }
    for (int step = 0; step < 200; ++step) {
        const double center = d[from];
        double psi = 0, phi = 0, dpsi = 0, dphi = 0;
        for (int i = lane; i <= j; i += 32) {
            const double t = z[i] / ((d[i] - center) - mu);
            psi += z[i] * t;
            dpsi += t * t;
        }
        for (int i = j + 1 + lane; i < k; i += 32) {
            const double t = z[i] / ((d[i] - center) - mu);
            phi += z[i] * t;
            dphi += t * t;
        }
        psi = warp_sum(psi);
        phi = warp_sum(phi);
        dpsi = warp_sum(dpsi);
        dphi = warp_sum(dphi);
        const double f = rho_inverse + psi + phi;
        if (step == 0 && !last) {
            // The midpoint says which pole is nearer; there the offset keeps its relative accuracy.
            if (f < 0) {
                from = j + 1;
                mu -= gap;
                low = mu;
                high = 0;
            } else {
                high = mu;
            }
        } else if (f < 0) {
            low = mu;
        } else {
            high = mu;
        }
        if (fabs(f) <= 4 * EPS * (rho_inverse + fabs(psi) + fabs(phi))) break;
        if (high - low <= 2 * EPS * fmax(fabs(low), fabs(high))) break;
        const double delta1 = (d[j] - d[from]) - mu;
        double eta;
        if (last) {
            // One pole and a constant: c + s / (delta1 - eta) = 0.
            const double s = delta1 * delta1 * dpsi, c = f - delta1 * dpsi;
            eta = delta1 + s / c;
        } else {
            const double delta2 = (d[j + 1] - d[from]) - mu;
            const double c = f - delta1 * dpsi - delta2 * dphi;
            const double a = (delta1 + delta2) * f - delta1 * delta2 * (dpsi + dphi);
            const double b = delta1 * delta2 * f;
            const double root = sqrt(fmax(a * a - 4 * b * c, 0.0));
            eta = a <= 0 ? (a - root) / (2 * c) : 2 * b / (a + root);
        }
        if (!(f * eta < 0)) eta = -f / (dpsi + dphi);
        double next = mu + eta;
        // Every eighth step halves, whatever the rational step says: the bracket always shrinks.
        if (!(next > low && next < high) || (step & 7) == 7) next = 0.5 * (low + high);
        if (next == mu) break;
        mu = next;
    }
    if (lane == 0) {
        origin[base + j] = from;
        offset[base + j] = mu;
    }
}

// z_i^2 = prod_j (lambda_j - d_i) / prod_{j != i} (d_j - d_i) (a constant factor is left out); one warp for each entry.
extern "C" __global__ void __launch_bounds__(128) refine_z(int m, const int* count, const double* dk, const double* zk, const int* origin,
                                                           const double* offset, double* zr) {
    const int merge = blockIdx.y, i = (blockIdx.x * 128 + threadIdx.x) / 32, lane = threadIdx.x & 31;
    const long long base = (long long)merge * m;
    const int k = count[merge];
    if (i >= k) return;
    const double* d = dk + base;
    double product = 1;
    for (int j = lane; j < k; j += 32) {
        const double numerator = (d[origin[base + j]] - d[i]) + offset[base + j];
        // Root j stands against the pole on its far side from d_i; the last root against none.
        const double denominator = j < i ? d[j] - d[i] : (j + 1 < k ? d[j + 1] - d[i] : 1.0);
        product *= numerator / denominator;
    }
    product = warp_product(product);
    if (lane == 0) zr[base + i] = copysign(sqrt(fabs(product)), zk[base + i]);
}
