"""Launches of kernels, whose demands on the device are checked in one place.

A :class:`Shape` is everything about a launch except its arguments, so that a host without a GPU can check it against
a table of devices.  A :class:`Kernel` is one function of a unit on one device; it is launched with a shape.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import pointers
from spectile.core.compile import Unit
from spectile.core.cupy_parts import part
from spectile.core.device import describe
from spectile.core.devices import LAUNCH_SECONDS, Device

_MOST_GRID_X, _MOST_GRID_YZ = 2**31 - 1, 65535


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch without its arguments."""

    grid: tuple[int, ...]  #: Thread blocks along x, and y and z where needed.
    threads: int  #: Threads of a block.
    shared_bytes: int = 0  #: Dynamic shared memory of a block.
    #: All blocks run at the same time, or the launch fails; for kernels whose blocks wait for each other.
    cooperative: bool = False
    #: The kernel may start before the previous one in the stream has ended, and waits for it itself.
    after_previous: bool = False

    def refusal(self, device: Device) -> str | None:
        """Return why `device` cannot run this launch, in a few words, or None if it can."""
        x, y, z = (*self.grid, 1, 1)[:3]
        if self.shared_bytes > device.shared_bytes:
            return f"{self.shared_bytes:,} bytes of shared memory a block, of {device.shared_bytes:,}"
        if not 1 <= self.threads <= 1024:
            return f"{self.threads} threads a block, of 1,024"
        if not (1 <= x <= _MOST_GRID_X and 1 <= y <= _MOST_GRID_YZ and 1 <= z <= _MOST_GRID_YZ):
            return f"a grid of {x:,} x {y:,} x {z:,} blocks"
        if self.cooperative and x * y * z > self._resident(device):
            return f"{x * y * z:,} blocks at the same time, of {self._resident(device):,}"
        return None

    def _resident(self, device: Device) -> int:
        """Return the most blocks that can run at the same time, as limited by threads and shared memory."""
        reserved = 1024  # by the system, in each block
        by_shared = device.multiprocessor_shared_bytes // (self.shared_bytes + reserved)
        return device.multiprocessors * min(device.threads // self.threads, by_shared)


class Kernel:
    """One function of a unit on the current device, ready to be launched with any shape that the device can run.

    Parameters
    ----------
    unit : Unit
        The translation unit.
    name : str
        The function, ``extern "C"``.
    beside_l1 : int
        Blocks of a multiprocessor that find their static shared memory, while the L1 cache gets the rest; 0 leaves both
        to the driver.

    Attributes
    ----------
    launched : bool
        Whether it was launched since :func:`forget_launches`.
    """

    def __init__(self, unit: Unit, name: str, beside_l1: int = 0) -> None:
        driver, function = part("driver"), unit.module().get_function(name)
        static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
        # The limit belongs to the function, not to the launch, so it is set once, to the largest.
        limit = describe().shared_bytes - static
        driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit)
        if describe().compute_capability >= (9, 0):
            driver.funcSetAttribute(function.ptr, _LARGE_CLUSTERS, 1)
        if beside_l1:
            needed = beside_l1 * (static + 1024)  # and what the system takes of each
            share = min(100, -(-100 * needed // describe().multiprocessor_shared_bytes))
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, share)
        self.unit, self.name, self._function = unit, name, function
        self.launched = False

    def __call__(self, shape: Shape, *arguments: Any) -> None:
        """Launch on the current stream.

        Parameters
        ----------
        shape : Shape
            Grid, threads and shared memory.
        *arguments
            CuPy arrays (their address), NumPy scalars, and NumPy structured arrays of one element (by value).

        Raises
        ------
        RuntimeError
            If the device cannot run the shape, in one sentence, or the driver refuses it.
        """
        if shape.cooperative or shape.after_previous:
            BoundLaunch(self, shape, arguments)()
            return
        self.launched = True
        if max(shape.grid) > _MOST_GRID_X:
            raise self.refused(shape, "too many blocks")
        if np.ndarray in map(type, arguments):
            arguments = _by_value(arguments)
        try:
            self._function(shape.grid, (shape.threads,), arguments, shared_mem=shape.shared_bytes)
        except part("CUDADriverError") as error:
            raise self.refused(shape, str(error)) from error

    def clusters(self, shape: Shape) -> int:
        """Return how many clusters run at the same time, of a kernel that is compiled for some size of them."""
        count, config = ctypes.c_int(), _LaunchConfig(*(*shape.grid, 1, 1)[:3], shape.threads, 1, 1, shape.shared_bytes)
        status = _driver().cuOccupancyMaxActiveClusters(
            ctypes.byref(count), ctypes.c_void_p(self._function.ptr), ctypes.byref(config)
        )
        return count.value if status == 0 else 0

    def bind(self, shape: Shape, *arguments: Any) -> BoundLaunch:
        """Return a launch with everything packed, to be repeated at the least cost to the host.

        Parameters as those of the call.  A structured array is read at each launch: change its fields in place to
        launch with other addresses.  CuPy arrays are held.
        """
        return BoundLaunch(self, shape, arguments)

    def refused(self, shape: Shape, status: str) -> RuntimeError:
        """Return the error of a launch that the driver refused with `status`: what the device cannot run, if that."""
        demand = shape.refusal(describe())
        if demand is not None:
            return RuntimeError(f"the kernel {self.name} asks for {demand}, which {describe().name} cannot run")
        return RuntimeError(f"the driver refuses to launch {self.name} ({status})")


class BoundLaunch:
    """A kernel, a shape and its arguments, packed as the driver reads them; made by :meth:`Kernel.bind`.

    Calling it launches on the current stream.  One thread at a time may use it.
    """

    def __init__(self, kernel: Kernel, shape: Shape, arguments: tuple[Any, ...]) -> None:
        if max(shape.grid) > _MOST_GRID_X:  # the numbers below have 32 bits
            raise kernel.refused(shape, "too many blocks")
        overlaps = shape.after_previous and describe().compute_capability >= (9, 0)
        kinds = [_COOPERATIVE] * shape.cooperative + [_PROGRAMMATIC_SERIALIZATION] * overlaps
        attributes = (_LaunchAttribute * len(kinds))(*(_LaunchAttribute(kind, 0, 1) for kind in kinds))
        x, y, z = (*shape.grid, 1, 1)[:3]
        address = ctypes.addressof(attributes)
        self._config = _LaunchConfig(x, y, z, shape.threads, 1, 1, shape.shared_bytes, None, address, len(kinds))
        packed = [pointers.passed(argument) for argument in arguments]
        self._pointers = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(one) for one in packed))
        self._kernel, self._shape, self._function = kernel, shape, kernel._function.ptr
        self._held = attributes, packed, arguments
        self._launch, self._reference = _extended(), ctypes.byref(self._config)
        self._stream = _current_stream()

    def __call__(self, stream: int | None = None) -> None:
        """Launch on a stream, the current one where none is given; raises RuntimeError if the driver refuses."""
        self._kernel.launched = True
        self._config.stream = self._stream().ptr if stream is None else stream
        status = self._launch(self._reference, self._function, self._pointers, None)
        if status != 0:
            raise self._kernel.refused(self._shape, f"error {status}")


def kernel(unit: Unit, name: str, beside_l1: int = 0) -> Kernel:
    """Return a kernel of `unit` on the current device, the same one every time; `beside_l1` as for `Kernel`."""
    import cupy

    # Hashing a unit takes longer than a launch, so the key has its id; the kernel keeps it alive, so ids stay unique.
    key = (id(unit), name, cupy.cuda.runtime.getDevice())
    known = _KERNELS.get(key)
    if known is None:
        known = _KERNELS[key] = Kernel(unit, name, beside_l1)
    return known


_KERNELS: dict[tuple[int, str, int], Kernel] = {}


def measured_device() -> Device:
    """Return the current device with what a launch takes its host: what a choice by predicted seconds is made with.

    A launch is measured once a process, in half a millisecond, and rounded to powers of the root of two, so that
    processes on one host choose alike.  In a capture, in which nothing can be waited for, it is the table's, unless it
    was measured before.  Ranks that must choose alike take `describe` instead.
    """
    import cupy

    if not _launch_seconds.cache_info().currsize and cupy.cuda.get_current_stream().is_capturing():
        return describe()
    return dataclasses.replace(describe(), launch_seconds=_launch_seconds())


@functools.cache
def _launch_seconds() -> float:
    """Return what it takes the host to enqueue something on a stream, rounded."""
    import cupy

    word, runtime = cupy.empty(1, cupy.uint32), cupy.cuda.runtime
    rounds = []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(8):
            stream.synchronize()
            begun = time.perf_counter()
            for _ in range(16):
                runtime.memsetAsync(pointers.address(word), 0, word.nbytes, stream.ptr)
            rounds.append((time.perf_counter() - begun) / 16)
        stream.synchronize()
    return LAUNCH_SECONDS * 2.0 ** (round(2 * math.log2(statistics.median(rounds) / LAUNCH_SECONDS)) / 2)


def launched() -> set[Unit]:
    """Return the units of all kernels that this process has launched since `forget_launches`."""
    return {known.unit for known in list(_KERNELS.values()) if known.launched}


def forget_launches() -> None:
    """Let `launched` begin anew."""
    for known in list(_KERNELS.values()):
        known.launched = False


@contextmanager
def noting_launches() -> Iterator[list[Kernel]]:
    """Give a list that holds, when the block ends, the kernels that were launched in it."""
    found: list[Kernel] = []
    before = [known for known in list(_KERNELS.values()) if known.launched]
    forget_launches()
    try:
        yield found
    finally:
        found += [known for known in list(_KERNELS.values()) if known.launched]
        for known in before:
            known.launched = True


def _by_value(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments as CuPy's launch takes them: structs by value."""
    by_value = part("CNumpyArray")
    return tuple([by_value(one) if type(one) is np.ndarray else one for one in arguments])


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


_COOPERATIVE, _PROGRAMMATIC_SERIALIZATION = 2, 6
#: CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, which CuPy does not name: clusters of 16 blocks, not 8.
_LARGE_CLUSTERS = 14
#: CUDA_ERROR_NOT_READY: a stream is at work.
NOT_READY = 600


def _current_stream() -> Any:
    import cupy

    return cupy.cuda.get_current_stream


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _extended() -> Any:
    function = _driver().cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    return function


@functools.cache
def stream_query() -> Any:
    """Return cuStreamQuery, which gives `NOT_READY` for the address of a stream at work, without Python's lock."""
    function = _driver().cuStreamQuery
    function.argtypes = [ctypes.c_void_p]
    return function
