"""What all of the tile matrices shares: the error that a matrix carries, and the rounding of its dtypes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

#: What sums of norms in float64 may be too small by: some thousands of roundings.
SLACK = 1 + 1e-12
DTYPES = ("float32", "float64", "complex64", "complex128")


def held_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which tiles hold what has a dtype; raises TypeError where there is none."""
    given = np.dtype(dtype).newbyteorder("=")
    if given.kind in "biu":
        given = np.dtype(np.float64)
    if given.name not in DTYPES:
        raise TypeError(f"{name} is {given}: convert it to one of {', '.join(DTYPES)}")
    return given


class Error(NamedTuple):
    """Guaranteed bounds of the difference between a matrix and the exact one.

    Attributes
    ----------
    fro : float
        Bound of the Frobenius norm of the difference.
    spectral : float
        Bound of its spectral norm, at most `fro`.
    """

    fro: float
    spectral: float

    @classmethod
    def of(cls, fro: float, spectral: float) -> Error:
        """Return an error whose spectral bound is at most the other one."""
        return cls(float(fro), float(min(fro, spectral)))

    def __add__(self, other: Any) -> Error:
        """Return the error of a sum of two matrices."""
        return Error((self.fro + other[0]) * SLACK, (self.spectral + other[1]) * SLACK)

    def times(self, factor: float) -> Error:
        """Return the error of a multiple."""
        return Error(abs(factor) * self.fro * SLACK, abs(factor) * self.spectral * SLACK)


EXACT = Error(0.0, 0.0)


def carried(left: Any, right: Any) -> Error:
    """Return the error of the product of two matrices of tiles by their own errors."""
    e, f = left.error, right.error
    if e == EXACT and f == EXACT:
        return EXACT
    x, y = left.norm("spectral"), right.norm("spectral")
    return Error.of(
        (e.fro * y + x * f.fro + min(e.fro * f.spectral, e.spectral * f.fro)) * SLACK,
        (e.spectral * y + x * f.spectral + e.spectral * f.spectral) * SLACK,
    )


def roundoff(dtype: Any) -> float:
    """Return the unit round-off of a dtype."""
    return float(np.finfo(dtype).eps) / 2


def gamma(terms: Any, dtype: Any) -> Any:
    """Return what a computed sum of so many products is off by, at most, relative to the sum of their moduli.

    For real numbers k u / (1 - k u) (Higham, Accuracy and Stability, section 3.1).  The real and the imaginary part of
    a complex sum have 2 k real products each, whose moduli add up to at most the sum of the moduli.
    """
    steps = (2 * terms if np.dtype(dtype).kind == "c" else terms) * roundoff(dtype)
    factor = math.sqrt(2) if np.dtype(dtype).kind == "c" else 1.0
    return np.where(steps < 0.5, factor * steps / (1 - np.minimum(steps, 0.5)), np.inf)


def underflow(terms: Any, dtype: Any) -> Any:
    """Return what a sum of so many products is off by, at most, where products underflow."""
    return 4 * terms * float(np.finfo(dtype).smallest_subnormal)


def excess(rows: Any) -> float:
    """Return what squares of Frobenius norms may be above the exact ones, relative, with tiles that begin at `rows`.

    Norms are rounded up, by the entries of the largest tile and by `SLACK`: they are no lower bounds of themselves.
    """
    return 1e-11 + float(np.diff(rows).max(initial=0)) ** 2 * 2.0**-50
