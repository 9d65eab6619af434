"""Factors on the device: checked, their values rounded to the precision of the product, scaled where float16 asks.

The flags of the check lie among the counters of the symbolic phase and are read with them, which spares a wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cuda.units import (
    BAD_INDEX,
    BAD_POINTER,
    DESCENTS,
    FLAGS,
    FLOAT_RANGE,
    HALF_RANGE,
    NOT_FINITE,
    UNSORTED,
    load,
    new_counters,
    read_head,
)
from spectile.tsparse.precision import BY_ENTRY, IN_TILES, HalfRange, Precision, half_exponents, lookup

_EMPTY = -(2**20)  # exponent of a row or column without a nonzero
_ROUNDING = {"float64": 0, "float32": 0, "tf32": 1, "float16": 2}
_ROUND_TILES = 3  # float16 as tiles hold it


@dataclass
class Factor:
    """A CSR factor on the device whose values are rounded to the precision of the product."""

    shape: tuple[int, int]
    indptr: Any  # int32
    indices: Any  # int32
    data: Any
    exponents: Any = None  # of the rows of A or the columns of B, where float16 needed scaling: both factors or none
    half: HalfRange = BY_ENTRY

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)


class Unfit(Exception):
    """The check of the factors found something; carries the flags of A and of B."""


def with_checked_factors(
    A: Any, B: Any, precision: Precision, use: Callable[[Factor, Factor, Any], Any], half: HalfRange = BY_ENTRY
) -> Any:
    """Return ``use(A, B, counters)`` of both factors on the device, their values rounded.

    The flags of the check are among the counters of the symbolic phase, and read with them, which spares a wait; where
    one is set, `Unfit` is raised, and `use` is called again with mended factors.
    """
    import cupy

    same = A is B
    raw = [_device_csr(A, "A")]
    raw.append(raw[0] if same else _device_csr(B, "B"))
    counters = new_counters(A.shape[0])
    left = _prepare(raw[0], precision, counters, 0, half)
    try:
        return use(left, left if same else _prepare(raw[1], precision, counters, 1, half), counters)
    except Unfit as unfit:
        found = [unfit.args[0], unfit.args[0] if same else unfit.args[1]]
    mended = [_mend(m, int(found[i]), precision, i, half) for i, m in enumerate(raw)]
    counters = new_counters(A.shape[0])
    if any(scaled for _, _, scaled in mended):
        for i, (matrix, factor, _) in enumerate(mended):
            _scale(matrix, factor, counters, i)
    try:
        return use(mended[0][1], mended[1][1], counters)
    except Unfit as unfit:  # scaling lost an entry
        which = 0 if unfit.args[0] else 1
    matrix, factor, _ = mended[which]
    owner = matrix.indices if which else _row_of_entries(matrix.indptr, factor.nnz)
    what = "column of B" if which else "row of A"
    half_exponents(matrix.data, owner, len(factor.exponents), what, half, cupy)  # raises, naming it
    raise RuntimeError(f"scaling of the {what} to float16 failed")


def raise_unfit(head: np.ndarray) -> None:
    """Raise `Unfit` where a flag is set in the head of counters."""
    values = head.tolist()
    flags = [values[FLAGS + i] | (UNSORTED if values[DESCENTS + i] else 0) for i in range(2)]
    if any(flags):
        raise Unfit(*flags)


def checked(left: Factor, right: Factor, counters: Any) -> tuple[Factor, Factor]:
    """Read the flags of the check by themselves."""
    if counters is not None:
        raise_unfit(read_head(counters))
    return left, right


def _device_csr(matrix: Any, name: str) -> Any:
    """Return a cupyx CSR matrix of float32 or float64 with 32-bit indices."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    csr = matrix.tocsr()
    if max(csr.shape) >= 2**31 or csr.nnz >= 2**31:
        raise ValueError(f'{name} has {csr.nnz} entries and shape {csr.shape}, beyond 32 bits; use backend="cpu"')
    if csr.indices.dtype.itemsize > 4 and csr.nnz:  # their low 32 bits could be in range
        least, most = int(csr.indices.min()), int(csr.indices.max())
        if least < 0 or most >= csr.shape[1]:
            raise errors.bad_index(name, csr.shape[1])
    if isinstance(csr, csr_matrix) and csr.dtype in (np.float32, np.float64) and csr.indices.dtype == np.int32:
        return csr
    dtype = csr.dtype if csr.dtype in (np.float32, np.float64) else np.float32 if csr.dtype.itemsize < 4 else np.float64
    arrays = (cupy.asarray(csr.data, dtype), cupy.asarray(csr.indices, np.int32), cupy.asarray(csr.indptr, np.int32))
    return csr_matrix(arrays, shape=csr.shape)


def _rounding(precision: Precision, half: HalfRange) -> int:
    return _ROUND_TILES if precision.name == "float16" and half is IN_TILES else _ROUNDING[precision.name]


def _prepare(matrix: Any, precision: Precision, counters: Any, which: int, half: HalfRange) -> Factor:
    import cupy

    rows, columns = matrix.shape
    rounding = _rounding(precision, half)
    nnz = len(matrix.indices)
    keep = matrix.dtype == precision.dtype and rounding == 0
    out = matrix.data if keep else cupy.empty(nnz, precision.dtype)
    if nnz or rows:
        kernel = load(precision.value, f"prepare_{'double' if matrix.dtype == np.float64 else 'float'}")
        sizes = (np.int32(rows), np.int32(columns), np.int32(nnz), np.int32(rounding))
        arrays = (matrix.indptr, matrix.indices, matrix.data, 0 if keep else out.data.ptr, counters)
        kernel((min(-(-max(nnz, rows) // 256), 2048),), (256,), (*sizes, *arrays, np.int32(which)))
    return Factor(matrix.shape, matrix.indptr, matrix.indices, out, half=half)


def _mend(matrix: Any, found: int, precision: Precision, which: int, half: HalfRange) -> tuple[Any, Factor, bool]:
    """Sort and sum what is not canonical, raise on what is wrong, tell whether float16 needs scaling."""
    import cupy

    name = "AB"[which]
    if found & BAD_POINTER:
        raise errors.bad_pointer(name)
    if found & BAD_INDEX:
        raise errors.bad_index(name, matrix.shape[1])
    if found & NOT_FINITE:
        worst = int(cupy.argmin(cupy.isfinite(matrix.data)))
        row = int(cupy.searchsorted(matrix.indptr, cupy.asarray(worst), side="right")) - 1
        raise errors.not_finite(name, float(matrix.data[worst]), row, int(matrix.indices[worst]))
    if found & FLOAT_RANGE and precision.name != "float16":
        raise errors.beyond_float32(f"{name} holds entries")
    if found & UNSORTED:
        matrix = matrix.copy()
        matrix.has_canonical_format = False
        matrix.sum_duplicates()
        summed = new_counters(1)
        factor = _prepare(matrix, precision, summed, 0, half)
        found = read_head(summed)[FLAGS] if precision.name == "float16" else 0
    else:
        factor = _prepare(matrix, precision, new_counters(1), 0, half)
    return matrix, factor, precision.name == "float16" and bool(found & (HALF_RANGE | FLOAT_RANGE))


def _scale(matrix: Any, factor: Factor, counters: Any, which: int) -> None:
    """Divide the rows of A, or the columns of B, by powers of two that bring them into the range of float16."""
    import cupy

    rows, by_row = matrix.shape[0], which == 0
    exponents = cupy.full(rows if by_row else matrix.shape[1], _EMPTY, np.int32)
    blocks, kind = ((-(-rows // 32)),), "double" if matrix.dtype == np.float64 else "float"
    sizes: tuple[Any, ...] = (np.int32(rows), np.int32(by_row))
    arrays = (matrix.indptr, matrix.indices, matrix.data, exponents)
    load("float32", f"exponents_{kind}")(blocks, (256,), (*sizes, *arrays))
    sizes = (*sizes, np.int32(_rounding(lookup("float16"), factor.half)), np.int32(factor.half.top))
    flags = counters.data.ptr + 4 * which  # so that the kernel finds those of this factor
    load("float32", f"scale_{kind}")(blocks, (256,), (*sizes, *arrays, factor.data, flags))
    factor.exponents = exponents


def _row_of_entries(indptr: Any, nnz: int) -> Any:
    import cupy

    return cupy.searchsorted(indptr, cupy.arange(nnz, dtype=indptr.dtype), side="right") - 1


def unscale(data: Any, indptr: Any, indices: Any, A: Factor, B: Factor, first: int) -> Any:
    """Multiply C by the powers of two that the inputs were divided by."""
    if A.exponents is None:
        return data
    rows, counters = len(indptr) - 1, new_counters(1)
    if len(data):
        sizes = (np.int32(rows), np.int32(A.half.top))
        arguments = (*sizes, indptr, indices, data, A.exponents[first:], B.exponents, counters)
        load("float32", "unscale")((-(-rows // 32),), (256,), arguments)
    if read_head(counters)[FLAGS]:
        raise errors.beyond_float32("an entry of C is")
    return data
