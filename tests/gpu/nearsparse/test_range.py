"""Entries of any size, and matrices of any shape: every search ends, bounds hold, and every launch is taken."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import api, norm_map, spamm, spamm_threshold
from spectile.nearsparse.cuda.geometry import LARGEST_SIZE

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
EXPONENTS = {"f2": (-24, 15), "f4": (-149, 127), "f8": (-1074, 1023)}


def _entries(rng: Any, rows: int, columns: int, dtype: str, first: int, last: int) -> Any:
    with np.errstate(under="ignore", over="ignore"):
        x = np.ldexp(1 + rng.random((rows, columns)), rng.integers(first, last + 1, (rows, columns))).astype(dtype)
    x = np.minimum(x, np.finfo(dtype).max).astype(dtype) * rng.choice([-1, 1], x.shape).astype(dtype)
    x[rng.random(x.shape) < 0.2] = 0
    return x


def _exact(x: Any) -> Any:
    return np.array([[Fraction(float(value)) for value in row] for row in x], object)


@pytest.mark.parametrize("precision", DTYPES)
def test_errors_are_within_their_bounds_over_the_whole_range(precision: str) -> None:
    import cupy

    dtype, rng = DTYPES[precision], np.random.default_rng(4)
    low, high = EXPONENTS[dtype]
    for _ in range(60):
        windows = [(first, min(high, first + rng.choice([0, 3, 30, 2100]))) for first in rng.integers(low, high + 1, 2)]
        a, b = (_entries(rng, 20, 20, dtype, *window) for window in windows)
        for choice in ({"tau": 0.0}, {"tau": math.inf}, {"rtol_factors": 1e-2}, {"atol": 1e-3}, {"valid_ratio": 0.3}):
            result = spamm(cupy.asarray(a), cupy.asarray(b), block=8, precision=precision, **choice)
            try:
                tau = result.tau
            except ValueError:
                # Refused when it is read, and everything multiplied.
                continue
            assert tau >= 0
            found, bound = result.c.get(), result.error_bound
            if not np.isfinite(found).all():
                assert bound == math.inf
                continue
            error = sum(((x - y) ** 2 for x, y in zip(_exact(found).flat, _exact(a).dot(_exact(b)).flat, strict=True)))
            assert bound == math.inf or error <= Fraction(bound) ** 2
            if "atol" in choice:
                assert error <= Fraction(choice["atol"]) ** 2 * (1 + Fraction(1, 10**4))
            if "rtol_factors" in choice:
                norms = [sum(value**2 for value in _exact(x).flat) for x in (a, b)]
                assert error <= Fraction(choice["rtol_factors"]) ** 2 * norms[0] * norms[1] * (1 + Fraction(1, 10**4))


@pytest.mark.parametrize("size", [1e-150, 1e-153, 1e-155, 1e-157, 1e-162, 1e-200, 1e-310, 1e150])
def test_a_wanted_error_is_kept_or_refused_and_the_search_ends(size: float) -> None:
    import cupy

    x = size * cupy.random.default_rng(0).standard_normal((128, 128))
    for call in (spamm, spamm_threshold):
        try:
            found = call(x, x, rtol_factors=1e-6)
            assert found.tau >= 0
        except ValueError as error:
            assert "rtol_factors" in str(error) and not 1e-155 <= size <= 1e150
        else:
            scale = float(cupy.linalg.norm(x / size)) ** 2
            assert found.error_bound / size / size <= 1e-6 * scale * (1 + 1e-6)


def test_norms_near_zero_are_rounded_up() -> None:
    import cupy

    for dtype in ("f4", "f8"):
        smallest = np.finfo(dtype).smallest_subnormal
        for count in (1, 2, 3, 5, 40):
            x = np.full((8, count), smallest, dtype)
            norm = float(norm_map(cupy.asarray(x), 8).norms[0, 0])
            exact = 8 * min(count, 8) * Fraction(float(smallest)) ** 2
            assert Fraction(norm) ** 2 * (1 + Fraction(1, 10**12)) >= exact
            assert norm <= (math.sqrt(8 * min(count, 8)) + 1) * float(smallest)


@pytest.mark.parametrize("block", [8, 128])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_matrices_that_are_long_along_one_axis(axis: int, block: int) -> None:
    import cupy

    sizes = [16, 16, 16]
    sizes[axis] = 34_000_000
    m, k, n = sizes
    a, b = cupy.ones((m, k), "f2"), cupy.ones((k, n), "f2")
    a[-1], b[:, -1] = 0, 0
    for choice in ({"tau": 1e-3}, {"valid_ratio": 0.9}):
        result = spamm(a, b, block=block, precision="fp16", **choice)
        if axis != 1:
            # The last block, a part of which is zero, may be what a ratio leaves out.
            part = result.c[-1000 : -1 - block * (axis == 0), -1000 : -1 - block * (axis == 2)]
            part = result.c[-1000:-1, -1000:-1] if "tau" in choice else part
            assert float(part.min()) == float(part.max()) == k
        assert not result.c[-1].any() and not result.c[:, -1].any()
        assert 0 < result.valid_ratio <= result.executed_ratio <= 1 and result.error_bound >= 0
        assert result.tau >= 0
    norms = norm_map(a, block).norms
    rows = min(m - 1, block)  # of the fullest block
    assert float(norms.max()) == pytest.approx(math.sqrt(rows * min(k, block)), rel=1e-3)


def test_sizes_above_the_count_of_the_kernels_are_refused() -> None:
    import cupy

    a, one = cupy.zeros((LARGEST_SIZE + 1, 1), "f2"), cupy.zeros((1, 1), "f2")
    for call in (lambda: spamm(a, one, tau=0.0), lambda: spamm(one, a.reshape(1, -1), tau=0.0), lambda: norm_map(a)):
        with pytest.raises(ValueError, match="rows or columns, and the kernels take"):
            call()


def test_large_batches_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(api, "_listed", lambda devices, *_: list(devices))  # one device stands for two
    count = 300_001
    a, b = (cupy.random.standard_normal((count, 9, 8), dtype="f4"), cupy.random.standard_normal((8, 8), dtype="f4"))
    found = spamm(a, b, tau=0.0, block=8, devices=[0, 0]).c
    cupy.testing.assert_allclose(found, a.astype("f8") @ b.astype("f8"), rtol=1e-4, atol=1e-4)
