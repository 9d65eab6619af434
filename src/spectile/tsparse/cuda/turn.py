"""Matrices on the device by columns, and products with a matrix's own transpose: half of them is made and mirrored.

CuPy's conversion promises no order within a column, and takes no Booleans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.launch import kernel
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import choose, parts, units
from spectile.tsparse.cuda.rows.count import count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.matrices import device_csr, is_array
from spectile.tsparse.selection import owners
from spectile.tsparse.types import Factor, Precision

#: Entries of a column up to which each counts those before it: the steps of a column are its square over eight.
_LONGEST = 256
#: Products of a triangle, and products for each entry of C, below which mirroring takes what it saves: on an H200 an
#: entry takes about 100 ps, and half of a product 6 ps.
_WORTH_MIRRORING, _WORTH_AN_ENTRY = 2**22, 32
_SAMPLE = 64  # one part of the rows in so many is counted, to tell the products for each entry


def turned(indptr: Any, indices: Any, columns: int, strict: bool = False) -> tuple[Any, Any, Any]:
    """Return a matrix by columns: where each begins, the rows of its entries, and their places in the matrix by rows.

    Columns of the given rows are in range, in any order; with `strict` entries on the diagonal are left out.  Within a
    column entries are in the order of rows, and of places within one; all are int32.
    """
    import cupy

    count, unit = len(indptr) - 1, units.TURN["float32"]
    sizes = np.int32(count), np.uint32(len(indices)), np.int32(strict)
    starts, counts = cupy.zeros(columns + 1, np.int32), cupy.zeros(columns, np.int32)
    if not len(indices):
        return starts, cupy.empty(0, np.int32), cupy.empty(0, np.int32)
    kernel(unit, "count_columns")(choose.lanes_each(len(indices)), *sizes, indptr, indices, counts)
    cupy.cumsum(counts, dtype=np.int32, out=starts[1:])
    longest, entries = (int(x) for x in cupy.asnumpy(cupy.stack([counts.max(), starts[-1]])))
    if longest > _LONGEST:
        return starts, *_sorted(indptr, indices, strict)
    words = cupy.empty(entries, np.uint64)
    rows, places = cupy.empty(entries, np.int32), cupy.empty(entries, np.int32)
    kernel(unit, "list_columns")(choose.lanes_each(len(indices)), *sizes, indptr, indices, starts[:-1].copy(), words)
    kernel(unit, "order_columns")(choose.lanes_each(columns, 3), np.int32(columns), starts, words, rows, places)
    return starts, rows, places


def _sorted(indptr: Any, indices: Any, strict: bool) -> tuple[Any, Any]:
    """Return the rows and places of `turned` where some column is long."""
    import cupy

    order = cupy.argsort(indices, kind="stable")
    rows = owners(indptr, len(indices), cupy)[order]
    if strict:
        kept = rows != indices[order]
        order, rows = order[kept], rows[kept]
    return rows.astype(np.int32), order.astype(np.int32)


def in_columns(C: Any) -> Any:
    """Return a matrix of CuPy in CSR with sorted rows in CSC with sorted columns."""
    if C.indices.dtype != np.int32:
        return C.tocsc()
    starts, rows, places = turned(C.indptr, C.indices, C.shape[1])
    by_columns = device_csr(C.shape[::-1], starts, rows, C.data[places], is_array(C)).T
    by_columns.has_canonical_format = True
    return by_columns


def with_transpose(base: Factor, first: bool, adjoint: bool) -> tuple[Factor, Factor, Any]:
    """Return both factors of a product of a checked one and its transpose, and the places of A's entries in B.

    The checked one is A if `first`, and the other is conjugated if `adjoint`.
    """
    import cupy

    starts, rows, order = turned(base.indptr, base.indices, base.shape[1])
    data = base.data[order]
    other = Factor(base.shape[::-1], starts, rows, data.conj() if adjoint else data)
    if not first:
        return other, base, order
    places = cupy.empty_like(order)
    places[order] = cupy.arange(len(order), dtype=np.int32)
    return base, other, places


def multiply(A: Factor, B: Factor, places: Any, precision: Precision, adjoint: bool) -> tuple[Any, Any, Any] | None:
    """Return row pointer, columns and values of A B, B being A's transpose, or None where a triangle is not worth it.

    Row i of the triangle needs of row k of B the entries from column i on, of which the first is where entry (i, k) of
    A lies in B.  So A's columns become these places, twice each: with where they begin and where their row ends as
    the row pointer, B's entries need no copy, and the kernels are those of any product.
    """
    import cupy

    entries = len(A.indices)
    lengths = (B.indptr[1:] - B.indptr[:-1]).astype(np.int64)
    if 2 * entries > parts.MOST_ENTRIES or int((lengths * (lengths + 1)).sum()) < 2 * _WORTH_MIRRORING:
        return None
    rows, value = A.shape[0], precision.value
    middle = rows // 2
    sample = count_rows(A, B, middle, min(middle + ceil_div(rows, _SAMPLE), rows), value)
    if sample.products < _WORTH_AN_ENTRY * sample.entries:
        return None
    pairs = cupy.empty((entries + 1, 2), np.int32)
    pairs[:entries, 0] = cupy.arange(entries, dtype=np.int32)
    pairs[places, 1] = B.indptr[A.indices + 1]
    left = replace(A, shape=(rows, 2 * entries), indices=2 * places)
    right = replace(B, shape=(2 * entries, B.shape[1]), indptr=pairs.reshape(-1))
    phase = count_rows(left, right, 0, rows, value)
    needed = phase.entries * (3 * (4 + precision.dtype.itemsize) + 16)
    if 2 * phase.entries > parts.MOST_ENTRIES or needed > memory.free_bytes():
        return None
    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    fill_rows(left, right, phase, indices, data)
    return _mirrored(phase.indptr, indices, data, adjoint)


def _mirrored(indptr: Any, indices: Any, data: Any, adjoint: bool) -> tuple[Any, Any, Any]:
    """Return a symmetric or Hermitian matrix of its entries from the diagonal on."""
    import cupy

    rows = len(indptr) - 1
    starts, row_of, places = turned(indptr, indices, rows, strict=True)
    total = len(indices) + len(row_of)
    whole, values = cupy.empty(total, np.int32), cupy.empty(total, data.dtype)
    sizes = np.int32(rows), np.int32(adjoint)
    triangle, below = (indptr, indices, data), (starts, row_of, places)
    unit = units.TURN[data.dtype.name]
    kernel(unit, "mirror")(choose.lanes_each(rows, 5), *sizes, *triangle, *below, whole, values)
    return indptr + starts, whole, values
