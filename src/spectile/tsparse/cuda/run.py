"""The product on CUDA devices: in one piece or by chunks of rows, left on the device or gathered on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.device import describe
from spectile.tsparse import errors
from spectile.tsparse.cuda import choose, dense, parts, turn
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, unscale, with_checked_factors
from spectile.tsparse.cuda.given import MOST_INDEX, Given, copied_bytes, given
from spectile.tsparse.cuda.pinned import to_host
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.cuda.shared import HEAD_WORDS
from spectile.tsparse.matrices import (
    LARGEST_INTEGER,
    device_csr,
    host_csr,
    index_type,
    is_array,
    related,
    require_exact,
)
from spectile.tsparse.types import BOOLEAN, Factor, Precision, lookup


def spgemm(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    host: bool,
    *,
    check_finite: bool = True,
    form: str = "csr",
    booleans: bool = False,
    fetch: Callable[[Any], np.ndarray] | None = None,
) -> Any:
    """Multiply on the device, in CSR or where `form` is dense into an array; see `spectile.tsparse.spgemm`.

    `host` tells that A and B are scipy matrices; then `fetch` may tell how columns and values come there.  Where sums
    become Boolean (`booleans`), those of matrices whose values are so on the device are written as such.
    """
    precision, kind = of_device(precision)
    exact = kind is not None
    if memory_limit is not None:
        copied = (A,) if A is B else (A, B)
        least = least_bytes(1, B.shape[1] if B.shape[1] <= MOST_INDEX else min(B.nnz, MOST_INDEX))
        memory_limit = beside_copies(memory_limit, copied, precision, exact, least, "A and B and one row")
    array, rows = is_array(A, B), A.shape[0]
    columns = B.columns if isinstance(B, Given) and B.columns is not None else B.shape[1]
    scaled = precision.name == "float16"
    transposed = adjoint = False
    whole = not isinstance(B, Given) and memory_limit is None and form != "dense"
    if whole and not (exact or scaled) and max(*A.shape, *B.shape) <= MOST_INDEX:
        transposed, adjoint = related(A, B)
    if transposed or adjoint:
        base = A if A.format == "csr" else B
        factors = given(base, base, check_finite=check_finite)
    else:
        factors = given(A, B, check_finite=check_finite)
    if booleans and form != "dense" and all(one.data.dtype == np.bool_ for one in factors):
        precision = BOOLEAN
    dense_too = form == "dense" and not (exact or scaled) and factors[1].held is None
    if exact:
        require_exact(*sizes(*factors), lambda: largest_sum(*factors, memory_limit), LARGEST_INTEGER, "float64")

    def product(left: Factor, right: Factor, counters: Counters | None) -> Any:
        held, C = right.given.held, None
        if dense_too:
            whole = dense.multiply(left, right, precision.dtype, counters)
            return whole.get() if host else whole
        if transposed or adjoint:
            checked(left, right, counters)
            left, right, places = turn.with_transpose(left, base is A, adjoint)
            C, counters = turn.multiply(left, right, places, precision, adjoint), None
        if host:
            C = _gather_on_host(left, right, precision, memory_limit, counters, fetch) if C is None else on_host(*C)
            return host_csr((rows, columns), *renamed(*C, held, columns), array)
        C = to_csr(left, right, precision, memory_limit, counters) if C is None else C
        return device_csr((rows, columns), *renamed(*C, held, columns), array)

    C = with_checked_factors(*factors, precision, product, check_finite=check_finite)
    return C if kind is None else of_integers(C, kind)


def of_device(precision: Precision) -> tuple[Precision, Any]:
    """Return the precision of the sums of a device, and the type of integers they become, or None."""
    return (lookup("float64"), precision.dtype) if precision.dtype.kind == "i" else (precision, None)


def of_integers(C: Any, kind: Any) -> Any:
    """Return a matrix of SciPy, which alone holds integers, whose values are exact in float64, in their own type."""
    if kind.itemsize < 8 and abs(C.data).max(initial=0) > np.iinfo(kind).max:
        raise errors.inexact(np.iinfo(kind).max, str(kind))
    C.data = C.data.astype(kind)
    return C


def renamed(indptr: Any, indices: Any, data: Any, held: Any, columns: int) -> tuple[Any, Any, Any]:
    """Return C with the columns `held` of so many in place of their numbers, where they are renumbered."""
    if held is None:
        return indptr, indices, data
    if isinstance(indices, np.ndarray):
        held = held.get()
    # A part of B's rows that is given again counts those that occur alone.
    index = index_type(max(columns, int(held[-1]) + 1) if len(held) else columns)
    return indptr.astype(index), held[indices].astype(index, copy=False), data


def sizes(A: Given, B: Given) -> tuple[tuple[int, int], int]:
    """Return the largest size of an entry of integer factors, and the products of an entry of C at most."""
    largest = [1 if factor.largest is None else factor.largest for factor in (A, B)]  # Booleans: 1
    return (largest[0], largest[1]), min(A.indices.size, B.indices.size, A.shape[1])


def largest_sum(A: Given, B: Given, memory_limit: int | None) -> float:
    """Return the largest sum of the sizes of the products of an entry of C, in float64."""
    double = lookup("float64")

    def largest(left: Factor, right: Factor, counters: Counters | None) -> float:
        data = to_csr(left, right, double, memory_limit, counters)[2]
        return float(data.max()) if data.size else 0.0

    left = replace(A, data=abs(A.data))
    return with_checked_factors(left, left if B is A else replace(B, data=abs(B.data)), double, largest)


def chunk_of(memory_limit: int | None, rows: int, columns: int) -> tuple[int, int | None]:
    """Return the rows of one chunk, and the bytes for bitmaps beyond shared memory, None where nothing limits them."""
    if memory_limit is None:
        return max(rows, 1), None
    need = least_bytes(1, columns)
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and one row takes {need}; raise it to at least {need}"
        )
    chunk = min(max(rows, 1), 1 + (memory_limit - need) // choose.ROW_BYTES)
    return chunk, memory_limit - 4 * HEAD_WORDS - chunk * choose.ROW_BYTES


def least_bytes(rows: int, columns: int) -> int:
    """Return the work space of some rows made together, of which one at a time may need bitmaps in global memory."""
    bitmap = 8 * choose.bitmap_words(columns)
    return 4 * HEAD_WORDS + (bitmap if bitmap > choose.shared_limit(describe()) else 0) + rows * choose.ROW_BYTES


def beside_copies(
    memory_limit: int, matrices: Sequence[Any], precision: Precision, exact: bool, least: int, what: str
) -> int:
    """Return what a limit leaves beside copies of matrices; raise MemoryError if that is less than `least` bytes.

    `what` names the matrices and what takes these; see `copied_bytes`.
    """
    copies = sum(copied_bytes(matrix, precision, exact) for matrix in matrices)
    need = copies + least
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and copies of {what} take {need}; raise it to at least {need}"
        )
    return memory_limit - copies


def finish(A: Factor, B: Factor, phase: Phase, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, columns and values of the rows of `phase`."""
    import cupy

    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    fill_rows(A, B, phase, indices, data)
    return phase.indptr, indices, unscale(data, phase.indptr, indices, A, B, phase.first)


def to_csr(
    A: Factor, B: Factor, precision: Precision, memory_limit: int | None, counters: Counters | None
) -> tuple[Any, Any, Any]:
    """Return C on the device: in one piece, or count by chunks of rows and fill in a second pass over them."""
    rows, value = A.shape[0], precision.value
    chunk, scratch = chunk_of(memory_limit, rows, B.shape[1])
    if chunk >= rows:
        phase = count_rows(A, B, 0, rows, value, counters, scratch)
        if phase.entries <= parts.MOST_ENTRIES:
            return finish(A, B, phase, precision)
        counts = [phase.counts.get()]
        del phase  # before its rows are made anew
    else:
        checked(A, B, counters)
        chunks = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)]
        counts = [count_rows(A, B, a, b, value, None, scratch).counts.get() for a, b in chunks]
    return _fill_parts(A, B, precision, parts.row_pointer(counts), chunk, scratch)


def _fill_parts(
    A: Factor, B: Factor, precision: Precision, starts: np.ndarray, chunk: int, scratch: int | None
) -> tuple[Any, Any, Any]:
    """Return C on the device, its rows counted again and filled part by part."""
    import cupy

    total = int(starts[-1])
    parts.require_wide_indices(total)
    index = index_type(total)
    indices, data = cupy.empty(total, index), cupy.empty(total, precision.dtype)
    for a, b, part in parts.parts(starts, chunk, parts.PART_ENTRIES):
        phase = count_rows(A, B, a, b, precision.value, None, scratch)
        columns = indices[part] if index is np.int32 else cupy.empty(phase.entries, np.int32)
        fill_rows(A, B, phase, columns, data[part])
        unscale(data[part], phase.indptr, columns, A, B, a)
        if index is np.int64:
            indices[part] = columns
        del phase, columns  # before the next rows take their place
    return cupy.asarray(starts.astype(index)), indices, data


def on_host(
    indptr: Any, indices: Any, data: Any, fetch: Callable[[Any], np.ndarray] | None = None
) -> tuple[Any, Any, Any]:
    """Return C on the host."""
    fetch = fetch or to_host
    return indptr.get().astype(np.int64), fetch(indices), fetch(data)


def _gather_on_host(
    A: Factor,
    B: Factor,
    precision: Precision,
    memory_limit: int | None,
    counters: Counters | None,
    fetch: Callable[[Any], np.ndarray] | None = None,
) -> tuple[Any, Any, Any]:
    """Gather C on the host, by as many chunks of rows as its size and the limit ask for."""
    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = chunk_of(memory_limit, *shape)
    checked(A, B, counters)
    entry_bytes = 4 + precision.dtype.itemsize
    counts = []
    for a in range(0, rows, chunk):
        phase = count_rows(A, B, a, min(a + chunk, rows), value, None, scratch)
        if chunk >= rows and phase.entries <= parts.MOST_ENTRIES and phase.entries * entry_bytes <= memory.free_bytes():
            return on_host(*finish(A, B, phase, precision), fetch)
        counts.append(phase.counts.get())
        del phase  # before the next rows take their place
    starts = parts.row_pointer(counts)
    index = index_type(starts[-1])
    indices, data = np.empty(starts[-1], index), np.empty(starts[-1], precision.dtype)
    most = min(parts.PART_ENTRIES, max(memory.free_bytes() // (2 * (entry_bytes + index().itemsize)), 1))
    for a, b, part in parts.parts(starts, chunk, most):
        _, columns, values = finish(A, B, count_rows(A, B, a, b, value, None, scratch), precision)
        to_host(columns.astype(index, copy=False), indices[part])
        to_host(values, data[part])
    return starts, indices, data
