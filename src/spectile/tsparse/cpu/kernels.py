"""Kernels of the product by rows, in Numba: Gustavson's row-wise algorithm over a bitmap of columns.

Short rows are sorted by insertion or by counting smaller columns, longer ones through a bitmap of one bit per column,
whose words that are not 0 are found through two coarser ones.  Sums run over k in the order of A's row.  Rows of a B
that no cache holds are fetched before they are read.  All index arrays are read as unsigned (`unsigned`): Numba then
leaves out its test for negative indices.  Row k of B lies between begin_b[k] and end_b[k], so that rows may share
entries.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload

from spectile.core.jit import njit

JIT: Any = {"nogil": True, "boundscheck": False}
ZERO, ONE = np.uint64(0), np.uint64(1)
TINY = np.uint64(12)  # entries up to which insertion sorts a row fastest, if few of them have to move far
FEW = np.uint64(4)  # entries up to which it does anyway
RETRY = np.uint64(15)  # of so many rows in chance order the next is tried by insertion again
SHORT = np.uint64(16)  # entries up to which counting the smaller ones sorts a row faster than the bitmap
WORD = np.uint32(63)  # the bits of a column within its word
SIX = np.uint64(6)  # the logarithm of the bits of a word
PLUS_TIMES, MIN_PLUS, MAX_PLUS = 0, 1, 2  # codes of `spectile.tsparse.semirings`; the one beyond is max_min
AHEAD, FIRST_AHEAD = np.uint64(8), np.uint64(16)  # entries of A that pass while memory answers, once and twice
NEAR = np.uint64(1024)  # rows of B between which nothing is fetched
LONG = np.uint64(64)  # entries of a row of A for which rows of B are fetched: so much a cache takes at once
CACHED = 2**20  # bytes of B that stay in a core's cache
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


def _trailing(context, x):  # type: ignore[no-untyped-def]
    return types.uint64(types.uint64), lambda target, builder, signature, args: builder.cttz(
        args[0], ir.Constant(_BIT, 1)
    )


def _prefetch(context, array, place):  # type: ignore[no-untyped-def]
    def emit(target, builder, signature, args):  # type: ignore[no-untyped-def]
        data = target.make_array(array)(target, builder, args[0]).data
        address, flag = builder.bitcast(builder.gep(data, [args[1]]), _BYTE), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, flag, flag, flag])
        fetch = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [address, flag(0), flag(3), flag(1)])  # to read, into all caches, data
        return target.get_dummy_value()

    return types.void(array, place), emit


_BIT, _BYTE = ir.IntType(1), ir.IntType(8).as_pointer()
#: In compiled code the zeros below the lowest set bit of a word that is not 0; and a hint that a place of an array is
#: read soon, which may lie anywhere.
trailing: Any = intrinsic(_trailing)
prefetch: Any = intrinsic(_prefetch)


@njit(**JIT)
def to_fetch(indptr_a, indices_b, data_b):  # type: ignore[no-untyped-def]
    """Return the entries of A before which `fetch_rows` looks ahead: none where a cache holds all of B."""
    entries = np.uint64(indptr_a[len(indptr_a) - 1])
    far = len(indices_b) * (indices_b.itemsize + data_b.itemsize) > CACHED
    return entries - FIRST_AHEAD if far and entries > FIRST_AHEAD else ZERO


@njit(**JIT)
def fetch_rows(before, first, end, fetched, indices_a, begin_b, indices_b, data_b):  # type: ignore[no-untyped-def]
    """Fetch rows of B that entries of A a little after those of a row meet; return the first column of the row.

    The places of those that come later are fetched, too.  Rows that begin near the column `before`, with which the last
    one began, meet what has been read, or what is read in order.
    """
    near = np.uint64(indices_a[first]) if first < end else before
    if near - before + NEAR > NEAR + NEAR:
        for p in range(first, min(end, first + LONG, fetched)):
            prefetch(begin_b, np.uint64(indices_a[p + FIRST_AHEAD]))
            place = np.uint64(begin_b[np.uint64(indices_a[p + AHEAD])])
            prefetch(indices_b, place)
            prefetch(data_b, place)
    return near


@njit(**JIT)
def set_bits(word, bits, bitmap, middle, upper):  # type: ignore[no-untyped-def]
    """Set bits of a word of the bitmap, and its bit in the two coarser ones."""
    bitmap[word] |= bits
    middle[word >> SIX] |= ONE << (word & np.uint64(WORD))
    upper[word >> SIX >> SIX] |= ONE << (word >> SIX & np.uint64(WORD))


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
    dense, fetched, near = False, to_fetch(indptr_a, indices_b, indices_b), ZERO
    for i in range(start, stop):
        near = fetch_rows(near, indptr_a[i], indptr_a[i + ONE], fetched, indices_a, begin_b, indices_b, indices_b)
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
        middle,
        upper,
        met,
        sums,
        indptr_c,
        indices_c,
        data_c,
    ):
        """Columns (sorted) and values of rows start to stop of C, from `place` on; the bitmaps are left clear.

        indptr_c[i + 1] is set to the end of row i (unchanged if rows were counted before); the last end is returned.
        """
        indptr_a, indices_a = unsigned(indptr_a), unsigned(indices_a)
        indptr_c, indices_c = unsigned(indptr_c), unsigned(indices_c)
        begin_b, end_b, indices_b = unsigned(begin_b), unsigned(end_b), unsigned(indices_b)
        zero = sums.dtype.type(0)
        last = met.dtype.type(met.dtype.type(0) - ONE)
        dense, tangled, fetched, near = False, False, to_fetch(indptr_a, indices_b, data_b), ZERO
        for i in range(start, stop):
            out = place
            first, end = indptr_a[i], indptr_a[i + ONE]
            near = fetch_rows(near, first, end, fetched, indices_a, begin_b, indices_b, data_b)
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
                for t in range(n, SHORT):
                    met[t] = last
                for t in range(n):
                    column = met[t]
                    smaller = np.uint32(0)
                    for u in range(16):  # which the compiler knows
                        smaller = np.uint32(smaller + np.uint32(met[u] < column))
                    indices_c[out + np.uint64(smaller)] = column
                    data_c[out + np.uint64(smaller)] = sums[column]
                continue
            # Sort by the bitmap, and find its words by the coarser ones.
            word, bits = np.uint64(met[0]) >> SIX, ZERO
            if runs:
                for t in range(n):
                    column = np.uint64(met[t])
                    if column >> SIX != word:
                        set_bits(word, bits, bitmap, middle, upper)
                        word, bits = column >> SIX, ZERO
                    bits |= ONE << (column & np.uint64(WORD))
                set_bits(word, bits, bitmap, middle, upper)
            else:
                for t in range(n):
                    column = np.uint64(met[t])
                    set_bits(column >> SIX, ONE << (column & np.uint64(WORD)), bitmap, middle, upper)
            for u in range(len(upper)):
                above = upper[u]
                upper[u] = 0
                while above:
                    v = (np.uint64(u) << SIX) + trailing(above)
                    above &= above - ONE
                    between = middle[v]
                    middle[v] = 0
                    while between:
                        word = (v << SIX) + trailing(between)
                        between &= between - ONE
                        left = bitmap[word]
                        bitmap[word] = 0
                        while left:
                            column = (word << SIX) + trailing(left)
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
    fetched, near = to_fetch(indptr_a, indices_b, data_b), ZERO
    for i in range(start, stop):
        near = fetch_rows(near, indptr_a[i], indptr_a[i + ONE], fetched, indices_a, begin_b, indices_b, data_b)
        for p in range(indptr_a[i], indptr_a[i + ONE]):
            k = np.uint64(indices_a[p])
            factor = data_a[p]
            for q in range(begin_b[k], end_b[k]):
                sums[indices_b[q]] = plus_times(sums[indices_b[q]], factor, data_b[q])
        for t in range(indptr_c[i], indptr_c[i + ONE]):
            column = indices_c[t]
            data_c[t] = sums[column]
            sums[column] = 0
