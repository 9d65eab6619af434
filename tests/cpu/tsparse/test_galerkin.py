"""Products of three matrices: the bits of two products, the memory of one, and a set-up of multigrid."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import galerkin, spgemm
from spectile.tsparse.cpu import galerkin as host
from spectile.tsparse.cpu import wanted

from .test_limits import bytes_of, least, used


def grid(n, dtype=float):
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    A = sp.csr_array(sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line)).astype(dtype)
    aggregate = (np.arange(n)[:, None] // 3 * n + np.arange(n) // 3).ravel()
    _, number = np.unique(aggregate, return_inverse=True)
    P = sp.csr_array((np.ones(n * n), (np.arange(n * n), number)))
    return A, sp.csr_array(P - 0.1 * (A @ P)).astype(dtype)


def assert_same(C, D):
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(D, name))
    assert C.dtype == D.dtype and type(C) is type(D)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_the_bits_are_those_of_two_products(dtype, monkeypatch):
    A, P = grid(24, dtype)
    if dtype == "c16":
        A = (1 + 0.5j) * A
    two = spgemm(spgemm(P.T, A, backend="cpu"), P, backend="cpu")
    assert_same(galerkin(P.T, A, P).C, two)
    monkeypatch.setattr(wanted, "_BLOCK_PRODUCTS", 300)
    product = galerkin(P.T, A, P)
    assert_same(product.C, two)
    other = A.copy()
    other.data *= np.linspace(1, 2, A.nnz)
    assert_same(product.numeric(other), spgemm(spgemm(P.T, other, backend="cpu"), P, backend="cpu"))
    assert_same(galerkin(P.T, A, P, memory_limit=10**6).C, two)


@pytest.mark.parametrize("dtype", ["f4", "F", ">f4", "f2"])
def test_duplicates_do_not_change_the_type(dtype):
    A, P = grid(6)
    twice = sp.csr_array((np.repeat(A.data / 2, 2), np.repeat(A.indices, 2), 2 * A.indptr), shape=A.shape)
    R, P = P.T.tocsr().astype("F" if dtype == "F" else "f4"), P.astype("f4")
    for M in (A, twice):
        M.data = M.data.astype(dtype)
    one, two = galerkin(R, A, P), galerkin(R, twice, P)
    assert one.C.dtype == two.C.dtype == ("F" if dtype == "F" else "f4")
    np.testing.assert_allclose(two.C.toarray(), one.C.toarray(), rtol=1e-5, atol=1e-6)
    assert two.numeric(twice).dtype == one.numeric(twice).dtype == one.C.dtype


def with_large_middle(rows, columns, density):
    """Return R, A and P, whose product R A has far more entries than they, and whose product has one column."""
    rng = np.random.default_rng(1)
    R = sp.random_array((rows, 300), density=0.05, rng=rng, format="csr")
    A = sp.random_array((300, columns), density=density, rng=rng, format="csr")
    return R, A, sp.csr_array(np.ones((columns, 1)))


def test_the_middle_product_is_never_whole(monkeypatch):
    monkeypatch.setattr(wanted, "_BLOCK_PRODUCTS", 2**14)
    R, A, P = with_large_middle(3000, 2000, 0.05)
    middle = spgemm(R, A, backend="cpu")
    galerkin(R, A, P)
    tracemalloc.start()
    galerkin(R, A, P)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (middle.data.nbytes + middle.indices.nbytes) / 4


@pytest.mark.parametrize(("left", "right"), [("f8", "f8"), ("f8", "f4"), ("c16", "c16")])
@pytest.mark.parametrize("again", [False, True])
def test_a_limit_is_kept_within_a_tenth(left, right, again):
    """By the first product, and by one of other values on its pattern, which is held, too."""
    A, P = grid(120, left)
    R, P = P.T.tocsr(), P.astype(right)

    def product(limit=None):
        first = galerkin(R, A, P, memory_limit=limit)
        return first.numeric(A) if again else first.C

    product()
    enough = least(product)
    peak, C = min((used(lambda: product(enough)) for _ in range(3)), key=lambda found: found[0])
    uses = peak - (1 + again) * bytes_of(C)
    assert uses <= 1.1 * enough + 2**14 and enough <= 1.1 * uses + 2**15


def test_a_set_up_of_multigrid_runs_on_ours():
    pyamg = pytest.importorskip("pyamg")
    A = sp.csr_matrix(pyamg.gallery.poisson((40, 40), format="csr"))
    theirs = pyamg.smoothed_aggregation_solver(A, max_coarse=10)
    level = A
    for fine, coarse in zip(theirs.levels, theirs.levels[1:], strict=False):
        level = galerkin(fine.R, level, fine.P).C
        bound = 1e-13 * abs(coarse.A).max()
        assert abs(level - coarse.A).max() <= bound
    b = np.random.default_rng(2).standard_normal(1600)
    assert np.linalg.norm(b - A @ theirs.solve(b, tol=1e-10)) < 1e-8 * np.linalg.norm(b)


def test_wrong_input_gets_one_sentence():
    A, P = grid(6)
    for factors, names in (((P, A, P), "R.*rows of A"), ((P.T, A, P.T), "A.*rows of P")):
        with pytest.raises(ValueError, match=names):
            galerkin(*factors)
    with pytest.raises(TypeError, match=r"^P is"):
        galerkin(P.T, A, P.toarray())
    with pytest.raises(TypeError, match=r"convert them with \.astype"):
        galerkin(P.T, A.astype(int), P)
    product = galerkin(P.T, A, P)
    with pytest.raises(ValueError, match=r"pattern of A differs .* call galerkin\(\) again"):
        product.numeric(sp.eye_array(36, format="csr"))
    with pytest.raises(TypeError, match="make another product"):
        product.numeric(1j * A)
    for other in ([1.0, 2.0], None, "A", A.toarray()):
        with pytest.raises(TypeError, match=r"^A is .* not a sparse matrix"):
            product.numeric(other)


def test_another_matrix_of_the_other_library_is_refused(monkeypatch):
    A, P = grid(6)
    product = galerkin(P.T, A, P)
    monkeypatch.setattr(host, "check_sparse", lambda name, matrix: True)
    with pytest.raises(TypeError, match="A is on the GPU and the product of matrices on the host: copy A to the host"):
        product.numeric(A)
