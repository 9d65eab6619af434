// What a rival's library offers: the square of a CSR matrix on the device, its result in memory of cudaMalloc.
#pragma once

#include <cuda_runtime.h>

struct Rival {
    int rows, nnz;
    const int *indptr, *indices;
    const void* data;
};

// 0, or the number of a CUDA error, or -1.
extern "C" int rival_square(const Rival* a, Rival* c);
extern "C" int rival_value_bytes();

// What a C++ program calls, for one that catches no exceptions.
inline int rival_guarded(void (*square)(const Rival*, Rival*), const Rival* a, Rival* c) {
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
