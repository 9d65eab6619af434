"""The pattern of a product on the host, kept for further products with the same patterns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cpu import phases, threads
from spectile.tsparse.cpu.operands import operands
from spectile.tsparse.cpu.work import Work, chunks, survey
from spectile.tsparse.matrices import check_pair, host_csr
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import Operand, Precision, PrecisionName, lookup


@dataclass
class SymbolicProduct:
    """The pattern of C = A B, kept for further products of matrices with the patterns of A and B.

    Attributes
    ----------
    shape : tuple of int
        Shape of C.
    indptr, indices : ndarray
        Row pointer and sorted columns of C.  `indices` is None until the first product.
    products : int
        Multiplications of one product.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray | None
    products: int
    _chunks: threads.Chunks
    _patterns: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    _memory_limit: int | None = field(default=None)

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return int(self.indptr[-1])

    def multiply(self, A: Any, B: Any, *, precision: PrecisionName = "float64") -> Any:
        """Return C = A B for factors with the analysed patterns.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of :func:`spgemm`.
        """
        chosen = lookup(precision)
        if check_pair(A, B):
            raise ValueError("the pattern is on the host and the factors are on a GPU: copy them to the host")
        factors = operands(A, B)
        for name, operand, (indptr, indices) in zip("AB", factors, self._patterns, strict=True):
            if not (np.array_equal(operand.indptr, indptr) and np.array_equal(operand.indices, indices)):
                raise errors.other_pattern(name)
        return self.product(*factors, chosen, self._memory_limit)

    def product(self, A: Operand, B: Operand, precision: Precision, memory_limit: int | None) -> Any:
        """Return C = A B for checked factors that are known to have the analysed patterns."""
        workers = threads.workers(B.shape[1], precision.dtype.itemsize, memory_limit)
        data_a, data_b, exponents = rounded(A, B, precision)
        data = unscale(self.values(A, B, data_a, data_b, workers), self.indptr, self._columns(), exponents)
        return host_csr(self.shape, self.indptr, self._columns(), data, A.array or B.array)

    def values(self, A: Operand, B: Operand, data_a: np.ndarray, data_b: np.ndarray, workers: int) -> np.ndarray:
        """Return the values of C for the given values of A and B, and find its columns where they are not known."""
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        if self.indices is None:
            self.indices, data = phases.fill(left, right, self.shape[1], self._chunks, self.indptr, workers)
            return data
        return phases.refill(left, right, self.shape[1], self._chunks, self.indptr, self.indices, workers)

    def _columns(self) -> np.ndarray:
        assert self.indices is not None
        return self.indices


def symbolic(A: Operand, B: Operand, memory_limit: int | None) -> SymbolicProduct:
    """Return the pattern of C = A B."""
    work = survey(A.indptr, A.indices, B.indptr)
    return counted(A, B, memory_limit, work, chunks(work, threads.workers(B.shape[1], 8, memory_limit)))


def counted(A: Operand, B: Operand, memory_limit: int | None, work: Work, pieces: threads.Chunks) -> SymbolicProduct:
    """Return the pattern of C = A B whose multiplications are counted already."""
    shape = A.shape[0], B.shape[1]
    workers = threads.workers(shape[1], 8, memory_limit)
    indptr = phases.count(A.indptr, A.indices, B.indptr, B.indices, shape[1], pieces, workers)
    patterns = (A.indptr, A.indices), (B.indptr, B.indices)
    return SymbolicProduct(shape, indptr, None, work.products, pieces, patterns, memory_limit)
