"""Formats of products on the GPU: the entries of the CPU, in CuPy's matrices and arrays, or a sentence."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import row_blocks, spgemm, spmm

from .test_semirings import factors, on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dense"])
@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_products_in_the_format_asked_for(form, kind):
    import cupy

    A, B = (x.astype(kind) for x in factors("random"))
    known = spgemm(A, B, backend="cpu").toarray()
    C = spgemm(on_gpu(A), on_gpu(B), format=form)
    assert isinstance(C, cupy.ndarray) if form == "dense" else C.format == form
    np.testing.assert_allclose((C if form == "dense" else C.toarray()).get(), known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dense"])
def test_factors_of_the_host(form):
    A, B = factors("random")
    C = spgemm(A, B, format=form, backend="cuda")
    assert isinstance(C, np.ndarray) if form == "dense" else sp.issparse(C) and C.format == form
    np.testing.assert_allclose(C if form == "dense" else C.toarray(), (A @ B).toarray(), rtol=1e-12, atol=1e-13)


def test_the_identity_of_a_semiring_is_missing_in_a_dense_product():
    A, B = factors("random")
    C, dense = (spgemm(A, B, semiring="min_plus", format=form, backend="cpu") for form in ("csr", "dense"))
    found = spgemm(on_gpu(A), on_gpu(B), semiring="min_plus", format="dense").get()
    np.testing.assert_array_equal(np.isinf(found), np.isinf(dense))
    np.testing.assert_allclose(found[np.isfinite(found)], dense[np.isfinite(dense)], rtol=1e-13)
    assert np.isfinite(found).sum() == C.nnz


@pytest.mark.parametrize("kind", ["f8", "c16"])
def test_a_matrix_and_its_transpose(kind):
    A, _ = factors("random")
    A = A.astype(kind) * (1 + 2j if kind == "c16" else 1)
    C = spgemm(on_gpu(A), on_gpu(A).T)
    np.testing.assert_allclose(C.toarray().get(), (A @ A.T).toarray(), rtol=1e-12, atol=1e-12)


def test_what_is_made_on_the_host_alone_is_refused():
    A, B = (on_gpu(x) for x in factors("random"))
    with pytest.raises(ValueError, match='format = "bsr" is of SciPy'):
        spgemm(A, B, format="bsr")
    with pytest.raises(TypeError, match="blocks of rows are made on the host"):
        row_blocks(A, B)
    with pytest.raises(TypeError, match="spmm is computed on the host"):
        spmm(A, np.ones(A.shape[1]))
