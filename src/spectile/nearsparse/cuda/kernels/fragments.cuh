// What a warp of product.cu multiplies with, a part for each arithmetic: rows of A by columns of B in shared memory.
//
// multiply<N0, N1>(a, b, sum) takes the 32 x 32 blocks [N0, N1) of the warp over the k of one stage.
// vector_place(v, lane) is where the v-th kStored neighbouring sums of a lane lie in the warp's blocks.
#define FP16 0
#define TF32X3 1
#define FP64 2
#define FP32 3

#if PRECISION == FP32
using Sums = Accumulator[8][4 * kBlocks];
constexpr int kStored = 4;

__device__ __forceinline__ void clear(Sums& sum) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kBlocks; ++j) sum[i][j] = 0;
}

__device__ __forceinline__ TilePlace vector_place(int v, int lane) { return {lane / 8 + v / kBlocks * 4, v % kBlocks * 32 + lane % 8 * 4}; }

// Thread (r, c) of a warp's 4 x 8 owns rows r + 4 i and columns 4 c + j of each block: A is read along k.
template <int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Sums& sum) {
    const int lane = threadIdx.x % 32;
    const float* rows = a + lane / 8 * kPitchA;
    const float* columns = b + lane % 8 * 4;
    float value_a[2][8][4], value_b[4][4 * kBlocks];
    auto load_a = [&](float (&to)[8][4], int k) {
#pragma unroll
        for (int i = 0; i < 8; ++i) *reinterpret_cast<float4*>(to[i]) = *reinterpret_cast<const float4*>(rows + 4 * i * kPitchA + k);
    };
    auto load_b = [&](int kk, int k) {
#pragma unroll
        for (int s = N0; s < N1; ++s)
            *reinterpret_cast<float4*>(value_b[kk] + 4 * s) = *reinterpret_cast<const float4*>(columns + (k + kk) * kPitchB + 32 * s);
    };
    // The operands of the next four k are on their way while these are multiplied.
    load_a(value_a[0], 0);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) load_b(kk, 0);
#pragma unroll
    for (int k = 0; k < kStep; k += 4) {
        const int next = k + 4;
        if (next < kStep) load_a(value_a[next / 4 % 2], next);
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int turn = 4 * N0; turn < 4 * N1; ++turn) {
                    // There and back: where a row ends, the next begins with the same element of B, which is read once.
                    const int j = i % 2 ? 4 * (N0 + N1) - 1 - turn : turn;
                    sum[i][j] = fmaf(value_a[k / 4 % 2][i][kk], value_b[kk][j], sum[i][j]);
                }
            if (next < kStep) load_b(kk, next);
        }
    }
}
#else
// Fragments of m16n8: lane = 4 g + t holds rows g and g + 8, columns 2 t and 2 t + 1 of C.  A block is 2 x 4 of them.
using Sums = Accumulator[2][4 * kBlocks][4];
constexpr int kStored = 2;

__device__ __forceinline__ void clear(Sums& sum) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kBlocks; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] = 0;
}

__device__ __forceinline__ TilePlace vector_place(int v, int lane) {
    const int j = v / 2 % (4 * kBlocks), i = v / (8 * kBlocks);
    return {16 * i + v % 2 * 8 + lane / 4, 8 * j + lane % 4 * 2};
}

#if PRECISION == FP16
template <int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Sums& sum) {
    const int lane = threadIdx.x % 32;
    const unsigned rows = shared_address(a + lane % 16 * kPitchA + lane / 16 * 8);
    const unsigned columns = shared_address(b + lane % 16 * kPitchB + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < kStep; k += 16) {
        unsigned fragment_a[2][4], fragment_b[4 * kBlocks][2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(fragment_a[i][0]), "=r"(fragment_a[i][1]), "=r"(fragment_a[i][2]), "=r"(fragment_a[i][3])
                         : "r"(rows + (16 * i * kPitchA + k) * 2));
#pragma unroll
        for (int j = 4 * N0; j < 4 * N1; j += 2)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(fragment_b[j][0]), "=r"(fragment_b[j][1]), "=r"(fragment_b[j + 1][0]), "=r"(fragment_b[j + 1][1])
                         : "r"(columns + (k * kPitchB + 8 * j) * 2));
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 4 * N0; j < 4 * N1; ++j) mma_f16(sum[i][j], fragment_a[i], fragment_b[j]);
    }
}
#elif PRECISION == TF32X3
// x = high + low, both TF32: high is x rounded to nearest, low the exact rest (the unit drops its last bits).
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

// Three TF32 products (low*high, high*low, high*high) a step; the tensor core, which truncates its sums, adds up 32 k,
// and each such sum is added to C rounding to nearest.
template <int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Sums& sum) {
    const int lane = threadIdx.x % 32;
    const float* rows = a + lane / 4 * kPitchA + lane % 4;
    const float* columns = b + lane % 4 * kPitchB + lane / 4;
    constexpr int kChunk = 32;
#pragma unroll
    for (int k0 = 0; k0 < kStep; k0 += kChunk) {
        float chunk[2][4 * kBlocks][4];
#pragma unroll
        for (int k = k0; k < k0 + kChunk; k += 8) {
            unsigned high_a[2][4], low_a[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) split(rows[(16 * i + e % 2 * 8) * kPitchA + k + e / 2 * 4], high_a[i][e], low_a[i][e]);
#pragma unroll
            for (int j = 4 * N0; j < 4 * N1; ++j) {
                unsigned high_b[2], low_b[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) split(columns[(k + 4 * e) * kPitchB + 8 * j], high_b[e], low_b[e]);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (k == k0) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) chunk[i][j][e] = 0.0f;
                    }
                    mma_tf32(chunk[i][j], low_a[i], high_b);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) mma_tf32(chunk[i][j], high_a[i], low_b);
#pragma unroll
                for (int i = 0; i < 2; ++i) mma_tf32(chunk[i][j], high_a[i], high_b);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 4 * N0; j < 4 * N1; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += chunk[i][j][e];
    }
}
#else
// k-fragments of 8, or of 4 before sm_90, which has nothing deeper.
template <int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Sums& sum) {
    const int lane = threadIdx.x % 32;
    const double* rows = a + lane / 4 * kPitchA + lane % 4;
    const double* columns = b + lane % 4 * kPitchB + lane / 4;
#if __CUDA_ARCH__ >= 900
    constexpr int kDepth = 8;
#else
    constexpr int kDepth = 4;
#endif
#pragma unroll
    for (int k = 0; k < kStep; k += kDepth) {
        double fragment_a[2][kDepth / 2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int d = 0; d < kDepth / 4; ++d)
#pragma unroll
                for (int e = 0; e < 2; ++e) fragment_a[i][2 * d + e] = rows[(16 * i + 8 * e) * kPitchA + k + 4 * d];
#pragma unroll
        for (int j = 4 * N0; j < 4 * N1; ++j) {
            double fragment_b[kDepth / 4];
#pragma unroll
            for (int d = 0; d < kDepth / 4; ++d) fragment_b[d] = columns[(k + 4 * d) * kPitchB + 8 * j];
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_f64(sum[i][j], fragment_a[i], fragment_b);
        }
    }
}
#endif
#endif
