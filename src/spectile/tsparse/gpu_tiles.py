"""The product of bitmap tiles on CUDA devices (``tiles.cu``): conversion, product, and back to CSR.

The tile patterns, of a factor and of C, are found by the row-wise symbolic phase (`spectile.tsparse.gpu`) on rows of
tiles: no task list is made, and none is sorted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpu.compile import Unit
from . import gpu
from .gpu import ARCHS, Factor
from .precision import Precision

_CODES = {"float16": "16", "tf32": "19", "float32": "32", "float64": "64"}
TILES = {name: Unit("tsparse", ("tiles.cu",), ARCHS, {"PRECISION": code}) for name, code in _CODES.items()}
UNITS = tuple(TILES.values())


@dataclass
class TileMatrix:
    """A matrix of bitmap tiles on the device.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns of entries.
    height : int
        8, or 16 for a left factor and C: two 8x8 tiles above each other.
    indptr, columns : int32
        CSR pattern of the tiles.
    bitmaps : uint64
        One an 8x8 tile; two follow each other in a tile of 16.
    index : int32
        First element of each 8x8 tile.
    elements
        Stored entries, tile by tile; float16 for ``precision="float16"``.
    by_column : tuple of int32 arrays, or None
        Of a right factor: pointer of the tile columns, tile rows of each, numbers of their tiles.
    """

    shape: tuple[int, int]
    height: int
    indptr: Any
    columns: Any
    bitmaps: Any
    index: Any
    elements: Any
    by_column: tuple[Any, Any, Any] | None = None

    @property
    def tiles(self) -> int:
        """Number of stored tiles."""
        return len(self.columns)


@functools.cache
def _kernel(precision: str, name: str) -> Any:
    return TILES[precision].function(name)


def _launch(precision: str, name: str, blocks: int, *arguments: Any) -> None:
    if blocks:
        _kernel(precision, name)((blocks,), (256,), arguments)


def _pattern(A: Factor, B: Factor) -> tuple[Any, Any]:
    """Return row pointer and sorted columns of a product of patterns."""
    import cupy

    phase = gpu._symbolic(A, B, 0, A.shape[0], "float32")
    indices, unused = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, np.float32)
    gpu._numeric(A, B, phase, indices, unused)
    return phase.indptr, indices


def _running_sum(counts: Any) -> Any:
    """Return the int32 array that starts with 0 and adds up `counts`."""
    import cupy

    total = cupy.empty(len(counts) + 1, np.int32)
    total[:1] = 0
    cupy.cumsum(counts, out=total[1:])
    return total


def convert(matrix: Factor, height: int, precision: Precision) -> TileMatrix:
    """Convert a CSR factor, its values rounded already, to tiles of `height` x 8."""
    import cupy

    rows, columns = matrix.shape
    tile_rows, tile_columns = -(-rows // height), -(-columns // 8)
    groups = cupy.minimum(cupy.arange(tile_rows + 1, dtype=np.int32) * np.int32(height), np.int32(rows))
    ones = cupy.ones(max(rows, matrix.nnz), np.float32)
    gather = Factor((tile_rows, rows), groups, cupy.arange(rows, dtype=np.int32), ones)
    coarse = Factor((rows, tile_columns), matrix.indptr, matrix.indices >> 3, ones)
    indptr, tiles = _pattern(gather, coarse)
    parts = len(tiles) * (height // 8)
    bitmaps = cupy.zeros(parts, np.uint64)
    tall, blocks, name = np.int32(height // 16), -(-rows // 32), precision.name
    _launch(name, "mark", blocks, np.int32(rows), tall, matrix.indptr, matrix.indices, indptr, tiles, bitmaps)
    index = _index(bitmaps, name)
    elements = cupy.empty(matrix.nnz, np.float16 if name == "float16" else precision.dtype)
    places = (indptr, tiles, bitmaps, index, elements)
    _launch(name, "scatter", blocks, np.int32(rows), tall, matrix.indptr, matrix.indices, matrix.data, *places)
    converted = TileMatrix(matrix.shape, height, indptr, tiles, bitmaps, index, elements)
    if height == 8:
        owner = cupy.searchsorted(indptr, cupy.arange(len(tiles), dtype=np.int32), side="right").astype(np.int32) - 1
        order = cupy.argsort(tiles.astype(np.int64) * tile_rows + owner).astype(np.int32)
        pointer = _running_sum(cupy.bincount(tiles, minlength=tile_columns))
        converted.by_column = pointer, owner[order], order
    return converted


def _index(bitmaps: Any, precision: str) -> Any:
    import cupy

    counts = cupy.empty(len(bitmaps), np.int32)
    _launch(precision, "count_bits", -(-len(bitmaps) // 256), np.int32(len(bitmaps)), bitmaps, counts)
    return _running_sum(counts)


def _products(A: TileMatrix, B: TileMatrix, precision: Precision) -> tuple[Any, Any, Any, Any]:
    """Return row pointer, columns, bitmaps and dense values of the tiles of C."""
    import cupy

    assert B.by_column is not None
    ones = cupy.ones(max(A.tiles, B.tiles), np.float32)
    tile_rows, inner, width = -(-A.shape[0] // 16), -(-A.shape[1] // 8), -(-B.shape[1] // 8)
    left, right = (
        Factor((tile_rows, inner), A.indptr, A.columns, ones),
        Factor((inner, width), B.indptr, B.columns, ones),
    )
    indptr, columns = _pattern(left, right)
    bitmaps = cupy.empty(2 * len(columns), np.uint64)
    dense = cupy.empty(128 * len(columns), precision.dtype)
    factors = (A.indptr, A.columns, A.bitmaps, A.index, A.elements, *B.by_column, B.bitmaps, B.index, B.elements)
    _launch(precision.name, "multiply", tile_rows, *factors, indptr, columns, bitmaps, dense)
    return indptr, columns, bitmaps, dense


def multiply(A: TileMatrix, B: TileMatrix, precision: Precision) -> TileMatrix:
    """Multiply in the kernels' format: 16x8 tiles by 8x8 tiles to 16x8 tiles."""
    import cupy

    indptr, columns, bitmaps, dense = _products(A, B, precision)
    index = _index(bitmaps, precision.name)
    elements = cupy.empty(int(index[-1]), precision.dtype)
    blocks = -(-len(bitmaps) // 8)
    _launch(precision.name, "compact", blocks, np.int32(len(bitmaps)), bitmaps, index, dense, elements)
    return TileMatrix((A.shape[0], B.shape[1]), 16, indptr, columns, bitmaps, index, elements)


def multiply_to_csr(A: Factor, B: Factor, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of C for CSR factors, through tiles."""
    import cupy

    rows, name = A.shape[0], precision.name
    indptr, columns, bitmaps, dense = _products(convert(A, 16, precision), convert(B, 8, precision), precision)
    entries = cupy.empty(rows, np.int32)
    tile_rows = -(-rows // 16)
    _launch(name, "count_rows", tile_rows, np.int32(rows), indptr, bitmaps, entries)
    pointer = _running_sum(entries)
    nnz = int(pointer[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz, precision.dtype)
    _launch(name, "to_csr", tile_rows, np.int32(rows), indptr, columns, bitmaps, dense, pointer, indices, data)
    return pointer, indices, data


def to_csr(C: TileMatrix) -> Any:
    """Return a matrix of tiles as a scipy CSR array (for checks)."""
    from . import reference

    parts = C.height // 8
    rows = np.repeat(np.arange(len(C.indptr) - 1), np.diff(C.indptr.get()))
    tile_rows = (np.repeat(rows, parts).reshape(-1, parts) * parts + np.arange(parts)).ravel()
    host = reference.BitmapMatrix(
        C.shape, tile_rows, np.repeat(C.columns.get().astype(np.int64), parts), C.bitmaps.get(),
        C.index.get().astype(np.int64), C.elements.get(),
    )  # fmt: skip
    return reference.to_csr(host)
