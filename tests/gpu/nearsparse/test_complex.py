"""Complex products on CUDA against complex128, exactly on the valid tiles and within every bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import explain, norm_map, reference, spamm, spamm_plan, spamm_threshold

pytestmark = pytest.mark.gpu

TYPES = ["c8", "c16"]
UNIT = {"c8": 2.0**-24, "c16": 2.0**-53}


def _random(rng: np.random.Generator, rows: int, columns: int, dtype: str, block: int = 32) -> Any:
    """Tiles whose norms decay from the diagonal."""
    i, j = np.arange(rows)[:, None] // block, np.arange(columns) // block
    wide = rng.standard_normal((rows, columns)) + 1j * rng.standard_normal((rows, columns))
    return (wide * np.exp(-0.5 * abs(i - j))).astype(dtype)


def _between(a: Any, b: Any, block: int, share: float) -> float:
    """A threshold between two products of norms that are not nearly equal."""
    products = reference.norm_map(a, block)[:, :, None] * reference.norm_map(b, block)[None]
    sizes = np.sort(products.ravel())
    if sizes.size < 3:
        return float(sizes[0]) / 2
    gaps = sizes[1:] / sizes[:-1]
    middle = int((1 - share) * (sizes.size - 2))
    window = slice(max(0, middle - 9), middle + 10)
    place = window.start + int(np.argmax(gaps[window]))
    return float(np.sqrt(sizes[place] * sizes[place + 1]))


@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", TYPES)
def test_exactly_the_valid_tiles_are_multiplied(dtype: str, block: int) -> None:
    import cupy

    rng = np.random.default_rng(block)
    for m, k, n in ((3 * block, 4 * block, 2 * block), (130, 77, 201), (1, 1, 1), (33, 200, 5)):
        a, b = _random(rng, m, k, dtype, block), _random(rng, k, n, dtype, block)
        tau = _between(a, b, block, 0.4)
        found = spamm(cupy.asarray(a), cupy.asarray(b), tau=tau, block=block, strict=True)
        wide_a, wide_b = a.astype("c16"), b.astype("c16")
        wanted = reference.spamm_flat(wide_a, wide_b, tau, block)
        size = np.linalg.norm(a) * np.linalg.norm(b)
        assert found.c.dtype == a.dtype
        assert np.linalg.norm(found.c.get() - wanted) <= 4 * (2 * k + 4) * UNIT[dtype] * size
        valid = reference.valid_set(reference.norm_map(wide_a, block), reference.norm_map(wide_b, block), tau)
        assert found.valid_ratio == found.executed_ratio == pytest.approx(valid.mean())
        default = spamm(cupy.asarray(a), cupy.asarray(b), tau=tau, block=block)
        assert np.linalg.norm(default.c.get() - wide_a @ wide_b) <= default.error_bound
        assert default.executed_ratio >= default.valid_ratio == found.valid_ratio
        np.testing.assert_allclose(
            norm_map(cupy.asarray(a), block).norms.get(), reference.norm_map(wide_a, block), rtol=2e-5
        )


@pytest.mark.parametrize("dtype", TYPES)
def test_thresholds_are_those_of_the_cpu(dtype: str) -> None:
    import cupy

    rng = np.random.default_rng(1)
    a, b = _random(rng, 300, 250, dtype), _random(rng, 250, 280, dtype)
    for wanted in ({"valid_ratio": 0.3}, {"rtol": 1e-2}, {"tau": 40.0}):
        here, there = spamm(a, b, **wanted, backend="cpu"), spamm(cupy.asarray(a), cupy.asarray(b), **wanted)
        assert there.tau == pytest.approx(here.tau, rel=1e-4)
        assert there.valid_ratio == pytest.approx(here.valid_ratio, abs=5e-3)
        assert there.error_bound == pytest.approx(here.error_bound, rel=1e-2)
        told = spamm_threshold(cupy.asarray(a), cupy.asarray(b), **wanted)
        assert (told.tau, told.valid_ratio) == (there.tau, there.valid_ratio)
        error = np.linalg.norm(there.c.get() - a.astype("c16") @ b.astype("c16"))
        assert error <= there.error_bound
        if "rtol" in wanted:
            assert there.error_bound <= 1e-2 * np.linalg.norm(a) * np.linalg.norm(b) * (1 + 1e-4)


def test_sums_batches_layouts_and_repeated_calls() -> None:
    import cupy

    rng = np.random.default_rng(2)
    a = np.stack([_random(rng, 70, 50, "c8") for _ in range(6)]).reshape(2, 3, 70, 50)
    b, c = _random(rng, 50, 90, "c8"), np.stack([_random(rng, 70, 90, "c8") for _ in range(6)]).reshape(2, 3, 70, 90)
    wanted = 2 * (a.astype("c16") @ b) - c
    found = spamm(cupy.asarray(a), cupy.asarray(b), tau=0.0, alpha=2.0, beta=-1.0, c=cupy.asarray(c))
    assert found.tau.shape == (2, 3) and found.c.dtype == "c8"
    errors = np.linalg.norm(found.c.get() - wanted, axis=(-2, -1))
    assert (errors <= found.error_bound).all() and (errors < 1e-3).all()
    one, other, out = cupy.asarray(a[0, 0]), cupy.asarray(b), cupy.full((70, 90), cupy.nan, "c8")
    for _ in range(3):
        result = spamm(one, other, tau=0.0, out=out)
        assert result.c is out and np.linalg.norm(out.get() - a[0, 0] @ b) <= result.error_bound
    out[...] = cupy.asarray(c[0, 0])
    summed = spamm(one, other, tau=0.0, beta=1.0, c=out, out=out)
    assert np.linalg.norm(out.get() - (a[0, 0] @ b + c[0, 0])) <= summed.error_bound
    square = cupy.asarray(_random(rng, 64, 64, "c16"))
    exact = square.get() @ square.get()
    assert np.linalg.norm(spamm(square, square, tau=0.0, out=square).c.get() - exact) < 1e-10
    wide = cupy.asarray(_random(rng, 40, 60, "c16"))[:, 10:50]
    np.testing.assert_allclose(spamm(wide, wide, tau=0.0).c.get(), wide.get() @ wide.get(), atol=1e-10)
    fortran = cupy.asfortranarray(wide)
    np.testing.assert_allclose(spamm(fortran, fortran, tau=0.0).c.get(), wide.get() @ wide.get(), atol=1e-10)
    for shape in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
        x, y = cupy.ones(shape[:2], "c8"), cupy.ones(shape[1:], "c8")
        nothing = spamm(x, y, tau=0.0)
        assert nothing.c.shape == (shape[0], shape[2]) and not nothing.c.any()
    host = spamm(a[0, 0], b, tau=0.0, backend="cuda")
    assert isinstance(host.c, np.ndarray) and np.linalg.norm(host.c - a[0, 0] @ b) <= host.error_bound


def test_what_is_not_a_number_and_what_is_real_alone() -> None:
    import cupy

    x = cupy.eye(70, dtype="c16")
    x[3, 40] = complex(0, np.nan)
    with pytest.raises(ValueError, match="a holds NaN or infinity"):
        spamm(x, cupy.eye(70, dtype="c16"), tau=0.1, check_finite=True)
    found = spamm(x, cupy.eye(70, dtype="c16"), tau=0.1)
    assert bool(cupy.isnan(found.c[3, 40])) and found.method == "spamm" and found.faster is None
    assert spamm(cupy.eye(70, dtype="c16"), cupy.eye(70, dtype="c16"), tau=0.1, method="auto").method == "spamm"
    assert any(one.seconds for one in explain(x, x, tau=0.0))
    with pytest.raises(TypeError, match="a plan takes real matrices"):
        spamm_plan(x, x)
    with pytest.raises(TypeError, match="devices takes real matrices"):
        spamm(x, x, tau=0.0, devices=1)
