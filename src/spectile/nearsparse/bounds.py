"""What a product in floating point can be off by, beyond the skipped tiles, and the threshold of a wanted error."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spectile.nearsparse.types import ALL, Precision

# What computed norms may be too small by, by the dtype of the sums of squares.  float32: at most 128 squares a lane and
# a few shuffles, generously; float64 covers the bounds' own arithmetic as well.
NORM_SLACK = {"float32": 1 + 2e-5, "float64": 1 + 1e-12}
# Below it the norm of a matrix may be off by more, by the dtype of the norms: those of its tiles may have few digits,
# as numbers near 0 do.
LEAST_NORM = {"float32": 2.0**-110, "float64": 2.0**-960}
# Bisections that bring two float64, at most a factor of 2^2098 apart, to 1e-6 of one another by their geometric mean.
MOST_BISECTIONS = 64


def norm_slack(dtype: Any) -> float:
    """Return what norms that a device took of a matrix of a dtype may be too small by."""
    return NORM_SLACK["float64" if np.dtype(dtype) in (np.float64, np.complex128) else "float32"]


def rounding_bound(
    shape: tuple[int, int, int],
    norm_a: float,
    norm_b: float,
    precision: str,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    norm_c: float = 0.0,
    of_tiles: tuple[float, float] | None = None,
    finite: bool = False,
) -> float:
    """Bound the rounding error of alpha A B + beta C in the Frobenius norm.

    ``|fl(AB) - AB| <= gamma_k |A| |B|`` elementwise in any order of summation, gamma_k = k u / (1 - k u), and
    ``|| |A| |B| ||_F <= ||A||_F ||B||_F``; what underflows adds an absolute error to each of the k products of an
    entry.  It grows with k, is independent of tau, and is far above what is seen.

    The real and the imaginary part of a complex product are sums of 2 k real products, whose sizes add up to at most
    ``|A| |B|`` each: both together are off by ``sqrt(2) gamma_2k |A| |B|`` at most.

    Parameters
    ----------
    shape : tuple of int
        (m, k, n).
    norm_a, norm_b, norm_c : float
        Frobenius norms.
    precision : str
        A key of ``types.ALL``.
    alpha, beta : float
        Factors.
    of_tiles : tuple of float, optional
        What the sums of A B may be off by, and a bound of the Frobenius norm of ``|A| |B|``, by the products of tiles
        that are multiplied, in place of those by the whole norms.
    finite : bool, default False
        Whether the result is known to be finite, so that no sum has overflowed, whatever the norms allow.

    Returns
    -------
    float
        Infinity where k u >= 1, where an entry of the result may overflow, and where a factor is not 0 and no normal
        number of the sums' dtype.
    """
    row = ALL[precision]
    m, k, n = _real_shape(shape, row)
    relative, largest = _sums(k, row)
    if math.inf in (norm_a, norm_b, norm_c):
        return math.inf
    # In this order a large factor makes no NaN of a zero; norms whose product underflows are below what may be lost.
    product = abs(alpha) * (norm_a * norm_b)
    # Factors are rounded to the dtype of the sums, too.
    held = np.finfo(row.sums)
    if any(factor and not float(held.tiny) <= abs(factor) <= float(held.max) for factor in (alpha, beta)):
        return math.inf
    if relative == math.inf or (not finite and max(norm_a * norm_b, product + abs(beta) * norm_c) > largest):
        return math.inf
    if max(norm_a, norm_b) > row.largest_operand:
        return math.inf
    if of_tiles is not None:
        summed, product = abs(alpha) * of_tiles[0], abs(alpha) * of_tiles[1]
    else:
        if norm_a > 0 and norm_b > 0:
            lift_a, lift_b = _lifts(shape, row)
            product = abs(alpha) * ((norm_a + lift_a) * (norm_b + lift_b))
        summed = relative * product
    bound = summed + 2 * row.sum_roundoff * abs(beta) * norm_c
    rounded = row.result_roundoff * (summed + product + abs(beta) * norm_c) if row.result_roundoff else 0.0
    # Zeros lose nothing.
    products = k * abs(alpha) if norm_a > 0 and norm_b > 0 else 0.0
    scaled = 0.0 if alpha == 1 and beta == 0 else float(held.smallest_subnormal)  # two halves of it
    own = row.result_underflow + max(2 * row.product_underflow, scaled) if norm_c > 0 or products > 0 else 0.0
    underflow = row.product_underflow * products + own
    return (bound + rounded) * NORM_SLACK["float64"] + underflow * math.sqrt(m * n)


def _real_shape(shape: tuple[int, int, int], row: Precision) -> tuple[int, int, int]:
    """Return (m, k, n) of the real product that a product is made of, with C's parts in its columns."""
    m, k, n = shape
    return m, row.parts * k, row.parts * n


def _sums(k: int, row: Precision) -> tuple[float, float]:
    """Return the relative error of sums of k products, and the largest ||A||_F ||B||_F of which none overflows."""
    # Two roundings more for alpha and for adding beta C.
    steps = (k + 2) * row.sum_roundoff
    if steps >= 1:
        return math.inf, 0.0
    relative = (steps / (1 - steps) + row.product_roundoff) * math.sqrt(row.parts)
    # No partial sum is above the norms' product but by its rounding.
    largest = float(np.finfo(row.sums).max)
    return relative, largest / ((1 + relative) * NORM_SLACK["float64"])


def _lifts(shape: tuple[int, int, int], row: Precision) -> tuple[float, float]:
    """Return what the norms of A and B gain where every entry counts as the least operand more."""
    m, k, n = shape
    return row.least_operand * math.sqrt(m * k), row.least_operand * math.sqrt(k * n)


class Rounding(NamedTuple):
    """The bound of A B's rounding error by numbers that do not depend on A and B.

    For norms that are not zero ``rounding_bound(shape, norm_a, norm_b, precision)`` is
    ``relative * (norm_a + lift_a) * (norm_b + lift_b) + underflow``, and infinity where ``norm_a * norm_b`` is above
    `largest` or one of the norms above the precision's `largest_operand`.
    """

    relative: float
    lift_a: float
    lift_b: float
    underflow: float
    largest: float


def rounding_terms(shape: tuple[int, int, int], precision: str) -> Rounding:
    """Return the bound of A B's rounding error as numbers that depend on (m, k, n) and the precision alone."""
    row = ALL[precision]
    m, k, n = _real_shape(shape, row)
    relative, largest = _sums(k, row)
    if relative == math.inf:
        return Rounding(math.inf, 0.0, 0.0, 0.0, 0.0)
    underflow = (row.result_underflow + row.product_underflow * (k + 2)) * math.sqrt(m * n)
    both = (relative + row.result_roundoff * (1 + relative)) * NORM_SLACK["float64"]
    return Rounding(both, *_lifts(shape, row), underflow, largest)


def square_unit(size: float) -> float:
    """Return a power of two that brings numbers of this size near 1, so that their squares stay within float64."""
    exponent = math.frexp(size)[1] if size < math.inf else 1000
    return 2.0 ** -max(-1000, min(1000, exponent))


class BelowRounding(ValueError):
    """An error that is asked for is below what rounding alone is bounded by."""


def skipping_limit(asked: tuple[str, float], allowed: float, rounding: float) -> float:
    """Return what skipped products may add up to where the whole error is to stay within what was asked for.

    `asked` is name and value of the argument, `allowed` the error that it allows, of `rtol_factors` so much of ||A||_F
    ||B||_F, and `rounding` a bound in the same unit: `BelowRounding` is raised where that is more.
    """
    if rounding == math.inf or rounding > allowed:
        word, value = asked
        least = value * (rounding / allowed) if 0 < allowed < math.inf else math.inf
        raise BelowRounding(
            f"{word} = {value} is below what rounding alone is bounded by, {least:.3g} for this inner dimension, "
            f"precision and size of the entries: take a larger {word} or float64, or scale what underflows or overflows"
        )
    return allowed - rounding


def largest_tau(skipped: Callable[[float], float], largest: float, limit: float) -> float:
    """Return the largest tau, to a relative 1e-6 and never above it, whose skipped products stay within a limit.

    ``skipped(tau)`` bounds them, rising with tau, and above `largest`, the largest product of two norms, everything is
    skipped: infinity is returned where it may be.
    """
    if skipped(math.inf) <= limit:
        return math.inf
    smallest = math.nextafter(0.0, 1.0)
    high = min(math.nextafter(largest, math.inf), sys.float_info.max)
    low = max(high * 2.0**-80, smallest)
    if skipped(low) > limit:
        # A threshold that skips nothing but zeros is always allowed.
        low, high = smallest, low
    for _ in range(MOST_BISECTIONS):
        # Numbers near 0 are further apart.
        if high <= max(low * (1 + 1e-6), math.nextafter(low, math.inf)):
            break
        middle = math.sqrt(low) * math.sqrt(high)
        if skipped(middle) <= limit:
            low = middle
        else:
            high = middle
    return low
