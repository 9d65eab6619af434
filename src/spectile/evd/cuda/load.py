"""The input: one triangle brought into a work matrix, scaled, and searched for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix, mirror
from spectile.evd.cuda.units import HELPERS, STAGES, launch


def load_matrix(
    array: Any, *, lower: bool, bandwidth: int, check_finite: bool, overwrite: bool = False
) -> tuple[Matrix, int]:
    """Bring one triangle into a full Hermitian work matrix times 2**scale, and return both.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, check_finite : bool
    bandwidth : int
    overwrite : bool
        Work in the memory of `array` where `fits_in_place`.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    n, dtype = array.shape[0], array.dtype
    unit = STAGES[dtype.name, bandwidth]
    if overwrite and fits_in_place(array):
        matrix, triangle = _as_columns(array, lower)
    else:
        # A real symmetric matrix in rows is copied as it lies, which is several times faster than transposed.
        rows = dtype.kind != "c" and array.strides[0] != array.itemsize
        matrix, triangle = empty_matrix(n, n, dtype), lower != rows
        # Transposed on both sides, because CuPy takes the last index as the fastest.
        as_array(matrix, n, n).T[...] = array if rows else array.T
    largest = _largest(matrix, n, lower=triangle)
    require_finite(largest, lower, check_finite)
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    if -16 <= scale <= 16:
        scale = 0
    # 2**scale itself may be out of range: in two steps.
    mirror(unit, matrix, 0, n, from_upper=not triangle, factor=2.0 ** (scale // 2))
    if scale:
        mirror(unit, matrix, 0, n, from_upper=False, factor=2.0 ** (scale - scale // 2))
    return matrix, scale


def fits_in_place(array: Any) -> bool:
    """Return whether the kernels can work in the memory of `array`: aligned columns, or rows of a real matrix."""
    size, n = array.itemsize, array.shape[0]
    views = (array,) if array.dtype.kind == "c" else (array, array.T)
    return array.data.ptr % 128 == 0 and any(
        view.strides[0] == size and view.strides[1] >= n * size and view.strides[1] % 128 == 0 for view in views
    )


def _as_columns(array: Any, lower: bool) -> tuple[Matrix, bool]:
    """Return `array` or its transpose, whichever is column-major, else a copy; and whether `lower` is lower there.

    The transpose of a Hermitian matrix is its conjugate.
    """
    import cupy

    n, size = array.shape[0], array.itemsize
    for view, triangle in ((array, lower), (array.T, not lower)):
        if view.strides[0] == size and view.strides[1] >= n * size:
            return Matrix(view.data.ptr, view.strides[1] // size, size, view), triangle
    copy = cupy.array(array, order="F")
    return Matrix(copy.data.ptr, n, size, copy), lower


def _largest(matrix: Matrix, n: int, *, lower: bool) -> float:
    """Return the largest real or imaginary part of a triangle; NaN or infinity if it holds any."""
    import cupy

    parts = cupy.empty(min(n, 1024), np.float64)
    arguments = (np.uintp(matrix.pointer), np.int64(matrix.ld), np.int32(n), np.int32(not lower), parts)
    launch(HELPERS[matrix.owner.dtype.name], "triangle_max", len(parts), 256, arguments, 256 * 8)
    return float(parts.max())


def require_finite(largest: float, lower: bool, check_finite: bool) -> None:
    """Raise what `load_matrix` raises where `largest` is NaN or infinity."""
    if not math.isfinite(largest):
        error = ValueError if check_finite else np.linalg.LinAlgError
        raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")
