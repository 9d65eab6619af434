// The small kernels around the panels of the band reduction.
#include "scalar.cuh"

// T of a panel in two halves of W columns: T12 = -T1 (Y1^H Y2) T2; gram holds Y1^H Y2; one block.
extern "C" __global__ void __launch_bounds__(256) join_halves(scalar_t* t, const scalar_t* gram, long long ldg) {
    extern __shared__ unsigned char shared[];
    scalar_t* first = (scalar_t*)shared;  // each W x W
    scalar_t* second = first + W * W;
    scalar_t* inner = second + W * W;
    scalar_t* product = inner + W * W;
    for (int i = threadIdx.x; i < W * W; i += 256) {
        const int r = i % W, c = i / W;
        first[i] = t[r + c * B];
        second[i] = t[W + r + (W + c) * B];
        inner[i] = gram[r + c * ldg];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < W * W; i += 256) {
        const int r = i % W, c = i / W;
        scalar_t sum = zero();
#pragma unroll 8
        for (int l = 0; l < W; ++l) sum = fma_(inner[r + l * W], second[l + c * W], sum);
        product[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < W * W; i += 256) {
        const int r = i % W, c = i / W;
        scalar_t sum = zero();
#pragma unroll 8
        for (int l = 0; l < W; ++l) sum = fma_(first[r + l * W], product[l + c * W], sum);
        t[r + (W + c) * B] = negative(sum);
    }
}

// M = Y^H (A Y - V S) = (A Y)^H Y - (V^H Y)^H S: the rows of S = X^H Y are those of V^H Y with neighbouring groups of B
// exchanged.  s: p rows of V^H Y, then B rows of Y^H Y and B rows of (A Y)^H Y; one warp for each entry of M.
extern "C" __global__ void __launch_bounds__(256) correct_gram(const scalar_t* s, long long lds, int p, scalar_t* mm) {
    const int c = blockIdx.x, lane = threadIdx.x & 31, r = blockIdx.y * 8 + (threadIdx.x >> 5);
    scalar_t sum = zero();
#pragma unroll 8
    for (int q = lane; q < p; q += 32) sum = fma_(conj(s[(q ^ B) + r * lds]), s[q + c * lds], sum);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) sum = sum + shuffle_xor(sum, lanes);
    if (lane == 0) mm[r + c * B] = s[p + B + r + c * lds] - sum;
}

// Z as a product with [V Y A Y]: -S T, K = -1/2 T^H M T and T, below each other.  Block (c, 0) makes column c of K and T,
// block (c, i) 256 rows of -S T; s as above.
extern "C" __global__ void __launch_bounds__(256) small_factor(const scalar_t* s, long long lds, int p, const scalar_t* mm,
                                                               const scalar_t* t, scalar_t* out, long long ldo) {
    extern __shared__ unsigned char shared[];
    scalar_t* ts = (scalar_t*)shared;    // B x (B + 1)
    scalar_t* parts = ts + B * (B + 1);  // 256
    const int c = blockIdx.x, thread = threadIdx.x, r = thread % B, share = thread / B;
    out += c * ldo;
    scalar_t sum = zero();
    if (blockIdx.y > 0) {
        if (thread < B) parts[thread] = t[thread + c * B];
        __syncthreads();
        const int q = (blockIdx.y - 1) * 256 + thread;
        if (q >= p) return;
#pragma unroll 8
        for (int l = 0; l <= c; ++l) sum = fma_(s[(q ^ B) + l * lds], parts[l], sum);
        out[q] = negative(sum);
        return;
    }
    for (int i = thread; i < B * B; i += 256) ts[i % B + i / B * (B + 1)] = t[i];
    __syncthreads();
#pragma unroll 4
    for (int l = share; l <= c; l += 256 / B) sum = fma_(mm[r + l * B], ts[l + c * (B + 1)], sum);
    parts[thread] = sum;
    __syncthreads();
    if (thread < B) {
        for (int i = 1; i < 256 / B; ++i) sum = sum + parts[thread + i * B];
        parts[thread] = sum;
    }
    __syncthreads();
    if (thread < B) {
        sum = zero();
        for (int l = 0; l <= thread; ++l) sum = fma_(conj(ts[l + thread * (B + 1)]), parts[l], sum);
        out[p + thread] = (real_t)-0.5 * sum;
        out[p + B + thread] = ts[thread + c * (B + 1)];
    }
}

// B columns of m rows.
extern "C" __global__ void __launch_bounds__(256) copy_panel(const scalar_t* from, long long ldf, scalar_t* to, long long ldt, int m) {
    const int i = blockIdx.x * 1024 + threadIdx.x;
    from += blockIdx.y * ldf;
    to += blockIdx.y * ldt;
    scalar_t value[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) value[u] = i + 256 * u < m ? from[i + 256 * u] : zero();
#pragma unroll
    for (int u = 0; u < 4; ++u)
        if (i + 256 * u < m) to[i + 256 * u] = value[u];
}
