"""Streams, events and copies over the devices of a host, as the plans of SpAMM over several GPUs use them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spectile.core import memory
from spectile.core.pointers import address


class Stream:
    """A stream of one device and the events recorded on it, which every call of a plan uses again."""

    def __init__(self, index: int) -> None:
        import cupy

        self.device = index
        with cupy.cuda.Device(index):
            self.raw = cupy.cuda.Stream(non_blocking=True)
        self._events: list[Any] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin a new call: its events are those of the call before."""
        self._next = 0

    def mark(self) -> Any:
        """Record and return an event."""
        if self._next == len(self._events):
            self._events.append(event(self.device))
        recorded = self._events[self._next]
        self._next += 1
        self.raw.record(recorded)
        return recorded

    def wait(self, *events: Any) -> None:
        """Let what comes next wait for events of any device."""
        for before in events:
            self.raw.wait_event(before)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make device and stream CuPy's current ones."""
        import cupy

        with cupy.cuda.Device(self.device), self.raw:
            yield

    def copy(self, target: Any, source: Any) -> None:
        """Copy a matrix whose rows are contiguous, between any two devices or a device and the host."""
        self.copying(target, source)()

    def copying(self, target: Any, source: Any) -> Callable[[], None]:
        """Return a function that copies, with everything looked up: a plan launches hundreds of copies."""
        return functools.partial(self.copying_rows(target, source), 0, source.shape[0])

    def copying_rows(self, target: Any, source: Any) -> Callable[[int, int], None]:
        """Return a function that copies the rows from a first to before a last one."""
        from cupy.cuda import runtime

        width = source.shape[1] * source.itemsize
        into, pitch, out_of, step = address(target), target.strides[0], address(source), source.strides[0]
        end = runtime.memcpyDefault, self.raw.ptr
        contiguous = source.shape[0] <= 1 or pitch == step == width

        def copy(first: int, last: int) -> None:
            size = (last - first) * width
            if size > 0 and contiguous:
                runtime.memcpyAsync(into + first * width, out_of + first * width, size, *end)
            elif size > 0:
                start = into + first * pitch, pitch, out_of + first * step, step
                runtime.memcpy2DAsync(*start, width, last - first, *end)

        return copy


class Pinned:
    """Numbers in host memory that kernels of a device write themselves: a copy would queue behind others."""

    def __init__(self, index: int, shape: tuple[int, ...], dtype: str) -> None:
        import cupy
        import cupyx

        self.host = cupyx.empty_pinned(shape, dtype)
        memory = cupy.cuda.UnownedMemory(address(self.host), self.host.nbytes, self.host, index)
        #: The same memory as an array of the device.
        self.device = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def event(index: int) -> Any:
    """Return an event of a device."""
    import cupy

    with cupy.cuda.Device(index):
        return cupy.cuda.Event(disable_timing=True)


def copied(parts: Sequence[Any], devices: Sequence[int]) -> list[Any]:
    """Return copies of device arrays, matrices or batches of them, one on each device, when they are there."""
    import cupy

    copies = []
    for source, index in zip(parts, devices, strict=True):
        stream = Stream(index)
        with cupy.cuda.Device(index), memory.allocating(f"a copy on device {index}", source.nbytes):
            copies.append(cupy.empty(source.shape, source.dtype))
            synchronize()
            for target, matrix in pairs(copies[-1], source):
                stream.copy(target, matrix)
        stream.raw.synchronize()
    return copies


def here(array: Any) -> Any:
    """Return a device array on the current device, copied after what is under way on its own one's current stream."""
    import cupy

    if array.data.device_id == cupy.cuda.runtime.getDevice():
        return array
    with array.device:
        array = cupy.ascontiguousarray(array)
        synchronize()
    with memory.allocating("a copy on the current device", array.nbytes):
        copy = cupy.empty(array.shape, array.dtype)
    copy.data.copy_from_device(array.data, array.nbytes)
    return copy


def pairs(target: Any, source: Any) -> list[tuple[Any, Any]]:
    """Return two matrices, or two batches of equal shape as few pairs of matrices as their strides allow."""
    if target.ndim == 2:
        return [(target, source)]
    if target.size == 0 or all(x.strides[0] == x.shape[1] * x.strides[1] for x in (target, source)):
        return [(target.reshape(-1, target.shape[-1]), source.reshape(-1, source.shape[-1]))]
    return list(zip(target, source, strict=True))


def synchronize() -> None:
    """Wait for the current stream of the current device."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
