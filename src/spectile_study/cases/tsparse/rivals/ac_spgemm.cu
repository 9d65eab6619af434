// AC-SpGEMM behind the interface of rival.h, in float32, with the settings of its GPUMatrixMatrixMultiplyTraits.
#include "rival.h"

#include <iostream>
#include <memory>
#include <new>
#include <string>

#include <source/device/Multiply.cu>

namespace {

// Arrays of the caller, which AC-SpGEMM's matrix would free.
struct Borrowed : dCSR<float> {
    ~Borrowed() {
        data = nullptr;
        row_offsets = col_ids = nullptr;
    }
};

}  // namespace

static void square(const Rival* a, Rival* c) {
    Borrowed left, product;
    left.rows = left.cols = a->rows;
    left.nnz = a->nnz;
    left.data = static_cast<float*>(const_cast<void*>(a->data));
    left.row_offsets = reinterpret_cast<unsigned*>(const_cast<int*>(a->indptr));
    left.col_ids = reinterpret_cast<unsigned*>(const_cast<int*>(a->indices));
    GPUMatrixMatrixMultiplyTraits traits;
    ExecutionStats stats;
    ACSpGEMM::MultiplyImplementation<float, 256, 3, 2, 4, 4, 16, 256, 8, false>(left, left, product, traits, stats);
    *c = {a->rows, int(product.nnz), reinterpret_cast<int*>(product.row_offsets),
          reinterpret_cast<int*>(product.col_ids), product.data};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
