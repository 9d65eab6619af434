"""The input: one triangle brought into a work matrix, scaled, and searched for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.evd.cuda.matrix import (
    Matrix,
    empty_matrix,
    is_finite,
    largest_entry,
    load_triangle,
    shift_of,
    symmetrize,
)
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
    import cupy

    n = array.shape[0]
    if overwrite and into is None and fits_in_place(array):
        matrix, triangle = _as_columns(array, lower)
        largest = largest_entry(matrix, n, lower=triangle)
        require_finite(largest, lower, check_finite)
        scale = exponent_near_one(largest)
        symmetrize(matrix, 0, n, from_upper=not triangle, exponent=scale)
        return matrix, scale
    matrix, word = into or empty_matrix(n, n, array.dtype), cupy.zeros(1, np.int32)
    load_triangle(array, lower, matrix.pointer, matrix.ld, address(word))
    found = int(word.item())
    if not is_finite(found):
        require_finite(math.nan, lower, check_finite)
    scale = shift_of(found)
    symmetrize(matrix, 0, n, from_upper=False, exponent=scale)
    return matrix, scale


def fits_in_place(array: Any) -> bool:
    """Return whether the kernels can work in the memory of `array`: aligned columns, or rows of a real matrix."""
    size, n = array.itemsize, array.shape[0]
    views = (array,) if array.dtype.kind == "c" else (array, array.T)
    return address(array) % 128 == 0 and any(
        view.strides[0] == size and view.strides[1] >= n * size and view.strides[1] % 128 == 0 for view in views
    )


def _as_columns(array: Any, lower: bool) -> tuple[Matrix, bool]:
    """Return `array` or its transpose, whichever has columns in memory; and whether `lower` is lower there.

    The transpose of a Hermitian matrix is its conjugate.
    """
    view, triangle = (array, lower) if array.strides[0] == array.itemsize else (array.T, not lower)
    return Matrix(address(view), view.strides[1] // array.itemsize, array.itemsize, view), triangle
