"""The product on CPUs: Gustavson's row-wise algorithm over a bitmap of columns, in Numba, on threads.

On one thread a row of C follows the one before it; on several the rows are counted first, then filled.  Short rows
are sorted by insertion or by counting smaller columns, longer ones through a bitmap of one bit a column, whose touched
words are scanned or sorted: word by word instead of entry by entry.  Sums run over k in the order of A's row, whatever
the number of threads: the result is the same bits every time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

_JIT: Any = {"nogil": True, "cache": True, "boundscheck": False}
ZERO, ONE = np.uint64(0), np.uint64(1)
LARGEST_RESERVE = 2**31  # bytes for the entries of C that one pass may reserve before it knows their number
TINY = np.uint64(12)  # entries up to which insertion sorts a row fastest
SHORT = np.uint64(64)  # entries up to which counting the smaller ones sorts a row faster than the bitmap
WORD = np.uint32(63)  # the bits of a column within its word
FEW_WORDS = np.uint64(24)  # words up to which insertion sorts them fastest
ROW_COST = np.uint64(8)  # of a row, in multiplications
WORTH_A_CHUNK = 400_000  # cost of rows that a thread takes at a time, at least
REPEATS = np.uint64(5)  # products an entry beyond which "is this its column's first?" is guessed right: a branch pays


@numba.njit(**_JIT)
def _popcount(x):  # type: ignore[no-untyped-def]
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


# The kernels below take unsigned views of all index arrays: Numba then leaves out its test for negative indices.
@numba.njit(**_JIT)
def _row_costs(indptr_a, indices_a, indptr_b, costs):  # type: ignore[no-untyped-def]
    """costs[i] = multiplications of rows 0 to i, and ROW_COST for each of them."""
    total = ZERO
    for i in range(np.uint64(len(costs))):
        total += ROW_COST
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            total += indptr_b[k + ONE] - indptr_b[k]
        costs[i] = total


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
    """Columns (sorted) and values of rows start to stop of C, from indptr_c[start] on; the bitmap is left clear.

    indptr_c is written as well: to what it was where the rows were counted.
    """
    zero = sums.dtype.type(0)
    last = met.dtype.type(met.dtype.type(0) - ONE)
    dense = False
    for i in range(start, stop):
        out = indptr_c[i]
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
        indptr_c[i + ONE] = out + n
        if n <= TINY:
            for t in range(n):
                column = met[t]
                place = out + t
                while place > out and indices_c[place - ONE] > column:
                    indices_c[place] = indices_c[place - ONE]
                    place -= ONE
                indices_c[place] = column
            for t in range(out, out + n):
                data_c[t] = sums[indices_c[t]]
            continue
        changes = ZERO  # of the word of 64 columns, from one entry to the next
        for t in range(ONE, n):
            changes += np.uint64((met[t] ^ met[t - ONE]) > WORD)
        runs = np.uint64(4) * changes <= n
        if n <= SHORT and not runs:
            # A column's place is the number of smaller ones.
            padded = np.uint64(16) if n <= np.uint64(16) else np.uint64(32) if n <= np.uint64(32) else np.uint64(64)
            for t in range(n, padded):
                met[t] = last
            for t in range(n):
                column = met[t]
                place = np.uint32(0)
                if padded == np.uint64(16):
                    for u in range(16):
                        place = np.uint32(place + np.uint32(met[u] < column))
                elif padded == np.uint64(32):
                    for u in range(32):
                        place = np.uint32(place + np.uint32(met[u] < column))
                else:
                    for u in range(64):
                        place = np.uint32(place + np.uint32(met[u] < column))
                indices_c[out + np.uint64(place)] = column
                data_c[out + np.uint64(place)] = sums[column]
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
                word, place = words[t], t
                while place > ZERO and words[place - ONE] > word:
                    words[place] = words[place - ONE]
                    place -= ONE
                words[place] = word
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
def _examine(indptr, indices, data):  # type: ignore[no-untyped-def]
    most, infinite, descents = indices.dtype.type(0), ZERO, ZERO
    nnz = np.uint64(len(indices))
    for p in range(nnz):
        most = max(most, indices[p])
        infinite += np.uint64(not np.isfinite(data[p]))
    for p in range(ONE, nnz):
        descents += np.uint64(indices[p - ONE] >= indices[p])
    # Columns increase within every row if and only if every descent is at a row's start.
    for i in range(ONE, np.uint64(len(indptr)) - ONE):
        begin = indptr[i]
        if begin > ZERO and begin < indptr[i + ONE]:
            descents -= np.uint64(indices[begin - ONE] >= indices[begin])
    return most, infinite > ZERO, descents > ZERO


def examine(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, columns: int) -> tuple[bool, bool, bool]:
    """Return whether a column is out of range, a value not finite, and whether a row does not increase strictly."""
    most, infinite, unsorted = _examine(*_unsigned(indptr, indices), data)  # a negative column is a large one
    return bool(len(indices)) and int(most) >= columns, bool(infinite), bool(unsorted)


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


def row_costs(indptr_a: np.ndarray, indices_a: np.ndarray, indptr_b: np.ndarray) -> np.ndarray:
    """Return the running sum of what the rows of ``A @ B`` cost, in multiplications."""
    costs = np.empty(len(indptr_a) - 1, np.int64)
    _row_costs(*_unsigned(indptr_a, indices_a, indptr_b), costs)
    return costs


def products_before(costs: np.ndarray, row: int) -> int:
    """Return the multiplications of the rows before `row`."""
    return int(costs[row - 1]) - int(ROW_COST) * row if row else 0


def _unsigned(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return index arrays as views of their unsigned type; values pass as they are."""
    return tuple(a.view(f"u{a.itemsize}") if a.dtype.kind == "i" else a for a in arrays)


Chunks = list[tuple[np.uint64, np.uint64]]


def chunks(costs: np.ndarray, threads: int) -> Chunks:
    """Return the first row and the end of chunks of rows of like cost: one for one thread, and for little work."""
    rows = len(costs)
    if threads == 1 or rows < 2 or costs[-1] < WORTH_A_CHUNK:
        return [(ZERO, np.uint64(rows))]
    pieces = threads * int(min(8, 1 + costs[-1] // (threads * WORTH_A_CHUNK)))
    cuts = np.searchsorted(costs, np.linspace(0, costs[-1], pieces + 1)[1:-1])
    edges = np.unique(np.concatenate(([0], cuts, [rows]))).astype(np.uint64)
    return list(itertools.pairwise(edges))


def _over_rows(rows: Chunks, threads: int, work: Callable[[np.uint64, np.uint64], None]) -> None:
    """Call work(start, stop) for every chunk, on `threads` threads of which the caller is one."""
    left = iter(rows)

    def drain() -> None:
        for start, stop in left:
            work(start, stop)

    if threads == 1 or len(rows) == 1:
        drain()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(drain) for _ in range(threads - 1)]
        drain()
        for done in others:
            done.result()


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
        _fill_rows(start, stop, *factors, space.mark, space.bitmap, space.words, space.met, space.sums, *product)

    _over_rows(rows, threads, work)
    return indices, data


def multiply(
    A: tuple[np.ndarray, np.ndarray, np.ndarray],
    B: tuple[np.ndarray, np.ndarray, np.ndarray],
    columns: int,
    products: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return row pointer, sorted columns and values of C in one pass on one thread, or None if C may be too large.

    Room for every product is reserved and given back past C's last entry: memory that is never touched takes none.
    """
    dtype, index = A[2].dtype, A[1].dtype
    if products * (dtype.itemsize + index.itemsize) > LARGEST_RESERVE:
        return None
    indptr = np.zeros(len(A[0]), np.int64)
    indices, data = np.empty(products, index), np.empty(products, dtype)
    space = _Workspaces(len(indptr) - 1, columns, dtype)
    room = space.mark, space.bitmap, space.words, space.met, space.sums
    _fill_rows(ZERO, np.uint64(len(indptr) - 1), *_unsigned(*A, *B), *room, *_unsigned(indptr, indices, data))
    for array in (indices, data):
        array.resize(int(indptr[-1]), refcheck=False)
    return indptr, indices, data


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
    costs = row_costs(A[0], A[1], B[0])
    totals: list[tuple[int, int, int]] = []

    def work(first: np.uint64, stop: np.uint64) -> None:
        totals.append(_count_tiles(int(first), int(stop), *A, *B, width))

    threads = numba.get_num_threads()
    _over_rows(chunks(10 * costs, threads), threads, work)
    tiles, tasks, entries = (int(sum(part)) for part in zip(*totals, strict=True))
    return tiles, tasks, entries
