// What the back-transformation by the panels needs beside cuBLAS: the reflectors as tall blocks, and their T factors.
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

// The panels' B x B factors T on the diagonal of a columns x columns matrix, zero elsewhere.
extern "C" __global__ void __launch_bounds__(256) place_factors(const scalar_t* t, int panels, int columns, scalar_t* out) {
    const int i = blockIdx.x * 256 + threadIdx.x, row = i % columns, column = i / columns, panel = column / B;
    if (i >= columns * columns) return;
    out[i] = row / B == panel && panel < panels ? t[panel * B * B + row % B + column % B * B] : zero();
}
