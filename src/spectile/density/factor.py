"""Inverse factors of positive definite matrices."""

from __future__ import annotations

import math

import numpy as np

from spectile.tiles import Error, TileMatrix
from spectile.tiles.types import EXACT, SLACK

_MOST_STEPS = 60


def inverse_factor(s: TileMatrix, *, error: float = 1e-8) -> TileMatrix:
    """Return Z with ``Z.H @ S @ Z = I``, near S to the power of -1/2, by iterative refinement.

    Parameters
    ----------
    s : TileMatrix
        Hermitian and positive definite.
    error : float, default 1e-8
        What ``Z.H @ S @ Z`` may differ from the identity by in the Frobenius norm.

    Returns
    -------
    TileMatrix
        Stored as Hermitian.  Its `error` bounds the distance from an exact inverse factor, ``Z (Z.H S Z)^(-1/2)``, so
        that whatever is computed with Z carries it.

    Raises
    ------
    ValueError
        If `s` is not stored as Hermitian, is not positive definite, or rounding does not allow the error.

    Notes
    -----
    A. M. N. Niklasson, Phys. Rev. B 70, 193102 (2004).

    Examples
    --------
    >>> import numpy as np, spectile
    >>> from spectile.density import inverse_factor
    >>> s = spectile.TileMatrix.from_dense(np.array([[2.0, 1.0], [1.0, 2.0]]), 2, hermitian=True)
    >>> z = inverse_factor(s, error=1e-10).to_dense()
    >>> bool(np.abs(z @ s.to_dense() @ z - np.eye(2)).max() < 1e-10)
    True
    """
    if not s.hermitian:
        raise ValueError("s is not stored as Hermitian: make it with hermitian=True")
    if not (error > 0 and math.isfinite(error)):
        raise ValueError(f"error is {error}: pass a positive number")
    z, reached = refined(s, error)
    if reached > error:
        raise ValueError(
            f"error = {error} is below what rounding to {s.dtype} allows of an inverse factor of s: ask for "
            f"{2 * reached:.2g} or more"
        )
    return z


def refined(s: TileMatrix, error: float) -> tuple[TileMatrix, float]:
    """Return an inverse factor, and what its residual is at most: within `error`, or as close as rounding allows."""
    _, high = s.eigenvalue_bounds()
    if high <= 0:
        raise ValueError("s is not positive definite: no eigenvalue is positive")
    exact_s = s._with(error=EXACT)
    unit = TileMatrix.identity(np.diff(s.rows), dtype=s.dtype)._with(permutation=s.permutation)
    unit = unit if s._xp is np else unit.to_device()
    z = (1 / math.sqrt(high)) * unit
    before, best = math.inf, None
    for _ in range(_MOST_STEPS):
        # What is left out of the residual may be as small a share of it as the next step needs.
        fine = min(1e-2, 0.05 * max(error, min(before, 1.0) ** 2 * 0.1))
        w = z._with(error=EXACT)
        half = exact_s._times(w, fine / (2 * w.norm("spectral")))
        residual = w._times(half, fine / 2, half="upper").shifted(-1.0)
        size = (residual.norm() + residual.error.fro) * SLACK
        if size > 1.01 * math.sqrt(s.shape[0]) + residual.error.fro:
            # While W = Z S Z has eigenvalues from 0 to 1 only, I - W has as well.
            raise ValueError("s is not positive definite: an overlap has positive eigenvalues alone")
        if best is None or size < best[2]:
            best = w, residual, size
        if size <= error or (before < 0.1 and size > 0.5 * before):
            break
        # Z (I - R / 2 + 3 R^2 / 8) has a residual of the order of R cubed.
        r = residual._with(error=EXACT)
        step = fine / max(1.0, w.norm("spectral"))
        correction = (-0.5 * r + 0.375 * r._times(r, step, half="square")).truncate(step)
        z = (w + w._times(correction, step, half="upper")).truncate(step)
        before = size
    assert best is not None
    w, residual, size = best
    return w._with(error=_distance(w, residual, s, size)), size


def _distance(z: TileMatrix, residual: TileMatrix, s: TileMatrix, size: float) -> Error:
    """Bound how far Z is from the exact inverse factor of the exact S."""
    norm = z.norm("spectral")
    # Z^H S Z - I for the exact S.
    fro = size + norm**2 * s.error.fro
    spectral = min(fro, residual.norm("spectral") + residual.error.spectral + norm**2 * s.error.spectral)
    if spectral >= 0.5:
        raise ValueError("s is nearly singular in this precision, or its own error is too large for an inverse factor")
    # |(1 + t)^(-1/2) - 1| <= |t| / (1 - |t|)^(3/2) / 2
    factor = norm / (2 * (1 - spectral) ** 1.5) * SLACK
    return Error.of(factor * fro, factor * spectral)
