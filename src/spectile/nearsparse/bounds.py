"""What a product in floating point can be off by, beyond the skipped tiles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from spectile.nearsparse.api import PRECISIONS

# Unit round-off of the sums, and of C, of each precision.
SUM_ROUNDOFF = {"fp16": 2.0**-24, "fp16c16": 2.0**-24, "fp32": 2.0**-24, "tf32x3": 2.0**-24, "fp64": 2.0**-53}
RESULT_ROUNDOFF = {"fp16": 0.0, "fp16c16": 2.0**-11, "fp32": 0.0, "tf32x3": 0.0, "fp64": 0.0}
# Half the smallest subnormal of float16: what one element of C loses where it underflows.
RESULT_UNDERFLOW = {"fp16c16": 2.0**-25}

# The norms and their sums are float64 themselves; this covers their own rounding.
NORM_SLACK = 1 + 1e-12

# Bytes a second of a device-to-device copy of an H200, read and written, measured.
COPY_BYTES_S = 4.06e12
LAUNCHES_S = 5e-6
# An H200's L2 cache: matrices that fit it do not pass through memory every time.
L2_BYTES = 50e6


def _entry_bytes(precision: str) -> tuple[int, int]:
    """Return the bytes of an entry of A and B, and of C."""
    into, out = (np.dtype(dtype).itemsize for dtype in PRECISIONS[precision])
    return into, out


def speedup_bound(vendor_s: float, n: int, precision: str, executed: float) -> float:
    """Bound the speed-up over a dense product of two n x n matrices on one H200.

    Both matrices are read for their norms, and what is executed runs at the vendor's rate.  C and the second reading of
    A and B are left out, so that very little work cannot reach it.

    Parameters
    ----------
    vendor_s : float
        Seconds of the vendor's dense product.
    n : int
        Rows and columns.
    precision : str
        A key of ``PRECISIONS``.
    executed : float
        Share of the tile products that 64 x 128 tiles of C execute.
    """
    norms_s = 2 * n * n * _entry_bytes(precision)[0] / COPY_BYTES_S + LAUNCHES_S
    return vendor_s / (norms_s + executed * vendor_s)


def bytes_bound(vendor_s: float, n: int, precision: str) -> float:
    """Bound the speed-up by memory alone: A and B are read for their norms and for the product, and C is written.

    Infinity where the three fit the L2 cache, which may keep them.  Where few tiles are valid this lies below
    :func:`speedup_bound`, which leaves out C and the second reading.

    Parameters
    ----------
    vendor_s : float
        Seconds of the vendor's dense product.
    n : int
        Rows and columns.
    precision : str
        A key of ``PRECISIONS``.
    """
    into, out = _entry_bytes(precision)
    if n * n * (2 * into + out) <= L2_BYTES:
        return math.inf
    return vendor_s * COPY_BYTES_S / (n * n * (4 * into + out))


def skipping_limit(rtol: float, scale: float, rounding: float) -> float:
    """Return what skipped products may add up to where the whole error is to stay within `rtol` of ||A|| ||B||.

    Parameters
    ----------
    rtol : float
        Allowed relative error.
    scale : float
        ||A||_F ||B||_F.
    rounding : float
        Bound of the rounding error.

    Raises
    ------
    ValueError
        Rounding alone is bounded by more.
    """
    if rounding > rtol * scale:
        raise ValueError(
            f"rtol = {rtol} is below what rounding alone is bounded by, {rounding / scale:.3g} for this inner "
            "dimension and precision: take a larger rtol or float64"
        )
    return rtol * scale - rounding


def largest_tau(skipped: Callable[[float], float], largest: float, limit: float) -> float:
    """Return the largest tau, to a relative 1e-6 and never above it, whose skipped products stay within a limit.

    Parameters
    ----------
    skipped : callable
        Bound of the products that a tau skips, rising with tau.
    largest : float
        Largest product of two norms: above it everything is skipped.
    limit : float
        Largest bound that is allowed, not negative.

    Returns
    -------
    float
        Infinity where everything may be skipped.
    """
    if skipped(math.inf) <= limit:
        return math.inf
    high = math.nextafter(largest, math.inf)
    low = high * 2.0**-80
    if skipped(low) > limit:
        # A threshold that skips nothing but zeros is always allowed.
        low, high = math.nextafter(0.0, 1.0), low
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low) * math.sqrt(high)
        if skipped(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


# Bytes a second from pinned host memory: to one H200, and to the eight of a host together, measured.
HOST_BYTES_S = (52e9, 152e9)


def host_bound(n: int, precision: str, gpus: int) -> float:
    """Return the seconds that two n x n matrices need from host memory to the GPUs, or C back, whichever is longer."""
    into, out = _entry_bytes(precision)
    return n * n * max(2 * into, out) / min(gpus * HOST_BYTES_S[0], HOST_BYTES_S[1])


def rounding_bound(
    shape: tuple[int, int, int],
    norm_a: float,
    norm_b: float,
    precision: str,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    norm_c: float = 0.0,
    product_roundoff: float = 0.0,
) -> float:
    """Bound the rounding error of alpha A B + beta C in the Frobenius norm.

    ``|fl(AB) - AB| <= gamma_k |A| |B|`` elementwise in any order of summation, gamma_k = k u / (1 - k u), and
    ``|| |A| |B| ||_F <= ||A||_F ||B||_F``.  It grows with k, is independent of tau, and is far above what is seen.

    Parameters
    ----------
    shape : tuple of int
        (m, k, n).
    norm_a, norm_b, norm_c : float
        Frobenius norms.
    precision : str
        A key of ``SUM_ROUNDOFF``.
    alpha, beta : float
        Factors.
    product_roundoff : float
        Relative error of one product before it is summed, where it is not exact to the sum's round-off (3xTF32).

    Returns
    -------
    float
        Infinity where k u >= 1.
    """
    m, k, n = shape
    unit = SUM_ROUNDOFF[precision]
    # Two roundings more for alpha and for adding beta C.
    steps = (k + 2) * unit
    if steps >= 1:
        return math.inf
    relative = steps / (1 - steps) + product_roundoff
    product = abs(alpha) * norm_a * norm_b
    bound = relative * product + 2 * unit * abs(beta) * norm_c
    result = (1 + relative) * product + abs(beta) * norm_c
    underflow = RESULT_UNDERFLOW.get(precision, 0.0) * math.sqrt(m * n)
    return (bound + RESULT_ROUNDOFF[precision] * result + underflow) * NORM_SLACK
