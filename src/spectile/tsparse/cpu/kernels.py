"""Kernels of the product by rows, in Numba: Gustavson's row-wise algorithm over a bitmap of columns.

Short rows are sorted by insertion or by counting smaller columns, longer ones through a bitmap of one bit per column,
whose touched words are scanned or sorted: word by word instead of entry by entry.  Sums run over k in the order of A's
row.  All index arrays are read as unsigned (`unsigned`): Numba then leaves out its test for negative indices.
Row k of B lies between begin_b[k] and end_b[k], so that rows may share entries.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload

from spectile.core.jit import njit

JIT: Any = {"nogil": True, "boundscheck": False}
ZERO, ONE = np.uint64(0), np.uint64(1)
TINY = np.uint64(12)  # entries up to which insertion sorts a row fastest, if few of them have to move far
FEW = np.uint64(4)  # entries up to which it does anyway
RETRY = np.uint64(15)  # of so many rows in chance order the next is tried by insertion again
SHORT = np.uint64(64)  # entries up to which counting the smaller ones sorts a row faster than the bitmap
WORD = np.uint32(63)  # the bits of a column within its word
FEW_WORDS = np.uint64(24)  # words up to which insertion sorts them fastest
PLUS_TIMES, MIN_PLUS, MAX_PLUS = 0, 1, 2  # codes of `spectile.tsparse.semirings`; the one beyond is max_min
REPEATS = np.uint64(5)  # products an entry beyond which "is this its column's first?" is guessed right: a branch pays


def _unsigned(context, array):  # type: ignore[no-untyped-def]
    view = array.copy(dtype=types.Integer.from_bitwidth(array.dtype.bitwidth, signed=False))
    return view(array), lambda target, builder, signature, args: impl_ret_borrowed(target, builder, view, args[0])


#: In compiled code a view of indices as their unsigned type: the same structure in memory.
unsigned: Any = intrinsic(_unsigned)


def plus_times(total: Any, a: Any, b: Any) -> Any:
    """Return ``total + a b``, in compiled code; of bytes, which are Booleans, whether it is one of both."""


@overload(plus_times, inline="always")
def _plus_times(total, a, b):  # type: ignore[no-untyped-def]
    if a == types.uint8:
        return lambda total, a, b: total | (b & np.uint8(-(a != 0)))
    return lambda total, a, b: total + a * b


@njit(**JIT)
def popcount(x):  # type: ignore[no-untyped-def]
    """Return the number of set bits."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(**JIT)
def count_products(start, stop, each, indptr_a, indices_a, begin_b, end_b, before):  # type: ignore[no-untyped-def]
    """before[i + 1] = multiplications of blocks start to i of so many rows each, for start <= i < stop."""
    rows = np.uint64(len(indptr_a) - 1)
    indptr_a, indices_a, begin_b, end_b = unsigned(indptr_a), unsigned(indices_a), unsigned(begin_b), unsigned(end_b)
    total = ZERO
    for i in range(start, stop):
        for p in range(indptr_a[i * each], indptr_a[min((i + ONE) * each, rows)]):
            k = np.uint64(indices_a[p])
            total += end_b[k] - begin_b[k]
        before[i + ONE] = total


@njit(**JIT)
def count_rows(start, stop, indptr_a, indices_a, begin_b, end_b, indices_b, mark, counts):  # type: ignore[no-untyped-def]
    """counts[i] = entries of row i of C, for start <= i < stop; mark[j] - 1 is the last row that met column j."""
    dense = False
    for i in range(start, stop):
        total, met = ZERO, ZERO
        stamp = mark.dtype.type(i + ONE)
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            met += end_b[k] - begin_b[k]
            if dense:
                for q in range(begin_b[k], end_b[k]):
                    column = indices_b[q]
                    if mark[column] != stamp:
                        mark[column] = stamp
                        total += ONE
            else:
                for q in range(begin_b[k], end_b[k]):
                    column = indices_b[q]
                    total += np.uint64(mark[column] != stamp)
                    mark[column] = stamp
        counts[i] = total
        dense = bool(met > REPEATS * total)


@njit(**JIT)
def multiply_add(kind, a, b, old, new):  # type: ignore[no-untyped-def]
    """Return ``old + a b`` in a semiring of real numbers that compares, or where it is `new` ``a b``; NaN stays."""
    if kind == MIN_PLUS:
        product = a + b
        better = product < old
    elif kind == MAX_PLUS:
        product = a + b
        better = product > old
    else:
        product = b if b < a or b != b else a
        better = product > old
    return product if new or better or product != product else old


@functools.cache
def fill_rows_of(kind: int) -> Any:
    """Return the kernel `fill_rows` for a semiring, compiled for what it is called with."""

    @njit(**JIT)
    def fill_rows(  # type: ignore[no-untyped-def]
        start,
        stop,
        place,
        indptr_a,
        indices_a,
        data_a,
        begin_b,
        end_b,
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

        indptr_c[i + 1] is set to the end of row i (unchanged if rows were counted before); the last end is returned.
        """
        indptr_a, indices_a = unsigned(indptr_a), unsigned(indices_a)
        indptr_c, indices_c = unsigned(indptr_c), unsigned(indices_c)
        begin_b, end_b, indices_b = unsigned(begin_b), unsigned(end_b), unsigned(indices_b)
        zero = sums.dtype.type(0)
        last = met.dtype.type(met.dtype.type(0) - ONE)
        dense, tangled = False, False
        for i in range(start, stop):
            out = place
            first, end = indptr_a[i], indptr_a[i + ONE]
            if end - first == ONE:  # a multiple of a row of B, which is sorted
                k = np.uint64(indices_a[first])
                place = out + end_b[k] - begin_b[k]
                indptr_c[i + ONE] = place
                factor = data_a[first]
                for q in range(begin_b[k], end_b[k]):
                    indices_c[out] = indices_b[q]
                    if kind == PLUS_TIMES:
                        data_c[out] = plus_times(zero, factor, data_b[q])
                    else:
                        data_c[out] = multiply_add(kind, factor, data_b[q], zero, True)
                    out += ONE
                continue
            stamp = mark.dtype.type(i + ONE)
            n, products = ZERO, ZERO
            for p in range(first, end):
                k = np.uint64(indices_a[p])
                factor = data_a[p]
                products += end_b[k] - begin_b[k]
                if dense:
                    for q in range(begin_b[k], end_b[k]):
                        column = indices_b[q]
                        if mark[column] != stamp:
                            mark[column] = stamp
                            met[n] = column
                            n += ONE
                            if kind == PLUS_TIMES:
                                sums[column] = plus_times(zero, factor, data_b[q])
                            else:
                                sums[column] = multiply_add(kind, factor, data_b[q], zero, True)
                        elif kind == PLUS_TIMES:
                            sums[column] = plus_times(sums[column], factor, data_b[q])
                        else:
                            sums[column] = multiply_add(kind, factor, data_b[q], sums[column], False)
                else:
                    for q in range(begin_b[k], end_b[k]):
                        column = indices_b[q]
                        new = mark[column] != stamp
                        mark[column] = stamp
                        met[n] = column
                        n += np.uint64(new)
                        old = sums[column]
                        if kind == PLUS_TIMES:
                            sums[column] = plus_times(zero if new else old, factor, data_b[q])
                        else:
                            sums[column] = multiply_add(kind, factor, data_b[q], old, new)
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
                    column = (word << np.uint64(6)) + popcount((left & (~left + ONE)) - ONE)
                    left &= left - ONE
                    indices_c[out] = column
                    data_c[out] = sums[column]
                    out += ONE
        return place

    return fill_rows


@njit(**JIT)
def refill_rows(  # type: ignore[no-untyped-def]
    start, stop, indptr_a, indices_a, data_a, begin_b, end_b, indices_b, data_b, sums, indptr_c, indices_c, data_c
):
    """Values of rows start to stop of C whose columns are known; `sums` is zero before and after."""
    indptr_a, indices_a = unsigned(indptr_a), unsigned(indices_a)
    indptr_c, indices_c = unsigned(indptr_c), unsigned(indices_c)
    begin_b, end_b, indices_b = unsigned(begin_b), unsigned(end_b), unsigned(indices_b)
    for i in range(start, stop):
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            for q in range(begin_b[k], end_b[k]):
                sums[indices_b[q]] = plus_times(sums[indices_b[q]], factor, data_b[q])
        for t in range(indptr_c[i], indptr_c[i + ONE]):
            column = indices_c[t]
            data_c[t] = sums[column]
            sums[column] = 0
