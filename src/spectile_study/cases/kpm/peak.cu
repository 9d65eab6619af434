// The device's rate of double-precision multiply-adds: eight independent chains a thread, for Table II.
extern "C" __global__ void multiply_add(double* __restrict__ out, int rounds, double factor) {
    double sum[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) sum[n] = factor * n;
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int n = 0; n < 8; ++n) sum[n] = sum[n] * factor + factor;
    double total = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) total += sum[n];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
