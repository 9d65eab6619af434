"""The check of a factor on the host, over threads."""

from __future__ import annotations

import functools
import operator

import numpy as np

from spectile.core.jit import njit
from spectile.core.threads import num_threads, results
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ONE, ZERO, unsigned

#: What may be wrong: a column is out of range, a value not finite, the columns of a row do not increase strictly, the
#: row pointer falls or leaves the entries (the others are then unknown).
OUTSIDE, INFINITE, UNSORTED, FALLS = 1, 2, 4, 8
_ROWS = np.uint64(1024)  # rows that are looked at together


@njit(**JIT)
def examine_rows(start, stop, indptr, indices, data, columns):  # type: ignore[no-untyped-def]
    """Return the flags of rows start to stop."""
    indptr, indices = unsigned(indptr), unsigned(indices)  # a negative column is a large one
    most, infinite, unsorted, second = indices.dtype.type(0), ZERO, ZERO, indptr[start] + ONE
    for low in range(start, stop, _ROWS):  # which the cache holds from one loop to the next
        high = min(low + _ROWS, stop)
        descents, falls, first, last = ZERO, ZERO, indptr[low], indptr[high]
        for i in range(low, high):
            falls += np.uint64(indptr[i] > indptr[i + ONE])
        if falls > ZERO or last > np.uint64(len(indices)):
            return FALLS
        if len(data) > 0:
            for p in range(first, last):
                most = max(most, indices[p])
                infinite += np.uint64(not np.isfinite(data[p]))
        else:
            for p in range(first, last):
                most = max(most, indices[p])
        for p in range(max(first, second), last):
            descents += np.uint64(indices[p - ONE] >= indices[p])
        # Columns increase within every row if and only if every descent is at a row's start.
        for i in range(low, high if descents > ZERO else low):
            begin = indptr[i]
            at = min(max(begin, second), last - ONE)  # read in any case: a branch would be guessed wrong
            descents -= np.uint64((indices[at - ONE] >= indices[at]) & (begin == at) & (begin < indptr[i + ONE]))
        unsorted += descents
    outside = indptr[stop] >= second and np.uint64(most) >= np.uint64(columns)
    return OUTSIDE * outside + INFINITE * (infinite > ZERO) + UNSORTED * (unsorted > ZERO)


NO_VALUES = np.empty(0)


def examine(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray | None, columns: int) -> int:
    """Return what the product must not walk, the flags of this module together; values only where they are given."""
    arrays = indptr, indices, NO_VALUES if data is None else data, columns
    pieces = threads.pieces(indptr)
    if len(pieces) == 1:
        return examine_rows(*pieces[0], *arrays)
    return functools.reduce(operator.or_, results(pieces, num_threads(), lambda piece: examine_rows(*piece, *arrays)))
