"""The input on the CPU: one triangle, column-major, scaled, and searched for NaN and infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.evd.types import exponent_near_one, out_of_range, require_finite

#: Columns of a triangle that are looked at together: copies of them are small beside the matrix.
STRIP = 64


def load_matrix(array: Any, *, lower: bool, overwrite: bool, check_finite: bool) -> tuple[Any, int]:
    """Return the matrix as column-major lower triangle times 2**scale, and scale, so that the largest entry is near 1.

    A power of two is exact; it keeps the squares of the reflectors' norms from over- and underflow.

    Parameters
    ----------
    array : numpy.ndarray, shape (n, n)
    lower, check_finite : bool
    overwrite : bool
        Work in the memory of `array` where its layout allows.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    if not lower:
        array = array.T  # its lower triangle holds the conjugate
    conjugate = not lower and array.dtype.kind == "c"
    reuse = overwrite and array.flags.f_contiguous and array.flags.writeable
    matrix = array if reuse else np.array(array, order="F")
    if conjugate:
        np.conjugate(matrix, out=matrix)
    if matrix.dtype.kind == "c":
        np.einsum("ii->i", matrix).imag = 0
    largest = largest_entry(matrix)
    require_finite(largest, lower, check_finite)
    scale = exponent_near_one(largest)
    if scale:
        for part in _parts(matrix):
            np.ldexp(part, scale, out=part)
    return matrix, scale


def largest_entry(matrix: Any) -> float:
    """Return the largest real or imaginary part of the lower triangle; NaN or infinity if it holds any."""
    tops = [0.0]
    for start in range(0, matrix.shape[0], STRIP):
        columns = np.tril(matrix[start:, start : start + STRIP])
        if columns.dtype.kind == "c":
            np.einsum("ii->i", columns[: columns.shape[1]]).imag = 0  # is not read
        for part in _parts(columns):
            tops += [part.max(), -part.min()]
    return float(np.max(tops))  # np.max, like the maxima above, keeps NaN


def frobenius_of_triangle(matrix: Any) -> float:
    """Return the Frobenius norm of the Hermitian matrix with this lower triangle, whose entries are near 1."""
    total = 0.0
    for start in range(0, matrix.shape[0], STRIP):
        columns = np.tril(matrix[start:, start : start + STRIP], -1)
        total += sum(2 * float(np.square(part, dtype=np.float64).sum()) for part in _parts(columns))
    return float(np.sqrt(total + np.square(np.diagonal(matrix).real, dtype=np.float64).sum()))


def divided_by_power(w: Any, scale: int) -> Any:
    """Return eigenvalues of a matrix times 2**scale as they are.

    Raises
    ------
    OverflowError
        If one is beyond the range of its dtype.
    """
    with np.errstate(over="ignore"):
        return require_in_range(np.ldexp(w, -scale))


def require_in_range(w: Any) -> Any:
    """Return eigenvalues, or raise OverflowError where one is infinite."""
    if not np.isfinite(w).all():
        raise out_of_range(w.dtype)
    return w


def times_power(matrix: Any, scale: int) -> Any:
    """Return a copy times 2**scale, which need not be a number of its own dtype."""
    matrix = matrix.copy()
    for part in _parts(matrix):
        np.ldexp(part, scale, out=part)
    return matrix


def _parts(array: Any) -> tuple[Any, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)
