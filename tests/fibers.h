// Blocks of a kernel whose threads wait for each other, on one thread of the host: a fiber for each, which goes on to the
// next where it waits, in an order that is drawn anew in each round.  `parts` of shared memory begin as NaN.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

using std::fma;
using std::isfinite;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define DYNAMIC_SHARED(Type, name) Type* name = (Type*)fiber->block->shared.data()
#define threadIdx (fiber->thread)
#define blockIdx (fiber->place)
#define gridDim fiber_grid
#define blockDim (fiber->size)

struct index_t { int x, y, z; };
struct Named {
    int arrived = 0, turn = 0;
};
struct Block {
    std::vector<double> shared;
    int arrived = 0, turn = 0, threads = 0, any[2] = {0, 0};
    Named named[16];
};
struct Warp {
    double value[2][32];
    int arrived = 0, turn = 0;
};
struct Fiber {
    ucontext_t context;  // where it begins; later it goes on at a point, for which no signals are asked about
    jmp_buf point;
    bool begun = false;
    std::vector<char> stack;
    index_t thread, place, size;
    Block* block;
    Warp* warp;
    bool done = false;
};
static Fiber* fiber;
static jmp_buf scheduler;
static index_t fiber_grid;
static std::vector<Block>* fiber_blocks;
static std::mt19937 fiber_draw;
static std::function<void()> fiber_body;

static std::vector<std::function<void()>> fiber_sent;  // what has not arrived yet

inline void give_way() {
    while (!fiber_sent.empty() && fiber_draw() % 4) {
        std::swap(fiber_sent[fiber_draw() % fiber_sent.size()], fiber_sent.back());
        fiber_sent.back()();
        fiber_sent.pop_back();
    }
    if (_setjmp(fiber->point) == 0) _longjmp(scheduler, 1);
}
inline void go_on() {
    if (_setjmp(scheduler) != 0) return;
    if (fiber->begun) _longjmp(fiber->point, 1);
    fiber->begun = true;
    setcontext(&fiber->context);
}
template <class Group> void meet(Group* group, int count) {
    const int turn = group->turn;
    if (++group->arrived == count) group->arrived = 0, ++group->turn;
    while (group->turn == turn) give_way();
}
inline void arrive_threads(int barrier, int threads) {
    Named& own = fiber->block->named[barrier];
    if (++own.arrived == threads) own.arrived = 0, ++own.turn;
}
inline void sync_threads(int barrier, int threads) { meet(fiber->block->named + barrier, threads); }
inline void __syncthreads() { meet(fiber->block, fiber->block->threads); }
inline int __syncthreads_or(int value) {
    Block* block = fiber->block;
    const int turn = block->turn >> 1 & 1;  // another one in the next call: who is late clears that of this call
    block->any[turn] |= value;
    __syncthreads();
    const int found = block->any[turn];
    __syncthreads();
    block->any[turn] = 0;
    return found;
}
template <class T> T exchanged(T value, int from) {
    Warp* warp = fiber->warp;
    const int turn = warp->turn & 1;
    std::memcpy(&warp->value[turn][fiber->thread.x & 31], &value, sizeof value);
    meet(warp, 32);
    std::memcpy(&value, &warp->value[turn][from], sizeof value);
    return value;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int lanes) { return exchanged(value, (fiber->thread.x & 31) ^ lanes); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return exchanged(value, lane); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

inline void __threadfence() {}
inline void __threadfence_system() {}
template <class T> T load_acquire(const T* from) { return give_way(), *from; }
inline int load_acquire_system(const int* from) { return load_acquire(from); }
inline void store_release(int* to, int value) { *to = value; }
inline void store_release_system(int* to, int value) { *to = value; }
inline void prefetch_l2(const void*) {}
struct alignas(16) double2 { double x, y; };
struct alignas(8) float2 { float x, y; };
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> T atomicAdd(T* sum, T value) { return std::exchange(*sum, *sum + value); }
inline int atomicMax(int* most, int value) { return std::exchange(*most, max(*most, value)); }
typedef _Float16 __half;
inline __half __float2half_rn(float value) { return (__half)value; }
inline float __half2float(__half value) { return value; }
inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}
inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// A number that carries its flag.
struct uint4 { double value; unsigned flag; };
inline void store_flagged(uint4* p, double value, unsigned flag) { *p = {value, flag}; }
inline bool try_flagged(const uint4* p, unsigned flag, double& value) {
    if (p->flag != flag) give_way();
    value = p->value;
    return p->flag == flag;
}

// Barriers that count bytes, each with one arrival; what is sent arrives late, and in any order.
struct Counted { int arrivals = 1, phase = 0; long long bytes = 0; };
static std::map<unsigned long long*, Counted> fiber_barriers;
inline void count_bytes(unsigned long long* barrier, int arrivals, long long bytes) {
    Counted& own = fiber_barriers.at(barrier);
    own.arrivals -= arrivals, own.bytes += bytes;
    if (own.arrivals == 0 && own.bytes == 0) own.arrivals = 1, ++own.phase;
}
inline void barrier_init(unsigned long long& barrier, int) { fiber_barriers[&barrier] = {}; }
inline void fence_barrier_init() {}
inline void barrier_expect(unsigned long long& barrier, int bytes) { count_bytes(&barrier, 1, bytes); }
inline void barrier_wait(unsigned long long& barrier, unsigned parity) {
    while ((fiber_barriers.at(&barrier).phase & 1) == (int)parity) give_way();
}
template <class T> T* at_block(T* here, int rank) {
    return (T*)((char*)(*fiber_blocks)[rank].shared.data() + ((char*)here - (char*)fiber->block->shared.data()));
}
template <class T> void send_to(T* place, T value, unsigned long long& full, int rank) {
    T* there = at_block(place, rank);
    unsigned long long* counted = at_block(&full, rank);
    fiber_sent.push_back([=] { *there = value, count_bytes(counted, 0, -(int)sizeof(T)); });
}
static Block fiber_cluster;
inline void cluster_start() { meet(&fiber_cluster, fiber_blocks->size() * fiber->block->threads); }
inline void __syncwarp() { meet(fiber->warp, 32); }

static void run_fiber() {
    fiber_body();
    fiber->done = true;
    _longjmp(scheduler, 1);
}

// Runs all blocks at the same time; false if they do not come to an end, or write behind their shared memory.
inline bool launch(index_t grid, int threads, long long shared_bytes, unsigned seed, std::function<void()> body) {
    const double guard = 12345;
    const size_t words = (shared_bytes + 7) / 8;
    const int blocks = grid.x * grid.y * grid.z;
    std::vector<Block> all(blocks);
    std::vector<Warp> warps(blocks * threads / 32);
    std::vector<std::unique_ptr<Fiber>> fibers;
    fiber_grid = grid, fiber_body = body, fiber_blocks = &all, fiber_cluster = {}, fiber_draw.seed(seed);
    fiber_barriers.clear(), fiber_sent.clear();
    for (int b = 0; b < blocks; ++b) {
        all[b].threads = threads;
        all[b].shared.assign(words + 16, NAN);
        std::fill(all[b].shared.begin() + words, all[b].shared.end(), guard);
        for (int t = 0; t < threads; ++t) {
            fibers.emplace_back(new Fiber);
            Fiber& own = *fibers.back();
            own.stack.resize(1 << 16), own.thread = {t, 0, 0}, own.size = {threads, 1, 1};
            own.place = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
            own.block = &all[b], own.warp = &warps[(b * threads + t) / 32];
            getcontext(&own.context);
            own.context.uc_stack.ss_sp = own.stack.data(), own.context.uc_stack.ss_size = own.stack.size();
            own.context.uc_link = nullptr;
            makecontext(&own.context, run_fiber, 0);
        }
    }
    std::mt19937 draw(seed);
    size_t left = fibers.size();
    for (long long round = 0; left && round < 1000000; ++round) {
        const size_t start = draw() % fibers.size(), step = draw() % 2 ? 1 : fibers.size() - 1;
        for (size_t i = 0, at = start; i < fibers.size(); ++i, at = (at + step) % fibers.size()) {
            fiber = fibers[at].get();
            if (fiber->done) continue;
            go_on();
            left -= fiber->done;
        }
    }
    for (const Block& block : all)
        for (size_t i = words; i < block.shared.size(); ++i)
            if (block.shared[i] != guard) return false;
    return left == 0;
}
