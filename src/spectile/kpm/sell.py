"""SELL-C-sigma, the storage format of the paper's kernels (Kreutzer et al., SIAM J. Sci. Comput. 36, C401 (2014))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.kpm.reference import Array


@dataclass(frozen=True)
class SellMatrix:
    """A square sparse matrix in chunks of C rows, sorted by length within windows of sigma rows.

    Rows and columns are permuted alike, so that the matrix stays Hermitian and the vectors stay in one order.

    Attributes
    ----------
    chunk : int
        C.
    chunk_start : ndarray, shape (chunks + 1,)
        Position of a chunk's first entry; 64 bits where the entries need it.
    row_length : ndarray, int32, shape (chunks * C,)
        Entries of each row, zero for the rows that fill the last chunk.
    indices, data : ndarray
        Entry k of row i of a chunk lies at ``chunk_start + k * C + i``; fill-in is a zero in the row's own column.
    order : ndarray, shape (N,)
        Row of the original matrix for each row of this one.
    """

    chunk: int
    chunk_start: Array
    row_length: Array
    indices: Array
    data: Array
    order: Array

    @classmethod
    def from_csr(cls, matrix: Any, chunk: int = 32, sigma: int = 1) -> SellMatrix:
        """Convert a square ``scipy.sparse`` CSR matrix.

        Parameters
        ----------
        matrix : csr_matrix or csr_array, shape (N, N)
            The matrix.
        chunk : int
            C, rows in a chunk.
        sigma : int
            Rows in a sorting window; 1 keeps the order of the rows.

        Raises
        ------
        ValueError
            If `chunk` or `sigma` is not positive.
        """
        if chunk < 1 or sigma < 1:
            raise ValueError(f"chunk={chunk}, sigma={sigma}: SELL-C-sigma needs positive numbers of rows")
        n = matrix.shape[0]
        length = np.diff(matrix.indptr)
        # Stable, so that equal rows keep their neighbours in the cache.
        order = np.lexsort((-length, np.arange(n) // sigma)) if sigma > 1 else np.arange(n)
        position = np.empty(n, dtype=matrix.indices.dtype)
        position[order] = np.arange(n, dtype=position.dtype)
        chunks = -(-n // chunk)
        row_length = np.zeros(chunks * chunk, dtype=np.int32)
        row_length[:n] = length[order]
        width = row_length.reshape(chunks, chunk).max(axis=1).astype(np.int64)
        chunk_start = np.concatenate([[0], np.cumsum(width * chunk)])
        # Fill-in first, then the entries on top.
        own = np.minimum(np.arange(chunks * chunk), n - 1).astype(matrix.indices.dtype).reshape(chunks, 1, chunk)
        indices = np.concatenate([np.broadcast_to(own[c], (w, chunk)).ravel() for c, w in enumerate(width)])
        data = np.zeros(indices.size, dtype=matrix.dtype)
        row = np.repeat(position.astype(np.int64), length)
        within = np.arange(matrix.nnz, dtype=np.int64) - np.repeat(matrix.indptr[:-1].astype(np.int64), length)
        slot = chunk_start[row // chunk] + within * chunk + row % chunk
        indices[slot] = position[matrix.indices]
        data[slot] = matrix.data
        if chunk_start[-1] <= np.iinfo(np.int32).max:
            chunk_start = chunk_start.astype(np.int32)
        return cls(chunk, chunk_start, row_length, indices, data, order)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, N)."""
        return (self.order.size,) * 2

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        return self.data.dtype

    @property
    def fill(self) -> float:
        """Stored entries, fill-in included, over the matrix's own entries."""
        return self.data.size / max(1, int(self.row_length.sum()))
