"""Products of sparse matrices whose result is dense, and of a sparse and a dense matrix: no place is looked for.

A sparse matrix in CSC times a dense one needs no copy: its columns scatter rows of X, each thread some columns of X.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import pointers
from spectile.core.jit import njit
from spectile.core.threads import num_threads
from spectile.core.tiling import ceil_div
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ONE, plus_times, unsigned
from spectile.tsparse.cpu.operands import one_operand
from spectile.tsparse.cpu.threads import Arrays

_TURN = 20  # multiplications that bringing an entry of A into another order costs
_STRIP = 8  # columns of X that a thread scatters at a time, at least: a line of the cache


def multiply(A: Arrays, B: Arrays, columns: int, rows: threads.Chunks, workers: int) -> np.ndarray:
    """Return A B as a dense array; products are added in the order of A's rows."""
    C = np.zeros((len(A[0]) - 1, columns), A[2].dtype)
    arrays = threads.of_factors(A, B)
    threads.over_rows(rows, workers, lambda start, stop: _fill(start, stop, *arrays, C))
    return C


@njit(**JIT)
def _fill(start, stop, indptr_a, indices_a, data_a, begin_b, end_b, indices_b, data_b, C):  # type: ignore[no-untyped-def]
    indptr_a, indices_a = unsigned(indptr_a), unsigned(indices_a)
    begin_b, end_b, indices_b = unsigned(begin_b), unsigned(end_b), unsigned(indices_b)
    for i in range(start, stop):
        row = C[i]
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            for q in range(begin_b[k], end_b[k]):
                row[indices_b[q]] = plus_times(row[indices_b[q]], factor, data_b[q])


def times_dense(A: Any, X: np.ndarray, check_finite: bool) -> np.ndarray:
    """Return the product of a sparse matrix and a dense one, of two dimensions and the type of the product."""
    columns, workers = X.shape[1], num_threads()
    strips = min(workers, max(1, columns // _STRIP))
    # Over fewer strips than threads the scattering takes longer, or A is turned.
    scatter = A.format == "csc" and columns / strips <= columns / workers + _TURN
    operand = one_operand(A.T if scatter else A, "A", check_finite=check_finite, turned=scatter)
    X = pointers.without_read_only(pointers.operand("X", X))
    arrays = (*threads.unsigned(operand.indptr, operand.indices), operand.data.astype(X.dtype, copy=False))
    C = np.zeros((A.shape[0], columns), X.dtype)
    if scatter:
        parts = threads.between(np.arange(1, strips) * columns // strips, columns)
        threads.over_rows(parts, workers, lambda start, stop: _scatter(start, stop, *arrays, X, C))
        return C
    pieces = max(1, ceil_div(len(arrays[1]) * columns, threads.WORTH_A_PIECE))
    cuts = np.searchsorted(operand.indptr, np.arange(1, pieces) * (len(arrays[1]) / pieces))
    rows = threads.between(np.clip(cuts, 0, A.shape[0]), A.shape[0])
    threads.over_rows(rows, workers, lambda start, stop: _gather(start, stop, *arrays, X, C))
    return C


@njit(**JIT)
def _gather(start, stop, indptr, indices, data, X, C):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        if X.shape[1] == 1:
            total = C[i, 0]
            for p in range(indptr[i], indptr[i + ONE]):
                total += data[p] * X[indices[p], 0]
            C[i, 0] = total
            continue
        row = C[i]
        for p in range(indptr[i], indptr[i + ONE]):
            factor, other = data[p], X[indices[p]]
            for r in range(X.shape[1]):
                row[r] += factor * other[r]


@njit(**JIT)
def _scatter(start, stop, indptr, indices, data, X, C):  # type: ignore[no-untyped-def]
    """Columns start to stop of A X, where the arrays are those of A by columns."""
    for k in range(X.shape[0]):
        other = X[k, start:stop]
        for p in range(indptr[k], indptr[k + ONE]):
            factor, row = data[p], C[indices[p], start:stop]
            for r in range(len(other)):
                row[r] += factor * other[r]
