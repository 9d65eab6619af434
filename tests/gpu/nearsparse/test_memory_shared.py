"""Results that overlap operands, arrays of other devices and streams, and the memory that a call takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import api, distribute, spamm, spamm_plan
from spectile.nearsparse.cuda import repeated

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
OUTPUTS = {"fp16": "f4", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
N = 768
# First rows of A, of B and of C in memory of 2 N rows.
PLACES = [(0, 0, 0), (0, N, 0), (0, N, N), (0, 0, 1), (N // 2, 0, N), (0, 0, N)]
OPTIONS = ("tau", 32, 1.0, False, None, "auto", "rows", "spamm")


def _place(dtype: str) -> Any:
    import cupy

    return cupy.random.default_rng(5).standard_normal((2 * N, N)).astype(dtype)


@pytest.mark.parametrize("choice", [{"tau": 600.0}, {"valid_ratio": 0.5}, {"rtol_factors": 0.5}])
@pytest.mark.parametrize("method", ["spamm", "auto"])
@pytest.mark.parametrize("precision", ["fp16c16", "fp32", "fp64"])
def test_out_may_overlap_operands(precision: str, method: str, choice: dict[str, float]) -> None:
    import cupy

    options: Any = {"precision": precision, "method": method} | choice
    for of_a, of_b, of_out in PLACES:
        # Calls that repeat run from a plan.
        for _ in range(3):
            place = _place(DTYPES[precision])
            a, b, out = (place[first : first + N] for first in (of_a, of_b, of_out))
            wanted = spamm(a.copy(), b.copy(), out=cupy.empty((N, N), OUTPUTS[precision]), **options)
            found = spamm(a, b, out=out, **options)
            assert found.c is out
            cupy.testing.assert_array_equal(out, wanted.c)
            if choice.keys() == {"tau"}:
                assert found.tau == wanted.tau


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_what_is_added_may_overlap_too(precision: str) -> None:
    import cupy

    output = OUTPUTS[precision]
    for first in (0, 1, N // 2, N):
        place, a = _place(output), _place(DTYPES[precision])
        c, out = place[first : first + N], place[:N]
        wanted = spamm(a[:N], a[N:], tau=600.0, beta=-2.0, c=c.copy(), precision=precision)
        found = spamm(a[:N], a[N:], tau=600.0, beta=-2.0, c=c, out=out, precision=precision)
        cupy.testing.assert_array_equal(out, wanted.c)
        assert found.error_bound == pytest.approx(wanted.error_bound, rel=1e-3)


def test_batches_may_overlap() -> None:
    import cupy

    stack = cupy.random.default_rng(6).standard_normal((5, 160, 160))
    for a, out in ((slice(0, 3), slice(1, 4)), (slice(0, 3), slice(0, 3))):
        place = stack.copy()
        wanted = spamm(place[a].copy(), place[4].copy(), tau=50.0)
        found = spamm(place[a], place[4], tau=50.0, out=place[out])
        cupy.testing.assert_array_equal(found.c, wanted.c)


def test_plans_refuse_what_overlaps_and_run_again() -> None:
    import cupy

    place = _place("f4")
    plan = spamm_plan(place[:N], place[:N])
    for kind in ("tau", "valid_ratio", "rtol_factors"):
        for first in (0, 4, N - 4):
            with pytest.raises(ValueError, match="out overlaps an operand"):
                plan.execute(**{kind: 0.5}, out=place[first : first + N])
        cupy.testing.assert_array_equal(place, _place("f4"))
        wanted = spamm(place[:N].copy(), place[:N].copy(), method="spamm", **{kind: 0.5})
        cupy.testing.assert_array_equal(plan.execute(**{kind: 0.5}, out=place[N:]).c, wanted.c)
        place[N:] = _place("f4")[N:]
    with pytest.raises(TypeError, match=r"^out is"):
        plan.execute(0.5, out=np.empty((N, N), "f4"))


def test_parts_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(api, "_listed", lambda devices, *_: list(devices))  # one device stands for two
    for split in ("rows", "columns"):
        a = cupy.random.default_rng(7).standard_normal((256, 256)).astype("f4")
        parts_a, parts_b = distribute(a, a, 5.0, [0, 0], split=split)
        wanted = spamm(a, a, tau=5.0).c
        out = parts_a if split == "rows" else parts_b
        found = spamm(parts_a, parts_b, tau=5.0, devices=[0, 0], split=split, out=out)
        joined = cupy.concatenate(found.c, axis=0 if split == "rows" else 1)
        cupy.testing.assert_array_equal(joined, wanted)


def test_what_cannot_be_written_is_refused() -> None:
    import cupy

    class ReadOnly:
        def __init__(self, array: Any) -> None:
            self.array = array
            given = array.__cuda_array_interface__
            self.__cuda_array_interface__ = given | {"data": (given["data"][0], True)}

    a = cupy.eye(64)
    wide = cupy.zeros((64, 128))
    for out in (ReadOnly(wide[:, :64].copy()), wide[:, ::2], cupy.zeros((64, 64), order="F"), wide[:, :64]):
        with pytest.raises(ValueError, match=r"^out "):
            spamm(a, a, tau=0.0, out=out)
    assert not wide.any()


def test_repeated_calls_know_streams_that_lie_at_one_address() -> None:
    import cupy

    a, b = cupy.ones((64, 64)), cupy.ones((64, 64))
    keys, places = set(), set()
    for _ in range(64):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            key = repeated.key_of(a, b, None, 1.0, *OPTIONS)
            assert key is not None and key == repeated.key_of(a, b, None, 1.0, *OPTIONS)
        keys.add(key)
        places.add(stream.ptr)
        stream.synchronize()
        del stream
    assert len(keys) == 64 >= len(places)
    assert repeated.key_of(a, b, None, 1.0, *OPTIONS) not in keys


def test_arrays_of_another_device_are_named() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one device")
    a = cupy.ones((64, 64))
    plan = spamm_plan(a, a)
    with cupy.cuda.Device(1):
        b = cupy.ones((64, 64))
        for call in (lambda: spamm(a, a, tau=0.0), lambda: spamm(b, b, tau=0.0, out=a), lambda: plan.execute(0.0)):
            with pytest.raises(ValueError, match="device 0"):
                call()
        assert float(spamm(b, b, tau=0.0).c[0, 0]) == 64
    with pytest.raises(ValueError, match="on device 1"):
        spamm(a, b, tau=0.0)
    assert float(plan.execute(0.0).c[0, 0]) == 64


def test_copies_wait_for_what_makes_their_source() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one device")
    n = 2048
    with cupy.cuda.Device(1), cupy.cuda.Stream(non_blocking=True):
        a = cupy.zeros((n, n))
        busy = cupy.ones((4096, 4096))
        for _ in range(20):
            busy = busy @ busy * 1e-4
        a += 1 + 0 * busy[:n, :n]
        with cupy.cuda.Device(0):
            parts, _ = distribute(a, a, 0.0, [0, 1])
        assert all(float(part.min()) == 1 for part in parts if part.device.id == 1)
    assert all(float(part.min()) == 1 for part in parts if part.device.id == 0)


@pytest.mark.parametrize(
    "path", ["tau", "rtol_factors", "out", "out is an operand", "added", "added overlaps", "repeated", "plan"]
)
def test_memory_is_what_the_call_is_made_of(path: str) -> None:
    import cupy

    n = 4096
    place = cupy.random.default_rng(8).standard_normal((2 * n, n), dtype="f4")
    a, b = place[:n], place[n:]
    longer, whole = cupy.zeros((n + 1, n), "f4"), a.nbytes
    own = longer[:n]
    # What each path takes of whole matrices.
    options, wanted = {
        "tau": ({"tau": 500.0}, 1),
        "rtol_factors": ({"rtol_factors": 0.1}, 1),
        "out": ({"tau": 500.0, "out": own}, 0),
        "out is an operand": ({"tau": 500.0, "out": a}, 1),
        "added": ({"tau": 500.0, "beta": 2.0, "c": own}, 1),
        "added overlaps": ({"tau": 500.0, "beta": 2.0, "c": longer[1:], "out": own}, 1),
        "repeated": ({"tau": 500.0}, 1),
        "plan": ({"tau": 500.0}, 1),
    }[path]
    options = dict(options)
    for _ in range(2):
        spamm(a, b, **options)
    plan = spamm_plan(a, b) if path == "plan" else None
    if path in ("tau", "rtol_factors", "out"):
        repeated._plans.clear()
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        result = plan.execute(**options) if plan is not None else spamm(a, b, **options)
        cupy.cuda.get_current_stream().synchronize()
        most = pool.total_bytes()
        del result
    assert wanted * whole <= most <= wanted * whole + 0.1 * whole
