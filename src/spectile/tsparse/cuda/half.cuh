// What float16 and tf32 round to, for the check and for scaling.

#include "shared.cuh"

namespace {

// 11 significant bits, ties to even: float16's where x is in its normal range, and the same precision elsewhere.
__device__ __forceinline__ float eleven_bits(float x) {
    const u32 bits = __float_as_uint(x);
    return __uint_as_float((bits + 0xfffu + ((bits >> 13) & 1)) & 0xffffe000u);
}
__device__ __forceinline__ float eleven_bits(double x) {
    const u64 bits = __double_as_longlong(x);
    return float(__longlong_as_double((bits + 0x1ffffffffffull + ((bits >> 42) & 1)) & ~0x3ffffffffffull));
}

// The same, ties away from zero, of float32: tf32's in its normal range, where the bits of float32 say no more.
__device__ __forceinline__ float tf32_bits(float x) {
    return float(__longlong_as_double((__double_as_longlong(double(x)) + 0x20000000000ull) & ~0x3ffffffffffull));
}

}  // namespace
