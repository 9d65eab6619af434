"""Functions of Hermitian matrices and their derivatives by divided differences.

With A = V diag(w) Vᴴ, X' = Vᴴ X V and the divided differences f[·, ·] of a function::

    f(A) = V diag(f(w)) Vᴴ
    Df(A)[X] = V (f[w_i, w_j] X'_ij) Vᴴ
    D²f(A)[X, Y] = V (sum_k f[w_i, w_k, w_j] (X'_ik Y'_kj + Y'_ik X'_kj)) Vᴴ

which need no gap, and depend on no basis.

Source: Yu. L. Daleckii and S. G. Krein (1951); N. J. Higham, Functions of Matrices, sections 3.2 and 3.3.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spectile.autodiff.spectra import adjoint, differences, epsilon, largest
from spectile.core.host import refuse_masked


class Scalar(NamedTuple):
    """A function of one real number, with its first and second derivative, of arrays of a library."""

    f: Callable[[Any], Any]
    df: Callable[[Any], Any]
    d2f: Callable[[Any], Any]


def named(xp: Any, name: str) -> Scalar:
    """Return a function that is known by its name, in the arrays of `xp`; raises ValueError if the name is unknown."""
    table = {
        "exp": Scalar(xp.exp, xp.exp, xp.exp),
        "log": Scalar(xp.log, lambda w: 1 / w, lambda w: -1 / (w * w)),
        "sqrt": Scalar(xp.sqrt, lambda w: 0.5 / xp.sqrt(w), lambda w: -0.25 / (w * xp.sqrt(w))),
        "sign": Scalar(xp.sign, xp.zeros_like, xp.zeros_like),
        "abs": Scalar(xp.abs, xp.sign, xp.zeros_like),
    }
    if name not in table:
        raise ValueError(f"no function is called {name!r}: choose one of {', '.join(table)}, or pass a callable")
    return table[name]


def require_function(xp: Any, f: Any) -> None:
    """Raise ValueError for a name that is unknown, and TypeError for what is neither a name nor a callable."""
    if isinstance(f, str):
        named(xp, f)
    elif not callable(f):
        raise TypeError(f"f = {reprlib.repr(f)} is no function: name one, as 'exp', or pass a callable")


#: What is said of a third derivative.
THIRD = "matrix functions have first and second derivatives only: a third one was asked for"
#: The functions that are not smooth at 0, and whether their value, and their slope, is defined at 0 and below.
DOMAINS = {"log": ("positive", "positive"), "sqrt": ("not negative", "positive"), "sign": ("not 0", "not 0")}
DOMAINS["abs"] = ("finite", "not 0")


def in_domain(xp: Any, name: str, w: Any) -> Any:
    """Return eigenvalues, set to 0 where they are 0 to rounding and the function of that name is not smooth at 0."""
    if name not in DOMAINS:
        return w
    return xp.where(xp.abs(w) <= w.shape[-1] * epsilon(w) * largest(xp, w), xp.zeros_like(w), w)


def outside_domain(name: str, w: Any, smooth: bool) -> Any:
    """Return which eigenvalues a named function, or with `smooth` its derivative, is not defined for."""
    wanted = DOMAINS[name][smooth] if name in DOMAINS else "finite"
    return {"positive": w <= 0, "not negative": w < 0, "not 0": w == 0, "finite": w != w}[wanted]


def require_domain(name: str, w: Any, smooth: bool) -> None:
    """Raise ValueError where an eigenvalue is outside of the domain."""
    outside = outside_domain(name, w, smooth)
    if outside.any():
        what = f"the derivative of {name}" if smooth else name
        raise ValueError(
            f"{what} needs eigenvalues that are {DOMAINS[name][smooth]}, and one is {float(w[outside][0]):.3g}: "
            "shift the matrix, or use another function"
        )


def require_numbers(name: str, values: Any, numbers: bool, w: Any) -> None:
    """Raise where a caller's function gives no `numbers`, or not one for each eigenvalue."""
    refuse_masked(f"{name}'s result", values)
    if not numbers:
        raise TypeError(f"{name} gives {reprlib.repr(values)}: return an array of numbers, one for each eigenvalue")
    if values.shape != w.shape:
        raise ValueError(
            f"{name} gives shape {tuple(values.shape)} for {tuple(w.shape)}: return one value for each eigenvalue"
        )


def require_finite(xp: Any, values: Any, w: Any) -> None:
    """Raise ValueError where a function is not finite at an eigenvalue, or, for a matrix of values, its slope."""
    wrong = ~xp.isfinite(values)
    if not bool(wrong.any()):
        return
    if values.ndim > w.ndim:
        raise ValueError("the derivative of f is not finite at an eigenvalue: shift or scale a")
    raise ValueError(f"f is not finite at the eigenvalue {float(w[wrong][0]):.3g}: shift or scale a")


#: Nodes and weights for the integral from 0 to 1.
_RULE = [((float(x) + 1) / 2, float(c) / 2) for x, c in zip(*np.polynomial.legendre.leggauss(5), strict=True)]


def first_differences(xp: Any, scalar: Scalar, w: Any) -> Any:
    """Return f[w_i, w_j] in place (i, j).

    The quotient of the differences, or the integral of f' between the two by Gauss's rule where both agree to the
    quotient's rounding error: the error is never larger than twice that, and far smaller where values are close.
    """
    left, gaps, f = w[..., :, None] + xp.zeros_like(w[..., None, :]), differences(w), scalar.f(w)
    integral = sum(c * scalar.df(left + t * gaps) for t, c in _RULE)
    return _better(xp, w, differences(f), gaps, xp.abs(f)[..., :, None] + xp.abs(f)[..., None, :], integral)


def _better(xp: Any, w: Any, change: Any, gaps: Any, size: Any, integral: Any) -> Any:
    apart = gaps != 0
    gap = xp.where(apart, gaps, xp.ones_like(gaps))
    quotient, error = change / gap, 4 * epsilon(w) * size / xp.abs(gap)
    return xp.where(apart & ~(xp.abs(integral - quotient) <= error), quotient, integral)


def second_differences(xp: Any, scalar: Scalar, w: Any, first: Any) -> tuple[Any, Any]:
    """Return f[w_i, w_i, w_j] in place (i, j), for the first ones, and those ones' rounding errors by a unit."""
    gaps, slope = differences(w), scalar.df(w)[..., :, None]
    left, size = w[..., :, None] + xp.zeros_like(gaps), xp.maximum(xp.abs(w[..., :, None]), xp.abs(w[..., None, :]))
    curvature = [scalar.d2f(left + t * gaps) for t, _ in _RULE]
    integral = sum(c * (1 - t) * d for (t, c), d in zip(_RULE, curvature, strict=True))
    # Rounding of the arguments of f' counts too.
    rounding = xp.abs(first) + size * sum(c * xp.abs(d) for (_, c), d in zip(_RULE, curvature, strict=True))
    return _better(xp, w, first - slope, gaps, rounding + xp.abs(slope), integral), rounding


def second_derivative(xp: Any, scalar: Scalar, w: Any, x: Any, y: Any) -> Any:
    """Return ``sum_k f[w_i, w_k, w_j] (x_ik y_kj + y_ik x_kj)`` by products of matrices.

    f[w_i, w_k, w_j] is the difference of f[w_i, w_k] and f[w_k, w_j] over that of w_j and w_i, or the mean of
    f[w_i, w_k, w_i] and f[w_j, w_k, w_j], with an error of the square of their gap, where the sums of both agree to the
    quotient's rounding error.
    """
    first = first_differences(xp, scalar, w)
    second, rounding = second_differences(xp, scalar, w, first)

    def rows(z: Any) -> Any:
        return xp.sqrt(xp.sum(xp.abs(z) ** 2, -1))[..., :, None]

    def columns(z: Any) -> Any:
        return xp.sqrt(xp.sum(xp.abs(z) ** 2, -2))[..., None, :]

    def one(x: Any, y: Any) -> tuple[Any, Any, Any]:
        error = rows(x) * columns(rounding * y) + rows(rounding * x) * columns(y)
        return x @ (first * y) - (first * x) @ y, ((second * x) @ y + x @ (second.mT * y)) / 2, error

    change, mean, error = (u + v for u, v in zip(one(x, y), one(y, x), strict=True))
    return _better(xp, w, change, differences(w), error, mean)


def inside(v: Any, x: Any) -> Any:
    """Return Vᴴ X V."""
    return adjoint(v) @ x @ v


def outside(v: Any, x: Any) -> Any:
    """Return V X Vᴴ."""
    return v @ x @ adjoint(v)
