// Rank-k updates in float64 from INT8 products modulo small coprime numbers (Ozaki's second scheme).

#define TILE 64

// Exponents e with |row| 2^e <= 2^bits, and 2^-e: V column-major, one thread for each row.
extern "C" __global__ void __launch_bounds__(256) row_exponents(const double* v, long long ldv, int rows, int k, double bits,
                                                                int* exponents, double* factors) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= rows) return;
    double sum = 0;
    for (int j = 0; j < k; ++j) {
        const double value = v[i + j * ldv];
        sum = fma(value, value, sum);
    }
    const int e = sum > 0 ? (int)floor(bits - 0.5 * log2(sum)) : 0;
    exponents[i] = e;
    factors[i] = ldexp(1.0, -e);
}

// out[p][i][j] = v(i, j) 2^e(i), rounded to an integer, modulo p; rows of `depth` bytes, zero beyond k and `rows`.
extern "C" __global__ void __launch_bounds__(256) residues(const double* v, long long ldv, int rows, int k, const int* exponents,
                                                           const int* moduli, int count, signed char* out, int depth, long long stride) {
    __shared__ __align__(16) signed char tile[TILE][TILE + 16];
    const int i0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE;
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    double integers[TILE / 4];
    const int i = i0 + x;
    const int e = i < rows ? exponents[i] : 0;
#pragma unroll
    for (int c = 0; c < TILE / 4; ++c) {
        const int j = j0 + y + 4 * c;
        integers[c] = i < rows && j < k ? rint(ldexp(v[i + j * ldv], e)) : 0;
    }
    for (int p = 0; p < count; ++p) {
        const double modulus = moduli[p], inverse = 1 / modulus;
#pragma unroll
        for (int c = 0; c < TILE / 4; ++c) {
            // Every step is exact, but the first quotient may be off by one.
            double r = fma(-rint(integers[c] * inverse), modulus, integers[c]);
            r = fma(-rint(r * inverse), modulus, r);
            tile[x][y + 4 * c] = (signed char)(int)r;
        }
        __syncthreads();
        const int row = threadIdx.x / 4, part = threadIdx.x % 4 * 16;
        if (j0 + part < depth) *(int4*)(out + p * stride + (long long)(i0 + row) * depth + j0 + part) = *(const int4*)&tile[row][part];
        __syncthreads();
    }
}

// C(i, j) += alpha x 2^-e(i) 2^-e(j), with x from its residues: x = sum r_p W_p - q P, in two parts each, of which
// the high one is exact.  `products`: [p][j][i]; only i >= j + below.
extern "C" __global__ void __launch_bounds__(256) combine(const int* products, long long stride, long long ld, int rows, int columns,
                                                          int count, const double* weights, double alpha, const double* left,
                                                          const double* right, double* c, long long ldc) {
    const int j = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    if ((int)blockIdx.x * 256 + 255 < j || i >= rows || i < j) return;
    const int* product = products + j * ld + i;
    double high = 0, low = 0;
#pragma unroll 8
    for (int p = 0; p < count; ++p) {
        // weights[4 p ...]: modulus, 2^32 / modulus, high and low part of W.
        const int modulus = (int)weights[4 * p], magic = (int)(unsigned)weights[4 * p + 1];
        const int value = product[p * stride];
        const int r = value - __mulhi(value, magic) * modulus;
        const double d = __hiloint2double(0x43300000, (unsigned)r ^ 0x80000000u) - 4503601774854144.0;
        high = fma(d, weights[4 * p + 2], high);
        low = fma(d, weights[4 * p + 3], low);
    }
    const double* last = weights + 4 * count;  // high and low part of P, 1 / P
    const double q = rint(high * last[2]);
    const double x = fma(-q, last[0], high) + fma(-q, last[1], low);
    c[i + j * ldc] += alpha * (x * left[i] * right[j]);
}
