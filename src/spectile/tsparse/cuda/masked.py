"""Entries of a product that a mask names: by rows of B, or where that meets far more products searched for in these.

See ``masked.cu``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import BoundLaunch, Shape, kernel
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import unscale
from spectile.tsparse.cuda.plans import Addresses, plan
from spectile.tsparse.cuda.shared import CONSTANTS
from spectile.tsparse.selection import Rows
from spectile.tsparse.types import Factor, Precision

#: Bytes of work space: of a row, of an entry of the mask beside its value, and of what has its own piece of the pool.
_ROW, _ENTRY, _PIECES = 8, 18, 4 * 512


class MaskedProduct:
    """Entries of A B over a semiring, of factors whose check was launched, for masks of some rows each.

    Where all values are 1 (`counted`) they are not read, and products are added in whatever order.
    """

    def __init__(self, A: Factor, B: Factor, precision: Precision, code: int, counted: bool = False) -> None:
        self._left, self._right, self._dtype, self._counted = A, B, precision.dtype, counted
        self._unit = units.MASKED[precision.value, 4 if counted else code]

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

    def rows(self, mask: Rows, first: int = 0, counters: Counters | None = None) -> Rows:
        """Return row pointer, columns and values of the entries of some rows, from `first` on, that a mask has.

        The mask is a row pointer, columns in order, and values of which those count that are not 0, None for all.
        `Invalid` is raised if a flag is set in `counters`, to which the check of the factors wrote; None for factors
        whose check was read.  The host waits once, for the size of C.
        """
        import cupy

        indptr, indices, values = mask[0].astype(np.int32, copy=False), mask[1], mask[2]
        entries, rows, left, right = len(indices), len(indptr) - 1, self._left, self._right
        counters = Counters(1) if counters is None else counters
        if not (entries and left.nnz and right.nnz):
            counters.read().raise_invalid()
            return cupy.zeros(rows + 1, np.int32), cupy.empty(0, np.int32), cupy.empty(0, self._dtype)
        # Products of each row, states of the scan, what is found, values; pieces, in whose place entries are numbered.
        lengths = _ROW * rows, 8 * ceil_div(entries, CONSTANTS["SCAN_ROWS"]), entries, self._dtype.itemsize * entries
        *starts, end = itertools.accumulate((ceil_div(x, 16) * 16 for x in (*lengths, 16 * entries)), initial=0)
        work = cupy.cuda.alloc(end)
        met, states, found, data, pieces = (work.ptr + start for start in starts)
        # What a scaled product is divided by is found for entries without products, too, and blocks add to theirs.
        cleared = starts[4 if self._counted or left.exponents is not None else 3]
        cupy.cuda.runtime.memsetAsync(work.ptr, 0, cleared, counters.stream)
        sizes = rows, entries, left.nnz, self._counted, None if values is None else values.dtype
        key = "masked", counters.device, id(self._unit), sizes
        launches: _Launches = plan(key, lambda: _Launches(self._unit, *sizes))
        val_a, val_b = (0, 0) if self._counted else (address(left.data), address(right.data))
        launches.addresses.set(
            address(indptr), address(indices), 0 if values is None else address(values),
            address(left.indptr) + 4 * first, address(left.indices), val_a, address(right.indptr),
            address(right.indices), val_b, met, states, found, pieces, data, counters.head, 0, 0, 0,
        )  # fmt: skip
        for launch in launches.before:
            launch(counters.stream)
        counted = counters.read()
        counted.raise_invalid()
        total = counted.wide("ENTRIES")
        if left.exponents is not None:
            whole = cupy.ndarray(entries, self._dtype, work + starts[3])
            unscale(whole, indptr, indices, left, right, first)
        C = cupy.empty(rows + 1, np.int32), cupy.empty(total, np.int32), cupy.empty(total, self._dtype)
        for number, array in enumerate(C, 15):
            launches.addresses.replace(number, address(array))
        launches.compact(counters.stream)
        return C


class _Launches:
    """The launches for masks of some sizes, before C is allocated and after, for addresses that are set before."""

    def __init__(self, unit: Unit, rows: int, entries: int, nnz_a: int, counted: bool, stored: Any) -> None:
        self.addresses = Addresses(18)
        ptr_m, idx_m, held, *factors, met, states, found, pieces, data, head, ptr_c, idx_c, val_c = (
            self.addresses[i] for i in range(18)
        )
        ptr_a, idx_a, _, ptr_b, *_ = factors
        reals = 1 if stored is None or stored.kind != "c" else 2
        words = 0 if stored is None else stored.itemsize // (4 * reals)
        shape = choose.masked(entries, counted, describe())
        warps = shape.threads // 32 * shape.grid[0]

        def bound(name: str, shape: Shape, sizes: tuple[int, ...], *addresses: Any) -> BoundLaunch:
            return kernel(unit, name).bind(shape, *map(np.int32, sizes), *addresses)

        pattern = ptr_m, ptr_a, idx_a, ptr_b
        # Pieces are over where entries are numbered in their place.
        self.before = (
            bound("count_met", choose.loop(max(rows, nnz_a)), (rows,), *pattern, met, head),
            bound("list_pieces", choose.lanes_each(rows), (rows, warps), met, ptr_a, ptr_m, pieces, head),
            bound("fill", shape, (entries, words, reals), pieces, ptr_m, idx_m, held, *factors, data, found, head),
            bound("number", choose.scan(entries), (entries,), found, pieces, head, states),
        )
        C = pieces, found, ptr_m, idx_m, data, ptr_c, idx_c, val_c
        self.compact = bound("compact", choose.loop(max(rows + 1, entries)), (entries, rows), *C)
