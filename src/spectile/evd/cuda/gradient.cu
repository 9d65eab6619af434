// The derivative of eigenpairs, between its products: entries off the clusters divided by the gaps of the eigenvalues.
#include "ptx.cuh"
#include "scalar.cuh"

__device__ __forceinline__ real_t size_of(scalar_t a) {
    return COMPLEX ? (real_t)hypot((double)real_part(a), (double)imag_part(a)) : (real_t)fabs((double)real_part(a));
}

// out = (S - S^H) / 2 over w_j - w_i, 0 where i and j are of one cluster, plus the cotangents of w on the diagonal, of matrices in
// rows; in place is allowed.  fault: set where a pair of one cluster has an anti-Hermitian part above `most` |S|, or
// cotangents of w that differ by more than `told` of theirs, or by more than `turned` of it over how far rounding turns
// one vector to the other: fully for gaps up to `rounding`.  w_bar may be null.
extern "C" __global__ void __launch_bounds__(256) divide_by_gaps(const scalar_t* s, const real_t* w, const int* cluster,
                                                                 const real_t* w_bar, const real_t* s_norm, const real_t* w_norm,
                                                                 const real_t* rounding, int n, real_t most, real_t told, real_t turned,
                                                                 scalar_t* out, int* fault) {
    DYNAMIC_SHARED(scalar_t, own);  // 32 x 33: the tile, and the one across the diagonal
    scalar_t* across = own + 32 * 33;
    if (blockIdx.y > blockIdx.x) return;
    const long long matrix = blockIdx.z;
    s += matrix * n * n, out += matrix * n * n, w += matrix * n, cluster += matrix * n;
    if (w_bar != nullptr) w_bar += matrix * n;
    const int i0 = blockIdx.y * 32, j0 = blockIdx.x * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int r = y; r < 32; r += 8) {
        const bool inside = i0 + r < n && j0 + x < n, other = j0 + r < n && i0 + x < n;
        own[r * 33 + x] = inside ? s[(long long)(i0 + r) * n + j0 + x] : zero();
        across[r * 33 + x] = other ? s[(long long)(j0 + r) * n + i0 + x] : zero();
    }
    __syncthreads();
    bool found = false;
    // Both tiles: of the pair (i, j) and of (j, i).
    for (int side = 0; side < 2; ++side) {
        const scalar_t *here = side ? across : own, *there = side ? own : across;
        const int top = side ? j0 : i0, left = side ? i0 : j0;
        if (side && i0 == j0) break;
        for (int r = y; r < 32; r += 8) {
            const int i = top + r, j = left + x;
            if (i >= n || j >= n) continue;
            const scalar_t anti = (real_t)0.5 * (here[r * 33 + x] - conj(there[x * 33 + r]));
            const real_t gap = w[j] - w[i];
            scalar_t value = zero();
            if (cluster[i] != cluster[j]) {
                value = (1 / gap) * anti;
            } else {
                found |= !(size_of(anti) <= most * s_norm[matrix]);
                if (w_bar != nullptr) {
                    const real_t apart = fabs(w_bar[j] - w_bar[i]), size = w_norm[matrix], width = fabs(gap);
                    const real_t turn = width <= rounding[matrix] ? (real_t)1 : rounding[matrix] / width;
                    found |= !(apart <= told * size) || !(apart * turn <= turned * size);
                }
            }
            if (i == j && w_bar != nullptr) value = value + make_scalar(w_bar[i], 0);
            out[(long long)i * n + j] = value;
        }
    }
    if (found) *fault = 1;
}
