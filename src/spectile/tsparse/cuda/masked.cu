// Entries of C that a mask names, over a semiring (KIND, its code: 0 plus_times, 1 min_plus, 2 max_plus, 3 max_min).
//
//   for each entry (i, j) of the mask, a thread each:
//       walk A's row i and B's column j together:  where both have k,  c = c + a b
//       note whether any k was met
//
// Invariant: products are added in the order of k, with the bits that the kernels of the rows method give.

#include "search.cuh"
#include "shared.cuh"

namespace {

#if KIND
// old + a b, or where it is the first a b; what is no number stays.
__device__ __forceinline__ VALUE join(VALUE a, VALUE b, VALUE old, bool first) {
    const VALUE product = KIND < 3 ? a + b : b < a || b != b ? b : a;
    const bool better = KIND == 1 ? product < old : product > old;
    return first || better || product != product ? product : old;
}
#else
__device__ __forceinline__ VALUE join(VALUE a, VALUE b, VALUE old, bool) { return add_product(a, b, old); }
#endif

// The first place after `at` whose index is not below `wanted`, or `end`; that at `at` is below.  Few steps where it is near.
__device__ __forceinline__ int place_from(const int* idx, int at, int end, int wanted) {
    int step = 1;
    while (step < end - at && idx[at + step] < wanted) {
        at += step;
        if (step < (1 << 29)) step *= 2;
    }
    int first = at + 1, last = step < end - at ? at + step : end;
    while (first < last) {
        const int middle = first + (last - first) / 2;
        if (idx[middle] < wanted) first = middle + 1;
        else last = middle;
    }
    return first;
}

// The entry of a row of A, from p to p_end, and a column of B, from q to q_end; returns whether there is one.
__device__ __forceinline__ bool entry_of(int p, int p_end, const int* idx_a, const VALUE* val_a, int q, int q_end, const int* idx_t,
                                         const VALUE* val_t, VALUE& sum) {
    bool found = false;
    sum = 0;
    while (p < p_end && q < q_end) {
        const int k = idx_a[p], row = idx_t[q];
        if (k == row) {
            sum = join(val_a[p++], val_t[q++], sum, !found);
            found = true;
        } else if (k < row) {
            p = place_from(idx_a, p, p_end, row);
        } else {
            q = place_from(idx_t, q, q_end, k);
        }
    }
    return found;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) masked(int entries, int rows, const int* ptr_m, const int* idx_m, const int* ptr_a,
                                                         const int* idx_a, const VALUE* val_a, const int* ptr_t, const int* idx_t,
                                                         const VALUE* val_t, VALUE* val_c, unsigned char* found) {
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < entries; e += gridDim.x * blockDim.x) {
        const int i = last_at(ptr_m, 0, rows - 1, e), j = idx_m[e];
        VALUE sum;
        found[e] = entry_of(ptr_a[i], ptr_a[i + 1], idx_a, val_a, ptr_t[j], ptr_t[j + 1], idx_t, val_t, sum);
        val_c[e] = sum;
    }
}
