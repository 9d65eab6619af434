"""The walk of the masked kernel along a row of A and a column of B, compiled for the host."""

import ctypes
from importlib.resources import files

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm

from ...on_host import host_library

SHIMS = """
#include <cmath>
#define __device__
#define __forceinline__ inline
using VALUE = double;
static inline VALUE add_product(VALUE a, VALUE b, VALUE sum) { return a * b + sum; }
"""
CALL = """
extern "C" int place(const int* idx, int at, int end, int wanted) { return place_from(idx, at, end, wanted); }
extern "C" void entries(int n, const int* row, const int* column, const int* ptr_a, const int* idx_a,
                        const VALUE* val_a, const int* ptr_t, const int* idx_t, const VALUE* val_t, VALUE* sums,
                        int* found) {
    for (int e = 0; e < n; ++e) {
        const int *in_a = ptr_a + row[e], *in_t = ptr_t + column[e];
        found[e] = entry_of(in_a[0], in_a[1], idx_a, val_a, in_t[0], in_t[1], idx_t, val_t, sums[e]);
    }
}
"""


@pytest.fixture(scope="module", params=["plus_times", "min_plus", "max_plus", "max_min"])
def compiled(request, tmp_path_factory):
    from spectile.tsparse.semirings import SEMIRINGS

    folder = files("spectile.tsparse.cuda")
    source = (folder / "masked.cu").read_text().replace('#include "shared.cuh"', "")
    source = source.partition('extern "C" __global__')[0]
    kind = f"#define KIND {SEMIRINGS[request.param].code}\n"
    stem = tmp_path_factory.mktemp("masked") / request.param
    return request.param, host_library(stem, SHIMS + kind + source + CALL, "-ffp-contract=off", f"-I{folder}")


def test_entries_are_those_of_the_cpu(compiled):
    name, library = compiled
    rng = np.random.default_rng(1)
    A = sp.random_array((40, 300), density=0.2, rng=rng, format="csr")
    B = sp.random_array((300, 50), density=0.02, rng=rng, format="csr")
    A.data, B.data = np.round(9 * A.data - 4), np.round(9 * B.data - 4)
    C, T = spgemm(A, B, semiring=name, backend="cpu"), B.tocsc()
    row, column = (np.ascontiguousarray(x.ravel(), np.int32) for x in np.mgrid[:40, :50])
    sums, found = np.empty(2000), np.empty(2000, np.int32)
    arrays = (row, column, A.indptr, A.indices, A.data, T.indptr, T.indices, T.data, sums, found)
    library.entries(2000, *(ctypes.c_void_p(x.ctypes.data) for x in arrays))
    known = C.tocoo()
    place = known.row * 50 + known.col
    np.testing.assert_array_equal(np.flatnonzero(found), place)
    np.testing.assert_array_equal(sums[place], known.data)


def test_places_are_found_near_and_far(compiled):
    _, library = compiled
    indices = np.cumsum(np.random.default_rng(2).integers(1, 9, 500)).astype(np.int32)
    for at in (0, 7, 498, 499):
        for end in (at + 1, min(at + 5, 500), 500):
            for wanted in range(int(indices[at]) + 1, int(indices[-1]) + 3, 7):
                expected = max(min(int(np.searchsorted(indices, wanted)), end), at + 1)
                assert library.place(ctypes.c_void_p(indices.ctypes.data), at, end, wanted) == expected
