// The leaves of divide.cu.

#include "ptx.cuh"
#include "small/jacobi.cuh"

// Eigenvalues (ascending) and vectors of each leaf x leaf diagonal block by Jacobi rotations, a block a leaf.
// d, e: the torn matrix; e at the end of a leaf is not read.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2) leaves(const double* d, const double* e, int leaf, double* w, double* q,
                                                                     long long ldq) {
    DYNAMIC_SHARED(double, buffers);  // 2 x m rows
    const int m = leaf + (leaf & 1), thread = threadIdx.x, threads = blockDim.x, wide = basis_length(m);
    double* basis = buffers + buffers_length(m);  // leaf rows
    double* factors = basis + leaf * wide;        // leaf
    int* order = (int*)(factors + leaf);          // leaf
    const long long base = (long long)blockIdx.x * leaf;
    for (int at = thread; at < m * m; at += threads) {
        const int i = at / m, j = at - i * m;
        if (i < leaf) basis[i * wide + j] = i == j ? 1 : 0;
        const double value = i >= leaf ? 0 : i == j ? d[base + j] : i == j + 1 ? e[base + j] : 0;
        if (i >= j) put(buffers, place(position_of(i, m), position_of(j, m), row_length(m)), value);
    }
    __syncthreads();
    int now;
    diagonalize(buffers, basis, leaf, true, UNIT_ROUNDOFF, now);
    for (int k = thread; k < leaf; k += threads) {
        const Pair own = pair_of(buffers + now, basis, leaf, k, true);
        order[own.rank] = k;
        factors[k] = own.inverse_length;
        w[base + own.rank] = own.value;
    }
    __syncthreads();
    for (int at = thread; at < leaf * leaf; at += threads) {
        const int k = at / leaf, i = at - k * leaf, from = order[k];
        q[base + i + (base + k) * ldq] = factors[from] * basis[i * wide + from];
    }
}
