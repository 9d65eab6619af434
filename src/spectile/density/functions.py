"""Functions of Hermitian tile matrices by Chebyshev series, with a bound of what they are off by.

``T_(k+1) = 2 X T_k - T_(k-1)``: what T_j is off by reaches T_k times the polynomial U_(k-j) of X, whose spectral norm
is at most k - j + 1 while the eigenvalues of X are between -1 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.options import number
from spectile.core.progress import MATRICES, Progress
from spectile.density.operands import hermitian, positive, within_range
from spectile.density.projector import Unresolved, projector
from spectile.tiles import Error, TileMatrix
from spectile.tiles.types import EXACT, SLACK, roundoff

_MOST_TERMS = 4096


@Progress("fermi", unit=MATRICES)
def fermi(h: TileMatrix, *, mu: float, beta: float, error: float = 1e-6) -> TileMatrix:
    """Return ``1 / (1 + exp(beta (H - mu)))`` of a Hermitian matrix.

    Parameters
    ----------
    h : TileMatrix
        Stored as Hermitian.
    mu, beta : float
        Chemical potential and inverse temperature.
    error : float, default 1e-6
        Largest allowed error in the Frobenius norm, besides what follows from the error of H itself: at most beta / 4
        times as much.

    Raises
    ------
    TypeError
        If the matrix is no tile matrix, or a number is none.
    ValueError
        If `h` is not stored as Hermitian, beta times its width is too large for a series, or rounding does not allow
        the error.

    Examples
    --------
    >>> import spectile
    >>> from spectile.density import fermi
    >>> round(fermi(spectile.TileMatrix.identity([2]), mu=1.0, beta=5.0).trace(), 5)
    1.0
    """

    def function(x: Any) -> Any:
        return 0.5 * (1 - np.tanh(beta / 2 * (x - mu)))

    h, mu, beta = hermitian("h", h), number("mu", mu), positive("beta", beta)
    if not math.isfinite(mu):
        raise ValueError(f"mu is {mu}: pass a finite number")

    def largest(centre: float, half: float, rho: float) -> float:
        # Poles lie at mu +- i pi / beta, and where beta |imaginary part| <= pi / 2 the modulus is at most 1.
        return 1.0 if half * (rho - 1 / rho) / 2 * beta <= math.pi / 2 else math.inf

    return _of_function(h, function, largest, error, beta / 4)


@Progress("exp", unit=MATRICES)
def exp(x: TileMatrix, *, error: float = 1e-8) -> TileMatrix:
    """Return the exponential of a Hermitian matrix.

    Parameters
    ----------
    x : TileMatrix
        Stored as Hermitian.
    error : float, default 1e-8
        Largest allowed error in the Frobenius norm, besides what follows from the error of X itself.

    Raises
    ------
    TypeError
        If the matrix is no tile matrix, or a number is none.
    ValueError
        As `fermi`.

    Examples
    --------
    >>> import spectile
    >>> from spectile.density import exp
    >>> round(exp(spectile.TileMatrix.identity([1])).trace(), 6)
    2.718282
    """
    high = hermitian("x", x).eigenvalue_bounds()[1]
    if high > 600:
        raise ValueError(f"x has eigenvalues of up to {high:.3g}, whose exponential overflows: scale or shift it")

    def largest(centre: float, half: float, rho: float) -> float:
        power = centre + half * (rho + 1 / rho) / 2
        return math.exp(power) if power < 700 else math.inf

    return _of_function(x, np.exp, largest, error, math.exp(high))


@Progress("polynomial", unit=MATRICES)
def polynomial(x: TileMatrix, coefficients: Any, *, error: float = 1e-8) -> TileMatrix:
    """Return ``coefficients[0] I + coefficients[1] X + ...`` of a Hermitian matrix.

    Parameters
    ----------
    x : TileMatrix
        Stored as Hermitian.
    coefficients : sequence of float
        The constant first.
    error : float, default 1e-8
        Largest allowed error in the Frobenius norm, besides what follows from the error of X itself.

    Raises
    ------
    TypeError
        If the matrix is no tile matrix, or a number is none.
    ValueError
        As `fermi`, or if a coefficient is not finite.

    Examples
    --------
    >>> import spectile
    >>> from spectile.density import polynomial
    >>> round(polynomial(spectile.TileMatrix.identity([1]), [1.0, 2.0, 3.0]).trace(), 9)
    6.0
    """
    given = np.array([number("coefficients", value) for value in np.ravel(coefficients)])
    if not (given.size and np.ndim(coefficients) <= 1 and np.isfinite(given).all()):
        raise ValueError("coefficients are no list of finite numbers: pass those of a polynomial, the constant first")
    x, error = within_range("x", hermitian("x", x)), positive("error", error)
    centre, half = _interval(x)
    inner = np.polynomial.Polynomial(given)(np.polynomial.Polynomial([centre, half]))
    series = np.polynomial.chebyshev.poly2cheb(inner.coef)
    orders = np.arange(len(series))
    slope = float((np.abs(series) * orders**2).sum()) / half
    size = float(np.polynomial.Polynomial(np.abs(given))(abs(centre) + half))
    return _sum(x, centre, half, series, error, slope, 1e-14 * len(series) * size)


@Progress("sign", unit=MATRICES)
def sign(x: TileMatrix, *, error: float = 1e-6) -> TileMatrix:
    """Return the sign function of a Hermitian matrix with no eigenvalue near 0: 1 for those above, -1 for those below.

    Parameters
    ----------
    x : TileMatrix
        Stored as Hermitian.
    error : float, default 1e-6
        Largest allowed error in the Frobenius norm.

    Raises
    ------
    TypeError
        If the matrix is no tile matrix, or a number is none.
    ValueError
        If there is no gap around 0, or as `fermi`.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> from spectile.density import sign
    >>> a = spectile.TileMatrix.from_dense(np.diag([-2.0, 3.0]), 1, hermitian=True)
    >>> sign(a).to_dense().round(6).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]
    """
    x, error = within_range("x", hermitian("x", x)), positive("error", error)
    return (-2.0 * projector(x, -1, 0.0, error / 2, "sp2_accelerated", error).matrix).shifted(1.0)


def _interval(x: TileMatrix) -> tuple[float, float]:
    """Return the middle and half the width of an interval around the eigenvalues, stored and exact."""
    low, high = x.eigenvalue_bounds()
    least = float(np.finfo(x.dtype).tiny)  # whose reciprocal the type holds
    return (low + high) / 2, max((high - low) / 2, 1e-3 * max(abs(low), abs(high)), least) * (1 + 1e-9)


def _of_function(x: TileMatrix, function: Any, largest: Callable[..., float], error: float, slope: float) -> TileMatrix:
    """Return a function by its interpolant: ``|f - p_m| <= 4 M rho^-m / (rho - 1)`` for ``|f| <= M`` on an ellipse.

    L. N. Trefethen, Approximation Theory and Approximation Practice, theorem 8.2.
    """
    error = positive("error", error)
    centre, half = _interval(x)
    root = math.sqrt(x.shape[0])
    radii = 1 + np.logspace(-4, 3, 400)
    tops = np.array([largest(centre, half, rho) for rho in radii])

    def off(degree: int) -> float:
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            return float(np.nanmin(4 * np.exp(np.log(tops) - degree * np.log(radii)) / (radii - 1))) * root

    degree = 2
    while off(degree) > error / 4 and degree <= _MOST_TERMS:
        degree = degree + max(1, degree // 16)
    if degree > _MOST_TERMS:
        raise ValueError(
            f"the function needs a polynomial of more than {_MOST_TERMS} terms on a spectrum {2 * half:.3g} wide: take "
            "a smaller beta, which is a higher temperature, or a larger error"
        )
    series = np.polynomial.chebyshev.chebinterpolate(lambda t: function(centre + half * t), degree)
    values = float(np.abs(function(centre + half * np.linspace(-1, 1, 1001))).max())
    return _sum(x, centre, half, series, error, slope, off(degree) + 1e-15 * (degree + 8) * values * root)


def _sum(
    x: TileMatrix, centre: float, half: float, series: np.ndarray, error: float, slope: float, off: float
) -> TileMatrix:
    """Return a Chebyshev series of ``(X - centre) / half``, tiles left out by what each term may be off by."""
    scaled = (1 / half) * x._with(error=EXACT).shifted(-centre)
    moved = scaled.error.fro * half * slope  # of rounding while it was scaled
    t = scaled._with(error=EXACT).whole()
    before, now = x._identity(), t
    total = float(series[0]) * before
    if len(series) > 1:
        total = total + float(series[1]) * now
    # weights[j]: what an error of T_j comes to in the sum.
    weights = np.cumsum(np.cumsum(np.abs(series)[::-1]))[::-1]
    spent = 0.0
    for k in range(2, len(series)):
        allowed = 0.5 * error / (len(series) * max(float(weights[k]), 1e-300))
        made = (2.0 * t._times(now, min(0.1, allowed / 4)) - before).truncate(min(0.1, allowed / 4))
        spent += made.error.fro * float(weights[k]) * SLACK
        before, now = now, made._with(error=EXACT)
        total = total + float(series[k]) * now
    bound = (spent + off + moved + total.error.fro) * SLACK
    half_ = total._with(error=EXACT).hermitian_part()
    # Of a matrix that is off by a bound the Hermitian part is off by no more; its own rounding comes on top.
    bound = (bound + 4 * roundoff(x.dtype) * half_.norm()) * SLACK
    if bound > error:
        said = f"error = {error} is below what rounding to {x.dtype} allows here, {bound:.2g}: ask for more"
        raise Unresolved(said, 2 * bound)
    return half_._with(error=Error(bound, bound) + x.error.times(slope))
