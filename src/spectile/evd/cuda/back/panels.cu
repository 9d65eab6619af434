// What the back-transformation by the panels needs beside cuBLAS: the reflectors as tall blocks, and their T factors.
#include "ptx.cuh"
#include "scalar.cuh"

// Y of `columns` reflectors of the band reduction, from column j0 (a multiple of b) on: rows j0 + b and below, unit
// diagonal written out, zero above it and in columns past the last panel.
extern "C" __global__ void __launch_bounds__(256) gather_panels(const scalar_t* a, long long lda, int n, int j0, scalar_t* y,
                                                                long long ldy) {
    const int row = blockIdx.x * 256 + threadIdx.x, c = blockIdx.y, rows = n - j0 - B;
    if (row >= rows) return;
    const int offset = row - c / B * B;  // row in the panel of this column
    scalar_t value = zero();
    if (offset == c % B) value = one();
    if (offset > c % B) value = a[j0 + B + row + (long long)(j0 + c) * lda];
    y[row + c * ldy] = value;
}

#if B > 1
// The panels' B x B factors T on the diagonal of a columns x columns matrix, zero elsewhere.
extern "C" __global__ void __launch_bounds__(256) place_factors(const scalar_t* t, int panels, int columns, scalar_t* out) {
    const int i = blockIdx.x * 256 + threadIdx.x, row = i % columns, column = i / columns, panel = column / B;
    if (i >= columns * columns) return;
    out[i] = row / B == panel && panel < panels ? t[panel * B * B + row % B + column % B * B] : zero();
}
#else
#define GROUP 32

// Of single reflectors, the factors T of GROUP neighbouring ones on the diagonal of a columns x columns matrix, zero elsewhere:
// T(:, j) = -T Y^H y_j tau_j.  gram: Y^H Y; reflectors past the last are none.  One block a group.
extern "C" __global__ void __launch_bounds__(256) form_factors(const scalar_t* gram, const scalar_t* taus, int reflectors, int columns,
                                                               scalar_t* out) {
    DYNAMIC_SHARED(scalar_t, products);      // GROUP x GROUP: of the group's reflectors
    scalar_t* t = products + GROUP * GROUP;  // GROUP x (GROUP + 1)
    const int thread = threadIdx.x, first = blockIdx.x * GROUP, width = min(GROUP, columns - first);
    for (int i = thread; i < GROUP * GROUP; i += 256) {
        const int r = i % GROUP, c = i / GROUP;
        products[i] = r < c && c < width ? gram[first + r + (first + c) * columns] : zero();
    }
    __syncthreads();
    if (thread < GROUP)
        for (int j = 0; j < GROUP; ++j) {  // a thread its row
            const scalar_t tau = first + j < reflectors && j < width ? taus[first + j] : zero();
            scalar_t even = zero(), odd = zero();
            for (int h = 0; h < j; h += 2) {
                even = fma_(t[thread + h * (GROUP + 1)], products[h + j * GROUP], even);
                if (h + 1 < j) odd = fma_(t[thread + (h + 1) * (GROUP + 1)], products[h + 1 + j * GROUP], odd);
            }
            t[thread + j * (GROUP + 1)] = thread == j ? tau : (thread < j ? negative(even + odd) * tau : zero());
        }
    __syncthreads();
    for (int i = thread; i < width * columns; i += 256) {
        const int r = i % columns - first, c = i / columns;
        out[i + first * columns] = r >= 0 && r < width ? t[r + c * (GROUP + 1)] : zero();
    }
}
#endif
