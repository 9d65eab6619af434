// Matrices with room for every tile: tile rows one after the other, the tiles of each by columns, each contiguous.  A tile
// whose norm is 0 in the map of norms counts as zero, whatever is stored.
//
// Tile row i has rows[i] ... rows[i + 1] - 1 of the matrix, and tile columns are alike.
struct Grid {
    const long long* rows;
    int size;
    __device__ __forceinline__ int height(int i) const { return int(rows[i + 1] - rows[i]); }
    __device__ __forceinline__ long long start(int i, int j) const { return rows[i] * rows[size] + (rows[i + 1] - rows[i]) * rows[j]; }
    __device__ __forceinline__ long long place(int i, int j) const { return static_cast<long long>(i) * size + j; }
};

// Places of a search's result (grid_search.cu): the threshold, that from which on products are made of two float16 for each
// number, and that from which on they are made in float64.
constexpr int kBest = 0, kTwo = 1, kFine = 2;

// What sums of norms in float64 may be too small by: some thousands of roundings.
constexpr double kSlack = 1 + 1e-12;
#define kInfinity __longlong_as_double(0x7ff0000000000000ll)

// The Frobenius norm of so many entries, not below the exact one, by the sum of their squares and the largest modulus.
__device__ __forceinline__ double norm_of(double squares, double most, int entries) {
    const bool held = most > 0x1p-450 && most < 0x1p450;
    return (held || most == 0 || isnan(squares) ? sqrt(squares) : most * sqrt(double(entries))) * kSlack;
}
