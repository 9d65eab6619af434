// What is done with each tile alone, by a warp: its norm, sums over its lines, inner products, copies and additions; and what
// tells how far dense vectors are from eigenvectors.
#include "tiles.cuh"
#include "warps.cuh"

__device__ __forceinline__ int own_tile() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }

// Frobenius norms.  Entries are scaled by a power of two that brings the largest near 1, so that no square is lost.
extern "C" __global__ void norms(const value* __restrict__ data, const long long* __restrict__ starts, double* __restrict__ out,
                                 int tiles) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const long long first = starts[t], end = starts[t + 1];
    double most = 0;
    for (long long i = first + lane; i < end; i += 32) most = fmax(most, largest_part(data[i]));
    most = largest_of_warp(most);
    int exponent = 0;
    if (most > 0 && !isinf(most)) frexp(most, &exponent);
    exponent = max(-1000, min(1000, exponent));
    const double scale = ldexp(1.0, -exponent);
    double squares = 0;
    for (long long i = first + lane; i < end; i += 32) squares += square(data[i], scale);
    squares = over_warp(squares);
    if (lane == 0) out[t] = ldexp(sqrt(squares), exponent);
}

// Sums of moduli over each row and each column of each tile, where they are wanted, and the largest of both.
extern "C" __global__ void line_sums(const value* __restrict__ data, const long long* __restrict__ starts, const int* __restrict__ heights,
                                     const int* __restrict__ widths, const long long* __restrict__ first_rows,
                                     const long long* __restrict__ first_columns, double* __restrict__ rows, double* __restrict__ columns,
                                     double* __restrict__ largest, int tiles) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const value* tile = data + starts[t];
    const int height = heights[t], width = widths[t];
    double most_row = 0, most_column = 0;
    for (int r = 0; r < height; ++r) {
        double total = 0;
        for (int c = lane; c < width; c += 32) total += modulus(tile[r * width + c]);
        total = over_warp(total);
        most_row = fmax(most_row, total);
        if (rows && lane == 0) rows[first_rows[t] + r] = total;
    }
    for (int c = lane; c < width; c += 32) {
        double total = 0;
        for (int r = 0; r < height; ++r) total += modulus(tile[r * width + c]);
        most_column = fmax(most_column, total);
        if (columns) columns[first_columns[t] + c] = total;
    }
    most_column = largest_of_warp(most_column);
    if (lane == 0) largest[2 * t] = most_row, largest[2 * t + 1] = most_column;
}

// Copies of tiles, some of them transposed and conjugate: the one that begins at sources[t].
//
// Rows follow one another, or begin as far apart as `from_pitch` and `to_pitch` say: in a dense matrix.
extern "C" __global__ void gather(const value* __restrict__ given, const long long* __restrict__ sources,
                                  const unsigned char* __restrict__ flipped, value* __restrict__ out, const long long* __restrict__ starts,
                                  const int* __restrict__ heights, const int* __restrict__ widths, long long from_pitch, long long to_pitch,
                                  int tiles) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const value* from = given + sources[t];
    value* to = out + starts[t];
    const int height = heights[t], width = widths[t];
    const bool turned = flipped[t];
    const long long row = from_pitch ? from_pitch : turned ? height : width, to_row = to_pitch ? to_pitch : width;
    for (int i = lane; i < height * width; i += 32) {
        const int r = i / width, c = i - r * width;
        to[r * to_row + c] = turned ? conjugate(from[c * row + r]) : from[r * row + c];
    }
}

// A multiple of tiles of another matrix added to those that begin at targets[t].
extern "C" __global__ void add(double x, double y, const value* __restrict__ given, const long long* __restrict__ starts,
                               value* __restrict__ out, const long long* __restrict__ targets, int tiles) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const long long first = starts[t], count = starts[t + 1] - first;
    value* to = out + targets[t];
    const value factor = number(x, y);
    for (long long i = lane; i < count; i += 32) to[i] = multiply_add(factor, given[first + i], to[i]);
}

// Inner products of tiles of two matrices, the first conjugate: real and imaginary part.
extern "C" __global__ void dots(const value* __restrict__ x, const long long* __restrict__ at_x, const value* __restrict__ y,
                                const long long* __restrict__ at_y, const long long* __restrict__ sizes, double* __restrict__ out,
                                int tiles) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const value *left = x + at_x[t], *right = y + at_y[t];
    double real_part = 0, imaginary_part = 0;
    for (long long i = lane; i < sizes[t]; i += 32) {
        real_part += product_x(left[i], right[i]);
        imaginary_part += product_y(left[i], right[i]);
    }
    real_part = over_warp(real_part), imaginary_part = over_warp(imaginary_part);
    if (lane == 0) out[2 * t] = real_part, out[2 * t + 1] = imaginary_part;
}

// Of each row v of V, which is `length` long, with its value w and its row of A V: w, the squares of what the two are off by, and
// those of what its row of V V* is off by from the identity's.  A warp a row.
extern "C" __global__ void residuals(const double* __restrict__ values, const value* __restrict__ vectors, const value* __restrict__ image,
                                     const value* __restrict__ gram, long long length, double* __restrict__ out, int count) {
    const int t = own_tile(), lane = threadIdx.x % 32;
    if (t >= count) return;
    const value *own = vectors + t * length, *made = image + t * length, *products = gram + static_cast<long long>(t) * count;
    double off = 0, apart = 0;
    for (long long i = lane; i < length; i += 32) off += square(difference(made[i], scaled(own[i], values[t])), 1.0);
    for (int i = lane; i < count; i += 32) apart += square(i == t ? on_diagonal(products[i], -1, false) : products[i], 1.0);
    off = over_warp(off), apart = over_warp(apart);
    if (lane == 0) out[t] = values[t], out[count + t] = off, out[2 * count + t] = apart;
}
