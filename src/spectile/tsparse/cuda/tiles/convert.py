"""Matrices in bitmap tiles on the device, from CSR and back (``tiles.cu``).

The tile patterns, of a factor and of C, are products by rows on rows of tiles: no task list is made or sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.tsparse.cuda import units
from spectile.tsparse.cuda.parts import MOST_ENTRIES
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.matrices import device_csr
from spectile.tsparse.types import Factor, Precision

_MOST_TILES = 2**30 - 1  # of a factor, of which a tile of 16x8 has two bitmaps
_THREADS = 256  # of every kernel of tiles.cu


@dataclass
class TileMatrix:
    """A matrix of bitmap tiles on the device.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns of entries.
    indptr, columns : int32
        CSR pattern of the tiles of 16x8: two 8x8 tiles above each other, of which one may be empty.
    bitmaps : uint64
        One an 8x8 tile: the upper and the lower follow each other.
    index : int32
        First element of each 8x8 tile; the last number is the count of elements.
    elements
        Stored entries, tile by tile; float16 for ``precision="float16"``.
    """

    shape: tuple[int, int]
    indptr: Any
    columns: Any
    bitmaps: Any
    index: Any
    elements: Any

    @property
    def tiles(self) -> int:
        """Number of stored tiles."""
        return len(self.columns)


def launch(precision: str, name: str, blocks: int, *arguments: Any) -> None:
    """Launch a kernel of ``tiles.cu`` unless it has no blocks."""
    if blocks:
        kernel(units.TILES[precision], name)(Shape((blocks,), _THREADS), *arguments)


def tile_columns(A: Factor, B: Factor, phase: Phase) -> Any:
    """Return the sorted columns of a product of patterns."""
    import cupy

    columns, unread = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, np.float32)
    fill_rows(A, B, phase, columns, unread)
    return columns


def prefix_scan(counts: Any) -> Any:
    """Return the int32 array that starts with 0 and adds up `counts`."""
    import cupy

    total = cupy.empty(len(counts) + 1, np.int32)
    total[:1] = 0
    cupy.cumsum(counts, out=total[1:])
    return total


def convert(matrix: Factor, precision: Precision) -> TileMatrix:
    """Convert a CSR factor, its values rounded already, to tiles."""
    import cupy

    rows, columns = matrix.shape
    tile_rows = -(-rows // 16)
    groups = cupy.empty(tile_rows + 1 + rows, np.int32)
    coarse = cupy.empty(matrix.nnz, np.int32)
    blocks, name = -(-max(rows, matrix.nnz) // 256), precision.name
    launch(name, "coarsen", blocks, np.int32(rows), np.int32(matrix.nnz), matrix.indices, groups, coarse)
    unread = cupy.empty(max(rows, matrix.nnz), np.float32)  # values of a product that only its pattern is wanted of
    gather = Factor((tile_rows, rows), groups[: tile_rows + 1], groups[tile_rows + 1 :], unread)
    entries = Factor((rows, -(-columns // 8)), matrix.indptr, coarse, unread)
    phase = count_rows(gather, entries, 0, tile_rows, "float32")
    if phase.entries > _MOST_TILES:
        raise MemoryError(f'a factor has {phase.entries:,} tiles, more than 32-bit offsets reach: use method="rows"')
    indptr, tiles = phase.indptr, tile_columns(gather, entries, phase)
    bitmaps = cupy.zeros(2 * len(tiles), np.uint64)
    blocks = -(-rows // 32)
    launch(name, "mark", blocks, np.int32(rows), matrix.indptr, matrix.indices, indptr, tiles, bitmaps)
    index = element_index(bitmaps, name)
    elements = cupy.empty(matrix.nnz, precision.element)
    places = (indptr, tiles, bitmaps, index, elements)
    launch(name, "scatter", blocks, np.int32(rows), matrix.indptr, matrix.indices, matrix.data, *places)
    return TileMatrix(matrix.shape, indptr, tiles, bitmaps, index, elements)


def element_index(bitmaps: Any, precision: str) -> Any:
    """Return the first element of each 8x8 tile, and the count of elements."""
    import cupy

    counts = cupy.empty(len(bitmaps), np.int32)
    launch(precision, "count_bits", -(-len(bitmaps) // 256), np.int32(len(bitmaps)), bitmaps, counts)
    if 64 * len(bitmaps) > MOST_ENTRIES and (total := int(counts.sum(dtype=np.int64))) > MOST_ENTRIES:
        raise MemoryError(f"a matrix of tiles has {total:,} elements, more than 32-bit offsets reach")
    return prefix_scan(counts)


def to_csr(C: TileMatrix) -> Any:
    """Return a matrix of tiles, its elements float32 or float64, as CSR on the device (for checks)."""
    import cupy

    owner = cupy.searchsorted(C.indptr, cupy.arange(C.tiles, dtype=np.int32), side="right") - 1
    bits = (C.bitmaps[:, None] >> cupy.arange(64, dtype=np.uint64)) & np.uint64(1)
    part, place = cupy.nonzero(bits)  # in the order of the elements
    rows = 16 * owner[part // 2] + 8 * (part % 2) + place // 8
    columns = 8 * C.columns[part // 2].astype(np.int64) + place % 8
    order = cupy.argsort(rows * C.shape[1] + columns)
    indptr = cupy.searchsorted(rows[order], cupy.arange(C.shape[0] + 1), side="left").astype(np.int32)
    return device_csr(C.shape, indptr, columns[order].astype(np.int32), C.elements[order])
