"""Functions of Hermitian arrays of JAX, with first and second derivatives that need no gap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from spectile.autodiff import functions
from spectile.autodiff.functions import Scalar, inside, outside
from spectile.autodiff.spectra import adjoint, hermitian
from spectile.core.device import Backend
from spectile.core.options import flag
from spectile.evd.arguments import require_square
from spectile.jax.eigen import decompose, floating
from spectile.jax.primitives import linear_primitive, tangent_of

Function = str | Callable[[Any], Any]


def _scalar(f: Function) -> Scalar:
    if isinstance(f, str):
        return functions.named(jnp, f)
    df = jax.grad(lambda w: f(w).sum())
    return Scalar(f, df, jax.grad(lambda w: df(w).sum()))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(f: Function, a: Any, w: Any, v: Any) -> Any:
    """Return f(A), for the eigenvalues w and the eigenvectors V of A, which have no derivative of their own here."""
    return (v * _scalar(f).f(w)[..., None, :]) @ adjoint(v)


@_value.defjvp
def _(f: Function, primals: Any, tangents: Any) -> Any:
    a, w, v = primals
    return _value(f, a, w, v), first_p.bind(a, _in_domain(f, w, True), v, tangents[0], f=f)[0]


def _first_values(a: Any, w: Any, v: Any, x: Any, *, f: Function) -> list[Any]:
    slopes = functions.first_differences(jnp, _scalar(f), w)
    _require_finite(slopes, w)
    return [outside(v, slopes * inside(v, x))]


def _first_jvp(primals: Any, tangents: Any, *, f: Function) -> Any:
    a, w, v, x = primals
    parts = []
    if type(tangents[0]) is not ad.Zero:
        parts.append(second_p.bind(a, w, v, x, tangents[0], f=f)[0])
    if type(tangents[3]) is not ad.Zero:
        parts.append(first_p.bind(a, w, v, tangents[3], f=f)[0])
    return first_p.bind(*primals, f=f), [sum(parts[1:], parts[0]) if parts else ad.Zero.from_primal_value(x)]


def _first_transpose(cotangents: Any, a: Any, w: Any, v: Any, x: Any, *, f: Function) -> Any:
    (bar,) = cotangents
    back = None if type(bar) is ad.Zero else first_p.bind(a, w, v, bar.mT, f=f)[0].mT
    return [None, None, None, back]


def _second_values(a: Any, w: Any, v: Any, x: Any, y: Any, *, f: Function) -> list[Any]:
    return [outside(v, functions.second_derivative(jnp, _scalar(f), w, inside(v, x), inside(v, y)))]


def _second_jvp(primals: Any, tangents: Any, *, f: Function) -> Any:
    a, w, v, x, y = primals
    if type(tangents[0]) is not ad.Zero:
        raise NotImplementedError(functions.THIRD)
    x_dot, y_dot = (tangent_of(*pair) for pair in zip((x, y), tangents[3:], strict=True))
    found = second_p.bind(a, w, v, x_dot, y, f=f)[0] + second_p.bind(a, w, v, x, y_dot, f=f)[0]
    return second_p.bind(*primals, f=f), [found]


def _second_transpose(cotangents: Any, a: Any, w: Any, v: Any, x: Any, y: Any, *, f: Function) -> Any:
    (bar,) = cotangents
    given = y if ad.is_undefined_primal(x) else x  # the other one is linear here
    back = None if type(bar) is ad.Zero else second_p.bind(a, w, v, given, bar.mT, f=f)[0].mT
    return [None, None, None, *((back, None) if ad.is_undefined_primal(x) else (None, back))]


#: The derivative of f at A in the direction X, linear in X; w and V are constant, and A is there for its change.
first_p = linear_primitive(
    "spectile_function_first", _first_values, _first_jvp, _first_transpose, lambda a, w, v, x, f: [x]
)
#: The second derivative of f at A in the directions X and Y, linear in each.
second_p = linear_primitive(
    "spectile_function_second", _second_values, _second_jvp, _second_transpose, lambda a, w, v, x, y, f: [x]
)


def _require_finite(values: Any, w: Any) -> None:
    """Raise ValueError where a function, or its slope, is not finite and values are known."""
    if not isinstance(values, jax.core.Tracer) and not isinstance(w, jax.core.Tracer):
        functions.require_finite(np, np.asarray(values), np.asarray(w))


def _in_domain(f: Function, w: Any, smooth: bool) -> Any:
    """Return eigenvalues, 0 where they are 0 to rounding, and NaN where f, or its slope, is not defined.

    Where values are known, those raise ValueError instead.
    """
    if not isinstance(f, str):
        return w
    w = functions.in_domain(jnp, f, w)
    if not isinstance(w, jax.core.Tracer):
        functions.require_domain(f, np.asarray(w), smooth)
    return jnp.where(functions.outside_domain(f, w, smooth), jnp.nan, w)


def matrix_function(f: Function, a: Any, *, lower: bool = True, backend: Backend = "auto") -> Any:
    """Return a function of Hermitian arrays, with derivatives of first and second order.

    They are made of divided differences of f, which need no gap: they are as right where eigenvalues coincide as
    elsewhere, and so is all that is a function of the matrix, such as a trace.

    Parameters
    ----------
    f : {"exp", "log", "sqrt", "sign", "abs"} or callable
        A callable takes an array of real eigenvalues, entry by entry, by operations of JAX, which differentiates it
        twice, and gives real or complex ones; it is smooth between any two eigenvalues that are close.
    a : array, shape (..., n, n)
        float32, float64, complex64 or complex128; one triangle, and the real part of the diagonal, is read.
    lower, backend
        As for :func:`eigh`.

    Returns
    -------
    array, shape (..., n, n)

    Raises
    ------
    ValueError
        If the function, or for a derivative its slope, is not defined, or not finite, at an eigenvalue.  In
        transformations, where values are not known when the function is traced, the result is NaN instead.
    TypeError
        If `f` is neither a name nor a callable, or gives no numbers.
    NotImplementedError
        For a third derivative.

    Notes
    -----
    Source: Higham, Functions of Matrices (2008), sections 3.2 and 3.3.

    Examples
    --------
    >>> import jax, spectile.jax
    >>> gradient = jax.grad(lambda a: spectile.jax.matrix_function(lambda w: w**3, a).trace())(jax.numpy.eye(2))
    >>> gradient.round().astype(int).tolist()
    [[3, 0], [0, 3]]
    """
    functions.require_function(jnp, f)
    a = floating("a", a)
    require_square(a)
    a = hermitian(jnp, a, flag("lower", lower))
    w, v, _ = decompose(jax.lax.stop_gradient(a), backend)
    w = _in_domain(f, w, False)
    evaluate = _scalar(f).f
    values = evaluate(w)
    functions.require_numbers("f", values, isinstance(values, jax.Array) and jnp.isdtype(values.dtype, "numeric"), w)
    _require_finite(values, w)
    if not jnp.iscomplexobj(values):
        return _value(f, a, w, v)
    return _value(lambda w: evaluate(w).real, a, w, v) + 1j * _value(lambda w: evaluate(w).imag, a, w, v)


def expm(a: Any, *, lower: bool = True, backend: Backend = "auto") -> Any:
    """Return the exponential of Hermitian arrays; see :func:`matrix_function`."""
    return matrix_function("exp", a, lower=lower, backend=backend)


def logm(a: Any, *, lower: bool = True, backend: Backend = "auto") -> Any:
    """Return the logarithm of positive definite arrays; see :func:`matrix_function`."""
    return matrix_function("log", a, lower=lower, backend=backend)


def sqrtm(a: Any, *, lower: bool = True, backend: Backend = "auto") -> Any:
    """Return the square root of positive semidefinite arrays; see :func:`matrix_function`."""
    return matrix_function("sqrt", a, lower=lower, backend=backend)


def sign(a: Any, *, lower: bool = True, backend: Backend = "auto") -> Any:
    """Return the sign of Hermitian arrays that are not singular; see :func:`matrix_function`."""
    return matrix_function("sign", a, lower=lower, backend=backend)


def polar(a: Any, *, lower: bool = True, backend: Backend = "auto") -> tuple[Any, Any]:
    """Return the polar factors U and P of Hermitian arrays that are not singular, A = U P.

    See :func:`matrix_function`.
    """
    u, p = (matrix_function(f, a, lower=lower, backend=backend) for f in ("sign", "abs"))
    return u, p
