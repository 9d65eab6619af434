"""Tile matrices: the algebra and its bounds against dense matrices, what is refused, inputs that stay as they are."""

import doctest
import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile.tiles import TileMatrix, hilbert_order, partition
from spectile.tiles import product as products
from spectile.tiles.types import DTYPES

EXAMPLES = settings(max_examples=25)


def random_matrix(seed, shape, dtype, decay=3.0, hermitian=False):
    """A matrix whose entries decay from the diagonal over many decades."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])
    x = (x * np.exp(-np.abs(i - j) / decay)).astype(dtype)
    return (x + x.conj().T) / 2 if hermitian else x


def sizes(rng, n):
    """Tiles of different sizes that add up to n."""
    cuts = np.sort(rng.choice(np.arange(1, n), size=min(n - 1, int(rng.integers(1, 12))), replace=False))
    return np.diff([0, *cuts, n]).tolist()


def errors(made, exact):
    """Both norms of what a tile matrix is off by."""
    difference = made.to_dense().astype(np.complex128) - exact
    return np.linalg.norm(difference), np.linalg.norm(difference, 2)


def assert_bounded(made, exact, slack=0.0):
    """The carried error covers the true one; `slack` is the judge's own rounding."""
    fro, spectral = errors(made, exact)
    assert fro <= made.error.fro + slack and spectral <= made.error.spectral + slack
    norms = np.linalg.norm(made.to_dense().astype(np.complex128)), np.linalg.norm(made.to_dense(), 2)
    assert norms[0] * (1 - 1e-6) <= made.norm() <= norms[0] * (1 + 1e-6) and norms[1] * (1 - 1e-6) <= made.norm(
        "spectral"
    )


kinds = {
    "seed": st.integers(0, 2**32 - 1),
    "dtype": st.sampled_from(DTYPES),
    "hermitian": st.booleans(),
    "n": st.integers(2, 90),
}


@given(**kinds, exponent=st.floats(-11, 0), norm=st.sampled_from(["fro", "spectral"]), other=st.sampled_from(DTYPES))
@EXAMPLES
def test_a_product_keeps_its_error(seed, dtype, hermitian, n, exponent, norm, other):
    rng = np.random.default_rng(seed)
    rows = sizes(rng, n)
    a, b = random_matrix(seed, (n, n), dtype, hermitian=hermitian), random_matrix(seed + 1, (n, n), other)
    x, y = TileMatrix.from_dense(a, rows, hermitian=hermitian), TileMatrix.from_dense(b, rows)
    x, y = x.truncate(10.0**exponent), y.truncate(10.0**exponent, "spectral")
    exact = a.astype(np.complex128) @ b.astype(np.complex128)
    least = 1e-3 if np.result_type(a, b) in ("float32", "complex64") else 1e-9
    for made in (x @ y, x.multiply(y, atol=max(10.0**exponent, least) * np.linalg.norm(exact), norm=norm)):
        assert made.dtype == np.result_type(a, b)
        assert_bounded(made, exact, 1e-13 * np.linalg.norm(exact))


@given(**kinds, exponent=st.floats(-9, 0), norm=st.sampled_from(["fro", "spectral"]))
@EXAMPLES
def test_the_error_asked_is_the_error_kept(seed, dtype, hermitian, n, exponent, norm):
    a = random_matrix(seed, (n, n), dtype, hermitian=hermitian)
    x = TileMatrix.from_dense(a, sizes(np.random.default_rng(seed), n), hermitian=hermitian)
    exact = a.astype(np.complex128) @ a.astype(np.complex128)
    size = np.linalg.norm(exact, 2 if norm == "spectral" else "fro")
    asked = max(10.0**exponent, 1e-3 if dtype in ("float32", "complex64") else 1e-9)
    slack = 1e-13 * np.linalg.norm(exact)
    for made, wanted in (
        (x.square(atol=asked * size, norm=norm), asked * size),
        (x.square(rtol=asked, norm=norm), None),
    ):
        assert made.hermitian == hermitian
        assert_bounded(made, exact, slack)
        found = errors(made, exact)[norm == "spectral"]
        assert found <= (asked * made.norm(norm) if wanted is None else wanted) + slack
        if wanted is not None:
            assert made.error[norm == "spectral"] <= wanted


@given(**kinds, factor=st.sampled_from([0.0, -1.0, 1e-3, -np.pi, 1e3]))
@EXAMPLES
def test_sums_multiples_and_transposes_are_those_of_dense_matrices(seed, dtype, hermitian, n, factor):
    rng = np.random.default_rng(seed)
    rows = sizes(rng, n)
    a, b = (random_matrix(seed + k, (n, n), dtype, hermitian=hermitian) for k in range(2))
    x = TileMatrix.from_dense(a, rows, hermitian=hermitian, atol=1e-3)
    y = TileMatrix.from_sparse(sp.csr_array(b), rows, hermitian=hermitian).truncate(1e-2, "spectral")
    a, b = a.astype(np.complex128), b.astype(np.complex128)
    for made, exact in (
        (x + y, a + b), (x - y, a - b), (-x, -a), (factor * x, factor * a), (x / 3, a / 3), (x.T, a.T),
        (x.H, a.conj().T),
        (x.whole() + y, a + b), (x.shifted(factor), a + factor * np.eye(n)), (x.whole(), a),
        (x._combined(factor, y, -0.3, 2.0), factor * a - 0.3 * b + 2 * np.eye(n)),
        (y.truncate(y.norm() / 2)._combined(2.0, x.whole(), factor), 2 * b + factor * a),
    ):  # fmt: skip
        assert_bounded(made, exact, 1e-14 * (1 + abs(factor)) * np.linalg.norm(a))
    assert_bounded(x.hermitian_part(), a, 1e-14 * np.linalg.norm(a))
    if hermitian:
        assert_bounded(x.whole().hermitian_part(), a, 1e-14 * np.linalg.norm(a))
        low, high = x.eigenvalue_bounds()
        values = np.linalg.eigvalsh(a)
        assert low <= values[0] and values[-1] <= high
    assert abs(x.trace() - x.to_dense().trace()) <= 1e-5 * x.norm()
    dot = np.vdot(x.to_dense().astype(np.complex128), y.to_dense())
    assert (
        abs(x.dot(y) - dot) <= 1e-12 * x.norm() * y.norm()
        and abs(x.whole().dot(y) - dot) <= 1e-12 * x.norm() * y.norm()
    )


@pytest.mark.parametrize("hermitian", [False, True])
def test_places_of_tiles_are_found_once(hermitian):
    """What two matrices have the same tiles for shares all that is known of them."""
    a = random_matrix(3, (60, 60), "float64", hermitian=True)
    x = TileMatrix.from_dense(a, 7, hermitian=hermitian)
    y = x.truncate(x.norm() / 4)
    for made in (2 * x, x + x, x + y, y + x, x.shifted(1.0), *([x.square(), x.square() - x] if hermitian else [])):
        assert made.layout is x.layout
    assert y.layout is not x.layout and (y + y).layout is y.layout
    assert x.whole().layout is x.whole().layout


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 60), k=st.integers(1, 60), n=st.integers(1, 60))
@EXAMPLES
def test_rectangular_products(seed, m, k, n):
    a, b = random_matrix(seed, (m, k), "float64"), random_matrix(seed + 1, (k, n), "float64")
    x, y = TileMatrix.from_dense(a, 7, 5), TileMatrix.from_dense(b, 5, 9)
    made = x.multiply(y, atol=1e-3)
    assert made.shape == (m, n)
    assert_bounded(made, a @ b, 1e-14 * np.linalg.norm(a) * np.linalg.norm(b))
    assert made.error.fro <= 1e-3


def test_bounds_are_close_and_less_is_multiplied():
    """A bound that is true and useless would pass the tests above."""
    i = np.arange(600)
    a = np.exp(-np.abs(i[:, None] - i) / 4.0)
    x = TileMatrix.from_dense(a, 20, hermitian=True, atol=1e-9)
    fills = []
    for asked in (1e-1, 1e-3, 1e-5, 1e-7):
        made = x.square(atol=asked)
        assert errors(made, a @ a)[0] >= 1e-3 * (made.error.fro - 2 * x.norm("spectral") * x.error.fro)
        fills.append(made.fill)
    assert fills == sorted(fills) and fills[0] < 0.25 and fills[-1] < 0.5
    assert x.norm("spectral") <= 2 * np.linalg.norm(a, 2)
    half, full = x.square(), x.whole().square()
    assert half.nbytes < 0.6 * full.nbytes
    np.testing.assert_allclose(half.to_dense(), full.to_dense(), rtol=0, atol=1e-13)


def test_a_skipped_product_is_not_in_the_lists_and_bounds_cover_what_is_skipped():
    rng = np.random.default_rng(5)
    for n in (1, 7, 40):
        layout_a = TileMatrix.from_dense(rng.normal(size=(n, n)) * np.exp(-5 * rng.random((n, n))), 1)
        layout_b = TileMatrix.from_dense(rng.normal(size=(n, n)) * np.exp(-5 * rng.random((n, n))), 1)
        left, right = (products.Factor(x.layout, x.norms) for x in (layout_a, layout_b))
        skipping = products.Skipping(left, right, same=False)
        a, b = (abs(x.to_dense()) for x in (layout_a, layout_b))
        terms = a[:, :, None] * b[None]
        for tau in (0.0, 1e-3, 1e-2, 0.1, 1.0, np.inf):
            lists = skipping.lists(tau, False, "float64")
            assert lists.products == (terms >= tau).sum()
            lost = np.where(terms < tau, terms, 0).sum(axis=1)
            error = skipping.error(tau)
            assert np.linalg.norm(lost) <= error.fro and np.linalg.norm(lost, 2) <= error.spectral
            limit = float(np.linalg.norm(lost)) + 1e-9
            for spectral in (False, True):
                assert skipping.error(products.threshold(skipping, limit, spectral))[spectral] <= limit


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_as_large_as_the_matrices_are_carried_in_full(dtype, hermitian):
    """Where nothing is stored any more, a bound is the whole norm, and of numbers it is attained."""
    rng = np.random.default_rng(8)
    for n in (1, 5, 20):
        whole, left = [], []
        for _ in range(2):
            a = rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if np.dtype(dtype).kind == "c" else 0)
            a = (a + a.conj().T if hermitian else a).astype(dtype)
            whole.append(a.astype(np.complex128))
            left.append(TileMatrix.from_dense(a, 3, hermitian=hermitian).truncate(2 * np.linalg.norm(a)))
        (a, b), (x, y) = whole, left
        made = {
            "product": (x.multiply(y), a @ b), "square": (x.multiply(x), a @ a), "sum": (x + y, a + b),
            "multiple": (-3 * x, -3 * a), "transpose": (x.H, a.conj().T), "shifted": (x.shifted(1.0), a + np.eye(n)),
        }  # fmt: skip
        for name, (one, exact) in made.items():
            fro, spectral = errors(one, exact)
            assert fro <= one.error.fro and spectral <= one.error.spectral, (name, n)
            assert n > 1 or one.error.fro <= 1.0001 * (abs(a[0, 0]) + abs(b[0, 0])) if name == "sum" else True


def test_threads_change_nothing(monkeypatch):
    a = random_matrix(2, (400, 400), "float64", decay=20.0, hermitian=True)
    x = TileMatrix.from_dense(a, 10, hermitian=True)
    made = []
    for count in (1, 3):
        monkeypatch.setattr(products, "blas_threads", lambda count=count: count)
        made.append(x.square(atol=1e-4))
    assert np.array_equal(made[0].to_dense(), made[1].to_dense()) and made[0].error == made[1].error


def test_layouts_are_read_and_nothing_is_written_to():
    a = random_matrix(0, (64, 64), "float64", hermitian=True)
    wide = np.zeros((128, 128))
    wide[::2, ::2] = a
    kept = a.copy()
    a.flags.writeable = False
    expected = TileMatrix.from_dense(a, 10, hermitian=True).square().to_dense()
    for given_ in (
        np.asfortranarray(a),
        wide[::2, ::2],
        a[::-1][::-1],
        a.astype(">f8"),
        sp.bsr_array(a),
        sp.coo_array(a),
    ):
        make = TileMatrix.from_sparse if sp.issparse(given_) else TileMatrix.from_dense
        x = make(given_, 10, hermitian=True)
        assert np.array_equal(x.square().to_dense(), expected)
        data, norms = x.data.copy(), x.norms.copy()
        for _ in (x + x, x @ x, 2 * x, x.truncate(1e-3), x.T, -x, x.shifted(1.0), x.astype("float32"), x.dot(x)):
            assert np.array_equal(x.data, data) and np.array_equal(x.norms, norms)
        x._data[:] = 7  # which was not the caller's memory
    assert np.array_equal(a, kept) and np.array_equal(wide[::2, ::2], kept)


def test_a_permutation_is_undone_and_brings_neighbours_together():
    rng = np.random.default_rng(4)
    points = rng.random((60, 3)) * 10
    order, rows = partition(np.full(60, 4), 16, positions=points)
    places = np.repeat(points, 4, axis=0)
    a = np.exp(-2 * np.linalg.norm(places[:, None] - places, axis=2))
    plain, along = TileMatrix.from_dense(a, 16, atol=1e-2), TileMatrix.from_dense(a, rows, atol=1e-2, permutation=order)
    assert along.fill < plain.fill
    assert_bounded(along, a)
    assert_bounded(along.square(), a @ a, 1e-12)
    np.testing.assert_array_equal(along.to_csr().toarray(), along.to_dense())
    back = along.permuted(np.arange(240), 16)
    np.testing.assert_array_equal(back.to_dense(), along.to_dense())
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    shuffled = sp.diags_array([np.ones(99), np.ones(100), np.ones(99)], offsets=[-1, 0, 1]).tocsr()
    mix = rng.permutation(100)
    shuffled = shuffled[mix][:, mix]
    x = TileMatrix.from_sparse(shuffled, 10, permutation=reverse_cuthill_mckee(shuffled, symmetric_mode=True))
    assert x.fill < 0.3 < TileMatrix.from_sparse(shuffled, 10).fill
    np.testing.assert_array_equal(x.to_dense(), shuffled.toarray())
    with pytest.raises(ValueError, match="different orders"):
        plain + TileMatrix.from_dense(a, 16, permutation=np.arange(240)[::-1])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_curve_visits_neighbours(d):
    side = 8
    grid = np.stack(np.meshgrid(*[np.arange(side)] * d, indexing="ij"), axis=-1).reshape(-1, d)
    order = hilbert_order(grid[np.random.default_rng(d).permutation(len(grid))])
    assert sorted(order) == list(range(side**d))
    walk = grid[hilbert_order(grid)]
    steps = np.abs(np.diff(walk, axis=0)).sum(axis=1)
    assert (steps == 1).mean() > 0.9


def test_from_tiles_and_no_tiles():
    x = TileMatrix.from_tiles(lambda i, j: np.full((i + 1, j + 1), i - j), [(1, 0), (0, 1)], [1, 2])
    np.testing.assert_array_equal(x.to_dense(), [[0, -1, -1], [1, 0, 0], [1, 0, 0]])
    none = TileMatrix.from_dense(np.zeros((6, 6)), 2, hermitian=True)
    assert none.fill == 0 and none.norm() == none.norm("spectral") == none.trace() == 0
    assert (none @ none).norm() == 0 and (none + none.shifted(2.0)).trace() == 12 and none.eigenvalue_bounds() == (0, 0)
    empty = TileMatrix.from_dense(np.zeros((0, 0)), 4)
    assert (empty @ empty).shape == (0, 0) and empty.to_csr().shape == (0, 0)


def test_range_of_entries():
    """Squares that leave float64's range, and a product that does."""
    for size in (1e-300, 1e-170, 1e170, 1e300):
        a = size * random_matrix(0, (20, 20), "float64")
        x = TileMatrix.from_dense(a, 6)
        norm = np.linalg.norm(a / size)
        assert norm * (1 - 1e-12) <= x.norm() / size <= 10 * norm
        assert x.norm("spectral") / size >= 0.999 * np.linalg.norm(a / size, 2)
        other = TileMatrix.from_dense(random_matrix(1, (20, 20), "float64") / size, 6)
        assert np.linalg.norm((x @ other).to_dense() - a @ other.to_dense()) <= (x @ other).error.fro
        with np.errstate(all="raise", under="ignore"):
            made = x.multiply(other, rtol=1e-3)
        assert made.error.fro <= 1e-3 * made.norm()
    with pytest.raises(ValueError, match="overflows"):
        TileMatrix.from_dense(np.full((4, 4), 1e200), 2).square()
    with np.errstate(all="raise"), pytest.raises(ValueError, match="overflows"):
        TileMatrix.from_tiles(lambda i, j: np.full((2, 2), np.longdouble(2) ** 5000), [(0, 0)], [2])
    x = TileMatrix.from_dense(np.full((4, 4), 1e-200), 2)
    assert x.square().error.fro > 0 and x.square().norm() == 0


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_product_that_is_hermitian_is_so_to_the_last_digit(dtype):
    rng = np.random.default_rng(2)
    a = (rng.normal(size=(40, 40)) + 1j * rng.normal(size=(40, 40))).astype(dtype)
    x = TileMatrix.from_dense((a + a.conj().T) / 2, 7, hermitian=True)
    made = x.multiply(x.square(), hermitian=True)
    assert made.hermitian and np.array_equal(made.to_dense(), made.to_dense().conj().T)


def test_a_product_that_vanishes_has_no_relative_error():
    small, one = TileMatrix.from_dense(np.full((2, 2), 1e-322), 2), TileMatrix.from_dense(np.full((2, 2), 0.3), 2)
    for norm in ("fro", "spectral"):
        with pytest.raises(ValueError, match="below what rounding to float64 alone may take here"):
            one.multiply(small, rtol=1e-3, norm=norm)
    assert one.multiply(small, atol=1e-3).error.fro <= 1e-3


def test_mistakes_are_told_in_one_sentence():
    a = np.eye(6)
    x = TileMatrix.from_dense(a, 2)
    upper = np.triu(np.ones((6, 6)))
    make, one = TileMatrix.from_tiles, [(0, 0)]
    cases = [
        (lambda: TileMatrix.from_dense(a, [2, 2]), ValueError, "rows adds up to 4, and the matrix has 6"),
        (lambda: TileMatrix.from_dense(a, 0), ValueError, "rows is 0"),
        (lambda: TileMatrix.from_dense(a, [3, 0, 3]), ValueError, "without rows"),
        (lambda: TileMatrix.from_dense(a, [2.5, 3.5]), TypeError, "whole numbers"),
        (lambda: TileMatrix.from_dense(a.astype("float16")), TypeError, "float16: convert it"),
        (lambda: TileMatrix.from_dense(a[0]), ValueError, r"shape \(6,\)"),
        (lambda: TileMatrix.from_dense(upper, 2, hermitian=True), ValueError, "Hermitian, by up to 1"),
        (lambda: TileMatrix.from_sparse(sp.csr_array(upper), 2, hermitian=True), ValueError, "Hermitian"),
        (lambda: TileMatrix.from_dense(np.full((6, 6), np.nan), 2), ValueError, "tile .0, 0. of a holds NaN"),
        (lambda: TileMatrix.from_dense(a, 2, permutation=[0, 0, 1, 2, 3, 4]), ValueError, "no order of the 6 rows"),
        (lambda: TileMatrix.from_sparse(a), TypeError, "no sparse matrix"),
        (lambda: TileMatrix.from_dense(np.full((2, 2), 2**53 + 1)), ValueError, "a has integers beyond 2..53"),
        (lambda: TileMatrix.from_dense(np.full((2, 2), -(2**63))), ValueError, "a has integers beyond 2..53"),
        (lambda: TileMatrix.from_sparse(sp.csr_array(np.full((2, 2), 2**64 - 1, "u8"))), ValueError, "beyond 2..53"),
        (lambda: make(lambda i, j: [[2**60]], one, [1]), ValueError, "tile .0, 0. has integers beyond"),
        *((lambda f=f: f(hermitian="x"), TypeError, "hermitian = 'x' is no truth value") for f in (
            partial(TileMatrix.from_dense, a), partial(TileMatrix.from_sparse, sp.csr_array(a)),
            partial(make, lambda i, j: [[1.0]], one, [1]), partial(TileMatrix.identity, [2]), partial(x.multiply, x),
        )),
        (lambda: TileMatrix(a), TypeError, "by from_dense"),
        (lambda: TileMatrix.from_dense(sp.csr_array(a)), TypeError, "sparse"),
        (lambda: x + TileMatrix.from_dense(a, 3), ValueError, "one partition"),
        (lambda: x @ TileMatrix.from_dense(a, 3), ValueError, "one partition"),
        (lambda: TileMatrix.identity(x.rows), ValueError, "numpy.diff of where tiles begin"),
        (lambda: x.truncate(None), TypeError, "atol = None is no real number"),
        (lambda: x.multiply(x, rtol="a"), TypeError, "rtol = 'a' is no real number"),
        (lambda: x.shifted("a"), TypeError, "shift is 'a'"),
        (lambda: x.shifted(np.nan), ValueError, "shift is nan"),
        (lambda: x * 10**400, ValueError, "pass a finite number"),
        (lambda: x.multiply(a), TypeError, "ndarray"),
        (lambda: x.square(atol=-1.0), ValueError, "atol is -1"),
        (lambda: x.square(atol=1.0, rtol=1.0), ValueError, "atol and rtol are given"),
        (lambda: x.square(atol=1.0, norm="nuclear"), ValueError, "choose one of fro, spectral"),
        (lambda: x.astype("float32").square(rtol=1e-12), ValueError, "rounding to float32 alone.*or use float64"),
        (lambda: x.square(atol=1e-18), ValueError, "rounding to float64 alone"),
        (lambda: x.truncate(np.nan), ValueError, "atol is nan"),
        (lambda: x * np.inf, ValueError, "factor is inf"),
        (lambda: x.eigenvalue_bounds(), ValueError, "not stored as Hermitian"),
        (lambda: x.astype("complex64").astype("float32"), TypeError, "imaginary"),
        (lambda: make(lambda i, j: a, one, [2, 4]), ValueError, "has shape .6, 6., and .2, 2."),
        (lambda: make(lambda i, j: a, [(2, 0)], [2, 4]), ValueError, "outside"),
        (lambda: make(lambda i, j: a, [(1, 0)], [2, 4], hermitian=True), ValueError, "below the diagonal"),
        (lambda: make(lambda i, j: a, one * 2, [2, 4]), ValueError, "twice"),
        (lambda: hilbert_order(np.zeros((2, 4))), ValueError, "1 to 3 coordinates"),
        (lambda: hilbert_order([np.nan]), ValueError, "NaN"),
        (lambda: hilbert_order([1j, 2.0]), TypeError, "positions must be real numbers"),
        (lambda: partition([1, 0]), ValueError, "positive"),
        (lambda: partition([2.5, 1.0]), TypeError, "sizes is of float64"),
        (lambda: partition(3), ValueError, "no list"),
        (lambda: partition([3], -1), ValueError, "block = -1"),
        (lambda: partition([3], "a"), ValueError, "block = 'a'"),
        (lambda: x.permuted(0), ValueError, "no order of the 6 rows"),
        (lambda: partition([1, 2], positions=[0.0]), ValueError, "1 points and sizes 2"),
    ]  # fmt: skip
    for call, kind, said in cases:
        with pytest.raises(kind, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


FOREIGN = [np.eye(6), np.ones(6), np.array(2.0), sp.csr_array(np.eye(6)), [1.0] * 6, None, "a", 2]


@pytest.mark.parametrize("other", FOREIGN, ids=lambda one: type(one).__name__)
def test_no_operator_takes_what_has_no_error_to_carry(other):
    x = TileMatrix.from_dense(np.eye(6), 2)
    calls = [lambda: x @ other, lambda: x + other, lambda: x - other]
    if not isinstance(other, int):
        calls += [lambda: x * other, lambda: x / other]
    if not sp.issparse(other):  # SciPy asks nobody
        calls += [lambda: other @ x, lambda: other - x, lambda: other / x]
        calls += [] if isinstance(other, list | str) else [lambda: other + x]
    for call in calls:
        with pytest.raises(TypeError, match=r"do not go together here: make both tile matrices, or take .to_dense\(\)"):
            call()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_factors_beyond_the_range_of_the_type_are_refused_unless_nothing_is_multiplied(dtype):
    x = TileMatrix.from_dense(np.eye(6, dtype=dtype), 2)
    for call in (lambda: 1e300 * x, lambda: x / 1e-300, lambda: x.shifted(1e300)):
        with pytest.raises(ValueError, match="overflows: correct or scale the matrix"):
            call()
    assert (1e300 * TileMatrix.from_dense(np.zeros((6, 6), dtype), 2)).norm() == 0
    small = 1e-300 * x
    assert 1e-300 * np.sqrt(6) <= small.error.fro + small.norm() < 1e-30


@pytest.mark.parametrize("make", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.dia_array])
def test_a_product_that_scipy_would_make_dense_is_refused(make):
    with pytest.raises(AttributeError, match="make both tile matrices"):
        make(np.eye(6)) @ TileMatrix.from_dense(np.eye(6), 2)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("hermitian", [False, True])
def test_a_complex_shift_leaves_a_whole_complex_matrix(dtype, hermitian):
    a = random_matrix(3, (9, 9), dtype, hermitian=True)
    for x in (TileMatrix.from_dense(a, 4, hermitian=hermitian), TileMatrix.from_dense(0 * a, 4, hermitian=hermitian)):
        for shift in (0.5j, np.complex64(1 - 2j), 1.5):
            made = x.shifted(shift)
            wanted = x.to_dense() + shift * np.eye(9)
            assert np.linalg.norm(made.to_dense() - wanted) <= made.error.fro + 1e-6 * (dtype == "complex64")
            assert made.hermitian == (hermitian and shift == 1.5)
            assert np.array_equal(made.H.to_dense(), made.to_dense().conj().T)


def test_a_matrix_is_pickled_and_shown():
    x = TileMatrix.from_dense(random_matrix(0, (40, 40), "complex128", hermitian=True), 16, hermitian=True, atol=1e-3)
    y = pickle.loads(pickle.dumps(x))
    assert np.array_equal(x.to_dense(), y.to_dense()) and x.error == y.error
    for part in ("40 x 40", "complex128", "Hermitian", "tiles of 8 to 16", f"{x.norm():.4g}", f"{x.error.fro:.2g}"):
        assert part in repr(x)


def test_examples_of_methods_run():
    said, runner = [], doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(TileMatrix, "TileMatrix", globs={"TileMatrix": TileMatrix}):
        runner.run(test, out=said.append)
    assert runner.tries > 15 and not runner.failures, "".join(said)


def test_a_number_is_a_truth_value_and_an_error_is_carried_on():
    a = random_matrix(4, (40, 40), "float64", hermitian=True)
    for make, given_ in ((TileMatrix.from_dense, a), (TileMatrix.from_sparse, sp.csr_array(a))):
        np.testing.assert_array_equal(make(given_, 8, hermitian=1).to_dense(), a)
    cut = TileMatrix.from_dense(a, 8, atol=1.0)
    again = TileMatrix.from_dense(cut, 5, atol=1.0)
    assert np.linalg.norm(again.to_dense() - a) <= again.error.fro and again.error.fro > cut.error.fro > 0
    whole = TileMatrix.from_dense(np.full((2, 2), -(2**53)))
    assert whole.to_dense().tolist() == [[-(2.0**53)] * 2] * 2


@pytest.mark.parametrize("hermitian", [True, False])
def test_numpy_reads_it_as_the_dense_matrix(hermitian):
    a = random_matrix(3, (9, 9), "complex64", hermitian=hermitian)
    x = TileMatrix.from_dense(a, [4, 5], hermitian=hermitian, permutation=np.arange(9)[::-1])
    np.testing.assert_array_equal(np.asarray(x), a)
    assert np.asarray(x).dtype == np.complex64 and np.array(x, dtype=np.complex128).dtype == np.complex128
    assert np.linalg.norm(x) == np.linalg.norm(a)
    with pytest.raises(ValueError, match="is a copy"):
        np.asarray(x, copy=False)
    with pytest.raises(TypeError):
        np.ones((9, 9)) @ x


def test_a_notebook_shows_what_the_console_shows():
    x = TileMatrix.from_dense(np.eye(6), [2, 4], hermitian=True)
    shown = x._repr_html_()
    for part in repr(x).removeprefix("TileMatrix(").removesuffix(")").split(", "):
        assert f"<td>{part}</td>" in shown


@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize("share", [1.05, 1.3, 2.5])
def test_an_error_that_rounding_nearly_takes_is_kept(hermitian, share):
    """What is left out has what rounding leaves, not half of all."""
    a = random_matrix(6, (120, 120), "float32", decay=8.0, hermitian=hermitian)
    x = TileMatrix.from_dense(a, 10, hermitian=hermitian)
    rounding = x.square().error.fro
    made = x.square(atol=share * rounding)
    assert made.error.fro <= share * rounding and made.products < x.square().products
    assert_bounded(made, a.astype(np.float64) @ a)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("hermitian", [False, True])
def test_norms_of_tiles_and_of_their_map_are_those_of_dense_ones(dtype, hermitian):
    a = random_matrix(31, (50, 50), dtype, hermitian=hermitian)
    rows = sizes(np.random.default_rng(31), 50)
    x = TileMatrix.from_dense(a, rows, hermitian=hermitian)
    ends = np.cumsum([0, *rows])
    tiles = [
        np.abs(a[ends[i] : ends[i + 1], ends[j] : ends[j + 1]].astype(np.complex128))
        for i, j in zip(x.layout.tile_rows, x.indices, strict=True)
    ]
    fro = np.array([np.linalg.norm(tile) for tile in tiles])
    np.testing.assert_allclose(x.norms, fro, rtol=1e-12)
    lines = np.array([np.sqrt(tile.sum(axis=1).max() * tile.sum(axis=0).max()) for tile in tiles])
    np.testing.assert_allclose(x.spectral_norms, np.minimum(fro, lines), rtol=1e-10)
    held = np.zeros(x.layout.grid)
    held[x.layout.tile_rows, x.indices] = x.spectral_norms
    held = np.maximum(held, held.T) if hermitian else held
    # Sharpened to what the map's own norm is, of a map with one largest eigenvalue.
    assert np.linalg.norm(held, 2) * (1 - 1e-12) <= x.norm("spectral") <= 1.1 * np.linalg.norm(held, 2)
    assert (x + x.H if not hermitian else x).hermitian_part().to_dense().diagonal().imag.max() == 0


@pytest.mark.parametrize("kind", ["a row", "a column", "an arrow"])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0, 1.1, 2.0, 5.0, 20.0])
def test_sums_over_rows_and_over_columns_both_end_what_is_left_out(kind, share):
    n = 64
    line = np.linspace(1.0, 2.0, n) * 1e-3
    x = np.eye(n) * (kind == "an arrow")
    x[0 if kind == "a row" else slice(None), slice(None) if kind == "a row" else 0] = line
    if kind == "an arrow":
        x[0], x[0, 0] = line, 1.0
    atol = share * 2e-3
    matrix = TileMatrix.from_dense(x, 1, hermitian=kind == "an arrow")
    kept = matrix.truncate(atol, norm="spectral")
    left_out = x - kept.to_dense()
    assert abs(left_out).sum(axis=0).max() <= atol and abs(left_out).sum(axis=1).max() <= atol
    assert np.linalg.norm(left_out, 2) <= kept.error.spectral <= atol
    assert (kept.fill < matrix.fill) == (share >= 0.9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_hermitian_part_of_a_hermitian_matrix_is_itself(dtype):
    rng = np.random.default_rng(5)
    a = (rng.normal(size=(20, 20)) + 1j * rng.normal(size=(20, 20))).astype(dtype)
    same = TileMatrix.from_dense(a + a.conj().T, 6)
    found = same.hermitian_part()
    assert found.hermitian and found.error == same.error == (0.0, 0.0)
    np.testing.assert_array_equal(found.to_dense(), same.to_dense())
    other = TileMatrix.from_dense(a, 6).hermitian_part()
    assert np.linalg.norm(other.to_dense() - a) <= other.error.fro <= np.linalg.norm(a)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("norm", ["fro", "spectral"])
def test_relative_errors_are_relative_to_what_they_say(norm: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 17])
    n, i = 96, np.arange(96)
    a, b = (rng.normal(size=(n, n)) * np.exp(-abs(i[:, None] - i) / 4.0) for _ in range(2))
    x, y = (TileMatrix.from_dense(one, 12) for one in (a, b))
    size = {"fro": np.linalg.norm, "spectral": lambda z: np.linalg.norm(z, 2)}[norm]
    for share in (0.1, 1e-3, 1e-9):
        found = x.multiply(y, rtol=share, norm=norm)
        assert size(found.to_dense() - a @ b) <= found.error[norm == "spectral"] <= share * size(a @ b)
        found = x.multiply(y, rtol_factors=share, norm=norm)
        assert size(found.to_dense() - a @ b) <= found.error[norm == "spectral"] <= share * size(a) * size(b)
    assert x.square(rtol_factors=0.1).products < x.square(rtol_factors=1e-9).products
    with pytest.raises(ValueError, match="rtol and rtol_factors are given"):
        x.square(rtol=0.1, rtol_factors=0.1)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_conversions_need_a_few_matrices_beside_what_they_read(dtype):
    """Not the rows and the columns of all entries, which are several times as large."""
    n, rng = 700, np.random.default_rng(0)
    a = rng.normal(size=(n, n)).astype(dtype)
    a, order = a + a.conj().T, rng.permutation(n)
    whole, half = TileMatrix.from_dense(a, 20), TileMatrix.from_dense(a, 20, hermitian=True, permutation=order)
    sparse = half.to_csr()
    assert np.array_equal(sparse.toarray(), a) and np.array_equal(half.to_dense(), a)
    calls = {
        3.2 * a.nbytes: [
            lambda: TileMatrix.from_dense(a, 20), lambda: TileMatrix.from_dense(np.asfortranarray(a), 20),
            lambda: TileMatrix.from_dense(a, 20, hermitian=True, permutation=order), whole.to_dense, half.to_dense,
            whole.hermitian_part, half.whole, lambda: half.astype(dtype), lambda: half.dot(half),
        ],
        4.5 * (sparse.data.nbytes + sparse.indices.nbytes): [
            whole.to_csr, half.to_csr, lambda: TileMatrix.from_sparse(sparse, 20),
            lambda: TileMatrix.from_sparse(sparse, 20, hermitian=True, permutation=order), lambda: half.permuted(order),
        ],
    }  # fmt: skip
    for most, those in calls.items():
        for number, call in enumerate(those):
            call()
            tracemalloc.start()
            call()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < most, (number, peak / a.nbytes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
def test_the_error_of_a_multiple_holds_for_factors_of_every_size(dtype, hermitian):
    largest = float(np.finfo(dtype).max)
    scales = [2.0**power for power in np.linspace(-np.log2(largest), 0.9 * np.log2(largest), 9).astype(int).tolist()]
    for scale in scales:
        given = np.dtype(dtype).type(scale) * random_matrix(3, (12, 12), dtype, hermitian=hermitian)
        x = TileMatrix.from_dense(given, 4, hermitian=hermitian)
        for factor in [1e-310, 1e-300, 1e-160, 1e-60, 1e-50, 1e-42, 1e-38, 1 / 3, 1e-20 * (1 + 1j), 1e-45j, 3e20]:
            try:
                made = [(factor * x, factor * given.astype(np.clongdouble))]
                made.append((x + factor * x, (1 + np.clongdouble(factor)) * given.astype(np.clongdouble)))
            except ValueError as error:
                assert "overflows" in str(error)
                continue
            for one, exact in made:
                off = one.to_dense().astype(np.clongdouble) - exact
                size = abs(off).max()
                assert (
                    size == 0 or size * np.linalg.norm((off / size).astype(np.complex128)) <= one.error.fro * 1.000001
                )


@pytest.mark.parametrize("divisor", [1e-310, 1e-310j, np.nan])
def test_a_divisor_without_a_reciprocal_is_refused_as_it_was_given(divisor):
    with pytest.raises(ValueError, match="the divisor is"):
        TileMatrix.identity([2]) / divisor
