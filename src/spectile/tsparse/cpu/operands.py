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
from spectile.core.jit import njit
from spectile.tsparse import errors
from spectile.tsparse.cpu.examine import FALLS, INFINITE, OUTSIDE, examine
from spectile.tsparse.cpu.kernels import JIT, ONE
from spectile.tsparse.cpu.memory import narrows, renumbers
from spectile.tsparse.cpu.threads import Arrays, unsigned
from spectile.tsparse.matrices import index_type, is_array, largest_integer, require_pointer
from spectile.tsparse.room import Room
from spectile.tsparse.rounding import by_parts
from spectile.tsparse.selection import keep
from spectile.tsparse.types import Operand, Places


def operands(A: Any, B: Any, **options: Any) -> tuple[Operand, Operand]:
    """Check both factors, by the options of `one_operand`; a square's factor is checked once."""
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
    room: Room = options.get("room") or Room()
    room.require(26 * len(left.indices) + 42 * len(across.indices))
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
    rows = across.indptr, np.searchsorted(held, across.indices).astype(kind), across.data
    indptr, indices, data = turn(rows, len(held))
    room.hold(left.indptr, left.indices, left.data, indptr, indices, data)
    return left, replace(across, shape=(len(held), B.shape[1]), indptr=indptr, indices=indices, data=data)


@njit(**JIT)
def _by_key(keys, following, order):  # type: ignore[no-untyped-def]
    """Places of `keys` by key, then by place; following[k + 1] = the end of those of key k, and 0 before."""
    for p in range(len(keys)):
        following[np.uint64(keys[p]) + ONE + ONE] += ONE
    for k in range(2, len(following)):
        following[k] += following[k - 1]
    for p in range(len(keys)):
        place = np.uint64(keys[p]) + ONE
        order[following[place]] = p
        following[place] += ONE


def by_key(keys: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a pointer to the first place of each of so many keys, and the places of the keys in their order."""
    following, order = np.zeros(count + 2, np.int64), np.empty(len(keys), index_type(len(keys)))
    _by_key(*unsigned(keys, following, order))
    return following[:-1], order


def turn(rows: Arrays, columns: int) -> Arrays:
    """Return row pointer, columns and values of the transpose of a matrix; no values where there are none."""
    indptr, indices, data = rows
    pointer, order = by_key(indices, columns)
    return pointer, owners(indptr, index_type(len(indptr)))[order], data[order] if len(data) else data


def owners(indptr: np.ndarray, kind: Any) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(len(indptr) - 1, dtype=kind), np.diff(indptr))


def one_operand(
    matrix: Any,
    name: str,
    *,
    values: bool = True,
    check_finite: bool = True,
    integers: bool = False,
    turned: bool = False,
    room: Room | None = None,
) -> Operand:
    """Check a factor and bring it to CSR with sorted rows and no duplicates; the input is not changed.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array
    name : str
    values : bool
        Whether the values are read at all.
    check_finite : bool
        Whether values that are not finite are refused.
    integers : bool
        Whether integers that 64 bits hold are left as they are, and Booleans as bytes; else they become floats.
    turned : bool
        Whether it is the transpose of the caller's, whose rows and columns are then named.
    room : Room, optional
        What is left of a limit; what is returned is counted as held.
    """
    rows, columns = matrix.shape
    room = room or Room()
    given: tuple[Any, ...] = ()
    if room.limit is not None:
        given = tuple(getattr(matrix, part, None) for part in ("indptr", "indices", "data", "row", "col"))
    indptr, indices, order, stored = _arranged(matrix, name, room, turned)
    places, kind = Places(stored.shape, order), np.dtype(index_type(columns))
    if given:
        part = room.nested()
        part.hold(indptr, indices, order, stored, beside=given)
        narrowed = kind.itemsize * len(indices) * (indices.dtype != kind)
        part.require(values * _values_bytes(stored, order is not None, integers) + narrowed)
    data = _exact(name, stored.reshape(-1)) if values else np.empty(0, np.float32)
    largest, lost = None, None
    ordered = data if order is None or not values else data[order]
    floating = values and data.dtype.kind in "fc"
    wrong = _walked(name, matrix, turned, indptr, indices, ordered if floating and check_finite else None, columns)
    if wrong & INFINITE:
        raise _not_finite(name, ordered, indptr, indices, turned)
    indices = indices.astype(kind, copy=False)
    if wrong:
        part = room.nested()
        part.hold(indptr, indices, order, data, beside=given)
        ordered = order = None
        indptr, indices, places = _sorted(indptr, indices, places, part)
        ordered = data
        if values:
            part = room.nested()
            part.hold(indptr, indices, places.order, places.first, data, beside=given)
            ordered, lost = _summed(data, places, part)
            if floating and check_finite and not np.isfinite(ordered).all():
                raise _not_finite(name, ordered, indptr, indices, turned)
    if values and data.dtype.kind in "iu":
        largest = largest_integer(ordered)
        if largest > 2**53:
            lost = np.abs(ordered.astype(np.float64))
            lost *= 2.0**-53
    if not integers or (largest is not None and largest >= 2**63):
        ordered = _floating(ordered)
    elif ordered.dtype == np.bool_:
        ordered = ordered.view(np.uint8)
    room.hold(indptr, indices, ordered, places.order, places.first, lost, beside=given)
    return Operand((rows, columns), indptr, indices, ordered, is_array(matrix), places, largest, lost)


def _walked(name: str, matrix: Any, turned: bool, *arrays: Any) -> int:
    """Return what `examine` finds in arrays, or raise where they cannot be walked."""
    wrong = examine(*arrays)
    if wrong & (FALLS | OUTSIDE):
        if turned or matrix.format != "csr":
            refuse_malformed(name, matrix)
        columns = arrays[-1]
        raise errors.bad_pointer(name) if wrong & FALLS else errors.bad_index(name, columns)
    return wrong


def _values_bytes(stored: np.ndarray, moved: bool, integers: bool) -> int:
    """Return the bytes of values that are brought in order and to a type that the product takes."""
    kind = stored.dtype
    converted = kind.char not in "fdFD" and not (integers and kind.kind in "biu")
    wide = 4 if kind.itemsize < 4 else 16 if kind.kind == "c" else 8
    return stored.size * (kind.itemsize * moved + wide * converted)


def _arranged(matrix: Any, name: str, room: Room, turned: bool) -> tuple[Any, Any, Any, Any]:
    """Return row pointer and columns by rows, the stored place of each entry (None: as stored), and stored values."""
    form, rows = matrix.format, matrix.shape[0]
    if form != "csr":
        require_pointer(name, rows, turned)
    if form not in ("csr", "csc", "coo", "bsr"):  # these hold no entry twice, and their values have no places
        room.require(int(matrix.nnz) * (4 + matrix.dtype.itemsize) + 12 * (rows + 1))
        matrix, form = matrix.tocsr(), "csr"
    elif form in ("coo", "bsr"):
        room.require(0 if form == "coo" else matrix.indptr.nbytes)  # SciPy's look takes as much as the pointer
        refuse_malformed(name, matrix)
    if form == "csr":
        if room.limit is not None:
            room.require(sum(_copied(x) for x in (matrix.indices, matrix.data)) + _copied(matrix.indptr, np.int64))
        indptr, indices = _walkable(matrix, name)
        return indptr, indices, None, readable(name, matrix.data)[: len(indices)]
    nnz = int(matrix.nnz)
    shape, kind = matrix.shape, index_type(matrix.shape[1])
    column_bytes = matrix.col.itemsize if form == "coo" else 2 * np.dtype(kind).itemsize
    each = column_bytes + np.dtype(index_type(nnz)).itemsize
    more = 12 * (shape[1] + 1) + _copied(matrix.indptr, np.int64) if form == "csc" else 8 * nnz * (form == "bsr")
    room.require(nnz * each + more + 8 * (shape[0] + 2) + _copied(matrix.data))
    data = readable(name, matrix.data)
    if form == "coo":
        row, column = (readable(name, x) for x in (matrix.row, matrix.col))
    elif form == "csc":
        pointer, row = _walkable(matrix, name)
        _walked(name, matrix, turned, pointer, row, None, shape[0])
        data, column = data[: len(row)], owners(pointer, kind)
    else:
        row, column = _of_blocks(matrix, kind)
        data = data[: int(matrix.indptr[-1])]
    indptr, order = by_key(row, shape[0])
    return indptr, column[order], order, data


def _copied(array: np.ndarray, dtype: Any = None) -> int:
    """Return the bytes of the copy that kernels read, or 0 where they read the array itself."""
    same = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    same = same and (dtype is None or array.dtype == dtype)
    return 0 if same else array.size * np.dtype(dtype or array.dtype).itemsize


def readable(name: str, array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Return an array as kernels read it, which never write to it: they would be compiled anew for a read-only type."""
    if dtype is not None and array.dtype != dtype:
        return array.astype(dtype, order="C")
    if array.flags.carray and array.dtype.isnative:
        return array
    return pointers.without_read_only(pointers.operand(name, array))


def _walkable(matrix: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row pointer and columns of a CSR matrix, or of the transpose of one in CSC, whose lengths fit."""
    indptr, indices = matrix.indptr, matrix.indices
    if len(indptr) != matrix.shape[matrix.format == "csc"] + 1 or indptr[0] != 0 or not 0 <= indptr[-1] <= len(indices):
        raise errors.bad_pointer(name)
    if len(indices) != len(matrix.data):
        raise errors.other_lengths(name, len(indices), len(matrix.data))
    indices = readable(name, indices[: int(indptr[-1])])
    return readable(name, indptr, np.int64), indices


def _of_blocks(matrix: Any, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of each value of a BSR matrix, in the order of its blocks."""
    height, width = matrix.blocksize
    count = int(matrix.indptr[-1])
    kinds = index_type(matrix.shape[0])
    row = (owners(matrix.indptr, kinds) * kinds(height))[:, None, None] + np.arange(height, dtype=kinds)[:, None]
    column = matrix.indices[:count].astype(kind)[:, None, None] * kind(width) + np.arange(width, dtype=kind)
    whole = (count, height, width)
    return np.broadcast_to(row, whole).reshape(-1), np.broadcast_to(column, whole).reshape(-1)


@njit(**JIT)
def _as_stored(order, first):  # type: ignore[no-untyped-def]
    """Bring the places of each entry in the order in which they are stored: SciPy leaves them in any."""
    for i in range(len(first)):
        stop = first[i + ONE] if i + 1 < len(first) else np.uint64(len(order))
        if stop - first[i] > ONE:
            order[first[i] : stop].sort()


def _sorted(
    indptr: np.ndarray, indices: np.ndarray, places: Places, room: Room
) -> tuple[np.ndarray, np.ndarray, Places]:
    """Return row pointer and columns sorted within rows, each once, and the places of their values."""
    import scipy.sparse as sp

    nnz, rows = len(indices), len(indptr) - 1
    kind = np.result_type(indices.dtype, index_type(nnz))
    sizes = np.dtype(index_type(nnz)).itemsize + kind.itemsize
    room.require(nnz * (sizes + 1) + kind.itemsize * (rows + 1) + 9 * rows)
    order = np.arange(nnz, dtype=index_type(nnz)) if places.order is None else places.order.copy()
    clean = sp.csr_array((order, indices.astype(kind), indptr.astype(kind)), shape=(rows, int(indices.max()) + 1))
    clean.sort_indices()
    indices, order = clean.indices.astype(indices.dtype, copy=False), clean.data
    new = np.ones(nnz, bool)
    np.not_equal(indices[1:], indices[:-1], out=new[1:])
    new[indptr[:-1][indptr[:-1] < nnz]] = True
    distinct = int(np.count_nonzero(new))
    if distinct == nnz:
        return indptr, indices, Places(places.shape, order)
    room.require(nnz * (sizes + 1) + kind.itemsize * (rows + 1) + 8 * (rows + 1) + (8 + kind.itemsize) * distinct)
    first = np.flatnonzero(new)
    _as_stored(*unsigned(order, first))
    return (
        np.searchsorted(first, indptr).astype(np.int64, copy=False),
        indices[first],
        Places(places.shape, order, first),
    )


def take(data: np.ndarray, places: Places) -> np.ndarray:
    """Return stored values in the order of the factor's entries, duplicates summed; of the same type."""
    if places.order is None:
        return data
    if places.first is None:
        return data.reshape(-1)[places.order]
    return _summed(data.reshape(-1), places, Room())[0].astype(data.dtype)


@njit(**JIT)
def _sum_runs(data, order, first, sums, sizes):  # type: ignore[no-untyped-def]
    """Sums of values that follow each other in `order`, and of their sizes."""
    for i in range(len(first)):
        for p in range(first[i], first[i + ONE] if i + 1 < len(first) else len(order)):
            value = data[order[p]]
            sums[i] += value
            sizes[i] += abs(sums.dtype.type(value))


def _summed(data: np.ndarray, places: Places, room: Room) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values in order, duplicates summed, and what the sums may have lost: None for nothing.

    Floating values are summed in float64, integers exactly, and Booleans as SciPy does: True or True is True.
    """
    first, kind, entries = places.first, data.dtype.kind, len(places.order)
    if first is None:
        room.require(data.nbytes)
        return data[places.order], None
    if kind in "fc":
        wide = np.dtype(np.complex128 if kind == "c" else np.float64)
        room.require(len(first) * (wide.itemsize + 9))
        longest = _longest(first, entries)
        sums, sizes = np.zeros(len(first), wide), np.zeros(len(first))
        _sum_runs(data, *unsigned(places.order, first), sums, sizes)
        sizes *= 2.0**-53 * (longest - 1)
        return sums, sizes
    room.require(entries * data.itemsize + 16 * len(first))
    ordered = data[places.order]
    if kind == "b":
        return np.logical_or.reduceat(ordered, first), None
    narrow = largest_integer(ordered) * _longest(first, entries) < 2**63
    room.require(entries * (data.itemsize + (8 if narrow else 40)) + 16 * len(first))
    return np.add.reduceat(ordered.astype(np.int64 if narrow else object), first), None


def _longest(first: np.ndarray, entries: int) -> int:
    """Return the most places of an entry."""
    return max(int(np.diff(first).max(initial=0)), entries - int(first[-1]))


def _exact(name: str, data: np.ndarray) -> np.ndarray:
    """Return values of a type that NumPy's float64, complex128 and integers hold, or raise where they are not."""
    wide = np.dtype(np.complex128 if data.dtype.kind == "c" else np.float64)
    if data.dtype.kind not in "fc" or data.dtype.itemsize <= wide.itemsize:
        return data.astype(np.float32) if data.dtype == np.float16 else data

    def narrow(part: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            made = part.astype(wide)
        if not np.array_equal(made.astype(part.dtype), part, equal_nan=True):
            raise errors.beyond_float64(name, part.dtype)
        return made

    return by_parts(data, wide, narrow)


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


def renumbered(A: Operand, matrices: list[Operand], room: Room) -> tuple[list[Operand], np.ndarray | None]:
    """Return matrices of the same columns with only those that they hold, and these, where there are far more.

    Else they are returned as they are, and None.  A is what the first is multiplied with.
    """
    columns, entries = matrices[0].shape[1], sum([len(one.indices) for one in matrices])
    if not renumbers(columns, entries, room.limit is not None):
        return matrices, None
    size = matrices[0].indices.itemsize
    room.require(entries * (2 * size + 1 + size * (len(matrices) > 1)))
    held = np.unique(np.concatenate([one.indices for one in matrices]) if len(matrices) > 1 else matrices[0].indices)
    kind = index_type(len(held))
    made = [by_parts(one.indices, kind, lambda part: np.searchsorted(held, part)) for one in matrices]
    room.hold(held, *made)
    # The numbers before are dropped, but for the caller's, of which an operand has a view.
    room.held -= sum(one.indices.nbytes for one in matrices if one is not A and one.indices.base is None)
    return [
        replace(one, shape=(one.shape[0], len(held)), indices=indices)
        for one, indices in zip(matrices, made, strict=True)
    ], held
