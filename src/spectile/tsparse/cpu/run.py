"""The product on CPUs, row by row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.progress import PARTS, Progress
from spectile.core.threads import num_threads
from spectile.tsparse.cpu import at_once, one_pass, symmetric
from spectile.tsparse.cpu.dense import multiply as multiply_dense
from spectile.tsparse.cpu.memory import workspace
from spectile.tsparse.cpu.operands import factors, renumbered
from spectile.tsparse.cpu.symbolic import SymbolicProduct, counted, sizes
from spectile.tsparse.cpu.ways import by_columns
from spectile.tsparse.cpu.work import chunks, survey, work_bytes
from spectile.tsparse.matrices import (
    holds,
    host_csr,
    in_format,
    index_type,
    is_array,
    related,
    require_exact,
    transpose,
)
from spectile.tsparse.room import Room
from spectile.tsparse.rounding import converted_bytes, rounded, unscale
from spectile.tsparse.types import Operand, Precision

_LOG = logging.getLogger("spectile.tsparse")
CSR = tuple[np.ndarray, np.ndarray, np.ndarray]  # row pointer, columns and values


def spgemm(
    A: Any, B: Any, precision: Precision, memory_limit: int | None, *, check_finite: bool = True, form: str = "csr"
) -> Any:
    """Multiply on the CPU; see `spectile.tsparse.spgemm`."""
    turned = by_columns(A, B, form, precision, memory_limit is not None)
    if turned:
        _LOG.debug("C is made by columns")
        right = A.T
        A, B = right if A is B else B.T, right
    if memory_limit is None and form == ("csc" if turned else "csr"):
        product = at_once.multiply(A, B, precision, check_finite)
        if product is not None:
            C = host_csr((A.shape[0], B.shape[1]), *product, is_array(A, B))
            return transpose(C) if turned else C
    return _in_order(A, B, precision, memory_limit, check_finite, form, turned)


@Progress("spgemm", unit=PARTS)
def _in_order(
    A: Any, B: Any, precision: Precision, memory_limit: int | None, check_finite: bool, form: str, turned: bool
) -> Any:
    """Multiply factors that are checked, brought in order and converted first."""
    exact = precision.dtype.kind in "iu"
    room = Room(memory_limit)
    left, right = factors(A, B, turned, check_finite=check_finite, integers=exact, room=room)
    columns = right.shape[1]
    (right,), held = renumbered(left, [right], room)
    whole = form == "dense" and held is None and precision.name != "float16"
    product = _multiply(
        left,
        right,
        precision,
        room,
        names="BA" if turned else "AB",
        after=lambda entries: _after(entries, (left.shape[0], columns), precision.dtype.itemsize, form, turned),
        related=lambda: related(A, B) if held is None else (False, False),
        dense=whole,
    )
    if isinstance(product, np.ndarray):
        return product
    indptr, indices, data = product
    indices = indices.astype(index_type(columns), copy=False)
    if held is not None:
        one_pass.rename(indices, held)
    C = host_csr((left.shape[0], columns), indptr, indices, data, left.array or right.array)
    return in_format(transpose(C) if turned else C, form)


def _after(entries: int, shape: tuple[int, int], itemsize: int, form: str, turned: bool) -> int:
    """Return what a counted product takes beside C, of so many entries, when it is finished."""
    index = np.dtype(index_type(shape[1])).itemsize
    pointer = (shape[0] + 1) * (4 if entries < 2**31 and index == 4 else 0)  # beside that of 64 bits
    other = form not in ("csc" if turned else "csr", "coo")
    return pointer + other * (entries * (index + itemsize + 8 * (form == "dense")) + 4 * (shape[0] + 1))


def _multiply(
    A: Operand,
    B: Operand,
    precision: Precision,
    room: Room,
    *,
    names: str,
    after: Callable[[int], int],
    related: Callable[[], tuple[bool, bool]],
    dense: bool,
) -> CSR | np.ndarray:
    """Multiply row by row, in one pass or, if that may need too much memory, after counting the rows.

    `names` are those of the factors, `after` says what so many entries of C take, beside C, when it is finished, and
    `related` whether B is the transpose or the adjoint of A, of which a triangle is made.
    """
    # What is known before C is counted: values as they are multiplied, and the sums of a row.
    sums = 0 if dense else workspace(B.shape[1], precision.dtype.itemsize)
    if room.limit is not None:
        result, passing = converted_bytes(A, B, precision)
        room.require(max(work_bytes(A.shape[0]), result + max(passing, sums)))
    work = survey(A.indptr, A.indices, B.indptr)
    pieces = chunks(work)
    counts = work.before.nbytes
    room.held += counts
    pattern: SymbolicProduct | None = None
    data = None

    def rows() -> SymbolicProduct:
        made = counted(A, B, room, work, pieces)
        room.require(after(made.nnz) - counts)
        return made

    def largest_sum() -> float:
        nonlocal pattern, data
        pattern = rows()
        data = pattern.sums_of_sizes(A, B, room)
        return float(data.max(initial=0))

    if precision.dtype.kind == "i":
        require_exact(*sizes(A, B), largest_sum, *holds(precision))
        if data is not None:  # C takes its place
            data = data.view(precision.dtype)[: len(data)]
            room.held += len(data) * (8 - data.itemsize)
    if dense:
        data_a, data_b, _ = rounded(A, B, precision, names, room)
        _LOG.debug("C is dense")
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        return multiply_dense(left, right, B.shape[1], pieces, num_threads())
    if room.limit is None and pattern is None:
        data_a, data_b, exponents = rounded(A, B, precision, names)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        way, product, entries = "rows of a triangle are filled in one pass, and mirrored", None, len(A.indices)
        # A triangle has half of the products, and of those on the diagonal all: one for each entry of A.
        if A.places.first is None is B.places.first and symmetric.worth((work.products + entries) // 2, entries):
            triangle = related()
            product = symmetric.multiply(left, right, triangle[1]) if any(triangle) else None
        if product is None:
            way = "rows are filled in one pass"
            product = one_pass.multiply(left, right, B.shape[1], work, pieces)
        if product is not None:
            _LOG.debug(way)
            indptr, indices, data = product
            return indptr, indices, unscale(data, indptr, indices, exponents)
    _LOG.debug("rows are counted, then filled")
    pattern = pattern or rows()
    data = pattern.product(A, B, precision, room, data, names)
    return pattern._indptr, pattern._columns, data
