"""One look at a stored matrix on the CPU: its adjoint, its bounds."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from spectile.core.jit import njit
from spectile.kpm.operators.stored import Inspection


def inspect(matrix: Any) -> Inspection:
    """Look at a canonical ``scipy.sparse`` CSR matrix, shape (N, N)."""
    finite, difference, largest, low, high, longest = _inspect(
        matrix.indptr, matrix.indices, matrix.data, matrix.indptr[:-1].copy()
    )
    return Inspection(finite, difference, largest, (low, high), longest)


@numba.njit(forceinline=True)
def _size(re, im):  # type: ignore[no-untyped-def]
    """Return the size of a number in double precision, whose square may lie beyond its range."""
    square = re * re + im * im
    return math.sqrt(square) if 1e-290 < square < 1e290 else math.hypot(re, im)


@njit(nogil=True)
def _inspect(indptr, indices, data, partner):  # type: ignore[no-untyped-def]
    """Go through the rows; `partner` holds where each row begins, and is overwritten.

    Rows come in order, and columns ascend in each: the entry (i, j) above the diagonal meets its adjoint one where row
    j was last looked at.  What is passed over there has no partner above the diagonal.
    """
    finite, difference, largest, low, high, longest = True, 0.0, 0.0, np.inf, -np.inf, 0
    for row in range(indptr.size - 1):
        center = radius = 0.0
        first, last = indptr[row], indptr[row + 1]
        if last - first > longest:
            longest = last - first
        for k in range(first, last):
            column, value, unlike = indices[k], data[k], 0.0
            real, imaginary = np.float64(value.real), np.float64(value.imag)
            size = _size(real, imaginary)
            if not size < np.inf:
                finite = False
            if size > largest:
                largest = size
            if column == row:
                center, unlike = real, 2 * abs(imaginary)
            else:
                radius += size
            if column > row:
                unlike, mine, end = size, partner[column], indptr[column + 1]
                while mine < end and indices[mine] <= row:
                    other = data[mine]
                    if indices[mine] == row:
                        unlike = _size(real - np.float64(other.real), imaginary + np.float64(other.imag))
                    else:
                        difference = max(difference, _size(np.float64(other.real), np.float64(other.imag)))
                    mine += 1
                partner[column] = mine
            elif column < row and k >= partner[row]:
                unlike = size
            if unlike > difference:
                difference = unlike
        if center - radius < low:
            low = center - radius
        if center + radius > high:
            high = center + radius
    return finite, difference, largest, low, high, longest
