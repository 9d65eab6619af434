// Divide and conquer for a symmetric tridiagonal matrix of order N = leaf 2^levels: all merges of a level at once.
// leaves.cu solves the leaves.
//
// A merge of order m joins two solved halves: D + rho z z^T with D the halves' eigenvalues.  `order` sorts D, `deflate`
// drops what is negligible, `secular` finds the roots, `refine_z` makes z fit the computed roots (Gu and Eisenstat), so
// that the eigenvectors `vectors` writes are orthogonal however close the roots are; two products per merge follow.
// Arrays of length N hold all merges of the level one after the other; Q is N x N, column-major, block-diagonal.

#define EPS 1.1102230246251565e-16

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

__device__ __forceinline__ double warp_product(double x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x *= __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

// Sort the two ascending halves of each merge; z from the rows of Q on both sides of the cut.  With a shift, half the
// order, the blocks of the first half of Q lie that many columns further right, those of the second further left.
// Out, per merge: ds, zs sorted, column[sorted position] = column in the merge.
extern "C" __global__ void __launch_bounds__(256)
order(const double* w, const double* q, long long ldq, const double* coupling, int m, int shift, double* ds, double* zs, int* column)
{
    const int h = m / 2, merge = blockIdx.y;
    const long long base = (long long)merge * m;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m) return;
    const double value = w[base + i];
    // How many of the other half come before: equal values of the left half first.
    int low = i < h ? h : 0, high = i < h ? m : h;
    while (low < high) {
        const int middle = (low + high) / 2;
        const double other = w[base + middle];
        if (other < value || (other == value && i >= h)) low = middle + 1; else high = middle;
    }
    const int position = i < h ? i + low - h : i - h + low;
    const long long row = base + (i < h ? h - 1 : h);
    const long long j = base + i, place = j + (j < shift ? shift : -shift);
    const double z = q[row + place * ldq] * 0.70710678118654752440;
    ds[base + position] = value;
    zs[base + position] = i >= h && coupling[base + h - 1] < 0 ? -z : z;
    column[base + position] = i;
}

// Deflation, in the order of ds; one block a merge, its first thread decides.
// Out, per merge: count K; dk, zk, kept[i < K] of what is kept; from K on, dk and kept of what is not (from the end
// backwards); rotations of pairs of columns, in order: pair (first, second), cosine and sine; their number.
extern "C" __global__ void __launch_bounds__(256)
deflate(const double* ds, const double* zs, const int* column, const double* coupling, int m,
        int* count, double* dk, double* zk, int* kept, int* rotation_count, int2* rotation_pairs, double2* rotations)
{
    extern __shared__ unsigned char shared[];
    double* td = (double*)shared;   // 256
    double* tz = td + 256;          // 256
    int* tc = (int*)(tz + 256);     // 256
    double* parts = (double*)(tc + 256);  // 256
    const int merge = blockIdx.x, thread = threadIdx.x;
    const long long base = (long long)merge * m;
    const double rho = 2 * fabs(coupling[base + m / 2 - 1]);
    double largest = 0;
    for (int i = thread; i < m; i += 256) largest = fmax(largest, fmax(fabs(ds[base + i]), fabs(zs[base + i])));
    parts[thread] = largest;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (thread < half) parts[thread] = fmax(parts[thread], parts[thread + half]);
        __syncthreads();
    }
    const double tolerance = 8 * EPS * parts[0];
    int k = 0, dropped = 0, turned = 0, has = 0, pending_column = 0;
    double pending_d = 0, pending_z = 0;
    for (int start = 0; start < m; start += 256) {
        __syncthreads();
        if (start + thread < m) {
            td[thread] = ds[base + start + thread];
            tz[thread] = zs[base + start + thread];
            tc[thread] = column[base + start + thread];
        }
        __syncthreads();
        if (thread == 0) {
            const int length = m - start < 256 ? m - start : 256;
            for (int i = 0; i < length; ++i) {
                double d = td[i], z = tz[i];
                const int c = tc[i];
                if (rho * fabs(z) <= tolerance) {
                    ++dropped;
                    dk[base + m - dropped] = d;
                    kept[base + m - dropped] = c;
                    continue;
                }
                if (has) {
                    const double gap = d - pending_d, norm = z * z + pending_z * pending_z;
                    if (fabs(gap * z * pending_z) <= tolerance * norm) {
                        // Turn the two columns so that the first has no part in z.
                        const double tau = sqrt(norm), cosine = z / tau, sine = -pending_z / tau;
                        const double lower = pending_d * cosine * cosine + d * sine * sine;
                        d = pending_d * sine * sine + d * cosine * cosine;
                        z = tau;
                        rotation_pairs[base + turned] = make_int2(pending_column, c);
                        rotations[base + turned] = make_double2(cosine, sine);
                        ++turned;
                        ++dropped;
                        dk[base + m - dropped] = lower;
                        kept[base + m - dropped] = pending_column;
                    } else {
                        dk[base + k] = pending_d;
                        zk[base + k] = pending_z;
                        kept[base + k] = pending_column;
                        ++k;
                    }
                }
                pending_d = d;
                pending_z = z;
                pending_column = c;
                has = 1;
            }
        }
    }
    if (thread == 0) {
        if (has) {
            dk[base + k] = pending_d;
            zk[base + k] = pending_z;
            kept[base + k] = pending_column;
            ++k;
        }
        count[merge] = k;
        rotation_count[merge] = turned;
    }
}

// Root j of 1 / rho + sum z_i^2 / (d_i - lambda), in (d_j, d_j+1): the nearer pole as origin, and the offset from it.
// A warp a root: the rational step of R.-C. Li's middle way, inside a bracket that halves when a step leaves it.
extern "C" __global__ void __launch_bounds__(128)
secular(const double* coupling, int m, const int* count, const double* dk, const double* zk, int* origin, double* offset)
{
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
extern "C" __global__ void __launch_bounds__(128)
refine_z(int m, const int* count, const double* dk, const double* zk, const int* origin, const double* offset, double* zr)
{
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

// Where each eigenvalue of a merge goes: entry i < K is root i, the rest are dropped ones.  Also, for each column of
// the merge, which entry it is.
extern "C" __global__ void __launch_bounds__(256)
rank(int m, const int* count, const double* dk, const int* kept, const int* origin, const double* offset,
     double* w, int* entry_of_rank, int* entry_of_column)
{
    extern __shared__ unsigned char shared[];
    double* tile = (double*)shared;  // 256
    const int merge = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    const long long base = (long long)merge * m;
    const int k = count[merge];
    const double* d = dk + base;
    const double mine = i < m ? (i < k ? d[origin[base + i]] + offset[base + i] : d[i]) : 0;
    int position = 0;
    for (int start = 0; start < m; start += 256) {
        const int j = start + threadIdx.x;
        __syncthreads();
        if (j < m) tile[threadIdx.x] = j < k ? d[origin[base + j]] + offset[base + j] : d[j];
        __syncthreads();
        const int length = m - start < 256 ? m - start : 256;
        for (int l = 0; l < length; ++l) position += tile[l] < mine || (tile[l] == mine && start + l < i);
    }
    if (i < m) {
        w[base + position] = mine;
        entry_of_rank[base + position] = i;
        entry_of_column[base + kept[base + i]] = i < k ? i : -1 - i;
    }
}

// Columns of each merge's eigenvector matrix S, in the order of rank, one block for each column: those of ranks
// ranks[first] ..., and of them the rows rows[0] ... rows[height - 1]; a null list stands for 0, 1, 2, ...
extern "C" __global__ void __launch_bounds__(256)
vectors(int m, const int* count, const double* dk, const double* zr, const int* origin, const double* offset,
        const int* entry_of_rank, const int* entry_of_column, const int* ranks, int first, int columns, const int* rows,
        int height, double* s)
{
    extern __shared__ unsigned char shared[];
    double* parts = (double*)shared;  // 8
    const int merge = blockIdx.y;
    const long long base = (long long)merge * m;
    const int number = first + blockIdx.x;
    const int k = count[merge], entry = entry_of_rank[base + (ranks ? ranks[number] : number)];
    double* out = s + ((long long)merge * columns + blockIdx.x) * height;
    const double* d = dk + base;
    const double* z = zr + base;
    const auto entry_of = [&](int r) {  // (int)0x80000000 in a row that only fills
        const int row = rows ? rows[r] : r;
        return row >= 0 ? entry_of_column[base + row] : (int)0x80000000;
    };
    if (entry >= k) {
        for (int r = threadIdx.x; r < height; r += 256)
            out[r] = entry_of(r) == -1 - entry ? 1 : 0;
        return;
    }
    const double center = d[origin[base + entry]], mu = offset[base + entry];
    double sum = 0;
    for (int i = threadIdx.x; i < k; i += 256) {
        const double t = z[i] / ((d[i] - center) - mu);
        sum += t * t;
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < 8; ++i) total += parts[i];
    const double scale = 1 / sqrt(total);
    for (int r = threadIdx.x; r < height; r += 256) {
        const int i = entry_of(r);
        out[r] = i >= 0 ? z[i] / ((d[i] - center) - mu) * scale : 0;
    }
}

// S = G_1 G_2 ... S, the rotations of each merge from the last to the first on the rows of S; one thread for each column.
// (Rotating the columns of Q instead would mix its two halves, and the products need them apart.)
extern "C" __global__ void __launch_bounds__(64)
rotate(int m, const int* rotation_count, const int2* rotation_pairs, const double2* rotations, int columns, int height, double* s)
{
    const int merge = blockIdx.y, column = blockIdx.x * 64 + threadIdx.x;
    const long long base = (long long)merge * m;
    if (column >= columns) return;
    double* mine = s + ((long long)merge * columns + column) * height;
    for (int r = rotation_count[merge] - 1; r >= 0; --r) {
        const int2 pair = rotation_pairs[base + r];
        const double2 turn = rotations[base + r];
        const double x = mine[pair.x], y = mine[pair.y];
        mine[pair.x] = turn.x * x - turn.y * y;
        mine[pair.y] = turn.y * x + turn.x * y;
    }
}

// Columns of `rows` rows: from[j] of the source (zeros if negative) to to[j] of the target; a null list stands for
// 0, 1, 2, ...
extern "C" __global__ void __launch_bounds__(256)
move_columns(const double* source, long long lds, const int* from, double* target, long long ldt, const int* to, int rows)
{
    const int j = blockIdx.y, origin = from ? from[j] : j, i = blockIdx.x * 1024 + threadIdx.x;
    const double* x = source + origin * lds;
    double* y = target + (to ? to[j] : j) * ldt;
    double value[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) value[u] = origin >= 0 && i + 256 * u < rows ? x[i + 256 * u] : 0;
#pragma unroll
    for (int u = 0; u < 4; ++u)
        if (i + 256 * u < rows) y[i + 256 * u] = value[u];
}
