"""Factors as callers give them, brought to CSR on the current device; their entries are checked by ``factors.py``.

What the kernels cannot take is brought in order here: other formats, entries out of order or stored more than once,
integers, and columns beyond 32 bits, which are renumbered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spectile.core import pointers
from spectile.core.arrays import require_here
from spectile.core.launch import kernel
from spectile.tsparse import errors
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.pinned import to_device
from spectile.tsparse.cuda.turn import turned
from spectile.tsparse.matrices import index_type, largest_integer, on_gpu
from spectile.tsparse.selection import owners
from spectile.tsparse.types import Places, Precision

#: Rows, columns and entries that 32-bit loops walk, their last step included (`choose.loop`).
MOST_INDEX = 2**31 - 2**20
_ARRANGED = 90  # bytes an entry of what brings entries in order: places, keys, and what their sorts take
#: Types of indices and of values that the kernels read as they are.
_INDEX, _VALUES = {np.dtype(np.int32)}, {np.dtype(char) for char in "fdFD?"}
#: Types of values that the kernels read, and what sums of duplicates are made in, by NumPy's letter.
_SUMS = {
    "f": ("float", np.float64),
    "d": ("double", np.float64),
    "q": ("integer", np.int64),
    "F": ("complex64", np.complex128),
    "D": ("complex128", np.complex128),
}


@dataclass(slots=True)
class Given:
    """A factor in CSR on the device, of which only what is said here is known."""

    shape: tuple[int, int]  #: With as many columns as `held` has, where that is not None.
    #: Row pointer and columns, int32.
    indptr: Any
    indices: Any
    data: Any  #: bool, float32, float64, complex64, complex128 or None.
    stored: tuple[int, ...]  #: Shape of the values as the caller's matrix stores them.
    places: Places | None = None  #: Where these lie, unless the caller's matrix is in CSR and in order.
    largest: int | None = None  #: The largest size of the values where these are integers.
    #: The columns of B that it has, where they are renumbered, and of how many: int64 or None, int or None.
    held: Any = None
    columns: int | None = None


def given(A: Any, B: Any, *, values: bool = True, check_finite: bool = True) -> tuple[Given, Given]:
    """Return both factors, matrices of SciPy or CuPy or `Given` already, on the device; a square's factor once.

    Where no values are needed, SciPy's matrices are brought in order on the host, which tells the places of their
    values, and `Given` has none; with `check_finite` SciPy's values that are not finite are refused here.
    """
    left = _given(A, "A", values, check_finite)
    right = left if B is A else _given(B, "B", values, check_finite)
    right = _renumbered(right)
    left.indices = _narrow(left.indices)  # as many columns as B has rows
    return left, right


def one_given(name: str, matrix: Any) -> Given:
    """Return a matrix of CuPy beside the factors, as `given` does."""
    if matrix.shape[1] > MOST_INDEX:
        return arranged(name, matrix)
    one = _given(matrix, name, True, True)
    one.indices = _narrow(one.indices)
    return one


def copied_bytes(matrix: Any, precision: Precision, exact: bool) -> int:
    """Return the bytes of the copies of a factor on the device, at most; rounded values among them."""
    dtype = matrix.data.dtype if isinstance(matrix, Given) else matrix.dtype
    rounded = precision.dtype.itemsize * (precision.name != precision.value or dtype != precision.dtype)
    if isinstance(matrix, Given):
        return rounded * matrix.indices.size
    entries = matrix.nnz
    in_order = matrix.format == "csr" and dtype.char in "fdFD" and matrix.has_canonical_format
    copied = 0 if in_order else _ARRANGED * entries + 12 * (matrix.shape[0] + 1)
    if in_order:
        index, there = matrix.indices.dtype.itemsize, on_gpu(matrix)
        copied += (4 * (index == 8) + index * (not there)) * (entries + matrix.shape[0] + 1)
        copied += entries * dtype.itemsize * (not there)
    return copied + (rounded + 16 * exact) * entries + 4096  # the pool hands out pieces of 512 bytes


def _given(matrix: Any, name: str, values: bool, check_finite: bool) -> Given:
    if isinstance(matrix, Given):
        return matrix
    shape = matrix.shape
    if max(shape[0], matrix.nnz) > MOST_INDEX:
        raise ValueError(f'{name} has {matrix.nnz} entries and shape {shape}, beyond 32 bits; use backend="cpu"')
    if not on_gpu(matrix):
        return _from_host(matrix, name, values, check_finite)
    if matrix.format == "csr":
        indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
        _check_lengths(name, shape[0], indptr, indices, data)
        if not (pointers.readable(_INDEX, indptr, indices) and pointers.readable(_VALUES, data)):
            require_here(name, data)
            if data.dtype.char not in "fdFD?":
                return arranged(name, matrix)
            indptr, indices = _narrow(_plain(name, indptr)), _plain(name, indices)
            data = pointers.operand(name, data)
        return Given(shape, indptr, indices, data, data.shape)
    require_here(name, matrix.data)
    return arranged(name, matrix)


def _check_lengths(name: str, major: int, indptr: Any, indices: Any, data: Any) -> None:
    if indptr.size != major + 1:
        raise errors.bad_pointer(name)
    if indices.size != data.size:
        raise errors.other_lengths(name, indices.size, data.size)


def _plain(name: str, indices: Any) -> Any:
    """Return indices of 32 or 64 bits as kernels read them."""
    return pointers.operand(name, indices, indices.dtype if indices.dtype.char in "il" else np.int64)


def _from_host(matrix: Any, name: str, values: bool, check_finite: bool) -> Given:
    """Copy a matrix of SciPy to the device; all but CSR of the kernels' types is brought in order first."""
    import cupy

    if values and matrix.format == "csr" and matrix.data.dtype.char in "fdFD" and matrix.shape[1] <= MOST_INDEX:
        indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
        _check_lengths(name, matrix.shape[0], indptr, indices, data)
        arrays = (to_device(pointers.operand(name, x)) for x in (indptr, indices, data))
        on_device = tuple(arrays)
        return Given(matrix.shape, _narrow(on_device[0]), _narrow(on_device[1]), on_device[2], data.shape)
    from spectile.tsparse.cpu.operands import one_operand

    factor = one_operand(matrix, name, values=values, check_finite=check_finite)
    order, first = (
        None if x is None else cupy.asarray(x, np.int64) for x in (factor.places.order, factor.places.first)
    )
    return Given(
        factor.shape,
        cupy.asarray(factor.indptr, np.int32),
        to_device(factor.indices),
        to_device(factor.data) if values else None,
        factor.places.shape,
        Places(factor.places.shape, order, first),
        factor.largest,
    )


def _narrow(indices: Any) -> Any:
    """Return indices on the device with 32 bits; those out of range become -1, which the check finds."""
    import cupy

    if indices.dtype == np.int32:
        return indices
    if indices.dtype.itemsize < 8:
        return indices.astype(np.int32, copy=False)
    indices = indices.astype(np.int64, copy=False)
    narrow = cupy.empty(len(indices), np.int32)
    if len(indices):
        launch = kernel(units.PATTERN, "narrow")
        launch(choose.loop(len(indices)), np.int32(len(indices)), indices, narrow)
    return narrow


def _renumbered(B: Given) -> Given:
    """Return B with columns of 32 bits: where these do not hold them, as they are numbered among those that occur."""
    import cupy

    columns = B.shape[1]
    if columns <= MOST_INDEX:
        B.indices = _narrow(B.indices)
        return B
    indices = B.indices
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= columns):
        raise errors.bad_index("B", columns)
    held, narrow = cupy.empty(0, np.int64), cupy.empty(0, np.int32)
    if len(indices):
        held = cupy.unique(indices).astype(np.int64)
        narrow = cupy.searchsorted(held, indices).astype(np.int32)
    return replace(B, shape=(B.shape[0], len(held)), indices=narrow, held=held, columns=columns)


def arranged(name: str, matrix: Any) -> Given:
    """Return a matrix of CuPy, or a factor, with its entries in order and each once, and the places of its values."""
    import cupy

    rows, columns = shape = matrix.shape
    form = getattr(matrix, "format", "csr")
    if form not in ("csr", "csc", "coo"):  # DIA holds no entry twice, and its values have no places
        matrix, form = matrix.tocsr(), "csr"
    data = pointers.operand(name, matrix.data)
    if form == "coo":
        row, column = matrix.row, matrix.col
        if not len(row) == len(column) == len(data):
            raise errors.other_lengths(name, min(len(row), len(column)), len(data))
    else:
        indptr = matrix.indptr
        _check_lengths(name, columns if form == "csc" else rows, indptr, matrix.indices, data)
        if len(data) and (
            int(indptr[0]) != 0 or int(indptr[-1]) != len(data) or bool((indptr[1:] < indptr[:-1]).any())
        ):
            raise errors.bad_pointer(name)
        major = cupy.searchsorted(indptr, cupy.arange(len(data), dtype=indptr.dtype), side="right") - 1
        row, column = (matrix.indices, major) if form == "csc" else (major, matrix.indices)
    row, column = row.astype(np.int64), column.astype(np.int64)
    if len(data) and bool(((column < 0) | (column >= columns)).any()):
        raise errors.bad_index(name, columns)
    if len(data) and bool(((row < 0) | (row >= rows)).any()):
        raise errors.bad_row(name, rows)
    if not len(data):
        places = Places(data.shape)
        none = cupy.zeros(rows + 1, np.int32), cupy.empty(0, index_type(columns))
        values, largest = _in_order(name, data, places)
        return Given(shape, *none, values, data.shape, places, largest)
    if form == "csc" and rows <= MOST_INDEX:
        starts, minor = (_narrow(_plain(name, x)) for x in (indptr, matrix.indices))
        order = turned(starts, minor, rows)[2].astype(np.int64)
    else:
        order = cupy.argsort(column, kind="stable")  # so that the second sort leaves the columns of a row in order
        order = order[cupy.argsort(row[order], kind="stable")]
    row, column = row[order], column[order]
    new = cupy.ones(len(data), np.bool_)
    new[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    first = cupy.flatnonzero(new)
    if len(first) == len(data):
        first = None
    else:
        row, column = row[first], column[first]
    indptr = cupy.searchsorted(row, cupy.arange(rows + 1)).astype(np.int32)
    places = Places(data.shape, order, first)
    values, largest = _in_order(name, data, places)
    return Given(shape, indptr, column.astype(index_type(columns)), values, data.shape, places, largest)


def _in_order(name: str, data: Any, places: Places) -> tuple[Any, int | None]:
    """Return the values of a factor as floats, and the largest size of integers."""
    import cupy

    if data.dtype.kind == "b":
        return summed(data.astype(np.int64), places) > 0, None
    if data.dtype.kind in "fc":
        return summed(data.astype(np.float32) if data.dtype == np.float16 else data, places), None
    largest, most = largest_integer(data), 1
    if places.first is not None and len(places.first):
        ends = np.append(cupy.asnumpy(places.first), len(data))
        most = int(np.diff(ends).max())
    if largest * most >= 2**63:  # beyond float64's integers in any case
        return summed(data.astype(np.float64), places), largest
    sums = summed(data.astype(np.int64), places)
    return sums.astype(np.float32 if data.dtype.itemsize < 4 and places.first is None else np.float64), largest_integer(
        sums
    )


def require_finite(name: str, one: Given) -> None:
    """Raise where an entry of a factor in order is NaN or infinite."""
    import cupy

    finite = cupy.isfinite(one.data)
    if not bool(finite.all()):
        worst = int(cupy.argmin(finite))
        row = int(owners(one.indptr, one.indices.size, cupy)[worst])
        raise errors.not_finite(name, one.data[worst].item(), row, int(one.indices[worst]))


def summed(data: Any, places: Places | None) -> Any:
    """Return stored values in order, duplicates summed: floating values in float64, integers of 64 bits as such."""
    import cupy

    if places is None or places.order is None:
        return data
    if places.first is None:
        return data.reshape(-1)[places.order]
    kind, wide = _SUMS["q" if data.dtype == np.int64 else data.dtype.char]
    count = len(places.first)
    sums = cupy.empty(count, wide)
    if count:
        sizes = np.int32(count), np.int32(data.size)
        kernel(units.PATTERN, f"sum_{kind}")(choose.loop(count), *sizes, places.order, places.first, data, sums)
    return sums


def take(data: Any, places: Places | None) -> Any:
    """Return stored values in the order of the factor's entries, duplicates summed; of the same type."""
    return summed(data, places).astype(data.dtype, copy=False)
