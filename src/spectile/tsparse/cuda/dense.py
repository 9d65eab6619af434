"""Products with a dense matrix, or into one, on the device (``dense.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import memory, pointers
from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.tsparse.cuda import choose, parts, units
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, with_checked_factors
from spectile.tsparse.cuda.given import given
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.types import Factor, of_values

#: Entries that are made together whatever the free memory, which takes as long to ask for as small products do.
_ALWAYS = 2**22


def multiply(A: Factor, B: Factor, dtype: np.dtype, counters: Counters | None) -> Any:
    """Return A B as a dense array of C order: the sparse product of as many rows as fit, and these placed."""
    import cupy

    rows, columns = A.shape[0], B.shape[1]
    whole, C = count_rows(A, B, 0, rows, dtype.name, counters), cupy.zeros((rows, columns), dtype)
    waiting: list[tuple[int, int, Phase | None]] = [(0, rows, whole)]
    del whole
    while waiting:
        first, stop, phase = waiting.pop()
        if phase is None:
            phase = count_rows(A, B, first, stop, dtype.name)
        if not phase.entries:
            continue
        if stop - first > 1 and phase.entries > _ALWAYS and phase.entries > _fitting(dtype):
            middle = (first + stop) // 2
            waiting += [(middle, stop, None), (first, middle, None)]
            continue
        indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, dtype)
        fill_rows(A, B, phase, indices, data)
        log = choose.row_lanes(phase.entries / (stop - first))
        sizes = np.int32(stop - first), np.int64(columns), np.int32(log)
        place = kernel(units.DENSE[dtype.name], "place_rows")
        place(choose.lanes_each(stop - first, log), *sizes, phase.indptr, indices, data, C[first:])
    return C


def _fitting(dtype: np.dtype) -> int:
    """Return the entries of C that are made at a time."""
    return min(parts.MOST_ENTRIES, memory.free_bytes() // (2 * (4 + dtype.itemsize)))


def times_dense(A: Any, X: Any, check_finite: bool) -> Any:
    """Return the product of a sparse matrix of CuPy and a dense one, of two dimensions and the type of the product."""
    import cupy

    X, precision = pointers.operand("X", X), of_values(X.dtype)

    def product(factor: Factor, _: Factor, counters: Counters) -> Any:
        checked(factor, factor, counters)
        rows, columns = A.shape[0], X.shape[1]
        if factor.given.held is not None:
            raise ValueError(f"A has {A.shape[1]} columns, beyond 32 bits: use a matrix of the host")
        C = cupy.empty((rows, columns), X.dtype)
        if C.size:
            cut, across = choose.dense_lanes(factor.nnz / rows, columns)
            unit, arrays = units.DENSE[X.dtype.name], (factor.indptr, factor.indices, factor.data, X, C)
            pieces, summed, count, shape = choose.long_rows(factor.nnz, columns, X.dtype.itemsize, describe())
            listed, head = cupy.empty(4 * pieces + summed, np.int32), np.uint64(counters.head)
            done, wide = listed[4 * pieces :], np.int32(across)
            launch = kernel(unit, "times_dense")
            sizes = np.int32(rows), np.int64(columns), np.int32(cut), wide
            launch(choose.lanes_each(rows, cut + across), *sizes, *arrays, listed, done, head)
            if pieces:
                sums = cupy.empty(summed * count, X.dtype)
                for first in range(0, columns, count):
                    some = np.int64(first), np.int32(min(count, columns - first))
                    kernel(unit, "long_rows")(shape, sizes[1], *some, wide, *arrays, listed, done, sums, head)
        return C

    factors = given(A, A, check_finite=check_finite)
    return with_checked_factors(*factors, precision, product, check_finite=check_finite)
