"""The public functions for tridiagonal and banded matrices, with SciPy's signatures."""

from __future__ import annotations

import functools
import math
import reprlib
from typing import Any

from spectile.core.device import Backend
from spectile.core.options import flag, number
from spectile.evd import costs
from spectile.evd.arguments import kind_of_part, limits_of, refuse_other
from spectile.evd.dispatch import backend_module, chosen_backend


def eigh_tridiagonal(
    d: Any,
    e: Any,
    eigvals_only: bool = False,
    select: Any = "a",
    select_range: Any = None,
    check_finite: bool = True,
    tol: float = 0.0,
    lapack_driver: str = "auto",
    *,
    backend: Backend = "auto",
) -> Any:
    """Solve the eigenproblem of a real symmetric tridiagonal matrix; the parameters are SciPy's.

    Parameters
    ----------
    d : array, shape (..., n)
        Diagonal; a NumPy or CuPy array, or any object with ``__cuda_array_interface__`` or ``__dlpack__``.
    e : array, shape (..., n - 1)
        Off-diagonal.
    eigvals_only : bool, default False
        Return the eigenvalues alone.
    select : {"a", "v", "i"}
        All eigenvalues, those of the half-open interval `select_range`, or those of its indices, both included.
    select_range : (min, max), optional
    check_finite : bool, default True
        Raise ValueError for NaN and infinity.
    tol : float
        Absolute tolerance of LAPACK's "stebz" on the CPU.
    lapack_driver : {"auto", "stemr", "stebz", "sterf", "stev", "stevd"}
        LAPACK's driver on the CPU.  The default, "stevd" for all eigenpairs, leaves roundoff of a vector's largest
        component in its small ones, of which few digits may be right; "stemr" gets more of them right, in several times
        the time and with a digit less of orthogonality.  It also takes the place of "stevd" above order 46,338, where
        that needs more work space than it can count.  On CUDA a name is checked and what runs is the same: Sturm counts
        for the eigenvalues, divide and conquer with eigenvectors, both in float64.
    backend : {"auto", "cpu", "cuda"}
        ``auto`` takes CUDA for arrays on a GPU, or where a device is found.

    Returns
    -------
    w : array, shape (..., m)
        Ascending.
    v : array, shape (..., n, m)
        Eigenvectors in columns; not returned with `eigvals_only`.

    Raises
    ------
    ValueError, TypeError, MemoryError, numpy.linalg.LinAlgError
        As SciPy raises them.

    See Also
    --------
    eigvalsh_tridiagonal : eigenvalues alone.
    tridiagonalize : the tridiagonal form of a dense matrix.

    Examples
    --------
    Two coupled sites:

    >>> import spectile
    >>> w, v = spectile.eigh_tridiagonal([0.0, 0.0], [1.0], backend="cpu")
    >>> w.round(6).tolist()
    [-1.0, 1.0]
    """
    if not isinstance(lapack_driver, str):
        raise TypeError(f"lapack_driver = {reprlib.repr(lapack_driver)} is no word: name one of LAPACK's, or 'auto'")
    if math.isnan(tol := number("tol", tol)):
        raise ValueError("tol is NaN: give a tolerance, or 0 for LAPACK's own")
    refuse_other("d", d)
    refuse_other("e", e)
    eigvals_only = flag("eigvals_only", eigvals_only)
    work = functools.partial(costs.tridiagonal, d, e, vectors=not eigvals_only)
    return backend_module("narrow", chosen_backend((d, e), backend, work)).eigh_tridiagonal(
        d, e, eigvals_only=eigvals_only, select=(kind := kind_of_part(select)),
        select_range=limits_of(kind, select_range), check_finite=flag("check_finite", check_finite), tol=tol,
        lapack_driver=lapack_driver,
    )  # fmt: skip


def eigvalsh_tridiagonal(
    d: Any,
    e: Any,
    select: Any = "a",
    select_range: Any = None,
    check_finite: bool = True,
    tol: float = 0.0,
    lapack_driver: str = "auto",
    *,
    backend: Backend = "auto",
) -> Any:
    """Return the eigenvalues of a real symmetric tridiagonal matrix, ascending.

    Parameters
    ----------
    d, e, select, select_range, check_finite, tol, lapack_driver, backend
        As for `eigh_tridiagonal`.

    Returns
    -------
    w : array, shape (..., m)

    Examples
    --------
    >>> from spectile import eigvalsh_tridiagonal
    >>> eigvalsh_tridiagonal([2.0, 2.0], [1.0]).round(12).tolist()
    [1.0, 3.0]
    """
    return eigh_tridiagonal(d, e, True, select, select_range, check_finite, tol, lapack_driver, backend=backend)


def eig_banded(
    a_band: Any,
    lower: bool = False,
    eigvals_only: bool = False,
    overwrite_a_band: bool = False,
    select: Any = "a",
    select_range: Any = None,
    max_ev: int = 0,
    check_finite: bool = True,
    *,
    backend: Backend = "auto",
) -> Any:
    """Solve the eigenproblem of a real symmetric or complex Hermitian band matrix; the parameters are SciPy's.

    Parameters
    ----------
    a_band : array, shape (..., u + 1, n)
        Diagonals in rows: ``a_band[i - j, j] == a[i, j]`` with `lower`, else ``a_band[u + i - j, j] == a[i, j]``.
    lower : bool, default False
        Which half of the band is given.
    eigvals_only : bool, default False
        Return the eigenvalues alone.
    overwrite_a_band : bool, default False
        The memory of `a_band` may be used on the CPU; not of an array that is read-only or overlaps itself.
    select, select_range
        As for `eigh_tridiagonal`.
    max_ev : int
        SciPy's most eigenvalues that ``select="v"`` is expected to find.  There is always space for all.
    check_finite, backend
        As for `eigh_tridiagonal`.

    Returns
    -------
    w : array, shape (..., m)
        Ascending.
    v : array, shape (..., n, m)
        Eigenvectors in columns; not returned with `eigvals_only`.

    Raises
    ------
    ValueError, TypeError, MemoryError, numpy.linalg.LinAlgError
        As SciPy raises them.

    See Also
    --------
    eigvals_banded : eigenvalues alone.
    eigh_tridiagonal : of three diagonals.

    Notes
    -----
    On CUDA a band of up to 64 subdiagonals (float64; 32 for other dtypes) goes to bulge chasing; a wider one is solved
    as a dense matrix.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> band = np.array([[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]])  # diagonal, subdiagonal
    >>> spectile.eig_banded(band, lower=True, eigvals_only=True, backend="cpu").round(6).tolist()
    [0.585786, 2.0, 3.414214]
    """
    refuse_other("a_band", a_band)
    eigvals_only = flag("eigvals_only", eigvals_only)
    work = functools.partial(costs.banded, a_band, vectors=not eigvals_only)
    return backend_module("narrow", chosen_backend((a_band,), backend, work)).eig_banded(
        a_band, lower=flag("lower", lower), eigvals_only=eigvals_only,
        overwrite_a_band=flag("overwrite_a_band", overwrite_a_band), select=(kind := kind_of_part(select)),
        select_range=limits_of(kind, select_range), max_ev=max_ev, check_finite=flag("check_finite", check_finite),
    )  # fmt: skip


def eigvals_banded(
    a_band: Any,
    lower: bool = False,
    overwrite_a_band: bool = False,
    select: Any = "a",
    select_range: Any = None,
    check_finite: bool = True,
    *,
    backend: Backend = "auto",
) -> Any:
    """Return the eigenvalues of a real symmetric or complex Hermitian band matrix, ascending.

    Parameters
    ----------
    a_band, lower, overwrite_a_band, select, select_range, check_finite, backend
        As for `eig_banded`.

    Returns
    -------
    w : array, shape (..., m)

    Examples
    --------
    >>> import numpy as np
    >>> from spectile import eigvals_banded
    >>> eigvals_banded(np.array([[2.0, 2.0], [1.0, 0.0]]), lower=True).round(12).tolist()
    [1.0, 3.0]
    """
    return eig_banded(
        a_band, lower, True, overwrite_a_band, select, select_range, check_finite=check_finite, backend=backend
    )
