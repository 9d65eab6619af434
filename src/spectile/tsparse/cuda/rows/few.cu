// Columns and values of rows of few products: a thread takes a row and sorts its products in registers.
//
//   list the products of the row in the order of k: entry of A, entry of B
//   sort words (column - low, number of the product)
//   each run of equal columns is an entry of C:  its sum is added in the order of the numbers
//
// Invariant: words are distinct and equal columns stay in the order of k, so sums are those of the other kernels.

#include "rows/bins.cuh"
#include "rows/sort.cuh"

namespace {

constexpr int N = FEW_MOST, LOG = 4;
static_assert(1 << LOG == N, "the number of a product beside its column");

// Write n entries of each lane's row from `out` on.  Entry e of a lane is sums[PITCH e + lane], its column likewise.
__device__ __forceinline__ void write_rows(int n, int out, const VALUE* sums, const int* columns, int* idx_c, STORED* val_c) {
    const int lane = threadIdx.x & 31, before = prefix_scan<32>(n, lane, ALL) - n;
    const int total = __shfl_sync(ALL, before + n, 31);
    __syncwarp();
    for (int base = 0; base < total; base += 32) {
        const int i = base + lane, owner = last_lane(before, i);  // whose row begins no later
        const int e = i - __shfl_sync(ALL, before, owner), at = __shfl_sync(ALL, out, owner) + e;
        if (i < total) {
            idx_c[at] = columns[PITCH * e + owner];
            val_c[at] = sums[PITCH * e + owner];
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(GROUP_THREADS) NAME(int rows, const int* ptr_a, const int* idx_a, const STORED* val_a,
                                                                 const int* ptr_b, const int* idx_b, const STORED* val_b, const int* low,
                                                                 const int* span, const int* slot, const int* ptr_c, int* idx_c,
                                                                 STORED* val_c) {
    extern __shared__ u64 shared[];
    const int lane = threadIdx.x & 31, row = blockIdx.x * blockDim.x + threadIdx.x;
    // What is multiplied; then sums and columns.
    VALUE* left = (VALUE*)shared + (threadIdx.x >> 5) * 2 * PITCH * N;
    VALUE* right = left + PITCH * N;
    int* columns = (int*)right;
    int products = 0, out = 0, at = 0, end = 0, start = 0;
    // Of an empty row nothing else is known.
    if (row < rows && ptr_c[row] < ptr_c[row + 1] && slot[row] == FEW_ROW)
        at = ptr_a[row], end = ptr_a[row + 1], start = low[row], out = ptr_c[row], products = span[row];
    const int most = __reduce_max_sync(ALL, products);
    if (most == 0) return;
    u32 words[N];
    int q = 0, last = 0;
    VALUE a = 0;
#pragma unroll
    for (int t = 0; t < N; ++t) {
        words[t] = ALL;
        if (t >= most) continue;
        while (q == last && at < end) {
            const int k = idx_a[at];
            a = val_a[at++];
            q = ptr_b[k];
            last = ptr_b[k + 1];
        }
        if (q < last) {
            words[t] = u32(idx_b[q] - start) << LOG | t;
            left[PITCH * t + lane] = a;
            right[PITCH * t + lane] = val_b[q++];
        }
    }
    sort_few(words, most);
    VALUE sums[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
        sums[r] = 0;
        if (words[r] == ALL) continue;
        const int place = PITCH * (words[r] & (N - 1)) + lane;
        const bool more = r > 0 && words[r] >> LOG == words[max(r - 1, 0)] >> LOG;
        sums[r] = add_product(left[place], right[place], more ? sums[max(r - 1, 0)] : VALUE(0));
    }
    __syncwarp();  // columns lie where other lanes had their factors
    int n = 0;
#pragma unroll
    for (int r = 0; r < N; ++r)
        if (words[r] != ALL && (r == N - 1 || words[r] >> LOG != words[min(r + 1, N - 1)] >> LOG)) {
            left[PITCH * n + lane] = sums[r];
            columns[PITCH * n++ + lane] = start + int(words[r] >> LOG);
        }
    write_rows(n, out, left, columns, idx_c, val_c);
}
