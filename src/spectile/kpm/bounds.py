"""Bounds of a spectrum: Gershgorin's circles and a few Lanczos sweeps (paper, Section II)."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from spectile.kpm.types import NOT_FINITE, Array, Engine

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


def tridiagonalize(apply: Callable[[Any], Any], start: Any, steps: int, xp: ModuleType = np) -> tuple[Array, Array]:
    """Return the numbers of `steps` Lanczos steps: the diagonal, shape (k,), and the norms beside it, shape (k,).

    Parameters
    ----------
    apply : callable
        ``apply(x)`` returns H x.
    start : ndarray, shape (N,)
        Start vector, not zero.
    steps : int
        k; fewer where a norm vanishes.
    xp : module
        numpy or cupy.
    """
    v = start / _norm(start, xp)
    previous = xp.zeros_like(v)
    alphas: list[float] = []
    betas: list[float] = [0.0]
    for _ in range(steps):
        u = apply(v) - betas[-1] * previous
        alphas.append(float(xp.vdot(v, u).real))
        u = u - alphas[-1] * v
        betas.append(_norm(u, xp))
        if betas[-1] == 0:
            break
        previous, v = v, u / betas[-1]
    return np.array(alphas), np.array(betas[1:])


def lanczos_steps(num_rows: int) -> int:
    """Return the steps from which an eigenvalue that they miss lies within what `FILL` and the residuals leave.

    A random vector holds 1/√N of an eigenvector, and k steps show it where a polynomial of degree k that is at most 1
    on the rest of the spectrum is as large as √N: T_k(1.014) is.  The residuals of fewer than 48 make bounds too wide.
    """
    return max(48, math.ceil(math.acosh(math.sqrt(num_rows)) / math.acosh(1.014)))


def lanczos(engine: Engine) -> tuple[float, float]:
    """Return bounds by Lanczos steps: the extreme Ritz values, moved outwards by their residual norms.

    Every Ritz value has an eigenvalue within its residual, but nothing proves that no eigenvalue lies beyond: the
    recurrence therefore watches its norms, and bounds that turn out too narrow are widened.

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    alphas, betas = engine.tridiagonalize(min(lanczos_steps(engine.num_rows), engine.num_rows))
    if not np.isfinite(alphas[0]):
        raise ValueError(NOT_FINITE)
    # The space is exhausted where a norm is but rounding; what follows means nothing.
    size = np.maximum.accumulate(np.maximum(np.abs(alphas), np.append(0.0, betas[:-1])))
    exhausted = np.flatnonzero(betas <= 1e-12 * size)
    count = int(exhausted[0]) + 1 if exhausted.size else len(alphas)
    if not (np.isfinite(alphas[:count]).all() and np.isfinite(betas[:count]).all()):
        raise ValueError(NOT_FINITE)
    # So few that a full matrix costs nothing, and SciPy's solvers need not be loaded.
    ritz, vectors = np.linalg.eigh(np.diag(alphas[:count]) + np.diag(betas[: count - 1], -1))
    residual = betas[count - 1] * np.abs(vectors[-1])
    return float(ritz[0] - residual[0]), float(ritz[-1] + residual[-1])


def _norm(x: Any, xp: ModuleType) -> float:
    """Return the norm of a vector in float64: squares of a float32 Hamiltonian in joules underflow."""
    return float(xp.linalg.norm(x.astype(np.result_type(x.dtype, np.float64))))


def given_or_found(engine: Engine, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return bounds of the spectrum: the given ones if they are usable, else those of Lanczos within the certain ones.

    Raises
    ------
    ValueError
        If the given bounds are no two energies in order, or H is not finite.
    """
    if bounds is not None:
        try:
            low, high = (float(bound) for bound in bounds)
        except (TypeError, ValueError):
            raise ValueError(f"bounds={bounds!r} are no two energies: give the lowest and the highest") from None
        scaling((low, high))
        return low, high
    low, high = lanczos(engine)
    certain = engine.bounds()
    if certain is not None:
        # Lanczos is the closer one; where its residuals reach beyond the circles, the circles are right.
        low, high = max(low, certain[0]), min(high, certain[1])
    # A spectrum much narrower than its distance from zero: what is left of H − b must be more than rounding.
    least = 1e4 * float(np.finfo(engine.dtype).eps) * _size(low, high)
    return (low, high) if high - low >= 2 * least else ((low + high) / 2 - least, (low + high) / 2 + least)


def widened(bounds: tuple[float, float], attempt: int = 0) -> tuple[float, float]:
    """Return wider bounds than ones that turned out too narrow: by a tenth at first, twice from `attempt` 4 on."""
    low, high = bounds
    half = max((high - low) / 2, 1e-2 * _size(low, high)) * (1.1 if attempt < 4 else 2.0)
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
    half = max((high - low) / 2, 1e-6 * _size(low, high))
    return FILL / half, (high + low) / 2


def _size(low: float, high: float) -> float:
    """Return the unit of energy for bounds without width: relative to the energies, whatever their unit."""
    return max(abs(low), abs(high)) or 1.0
