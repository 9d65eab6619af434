"""Entries of any size that a dtype holds: errors stay within their bounds, and every search ends."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile.nearsparse import NormMap, norm_map, spamm, spamm_threshold, tune_tau
from spectile.nearsparse.bounds import MOST_BISECTIONS, largest_tau

# Least and largest exponents of entries: of the smallest subnormal number, and of the largest number.
EXPONENTS = {"f2": (-24, 15), "f4": (-149, 127), "f8": (-1074, 1023)}
REAL = {"f2": "f2", "f4": "f4", "f8": "f8", "c8": "f4", "c16": "f8"}


def entries(rng: Any, rows: int, columns: int, dtype: str, exponents: tuple[int, int]) -> Any:
    """Return entries whose exponents are drawn from a range, some of them zero."""
    if dtype not in EXPONENTS:
        parts = np.stack([entries(rng, rows, columns, REAL[dtype], exponents) for _ in range(2)], -1)
        return parts.view(dtype)[..., 0]
    drawn = rng.integers(exponents[0], exponents[1] + 1, (rows, columns))
    with np.errstate(under="ignore", over="ignore"):
        x = np.ldexp(1 + rng.random((rows, columns)), drawn).astype(dtype) * rng.choice([-1, 1], (rows, columns))
    x = np.clip(x, -np.finfo(dtype).max, np.finfo(dtype).max).astype(dtype)
    x[rng.random((rows, columns)) < 0.2] = 0
    return x


def root_at_most(square: Fraction, bound: float) -> bool:
    """Return whether the root of an exact number is at most a bound."""
    return bound == math.inf or square <= Fraction(bound) ** 2


def exact(x: Any) -> Any:
    return np.array([[Fraction(float(value)) for value in row] for row in x], object).reshape(x.shape)


def parts(x: Any) -> list[Any]:
    """Return the real and the imaginary part, exactly."""
    return [exact(x.real), exact(x.imag)]


def square(matrices: list[Any]) -> Fraction:
    return sum((value**2 for matrix in matrices for value in matrix.flat), Fraction(0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("wanted", [{"tau": 0.0}, {"tau": np.inf}, {"valid_ratio": 0.5}, {"atol": 50.0}])
@pytest.mark.parametrize("layout", ["C", "F", "out", "batch"])
def test_what_is_not_finite_in_c_stays_at_its_place(
    value: float, dtype: str, wanted: dict[str, float], layout: str
) -> None:
    rng = np.random.default_rng(5)
    a, b = (np.asarray(rng.normal(size=(70, 70)), dtype, order="F" if layout == "F" else "C") for _ in range(2))
    a = a[None] if layout == "batch" else a
    given = np.full((*a.shape[:-2], 70, 70), 0.25, "float32" if dtype == "float16" else dtype)
    given[..., 3, 40] = value
    where = given != 0.25
    for beta in (0.0, -2.0):
        c = given.copy("F" if layout == "F" else "C")
        found = spamm(a, b, c=c, beta=beta, out=c if layout == "out" else None, block=16, backend="cpu", **wanted)
        assert np.array_equal(~np.isfinite(found.c), where & (beta != 0))
        assert np.all(np.isfinite(found.error_bound)) == (beta == 0)
        assert np.array_equal(c, given, equal_nan=True) or layout == "out"
    with pytest.raises(ValueError, match="a holds NaN or infinity"):
        spamm(np.where(where, value, a).astype(dtype), b, c=given, beta=1.0, backend="cpu", **wanted)


def error_square(found: Any, a: Any, b: Any, alpha: float, beta: float, c: Any) -> Fraction:
    """Return the square of the Frobenius norm of the error, exactly."""
    (a_real, a_imag), (b_real, b_imag) = parts(a), parts(b)
    wanted = [a_real.dot(b_real) - a_imag.dot(b_imag), a_real.dot(b_imag) + a_imag.dot(b_real)]
    added = [Fraction(beta) * x for x in parts(c)] if c is not None else [0, 0]
    return square([x - Fraction(alpha) * y - z for x, y, z in zip(parts(found), wanted, added, strict=True)])


@st.composite
def windows(draw: Any, dtype: str) -> tuple[int, int]:
    low, high = EXPONENTS[dtype]
    first = draw(st.integers(low, high))
    return first, min(high, first + draw(st.sampled_from([0, 3, 30, 2100])))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_error_is_within_its_bound_over_the_whole_range(data: Any) -> None:
    types = {"float16": "f2", "float16c16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8"}
    types |= {"complex128": "c16"}
    precision = data.draw(st.sampled_from(list(types)))
    dtype = types[precision]
    m, k, n = (data.draw(st.integers(1, 9)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    a, b = (entries(rng, *size, dtype, data.draw(windows(REAL[dtype]))) for size in ((m, k), (k, n)))
    alpha = data.draw(st.sampled_from([1.0, -3.0, 1e-40, 1e-45, 1e39, 1e-310, 1e300]))
    beta = data.draw(st.sampled_from([0.0, 0.0, 2.0, 1e-42]))
    c_type = dtype if precision == "float16c16" or dtype in ("c8", "c16") else max(dtype, "f4")
    c = entries(rng, m, n, c_type, (-20, 10)) if beta else None
    product = float(np.max(norm_map(a, 4).norms)) * float(np.max(norm_map(b, 4).norms))
    choice = data.draw(
        st.sampled_from(
            [{"tau": 0.0}, {"tau": product / 8}, {"tau": 5e-324}, {"rtol_factors": 1e-3}, {"rtol_factors": 10.0}]
        )
    )
    if "rtol_factors" in choice:
        alpha, beta, c = 1.0, 0.0, None
    with np.errstate(all="ignore"):
        try:
            result = spamm(a, b, alpha=alpha, beta=beta, c=c, block=4, precision=precision, backend="cpu", **choice)
        except ValueError as error:
            assert "below what rounding" in str(error) or "overflows" in str(error)
            return
        bound = result.error_bound
    if not np.isfinite(result.c).all():
        assert bound == math.inf
        return
    error = error_square(result.c, a, b, alpha, beta, c)
    assert root_at_most(error, bound)
    if "rtol_factors" in choice:
        norms = square(parts(a)) * square(parts(b))
        assert error <= Fraction(choice["rtol_factors"]) ** 2 * norms * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("dtype", EXPONENTS)
def test_every_search_ends_over_the_whole_range(dtype: str) -> None:
    low, high = EXPONENTS[dtype]
    rng = np.random.default_rng(3)
    exponents = sorted(
        {*range(low, high + 1, max(1, (high - low) // 24)), high, -510, -515, -537} & set(range(low, high + 1))
    )
    for of_a, of_b in itertools.product(exponents, exponents[::4]):
        a, b = entries(rng, 12, 12, dtype, (of_a, of_a)), entries(rng, 12, 12, dtype, (of_b, of_b))
        with np.errstate(all="ignore"):
            for choice in ({"rtol_factors": 1e-3}, {"rtol_factors": 1e300}, {"atol": 1.0}, {"valid_ratio": 0.3}):
                try:
                    found = spamm_threshold(a, b, block=4, backend="cpu", **choice)
                except ValueError as error:
                    assert "below what rounding" in str(error)
                    continue
                assert found.tau >= 0 and found.error_bound >= 0


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("f8", size) for size in (1e-153, 1e-155, 1e-160, 1e152, 1e153, 4e153, 1e200)),
        *(("f4", size) for size in (5e17, 2e18, 1e30)),
    ],
)
def test_a_wanted_error_of_products_near_the_ends_of_the_range(dtype: str, size: float) -> None:
    x = (size * np.random.default_rng(0).standard_normal((128, 128))).astype(dtype)
    wanted = 1e-6 if dtype == "f8" else 1e-3
    calls = [spamm_threshold, *(functools.partial(spamm, method=method) for method in ("auto", "spamm"))]
    for call in calls:
        try:
            found = call(x, x, rtol_factors=wanted, backend="cpu")
        except ValueError as error:
            assert "below what rounding" in str(error) and not 1e-155 < size < 1e153 * (1e-136 if dtype == "f4" else 1)
        else:
            # Also where the product of the norms is no number.
            assert found.error_bound / size / size <= wanted * float(np.linalg.norm(x.astype("f8") / size)) ** 2


# Powers of two of A and of B, of which neither must leave the range, and the product must not.
APART = [
    (of_a, of_c - of_a)
    for of_a in (-1050, -1022, -990, -700, 0, 480, 700, 1019)
    for of_c in (-930, 0, 990)
    if -1050 <= of_c - of_a <= 1019
]


@pytest.mark.parametrize(("of_a", "of_b"), [*APART, *((b, a) for a, b in APART)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_operands_may_lie_anywhere_if_their_product_fits(of_a: int, of_b: int, dtype: str) -> None:
    rng = np.random.default_rng(5)
    i = np.arange(60)
    # Few digits: subnormal numbers hold them too.
    a, b = (np.ldexp(rng.integers(-15, 16, (60, 60)).astype("f8"), -abs(i[:, None] - i) // 4) for _ in range(2))
    if dtype == "c16":
        a, b = a + 1j * a.T, b - 2j * b
    one, two = (np.ldexp(x.view("f8"), exponent).view(dtype) for x, exponent in ((a, of_a), (b, of_b)))
    near = spamm(a, b, rtol_factors=1e-3, block=4, backend="cpu", method="spamm")
    assert 0.1 < near.valid_ratio < 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wanted in (
            {"rtol_factors": 1e-3},
            {"valid_ratio": near.valid_ratio},
            {"tau": math.ldexp(near.tau, of_a + of_b)},
            {"atol": math.ldexp(1e-3 * float(np.linalg.norm(a) * np.linalg.norm(b)), of_a + of_b)},
        ):
            found = spamm(one, two, block=4, backend="cpu", method="spamm", **wanted)
            before = spamm_threshold(one, two, block=4, backend="cpu", **wanted)
            assert found.tau == before.tau
            assert found.valid_ratio == pytest.approx(near.valid_ratio, abs=0.02)
            assert before.valid_ratio == pytest.approx(near.valid_ratio, abs=0.02)
            c = np.ldexp(found.c.view("f8"), -of_a - of_b).view(dtype)
            error, bound = np.linalg.norm(c - a @ b), math.ldexp(found.error_bound, -of_a - of_b)
            assert 0 < error <= bound == pytest.approx(near.error_bound, rel=0.2)
            if {"atol", "rtol_factors"} & wanted.keys():
                assert found.tau == pytest.approx(math.ldexp(near.tau, of_a + of_b), rel=1e-5)
                assert bound <= 1e-3 * np.linalg.norm(a) * np.linalg.norm(b) * (1 + 1e-9)


@pytest.mark.parametrize("small", [2.0**-1000, 2.0**-1022, 2.0**-1060])
def test_a_product_that_is_exact_is_no_reason_to_refuse(small: float) -> None:
    for a, b in (([[1.0]], [[small]]), ([[small]], [[1.0]]), ([[2.0**1000]], [[small]])):
        assert spamm_threshold(a, b, rtol_factors=0.1, backend="cpu").error_bound <= 0.1 * a[0][0] * b[0][0]
        assert spamm(a, b, rtol_factors=0.1, backend="cpu").c[0, 0] == a[0][0] * b[0][0]
    # Also where the product is below every number, and the error is not.
    for method in ("auto", "spamm"):
        assert spamm([[small]], [[small]], atol=0.1, method=method, backend="cpu").error_bound <= 0.1


def test_a_large_matrix_times_zero_has_a_bound() -> None:
    for a, b in (([[2.0**1020]], [[0.0]]), ([[0.0]], [[2.0**1020]])):
        result = spamm(a, b, tau=0.0, alpha=1e300, backend="cpu")
        assert result.c[0, 0] == 0 and result.error_bound == 0


def test_thresholds_are_compared_in_any_unit() -> None:
    for p, q in ((-600, -400), (-1070, 0), (900, 100), (1020, -1070)):
        a, b = np.diag(np.ldexp([1.0, 4.0, 0.0], p)), np.diag(np.ldexp([1.0, 1.0, 1.0], q))
        for tau, kept in ((0.0, 27), (1.0, 2), (4.0, 1), (8.0, 0)):
            found = spamm(a, b, tau=math.ldexp(tau, p + q), block=1, backend="cpu")
            assert round(27 * found.valid_ratio) == kept and np.count_nonzero(found.c) == min(kept, 2)


def steps(values: list[float]) -> Callable[[float], float]:
    """Return what thresholds skip of products: their sum."""
    return lambda tau: math.fsum(value for value in values if value < tau)


SMALLEST = math.nextafter(0.0, 1.0)
CROSSINGS = sorted(
    {math.ldexp(1.0, exponent) for exponent in range(-1074, 1024, 61)} | {SMALLEST, 3 * SMALLEST, 1e-307}
)


@pytest.mark.parametrize("largest", CROSSINGS)
def test_the_largest_threshold_is_found_in_few_trials_wherever_it_lies(largest: float) -> None:
    for crossing in (value for value in CROSSINGS if value <= largest):
        tried: list[float] = []

        def skipped(tau: float, crossing: float = crossing, tried: list[float] = tried) -> float:
            tried.append(tau)
            return 1.0 if tau > crossing else 0.0

        found = largest_tau(skipped, largest, 0.5)
        assert len(tried) <= MOST_BISECTIONS + 2
        assert 0 < found <= max(crossing, SMALLEST)
        # To a relative 1e-6, or to the next number; zeros alone are skipped at the smallest.
        reach = max(found * (1 + 2e-6), math.nextafter(found, math.inf))
        assert reach >= crossing


def test_norms_near_zero_are_rounded_up() -> None:
    tiny = np.array([[SMALLEST, SMALLEST]])
    for count, dtype in ((2, "f8"), (3, "f8")):
        x = np.full((1, count), SMALLEST, dtype)
        norm = Fraction(float(norm_map(x, 4).norms[0, 0]))
        assert norm**2 >= count * Fraction(SMALLEST) ** 2
    huge = np.full((2, 1), 1e300)
    result = spamm(tiny, huge, tau=math.inf, backend="cpu")
    assert root_at_most(error_square(result.c, tiny, huge, 1.0, 0.0, None), result.error_bound)
    assert tune_tau(tiny, huge, 0.3)[1] in (0.0, 1.0)


@pytest.mark.parametrize("bad", [10**400, np.float64(1e400)])
@pytest.mark.parametrize("name", ["tau", "rtol_factors", "alpha", "beta"])
def test_numbers_beyond_the_largest_are_refused_in_a_sentence(name: str, bad: Any) -> None:
    x = np.eye(4)
    keywords = {"tau": 0.0, "beta": 1.0} | (
        {name: bad} if name != "rtol_factors" else {"tau": None, "rtol_factors": bad}
    )
    if name == "tau" and bad == math.inf:
        assert not spamm(x, x, tau=bad, backend="cpu").c.any()
        return
    with pytest.raises(ValueError, match=r"beyond the largest number|not finite|not a tolerance"):
        spamm(x, x, c=x, backend="cpu", **keywords)


def shares(norms_a: Any, norms_b: Any, tau: float) -> tuple[float, float]:
    """Return the least and the largest share of products of norms, as exact numbers, that a threshold may leave."""
    products = [x * y for k in range(len(norms_b)) for x in norms_a[:, k] for y in norms_b[k]]
    # Norms near the smallest number may be rounded up before they are multiplied.
    least = Fraction(2) ** -1040 * (1 + norms_a.max() + norms_b.max())
    ends = [Fraction(tau) * (1 + Fraction(sign, 10**9)) + sign * least for sign in (1, -1)]
    low, high = (sum(product >= end for product in products) / len(products) for end in ends)
    return low, high


@pytest.mark.parametrize("of_a", [1023, 1000, 511, 0, -540, -1022, -1060])
@pytest.mark.parametrize("structure", ["full", "rows of zeros", "apart"])
def test_a_share_that_is_said_is_the_threshold_s_over_the_whole_range(of_a: int, structure: str) -> None:
    rng = np.random.default_rng(7)
    for of_b in (1023, 700, 511, 0, -480, -1000, -1060):
        a, b = (entries(rng, 6, 6, "f8", (of, of)) for of in (of_a, of_b))
        of_c = of_a + of_b
        if structure == "rows of zeros":
            b[::2] = 0
        elif structure == "apart":  # the largest of A meets the smallest of B
            a[:, 3:], b[:3], of_c = np.ldexp(a[:, 3:], -600), np.ldexp(b[:3], -600), of_c - 600
        # Norms of tiles of several entries leave the range where these do not.
        for block in (1, 3):
            wide_a, wide_b = (np.repeat(np.repeat(x, block, 0), block, 1) for x in (a, b))
            for wanted, options in ((0.3, {}), (1e-3, {"tolerance": 1e-5, "iterations": 40})):
                with warnings.catch_warnings(), np.errstate(divide="raise", over="raise", invalid="raise"):
                    warnings.simplefilter("error")
                    tau, share = tune_tau(wide_a, wide_b, wanted, block=block, **options)
                assert 0 <= tau < math.inf
                low, high = shares(*(block * exact(abs(x)) for x in (a, b)), tau)
                assert low <= share <= high, (of_b, block, wanted, tau)
                if -1000 < of_c < 1000:
                    positive = np.mean((a.T[:, :, None] != 0) & (b[:, None] != 0))
                    assert abs(share - min(wanted, positive)) < 0.03, (of_b, block, wanted, tau)


@pytest.mark.parametrize("where", ["norms of a", "norms of b", "entries"])
def test_a_share_of_norms_that_are_infinite_is_refused(where: str) -> None:
    x, infinite = np.ones((2, 2)), np.array([[1.0, math.inf], [1.0, 1.0]])
    given = {"norms of a": (NormMap(infinite), NormMap(x)), "norms of b": (NormMap(x), NormMap(infinite))}
    with pytest.raises(ValueError, match=r"norm map of [ab] holds infinity"):
        tune_tau(*given.get(where, (x, infinite)), 0.5)


def test_searches_of_a_share_end_without_warnings() -> None:
    rng = np.random.default_rng(3)
    for sizes in ((1e153, 1e155), (1e300, 1e300), (1e-300, 1e-300), (5e-324, 1.0)):
        a, b = (size * rng.standard_normal((40, 40)) for size in sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tau, share = tune_tau(a, b, 0.5, iterations=2**31 - 1, tolerance=0.0, block=8)
        assert tau >= 0 and 0 <= share <= 1
    equal = np.ones((40, 40))
    assert tune_tau(equal, equal, 0.5, iterations=2**31 - 1, block=8)[1] in (0.0, 1.0)
    for bad in ({"iterations": 10**400}, {"iterations": 0}, {"tolerance": 10**400}, {"tolerance": -1.0}):
        with pytest.raises(ValueError, match=r"iterations|tolerance"):
            tune_tau(equal, equal, 0.5, **bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="norms are real"):
        tune_tau(NormMap(equal * 1j), NormMap(equal), 0.5)
    with pytest.raises(ValueError, match="larger than any matrix"):
        norm_map(equal, 2**63)
