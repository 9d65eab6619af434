"""Products of which a mask tells the wanted entries, at the cost of the mask.

A row of C is made in one of two ways, whichever meets fewer entries: by rows of B, adding what falls on an entry of
the mask, or entry by entry of the mask, by columns of B.  Both add the products of an entry in the order of A's row, so
that the bits are those of the whole product.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ONE, PLUS_TIMES, ZERO, multiply_add
from spectile.tsparse.cpu.operands import turn
from spectile.tsparse.cpu.phases import Arrays
from spectile.tsparse.room import Room
from spectile.tsparse.selection import Rows

TURN_COST = 8  # entries of the product that turning an entry of B to columns costs
COUNTED = 4  # the kind of products that are counted, beside the codes of semirings
PIECE = np.uint64(256)  # entries of a row of B of which those that the mask holds are listed


@functools.cache
def _masked_rows(kind: int) -> Any:
    @njit(**JIT)
    def masked_rows(  # type: ignore[no-untyped-def]
        start,
        stop,
        by_columns,
        indptr_a,
        indices_a,
        data_a,
        indptr_b,
        indices_b,
        data_b,
        indptr_t,
        indices_t,
        data_t,
        indptr_m,
        indices_m,
        place,
        hits,
        found,
        data_c,
    ):
        """Values of the entries of the mask in rows start to stop, and whether a product falls on each.

        place[j] is one more than where the mask holds column j in the row at hand, or A column k, and 0 elsewhere;
        where products are counted, one more than these.  What is met counts, or is listed in `hits`, without a jump.
        """
        for i in range(start, stop):
            first, last = indptr_m[i], indptr_m[i + ONE]
            if first == last:
                continue
            if by_columns[i]:
                for p in range(indptr_a[i], indptr_a[i + ONE]):
                    place[indices_a[p]] = p + ONE
                for t in range(first, last):
                    j = np.uint64(indices_m[t])
                    for q in range(indptr_t[j], indptr_t[j + ONE]):
                        at = place[indices_t[q]]
                        if kind == COUNTED:
                            data_c[t] += at != ZERO
                        elif at > ZERO:
                            p = at - ONE
                            if kind == PLUS_TIMES:
                                data_c[t] += data_a[p] * data_t[q]
                            else:
                                data_c[t] = multiply_add(kind, data_a[p], data_t[q], data_c[t], not found[t])
                            found[t] = True
                    if kind == COUNTED:
                        found[t] = data_c[t] != 0
                for p in range(indptr_a[i], indptr_a[i + ONE]):
                    place[indices_a[p]] = 0
                continue
            for t in range(first, last):
                place[indices_m[t]] = ONE if kind == COUNTED else t + ONE
            for p in range(indptr_a[i], indptr_a[i + ONE]):
                k = np.uint64(indices_a[p])
                if kind == COUNTED:
                    for q in range(indptr_b[k], indptr_b[k + ONE]):
                        at = place[indices_b[q]]
                        place[indices_b[q]] = at + np.uint64(at != ZERO)
                    continue
                factor = data_a[p]
                for base in range(indptr_b[k], indptr_b[k + ONE], PIECE):
                    met = ZERO
                    for q in range(base, min(base + PIECE, indptr_b[k + ONE])):
                        hits[met] = q
                        met += np.uint64(place[indices_b[q]] != ZERO)
                    for h in range(met):
                        q = hits[h]
                        t = place[indices_b[q]] - ONE
                        if kind == PLUS_TIMES:
                            data_c[t] += factor * data_b[q]
                        else:
                            data_c[t] = multiply_add(kind, factor, data_b[q], data_c[t], not found[t])
                        found[t] = True
            for t in range(first, last):
                if kind == COUNTED:
                    data_c[t] = place[indices_m[t]] - ONE
                    found[t] = data_c[t] != 0
                place[indices_m[t]] = 0

    return masked_rows


def multiply(A: Arrays, B: Arrays, mask: tuple[np.ndarray, np.ndarray], columns: int, kind: int, room: Room) -> Rows:
    """Return row pointer, columns and values of the entries of A B that a mask has, sorted.

    Parameters
    ----------
    A, B : tuple of array
        Row pointer, columns and values of the factors.
    mask : tuple of array
        Row pointer and columns of the mask, sorted within rows.
    columns : int
        Of B and of the mask.
    kind : int
        Code of the semiring, or `COUNTED` for values that are all 1 and are not read.
    room : Room
        What is left of a limit.
    """
    rows, inner, entries = len(A[0]) - 1, len(B[0]) - 1, len(mask[1])
    nothing, found = (np.zeros(1, np.int64), B[1][:0], B[2][:0]), np.zeros(0, bool)
    numbers = np.uint32 if max(entries, len(A[1])) < 2**32 - 1 else np.uint64
    room, place = room.nested(), np.dtype(numbers).itemsize * max(columns, inner)
    values = entries * (1 + A[2].itemsize)
    room.require(9 * rows + max(16 * rows + 8 * columns, values + place))
    by_columns, turned = np.zeros(rows, bool), nothing
    if entries:
        by_rows_of_B, least = costs(A, B, mask, columns)
        if TURN_COST * len(B[1]) < by_rows_of_B.sum() - least.sum():
            by_columns = least < by_rows_of_B
            room.require(9 * rows + len(B[1]) * (8 + B[2].itemsize) + max(16 * rows + 8 * columns, values + place))
            turned = turn(B, columns)
        del by_rows_of_B, least
    room.hold(by_columns, *turned)
    data, found = np.zeros(entries, A[2].dtype), np.zeros(entries, bool)
    room.hold(data, found)
    if entries:
        factors = ((*threads.unsigned(*x[:2]), x[2]) for x in (A, B, turned))
        arrays = (*itertools.chain(*factors), *threads.unsigned(*mask))
        space = _Places(max(columns, inner), numbers)
        kernel = _masked_rows(kind)

        def work(start: np.uint64, stop: np.uint64) -> None:
            kernel(start, stop, by_columns, *arrays, space.place, space.hits, found, data)

        count = entries // threads.WORTH_A_PIECE
        parts = threads.between(np.arange(1, 8 * count) * rows // max(8 * count, 1), rows)
        threads.over_rows(parts, room.workers(place), work)
    indptr = np.zeros(rows + 1, np.int64)
    total = _count_found(*threads.unsigned(mask[0]), found, *threads.unsigned(indptr))
    indices = np.empty(total, mask[1].dtype)
    _keep_found(found, *threads.unsigned(mask[1], indices), data)
    data.resize(total, refcheck=False)
    return indptr, indices, data


@njit(**JIT)
def _count_found(indptr_m, found, indptr):  # type: ignore[no-untyped-def]
    """indptr[i + 1] = what is found in the rows up to i; returns all of it."""
    total = ZERO
    for i in range(len(indptr) - 1):
        for t in range(indptr_m[i], indptr_m[i + ONE]):
            total += np.uint64(found[t])
        indptr[i + 1] = total
    return total


@njit(**JIT)
def _keep_found(found, indices_m, indices, data):  # type: ignore[no-untyped-def]
    """Move what is found to the front."""
    at = ZERO
    for t in range(len(found)):
        if found[t]:
            indices[at] = indices_m[t]
            data[at] = data[t]
            at += ONE


class _Places(threading.local):
    """Where the row at hand holds a column, of each thread."""

    def __init__(self, columns: int, numbers: Any) -> None:
        self.place, self.hits = np.zeros(columns, numbers), np.empty(PIECE, np.uint64)


def costs(A: Arrays, B: Arrays, mask: tuple[np.ndarray, np.ndarray], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries that each row of C meets where it is made by rows of B, and in the way that meets fewer."""
    rows = len(A[0]) - 1
    heights, by_rows, least = np.zeros(columns, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    _count_met(*threads.unsigned(*A[:2], *B[:2], *mask), heights, by_rows, least)
    return by_rows, least


@njit(**JIT)
def _count_met(indptr_a, indices_a, indptr_b, indices_b, indptr_m, indices_m, heights, by_rows, least):  # type: ignore[no-untyped-def]
    for q in range(len(indices_b)):
        heights[indices_b[q]] += 1
    for i in range(len(by_rows)):
        wanted = indptr_m[i + 1] - indptr_m[i]
        if wanted == 0:
            continue
        met = wanted
        for p in range(indptr_a[i], indptr_a[i + 1]):
            k = indices_a[p]
            met += indptr_b[k + ONE] - indptr_b[k]
        by_rows[i] = met
        most, met = met, indptr_a[i + 1] - indptr_a[i]
        for t in range(indptr_m[i], indptr_m[i + 1]):
            met += np.uint64(heights[indices_m[t]])
            if met >= most:
                break
        least[i] = min(met, most)
