// SpAMM product, strict at blocks of 8 and 16: each block product is tested by itself.
//
// A thread block computes 32 x 32 of C, two rows per thread, with plain multiply-adds: smaller blocks than a fragment of
// the matrix units leave nothing for those to do.
//
//   for each 32 k: read them of A and B;  for each block of them: if its product of norms reaches tau, sum += A B
//   C = alpha sum + beta C
//
// Invariant: exactly the valid products are multiplied.
#include "operands.cuh"

extern "C" __global__ void __launch_bounds__(512) product_blocks(const Product p) {
    __shared__ Accumulator a[32][33], b[32][33];
    if (is_cancelled(p.cancelled)) return;
    const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    const int row0 = blockIdx.x % p.tiles_m * 32, column = blockIdx.x / p.tiles_m * 32 + tx;
    const long long batch = blockIdx.y;
    const Element* source_a = p.a + batch * p.stride_a;
    const Element* source_b = p.b + batch * p.stride_b;
    const Norm* norms_a = p.norms_a + batch * p.stride_norms_a;
    const Norm* norms_b = p.norms_b + batch * p.stride_norms_b;
    const Norm tau = static_cast<Norm>(p.tau_device ? p.tau_device[batch] : p.tau);
    const int block = 1 << p.log2_block;
    Accumulator sum[2] = {0, 0};
    for (int k0 = 0; k0 < p.k; k0 += 32) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int r = ty + 16 * e;
            a[r][tx] = row0 + r < p.m && k0 + tx < p.k ? static_cast<Accumulator>(source_a[(row0 + r) * p.lda + k0 + tx]) : 0;
            b[r][tx] = k0 + r < p.k && column < p.n ? static_cast<Accumulator>(source_b[(k0 + r) * p.ldb + column]) : 0;
        }
        __syncthreads();
        for (int k = k0; k < min(k0 + 32, p.k); k += block) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int row = row0 + ty + 16 * e;
                if (row >= p.m || column >= p.n) continue;
                const Norm norm_a = norms_a[static_cast<long long>(row >> p.log2_block) * p.norm_k + (k >> p.log2_block)];
                const Norm norm_b = norms_b[static_cast<long long>(column >> p.log2_block) * p.norm_k + (k >> p.log2_block)];
                if (!(norm_a * norm_b < tau))
                    for (int kk = k - k0; kk < k - k0 + block; ++kk) sum[e] = fma(a[ty + 16 * e][kk], b[kk][tx], sum[e]);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int row = row0 + ty + 16 * e;
        if (row >= p.m || column >= p.n) continue;
        Accumulator value = static_cast<Accumulator>(p.alpha) * sum[e];
        if (p.beta != 0)
            value += static_cast<Accumulator>(p.beta) * static_cast<Accumulator>(p.c[batch * p.stride_c + row * p.ldc + column]);
        p.out[batch * p.stride_o + row * p.ldo + column] = static_cast<Output>(value);
    }
}
