// Stands for the header of that name among CUDA's samples.
#pragma once

#include <stdexcept>

inline void check_cuda(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
#define checkCudaErrors(call) check_cuda(call)
