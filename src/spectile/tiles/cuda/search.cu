// Which products of tiles are kept, of maps of the norms of all tiles, zero where there is none.
//
// A product is left out where the product of the norms is below tau.  All kernels form that product alike.
constexpr int kTaus = 8;
struct Taus {
    double tau[kTaus];
};

// Sums of what each of several tau leaves out of each tile of C: the largest norm that it can have.
extern "C" __global__ void __launch_bounds__(256) left_out(const double* __restrict__ a, const double* __restrict__ b,
                                                           const Taus* __restrict__ taus, double* __restrict__ sums, long long rows,
                                                           int inner, int columns) {
    const int across = (columns + blockDim.x - 1) / blockDim.x;
    const long long i = blockIdx.x / across;
    const int j = blockIdx.x % across * blockDim.x + threadIdx.x;
    if (j >= columns) return;
    double sum[kTaus], tau[kTaus];
#pragma unroll
    for (int q = 0; q < kTaus; ++q) sum[q] = 0, tau[q] = taus->tau[q];
#pragma unroll 4
    for (int k = 0; k < inner; ++k) {
        const double norm = a[i * inner + k];
        if (norm == 0) continue;
        const double both = norm * b[static_cast<long long>(k) * columns + j];
#pragma unroll
        for (int q = 0; q < kTaus; ++q)
            if (both < tau[q]) sum[q] += both;
    }
#pragma unroll
    for (int q = 0; q < kTaus; ++q) sums[(q * rows + i) * columns + j] = sum[q];
}

// Of each tile of C how many products are kept, the sum of their norms, and the terms of an entry.
extern "C" __global__ void __launch_bounds__(256) kept(const double* __restrict__ a, const double* __restrict__ b,
                                                       const int* __restrict__ sizes, double tau, int upper, int* __restrict__ counts,
                                                       double* __restrict__ sums, int* __restrict__ terms, int inner, int columns) {
    const int across = (columns + blockDim.x - 1) / blockDim.x;
    const long long i = blockIdx.x / across;
    const int j = blockIdx.x % across * blockDim.x + threadIdx.x;
    if (j >= columns) return;
    int count = 0, length = 0;
    double sum = 0;
    if (!upper || j >= i) {
#pragma unroll 4
        for (int k = 0; k < inner; ++k) {
            const double norm = a[i * inner + k];
            if (norm == 0) continue;
            const double both = norm * b[static_cast<long long>(k) * columns + j];
            if (both > 0 && both >= tau) ++count, length += sizes[k], sum += both;
        }
    }
    const long long place = i * columns + j;
    counts[place] = count, sums[place] = sum, terms[place] = length;
}

// The products of tiles of C, k rising: numbers of tiles of A and of B.  A warp a tile.
extern "C" __global__ void list(const double* __restrict__ a, const double* __restrict__ b, const int* __restrict__ numbers_a,
                                const int* __restrict__ numbers_b, double tau, const long long* __restrict__ places,
                                const long long* __restrict__ pointer, int* __restrict__ left, int* __restrict__ right, int inner,
                                int columns, int tiles) {
    const int t = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (t >= tiles) return;
    const long long i = places[t] / columns, j = places[t] % columns;
    long long at = pointer[t];
    for (int first = 0; first < inner; first += 32) {
        const int k = first + lane;
        bool wanted = false;
        if (k < inner) {
            const double both = a[i * inner + k] * b[k * static_cast<long long>(columns) + j];
            wanted = both > 0 && both >= tau;
        }
        const unsigned all = __ballot_sync(0xffffffffu, wanted);
        if (wanted) {
            const long long place = at + __popc(all & ((1u << lane) - 1));
            left[place] = numbers_a[i * inner + k];
            right[place] = numbers_b[k * static_cast<long long>(columns) + j];
        }
        at += __popc(all);
    }
}
