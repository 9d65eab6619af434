"""The paper's product (Algorithm 1) on the device: task list, its sort, counting, multiplication, compaction.

Its parts are functions, so that each can be timed: `list_tasks`, `sort_tasks`, `segment`, `count_elements`, `multiply`
and `compact`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.tsparse.cuda import parts, units
from spectile.tsparse.cuda.factors import unscale
from spectile.tsparse.cuda.tasks.convert import BitmapMatrix, Total, convert, launch, scan, to_csr
from spectile.tsparse.types import Factor, Precision

_TASK_BYTES = 40  # of the list, its keys, twice, and its sorted form
FEW_TASKS = 2**24  # that are listed together whatever memory is free
MOST_TASKS = 2**30
_PAIRS = 8  # of tiles of C that a block multiplies


@dataclass
class TaskList:
    """The products of tiles that make some rows of tiles of C.

    Attributes
    ----------
    first, rows : int
        The first row of tiles and their number.
    column_bits, place_bits : int
        Width of the column of tiles and of the place in the list within a key.
    tasks : (n, 2) int32
        Tile of A and tile of B of each product.
    keys : (n + 1,) uint64
        From the second place on: row of tiles, column of tiles, place in `tasks`.
    """

    first: int
    rows: int
    column_bits: int
    place_bits: int
    tasks: Any
    keys: Any


@dataclass
class Segments:
    """Sorted tasks, and the tiles of C that they make.

    Attributes
    ----------
    indptr : (rows + 1,) int32
        First tile of C of each row of tiles.
    tiles : int
        Tiles of C.
    heads : (tiles + 1, 2) int32
        First task and column of each tile of C.
    tasks : (n, 2) int32
        Tile of A and tile of B of each product.
    """

    indptr: Any
    tiles: int
    heads: Any
    tasks: Any


def product(A: BitmapMatrix, B: BitmapMatrix, precision: Precision, unit: Unit | None = None) -> BitmapMatrix:
    """Multiply tiles to tiles; entries that cancel are left out.

    Parameters
    ----------
    A, B : BitmapMatrix
        Factors, their elements rounded to `precision`.
    precision : Precision
    unit : Unit, optional
        Kernels that count and multiply, for the study: ``units.TASK_PLAIN`` does so without tensor cores.
    """
    unit = unit or units.TASK_PRODUCT[precision.name]
    pieces = []
    for listed in list_tasks(A, B):
        sort_tasks(listed)
        segments = segment(listed)
        del listed
        C = count_elements(A, B, segments, precision, unit)
        cancelled = multiply(A, B, segments, C, unit)
        del segments
        pieces.append(compact(C, cancelled, unit))
    return pieces[0] if len(pieces) == 1 else _joined(A, B, pieces, precision)


def multiply_to_csr(A: Factor, B: Factor, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of C for CSR factors, through tiles."""
    left = convert(A, precision)
    right = left if B is A else convert(B, precision)
    indptr, indices, data = to_csr(product(left, right, precision), precision)
    return indptr, indices, unscale(data, indptr, indices, A, B, 0)


def list_tasks(A: BitmapMatrix, B: BitmapMatrix) -> Any:
    """Yield the tasks, filtered, of as many rows of tiles at a time as memory and the bits of a key hold."""
    import cupy

    counts, offsets = cupy.empty(A.tiles, np.int32), cupy.empty(A.tiles + 1, np.int32)
    tiles_a, tiles_b = (A.columns, A.bitmaps), (B.indptr, B.bitmaps)
    launch(units.TASK_LIST, "count_tasks", 8 * A.tiles, 256, np.int32(A.tiles), *tiles_a, *tiles_b, counts)
    total = scan(counts, offsets).read()
    tile_rows, column_bits = -(-A.shape[0] // 8), max((-(-B.shape[1] // 8) - 1).bit_length(), 1)
    place_bits = max(total.bit_length(), 1)
    most = FEW_TASKS
    if total > most:
        most = min(max(memory.free_bytes() // (2 * _TASK_BYTES), FEW_TASKS), MOST_TASKS)
    if total <= most and _row_bits(tile_rows) + column_bits + place_bits <= 64:
        yield _listed(A, B, offsets, (0, tile_rows), (0, A.tiles), total, column_bits)
        return
    first_tile = A.indptr.get().astype(np.int64)
    starts = np.append(0, np.cumsum(counts.get(), dtype=np.int64))[first_tile]
    rows = 1 << (64 - column_bits - most.bit_length())
    a = 0
    while a < tile_rows:
        b = int(np.searchsorted(starts, starts[a] + most, side="right")) - 1
        b = max(min(b, a + rows, tile_rows), a + 1)
        tasks = int(starts[b] - starts[a])
        if tasks > MOST_TASKS:
            raise MemoryError(f'rows {8 * a} to {8 * a + 7} of C take {tasks:,} products of tiles: use method="rows"')
        yield _listed(A, B, offsets, (a, b), (int(first_tile[a]), int(first_tile[b])), tasks, column_bits)
        a = b


def _row_bits(rows: int) -> int:
    return max(rows - 1, 0).bit_length()


def _listed(
    A: BitmapMatrix,
    B: BitmapMatrix,
    offsets: Any,
    rows: tuple[int, int],
    tiles: tuple[int, int],
    tasks: int,
    column_bits: int,
) -> TaskList:
    import cupy

    place_bits = max(tasks.bit_length(), 1)
    assert _row_bits(rows[1] - rows[0]) + column_bits + place_bits <= 64, "rows are parted by the bits of a key"
    listed, keys = cupy.empty((tasks, 2), np.int32), cupy.empty(tasks + 1, np.uint64)
    sizes = (tiles[0], tiles[1] - tiles[0], rows[0], column_bits, place_bits)
    factors = (A.rows, A.columns, A.bitmaps, B.indptr, B.columns, B.bitmaps)
    arguments = (*(np.int32(size) for size in sizes), *factors, offsets, listed, keys[1:])
    launch(units.TASK_LIST, "list_tasks", 8 * (tiles[1] - tiles[0]), 256, *arguments)
    return TaskList(rows[0], rows[1] - rows[0], column_bits, place_bits, listed, keys)


def sort_tasks(listed: TaskList) -> None:
    """Sort the keys (Thrust's radix sort): by row and column of C, and within a tile in the order of A's columns."""
    keys = listed.keys[1:]
    if not len(keys):
        return
    with memory.allocating("the sort of the task list", 2 * keys.nbytes):
        keys.sort()


def segment(listed: TaskList) -> Segments:
    """Bring the tasks into their order and find the tiles of C."""
    import cupy

    tasks, rows = len(listed.tasks), listed.rows
    ordered, indptr = cupy.empty((tasks, 2), np.int32), cupy.empty(rows + 1, np.int32)
    if not tasks:
        indptr.fill(0)
        return Segments(indptr, 0, listed.keys.view(np.int32).reshape(-1, 2), ordered)
    total = Total(tasks)
    sizes = (np.int32(size) for size in (tasks, rows, listed.column_bits, listed.place_bits))
    arrays = (listed.tasks, listed.keys, ordered, indptr, total.ticket, total.states, total.total)
    kernel(units.TASK_LIST, "segment")(Shape((-(-tasks // 2048),), 256), *sizes, *arrays)
    tiles = total.read()
    return Segments(indptr, tiles, listed.keys[: tiles + 1].view(np.int32).reshape(-1, 2), ordered)


def count_elements(
    A: BitmapMatrix, B: BitmapMatrix, segments: Segments, precision: Precision, unit: Unit
) -> BitmapMatrix:
    """Return C with its structural pattern and room for its elements (the counting kernel, Section 4.2)."""
    import cupy

    tiles = segments.tiles
    columns, counts, index = (cupy.empty(n, np.int32) for n in (tiles, tiles, tiles + 1))
    bitmaps = cupy.empty(tiles, np.uint64)
    arrays = (segments.heads, segments.tasks, A.bitmaps, B.bitmaps, columns, bitmaps, counts)
    _by_pairs(unit, "count", tiles, *arrays)
    total = scan(counts, index).read()
    if total > parts.MOST_ENTRIES:
        raise MemoryError(f'C has {total:,} elements in tiles, more than 32-bit offsets reach: use method="rows"')
    shape = (A.shape[0], B.shape[1])
    return BitmapMatrix(shape, segments.indptr, None, columns, bitmaps, index, cupy.empty(total, precision.dtype))


def multiply(A: BitmapMatrix, B: BitmapMatrix, segments: Segments, C: BitmapMatrix, unit: Unit) -> Any:
    """Fill the elements of C (the multiplication kernel, Section 4.3); return whether one cancelled, on the device."""
    import cupy

    cancelled = cupy.zeros(1, np.int32)
    factors = (A.bitmaps, A.index, A.elements, B.bitmaps, B.index, B.elements)
    arrays = (segments.heads, segments.tasks, *factors, C.bitmaps, C.index, C.elements, cancelled)
    _by_pairs(unit, "multiply", segments.tiles, *arrays)
    return cancelled


def compact(C: BitmapMatrix, cancelled: Any, unit: Unit) -> BitmapMatrix:
    """Drop the elements that cancelled, and the tiles left empty (Section 4.4)."""
    import cupy

    if not int(cancelled[0]):
        return C
    counts = cupy.empty(C.tiles, np.int32)
    arguments = (np.int32(C.tiles), C.bitmaps, C.index, C.elements, counts)
    launch(unit, "find_zeros", C.tiles, 256, *arguments)
    kept = counts > 0
    before = cupy.empty(C.tiles + 1, np.int32)
    scan(kept.astype(np.int32), before)
    counts = counts[kept]
    index = cupy.empty(len(counts) + 1, np.int32)
    scan(counts, index)
    elements = C.elements[C.elements != 0]
    return BitmapMatrix(C.shape, before[C.indptr], None, C.columns[kept], C.bitmaps[kept], index, elements)


def _by_pairs(unit: Unit, name: str, tiles: int, *arguments: Any) -> None:
    """Launch with one warp for two tiles of C."""
    if tiles:
        kernel(unit, name)(Shape((-(-tiles // (2 * _PAIRS)),), 32 * _PAIRS), np.int32(tiles), *arguments)


def _joined(A: BitmapMatrix, B: BitmapMatrix, pieces: list[BitmapMatrix], precision: Precision) -> BitmapMatrix:
    """Return the rows of tiles of all pieces below each other."""
    import cupy

    shape = (A.shape[0], B.shape[1])
    if not pieces:
        empty = (cupy.empty(0, np.int32), cupy.empty(0, np.uint64))
        none = cupy.zeros(1, np.int32)
        return BitmapMatrix(shape, none, None, *empty, none, cupy.empty(0, precision.dtype))
    tiles, elements = (
        np.cumsum([0, *sizes]) for sizes in zip(*((p.tiles, len(p.elements)) for p in pieces), strict=True)
    )
    if elements[-1] > parts.MOST_ENTRIES:
        raise MemoryError(
            f'C has {elements[-1]:,} elements in tiles, more than 32-bit offsets reach: use method="rows"'
        )
    indptr = [piece.indptr[:-1] + np.int32(first) for piece, first in zip(pieces, tiles, strict=False)]
    index = [piece.index[:-1] + np.int32(first) for piece, first in zip(pieces, elements, strict=False)]
    last = [cupy.asarray(sums[-1:].astype(np.int32)) for sums in (tiles, elements)]
    columns, bitmaps, data = (
        cupy.concatenate([getattr(piece, name) for piece in pieces]) for name in ("columns", "bitmaps", "elements")
    )
    arrays = (cupy.concatenate([*indptr, last[0]]), None, columns, bitmaps, cupy.concatenate([*index, last[1]]), data)
    return BitmapMatrix(shape, *arrays)
