"""What the choice of a kernel knows of a matrix and a block of vectors, and what a step costs by it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div

#: Registers of a multiprocessor, and threads whose loads hide the memory's latency where each has several in flight.
REGISTERS, MOST_THREADS = 65536, 640
#: Bytes that a thread reads at once.
LOAD_BYTES = 16
#: Barriers, and what the driver keeps of a block's shared memory.
STATIC_BYTES = 1024
#: Steps of a call that says nothing of them.
ORDINARY_STEPS = 1000
#: Part of the specified bandwidth that a copy reaches.
_COPIED = 0.9
#: Launches that take the host as long as a step through Python (an H100's host: 11.4 µs where one takes 1.5 to 2.4).
_ENQUEUED = 4.5
# Seconds of a launch on the device; of a multiprocessor, float32 multiply-adds a second, and loads of a thread from the
# caches (144 lattices and crystals on an H200, docs/how/kpm.md).
_LAUNCH, _MULTIPLY_ADDS, _LOADS = 2e-6, 128 * 1.5e9, 5.2e9


class Problem(NamedTuple):
    """A stored matrix and a block of vectors."""

    #: Rows and entries of the matrix, and entries of its longest row.
    rows: int
    entries: int
    longest: int
    slots: int  #: Slots of its sliced ELLPACK form.
    groups: int  #: Groups of up to eight adjacent rows with the same columns.
    dtype: str  #: float32, float64, complex64 or complex128.
    vectors: int  #: R, padding included.
    steps: int = ORDINARY_STEPS  #: Over which what prepares a kernel counts.

    @property
    def item(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    @property
    def is_complex(self) -> bool:
        """Whether a number has two parts."""
        return self.dtype.startswith("complex")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of V."""
        return self.vectors * self.item

    @property
    def mean(self) -> float:
        """Entries of a row on average."""
        return self.entries / self.rows


class Lanes(NamedTuple):
    """How the threads of a warp share a row of V."""

    #: Adjacent vectors that a thread reads at once, threads of a row, and pieces of a thread.
    vector: int
    lanes: int
    pieces: int

    @property
    def columns(self) -> int:
        """Vectors of a row's threads."""
        return self.vector * self.lanes * self.pieces


def lanes_of(problem: Problem, paired: bool) -> Lanes:
    """Return 16 bytes a thread where R allows it, and a second piece where a row needs more than a warp.

    With `paired`, rows of more than two threads take two pieces a thread, too.
    """
    vector = max(1, LOAD_BYTES // problem.item)
    while problem.vectors % vector:
        vector //= 2
    needed = ceil_div(problem.vectors, vector)
    lanes = min(32, 1 << (needed - 1).bit_length())
    if paired and lanes > 2:
        return Lanes(vector, lanes if needed > lanes else lanes // 2, 2)
    return Lanes(vector, lanes, 2 if needed > lanes else 1)


def loads_of(problem: Problem) -> tuple[int, ...]:
    """Return R, and R padded to longer loads of a thread, up to whole ones; one vector is never padded."""
    if problem.vectors == 1:
        return (1,)
    return tuple(sorted({ceil_div(problem.vectors, n) * n for n in (1, 2, 4) if n * problem.item <= LOAD_BYTES}))


def threads_of(registers: int, columns: int) -> int:
    """Return the threads of a block that has a multiprocessor alone, each with so many registers.

    The scalar products of a block's warps, two numbers for each of `columns` vectors, are static shared memory.
    """
    most = min(MOST_THREADS, REGISTERS // (registers + 3), 48 * 1024 // (16 * columns) * 32)
    return max(128, most // 128 * 128)


def row_launch(shape: Any, rows: int, vectors: int, device: Device) -> Shape:
    """Return the launch of a kernel whose threads share rows, on so many: blocks go through them side by side."""
    once = shape.threads // (shape.lanes.lanes * getattr(shape, "split", 1))
    blocks = max(1, min(device.multiprocessors, ceil_div(rows, once)))
    return Shape((blocks, ceil_div(vectors, shape.lanes.columns)), shape.threads)


def enqueued(device: Device) -> float:
    """Return the seconds that the host takes to enqueue a step, which none of one launch falls below."""
    return _ENQUEUED * device.launch_seconds


def copying(moved: float, device: Device) -> float:
    """Return the seconds that so many bytes take at a copy's rate."""
    return moved / (_COPIED * device.bytes_per_second)


def seconds(
    problem: Problem, device: Device, moved: float, launches: int = 1, loads: float = 0.0, inside: float = 0.0
) -> float:
    """Return what a step takes: a launch, and the longest of what its parts do side by side.

    These are `moved` bytes at a copy's rate and then `loads` of threads from V, what all kernels must move, the
    arithmetic, and `inside`, the seconds that multiprocessors work.  The host takes at least so long to enqueue its
    launches.
    """
    numbers = problem.entries * problem.vectors * (4 if problem.is_complex else 1)
    divisor = device.fp64_divisor if problem.item == (16 if problem.is_complex else 8) else 1
    arithmetic = numbers * divisor / (device.multiprocessors * _MULTIPLY_ADDS)
    least = copying(streamed(problem, problem.entries), device)
    reading = copying(moved, device) + loads / (device.multiprocessors * _LOADS)
    done = _LAUNCH + max(reading, least, arithmetic, inside)
    return max(launches * enqueued(device), done)


def streamed(problem: Problem, entries: int, chunks: int = 1) -> int:
    """Return the least bytes of a step: `entries` once for each of `chunks` parts of R, V once, W twice."""
    matrix = entries * (problem.item + 4) + 4 * problem.rows
    return chunks * matrix + 3 * problem.rows * problem.row_bytes
