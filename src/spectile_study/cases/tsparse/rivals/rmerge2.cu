// RMerge2 behind the interface of rival.h, in float32.
#include "rival.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>

// Parts of a warp merge rows of different lengths, each part on its own: the threads of a part shuffle among themselves.
template <int SIZE> __device__ unsigned part_of_warp() {
    const unsigned lane = (threadIdx.x + threadIdx.y * blockDim.x) % 32;
    return SIZE == 32 ? 0xFFFFFFFFu : ((1u << SIZE % 32) - 1) << (lane - lane % SIZE);
}
#define __shfl_xor(value, lanes) __shfl_xor_sync(part_of_warp<WarpSize>(), value, lanes)

#define IGNORE_MKL
#define INSTANTIATE_0  // its functions that are no templates are defined here
#include <DeviceMatrix/SpmmWarp.h>
#include <DeviceMatrix/SpmmWarpN.h>
#include <DeviceMatrix/SpmmWarpNSorted.h>

static void square(const Rival* a, Rival* c) {
    const TrackedObject borrowed;
    auto values = static_cast<float*>(const_cast<void*>(a->data));
    auto indices = reinterpret_cast<unsigned*>(const_cast<int*>(a->indices));
    auto indptr = reinterpret_cast<unsigned*>(const_cast<int*>(a->indptr));
    SparseDeviceMatrixCSR<float> left(a->rows, a->rows, DeviceVector<float>(borrowed, values, a->nnz),
                                      DeviceVector<unsigned>(borrowed, indices, a->nnz),
                                      DeviceVector<unsigned>(borrowed, indptr, a->rows + 1));
    // Never deleted, since it would free its arrays: rival_release does.
    auto& product = *new SparseDeviceMatrixCSR<float>(MulRMerge2(left, left));
    *c = {a->rows, int(product.NonZeroCount()), reinterpret_cast<int*>(product.RowStarts().Data()),
          reinterpret_cast<int*>(product.ColIndices().Data()), product.Values().Data()};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
