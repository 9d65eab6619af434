"""The products that SciPy's and CuPy's own tests of sparse matrices make, by ours.

Cases after scipy/sparse/tests/test_base.py (products of every pair of formats and types, views, powers) and
cupyx_tests/scipy_tests/sparse_tests (CSR and CSC factors, no rows, no columns).  ``tests/gpu`` runs them on a device.
"""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import galerkin, row_blocks, spgemm, symbolic

FORMATS = ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")


def pairs():
    """Yield (name, A, B) with A and B dense; what is not zero is stored."""
    a = np.array([[3.0, 0, 0], [0, 1, 0], [2, 0, 3], [2, 3, 0]])
    b = np.array([[0.0, 1], [1, 0], [0, 2]])
    yield "small", a, b
    yield "identity", a, np.eye(3)
    yield "transposes", b.T, a.T
    yield "square", np.array([[1.0, 2, 0], [0, 0, 0], [4, 0, 3]]), np.array([[0.0, 0, 0], [5, 0, 6], [0, 7, 0]])
    rng = np.random.default_rng(30)
    wide, tall = (np.where(rng.random(shape) < 0.3, rng.random(shape), 0) for shape in ((30, 7), (7, 30)))
    yield "wide", wide, tall
    yield "inner", tall, wide
    yield "row by column", np.array([[1.0, 0, 2]]), np.array([[3.0], [4], [5]])
    yield "column by row", np.array([[3.0], [0], [5]]), np.array([[1.0, 0, 2]])
    yield "no entries", np.zeros((4, 5)), np.zeros((5, 3))
    yield "nothing meets", np.array([[0.0, 1], [0, 1]]), np.array([[2.0, 2], [0, 0]])
    for m, k, n in itertools.product((0, 3), repeat=3):
        yield f"sizes {m} {k} {n}", np.ones((m, k)), np.ones((k, n))
    yield "full", np.arange(1.0, 145).reshape(12, 12), np.arange(1.0, 121).reshape(12, 10)
    yield "negative and cancelling", np.array([[1.0, -1], [2, 2]]), np.array([[1.0, 1], [1, -1]])
    blocks = np.kron(np.eye(5), np.ones((3, 3)))
    yield "blocks", blocks, np.roll(blocks, 1, axis=1)
    band = sum(np.diag(np.full(40 - abs(k), k + 5.0), k) for k in (-3, -1, 0, 2))
    yield "band", band, band.T


def check(C, A, B):
    """C is a canonical CSR matrix with the values of A B and the structural pattern."""
    np.testing.assert_allclose(C.toarray(), A @ B, rtol=1e-14, atol=0)
    assert C.nnz == np.count_nonzero((A != 0).astype(float) @ (B != 0))
    for row in range(C.shape[0]):
        assert (np.diff(C.indices[C.indptr[row] : C.indptr[row + 1]]) > 0).all()


@pytest.mark.parametrize(("name", "A", "B"), list(pairs()), ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_product_in_every_pair_of_formats(name, A, B, kind):
    build = sp.coo_array if kind == "array" else sp.coo_matrix
    for left, right in itertools.product(FORMATS, repeat=2):
        if "bsr" in (left, right) and 0 in (*A.shape, *B.shape):
            continue  # SciPy makes no block matrix without rows
        C = spgemm(build(A).asformat(left), build(B).asformat(right), backend="cpu")
        assert isinstance(C, sp.csr_array if kind == "array" else sp.csr_matrix)
        check(C, A, B)


@pytest.mark.parametrize("types", list(itertools.product("?bhilBHILfdFD", repeat=2)), ids="".join)
def test_product_of_every_pair_of_types(types):
    _, A, B = next(pairs())
    left, right = (sp.csr_array(x.astype(t)) for x, t in zip((A, B), types, strict=True))
    C = spgemm(left, right, backend="cpu")
    wide = complex if C.dtype.kind == "c" else float
    expected = left.toarray().astype(wide) @ right.toarray().astype(wide)
    kind = np.result_type(left.dtype, right.dtype)  # SciPy's, but integers of 32 or 64 bits
    if all(x.dtype.kind in "biu" for x in (left, right)) and kind != np.bool_:
        kind = np.int32 if all(np.can_cast(x.dtype, np.int32) for x in (left, right)) else np.int64
    assert C.dtype == kind
    np.testing.assert_array_equal(C.toarray(), expected.astype(C.dtype))
    counts = spgemm(left, right, precision="float64", backend="cpu")
    assert counts.dtype == wide
    np.testing.assert_array_equal(counts.toarray(), expected)


def test_chains_and_powers():
    rng = np.random.default_rng(5)
    A = sp.random_array((60, 60), density=0.05, rng=rng, format="csr")
    power = A
    for _ in range(3):
        power = spgemm(power, A, backend="cpu")
    np.testing.assert_allclose(power.toarray(), np.linalg.matrix_power(A.toarray(), 4), rtol=1e-12, atol=1e-15)


def test_views_and_slices():
    A = sp.random_array((50, 70), density=0.1, rng=np.random.default_rng(6), format="csr")
    B = A.T[:, 10:40]
    C = spgemm(A[5:45:2], B, backend="cpu")
    np.testing.assert_allclose(C.toarray(), A[5:45:2].toarray() @ B.toarray(), rtol=1e-13)


@pytest.mark.parametrize("columns", [40, 2**31 + 40])
@pytest.mark.parametrize("make", ["symbolic", "galerkin"])
def test_what_is_done_to_a_product_in_place_does_not_reach_the_plan_that_made_it(make, columns):
    rng = np.random.default_rng(4)
    A = sp.random_array((30, 30), density=0.2, format="csr", rng=rng)
    B = sp.random_array((30, 40), density=0.2, format="csr", rng=rng)
    B = sp.csr_array((B.data, B.indices + np.int64(columns - 40), B.indptr), shape=(30, columns))
    plan = symbolic(A, B, backend="cpu") if make == "symbolic" else galerkin(A, A, B)
    products = [lambda: plan.multiply(A, B) if make == "symbolic" else plan.numeric(A)]
    if make == "galerkin":
        products.append(lambda: plan.C)
    wanted = products[0]().copy()
    for product in products:
        C = product()
        C.data[::2] = 0
        C.eliminate_zeros()
        again = products[0]()
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(again, part), getattr(wanted, part))


@pytest.mark.parametrize("form", FORMATS)
def test_no_product_shares_memory_with_what_it_was_made_of(form):
    eye = sp.eye_array(6, format="csr")
    other = sp.random_array((6, 6), density=0.5, rng=5).asformat(form)
    for product in (
        spgemm(eye, other),
        spgemm(other, eye),
        spgemm(eye, eye, mask=other),
        spgemm(0 * eye, eye, C=other, beta=1),
        spgemm(eye, eye, C=other, beta=1, mask=other),
        galerkin(eye, other, eye).C,
        *(part for _, part in row_blocks(eye, other)),
    ):
        for given in (eye, other):
            arrays = [getattr(given, name, None) for name in ("indptr", "indices", "data", "row", "col")]
            for array in arrays:
                for name in ("indptr", "indices", "data"):
                    assert not (isinstance(array, np.ndarray) and np.shares_memory(getattr(product, name), array))
