"""The input on the CPU: one triangle, column-major, scaled, and searched for NaN and infinity."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.evd.types import exponent_near_one, out_of_range, require_finite

#: Columns of a triangle that are looked at together: copies of them are small beside the matrix.
STRIP = 64
#: Entries that SciPy's BLAS can count, two of a complex number.
LONGEST = 2**30 - 1


def load_matrix(array: Any, *, lower: bool, overwrite: bool, check_finite: bool) -> tuple[Any, int]:
    """Return the matrix as column-major lower triangle times 2**scale, and scale, so that the largest entry is near 1.

    A power of two is exact; it keeps the squares of the reflectors' norms from over- and underflow.  With `overwrite`
    the memory of `array` is worked in where its layout allows.  Raises ValueError or, without `check_finite`,
    LinAlgError if the triangle holds NaN or infinity.
    """
    if not lower:
        array = array.T  # its lower triangle holds the conjugate
    conjugate = not lower and array.dtype.kind == "c"
    reuse = overwrite and array.flags.f_contiguous
    matrix = array if reuse else np.array(array, order="F")
    if conjugate:
        np.conjugate(matrix, out=matrix)
    if matrix.dtype.kind == "c":
        np.einsum("ii->i", matrix).imag = 0
    largest = largest_entry(matrix)
    require_finite(largest, lower, check_finite)
    scale = exponent_near_one(largest)
    if scale:
        for part in parts(matrix):
            np.ldexp(part, scale, out=part)
    return matrix, scale


def largest_entry(matrix: Any) -> float:
    """Return the largest real or imaginary part of the lower triangle; NaN or infinity if it holds any."""
    tops = [0.0]
    for start in range(0, matrix.shape[0], STRIP):
        columns = np.tril(matrix[start:, start : start + STRIP])
        if columns.dtype.kind == "c":
            np.einsum("ii->i", columns[: columns.shape[1]]).imag = 0  # is not read
        for part in parts(columns):
            tops += [part.max(), -part.min()]
    return float(np.max(tops))  # np.max, like the maxima above, keeps NaN


def frobenius_of_triangle(matrix: Any) -> float:
    """Return the Frobenius norm of the Hermitian matrix with this lower triangle, whose entries are near 1."""
    norm, diagonal = _routine("lapack", "{}lantr", matrix.dtype.char), matrix.diagonal().real
    strips = range(0, len(matrix) - 1, STRIP)  # below the diagonal, as trapezoids
    below = [norm("F", matrix[start + 1 :, start : start + STRIP], uplo="L") for start in strips]
    return math.hypot(math.sqrt(np.vdot(diagonal, diagonal)), *below, *below)


def frobenius_of_diagonals(diagonals: Sequence[Any]) -> float:
    """Return the Frobenius norm of a Hermitian matrix from its main diagonal and all below, of entries near 1."""
    squares = [float(np.vdot(one, one).real) for one in diagonals]
    return math.sqrt(sum(squares[:1]) + 2 * sum(squares[1:]))


def divided_by_power(w: Any, scale: int) -> Any:
    """Return eigenvalues of a matrix times 2**scale as they are.

    Raises OverflowError if one is beyond the range of its dtype.
    """
    if scale == 0:
        return require_in_range(w)
    with np.errstate(over="ignore"):
        return require_in_range(np.ldexp(w, -scale))


def require_in_range(w: Any) -> Any:
    """Return eigenvalues, or raise OverflowError where one is infinite."""
    if not all_finite(w):
        raise out_of_range(w.dtype)
    return w


@functools.cache
def _routine(library: str, name: str, character: str) -> Any:
    module = importlib.import_module(f"scipy.linalg.{library}")
    return getattr(module, name.format({"f": "s", "d": "d", "F": "c", "D": "z"}[character]))


def absolute_sum(array: Any) -> float:
    """Return the sum of the absolute real and imaginary parts: not finite if one of them is not, or if it overflows."""
    if array.size > LONGEST:
        return math.inf
    flat = array.ravel("K")
    flat = flat.view(array.real.dtype) if array.dtype.kind == "c" else flat
    return float(_routine("blas", "{}asum", flat.dtype.char)(flat))


def all_finite(array: Any) -> bool:
    """Return whether no entry of an array is NaN or infinite, by one pass that needs no memory where that is so."""
    return array.size == 0 or math.isfinite(absolute_sum(array)) or bool(np.isfinite(array).all())


def exponent_of(a: Any, lower: bool, check_finite: bool) -> int:
    """Return the exponent of the power of two that brings the largest entry of a triangle near 1; 0 where it is.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    # Most matrices are near 1, with what is not read, and on the diagonal alone: no need to part triangles.
    most = absolute_sum(a)
    if 2.0**15 <= most < math.inf:
        flat = a.ravel("K")
        most = abs(flat[_routine("blas", "i{}amax", a.dtype.char)(flat)])
    if most < 2.0**15 and absolute_sum(a.diagonal().real) > 2.0**-15 * len(a):
        return 0
    largest = largest_entry(a if lower else a.T)
    require_finite(largest, lower, check_finite)
    return exponent_near_one(largest)


def times_power(matrix: Any, scale: int) -> Any:
    """Return a copy times 2**scale, which need not be a number of its own dtype."""
    matrix = matrix.copy()
    for part in parts(matrix):
        np.ldexp(part, scale, out=part)
    return matrix


def parts(array: Any) -> tuple[Any, ...]:
    """Return the real and the imaginary part of complex numbers, or real ones as they are."""
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)
