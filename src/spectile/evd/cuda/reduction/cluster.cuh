// What the blocks of a cluster send to each other's shared memory (sm_90).
#include "ptx.cuh"

// All blocks have begun, and their barriers are there, which have a fence of their own.
__device__ __forceinline__ void cluster_start() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Write a number to the same place of block `rank`, whose barrier counts its bytes.
__device__ __forceinline__ void send_to(double* place, double value, unsigned long long& full, int rank) {
    asm volatile(
        "{\n.reg .b32 place, full;\nmapa.shared::cluster.u32 place, %0, %2;\nmapa.shared::cluster.u32 full, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [place], %3, [full];\n}" ::"r"(shared_address(place)),
        "r"(shared_address(&full)), "r"(rank), "d"(value)
        : "memory");
}
