"""Bounds of SpAMM: what rounding may change, term by term."""

import math

import numpy as np
import pytest

from spectile.nearsparse import bounds, spamm

SHAPE = (64, 100, 36)
UNIT = {"fp16": 2.0**-24, "fp16c16": 2.0**-24, "fp32": 2.0**-24, "tf32x3": 2.0**-24, "fp64": 2.0**-53}


@pytest.mark.parametrize("precision", UNIT)
def test_rounding_of_the_sums_grows_with_the_inner_dimension(precision):
    found = bounds.rounding_bound(SHAPE, 3.0, 5.0, precision, alpha=-2.0)
    gamma = 102 * UNIT[precision] / (1 - 102 * UNIT[precision])
    # Tensor cores sum as if subnormal entries of float16 were 2^-14.
    size = 2 * (3 + 2.0**-14 * 80) * (5 + 2.0**-14 * 60) if precision.startswith("fp16") else 30
    rest = 2.0**-11 * (1 + gamma) * size + 2.0**-25 * 48 if precision == "fp16c16" else 0.0
    # 3xTF32 multiplies inexactly; what underflows is far below the rest here.
    inexact = 2.0**-19 * 30 if precision == "tf32x3" else 0.0
    assert found == pytest.approx(gamma * size + rest + inexact, rel=1e-11) and found > gamma * 30


def test_subnormal_entries_of_tensor_cores_are_summed_as_the_least_normal_ones():
    small = bounds.rounding_bound(SHAPE, 1e5, 1e-6, "fp16")
    assert small >= 2.0**-24 * 100 * 1e5 * 2.0**-14 * 60
    assert bounds.rounding_bound(SHAPE, 1e5, 1e-6, "fp32") < small / 1000
    assert bounds.rounding_bound(SHAPE, 1e30, 1e-42, "tf32x3") >= 2.0**-19 * 1e30 * 2.0**-126 * 60
    assert bounds.rounding_bound(SHAPE, 0.0, 1e-6, "fp16") == 0


def test_terms_of_the_rounding_bound():
    plain = bounds.rounding_bound(SHAPE, 3.0, 5.0, "fp32")
    with_c = bounds.rounding_bound(SHAPE, 3.0, 5.0, "fp32", beta=-7.0, norm_c=11.0)
    assert with_c - plain == pytest.approx(2 * 2.0**-24 * 77, rel=1e-6)
    inexact = bounds.rounding_bound(SHAPE, 3.0, 5.0, "tf32x3")
    assert inexact - plain == pytest.approx(2.0**-19 * 15, rel=1e-6)
    half = [bounds.rounding_bound(SHAPE, 3.0, 5.0, "fp16c16", beta=beta, norm_c=11.0) for beta in (0.0, 7.0)]
    assert half[1] - half[0] == pytest.approx((2 * 2.0**-24 + 2.0**-11) * 77, rel=1e-6)
    assert bounds.rounding_bound((1, 2**24, 1), 1.0, 1.0, "fp32") == math.inf


def test_rounding_bound_holds_for_half_precision_results():
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype("f2") for shape in ((64, 100), (100, 36), (64, 36)))
    exact = 2 * a.astype("f8") @ b.astype("f8") - 3 * c.astype("f8")
    found = (2 * (a.astype("f4") @ b.astype("f4")) - 3 * c.astype("f4")).astype("f2")
    norms = (float(np.linalg.norm(x.astype("f8"))) for x in (a, b))
    norm_c = float(np.linalg.norm(c.astype("f8")))
    error = np.linalg.norm(found - exact)
    assert 0 < error <= bounds.rounding_bound(SHAPE, *norms, "fp16c16", alpha=2, beta=-3, norm_c=norm_c)


@pytest.mark.parametrize("precision", UNIT)
@pytest.mark.parametrize("shape", [SHAPE, (1, 1, 1), (1000, 40000, 3)])
def test_the_bound_of_a_product_in_terms(precision, shape):
    relative, lift_a, lift_b, underflow, largest = bounds.rounding_terms(shape, precision)
    for norm_a, norm_b in (
        (3.0, 5.0),
        (1e-20, 1e-23),
        (1e-30, 1e10),
        (1024.0, largest / 1024),
        (math.sqrt(largest) / 2,) * 2,
    ):
        wanted = bounds.rounding_bound(shape, norm_a, norm_b, precision)
        found = relative * (norm_a + lift_a) * (norm_b + lift_b) + underflow
        assert found == pytest.approx(wanted, rel=1e-12)
    for norm_a, norm_b in ((1024.0, math.nextafter(largest / 1024, math.inf)), (1e30, largest), (1e200, 1e200)):
        assert bounds.rounding_bound(shape, norm_a, norm_b, precision) == math.inf
    most = float(np.finfo("f8" if precision == "fp64" else "f4").max)
    assert (1 + relative) * (largest / most) <= 1.001
    assert bounds.rounding_terms((1, 2**60, 1), precision)[0] == math.inf


def test_entries_that_become_infinite_before_they_are_multiplied_have_no_bound():
    # The high part of 3xTF32, rounded to nearest at 10 bits, of the last number that it holds and of the largest.
    largest = bounds.ALL["tf32x3"].largest_operand
    high = [
        ((np.float32(x).view("u4") + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view("f4")
        for x in (largest, np.finfo("f4").max)
    ]
    assert high[0] == largest and high[1] == math.inf
    for norms in ((np.finfo("f4").max, 1e-10), (1e-10, np.finfo("f4").max)):
        assert bounds.rounding_bound(SHAPE, *map(float, norms), "tf32x3") == math.inf
        assert bounds.rounding_bound(SHAPE, *map(float, norms), "fp32") < math.inf
    assert bounds.rounding_bound(SHAPE, largest, 1e-10, "tf32x3") < math.inf


def test_no_error_is_searched_for_where_sums_may_overflow():
    for rounding, scale in ((math.inf, 1e60), (math.inf, math.inf), (2.0, 1e3), (math.inf, 0.0)):
        with pytest.raises(ValueError, match="below what rounding alone"):
            bounds.skipping_limit(("atol", 1e-3), 1e-3 * scale, rounding)
    assert bounds.skipping_limit(("atol", 1e-3), 1.0, 0.25) == 0.75


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-200, 1.0, 3.0, 1e200, 1e300, math.inf])
def test_squares_in_a_unit_stay_within_float64(size):
    unit = bounds.square_unit(size)
    assert math.frexp(unit)[0] == 0.5 and 0 < unit < math.inf
    if size < math.inf:
        assert 2.0**-80 < unit * size <= 2.0**24 and 0 < (unit * size) ** 2 < math.inf
    assert bounds.square_unit(0.0) == 1


@pytest.mark.parametrize("precision", UNIT)
def test_a_product_of_zeros_is_exact_and_one_of_infinite_norms_is_not_bounded(precision):
    assert bounds.rounding_bound(SHAPE, 0.0, 5.0, precision) == bounds.rounding_bound(SHAPE, 3.0, 0.0, precision) == 0
    assert bounds.rounding_bound(SHAPE, math.inf, 0.0, precision) == math.inf


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize(("tau", "method"), [(1e-6, "spamm"), (0.0, "auto")])
def test_rounding_is_bounded_by_the_products_that_are_multiplied(dtype: str, tau: float, method: str) -> None:
    rng = np.random.default_rng(11)
    size, count = 32, 12
    blocks = np.kron(np.eye(count), np.ones((size, size)))
    x = ((1 + 1j if dtype.startswith("c") else 1) * rng.uniform(0.5, 1.5, blocks.shape) * blocks).astype(dtype)
    result = spamm(x, x, tau=tau, method=method, backend="cpu")
    wide = x.astype(np.clongdouble if dtype.startswith("c") else np.longdouble)
    error = float(np.linalg.norm((result.c - wide @ wide).astype("c16")))
    norm = float(np.linalg.norm(x.astype("c16")))
    name = {"f2": "fp16", "f4": "fp32", "f8": "fp64", "c8": "complex64"}[dtype]
    by_whole_norms = bounds.rounding_bound((len(x),) * 3, norm, norm, name)
    assert (result.method, result.executed_ratio) == (("spamm", 1 / count**2) if tau else ("dense", 1.0))
    # The norms of the tiles alone bring the root of their number, and short sums as much as they are shorter.
    fewer = count**0.5 * (count / 1.1 if tau else 1.0)
    assert 0 < error <= result.error_bound <= 1.01 * by_whole_norms / fewer


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_what_a_factor_makes_underflow_is_in_the_bound(dtype):
    sums = np.dtype("float32" if dtype == "float16" else dtype)
    tiny, rng = float(np.finfo(sums).tiny), np.random.default_rng(8)
    a, c = (rng.standard_normal((20, 20)) for _ in range(2))
    for size in (1.0, 1e-3, 0.0):
        given = (size * a).astype(dtype)
        exact = given.astype(np.clongdouble) @ given.astype(np.clongdouble)
        for alpha, beta, scale in ((2 * tiny, 0, 1), (1, 1e-20, tiny), (4 * tiny, 3 * tiny, 1e-6), (0, 1e-30, 1e-25)):
            other = (scale * c).astype(sums)
            made = spamm(given, given, tau=0, alpha=alpha, beta=beta, c=other, backend="cpu")
            off = abs(made.c - (alpha * exact + beta * other.astype(np.clongdouble)))
            assert off.max() * np.linalg.norm((off / (off.max() or 1)).astype(float)) <= made.error_bound
