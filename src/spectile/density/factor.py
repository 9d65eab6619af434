"""Inverse factors and inverse square roots of positive definite matrices, and polar decompositions.

``Z <- Z (I - R / 2 + 3 R^2 / 8)``, ``R = Z^H S Z - I``, from a multiple of the identity.  What a step is off by is seen
by the next one, but for a rotation: the limit is S^(-1/2) Q, Q near the identity.  Of S^(1/2) Z the step keeps the
unitary polar factor, which its error E turns by at most ``2 ||S^(1/2) E|| / (s + s')``, with the smallest singular
values before and after: that is how far Q is from the identity at most, and says which root was found.  Then with
``Q = (I + C) (I - C)^(-1)``, Y = S^(-1/2) and the skew part N of Y Q

    Y C + C Y = (I + C) N (I - C),    so that    ||Y Q - Y||_F <= 2 (1 + ||C||^2) ||N||_F.

Source: A. M. N. Niklasson, Phys. Rev. B 70, 193102 (2004); R.-C. Li, SIAM J. Matrix Anal. Appl. 16, 327 (1995).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from spectile.core.progress import MATRICES, Progress
from spectile.density.maps import Polynomial
from spectile.density.operands import in_tiles, positive, within_range
from spectile.tiles import Error, TileMatrix
from spectile.tiles.types import EXACT, SLACK

_MOST_STEPS, _PASSES = 60, 4
#: Powers of which a spectral norm is bounded by, and what each is off by, of a matrix whose norm is near 1.
_MOST_SQUARINGS, _CLOSE = 6, 1e-3
#: What a step makes of the singular values of S^(1/2) Z.
_STEP = Polynomial((0.0, 15 / 8, 0.0, -10 / 8, 0.0, 3 / 8))


@Progress("inverse_factor", unit=MATRICES)
def inverse_factor(s: Any, *, error: float = 1e-8, block: Any = 32) -> TileMatrix:
    """Return Z with ``Z.H @ S @ Z = I``, near S to the power of -1/2, by iterative refinement.

    Parameters
    ----------
    s : TileMatrix, array or SciPy sparse matrix of shape (n, n)
        Hermitian and positive definite.
    error : float, default 1e-8
        What ``Z.H @ S @ Z`` may differ from the identity by in the Frobenius norm.
    block : int or sequence of int, default 32
        Rows of a tile, or of each, where `s` is no tile matrix.

    Returns
    -------
    TileMatrix
        Its `error` bounds the distance from an exact inverse factor, ``Z (Z.H S Z)^(-1/2)``, so that whatever is
        computed with Z carries it.

    Raises
    ------
    TypeError
        As `TileMatrix.from_dense`.
    ValueError
        If `s` is not Hermitian or not positive definite, or rounding does not allow the error.

    Notes
    -----
    A. M. N. Niklasson, Phys. Rev. B 70, 193102 (2004).

    Examples
    --------
    >>> import numpy as np, spectile
    >>> from spectile.density import inverse_factor
    >>> s = spectile.TileMatrix.from_dense(np.array([[2.0, 1.0], [1.0, 2.0]]), 2, hermitian=True)
    >>> z = inverse_factor(s, error=1e-10).to_dense()
    >>> bool(np.abs(z.T @ s.to_dense() @ z - np.eye(2)).max() < 1e-10)
    True
    """
    s, error = within_range("s", in_tiles("s", s, block, hermitian=True)), positive("error", error)
    found = refined(s, error)
    if found.size > error:
        raise ValueError(
            f"error = {error} is below what rounding to {s.dtype} allows of an inverse factor of s: ask for "
            f"{2 * found.size:.2g} or more"
        )
    return found.factor(s)


@Progress("inverse_sqrt", unit=MATRICES)
def inverse_sqrt(s: Any, *, error: float = 1e-8, block: Any = 32) -> TileMatrix:
    """Return S to the power of -1/2 with an error that is guaranteed.

    Parameters
    ----------
    s : TileMatrix, array or SciPy sparse matrix of shape (n, n)
        Hermitian and positive definite.
    error : float, default 1e-8
        Largest allowed error in the Frobenius norm, besides what follows from the error of `s`.
    block : int or sequence of int, default 32
        Rows of a tile, or of each, where `s` is no tile matrix.

    Returns
    -------
    TileMatrix
        Stored as Hermitian, with its error.

    Raises
    ------
    TypeError
        As `TileMatrix.from_dense`.
    ValueError
        If `s` is not Hermitian or not positive definite, or rounding does not allow the error.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.density import inverse_sqrt
    >>> inverse_sqrt(np.diag([4.0, 0.25])).to_dense().round(6).tolist()
    [[0.5, 0.0], [0.0, 2.0]]
    """
    s, error = within_range("s", in_tiles("s", s, block, hermitian=True)), positive("error", error)
    cap, best = 0.02 * error, math.inf
    for _ in range(_PASSES):
        found = refined(s, cap, cap)
        root, off = found.root(s)
        if off <= error:
            return root
        best = min(best, off)
        cap *= 0.3 * error / off if off < math.inf else 1e-3
    advice = f"ask for {2 * best:.2g} or more" if best < math.inf else "s is nearly singular: ask for more"
    raise ValueError(f"error = {error} is below what rounding to {s.dtype} allows of this inverse root: {advice}")


@Progress("polar", unit=MATRICES)
def polar(a: Any, *, error: float = 1e-8, block: Any = 32) -> tuple[TileMatrix, TileMatrix]:
    """Return U with orthonormal columns and P positive definite, ``A = U P``, with errors that are guaranteed.

    Parameters
    ----------
    a : TileMatrix, array or SciPy sparse matrix of shape (m, n)
        Of full column rank; rounding allows about 1e-16 times the square of its condition number.
    error : float, default 1e-8
        Largest allowed error of U in the Frobenius norm, besides what follows from the error of `a`.
    block : int or sequence of int, default 32
        Rows and columns of a tile, or of each of a square matrix, where `a` is no tile matrix.

    Returns
    -------
    u : TileMatrix of shape (m, n)
        ``A (A.H A)^(-1/2)``, the nearest matrix with orthonormal columns, with its error.
    p : TileMatrix of shape (n, n)
        ``(A.H A)^(1/2)``, stored as Hermitian, with its error.

    Raises
    ------
    TypeError
        As `TileMatrix.from_dense`.
    ValueError
        If the columns of `a` are dependent, or rounding does not allow the error.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.density import polar
    >>> u, p = polar(np.array([[0.0, -2.0], [3.0, 0.0]]))
    >>> u.to_dense().round(6).tolist(), p.to_dense().round(6).tolist()
    ([[0.0, -1.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]])
    """
    a, error = within_range("a", in_tiles("a", a, block), small=False), positive("error", error)
    exact_a = a._with(error=EXACT)
    size = exact_a.norm("spectral")
    if a.shape[0] < a.shape[1] or size == 0:
        raise ValueError(
            f"a has dependent columns, being {'zero' if size == 0 else f'of shape {a.shape}'}: pass another"
        )
    share = 0.25 * min(1.0, error)
    for _ in range(_PASSES):
        try:
            gram = exact_a.H._times(exact_a, 1e-3 * share * size, half="upper")
            root = inverse_sqrt(gram, error=share / size)
        except ValueError:
            raise ValueError(
                f"a has dependent columns, or error = {error} is below what rounding to {a.dtype} allows: ask for more"
            ) from None
        u = exact_a._times(root, share)
        if u.error.fro <= error:
            break
        share *= 0.3 * error / u.error.fro
    else:
        raise ValueError(f"error = {error} is below what rounding to {a.dtype} allows here: ask for more")
    p = root._times(gram, share * size, half="upper")
    if a.error != EXACT:
        # What is stored has another U, by 2 / (s + s') times its error and for more rows than columns twice as much
        # (Li), and another P, by sqrt(2) times (Araki, Yamagami).
        least = 1 / (root.norm("spectral") + root.error.spectral) - a.error.spectral
        if least <= 0:
            raise ValueError("a may have dependent columns within its own error: give it more accurately")
        moved = a.error.fro * (1 if a.shape[0] == a.shape[1] else 2) / least * SLACK
        u = u._with(error=u.error + Error.of(moved, moved))
        p = p._with(error=p.error + Error.of(math.sqrt(2) * a.error.fro, math.sqrt(2) * a.error.fro))
    return u, p


@dataclass
class Refined:
    """An inverse factor, and what its iteration was off by.

    Attributes
    ----------
    z, residual : TileMatrix
        Z, as if exact, and ``Z.H S Z - I`` with its error.
    size : float
        What that is at most in the Frobenius norm.
    high : float
        No eigenvalue of S is larger.
    errors : list of Error
        What each step was off by.
    """

    z: TileMatrix
    residual: TileMatrix
    size: float
    high: float
    errors: list[Error] = field(default_factory=list)

    def factor(self, s: TileMatrix) -> TileMatrix:
        """Return Z with its distance from an exact inverse factor of the exact S."""
        return self.z._bounded(self.norm)._with(error=_distance(self.norm, self.residual, s.error, self.size))

    @cached_property
    def norm(self) -> float:
        """What the spectral norm of Z is at most."""
        return spectral_norm(self.z)

    def root(self, s: TileMatrix) -> tuple[TileMatrix, float]:
        """Return S^(-1/2) with its error, and the part of that which is not of the error of S.

        The iteration began at the identity.
        """
        z, norm = self.z, self.norm
        half = self._angle() / 2 if self.size < 0.5 else math.inf
        made = z.hermitian_part()
        if half >= 1:
            return made, math.inf
        off = _distance(norm, self.residual, EXACT, self.size).fro
        skew = 0.5 * (z - z.H)
        n = (skew.norm() + skew.error.fro + off) * SLACK
        c = half / math.sqrt(1 - half**2)
        for _ in range(3):
            c = min(c, (1 + c * c) * n * math.sqrt(self.high) / 2)
        own = (off + 2 * (1 + c * c) * n + 8 * np.finfo(z.dtype).eps * made.norm()) * SLACK
        error = Error.of(own, own)
        if s.error != EXACT:
            smallest = (1 - self.size) / norm**2 - s.error.spectral
            if smallest <= 0:
                raise ValueError("s may be singular within its own error: give it more accurately")
            error = error + s.error.times(0.5 * smallest**-1.5)
        return made._with(error=error), own

    def _angle(self) -> float:
        """Return what the unitary polar factor of S^(1/2) Z was turned by, at most."""
        after = math.sqrt(1 - self.size)
        turned = 0.0
        for error in reversed(self.errors):
            before = after - math.sqrt(self.high) * error.spectral * SLACK
            if before <= 0:
                return math.inf
            turned += 2 * math.sqrt(self.high) * error.fro / (before + after)
            # The smallest singular value, taken back: the map rises from 0 to 1.
            after = _STEP.lowest(min(before, 1.0), 0.0, 1.0)
        return turned * SLACK


def refined(s: TileMatrix, error: float, cap: float = 1e-2, start: TileMatrix | None = None) -> Refined:
    """Return an inverse factor of what is stored of S within `error`, or as close as rounding allows.

    Parameters
    ----------
    s : TileMatrix
        Stored as Hermitian.
    error : float
        What the residual may be in the Frobenius norm.
    cap : float
        What a step may be off by, at most.
    start : TileMatrix, optional
        An inverse factor of a similar matrix; it is left where it is none.
    """
    _, high = s.eigenvalue_bounds()
    if high <= 0:
        raise ValueError("s is not positive definite: no eigenvalue is positive")
    exact_s = s._with(error=EXACT)
    z, before, best = start, math.inf, None
    fine = min(cap, 5e-3 if start is None else 0.05 * error)
    errors: list[Error] = []
    for _ in range(_MOST_STEPS):
        if z is None:
            z = (1 / math.sqrt(high)) * s._identity()
        w = z._with(error=EXACT)
        half = exact_s._times(w, fine / (2 * w.norm("spectral")))
        residual = w.H._times(half, fine / 2, half="upper").shifted(-1.0)
        size = (residual.norm() + residual.error.fro) * SLACK
        if start is not None and not size < 0.5:
            z, start, fine = None, None, min(cap, 5e-3)
            continue
        if size > 1.01 * math.sqrt(s.shape[0]) + residual.error.fro:
            # While Z^H S Z has eigenvalues from 0 to 1 only, its distance from I is no larger.
            raise ValueError("s is not positive definite: an overlap has positive eigenvalues alone")
        if best is None or size < best.size:
            best = Refined(w, residual, size, high, list(errors))
        if size <= error or (before < 0.1 and size > max(0.5 * before, 10 * fine)):
            break
        # What is left out of a step may be as small a share of its residual as the next one needs.
        fine = min(cap, 0.05 * max(error, min(size, 1.0) ** 2 * 0.1))
        step = fine / max(1.0, w.norm("spectral"))
        correction = (-0.5 * residual + 0.375 * residual._times(residual, step, half="square")).truncate(step)
        z = (w + w._times(correction, step)).truncate(step)
        errors.append(z.error)
        before = size
    assert best is not None
    return best


def spectral_norm(z: TileMatrix) -> float:
    """Bound the spectral norm of what is stored of a matrix, closer than its rows and columns do.

    ``||Z||^(2 p) = ||(Z^H Z)^p||``: what the bound of a power is too large by counts by its root of degree 2 p.
    """
    best = z.norm("spectral")
    if best == 0:
        return 0.0
    scaled, scale, degree = 1 / best * z._with(error=EXACT), best, 1
    power = scaled.H._times(scaled, _CLOSE, "spectral", half="upper")
    for _ in range(_MOST_SQUARINGS):
        size = (power.norm("spectral") + power.error.spectral) * SLACK
        degree *= 2
        scale *= size ** (1 / degree) * SLACK
        if scale > 0.98 * best or size == 0:
            break
        best, power = min(best, scale), 1 / size * power
        power = power._times(power, _CLOSE, "spectral", half="square")
    return min(best, scale)


def _distance(norm: float, residual: TileMatrix, error: Error, size: float) -> Error:
    """Bound how far Z, of at most this norm, is from the exact inverse factor of what S differs from by `error`."""
    # Z^H S Z - I for the exact S.
    fro = size + norm**2 * error.fro
    spectral = min(fro, residual.norm("spectral") + residual.error.spectral + norm**2 * error.spectral)
    if spectral >= 0.5:
        raise ValueError("s is nearly singular in this precision, or its own error is too large for an inverse factor")
    # |(1 + t)^(-1/2) - 1| <= |t| / (1 - |t|)^(3/2) / 2
    factor = norm / (2 * (1 - spectral) ** 1.5) * SLACK
    return Error.of(factor * fro, factor * spectral)
