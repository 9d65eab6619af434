"""Sparse matrices whose rows repeat: few lists of entries, and for each row the number of its list.

A lattice Hamiltonian couples every site alike, but for its boundaries and the energies on its diagonal.  Storing each
distinct row once, as (column - row, value), leaves a number and a diagonal entry for each row: 10 bytes instead of 260
for the topological insulator in complex128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.kpm.types import Array

#: With more distinct rows than these their table leaves the caches: the matrix is stored entry by entry instead.
MOST_PATTERNS = 1024


@dataclass(frozen=True)
class RowPatterns:
    """A sparse matrix with real diagonal, every distinct row stored once."""

    first: Array  #: Where the entries of a pattern begin: int64, shape (patterns + 1,).
    offsets: Array  #: Column minus row of each entry, ascending within a pattern.
    values: Array  #: Values of the entries.
    number: Array  #: Pattern of each row: uint16, shape (N,).
    diagonal: Array  #: Diagonal of the matrix, as far as the patterns do not hold it: real, shape (N,).

    @classmethod
    def from_csr(cls, matrix: Any) -> RowPatterns | None:
        """Find the distinct rows of a CSR matrix of SciPy; None if they are too many.

        Diagonal entries with an imaginary part are kept in the patterns.
        """
        rows = matrix.shape[0]
        data = np.ascontiguousarray(matrix.data)
        words = data.view(np.uint32).reshape(data.size, data.itemsize // 4)
        number = np.empty(rows, dtype=np.uint16)
        diagonal = np.zeros(rows, dtype=data.real.dtype)
        examples = np.empty(min(MOST_PATTERNS, max(1, rows // 2)), dtype=np.int64)
        slots = np.full(1 << max(0, 4 * examples.size - 1).bit_length(), -1)
        count = _number_rows(matrix.indptr, matrix.indices, data, words, number, diagonal, examples, slots)
        if count < 0:
            return None
        lists = []
        for row in examples[:count]:
            entries = np.arange(matrix.indptr[row], matrix.indptr[row + 1])
            inside = (matrix.indices[entries] != row) | (data[entries].imag != 0)
            lists.append((matrix.indices[entries[inside]].astype(np.int64) - row, data[entries[inside]]))
        return cls(*table(lists, data.dtype), number, diagonal)


def table(lists: list[tuple[Array, Array]], dtype: Any) -> tuple[Array, Array, Array]:
    """Return `first`, `offsets` and `values` of patterns given as (offsets, values) each."""
    order = [np.argsort(offsets, kind="stable") for offsets, _ in lists]
    first = np.concatenate([[0], np.cumsum([each.size for each in order])]).astype(np.int64)
    offsets = np.concatenate([each[by] for (each, _), by in zip(lists, order, strict=True)])
    values = np.concatenate([each[by] for (_, each), by in zip(lists, order, strict=True)]).astype(dtype)
    fits = offsets.size == 0 or np.abs(offsets).max() <= np.iinfo(np.int32).max
    return first, offsets.astype(np.int32 if fits else np.int64), values


@njit()
def _number_rows(indptr, indices, data, words, number, diagonal, examples, slots):  # type: ignore[no-untyped-def]
    """Number the rows by pattern, note an example of each and return how many there are, -1 if too many.

    `slots` are four for each example or more, a power of two, and -1.
    """
    count, size = 0, slots.size
    for row in range(indptr.size - 1):
        key = np.uint64(0)
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] == row and data[k].imag == 0:
                diagonal[row] += data[k].real
                continue
            key = (key ^ np.uint64(indices[k] - row)) * np.uint64(0x9E3779B97F4A7C15)
            for word in words[k]:
                key = (key ^ (key >> np.uint64(29)) ^ np.uint64(word)) * np.uint64(0xBF58476D1CE4E5B9)
        slot = np.int64((key >> np.uint64(32)) & np.uint64(size - 1))
        while slots[slot] >= 0 and not _same_row(indptr, indices, data, words, row, examples[slots[slot]]):
            slot = (slot + 1) % size
        if slots[slot] < 0:
            if count == examples.size:
                return -1
            slots[slot] = count
            examples[count] = row
            count += 1
        number[row] = slots[slot]
    return count


@njit()
def _same_row(indptr, indices, data, words, one, two):  # type: ignore[no-untyped-def]
    j, k = indptr[one], indptr[two]
    while True:
        while j < indptr[one + 1] and indices[j] == one and data[j].imag == 0:
            j += 1
        while k < indptr[two + 1] and indices[k] == two and data[k].imag == 0:
            k += 1
        if j == indptr[one + 1] or k == indptr[two + 1]:
            return j == indptr[one + 1] and k == indptr[two + 1]
        if indices[j] - one != indices[k] - two:
            return False
        for word in range(words.shape[1]):
            if words[j, word] != words[k, word]:
                return False
        j += 1
        k += 1
