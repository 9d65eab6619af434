#pragma once
// As much of CUDA and of core/ptx.cuh as the searches and the norm map need, on one thread of the host: each CUDA thread has a stack of its
// own and gives way to the others where it waits for them.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

using std::isinf;
using std::isnan;
using std::max;
using std::min;
#define __device__
#define __global__
#define __noinline__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct HostIndex {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
static HostIndex threadIdx, blockIdx, gridDim;

struct HostWarp {
  unsigned long long value[2][32];
  int arrived = 0, turn = 0;
};
struct HostBlock {
  int arrived = 0, turn = 0, count = 0, counted = 0;
  std::vector<HostWarp> warps;
  std::vector<unsigned char> memory, dynamic;
};
struct HostThread {
  jmp_buf place;
  unsigned number, block;
  bool begun = false, done = false;
  int waits = 0, turn = 0, slot = 0;  // for nobody, its block or its warp
};
static std::vector<HostThread> threads;
static std::vector<HostBlock> blocks;
static std::vector<std::unique_ptr<char[]>> stacks;  // kept from launch to launch
static jmp_buf scheduler;
static size_t current;
static unsigned per_block;

static HostThread& self() { return threads[current]; }
static HostBlock& own_block() { return blocks[self().block]; }
static HostWarp& own_warp() { return own_block().warps[self().number / 32]; }
static void give_way(int waits, int turn) {
  self().waits = waits, self().turn = turn;
  if (!_setjmp(self().place)) _longjmp(scheduler, 1);
}

static void __syncthreads() {
  HostBlock& block = own_block();
  const int turn = block.turn;
  if (++block.arrived == static_cast<int>(per_block)) {
    block.arrived = 0, block.counted = block.count, block.count = 0, ++block.turn;
    return;
  }
  while (own_block().turn == turn) give_way(1, turn);
}
static int __syncthreads_count(int predicate) {
  own_block().count += predicate != 0;
  __syncthreads();
  const int counted = own_block().counted;
  __syncthreads();
  return counted;
}
static void __syncwarp() {
  HostWarp& warp = own_warp();
  const int turn = warp.turn;
  if (++warp.arrived == 32) {
    warp.arrived = 0, ++warp.turn;
    return;
  }
  while (own_warp().turn == turn) give_way(2, turn);
}
static const unsigned long long* of_all_lanes(unsigned long long value) {
  const int slot = self().slot ^= 1;
  own_warp().value[slot][self().number % 32] = value;
  __syncwarp();
  return own_warp().value[slot];
}
template <typename T>
T from_lane(T value, unsigned lane) {
  unsigned long long word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = of_all_lanes(word)[lane];
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return from_lane(value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return from_lane(value, self().number % 32 ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int offset) {
  const int lane = self().number % 32;
  return from_lane(value, lane >= offset ? lane - offset : lane);
}
static unsigned __ballot_sync(unsigned, int predicate) {
  const unsigned long long* all = of_all_lanes(predicate != 0);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}

static int __clz(int x) { return __builtin_clz(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __ffs(int x) { return __builtin_ffs(x); }
static unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned long long>(x) * y >> 32; }
template <typename T, typename U>
T atomicAdd(T* to, U value) {
  const T old = *to;
  *to = old + static_cast<T>(value);
  return old;
}
static int atomicExch(int* to, int value) { return std::exchange(*to, value); }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
static void __threadfence() {}
template <typename To, typename From>
To bits_as(From x) {
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
static float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static double __longlong_as_double(long long x) { return bits_as<double>(x); }
static long long __double_as_longlong(double x) { return bits_as<long long>(x); }

// Of core/ptx.cuh.
#define DYNAMIC_SHARED(Type, name) Type* name = reinterpret_cast<Type*>(own_block().dynamic.data())
#define STATIC_SHARED(Type, name) Type& name = *reinterpret_cast<Type*>(own_block().memory.data())
template <typename T>
void add_where_below(double& sum, T number, T bound, double x, double y) {
  if (number < bound) sum += x * y;
}
static uintptr_t shared_address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
static int load_acquire(const int* from) {
  give_way(0, 0);
  return *static_cast<const volatile int*>(from);
}
static void copy_async(uintptr_t target, const void* source, int bytes) {
  std::memset(reinterpret_cast<void*>(target), 0, 16);
  std::memcpy(reinterpret_cast<void*>(target), source, bytes);
}
template <int kBytes>
void copy_async_of(uintptr_t target, const void* source, int bytes) {
  std::memset(reinterpret_cast<void*>(target), 0, kBytes);
  std::memcpy(reinterpret_cast<void*>(target), source, bytes);
}
static void commit_copies() {}
template <int kLeft>
void wait_copies() {}
static void launch_dependents() {}
static void wait_for_previous() {}

// Run a kernel; whether every thread came to its end.  A context is made where a thread begins; from then on jumps, which
// ask nothing of the system, lead from stack to stack.
template <typename Kernel>
bool launch(Kernel kernel, unsigned grid, unsigned count, size_t shared_bytes) {
  static Kernel* running;
  running = &kernel;
  gridDim.x = grid, per_block = count;
  blocks.assign(grid, HostBlock());
  for (HostBlock& block : blocks) {
    block.warps.resize(count / 32);
    block.memory.assign(1 << 16, 0xff), block.dynamic.assign(shared_bytes, 0xff);
  }
  constexpr size_t kStack = 1 << 15;
  threads.assign(static_cast<size_t>(grid) * count, HostThread());
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].number = i % count, threads[i].block = i / count;
    if (i == stacks.size()) stacks.emplace_back(new char[kStack]);
  }
  for (size_t left = threads.size(); left > 0;) {
    bool any = false;
    for (current = 0; current < threads.size(); ++current) {
      HostThread& thread = self();
      if (thread.done || (thread.waits == 1 && own_block().turn == thread.turn) ||
          (thread.waits == 2 && own_warp().turn == thread.turn))
        continue;
      threadIdx.x = thread.number, blockIdx.x = thread.block, any = true;
      if (!_setjmp(scheduler)) {
        if (thread.begun) _longjmp(thread.place, 1);
        thread.begun = true;
        ucontext_t first;
        getcontext(&first);
        first.uc_stack.ss_sp = stacks[current].get(), first.uc_stack.ss_size = kStack;
        makecontext(
            &first,
            +[] {
              (*running)();
              self().done = true;
              give_way(0, 0);
            },
            0);
        setcontext(&first);
      }
      left -= self().done;
    }
    if (!any) return false;
  }
  return true;
}
