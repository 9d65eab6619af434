"""SELL-C-sigma, the storage format of the paper's kernels (Kreutzer et al., SIAM J. Sci. Comput. 36, C401 (2014))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.kpm.operators.protocol import namespace
from spectile.kpm.types import Array


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
        """Convert a square CSR matrix, where its arrays are: on the host or on the device.

        Parameters
        ----------
        matrix : scipy.sparse or cupyx.scipy.sparse CSR matrix, shape (N, N)
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
        xp: Any = namespace(matrix.data)
        n = matrix.shape[0]
        length = xp.diff(matrix.indptr)
        order = xp.arange(n)
        if sigma > 1:
            # The row number as last key keeps equal rows beside their neighbours, which are in the cache.
            order = xp.lexsort(xp.stack([order, -length.astype(order.dtype), order // sigma]))
        position = xp.empty(n, dtype=matrix.indices.dtype)
        position[order] = xp.arange(n, dtype=position.dtype)
        chunks = -(-n // chunk)
        row_length = xp.zeros(chunks * chunk, dtype=np.int32)
        row_length[:n] = length[order]
        width = row_length.reshape(chunks, chunk).max(axis=1).astype(np.int64)
        chunk_start = xp.zeros(chunks + 1, dtype=np.int64)
        xp.cumsum(width * chunk, out=chunk_start[1:])
        # Fill-in first, then the entries on top.
        slot = xp.arange(int(chunk_start[-1]), dtype=np.int64)
        of_chunk = xp.searchsorted(chunk_start, slot, side="right") - 1
        row = of_chunk * chunk + (slot - chunk_start[of_chunk]) % chunk
        indices = xp.minimum(row, n - 1).astype(matrix.indices.dtype)
        data = xp.zeros(indices.size, dtype=matrix.dtype)
        entry = xp.arange(matrix.nnz, dtype=np.int64)
        old_row = xp.searchsorted(matrix.indptr, entry, side="right") - 1
        row = position[old_row].astype(np.int64)
        slot = chunk_start[row // chunk] + (entry - matrix.indptr[old_row]) * chunk + row % chunk
        indices[slot] = position[matrix.indices]
        data[slot] = matrix.data
        if int(chunk_start[-1]) <= np.iinfo(np.int32).max:
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
