#include "number.cuh"
#include "phases.cuh"

// Element (row, vector) of random vectors: a fourth root of one, or a sign.
static __device__ __forceinline__ number random_phase(unsigned long long seed, unsigned long long row, unsigned long long vector) {
    const unsigned long long bits = phase_bits(seed, row, vector);
    number n = zero();
#if COMPLEX
    const int quarter = int(bits >> 62);
    n.x = quarter == 0 ? 1 : quarter == 2 ? -1 : 0;
    n.y = quarter == 1 ? 1 : quarter == 3 ? -1 : 0;
#else
    n.x = bits >> 63 ? -1 : 1;
#endif
    return n;
}
