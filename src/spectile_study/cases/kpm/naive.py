"""Figure 3 on all threads of a CPU: each function of the naive version by itself, rows shared by the threads.

SciPy's product runs on one thread; the paper's library calls take all cores.  These loops are that chain: every
function reads and writes its vectors in memory, and the threads meet after each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.kpm.types import Array


class Chain:
    """The functions of Figure 3 on a matrix, by so many threads.

    Parameters
    ----------
    matrix : scipy.sparse.csr_matrix, shape (N, N)
        H.
    threads : int
        Threads, each with as many adjacent rows as the others.
    """

    def __init__(self, matrix: Any, threads: int) -> None:
        self.matrix, self.pool = matrix, ThreadPoolExecutor(threads)
        self.image = np.empty(matrix.shape[0], matrix.dtype)
        edges = np.linspace(0, matrix.shape[0], threads + 1).astype(int)
        self.parts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))

    def each(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on every thread's rows and return what each gives."""
        return list(self.pool.map(lambda part: function(*arguments, *part), self.parts))

    def etas(self, start: Array, steps: int, a: float, b: float) -> Array:
        """Run the chain, vector by vector.

        Parameters
        ----------
        start : ndarray, shape (N, R), Fortran order
            |ν₀⟩.
        steps : int
            Applications of H̃, M/2.
        a, b : float
            Scaling.

        Returns
        -------
        ndarray, shape (2 * steps, R)
        """
        matrix = self.matrix
        etas = np.empty((2 * steps, start.shape[1]))
        for r in range(start.shape[1]):
            v, w = start[:, r].astype(matrix.dtype), np.zeros(matrix.shape[0], matrix.dtype)
            for m in range(steps):
                if m:
                    v, w = w, v
                etas[2 * m : 2 * m + 2, r] = self.step(v, v, w, 2 * a if m else a, b)
        return etas

    def step(self, v: Array, whole: Array, w: Array, factor: float, b: float) -> list[float]:
        """Do one step, ``w = factor (H − b) v − w``; `whole` is v, and the rows of others that the matrix couples."""
        matrix, kind = self.matrix, self.matrix.dtype.type
        self.each(_spmv, matrix.indptr, matrix.indices, matrix.data, whole, self.image)
        self.each(_axpy, kind(-b), v, self.image)
        self.each(_scal, kind(-1), w)
        self.each(_axpy, kind(factor), self.image, w)
        return [sum(self.each(_dot, v, v)), sum(self.each(_dot, w, v))]


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _spmv(indptr, indices, data, v, u, start, stop):  # type: ignore[no-untyped-def]
    for row in range(start, stop):
        total = data[0] * 0
        for at in range(indptr[row], indptr[row + 1]):
            total += data[at] * v[indices[at]]
        u[row] = total


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _axpy(a, x, y, start, stop):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        y[i] += a * x[i]


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _scal(a, x, start, stop):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        x[i] *= a


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _dot(x, y, start, stop):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(start, stop):
        total += (np.conj(x[i]) * y[i]).real
    return total
