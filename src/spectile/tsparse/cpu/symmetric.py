"""Products of a matrix and its own transpose or adjoint: the upper triangle is multiplied, and mirrored.

Row i of the upper triangle needs of row k of the right factor the entries from column i on, and column i of it is the
entry of the left one that meets it: where rows of the left factor are taken in order, the first is that of the first
row, and so on.  Products and their order are those of the whole product, and so are the bits.
"""

from __future__ import annotations

import numpy as np

from spectile.core.jit import njit
from spectile.core.threads import num_threads
from spectile.tsparse.cpu import one_pass, threads
from spectile.tsparse.cpu.kernels import JIT, ONE, ZERO
from spectile.tsparse.cpu.threads import Arrays
from spectile.tsparse.cpu.work import chunks, survey
from spectile.tsparse.matrices import index_type

#: Products of a triangle, in all and for each entry of A, below which making the other costs as much as half of them.
WORTH_MIRRORING, WORTH_AN_ENTRY = 2**14, 4


def worth(products: int, entries: int) -> bool:
    """Return whether so many products of a triangle, of a matrix of so many entries, are worth mirroring."""
    return products >= max(WORTH_MIRRORING, WORTH_AN_ENTRY * entries)


def multiply(A: Arrays, B: Arrays, adjoint: bool) -> Arrays | None:
    """Return row pointer, sorted columns and values of A B, or None where this takes too much.

    Parameters
    ----------
    A, B : tuple of array
        Row pointer, columns and values of a matrix and of its transpose, sorted and without duplicates.
    adjoint : bool
        Whether B is conjugated.
    """
    rows, entries, workers = len(A[0]) - 1, len(A[1]), num_threads()
    place = np.empty(entries, index_type(entries))
    _find_places(*threads.unsigned(*A[:2], B[0], place))
    ends = np.repeat(B[0][1:], np.diff(B[0]))
    left, right = (A[0], place, A[2]), ((np.arange(entries), ends), B[1], B[2])
    work = survey(A[0], place, right[0])

    def mirrored(first: np.ndarray, end: np.ndarray, indices: np.ndarray, data: np.ndarray) -> Arrays:
        """Return the whole of the matrix; each thread takes the entries that fall on its rows."""
        half = threads.unsigned(first, end, indices, data)
        parts = [(ZERO, np.uint64(rows))] if workers == 1 else chunks(work, workers, work.products + rows)
        indptr, below = np.zeros(rows + 1, np.int64), np.zeros(rows, np.int64)
        (counts,) = threads.unsigned(below)
        threads.over_rows(parts, workers, lambda start, stop: _count_below(start, stop, *half[:3], counts))
        np.cumsum(below + end - first, out=indptr[1:])
        whole = np.empty(indptr[-1], indices.dtype), np.empty(indptr[-1], data.dtype)
        to = threads.unsigned(indptr, below, *whole)
        threads.over_rows(parts, workers, lambda start, stop: _mirror(start, stop, adjoint, *half, *to))
        return indptr, *whole

    return one_pass.multiply(left, right, rows, work, chunks(work, workers), made_of=mirrored)


@njit(**JIT)
def _find_places(indptr_a, indices_a, indptr_b, place):  # type: ignore[no-untyped-def]
    """place[p] = where B, the transpose of A, holds entry p of A."""
    following = indptr_b[:-1].copy()
    for p in range(indptr_a[len(indptr_a) - 1]):
        k = indices_a[p]
        place[p] = following[k]
        following[k] += ONE


@njit(**JIT)
def _from(indices, first, last, column):  # type: ignore[no-untyped-def]
    """Return the first place between two whose column is not less than `column`."""
    while first < last:
        middle = (first + last) >> ONE
        if indices[middle] < column:
            first = middle + ONE
        else:
            last = middle
    return first


@njit(**JIT)
def _count_below(start, stop, first, end, indices, below):  # type: ignore[no-untyped-def]
    """below[j] = entries of the upper triangle above the diagonal in column j, for start <= j < stop."""
    for i in range(stop):
        for t in range(_from(indices, first[i], end[i], max(start, i + ONE)), end[i]):
            if indices[t] >= stop:
                break
            below[indices[t]] += ONE


@njit(**JIT)
def _mirror(start, stop, adjoint, first, end, indices_u, data_u, indptr, below, indices, data):  # type: ignore[no-untyped-def]
    """Write rows start to stop of the whole matrix; `below` is the number of entries of a row left of the diagonal."""
    following = indptr[start:stop].copy()
    for i in range(stop):
        for t in range(_from(indices_u, first[i], end[i], max(start, i + ONE)), end[i]):
            j = np.uint64(indices_u[t])
            if j >= stop:
                break
            at = following[j - start]
            following[j - start] += ONE
            indices[at] = i
            data[at] = np.conj(data_u[t]) if adjoint else data_u[t]
    for i in range(start, stop):
        at = indptr[i] + below[i]
        for t in range(first[i], end[i]):
            indices[at] = indices_u[t]
            data[at] = data_u[t]
            at += ONE
