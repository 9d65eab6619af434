// Messages between blocks that run at the same time, and loads that see what others wrote.
#include "ptx.cuh"
#include "scalar.cuh"

// A double that carries its own flag: each 8-byte half holds 4 bytes of the value and the flag, and 8-byte words are
// written whole, so a reader that sees both flags has the value, without a fence or a second word to poll.
__device__ __forceinline__ void store_flagged(uint4* p, double value, unsigned flag) {
    unsigned low = __double2loint(value), high = __double2hiint(value);
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(p), "r"(low), "r"(flag), "r"(high) : "memory");
}

__device__ __forceinline__ bool try_flagged(const uint4* p, unsigned flag, double& value) {
    unsigned low, flag1, high, flag2;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(low), "=r"(flag1), "=r"(high), "=r"(flag2) : "l"(p) : "memory");
    value = __hiloint2double(high, low);
    return flag1 == flag && flag2 == flag;
}

// Number `index` of those at a slot, each in lines of its own.
__device__ __forceinline__ void send(uint4* slot, int index, scalar_t value, unsigned tag) {
    if (COMPLEX) {
        store_flagged(slot + 2 * index, real_part(value), tag);
        store_flagged(slot + 2 * index + 1, imag_part(value), tag);
    } else {
        store_flagged(slot + index, real_part(value), tag);
    }
}

__device__ __forceinline__ bool try_receive(const uint4* slot, int index, unsigned tag, scalar_t& value) {
    double x, y = 0;
    bool arrived;
    if (COMPLEX) {
        arrived = try_flagged(slot + 2 * index, tag, x);
        arrived &= try_flagged(slot + 2 * index + 1, tag, y);
    } else {
        arrived = try_flagged(slot + index, tag, x);
    }
    value = make_scalar(x, y);
    return arrived;
}

// Loads that see what other multiprocessors wrote: from L2, past this one's own cache.
__device__ __forceinline__ double load(const double* p) { return __ldcg(p); }
__device__ __forceinline__ float load(const float* p) { return __ldcg(p); }
#if COMPLEX
__device__ __forceinline__ scalar_t load(const scalar_t* p) {
#if REAL_BYTES == 8
    const double2 value = __ldcg((const double2*)p);
#else
    const float2 value = __ldcg((const float2*)p);
#endif
    return make_scalar(value.x, value.y);
}
#endif
