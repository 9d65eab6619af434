"""Entries of a product that a mask names: by rows of B, or where that meets far more products by its columns.

See ``masked.cu``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.factors import unscale
from spectile.tsparse.cuda.turn import turned
from spectile.tsparse.selection import Rows, owners
from spectile.tsparse.types import Factor, Precision

#: Products that turning an entry of B to columns costs, and those of the slowest piece that are worth it alone.
_TURN_COST, _SLOW = 16, 2**18
_NOTHING = np.uint64(0)


class MaskedProduct:
    """Entries of A B over a semiring, of checked factors, for masks of some rows each.

    Values that are all 1 (`ones`) are not read.
    """

    def __init__(self, A: Factor, B: Factor, precision: Precision, code: int, ones: bool = False) -> None:
        self._left, self._right, self._dtype, self._ones = A, B, precision.dtype, ones
        self._unit = units.MASKED[precision.value, code]

    def _values(self, data: Any) -> Any:
        return _NOTHING if self._ones else data

    @functools.cached_property
    def _products(self) -> Any:
        """The products before each entry of A, and in the end of all."""
        import cupy

        lengths = self._right.indptr[1:] - self._right.indptr[:-1]
        products = cupy.zeros(self._left.nnz + 1, np.int64)
        cupy.cumsum(lengths[self._left.indices], dtype=np.int64, out=products[1:])
        return products

    @functools.cached_property
    def _columns(self) -> tuple[Any, Any, Any]:
        """B by columns: where each begins, the rows in order, and the values."""
        starts, rows, places = turned(self._right.indptr, self._right.indices, self._right.shape[1])
        return starts, rows, self._values(self._right.data[places])

    def rows(self, mask: Rows, first: int = 0) -> Rows:
        """Return row pointer, columns and values of the entries of some rows, from `first` on, that a mask has.

        Parameters
        ----------
        mask : tuple of array
            Row pointer, columns in order, and which of them count; None for all.
        first : int
        """
        import cupy

        indptr, indices, held = mask[0].astype(np.int32, copy=False), mask[1], mask[2]
        entries, rows, left = len(indices), len(indptr) - 1, self._left
        data, found = cupy.zeros(entries, self._dtype), cupy.zeros(entries, np.uint8)
        if entries and left.nnz and self._right.nnz:
            named = indptr, indices, _NOTHING if held is None else held.view(np.uint8)
            self._fill(named, (left.indptr[first:], left.indices, self._values(left.data)), data, found)
            data = unscale(data, indptr, indices, left, self._right, first)
        upto = cupy.cumsum(found, dtype=np.int32)
        total = int(upto[-1]) if entries else 0
        C = cupy.empty(rows + 1, np.int32), cupy.empty(total, np.int32), cupy.empty(total, data.dtype)
        sizes = np.int32(entries), np.int32(rows)
        kernel(self._unit, "compact")(choose.check(rows + 1, entries), *sizes, upto, found, indptr, indices, data, *C)
        return C

    def _fill(self, mask: tuple[Any, ...], A: tuple[Any, ...], data: Any, found: Any) -> None:
        """Write the values of the entries of a mask, and which are found."""
        import cupy

        indptr, indices, _ = mask
        B, rows, entries = self._right, len(indptr) - 1, len(indices)
        counts, mean = cupy.zeros(4, np.uint64), np.int32(ceil_div(B.nnz, max(B.shape[1], 1)))
        pieces = cupy.empty((entries, 4), np.int32)
        shape, listed = choose.lanes_each(rows), kernel(self._unit, "list_pieces")
        shared = A[0], indptr, mean, pieces
        listed(shape, np.int32(rows), self._products, _NOTHING, *shared, _NOTHING, counts)
        count, products, spared, slowest = (int(x) for x in cupy.asnumpy(counts))
        if spared > products // 2 + _TURN_COST * B.nnz or slowest > _SLOW:
            starts = self._columns[0]
            owner = owners(indptr, entries, cupy)
            lengths = cupy.minimum((A[0][1:] - A[0][:-1])[owner], (starts[1:] - starts[:-1])[indices])
            steps = cupy.zeros(entries + 1, np.int64)
            cupy.cumsum(lengths, dtype=np.int64, out=steps[1:])
            by_columns = cupy.zeros(rows, np.uint8)
            counts.fill(0)
            listed(shape, np.int32(rows), self._products, steps, *shared, by_columns, counts)
            launch = np.int32(entries), np.int32(rows), by_columns, *mask, *A, *self._columns, data, found
            kernel(self._unit, "by_columns")(choose.lanes_each(entries), *launch)
        if count:
            factors = *A, B.indptr, B.indices, self._values(B.data)
            kernel(self._unit, "by_rows")(
                Shape((ceil_div(count, 4),), 128), counts, pieces, *mask, *factors, data, found
            )
