"""Products over semirings, of which a mask or a selection tells what is wanted, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core.progress import ROWS, Progress, count
from spectile.core.tiling import ceil_div
from spectile.tsparse import errors
from spectile.tsparse.cpu import masked, memory, one_pass, threads
from spectile.tsparse.cpu.operands import factors, one_operand
from spectile.tsparse.cpu.phases import Arrays
from spectile.tsparse.cpu.symbolic import counted, sizes
from spectile.tsparse.cpu.work import Work, chunks, survey
from spectile.tsparse.matrices import holds, host_csr, index_type, is_array, require_exact
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.selection import Rows, Wanted, joined, keep, part
from spectile.tsparse.semirings import Semiring
from spectile.tsparse.types import Operand, Precision

_BLOCK_PRODUCTS = 2**22  # of rows that are made before their entries are selected
_SELECTED = 40  # bytes an entry of a block of rows, at most, that its selection takes
_EXTRA = 48  # bytes an entry of a mask and of C, at most, of its copies


@Progress("spgemm", unit=ROWS)
def spgemm(
    A: Any, B: Any, precision: Precision, memory_limit: int | None, wanted: Wanted, *, check_finite: bool = True
) -> Any:
    """Multiply on the CPU over a semiring and return what is wanted; see `spectile.tsparse.spgemm`."""
    parts = [rows for *_, rows in parts_of(A, B, precision, memory_limit, wanted, check_finite, wanted.in_blocks)]
    indptr, indices, data = parts[0] if len(parts) == 1 else joined(parts)
    return host_csr((A.shape[0], B.shape[1]), indptr, indices, data, is_array(A, B))


def parts_of(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    wanted: Wanted,
    check_finite: bool,
    in_blocks: bool,
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and what is wanted of the rows between, of one block of rows after the other."""
    extra = _EXTRA * sum(int(x.nnz) for x in (wanted.mask, wanted.C) if x is not None)
    if wanted.mask is not None:  # what the ways of making its rows are chosen by, and B by columns
        inner = int(B.nnz) if memory.narrows(A, B) else A.shape[1]
        extra += 40 * int(A.nnz) + 24 * int(B.nnz) + 8 * max(A.shape[0], inner)
    exact = precision.dtype.kind == "i"
    room = memory.room(A, B, precision, memory_limit, exact, extra=extra)
    semiring = wanted.semiring
    left, right = _factors(A, B, semiring, exact, check_finite)
    columns = index_type(right.shape[1])
    mask = None if wanted.mask is None else as_mask(wanted.mask)
    added = None if wanted.C is None else _added(wanted.C, precision, check_finite)
    (right, *others), held = _renumbered([right, *(x for x in (mask, added) if x is not None)], room is not None)
    if mask is not None:
        mask = others.pop(0)
    if added is not None:
        added = others.pop(0)
    if exact:
        _require_held(left, right, mask, wanted, precision, room, in_blocks)
    data_a, data_b, exponents = rounded(left, right, precision)
    left, right = replace(left, data=data_a), replace(right, data=data_b)
    for first, stop, (indptr, indices, data) in _rows(left, right, mask, wanted, room, in_blocks):
        if exponents is not None:
            data = unscale(data, indptr, indices, (exponents[0][first:stop], exponents[1]))
        beside, within = (None if x is None else part(arrays(x), first, stop) for x in (added, mask))
        indptr, indices, data = wanted.of((indptr, indices, data), beside, within, right.shape[1])
        indices = indices.astype(columns, copy=False)
        if held is not None:
            one_pass.rename(indices, held)
        count(ROWS, stop - first)
        yield first, stop, (indptr, indices, data != 0 if semiring.value == "bool" else data)


def _factors(A: Any, B: Any, semiring: Semiring, exact: bool, check_finite: bool) -> tuple[Operand, Operand]:
    """Return the factors with the values that the kernels add and multiply."""
    if not semiring.reads_values:
        kind = np.int64 if exact else np.float32
        left, right = factors(A, B, values=False)
        same = left is right
        left = replace(left, data=np.ones(len(left.indices), kind), largest=1)
        return left, left if same else replace(right, data=np.ones(len(right.indices), kind), largest=1)
    left, right = factors(A, B, check_finite=check_finite, integers=exact)
    if semiring.multiply == "and":
        left, right = (replace(x, data=(x.data != 0).astype(np.float32)) for x in (left, right))
    return left, right


def as_mask(matrix: Any) -> Operand:
    """Return the entries of a mask that are not 0."""
    mask = one_operand(matrix, "mask", check_finite=False)
    true = mask.data != 0
    if true.all():
        return mask
    indptr, indices, data = keep((mask.indptr, mask.indices, mask.data), true)
    return replace(mask, indptr=indptr, indices=indices, data=data)


def _added(matrix: Any, precision: Precision, check_finite: bool) -> Operand:
    """Return the matrix that is added, in the type of the product."""
    added = one_operand(matrix, "C", check_finite=check_finite)
    with np.errstate(over="ignore", invalid="ignore"):
        data = added.data.astype(precision.dtype)
    if (np.isfinite(added.data) & ~np.isfinite(data)).any():
        raise errors.beyond_float32("C holds entries")
    return replace(added, data=data)


def _renumbered(factors: list[Operand], limited: bool) -> tuple[list[Operand], np.ndarray | None]:
    """Return matrices of the same columns with only those that they hold, and these, where there are far more."""
    columns, entries = factors[0].shape[1], sum(len(one.indices) for one in factors)
    if not memory.renumbers(columns, entries, limited):
        return factors, None
    held = np.unique(np.concatenate([one.indices for one in factors]))
    return [
        replace(
            one,
            shape=(one.shape[0], len(held)),
            indices=np.searchsorted(held, one.indices).astype(index_type(len(held))),
        )
        for one in factors
    ], held


def _require_held(
    A: Operand,
    B: Operand,
    mask: Operand | None,
    wanted: Wanted,
    precision: Precision,
    room: float | None,
    in_blocks: bool,
) -> None:
    """Raise where an integer of C may be beyond what its type holds."""
    (most, kind), (largest, terms) = holds(precision), sizes(A, B)
    if wanted.semiring.multiply == "times":

        def largest_sum() -> float:
            whole = replace(wanted, complement=False) if mask is not None else wanted
            left, right = (replace(x, data=np.abs(x.data.astype(np.float64))) for x in (A, B))
            parts = _rows(left, right, mask, whole, room, in_blocks)
            return max(float(data.max(initial=0)) for *_, (_, _, data) in parts)

        require_exact(largest, terms, largest_sum, most, kind)
    elif max(largest) > most or (wanted.semiring.multiply == "plus" and sum(largest) > most):
        raise errors.inexact(most, kind)


def _rows(
    A: Operand, B: Operand, mask: Operand | None, wanted: Wanted, room: float | None, in_blocks: bool
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and the entries of blocks of rows of A B; with a mask, those that it has."""
    kind, columns = wanted.semiring.code, B.shape[1]
    right = B.indptr, B.indices, B.data
    if mask is not None and not wanted.complement:
        yield 0, A.shape[0], masked.multiply(arrays(A), right, (mask.indptr, mask.indices), columns, kind)
        return
    work = survey(A.indptr, A.indices, B.indptr)
    for first, stop in blocks(work, A.shape[0], in_blocks, B.data.dtype.itemsize, room):
        some = A if stop - first == A.shape[0] else rows_of(A, first, stop)
        yield first, stop, block(some, B, kind, room)


def blocks(work: Work, rows: int, in_blocks: bool, itemsize: int, room: float | None) -> list[tuple[int, int]]:
    """Return first row and end of blocks of rows with few enough products, or of one block."""
    if not in_blocks or not rows:
        return [(0, rows)]
    most = _BLOCK_PRODUCTS if room is None else max(1, min(_BLOCK_PRODUCTS, int(room // (_SELECTED + itemsize))))
    parts = max(ceil_div(work.products, most), 1)
    cuts = work.edges[np.searchsorted(work.before, np.arange(1, parts) * (work.products / parts))]
    return [(int(first), int(stop)) for first, stop in threads.between(cuts, rows)]


def block(A: Operand, B: Operand, kind: int, room: float | None) -> Rows:
    """Return the product of some rows of A with B, made in one pass or, if that may take too much, counted before."""
    work = survey(A.indptr, A.indices, B.indptr)
    workers = threads.workers(B.shape[1], max(B.data.dtype.itemsize, 8), room)
    pieces = chunks(work, workers)
    if room is None:
        made = one_pass.multiply(arrays(A), arrays(B), B.shape[1], work, pieces, workers, kind)
        if made is not None:
            return made
    pattern = counted(A, B, room, work, pieces)
    data = pattern.values(A.data, B.data, None, kind)
    return pattern.indptr, pattern.narrow_indices, data


def rows_of(A: Operand, first: int, stop: int) -> Operand:
    """Return some rows of a factor."""
    indptr, indices, data = part(arrays(A), first, stop)
    return replace(A, shape=(stop - first, A.shape[1]), indptr=indptr, indices=indices, data=data)


def arrays(A: Operand) -> Arrays:
    """Return row pointer, columns and values."""
    return A.indptr, A.indices, A.data
