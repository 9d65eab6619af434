"""Tridiagonal and banded problems on the CPU: any dtype, layout, half, part and batch, against the dense matrix."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile import evd
from spectile.evd.cpu import narrow
from spectile_study.inputs.spectra import residuals

DTYPES = ("float64", "float32", "complex128", "complex64", "int32", "int8", "bool", ">f8", "float16")


def wide(dtype):
    return np.complex128 if np.dtype(dtype).kind == "c" else np.float64


def values_of(draw, shape, dtype):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.uniform(-9, 9, shape) + (1j * rng.uniform(-9, 9, shape) if np.dtype(dtype).kind == "c" else 0)
    return x > 0 if dtype == "bool" else x.astype(dtype)


def part_of(draw, n, w):
    """Return the keywords of a part, and which eigenvalues it names, an interval's ends between two of them."""
    kind = draw(st.sampled_from(["a", "all", 0, "i", "index", 2, "v", "value", 1]))
    low = draw(st.integers(0, n - 1))
    high = draw(st.integers(low, n - 1))
    if kind in ("a", "all", 0):
        return {"select": kind}, slice(0, n)
    if kind in ("i", "index", 2):
        return {"select": kind, "select_range": (low, high)}, slice(low, high + 1)
    # Ends in the midst of gaps, where rounding does not decide.
    gaps = np.flatnonzero(np.diff(w) > 1e-3 * abs(w).max()) + 1
    firsts = draw(st.lists(st.sampled_from([0, *gaps.tolist(), n]), min_size=2, max_size=2).map(sorted))
    middles = np.concatenate([[w[0] - 1], (w[1:] + w[:-1]) / 2, [w[-1] + 1]])
    return {"select": kind, "select_range": tuple(middles[firsts])}, slice(*firsts)


def check(full, result, values, wanted, limit=10):
    w, v = result
    reference = np.linalg.eigvalsh(full.astype(wide(full.dtype)))
    assert w.shape == values.shape == (wanted.stop - wanted.start,)
    full = full.astype(v.dtype)
    if not full.any():
        assert not w.any() and not values.any()
        return
    for found in (residuals(full, w, v, reference[wanted]), residuals(full, values, None, reference[wanted])):
        assert all(error < limit for error in found.values()), found


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_band(data):
    draw = data.draw
    n, rows, dtype, lower = (
        draw(st.integers(1, 24)),
        draw(st.integers(1, 28)),
        draw(st.sampled_from(DTYPES)),
        draw(st.booleans()),
    )
    band = values_of(draw, (rows, n), dtype)
    full = np.zeros((n, n), dtype)
    for k in range(min(rows, n)):
        along = band[k, : n - k] if lower else band[rows - 1 - k, k:]
        at = np.arange(n - k)
        column = at if lower else at + k
        row = at + k if lower else at
        full[row, column] = along
        full[column, row] = along.conj()
    full[np.diag_indices(n)] = full.diagonal().real
    keywords, wanted = part_of(draw, n, np.linalg.eigvalsh(full.astype(wide(dtype))))
    given_band = draw(st.sampled_from([band, np.asfortranarray(band), band[:, ::-1].copy()[:, ::-1], band.tolist()]))
    keywords |= {"lower": lower, "backend": "cpu"}
    before = np.array(given_band)
    result = evd.eig_banded(given_band, max_ev=draw(st.integers(0, 3)), **keywords)
    check(full if np.array(given_band).dtype == full.dtype else full.astype(np.array(given_band).dtype), result,
          evd.eigvals_banded(given_band, **keywords), wanted)  # fmt: skip
    assert np.array_equal(given_band, before)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_tridiagonal(data):
    draw = data.draw
    n, dtype = draw(st.integers(1, 24)), draw(st.sampled_from([d for d in DTYPES if "complex" not in d]))
    d, e = values_of(draw, n, dtype), values_of(draw, n - 1, dtype)
    full = np.diag(d.astype(float)) + np.diag(e.astype(float), 1) + np.diag(e.astype(float), -1)
    keywords, wanted = part_of(draw, n, np.linalg.eigvalsh(full))
    driver = draw(
        st.sampled_from(["auto", "stebz", "stemr"] + ["stev", "stevd"] * (keywords["select"] in ("a", "all", 0)))
    )
    keywords |= {"lapack_driver": driver, "backend": "cpu"}
    before = d.copy(), e.copy()
    limit = 1000 if driver == "stemr" else 10  # MRRR is less orthogonal
    check(full, evd.eigh_tridiagonal(d, e, **keywords), evd.eigvalsh_tridiagonal(d, e, **keywords), wanted, limit)
    assert np.array_equal(d, before[0]) and np.array_equal(e, before[1])


def test_upper_band_of_order_one():
    """LAPACK's sbevd and hbevd take the first row, which lies outside the matrix."""
    for dtype in ("float32", "float64", "complex64", "complex128"):
        band = np.array([[7], [5]], dtype)
        w, v = evd.eig_banded(band, backend="cpu")
        assert (w, v) == (5, 1)
        assert evd.eigvals_banded(band, backend="cpu") == 5
        assert evd.eigvals_banded(band[::-1], lower=True, backend="cpu") == 5


def test_more_eigenvalues_than_expected():
    """LAPACK writes all eigenvectors that it finds, `max_ev` or more, past the end of their space."""
    band = np.random.default_rng(1).standard_normal((3, 60))
    w, v = evd.eig_banded(band, select="v", select_range=(-99, 99), max_ev=2, backend="cpu")
    assert w.shape == (60,) and v.shape == (60, 60)


@pytest.mark.parametrize("dtype, exponents", [("float64", (-1020, -600, 400, 1018)), ("float32", (-120, -80, 60, 122)),
                                              ("complex128", (-1020, 1018))])  # fmt: skip
def test_parts_of_scaled_matrices(dtype, exponents):
    """LAPACK's bisection takes squares of small entries for zero, and stops at those of large ones."""
    rng = np.random.default_rng(3)
    d, e, band = rng.standard_normal(30), rng.standard_normal(29), rng.standard_normal((4, 30)).astype(dtype)
    problems = [(evd.eig_banded, (band,))] + [(evd.eigh_tridiagonal, (d.astype(dtype), e.astype(dtype)))] * (
        "complex" not in dtype
    )
    for function, operands in problems:
        for part in ({"select": "i", "select_range": (3, 9)}, {"select": "v", "select_range": (-np.inf, -0.25)}):
            w, v = function(*operands, backend="cpu", **part)
            for exponent in exponents:
                scaled = [np.ldexp(x, exponent) if x.dtype.kind == "f" else x * 2.0**exponent for x in operands]
                limits = part["select_range"]
                if part["select"] == "v":
                    limits = tuple(np.ldexp(limits, exponent))
                ours, vectors = function(*scaled, select=part["select"], select_range=limits, backend="cpu")
                np.testing.assert_allclose(np.ldexp(ours, -exponent), w, rtol=1e-4 if dtype == "float32" else 1e-12)
                overlap = abs((v.conj() * vectors).sum(axis=0))
                np.testing.assert_allclose(overlap, 1, atol=1e-3 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("values_only", [False, True])
def test_batches(values_only):
    rng = np.random.default_rng(2)
    d, e, band = rng.standard_normal((2, 3, 7)), rng.standard_normal((2, 3, 6)), rng.standard_normal((2, 3, 4, 7))
    for function, operands in ((evd.eigh_tridiagonal, (d, e)), (evd.eig_banded, (band,))):
        for part in ({}, {"select": "i", "select_range": (1, 3)}):
            result = function(*operands, eigvals_only=values_only, backend="cpu", **part)
            w, v = (result, None) if values_only else result
            assert w.shape == (2, 3, 3 if part else 7) and (v is None or v.shape == (2, 3, 7, w.shape[-1]))
            for index in np.ndindex(2, 3):
                one = function(*(x[index] for x in operands), eigvals_only=values_only, backend="cpu", **part)
                pairs = zip((w,) if values_only else (w, v), (one,) if values_only else one, strict=True)
                assert all(np.array_equal(whole[index], own) for whole, own in pairs)
        with pytest.raises(ValueError, match="loop over the matrices"):
            function(*(x * np.array([1, 2, 3]).reshape(3, *[1] * (x.ndim - 2)) for x in operands), backend="cpu",
                     eigvals_only=values_only, select="v", select_range=(0.5, 1.5))  # fmt: skip
        with pytest.raises(ValueError, match="at least one matrix"):
            function(*(x[:0] for x in operands), backend="cpu", eigvals_only=values_only)


def test_orders_whose_work_space_is_no_32_bit_number(monkeypatch):
    """LAPACK's divide and conquer gets too little work space there, so that others find the eigenvectors."""
    n, m = narrow.DIVIDED_TRIDIAGONAL_ORDER, narrow.DIVIDED_BAND_ORDER
    assert n**2 + 4 * n + 1 < 2**31 <= (n + 1) ** 2 + 4 * (n + 1) + 1
    assert 2 * m**2 + 5 * m + 1 < 2**31 <= 2 * (m + 1) ** 2 + 5 * (m + 1) + 1
    rng = np.random.default_rng(4)
    d, e, band = rng.standard_normal(30), rng.standard_normal(29), rng.standard_normal((4, 30))
    calls = [(evd.eigh_tridiagonal, (d, e), {}), (evd.eigh_tridiagonal, (d, e), {"lapack_driver": "stevd"}),
             (evd.eig_banded, (band,), {}), (evd.eig_banded, (band.astype("F"),), {"lower": True})]  # fmt: skip
    whole = [function(*operands, backend="cpu", **keywords) for function, operands, keywords in calls]
    monkeypatch.setattr(narrow, "DIVIDED_TRIDIAGONAL_ORDER", 20)
    monkeypatch.setattr(narrow, "DIVIDED_BAND_ORDER", 20)

    def too_large(*_, **__):
        raise AssertionError("divide and conquer is called")

    find = scipy.linalg._decomp.get_lapack_funcs

    def without(names, arrays=()):
        found = find(names, arrays)
        return [
            too_large if name in ("stevd", "sbevd", "hbevd") else one for name, one in zip(names, found, strict=True)
        ]

    monkeypatch.setattr(scipy.linalg._decomp, "get_lapack_funcs", without)
    for (function, operands, keywords), (w, v) in zip(calls, whole, strict=True):
        ours, vectors = function(*operands, backend="cpu", **keywords)
        eps = np.finfo(v.dtype).eps
        np.testing.assert_allclose(ours, w, atol=1000 * eps)
        np.testing.assert_allclose(abs((v.conj() * vectors).sum(axis=0)), 1, atol=10000 * eps)


def test_masks_are_refused():
    hidden = np.ma.array(np.eye(3), mask=np.eye(3))
    for call in (
        lambda: evd.eigh(hidden, backend="cpu"),
        lambda: evd.eigvalsh(np.eye(3), hidden, backend="cpu"),
        lambda: evd.tridiagonalize(hidden, backend="cpu"),
        lambda: evd.eig_banded(hidden, backend="cpu"),
        lambda: evd.eigh_tridiagonal(hidden[0], np.ones(2), backend="cpu"),
    ):
        with pytest.raises(TypeError, match="has masked entries"):
            call()
    clean = np.ma.array(np.diag([1.0, 2.0, 3.0]), mask=False)
    np.testing.assert_allclose(evd.eigvalsh(clean, clean, backend="cpu"), 1)
    np.testing.assert_array_equal(evd.eigvals_banded(clean[:1, ::2], backend="cpu"), [0, 1])


@pytest.mark.parametrize("ends", [(np.nan, 1.0), (0.0, np.nan), (np.nan, np.nan)])
def test_ends_that_are_not_numbers(ends):
    """LAPACK compares with them and returns a part of its own, or writes where it must not."""
    for call in (evd.eigvals_banded, evd.eig_banded):
        with pytest.raises(ValueError, match="nondecreasing"):
            call(np.ones((2, 5)), select="v", select_range=ends, backend="cpu")
    with pytest.raises(ValueError, match="nondecreasing"):
        evd.eigh_tridiagonal(np.ones(5), np.ones(4), select="v", select_range=ends, backend="cpu")


@pytest.mark.parametrize("select", ["v", "i", "value", "index"])
def test_a_part_without_its_ends_says_what_is_missing(select):
    for call in (
        evd.eigvals_banded,
        evd.eig_banded,
        lambda band, **part: evd.eigh_tridiagonal(band[0], band[1, 1:], **part),
    ):
        with pytest.raises(ValueError, match="give its two ends as select_range"):
            call(np.ones((2, 5)), select=select)


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble", object, "U9", "M8[s]"])
def test_dtypes_that_are_refused(dtype):
    """As `eigh` refuses them: SciPy rounds long doubles to float64, and reads numbers in strings."""
    band = np.ones((2, 5), int).astype(dtype)
    for call in (
        lambda: evd.eig_banded(band, backend="cpu"),
        lambda: evd.eigvals_banded(band, backend="cpu"),
        lambda: evd.eigh_tridiagonal(band[0], band[0, 1:], backend="cpu"),
        lambda: evd.eigh(band[:1, :1], backend="cpu"),
    ):
        with pytest.raises(TypeError, match="float32, float64"):
            call()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("driver", "part"),
    [
        *((driver, {}) for driver in ("auto", "stemr", "stebz", "stev", "stevd")),
        *((driver, {"select": "i", "select_range": (0, 8)}) for driver in ("auto", "stemr", "stebz")),
    ],
)
def test_entries_near_the_ends_of_the_range(driver, part, dtype):
    rng, range_of = np.random.default_rng(3), np.finfo(dtype)
    d, e = rng.uniform(-1, 1, 9).astype(dtype), rng.uniform(-1, 1, 8).astype(dtype)
    w = np.linalg.eigvalsh(np.diag(d) + np.diag(e, 1) + np.diag(e, -1))
    for exponent in (range_of.maxexp - 3, range_of.minexp + 8):
        scaled = (np.ldexp(x, exponent) for x in (d, e))
        values, v = evd.eigh_tridiagonal(*scaled, lapack_driver=driver, backend="cpu", **part)
        assert np.abs(np.ldexp(values, -exponent) - w).max() < 100 * range_of.eps
        assert np.abs(v.T @ v - np.eye(9)).max() < 1000 * range_of.eps


@pytest.mark.parametrize("part", [("i", (1, 3)), ("v", (0.25, np.inf)), ("a", None)])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("power", [-1, 0, 1])
def test_what_lies_outside_a_band_changes_nothing(dtype, lower, part, power):
    info, n = np.finfo(dtype), 7
    unit = 2.0 ** (power * (info.maxexp - 20))
    given = (np.random.default_rng(3).uniform(1, 2, (3, n)) * unit).astype(dtype)
    corner = np.tri(3, n, -1, bool)[:, ::-1] if lower else np.tri(3, n, -1, bool)[::-1]
    ends = None if part[1] is None else tuple(np.multiply(part[1], unit if part[0] == "v" else 1).tolist())
    ends = tuple(map(int, ends)) if part[0] == "i" else ends
    found = []
    for outside in (0, 9, info.max, -info.tiny):
        band = given.copy()
        band[corner] = outside
        found.append(evd.eig_banded(band, lower, select=part[0], select_range=ends, backend="cpu"))
    assert found[0][0].size > 1
    assert all(np.array_equal(w, found[0][0]) and np.array_equal(v, found[0][1]) for w, v in found)
