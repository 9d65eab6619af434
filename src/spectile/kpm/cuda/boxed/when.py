"""When groups of rows are multiplied on tensor cores (``kernel.cu``), in which shape, and what that costs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import STATIC_BYTES, Problem, seconds, streamed

#: Rows of a group: the height of the tensor core's operand.
MOST_GROUPED = 8
#: Rows of a group, on average, from which reading each row of V once for all of them pays.
LEAST_GROUPED = 2.5
# Entries of the longest row up to which it does not.
_SHORT = 8
# As in ``csr/when.py``, for each byte, each product of two numbers, and each group.
_STREAM, _WORD, _GROUP = 1.0, 0.028, 1500.0
#: Seconds of the inspector (an H200).
INSPECTOR = 1e-3
#: Boxes of a tile at most.
MOST_BOXES = 64
#: Threads of a block of its inspector (``inspector.cu``).
BOXES_THREADS = 256


class BoxedShape(NamedTuple):
    """Shape of the kernel for a width of the block vector."""

    columns: int  #: Vectors of a warp.
    unroll: int  #: Steps of eight entries in flight.
    tile: int  #: Groups of a tile at most, each of which a warp takes.
    sets: int  #: Tiles at work.
    depth: int  #: Tiles in flight or at work, a multiple of `sets`.
    box: int  #: Rows of a box, a multiple of eight.

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.tile * self.sets


# By type and columns of a warp: steps in flight, groups of a tile, tiles at work and in flight, rows of a box
# (measured on an H200, docs/notes/kpm.md).
_BOXED_SHAPES = {
    ("float32", 16): (2, 4, 4, 8, 24),
    ("float32", 32): (2, 8, 2, 4, 24),
    ("float64", 16): (2, 8, 1, 2, 24),
    ("float64", 32): (2, 8, 1, 2, 24),
    ("complex64", 8): (2, 8, 2, 4, 24),
    ("complex64", 16): (2, 4, 4, 4, 24),
    ("complex64", 32): (1, 4, 4, 4, 24),
    ("complex128", 8): (2, 8, 1, 2, 24),
    ("complex128", 16): (2, 4, 2, 2, 24),
    ("complex128", 32): (1, 4, 2, 2, 24),
}
# Groups of a tile, of those that it may have, below which other kernels should be faster: other warps are idle.
_LEAST_FILLED = 0.75
# Bytes of codes that are not compared with the matrix's.
_FREE_CODES = 2**20


def columns_of(num_vectors: int, dtype: str) -> int:
    """Return the vectors of a warp: the most that divide R, or 0 where a row of V is too short for the tensor core."""
    return next((n for n in (32, 16, 8) if num_vectors % n == 0 and (dtype, n) in _BOXED_SHAPES), 0)


def may_group(longest: int, device: Device) -> bool:
    """Return whether the kernel could take a matrix if its rows form groups.

    It takes copies of boxes and float64 products of 16 rows, which begin with Hopper, and does not pay for short rows.
    """
    return device.compute_capability >= (9, 0) and device.fast_fp64 and longest > _SHORT


def applies(problem: Problem, device: Device) -> str:
    """Return why the kernel does not take this, in a few words; empty if it does."""
    if not may_group(problem.longest, device):
        return "short rows, or a device before Hopper or of slow float64"
    if problem.rows < LEAST_GROUPED * problem.groups:
        return f"{problem.rows / problem.groups:.1f} adjacent rows with the same columns"
    if not columns_of(problem.vectors, problem.dtype):
        return "rows of V that do not fill the tensor core"
    if not boxed_room(boxed_shape(problem.vectors, problem.dtype), problem.dtype, problem.longest, device).slots:
        return "a group's values leave no shared memory for V"
    return ""


def widths(problem: Problem) -> tuple[int, ...]:
    """Return the widths that R vectors may have: multiples of a warp's; none for one vector."""
    warps = [n for n in (8, 16, 32) if (problem.dtype, n) in _BOXED_SHAPES]
    return () if problem.vectors == 1 else tuple(sorted({ceil_div(problem.vectors, n) * n for n in warps}))


def cost(problem: Problem, device: Device) -> float:
    """Return the seconds that a step should take."""
    chunks = problem.vectors // columns_of(problem.vectors, problem.dtype)
    words = problem.entries * problem.vectors * (4 if problem.is_complex else 1)
    moved = _STREAM * streamed(problem, problem.entries, chunks) + _WORD * words + _GROUP * problem.groups * chunks
    return INSPECTOR / problem.steps + seconds(problem, device, moved)


def boxed_shape(num_vectors: int, dtype: Any) -> BoxedShape:
    """Return the shape for R vectors of a width that the kernel takes."""
    name = str(np.dtype(dtype))
    columns = columns_of(num_vectors, name)
    return BoxedShape(columns, *_BOXED_SHAPES[name, columns])


class BoxedRoom(NamedTuple):
    """How the kernel divides shared memory."""

    length: int  #: Codes of a group's columns: entries of the longest row and more.
    pieces: int  #: Parts of a warp's row of V, 128 bytes or 64, which lie apart in a box.
    slots: int  #: Boxes of a tile at most: none if values and codes leave no space.
    shared_bytes: int  #: All of it.


def boxed_room(shape: BoxedShape, dtype: Any, longest: int, device: Device) -> BoxedRoom:
    """Return how shared memory is divided, for a matrix with so many entries in a row at most."""
    item, whole = np.dtype(dtype).itemsize, 8 * shape.unroll
    length = max(1, ceil_div(longest, whole)) * whole
    values = shape.tile * (MOST_GROUPED * length * item + 16)
    stage = values + shape.tile * (length + MOST_GROUPED) * 2
    row = shape.columns * item
    box = shape.box * row
    # Boxes begin at multiples of 1024 bytes; barriers are static.
    left = device.shared_bytes - 1024 - STATIC_BYTES - shape.depth * stage
    slots = max(0, min(left // (shape.depth * box), MOST_BOXES))
    return BoxedRoom(
        length, row // 128 if row % 128 == 0 else row // 64, slots, 1024 + shape.depth * (slots * box + stage)
    )


def most_tiles(shape: BoxedShape, room: BoxedRoom, groups: int, value_bytes: int) -> int:
    """Return how many tiles there may be: nearly full ones, whose codes take no more memory than the matrix's values.

    Small matrices may have longer codes.
    """
    tile_bytes = shape.tile * (2 * (room.length + MOST_GROUPED) + 16) + 4 * (room.slots + 2)
    return min(math.ceil(ceil_div(groups, shape.tile) / _LEAST_FILLED), max(value_bytes, _FREE_CODES) // tile_bytes)


def boxed_launch(shape: BoxedShape, room: BoxedRoom, tiles: int, num_vectors: int, device: Device) -> Shape:
    """Return the launch of ``boxed``: a block a multiprocessor takes tiles in turn."""
    chunks = num_vectors // shape.columns
    # The sums of the scalar products take the boxes' place.
    shared = max(room.shared_bytes, 1024 + 2 * shape.columns * 8 * shape.tile * shape.sets)
    return Shape((min(max(1, device.multiprocessors // chunks), tiles), chunks), shape.threads, shared)
