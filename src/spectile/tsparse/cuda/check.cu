// Checks a factor, whose values are of type IN, and rounds these as the precision takes them.
//
//   for each entry p:  note a column outside 0 .. columns, a value that is not finite or leaves the range of the precision,
//                      and a descent, column[p - 1] >= column[p]; out[p] = rounded value[p]
//   for each row:      note a pointer that falls or leaves the entries; take back the descent at the row's start
//
// Where the values are not read, `in` is null.
// Invariant: flags and descents of a factor are 0 afterwards if and only if it is CSR with ascending columns in every row,
// whose values the precision holds.  No later kernel follows an index otherwise (`invalid`).

#include "half.cuh"

namespace {

template <class T>
__device__ __forceinline__ bool is_finite(T x) {
    return isfinite(x);
}

__device__ __forceinline__ bool is_finite(bool) { return true; }

#if REAL_VALUES
// Rounds a finite value as the precision takes it; returns what it finds.
__device__ __forceinline__ int round_value(int rounding, IN x, VALUE& y) {
    if (rounding == TF32) y = tf32_bits(float(y));
    if (rounding != HALF) return 0;
    const IN size = x < 0 ? -x : x;
    y = eleven_bits(x);
    return size > IN(HALF_MOST) || (size > 0 && size < IN(HALF_LEAST)) ? HALF_RANGE : 0;
}
#else
template <class REAL>
__device__ __forceinline__ bool is_finite(const Complex<REAL>& z) {
    return isfinite(z.x) && isfinite(z.y);
}
__device__ __forceinline__ int round_value(int, const IN&, VALUE&) { return 0; }
#endif

}  // namespace

// Values as the precision takes them, and the checks that the later phases rely on.  One thread an entry: columns increase
// within every row if and only if every descent of the column array is at a row's start.  The first `own` blocks take one
// factor, and those after them the next one, if there are any.
extern "C" __global__ void __launch_bounds__(256) prepare(int rounding, int finite, int which, int own, int rows, int columns, int nnz,
                                                          int next_rows, int next_columns, int next_nnz, const int* ptr, const int* idx,
                                                          const IN* in, VALUE* out, const int* next_ptr, const int* next_idx,
                                                          const IN* next_in, VALUE* next_out, int* head) {
    int block = blockIdx.x, blocks = own;
    if (block >= own) {
        block -= own, blocks = gridDim.x - own, ++which;
        rows = next_rows, columns = next_columns, nnz = next_nnz;
        ptr = next_ptr, idx = next_idx, in = next_in, out = next_out;
    }
    int found = 0, descents = 0;
    const int first = block * blockDim.x + threadIdx.x, stride = blocks * blockDim.x;
    for (int p = first; p < nnz; p += stride) {
        const int column = idx[p];
        if (u32(column) >= u32(columns)) found |= BAD_INDEX;
        descents += p > 0 && idx[p - 1] >= column;
        if (in == nullptr) continue;
        const IN x = in[p];
        VALUE y = VALUE(x);
        if (!is_finite(x)) {
            if (finite) found |= NOT_FINITE;
        } else {
            if (sizeof(Parts<IN>::Real) > sizeof(Parts<VALUE>::Real) && !is_finite(y)) found |= FLOAT_RANGE;
            found |= round_value(rounding, x, y);
        }
        if (out != nullptr) out[p] = y;
    }
    for (int row = first; row < rows; row += stride) {
        const int begin = ptr[row], end = ptr[row + 1];
        if (begin < 0 || begin > end || end > nnz || (row == 0 && begin != 0)) {
            found |= BAD_POINTER;
            continue;
        }
        descents -= begin > 0 && begin < end && idx[begin - 1] >= idx[begin];
    }
    found = __reduce_or_sync(ALL, found);
    descents = __reduce_add_sync(ALL, descents);
    if ((threadIdx.x & 31) == 0) {
        if (found) atomicOr(&head[FLAGS + which], found);
        if (descents) atomicAdd(&head[DESCENTS + which], descents);
    }
}
