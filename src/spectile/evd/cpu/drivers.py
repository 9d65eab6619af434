"""LAPACK's drivers for dense problems, called with as little around them as small matrices allow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.evd.load import divided_by_power, frobenius_of_triangle, times_power
from spectile.evd.types import Subset, exponent_near_one, not_definite, scalar_of

#: Order up to which QR iteration is faster with eigenvectors than divide and conquer, which divides nothing up to here.
QR_ORDER = 25

#: Order up to which 2 n² + 6 n + 1, the work space of divide and conquer with eigenvectors, is a 32-bit number; beyond,
#: LAPACK asks for too little and reads past its end.
DIVIDED_ORDER = 32_766

#: The largest width of LAPACK's blocks; the order up to which it works without them.
BLOCK, UNBLOCKED_ORDER = 64, 32
#: Width of the blocks in which a reduction takes least time: of LAPACK's own choice, 32, it takes a tenth to a quarter
#: more up to orders of some hundred, and as much beyond.
REDUCED_BLOCK = 8
#: Orders of complex matrices up to which all eigenvectors are transformed back faster without blocks.
TRANSFORMED_ORDER = {"c": 48, "z": 96}

#: Width of the squares in which a triangle is copied into columns; the order above which that is faster than LAPACK's
#: interface, which copies the whole matrix.
COPIED_SQUARE = 128

_FAILURES = {
    "ev": "The algorithm failed to converge; {} off-diagonal elements of an intermediate tridiagonal form did not "
    "converge to zero.",
    "evd": "The algorithm failed to compute an eigenvalue while working on the submatrix lying in rows and columns "
    "{0}/{1} through mod({0},{1}).",
    "evr": "Internal Error.",
    "evx": "{} eigenvectors failed to converge.",
}


def fastest(n: int, vectors: bool) -> str:
    """Return the driver that is fastest for all eigenpairs, or for all eigenvalues, of a standard problem."""
    if vectors and n > DIVIDED_ORDER:
        return "evr"
    return "ev" if vectors and n <= QR_ORDER else "evd"


def require_addressable(driver: str, n: int, vectors: bool) -> None:
    """Raise ValueError where the work space of divide and conquer is too large for LAPACK."""
    other = {"evd": "evr", "gvd": "gvx"}.get(driver)
    if other is not None and vectors and n > DIVIDED_ORDER:
        raise ValueError(
            "Too large work array required -- computation cannot be performed with standard 32-bit LAPACK: "
            f'"{driver}" finds eigenvectors up to order {DIVIDED_ORDER:,}, and "{other}" those of larger matrices'
        )


@functools.cache
def routine(name: str) -> Any:
    """Return a routine of SciPy's LAPACK."""
    from scipy.linalg import lapack

    return getattr(lapack, name)


@functools.cache
def name_of(driver: str, letter: str) -> str:
    """Return LAPACK's name of a routine for symmetric, or Hermitian, matrices of a type."""
    return f"{letter}{'he' if letter in 'cz' else 'sy'}{driver}"


def _work(driver: str, letter: str, n: int, vectors: bool) -> dict[str, int]:
    """Return the work space of a driver, with that of its steps' blocks, as keywords of its call.

    Asked for its own, the complex divide and conquer leaves out the blocks of the back-transformation, which takes
    twice the time then, and SciPy's default for "gvd" without eigenvectors leaves out those of the reduction.
    """
    is_complex = letter in "cz"
    blocks = (BLOCK if vectors and n > 4 * BLOCK else REDUCED_BLOCK) * n
    if driver in ("ev", "gv"):
        return {"lwork": blocks + (1 if is_complex else 2) * n}
    if driver in ("evx", "gvx"):
        return {"lwork": blocks + (1 if is_complex else 8) * n}
    if driver == "evr":
        own = {"lwork": blocks + (1 if is_complex else 26) * n, "liwork": 10 * n}
        return own | {"lrwork": 24 * n} if is_complex else own
    if not vectors:
        own = {"lwork": blocks + 2 * n + 1, "liwork": 1}
        return own | {"lrwork": n} if is_complex else own
    divided = 1 + 6 * n + 2 * n * n
    if is_complex:
        back = BLOCK * (n + BLOCK + 1) if n > TRANSFORMED_ORDER[letter] else 0
        return {"lwork": n * n + 2 * n + back, "lrwork": divided, "liwork": 3 + 5 * n}
    return {"lwork": divided, "liwork": 3 + 5 * n}


def _range(part: Subset) -> dict[str, Any]:
    """Return LAPACK's keywords of a part of the spectrum."""
    if part.by_index:
        return {"range": "I", "il": part.low + 1, "iu": part.high + 1}
    return {"range": "V", "vl": part.low, "vu": part.high}


def work_elements(driver: str, n: int, columns: int, *, vectors: bool, overwrite: bool) -> int:
    """Return how many elements of the matrix's dtype LAPACK works in, the results included, beyond its operands.

    Parameters
    ----------
    driver : str
    n, columns : int
        Order, and eigenvectors that are wanted.
    vectors, overwrite : bool
        With `overwrite`, the operands' own memory is used.
    """
    copies = 0 if overwrite else 2 if driver.startswith("g") else 1
    if not vectors:
        return copies * n * n
    if driver in ("evd", "gvd"):  # the work space of divide and conquer
        return (copies + 2) * n * n
    return copies * n * n + (columns * n if driver in ("evr", "evx", "gvx") else 0)


def _in_columns(a: np.ndarray, lower: bool) -> np.ndarray:
    """Return a column-major copy of one triangle, made in squares that stay in the cache; the rest is arbitrary."""
    n = len(a)
    copy = np.empty((n, n), a.dtype, order="F")
    for j in range(0, n, COPIED_SQUARE):
        columns = slice(j, j + COPIED_SQUARE)
        for i in range(j, n, COPIED_SQUARE) if lower else range(0, j + 1, COPIED_SQUARE):
            rows = slice(i, i + COPIED_SQUARE)
            copy[rows, columns] = a[rows, columns]
    return copy


def in_columns(a: np.ndarray, lower: bool, overwrite: bool) -> tuple[np.ndarray, bool, bool]:
    """Return a matrix as LAPACK's interface takes it without a copy of all, which triangle, and whether it is ours.

    The lower triangle takes up to a fifth less time, of matrices whose large entries come first or that are near a
    multiple of one, and never more.
    """
    if a.flags.f_contiguous:
        return a, lower, overwrite
    if a.dtype.kind == "f" and (overwrite or not lower):
        return a.T, not lower, overwrite  # the same matrix, without a copy into columns
    return (_in_columns(a, lower), lower, True) if len(a) > COPIED_SQUARE else (a, lower, overwrite)


def standard(
    a: np.ndarray, lower: bool, vectors: bool, overwrite: bool = False, driver: str | None = None,
    part: Subset | None = None, scale: int = 0,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the eigenvalues, and the eigenvectors or None, of one finite Hermitian matrix.

    Parameters
    ----------
    a : array, shape (n, n)
        One triangle is read.
    lower, vectors, overwrite : bool
    driver : {"ev", "evd", "evr", "evx"}, optional
        By default the fastest.
    part : Subset, optional
        A part of the spectrum, for the drivers "evr", "evx" and "gvx".
    scale : int
        Exponent of the power of two by which the matrix is multiplied first.  LAPACK's drivers of parts bisect to a
        tolerance that they do not take along where they scale a small matrix: in double precision below a norm of
        1e-146 ten digits may be lost, in single precision below 3e-16 a few.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the iteration does not converge.
    """
    n, letter = len(a), scalar_of(a.dtype).letter
    driver = driver or fastest(n, vectors)
    require_addressable(driver, n, vectors)
    if scale:
        a, overwrite = times_power(a, scale), True
    if part is not None and not part.by_index:
        norm = frobenius_of_triangle(a if lower else a.T)
        part = Subset(False, *part.ends(norm, a.dtype, scale))
        if part.low >= part.high:  # which LAPACK refuses
            return np.empty(0, a.real.dtype), np.empty((n, 0), a.dtype) if vectors else None
    a, lower, overwrite = in_columns(a, lower, overwrite)
    work = _work(driver, letter, n, vectors) if n > UNBLOCKED_ORDER else {}
    if part is not None:
        work |= _range(part)
    w, v, *counted, info = routine(name_of(driver, letter))(
        a, lower=lower, compute_v=vectors, overwrite_a=overwrite, **work
    )
    if info != 0:
        raise np.linalg.LinAlgError(_FAILURES[driver].format(info, n + 1))
    if part is not None:
        w, v = w[: counted[0]], v[:, : counted[0]]
    return divided_by_power(w, scale) if scale else w, v if vectors else None


def generalized(
    a: np.ndarray, b: np.ndarray, *, kind: int, lower: bool, vectors: bool, overwrite: bool, overwrite_b: bool,
    driver: str, scale_a: int, part: Subset | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the eigenvalues, and the eigenvectors or None, of one generalized problem; parameters as for `standard`.

    Raises
    ------
    numpy.linalg.LinAlgError
        If B is not positive definite, with the order of the minor, or the iteration does not converge.
    OverflowError
        If an eigenvalue is beyond the range of its dtype.
    """
    n, letter = len(a), scalar_of(a.dtype).letter
    require_addressable(driver, n, vectors)
    # LAPACK does not scale these.  By even powers of two, because B has a root in the eigenvectors.
    scale_a &= ~1
    scale_b = exponent_near_one(max(b.diagonal().real.tolist())) & ~1  # it is definite: no entry is larger
    if scale_a:
        a, overwrite = times_power(a, scale_a), True
    if scale_b:
        b, overwrite_b = times_power(b, scale_b), True
    scale = scale_a + (-scale_b if kind == 1 else scale_b)
    work = _work(driver, letter, n, vectors) if n > UNBLOCKED_ORDER else {}
    if part is not None:
        work |= _range(part)
    w, v, *counted, info = routine(name_of(driver, letter))(
        a, b, itype=kind, jobz="V" if vectors else "N", uplo="L" if lower else "U", overwrite_a=overwrite,
        overwrite_b=overwrite_b, **work,
    )  # fmt: skip
    if info > n:
        raise not_definite(info - n)
    if info != 0:
        raise np.linalg.LinAlgError(_FAILURES["ev" + driver[2:]].format(info, n + 1))
    if part is not None:
        w, v = w[: counted[0]], v[:, : counted[0]]
    if vectors and scale_b:
        v *= v.real.dtype.type(2.0 ** (scale_b // 2 * (-1 if kind == 3 else 1)))
    return divided_by_power(w, scale) if scale else w, v if vectors else None
