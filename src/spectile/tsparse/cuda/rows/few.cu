// Columns and values of rows of few products: a thread takes a row and sorts its products in registers.
//
//   list the products of the row in the order of k, entries of A side by side: entry of A, entry of B
//   sort words (column - low, number of the product)
//   each run of equal columns is an entry of C:  its sum is added in the order of the numbers
//
// Invariant: words are distinct and equal columns stay in the order of k, so sums are those of the other kernels.

#include "rows/bins.cuh"
#include "rows/sort.cuh"

namespace {

constexpr int N = FEW_MOST, LOG = 4;
// So many blocks find their registers and shared memory on a multiprocessor.
constexpr int RESIDENT = sizeof(VALUE) > 8 ? 3 : sizeof(VALUE) > 4 ? 6 : 8;
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

extern "C" __global__ void __launch_bounds__(GROUP_THREADS, RESIDENT) NAME(int rows, const int* ptr_a, const int* idx_a,
                                                                           const STORED* val_a, const int* ptr_b, const int* idx_b,
                                                                           const STORED* val_b, const int* low, const int* span,
                                                                           const int* slot, const int* ptr_c, int* idx_c, STORED* val_c) {
    extern __shared__ u64 shared[];
    const int lane = threadIdx.x & 31, row = blockIdx.x * blockDim.x + threadIdx.x;
    // The entries of A and of B that are multiplied; then sums and columns.
    VALUE* left = (VALUE*)shared + (threadIdx.x >> 5) * 2 * PITCH * N;
    VALUE* right = left + PITCH * N;
    int *of_a = (int*)left + lane, *of_b = (int*)right + lane, *columns = (int*)right;
    int products = 0, out = 0, at = 0, end = 0, start = 0;
    // Of an empty row nothing else is known.
    if (row < rows && ptr_c[row] < ptr_c[row + 1] && slot[row] == FEW_ROW)
        at = ptr_a[row], end = ptr_a[row + 1], start = low[row], out = ptr_c[row], products = span[row];
    const int most = __reduce_max_sync(ALL, products);
    if (most == 0) return;
    each_of_few(at, end, 1, idx_a, ptr_b, [](Met) {}, [&](int t, int p, int q) { of_a[PITCH * t] = p, of_b[PITCH * t] = q; });
    u32 words[N];
#pragma unroll
    for (int t = 0; t < N; ++t) words[t] = t < products ? u32(idx_b[of_b[PITCH * t]] - start) << LOG | t : ALL;
    sort_few(words, most);
    VALUE sums[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {  // all of them are read side by side
        const int place = PITCH * (words[r] & (N - 1)), before = max(r - 1, 0);
        const VALUE a = words[r] == ALL ? VALUE(0) : VALUE(val_a[of_a[place]]), b = words[r] == ALL ? VALUE(0) : VALUE(val_b[of_b[place]]);
        sums[r] = add_product(a, b, r > 0 && words[r] >> LOG == words[before] >> LOG ? sums[before] : VALUE(0));
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
