"""Rows of a product over threads of the CPU: how many, and which rows each takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.progress import PARTS, count
from spectile.core.threads import each, num_threads

WORTH_A_PIECE = 500_000  # entries that a thread checks at a time, at least

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

#: First row and end of each chunk of rows.
Chunks = list[tuple[np.uint64, np.uint64]]
#: Row pointer of a factor; of the right one also first places and ends of rows that share entries.
Pointer = Any
#: Row pointer, columns and values of a factor.
Arrays = tuple[Pointer, np.ndarray, np.ndarray]


def unsigned(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return index arrays as views of their unsigned type; values pass as they are."""
    return tuple([a.view(_UNSIGNED[a.itemsize]) if a.dtype.kind == "i" else a for a in arrays])


def of_factors(A: Arrays, B: Arrays) -> tuple[np.ndarray, ...]:
    """Return the arrays of both factors as the kernels take them."""
    return *A, *bounds(B[0]), *B[1:]


def bounds(rows: Pointer) -> tuple[np.ndarray, np.ndarray]:
    """Return first place and end of each row of the right factor."""
    return rows if isinstance(rows, tuple) else (rows[:-1], rows[1:])


def pieces(indptr: np.ndarray) -> Chunks:
    """Return rows of like numbers of entries, one piece per thread: a single one where there are few."""
    rows, nnz = len(indptr) - 1, int(indptr[-1])
    threads = min(num_threads(), nnz // WORTH_A_PIECE) if nnz >= 2 * WORTH_A_PIECE else 1
    if threads < 2:
        return [(np.uint64(0), np.uint64(rows))]
    cuts = np.searchsorted(indptr, np.linspace(0, nnz, threads + 1)[1:-1])
    return between(np.clip(cuts, 0, rows), rows)


def between(cuts: np.ndarray, rows: int) -> Chunks:
    """Return the chunks of `rows` rows that end at the given ones."""
    if not len(cuts):
        return [(np.uint64(0), np.uint64(rows))]
    return list(itertools.pairwise(np.unique(np.concatenate(([0], cuts, [rows]))).astype(np.uint64)))


def over_rows(rows: Chunks, threads: int, work: Callable[[np.uint64, np.uint64], None]) -> None:
    """Call work(start, stop) for every chunk, on `threads` threads of which the caller is one (`core.threads.each`)."""
    if len(rows) == 1:
        work(*rows[0])
        count(PARTS)
    else:
        each(rows, threads, lambda chunk: work(*chunk))
