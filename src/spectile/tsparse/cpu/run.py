"""The product on CPUs: by rows, or by the paper's tiles in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.tsparse import reference
from spectile.tsparse.cpu import one_pass, threads
from spectile.tsparse.cpu.operands import operands
from spectile.tsparse.cpu.symbolic import counted
from spectile.tsparse.cpu.work import chunks, survey
from spectile.tsparse.matrices import host_csr
from spectile.tsparse.rounding import rounded, unscale
from spectile.tsparse.types import IN_TILES, TILED, Operand, Precision


def spgemm(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None) -> Any:
    """Multiply on the CPU; see `spectile.tsparse.spgemm`."""
    left, right = operands(A, B)
    if method in TILED:
        return _by_tiles(left, right, precision, drop_cancelled=method == "tasks")
    return _by_rows(left, right, precision, memory_limit)


def _by_rows(A: Operand, B: Operand, precision: Precision, memory_limit: int | None) -> Any:
    """Multiply row by row, in one pass or, if that may need too much memory, after counting the rows."""
    work = survey(A.indptr, A.indices, B.indptr)
    workers = threads.workers(B.shape[1], 8, memory_limit)
    pieces = chunks(work, workers)
    if memory_limit is None:
        data_a, data_b, exponents = rounded(A, B, precision)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        product = one_pass.multiply(left, right, B.shape[1], work, pieces, workers)
        if product is not None:
            indptr, indices, data = product
            data = unscale(data, indptr, indices, exponents)
            return host_csr((A.shape[0], B.shape[1]), indptr, indices, data, A.array or B.array)
    return counted(A, B, memory_limit, work, pieces).product(A, B, precision)


def _by_tiles(A: Operand, B: Operand, precision: Precision, drop_cancelled: bool) -> Any:
    """Multiply by the paper's algorithm."""
    data_a, data_b, exponents = rounded(A, B, precision, IN_TILES)
    left, right = (reference.to_bitmap(x.with_data(d).csr()) for x, d in ((A, data_a), (B, data_b)))
    C = reference.to_csr(reference.spgemm(left, right, precision.dtype, drop_cancelled))
    indptr, indices, data = C.indptr.astype(np.int64), C.indices, C.data
    data = unscale(data, indptr, indices, exponents)
    return host_csr((A.shape[0], B.shape[1]), indptr, indices.astype(A.indices.dtype), data, A.array or B.array)
