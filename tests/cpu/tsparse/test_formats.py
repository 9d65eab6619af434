"""Formats of the factors and of C: the numbers are the same, CSC is taken as it is, huge dimensions take nothing."""

import logging
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core import memory
from spectile.tsparse import spgemm
from spectile.tsparse.cpu import ways
from spectile.tsparse.semirings import SEMIRINGS


def random(m, n, density=0.1, seed=1, dtype=np.float64):
    A = sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format="csr")
    A.data = 4 * A.data + 1
    return sp.csr_array((A.data.astype(dtype), A.indices, A.indptr), shape=A.shape)


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dense"])
@pytest.mark.parametrize("left", ["csr", "csc"])
@pytest.mark.parametrize("right", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", ["f8", "i4", "?"])
def test_factors_and_products_of_every_format(left, right, form, dtype):
    A, B = random(30, 40, dtype=dtype), random(40, 50, seed=2, dtype=dtype)
    C = multiply(A.asformat(left), B.asformat(right), format=form)
    known = (A @ B).toarray()
    assert C.dtype == known.dtype
    if form == "dense":
        np.testing.assert_allclose(C, known, rtol=1e-13)
        return
    assert C.format == form and isinstance(C, sp.sparray)
    np.testing.assert_allclose(C.toarray(), known, rtol=1e-13)
    if form != "bsr":
        assert C.has_canonical_format
        pattern, C.has_canonical_format = C.nnz, False  # SciPy then looks
        C.sum_duplicates()
        assert C.nnz == pattern == (known != 0).sum()


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("dtype", ["f8", "i4"])
@pytest.mark.parametrize("ring", SEMIRINGS)
def test_what_a_format_stores_is_that_of_the_array(ring, form, dtype):
    """Blocks hold the identity of the addition where C has no entry, not a way of length 0."""
    for density, options in ((0.6, {}), (0.3, {"mask": random(2, 20, 0.9, seed=5)}), (0.6, {"top_n": 18})):
        A, B = random(2, 20, density, dtype=dtype), random(20, 20, 0.2, seed=2, dtype=dtype)
        C, known = (multiply(A, B, semiring=ring, format=word, **options) for word in (form, "dense"))
        entries = C.tocoo()
        found = np.full(C.shape, SEMIRINGS[ring].identity(known.dtype), known.dtype)
        found[entries.row, entries.col] = entries.data
        np.testing.assert_allclose(found, known, rtol=1e-12)


@pytest.mark.parametrize("form", ["csc", "dense", "bsr"])
def test_matrices_stay_matrices_and_options_are_kept(form):
    A, B = sp.csr_matrix(random(30, 40)), sp.csc_matrix(random(40, 50, seed=2))
    C = multiply(A, B, format=form)
    assert isinstance(C, np.ndarray if form == "dense" else sp.spmatrix)
    mask = random(30, 50, 0.3, seed=3)
    whole = multiply(A, B, mask=sp.csr_matrix(mask), top_n=3)
    part = multiply(A, B, mask=sp.csr_matrix(mask), top_n=3, format=form)
    np.testing.assert_array_equal(part if form == "dense" else part.toarray(), whole.toarray())
    for precision in ("float16", "float32"):
        one, other = (multiply(A, B, precision=precision, format=word) for word in (form, "csr"))
        np.testing.assert_allclose(one if form == "dense" else one.toarray(), other.toarray(), rtol=1e-6)


@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_what_is_missing_in_a_dense_product_is_the_identity(semiring):
    dtype = "?" if semiring == "or_and" else "f8"
    A, B = random(10, 20, dtype=dtype), random(20, 15, seed=2, dtype=dtype)
    C, dense = multiply(A, B, semiring=semiring), multiply(A, B, semiring=semiring, format="dense")
    expected = np.full(C.shape, {"min": np.inf, "max": -np.inf}.get(SEMIRINGS[semiring].add, 0)).astype(C.dtype)
    rows = np.repeat(np.arange(10), np.diff(C.indptr))
    expected[rows, C.indices] = C.data
    np.testing.assert_array_equal(dense, expected)


@pytest.mark.parametrize(
    ("left", "right", "form", "by_columns"),
    [
        ("csc", "csc", "csc", True),  # as they are
        ("csr", "csr", "csr", False),
        ("csc", "csr", "csr", False),  # A.T @ B
        ("csr", "csc", "csr", False),  # A @ B.T
        ("csr", "csr", "csc", True),  # C has more entries than A and B
        ("csc", "csr", "csc", True),
    ],
)
def test_the_way_that_converts_fewer_entries_is_taken(left, right, form, by_columns, caplog):
    A, B = random(100, 60), random(60, 100, seed=2)
    with caplog.at_level(logging.DEBUG, "spectile.tsparse"):
        multiply(A.asformat(left), B.asformat(right), format=form)
    assert ("by columns" in caplog.text) == by_columns


def test_the_transpose_of_a_product_with_few_entries_is_cheaper_than_those_of_its_factors():
    A, B = random(40, 10**4, 0.05), random(10**4, 40, 0.05, seed=2)  # C has 1,600 entries, A and B 20,000
    assert ways.conversions(A, B, "csc")[0] < ways.conversions(A, B, "csc")[1]
    A, B = A.tocsc(), B.tocsc()
    assert ways.conversions(A, B, "csr")[1] < ways.conversions(A, B, "csr")[0]
    np.testing.assert_allclose(multiply(A, B).toarray(), (A @ B).toarray(), rtol=1e-12)


def test_matrices_in_csc_are_not_copied():
    A = random(400, 400, 0.3).tocsc()
    B = sp.csc_array(([1.0], ([3], [5])), shape=(400, 400))
    multiply(A, B, format="csc")
    tracemalloc.start()
    multiply(A, B, format="csc")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < A.data.nbytes / 2


@pytest.mark.parametrize("options", [{}, {"top_n": 1}])
def test_a_dense_product_that_does_not_fit_is_refused(options, monkeypatch):
    monkeypatch.setattr(memory, "host_free_bytes", lambda: 10**6)
    A = sp.csr_array((4000, 10))
    with pytest.raises(MemoryError, match=r"C, an array of shape \(4000, 4000\), needs 128,000,000 bytes"):
        multiply(A, A.T, format="dense", **options)
    assert multiply(A, A.T, **options).nnz == 0
    assert not multiply(A[:9], A.T, format="dense", **options).any()


@pytest.mark.parametrize("name", "AB")
@pytest.mark.parametrize("fault", ["nan", "outside", "range"])
def test_errors_of_products_by_columns_name_the_callers_matrices(name, fault):
    matrices = {"A": random(20, 30).tocsc(), "B": random(30, 25, seed=2).tocsc()}
    one, options = matrices[name], {}
    if fault == "nan":
        one.data[7] = np.nan
        place = one.tocoo()
        said = f"{name} holds nan at row {place.row[7]}, column {place.col[7]}:"
    elif fault == "outside":
        one.indices[7] = 1000
        said = f"{name} is no valid cs[cr] matrix"
    else:
        one.data[7], options = 1e300, {"precision": "float32"}
        said = f"{name} holds entries beyond the range of float32"
    with pytest.raises(ValueError, match=said):
        multiply(matrices["A"], matrices["B"], format="csc", **options)


@pytest.mark.parametrize("right", ["csc", "coo"])
@pytest.mark.parametrize("options", [{}, {"semiring": "max_plus"}, {"semiring": "plus_pair"}, {"memory_limit": 10**5}])
def test_an_inner_dimension_of_any_size(right, options):
    n = 2**40
    A = sp.coo_array((np.arange(1.0, 7.0), ([0, 0, 1, 1, 2, 2], [5, n - 1, 7, n - 2, 5, 9])), shape=(3, n)).tocsr()
    B = sp.coo_array((np.arange(1.0, 5.0), ([5, n - 1, 7, 8], [0, 1, 1, 2])), shape=(n, 4)).asformat(right)
    held = np.array([5, 7, 8, 9, n - 2, n - 1])
    left, right_ = (sp.lil_array((3, 6)), sp.lil_array((6, 4)))
    for i, j, value in zip(*A.tocoo().coords, A.data, strict=True):
        left[i, np.searchsorted(held, j)] = value
    coo = B.tocoo()
    for i, j, value in zip(*coo.coords, coo.data, strict=True):
        right_[np.searchsorted(held, i), j] = value
    C, known = multiply(A, B, **options), multiply(left.tocsr(), right_.tocsr(), **options)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, part), getattr(known, part))
    assert C.shape == (3, 4) and C.nnz == 4
    A.data[0] = np.nan
    if not options:
        with pytest.raises(ValueError, match="A holds nan at row 0, column 5"):
            multiply(A, B)
        A.data[0], B.data[2] = 1, np.inf
        where = B.tocoo()
        with pytest.raises(ValueError, match=f"B holds inf at row {where.row[2]}, column {where.col[2]}"):
            multiply(A, B)


def test_rows_and_columns_of_any_number_by_columns():
    n = 2**40
    A = sp.coo_array((np.array([1.0, 2.0, 3.0]), ([7, n - 1, 5], [0, 1, 1])), shape=(n, 2)).tocsc()
    B = sp.csc_array([[1.0, 0.0, 4.0], [0.0, 2.0, 1.0]])
    C = multiply(A, B, format="csc")
    assert C.shape == (n, 3) and C.indices.tolist() == [7, 5, n - 1, 5, 7, n - 1]
    assert C.data.tolist() == [1.0, 6.0, 4.0, 3.0, 4.0, 2.0]
    inner = multiply(A.T, A)
    assert inner.toarray().tolist() == [[1.0, 0.0], [0.0, 13.0]]


def test_an_inner_dimension_that_nothing_meets():
    A = sp.csr_array(([1.0], ([0], [2**35])), shape=(2, 2**40))
    B = sp.csc_array((2**40, 3))
    for C in (multiply(A, B), multiply(sp.csr_array((2, 2**40)), B)):
        assert C.shape == (2, 3) and C.nnz == 0


@pytest.mark.parametrize("form", ["coo", "dia", "csc"])
@pytest.mark.parametrize("limit", [None, 10**6])
def test_rows_of_any_number_are_refused_by_name_where_they_have_no_pointer(form, limit):
    n = 2**45
    small = sp.csr_array(np.eye(3))
    tall = sp.coo_array((np.arange(1.0, 4.0), ([5, n - 1, 7], [0, 1, 2])), shape=(n, 3)).asformat(
        form if form != "dia" else "coo"
    )
    if form == "dia":
        tall = sp.dia_array((np.ones((1, 3)), [-4]), shape=(n, 3))
    with pytest.raises(MemoryError, match=f"row pointer of [AC], which has {n:,} rows, needs"):
        multiply(tall, small, memory_limit=limit)
    with pytest.raises(MemoryError, match=f"column pointer of [BC], which has {n:,} columns, needs"):
        multiply(small, sp.csr_array(([1.0], ([0], [n - 1])), shape=(3, n)), memory_limit=limit, format="csc")
    wide, square = sp.csr_array(([1.0], ([0], [n - 1])), shape=(1, n)), sp.coo_array((n, n))
    with pytest.raises(MemoryError, match=f"column pointer of B, which has {n:,} columns, needs"):
        multiply(wide, square, memory_limit=limit)
