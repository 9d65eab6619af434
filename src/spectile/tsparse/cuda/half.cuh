// What float16 rounds to and holds, for the check and for scaling.

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

// The range of entries for float16 (types.py: BY_ENTRY), what the largest of a scaled row is below, and what is lost.
constexpr double HALF_LEAST = 0x1p-126, HALF_MOST = 0x1p48, HALF_LOST = 0x1p-62;
constexpr int HALF_TOP = 48;

}  // namespace
