"""What a launch asks of a device is known without one."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.core import launch
from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.core.launch import Kernel, Shape, kernel


@pytest.mark.parametrize(
    ("shape", "refusal"),
    [
        (Shape((1,), 32), None),
        (Shape((2**31 - 1, 65535, 65535), 1024, 101376), None),
        (Shape((1,), 32, 101377), "101,377 bytes of shared memory a block, of 101,376"),
        (Shape((1,), 1025), "1025 threads"),
        (Shape((0,), 32), "a grid of 0 x 1 x 1 blocks"),
        (Shape((128,), 1024, 101376, cooperative=True), None),
        (Shape((129,), 1024, 0, cooperative=True), "129 blocks at the same time, of 128"),
        (Shape((257,), 128, 40000, cooperative=True), "257 blocks at the same time, of 256"),
        (Shape((1, 65536), 32), "a grid of 1 x 65,536 x 1 blocks"),
    ],
)
def test_a_shape_that_a_device_cannot_run_is_refused_with_the_reason(shape: Shape, refusal: str | None) -> None:
    found = shape.refusal(TABLE["RTX 4090"])
    assert found is None if refusal is None else refusal in (found or "")


class DriverError(Exception):
    """What CuPy raises where the driver refuses a launch."""


class Function:
    """A kernel as CuPy gives it, which notes its limit and its launches."""

    def __init__(self) -> None:
        self.attributes = {"static": 1024, "dynamic": 49152}
        self.ptr = 0
        self.launched = []  # type: ignore[var-annotated]

    def set_attribute(self, ptr: int, attribute: str, value: int) -> None:
        assert ptr == self.ptr
        self.attributes[attribute] = value

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
        if shared_mem > self.attributes["dynamic"] or block[0] > 1024 or shared_mem == 17:
            raise DriverError("CUDA_ERROR_INVALID_VALUE")
        self.launched.append((grid, block, arguments, shared_mem))


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    function = Function()
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES="static",
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic",
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT="carveout",
        funcGetAttribute=lambda attribute, ptr: function.attributes[attribute],
        funcSetAttribute=function.set_attribute,
    )
    parts = {"driver": driver, "CNumpyArray": lambda array: ("by value", array), "CUDADriverError": DriverError}
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(launch, "part", parts.__getitem__)
    monkeypatch.setattr(launch, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(Unit, "module", lambda self: SimpleNamespace(get_function=lambda name: function))
    monkeypatch.setattr(launch, "_KERNELS", {})
    return function


def test_any_order_of_sizes_is_launched(function: Function) -> None:
    """The limit of shared memory belongs to the function: no launch may lower it for a later one."""
    unit = Unit("spectile.core", (), archs=("sm_80",))
    most = TABLE["H200"].shared_bytes - 1024
    for shared in (200_000, 60_000, 200_000, 0, most):
        kernel(unit, "f")(Shape((1,), 32, shared), np.int32(3))
    assert [launched[3] for launched in function.launched] == [200_000, 60_000, 200_000, 0, most]


def test_a_kernel_is_made_once_and_a_refused_shape_is_one_sentence(function: Function) -> None:
    unit = Unit("spectile.core", (), archs=("sm_80",))
    one = kernel(unit, "f")
    assert isinstance(one, Kernel) and kernel(unit, "f") is one and kernel(unit, "g") is not one
    with pytest.raises(RuntimeError, match="the kernel f asks for 2000 threads a block, of 1,024, which NVIDIA H200"):
        one(Shape((1,), 2000))
    with pytest.raises(RuntimeError, match=r"the driver refuses to launch f \(CUDA_ERROR_INVALID_VALUE\)"):
        one(Shape((1,), 32, 17))
    for launched in (one, one.bind):  # more blocks than the driver's numbers hold are no fewer blocks
        with pytest.raises(RuntimeError, match=r"the kernel f asks for a grid of 4,294,967,297 x 1 x 1 blocks, which"):
            launched(Shape((2**32 + 1,), 32))
    record = np.zeros(1, [("n", "i4")])
    one((Shape((2, 3), 64)), record)
    assert function.launched == [((2, 3), (64,), (("by value", record),), 0)]


def test_a_bound_launch_reads_its_struct_anew(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def launch_kernel(config: Any, address: int, pointers: Any, extra: None) -> int:
        number = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_int))[0]
        single = ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_float))[0]
        one = config._obj
        seen.append((number, single, address, one.grid_x, one.block_x, one.shared, one.stream, one.count))
        return 0 if number < 9 else 700

    monkeypatch.setattr(launch, "_extended", lambda: launch_kernel)
    streams = iter((64, 128, 64))
    monkeypatch.setattr(launch, "_current_stream", lambda: lambda: SimpleNamespace(ptr=next(streams)))
    function.ptr = 4096
    record = np.array([(7,)], [("n", "i4")])
    unit = Unit("spectile.core", (), archs=("sm_80",))
    bound = kernel(unit, "f").bind(Shape((5,), 64, 1000, after_previous=True), record, np.float32(0.5))
    bound()
    record["n"] = 8
    bound()
    assert seen == [(7, 0.5, 4096, 5, 64, 1000, 64, 1), (8, 0.5, 4096, 5, 64, 1000, 128, 1)]
    record["n"] = 9
    with pytest.raises(RuntimeError, match=r"refuses to launch f \(error 700\)"):
        bound()


@pytest.mark.parametrize(("blocks", "percent"), [(0, None), (1, 1), (32, 29), (1000, 100)])
def test_blocks_beside_the_l1_cache_get_their_share(function: Function, blocks: int, percent: int | None) -> None:
    """Each takes 1,024 bytes of its own and 1,024 of the system's, of the 228 KiB of a multiprocessor."""
    kernel(Unit("spectile.core", (), archs=("sm_80",)), "f", blocks)
    assert function.attributes.get("carveout") == percent


def test_units_that_were_launched_are_known_until_they_are_forgotten(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_extended", lambda: lambda *arguments: 0)
    monkeypatch.setattr(launch, "_current_stream", lambda: lambda: SimpleNamespace(ptr=0))
    one, other, unused = (Unit("spectile.core", (name,), archs=("sm_80",)) for name in ("a.cu", "b.cu", "c.cu"))
    bound = kernel(other, "g").bind(Shape((1,), 32))
    kernel(unused, "h")
    assert launch.launched() == set()
    kernel(one, "f")(Shape((1,), 32))
    assert launch.launched() == {one}
    bound()
    assert launch.launched() == {one, other}
    launch.forget_launches()
    assert launch.launched() == set()
    bound()  # made before
    assert launch.launched() == {other}


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: float, capturing: bool = False) -> list[int]:
    """Let a launch take so many seconds on a host with an H200; the returned list gets an item for each launch."""
    told: list[int] = []
    stream = SimpleNamespace(ptr=7, synchronize=lambda: None, is_capturing=lambda: capturing)
    runtime = SimpleNamespace(memsetAsync=lambda *_: told.append(1))
    cupy = SimpleNamespace(
        empty=lambda *_: np.empty(1, np.uint32),
        uint32=np.uint32,
        cuda=SimpleNamespace(
            runtime=runtime, Stream=lambda **_: contextlib.nullcontext(stream), get_current_stream=lambda: stream
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(launch.pointers, "address", lambda _: 0)
    monkeypatch.setattr(launch, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(launch, "time", SimpleNamespace(perf_counter=lambda: seconds * len(told)))
    monkeypatch.setattr(launch, "_launch_seconds", functools.cache(launch._launch_seconds.__wrapped__))
    return told


@pytest.mark.parametrize(("seconds", "found"), [(2.6e-6, 3e-6), (3.5e-6, 3e-6), (6.9e-6, 6e-6), (1.4e-6, 1.5e-6)])
def test_a_launch_is_measured_once_and_hosts_that_are_alike_are_told_alike(
    monkeypatch: pytest.MonkeyPatch, seconds: float, found: float
) -> None:
    told = clocked(monkeypatch, seconds)
    measured = launch.measured_device()
    assert measured.launch_seconds == pytest.approx(found)
    count = len(told)
    assert launch.measured_device() == measured and len(told) == count
    assert dataclasses.replace(measured, launch_seconds=TABLE["H200"].launch_seconds) == TABLE["H200"]


def test_nothing_is_measured_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    told = clocked(monkeypatch, 6e-6, capturing=True)
    assert launch.measured_device() == TABLE["H200"] and not told
