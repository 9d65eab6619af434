// Types of words, and prefix scans: over a group of lanes, and over blocks.

using u32 = unsigned int;
using u64 = unsigned long long;

namespace {

constexpr u32 ALL = 0xffffffffu;

// The sum of `value` over this lane and those before it in its group of G.
template <int G, class T>
__device__ __forceinline__ T prefix_scan(T value, int lane, u32 mask) {
    for (int d = 1; d < G; d <<= 1) {
        const T other = __shfl_up_sync(mask, value, d, G);
        if (lane >= d) value += other;
    }
    return value;
}

// The sum of what all blocks with smaller tickets hand in, for a warp of each: a single-pass scan with look-back.  `sum` is
// the block's own, and states begin as 0: what a block hands in (bit 62 set), or the sum up to and with it (bit 63).
__device__ __forceinline__ u64 look_back(int ticket, u64 sum, u64* state) {
    constexpr u64 VALUE_BITS = (1ull << 62) - 1;
    const int lane = threadIdx.x & 31;
    volatile u64* states = state;
    if (lane == 0) {
        __threadfence();
        states[ticket] = (ticket == 0 ? 2ull << 62 : 1ull << 62) | sum;
    }
    u64 prefix = 0;
    for (int at = ticket - 1 - lane; ticket > 0; at -= 32) {
        u64 seen;
        do { seen = at >= 0 ? states[at] : 2ull << 62; } while (__any_sync(ALL, (seen >> 62) == 0));
        const u32 done = __ballot_sync(ALL, (seen >> 62) == 2);
        const int last = done ? __ffs(done) - 1 : 31;
        u64 part = lane <= last ? seen & VALUE_BITS : 0;
        for (int d = 16; d; d >>= 1) part += __shfl_xor_sync(ALL, part, d);
        prefix += part;
        if (done) break;
    }
    if (lane == 0) {
        __threadfence();
        if (ticket > 0) states[ticket] = (2ull << 62) | (prefix + sum);
    }
    return prefix;
}

// The sum of what all blocks with smaller tickets hand in (`look_back`).  All threads call it; `sum` is the block's own.  A
// block may rely on what earlier blocks did before they called it.
__device__ __forceinline__ u64 sum_before(int ticket, u64 sum, u64* states) {
    __shared__ u64 s_before;
    __syncthreads();
    if (threadIdx.x < 32) {
        const u64 prefix = look_back(ticket, sum, states);
        if ((threadIdx.x & 31) == 0) s_before = prefix;
    }
    __syncthreads();
    return s_before;
}

// The sum of `value` over the threads before this one in a block, and over all of them in `sum`; a barrier stands between calls.
template <int THREADS = 256, class T>
__device__ __forceinline__ T scan_block(T value, T& sum) {
    __shared__ T s_sums[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const T scan = prefix_scan<32>(value, lane, ALL);
    if (lane == 31) s_sums[warp] = scan;
    __syncthreads();
    T before = scan - value;
    sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w < warp) before += s_sums[w];
        sum += s_sums[w];
    }
    return before;
}

// The last lane whose number is at most `most`; numbers ascend, and that of the first lane is.
__device__ __forceinline__ int last_lane(int number, int most) {
    int lane = 0;
#pragma unroll
    for (int d = 16; d; d >>= 1)
        if (__shfl_sync(ALL, number, lane + d) <= most) lane += d;
    return lane;
}

}  // namespace
