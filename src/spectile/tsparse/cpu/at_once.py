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
_FEW = 8  # rows whose places become ones of 64 bits while those of one are written beside an entry
_NO_PLACES = np.empty(0, np.int64)


@njit(**JIT)
def _examine_and_count(indptr_a, indices_a, data_a, indptr_b, indices_b, data_b, same, columns, most, begin, end):  # type: ignore[no-untyped-def]
    """Return the products of A B, or -1 where another way has to look, as where there are more than `most`.

    Where `begin` and `end` have places, they get the first place and the end of the row of B that each entry of A
    meets.  Of a B that is far larger than the product only these rows are read.
    """
    inner = len(indptr_b) - 1
    if indptr_a[0] != 0 or examine_rows(ZERO, np.uint64(len(indptr_a) - 1), indptr_a, indices_a, data_a, inner) != 0:
        return -1
    pointer_b, met, entries = unsigned(indptr_b), unsigned(indices_a), np.uint64(indptr_a[len(indptr_a) - 1])
    products = ZERO
    for p in range(entries):
        k = np.uint64(met[p])
        products += pointer_b[k + ONE] - pointer_b[k]
    for p in range(len(begin)):
        begin[p], end[p] = indptr_b[met[p]], indptr_b[met[p] + ONE]
    if products > most:
        return -1
    if same:
        return np.int64(products)
    if indptr_b[0] != 0 or not 0 <= indptr_b[inner] <= len(indices_b):
        return -1
    if np.uint64(_MET) * (products + entries) > np.uint64(indptr_b[inner]):
        wrong = examine_rows(ZERO, np.uint64(inner), indptr_b, indices_b, data_b, columns)
        return np.int64(-1 if wrong != 0 else products)
    wrong, finite = False, len(data_b) == 0
    for p in range(entries):
        k, least = np.uint64(met[p]), np.int64(0)
        if indptr_b[k] > indptr_b[k + ONE] or indptr_b[k + ONE] > len(indices_b):
            return -1
        for q in range(pointer_b[k], pointer_b[k + ONE]):
            column = np.int64(indices_b[q])
            wrong |= column < least or not (finite or np.isfinite(data_b[q]))
            least = column + 1
        wrong |= least > columns
    return np.int64(-1 if wrong else products)


def multiply(A: Any, B: Any, precision: Precision, check_finite: bool) -> Arrays | None:
    """Return row pointer, sorted columns and values of A B, or None where another way has to make it."""
    dtype, (rows, inner), columns = precision.dtype, A.shape, B.shape[1]
    if not A.format == B.format == "csr" or dtype.kind == "i" or precision.name in ("tf32", "float16"):
        return None
    if max(ROW_COST * rows, len(A.indices)) > WORTH_A_CHUNK or renumbers(columns, len(B.indices), False):
        return None
    read = []
    for name, matrix in (("A", A), ("B", B))[: 1 + (B is not A)]:
        indptr, indices, data = (readable(name, one) for one in (matrix.indptr, matrix.indices, matrix.data))
        data = data.view(np.uint8) if dtype.kind == "u" else data
        fits = len(indices) == len(data) and len(indptr) == matrix.shape[0] + 1
        if not fits or data.dtype != dtype or indices.dtype != np.int32 or indptr.dtype != np.int32:
            return None
        read.append((indptr, indices, data))
    left, right = read[0], read[-1]
    finite, few = check_finite and dtype.kind != "u", _FEW * len(left[1]) < inner
    values = (left[2], right[2]) if finite else (NO_VALUES, NO_VALUES)
    begin, end = np.empty((2, len(left[1])), np.int64) if few else (_NO_PLACES, _NO_PLACES)
    places = right is left, columns, WORTH_A_CHUNK, begin, end
    products = _examine_and_count(*left[:2], values[0], *right[:2], values[1], *places)
    if products < 0:
        return None
    # Rows of B are taken by their places, one for each entry of A, where this is less than all of them.
    bounds = (begin, end) if few else right[0].astype(np.int64)
    indices = np.arange(len(left[1]), dtype=np.int32) if few else left[1]
    factors = (left[0].astype(np.int64), indices, left[2]), (bounds, *right[1:])
    made = one_pass.multiply(*factors, columns, Work(rows, rows, np.array([0, products])), [(ZERO, np.uint64(rows))])
    if made is not None:
        _LOG.debug("rows are filled in one pass")
    return made
