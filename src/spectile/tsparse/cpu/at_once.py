"""Small products of factors that are as kernels read them: one kernel examines both and counts, another fills C.

What is to be said, brought in order, converted, renumbered or shared out is left to the ways of `run`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.tsparse.cpu import one_pass
from spectile.tsparse.cpu.examine import NO_VALUES, examine_rows
from spectile.tsparse.cpu.kernels import JIT, ONE, ZERO, unsigned
from spectile.tsparse.cpu.memory import renumbers
from spectile.tsparse.cpu.operands import readable
from spectile.tsparse.cpu.threads import Arrays
from spectile.tsparse.cpu.work import ROW_COST, WORTH_A_CHUNK, Work
from spectile.tsparse.types import Precision

_LOG = logging.getLogger("spectile.tsparse")
_MET = 4  # entries that are examined in order while one is in a row of its own


@njit(**JIT)
def _examine_and_count(indptr_a, indices_a, data_a, indptr_b, indices_b, data_b, same, columns):  # type: ignore[no-untyped-def]
    """Return the products of A B, or -1 where another way has to look; of a large B only rows that A meets are read."""
    inner = len(indptr_b) - 1
    if indptr_a[0] != 0 or examine_rows(ZERO, np.uint64(len(indptr_a) - 1), indptr_a, indices_a, data_a, inner) != 0:
        return -1
    pointer_b, met, entries = unsigned(indptr_b), unsigned(indices_a), indptr_a[len(indptr_a) - 1]
    products = ZERO
    for p in range(entries):
        products += pointer_b[met[p] + ONE] - pointer_b[met[p]]
    if same:
        return np.int64(products)
    if indptr_b[0] != 0 or not 0 <= indptr_b[inner] <= len(indices_b):
        return -1
    if np.uint64(_MET) * (products + np.uint64(entries)) > pointer_b[inner]:
        wrong = examine_rows(ZERO, np.uint64(inner), indptr_b, indices_b, data_b, columns)
        return np.int64(-1 if wrong != 0 else products)
    wrong, finite = False, len(data_b) == 0
    for p in range(entries):
        k, least = met[p], np.int64(0)
        if indptr_b[k] > indptr_b[k + ONE] or indptr_b[k + ONE] > len(indices_b):
            return -1
        for q in range(pointer_b[k], pointer_b[k + ONE]):
            column = np.int64(indices_b[q])
            wrong |= column < least or not (finite or np.isfinite(data_b[q]))
            least = column + 1
        wrong |= least > columns
    if wrong:
        return -1
    return np.int64(products)


def multiply(A: Any, B: Any, precision: Precision, check_finite: bool) -> Arrays | None:
    """Return row pointer, sorted columns and values of A B, or None where another way has to make it."""
    dtype, columns = precision.dtype, B.shape[1]
    if not A.format == B.format == "csr" or dtype.kind == "i" or precision.name in ("tf32", "float16"):
        return None
    read = []
    for matrix in (A, B)[: 1 + (B is not A)]:
        indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
        data = data.view(np.uint8) if dtype.kind == "u" else data
        fits = len(indices) == len(data) <= WORTH_A_CHUNK and len(indptr) == matrix.shape[0] + 1
        if not fits or data.dtype != dtype or indices.dtype != np.int32:
            return None
        read.append((readable("A", indptr, np.int64), readable("A", indices), readable("A", data)))
    left, right = read[0], read[-1]
    if ROW_COST * len(left[0]) > WORTH_A_CHUNK or renumbers(columns, len(right[1]), False):
        return None
    finite = check_finite and dtype.kind != "u"
    values = [part[2] if finite else NO_VALUES for part in (left, right)]
    products = _examine_and_count(*left[:2], values[0], *right[:2], values[1], right is left, columns)
    if not 0 <= products <= WORTH_A_CHUNK:
        return None
    rows = A.shape[0]
    work = Work(rows, rows, np.array([0, products]))
    made = one_pass.multiply(left, right, columns, work, [(ZERO, np.uint64(rows))])
    if made is not None:
        _LOG.debug("rows are filled in one pass")
    return made
