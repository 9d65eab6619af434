"""The product of bitmap tiles on CUDA devices (``tiles.cu``): conversion, product, and back to CSR.

The tile patterns, of a factor and of C, are found by the product by rows (`spectile.tsparse.cuda.rows`) on rows of
tiles: no task list is made, and none is sorted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.tsparse.cuda.factors import Factor
from spectile.tsparse.cuda.rows import count_rows, fill_rows
from spectile.tsparse.cuda.run import device_csr
from spectile.tsparse.cuda.units import TILES
from spectile.tsparse.precision import Precision


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


def _launch(precision: str, name: str, blocks: int, *arguments: Any) -> None:
    import cupy

    if blocks:
        _function(precision, name, cupy.cuda.runtime.getDevice())((blocks,), (256,), arguments)


@functools.cache
def _function(precision: str, name: str, device: int) -> Any:
    return TILES[precision].function(name).kernel


def _pattern(A: Factor, B: Factor) -> tuple[Any, Any]:
    """Return row pointer and sorted columns of a product of patterns."""
    import cupy

    phase = count_rows(A, B, 0, A.shape[0], "float32")
    indices, unused = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, np.float32)
    fill_rows(A, B, phase, indices, unused)
    return phase.indptr, indices


def _running_sum(counts: Any) -> Any:
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
    tile_rows, tile_columns = -(-rows // 16), -(-columns // 8)
    groups = cupy.empty(tile_rows + 1 + rows, np.int32)
    coarse = cupy.empty(matrix.nnz, np.int32)
    blocks, name = -(-max(rows, matrix.nnz) // 256), precision.name
    _launch(name, "coarsen", blocks, np.int32(rows), np.int32(matrix.nnz), matrix.indices, groups, coarse)
    anything = cupy.empty(max(rows, matrix.nnz), np.float32)  # values of a product that only its pattern is wanted of
    gather = Factor((tile_rows, rows), groups[: tile_rows + 1], groups[tile_rows + 1 :], anything)
    indptr, tiles = _pattern(gather, Factor((rows, tile_columns), matrix.indptr, coarse, anything))
    bitmaps = cupy.zeros(2 * len(tiles), np.uint64)
    blocks = -(-rows // 32)
    _launch(name, "mark", blocks, np.int32(rows), matrix.indptr, matrix.indices, indptr, tiles, bitmaps)
    index = _index(bitmaps, name)
    elements = cupy.empty(matrix.nnz, np.float16 if name == "float16" else precision.dtype)
    places = (indptr, tiles, bitmaps, index, elements)
    _launch(name, "scatter", blocks, np.int32(rows), matrix.indptr, matrix.indices, matrix.data, *places)
    return TileMatrix(matrix.shape, indptr, tiles, bitmaps, index, elements)


def _index(bitmaps: Any, precision: str) -> Any:
    import cupy

    counts = cupy.empty(len(bitmaps), np.int32)
    _launch(precision, "count_bits", -(-len(bitmaps) // 256), np.int32(len(bitmaps)), bitmaps, counts)
    return _running_sum(counts)


def _products(A: TileMatrix, B: TileMatrix, precision: Precision) -> tuple[Any, Any, Any, Any]:
    """Return row pointer, columns, bitmaps and dense values of the tiles of C."""
    import cupy

    anything = cupy.empty(max(A.tiles, B.tiles), np.float32)
    tile_rows, inner, width = -(-A.shape[0] // 16), -(-B.shape[0] // 16), -(-B.shape[1] // 8)
    # A tile of A meets the row of tiles of B that holds its eight rows: the upper or the lower half of them.
    left = Factor((tile_rows, inner), A.indptr, A.columns >> 1, anything)
    indptr, columns = _pattern(left, Factor((inner, width), B.indptr, B.columns, anything))
    bitmaps = cupy.empty(2 * len(columns), np.uint64)
    dense = cupy.empty(128 * len(columns), precision.dtype)
    factors: tuple[Any, ...] = (A.indptr, A.columns, A.bitmaps, A.index, A.elements)
    factors = (*factors, B.indptr, B.columns, B.bitmaps, B.index, B.elements)
    _launch(precision.name, "multiply", tile_rows, *factors, indptr, columns, bitmaps, dense)
    return indptr, columns, bitmaps, dense


def multiply(A: TileMatrix, B: TileMatrix, precision: Precision) -> TileMatrix:
    """Multiply in the kernels' format, tiles to tiles."""
    import cupy

    indptr, columns, bitmaps, dense = _products(A, B, precision)
    index = _index(bitmaps, precision.name)
    elements = cupy.empty(int(index[-1]), precision.dtype)
    blocks = -(-len(bitmaps) // 8)
    _launch(precision.name, "compact", blocks, np.int32(len(bitmaps)), bitmaps, index, dense, elements)
    return TileMatrix((A.shape[0], B.shape[1]), indptr, columns, bitmaps, index, elements)


def multiply_to_csr(A: Factor, B: Factor, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of C for CSR factors, through tiles."""
    import cupy

    rows, name = A.shape[0], precision.name
    left = convert(A, precision)
    indptr, columns, bitmaps, dense = _products(left, left if B is A else convert(B, precision), precision)
    entries = cupy.empty(rows, np.int32)
    tile_rows = -(-rows // 16)
    _launch(name, "count_rows", tile_rows, np.int32(rows), indptr, bitmaps, entries)
    pointer = _running_sum(entries)
    nnz = int(pointer[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz, precision.dtype)
    _launch(name, "to_csr", tile_rows, np.int32(rows), indptr, columns, bitmaps, dense, pointer, indices, data)
    return pointer, indices, data


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
