"""Matrices in device memory by address and leading dimension.

Every matrix is column-major, because the products run on sub-matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.units import MATRIX
from spectile.evd.types import SCALARS, Scalar

TILE = 32  # rows and columns that a block of matrix.cu transposes


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

    @property
    def scalar(self) -> Scalar:
        """The dtype."""
        return SCALARS[self.owner.dtype.name]


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


def triangle_shape(n: int, scalar: Scalar) -> Shape:
    """Launch of a kernel that transposes one triangle of order n in square tiles."""
    tiles = -(-n // TILE)
    return Shape((tiles, tiles), 256, TILE * (TILE + 1) * scalar.itemsize)


def symmetrize(a: Matrix, start: int, n: int, *, from_upper: bool, factor: float) -> None:
    """Fill the other triangle of A[start:start+n, start:start+n] from one triangle times `factor`."""
    scalar = a.scalar
    kernel(MATRIX[scalar.name], "symmetrize")(
        triangle_shape(n, scalar),
        *(np.uintp(a.at(start, start)), np.int64(a.ld), np.int32(n), np.int32(from_upper)),
        np.dtype(scalar.real).type(factor),
    )


def load_triangle(array: Any, lower: bool, out: int, ldo: int, not_finite: int) -> None:
    """Copy one triangle of `array` into the lower triangle of `out`, with zeros in the place of NaN and infinity.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower : bool
        Which triangle of `array` is read.
    out, ldo : int
        Address and leading dimension of a column-major matrix.
    not_finite : int
        Address of an int32, set to 1 where the triangle holds NaN or infinity.
    """
    n, size, scalar = array.shape[0], array.itemsize, SCALARS[array.dtype.name]
    along_i, along_j = array.strides if lower else array.strides[::-1]
    kernel(MATRIX[scalar.name], "load_triangle")(
        triangle_shape(n, scalar),
        *(np.uintp(array.data.ptr), np.int64(along_i // size), np.int64(along_j // size), np.int32(n)),
        *(np.int32(not lower), np.uintp(out), np.int64(ldo), np.uintp(not_finite)),
    )


def largest_shape(n: int) -> Shape:
    """Launch of `largest_entry`."""
    return Shape((min(n, 1024),), 256, 256 * 8)


def largest_entry(matrix: Matrix, n: int, *, lower: bool) -> float:
    """Return the largest real or imaginary part of a triangle; NaN or infinity if it holds any."""
    import cupy

    shape = largest_shape(n)
    parts = cupy.empty(shape.grid[0], np.float64)
    kernel(MATRIX[matrix.scalar.name], "triangle_max")(
        shape, np.uintp(matrix.pointer), np.int64(matrix.ld), np.int32(n), np.int32(not lower), parts
    )
    return float(parts.max())


def values_shape(n: int) -> Shape:
    """Launch of `scale_values`."""
    return Shape((-(-n // 256),), 256)


def scaled_values(w: Any, exponent: int, scalar: Scalar, factor: float = 1.0) -> Any:
    """Return 2**exponent factor w, for w of float64, in the real dtype of `scalar`."""
    import cupy

    out = cupy.empty(w.shape, scalar.real)
    if w.size:
        kernel(MATRIX[scalar.name], "scale_values")(
            values_shape(w.size), w, np.int32(w.size), np.float64(factor), np.int32(exponent), out
        )
    return out


def copy_columns(source: int, source_pitch: int, target: Matrix, rows: int, columns: int) -> None:
    """Copy columns of contiguous elements, `source_pitch` bytes apart, by the device's copy engine."""
    import cupy

    runtime, size = cupy.cuda.runtime, target.itemsize
    stream = cupy.cuda.get_current_stream().ptr
    runtime.memcpy2DAsync(
        *(target.pointer, target.ld * size, source, source_pitch, rows * size, columns),
        *(runtime.memcpyDeviceToDevice, stream),
    )


def shapes(n: int, scalar: Scalar) -> Iterator[tuple[str, Shape]]:
    """Yield every launch of this module for a matrix of order n, with the kernel's name."""
    for name in ("symmetrize", "load_triangle"):
        yield name, triangle_shape(n, scalar)
    yield "triangle_max", largest_shape(n)
    yield "scale_values", values_shape(n)
