// bhSPARSE behind the interface of rival.h, in float32.
#include "rival.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <vector>

static std::ostream quiet(nullptr);  // it tells of every stage
#define cout quiet

// All threads of a warp take part wherever bhSPARSE shuffles: its blocks are whole warps, its conditions a warp's.
#define __shfl_up(value, lanes) __shfl_up_sync(0xFFFFFFFFu, value, lanes)

#include <bhsparse.h>

namespace {

template <class T> T* device(size_t count) {
    void* memory = nullptr;
    checkCudaErrors(cudaMalloc(&memory, count * sizeof(T)));
    checkCudaErrors(cudaMemset(memory, 0, count * sizeof(T)));
    return static_cast<T*>(memory);
}

// What initData sets, on matrices that are on the device already; C's arrays are not freed with it.
struct Run : bhsparse {
    std::vector<int> offsets, products, counter, counter_one, counter_sum, queue;
    bhsparse_cuda on_device{};

    explicit Run(const Rival& a)
        : offsets(a.rows + 1), products(a.rows + 1), counter(NUM_SEGMENTS), counter_one(NUM_SEGMENTS + 1),
          counter_sum(NUM_SEGMENTS + 1), queue(size_t(TUPLE_QUEUE) * a.rows) {
        auto values = static_cast<float*>(const_cast<void*>(a.data));
        auto indptr = const_cast<int*>(a.indptr), indices = const_cast<int*>(a.indices);
        auto& gpu = on_device;
        gpu._profiling = false;
        gpu._m = gpu._k = gpu._n = _m = _k = _n = a.rows;
        gpu._nnzA = gpu._nnzB = a.nnz;
        gpu._nnzC = gpu._nnzCt = 0;
        gpu._d_csrValA = gpu._d_csrValB = values;
        gpu._d_csrRowPtrA = gpu._d_csrRowPtrB = indptr;
        gpu._d_csrColIndA = gpu._d_csrColIndB = indices;
        gpu._d_csrColIndCt = nullptr, gpu._d_csrValCt = nullptr;
        gpu._h_csrRowPtrC = offsets.data();
        gpu._h_csrRowPtrCt = _h_csrRowPtrCt = products.data();
        gpu._h_queue_one = _h_queue_one = queue.data();
        _h_counter = counter.data(), _h_counter_one = counter_one.data(), _h_counter_sum = counter_sum.data();
        _bh_sparse_cuda = &gpu;
        gpu._d_csrRowPtrC = device<int>(a.rows + 1);
        gpu._d_csrRowPtrCt = device<int>(a.rows + 1);
        gpu._d_queue_one = device<int>(queue.size());
    }

    ~Run() {
        for (void* each : {(void*)on_device._d_csrRowPtrCt, (void*)on_device._d_csrColIndCt,
                           (void*)on_device._d_csrValCt, (void*)on_device._d_queue_one})
            cudaFree(each);
    }
};

}  // namespace

static void square(const Rival* a, Rival* c) {
    Run run(*a);
    if (run.spgemm_cuda() != BHSPARSE_SUCCESS) throw std::runtime_error("bhSPARSE failed");
    auto& gpu = run.on_device;
    *c = {a->rows, gpu._nnzC, gpu._d_csrRowPtrC, gpu._d_csrColIndC, gpu._d_csrValC};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
