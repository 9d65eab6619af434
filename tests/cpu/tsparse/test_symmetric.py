"""Products of a matrix and its transpose or adjoint: half the products, and the numbers of the whole."""

import logging

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import explain, spgemm
from spectile.tsparse.cpu import one_pass, symmetric, work


def random(m, n, density, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    A.data = rng.uniform(-1, 1, A.nnz) + (1j * rng.uniform(-1, 1, A.nnz) if np.dtype(dtype).kind == "c" else 0)
    return sp.csr_array((A.data.astype(dtype), A.indices, A.indptr), shape=A.shape)


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def same(C, D):
    """The same pattern, and values up to rounding."""
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(C, name), getattr(D, name))
    np.testing.assert_allclose(C.data, D.data, rtol=1e-12, atol=1e-12)
    C.check_format()
    assert C.has_canonical_format and C.dtype == D.dtype and type(C) is type(D)


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(symmetric, "WORTH_MIRRORING", 0)
    monkeypatch.setattr(symmetric, "WORTH_AN_ENTRY", 0)


TRANSPOSES = {
    "A A.T": lambda A: (A, A.T),
    "A.T A": lambda A: (A.T, A),
    "A A*": lambda A: (A, A.conj().T),
    "A* A": lambda A: (A.conj().T, A),
}


@pytest.mark.parametrize("kind", TRANSPOSES)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(90, 40), (1, 30), (60, 1), (7, 0), (0, 5)])
def test_a_triangle_is_made_and_mirrored(shape, dtype, kind, always, caplog):
    A = random(*shape, 0.2, dtype)
    left, right = TRANSPOSES[kind](A)
    with caplog.at_level(logging.DEBUG, "spectile.tsparse"):
        C = multiply(left, right)
    assert "mirrored" in caplog.text
    same(C, multiply(sp.csr_array(left), sp.csr_array(right)))
    turned = C.T.conj() if "*" in kind else C.T
    assert (sp.csr_array(turned) != C).nnz == 0
    if "*" in kind and dtype == "c16":
        assert not C.diagonal().imag.any()


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float32])
def test_other_types_of_values(dtype, always):
    A = random(60, 50, 0.2)
    A = sp.csr_array(((9 * A.data).astype(dtype), A.indices, A.indptr), shape=A.shape)
    same(multiply(A, A.T), multiply(A, A.T.tocsr()))
    same(multiply(A, A.T, precision="float16"), multiply(A, A.T.tocsr(), precision="float16"))


def test_rows_that_are_scaled(always):
    A = random(60, 50, 0.2)
    A.data *= 2.0 ** np.repeat(np.random.default_rng(2).integers(-50, 58, 60), np.diff(A.indptr))
    C, D = (multiply(A, B, precision="float16") for B in (A.T, A.T.tocsr()))
    same(C, D)
    assert (C.T != C).nnz == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_in_chunks_and_by_several_threads(chunked, always, monkeypatch):
    A = random(500, 300, 0.05)
    monkeypatch.setattr(work, "WORTH_A_CHUNK", 500)
    if chunked:
        monkeypatch.setattr(one_pass, "LARGEST_KEPT", 0)
    before = numba.get_num_threads()
    results = []
    try:
        for threads in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(threads)
            results.append(multiply(A, A.T))
    finally:
        numba.set_num_threads(before)
    monkeypatch.setattr(symmetric, "chunks", lambda work_, count, worth=0: work.chunks(work_, 3, 1))
    monkeypatch.setattr(symmetric.threads, "over_rows", lambda rows, _, job: [job(*one) for one in rows])
    results.append(multiply(A, A.T))
    for C in results:
        same(C, multiply(A, A.T.tocsr()))


def test_what_is_no_transpose_is_multiplied_as_it_is(always):
    A = random(40, 40, 0.2)
    B = A.T.copy()
    B.data[3] += 1
    shorter = sp.csc_array((A.data, A.indices, A.indptr), shape=(40, 40))  # A.T, but of another matrix's shape below
    for left, right in ((A, B), (A, A.tocsc()), (A.tocsc(), A), (A, shorter)):
        same(multiply(left, right), multiply(left.tocsr(), right.tocsr()))
    twice = sp.csr_array((np.ones(4), np.array([1, 1, 0, 2]), np.array([0, 2, 4])), shape=(2, 3))
    assert multiply(twice, twice.T).toarray().tolist() == [[4.0, 0.0], [0.0, 2.0]]
    A.data[5] = np.nan
    same(multiply(A, A.T, check_finite=False), multiply(A, A.T.tocsr(), check_finite=False))
    with pytest.raises(ValueError, match="A holds nan"):
        multiply(A, A.T)


def test_unsorted_rows(always):
    A = random(50, 60, 0.2)
    for i in range(50):
        part = slice(A.indptr[i], A.indptr[i + 1])
        A.indices[part], A.data[part] = A.indices[part][::-1].copy(), A.data[part][::-1].copy()
    A.has_sorted_indices = False
    same(multiply(A, A.T), multiply(A, A.T.tocsr()))


@pytest.mark.parametrize(("density", "few"), [(0.1, False), (0.002, True)])
def test_the_way_is_chosen_by_the_products_and_explained(density, few, caplog):
    A = random(400, 500, density)
    with caplog.at_level(logging.DEBUG, "spectile.tsparse"):
        multiply(A, A.T)
    listed = {one.kernel: one.seconds for one in explain(A, A.T, backend="cpu")}
    assert ("mirrored" not in caplog.text) == few == (listed["cpu: a triangle, mirrored"] is None)
    assert few or listed["cpu: a triangle, mirrored"] < listed["cpu: one pass"]
    for options in ({"memory_limit": 10**8}, {}):
        right = A.T if options else A.T.tocsr()
        listed = {one.kernel: one.seconds for one in explain(A, right, backend="cpu", **options)}
        assert listed["cpu: a triangle, mirrored"] is None
