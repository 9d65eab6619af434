"""Factors on the host, checked and brought to CSR with sorted rows and no duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.host import refuse_malformed
from spectile.tsparse import errors
from spectile.tsparse.cpu.examine import examine
from spectile.tsparse.types import Operand


def operands(A: Any, B: Any) -> tuple[Operand, Operand]:
    """Check both factors; a square's factor is checked once."""
    left = _operand(A, "A")
    return left, left if B is A else _operand(B, "B")


def _operand(matrix: Any, name: str) -> Operand:
    """Check a factor and bring it to CSR with sorted rows and no duplicates; the input is not changed."""
    import scipy.sparse as sp

    if matrix.format != "csr":  # whose rows are examined below
        refuse_malformed(name, matrix)
    csr = matrix.tocsr()
    rows, columns = csr.shape
    indptr, indices, data = csr.indptr, csr.indices, csr.data
    if len(indptr) != rows + 1 or indptr[0] != 0 or not 0 <= indptr[-1] <= min(len(indices), len(data)):
        raise errors.bad_pointer(name)
    nnz = int(indptr[-1])
    indices, data = _native(indices[:nnz]), _floating(_native(data[:nnz]))
    indptr = indptr.astype(np.int64)
    unsorted = _examined(name, indptr, indices, data, columns)
    index = np.int64 if indices.dtype.itemsize == 8 and max(columns, rows) >= 2**31 else np.int32
    indices = indices.astype(index, copy=False)
    if unsorted:
        clean = sp.csr_array((data.copy(), indices.copy(), indptr.copy()), shape=csr.shape)
        clean.sum_duplicates()
        indptr, indices, data = clean.indptr.astype(np.int64), clean.indices.astype(index), clean.data
    return Operand(csr.shape, indptr, indices, data, isinstance(matrix, sp.sparray))


def _native(array: np.ndarray) -> np.ndarray:
    """Return the same numbers in the byte order of this machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _floating(data: np.ndarray) -> np.ndarray:
    """Return values as float32 or float64."""
    if data.dtype in (np.float32, np.float64):
        return data
    return data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)


def _examined(name: str, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, columns: int) -> bool:
    """Raise the error of what cannot be put right, and return whether columns do not increase within a row."""
    outside, infinite, unsorted, falls = examine(indptr, indices, data, columns)
    if falls:
        raise errors.bad_pointer(name)
    if outside:
        raise errors.bad_index(name, columns)
    if infinite:
        worst = int(np.argmin(np.isfinite(data)))
        row = int(np.searchsorted(indptr, worst, side="right")) - 1
        raise errors.not_finite(name, data[worst], row, indices[worst])
    return unsorted
