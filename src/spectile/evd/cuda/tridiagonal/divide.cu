// Divide and conquer for a symmetric tridiagonal matrix of order N = leaf 2^levels: all merges of a level at once.
// leaves.cu solves the leaves; roots.cu and vectors.cu hold the kernels that take longest to compile.
//
// A merge of order m joins two solved halves: D + rho z z^T with D the halves' eigenvalues.  `order` sorts D, `deflate`
// drops what is negligible, `secular` finds the roots, `refine_z` makes z fit the computed roots (Gu and Eisenstat), so
// that the eigenvectors `vectors` writes are orthogonal however close the roots are; two products per merge follow.
// Arrays of length N hold all merges of the level one after the other; Q is N x N, column-major, block-diagonal.

#include "tridiagonal/bound.cuh"
#include "tridiagonal/merge.cuh"

// Diagonal and couplings of the matrix over its norm, padded to `order` rows with entries above the spectrum and torn between
// leaves; and the norm, 1 of zeros and NaN, beside zeros, of a matrix that is not finite.
extern "C" __global__ void __launch_bounds__(256) tear(const double* d, const double* e, int n, int leaf, int order, double* torn,
                                                       double* coupling, double* bound) {
    extern __shared__ unsigned char shared[];
    const double found = norm_bound(d, e, n, (double*)shared), scale = found > 0 ? found : 1;
    const auto beside = [&](int i) { return i + 1 < n && found == found ? e[i] / scale : 0; };
    for (int i = threadIdx.x; i < order; i += 256) {
        double value = i < n ? (found == found ? d[i] / scale : 0) : 2;
        if (i % leaf == leaf - 1 && i + 1 < order) value -= fabs(beside(i));
        if (i % leaf == 0 && i > 0) value -= fabs(beside(i - 1));
        torn[i] = value;
        coupling[i] = beside(i);
    }
    if (threadIdx.x == 0) *bound = found == found ? scale : found;
}

// Sort the two ascending halves of each merge; z from the rows of Q on both sides of the cut.  With a shift, half the
// order, the blocks of the first half of Q lie that many columns further right, those of the second further left.
// Out, per merge: ds, zs sorted, column[sorted position] = column in the merge.
extern "C" __global__ void __launch_bounds__(256) order(const double* w, const double* q, long long ldq, const double* coupling, int m,
                                                        int shift, double* ds, double* zs, int* column) {
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
        if (other < value || (other == value && i >= h)) low = middle + 1;
        else high = middle;
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
extern "C" __global__ void __launch_bounds__(256) deflate(const double* ds, const double* zs, const int* column, const double* coupling,
                                                          int m, int* count, double* dk, double* zk, int* kept, int* rotation_count,
                                                          int2* rotation_pairs, double2* rotations) {
    extern __shared__ unsigned char shared[];
    double* td = (double*)shared;         // 256
    double* tz = td + 256;                // 256
    int* tc = (int*)(tz + 256);           // 256
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

// Where each eigenvalue of a merge goes: entry i < K is root i, the rest are dropped ones.  Also, for each column of
// the merge, which entry it is.
extern "C" __global__ void __launch_bounds__(256) rank(int m, const int* count, const double* dk, const int* kept, const int* origin,
                                                       const double* offset, double* w, int* entry_of_rank, int* entry_of_column) {
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
