"""Streams, events and copies over the devices of a host, as the plans of SpAMM over several GPUs use them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from spectile.core import memory
from spectile.core.pointers import address


class Stream:
    """A stream of one device."""

    def __init__(self, index: int) -> None:
        import cupy

        self.device = index
        with cupy.cuda.Device(index):
            self.raw = cupy.cuda.Stream(non_blocking=True)

    def mark(self) -> Any:
        """Record and return an event."""
        recorded = event(self.device)
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
        from cupy.cuda import runtime

        rows, width = source.shape[0], source.shape[1] * source.itemsize
        into, pitch, out_of, step = address(target), target.strides[0], address(source), source.strides[0]
        end = runtime.memcpyDefault, self.raw.ptr
        if rows * width > 0 and (rows == 1 or pitch == step == width):
            runtime.memcpyAsync(into, out_of, rows * width, *end)
        elif rows * width > 0:
            runtime.memcpy2DAsync(into, pitch, out_of, step, width, rows, *end)


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


def joined(parts: Sequence[Any]) -> Any:
    """Return norm maps, each on any device, below one another on the current one."""
    import cupy

    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    whole, row = cupy.empty((sum(map(len, parts)), parts[0].shape[1]), parts[0].dtype), 0
    for part in parts:
        if part.size:
            runtime.memcpyAsync(address(whole[row:]), address(part), part.nbytes, runtime.memcpyDefault, stream.ptr)
        row += len(part)
    return whole


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
