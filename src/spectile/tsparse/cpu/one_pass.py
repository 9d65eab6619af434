"""The product in one pass: rows of C are made in room for all their products, then moved to their place.

Columns and values of C need no count before; fresh pages of memory cost as much time as the entries that fill them, so
that the room stays from one product to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from spectile.core.threads import num_threads
from spectile.core.tiling import ceil_div
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import PLUS_TIMES, ZERO, fill_rows_of
from spectile.tsparse.cpu.phases import Arrays, Workspaces
from spectile.tsparse.cpu.work import Work

LARGEST_RESERVE = 2**31  # bytes for the entries of C that one pass may reserve before it knows their number
LARGEST_KEPT = 2**25  # bytes of an array of C's size that may stay between calls, and that glibc's malloc may reuse
_RENAMED = 2**14  # columns that are replaced at a time

Room = tuple[np.ndarray, np.ndarray]  # for columns and values
Make = Callable[[np.uint64, np.uint64, Room], int]
MadeOf = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Arrays]


def multiply(
    A: Arrays,
    B: Arrays,
    columns: int,
    work: Work,
    rows: threads.Chunks,
    *,
    kind: int = PLUS_TIMES,
    made_of: MadeOf | None = None,
) -> Arrays | None:
    """Return row pointer, sorted columns and values of C in one pass over chunks `rows`, or None if C may be too large.

    Each chunk of rows is made in room for all its products, and moved to its place in C when those before it are
    counted.  With `made_of`, C is what that makes of the first places, ends, columns and values of the rows.
    """
    fill_rows = fill_rows_of(kind)
    products, dtypes = work.products, (B[1].dtype, A[2].dtype)
    sizes = products * dtypes[0].itemsize, products * dtypes[1].itemsize
    if sum(sizes) > LARGEST_RESERVE:
        return None
    indptr = np.zeros(len(A[0]), np.int64)
    factors = threads.of_factors(A, B)
    space = Workspaces(len(indptr) - 1, columns, A[2].dtype)

    def make(start: np.uint64, stop: np.uint64, to: Room) -> int:
        """Fill rows start to stop from the beginning of `to`, their ends counted from there; return the last."""
        room = space.mark, space.bitmap, space.middle, space.upper, space.met, space.sums
        return int(fill_rows(start, stop, ZERO, *factors, *room, indptr, *to))

    if max(sizes) <= LARGEST_KEPT:
        return _kept.use(dtypes, products, lambda room: _gather(room, indptr, work, rows, make, made_of))
    C = _gather_in_order(dtypes, indptr, work, rows, num_threads(), make)
    return made_of(indptr[:-1], indptr[1:], *C) if made_of else (indptr, *C)


def _room(dtypes: tuple[np.dtype, np.dtype], entries: int) -> Room:
    return np.empty(entries, dtypes[0]), np.empty(entries, dtypes[1])


class _Kept:
    """Room that stays from one product to the next: fresh pages cost as much time as the entries that fill them."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # of one piece at most, which a thread takes out at a stroke

    def use(self, dtypes: tuple[np.dtype, np.dtype], entries: int, work: Callable[[Room], Arrays]) -> Arrays:
        """Return what is made in room for some entries; other threads meanwhile get room of their own."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        columns, values = entries * dtypes[0].itemsize, entries * dtypes[1].itemsize
        first = ceil_div(values, 8) * 8  # of the columns, aligned
        if len(memory) < first + columns:
            memory = np.empty(first + columns, np.uint8)
        try:
            return work((memory[first : first + columns].view(dtypes[0]), memory[:values].view(dtypes[1])))
        finally:
            self._free[:] = [memory]


_kept = _Kept()


def rename(indices: np.ndarray, held: np.ndarray) -> None:
    """Replace each column of C by that of B which has its number, in place."""
    for start in range(0, len(indices), _RENAMED):
        part = indices[start : start + _RENAMED]
        part[:] = held[part]


def _part(room: Room, start: int, stop: int) -> Room:
    return room[0][start:stop], room[1][start:stop]


def _move(made: Room, to: Room, place: int, ends: np.ndarray) -> None:
    """Copy a chunk of C to its place, and count the ends of its rows from the first entry of C."""
    for source, target in zip(made, to, strict=True):
        target[place : place + len(source)] = source
    ends += place


def _gather(
    room: Room, indptr: np.ndarray, work: Work, rows: threads.Chunks, make: Make, made_of: MadeOf | None
) -> Arrays:
    """Make all chunks in kept room, then allocate C at its size, for which malloc may have memory used before."""
    if len(rows) == 1 and made_of is None:
        entries = make(*rows[0], room)
        return indptr, room[0][:entries].copy(), room[1][:entries].copy()
    made: dict[int, Room] = {}
    workers = num_threads()

    def fill_chunk(start: np.uint64, stop: np.uint64) -> None:
        first = work.products_before(int(start))
        entries = make(start, stop, _part(room, first, work.products_before(int(stop))))
        made[int(start)] = _part(room, first, first + entries)

    threads.over_rows(rows, workers, fill_chunk)
    if made_of is not None:
        first = indptr[:-1].copy()
        for start, stop in rows:
            begins = first[int(start) : int(stop)]
            begins[:1] = 0
            for places in (begins, indptr[int(start) + 1 : int(stop) + 1]):
                places += work.products_before(int(start))
        return made_of(first, indptr[1:], *room)
    starts = [int(start) for start, _ in rows]
    places = np.cumsum([0, *(len(made[start][0]) for start in starts)])
    C = _room((room[0].dtype, room[1].dtype), int(places[-1]))
    place = dict(zip(starts, places.tolist(), strict=False))

    def move(start: np.uint64, stop: np.uint64) -> None:
        _move(made[int(start)], C, place[int(start)], indptr[int(start) + 1 : int(stop) + 1])

    threads.over_rows(rows, workers, move)
    return indptr, *C


def _gather_in_order(
    dtypes: tuple[np.dtype, np.dtype], indptr: np.ndarray, work: Work, rows: threads.Chunks, workers: int, make: Make
) -> Room:
    """Reserve C for every product and give back what lies past its last entry: memory never touched takes none.

    A chunk is made in a thread's own room, which stays in the cache, and moved once all before it are counted.
    """
    C = _room(dtypes, work.products)
    entries = 0
    if workers == 1:
        for start, stop in rows:
            n = make(start, stop, _part(C, entries, len(C[0])))
            indptr[int(start) + 1 : int(stop) + 1] += entries
            entries += n
    else:
        longest = max(work.products_before(int(stop)) - work.products_before(int(start)) for start, stop in rows)
        idle: list[Room] = []
        made: dict[int, tuple[int, int, Room]] = {}
        lock = threading.Lock()
        first = 0  # of the rows that are not in their place

        def fill_chunk(start: np.uint64, stop: np.uint64) -> None:
            nonlocal first, entries
            with lock:
                room = idle.pop() if idle else None
            room = room or _room(dtypes, longest)
            n = make(start, stop, room)
            moves = []
            with lock:
                made[int(start)] = int(stop), n, room
                while first in made:
                    end, n, room = made.pop(first)
                    moves.append((room, n, entries, indptr[first + 1 : end + 1]))
                    first, entries = end, entries + n
            for room, n, place, ends in moves:
                _move(_part(room, 0, n), C, place, ends)
                with lock:
                    idle.append(room)

        threads.over_rows(rows, workers, fill_chunk)
    for array in C:
        array.resize(entries, refcheck=False)
    return C
