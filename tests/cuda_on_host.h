// Blocks of CUDA threads on the host, one after the other: each thread has a stack of its own and runs to the next barrier.
//
// What a block shares is static.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <ucontext.h>
#include <vector>

using std::fabs;
using std::fmax;
using std::fmin;
using std::frexp;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct Dimension {
    unsigned x;
};
struct int2 {
    int x, y;
};
struct double2 {
    double x, y;
};
struct int4 {
    int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
struct uint4 {
    unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

inline Dimension threadIdx, blockIdx, blockDim, gridDim;

struct Barrier {
    int threads = 0, arrived = 0, passed = 0;
};
struct Block {
    std::vector<ucontext_t> threads;
    std::vector<std::vector<char>> stacks;
    std::vector<std::array<double, 8>> exchanged;
    std::vector<Barrier> warps;
    Barrier all;
    ucontext_t scheduler;
    int running = 0;
    std::function<void()> function;
};
inline Block block;
inline std::vector<double> shared_memory;

// The others run until as many have arrived.
inline void wait_at(Barrier& barrier) {
    const int passed = barrier.passed;
    if (++barrier.arrived == barrier.threads) {
        barrier.arrived = 0, ++barrier.passed;
        return;
    }
    while (barrier.passed == passed) {
        const unsigned own = threadIdx.x;
        swapcontext(&block.threads[own], &block.scheduler);
        threadIdx.x = own;
    }
}

inline void __syncthreads() { wait_at(block.all); }

template <class T>
T from_lane(T value, int lane) {
    auto& warp = block.warps[threadIdx.x / 32];
    std::memcpy(&block.exchanged[threadIdx.x], &value, sizeof(T));
    wait_at(warp);
    T found;
    std::memcpy(&found, &block.exchanged[threadIdx.x / 32 * 32 + lane], sizeof(T));
    wait_at(warp);
    return found;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
    return from_lane(value, int(threadIdx.x % 32) / width * width + lane % width);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int lanes, int width = 32) {
    const int lane = threadIdx.x % 32;
    return from_lane(value, lane % width >= lanes ? lane - lanes : lane);
}
template <class T>
T reduced(T value, const T& (*larger)(const T&, const T&)) {
    for (int lanes = 16; lanes; lanes /= 2) value = larger(value, from_lane(value, int(threadIdx.x % 32) ^ lanes));
    return value;
}
inline int __reduce_max_sync(unsigned, int value) { return reduced<int>(value, std::max<int>); }
inline int __reduce_min_sync(unsigned, int value) { return reduced<int>(value, std::min<int>); }
inline unsigned __match_any_sync(unsigned, int value) {
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane) same |= unsigned(from_lane(value, lane) == value) << lane;
    return same;
}
inline int __reduce_add_sync(unsigned, int value) {
    for (int lanes = 16; lanes; lanes /= 2) value += from_lane(value, int(threadIdx.x % 32) ^ lanes);
    return value;
}
inline int __reduce_or_sync(unsigned, int value) {
    for (int lanes = 16; lanes; lanes /= 2) value |= from_lane(value, int(threadIdx.x % 32) ^ lanes);
    return value;
}
inline int __syncthreads_count(bool wanted) {
    static int count;
    count = 0;
    __syncthreads();
    count += wanted;
    __syncthreads();
    const int found = count;
    __syncthreads();
    return found;
}
inline int __syncthreads_or(bool wanted) { return __syncthreads_count(wanted) != 0; }
template <class T, class U>
T atomicAdd(T* at, U more) {
    const T old = *at;
    *at += more;
    return old;
}
template <class T, class U>
T atomicMax(T* at, U other) {
    const T old = *at;
    *at = std::max<T>(old, other);
    return old;
}
template <class T, class U>
T atomicMin(T* at, U other) {
    const T old = *at;
    *at = std::min<T>(old, other);
    return old;
}
template <class T, class U>
T atomicOr(T* at, U bits) {
    const T old = *at;
    *at |= bits;
    return old;
}
inline int atomicCAS(int* at, int old, int value) {
    const int found = *at;
    if (found == old) *at = value;
    return found;
}
inline void __syncwarp(unsigned = 0) { from_lane(0, 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    return from_lane(value, int(threadIdx.x % 32) ^ lanes);
}
inline unsigned __ballot_sync(unsigned, bool wanted) {
    auto& warp = block.warps[threadIdx.x / 32];
    block.exchanged[threadIdx.x][0] = wanted;
    wait_at(warp);
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= unsigned(block.exchanged[threadIdx.x / 32 * 32 + lane][0] != 0) << lane;
    wait_at(warp);
    return all;
}
inline bool __any_sync(unsigned, bool wanted) { return __ballot_sync(0, wanted) != 0; }
inline bool __all_sync(unsigned, bool wanted) { return __ballot_sync(0, wanted) == 0xffffffffu; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline double __longlong_as_double(long long x) {
    double y;
    std::memcpy(&y, &x, 8);
    return y;
}
inline long long __double_as_longlong(double x) {
    long long y;
    std::memcpy(&y, &x, 8);
    return y;
}
inline int __float_as_int(float x) {
    int y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline unsigned __float_as_uint(float x) { return unsigned(__float_as_int(x)); }
inline float __uint_as_float(unsigned x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline float __int_as_float(int x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline float __double2float_ru(double x) {
    const float y = float(x);
    return y < x ? std::nextafterf(y, std::numeric_limits<float>::infinity()) : y;
}

// Copies are done at once.
inline void* shared_address(void* here) { return here; }
inline void copy_async_16(void* target, const void* source) { std::memcpy(target, source, 16); }
inline void commit_copies() {}
template <int kLeft>
void wait_copies() {}

// C += A (16 x 8) B (8 x 8), as the matrix units of float64 have them in the lanes of a warp.
inline void mma_f64(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
    auto& warp = block.warps[threadIdx.x / 32];
    auto* lanes = &block.exchanged[threadIdx.x / 32 * 32];
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    lanes[threadIdx.x % 32] = {a[0], a[1], a[2], a[3], b[0], b[1], 0, 0};
    wait_at(warp);
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8; ++k) c[e] += lanes[g * 4 + k % 4][2 * (k / 4) + e / 2] * lanes[(2 * t + e % 2) * 4 + k % 4][4 + k / 4];
    wait_at(warp);
}

// The lower or the upper half of a word, in float16.
inline float half_in(unsigned word, int upper) {
    const unsigned bits = word >> 16 * upper & 0xffff, exponent = bits >> 10 & 31;
    const float modulus = exponent ? std::ldexp(float(1024 + (bits & 1023)), int(exponent) - 25) : std::ldexp(float(bits & 1023), -24);
    return bits & 0x8000 ? -modulus : modulus;
}

// C += A (16 x 16) B (16 x 8) in float16.
inline void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    auto& warp = block.warps[threadIdx.x / 32];
    auto* lanes = &block.exchanged[threadIdx.x / 32 * 32];
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    lanes[threadIdx.x % 32] = {double(a[0]), double(a[1]), double(a[2]), double(a[3]), double(b[0]), double(b[1]), 0, 0};
    wait_at(warp);
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k) {
            const int lane = k % 8 / 2, part = k / 8;
            c[e] += half_in(unsigned(lanes[g * 4 + lane][2 * part + e / 2]), k % 2) *
                    half_in(unsigned(lanes[(2 * t + e % 2) * 4 + lane][4 + part]), k % 2);
        }
    wait_at(warp);
}

inline void run_thread() {
    block.function();
    --block.running;
    // Whoever waits for this thread waits for one that has ended: that of a block counts fewer.
    --block.all.threads;
    if (block.all.threads && block.all.arrived == block.all.threads) block.all.arrived = 0, ++block.all.passed;
    swapcontext(&block.threads[threadIdx.x], &block.scheduler);
}

inline void run_blocks(int blocks, int threads, long shared_bytes, std::function<void()> function) {
    blockDim.x = threads, gridDim.x = blocks;
    block.function = function;
    block.threads.resize(threads), block.exchanged.resize(threads);
    block.stacks.assign(threads, std::vector<char>(1 << 16));
    for (int b = 0; b < blocks; ++b) {
        shared_memory.assign(shared_bytes / 8 + 1, std::numeric_limits<double>::quiet_NaN());
        blockIdx.x = b, block.running = threads, block.all = {threads};
        block.warps.clear();
        for (int first = 0; first < threads; first += 32) block.warps.push_back({std::min(32, threads - first)});
        std::vector<bool> ended(threads, false);
        for (int t = 0; t < threads; ++t) {
            getcontext(&block.threads[t]);
            block.threads[t].uc_stack = {block.stacks[t].data(), 0, block.stacks[t].size()};
            block.threads[t].uc_link = nullptr;
            makecontext(&block.threads[t], run_thread, 0);
        }
        while (block.running)
            for (int t = 0; t < threads; ++t) {
                if (ended[t]) continue;
                const int before = block.running;
                threadIdx.x = t;
                swapcontext(&block.scheduler, &block.threads[t]);
                ended[t] = block.running < before;
            }
    }
}
