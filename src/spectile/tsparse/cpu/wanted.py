"""Products over semirings, of which a mask or a selection tells what is wanted, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core.progress import ROWS, Progress, count
from spectile.tsparse import errors
from spectile.tsparse.cpu import masked, one_pass, phases, threads
from spectile.tsparse.cpu.memory import workspace
from spectile.tsparse.cpu.operands import factors, one_operand, renumbered
from spectile.tsparse.cpu.phases import Arrays
from spectile.tsparse.cpu.symbolic import counted, sizes
from spectile.tsparse.cpu.work import chunks, survey, work_bytes
from spectile.tsparse.matrices import holds, host_csr, index_type, is_array, require_exact
from spectile.tsparse.room import Room
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.selection import Rows, Wanted, keep, part
from spectile.tsparse.semirings import Semiring
from spectile.tsparse.types import Operand, Precision

_BLOCK_PRODUCTS = 2**22  # of rows that are made before their entries are selected
#: Bytes an entry of a block of rows that is judged, at most: added to others, within or without a mask, pruned, ranked.
_ADDED, _MASKED, _PRUNED, _RANKED = 80, 48, 38, 64


@Progress("spgemm", unit=ROWS)
def spgemm(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    wanted: Wanted,
    *,
    check_finite: bool = True,
    booleans: bool = False,
) -> Any:
    """Multiply on the CPU over a semiring and return what is wanted; see `spectile.tsparse.spgemm`."""
    in_blocks = wanted.in_blocks or wanted.C is not None  # what is done with rows takes more than they do
    parts = (rows for *_, rows in parts_of(A, B, precision, memory_limit, wanted, check_finite, in_blocks, booleans))
    indptr, indices, data = in_one(parts, A.shape[0])
    return host_csr((A.shape[0], B.shape[1]), indptr, indices, data, is_array(A, B))


def in_one(parts: Iterable[Rows], rows: int) -> Rows:
    """Return rows that follow each other as one; memory grows with them, and no part stays."""
    parts = iter(parts)
    indptr, *whole = next(parts)
    done = len(indptr) - 1
    if done < rows:
        indptr = np.concatenate([indptr, np.zeros(rows - done, indptr.dtype)])
        whole = [x if x.base is None else x.copy() for x in whole]
    for ends, *arrays in parts:
        before = len(whole[0])
        np.add(ends[1:], before, out=indptr[done + 1 : done + len(ends)])
        done += len(ends) - 1
        for joined, x in zip(whole, arrays, strict=True):
            joined.resize(before + len(x), refcheck=False)
            joined[before:] = x
    return indptr, whole[0], whole[1]


def parts_of(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    wanted: Wanted,
    check_finite: bool,
    in_blocks: bool,
    booleans: bool,
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and what is wanted of the rows between, of one block of rows after the other.

    Sums of products become Boolean where these are `booleans`.
    """
    exact = precision.dtype.kind == "i"
    room = Room(memory_limit)
    semiring = wanted.semiring
    booleans = booleans or semiring.value == "bool"
    left, right = _factors(A, B, semiring, exact, check_finite, room)
    columns = index_type(right.shape[1])
    mask = None if wanted.mask is None else as_mask(wanted.mask, room)
    added = None if wanted.C is None else _added(wanted.C, precision, check_finite, room)
    (right, *others), held = renumbered(left, [right, *(x for x in (mask, added) if x is not None)], room)
    if mask is not None:
        mask = others.pop(0)
    if added is not None:
        added = others.pop(0)
    if exact:
        _require_held(left, right, mask, wanted, precision, room, in_blocks)
    data_a, data_b, exponents = rounded(left, right, precision, room=room)
    left, right = replace(left, data=data_a), replace(right, data=data_b)
    for first, stop, (indptr, indices, data) in _rows(left, right, mask, added, wanted, room, in_blocks, booleans):
        if exponents is not None:
            data = unscale(data, indptr, indices, (exponents[0][first:stop], exponents[1]))
        beside, within = (None if x is None else part(arrays(x), first, stop) for x in (added, mask))
        indptr, indices, data = wanted.of((indptr, indices, data), beside, within, right.shape[1])
        indices = indices.astype(columns, copy=False)
        if held is not None:
            one_pass.rename(indices, held)
        count(ROWS, stop - first)
        yield first, stop, (indptr, indices, data != 0 if booleans else data)


def _factors(
    A: Any, B: Any, semiring: Semiring, exact: bool, check_finite: bool, room: Room
) -> tuple[Operand, Operand]:
    """Return the factors with the values that the kernels add and multiply."""
    if not semiring.reads_values:
        kind = np.int64 if exact else np.float32
        left, right = factors(A, B, values=False, room=room)
        same = left is right
        room.require(ones := np.dtype(kind).itemsize * (len(left.indices) + (0 if same else len(right.indices))))
        room.held += ones
        left = replace(left, data=np.ones(len(left.indices), kind), largest=1)
        return left, left if same else replace(right, data=np.ones(len(right.indices), kind), largest=1)
    left, right = factors(A, B, check_finite=check_finite, integers=exact, room=room)
    if semiring.multiply == "and":
        room.require(5 * (len(left.data) + len(right.data)))
        # The values before are dropped, but for the caller's, of which an operand has a view.
        room.held += sum(4 * len(x.data) - x.data.nbytes * (x.data.base is None) for x in (left, right))
        left, right = (replace(x, data=(x.data != 0).astype(np.float32)) for x in (left, right))
    return left, right


def as_mask(matrix: Any, room: Room | None = None) -> Operand:
    """Return the entries of a mask that are not 0."""
    room = room or Room()
    mask = one_operand(matrix, "mask", check_finite=False, room=room)
    room.require(len(mask.data))
    true = mask.data != 0
    if true.all():
        return mask
    room.require(len(mask.data) * (17 + mask.indices.itemsize + mask.data.itemsize) + mask.indptr.nbytes)
    indptr, indices, data = keep((mask.indptr, mask.indices, mask.data), true)
    room.hold(indptr, indices, data)
    return replace(mask, indptr=indptr, indices=indices, data=data)


def _added(matrix: Any, precision: Precision, check_finite: bool, room: Room) -> Operand:
    """Return the matrix that is added, in the type of the product."""
    added = one_operand(matrix, "C", check_finite=check_finite, room=room)
    room.require(len(added.data) * (precision.dtype.itemsize + 2))
    with np.errstate(over="ignore", invalid="ignore"):
        data = added.data.astype(precision.dtype)
    if (np.isfinite(added.data) & ~np.isfinite(data)).any():
        raise errors.beyond_float32("C holds entries")
    room.hold(data)
    return replace(added, data=data)


def _require_held(
    A: Operand, B: Operand, mask: Operand | None, wanted: Wanted, precision: Precision, room: Room, in_blocks: bool
) -> None:
    """Raise where an integer of C may be beyond what its type holds."""
    (most, kind), (largest, terms) = holds(precision), sizes(A, B)
    if wanted.semiring.multiply == "times":

        def largest_sum() -> float:
            whole = replace(wanted, complement=False) if mask is not None else wanted
            own = room.nested()
            own.require(8 * (len(A.data) + len(B.data)))
            left, right = (replace(x, data=np.abs(x.data, dtype=np.float64)) for x in (A, B))
            own.hold(left.data, right.data)
            parts = _rows(left, right, mask, None, whole, own, in_blocks)
            return max(float(data.max(initial=0)) for *_, (_, _, data) in parts)

        require_exact(largest, terms, largest_sum, most, kind)
    elif max(largest) > most or (wanted.semiring.multiply == "plus" and sum(largest) > most):
        raise errors.inexact(most, kind)


def _rows(
    A: Operand,
    B: Operand,
    mask: Operand | None,
    added: Operand | None,
    wanted: Wanted,
    room: Room,
    in_blocks: bool,
    booleans: bool = False,
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and the entries of blocks of rows of A B; with a mask, those that it has."""
    kind, inside = wanted.semiring.code, mask is not None and not wanted.complement
    asked = (added is not None, mask is not None and not inside, wanted.prune is not None, wanted.top_n is not None)
    judging = max(size * one for size, one in zip((_ADDED, _MASKED, _PRUNED, _RANKED), asked, strict=True))
    entry = B.indices.itemsize + B.data.itemsize
    each = (entry + max(judging, entry)) * in_blocks  # the block before may be somebody's still
    beside = [x.indptr for x in (mask, added) if x is not None]
    if mask is None or not inside:
        yield from in_blocks_of(A, B, room, each, kind, beside, 4 * booleans)
        return
    kind = kind if wanted.semiring.reads_values else masked.COUNTED
    made = masked.multiply(arrays(A), arrays(B), (mask.indptr, mask.indices), B.shape[1], kind, room)
    own = room.nested()
    if judging:
        own.hold(*made)
    for first, stop in _within(own, made[0], beside, each * (judging > 0), 0):
        yield first, stop, part(made, first, stop)


def _within(
    room: Room, indptr: np.ndarray, beside: Sequence[np.ndarray], each: int, sums: int, entry: int = 0
) -> Iterator[tuple[int, int]]:
    """Return blocks of rows whose entries, and those of matrices beside, have room.

    They take `entry` bytes each beside `sums` when they are made, and `each` when they are judged.
    """
    if room.limit is None or not each:
        return iter([(0, len(indptr) - 1)])
    room.held += 8 * len(indptr)  # of pointers, here and of the blocks in one, half a one is of C
    room.require(8 * len(indptr) * len(beside))
    whole = sum(beside, start=indptr)
    room.hold(whole, beside=[indptr])
    longest = int(np.diff(whole).max(initial=0))
    room.require(max(sums + entry * longest, each * longest))
    return cuts(whole, min(_BLOCK_PRODUCTS, room.left // each, (room.left - sums) // max(entry, 1)))


def in_blocks_of(
    A: Operand, B: Operand, room: Room, each: int, kind: int = 0, beside: Sequence[np.ndarray] = (), converted: int = 0
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and rows of A B: in one pass, or within a limit counted before.

    An entry of a block takes `each` bytes until it is done with, and so does one of the rows of matrices `beside`, of
    which these are the pointers; where it is 0, there is one block, with so many bytes of an entry `converted` at last.
    """
    rows, columns = A.shape[0], B.shape[1]
    sums = workspace(columns, B.data.itemsize)
    room.require(max(work_bytes(rows), sums))
    work = survey(A.indptr, A.indices, B.indptr)
    if room.limit is None:
        for first, stop in cuts(work.before, _BLOCK_PRODUCTS if each else None, work.edges):
            some = A if stop - first == rows else rows_of(A, first, stop)
            yield first, stop, block(some, B, kind)
        return
    pieces = chunks(work)
    own = room.nested()
    own.hold(work.before)
    indptr = phases.count(A.indptr, A.indices, B.indptr, B.indices, columns, pieces, own)
    if not each:
        own.held += int(indptr[-1]) * converted * 3 // 4  # the rest is of C
        own.require(max(int(indptr[-1]) * converted // 4, 4 * len(indptr)))
    for first, stop in _within(own, indptr, beside, each, sums, 2 * (B.indices.itemsize + B.data.itemsize)):
        ends = indptr[first : stop + 1] - indptr[first] if each else indptr
        C = np.empty(int(ends[-1]), B.indices.dtype), np.empty(int(ends[-1]), B.data.dtype)
        part = own.nested()
        if each:
            part.hold(*C)
        some = rows_of(A, first, stop) if each else A
        phases.fill(arrays(some), arrays(B), columns, threads.pieces(ends) if each else pieces, ends, C, part, kind)
        yield first, stop, (ends, *C)
        del C


def cuts(before: np.ndarray, most: int | None, edges: np.ndarray | None = None) -> Iterator[tuple[int, int]]:
    """Yield first row and end of blocks of so many entries, or of one block.

    `before` counts them before each of the rows `edges`, or before each row.
    """
    last, first = len(before) - 1, 0
    while first < last or not last:
        stop = last
        if most is not None and last:
            stop = max(first + 1, int(np.searchsorted(before, before[first] + most, side="right")) - 1)
        yield (first, stop) if edges is None else (int(edges[first]), int(edges[stop]))
        if stop == last:
            return
        first = stop


def block(A: Operand, B: Operand, kind: int = 0) -> Rows:
    """Return the product of some rows of A with B, made in one pass or, if that may take too much, counted before."""
    work = survey(A.indptr, A.indices, B.indptr)
    pieces = chunks(work)
    made = one_pass.multiply(arrays(A), arrays(B), B.shape[1], work, pieces, kind=kind)
    if made is not None:
        return made
    pattern = counted(A, B, Room(), work, pieces)
    data = pattern.values(A.data, B.data, None, kind)
    return pattern._indptr, pattern._columns, data


def rows_of(A: Operand, first: int, stop: int) -> Operand:
    """Return some rows of a factor."""
    indptr, indices, data = part(arrays(A), first, stop)
    return replace(A, shape=(stop - first, A.shape[1]), indptr=indptr, indices=indices, data=data)


def arrays(A: Operand) -> Arrays:
    """Return row pointer, columns and values."""
    return A.indptr, A.indices, A.data
