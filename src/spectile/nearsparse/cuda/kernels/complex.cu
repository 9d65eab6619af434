// What complex products need beside the real ones that they are made of: B as a real matrix, and norms of complex tiles.
//
// A complex matrix lies in memory as a real one, the parts of an entry side by side.  With each entry b of B as
// ((Re b, Im b), (-Im b, Re b)) the real product of A with it is C.  A tile of A is then two real ones along k, and a tile
// of B is four, each of its entries twice.
//
//   expand:      out[2 k .. 2 k + 1][j] = (Re b, Im b), (-Im b, Re b) of every b = B[k][j]
//   pair_norms:  for each complex tile: norm of its real tiles together, to all of them, and to the map of complex tiles
//
// Invariant: the real tiles of a complex tile have one norm, its own, so that they are valid together.
#if INPUT_BITS == 32
using Real = float;
#else
using Real = double;
#endif

constexpr int kThreads = 256;

struct alignas(2 * sizeof(Real)) Pair {
    Real first, second;
};

struct Expand {
    const Pair* b;
    Pair* out;          // [batch][2 rows][columns], contiguous
    long long stride;   // entries from one matrix of B to the next
    long long leading;  // entries from row to row of B
    long long rows, columns, batches;
};

extern "C" __global__ void __launch_bounds__(kThreads) expand(const Expand p) {
    const long long total = p.batches * p.rows * p.columns, step = static_cast<long long>(gridDim.x) * kThreads;
    for (long long index = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; index < total; index += step) {
        const long long column = index % p.columns, row = index / p.columns;  // of all matrices, one below the other
        const Pair b = p.b[row / p.rows * p.stride + row % p.rows * p.leading + column];
        Pair* out = p.out + 2 * row * p.columns + column;
        out[0] = b;
        out[p.columns] = Pair{-b.second, b.first};
    }
}

struct PairNorms {
    double* norms_a;    // [batch][row block][k block] of real tiles
    double* norms_b;    // [batch][column block][k block]
    double* complex_a;  // of complex tiles, [batch][row block][k block / 2], or null
    double* complex_b;  // [batch][column block / 2][k block / 2], or null
    long long rows_a, rows_b, depth, batches_a, batches_b;
};

// The norm of a complex tile, to its real ones in `height` rows and two columns, as far as the map has them.
__device__ __forceinline__ void pair(double* norms, double* tiles, long long rows, long long depth, int height, double scale,
                                     long long index) {
    const long long inner = (depth + 1) / 2, outer = (rows + height - 1) / height;
    const long long k = 2 * (index % inner), row = index / inner % outer * height, matrix = index / inner / outer;
    double* tile = norms + (matrix * rows + row) * depth + k;
    const int tall = row + height <= rows ? height : 1, wide = k + 2 <= depth ? 2 : 1;
    double norm = 0;
    for (int r = 0; r < tall; ++r)
        for (int c = 0; c < wide; ++c) norm = hypot(norm, scale * tile[r * depth + c]);
    for (int r = 0; r < tall; ++r)
        for (int c = 0; c < wide; ++c) tile[r * depth + c] = norm;
    if (tiles) tiles[index] = norm;
}

extern "C" __global__ void __launch_bounds__(kThreads) pair_norms(const PairNorms p) {
    const long long inner = (p.depth + 1) / 2, step = static_cast<long long>(gridDim.x) * kThreads;
    const long long of_a = p.batches_a * p.rows_a * inner, total = of_a + p.batches_b * ((p.rows_b + 1) / 2) * inner;
    for (long long index = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; index < total; index += step) {
        if (index < of_a) pair(p.norms_a, p.complex_a, p.rows_a, p.depth, 1, 1.0, index);
        else  // entries of B are there twice
            pair(p.norms_b, p.complex_b, p.rows_b, p.depth, 2, 0x1.6a09e667f3bcdp-1, index - of_a);
    }
}
