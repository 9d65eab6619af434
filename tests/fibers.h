// Blocks of a kernel whose threads wait for each other, on one thread of the host: a fiber for each, which goes on to the
// next where it waits, in an order that is drawn anew in each round.  `parts` of shared memory begin as NaN.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

using std::fma;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define DYNAMIC_SHARED(Type, name) Type* name = (Type*)fiber->block->shared.data()
#define threadIdx (fiber->thread)
#define blockIdx (fiber->place)
#define gridDim fiber_grid

struct index_t { int x, y, z; };
struct Block {
    std::vector<double> shared;
    int arrived = 0, turn = 0, threads = 0, any[2] = {0, 0};
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
    index_t thread, place;
    Block* block;
    Warp* warp;
    bool done = false;
};
static Fiber* fiber;
static jmp_buf scheduler;
static index_t fiber_grid;
static std::function<void()> fiber_body;

inline void give_way() {
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

// A number that carries its flag.
struct uint4 { double value; unsigned flag; };
inline void store_flagged(uint4* p, double value, unsigned flag) { *p = {value, flag}; }
inline bool try_flagged(const uint4* p, unsigned flag, double& value) {
    if (p->flag != flag) give_way();
    value = p->value;
    return p->flag == flag;
}

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
    fiber_grid = grid, fiber_body = body;
    for (int b = 0; b < blocks; ++b) {
        all[b].threads = threads;
        all[b].shared.assign(words + 16, NAN);
        std::fill(all[b].shared.begin() + words, all[b].shared.end(), guard);
        for (int t = 0; t < threads; ++t) {
            fibers.emplace_back(new Fiber);
            Fiber& own = *fibers.back();
            own.stack.resize(1 << 16), own.thread = {t, 0, 0}, own.place = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
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
