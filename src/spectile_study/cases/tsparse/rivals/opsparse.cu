// OpSparse behind the interface of rival.h, in float64.
#include "rival.h"

#define main opsparse_main
#include <src/opsparse.cu>
#undef main

namespace {

// Never destroyed: that would free arrays of the caller, and throw where it cannot.
union Borrowed {
    CSR matrix;
    Borrowed() : matrix() {}
    ~Borrowed() {}
};

}  // namespace

static void square(const Rival* a, Rival* c) {
    Borrowed left, product;
    left.matrix.M = left.matrix.N = a->rows;
    left.matrix.nnz = a->nnz;
    left.matrix.d_rpt = const_cast<int*>(a->indptr);
    left.matrix.d_col = const_cast<int*>(a->indices);
    left.matrix.d_val = static_cast<double*>(const_cast<void*>(a->data));
    Meta meta;
    Timings timing;
    opsparse(left.matrix, left.matrix, product.matrix, meta, timing);
    *c = {product.matrix.M, product.matrix.nnz, product.matrix.d_rpt, product.matrix.d_col, product.matrix.d_val};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(double); }
