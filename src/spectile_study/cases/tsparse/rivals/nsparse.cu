// Nsparse behind the interface of rival.h, in float32.
#include "rival.h"

// Before Nsparse, whose macro "warp" changes what they say.
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/scan.h>
#include <thrust/sort.h>

#include <ctime>

#include <helper_cuda.h>

#include <nsparse.hpp>
#include <CSR.hpp>
#include <HashSpGEMM_volta.hpp>

static void square(const Rival* a, Rival* c) {
    CSR<int, float> left, product;
    left.nrow = left.ncolumn = a->rows;
    left.nnz = a->nnz;
    left.d_rpt = const_cast<int*>(a->indptr);
    left.d_colids = const_cast<int*>(a->indices);
    left.d_values = static_cast<float*>(const_cast<void*>(a->data));
    SpGEMM_Hash<true>(left, left, product);
    *c = {product.nrow, product.nnz, product.d_rpt, product.d_colids, product.d_values};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
