"""Devices that solve one problem together: their streams, events and copies."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from spectile.core.places import connect
from spectile.core.pointers import address
from spectile.evd.cuda.matrix import Matrix


@functools.cache
def _stream(index: int, number: int = 0) -> Any:
    """Return a stream that a device helps others on, always the same: CuPy keeps freed memory by stream."""
    import cupy

    with cupy.cuda.Device(index):
        return cupy.cuda.Stream(non_blocking=True)


class Member:
    """A device of a team, number 0 for the home of operands and results, and the stream that it works on."""

    def __init__(self, number: int, index: int, stream: Any) -> None:
        self.number, self.index, self.stream = number, index, stream

    @property
    def beside(self) -> Member:
        """The device with a stream for what needs no memory and runs beside its other work."""
        return Member(self.number, self.index, _stream(self.index, 1))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make device and stream CuPy's current ones."""
        import cupy

        with cupy.cuda.Device(self.index), self.stream:
            yield

    def mark(self) -> Any:
        """Record and return an event."""
        import cupy

        with cupy.cuda.Device(self.index):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(self.stream)
        return event

    def wait(self, *events: Any) -> None:
        """Let what comes next wait for events of any device."""
        for event in events:
            self.stream.wait_event(event)

    def copy(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, columns: int) -> None:
        """Copy columns of `width` bytes between addresses on any two devices, the pitches apart."""
        import cupy

        runtime = cupy.cuda.runtime
        if width and columns:  # a stream takes copies whatever device is current
            runtime.memcpy2DAsync(
                *(target, target_pitch, source, source_pitch, width, columns), *(runtime.memcpyDefault, self.stream.ptr)
            )

    def fetched(self, array: Any) -> Any:
        """Return a copy of a contiguous array of another device, whose stream is to be waited for before."""
        import cupy

        with self.current():
            own = cupy.empty(array.shape, array.dtype)
            cupy.cuda.runtime.memcpyAsync(
                address(own), address(array), array.nbytes, cupy.cuda.runtime.memcpyDefault, self.stream.ptr
            )
        return own

    def fetch(self, target: Matrix, source: Matrix, rows: int, columns: int, *, at: int = 0, of: int = 0) -> None:
        """Copy the first rows of columns `of` ... of a matrix to columns `at` ... of another of the same dtype."""
        size = target.itemsize
        self.copy(
            *(target.at(0, at), target.ld * size, source.at(0, of), source.ld * size),
            width=rows * size,
            columns=columns,
        )


class Link(NamedTuple):
    """What it takes to work together."""

    bytes_per_second: float  #: Of a copy from one device to another.
    call_seconds: float  #: Of the host, to record an event and to let a stream wait for it.


#: Bytes that are copied, and events that are recorded, to measure a link.
_TRIED_BYTES, _TRIED_EVENTS = 2**26, 50


@functools.cache
def _measured(one: int, other: int) -> Link:
    """Return the link from one device to another, as it is now."""
    import cupy

    members = Member(0, one, _stream(one)), Member(1, other, _stream(other))
    first, second = members
    with first.current():
        source = cupy.zeros(_TRIED_BYTES, np.uint8)
    second.wait(first.mark())
    second.fetched(source)  # makes the memory, and the way
    second.stream.synchronize()
    start = time.perf_counter()
    second.fetched(source)
    second.stream.synchronize()
    copied = time.perf_counter()
    for _ in range(_TRIED_EVENTS):
        second.wait(first.mark())
    begun = time.perf_counter()
    second.stream.synchronize()
    return Link(_TRIED_BYTES / (copied - start), (begun - copied) / _TRIED_EVENTS)


class Team:
    """The members, home first, whose current stream orders the call.

    They are `connected` where all of them can read and write one another's memory.
    """

    def __init__(self, ids: Sequence[int], home: int) -> None:
        import cupy

        with cupy.cuda.Device(home):
            own = cupy.cuda.get_current_stream()
        others = [index for index in ids if index != home]
        self.members = [Member(0, home, own)]
        self.members += [Member(number, index, _stream(index)) for number, index in enumerate(others, 1)]
        self.connected = connect(ids)

    @property
    def home(self) -> Member:
        """The member that has operands and results."""
        return self.members[0]

    @property
    def others(self) -> list[Member]:
        """All other members."""
        return self.members[1:]

    def each(self, task: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Return what a task gives for each member and its arguments, home's in this thread.

        A queue of launches is finite: each of the others has a thread that fills it.
        """
        first, *rest = zip(self.members, *arguments, strict=True)
        with ThreadPoolExecutor(len(rest)) as pool:
            others = [pool.submit(task, *own) for own in rest]
            return [task(*first), *(other.result() for other in others)]

    def link(self) -> Link:
        """Return what lies between home and the last of the others, measured once a process."""
        return _measured(self.home.index, self.others[-1].index)

    def meet(self) -> None:
        """Let what comes next on each device wait for all that was begun on the others."""
        marks = [member.mark() for member in self.members]
        for member in self.members:
            member.wait(*(mark for number, mark in enumerate(marks) if number != member.number))

    def join(self) -> None:
        """Let home wait for the others."""
        self.home.wait(*(member.mark() for member in self.others))

    def finish(self) -> None:
        """Let home and the host wait for the others: what they hold may be freed after that."""
        self.join()
        for member in (*self.others, *(one.beside for one in self.members)):
            member.stream.synchronize()
