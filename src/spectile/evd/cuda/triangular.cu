// Inverses of small triangular matrices.
#include "scalar.cuh"

#if COMPLEX
__device__ __forceinline__ scalar_t reciprocal(scalar_t a) { return (1 / square(a)) * conj(a); }
#else
__device__ __forceinline__ scalar_t reciprocal(scalar_t a) { return 1 / a; }
#endif

// Inverses of the 32 x 32 blocks on the diagonal of a lower triangular matrix of `n` rows, with ones on the diagonal beyond
// them; one block a block, a thread a column of the inverse.
extern "C" __global__ void __launch_bounds__(32) invert_blocks(const scalar_t* a, long long lda, int n, scalar_t* out, long long ldo) {
    extern __shared__ __align__(16) unsigned char shared[];
    scalar_t* lower = (scalar_t*)shared;  // 32 x 33, by rows
    scalar_t* inverse = lower + 32 * 33;  // 32 x 33, by rows
    const int start = blockIdx.x * 32, lane = threadIdx.x;
    a += start * (1 + lda);
    out += start * (1 + ldo);
    for (int j = 0; j < 32; ++j) {
        const bool inside = start + lane < n && start + j < n && lane >= j;
        lower[lane * 33 + j] = inside ? a[lane + j * lda] : lane == j ? one() : zero();
    }
    __syncwarp();
    for (int i = 0; i < 32; ++i) {
        scalar_t sum = i == lane ? one() : zero();
        for (int k = 0; k < i; ++k)
            if (k >= lane) sum = fma_(negative(lower[i * 33 + k]), inverse[k * 33 + lane], sum);
        inverse[i * 33 + lane] = i < lane ? zero() : sum * reciprocal(lower[i * 33 + i]);
    }
    __syncwarp();
    for (int j = 0; j < 32; ++j) out[lane + j * ldo] = inverse[lane * 33 + j];
}
