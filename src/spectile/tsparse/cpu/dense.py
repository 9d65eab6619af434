"""Products of sparse matrices whose result is dense, and of a sparse and a dense matrix: no place is looked for."""

from __future__ import annotations

import numpy as np

from spectile.core.jit import njit
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ONE
from spectile.tsparse.cpu.threads import Arrays


def multiply(A: Arrays, B: Arrays, columns: int, rows: threads.Chunks, workers: int) -> np.ndarray:
    """Return A B as a dense array; products are added in the order of A's rows."""
    C = np.zeros((len(A[0]) - 1, columns), A[2].dtype)
    arrays = threads.of_factors(A, B)
    threads.over_rows(rows, workers, lambda start, stop: _fill(start, stop, *arrays, C))
    return C


@njit(**JIT)
def _fill(start, stop, indptr_a, indices_a, data_a, begin_b, end_b, indices_b, data_b, C):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        row = C[i]
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            for q in range(begin_b[k], end_b[k]):
                row[indices_b[q]] += factor * data_b[q]
