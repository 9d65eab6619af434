"""The paper's product (Algorithm 1) on the device: task list, its sort, counting, multiplication, compaction.

Its parts are functions, so that each can be timed: `list_tasks`, `sort_tasks`, `segment`, `count_elements`, `multiply`
and `compact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from spectile.core import memory
from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.factors import checked, with_checked_factors
from spectile.tsparse.matrices import device_csr, index_type
from spectile.tsparse.types import Precision, lookup
from spectile_study.cases.tsparse.tiles import half, units
from spectile_study.cases.tsparse.tiles.convert import BitmapMatrix, Total, convert, launch, scan, to_csr

_TASK_BYTES = 40  # of the list, its keys, twice, and its sorted form
FEW_TASKS = 2**24  # that are listed together whatever memory is free
MOST_TASKS = 2**25 - 1  # whose elements, 64 each at most, are within 32-bit offsets
_SHORT_ROWS = 96  # tasks of a row of tiles, on average, up to which a warp sorts it
_LONG_ROWS = {32: 1024, 256: 4096}  # most tasks of a row that so many threads sort; _LONG_THREADS sort longer ones
_LONG_THREADS = 1024
_LONG_BLOCKS = 1024  # at most
_SHARED_BYTES = 65536  # of a block that sorts, at most
_SHARED_A_THREAD = 96  # bytes of shared memory, so that a multiprocessor is full of blocks that sort
_LEAST_ROOM = 64  # tiles of C that a row's sort takes at a time
_LONGEST = 2**17  # tasks of a row that one block sorts, unless that is a small part of all
_MOST_TILES_A = 65535  # in a row: a sort counts the tasks of a tile of C in 16 bits
_LANES_FROM = 32  # tiles of a row of B, or of A, on average, from which a warp walks it instead of eight lanes
_WARPS = 8  # of a block that counts or multiplies
_MOST_TILES = 16  # of C that a warp makes one after the other


@dataclass
class TaskList:
    """The products of tiles that make some rows of tiles of C.

    Attributes
    ----------
    first, rows : int
        The first row of tiles and their number.
    tasks : (n, 2) int32
        Tile of A and tile of B of each product; sorted by :func:`sort_tasks`.
    windows : Windows or None
        How the rows are sorted one by one; None where all are sorted by `keys`.
    column_bits, place_bits : int
        Width of the column of tiles and of the place in the list within a key.
    keys : (n + 1,) uint64
        From the second place on: row of tiles, column of tiles, place in `tasks`.
    heads, tiles : int32
        Tiles of C of the rows that were sorted one by one, with gaps, and how many there are in each.
    """

    first: int
    rows: int
    tasks: Any
    windows: Windows | None
    column_bits: int = 0
    place_bits: int = 0
    keys: Any = None
    heads: Any = None
    tiles: Any = None


class Sorting(NamedTuple):
    """How the rows of tiles are sorted in shared memory.

    Attributes
    ----------
    words, tasks : int
        Words of the widest window, and tasks of the longest row.
    threads : int
        Threads that sort a row of at most `most` tasks.
    """

    words: int
    tasks: int
    threads: int

    @property
    def most(self) -> int:
        """Tasks of a row above which _LONG_THREADS sort it."""
        return _LONG_ROWS[self.threads]

    @property
    def any_long(self) -> bool:
        """Whether there is such a row."""
        return self.tasks > self.most

    def room(self, threads: int) -> int:
        """Return the tiles of C that `threads` threads take at a time of a row."""
        tiles = min(self.tasks if threads == _LONG_THREADS else min(self.tasks, self.most), 32 * self.words)
        bytes_each = 4 + threads // 32 * 2
        free = min(_SHARED_A_THREAD * threads, _SHARED_BYTES) - 8 * self.words
        return max(min(tiles, max(free // bytes_each, _LEAST_ROOM)), 1)

    def shared_bytes(self, threads: int) -> int:
        """Return the shared memory of a block whose rows are sorted by `threads` threads each."""
        room = self.room(threads)
        return 4 * max(256 // threads, 1) * (2 * self.words + room + (threads // 32 * room + 1) // 2)


def sorting(words: int, tasks: int, tiles_a: int, rows: int, total: int) -> Sorting | None:
    """Return how rows are sorted in shared memory, or None where the keys of all tasks are sorted instead.

    Parameters
    ----------
    words, tasks, tiles_a : int
        The most words, tasks and tiles of A of a row of tiles.
    rows, total : int
        Rows of tiles, and tasks of all.
    """
    how = Sorting(words, tasks, 32 if total <= _SHORT_ROWS * rows else 256)
    widest = (how.threads, _LONG_THREADS) if how.any_long else (how.threads,)
    fits = all(how.shared_bytes(threads) <= _SHARED_BYTES for threads in widest)
    return how if fits and tiles_a <= _MOST_TILES_A and tasks <= max(_LONGEST, total // 4) else None


@dataclass
class Windows:
    """The windows of columns of the rows of tiles of C, and how these are sorted.

    Attributes
    ----------
    low, words : (rows of tiles,) int32
        First column of tiles, and words of 32 of these, of each row.
    a_indptr, offsets, b_columns : int32
        Row pointer of A's tiles, first task of each, and columns of B's tiles.
    how : Sorting
        Threads and shared memory.
    """

    low: Any
    words: Any
    a_indptr: Any
    offsets: Any
    b_columns: Any
    how: Sorting


@dataclass
class Segments:
    """Sorted tasks, and the tiles of C that they make.

    Attributes
    ----------
    first : int
        The first row of tiles.
    indptr : (rows + 1,) int32
        First tile of C of each row of tiles.
    tiles : int
        Tiles of C.
    heads : (tiles + 1, 2) int32
        First task and column of each tile of C.
    tasks : (n, 2) int32
        Tile of A and tile of B of each product.
    counters : Total
        Its first maximum is set where an element of C cancels.
    """

    first: int
    indptr: Any
    tiles: int
    heads: Any
    tasks: Any
    counters: Total


def product(A: BitmapMatrix, B: BitmapMatrix, precision: Precision, unit: Unit | None = None) -> BitmapMatrix:
    """Multiply tiles to tiles; entries that cancel are left out.

    Parameters
    ----------
    A, B : BitmapMatrix
        Factors, their elements rounded to `precision`.
    precision : Precision
    unit : Unit, optional
        Kernels that count and multiply: ``units.PLAIN`` does so without tensor cores.
    """
    pieces = list(_pieces(A, B, precision, unit or units.PRODUCT[precision.name], drop_cancelled=True))
    return pieces[0] if len(pieces) == 1 else _joined(A, B, pieces, precision)


class Tiled(NamedTuple):
    """Both factors in tiles, and the exponents that float16 divided their rows and columns by."""

    a: BitmapMatrix
    b: BitmapMatrix
    exponents: tuple[Any, Any] | None


def tiled(A: Any, B: Any, precision: Precision) -> Tiled:
    """Return CSR matrices of CuPy in tiles: checked, rounded to the precision, and scaled where float16 asks for it."""
    import cupy

    # float16 is scaled before it is rounded.
    taken = lookup("float32") if precision.name == "float16" else precision
    left, right = with_checked_factors(A, B, taken, checked)
    exponents = None
    if precision.name == "float16":
        a, b, exponents = half.scaled(left, right, cupy)
        same = left is right and exponents is None
        left = replace(left, data=a)
        right = left if same else replace(right, data=b)
    tiles = convert(left, precision)
    return Tiled(tiles, tiles if right is left else convert(right, precision), exponents)


def spgemm(A: Any, B: Any, *, precision: str, drop_cancelled: bool) -> Any:
    """Multiply two CSR matrices of CuPy through tiles: check, conversion, product, conversion back.

    Parameters
    ----------
    A, B : cupyx.scipy.sparse.csr_matrix
        float32 for ``precision="float16"``.
    precision : str
        As for `spectile.tsparse.spgemm`.
    drop_cancelled : bool
        Whether entries that cancel are left out, as in the paper.
    """
    import cupy

    known = lookup(precision)
    left, right, exponents = tiled(A, B, known)
    pieces, first = [], 0
    for piece in _pieces(left, right, known, units.PRODUCT[known.name], drop_cancelled):
        indptr, indices, data = to_csr(piece, known)
        pieces.append((indptr, indices, half.unscale(data, indptr, indices, exponents, first, cupy)))
        first += piece.shape[0]
    arrays = pieces[0] if len(pieces) == 1 else _below(pieces, known)
    return device_csr((A.shape[0], B.shape[1]), *arrays)


def _below(pieces: list[tuple[Any, Any, Any]], precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, columns and values of pieces of C below each other."""
    import cupy

    starts = parts.row_pointer([np.diff(indptr.get()) for indptr, _, _ in pieces])
    total = int(starts[-1])
    parts.require_wide_indices(total)
    index = index_type(total)
    columns, values = cupy.empty(total, index), cupy.empty(total, precision.dtype)
    at = 0
    while pieces:
        _, indices, data = pieces.pop(0)  # its memory is free before the next is copied
        columns[at : at + len(data)] = indices
        values[at : at + len(data)] = data
        at += len(data)
    return cupy.asarray(starts.astype(index)), columns, values


def _pieces(
    A: BitmapMatrix, B: BitmapMatrix, precision: Precision, unit: Unit, drop_cancelled: bool
) -> Iterator[BitmapMatrix]:
    """Yield C by as many rows of tiles as are made together."""
    for listed in list_tasks(A, B):
        sort_tasks(listed)
        segments = segment(listed)
        del listed
        C = count_elements(A, B, segments, precision, unit)
        cancelled = multiply(A, B, segments, C, unit)
        del segments
        yield compact(C, cancelled, unit) if drop_cancelled else C


def list_tasks(A: BitmapMatrix, B: BitmapMatrix) -> Iterator[TaskList]:
    """Yield the tasks, filtered, of as many rows of tiles at a time as memory and the bits of a key hold."""
    import cupy

    tile_rows = ceil_div(A.shape[0], 8)
    counts, offsets = cupy.empty(A.tiles, np.int32), cupy.empty(A.tiles + 1, np.int32)
    low, words = cupy.empty(tile_rows, np.int32), cupy.empty(tile_rows, np.int32)
    lanes, lanes_a = _lanes(B.tiles, ceil_div(B.shape[0], 8)), _lanes(A.tiles, tile_rows)
    sizes = (np.int32(lanes), np.int32(A.tiles))
    launch(units.LIST, "count_tasks", lanes * A.tiles, 256, *sizes, *_of(A), B.indptr, B.bitmaps, counts)
    total = scan(counts, offsets)
    bounds = (A.indptr, A.columns, B.indptr, B.columns, offsets, low, words, total.largest)
    sizes = (np.int32(lanes_a), np.int32(tile_rows))
    launch(units.LIST, "bound_rows", lanes_a * tile_rows, 256, *sizes, *bounds)
    tasks, (most_words, most_tasks, most_a) = total.read(), total.read_largest()
    column_bits = max((ceil_div(B.shape[1], 8) - 1).bit_length(), 1)
    how = sorting(most_words, most_tasks, most_a, tile_rows, tasks)
    windows = Windows(low, words, A.indptr, offsets, B.columns, how) if how else None
    most = FEW_TASKS
    if tasks > most:
        most = min(max(memory.free_bytes() // (2 * _TASK_BYTES), FEW_TASKS), MOST_TASKS)
    if tasks <= most and (windows or _row_bits(tile_rows) + column_bits + tasks.bit_length() <= 64):
        yield _listed(A, B, offsets, (0, tile_rows), (0, A.tiles), tasks, column_bits, windows)
        return
    first_tile = A.indptr.get().astype(np.int64)
    starts = np.append(0, np.cumsum(counts.get(), dtype=np.int64))[first_tile]
    rows = tile_rows if windows else 1 << (64 - column_bits - most.bit_length())
    a = 0
    while a < tile_rows:
        b = int(np.searchsorted(starts, starts[a] + most, side="right")) - 1
        b = max(min(b, a + rows, tile_rows), a + 1)
        tasks = int(starts[b] - starts[a])
        if tasks >= 2**31:
            raise MemoryError(f"rows {8 * a} to {8 * a + 7} of C take {tasks:,} products of tiles: use spectile.spgemm")
        tiles = (int(first_tile[a]), int(first_tile[b]))
        yield _listed(A, B, offsets, (a, b), tiles, tasks, column_bits, windows)
        a = b


def _of(matrix: BitmapMatrix) -> tuple[Any, Any]:
    return matrix.columns, matrix.bitmaps


def _lanes(tiles: int, rows: int) -> int:
    """Return the lanes that walk a row of tiles together."""
    return 32 if tiles >= _LANES_FROM * rows else 8


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
    windows: Windows | None,
) -> TaskList:
    import cupy

    listed, first_key = cupy.empty((tasks, 2), np.int32), np.uint64(0)
    made = TaskList(rows[0], rows[1] - rows[0], listed, windows)
    if windows is None:
        made.column_bits, made.place_bits = column_bits, max(tasks.bit_length(), 1)
        made.keys = cupy.empty(tasks + 1, np.uint64)
        first_key = made.keys[1:]
    lanes = _lanes(B.tiles, ceil_div(B.shape[0], 8))
    sizes = (lanes, tiles[0], tiles[1] - tiles[0], rows[0], made.column_bits, made.place_bits)
    factors = (A.rows, *_of(A), B.indptr, B.columns, B.bitmaps)
    arguments = (*(np.int32(size) for size in sizes), *factors, offsets, listed, first_key)
    launch(units.LIST, "list_tasks", lanes * (tiles[1] - tiles[0]), 256, *arguments)
    return made


def sort_tasks(listed: TaskList) -> None:
    """Sort the tasks by row and column of C, and within a tile of C in the order of A's columns.

    Row by row in shared memory where its window fits, otherwise all keys by Thrust's radix sort, of which
    :func:`segment` makes the sorted tasks.
    """
    import cupy

    tasks = len(listed.tasks)
    if listed.windows is None:
        if tasks:
            with memory.allocating("the sort of the task list", 16 * tasks):
                listed.keys[1:].sort()
        return
    windows, rows = listed.windows, listed.rows
    ordered = cupy.empty((tasks, 2), np.int32)
    listed.heads, listed.tiles = cupy.empty((tasks, 2), np.int32), cupy.empty(rows, np.int32)
    if rows:
        how, first = windows.how, np.int32(listed.first)
        long_rows = cupy.zeros(rows + 1, np.int32) if how.any_long else np.uint64(0)
        places = (windows.a_indptr, windows.offsets, windows.low, windows.words)
        arrays = (*places, listed.tasks, windows.b_columns, ordered, listed.heads, listed.tiles)
        words, room = np.int32(how.words), np.int32(how.room(how.threads))
        shape = Shape((ceil_div(rows * how.threads, 256),), 256, how.shared_bytes(how.threads))
        name = "order_warp" if how.threads == 32 else "order_block"
        sizes = (first, np.int32(rows), np.int32(how.most), long_rows, words, room)
        kernel(units.LIST, name)(shape, *sizes, *arrays)
        if how.any_long:
            shape = Shape((min(rows, _LONG_BLOCKS),), _LONG_THREADS, how.shared_bytes(_LONG_THREADS))
            room = np.int32(how.room(_LONG_THREADS))
            kernel(units.LIST, "order_long")(shape, first, long_rows, words, room, *arrays)
    listed.tasks = ordered


def segment(listed: TaskList) -> Segments:
    """Find the tiles of C among sorted tasks."""
    import cupy

    tasks, rows = len(listed.tasks), listed.rows
    indptr = cupy.empty(rows + 1, np.int32)
    if listed.windows is not None:
        windows, total = listed.windows, scan(listed.tiles, indptr)
        tiles = total.read()
        heads = cupy.empty((tiles + 1, 2), np.int32)
        lanes = _lanes(tiles, rows)
        sizes = (np.int32(size) for size in (lanes, listed.first, rows, tasks))
        places = (windows.a_indptr, windows.offsets, indptr, listed.heads, heads)
        launch(units.LIST, "heads_of_rows", lanes * rows, 256, *sizes, *places)
        return Segments(listed.first, indptr, tiles, heads, listed.tasks, total)
    ordered, total = cupy.empty((tasks, 2), np.int32), Total(tasks)
    if not tasks:
        indptr.fill(0)
        return Segments(listed.first, indptr, 0, listed.keys.view(np.int32).reshape(-1, 2), ordered, total)
    sizes = (np.int32(size) for size in (tasks, rows, listed.column_bits, listed.place_bits))
    arrays = (listed.tasks, listed.keys, ordered, indptr, total.ticket, total.states, total.total)
    kernel(units.LIST, "segment")(Shape((ceil_div(tasks, 2048),), 256), *sizes, *arrays)
    tiles = total.read()
    return Segments(listed.first, indptr, tiles, listed.keys[: tiles + 1].view(np.int32).reshape(-1, 2), ordered, total)


def count_elements(
    A: BitmapMatrix, B: BitmapMatrix, segments: Segments, precision: Precision, unit: Unit
) -> BitmapMatrix:
    """Return C with its structural pattern and room for its elements (the counting kernel, Section 4.2)."""
    import cupy

    tiles = segments.tiles
    columns, counts, index = (cupy.empty(n, np.int32) for n in (tiles, tiles, tiles + 1))
    bitmaps = cupy.empty(tiles, np.uint64)
    arrays = (segments.heads, segments.tasks, A.bitmaps, B.bitmaps, columns, bitmaps, counts)
    _by_tiles(unit, "count", segments, *arrays)
    total = scan(counts, index).read()
    if total > parts.MOST_ENTRIES:
        raise MemoryError(f"C has {total:,} elements in tiles, more than 32-bit offsets reach: use spectile.spgemm")
    first = 8 * segments.first
    shape = (min(8 * (len(segments.indptr) - 1), A.shape[0] - first), B.shape[1])
    return BitmapMatrix(shape, segments.indptr, None, columns, bitmaps, index, cupy.empty(total, precision.dtype))


def multiply(A: BitmapMatrix, B: BitmapMatrix, segments: Segments, C: BitmapMatrix, unit: Unit) -> Total:
    """Fill the elements of C (the multiplication kernel, Section 4.3); the counters returned say if any cancelled."""
    cancelled = segments.counters
    factors = (A.bitmaps, A.index, A.elements, B.bitmaps, B.index, B.elements)
    arrays = (segments.heads, segments.tasks, *factors, C.bitmaps, C.index, C.elements, cancelled.largest)
    _by_tiles(unit, "multiply", segments, *arrays)
    return cancelled


def compact(C: BitmapMatrix, cancelled: Total, unit: Unit) -> BitmapMatrix:
    """Drop the elements that cancelled, and the tiles left empty (Section 4.4)."""
    import cupy

    cancelled.read()
    if not cancelled.read_largest()[0]:
        return C
    counts, any_kept, number, index = (cupy.empty(C.tiles + i, np.int32) for i in (0, 0, 1, 1))
    kept = cupy.empty(C.tiles, np.uint64)
    before = (C.bitmaps, C.index)
    launch(unit, "find_zeros", C.tiles, 256, np.int32(C.tiles), *before, C.elements, kept, counts, any_kept)
    elements, tiles = scan(counts, index), scan(any_kept, number)
    made = cupy.empty(elements.read(), C.elements.dtype)
    kept_tiles = tiles.read()
    columns, dense_index = cupy.empty(kept_tiles, np.int32), cupy.empty(kept_tiles + 1, np.int32)
    bitmaps = cupy.empty(len(columns), np.uint64)
    dense_index[-1:] = len(made)
    after = (bitmaps, dense_index, columns, made)
    arguments = (np.int32(C.tiles), *before, C.columns, C.elements, kept, index, number, *after)
    launch(unit, "squeeze", 8 * C.tiles, 256, *arguments)
    return BitmapMatrix(C.shape, number[C.indptr], None, columns, bitmaps, dense_index, made)


def _by_tiles(unit: Unit, name: str, segments: Segments, *arguments: Any) -> None:
    """Launch with a warp for as many tiles of C as it looks up the tasks of at once, fewer where there are few."""
    tiles = segments.tiles
    if tiles:
        many = max(min(32 * tiles // len(segments.tasks), tiles >> 12, _MOST_TILES), 1)
        sizes = (np.int32(tiles), np.int32(many))
        kernel(unit, name)(Shape((ceil_div(tiles, many * _WARPS),), 32 * _WARPS), *sizes, *arguments)


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
            f"C has {elements[-1]:,} elements in tiles, more than 32-bit offsets reach: use spectile.spgemm"
        )
    indptr = [piece.indptr[:-1] + np.int32(first) for piece, first in zip(pieces, tiles, strict=False)]
    index = [piece.index[:-1] + np.int32(first) for piece, first in zip(pieces, elements, strict=False)]
    last = [cupy.asarray(sums[-1:].astype(np.int32)) for sums in (tiles, elements)]
    columns, bitmaps, data = (
        cupy.concatenate([getattr(piece, name) for piece in pieces]) for name in ("columns", "bitmaps", "elements")
    )
    arrays = (cupy.concatenate([*indptr, last[0]]), None, columns, bitmaps, cupy.concatenate([*index, last[1]]), data)
    return BitmapMatrix(shape, *arrays)
