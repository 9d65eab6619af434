"""Formats of products on the GPU: the entries of the CPU, in CuPy's matrices and arrays, or a sentence."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spgemm, spmm
from spectile.tsparse.cuda import turn

from .test_factors import on_gpu as in_any_format
from .test_semirings import factors, on_gpu
from .test_spgemm import random

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dense"])
@pytest.mark.parametrize("kind", ["f8", "f4", "F", "?"])
def test_products_in_the_format_asked_for(form, kind):
    import cupy

    A, B = (x.astype(kind) for x in factors("random"))
    known = spgemm(A, B, backend="cpu").toarray()
    C = spgemm(on_gpu(A), on_gpu(B), format=form)
    assert isinstance(C, cupy.ndarray) if form == "dense" else C.format == form
    assert C.dtype == np.dtype(kind) and C.shape == known.shape
    if form == "csc":
        by_columns = sp.csc_array(known)
        np.testing.assert_array_equal(C.indices.get(), by_columns.indices)
        np.testing.assert_array_equal(C.indptr.get(), by_columns.indptr)
    found = C.get() if form == "dense" else C.get().toarray()
    np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-5)


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


def wide(kind, rng):
    """Return a matrix whose product with its transpose is mirrored: many products for each entry, and a long row."""
    A = random(1500, 400, 0.06, rng).tolil()
    A[7] = 1.5
    A = sp.csr_array(A)
    return A.astype(kind) * (1 + 2j if np.dtype(kind).kind == "c" else 1)


@pytest.mark.parametrize("longest", [2048, 256, 100])
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("kind", ["f4", "f8", "F", "D"])
def test_half_of_a_product_with_the_transpose(kind, where, longest, monkeypatch):
    """The bits of the whole product, whether the other factor is turned or made anew."""
    monkeypatch.setattr(turn, "_LONGEST", longest)
    monkeypatch.setattr(turn, "_WORTH_MIRRORING", 0)
    monkeypatch.setattr(turn, "_WORTH_AN_ENTRY", 0)
    mirrored, real = [], turn._mirrored
    monkeypatch.setattr(turn, "_mirrored", lambda *arrays: mirrored.append(1) or real(*arrays))
    A = wide(kind, np.random.default_rng(1))
    for name, other in (("transpose", lambda x: x.T), ("adjoint", lambda x: x.conj().T)):
        X = A if where == "host" else on_gpu(A)
        for first in (True, False):
            del mirrored[:]
            pair = (X, other(X)) if first else (other(X), X)
            C = spgemm(*pair, backend="cuda")
            assert len(mirrored) == 1
            left, right = (sp.csr_array(x if sp.issparse(x) else x.tocsr().get()) for x in pair)
            whole = spgemm(left, right, backend="cuda")
            for attribute in ("indptr", "indices", "data"):
                found = getattr(C, attribute)
                np.testing.assert_array_equal(found if where == "host" else found.get(), getattr(whole, attribute))
            if name == "adjoint":
                np.testing.assert_array_equal(whole.toarray(), whole.toarray().conj().T)


@pytest.mark.parametrize("rows", [3000, 300])
def test_what_is_not_worth_mirroring_is_made_whole(rows, monkeypatch):
    """Few products for each entry of C, or few in all."""
    monkeypatch.setattr(turn, "_mirrored", None)
    A = on_gpu(random(rows, 30_000, 0.01, np.random.default_rng(4)))
    C = spgemm(A, A.T)
    np.testing.assert_allclose(C.toarray().get(), (A @ A.T).toarray().get(), rtol=1e-12, atol=1e-12)


def test_a_factor_that_is_out_of_order_and_its_transpose():
    A = random(300, 200, 0.2, np.random.default_rng(2))
    data, indices = np.append(A.data, 0.5), np.append(A.indices, A.indices[-1])
    indptr = A.indptr.copy()
    indptr[-1] += 1
    for row in range(300):
        part = slice(indptr[row], indptr[row + 1])
        data[part], indices[part] = data[part][::-1].copy(), indices[part][::-1].copy()
    B = sp.csr_array((data, indices, indptr), shape=A.shape)
    G = on_gpu(B)
    for pair, exact in (((G, G.T), B @ B.T), ((G.T, G), B.T @ B)):
        np.testing.assert_allclose(spgemm(*pair).toarray().get(), exact.toarray(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("columns", [None, 1, 3, 20, 64, 100])
@pytest.mark.parametrize("kinds", ["dd", "ff", "df", "DD", "FF", "fD", "?f"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_a_matrix_times_dense_vectors(form, kinds, columns):
    import cupy

    rng = np.random.default_rng(3)
    A = random(700, 9000, 0.0003, rng).tolil()
    A[5] = 0.5  # a long row; many are empty
    A = sp.csr_array(A).astype(kinds[0])
    X = rng.standard_normal((9000,) if columns is None else (9000, columns)).astype(kinds[1])
    given = in_any_format(A.asformat(form))
    C = spmm(given, cupy.asarray(X))
    assert C.dtype == np.result_type(A.dtype, X.dtype) and isinstance(C, cupy.ndarray)
    wide = np.result_type(C.dtype, np.float64)
    exact, size = A.astype(wide) @ X.astype(wide), abs(A.astype(wide)) @ abs(X.astype(wide))
    bound = 4 * 9000 * np.finfo(C.dtype).eps * size
    assert (abs(C.get() - exact) <= bound).all()
    np.testing.assert_array_equal(spmm(given, cupy.asarray(X)).get(), C.get())
    if columns == 20:
        np.testing.assert_array_equal(spmm(given, cupy.asfortranarray(cupy.asarray(X))).get(), C.get())


def test_dense_vectors_that_do_not_belong_to_the_matrix():
    import cupy

    A = on_gpu(factors("random")[0])
    with pytest.raises(TypeError, match="not an array of CuPy"):
        spmm(A, np.ones(A.shape[1]))
    with pytest.raises(ValueError, match="columns of A must be the rows of X"):
        spmm(A, cupy.ones(A.shape[1] + 1))
    X = cupy.ones(A.shape[1])
    X[3] = cupy.nan
    with pytest.raises(ValueError, match="X holds entries that are NaN"):
        spmm(A, X)
    assert cupy.isnan(spmm(A, X, check_finite=False)).any()


@pytest.mark.parametrize("kind", ["f4", "f8", "F", "D"])
def test_a_dense_product_has_the_bits_of_the_sparse_one(kind):
    A, B = (on_gpu(x.astype(kind)) for x in factors("hub"))
    np.testing.assert_array_equal(spgemm(A, B, format="dense").get(), spgemm(A, B).toarray().get())
    for m, k, n in ((0, 4, 3), (4, 0, 3), (4, 3, 0), (4, 3, 2)):
        C = spgemm(on_gpu(sp.csr_array((m, k))), on_gpu(sp.csr_array((k, n))), format="dense")
        assert C.shape == (m, n) and not C.any()


def test_what_is_made_on_the_host_alone_is_refused():
    A, B = (on_gpu(x) for x in factors("random"))
    with pytest.raises(ValueError, match='format = "bsr" is of SciPy'):
        spgemm(A, B, format="bsr")
