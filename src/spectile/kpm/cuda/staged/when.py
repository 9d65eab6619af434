"""When V is staged through shared memory (``kernel.cu``), in which shape, and what that costs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import STATIC_BYTES, Problem, seconds, streamed

# Bytes of a row of V from which a copy of it pays.
_LEAST_ROW_BYTES = 64
# Of a multiprocessor, 16-byte loads from shared memory a second, and seconds of a page's copy and of a tile; these and
# what a copy from the L2 cache costs of one from memory were fit to 200 steps on an H200 (docs/how/kpm.md).
_LOADS, _COPY, _TILE, _CACHED = 13.4e9, 14.4e-9, 0.92e-6, 0.25
# Seconds of the inspector, and for each entry (an H200).
_INSPECTOR, _INSPECTED = 3e-3, 3e-10
#: Slots that the inspector keeps in order, and a code can name: 16 bits are a slot and one of its four rows.
MOST_SLOTS = 512
PAGE = 4
#: Threads of a block of the inspector (``inspector.cu``): four tiles, whose pages lie in shared memory.
INSPECTOR_THREADS = 128


class StagedShape(NamedTuple):
    """Shape of the kernel for a width of the block vector."""

    vector: int  #: Numbers of 16 bytes.
    pieces: int  #: 16-byte pieces of a row that a thread holds.
    #: Pages of a tile, tiles in flight or at work.
    tile: int
    depth: int
    #: Warps that compute, and warps that issue copies.
    workers: int
    producers: int

    @property
    def columns(self) -> int:
        """Vectors of a block."""
        return 8 * self.pieces * self.vector

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in shared memory."""
        return 128 * self.pieces

    @property
    def groups(self) -> int:
        """Tiles at work."""
        return self.workers // self.tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.workers + self.producers)


# By pieces, the shapes that were fastest on an H200: the tiles in flight of the later ones name fewer rows of V.  Tiles
# of short rows name more pages for each entry.
_SHAPES = {
    4: ((4, 5, 12, 4), (4, 3, 8, 4)),
    2: ((12, 4, 12, 8), (6, 3, 12, 4)),
    1: ((16, 4, 16, 8), (8, 3, 16, 8), (4, 3, 8, 4)),
}
_SHORT, _SHORT_SHAPES = 8, ((4, 4, 8, 4),)


def applies(problem: Problem, device: Device) -> str:
    """Return why the kernel does not take this, in a few words; empty if it does, and the inspector finds a plan."""
    if device.compute_capability < (9, 0):
        return "a device before Hopper"
    if problem.row_bytes < _LEAST_ROW_BYTES or problem.row_bytes % 16:
        return f"rows of V of {problem.row_bytes} bytes"
    return ""


def widths(problem: Problem) -> tuple[int, ...]:
    """Return the width that R vectors have: whole 16 bytes, of which a copy is long enough; none for one vector."""
    whole = 16 // problem.item
    least = max(problem.vectors, _LEAST_ROW_BYTES // problem.item)
    return () if problem.vectors == 1 else (ceil_div(least, whole) * whole,)


def cost(problem: Problem, device: Device) -> float:
    """Return the seconds that a step should take which copies each row of V to shared memory once."""
    shapes = staged_shapes(problem.vectors, problem.dtype, problem.longest)
    inspector = (_INSPECTOR + _INSPECTED * problem.entries) / problem.steps
    return inspector + min(step_seconds(problem, device, shape) for shape in shapes)


def step_seconds(
    problem: Problem, device: Device, shape: StagedShape, copies: float = 1.0, weighed: float = 1.0
) -> float:
    """Return the seconds of a step that copies each row of V so many times to shared memory.

    They count as `weighed` copies from memory.  Columns that are not there are loaded from shared memory, too.
    """
    chunks, pages = ceil_div(problem.vectors, shape.columns), ceil_div(problem.rows, PAGE)
    again = (weighed - 1) * problem.rows * problem.row_bytes
    loads = problem.entries * 8 * shape.pieces / _LOADS
    tiles = pages / (shape.tile * shape.groups) * _TILE
    inside = chunks * (loads + copies * pages * _COPY + tiles) / device.multiprocessors
    return seconds(problem, device, streamed(problem, problem.entries, chunks) + again, inside=inside)


def weighed(copies: float, apart: int, row_bytes: int, device: Device) -> float:
    """Return as how many copies from memory count so many of each row of V.

    All beyond the first come from the L2 cache where it holds what is read and written between two of them: two waves
    of V and of W, of `apart` pages each.
    """
    between = 4 * apart * PAGE * row_bytes
    return 1 + (copies - 1) * min(1.0, max(_CACHED, between / device.l2_bytes))


def staged_shapes(num_vectors: int, dtype: Any, longest: int) -> list[StagedShape]:
    """Return the kernel's shapes for R vectors and a matrix of so many entries in a row at most, widest first."""
    vector = 16 // np.dtype(dtype).itemsize
    widest = next((pieces for pieces in sorted(_SHAPES) if num_vectors <= 8 * pieces * vector), max(_SHAPES))
    return [
        StagedShape(vector, pieces, *shape)
        for pieces, shapes in _SHAPES.items()
        if pieces <= widest
        for shape in (_SHORT_SHAPES if longest <= _SHORT and pieces == max(_SHAPES) else shapes)
    ]


class StagedRoom(NamedTuple):
    """How the kernel divides rows and shared memory."""

    #: Pages of V in shared memory: none, or fewer, if the codes and values of a stage leave too little space.
    slots: int
    #: Bytes of a stage's codes and values.
    code_bytes: int
    value_bytes: int
    workers: int  #: Thread blocks that share the rows, for each chunk of vectors.
    turns: int  #: Parts of each: three planes of a part, and what lies around it, fit into the slots.


def staged_room(
    shape: StagedShape, num_vectors: int, pages: int, longest: int, wave: int, item_bytes: int, device: Device,
) -> StagedRoom:  # fmt: skip
    """Return how rows and shared memory are divided.

    Parameters
    ----------
    shape : StagedShape
        The kernel's shape.
    num_vectors : int
        R.
    pages : int
        Pages of rows to compute.
    longest : int
        Entries of the longest row.
    wave : int
        Pages of a wave, a plane of the lattice.
    item_bytes : int
        Bytes of a stored value.
    device : Device
        The device.
    """
    workers = min(max(1, device.multiprocessors // ceil_div(num_vectors, shape.columns)), pages)
    code_bytes = shape.tile * (16 + ceil_div(longest, 4) * 32)
    value_bytes = shape.tile * PAGE * longest * item_bytes
    left = device.shared_bytes - STATIC_BYTES - shape.depth * (code_bytes + value_bytes)
    slots = min(left // (PAGE * shape.row_bytes), MOST_SLOTS)
    turns = max(1, math.ceil(wave / (workers * 0.3 * max(1, slots))))
    return StagedRoom(slots, code_bytes, value_bytes, workers, turns)


def staged_launch(shape: StagedShape, room: StagedRoom, num_vectors: int) -> Shape:
    """Return the launch of ``staged``."""
    shared = room.slots * PAGE * shape.row_bytes + shape.depth * (room.code_bytes + room.value_bytes)
    # The sums of the scalar products take the slots' place.
    shared = max(shared, 2 * shape.columns * 8 * shape.workers)
    return Shape((room.workers, ceil_div(num_vectors, shape.columns)), shape.threads, shared)
