"""The polynomials that take eigenvalues to 0 and 1, what they do to intervals, and the rules that choose them.

All of them take the last occupied and the first empty eigenvalue apart.  Not all rise from 0 to 1: where one folds the
spectrum, eigenvalues keep the side of the gap that they are on, and not their order.  What is known of them are
intervals, and those are taken through a polynomial and back by its values at their ends and where it turns.  What a
step is off by in the spectral norm shifts every eigenvalue by at most as much (Weyl).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

#: What a value of a polynomial is off by, at most, relative to the sum of the moduli of its terms.
_ROUNDING = 16 * 2.0**-53


class Polynomial(NamedTuple):
    """A polynomial of at most the fourth degree.

    Attributes
    ----------
    coefficients : tuple of float
        The constant first.

    Examples
    --------
    >>> DOWN(0.5), UP(0.5), MCWEENY(0.5), MCWEENY.products
    (0.25, 0.75, 0.5, 2)
    """

    coefficients: tuple[float, ...]

    def __call__(self, x: float) -> float:
        """Return the value."""
        value = 0.0
        for coefficient in reversed(self.coefficients):
            value = value * x + coefficient
        return value

    @property
    def products(self) -> int:
        """Matrix products that it takes."""
        return 1 if len(self.coefficients) <= 3 else 2

    def image(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval that holds the values between two numbers."""
        values = [self(x) for x in self._points(low, high)]
        off = self._off(low, high)
        return min(values) - off, max(values) + off

    def lowest(self, y: float, low: float, high: float) -> float:
        """Return what x is at least, where it is between two numbers and its value is y or more."""
        return self._first(y - self._off(low, high), 1, self._points(low, high))

    def highest(self, y: float, low: float, high: float) -> float:
        """Return what x is at most, where it is between two numbers and its value is y or less."""
        return self._first(y + self._off(low, high), -1, self._points(low, high)[::-1])

    def _points(self, low: float, high: float) -> list[float]:
        return [low, *(x for x in _turning(self.coefficients) if low < x < high), high]

    def _off(self, low: float, high: float) -> float:
        largest = max(abs(low), abs(high))
        return _ROUNDING * Polynomial(tuple(map(abs, self.coefficients)))(largest)

    def _first(self, y: float, side: int, points: Sequence[float]) -> float:
        """Return the first x along the points where ``side (f(x) - y) >= 0``."""
        from scipy.optimize import brentq

        for start, end in itertools.pairwise(points):
            if side * (self(start) - y) >= 0:
                return start
            if side * (self(end) - y) >= 0:
                return float(brentq(lambda x: self(x) - y, start, end, xtol=1e-290, maxiter=400))
        return points[-1]


@functools.lru_cache(maxsize=256)
def _turning(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    """Return where a polynomial may turn, rising; a double root that rounding made complex is one of them."""
    return tuple(sorted(np.polynomial.Polynomial(coefficients).deriv().roots().real.tolist()))


DOWN, UP, MCWEENY = Polynomial((0.0, 0.0, 1.0)), Polynomial((0.0, 2.0, -1.0)), Polynomial((0.0, 0.0, 3.0, -2.0))


def sp2(h: float, l_: float) -> Polynomial:
    """Return x squared or 2 x - x squared, by the side of the gap that is farther from its end.

    A. M. N. Niklasson, Phys. Rev. B 66, 155115 (2002).
    """
    return DOWN if l_ > 1 - h else UP


def sp2_accelerated(h: float, l_: float) -> Polynomial:
    """Return the same of a spectrum that is stretched so far that its end folds onto the edge of the gap.

    E. H. Rubensson, J. Chem. Theory Comput. 7, 1233 (2011).
    """
    if l_ > 1 - h:
        a = 2 / (2 - l_)  # (a x + 1 - a)^2 is the same at 0 and at the LUMO
        return Polynomial(((1 - a) ** 2, 2 * a * (1 - a), a * a))
    a = 2 / (1 + h)  # 1 - (1 - a x)^2 is the same at 1 and at the HOMO
    return Polynomial((0.0, 2 * a, -a * a))


def trs4(h: float, l_: float) -> Polynomial:
    """Return x^2 (4 x - 3 x^2) + g x^2 (1 - x)^2, g such that HOMO and LUMO come as near to their ends; 0 <= g <= 6.

    A. M. N. Niklasson, C. J. Tymczak, M. Challacombe, J. Chem. Phys. 118, 8611 (2003), whose g keeps the trace.
    """
    weight = (h * (1 - h)) ** 2 + (l_ * (1 - l_)) ** 2
    g = (1 - sum(x * x * (4 * x - 3 * x * x) for x in (h, l_))) / weight if weight else 3.0
    if not 0 <= g <= 6:
        return DOWN if g < 0 else UP
    return Polynomial((0.0, 0.0, g, 4 - 2 * g, g - 3))


def mcweeny(h: float, l_: float) -> Polynomial:
    """Return 3 x^2 - 2 x^3 of the spectrum scaled so that the middle of the gap is at 1/2.

    R. McWeeny, Rev. Mod. Phys. 32, 335 (1960).
    """
    middle = (h + l_) / 2
    scale = 0.5 / max(middle, 1 - middle)
    inner = np.polynomial.Polynomial([0.5 - middle * scale, scale])
    return Polynomial(tuple(np.polynomial.Polynomial(MCWEENY.coefficients)(inner).coef.tolist()))


#: What `density_matrix` knows by name: the polynomial for a gap between the images of HOMO and LUMO.
METHODS: dict[str, Callable[[float, float], Polynomial]] = {
    "sp2_accelerated": sp2_accelerated, "sp2": sp2, "trs4": trs4, "mcweeny": mcweeny,
}  # fmt: skip


def planned(method: str, h: float, l_: float) -> Iterator[tuple[Polynomial, float, float]]:
    """Yield the polynomials of a method without an end, and the images of HOMO and LUMO after each."""
    while True:
        polynomial = METHODS[method](h, l_)
        h, l_ = polynomial.image(h, 1.0)[0], polynomial.image(0.0, l_)[1]
        h, l_ = min(h, 1.0), max(l_, 0.0)
        yield polynomial, h, l_


def distance(idempotency: float) -> float:
    """Return how far x is from 0 or 1, at most, where ``|x - x^2|`` is at most the given number; infinity from 1/4 on.

    >>> round(distance(0.09), 12), distance(0.25)
    (0.1, inf)
    """
    return 2 * idempotency / (1 + math.sqrt(1 - 4 * idempotency)) if idempotency < 0.25 else math.inf
