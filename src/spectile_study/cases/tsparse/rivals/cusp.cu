// CUSP behind the interface of rival.h, in float32.
#include "rival.h"

#include <thrust/iterator/detail/minimum_system.h>
#include <thrust/version.h>

#if THRUST_VERSION < 300100  // CUDA 13.0 has the type, and not its short name
THRUST_NAMESPACE_BEGIN
namespace detail {
template <class... Systems> using minimum_system_t = typename minimum_system<Systems...>::type;
}
THRUST_NAMESPACE_END
#endif

#include <cusp/csr_matrix.h>
#include <cusp/multiply.h>

static void square(const Rival* a, Rival* c) {
    const auto view = [](const auto* first, size_t count) {
        return cusp::make_array1d_view(thrust::device_pointer_cast(first), thrust::device_pointer_cast(first) + count);
    };
    const auto left = cusp::make_csr_matrix_view(a->rows, a->rows, a->nnz, view(a->indptr, a->rows + 1),
                                                 view(a->indices, a->nnz),
                                                 view(static_cast<const float*>(a->data), a->nnz));
    // Never deleted, since it would free its arrays: rival_release does.
    auto& product = *new cusp::csr_matrix<int, float, cusp::device_memory>;
    cusp::multiply(left, left, product);
    *c = {a->rows, int(product.num_entries), thrust::raw_pointer_cast(product.row_offsets.data()),
          thrust::raw_pointer_cast(product.column_indices.data()), thrust::raw_pointer_cast(product.values.data())};
}

extern "C" int rival_square(const Rival* a, Rival* c) { return rival_guarded(square, a, c); }

extern "C" int rival_value_bytes() { return sizeof(float); }
