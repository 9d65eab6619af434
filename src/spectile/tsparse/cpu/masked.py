"""Products of which a mask tells the wanted entries, at the cost of the mask.

A row of C is made in one of two ways, whichever meets fewer entries: by rows of B, adding what falls on an entry of
the mask, or entry by entry of the mask, by columns of B.  Both add the products of an entry in the order of A's row, so
that the bits are those of the whole product.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ONE, PLUS_TIMES, ZERO, multiply_add
from spectile.tsparse.cpu.operands import turn
from spectile.tsparse.cpu.phases import Arrays
from spectile.tsparse.selection import Rows, keep

TURN_COST = 8  # entries of the product that turning an entry of B to columns costs


@functools.cache
def _masked_rows(kind: int) -> Any:
    @njit(**JIT)
    def masked_rows(  # type: ignore[no-untyped-def]
        start,
        stop,
        by_columns,
        indptr_a,
        indices_a,
        data_a,
        indptr_b,
        indices_b,
        data_b,
        indptr_t,
        indices_t,
        data_t,
        indptr_m,
        indices_m,
        place,
        found,
        data_c,
    ):
        """Values of the entries of the mask in rows start to stop, and whether a product falls on each.

        place[j] is one more than where the mask holds column j in the row at hand, or A column k, and 0 elsewhere.
        """
        for i in range(start, stop):
            first, last = indptr_m[i], indptr_m[i + ONE]
            if first == last:
                continue
            if by_columns[i]:
                for p in range(indptr_a[i], indptr_a[i + ONE]):
                    place[indices_a[p]] = p + ONE
                for t in range(first, last):
                    j = np.uint64(indices_m[t])
                    for q in range(indptr_t[j], indptr_t[j + ONE]):
                        at = place[indices_t[q]]
                        if at > ZERO:
                            p = at - ONE
                            if kind == PLUS_TIMES:
                                data_c[t] += data_a[p] * data_t[q]
                            else:
                                data_c[t] = multiply_add(kind, data_a[p], data_t[q], data_c[t], not found[t])
                            found[t] = True
                for p in range(indptr_a[i], indptr_a[i + ONE]):
                    place[indices_a[p]] = 0
                continue
            for t in range(first, last):
                place[indices_m[t]] = t + ONE
            for p in range(indptr_a[i], indptr_a[i + ONE]):
                k = np.uint64(indices_a[p])
                factor = data_a[p]
                for q in range(indptr_b[k], indptr_b[k + ONE]):
                    at = place[indices_b[q]]
                    if at > ZERO:
                        t = at - ONE
                        if kind == PLUS_TIMES:
                            data_c[t] += factor * data_b[q]
                        else:
                            data_c[t] = multiply_add(kind, factor, data_b[q], data_c[t], not found[t])
                        found[t] = True
            for t in range(first, last):
                place[indices_m[t]] = 0

    return masked_rows


def multiply(
    A: Arrays,
    B: Arrays,
    mask: tuple[np.ndarray, np.ndarray],
    columns: int,
    kind: int,
    turned: Arrays | None = None,
) -> Rows:
    """Return row pointer, columns and values of the entries of A B that a mask has, sorted.

    Parameters
    ----------
    A, B : tuple of array
        Row pointer, columns and values of the factors.
    mask : tuple of array
        Row pointer and columns of the mask, sorted within rows.
    columns : int
        Of B and of the mask.
    kind : int
        Code of the semiring.
    turned : tuple of array, optional
        B by columns, where that is known.
    """
    rows, inner = len(A[0]) - 1, len(B[0]) - 1
    by_columns, turned = _ways(A, B, mask, columns, turned)
    nothing = np.zeros(1, np.int64), B[1][:0], B[2][:0]
    data = np.zeros(len(mask[1]), A[2].dtype)
    found = np.zeros(len(mask[1]), bool)
    if len(data):
        factors = ((*threads.unsigned(*x[:2]), x[2]) for x in (A, B, turned or nothing))
        arrays = (*itertools.chain(*factors), *threads.unsigned(*mask))
        space = _Places(max(columns, inner))
        kernel = _masked_rows(kind)

        def work(start: np.uint64, stop: np.uint64) -> None:
            kernel(start, stop, by_columns, *arrays, space.place, found, data)

        count = len(data) // threads.WORTH_A_PIECE
        parts = threads.between(np.arange(1, 8 * count) * rows // max(8 * count, 1), rows)
        threads.over_rows(parts, threads.workers(columns, 8, None), work)
    return keep((mask[0], mask[1], data), found)


class _Places(threading.local):
    """Where the row at hand holds a column, of each thread."""

    def __init__(self, columns: int) -> None:
        self.place = np.zeros(columns, np.uint64)


def _ways(
    A: Arrays, B: Arrays, mask: tuple[np.ndarray, np.ndarray], columns: int, turned: Arrays | None
) -> tuple[np.ndarray, Arrays | None]:
    """Return which rows are made by columns of B, and B by columns where there are any."""
    wanted = np.diff(mask[0])
    by_rows, by_columns = costs(A, B, mask, columns)
    fewer = (by_columns < by_rows) & (wanted > 0)
    if turned is None:
        if int((by_rows - by_columns)[fewer].sum()) <= TURN_COST * len(B[1]):
            return np.zeros(len(fewer), bool), None
        turned = turn(B, columns)
    return fewer, turned


def costs(A: Arrays, B: Arrays, mask: tuple[np.ndarray, np.ndarray], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries that each row of C meets where it is made by rows of B, and where by columns."""
    by_rows = np.diff(mask[0]) + _sums(np.diff(B[0])[A[1]], A[0])
    heights = np.bincount(B[1], minlength=columns)
    return by_rows, np.diff(A[0]) + _sums(heights[mask[1]], mask[0])


def _sums(values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Return the sums of values by rows."""
    before = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=before[1:])
    return np.diff(before[indptr])
