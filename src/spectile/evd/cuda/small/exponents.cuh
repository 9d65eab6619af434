// Powers of two that bring a matrix near 1.
#include "scalar.cuh"

#define NOT_FINITE 100000                               // in the place of an exponent
#define NO_NUMBER ((real_t)__int_as_float(0x7fc00000))  // NaN

// The smallest exponent with |x| < 2^exponent; NOT_FINITE for NaN and infinity.
__device__ __forceinline__ int exponent_of(real_t x) {
    if (!isfinite(x)) return NOT_FINITE;
    return x == 0 ? -NOT_FINITE : ilogb(x) + 1;
}

__device__ __forceinline__ scalar_t scaled(scalar_t a, int exponent) {
    return make_scalar((real_t)scalbn(real_part(a), exponent), (real_t)scalbn(imag_part(a), exponent));
}
