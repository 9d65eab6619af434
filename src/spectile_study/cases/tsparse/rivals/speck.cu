// spECK behind the interface of rival.h, in float32.
#include "rival.h"

#include "Multiply.h"
#include "dCSR.h"
#include "spECKConfig.h"

#include <stdexcept>

namespace {

// Arrays of the caller, which spECK's matrix would free.
struct Borrowed : dCSR<float> {
    ~Borrowed() override {
        data = nullptr;
        row_offsets = col_ids = nullptr;
    }
};

}  // namespace

// Its settings for the device, with the shared memory that it is compiled for: it tells of every other amount.
static spECK::spECKConfig settings() {
    int device = 0;
    cudaGetDevice(&device);
    auto config = spECK::spECKConfig::initialize(device);
    if (config.maxDynamicSharedMemoryPerBlock < spECK_DYNAMIC_MEM_PER_BLOCK) throw std::runtime_error("shared memory");
    config.maxDynamicSharedMemoryPerBlock = spECK_DYNAMIC_MEM_PER_BLOCK;
    config.maxStaticSharedMemoryPerBlock = spECK_STATIC_MEM_PER_BLOCK;
    return config;
}

static void square(const Rival* a, Rival* c) {
    static auto config = settings();
    Borrowed left, product;
    left.rows = left.cols = a->rows;
    left.nnz = a->nnz;
    left.data = static_cast<float*>(const_cast<void*>(a->data));
    left.row_offsets = reinterpret_cast<unsigned*>(const_cast<int*>(a->indptr));
    left.col_ids = reinterpret_cast<unsigned*>(const_cast<int*>(a->indices));
    Timings timings;
    spECK::MultiplyspECK<float, 4, 1024, spECK_DYNAMIC_MEM_PER_BLOCK, spECK_STATIC_MEM_PER_BLOCK>(left, left, product,
                                                                                                   config, timings);
    *c = {a->rows, int(product.nnz), reinterpret_cast<int*>(product.row_offsets),
          reinterpret_cast<int*>(product.col_ids), product.data};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
