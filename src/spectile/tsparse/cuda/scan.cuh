// Types of words, and the prefix scan over a group of lanes.

using u32 = unsigned int;
using u64 = unsigned long long;

namespace {

constexpr u32 ALL = 0xffffffffu;

// The sum of `value` over this lane and those before it in its group of G.
template <int G, class T> __device__ __forceinline__ T prefix_scan(T value, int lane, u32 mask) {
    for (int d = 1; d < G; d <<= 1) {
        const T other = __shfl_up_sync(mask, value, d, G);
        if (lane >= d) value += other;
    }
    return value;
}

}  // namespace
