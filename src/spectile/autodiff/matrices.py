"""Functions of Hermitian matrices, and their derivatives, of arrays of any library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile import evd
from spectile.autodiff import functions
from spectile.autodiff.functions import Scalar, inside, outside
from spectile.autodiff.spectra import adjoint
from spectile.core import memory
from spectile.core.device import Backend
from spectile.core.options import flag, leading
from spectile.core.protocols import ArrayLike
from spectile.evd import costs
from spectile.evd.arguments import any_on_device, placed, require_square
from spectile.evd.types import working_dtype

Function = str | Callable[[Any], Any]
#: Matrices that a derivative holds at once.
HELD = 14
#: Products of matrices that a derivative takes.
DERIVATIVE_PRODUCTS = 5


def matrix_function(
    f: Function,
    a: ArrayLike,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> Any:
    """Return a function of Hermitian matrices, f(A) = V diag(f(w)) Vᴴ with A = V diag(w) Vᴴ.

    Parameters
    ----------
    f : {"exp", "log", "sqrt", "sign", "abs"} or callable
        A callable takes real eigenvalues, shape (..., n), and returns its value at each, real or complex: arrays of
        CuPy where `a` is on a GPU, of NumPy elsewhere.
    a : array, shape (..., n, n)
        As for :func:`spectile.eigh`; one triangle, and the real part of the diagonal, is read.
    lower, overwrite_a, check_finite, backend
        As for :func:`spectile.eigh`.

    Returns
    -------
    array, shape (..., n, n)
        In the kind and precision of `a`, complex where `a` or f is; Hermitian to rounding where f is real.

    Raises
    ------
    ValueError
        If f is not defined, or not finite, at an eigenvalue, or no function has its name.
    TypeError
        If `f` is neither a name nor a callable, or gives no numbers.
    ValueError, TypeError, OverflowError, MemoryError, numpy.linalg.LinAlgError
        As for :func:`spectile.eigh`.

    See Also
    --------
    matrix_function_frechet : its derivative in a direction.
    spectile.torch.matrix_function, spectile.jax.matrix_function : with gradients.

    Notes
    -----
    The error is that of the eigenvalues, a few ε ‖A‖, times the slope of f.  Of "log", "sqrt", "sign" and "abs", which
    are not smooth at 0, eigenvalues below n ε ‖A‖ count as 0.

    Source: Higham, Functions of Matrices (2008), chapter 1.

    Examples
    --------
    Occupations of two orbitals at a temperature of 0.1, as a density matrix:

    >>> import numpy as np, spectile
    >>> fock = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> p = spectile.matrix_function(lambda energies: 1 / (1 + np.exp(energies / 0.1)), fock, backend="cpu")
    >>> p.round(4).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    return _functions((f,), a, lower, overwrite_a, check_finite, backend)[0]


def matrix_function_frechet(
    f: Function,
    a: ArrayLike,
    e: ArrayLike,
    *,
    df: Callable[[Any], Any] | None = None,
    lower: bool = True,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> tuple[Any, Any]:
    """Return a function of Hermitian matrices and its Fréchet derivative in a direction.

    It is made of divided differences of f, which need no gap: it is as right where eigenvalues coincide as elsewhere.

    Parameters
    ----------
    f, a, lower, check_finite, backend
        As for :func:`matrix_function`.
    e : array, shape (..., n, n)
        Direction E, Hermitian or not; all of it is read.
    df : callable, optional
        The derivative of a callable f, which needs it: it takes and returns what f does, for arrays of any shape.

    Returns
    -------
    value : array, shape (..., n, n)
        f(A).
    derivative : array, shape (..., n, n)
        L(A, E) with f(A + E) = f(A) + L(A, E) + o(‖E‖).

    Raises
    ------
    ValueError
        If f or its slope is not defined, or not finite, at an eigenvalue, a callable f is without `df`, or E is not
        finite or of another order.
    ValueError, TypeError, OverflowError, MemoryError, numpy.linalg.LinAlgError
        As for :func:`matrix_function`.

    See Also
    --------
    scipy.linalg.expm_frechet : that of the exponential, of any matrix.

    Notes
    -----
    Source: Daleckii and Krein (1951); Higham, Functions of Matrices (2008), section 3.2.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> value, derivative = spectile.matrix_function_frechet("sqrt", 4 * np.eye(2), np.ones((2, 2)), backend="cpu")
    >>> derivative.round(6).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    functions.require_function(np, f)
    if isinstance(f, str):
        if df is not None:
            raise ValueError(f"df is known of {f!r}: leave it out")
    elif not callable(df):
        raise (ValueError if df is None else TypeError)("df is no function: pass the derivative of f, a callable")
    shape, other = require_square(a), require_square(e, "e")
    n, order = shape[-1], other[-1]
    if order != n:
        raise ValueError(f"e is of order {order} and a of {n}: give a direction of the same order")
    whole = (*leading(a=shape[:-2], e=other[:-2]), n, n)
    xp, (matrix, direction), in_kind = placed(
        {"a": a, "e": e}, backend, lambda: costs.dense(whole, (a,), vectors=True, functions=DERIVATIVE_PRODUCTS)
    )
    direction = direction.astype(working_dtype(direction.dtype, "e"), copy=False)
    if not bool(xp.isfinite(direction).all()):
        raise ValueError("e holds NaN or infinity: give a finite direction")
    elements = math.prod(whole)
    held = HELD * elements * np.result_type(working_dtype(matrix.dtype), direction.dtype).itemsize
    what = f"the derivative of a function of matrices with {elements:,} elements"
    (memory.require_host_free if xp is np else memory.require_free)(held, what)
    on_host = not any_on_device((a, e))
    w, v = evd.eigh(matrix, lower=lower, check_finite=check_finite, backend="cpu" if xp is np else "cuda")
    value = _value(xp, f, w, v, on_host)
    if isinstance(f, str):
        w = functions.in_domain(xp, f, w)
        functions.require_domain(f, w, True)
        scalar = functions.named(xp, f)
    else:
        scalar = Scalar(
            lambda w: _evaluated(xp, "f", f, w, on_host), lambda w: _evaluated(xp, "df", df, w, on_host), xp.zeros_like
        )
    with np.errstate(all="ignore"):  # between eigenvalues that are apart the slope is not used
        slopes = functions.first_differences(xp, scalar, w)
    functions.require_finite(xp, slopes, w)
    with np.errstate(all="ignore"):
        derivative = outside(v, slopes * inside(v, direction))
    if not bool(xp.isfinite(derivative).all()):
        raise ValueError("the derivative of f in the direction e leaves the range of its dtype: scale e")
    return in_kind(value), in_kind(derivative)


def expm(
    a: ArrayLike, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, backend: Backend = "auto"
) -> Any:
    """Return the exponential of Hermitian matrices; see :func:`matrix_function`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> spectile.expm(np.diag([0.0, 1.0]), backend="cpu").diagonal().round(4).tolist()
    [1.0, 2.7183]
    """
    return _functions(("exp",), a, lower, overwrite_a, check_finite, backend)[0]


def logm(
    a: ArrayLike, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, backend: Backend = "auto"
) -> Any:
    """Return the logarithm of Hermitian positive definite matrices; see :func:`matrix_function`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> spectile.logm(np.diag([np.e, 10.0]), backend="cpu").diagonal().round(4).tolist()
    [1.0, 2.3026]
    """
    return _functions(("log",), a, lower, overwrite_a, check_finite, backend)[0]


def sqrtm(
    a: ArrayLike, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, backend: Backend = "auto"
) -> Any:
    """Return the square root of Hermitian positive semidefinite matrices; see :func:`matrix_function`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> spectile.sqrtm(np.diag([9.0, 16.0]), backend="cpu").diagonal().round(4).tolist()
    [3.0, 4.0]
    """
    return _functions(("sqrt",), a, lower, overwrite_a, check_finite, backend)[0]


def sign(
    a: ArrayLike, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, backend: Backend = "auto"
) -> Any:
    """Return the sign of Hermitian matrices that are not singular; see :func:`matrix_function`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> spectile.sign(np.diag([5.0, -3.0]), backend="cpu").diagonal().round(4).tolist()
    [1.0, -1.0]
    """
    return _functions(("sign",), a, lower, overwrite_a, check_finite, backend)[0]


def polar(
    a: ArrayLike, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, backend: Backend = "auto"
) -> tuple[Any, Any]:
    """Return the polar factors U and P of Hermitian matrices that are not singular, A = U P = P U.

    See :func:`matrix_function`: U is the sign of A, P its absolute value.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> u, p = spectile.polar(np.diag([5.0, -3.0]), backend="cpu")
    >>> p.diagonal().round(4).tolist()
    [5.0, 3.0]
    """
    u, p = _functions(("sign", "abs"), a, lower, overwrite_a, check_finite, backend)
    return u, p


def _functions(
    fs: tuple[Function, ...], a: Any, lower: bool, overwrite_a: bool, check_finite: bool, backend: Backend
) -> list[Any]:
    """Return functions of the same matrices, for one decomposition."""
    for f in fs:
        functions.require_function(np, f)
    shape = require_square(a)
    flag("overwrite_a", overwrite_a)
    xp, (matrix,), in_kind = placed(
        {"a": a}, backend, lambda: costs.dense(shape, (a,), vectors=True, functions=len(fs))
    )
    w, v = evd.eigh(
        matrix, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, backend="cpu" if xp is np else "cuda"
    )
    return [in_kind(_value(xp, f, w, v, not any_on_device((a,)))) for f in fs]


def _value(xp: Any, f: Function, w: Any, v: Any, on_host: bool) -> Any:
    """Return V diag(f(w)) Vᴴ."""
    if isinstance(f, str):
        w = functions.in_domain(xp, f, w)
        functions.require_domain(f, w, False)
    with np.errstate(all="ignore"):
        values = functions.named(xp, f).f(w) if isinstance(f, str) else _evaluated(xp, "f", f, w, on_host)
    functions.require_finite(xp, values, w)
    return (v * values[..., None, :]) @ adjoint(v)


def _evaluated(xp: Any, name: str, f: Any, w: Any, on_host: bool) -> Any:
    """Return what a caller's function gives, in the precision of w."""
    moved = on_host and xp is not np
    values = f(xp.asnumpy(w) if moved else w.copy())
    numbers = isinstance(values, np.ndarray | xp.ndarray) and values.dtype.kind in "biufc"
    functions.require_numbers(name, values, numbers, w)
    kind = np.result_type(w.dtype, np.complex64) if values.dtype.kind == "c" else w.dtype
    return xp.asarray(values).astype(kind)
