"""The product on CPUs: by rows, or by the paper's tiles in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.tsparse import reference
from spectile.tsparse.cpu import memory, one_pass, threads
from spectile.tsparse.cpu.operands import operands, renumbered
from spectile.tsparse.cpu.symbolic import SymbolicProduct, counted, sizes, symbolic
from spectile.tsparse.cpu.work import chunks, survey
from spectile.tsparse.matrices import both_boolean, host_csr, index_type, require_exact
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import IN_TILES, TILED, Operand, Precision

CSR = tuple[np.ndarray, np.ndarray, np.ndarray]  # row pointer, columns and values


def spgemm(
    A: Any,
    B: Any,
    precision: Precision,
    method: str,
    memory_limit: int | None,
    *,
    exact: bool = False,
    check_finite: bool = True,
) -> Any:
    """Multiply on the CPU; see `spectile.tsparse.spgemm`.  `exact` asks that no sum of integers is rounded."""
    room = memory.room(A, B, precision, memory_limit, exact)
    tiled = method in TILED
    left, right = operands(A, B, check_finite=check_finite or tiled)
    columns = right.shape[1]
    right, held = (right, None) if tiled else renumbered(right, room is not None)
    if tiled:
        C = _by_tiles(left, right, precision, method == "tasks", exact)
    else:
        entry_bytes = 4 if both_boolean(A, B) else 0  # of sums that become Boolean
        C = _by_rows(left, right, precision, exact, memory_limit, room, entry_bytes)
    indptr, indices, data = C
    indices = indices.astype(index_type(columns), copy=False)
    if held is not None:
        one_pass.rename(indices, held)
    return host_csr((left.shape[0], columns), indptr, indices, data, left.array or right.array)


def _by_rows(
    A: Operand,
    B: Operand,
    precision: Precision,
    exact: bool,
    memory_limit: int | None,
    room: float | None,
    entry_bytes: int,
) -> CSR:
    """Multiply row by row, in one pass or, if that may need too much memory, after counting the rows."""
    work = survey(A.indptr, A.indices, B.indptr)
    workers = threads.workers(B.shape[1], 8, room)
    pieces = chunks(work, workers)
    pattern: SymbolicProduct | None = None
    data = None

    def rows() -> SymbolicProduct:
        made = counted(A, B, room, work, pieces)
        memory.require(memory_limit, room, entry_bytes * made.nnz, B.shape[1])
        return made

    def largest_sum() -> float:
        nonlocal pattern, data
        pattern = rows()
        data = pattern.sums_of_sizes(A, B)
        return float(data.max(initial=0))

    if exact:
        require_exact(*sizes(A, B), largest_sum)
    if room is None and pattern is None:
        data_a, data_b, exponents = rounded(A, B, precision)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        product = one_pass.multiply(left, right, B.shape[1], work, pieces, workers)
        if product is not None:
            indptr, indices, data = product
            return indptr, indices, unscale(data, indptr, indices, exponents)
    pattern = pattern or rows()
    data = pattern.product(A, B, precision, data)
    return pattern.indptr, pattern.narrow_indices, data


def _by_tiles(A: Operand, B: Operand, precision: Precision, drop_cancelled: bool, exact: bool) -> CSR:
    """Multiply by the paper's algorithm."""
    if exact:
        require_exact(*sizes(A, B), lambda: float(symbolic(A, B).sums_of_sizes(A, B).max(initial=0)))
    data_a, data_b, exponents = rounded(A, B, precision, IN_TILES)
    left, right = (reference.to_bitmap(x.with_data(d).csr()) for x, d in ((A, data_a), (B, data_b)))
    C = reference.to_csr(reference.spgemm(left, right, precision.dtype, drop_cancelled))
    indptr, indices, data = C.indptr.astype(np.int64), C.indices, C.data
    return indptr, indices, unscale(data, indptr, indices, exponents)
