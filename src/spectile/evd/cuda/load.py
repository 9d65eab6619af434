"""The input: one triangle brought into a work matrix, scaled, and searched for NaN and infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix, largest_entry, symmetrize
from spectile.evd.types import exponent_near_one, require_finite


def load_matrix(
    array: Any, *, lower: bool, check_finite: bool, overwrite: bool = False, into: Matrix | None = None
) -> tuple[Matrix, int]:
    """Bring one triangle into a full Hermitian work matrix times 2**scale, and return both.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, check_finite : bool
    overwrite : bool
        Work in the memory of `array` where `fits_in_place`.
    into : Matrix, optional
        Work there, whatever `overwrite` says.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    n, dtype = array.shape[0], array.dtype
    if overwrite and into is None and fits_in_place(array):
        matrix, triangle = _as_columns(array, lower)
    else:
        # A real symmetric matrix in rows is copied as it lies, which is several times faster than transposed.
        rows = dtype.kind != "c" and array.strides[0] != array.itemsize
        matrix, triangle = into or empty_matrix(n, n, dtype), lower != rows
        columns = array.T if rows else array
        # As integers, because CuPy takes small numbers of single precision for 0; transposed on both sides, because it
        # takes the last index as the fastest.
        words = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}.get(dtype.itemsize, dtype)
        as_array(matrix, n, n).T.view(words)[...] = columns.T.view(words)
    largest = largest_entry(matrix, n, lower=triangle)
    require_finite(largest, lower, check_finite)
    scale = exponent_near_one(largest)
    symmetrize(matrix, 0, n, from_upper=not triangle, exponent=scale)
    return matrix, scale


def fits_in_place(array: Any) -> bool:
    """Return whether the kernels can work in the memory of `array`: aligned columns, or rows of a real matrix."""
    size, n = array.itemsize, array.shape[0]
    views = (array,) if array.dtype.kind == "c" else (array, array.T)
    return address(array) % 128 == 0 and any(
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
            return Matrix(address(view), view.strides[1] // size, size, view), triangle
    copy = cupy.array(array, order="F")
    return Matrix(address(copy), n, size, copy), lower
