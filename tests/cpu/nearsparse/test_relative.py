"""Errors relative to the product, relative to the factors, and absolute: each word keeps what it promises."""

from __future__ import annotations

import numpy as np
import pytest

from spectile import spamm, spamm_threshold
from spectile.core.devices import TABLE
from spectile.nearsparse import NormMap, norm_map, relative
from spectile.nearsparse.bounds import rounding_terms
from spectile.nearsparse.cpu import norms as cpu_norms
from spectile.nearsparse.cuda import dense, plan, survey
from spectile.nearsparse.cuda.norms import Norms
from spectile.nearsparse.types import Request

DECAY = np.exp(-abs(np.subtract.outer(np.arange(150), np.arange(150))) / 4.0)


def pair(kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return operands whose product is as large as theirs, about as large, far smaller, or of one entry."""
    rng = np.random.default_rng(29)
    a = DECAY * rng.uniform(0.5, 1, DECAY.shape)
    b = a
    if kind == "signs":
        a, b = (DECAY * rng.standard_normal(DECAY.shape) for _ in range(2))
    elif kind == "cancelling":
        b = np.linalg.inv(DECAY) * 0.5  # of DECAY, whose product with it is half of the identity
        a = DECAY
    elif kind == "one entry":
        a, b = np.zeros_like(DECAY), np.zeros_like(DECAY)
        a[3, 70], b[70, 149] = 2.0, -3.0
    elif kind == "complex":
        a = a + 1j * DECAY * rng.standard_normal(DECAY.shape)
        return a.astype("c16"), a.conj().T.astype("c16")
    return a.astype(dtype), b.astype(dtype)


def error_of(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Return the error of C, the norm of the product and that of the factors."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    exact = a.astype(wide) @ b.astype(wide)
    norms = np.linalg.norm(a.astype(wide)) * np.linalg.norm(b.astype(wide))
    return float(np.linalg.norm(c - exact)), float(np.linalg.norm(exact)), float(norms)


@pytest.mark.parametrize("method", ["auto", "spamm"])
@pytest.mark.parametrize("kind", ["alike", "signs", "cancelling", "one entry", "complex"])
@pytest.mark.parametrize(("dtype", "wanted"), [("f8", 0.3), ("f8", 1e-3), ("f8", 1e-9), ("f4", 1e-2), ("f2", 0.1)])
def test_each_error_is_kept_as_it_is_worded(dtype: str, wanted: float, kind: str, method: str) -> None:
    a, b = pair(kind, dtype)
    options = {"block": 8, "backend": "cpu", "method": method}
    found = spamm(a, b, rtol=wanted, **options)
    error, of_product, of_factors = error_of(found.c, a, b)
    assert error <= found.error_bound <= wanted * of_product and found.error_bound_rel <= wanted
    assert found.norm == pytest.approx(np.linalg.norm(found.c.astype("c16")), rel=1e-6)
    for word, scale in (("rtol_factors", of_factors), ("atol", of_product)):
        within = spamm(a, b, **{word: wanted if word == "rtol_factors" else wanted * of_product}, **options)
        assert error_of(within.c, a, b)[0] <= within.error_bound <= wanted * scale * (1 + 1e-9)
        if method == "spamm":
            before = spamm_threshold(
                a, b, **{word: wanted if word == "rtol_factors" else wanted * of_product}, block=8, backend="cpu"
            )
            assert (before.tau, before.valid_ratio) == (within.tau, within.valid_ratio)


@pytest.mark.parametrize("method", ["auto", "spamm"])
def test_single_precision_allows_what_rounding_tile_by_tile_does(method: str) -> None:
    place = np.arange(900)
    a = np.exp(-abs(np.subtract.outer(place, place)) / 4.0).astype("f4")
    exact = a.astype("f8") @ a.astype("f8")
    found = spamm(a, a, rtol=2e-4, backend="cpu", method=method)  # below the bound of rounding by whole norms
    assert np.linalg.norm(found.c - exact) <= found.error_bound <= 2e-4 * np.linalg.norm(exact)
    with pytest.raises(ValueError, match=r"atol = .* is below what rounding"):
        spamm(a, a, atol=2e-4 * np.linalg.norm(exact), backend="cpu", method=method)


def test_an_absolute_error_is_the_relative_one_of_as_much() -> None:
    scale = np.linalg.norm(DECAY) ** 2
    for wanted in (1e-1, 1e-4, 1e-8):
        one, two = (spamm_threshold(DECAY, DECAY, **{word: value}, block=8, backend="cpu").tau
                    for word, value in (("atol", wanted * scale), ("rtol_factors", wanted)))  # fmt: skip
        assert one == pytest.approx(two, rel=3e-6) and two > 0


def test_a_wrong_estimate_costs_products_and_no_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair("signs", "f8")
    known = relative._estimate
    for factor in (1e6, 30.0, 1e-6, 0.0, np.nan, np.inf):
        with monkeypatch.context() as patched:
            patched.setattr(relative, "_estimate", lambda operands, factor=factor: factor * known(operands))
            found = spamm(a, b, rtol=1e-3, block=8, backend="cpu", method="spamm")
        error, of_product, _ = error_of(found.c, a, b)
        assert error <= found.error_bound <= 1e-3 * of_product
        assert (found.valid_ratio < 1) == (0 < factor < np.inf)


def test_operands_that_a_product_overwrites_are_read_before() -> None:
    a, b = pair("signs", "f8")
    exact = a @ b
    c = np.random.default_rng(31).standard_normal(exact.shape)
    scale = 1e-4 * np.linalg.norm(exact)
    for out in (a.copy(), None):
        x = a.copy() if out is None else out
        found = spamm(x, b, rtol=1e-4, out=out, block=8, backend="cpu", method="spamm")
        assert np.linalg.norm(found.c - exact) <= scale and (out is None or found.c is out)
    added = c.copy()
    found = spamm(a, b, rtol=1e-4, alpha=-2.0, beta=3.0, c=added, out=added, block=8, backend="cpu", method="spamm")
    assert found.c is added and np.linalg.norm(added - (3 * c - 2 * exact)) <= 2 * scale
    for alpha in (0.0, -5.0):
        scaled = spamm(a, b, rtol=1e-4, alpha=alpha, block=8, backend="cpu", method="spamm").c
        assert np.linalg.norm(scaled - alpha * exact) <= abs(alpha) * scale


def test_each_product_of_a_batch_is_within_its_own_norm() -> None:
    a, b = pair("signs", "f8")
    stack = np.stack([a, 1e-8 * a, 0 * a])[:, None]
    found = spamm(stack, np.stack([b, b.T]), rtol=1e-4, block=8, backend="cpu")
    assert found.c.shape == (3, 2, *a.shape) and found.tau.shape == (3, 2)
    exact = stack @ np.stack([b, b.T])
    norms = np.linalg.norm(exact, axis=(2, 3))
    assert (np.linalg.norm(found.c - exact, axis=(2, 3)) <= found.error_bound).all()
    assert (found.error_bound <= 1e-4 * norms).all() and (found.error_bound[2] == 0).all()
    out = np.empty_like(exact)
    assert spamm(stack, np.stack([b, b.T]), rtol=1e-4, block=8, backend="cpu", out=out).c is out
    np.testing.assert_allclose(out, found.c, atol=1e-4 * norms.max())


def test_what_no_product_proves_is_refused_by_its_own_word() -> None:
    a = np.zeros((64, 64))
    a[0, :2] = 1.0, 1.0
    b = np.zeros((64, 64))
    b[:2, 0] = 1.0, -1.0  # the product is zero, the factors are not
    with pytest.raises(ValueError, match=r"^rtol = 0\.001 is below what rounding"):
        spamm(a, b, rtol=1e-3, backend="cpu")
    assert spamm(a, b, rtol_factors=1e-3, backend="cpu").c.any() == spamm(0 * a, b, rtol=1e-3, backend="cpu").c.any()
    for word, value in (("rtol", 1e-9), ("rtol_factors", 1e-9), ("atol", 1e-7)):
        with pytest.raises(ValueError, match=f"^{word} = {value:g} is below what rounding"):
            spamm(*pair("alike", "f4"), **{word: value}, backend="cpu")
        for bad in (0, -1, np.inf, np.nan):
            with pytest.raises(ValueError, match=f"{word} = "):
                spamm(a, b, **{word: bad}, backend="cpu")
    with pytest.raises(ValueError, match="rtol and atol were given"):
        spamm(a, b, rtol=0.1, atol=0.1)
    a[5, 5] = np.nan
    for word in ("rtol", "atol"):
        with pytest.raises(ValueError, match="NaN"):
            spamm(a, a, **{word: 0.1}, backend="cpu")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("method", ["auto", "spamm"])
@pytest.mark.parametrize("kind", ["signs", "complex"])
def test_norms_that_are_kept_are_not_taken_again(
    kind: str, method: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (np.asarray(x[:90], order=order) for x in pair(kind, "f8"))  # 90 x 150, and the transpose of such
    b = np.asarray(b.T, order=order)
    options = {"rtol_factors": 1e-3, "block": 8, "backend": "cpu", "method": method}
    plain = spamm(a, b, **options)
    maps = plain.norms
    for x, found in zip((a, b), maps, strict=True):
        np.testing.assert_allclose(found.norms, norm_map(x, 8).norms, rtol=1e-12)
    threshold = spamm_threshold(a, b, rtol_factors=1e-3, block=8, backend="cpu")
    taken = []
    known = cpu_norms.norm_map
    monkeypatch.setattr(cpu_norms, "norm_map", lambda x, *rest: taken.append(x.shape) or known(x, *rest))
    found = spamm(a, b, norms=maps, **options)
    assert not taken and found.tau == plain.tau and (found.c == plain.c).all()
    assert spamm_threshold(a, b, norms=maps, rtol_factors=1e-3, block=8, backend="cpu") == threshold and not taken
    assert spamm(a, b, norms=(None, maps[1]), **options).tau == plain.tau and len(taken) == (found.method == "spamm")
    again = spamm(found.c, b.conj().T, norms=(None, NormMap(maps[1].norms.T, 8)), **options)
    exact = a @ b @ b.conj().T
    assert np.linalg.norm(again.c - exact) <= 3e-3 * np.linalg.norm(a) * np.linalg.norm(b) ** 2


def test_a_matrix_is_measured_once_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    known = cpu_norms.norm_map
    monkeypatch.setattr(cpu_norms, "norm_map", lambda x, *rest: taken.append(x.shape) or known(x, *rest))
    one = spamm(DECAY, DECAY, atol=1e-3, block=8, backend="cpu", method="spamm")
    assert len(taken) == 1
    two = spamm(DECAY, DECAY.copy(), atol=1e-3, block=8, backend="cpu", method="spamm")
    assert len(taken) == 3 and one.tau == two.tau and (one.c == two.c).all()


def test_norms_of_other_matrices_are_refused() -> None:
    a, b = pair("signs", "f8")
    maps = norm_map(a, 8), norm_map(b, 8)
    for given, error, words in (
        (maps[0], TypeError, "norms are those of a and b"),
        ((maps[0].norms, None), TypeError, "norms are those of a and b"),
        ((None, norm_map(b, 16)), ValueError, "norms of b are of .* tiles of 16"),
        ((norm_map(a[:70], 8), None), ValueError, "norms of a are of"),
        ((NormMap(maps[0].norms.astype(complex), 8), None), TypeError, "norms are real"),
        ((NormMap(np.full_like(maps[0].norms, np.nan), 8), None), ValueError, "NaN"),
        ((NormMap(-maps[0].norms, 8), None), ValueError, "negative"),
    ):
        with pytest.raises(error, match=words):
            spamm(a, b, atol=1.0, block=8, backend="cpu", method="spamm", norms=given)
    with pytest.raises(ValueError, match="3 dimensions"):
        spamm(np.stack([a, a]), b, atol=1.0, block=8, backend="cpu", norms=maps)


@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e140])
@pytest.mark.parametrize("precision", ["fp64", "complex128"])
def test_rounding_tile_by_tile_is_a_bound_and_below_that_of_whole_norms(precision: str, scale: float) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(DECAY.shape) * DECAY for _ in range(2))
    if precision == "complex128":
        a = a + 1j * DECAY
        b = b - 1j * DECAY
    maps = norm_map(scale * a, 8).norms, norm_map(b / scale, 8).norms.T
    shape = (150, 150, 150)
    whole = survey.rounding(shape, *maps, Request(precision, rtol_factors=0.1))
    found = survey.rounding(shape, *maps, Request(precision, rtol=0.1, atol=1.0))
    terms = rounding_terms(shape, precision)
    least = terms.relative * float(np.linalg.norm(abs(a) @ abs(b)))
    assert least <= found < whole / 2


def test_a_dense_product_on_a_gpu_proves_its_error_when_it_is_asked() -> None:
    a, b = pair("signs", "f8")
    c, request = a @ b, Request("fp64", rtol=1e-3, method="auto")
    maps = [np.ascontiguousarray(x) for x in (norm_map(a, 32).norms, norm_map(b, 32).norms.T)]
    for out, rtol, kept in ((c, 1e-3, True), (c, 1e-16, False), (1e-13 * c, 1e-3, False)):
        found = plan.dense_result(out, Norms(*maps, 32), request, (150, 150, 150), rtol, read=None)
        if kept:
            assert found.tau == 0 < found.error_bound <= rtol * found.norm
        else:
            with pytest.raises(ValueError, match=f"^rtol = {rtol:g} is below what rounding"):
                _ = found.tau


def test_an_error_relative_to_the_product_takes_the_dense_one_where_that_is_done_before() -> None:
    device = TABLE["H200"]
    for n, wanted in ((512, "dense"), (2048, "dense"), (16384, "spamm")):
        verdict, _ = dense.decide((n, n, n), Request("fp32", rtol=1e-3, method="auto"), device)
        assert verdict == wanted
