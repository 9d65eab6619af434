// What a rival's library offers: the square of a CSR matrix on the device, its result in memory of cudaMalloc.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

struct Rival {
    int rows, nnz;
    const int *indptr, *indices;
    const void* data;
};

// 0, or the number of a CUDA error, or -1.
extern "C" int rival_square(const Rival* a, Rival* c);
extern "C" int rival_value_bytes();

// Device memory of the library: the linker sends the calls of all its sources here (--wrap of build.py).
struct RivalMemory {
    std::mutex guard;
    std::unordered_map<void*, size_t> sizes;
    size_t now = 0, before = 0, most = 0;  // at present, before the last call, and at a time during it
};

inline RivalMemory& rival_memory() {
    static auto& memory = *new RivalMemory;  // never deleted: static variables may free as the process ends
    return memory;
}

extern "C" cudaError_t __real_cudaMalloc(void** address, size_t size);
extern "C" cudaError_t __real_cudaFree(void* address);

extern "C" __attribute__((visibility("hidden"))) cudaError_t __wrap_cudaMalloc(void** address, size_t size) {
    const cudaError_t status = __real_cudaMalloc(address, size);
    if (status == cudaSuccess && *address) {
        auto& memory = rival_memory();
        const std::lock_guard<std::mutex> lock(memory.guard);
        memory.now += memory.sizes[*address] = (size + 511) / 512 * 512;  // as CuPy's pool counts
        memory.most = std::max(memory.most, memory.now);
    }
    return status;
}

extern "C" __attribute__((visibility("hidden"))) cudaError_t __wrap_cudaFree(void* address) {
    {
        auto& memory = rival_memory();
        const std::lock_guard<std::mutex> lock(memory.guard);
        const auto found = memory.sizes.find(address);
        if (found != memory.sizes.end()) {
            memory.now -= found->second;
            memory.sizes.erase(found);
        }
    }
    return __real_cudaFree(address);
}

// The most memory that the last call held at a time, its result included, beside what the library held before it.
extern "C" inline __attribute__((used, visibility("default"))) long long rival_most_bytes() {
    return (long long)(rival_memory().most - rival_memory().before);
}

// What a C++ program calls, for one that catches no exceptions.
inline int rival_guarded(void (*square)(const Rival*, Rival*), const Rival* a, Rival* c) {
    auto& memory = rival_memory();
    memory.most = memory.before = memory.now;
    try {
        cudaGetLastError();  // an earlier call's
        square(a, c);
        const cudaError_t launched = cudaGetLastError(), ended = cudaDeviceSynchronize();
        return launched ? launched : ended;
    } catch (...) {
        return -1;
    }
}

extern "C" inline __attribute__((used, visibility("default"))) void rival_release(Rival* c) {
    cudaFree(const_cast<int*>(c->indptr));
    cudaFree(const_cast<int*>(c->indices));
    cudaFree(const_cast<void*>(c->data));
}
