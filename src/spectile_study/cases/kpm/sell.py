"""SELL-C, the format of the paper's kernels (Kreutzer et al., SIAM J. Sci. Comput. 36, C401 (2014)), on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.kpm.cpu.kernels import _MATH, ENTRIES_AHEAD, _lines, _pointer, _pointers, _prefetch, _row
from spectile.kpm.cpu.operator import CpuOperator


def sell_operator(matrix: Any, chunk: int = 32) -> CpuOperator:
    """Return a SciPy CSR matrix (N, N) in chunks of so many rows, the entries of each stored side by side.

    Entry k of row i of a chunk lies at ``start + k * chunk + i``; fill-in is a zero in the row's own column.
    """
    n = matrix.shape[0]
    length = np.diff(matrix.indptr)
    widths = np.pad(length, (0, -n % chunk)).reshape(-1, chunk).max(axis=1).astype(np.int64)
    start = np.concatenate([[0], np.cumsum(widths * chunk)])
    slot = np.arange(start[-1])
    of_chunk = np.searchsorted(start, slot, side="right") - 1
    # Fill-in first, then the entries on top.
    indices = np.minimum(of_chunk * chunk + (slot - start[of_chunk]) % chunk, n - 1).astype(matrix.indices.dtype)
    data = np.zeros(indices.size, matrix.dtype)
    row = np.repeat(np.arange(n), length)
    slot = start[row // chunk] + (np.arange(matrix.nnz) - matrix.indptr[row]) * chunk + row % chunk
    indices[slot], data[slot] = matrix.indices, matrix.data
    rows = functools.partial(_sell_rows, start, length, chunk, indices, data)
    return CpuOperator(n, matrix.shape[1], matrix.dtype, rows)


@njit(nogil=True, fastmath=_MATH)
def _sell_rows(chunk_start, row_length, chunk, indices, data, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    """Update row blocks, as ``csr_rows`` does."""
    parts, width = v.shape[1:]
    arrays = _pointers(indices, data, v, w, scalars)
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        for row in range(blocks[n, 0], blocks[n, 1]):
            start, lane, count = chunk_start[row // chunk], row % chunk, row_length[row]
            # A row's share of what its chunk will need, in the order of memory.
            ahead = start + lane * count + ENTRIES_AHEAD
            _prefetch(arrays[0], ahead * indices.itemsize, 1)
            _prefetch(arrays[1], ahead * data.itemsize, _lines(count * data.itemsize))
            _row(arrays, even, odd, scalars[1], row, 0, start + lane, chunk, count, parts, width)
