"""The product of bitmap tiles on the device: tiles to tiles, and from CSR to CSR (``tiles.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.factors import unscale
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.tiles.convert import TileMatrix, convert, element_index, launch, prefix_scan, tile_columns
from spectile.tsparse.types import Factor, Precision

FEW_TILES = 2**20  # of C that are made together whatever memory is free
MOST_TILES = 2**24 - 1  # of C that are made together: their entries are within 32-bit offsets


@dataclass
class _Tiles:
    """Tiles of some rows of tiles of C, with dense values."""

    indptr: Any
    columns: Any
    bitmaps: Any
    dense: Any


def multiply(A: TileMatrix, B: TileMatrix, precision: Precision) -> TileMatrix:
    """Multiply in the kernels' format, tiles to tiles."""
    import cupy

    left, right = _patterns(A, B)
    C = _tiles(A, B, count_rows(left, right, 0, left.shape[0], "float32"), precision)
    index = element_index(C.bitmaps, precision.name)
    elements = cupy.empty(int(index[-1]), precision.dtype)
    blocks = -(-len(C.bitmaps) // 8)
    launch(precision.name, "compact", blocks, np.int32(len(C.bitmaps)), C.bitmaps, index, C.dense, elements)
    return TileMatrix((A.shape[0], B.shape[1]), C.indptr, C.columns, C.bitmaps, index, elements)


def multiply_to_csr(A: Factor, B: Factor, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of C for CSR factors, through tiles."""
    import cupy

    left = convert(A, precision)
    right = left if B is A else convert(B, precision)
    patterns = _patterns(left, right)
    phase = count_rows(*patterns, 0, patterns[0].shape[0], "float32")
    if phase.entries > _most_tiles(phase.entries, precision):
        return _in_parts(A, B, left, right, phase.counts.get(), precision)
    C = _tiles(left, right, phase, precision)
    rows = A.shape[0]
    entries = cupy.empty(rows, np.int32)
    launch(precision.name, "count_rows", phase.rows, np.int32(rows), C.indptr, C.bitmaps, entries)
    pointer = prefix_scan(entries)
    nnz = int(pointer[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz, precision.dtype)
    _to_csr(C, rows, pointer, indices, data, precision)
    return pointer, indices, unscale(data, pointer, indices, A, B, 0)


def _patterns(A: TileMatrix, B: TileMatrix) -> tuple[Factor, Factor]:
    """Return the factors whose product has the pattern of the tiles of C, without values."""
    import cupy

    unread = cupy.empty(max(A.tiles, B.tiles), np.float32)
    tile_rows, inner, width = -(-A.shape[0] // 16), -(-B.shape[0] // 16), -(-B.shape[1] // 8)
    # A tile of A meets the row of tiles of B that holds its eight rows: the upper or the lower half of them.
    left = Factor((tile_rows, inner), A.indptr, A.columns >> 1, unread)
    return left, Factor((inner, width), B.indptr, B.columns, unread)


def _tiles(A: TileMatrix, B: TileMatrix, phase: Phase, precision: Precision) -> _Tiles:
    """Multiply the rows of tiles of `phase`."""
    import cupy

    columns = tile_columns(*_patterns(A, B), phase)
    bitmaps = cupy.empty(2 * len(columns), np.uint64)
    dense = cupy.empty(128 * len(columns), precision.dtype)
    factors: tuple[Any, ...] = (A.indptr[phase.first :], A.columns, A.bitmaps, A.index, A.elements)
    factors = (*factors, B.indptr, B.columns, B.bitmaps, B.index, B.elements)
    launch(precision.name, "multiply", phase.rows, *factors, phase.indptr, columns, bitmaps, dense)
    return _Tiles(phase.indptr, columns, bitmaps, dense)


def _to_csr(C: _Tiles, rows: int, pointer: Any, indices: Any, data: Any, precision: Precision) -> None:
    """Write rows of C, of which `pointer` is the row pointer, to their places in CSR."""
    arrays = (C.indptr, C.columns, C.bitmaps, C.dense, pointer, indices, data)
    launch(precision.name, "to_csr", -(-rows // 16), np.int32(rows), *arrays)


def _most_tiles(tiles: int, precision: Precision) -> int:
    """Return how many of the tiles of C are made together: half of the free memory holds them."""
    if tiles <= FEW_TILES:
        return FEW_TILES
    tile_bytes = 128 * (precision.dtype.itemsize + 4) + 64
    return min(max(memory.free_bytes() // (2 * tile_bytes), 1), MOST_TILES)


def _in_parts(
    A: Factor, B: Factor, left: TileMatrix, right: TileMatrix, tiles: np.ndarray, precision: Precision
) -> tuple[Any, Any, Any]:
    """Return C made by parts of its rows; the entries of its rows are counted by the product by rows."""
    import cupy

    rows = A.shape[0]
    starts = parts.row_pointer([count_rows(A, B, 0, rows, precision.value).counts.get()])
    total = int(starts[-1])
    parts.require_wide_indices(total)
    index = parts.index_type(total)
    indices, data = cupy.empty(total, index), cupy.empty(total, precision.dtype)
    patterns, tile_starts = _patterns(left, right), parts.row_pointer([tiles])
    most = _most_tiles(int(tile_starts[-1]), precision)  # beside C
    for a, b, part in parts.parts(tile_starts, len(tiles), most):
        if part.stop - part.start > MOST_TILES:
            raise MemoryError(f'row {16 * a} of C meets more tiles than are made together: use method="rows"')
        phase = count_rows(*patterns, a, b, "float32")
        first, stop = 16 * a, min(16 * b, rows)
        place = slice(int(starts[first]), int(starts[stop]))
        pointer = cupy.asarray((starts[first : stop + 1] - starts[first]).astype(np.int32))
        columns = indices[place] if index is np.int32 else cupy.empty(place.stop - place.start, np.int32)
        _to_csr(_tiles(left, right, phase, precision), stop - first, pointer, columns, data[place], precision)
        unscale(data[place], pointer, columns, A, B, first)
        if index is np.int64:
            indices[place] = columns
        del phase, columns  # before the next rows take their place
    return cupy.asarray(starts.astype(index)), indices, data
