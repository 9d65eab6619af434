// Stands for the header of that name, which CUDA 13 has no more, nor CUB's functors Min and Max.
#pragma once

#ifdef __CUDACC__
namespace cub {

struct Min {
    template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};

struct Max {
    template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};

}  // namespace cub
#endif
