"""Operands that keep their norms, and errors relative to the product's own norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import spectile
from spectile.nearsparse import NormMap, norm_map, spamm_threshold


def operand(rng: np.random.Generator, m: int, n: int, dtype: str) -> np.ndarray:
    """Return a matrix whose entries decay away from its diagonal."""
    near = np.exp(-abs(np.arange(m)[:, None] * n / m - np.arange(n)) / 9)
    x = rng.normal(size=(m, n)) * near
    return (x + 1j * rng.normal(size=(m, n)) * near if dtype.startswith("c") else x).astype(dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_kept_norms_are_those_that_would_be_taken(dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b = (np.asarray(operand(rng, *shape, dtype), order=order) for shape in ((90, 130), (130, 70)))
    kept = norm_map(a, 16), norm_map(b, 16)
    assert kept[0].matrix is a
    for asked in ({"tau": 0.5}, {"valid_ratio": 0.4}, {"rtol_factors": 0.1}):
        found = spectile.spamm(*kept, block=16, backend="cpu", method="spamm", **asked)
        wanted = spectile.spamm(a, b, block=16, backend="cpu", method="spamm", **asked)
        np.testing.assert_allclose(found.c, wanted.c, rtol=1e-3, atol=1e-3)
        assert 0 < found.valid_ratio < 1
        assert found.valid_ratio == pytest.approx(wanted.valid_ratio, abs=0.02)
        assert found.error_bound == pytest.approx(wanted.error_bound, rel=1e-3)
        assert found.norms.matrix is found.c
        np.testing.assert_allclose(found.norms.norms, norm_map(found.c, 16).norms)
        left = spamm_threshold(*kept, block=16, backend="cpu", **asked)
        assert left.valid_ratio == pytest.approx(found.valid_ratio, abs=0.02)
    # They are read, and no others are taken, but those that are checked.
    halved = NormMap(kept[0].norms / 2, 16, a)
    found = spectile.spamm(halved, kept[1], tau=0.25, block=16, backend="cpu", check_finite=False)
    wanted = spectile.spamm(a, b, tau=0.5, block=16, backend="cpu")
    np.testing.assert_allclose(found.c, wanted.c, rtol=1e-3, atol=1e-3)


def test_norms_of_another_matrix_are_refused() -> None:
    a, b = np.eye(64), np.ones((64, 64))
    kept = norm_map(a)
    a[40, 40] = 9.0
    with pytest.raises(ValueError, match=r"a is not what it was .* call norm_map\(a\) again"):
        spectile.spamm(kept, b, tau=0.0)
    with pytest.raises(ValueError, match="b is not what it was"):
        spectile.spamm(a, NormMap(np.ones((3, 2)), 32, b), tau=0.0)
    with pytest.raises(ValueError, match="a is a norm map without its matrix"):
        spectile.spamm(NormMap(np.ones((2, 2))), b, tau=0.0)
    with pytest.raises(ValueError, match="norms of tiles of 32, and block is 16"):
        spectile.spamm(norm_map(a), b, tau=0.0, block=16)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rtol_is_relative_to_the_product(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 200, 3)
    a, b = operand(rng, m, k, dtype), operand(rng, k, n, dtype)
    if seed % 2:  # much of it cancels
        b -= (np.linalg.pinv(a) @ a @ b).astype(dtype) * dtype_share(dtype)
    exact = a.astype(complex) @ b.astype(complex)
    for rtol in (1e-1, 3e-3):
        for words in ({}, {"alpha": -2.5}, {"method": "spamm"}, {"method": "spamm", "block": 8}):
            found = spectile.spamm(a, b, rtol=rtol, backend="cpu", **words)
            alpha = words.get("alpha", 1.0)
            size = abs(alpha) * np.linalg.norm(exact)
            assert np.linalg.norm(found.c - alpha * exact) <= found.error_bound <= rtol * size


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("check_finite", [False, True])
@pytest.mark.parametrize("over", ["a", "b", "a and b", "a.T", "part of a"])
def test_rtol_with_a_result_in_the_place_of_an_operand(over: str, check_finite: bool, kept: bool) -> None:
    i = np.arange(50)
    half = np.random.default_rng(3).standard_normal((50, 50)) * np.exp(-abs(i[:, None] - i) / 2)
    a = np.kron([[1.0, 1.0], [-1 + 1e-3, -1.0]], half)  # much of the square cancels, and the first guess is too high
    memory = np.zeros(3 * 100 * 100)
    out = memory[5000:15000].reshape(100, 100)
    exact = a @ a
    first = {"b": a.copy(), "a.T": out.T, "part of a": memory[4900:14900].reshape(100, 100)}.get(over, out)
    first[:] = a
    second = first if over == "a and b" else out if over == "b" else a.copy()
    second[:] = a
    operands = [norm_map(x, 16) for x in (first, second)] if kept else [first, second]
    words = {"rtol": 0.1, "block": 16, "method": "spamm", "backend": "cpu"}
    found = spectile.spamm(*operands, out=out, check_finite=check_finite, **words)
    assert np.shares_memory(found.c, out)
    assert np.linalg.norm(out - exact) <= found.error_bound <= 0.1 * np.linalg.norm(exact)


def dtype_share(dtype: str) -> float:
    """Return how much may cancel so that what is left is above rounding."""
    return 0.9 if dtype in ("float32", "complex64") else 1 - 1e-6


@pytest.mark.parametrize("decay", [5.0, 60.0])
@pytest.mark.parametrize("left", [0.1, 0.03, 0.01])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_rtol_is_kept_wherever_the_bound_of_the_whole_product_allows(dtype: str, left: float, decay: float) -> None:
    """However much of the product cancels: steps to a lower error must not pass over those that rounding allows."""
    rng, i = np.random.default_rng(1), np.arange(200)
    near = np.exp(-abs(i[:, None] - i) / decay)
    half, other = (rng.standard_normal((200, 200)) * near for _ in range(2))
    a, b = np.hstack([half, -half]).astype(dtype), np.vstack([other, (1 - left) * other]).astype(dtype)
    exact, whole = a.astype(complex) @ b.astype(complex), spectile.spamm(a, b, tau=0.0, backend="cpu")
    allowed = whole.error_bound / (np.linalg.norm(exact) - whole.error_bound)
    for share, method in [(share, method) for share in (1.1, 2, 8) for method in ("spamm", "auto")]:
        found = spectile.spamm(a, b, rtol=share * allowed, method=method, backend="cpu")
        assert np.linalg.norm(found.c - exact) <= found.error_bound <= share * allowed * np.linalg.norm(exact)
    with pytest.raises(ValueError, match=r"below what rounding alone is bounded by here, \d.*: take a larger"):
        spectile.spamm(a, b, rtol=0.5 * allowed, backend="cpu")


def test_rtol_is_refused_where_it_cannot_be_kept() -> None:
    a = np.ones((64, 64), np.float32)
    with pytest.raises(ValueError, match="rtol = 1e-09 is below what rounding alone"):
        spectile.spamm(a, a, rtol=1e-9, backend="cpu")
    b = np.eye(64)
    with pytest.raises(ValueError, match="atol and rtol were given"):
        spectile.spamm(b, b, atol=1.0, rtol=0.1)
    with pytest.raises(ValueError, match="is not a tolerance: give a finite"):
        spectile.spamm(b, b, rtol=-1.0)
    with pytest.raises(ValueError, match="without C: leave beta out"):
        spectile.spamm(b, b, rtol=0.1, beta=1.0, c=b)
    assert spectile.spamm(b, b, rtol=0.1, alpha=0.0).error_bound == 0.0
    assert math.isfinite(spectile.spamm(1e200 * b, 1e-150 * b, rtol=0.1, backend="cpu").error_bound)
