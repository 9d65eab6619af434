"""tSparse as the paper states it (Algorithm 1), in plain NumPy: bitmap tiles, a task list, and their product.

Zachariadis, Satpute, Gómez-Luna, Olivares, "Accelerating sparse matrix-matrix multiplication with GPU Tensor Cores",
Computers & Electrical Engineering 88 (2020).  A sparse matrix is a list of the 8x8 tiles that hold an entry; a *task*
is one pair (tile of A, tile of B) whose product belongs to a tile of C.  The names follow Algorithm 1 and Section 4.
The last kernel, which drops what cancelled, is on the device alone (``product.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile.core.tiling import ceil_div

TILE = 8

_ROW_BITS = np.array([0xFF << (8 * r) for r in range(TILE)], dtype=np.uint64)
_COLUMN_BITS = np.array([0x0101010101010101 << c for c in range(TILE)], dtype=np.uint64)


@dataclass(frozen=True)
class BitmapMatrix:
    """A sparse matrix in the paper's bitmap format (Section 2.1.2): a coordinate list of 8x8 tiles.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns of the matrix (of entries, not of tiles).
    tile_rows, tile_columns : (tiles,) int64
        Coordinates of each tile in the grid of tiles, sorted by row and then by column.
    bitmaps : (tiles,) uint64
        Bit ``8 r + c`` is set where entry ``(r, c)`` of the tile is stored.
    index : (tiles + 1,) int64
        First element of each tile in `elements`; the last number is the count of elements.
    elements : (nnz,) floating
        Stored entries, tile by tile, within a tile in the order of the bits.
    """

    shape: tuple[int, int]
    tile_rows: np.ndarray
    tile_columns: np.ndarray
    bitmaps: np.ndarray
    index: np.ndarray
    elements: np.ndarray

    @property
    def tiles(self) -> int:
        """Number of stored tiles."""
        return len(self.bitmaps)

    @property
    def density(self) -> np.ndarray:
        """Stored entries of each tile (the "bitmap density" of Table 1)."""
        return np.diff(self.index)

    def dense_tiles(self, dtype: Any = None) -> np.ndarray:
        """Return the tiles as a dense array of shape (tiles, 8, 8)."""
        dense = np.zeros((self.tiles, TILE * TILE), dtype or self.elements.dtype)
        owner = np.repeat(np.arange(self.tiles), self.density)
        dense[owner, bit_positions(self.bitmaps)] = self.elements
        return dense.reshape(-1, TILE, TILE)


def bit_positions(bitmaps: np.ndarray) -> np.ndarray:
    """Return the positions of all set bits, bitmap by bitmap, in increasing order."""
    bits = np.unpackbits(np.ascontiguousarray(bitmaps, "<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    return np.nonzero(bits)[1]


def to_bitmap(matrix: Any) -> BitmapMatrix:
    """Convert a sparse matrix without duplicates to the bitmap format (Figure 1)."""
    coo = sp.coo_array(matrix)
    rows, columns = (np.asarray(c, np.int64) for c in coo.coords)
    tile_columns = ceil_div(coo.shape[1], TILE)
    tile = (rows // TILE) * tile_columns + columns // TILE
    bit = (rows % TILE) * TILE + columns % TILE
    order = np.lexsort((bit, tile))
    tile, bit = tile[order], bit[order].astype(np.uint64)
    keys, first = np.unique(tile, return_index=True)
    bitmaps = np.bitwise_or.reduceat(np.uint64(1) << bit, first) if len(keys) else np.zeros(0, np.uint64)
    index = np.append(first, len(tile)).astype(np.int64)
    width = max(tile_columns, 1)
    return BitmapMatrix(coo.shape, keys // width, keys % width, bitmaps, index, coo.data[order])


def to_csr(matrix: BitmapMatrix) -> sp.csr_array:
    """Convert the bitmap format back to CSR with sorted indices; stored zeros stay stored."""
    owner = np.repeat(np.arange(matrix.tiles), matrix.density)
    bit = bit_positions(matrix.bitmaps)
    rows = matrix.tile_rows[owner] * TILE + bit // TILE
    columns = matrix.tile_columns[owner] * TILE + bit % TILE
    csr = sp.coo_array((matrix.elements, (rows, columns)), shape=matrix.shape).tocsr()
    csr.sort_indices()
    return csr


def expand(A: BitmapMatrix, B: BitmapMatrix) -> tuple[np.ndarray, np.ndarray]:
    """Pair every tile A[i, j] with every tile B[j, k] (Algorithm 1, lines 1 to 5): two arrays of tile numbers."""
    rows_of_b = ceil_div(B.shape[0], TILE)
    start = np.searchsorted(B.tile_rows, np.arange(rows_of_b + 1))
    count = (start[1:] - start[:-1])[A.tile_columns]
    a = np.repeat(np.arange(A.tiles), count)
    within = np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count)
    return a, start[A.tile_columns][a] + within


def filter_tasks(A: BitmapMatrix, B: BitmapMatrix, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop the tasks whose product holds no entry (line 6): no column of the A tile meets a row of the B tile."""
    columns = sum(((A.bitmaps & _COLUMN_BITS[k]) != 0).astype(np.uint8) << k for k in range(TILE))
    rows = sum(((B.bitmaps & _ROW_BITS[k]) != 0).astype(np.uint8) << k for k in range(TILE))
    keep = (np.asarray(columns)[a] & np.asarray(rows)[b]) != 0
    return a[keep], b[keep]


def sort_tasks(A: BitmapMatrix, B: BitmapMatrix, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring the tasks of one tile of C together (lines 7 and 8): a stable sort by tile row, then tile column of C."""
    order = np.lexsort((B.tile_columns[b], A.tile_rows[a]))
    return a[order], b[order]


def segments(A: BitmapMatrix, B: BitmapMatrix, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the first task of each tile of C, and the number of tasks at the end (lines 9 to 14)."""
    rows, columns = A.tile_rows[a], B.tile_columns[b]
    new = np.ones(len(a), bool)
    new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    return np.append(np.nonzero(new)[0], len(a))


def count_elements(A: BitmapMatrix, B: BitmapMatrix, a: np.ndarray, b: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the bitmap of each tile of C by a Boolean product of bitmaps (line 16, Section 4.2)."""
    product = np.zeros(len(a), np.uint64)
    for k in range(TILE):
        column = (A.bitmaps[a] >> np.uint64(k)) & _COLUMN_BITS[0]
        row = (B.bitmaps[b] >> np.uint64(8 * k)) & np.uint64(0xFF)
        # One bit a row of the tile times one byte: the byte lands in every row that holds the bit.
        product |= column * row
    return np.bitwise_or.reduceat(product, first[:-1]) if len(first) > 1 else np.zeros(0, np.uint64)


def multiply(
    A: BitmapMatrix, B: BitmapMatrix, a: np.ndarray, b: np.ndarray, first: np.ndarray, dtype: Any = np.float32
) -> np.ndarray:
    """Multiply and accumulate the tasks of each tile of C in their order (line 18); the products are formed in `dtype`.

    Returns
    -------
    (tiles of C, 8, 8) ndarray
    """
    tiles_a, tiles_b = A.dense_tiles(dtype), B.dense_tiles(dtype)
    C = np.zeros((len(first) - 1, TILE, TILE), dtype)
    length = np.diff(first)
    for step in range(int(length.max(initial=0))):
        active = np.nonzero(length > step)[0]
        task = first[active] + step
        C[active] += np.matmul(tiles_a[a[task]], tiles_b[b[task]])
    return C


def spgemm(A: BitmapMatrix, B: BitmapMatrix, dtype: Any = np.float32) -> BitmapMatrix:
    """Multiply two matrices in bitmap format (Algorithm 1); the pattern of C is structural, as Table 1 counts it.

    Parameters
    ----------
    A, B : BitmapMatrix
        Factors; their elements are already rounded to the input precision.
    dtype : dtype
        Precision of products and sums; float32 is the mixed precision of the tensor cores.
    """
    a, b = sort_tasks(A, B, *filter_tasks(A, B, *expand(A, B)))
    first = segments(A, B, a, b)
    bitmaps = count_elements(A, B, a, b, first)
    dense = multiply(A, B, a, b, first, dtype).reshape(-1, TILE * TILE)
    index = np.append(0, np.cumsum(np.bitwise_count(bitmaps), dtype=np.int64))
    owner = np.repeat(np.arange(len(bitmaps)), np.diff(index))
    elements = dense[owner, bit_positions(bitmaps)]
    head = first[:-1]
    return BitmapMatrix(
        (A.shape[0], B.shape[1]), A.tile_rows[a[head]], B.tile_columns[b[head]], bitmaps, index, elements
    )


def table1(A: Any, B: Any | None = None) -> dict[str, float]:
    """Return the counts of Table 1 for ``A @ B`` (A squared when `B` is missing), tile counts after the filter.

    Returns
    -------
    dict
        ``nnz_c`` (structural), ``products``, ``tiles_c``, ``tile_products``, and the median, mean and standard
        deviation of the stored entries a tile of A.
    """
    same = B is None
    A = sp.csr_array(A)
    B = A if B is None else sp.csr_array(B)
    tiles_a = to_bitmap(A)
    tiles_b = tiles_a if same else to_bitmap(B)
    a, b = sort_tasks(tiles_a, tiles_b, *filter_tasks(tiles_a, tiles_b, *expand(tiles_a, tiles_b)))
    first = segments(tiles_a, tiles_b, a, b)
    density = tiles_a.density if tiles_a.tiles else np.zeros(1)
    return {
        "nnz_c": int(np.bitwise_count(count_elements(tiles_a, tiles_b, a, b, first)).sum()),
        "products": int(np.diff(B.indptr).astype(np.int64)[A.indices].sum()),
        "tiles_a": tiles_a.tiles,
        "tiles_c": len(first) - 1,
        "tile_products": len(a),
        "tile_density_median": float(np.median(density)),
        "tile_density_mean": float(density.mean()),
        "tile_density_std": float(density.std()),
    }
