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
    load_triangle,
    scale_triangle,
    shift_of,
    symmetrize,
)
from spectile.evd.types import require_finite


def load_matrix(
    array: Any, *, lower: bool, check_finite: bool, overwrite: bool = False, into: Matrix | None = None
) -> tuple[Matrix, int]:
    """Bring one triangle into a full Hermitian work matrix times 2**scale, and return both.

    With `overwrite` it is in the memory of `array` where `fits_in_place`, and in that of `into` where there is one.
    Raises ValueError or, without `check_finite`, LinAlgError if the triangle holds NaN or infinity.
    """
    import cupy

    n, name = array.shape[0], array.dtype.name
    matrix = into or (_as_columns(array) if overwrite and fits_in_place(array) else empty_matrix(n, n, name))
    word = cupy.zeros(1, np.int32)
    load_triangle(array, lower, matrix.pointer, matrix.ld, address(word))
    scale_triangle(name, matrix.pointer, matrix.ld, n, address(word))
    symmetrize(matrix, 0, n)
    found = int(word.item())
    if not is_finite(found):
        require_finite(math.nan, lower, check_finite)
    return matrix, shift_of(found)


def fits_in_place(array: Any) -> bool:
    """Return whether the kernels can work in the memory of `array`: aligned columns, or rows of a real matrix."""
    size, n = array.itemsize, array.shape[0]
    views = (array,) if array.dtype.kind == "c" else (array, array.T)
    return address(array) % 128 == 0 and any(
        view.strides[0] == size and view.strides[1] >= n * size and view.strides[1] % 128 == 0 for view in views
    )


def _as_columns(array: Any) -> Matrix:
    """Return `array` or its transpose, whichever has columns in memory."""
    view = array if array.strides[0] == array.itemsize else array.T
    return Matrix(address(view), view.strides[1] // array.itemsize, array.itemsize, view)
