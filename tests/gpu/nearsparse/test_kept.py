"""Operands that keep their norms, and errors relative to the product, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import spectile
from spectile.nearsparse import NormMap, norm_map

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(90, 130, 70), (256, 256, 256), (40, 40, 72)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_kept_norms_are_those_that_would_be_taken(dtype: str, shape: tuple[int, int, int]) -> None:
    import cupy

    rng = np.random.default_rng(3)
    m, k, n = shape
    a, b = (
        cupy.asarray(
            (rng.normal(size=(p, q)) * np.exp(-abs(np.arange(p)[:, None] * q / p - np.arange(q)) / 9)).astype(dtype)
        )
        for p, q in ((m, k), (k, n))
    )
    one, two = norm_map(a), norm_map(b)
    assert one.matrix is a
    for asked in ({"tau": 0.5}, {"valid_ratio": 0.6}, {"rtol_factors": 0.1}):
        found = spectile.spamm(one, two, method="spamm", check_finite=True, **asked)
        wanted = spectile.spamm(a, b, method="spamm", **asked)
        cupy.testing.assert_allclose(found.c, wanted.c, rtol=1e-3, atol=1e-3)
        assert found.tau == pytest.approx(wanted.tau, rel=1e-3)
        assert found.error_bound == pytest.approx(wanted.error_bound, rel=1e-3)
        assert found.norms.matrix is found.c
        cupy.testing.assert_allclose(found.norms.norms, norm_map(found.c).norms)
    half = spectile.spamm(NormMap(one.norms / 2, 32, a), two, tau=0.25, strict=True)
    assert half.valid_ratio == spectile.spamm(a, b, tau=0.5, strict=True).valid_ratio
    with pytest.raises(ValueError, match="a is not what it was"):
        spectile.spamm(NormMap(one.norms / 2, 32, a), two, tau=0.25, check_finite=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("method", [None, "spamm"])
def test_rtol_is_relative_to_the_product(dtype: str, method: str | None) -> None:
    import cupy

    rng = np.random.default_rng(7)
    n, i = 300, np.arange(300)
    a, b = ((rng.normal(size=(n, n)) * np.exp(-abs(i[:, None] - i) / 9)).astype(dtype) for _ in range(2))
    exact = a.astype("complex128") @ b.astype("complex128")
    for rtol in (1e-1, 1e-3):
        found = spectile.spamm(cupy.asarray(a), cupy.asarray(b), rtol=rtol, method=method, alpha=2.0)
        off = np.linalg.norm(found.c.get() - 2 * exact)
        assert off <= found.error_bound <= rtol * 2 * np.linalg.norm(exact)
    with pytest.raises(ValueError, match="rtol = 1e-20 is below"):
        spectile.spamm(cupy.asarray(a), cupy.asarray(b), rtol=1e-20, method=method)
