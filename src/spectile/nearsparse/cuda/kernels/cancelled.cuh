// Products that were launched before it was known whether they are wanted.
#include "ptx.cuh"

// Whether the kernel before, which is waited for, found that the dense product is to be taken instead.
__device__ __forceinline__ bool is_cancelled(const unsigned* cancelled) {
    if (!cancelled) return false;
    wait_for_previous();
    return __ldcg(cancelled) != 0;
}
