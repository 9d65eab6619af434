"""Bounds of a spectrum: Gershgorin's circles and a few Lanczos sweeps (paper, Section II)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

# The spectrum fills this share of [−1, 1]: rounding never reaches the ends, where the Chebyshev weight is singular.
FILL = 0.99


def gershgorin(H: Any) -> tuple[float, float]:
    """Return bounds that hold for certain: the union of Gershgorin's intervals.

    Parameters
    ----------
    H : scipy.sparse or cupyx.scipy.sparse matrix, shape (N, N)
        Hermitian.

    Returns
    -------
    float, float
        Lowest and highest possible eigenvalue.
    """
    diagonal = H.diagonal()
    radius = abs(H).sum(axis=1)
    radius = (np.asarray(radius) if isinstance(radius, np.matrix) else radius).ravel() - abs(diagonal)
    return float((diagonal.real - radius).min()), float((diagonal.real + radius).max())


def lanczos(apply: Callable[[Any], Any], start: Any, steps: int = 60, xp: ModuleType = np) -> tuple[float, float]:
    """Return bounds by Lanczos sweeps: the extreme Ritz values, moved outwards by their residual norms.

    Every Ritz value has an eigenvalue within its residual, but nothing proves that no eigenvalue lies beyond: the
    recurrence therefore watches its norms (``SpectralDensity`` widens bounds that turn out too narrow).

    Parameters
    ----------
    apply : callable
        ``apply(x)`` returns H x.
    start : ndarray, shape (N,)
        Start vector, not zero.
    steps : int
        Sweeps.
    xp : module
        numpy or cupy.

    Returns
    -------
    float, float
    """
    from scipy.linalg import eigh_tridiagonal

    v = start / xp.linalg.norm(start)
    previous = xp.zeros_like(v)
    alphas: list[float] = []
    betas: list[float] = [0.0]
    for _ in range(min(steps, start.size)):
        u = apply(v) - betas[-1] * previous
        alphas.append(float(xp.vdot(v, u).real))
        u = u - alphas[-1] * v
        betas.append(float(xp.linalg.norm(u)))
        if betas[-1] <= 1e-12 * max(1.0, *map(abs, alphas)):
            break
        previous, v = v, u / betas[-1]
    ritz, vectors = eigh_tridiagonal(np.array(alphas), np.array(betas[1:-1]))
    residual = betas[-1] * np.abs(vectors[-1])
    return float(ritz[0] - residual[0]), float(ritz[-1] + residual[-1])


def widened(bounds: tuple[float, float], attempt: int = 0) -> tuple[float, float]:
    """Return wider bounds than ones that turned out too narrow: by a tenth at first, twice from `attempt` 4 on."""
    low, high = bounds
    half = max((high - low) / 2, 1e-2 * max(abs(low), abs(high), 1e-2)) * (1.1 if attempt < 4 else 2.0)
    return (low + high) / 2 - half, (low + high) / 2 + half


def scaling(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the paper's a and b: H̃ = a (H − b) has its spectrum in [−0.99, 0.99] if `bounds` hold.

    Raises
    ------
    ValueError
        If the bounds are not finite or not in order.
    """
    low, high = (float(bound) for bound in bounds)
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise ValueError(
            f"bounds=({low}, {high}) hold no spectrum: give the lowest and the highest energy, in this order"
        )
    half = max((high - low) / 2, 1e-6 * max(abs(low), abs(high), 1e-6))
    return FILL / half, (high + low) / 2
