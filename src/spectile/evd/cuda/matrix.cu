// The input: one triangle read, searched for its largest entry, and completed to a Hermitian matrix.
#include "scalar.cuh"

// Upper triangle = conjugate transpose of the lower one (or the other way round), times `factor`; 32 x 32 tiles.
extern "C" __global__ void __launch_bounds__(256)
symmetrize(scalar_t* a, long long lda, int n, int from_upper, real_t factor)
{
    if (blockIdx.y > blockIdx.x) return;
    extern __shared__ unsigned char shared[];
    scalar_t* tile = (scalar_t*)shared;  // 32 x 33
    // Tile of the source triangle: rows i, columns j.
    const int i0 = (from_upper ? blockIdx.y : blockIdx.x) * 32, j0 = (from_upper ? blockIdx.x : blockIdx.y) * 32;
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5;
    for (int c = y; c < 32; c += 8) {
        const int i = i0 + x, j = j0 + c;
        scalar_t value = zero();
        const bool inside = i < n && j < n && (from_upper ? i <= j : i >= j);
        if (inside) {
            value = factor * a[i + j * lda];
            if (i == j) value = make_scalar(real_part(value), 0);
            if (factor != (real_t)1 || i == j) a[i + j * lda] = value;
        }
        tile[x + c * 33] = conj(value);
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8) {
        // Element (j0 + x, i0 + c) of the other triangle.
        const int i = j0 + x, j = i0 + c;
        if (i < n && j < n && (from_upper ? i > j : i < j)) a[i + j * lda] = tile[c + x * 33];
    }
}

// Largest |part| of one triangle, and whether all are finite, for scaling: one value from each block.
extern "C" __global__ void __launch_bounds__(256)
triangle_max(const scalar_t* a, long long lda, int n, int upper, double* out)
{
    extern __shared__ unsigned char shared[];
    double* parts = (double*)shared;  // 256
    double largest = 0;
    for (int j = blockIdx.x; j < n; j += gridDim.x)
        for (int i = (upper ? 0 : j) + threadIdx.x; i < (upper ? j + 1 : n); i += 256) {
            const scalar_t value = a[i + j * lda];
            // Imaginary parts of the diagonal are not read.
            const double size = fabs((double)real_part(value)), other = i == j ? 0 : fabs((double)imag_part(value));
            // fmax drops NaN, which must stay.
            if (size > largest || size != size) largest = size;
            if (other > largest || other != other) largest = other;
        }
    parts[threadIdx.x] = largest;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (threadIdx.x < half) {
            const double other = parts[threadIdx.x + half];
            if (other > parts[threadIdx.x] || other != other) parts[threadIdx.x] = other;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}

// Lower triangle of `out` = a(i, j) at i * along_i + j * along_j, conjugated if it is read from an upper triangle.  NaN
// and infinity become 0, and set *not_finite.
extern "C" __global__ void __launch_bounds__(256)
load_triangle(const scalar_t* a, long long along_i, long long along_j, int n, int conjugate, scalar_t* out, long long ldo, int* not_finite)
{
    if (blockIdx.y > blockIdx.x) return;
    extern __shared__ unsigned char shared[];
    scalar_t* tile = (scalar_t*)shared;  // 32 x 33
    const int i0 = blockIdx.x * 32, j0 = blockIdx.y * 32, x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const bool rows = along_j * along_j < along_i * along_i;  // neighbours of a row are closer than those of a column
    for (int c = y; c < 32; c += 8) {
        const int i = rows ? c : x, j = rows ? x : c;
        if (i0 + i >= n || i0 + i < j0 + j) continue;
        const scalar_t read = a[(i0 + i) * along_i + (j0 + j) * along_j];
        scalar_t value = make_scalar(real_part(read), i0 + i == j0 + j ? 0 : imag_part(read));
        if (!isfinite(real_part(value)) || !isfinite(imag_part(value))) {
            value = zero();
            *not_finite = 1;
        }
        tile[i + j * 33] = conjugate ? conj(value) : value;
    }
    __syncthreads();
    for (int c = y; c < 32; c += 8)
        if (i0 + x < n && i0 + x >= j0 + c) out[i0 + x + (j0 + c) * ldo] = tile[x + c * 33];
}

// out = 2^exponent factor w, in the precision of the matrix.
extern "C" __global__ void __launch_bounds__(256)
scale_values(const double* w, int n, double factor, int exponent, real_t* out)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (real_t)scalbn(factor * w[i], exponent);
}
