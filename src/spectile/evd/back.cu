// What the back-transformations need beside cuBLAS: the reflectors gathered into tall blocks, and their T factors.

// Y of `columns` reflectors of the band reduction, from column j0 (a multiple of b) on: rows j0 + b and below, unit
// diagonal written out, zero above it and in columns past the last panel.
extern "C" __global__ void __launch_bounds__(256)
gather_panels(const scalar_t* a, long long lda, int n, int j0, scalar_t* y, long long ldy)
{
    const int row = blockIdx.x * 256 + threadIdx.x, c = blockIdx.y, rows = n - j0 - B;
    if (row >= rows) return;
    const int offset = row - c / B * B;  // row in the panel of this column
    scalar_t value = zero();
    if (offset == c % B) value = one();
    if (offset > c % B) value = a[j0 + B + row + (long long)(j0 + c) * lda];
    y[row + c * ldy] = value;
}

// The panels' B x B factors T on the diagonal of a columns x columns matrix, zero elsewhere.
extern "C" __global__ void __launch_bounds__(256)
place_factors(const scalar_t* t, int panels, int columns, scalar_t* out)
{
    const int i = blockIdx.x * 256 + threadIdx.x, row = i % columns, column = i / columns, panel = column / B;
    if (i >= columns * columns) return;
    out[i] = row / B == panel && panel < panels ? t[panel * B * B + row % B + column % B * B] : zero();
}

// Diamonds of the chasing reflectors: Y (2 B x B) and W = Y T, one block a diamond.
//
// Diamond (g, q) holds the reflectors of the sweeps g B ... g B + B - 1 whose first rows are q B + 1 ... q B + B; it
// acts on the rows q B + 1 ... q B + 2 B - 1.  Wave i holds all (g, q) with q = i - 2 (last - g), which act on
// disjoint rows; waves in order respect the order of the reflectors.  Element i of sweep s is at
// vectors[s * sweep_stride + i * row_stride], with tau in place of the leading 1.
__device__ __forceinline__ void
make_diamond(const scalar_t* vectors, long long sweep_stride, long long row_stride, int n, int g, int q, scalar_t* y, scalar_t* w)
{
    extern __shared__ unsigned char shared[];
    scalar_t* ys = (scalar_t*)shared;  // 2 B x B
    scalar_t* gram = ys + 2 * B * B;   // B x B: above the diagonal v_i^H v_j, then T
    scalar_t* tau = gram + B * B;      // B
    scalar_t* column = tau + B;        // B
    const int start = q * B + 1;
    if (threadIdx.x < B) {
        const int sweep = g * B + threadIdx.x, row = start + threadIdx.x;
        tau[threadIdx.x] = sweep < n - 1 && row < n ? vectors[sweep * sweep_stride + row * row_stride] : zero();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * B * B; i += 256) {
        const int r = i % (2 * B), c = i / (2 * B), sweep = g * B + c, row = start + r;
        scalar_t value = zero();
        if (sweep < n - 1 && row < n && r >= c && r < c + B && square(tau[c]) > 0)
            value = r == c ? one() : vectors[sweep * sweep_stride + row * row_stride];
        ys[i] = value;
        y[i] = value;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < B * B; i += 256) {
        const int r = i % B, c = i / B;
        scalar_t sum = zero();
        if (r < c)
            for (int l = c; l < r + B; ++l) sum = fma_(conj(ys[l + r * 2 * B]), ys[l + c * 2 * B], sum);
        gram[i] = r == c ? tau[c] : sum;
    }
    __syncthreads();
    for (int c = 1; c < B; ++c) {  // T(:c, c) = -tau_c T(:c, :c) gram(:c, c)
        if (threadIdx.x < c) {
            scalar_t sum = zero();
            for (int j = threadIdx.x; j < c; ++j) sum = fma_(gram[threadIdx.x + j * B], gram[j + c * B], sum);
            column[threadIdx.x] = negative(tau[c]) * sum;
        }
        __syncthreads();
        if (threadIdx.x < c) gram[threadIdx.x + c * B] = column[threadIdx.x];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < 2 * B * B; i += 256) {
        const int r = i % (2 * B), c = i / (2 * B);
        scalar_t sum = zero();
        for (int j = r < B ? 0 : r - B + 1; j <= c; ++j) sum = fma_(ys[r + j * 2 * B], gram[j + c * B], sum);
        w[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256)
diamonds(const scalar_t* vectors, long long sweep_stride, long long row_stride, int n, int first_wave, int groups, int blocks,
         int width, scalar_t* y, scalar_t* w)
{
    const int wave = first_wave + blockIdx.y, last = groups - 1;
    const int low = max(0, 2 * last - wave), g = low + blockIdx.x, q = wave - 2 * (last - g);
    if (g > last || q > blocks - 1) return;
    const long long slot = ((long long)blockIdx.y * width + blockIdx.x) * 2 * B * B;
    make_diamond(vectors, sweep_stride, row_stride, n, g, q, y + slot, w + slot);
}

// All diamonds of the groups first_group, first_group - 1, ...: those of a group one after the other, `width` slots each.
extern "C" __global__ void __launch_bounds__(256)
group_diamonds(const scalar_t* vectors, long long sweep_stride, long long row_stride, int n, int first_group, int blocks,
               int width, scalar_t* y, scalar_t* w)
{
    const int g = first_group - blockIdx.y, q = g + blockIdx.x;
    if (q > blocks - 1) return;
    const long long slot = ((long long)blockIdx.y * width + blockIdx.x) * 2 * B * B;
    make_diamond(vectors, sweep_stride, row_stride, n, g, q, y + slot, w + slot);
}
