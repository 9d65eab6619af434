"""The product on CPUs: Gustavson's row-wise algorithm over a bitmap of columns, in Numba, on threads.

Rows of C are made in one pass, in room for all their products, or counted first where that is too much.  Short rows
are sorted by insertion or by counting smaller columns, longer ones through a bitmap of one bit a column, whose touched
words are scanned or sorted: word by word instead of entry by entry.  Sums run over k in the order of A's row, whatever
the number of threads: the result is the same bits every time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

_JIT: Any = {"nogil": True, "cache": True, "boundscheck": False}
ZERO, ONE = np.uint64(0), np.uint64(1)
LARGEST_RESERVE = 2**31  # bytes for the entries of C that one pass may reserve before it knows their number
LARGEST_KEPT = 2**25  # bytes of an array of C's size that may stay between calls, and that glibc's malloc may reuse
TINY = np.uint64(12)  # entries up to which insertion sorts a row fastest, if few of them have to move far
FEW = np.uint64(4)  # entries up to which it does anyway
RETRY = np.uint64(15)  # of so many rows in chance order the next is tried by insertion again
SHORT = np.uint64(64)  # entries up to which counting the smaller ones sorts a row faster than the bitmap
WORD = np.uint32(63)  # the bits of a column within its word
FEW_WORDS = np.uint64(24)  # words up to which insertion sorts them fastest
ROW_COST = np.uint64(8)  # of a row, in multiplications
BLOCKS = 4096  # of rows whose multiplications are counted together, at most
WORTH_A_CHUNK = 200_000  # cost of rows that a thread takes at a time
WORTH_A_PIECE = 500_000  # entries that a thread checks at a time, at least
REPEATS = np.uint64(5)  # products an entry beyond which "is this its column's first?" is guessed right: a branch pays


@numba.njit(**_JIT)
def _popcount(x):  # type: ignore[no-untyped-def]
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


# The kernels below take unsigned views of all index arrays: Numba then leaves out its test for negative indices.
@numba.njit(**_JIT)
def _count_products(start, stop, edges, indptr_a, indices_a, indptr_b, products):  # type: ignore[no-untyped-def]
    """products[i] = multiplications of rows edges[i] to edges[i + 1], for start <= i < stop."""
    for i in range(start, stop):
        total = ZERO
        for p in range(indptr_a[edges[i]], indptr_a[edges[i + ONE]]):
            k = np.uint64(indices_a[p])
            total += indptr_b[k + ONE] - indptr_b[k]
        products[i] = total


@numba.njit(**_JIT)
def _count_rows(start, stop, indptr_a, indices_a, indptr_b, indices_b, mark, counts):  # type: ignore[no-untyped-def]
    """counts[i] = entries of row i of C, for start <= i < stop; mark[j] - 1 is the last row that met column j."""
    dense = False
    for i in range(start, stop):
        total, met = ZERO, ZERO
        stamp = mark.dtype.type(i + ONE)
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            met += indptr_b[k + ONE] - indptr_b[k]
            if dense:
                for q in range(indptr_b[k], indptr_b[k + ONE]):
                    column = indices_b[q]
                    if mark[column] != stamp:
                        mark[column] = stamp
                        total += ONE
            else:
                for q in range(indptr_b[k], indptr_b[k + ONE]):
                    column = indices_b[q]
                    total += np.uint64(mark[column] != stamp)
                    mark[column] = stamp
        counts[i] = total
        dense = bool(met > REPEATS * total)


@numba.njit(**_JIT)
def _fill_rows(  # type: ignore[no-untyped-def]
    start,
    stop,
    place,
    indptr_a,
    indices_a,
    data_a,
    indptr_b,
    indices_b,
    data_b,
    mark,
    bitmap,
    words,
    met,
    sums,
    indptr_c,
    indices_c,
    data_c,
):
    """Columns (sorted) and values of rows start to stop of C, from `place` on; the bitmap is left clear.

    indptr_c[i + 1] is set to the end of row i (what it was where the rows were counted); the last end is returned.
    """
    zero = sums.dtype.type(0)
    last = met.dtype.type(met.dtype.type(0) - ONE)
    dense, tangled = False, False
    for i in range(start, stop):
        out = place
        stamp = mark.dtype.type(i + ONE)
        n, products = ZERO, ZERO
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            products += indptr_b[k + ONE] - indptr_b[k]
            if dense:
                for q in range(indptr_b[k], indptr_b[k + ONE]):
                    column = indices_b[q]
                    if mark[column] != stamp:
                        mark[column] = stamp
                        met[n] = column
                        n += ONE
                        sums[column] = zero + factor * data_b[q]
                    else:
                        sums[column] += factor * data_b[q]
            else:
                for q in range(indptr_b[k], indptr_b[k + ONE]):
                    column = indices_b[q]
                    new = mark[column] != stamp
                    mark[column] = stamp
                    met[n] = column
                    n += np.uint64(new)
                    old = sums[column]
                    sums[column] = (zero if new else old) + factor * data_b[q]
        dense = bool(products > REPEATS * n)
        place = out + n
        indptr_c[i + ONE] = place
        if n <= FEW or (n <= TINY and (not tangled or i & RETRY == ZERO)):
            shifts = ZERO
            for t in range(n):
                column = met[t]
                at = out + t
                while at > out and indices_c[at - ONE] > column:
                    indices_c[at] = indices_c[at - ONE]
                    at -= ONE
                indices_c[at] = column
                shifts += out + t - at
            tangled = bool(shifts > n + n)
            for t in range(out, out + n):
                data_c[t] = sums[indices_c[t]]
            continue
        runs = False
        if n > TINY:
            changes = ZERO  # of the word of 64 columns, from one entry to the next
            for t in range(ONE, n):
                changes += np.uint64((met[t] ^ met[t - ONE]) > WORD)
            runs = bool(np.uint64(4) * changes <= n)
        if n <= SHORT and not runs:
            # A column's place is the number of smaller ones.
            padded = np.uint64(16) if n <= np.uint64(16) else np.uint64(32) if n <= np.uint64(32) else np.uint64(64)
            for t in range(n, padded):
                met[t] = last
            for t in range(n):
                column = met[t]
                smaller = np.uint32(0)
                if padded == np.uint64(16):
                    for u in range(16):
                        smaller = np.uint32(smaller + np.uint32(met[u] < column))
                elif padded == np.uint64(32):
                    for u in range(32):
                        smaller = np.uint32(smaller + np.uint32(met[u] < column))
                else:
                    for u in range(64):
                        smaller = np.uint32(smaller + np.uint32(met[u] < column))
                indices_c[out + np.uint64(smaller)] = column
                data_c[out + np.uint64(smaller)] = sums[column]
            continue
        # Sort by the bitmap: scanning the window costs its words, sorting a few times the touched words.
        touched = ZERO
        word = np.uint64(met[0]) >> np.uint64(6)
        low, high, bits = word, word, ZERO
        if runs:
            for t in range(n):
                column = np.uint64(met[t])
                other = column >> np.uint64(6)
                if other != word:
                    words[touched] = word
                    touched += np.uint64(bitmap[word] == ZERO)
                    bitmap[word] |= bits
                    word, bits = other, ZERO
                    low = min(low, word)
                    high = max(high, word)
                bits |= ONE << (column & np.uint64(63))
            words[touched] = word
            touched += np.uint64(bitmap[word] == ZERO)
            bitmap[word] |= bits
        else:
            for t in range(n):
                column = np.uint64(met[t])
                word = column >> np.uint64(6)
                old = bitmap[word]
                words[touched] = word
                touched += np.uint64(old == ZERO)
                low = min(low, word)
                high = max(high, word)
                bitmap[word] = old | (ONE << (column & np.uint64(63)))
        scan = high - low < np.uint64(8) * touched
        if not scan and touched <= FEW_WORDS:
            for t in range(ONE, touched):
                word, at = words[t], t
                while at > ZERO and words[at - ONE] > word:
                    words[at] = words[at - ONE]
                    at -= ONE
                words[at] = word
        elif not scan:
            words[:touched].sort()
        for t in range(high - low + ONE if scan else touched):
            word = low + t if scan else words[t]
            left = bitmap[word]
            bitmap[word] = 0
            while left:
                column = (word << np.uint64(6)) + _popcount((left & (~left + ONE)) - ONE)
                left &= left - ONE
                indices_c[out] = column
                data_c[out] = sums[column]
                out += ONE
    return place


@numba.njit(**_JIT)
def _refill_rows(  # type: ignore[no-untyped-def]
    start, stop, indptr_a, indices_a, data_a, indptr_b, indices_b, data_b, sums, indptr_c, indices_c, data_c
):
    """Values of rows start to stop of C whose columns are known; `sums` is zero before and after."""
    for i in range(start, stop):
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            for q in range(indptr_b[k], indptr_b[k + ONE]):
                sums[indices_b[q]] += factor * data_b[q]
        for t in range(indptr_c[i], indptr_c[i + ONE]):
            column = indices_c[t]
            data_c[t] = sums[column]
            sums[column] = 0


@numba.njit(**_JIT)
def _count_tiles(first, stop, start_a, columns_a, bitmaps_a, start_b, columns_b, bitmaps_b, width):  # type: ignore[no-untyped-def]
    """Tiles of C, products of tiles that meet, and entries of C, of tile rows first to stop."""
    bits = np.zeros(width, np.uint64)
    touched = np.empty(width, np.int64)
    tiles, products, entries = 0, 0, np.uint64(0)
    for i in range(first, stop):
        count = 0
        for p in range(start_a[i], start_a[i + 1]):
            left = bitmaps_a[p]
            for q in range(start_b[columns_a[p]], start_b[columns_a[p] + 1]):
                right = bitmaps_b[q]
                product = ZERO
                for k in range(8):
                    # One bit a row of the left tile times a row of the right one: it lands in every row with the bit.
                    shift = np.uint64(k)
                    column = (left >> shift) & np.uint64(0x0101010101010101)
                    product |= column * ((right >> (np.uint64(8) * shift)) & np.uint64(0xFF))
                if product == ZERO:
                    continue
                products += 1
                j = columns_b[q]
                if bits[j] == ZERO:
                    touched[count] = j
                    count += 1
                bits[j] |= product
        tiles += count
        for t in range(count):
            entries += _popcount(bits[touched[t]])
            bits[touched[t]] = ZERO
    return tiles, products, entries


@numba.njit(**_JIT)
def _examine(start, stop, indptr, indices, data):  # type: ignore[no-untyped-def]
    most, infinite, descents, falls = indices.dtype.type(0), ZERO, ZERO, ZERO
    for i in range(start, stop):
        falls += np.uint64(indptr[i] > indptr[i + ONE])
    if falls > ZERO or indptr[stop] > np.uint64(len(indices)):
        return most, False, False, True
    first, last = indptr[start], indptr[stop]
    for p in range(first, last):
        most = max(most, indices[p])
        infinite += np.uint64(not np.isfinite(data[p]))
    for p in range(first + ONE, last):
        descents += np.uint64(indices[p - ONE] >= indices[p])
    # Columns increase within every row if and only if every descent is at a row's start.
    for i in range(start + ONE, stop):
        begin = indptr[i]
        if begin > first and begin < indptr[i + ONE]:
            descents -= np.uint64(indices[begin - ONE] >= indices[begin])
    return most, infinite > ZERO, descents > ZERO, False


def examine(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, columns: int) -> tuple[bool, bool, bool, bool]:
    """Look for what the product must not walk.

    Returns whether a column is out of range, a value not finite, the columns of a row do not increase strictly, and the
    row pointer falls or leaves the entries (the others are then unknown).
    """
    arrays = (*_unsigned(indptr, indices), data)
    found: list[tuple[int, bool, bool, bool]] = []

    def work(start: np.uint64, stop: np.uint64) -> None:
        found.append(_examine(start, stop, *arrays))

    _over_rows(_pieces(indptr), numba.get_num_threads(), work)
    most, infinite, unsorted, falls = (max(part) for part in zip(*found, strict=True))
    return bool(len(indices)) and int(most) >= columns, infinite, unsorted, falls  # a negative column is a large one


def workspace_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of one thread's work space: bitmap, list of words, sums."""
    words = columns // 64 + 1
    return words * 16 + columns * (itemsize + 8)


def workers(columns: int, itemsize: int, memory_limit: int | None) -> int:
    """Return the number of threads: Numba's setting, fewer where their work space would exceed the limit."""
    threads = numba.get_num_threads()
    need = workspace_bytes(columns, itemsize)
    if memory_limit is None:
        return threads
    if need > memory_limit:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and the sums of one row of {columns} columns take {need}; "
            f"raise it to at least {need}"
        )
    return min(threads, memory_limit // need)


@dataclass(frozen=True)
class Work:
    """The multiplications of ``A @ B``, rows of A taken together by some."""

    edges: np.ndarray  # the first rows of those taken together, and the number of rows
    before: np.ndarray  # multiplications of the rows before each edge

    @property
    def products(self) -> int:
        """All multiplications."""
        return int(self.before[-1])

    def products_before(self, row: int) -> int:
        """Return the multiplications of the rows before an edge."""
        return int(self.before[np.searchsorted(self.edges, row)])


def survey(indptr_a: np.ndarray, indices_a: np.ndarray, indptr_b: np.ndarray) -> Work:
    """Return the multiplications of ``A @ B``."""
    rows = len(indptr_a) - 1
    blocks = min(rows, BLOCKS)
    edges = np.arange(blocks + 1) * rows // max(blocks, 1)
    before = np.zeros(blocks + 1, np.int64)
    arrays = _unsigned(edges, indptr_a, indices_a, indptr_b, before[1:])
    threads = numba.get_num_threads() if len(indices_a) >= WORTH_A_PIECE else 1
    pieces = (
        _between(np.arange(1, 4 * threads) * blocks // (4 * threads), blocks)
        if threads > 1
        else [(ZERO, np.uint64(blocks))]
    )
    _over_rows(pieces, threads, lambda start, stop: _count_products(start, stop, *arrays))
    np.cumsum(before, out=before)
    return Work(edges, before)


def _unsigned(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return index arrays as views of their unsigned type; values pass as they are."""
    return tuple(a.view(f"u{a.itemsize}") if a.dtype.kind == "i" else a for a in arrays)


Chunks = list[tuple[np.uint64, np.uint64]]


def _pieces(indptr: np.ndarray) -> Chunks:
    """Return rows of like numbers of entries, a piece a thread: one where there are few."""
    rows, nnz = len(indptr) - 1, int(indptr[-1])
    threads = min(numba.get_num_threads(), nnz // WORTH_A_PIECE)
    if threads < 2:
        return [(ZERO, np.uint64(rows))]
    cuts = np.searchsorted(indptr, np.linspace(0, nnz, threads + 1)[1:-1])
    return _between(np.clip(cuts, 0, rows), rows)


def _between(cuts: np.ndarray, rows: int) -> Chunks:
    return list(itertools.pairwise(np.unique(np.concatenate(([0], cuts, [rows]))).astype(np.uint64)))


def chunks(work: Work, threads: int, worth: int = WORTH_A_CHUNK) -> Chunks:
    """Return the first row and the end of chunks of rows of like cost: one for one thread, and for little work."""
    rows = int(work.edges[-1])
    costs = work.before + int(ROW_COST) * work.edges
    if threads == 1 or rows < 2 or costs[-1] < worth:
        return [(ZERO, np.uint64(rows))]
    pieces = threads * int(1 + costs[-1] // (threads * worth))
    return _between(work.edges[np.searchsorted(costs, np.linspace(0, costs[-1], pieces + 1)[1:-1])], rows)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads beside the caller's, which stay for the next call."""
    config: Any = numba.config
    return ThreadPoolExecutor(max(config.NUMBA_NUM_THREADS - 1, 1), thread_name_prefix="spectile-tsparse")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has no threads


def _over_rows(rows: Chunks, threads: int, work: Callable[[np.uint64, np.uint64], None]) -> None:
    """Call work(start, stop) for every chunk, on `threads` threads of which the caller is one."""
    left = iter(rows)

    def drain() -> None:
        for start, stop in left:
            work(start, stop)

    others = [_pool().submit(drain) for _ in range(min(threads, len(rows)) - 1)]
    try:
        drain()
    finally:
        for other in others:
            if not other.cancel():
                other.result()


class _Workspaces(threading.local):
    """Marks, bitmap, words and sums of each thread, made on first use."""

    def __init__(self, rows: int, columns: int, dtype: np.dtype | None) -> None:
        words = columns // 64 + 1
        self.mark = np.zeros(columns, np.uint64 if rows >= 2**31 else np.uint32)
        if dtype is not None:
            self.bitmap = np.zeros(words, np.uint64)
            self.words = np.empty(words + 1, np.uint64)
            self.met = np.empty(columns + 65, np.uint64 if columns >= 2**32 else np.uint32)
            self.sums = np.zeros(columns, dtype)


def count(
    indptr_a: np.ndarray,
    indices_a: np.ndarray,
    indptr_b: np.ndarray,
    indices_b: np.ndarray,
    columns: int,
    rows: Chunks,
    threads: int,
) -> np.ndarray:
    """Return the int64 row pointer of C (symbolic phase)."""
    indptr = np.zeros(len(indptr_a), np.int64)
    counts = indptr[1:]
    indexing = _unsigned(indptr_a, indices_a, indptr_b, indices_b)
    space = _Workspaces(len(counts), columns, None)

    def work(start: np.uint64, stop: np.uint64) -> None:
        _count_rows(start, stop, *indexing, space.mark, counts)

    _over_rows(rows, threads, work)
    np.cumsum(counts, out=counts)
    return indptr


def fill(
    A: tuple[np.ndarray, np.ndarray, np.ndarray],
    B: tuple[np.ndarray, np.ndarray, np.ndarray],
    columns: int,
    rows: Chunks,
    indptr: np.ndarray,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted columns and the values of C (numeric phase)."""
    dtype = A[2].dtype
    indices = np.empty(indptr[-1], A[1].dtype)
    data = np.empty(indptr[-1], dtype)
    factors, product = _unsigned(*A, *B), _unsigned(indptr, indices, data)
    space = _Workspaces(len(indptr) - 1, columns, dtype)

    def work(start: np.uint64, stop: np.uint64) -> None:
        place = np.uint64(indptr[int(start)])
        _fill_rows(start, stop, place, *factors, space.mark, space.bitmap, space.words, space.met, space.sums, *product)

    _over_rows(rows, threads, work)
    return indices, data


def multiply(
    A: tuple[np.ndarray, np.ndarray, np.ndarray],
    B: tuple[np.ndarray, np.ndarray, np.ndarray],
    columns: int,
    work: Work,
    rows: Chunks,
    threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return row pointer, sorted columns and values of C in one pass over chunks `rows`, or None if C may be too large.

    Each chunk of rows is made in room for all its products, and moved to its place in C when those before it are
    counted.
    """
    products, dtypes = work.products, (A[1].dtype, A[2].dtype)
    if products * sum(dtype.itemsize for dtype in dtypes) > LARGEST_RESERVE:
        return None
    indptr = np.zeros(len(A[0]), np.int64)
    factors, ends = _unsigned(*A, *B), _unsigned(indptr)[0]
    space = _Workspaces(len(indptr) - 1, columns, A[2].dtype)

    def make(start: np.uint64, stop: np.uint64, to: Room) -> int:
        """Fill rows start to stop from the beginning of `to`, their ends counted from there; return the last."""
        room = space.mark, space.bitmap, space.words, space.met, space.sums
        return int(_fill_rows(start, stop, ZERO, *factors, *room, ends, *_unsigned(*to)))

    gather = _gather if products * max(dtype.itemsize for dtype in dtypes) <= LARGEST_KEPT else _gather_in_order
    return indptr, *gather(dtypes, indptr, work, rows, threads, make)


Room = tuple[np.ndarray, np.ndarray]  # for columns and values


def _room(dtypes: tuple[np.dtype, np.dtype], entries: int) -> Room:
    return np.empty(entries, dtypes[0]), np.empty(entries, dtypes[1])


class _Kept:
    """Room that stays from one product to the next: fresh pages cost as much time as the entries that fill them."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._memory = np.empty(0, np.uint8)

    @contextlib.contextmanager
    def take(self, dtypes: tuple[np.dtype, np.dtype], entries: int) -> Iterator[Room]:
        """Give room for some entries; other threads meanwhile get room of their own."""
        if not self._free.acquire(blocking=False):
            yield _room(dtypes, entries)
            return
        try:
            columns, values = (entries * dtype.itemsize for dtype in dtypes)
            first = -(-values // 8) * 8  # of the columns, aligned
            if len(self._memory) < first + columns:
                self._memory = np.empty(first + columns, np.uint8)
            memory = self._memory
            yield memory[first : first + columns].view(dtypes[0]), memory[:values].view(dtypes[1])
        finally:
            self._free.release()


_kept = _Kept()


def _part(room: Room, start: int, stop: int) -> Room:
    return room[0][start:stop], room[1][start:stop]


def _move(made: Room, to: Room, place: int, ends: np.ndarray) -> None:
    """Copy a chunk of C to its place, and count the ends of its rows from the first entry of C."""
    for source, target in zip(made, to, strict=True):
        target[place : place + len(source)] = source
    ends += place


def _gather(
    dtypes: tuple[np.dtype, np.dtype],
    indptr: np.ndarray,
    work: Work,
    rows: Chunks,
    threads: int,
    make: Callable[[np.uint64, np.uint64, Room], int],
) -> Room:
    """Make all chunks in kept room, then allocate C at its size, for which malloc may have memory used before."""
    made: dict[int, Room] = {}
    with _kept.take(dtypes, work.products) as room:

        def fill_chunk(start: np.uint64, stop: np.uint64) -> None:
            first = work.products_before(int(start))
            entries = make(start, stop, _part(room, first, work.products_before(int(stop))))
            made[int(start)] = _part(room, first, first + entries)

        _over_rows(rows, threads, fill_chunk)
        starts = [int(start) for start, _ in rows]
        places = np.cumsum([0, *(len(made[start][0]) for start in starts)])
        C = _room(dtypes, int(places[-1]))
        place = dict(zip(starts, places.tolist(), strict=False))

        def move(start: np.uint64, stop: np.uint64) -> None:
            _move(made[int(start)], C, place[int(start)], indptr[int(start) + 1 : int(stop) + 1])

        _over_rows(rows, threads, move)
    return C


def _gather_in_order(
    dtypes: tuple[np.dtype, np.dtype],
    indptr: np.ndarray,
    work: Work,
    rows: Chunks,
    threads: int,
    make: Callable[[np.uint64, np.uint64, Room], int],
) -> Room:
    """Reserve C for every product and give back what lies past its last entry: memory never touched takes none.

    A chunk is made in a thread's own room, which stays in the cache, and moved once all before it are counted.
    """
    C = _room(dtypes, work.products)
    entries = 0
    if len(rows) == 1:
        entries = make(*rows[0], C)
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

        _over_rows(rows, threads, fill_chunk)
    for array in C:
        array.resize(entries, refcheck=False)
    return C


def refill(
    A: tuple[np.ndarray, np.ndarray, np.ndarray],
    B: tuple[np.ndarray, np.ndarray, np.ndarray],
    columns: int,
    rows: Chunks,
    indptr: np.ndarray,
    indices: np.ndarray,
    threads: int,
) -> np.ndarray:
    """Return the values of C on a known pattern (numeric phase of a reused symbolic product)."""
    data = np.empty(indptr[-1], A[2].dtype)
    factors, product = _unsigned(*A, *B), _unsigned(indptr, indices, data)
    space = _Workspaces(len(indptr) - 1, columns, A[2].dtype)

    def work(start: np.uint64, stop: np.uint64) -> None:
        _refill_rows(start, stop, *factors, space.sums, *product)

    _over_rows(rows, threads, work)
    return data


def tile_counts(
    A: tuple[np.ndarray, np.ndarray, np.ndarray], B: tuple[np.ndarray, np.ndarray, np.ndarray], width: int
) -> tuple[int, int, int]:
    """Return the tiles of C, the products of tiles that meet, and the stored entries of C.

    Parameters
    ----------
    A, B : tuple of arrays
        Row pointer, columns and bitmaps of the 8x8 tiles of a factor.
    width : int
        Tile columns of C.
    """
    found = survey(A[0], A[1], B[0])
    totals: list[tuple[int, int, int]] = []

    def work(first: np.uint64, stop: np.uint64) -> None:
        totals.append(_count_tiles(int(first), int(stop), *A, *B, width))

    threads = numba.get_num_threads()
    _over_rows(chunks(found, threads, WORTH_A_CHUNK // 10), threads, work)
    tiles, tasks, entries = (int(sum(part)) for part in zip(*totals, strict=True))
    return tiles, tasks, entries
