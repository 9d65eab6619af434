"""Factors on the host, checked and brought to CSR with sorted rows and no duplicates.

The pattern is brought in order first, and with it the places at which the caller's matrix stores its values, so that
values are summed in a type that holds their sums, now or when they come later (`take`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core import pointers
from spectile.core.host import refuse_malformed
from spectile.tsparse import errors
from spectile.tsparse.cpu.examine import examine
from spectile.tsparse.cpu.memory import narrows, renumbers
from spectile.tsparse.cpu.threads import Arrays
from spectile.tsparse.matrices import index_type, is_array, largest_integer
from spectile.tsparse.selection import keep
from spectile.tsparse.types import Operand, Places


def operands(
    A: Any, B: Any, *, values: bool = True, check_finite: bool = True, integers: bool = False
) -> tuple[Operand, Operand]:
    """Check both factors; a square's factor is checked once.

    Parameters
    ----------
    A, B : scipy.sparse matrix or array
    values : bool
        Whether the values are read at all.
    check_finite : bool
        Whether values that are not finite are refused.
    integers : bool
        Whether integers that 64 bits hold are left as they are; else they become floats.
    """
    options = {"values": values, "check_finite": check_finite, "integers": integers}
    left = one_operand(A, "A", **options)
    return left, left if B is A else one_operand(B, "B", **options)


def factors(A: Any, B: Any, turned: bool = False, **options: Any) -> tuple[Operand, Operand]:
    """Check both factors, as `operands`, and leave out the rows of B that it does not hold where these are most.

    What remains of the inner dimension has numbers of its own.  If `turned`, A and B are the transposes of the caller's
    B and A.
    """
    first, second = "BA" if turned else "AB"
    left = one_operand(A, first, turned=turned, **options)
    if B is A:
        return left, left
    if not narrows(A, B):
        return left, one_operand(B, second, turned=turned, **options)
    across = one_operand(B.T, second, turned=not turned, **options)
    held = np.unique(across.indices)
    place = np.minimum(np.searchsorted(held, left.indices), max(len(held) - 1, 0))
    met = held[place] == left.indices if len(held) else np.zeros(len(place), bool)
    indptr, indices, data = keep((left.indptr, place, left.data if len(left.data) else place), met)
    kind = index_type(len(held))
    left = replace(
        left,
        shape=(A.shape[0], len(held)),
        indptr=indptr,
        indices=indices.astype(kind),
        data=data if len(left.data) else left.data,
    )
    numbers = np.searchsorted(held, across.indices).astype(kind)
    places = np.arange(len(numbers), dtype=index_type(len(numbers)))
    indptr, indices, order = turn((across.indptr, numbers, places), len(held))
    data = across.data[order] if len(across.data) else across.data
    return left, replace(across, shape=(len(held), B.shape[1]), indptr=indptr, indices=indices, data=data)


def turn(rows: Arrays, columns: int) -> Arrays:
    """Return row pointer, columns and values of the transpose of a matrix."""
    import scipy.sparse as sp

    indptr, indices, data = rows
    turned = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns)).tocsc()
    return turned.indptr.astype(np.int64), turned.indices, turned.data


def one_operand(
    matrix: Any,
    name: str,
    *,
    values: bool = True,
    check_finite: bool = True,
    integers: bool = False,
    turned: bool = False,
) -> Operand:
    """Check a factor and bring it to CSR with sorted rows and no duplicates; the input is not changed.

    If `turned`, it is the transpose of the caller's, whose rows and columns are then named.
    """
    rows, columns = matrix.shape
    if turned:
        refuse_malformed(name, matrix)
    indptr, indices, order, stored = _arranged(matrix, name)
    places = Places(stored.shape, order)
    data = _exact(name, stored.reshape(-1)) if values else np.empty(0, np.float32)
    largest, lost = None, None
    ordered = data if order is None or not values else data[order]
    floating = values and data.dtype.kind in "fc"
    outside, infinite, unsorted, falls = examine(
        indptr, indices, ordered if floating and check_finite else None, columns
    )
    if falls:
        raise errors.bad_pointer(name)
    if outside:
        raise errors.bad_index(name, columns)
    if infinite:
        raise _not_finite(name, ordered, indptr, indices, turned)
    indices = indices.astype(index_type(columns), copy=False)
    if unsorted:
        indptr, indices, places = _sorted(indptr, indices, places)
        if values:
            ordered, lost = _summed(data, places)
            if floating and check_finite and not np.isfinite(ordered).all():
                raise _not_finite(name, ordered, indptr, indices, turned)
    if values and data.dtype.kind in "iu":
        largest = largest_integer(ordered)
        if largest > 2**53:
            lost = np.abs(ordered.astype(np.float64)) * 2.0**-53
    if not integers or (largest is not None and largest >= 2**63):
        ordered = _floating(ordered)
    return Operand((rows, columns), indptr, indices, ordered, is_array(matrix), places, largest, lost)


def _arranged(matrix: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return row pointer and columns by rows, the stored place of each entry (None: as stored), and stored values."""
    import scipy.sparse as sp

    form = matrix.format
    if form not in ("csr", "csc", "coo", "bsr"):  # these hold no entry twice, and their values have no places
        matrix, form = matrix.tocsr(), "csr"
    elif form != "csr":
        refuse_malformed(name, matrix)
    data = readable(name, matrix.data)
    if form == "csr":
        return *_walkable(matrix, name), None, data[: int(matrix.indptr[-1])]
    shape = matrix.shape
    if form == "csc":
        nnz = int(matrix.indptr[-1])
        indptr, indices = (readable(name, x) for x in (matrix.indptr, matrix.indices))
        places = np.arange(nnz, dtype=index_type(nnz))
        csr = sp.csc_array((places, indices[:nnz], indptr), shape=shape).tocsr()
        return csr.indptr.astype(np.int64), csr.indices, csr.data, data[:nnz]
    if form == "coo":
        row, column = (readable(name, x) for x in (matrix.row, matrix.col))
    else:
        row, column = _of_blocks(matrix)
        data = data[: int(matrix.indptr[-1])]
    nnz = len(row)
    # Entries as the columns of a matrix, whose conversion sorts them by row and keeps their order.
    each = sp.csc_array((column, row, np.arange(nnz + 1)), shape=(shape[0], nnz)).tocsr()
    return each.indptr.astype(np.int64), each.data, each.indices, data


def readable(name: str, array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Return an array as kernels read it, which never write to it: they would be compiled anew for a read-only type."""
    if array.flags.carray and array.dtype.isnative and (dtype is None or array.dtype == dtype):
        return array
    array = pointers.operand(name, array, dtype)
    return pointers.without_read_only(array)


def _walkable(matrix: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row pointer and columns of a CSR matrix whose lengths fit."""
    indptr, indices = matrix.indptr, matrix.indices
    if len(indptr) != matrix.shape[0] + 1 or indptr[0] != 0 or not 0 <= indptr[-1] <= len(indices):
        raise errors.bad_pointer(name)
    if len(indices) != len(matrix.data):
        raise errors.other_lengths(name, len(indices), len(matrix.data))
    indices = readable(name, indices[: int(indptr[-1])])
    return readable(name, indptr, np.int64), indices


def _of_blocks(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of each value of a BSR matrix, in the order of its blocks."""
    height, width = matrix.blocksize
    count = int(matrix.indptr[-1])
    first = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr)) * height
    row = first[:, None, None] + np.arange(height)[:, None]
    column = matrix.indices[:count].astype(np.int64)[:, None, None] * width + np.arange(width)
    whole = (count, height, width)
    return np.broadcast_to(row, whole).reshape(-1), np.broadcast_to(column, whole).reshape(-1)


def _sorted(indptr: np.ndarray, indices: np.ndarray, places: Places) -> tuple[np.ndarray, np.ndarray, Places]:
    """Return row pointer and columns sorted within rows, each once, and the places of their values."""
    import scipy.sparse as sp

    nnz, rows = len(indices), len(indptr) - 1
    order = np.arange(nnz, dtype=index_type(nnz)) if places.order is None else places.order.copy()
    columns = int(indices.max()) + 1
    clean = sp.csr_array((order, indices.copy(), indptr.copy()), shape=(rows, columns))
    clean.sort_indices()
    indices, order = clean.indices.astype(indices.dtype, copy=False), clean.data
    new = np.ones(nnz, bool)
    np.not_equal(indices[1:], indices[:-1], out=new[1:])
    new[indptr[:-1][indptr[:-1] < nnz]] = True
    if new.all():
        return indptr, indices, Places(places.shape, order)
    first = np.flatnonzero(new)
    return np.searchsorted(first, indptr).astype(np.int64), indices[first], Places(places.shape, order, first)


def take(data: np.ndarray, places: Places) -> np.ndarray:
    """Return stored values in the order of the factor's entries, duplicates summed; of the same type."""
    if places.order is None:
        return data
    if places.first is None:
        return data.reshape(-1)[places.order]
    return _summed(data.reshape(-1), places)[0].astype(data.dtype)


def _summed(data: np.ndarray, places: Places) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values in order, duplicates summed, and what the sums may have lost: None for nothing.

    Floating values are summed in float64, integers exactly, and Booleans as SciPy does: True or True is True.
    """
    ordered = data[places.order]
    first = places.first
    if first is None:
        return ordered, None
    if data.dtype.kind == "b":
        return np.logical_or.reduceat(ordered, first), None
    most = int(np.diff(np.append(first, len(ordered))).max())
    if data.dtype.kind in "iu":
        narrow = largest_integer(ordered) * most < 2**63
        return np.add.reduceat(ordered.astype(np.int64 if narrow else object), first), None
    wide = ordered.astype(np.complex128 if data.dtype.kind == "c" else np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        sums, sizes = np.add.reduceat(wide, first), np.add.reduceat(np.abs(wide), first)
    return sums, (most - 1) * 2.0**-53 * sizes


def _exact(name: str, data: np.ndarray) -> np.ndarray:
    """Return values of a type that NumPy's float64, complex128 and integers hold, or raise where they are not."""
    wide = np.dtype(np.complex128 if data.dtype.kind == "c" else np.float64)
    if data.dtype.kind not in "fc" or data.dtype.itemsize <= wide.itemsize:
        return data.astype(np.float32) if data.dtype == np.float16 else data
    with np.errstate(over="ignore"):
        narrow = data.astype(wide)
    if not np.array_equal(narrow.astype(data.dtype), data, equal_nan=True):
        raise errors.beyond_float64(name, data.dtype)
    return narrow


def _floating(data: np.ndarray) -> np.ndarray:
    """Return values as floats, real or complex."""
    if data.dtype.char in "fdFD":
        return data
    return data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)


def _not_finite(name: str, data: np.ndarray, indptr: np.ndarray, indices: np.ndarray, turned: bool) -> ValueError:
    worst = int(np.argmin(np.isfinite(data)))
    place = int(np.searchsorted(indptr, worst, side="right")) - 1, int(indices[worst])
    row, column = place[::-1] if turned else place
    return errors.not_finite(name, data[worst].item(), row, column)


def renumbered(B: Operand, limited: bool) -> tuple[Operand, np.ndarray | None]:
    """Return B with only the columns that it holds, and these, where there are far more; else B and None."""
    if not renumbers(B.shape[1], len(B.indices), limited):
        return B, None
    held = np.unique(B.indices)
    narrow = np.searchsorted(held, B.indices).astype(B.indices.dtype)
    return replace(B, shape=(B.shape[0], len(held)), indices=narrow), held
