"""Bounds of a spectrum: Gershgorin's circles and a few Lanczos sweeps (paper, Section II)."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from spectile.core.options import number
from spectile.kpm.types import OUT_OF_RANGE, Array, Engine

# The spectrum fills this share of [−1, 1]: rounding never reaches the ends, where the Chebyshev weight is singular.
FILL = 0.99
# Half the width of the narrowest spectrum that rounding leaves any structure, in ε of the largest energy.
NARROWEST = 4096
# How often bounds turn out too narrow at most.
MAX_WIDENINGS = 60
# Half widths from which squares of vectors overflow or underflow, by the bytes of a real number.
RANGE = {4: (1e-30, 1e30), 8: (1e-140, 1e140)}


def gershgorin(H: Any) -> tuple[float, float]:
    """Return bounds that hold for certain: the union of Gershgorin's intervals of a sparse Hermitian matrix."""
    diagonal = H.diagonal()
    with np.errstate(over="ignore", invalid="ignore"):
        # Sums that are too large give infinite bounds, which hold.
        # In double precision: in single the circles of a spectrum far from zero would be rounded to much less.
        sizes = abs(H)
        sizes = sizes if sizes.dtype == np.float64 else sizes.astype(np.float64)
        total = sizes @ np.ones_like(diagonal, np.float64)
        radius, center = total - abs(diagonal).astype(np.float64), diagonal.real.astype(np.float64)
        return float((center - radius).min()), float((center + radius).max())


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
    v = start / norm(start, xp)
    previous = xp.zeros_like(v)
    alphas: list[float] = []
    betas: list[float] = [0.0]
    for _ in range(steps):
        u = apply(v) - betas[-1] * previous
        alphas.append(float(xp.vdot(v, u).real))
        u = u - alphas[-1] * v
        betas.append(norm(u, xp))
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

    Raises ValueError if a number is not finite.
    """
    from scipy.linalg import eigh_tridiagonal

    alphas, betas = engine.tridiagonalize(lanczos_steps(engine.num_rows))
    if not np.isfinite(alphas[0]):
        raise ValueError(OUT_OF_RANGE)
    # The space is exhausted where a norm is but rounding, of the width or of an energy; what follows means nothing.
    near, beside = alphas / 2, betas / 2  # whose differences stay within the range
    width = np.maximum.accumulate(np.maximum(np.abs(near - near[0]), np.append(0.0, beside[:-1])))
    exhausted = np.flatnonzero(beside <= np.maximum(1e-12 * width, 2.0**-50 * np.abs(near)))
    count = int(exhausted[0]) + 1 if exhausted.size else len(alphas)
    if not (np.isfinite(alphas[:count]).all() and np.isfinite(betas[:count]).all()):
        raise ValueError(OUT_OF_RANGE)
    # Not as a full matrix: for one of 48 rows threads of a BLAS take milliseconds to meet.
    ritz, vectors = eigh_tridiagonal(alphas[:count], betas[: count - 1], lapack_driver="stev", check_finite=False)
    residual = betas[count - 1] * np.abs(vectors[-1])
    return float(ritz[0] - residual[0]), float(ritz[-1] + residual[-1])


def norm(x: Any, xp: ModuleType) -> float:
    """Return the norm of a vector in float64, whose squares may lie beyond the range of its type."""
    x = x.astype(np.result_type(x.dtype, np.float64))
    with np.errstate(over="ignore"):
        direct = float(xp.linalg.norm(x))
    if RANGE[8][0] < direct < RANGE[8][1]:
        return direct
    largest = float(abs(x).max())
    return largest * float(xp.linalg.norm(x / largest)) if 0 < largest < np.inf else largest


def given_or_found(engine: Engine, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return bounds of the spectrum: the given ones if they are usable, else those of Lanczos within the certain ones.

    They are never closer than the rounding of H as the engine holds it leaves a spectrum any structure.

    Raises ValueError if the given bounds are no two energies in order, or H is not finite.
    """
    if bounds is not None:
        low, high = two_energies("bounds", bounds)
        scaling((low, high))
    else:
        low, high = lanczos(engine)
        certain = engine.bounds()
        if certain is not None:
            # Lanczos is the closer one; where its residuals reach beyond the circles, the circles are right.
            low, high = max(low, certain[0]), min(high, certain[1])
        if not np.isfinite(high / 2 - low / 2):
            raise ValueError(OUT_OF_RANGE)
    least = least_half(low, high, engine.dtype, engine.frame.offset)
    if high / 2 - low / 2 >= least:
        return low, high
    center = low / 2 + high / 2
    return center - least, center + least


def two_energies(name: str, given: Any) -> tuple[float, float]:
    """Return two real numbers; raises ValueError if an argument of this name is something else."""
    try:
        low, high = (number(name, each) for each in given)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={reprlib.repr(given)} are no two energies: give the lowest and the highest") from None
    return low, high


def widened(bounds: tuple[float, float], widenings: int) -> tuple[float, float]:
    """Return wider bounds than ones that turned out too narrow: by a tenth, twice from the fifth of `widenings` on."""
    if widenings < 0:
        raise ValueError("the saved state does not tell how its bounds are to be widened: remove it, and begin again")
    if widenings >= MAX_WIDENINGS:
        raise ValueError("no bounds hold the spectrum: H is not Hermitian or not finite")
    low, high = bounds
    half, center = FILL / scaling(bounds)[0] * (1.1 if widenings < 4 else 2.0), low / 2 + high / 2
    return center - half, center + half


def scaling(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the paper's a and b: H̃ = a (H − b) has its spectrum in [−0.99, 0.99] if `bounds` hold.

    Raises ValueError if the bounds are not finite or not in order, or so close that 1/a is no normal number.
    """
    low, high = (float(bound) for bound in bounds)
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise ValueError(
            f"bounds=({low}, {high}) hold no spectrum: give the lowest and the highest energy, in this order"
        )
    half = max(high / 2 - low / 2, least_half(low, high, np.float64))
    if half < np.finfo(np.float64).tiny:
        raise ValueError(f"bounds=({low}, {high}) are below the range of float64: take a smaller unit of energy")
    return FILL / half, low / 2 + high / 2


def least_half(low: float, high: float, dtype: Any, zero: float = 0.0) -> float:
    """Return half the width that bounds have at least: relative to the energies, whatever their unit.

    H is held in this dtype without its `zero`, and energies themselves are numbers of float64.
    """
    if low == high == 0:
        low = high = 1.0
    held = float(np.finfo(dtype).eps) * max(abs(low - zero), abs(high - zero))
    return NARROWEST * max(held, float(np.finfo(np.float64).eps) * max(abs(low), abs(high)))


def known_to(engine: Engine, bounds: tuple[float, float]) -> float:
    """Return the difference between energies that rounding of H, as an engine holds it, hides."""
    return least_half(*bounds, engine.dtype, engine.frame.offset) / NARROWEST


def require_resolved(engine: Engine, bounds: tuple[float, float], energy: float, what: str) -> None:
    """Raise ValueError where an argument, `what`, asks for differences between energies that rounding of H hides."""
    known = known_to(engine, bounds)
    if energy < known:
        raise ValueError(
            f"{what} resolves {energy:.2g}, and rounding of {engine.dtype} hides differences of {known:.2g} between "
            f"energies from {bounds[0]:.6g} to {bounds[1]:.6g}: give H without the middle of its spectrum, or of a "
            "wider type, or closer bounds"
        )
