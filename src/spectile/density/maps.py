"""The polynomials of the second-order spectral projection: x squared and 2 x - x squared, rising from 0 to 1.

An eigenvalue that is known to lie on one side of a number does so before a step where it does after it, on the side of
the number's preimage.  What a step is off by in the spectral norm shifts every eigenvalue by at most as much (Weyl).

Source: A. M. N. Niklasson, Phys. Rev. B 66, 155115 (2002).
"""

from __future__ import annotations

import math


def forward(down: bool, x: float) -> float:
    """Return the polynomial: x squared with `down`, or 2 x - x squared."""
    return x * x if down else x * (2 - x)


def backward(down: bool, y: float) -> float:
    """Return the preimage from 0 to 1 of a number, itself brought into that interval."""
    y = min(max(y, 0.0), 1.0)
    return math.sqrt(y) if down else y / (1 + math.sqrt(1 - y))


def distance(idempotency: float) -> float:
    """Return how far x is from 0 or 1, at most, where ``|x - x^2|`` is at most the given number; infinity from 1/4 on.

    >>> distance(0.09), distance(0.25)
    (0.1, inf)
    """
    return 2 * idempotency / (1 + math.sqrt(1 - 4 * idempotency)) if idempotency < 0.25 else math.inf
