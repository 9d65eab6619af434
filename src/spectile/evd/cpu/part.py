"""Eigenpairs on the CPU by LAPACK's steps: A becomes tridiagonal, what is wanted of T is solved and brought back.

::

    T, Q = sytrd(A);   k = how many are wanted (by Sturm counts, of an interval)
    w    = bisection of k, or QR iteration for all
    Z    = k vectors by inverse iteration, or all by divide and conquer, of which k are kept
    Z    = Q Z
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import numpy as np

from spectile.core.progress import OPERATIONS, Progress
from spectile.evd.cpu import drivers, lapack
from spectile.evd.load import divided_by_power, frobenius_of_diagonals, times_power
from spectile.evd.types import Scalar, Subset, scalar_of

#: Nanoseconds of LAPACK's steps for a tridiagonal matrix, by precision: bisection and inverse iteration, for a pair and
#: a row; QR iteration and divide and conquer, for n²; and what makes two vectors orthogonal, for a row.
NS = {"s": (95, 80, 11, 40, 2), "d": (300, 80, 17, 60, 3)}
#: Nanoseconds of what Python does between the steps; of a rotation of QR iteration's vectors, for n³; and of an
#: operation where they are brought back.
BETWEEN_NS, ROTATION_NS, BACK_NS = 20_000, 3, 0.15
#: Order from which steps take less time than one call for the same part, whatever its size.
CALLED_ORDER = 96
EPSILON = {"s": float(np.finfo(np.float32).eps), "d": float(np.finfo(np.float64).eps)}


@functools.lru_cache
def way(scalar: Scalar, n: int, wanted: int | None, vectors: bool) -> Literal["call", "steps", "all"]:
    """Return which finds a part of a spectrum first: LAPACK's driver of parts, its steps, or all of it.

    Of an interval, None, the middle of one and all in powers is expected; the steps alone count it before they begin.
    """
    if n >= CALLED_ORDER:
        return "steps"
    k = math.isqrt(n) if wanted is None else wanted
    bisection, inverse, qr, divided, orthogonal = NS[_real(scalar.letter)]
    called, stepped, whole = k * n * bisection, n * n * qr, float(n * n * qr)
    if vectors:
        called += k * n * (inverse + k * orthogonal)
        stepped += n * n * divided
        whole = n * n * divided + BACK_NS * (n - k) * 2 * (n * scalar.parts) ** 2
        if n <= drivers.QR_ORDER:
            whole = n * n * qr + ROTATION_NS * scalar.parts * n**3
    stepped = BETWEEN_NS + min(called, stepped)
    return "call" if called <= min(stepped, whole) else "steps" if stepped < whole else "all"


def ways(real: str, n: int, wanted: int, vectors: bool) -> tuple[str, str]:
    """Return which of LAPACK's routines finds `wanted` eigenvalues of T, and which their vectors, if any."""
    bisection, inverse, qr, divided, orthogonal = NS[real]
    values = min(wanted * bisection, n * qr)
    if vectors and n * divided < values + wanted * (inverse + wanted * orthogonal):
        return "stevd", "stevd"
    return "stebz" if wanted * bisection == values else "sterf", "stein"


def work_elements(dtype: np.dtype[Any], n: int, wanted: int, *, vectors: bool, overwrite: bool) -> int:
    """Return how many elements of the matrix's dtype `solve` works in, the results included."""
    scalar = scalar_of(dtype)
    held = 0 if overwrite else n * n
    if not vectors:
        return held
    if ways(_real(scalar.letter), n, wanted, True)[1] == "stevd":  # all vectors of T, beside work space or a copy
        return held + n * n // scalar.parts + max(n * n // scalar.parts, wanted * n)
    return held + wanted * n + wanted * n // scalar.parts


def operations(scalar: Scalar, n: int, wanted: int) -> tuple[int, int, int]:
    """Return how many operations the three steps take at most, with `wanted` eigenvectors."""
    each = scalar.parts**2 * n**2
    return 4 * each * n // 3, 4 * n**2 * wanted // 3, 2 * each * wanted


def solve(
    a: np.ndarray, lower: bool, vectors: bool, overwrite: bool, subset: Subset | None, scale: int = 0
) -> tuple[Any, Any]:
    """Return the wanted eigenvalues, and their vectors or None, of one finite Hermitian matrix.

    Parameters
    ----------
    a : array, shape (n, n)
        One triangle is read.
    lower, vectors, overwrite : bool
    subset : Subset, optional
        By default all eigenvectors.
    scale : int
        Exponent of the power of two that brings the largest entry near 1.

    Raises
    ------
    numpy.linalg.LinAlgError
        If no iteration converges.
    OverflowError
        If an eigenvalue is beyond the range of its dtype.
    """
    n, dtype, scalar = len(a), a.dtype, scalar_of(a.dtype)
    letter, columns = scalar.letter, n if subset is None or not subset.by_index else subset.count()
    if scale:
        a, overwrite = times_power(a, scale), True
    a, lower, overwrite = drivers.in_columns(a, lower, overwrite)
    reduce = drivers.routine(drivers.name_of("trd", letter))
    reduced, solved, transformed = operations(scalar, n, columns if vectors else 0)
    with Progress("eigh", unit=OPERATIONS, total=reduced + solved + transformed) as progress:
        factor, d, e, tau, _ = reduce(a, lower=lower, lwork=drivers.REDUCED_BLOCK * n, overwrite_a=overwrite)
        progress.add(reduced)
        w, z = _of_tridiagonal(_real(letter), d, e, vectors, subset, dtype, scale)
        progress.add(solved)
        w = divided_by_power(w, scale)
        if z is None:
            return w, None
        z = np.asarray(z, dtype, order="F") if subset is None else np.array(z, dtype, order="F")
        lapack.unmtr(factor, tau, z, lower=lower)
        progress.add(transformed)
        return w, z


def _real(letter: str) -> str:
    return "s" if letter in "sc" else "d"


def _of_tridiagonal(
    real: str, d: np.ndarray, e: np.ndarray, vectors: bool, subset: Subset | None, dtype: Any, scale: int
) -> tuple[Any, Any]:
    """Return the wanted eigenpairs of T, that of a matrix times 2**scale."""
    if subset is None:
        return divided(d, e, vectors)
    n = len(d)

    def bisected(tolerance: float = 0.0) -> Any:
        order = "B" if vectors else "E"
        if subset.by_index:
            return drivers.routine(f"{real}stebz")(d, e, 2, 0.0, 0.0, subset.low + 1, subset.high + 1, tolerance, order)
        return drivers.routine(f"{real}stebz")(d, e, 1, *ends, 0, 0, tolerance, order)

    def inside(w: Any) -> slice:
        return slice(subset.low, subset.high + 1) if subset.by_index else subset.inside(w, ends)

    if subset.by_index:
        wanted = subset.count()
    else:
        norm = frobenius_of_diagonals([d, e])
        low, high = subset.ends(norm, dtype, scale)
        ends = max(low, -2 * norm - 1), min(high, 2 * norm + 1)
        # A tolerance as wide as the interval ends the bisection with its counts.
        wanted = bisected(ends[1] - ends[0])[0] if ends[0] < ends[1] else 0
        if wanted == 0:
            return d[:0], np.empty((n, 0), d.dtype) if vectors else None
    by, of = ways(real, n, wanted, vectors)
    if by == "stebz":
        count, w, block, split, info = bisected()
        w = w[:count]
        if info != 0 or count != wanted:
            of = "stevd"
    elif by == "sterf":
        w, info = drivers.routine(f"{real}sterf")(d, e)
        w = w[inside(w)]
        # Inverse iteration would have to know which block of T each eigenvalue belongs to.
        whole = bool((np.abs(e) > EPSILON[real] * np.sqrt(np.abs(d[1:] * d[:-1]))).all())
        block, split = np.ones(n, np.int32), np.full(n, n, np.int32)
        if info != 0 or not whole:
            of = "stevd"
    if of == "stein" and vectors:
        z, info = drivers.routine(f"{real}stein")(d, e, w, block, split)
        if info == 0:
            order = slice(None) if split[0] == n else np.argsort(w, kind="stable")
            return w[order], z[:, order]
    elif of == "stein":
        return w, None
    w, z = divided(d, e, vectors)
    kept = inside(w)
    return w[kept], z[:, kept] if vectors else None


def divided(d: np.ndarray, e: np.ndarray, vectors: bool) -> tuple[Any, Any]:
    """Return all eigenvalues of T, and their vectors or None, by divide and conquer."""
    w, z, info = drivers.routine(f"{scalar_of(d.dtype).letter}stevd")(d, e, compute_v=vectors)
    if info != 0:
        raise np.linalg.LinAlgError(f"{info} off-diagonals of the tridiagonal matrix did not converge to zero")
    return w, z if vectors else None
