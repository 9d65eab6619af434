"""Matrices in device memory by address and leading dimension.

Every matrix is column-major, because the products run on sub-matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.evd.cuda.units import launch


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in device memory: where element (0, 0) is, the leading dimension, and what owns it."""

    pointer: int
    ld: int
    itemsize: int
    owner: Any

    def at(self, row: int, column: int) -> int:
        """Return the address of an element."""
        return self.pointer + (row + column * self.ld) * self.itemsize


def empty_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """Allocate, with a leading dimension that keeps columns 128-byte aligned."""
    import cupy

    itemsize = np.dtype(dtype).itemsize
    step = 128 // itemsize
    ld = max(step, -(-rows // step) * step)
    owner = cupy.empty(ld * max(columns, 1), dtype)
    return Matrix(owner.data.ptr, ld, itemsize, owner)


def zero_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """As `empty_matrix`, filled with zeros, padding included."""
    matrix = empty_matrix(rows, columns, dtype)
    matrix.owner.fill(0)
    return matrix


def as_array(matrix: Matrix, rows: int, columns: int) -> Any:
    """Return the leading part as a CuPy array."""
    import cupy

    strides = (matrix.itemsize, matrix.ld * matrix.itemsize)
    start = matrix.owner.data + (matrix.pointer - matrix.owner.data.ptr)
    return cupy.ndarray((rows, columns), matrix.owner.dtype, memptr=start, strides=strides)


def mirror(unit: Unit, a: Matrix, start: int, n: int, *, from_upper: bool, factor: float) -> None:
    """Fill the other triangle of A[start:start+n, start:start+n] from one triangle times `factor`."""
    tiles = -(-n // 32)
    real = np.empty(0, a.owner.dtype).real.dtype.type
    arguments = (np.uintp(a.at(start, start)), np.int64(a.ld), np.int32(n), np.int32(from_upper), real(factor))
    launch(unit, "mirror", (tiles, tiles), 256, arguments, 32 * 33 * a.itemsize)
