// Types and launch parameters of the products that run on every architecture.
#include "cancelled.cuh"
#include "norms.cuh"

#if OUTPUT_BITS == 16
using Output = __half;
#else
using Output = Accumulator;
#endif

struct Product {
    const Element* a;
    const Element* b;
    const Output* c;
    Output* out;
    const Norm* norms_a;       // [row block][k block]
    const Norm* norms_b;       // [column block][k block]
    const double* tau_device;  // one threshold a batch item, or null: use tau
    double tau, alpha, beta;
    long long lda, ldb, ldc, ldo;
    long long stride_a, stride_b, stride_c, stride_o, stride_norms_a, stride_norms_b;
    int m, n, k;
    int norm_k;  // k blocks in the norm maps
    int log2_block;
    int tiles_m, tiles_n;
    const unsigned* cancelled;  // not zero where the dense product is taken instead, or null
    Accumulator* parts;         // sums of the blocks that share a tile of C
};
