"""The input: one triangle brought into a work matrix, scaled, and searched for NaN and infinity."""

from __future__ import annotations

from typing import Any

from spectile.core.pointers import address
from spectile.evd.cuda.matrix import Matrix, as_array, copy_columns, empty_matrix, largest_entry, symmetrize
from spectile.evd.types import exponent_near_one, require_finite


def load_matrix(array: Any, *, lower: bool, check_finite: bool, overwrite: bool = False) -> tuple[Matrix, int]:
    """Bring one triangle into a full Hermitian work matrix times 2**scale, and return both.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, check_finite : bool
    overwrite : bool
        Work in the memory of `array` where `fits_in_place`.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    n, dtype = array.shape[0], array.dtype
    if overwrite and fits_in_place(array):
        matrix, triangle = _as_columns(array, lower)
    else:
        # A real symmetric matrix in rows is copied as it lies, which is several times faster than transposed.
        rows = dtype.kind != "c" and array.strides[0] != array.itemsize
        matrix, triangle = empty_matrix(n, n, dtype), lower != rows
        columns = array.T if rows else array
        if columns.strides[0] == columns.itemsize and columns.strides[1] >= n * columns.itemsize:
            copy_columns(address(columns), columns.strides[1], matrix, n, n)
        else:
            # Transposed on both sides, because CuPy takes the last index as the fastest.
            as_array(matrix, n, n).T[...] = columns.T
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
