"""LAPACK's drivers for dense problems, called with as little around them as small matrices allow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.evd.cpu.load import divided_by_power, frobenius_of_triangle, largest_entry, times_power
from spectile.evd.types import Subset, exponent_near_one, not_definite, scalar_of

#: Order up to which QR iteration is faster with eigenvectors than divide and conquer, which divides nothing up to here.
QR_ORDER = 25

#: Order up to which 2 n² + 6 n + 1, the work space of divide and conquer with eigenvectors, is a 32-bit number; beyond,
#: LAPACK asks for too little and reads past its end.
DIVIDED_ORDER = 32_766

#: Orders up to which LAPACK works without blocks, so that its default work space is enough.
UNBLOCKED_ORDER = 16

#: Orders from which LAPACK takes 2 to 7 % less time with a lower triangle, the copy into columns included: for
#: eigenvalues alone, and with eigenvectors.
LOWER_ORDER_VALUES, LOWER_ORDER_VECTORS = 65, 200

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
def _routine(driver: str, letter: str) -> Any:
    from scipy.linalg import lapack

    return getattr(lapack, f"{letter}{'he' if letter in 'cz' else 'sy'}{driver}")


@functools.lru_cache(maxsize=256)
def _work(driver: str, letter: str, n: int, lower: bool, vectors: bool) -> dict[str, int]:
    """Return the work space that the driver asks for, as keywords of its call."""
    query = _routine(driver + "_lwork", letter)
    sizes = query(n, lower=lower, **({"compute_v": vectors} if driver == "evd" else {}))[:-1]
    if driver in ("ev", "evx"):
        names: tuple[str, ...] = ("lwork",)
    elif letter in "cz":
        names = ("lwork", "liwork", "lrwork") if driver == "evd" else ("lwork", "lrwork", "liwork")
    else:
        names = ("lwork", "liwork")
    return {name: int(size.real) for name, size in zip(names, sizes, strict=True)}


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


def _exponent(a: np.ndarray, lower: bool) -> int:
    if len(a) <= COPIED_SQUARE:
        # Most small matrices are near 1, with what is not read, and on the diagonal alone: no need to part triangles.
        least, most = abs(a.diagonal().real).max(), abs(a).max()
        if exponent_near_one(least) == 0 < least and most < 2.0**15:
            return 0
    return exponent_near_one(largest_entry(a if lower else a.T))


def standard(
    a: np.ndarray, lower: bool, vectors: bool, overwrite: bool = False, driver: str | None = None,
    part: Subset | None = None,
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

    Raises
    ------
    numpy.linalg.LinAlgError
        If the iteration does not converge.
    """
    n, letter = len(a), scalar_of(a.dtype).letter
    driver = driver or fastest(n, vectors)
    require_addressable(driver, n, vectors)
    scale = 0
    if part is not None:
        # LAPACK's drivers of parts bisect to a tolerance that they do not take along where they scale a small matrix:
        # in double precision below a norm of 1e-146 ten digits may be lost, in single precision below 3e-16 a few.
        scale = _exponent(a, lower)
        if scale:
            a, overwrite = times_power(a, scale), True
        if not part.by_index:
            norm = frobenius_of_triangle(a if lower else a.T)
            part = Subset(False, *part.ends(norm, a.dtype, scale))
    if not a.flags.f_contiguous:
        from_lower = LOWER_ORDER_VECTORS if vectors else LOWER_ORDER_VALUES
        if letter in "sd" and (overwrite or not lower or n < from_lower):
            a, lower = a.T, not lower  # the same matrix, without a copy into columns
        elif n > COPIED_SQUARE:
            a, overwrite = _in_columns(a, lower), True
    w, v, *counted, info = _routine(driver, letter)(
        a,
        lower=lower,
        compute_v=vectors,
        overwrite_a=overwrite,
        **(_work(driver, letter, n, lower, vectors) if n > UNBLOCKED_ORDER else {}),
        **(_range(part) if part is not None else {}),
    )
    if info != 0:
        raise np.linalg.LinAlgError(_FAILURES[driver].format(info, n + 1))
    if part is not None:
        w, v = divided_by_power(w[: counted[0]], scale), v[:, : counted[0]]
    return w, v if vectors else None


def generalized(
    a: np.ndarray,
    b: np.ndarray,
    *,
    kind: int,
    lower: bool,
    vectors: bool,
    overwrite: bool,
    overwrite_b: bool,
    driver: str,
    part: Subset | None = None,
) -> tuple[Any, Any]:
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
    scale_a = _exponent(a, lower) & ~1
    scale_b = exponent_near_one(float(b.diagonal().real.max())) & ~1  # it is definite: no entry is larger
    if scale_a:
        a, overwrite = times_power(a, scale_a), True
    if scale_b:
        b, overwrite_b = times_power(b, scale_b), True
    scale = scale_a + (-scale_b if kind == 1 else scale_b)
    routine = _routine(driver, letter)
    keywords: dict[str, Any] = {"uplo": "L" if lower else "U", "jobz": "V" if vectors else "N", "itype": kind}
    if driver != "gvd":
        keywords["lwork"] = int(_routine(driver + "_lwork", letter)(n, uplo=keywords["uplo"])[0].real)
    w, v, *counted, info = routine(
        a, b, overwrite_a=overwrite, overwrite_b=overwrite_b, **keywords, **({} if part is None else _range(part))
    )
    if info > n:
        raise not_definite(info - n)
    if info != 0:
        raise np.linalg.LinAlgError(_FAILURES["ev" + driver[2:]].format(info, n + 1))
    if part is not None:
        w, v = w[: counted[0]], v[:, : counted[0]]
    if vectors and scale_b:
        v *= v.real.dtype.type(2.0 ** (scale_b // 2 * (-1 if kind == 3 else 1)))
    return divided_by_power(w, scale) if scale else w, v if vectors else None
