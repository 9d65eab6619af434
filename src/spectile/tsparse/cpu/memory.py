"""What a product on the host takes beside A, B and C, from sizes and types alone, and whether a limit holds it."""

from __future__ import annotations

from typing import Any

from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.work import BLOCKS
from spectile.tsparse.types import Precision

_SMALL = 2**14  # bytes of objects, of lists and of parts that are worked on one at a time
#: Bytes an entry, at most: to convert to CSR, to sort and to sum duplicates, and to round.
_ARRANGED, _IN_ORDER, _ROUNDED = 28, 44, {"tf32": 26, "float16": 60}
#: Columns from which they may be renumbered, and how many times more than entries there have to be.
_MANY_COLUMNS, _EMPTY_COLUMNS = 2**16, 64
_BLOCK_BYTES = 80  # of a block of rows whose products are counted


def renumbers(columns: int, entries: int, limited: bool) -> bool:
    """Return whether the columns of B are renumbered, which costs a sort, so that work space has not their length."""
    if columns >= 2**31:
        return True
    if limited:
        return columns > 4 * entries
    return columns > max(_MANY_COLUMNS, _EMPTY_COLUMNS * entries)


def narrows(A: Any, B: Any) -> bool:
    """Return whether the rows of B, far more than its entries and without a pointer, get numbers of their own."""
    inner = B.shape[0]
    if B.format not in ("csc", "coo"):
        return False
    return inner >= 2**31 or inner > max(_MANY_COLUMNS, _EMPTY_COLUMNS * (int(A.nnz) + int(B.nnz)))


def room(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    exact: bool = False,
    kept: bool = False,
    extra: int = 0,
) -> float | None:
    """Return the bytes left for work space of threads, or None where there is no limit.

    Parameters
    ----------
    A, B : scipy.sparse matrix or array
    precision : Precision
    memory_limit : int or None
    exact : bool
        Whether sums of integers may be computed first.
    kept : bool
        Whether the patterns of A and B are copied.
    extra : int
        Bytes that are taken for something else.

    Raises
    ------
    MemoryError
        If what is left is too little for one thread; it names the least limit.
    """
    if memory_limit is None:
        return None
    fixed = extra + _SMALL + _BLOCK_BYTES * min(A.shape[0], BLOCKS) + 8 * (A.shape[0] + 1)
    narrow = narrows(A, B)
    if narrow:
        fixed += 40 * (_stored(A) + 2 * _stored(B))
    for matrix in (A,) if A is B else (A, B):
        rows = min(matrix.shape[0], _stored(B)) if narrow and matrix is B else matrix.shape[0]
        fixed += _factor_bytes(matrix, precision, exact, rows + 1) + kept * (12 * _stored(matrix) + 8 * matrix.shape[0])
    columns, entries = B.shape[1], _stored(B)
    if renumbers(columns, entries, True):
        fixed += 28 * entries
        columns = min(columns, entries)
    left = memory_limit - fixed
    least = threads.workspace_bytes(columns, max(precision.dtype.itemsize, 8))
    if left < least:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and copies of A and B and the sums of one row take "
            f"{fixed + least}; raise it to at least {fixed + least}"
        )
    return left


def require(memory_limit: int | None, left: float | None, values: int, columns: int) -> None:
    """Raise MemoryError where values of C that are converted at the end do not fit beside one thread's work space."""
    if memory_limit is None or left is None:
        return
    missing = values + threads.workspace_bytes(columns, 8) - left
    if missing > 0:
        need = int(memory_limit + missing + 1)
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and the sums of C before they are Boolean take {values} more; "
            f"raise it to at least {need}"
        )


def _stored(matrix: Any) -> int:
    return int(matrix.nnz)


def _factor_bytes(matrix: Any, precision: Precision, exact: bool, rows: int) -> int:
    """Return the bytes of the copies of a factor: in CSR, in order, in the type of the product, rounded."""
    entries, dtype = _stored(matrix), matrix.dtype
    is_csr = matrix.format == "csr"
    wide = dtype.itemsize if dtype.kind == "c" else 4 if dtype.itemsize < 4 or dtype == "float32" else 8
    per_entry = per_row = 0
    if not is_csr or matrix.indptr.dtype.itemsize != 8:
        per_row += 8
    if is_csr and matrix.indices.dtype.itemsize == 8 and matrix.shape[1] < 2**31:
        per_entry += 4
    if dtype.char not in "fdFD":
        per_entry += wide + (2 * dtype.itemsize if dtype.itemsize > 8 else 0)
    if not is_csr:
        per_entry += _ARRANGED
        per_row += 8
    by_column = 9 * (matrix.shape[1] + 1) if matrix.format == "csc" else 0
    if not (is_csr and matrix.has_canonical_format):
        per_entry += _IN_ORDER
        per_row += 16
        wide = 16 if dtype.kind == "c" else 8  # sums of duplicates
    if wide != precision.dtype.itemsize or (precision.dtype.kind == "c") > (dtype.kind == "c"):
        per_entry += precision.dtype.itemsize + 1
    if precision.name in _ROUNDED:
        per_entry += _ROUNDED[precision.name]
        per_row += 16 if precision.name == "float16" else 0
    return entries * (per_entry + (16 if exact else 0)) + rows * per_row + by_column
