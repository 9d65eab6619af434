"""Matrices in the paper's bitmap format on the device, from CSR and back (``list.cu``, ``product.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.tsparse.types import Factor, Precision
from spectile_study.cases.tsparse.tiles import units

_SCAN_BLOCK = 2048  # items of a block of `scan` and `segment`
_COUNTERS = 4  # words of 64 bits before the states of a scan: sum, ticket, maxima


@dataclass
class BitmapMatrix:
    """A matrix of 8x8 bitmap tiles on the device (Section 2.1.2), its tiles sorted by row and column.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns of entries.
    indptr : (rows of tiles + 1,) int32
        First tile of each row of tiles.
    rows, columns : (tiles,) int32
        Coordinates of each tile; `rows` is None for a product.
    bitmaps : (tiles,) uint64
        Bit ``8 r + c`` is set where entry ``(r, c)`` of the tile is stored.
    index : (tiles + 1,) int32
        First element of each tile; the last number is the count of elements.
    elements : (nnz,)
        Stored entries, tile by tile; float16 for ``precision="float16"``.
    """

    shape: tuple[int, int]
    indptr: Any
    rows: Any
    columns: Any
    bitmaps: Any
    index: Any
    elements: Any

    @property
    def tiles(self) -> int:
        """Number of stored tiles."""
        return len(self.bitmaps)


def launch(unit: Unit, name: str, items: int, threads: int, *arguments: Any) -> None:
    """Launch a kernel with one thread for each of `items`, unless there are none."""
    if items:
        kernel(unit, name)(Shape((ceil_div(items, threads),), threads), *arguments)


class Total:
    """Counters of one scan: its sum, a ticket, and room for three maxima."""

    def __init__(self, items: int = 0) -> None:
        import cupy

        self._words = cupy.zeros(_COUNTERS + ceil_div(items, _SCAN_BLOCK), np.uint64)
        self.total, self.ticket, self.states = self._words[:1], self._words[1:2], self._words[_COUNTERS:]
        self.largest = self._words[2:]
        self._read: Any = None

    def read(self) -> int:
        """Wait for the sum."""
        self._read = self._words[:_COUNTERS].get()
        return int(self._read[0])

    def read_largest(self) -> tuple[int, int, int]:
        """Return the maxima that were read with the sum."""
        first, second, third, _ = self._read[2:].view(np.int32).tolist()
        return first, second, third


def scan(counts: Any, offsets: Any) -> Total:
    """Fill `offsets` with the sums of the counts before each, and of all at the end, modulo 2**32."""
    total = Total(len(counts))
    if len(counts):
        arguments = (np.int32(len(counts)), counts, offsets, total.ticket, total.states, total.total)
        kernel(units.LIST, "scan")(Shape((ceil_div(len(counts), _SCAN_BLOCK),), 256), *arguments)
    else:
        offsets.fill(0)
    return total


def _count_tiles(matrix: Factor) -> tuple[Any, int]:
    """Return the first tile of each row of tiles of a CSR factor, and how many tiles it has."""
    import cupy

    rows = matrix.shape[0]
    tile_rows = ceil_div(rows, 8)
    counts, indptr = cupy.empty(tile_rows, np.int32), cupy.empty(tile_rows + 1, np.int32)
    pattern = (np.int32(rows), matrix.indptr, matrix.indices)
    launch(units.LIST, "count_tiles", 32 * tile_rows, 128, *pattern, counts)
    return indptr, scan(counts, indptr).read()


def convert(matrix: Factor, precision: Precision) -> BitmapMatrix:
    """Convert a CSR factor to tiles; its values are rounded already but for float16, which is rounded here."""
    import cupy

    rows, nnz = matrix.shape[0], matrix.nnz
    indptr, tiles = _count_tiles(matrix)
    row, column, index = (cupy.empty(n, np.int32) for n in (tiles, tiles, tiles + 1))
    bitmaps, elements = cupy.empty(tiles, np.uint64), cupy.empty(nnz, units.ELEMENTS[precision.name].dtype)
    if not rows:
        index.fill(0)
    unit, places = units.PRODUCT[precision.name], (row, column, bitmaps, index, elements)
    launch(
        unit,
        "find_tiles",
        32 * ceil_div(rows, 8),
        128,
        np.int32(rows),
        matrix.indptr,
        matrix.indices,
        indptr,
        matrix.data,
        *places,
    )
    return BitmapMatrix(matrix.shape, indptr, row, column, bitmaps, index, elements)


def to_csr(C: BitmapMatrix, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of a product."""
    import cupy

    rows, nnz = C.shape[0], len(C.elements)
    indptr, indices, data = cupy.empty(rows + 1, np.int32), cupy.empty(nnz, np.int32), cupy.empty(nnz, precision.dtype)
    if not rows:
        indptr.fill(0)
    tiles = (C.indptr, C.columns, C.bitmaps, C.index, C.elements)
    unit, threads = units.PRODUCT[precision.name], 256
    launch(unit, "to_csr", ceil_div(rows, 8) * threads, threads, np.int32(rows), *tiles, indptr, indices, data)
    return indptr, indices, data
