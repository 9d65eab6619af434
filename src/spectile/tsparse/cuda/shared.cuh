// What the kernels do with what they share with the host; names and numbers are those of shared.py and bins.py.

#include "scan.cuh"
#include "value.cuh"

namespace {

// Words of the bitmap of `span` columns, of which there may be nearly 2^31.
__device__ __forceinline__ int words_of(int span) { return int((u32(span) + 31) >> 5); }

// The rows of a bin.  Two bins share room for all rows, one from its beginning, one from its end: no row is in both.
__device__ __forceinline__ const int* list_of(const int* lists, int bin, int rows, int count) {
    return lists + (long long)(bin >> 1) * rows + (bin & 1 ? rows - count : 0);
}

// Whether the check of the factors found what the kernels must not walk.
__device__ __forceinline__ bool invalid(const int* head) {
    return head[FLAGS] | head[FLAGS + 1] | head[FLAGS + 2] | head[DESCENTS] | head[DESCENTS + 1] | head[DESCENTS + 2];
}

}  // namespace
