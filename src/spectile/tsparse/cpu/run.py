"""The product on CPUs, row by row."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from spectile.core.progress import PARTS, Progress
from spectile.tsparse.cpu import dense, memory, one_pass, symmetric, threads
from spectile.tsparse.cpu.operands import factors, renumbered
from spectile.tsparse.cpu.symbolic import SymbolicProduct, counted, sizes
from spectile.tsparse.cpu.ways import by_columns
from spectile.tsparse.cpu.work import chunks, survey
from spectile.tsparse.matrices import (
    both_boolean,
    holds,
    host_csr,
    in_format,
    index_type,
    require_exact,
    transpose,
)
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import Operand, Precision

_LOG = logging.getLogger("spectile.tsparse")
CSR = tuple[np.ndarray, np.ndarray, np.ndarray]  # row pointer, columns and values


@Progress("spgemm", unit=PARTS)
def spgemm(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    *,
    check_finite: bool = True,
    form: str = "csr",
) -> Any:
    """Multiply on the CPU; see `spectile.tsparse.spgemm`."""
    turned = by_columns(A, B, form, precision, memory_limit is not None)
    if turned:
        _LOG.debug("C is made by columns")
        right = A.T
        A, B = right if A is B else B.T, right
    exact = precision.dtype.kind == "i"
    room = memory.room(A, B, precision, memory_limit, exact)
    left, right = factors(A, B, turned, check_finite=check_finite, integers=exact)
    columns = right.shape[1]
    right, held = renumbered(right, room is not None)
    whole = form == "dense" and held is None and precision.name != "float16"
    job = Job(
        names="BA" if turned else "AB",
        entry_bytes=4 if both_boolean(A, B) else 0,
        triangle=symmetric.related(A, B) if held is None and not whole else (False, False),
        dense=whole,
    )
    product = _multiply(left, right, precision, memory_limit, room, job)
    if isinstance(product, np.ndarray):
        return product
    indptr, indices, data = product
    indices = indices.astype(index_type(columns), copy=False)
    if held is not None:
        one_pass.rename(indices, held)
    C = host_csr((left.shape[0], columns), indptr, indices, data, left.array or right.array)
    return in_format(transpose(C) if turned else C, form)


class Job(NamedTuple):
    """How a product is made: names of the factors, bytes an entry of sums that become Boolean, and special cases.

    `triangle` tells whether B is the transpose or the adjoint of A, of which a triangle is made.
    """

    names: str
    entry_bytes: int
    triangle: tuple[bool, bool]
    dense: bool


def _multiply(
    A: Operand,
    B: Operand,
    precision: Precision,
    memory_limit: int | None,
    room: float | None,
    job: Job,
) -> CSR | np.ndarray:
    """Multiply row by row, in one pass or, if that may need too much memory, after counting the rows."""
    work = survey(A.indptr, A.indices, B.indptr)
    workers = threads.workers(B.shape[1], max(precision.dtype.itemsize, 8), room)
    pieces = chunks(work, workers)
    pattern: SymbolicProduct | None = None
    data = None

    def rows() -> SymbolicProduct:
        made = counted(A, B, room, work, pieces)
        memory.require(memory_limit, room, job.entry_bytes * made.nnz, B.shape[1])
        return made

    def largest_sum() -> float:
        nonlocal pattern, data
        pattern = rows()
        data = pattern.sums_of_sizes(A, B)
        return float(data.max(initial=0))

    if precision.dtype.kind == "i":
        require_exact(*sizes(A, B), largest_sum, *holds(precision))
        if data is not None:  # C takes its place
            data = data.view(precision.dtype)[: len(data)]
    if job.dense:
        data_a, data_b, _ = rounded(A, B, precision, job.names)
        _LOG.debug("C is dense")
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        return dense.multiply(left, right, B.shape[1], pieces, workers)
    if room is None and pattern is None:
        data_a, data_b, exponents = rounded(A, B, precision, job.names)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        way, product = "rows of a triangle are filled in one pass, and mirrored", None
        if any(job.triangle) and A.places.first is None and B.places.first is None:
            product = symmetric.multiply(left, right, workers, job.triangle[1])
        if product is None:
            way = "rows are filled in one pass"
            product = one_pass.multiply(left, right, B.shape[1], work, pieces, workers)
        if product is not None:
            _LOG.debug(way)
            indptr, indices, data = product
            return indptr, indices, unscale(data, indptr, indices, exponents)
    _LOG.debug("rows are counted, then filled")
    pattern = pattern or rows()
    data = pattern.product(A, B, precision, data, job.names)
    return pattern.indptr, pattern.narrow_indices, data
