// OpSparse behind the interface of rival.h, in float64.
#include "rival.h"

#define main opsparse_main
#include <src/opsparse.cu>
#undef main

static void square(const Rival* a, Rival* c) {
    CSR left, product;
    left.M = left.N = a->rows;
    left.nnz = a->nnz;
    left.d_rpt = const_cast<int*>(a->indptr);
    left.d_col = const_cast<int*>(a->indices);
    left.d_val = static_cast<double*>(const_cast<void*>(a->data));
    Meta meta;
    Timings timing;
    opsparse(left, left, product, meta, timing);
    *c = {product.M, product.nnz, product.d_rpt, product.d_col, product.d_val};
    left.d_rpt = left.d_col = product.d_rpt = product.d_col = nullptr;  // not this call's to free
    left.d_val = product.d_val = nullptr;
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(double); }
