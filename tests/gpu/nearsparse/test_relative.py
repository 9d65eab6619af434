"""On a GPU each word for an error keeps what it promises: relative to the product, to the factors, or absolute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile import spamm, spamm_plan, spamm_threshold
from spectile.nearsparse import norm_map

pytestmark = pytest.mark.gpu

N = 700
DECAY = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 6.0)


def operands(kind: str, dtype: str) -> tuple[Any, Any, Any]:
    """Return two matrices on the GPU, and their product in float64."""
    import cupy

    rng = np.random.default_rng(3)
    a, b = (DECAY * rng.standard_normal(DECAY.shape) for _ in range(2))
    if kind == "cancelling":
        a, b = DECAY, np.linalg.inv(DECAY)
    if dtype == "c16":
        a = a + 1j * DECAY * rng.standard_normal(DECAY.shape)
    a, b = (cupy.asarray(x.astype(dtype)) for x in (a, b))
    wide = "c16" if dtype == "c16" else "f8"
    return a, b, a.astype(wide) @ b.astype(wide)


def norm(x: Any) -> float:
    import cupy

    return float(cupy.linalg.norm(x))


@pytest.mark.parametrize("method", ["auto", "spamm"])
@pytest.mark.parametrize("kind", ["signs", "cancelling"])
@pytest.mark.parametrize(("dtype", "wanted"), [("f8", 0.2), ("f8", 1e-8), ("f4", 0.1), ("f2", 0.2), ("c16", 1e-5)])
def test_each_error_is_kept_as_it_is_worded(dtype: str, wanted: float, kind: str, method: Any) -> None:
    a, b, exact = operands(kind, dtype)
    size = norm(exact)
    found = spamm(a, b, rtol=wanted, method=method)
    assert norm(found.c - exact) <= found.error_bound <= wanted * size * (1 + 1e-3)
    within = spamm(a, b, atol=wanted * size, method=method)
    assert norm(within.c - exact) <= within.error_bound <= wanted * size * (1 + 1e-3)
    again = [spamm(a, b, atol=wanted * size * factor, method=method) for factor in (1.0, 4.0)]
    assert again[0].tau == within.tau <= again[1].tau  # of a plan that is kept, with another value


@pytest.mark.parametrize("method", ["auto", "spamm"])
def test_single_precision_allows_what_rounding_tile_by_tile_does(method: Any) -> None:
    import cupy

    place = np.arange(2048)
    a = cupy.asarray(np.exp(-abs(np.subtract.outer(place, place)) / 20.0).astype("f4"))
    exact = a.astype("f8") @ a.astype("f8")
    found = spamm(a, a, rtol=1e-3, method=method)  # below the bound of rounding by whole norms
    assert norm(found.c - exact) <= found.error_bound <= 1e-3 * norm(exact)
    with pytest.raises(ValueError, match=r"atol = .* is below what rounding"):
        _ = spamm(a, a, atol=1e-3 * norm(exact), method=method).tau


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_an_absolute_error_is_the_relative_one_of_as_much(dtype: str) -> None:
    a, b, _ = operands("signs", dtype)
    for wanted in (0.3, 0.05):
        relative = spamm_threshold(a, b, rtol_factors=wanted)
        absolute = wanted * norm(a.astype("f8")) * norm(b.astype("f8"))
        assert spamm_threshold(a, b, atol=absolute).tau == pytest.approx(relative.tau, rel=1e-4)
        assert float(spamm_plan(a, b).execute(atol=absolute).tau) == pytest.approx(relative.tau, rel=1e-4)


def test_what_no_product_proves_is_refused_by_its_own_word() -> None:
    import cupy

    a, b, _ = operands("signs", "f4")
    with pytest.raises(ValueError, match="rtol = 1e-09 is below what rounding"):
        _ = spamm(a, b, rtol=1e-9).tau
    with pytest.raises(ValueError, match="rtol = 1e-09 is below what rounding"):
        spamm(a, b, rtol=1e-9, method="spamm")
    for method in ("spamm", "auto"):
        late = spamm(a, b, atol=1e-9, method=method)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="atol = 1e-09 is below what rounding"):
            _ = late.tau
    a[3, 3] = cupy.nan
    with pytest.raises(ValueError, match="NaN"):
        _ = spamm(a, b, rtol=0.1).tau


def test_batches_added_matrices_and_outputs_that_are_operands() -> None:
    import cupy

    a, b, exact = operands("signs", "f8")
    size = norm(exact)
    stack = cupy.stack([a, 1e-6 * a])
    found = spamm(stack, b, rtol=1e-5)
    for item, factor in ((0, 1.0), (1, 1e-6)):
        assert norm(found.c[item] - factor * exact) <= found.error_bound[item] <= 1e-5 * factor * size * (1 + 1e-3)
    c = cupy.asarray(np.random.default_rng(4).standard_normal(exact.shape))
    expected = 3 * c - 2 * exact
    assert norm(spamm(a, b, rtol=1e-5, alpha=-2.0, beta=3.0, c=c, out=c).c - expected) <= 2.1e-5 * size
    assert norm(spamm(a, b, rtol=1e-5, out=a).c - exact) <= 1e-5 * size


def test_a_capture_has_no_product_to_be_relative_to() -> None:
    import cupy

    a, b, _ = operands("signs", "f4")
    spamm(a, b, rtol=0.1)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(ValueError, match="give rtol_factors or atol"):
                spamm(a, b, rtol=0.1)
        finally:
            stream.end_capture()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_norms_that_are_kept_serve_again(dtype: str, order: str) -> None:
    import cupy

    a, b, exact = operands("signs", dtype)
    a, b, exact = cupy.asarray(a[:300], order=order), cupy.asarray(b, order=order), exact[:300]
    limit = 0.05 * norm(exact)
    plain = spamm(a, b, atol=limit, method="spamm")
    kept = plain.norms
    assert kept is not None
    for x, found in zip((a, b), kept, strict=True):
        cupy.testing.assert_allclose(found.norms, norm_map(x).norms, rtol=1e-5)
    for words in ({"atol": limit}, {"tau": float(plain.tau)}, {"valid_ratio": 0.4}, {"rtol": 0.05}):
        found, anew = (spamm(a, b, **words, method="spamm", norms=norms) for norms in (kept, None))
        assert float(found.tau) == pytest.approx(float(anew.tau), rel=1e-6)
        assert norm(found.c - exact) <= found.error_bound and found.valid_ratio == pytest.approx(
            anew.valid_ratio, abs=1e-3
        )
    assert spamm_threshold(a, b, atol=limit, norms=kept).tau == pytest.approx(float(plain.tau), rel=1e-6)
    dense = spamm(a, b, rtol_factors=0.5, method="auto").norms
    assert dense is not None and dense[1].norms.shape == kept[1].norms.shape
