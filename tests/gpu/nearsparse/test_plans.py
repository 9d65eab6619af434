"""Calls that repeat, and plans: the bits of a call that is made anew, on every stream, thread and graph."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import api, spamm, spamm_plan
from spectile.nearsparse.cuda import repeated

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
# As numbered, by work, and of sizes that no tile divides.
SHAPES = [(96, 64, 160), (1024, 512, 1024), (2048, 256, 4096), (333, 197, 411), (1, 1, 1)]


def _random(rows: int, columns: int, dtype: str) -> Any:
    import cupy

    i, j = cupy.arange(rows)[:, None] // 32, cupy.arange(columns)[None] // 32
    return (cupy.random.standard_normal((rows, columns)) * cupy.exp(-0.1 * abs(i - j))).astype(dtype)


def _anew(a: Any, b: Any, tau: float, **options: Any) -> Any:
    """The product, and its numbers, of a call without a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated, "key_of", lambda *_, **__: None)
        return spamm(a, b, tau=tau, **options)


def _same(found: Any, wanted: Any) -> None:
    import cupy

    word = f"u{wanted.c.itemsize}"
    assert bool((cupy.asarray(found.c).view(word) == wanted.c.view(word)).all())
    for name in ("tau", "valid_ratio", "executed_ratio"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.error_bound == pytest.approx(wanted.error_bound)
    assert found.error_bound_rel == pytest.approx(wanted.error_bound_rel)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("precision", DTYPES)
def test_repeated_calls_give_the_bits_of_the_first(precision: str, shape: tuple[int, int, int]) -> None:
    import cupy

    m, k, n = shape
    pairs = [(_random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])) for _ in range(3)]
    options: Any = {"precision": precision, "alpha": 1.5}
    tau = float(spamm(*pairs[0], valid_ratio=0.3).tau)
    wanted = [_anew(*pair, tau * (1 + turn), **options) for turn, pair in enumerate(pairs)]
    out = cupy.empty_like(wanted[0].c)
    for _ in range(3):
        for turn, pair in enumerate(pairs):
            _same(spamm(*pair, tau=tau * (1 + turn), **options), wanted[turn])
            out.fill(cupy.nan)
            result = spamm(*pair, tau=tau * (1 + turn), out=out, **options)
            assert result.c is out
            _same(result, wanted[turn])
    assert len(repeated._plans) >= 2
    held = [x.copy() for x in pairs[0]]
    plan = spamm_plan(*held, precision=precision, alpha=1.5)
    for turn, pair in enumerate(pairs):
        for x, y in zip(held, pair, strict=True):
            x[...] = y
        _same(plan.execute(tau * (1 + turn)), wanted[turn])
        _same(plan.execute(tau * (1 + turn), out=out), wanted[turn])


@pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
def test_in_graphs(precision: str, shape: tuple[int, int, int]) -> None:
    import cupy

    m, k, n = shape
    a, b = _random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])
    wanted = _anew(a, b, 1.0, precision=precision)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.synchronize()
        out, other = cupy.empty_like(wanted.c), cupy.empty_like(wanted.c)
        plan = spamm_plan(a, b, precision=precision)
        for _ in range(3):
            spamm(a, b, tau=1.0, precision=precision, out=out)
        stream.synchronize()
        stream.begin_capture()
        kept = spamm(a, b, tau=1.0, precision=precision, out=out), plan.execute(1.0, out=other)
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(cupy.nan)
            other.fill(cupy.nan)
            graph.launch(stream)
            spamm(a, b, tau=1.0, precision=precision)
            stream.synchronize()
            assert bool((out == wanted.c).all()) and bool((other == wanted.c).all())
        assert kept[0].valid_ratio == wanted.valid_ratio == kept[1].valid_ratio


def test_threads_and_streams() -> None:
    import cupy

    pairs = [(_random(2048, 256, "f4"), _random(256, 4096, "f4")) for _ in range(4)]
    wanted = [_anew(*pair, 2.0 + turn).c for turn, pair in enumerate(pairs)]
    shared = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    faults: list[str] = []

    def work(turn: int, stream: Any) -> None:
        with stream:
            for _ in range(20):
                found = spamm(*pairs[turn], tau=2.0 + turn).c
                stream.synchronize()
                if not bool((found == wanted[turn]).all()):
                    faults.append(f"thread {turn}")

    for streams in ([shared] * 4, [cupy.cuda.Stream(non_blocking=True) for _ in range(4)], [cupy.cuda.Stream.ptds] * 4):
        threads = [threading.Thread(target=work, args=(turn, stream)) for turn, stream in enumerate(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults


def test_a_stream_at_the_address_of_one_that_is_gone_has_plans_of_its_own() -> None:
    import cupy

    a = cupy.ones((64, 64), np.float32)
    keys: dict[int, list[Any]] = {}
    for turn in range(200):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            cupy.cuda.Device().synchronize() if turn % 2 else None
            keys.setdefault(stream.ptr, []).append(repeated.key_of(a, a, None, 0.5, "tau", 32))
            assert bool((spamm(a, a, tau=0.5).c == 64).all())
        del stream
    assert None not in [key for found in keys.values() for key in found]
    assert all(len(set(found)) == len(found) for found in keys.values())


def test_what_a_plan_refuses() -> None:
    import cupy

    a, b = _random(64, 96, "f4"), _random(96, 32, "f4")
    plan = spamm_plan(a, b)
    with pytest.raises(ValueError, match="pass a C-contiguous"):
        plan.execute(1.0, out=cupy.empty((64, 33), "f4"))
    with pytest.raises(ValueError, match="not a threshold"):
        plan.execute(-1.0)
    with pytest.raises(ValueError, match="CuPy arrays"):
        spamm_plan(a.get(), b.get())
    with pytest.raises(ValueError, match="with entries"):
        spamm_plan(a[:0], b)
    # Errors of later calls are those of first ones.
    for _ in range(3):
        with pytest.raises(ValueError, match="not a threshold"):
            spamm(a, b, tau=-1.0)
        with pytest.raises(TypeError, match="multiplies float16"):
            spamm(a, b, tau=1.0, precision="fp16")
        with pytest.raises(ValueError, match="out has shape"):
            spamm(a, b, tau=1.0, out=cupy.empty((3, 3), "f4"))
        np.testing.assert_array_equal(spamm(a, b, tau=0.0, backend="cuda").c.shape, (64, 32))


def test_results_keep_their_own_numbers() -> None:
    a, b = _random(500, 400, "f4"), _random(400, 300, "f4")
    taus = [0.5 * (1 + turn) for turn in range(6)]
    results = [spamm(a, b, tau=tau) for tau in taus]
    ratios = [_anew(a, b, tau).valid_ratio for tau in taus]
    a[...] = 0
    assert [result.valid_ratio for result in results] == ratios and [result.tau for result in results] == taus


@pytest.mark.parametrize("way", ["first", "repeated", "plan", "dense", "devices"])
def test_numbers_are_read_after_the_product_whatever_stream_is_current(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(api, "_listed", lambda devices, *_: list(devices))  # one device stands for two
    a, b = _random(1500, 1200, "f4"), _random(1200, 1700, "f4")
    choice: dict[str, Any] = {"valid_ratio": 0.4}
    options: dict[str, Any] = {"dense": {"method": "auto"}, "devices": {"devices": [0, 0]}}.get(way, {})
    wanted = spamm(a, b, **choice, **options)
    names = ("tau", "valid_ratio", "executed_ratio", "error_bound", "error_bound_rel")
    numbers = [getattr(wanted, name) for name in names]
    for _ in range(3):
        spamm(a, b, **choice, **options)
    plan = spamm_plan(a, b)
    plan.execute(**choice)
    square = cupy.ones((8192, 8192), "f8")
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(3):
            if way == "first":
                repeated._plans.clear()
            # The product has not begun when its numbers are asked for.
            for _ in range(3):
                square @ square
            result = plan.execute(**choice) if way == "plan" else spamm(a, b, **choice, **options)
            with cupy.cuda.Stream(non_blocking=True):
                assert [getattr(result, name) for name in names] == pytest.approx(numbers, rel=1e-12)


def test_rows_that_are_further_apart_than_32_bits_count() -> None:
    import cupy

    pitch = 2**31 + 64
    memory = cupy.zeros(pitch + 64, "f2")
    a = cupy.lib.stride_tricks.as_strided(memory, (2, 64), (2 * pitch, 2))
    a[...] = _random(2, 64, "f2")
    b = _random(64, 96, "f2")
    for method in ("spamm", "auto"):
        found = spamm(a, b, tau=0.0, method=method).c
        cupy.testing.assert_allclose(found, a.astype("f4") @ b.astype("f4"), rtol=1e-3, atol=1e-4)
