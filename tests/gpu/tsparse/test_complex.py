"""Complex products on the GPU: every way to gather a row, both precisions, patterns that are kept."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm, symbolic

from .test_spgemm import matrices

pytestmark = pytest.mark.gpu


def on_gpu(A):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (cupy.asarray(x) for x in (A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)))
    return csr_matrix(tuple(arrays), shape=A.shape)


def with_phases(A, dtype, rng):
    data = A.data * np.exp(2j * np.pi * rng.random(A.nnz))
    return sp.csr_array((data.astype(dtype), A.indices, A.indptr), shape=A.shape)


def check(C, A, B, precision=None):
    exact = spgemm(A, B, precision="float64", backend="cpu")
    C = C if sp.issparse(C) else C.get()
    np.testing.assert_array_equal(C.indptr, exact.indptr)
    np.testing.assert_array_equal(C.indices, exact.indices)
    bound = error_bound(A, B, precision=precision).data + error_bound(A, B, precision="float64").data
    assert (np.abs(C.data.astype(np.complex128) - exact.data) <= bound).all()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_every_way_to_gather_a_row(dtype):
    rng = np.random.default_rng(1)
    for name, A, B in matrices(rng):
        A, B = with_phases(A, dtype, rng), with_phases(B, dtype, rng)
        print(name)
        left, right = on_gpu(A), on_gpu(B)
        C = spgemm(left, right)
        assert C.dtype == dtype
        check(C, A, B)
        assert (spgemm(left, right).data == C.data).all()
        pattern = symbolic(left, right)
        for _ in range(2):  # by lists or by known columns
            values = pattern.numeric(left.data, right.data)
            np.testing.assert_array_equal(values.get(), C.data.get())
        np.testing.assert_array_equal(pattern.multiply(left, right).data.get(), C.data.get())


@pytest.mark.parametrize("types", [("f", "D"), ("d", "F"), ("F", "D"), ("i", "F")])
@pytest.mark.parametrize("precision", [None, "float64", "float32"])
def test_mixed_types_and_precisions_from_the_host(types, precision):
    rng = np.random.default_rng(2)
    A, B = (sp.random_array((300, 300), density=0.05, rng=rng, format="csr") for _ in range(2))
    A.data, B.data = (10 * A.data).astype(types[0]), (B.data * (1 + 2j)).astype(types[1])
    C = spgemm(A, B, precision=precision, backend="cuda")
    assert C.dtype == spgemm(A, B, precision=precision, backend="cpu").dtype
    check(C, A, B, precision)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_duplicates_are_summed_in_double_precision(form):
    zeros = np.zeros(2, int)
    A = sp.coo_array((np.array([1 + 1j, 3e-8j], np.complex64), (zeros, zeros)), shape=(1, 1))
    if form != "coo":
        A = getattr(sp, f"{form}_array")((A.data, zeros, np.array([0, 2])), shape=(1, 1))
    one = sp.csr_array(np.array([[1j]]))
    wanted = (1 + 1j + np.complex128(np.complex64(3e-8j))) * 1j
    assert abs(spgemm(A, one, precision="float64", backend="cuda").data[0] - wanted) < 1e-15


def test_chunks_and_what_is_not_finite():
    rng = np.random.default_rng(3)
    A = with_phases(sp.random_array((3000, 3000), density=0.003, rng=rng, format="csr"), np.complex128, rng)
    whole = spgemm(A, A, backend="cuda")
    np.testing.assert_array_equal(spgemm(A, A, memory_limit=3 * 10**6, backend="cuda").data, whole.data)
    A.data[5] = complex(0, np.nan)
    with pytest.raises(ValueError, match=r"A holds .*nan"):
        spgemm(A, A.copy(), backend="cuda")
    with pytest.raises(ValueError, match="complex ones have float64 and float32"):
        spgemm(A, A, precision="tf32", backend="cuda")
    A.data[5] = 1e200
    with pytest.raises(ValueError, match="beyond the range of float32"):
        spgemm(A, A, precision="float32", backend="cuda")
