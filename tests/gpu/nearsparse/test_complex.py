"""Complex products on CUDA against complex128, exactly on the valid tiles and within every bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import explain, norm_map, spamm, spamm_plan, spamm_threshold
from spectile.nearsparse.cuda import dense, repeated
from spectile_study.cases.spamm import reference

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
    for wanted in ({"valid_ratio": 0.3}, {"rtol_factors": 1e-2}, {"tau": 40.0}):
        here = spamm(a, b, **wanted, backend="cpu", method="spamm")
        there = spamm(cupy.asarray(a), cupy.asarray(b), **wanted, method="spamm")
        assert there.tau == pytest.approx(here.tau, rel=1e-4)
        assert there.valid_ratio == pytest.approx(here.valid_ratio, abs=5e-3)
        assert there.error_bound == pytest.approx(here.error_bound, rel=1e-2)
        told = spamm_threshold(cupy.asarray(a), cupy.asarray(b), **wanted)
        assert (told.tau, told.valid_ratio) == (there.tau, there.valid_ratio)
        error = np.linalg.norm(there.c.get() - a.astype("c16") @ b.astype("c16"))
        assert error <= there.error_bound
        if "rtol_factors" in wanted:
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


def test_what_is_not_a_number() -> None:
    import cupy

    x = cupy.eye(70, dtype="c16")
    x[3, 40] = complex(0, np.nan)
    for method in ("spamm", "auto"):
        with pytest.raises(ValueError, match="a holds NaN or infinity"):
            spamm(x, cupy.eye(70, dtype="c16"), tau=0.1, check_finite=True, method=method)  # type: ignore[arg-type]
        found = spamm(x, cupy.eye(70, dtype="c16"), tau=0.1, method=method)  # type: ignore[arg-type]
        assert bool(cupy.isnan(found.c[3, 40]))
    assert any(one.seconds for one in explain(x, x, tau=0.0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("verdict", ["dense", "count", "spamm"])
def test_the_dense_product_has_bounds_too(dtype: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    rng = np.random.default_rng(3)
    a, b = _random(rng, 300, 250, dtype), _random(rng, 250, 280, dtype)
    exact = a.astype("c16") @ b.astype("c16")
    limit = {"dense": -1.0, "count": 0.5, "spamm": 1.0}[verdict]
    monkeypatch.setattr(dense, "decide_here", lambda *_: (verdict, limit))
    repeated._plans.clear()
    known = spamm(cupy.asarray(a), cupy.asarray(b), rtol_factors=1e-3, method="spamm")
    for out in (None, cupy.full((300, 280), cupy.nan, dtype)):
        for _ in range(3):
            found = spamm(cupy.asarray(a), cupy.asarray(b), rtol_factors=1e-3, alpha=-2.0, out=out)
            taken = {"count": "spamm" if known.valid_ratio <= 0.5 else "dense"}.get(verdict, verdict)
            assert found.method == taken and found.c.dtype == dtype
            assert np.linalg.norm(found.c.get() + 2 * exact) <= found.error_bound
            assert found.error_bound <= 2e-3 * np.linalg.norm(a) * np.linalg.norm(b) * (1 + 1e-4)
            assert found.tau == (0 if taken == "dense" else pytest.approx(known.tau))
    c = cupy.asarray(_random(rng, 300, 280, dtype))
    summed = spamm(cupy.asarray(a), cupy.asarray(b), rtol_factors=1e-3, beta=0.5, c=c)
    assert np.linalg.norm(summed.c.get() - exact - 0.5 * c.get()) <= summed.error_bound
    repeated._plans.clear()


@pytest.mark.parametrize("dtype", TYPES)
def test_plans_of_complex_products(dtype: str) -> None:
    import cupy

    rng = np.random.default_rng(4)
    pairs = [[cupy.asarray(_random(rng, *size, dtype)) for size in ((200, 130), (130, 170))] for _ in range(2)]
    held = [x.copy() for x in pairs[0]]
    plan = spamm_plan(*held)
    for a, b in [*pairs, pairs[0]]:
        for x, y in zip(held, (a, b), strict=True):
            x[...] = y
        for wanted in ({"tau": 30.0}, {"valid_ratio": 0.4}, {"rtol_factors": 1e-2}):
            found, direct = plan.execute(**wanted), spamm(a, b, method="spamm", check_finite=True, **wanted)  # type: ignore[arg-type]
            np.testing.assert_array_equal(found.c.get().view("f4"), direct.c.get().view("f4"))
            for name in ("tau", "valid_ratio", "executed_ratio", "error_bound", "error_bound_rel"):
                assert getattr(found, name) == pytest.approx(getattr(direct, name))
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.empty((200, 170), dtype)
    cupy.cuda.Device().synchronize()
    with stream:
        plan.execute(30.0)
        stream.begin_capture()
        plan.execute(30.0, out=out)
        graph = stream.end_capture()
        out.fill(cupy.nan)
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get().view("f4"), spamm(*pairs[0], tau=30.0).c.get().view("f4"))
