// Eigenvectors of the merges of divide.cu.

#include "tridiagonal/merge.cuh"

// Columns of each merge's eigenvector matrix S, in the order of rank, one block for each column: those of ranks
// ranks[first] ..., and of them the rows rows[0] ... rows[height - 1]; a null list stands for 0, 1, 2, ...
extern "C" __global__ void __launch_bounds__(256) vectors(int m, const int* count, const double* dk, const double* zr, const int* origin,
                                                          const double* offset, const int* entry_of_rank, const int* entry_of_column,
                                                          const int* ranks, int first, int columns, const int* rows, int height,
                                                          double* s) {
    extern __shared__ unsigned char shared[];
    double* parts = (double*)shared;  // 8
    const int merge = blockIdx.y;
    const long long base = (long long)merge * m;
    const int number = first + blockIdx.x;
    const int k = count[merge], entry = entry_of_rank[base + (ranks ? ranks[number] : number)];
    double* out = s + ((long long)merge * columns + blockIdx.x) * height;
    const double* d = dk + base;
    const double* z = zr + base;
    const auto entry_of = [&](int r) {  // (int)0x80000000 in a row that only fills
        const int row = rows ? rows[r] : r;
        return row >= 0 ? entry_of_column[base + row] : (int)0x80000000;
    };
    if (entry >= k) {
        for (int r = threadIdx.x; r < height; r += 256) out[r] = entry_of(r) == -1 - entry ? 1 : 0;
        return;
    }
    const double center = d[origin[base + entry]], mu = offset[base + entry];
    double sum = 0;
    for (int i = threadIdx.x; i < k; i += 256) {
        const double t = z[i] / ((d[i] - center) - mu);
        sum += t * t;
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < 8; ++i) total += parts[i];
    const double scale = 1 / sqrt(total);
    for (int r = threadIdx.x; r < height; r += 256) {
        const int i = entry_of(r);
        out[r] = i >= 0 ? z[i] / ((d[i] - center) - mu) * scale : 0;
    }
}

// S = G_1 G_2 ... S, the rotations of each merge from the last to the first on the rows of S; one thread for each column.
// (Rotating the columns of Q instead would mix its two halves, and the products need them apart.)
extern "C" __global__ void __launch_bounds__(64) rotate(int m, const int* rotation_count, const int2* rotation_pairs,
                                                        const double2* rotations, int columns, int height, double* s) {
    const int merge = blockIdx.y, column = blockIdx.x * 64 + threadIdx.x;
    const long long base = (long long)merge * m;
    if (column >= columns) return;
    double* mine = s + ((long long)merge * columns + column) * height;
    for (int r = rotation_count[merge] - 1; r >= 0; --r) {
        const int2 pair = rotation_pairs[base + r];
        const double2 turn = rotations[base + r];
        const double x = mine[pair.x], y = mine[pair.y];
        mine[pair.x] = turn.x * x - turn.y * y;
        mine[pair.y] = turn.y * x + turn.x * y;
    }
}

// Columns of `rows` rows: from[j] of the source (zeros if negative) to to[j] of the target; a null list stands for
// 0, 1, 2, ...
extern "C" __global__ void __launch_bounds__(256) move_columns(const double* source, long long lds, const int* from, double* target,
                                                               long long ldt, const int* to, int rows) {
    const int j = blockIdx.y, origin = from ? from[j] : j, i = blockIdx.x * 1024 + threadIdx.x;
    const double* x = source + origin * lds;
    double* y = target + (to ? to[j] : j) * ldt;
    double value[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) value[u] = origin >= 0 && i + 256 * u < rows ? x[i + 256 * u] : 0;
#pragma unroll
    for (int u = 0; u < 4; ++u)
        if (i + 256 * u < rows) y[i + 256 * u] = value[u];
}
