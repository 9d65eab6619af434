"""What a product on the CPU asks for is what it takes, and what it is not given leaves everything as it was."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spectile.core import memory
from spectile.nearsparse import spamm, spamm_threshold
from spectile.nearsparse.cpu import run

N = 1200


def _of(dtype: str, *shape: int) -> Any:
    # Every tile is like every other: all of their products are valid at any threshold that is found.
    return np.full(shape, 0.5, dtype)


def _call(kind: str, dtype: str) -> Callable[[], object]:
    """Return a call that makes every tile product, which takes the most."""
    a, b = _of(dtype, N, N - 75), _of(dtype, N - 75, N + 50)
    output = {"float16": "float32"}.get(dtype, dtype)
    options: dict[str, Any] = {"backend": "cpu"}
    if kind == "out":
        options |= {"out": np.empty((N, N + 50), output)}
    elif kind == "overlap":
        a = b = _of(output, N, N)
        options |= {"out": a}
    elif kind == "order":
        a = np.asfortranarray(a)
    elif kind == "strided":
        b = _of(dtype, b.shape[0], 2 * b.shape[1])[:, ::2]
    elif kind == "batch":
        a, b = _of(dtype, 3, 700, 640), _of(dtype, 640, 720)
    elif kind == "added":
        options |= {"beta": 2.0, "c": _of("float16" if output == "float32" else "float32", N, N + 50)}
    elif kind == "block":
        options |= {"block": 5}
    elif kind == "rounded":
        options |= {"precision": "float16c16"}
    options |= {"valid_ratio": {"valid_ratio": 1.0}, "rtol_factors": {"rtol_factors": 1e-2, "method": "spamm"}}.get(
        kind, {"tau": 0.0}
    )  # type: ignore[operator]
    return lambda: spamm(a, b, **options)


def _taken(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


KINDS = [
    "plain",
    "out",
    "overlap",
    "order",
    "strided",
    "batch",
    "added",
    "block",
    "valid_ratio",
    "rtol_factors",
    "rounded",
]


CASES = [(kind, dtype) for kind in KINDS[:-1] for dtype in ("float16", "float32", "float64")]
CASES += [("rounded", "float16"), *((kind, "complex64") for kind in ("plain", "order", "added"))]


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_a_product_asks_for_what_it_takes(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(run, "require_host_free", lambda needed, what: asked.append(needed))
    call = _call(kind, dtype)
    call()
    asked.clear()
    taken = _taken(call)
    assert len(asked) == 1
    assert 0.9 * taken <= asked[0] <= 1.1 * taken, (asked[0] / taken, taken)


def test_what_is_not_free_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "UNASKED", 0)
    a, out = _of("float32", 100, 100), np.full((100, 100), 7.0, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "host_free_bytes", lambda: 100)
        for call in (
            lambda: spamm(a, a, tau=0.0, out=out, backend="cpu"),
            lambda: spamm(a, a, rtol_factors=1e-2, out=out, backend="cpu"),
            lambda: spamm(a, a, rtol_factors=1e-2, backend="cpu"),
            lambda: spamm_threshold(a, a, rtol_factors=1e-2, backend="cpu"),
        ):
            with pytest.raises(MemoryError, match=r"shape \(100, 100\) needs .* bytes of memory and 100 are free"):
                call()
        assert (out == 7).all()
    assert spamm(a, a, tau=0.0, out=out, backend="cpu").c is out and (out == 25).all()
