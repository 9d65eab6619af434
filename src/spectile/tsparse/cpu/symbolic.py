"""The pattern of a product on the host, kept for further products with the same patterns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cpu import phases, threads
from spectile.tsparse.cpu.operands import operands
from spectile.tsparse.cpu.work import Work, chunks, survey
from spectile.tsparse.matrices import as_boolean, both_boolean, check_pair, choose_precision, host_csr
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import Operand, Precision, PrecisionName


@dataclass
class SymbolicProduct:
    """The pattern of C = A B on the host; see `spectile.tsparse.SymbolicProduct`."""

    shape: tuple[int, int]
    indptr: np.ndarray
    products: int
    _chunks: threads.Chunks
    _left: Operand
    _right: Operand
    _memory_limit: int | None = None
    _indices: np.ndarray | None = None

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return int(self.indptr[-1])

    @property
    def indices(self) -> np.ndarray:
        """Sorted columns of C."""
        if self._indices is None:
            ones = np.ones(max(len(self._left.indices), len(self._right.indices)), np.float32)
            self.values(ones, ones)
        assert self._indices is not None
        return self._indices

    def multiply(self, A: Any, B: Any, *, precision: PrecisionName | None = None) -> Any:
        """Return C = A B for factors with the analysed patterns, which is checked.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of ``spgemm``.
        """
        chosen = choose_precision(A, B, precision)
        if check_pair(A, B):
            raise ValueError("the pattern is on the host and the factors are on a GPU: copy them to the host")
        factors = operands(A, B)
        for name, operand, known in zip("AB", factors, (self._left, self._right), strict=True):
            same = np.array_equal(operand.indptr, known.indptr) and np.array_equal(operand.indices, known.indices)
            if operand.shape != known.shape or not same:
                raise errors.other_pattern(name)
        C = self.product(*factors, chosen)
        return as_boolean(C) if precision is None and both_boolean(A, B) else C

    def numeric(self, data_a: np.ndarray, data_b: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of C, on `indptr` and `indices`; see `spectile.tsparse.SymbolicProduct`."""
        if out is None:
            out = np.empty(self.nnz, getattr(data_a, "dtype", None))
        errors.check_values(data_a, data_b, out, len(self._left.indices), len(self._right.indices), self.nnz)
        return self.values(data_a, data_b, out)

    def product(self, A: Operand, B: Operand, precision: Precision) -> Any:
        """Return C = A B for checked factors that are known to have the analysed patterns."""
        data_a, data_b, exponents = rounded(A, B, precision)
        data = unscale(self.values(data_a, data_b), self.indptr, self.indices, exponents)
        return host_csr(self.shape, self.indptr, self.indices.copy(), data, A.array or B.array)

    def values(self, data_a: np.ndarray, data_b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of C for the given values of A and B, and find its columns where they are not known."""
        workers = threads.workers(self.shape[1], data_a.dtype.itemsize, self._memory_limit)
        left = (self._left.indptr, self._left.indices, data_a)
        right = (self._right.indptr, self._right.indices, data_b)
        if out is None:
            out = np.empty(self.nnz, data_a.dtype)
        if self._indices is None:
            indices = np.empty(self.nnz, self._left.indices.dtype)
            phases.fill(left, right, self.shape[1], self._chunks, self.indptr, (indices, out), workers)
            self._indices = indices
        else:
            phases.refill(left, right, self.shape[1], self._chunks, self.indptr, (self._indices, out), workers)
        return out


def symbolic(A: Operand, B: Operand, memory_limit: int | None) -> SymbolicProduct:
    """Return the pattern of C = A B, which holds copies of those of A and B."""
    left = replace(A, indices=A.indices.copy(), data=np.empty(0, A.data.dtype))
    right = left if A is B else replace(B, indices=B.indices.copy(), data=np.empty(0, B.data.dtype))
    work = survey(left.indptr, left.indices, right.indptr)
    return counted(left, right, memory_limit, work, chunks(work, threads.workers(B.shape[1], 8, memory_limit)))


def counted(A: Operand, B: Operand, memory_limit: int | None, work: Work, pieces: threads.Chunks) -> SymbolicProduct:
    """Return the pattern of C = A B whose multiplications are counted already."""
    shape = A.shape[0], B.shape[1]
    workers = threads.workers(shape[1], 8, memory_limit)
    indptr = phases.count(A.indptr, A.indices, B.indptr, B.indices, shape[1], pieces, workers)
    return SymbolicProduct(shape, indptr, work.products, pieces, A, B, memory_limit)
