"""The product of bitmap tiles on the device: tiles to tiles, and from CSR to CSR (``tiles.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.tsparse.cuda.tiles.convert import TileMatrix, convert, element_index, launch, pattern, prefix_scan
from spectile.tsparse.types import Factor, Precision


def _products(A: TileMatrix, B: TileMatrix, precision: Precision) -> tuple[Any, Any, Any, Any]:
    """Return row pointer, columns, bitmaps and dense values of the tiles of C."""
    import cupy

    unread = cupy.empty(max(A.tiles, B.tiles), np.float32)
    tile_rows, inner, width = -(-A.shape[0] // 16), -(-B.shape[0] // 16), -(-B.shape[1] // 8)
    # A tile of A meets the row of tiles of B that holds its eight rows: the upper or the lower half of them.
    left = Factor((tile_rows, inner), A.indptr, A.columns >> 1, unread)
    indptr, columns = pattern(left, Factor((inner, width), B.indptr, B.columns, unread))
    bitmaps = cupy.empty(2 * len(columns), np.uint64)
    dense = cupy.empty(128 * len(columns), precision.dtype)
    factors: tuple[Any, ...] = (A.indptr, A.columns, A.bitmaps, A.index, A.elements)
    factors = (*factors, B.indptr, B.columns, B.bitmaps, B.index, B.elements)
    launch(precision.name, "multiply", tile_rows, *factors, indptr, columns, bitmaps, dense)
    return indptr, columns, bitmaps, dense


def multiply(A: TileMatrix, B: TileMatrix, precision: Precision) -> TileMatrix:
    """Multiply in the kernels' format, tiles to tiles."""
    import cupy

    indptr, columns, bitmaps, dense = _products(A, B, precision)
    index = element_index(bitmaps, precision.name)
    elements = cupy.empty(int(index[-1]), precision.dtype)
    blocks = -(-len(bitmaps) // 8)
    launch(precision.name, "compact", blocks, np.int32(len(bitmaps)), bitmaps, index, dense, elements)
    return TileMatrix((A.shape[0], B.shape[1]), indptr, columns, bitmaps, index, elements)


def multiply_to_csr(A: Factor, B: Factor, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, sorted columns and values of C for CSR factors, through tiles."""
    import cupy

    rows, name = A.shape[0], precision.name
    left = convert(A, precision)
    indptr, columns, bitmaps, dense = _products(left, left if B is A else convert(B, precision), precision)
    entries = cupy.empty(rows, np.int32)
    tile_rows = -(-rows // 16)
    launch(name, "count_rows", tile_rows, np.int32(rows), indptr, bitmaps, entries)
    pointer = prefix_scan(entries)
    nnz = int(pointer[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz, precision.dtype)
    launch(name, "to_csr", tile_rows, np.int32(rows), indptr, columns, bitmaps, dense, pointer, indices, data)
    return pointer, indices, data
