"""The dense product on a CPU where it is faster: the same guarantees, and a choice that follows the work."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import explain, spamm
from spectile.nearsparse.cpu import run
from spectile.nearsparse.cpu.dense import is_faster, is_taken_at_once
from spectile.nearsparse.cpu.norms import Maps
from spectile.nearsparse.types import Request


def decay(m: int, n: int, dtype: str, length: float, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal((m, n, 2)).view("c16")[..., 0]
    x *= np.exp(-abs(np.subtract.outer(np.arange(m), np.arange(n))) / length)
    return (x if dtype.startswith("c") else x.real).astype(dtype)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("wanted", [{"tau": 0.0}, {"rtol_factors": 1e-2}, {"atol": 1.0}, {"valid_ratio": 0.9}])
def test_a_thin_product_is_dense_and_keeps_the_promises(dtype: str, wanted: dict[str, float]) -> None:
    a, b = decay(40, 300, dtype, 1e3, 1), decay(300, 25, dtype, 1e3, 2)
    wide = "c16" if dtype.startswith("c") else "f8"
    result = spamm(a, b, **wanted, alpha=2.0, method="auto", backend="cpu")
    assert result.method == "dense" and result.tau == 0 and result.valid_ratio == result.executed_ratio == 1
    assert result.c.dtype == (np.float32 if dtype == "f2" else a.dtype)
    exact = 2 * a.astype(wide) @ b.astype(wide)
    assert np.linalg.norm(result.c - exact) <= result.error_bound < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_a_small_product_takes_no_norms_before_they_are_asked_for(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, least = decay(40, 300, dtype, 1e3, 1), decay(300, 25, dtype, 1e3, 2), {"f4": 1e-23}.get(dtype, 1e-163)
    taken: list[int] = []
    maps = Maps.of
    monkeypatch.setattr(run.Maps, "of", lambda *args: [taken.append(1), maps(*args)][1])
    for wanted in ({"tau": 1e-9}, {"rtol_factors": 1e-2}, {"atol": 1.0}):
        result = spamm(a, b, **wanted, method="auto", backend="cpu")
        assert result.method == "dense" and not taken
        assert np.linalg.norm(result.c - a.astype("c16") @ b) <= result.error_bound and taken
        taken.clear()
    # What underflows, or holds no numbers, is seen by the norms.
    assert spamm(a, b * 0, rtol_factors=1e-2, method="auto", backend="cpu").error_bound == 0 and taken
    with pytest.raises(ValueError, match="is below what rounding"):
        spamm((least * a).astype(dtype), (least * b).astype(dtype), rtol_factors=1e-2, method="auto", backend="cpu")
    zeros, bad = np.zeros_like(a), b.copy()
    bad[3, 5] = complex(0, np.nan) if dtype == "c16" else np.inf
    with pytest.raises(ValueError, match="b holds NaN"):
        spamm(zeros, bad, tau=0.0, method="auto", backend="cpu")


def test_where_the_dense_product_writes() -> None:
    a = decay(60, 60, "f8", 1e3)
    wanted = a @ a
    out = np.empty_like(a)
    for target, one in ((out, a), (a, a), (out, np.asfortranarray(wanted))):
        exact = one @ one
        result = spamm(one, one, tau=0.0, method="auto", out=target, backend="cpu")
        assert result.method == "dense" and result.c is target
        np.testing.assert_allclose(target, exact, rtol=1e-10, atol=1e-10)


def test_what_is_refused_is_refused_for_the_dense_product_too() -> None:
    a = decay(40, 40, "f4", 1e3)
    for word in ("rtol_factors", "atol"):
        with pytest.raises(ValueError, match=f"{word} = 1e-12 is below what rounding"):
            spamm(a, a, **{word: 1e-12}, method="auto", backend="cpu")
    a[3, 5] = np.nan
    with pytest.raises(ValueError, match=r"tile \(0, 0\) of a holds NaN"):
        spamm(a, a, tau=0.0, method="auto", backend="cpu")
    half = np.full((40, 40), 200, np.float16)
    with pytest.raises(ValueError, match="overflows float16"):
        spamm(half, half, tau=0.0, precision="float16c16", method="auto", backend="cpu")


def test_a_product_of_which_little_is_valid_is_skipped() -> None:
    a = decay(700, 700, "f4", 2.0)
    result = spamm(a, a, rtol_factors=1e-3, method="auto", backend="cpu")
    assert result.method == "spamm" and result.valid_ratio < 0.2
    small = decay(30, 30, "f8", 1e3)
    for operands, options in (((np.stack([small] * 2), small), {}), ((small, small), {"beta": 1.0, "c": small})):
        assert spamm(*operands, tau=0.0, method="auto", backend="cpu", **options).method == "spamm"
    assert spamm(small, small, tau=0.0, backend="cpu").method == "spamm"
    assert spamm(small[:0], small, tau=0.0, method="auto", backend="cpu").c.shape == (0, 30)


@pytest.mark.parametrize("precision", ["fp32", "complex128"])
def test_the_choice_follows_the_work(precision: str) -> None:
    request, given = Request(precision, rtol_factors=1e-3), Request(precision, tau=1.0)
    sizes = (1, 8, 32, 100, 500, 3000, 20000)
    shares = (0.0, 1e-3, 0.01, 0.1, 0.3, 0.6, 1.0)
    for shape in itertools.product(sizes, repeat=3):
        faster = [is_faster(shape, given, share) for share in shares]
        assert faster == sorted(faster) and faster[-1]
        assert all(is_faster(shape, request, share) for share, dense in zip(shares, faster, strict=True) if dense)
    for shape in itertools.product(sizes, repeat=3):
        for one in (request, given):
            # Sure of it where skipping nearly nothing is no faster, and not where skipping half of all is.
            sure, never = is_faster(shape, one, 0.05), not is_faster(shape, one, 0.5)
            assert not sure or is_taken_at_once(shape, one)
            assert not never or not is_taken_at_once(shape, one)
    # The larger a cube, the more of its products may be valid.
    least = [sum(is_faster((n, n, n), request, share) for share in shares) for n in sizes]
    assert least == sorted(least, reverse=True) and least[0] == len(shares) and least[-1] < 4


def test_both_products_are_told() -> None:
    a = np.eye(64)
    assert [one.kernel for one in explain(a, a, tau=0.0, backend="cpu", method="auto")] == ["cpu", "dense"]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(40, 300, 25), (90, 20, 80), (1, 3, 1)])
@pytest.mark.parametrize("size", ["one", "near what underflows"])
def test_an_error_that_rounding_just_reaches_is_kept_or_refused(
    dtype: str, shape: tuple[int, int, int], size: str
) -> None:
    """By the look at all entries of C and by that at A and B, whichever takes less."""
    m, k, n = shape
    least = {"f2": 2.0**-8, "f4": 2.0**-63, "c8": 2.0**-63, "f8": 2.0**-511, "c16": 2.0**-511}[dtype]
    scale = np.dtype(dtype).type(1.0 if size == "one" else least)
    a, b = scale * decay(m, k, dtype, 1e3, 1), scale * decay(k, n, dtype, 1e3, 2)
    kept = refused = 0
    floor = spamm(a, b, tau=0.0, backend="cpu").error_bound
    wide = a.astype("c16"), b.astype("c16")
    norms = float(np.linalg.norm(wide[0])) * float(np.linalg.norm(wide[1]))
    for share in (0.3, 0.6, 0.9, 0.97, 0.99, 1.01, 1.03, 1.1, 1.5, 2.5, 6.0):
        for words in ({"atol": share * floor}, {"rtol_factors": share * floor / norms}):
            if not 0 < next(iter(words.values())) < 1e300:
                continue
            try:
                result = spamm(a, b, **words, method="auto", backend="cpu")
            except ValueError as reason:
                assert "rounding" in str(reason)
                refused += 1
                continue
            kept += 1
            within = share * floor * (1 + 1e-9) + 2.0**-1073  # the least numbers have few digits
            assert result.error_bound <= within and np.linalg.norm(result.c - wide[0] @ wide[1]) <= within
    assert kept and refused
