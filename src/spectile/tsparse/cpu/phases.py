"""The product in phases: entries of each row of C, then its columns and values, or the values alone."""

from __future__ import annotations

import threading

import numpy as np

from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import PLUS_TIMES, count_rows, fill_rows_of, refill_rows
from spectile.tsparse.cpu.memory import LEVELS, workspace
from spectile.tsparse.room import Room

Arrays = threads.Arrays


class Workspaces(threading.local):
    """Marks, bitmaps, columns met and sums of each thread, made on first use; sums without marks are zero."""

    def __init__(self, rows: int, columns: int, dtype: np.dtype | None, marks: bool = True) -> None:
        if marks:
            self.mark = np.zeros(columns, np.uint64 if rows >= 2**31 else np.uint32)
        if marks and dtype is not None:
            self.bitmap, self.middle, self.upper = [np.zeros((columns >> bits) + 1, np.uint64) for bits in LEVELS]
            self.met = np.empty(columns + 17, np.uint64 if columns >= 2**32 else np.uint32)
        if dtype is not None:
            self.sums = (np.empty if marks else np.zeros)(columns, dtype)


def count(
    indptr_a: np.ndarray,
    indices_a: np.ndarray,
    indptr_b: np.ndarray,
    indices_b: np.ndarray,
    columns: int,
    rows: threads.Chunks,
    room: Room,
) -> np.ndarray:
    """Return the int64 row pointer of C (symbolic phase)."""
    room.require(4 * len(indptr_a) + 4 * columns)  # half of the pointer is that of C
    indptr = np.zeros(len(indptr_a), np.int64)
    room.held += 4 * len(indptr)
    counts = indptr[1:]
    indexing = threads.unsigned(indptr_a, indices_a, *threads.bounds(indptr_b), indices_b)
    space = Workspaces(len(counts), columns, None)

    def work(start: np.uint64, stop: np.uint64) -> None:
        count_rows(start, stop, *indexing, space.mark, counts)

    threads.over_rows(rows, room.workers(4 * columns), work)
    np.cumsum(counts, out=counts)
    return indptr


def fill(
    A: Arrays,
    B: Arrays,
    columns: int,
    rows: threads.Chunks,
    indptr: np.ndarray,
    C: tuple[np.ndarray, np.ndarray],
    room: Room,
    kind: int = PLUS_TIMES,
) -> None:
    """Write the sorted columns and the values of C (numeric phase) over the semiring with the code `kind`."""
    fill_rows = fill_rows_of(kind)
    dtype = A[2].dtype
    factors = threads.of_factors(A, B)
    space = Workspaces(len(indptr) - 1, columns, dtype)

    def work(start: np.uint64, stop: np.uint64) -> None:
        room = space.mark, space.bitmap, space.middle, space.upper, space.met, space.sums
        fill_rows(start, stop, np.uint64(indptr[int(start)]), *factors, *room, indptr, *C)

    threads.over_rows(rows, room.workers(workspace(columns, dtype.itemsize)), work)


def refill(
    A: Arrays,
    B: Arrays,
    columns: int,
    rows: threads.Chunks,
    indptr: np.ndarray,
    C: tuple[np.ndarray, np.ndarray],
    room: Room,
) -> None:
    """Write the values of C beside its known columns (numeric phase of a reused symbolic product)."""
    factors = threads.of_factors(A, B)
    space = Workspaces(len(indptr) - 1, columns, A[2].dtype, marks=False)

    def work(start: np.uint64, stop: np.uint64) -> None:
        refill_rows(start, stop, *factors, space.sums, indptr, *C)

    threads.over_rows(rows, room.workers(columns * A[2].itemsize), work)
