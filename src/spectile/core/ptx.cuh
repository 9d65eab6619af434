// PTX that C++ has no words for, once for all systems: publication between blocks, asynchronous copies, barriers that
// count the bytes of a copy, the copy engine (TMA), matrix units, and what Hopper's warps tell the scheduler.
//
// A function compiles for every architecture while nobody calls it; the heading of each part names the first that has it.

// The shared memory of a block, of a size given at the launch, and of a fixed size.  Asynchronous copies take longer where
// it does not begin at a multiple of 128 bytes.
#define DYNAMIC_SHARED(Type, name)                                 \
    extern __shared__ __align__(128) unsigned char name##_bytes[]; \
    Type* name = reinterpret_cast<Type*>(name##_bytes)
#define STATIC_SHARED(Type, name) __shared__ Type name

__device__ __forceinline__ unsigned shared_address(const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

// Add x y where a number is below another, with a predicate: the compiler takes two selections instead.
__device__ __forceinline__ void add_where_below(double& sum, float number, float bound, double x, double y) {
    asm("{\n.reg .pred below;\nsetp.lt.f32 below, %1, %2;\n@below fma.rn.f64 %0, %3, %4, %0;\n}"
        : "+d"(sum)
        : "f"(number), "f"(bound), "d"(x), "d"(y));
}

__device__ __forceinline__ void add_where_below(double& sum, double number, double bound, double x, double y) {
    asm("{\n.reg .pred below;\nsetp.lt.f64 below, %1, %2;\n@below fma.rn.f64 %0, %3, %4, %0;\n}"
        : "+d"(sum)
        : "d"(number), "d"(bound), "d"(x), "d"(y));
}

// --- Publication between blocks that run at the same time (sm_70) ---------------------------------------------------

__device__ __forceinline__ int load_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ int load_relaxed(const int* from) {
    int value;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(int* to, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// The same between devices.
__device__ __forceinline__ int load_acquire_system(const int* from) {
    int value;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_system(int* to, int value) {
    asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void prefetch_l1(const void* from) { asm volatile("prefetch.global.L1 [%0];" ::"l"(from)); }

__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// --- Barriers of some warps of a block (sm_80): numbers 1 to 15 ------------------------------------------------------

__device__ __forceinline__ void sync_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// --- Copies of each thread to shared memory (sm_80) ------------------------------------------------------------------

// 16 bytes, of which `bytes` are read and the rest is zero.
__device__ __forceinline__ void copy_async(unsigned target, const void* source, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_async_16(unsigned target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// 4 or 8 bytes, of which `bytes` are read and the rest is zero.
template <int kBytes>
__device__ __forceinline__ void copy_async_of(unsigned target, const void* source, int bytes = kBytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(kBytes), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all but the last kLeft groups of this thread have arrived.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// --- Kernels that start before the one before them has ended (sm_90; nothing earlier) ---------------------------------

// What the kernel before wrote is there.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start as soon as this one leaves resources free; it waits itself for what it reads.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- Barriers in shared memory that count arrivals and the bytes of copies (sm_90) ------------------------------------

__device__ __forceinline__ void barrier_init(unsigned long long& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// After the last barrier_init of a thread: the copy engine and the blocks of the cluster see the barriers.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(unsigned long long& barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrive at the same barrier of a block of the cluster.  Without a scope: release at the cluster's would flush to the
// L2 every time, and so what the barrier guards must lie in shared memory.
__device__ __forceinline__ void barrier_arrive_at(unsigned long long& barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)),
        "r"(rank)
        : "memory");
}

// Arrive, and expect so many bytes of copies.
__device__ __forceinline__ void barrier_expect(unsigned long long& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

// Wait for what the copy engine, this block or (in shared memory, which no cache holds) another of the cluster wrote.
__device__ __forceinline__ void barrier_wait(unsigned long long& barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nwait:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\nbra wait;\nready:\n}" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
}

// The same with its loop written as one branch back: the compiler places the code that follows elsewhere, and which
// form is faster was measured kernel by kernel.
__device__ __forceinline__ void barrier_wait_back(unsigned long long& barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
}

// --- The copy engine (sm_90) -------------------------------------------------------------------------------------------

// As cuTensorMapEncodeTiled fills it in (core/tensor_map.py).
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copy contiguous bytes, a multiple of 16, to shared memory; `barrier` counts them.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes, unsigned long long& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

// Copy a box of a tensor to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void load_box(unsigned target, const TensorMap* map, int x, int y, int z, unsigned long long& barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
        : "memory");
}

// Copy a box to the same place in the first kBlocks blocks of the cluster; the barrier of each counts its bytes.
template <int kBlocks>
__device__ __forceinline__ void load_box_everywhere(unsigned target, const TensorMap* map, int x, int y, int z,
                                                    unsigned long long& barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(static_cast<unsigned short>((1 << kBlocks) - 1))
        : "memory");
}

// Copy a box from shared memory into a tensor, as part of this thread's group of stores.
__device__ __forceinline__ void store_box(const TensorMap* map, int x, int y, int z, unsigned source) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x), "r"(y), "r"(z),
                 "r"(source)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until shared memory is read for all but the last kLeft groups of stores.
template <int kLeft>
__device__ __forceinline__ void wait_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

// What this thread wrote to shared memory is there for the copy engine and for wgmma.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Warps of Hopper (sm_90a) --------------------------------------------------------------------------------------------

// One thread of a warp that has all of them here.  The compiler knows it for one, as it does not threadIdx.x % 32 == 0,
// and starts its copies without a loop over the threads that may want some.
__device__ __forceinline__ bool elected() {
    unsigned chosen;
    asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}" : "=r"(chosen));
    return chosen != 0;
}

// Registers of each thread of this warpgroup from here on: a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- Matrix units ----------------------------------------------------------------------------------------------------------
//
// Lane l = 4 g + t of a warp holds of C (16 x 8) the columns 2 t and 2 t + 1 of rows g and g + 8, in this order.

// C += A (16 x 16) B (16 x 8) in float16 (sm_80).
__device__ __forceinline__ void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C += A (16 x 8) B (8 x 8) in TF32 (sm_80): a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4]; b[t][g], b[t + 4][g].
__device__ __forceinline__ void mma_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C += A (16 x 4) B (4 x 8) in float64 (sm_80): a[g][t], a[g + 8][t]; b[t][g].
__device__ __forceinline__ void mma_f64(double (&c)[4], const double (&a)[2], const double (&b)[1]) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+d"(c[2 * e]), "+d"(c[2 * e + 1])
            : "d"(a[e]), "d"(b[0]));
}

// C += A (16 x 8) B (8 x 8) in float64, one instruction from sm_90 on: a[g][t + 4 j] in a[2 j] and a[g + 8][t + 4 j] in
// a[2 j + 1], b[t + 4 j][g] in b[j].
__device__ __forceinline__ void mma_f64(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const double part_a[2] = {a[2 * j], a[2 * j + 1]}, part_b[1] = {b[j]};
        mma_f64(c, part_a, part_b);
    }
#endif
}

// C += A (16 x 16) B (16 x 8) in float64, likewise.
__device__ __forceinline__ void mma_f64(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
        "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]),
          "d"(b[3]));
#else
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const double part_a[2] = {a[2 * j], a[2 * j + 1]}, part_b[1] = {b[j]};
        mma_f64(c, part_a, part_b);
    }
#endif
}

// The asynchronous unit of a warpgroup (sm_90a).  Operands in shared memory are named by descriptors: strides in bytes,
// swizzle 1 = 128 bytes, 2 = 64 bytes.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned address, unsigned leading, unsigned stride,
                                                               unsigned long long swizzle) {
    return static_cast<unsigned long long>((address & 0x3ffff) >> 4) | static_cast<unsigned long long>(leading >> 4) << 16 |
           static_cast<unsigned long long>(stride >> 4) << 32 | swizzle << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
