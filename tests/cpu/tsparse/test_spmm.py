"""Sparse times dense: every format and layout, both ways of CSC, and what is refused."""

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import spmm
from spectile.tsparse.cpu import dense, threads


def random(m, n, seed=1, dtype=np.float64):
    A = sp.random_array((m, n), density=0.15, rng=np.random.default_rng(seed), format="csr")
    return sp.csr_array(((A.data - 0.5).astype(dtype), A.indices, A.indptr), shape=A.shape)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil"])
@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3), (40, 32), (40, 0)])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_every_format_and_layout(form, shape, order):
    A, X = random(30, 40).asformat(form), np.random.default_rng(2).standard_normal(shape)
    X = np.repeat(X, 2, axis=0)[::2] if order == "strided" else np.array(X, order=order)
    X.setflags(write=False)
    before = X.copy()
    C = spmm(A, X)
    assert C.shape == (30, *shape[1:]) and C.dtype == np.float64
    np.testing.assert_allclose(C, A.toarray() @ X, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("strip", [1, 10**6])
@pytest.mark.parametrize("turn", [-1, 10**6])
def test_columns_of_a_matrix_scatter_or_are_turned(strip, turn, monkeypatch):
    monkeypatch.setattr(dense, "_STRIP", strip)
    monkeypatch.setattr(dense, "_TURN", turn)
    monkeypatch.setattr(dense, "num_threads", lambda: 3)
    monkeypatch.setattr(threads, "WORTH_A_PIECE", 50)
    A, X = random(50, 30), np.random.default_rng(3).standard_normal((50, 9))
    np.testing.assert_allclose(spmm(A.T, X), A.T.toarray() @ X, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("left", "right"), [("f4", "f4"), ("f4", "f8"), ("i4", "f4"), ("c16", "f8"), ("f8", "c8")])
def test_types(left, right):
    A, X = random(30, 40), np.random.default_rng(4).standard_normal((40, 5)).astype(right)
    A.data = np.round(8 * A.data) * (1 + 1j if left == "c16" else 1)
    A = sp.csr_array((A.data.astype(left), A.indices, A.indptr), shape=A.shape)
    for matrix in (A, A.tocsc()):
        C = spmm(matrix, X)
        assert C.dtype == np.result_type(left, right)
        np.testing.assert_allclose(C, A.toarray() @ X, rtol=1e-5 if C.dtype.char in "fF" else 1e-12, atol=1e-5)


def test_duplicates_and_threads():
    twice = sp.csr_array((np.ones(4), np.array([1, 1, 0, 2]), np.array([0, 2, 4])), shape=(2, 3))
    assert spmm(twice, np.array([1.0, 2.0, 3.0])).tolist() == [4.0, 4.0]
    A, X = random(400, 300), np.random.default_rng(5).standard_normal((300, 20))
    before, results = numba.get_num_threads(), []
    try:
        for count in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(count)
            results += [spmm(A, X), spmm(A, X)]
    finally:
        numba.set_num_threads(before)
    for C in results:
        np.testing.assert_array_equal(C, results[0])


def test_no_rows_no_columns():
    for shape in ((0, 5), (5, 0), (0, 0)):
        for form in ("csr", "csc"):
            C = spmm(sp.csr_array(shape).asformat(form), np.ones((shape[1], 2)))
            assert C.shape == (shape[0], 2) and not C.any()


def test_wrong_input_gets_one_sentence():
    A, X = random(30, 40), np.ones((40, 2))
    for wrong, error, said in (
        ((A, X[:30]), ValueError, "the columns of A must be the rows of X"),
        ((A, X[None]), ValueError, "the columns of A must be the rows of X"),
        ((A, sp.csr_array(X)), TypeError, "use spgemm for a sparse one"),
        ((X, X), TypeError, "not a sparse matrix"),
        ((A.astype(int), X.astype(int)), TypeError, "convert one with"),
        ((A, np.ma.masked_array(X, X > 0)), TypeError, "X has masked entries"),
    ):
        with pytest.raises(error, match=said):
            spmm(*wrong)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="X holds entries"):
        spmm(A, X)
    assert np.isnan(spmm(A, X, check_finite=False)[:, 1]).any()
    for matrix in (A, A.tocsc()):
        where = matrix.tocoo()
        matrix.data[7] = np.inf
        with pytest.raises(ValueError, match=f"A holds inf at row {where.row[7]}, column {where.col[7]}"):
            spmm(matrix, np.ones(40))
