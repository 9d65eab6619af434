"""Numbers of a result are read after what makes them, whichever stream is current by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# CUDA's name for the default stream of the calling thread, another one in each.
PER_THREAD = 2


def mark(stream: Any) -> Any:
    """Return an event at the end of a stream that another thread cannot name, and None for other streams."""
    return stream.record() if stream.ptr == PER_THREAD and not stream.is_capturing() else None


def read_after(device: int, stream: Any, ended: Any, number: Callable[[], Any]) -> Any:
    """Return ``number()``, read on a device where its current stream waits for another one of it.

    `stream` was current there when the number was enqueued, and `ended` is :func:`mark` of it.
    """
    import cupy

    with cupy.cuda.Device(device):
        current = cupy.cuda.get_current_stream()
        if ended is not None:
            current.wait_event(ended)
        elif current.ptr != stream.ptr:
            current.wait_event(stream.record())
        return number()


class After:
    """The ends of streams of devices, as :func:`read_after` takes them, after which numbers are read."""

    def __init__(self, ends: Sequence[tuple[int, Any, Any]]) -> None:
        self._ends = ends

    @classmethod
    def of(cls, devices: Sequence[int]) -> After:
        """Return the ends of the current streams of devices on which something was enqueued."""
        import cupy

        ends = []
        for device in dict.fromkeys(devices):
            with cupy.cuda.Device(device):
                stream = cupy.cuda.get_current_stream()
                ends.append((device, stream, mark(stream)))
        return cls(ends)

    def __call__(self, number: Callable[[], Any]) -> Any:
        """Return a number, read when the current streams wait for the ends."""
        for end in self._ends:
            read_after(*end, number=lambda: None)
        return number()
