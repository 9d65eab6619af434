"""Entries of a product that a mask names: by rows of B, or where that meets far more products searched for in these.

See ``masked.cu``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import unscale
from spectile.tsparse.cuda.plans import launch
from spectile.tsparse.selection import Rows
from spectile.tsparse.types import Factor, Precision

#: Bytes of work space: of a row, of an entry of the mask beside its value, and of what has its own piece of the pool.
_ROW, _ENTRY, _PIECES = 8, 17, 8 * 512


class MaskedProduct:
    """Entries of A B over a semiring, of factors whose check was launched, for masks of some rows each.

    Values that are all 1 (`ones`) are not read.
    """

    def __init__(self, A: Factor, B: Factor, precision: Precision, code: int, ones: bool = False) -> None:
        self._left, self._right, self._dtype, self._ones = A, B, precision.dtype, ones
        self._unit = units.MASKED[precision.value, code]
        self._counted = ones and code == 0  # in whatever order: sums are exact

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry of C."""
        return 4 + int(self._dtype.itemsize)

    def work_bytes(self, entries: int, rows: int) -> int:
        """Return the work space of so many entries and rows of a mask."""
        return _PIECES + _ROW * rows + (_ENTRY + int(self._dtype.itemsize)) * entries

    def entries_within(self, memory_limit: int, rows: int) -> int:
        """Return how many entries of a mask of so many rows such a work space has."""
        return max(memory_limit - self.work_bytes(0, rows), 0) // (self.work_bytes(1, 0) - self.work_bytes(0, 0))

    def _values(self, data: Any) -> Any:
        return None if self._ones else data

    def _launch(self, name: str, shape: Shape, sizes: tuple[int, ...], *arrays: Any) -> None:
        launch(self._unit, name, shape, sizes, *arrays)

    def rows(self, mask: Rows, first: int = 0, counters: Counters | None = None) -> Rows:
        """Return row pointer, columns and values of the entries of some rows, from `first` on, that a mask has.

        The mask is a row pointer, columns in order, and which of them count, None for all.  `Invalid` is raised if a
        flag is set in `counters`, to which the check of the factors wrote; None for factors whose check was read.
        """
        import cupy

        indptr, indices, held = mask[0].astype(np.int32, copy=False), mask[1], mask[2]
        entries, rows, left = len(indices), len(indptr) - 1, self._left
        if not (entries and left.nnz and self._right.nnz):
            if counters is not None:
                counters.read().raise_invalid()
            return cupy.zeros(rows + 1, np.int32), cupy.empty(0, np.int32), cupy.empty(0, self._dtype)
        counters = Counters(1) if counters is None else counters
        # What a scaled product is divided by is found for entries without products, too, and blocks add to theirs.
        data = (cupy.zeros if self._counted or left.exponents is not None else cupy.empty)(entries, self._dtype)
        found = cupy.zeros(entries, np.uint8)
        named = indptr, indices, None if held is None else held.view(np.uint8)
        self._fill(named, (left.indptr[first:], left.indices, self._values(left.data)), data, found, counters)
        data = unscale(data, indptr, indices, left, self._right, first)
        upto = cupy.cumsum(found, dtype=np.int32)
        total = int(upto[-1])
        C = cupy.empty(rows + 1, np.int32), cupy.empty(total, np.int32), cupy.empty(total, data.dtype)
        shape = choose.check(rows + 1, entries)
        self._launch("compact", shape, (entries, rows), upto, found, indptr, indices, data, *C)
        return C

    def _fill(self, mask: tuple[Any, ...], A: tuple[Any, ...], data: Any, found: Any, counters: Counters) -> None:
        """Write the values of the entries of a mask, and which are found."""
        import cupy

        indptr, entries = mask[0], len(mask[1])
        B, rows, head = self._right, len(indptr) - 1, counters.head
        met, pieces = cupy.zeros(rows, np.uint64), cupy.empty((entries, 4), np.int32)
        self._launch("count_met", choose.check(rows, self._left.nnz), (rows,), *A[:2], B.indptr, met, head)
        sizes = rows, int(self._counted)
        self._launch("list_pieces", choose.lanes_each(rows), sizes, met, A[0], indptr, pieces, head)
        counted = counters.read()
        counted.raise_invalid()
        if blocks := counted.wide("MASK_BLOCKS"):
            arrays = pieces, *mask, *A[:2], B.indptr, B.indices, data, found
            self._launch("by_blocks", Shape((blocks,), 256), (entries,), *arrays)
        if count := counted.wide("MASK_PIECES"):
            factors = *A, B.indptr, B.indices, self._values(B.data)
            self._launch("by_rows", Shape((ceil_div(count, 4),), 128), (count,), pieces, *mask, *factors, data, found)
