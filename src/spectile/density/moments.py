"""How far a projector is turned, from its residual and what the matrix makes of that.

With P the projector on the states below the gap and Q another one, the part ``X = (I - P) Q`` that is turned away
solves ``L X = B``, ``L X = H X - X M`` and ``B = (I - P) R``, where ``R = H Q - Q M`` for any M.  With the energies of
Q's states as eigenvalues of M, those of L are no smaller than a gap g, so that ``||X|| <= ||R|| / g`` (Davis, Kahan).
But most of R lies far above the gap.  For any polynomial z

    ||X|| <= ||z(L) B|| / min over x >= g of |x z(x)|,        z(L) B = (I - P) z(L) R,

and the best z of degree k for the moments of R is that of a Gauss and Radau quadrature with a node at g, whose nodes t
make ``1 - x^2 |z|^2 = (1 - x/g) (1 + c x) prod (1 - x/t)^2 <= 0``.

Source: C. Davis, W. M. Kahan, SIAM J. Numer. Anal. 7, 1 (1970); G. H. Golub, G. Meurant, Matrices, Moments and
Quadrature (2010), chapter 6.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from spectile.tiles import TileMatrix
from spectile.tiles.types import EXACT, SLACK

#: Degrees, each of two products; none is tried once the bound is so many times what it is at least.
MOST_DEGREES, _CLOSE = 3, 1.5
#: What an inner product of two matrices is off by, at most, relative to their norms.
_DOT = 1e-9


def turned_by(
    h: TileMatrix, m: TileMatrix, r: TileMatrix, degrees: int, gap: float, width: float, enough: float = 0.0
) -> float:  # fmt: skip
    """Return a bound of ``||(I - P) Q||_F``.

    Parameters
    ----------
    h, m : TileMatrix
        Hermitian, taken as exact.
    r : TileMatrix
        ``H Q - Q M``, with its error.
    degrees : int
        Of z, at most.
    gap, width : float
        What the eigenvalues of L are at least, and at most.
    enough : float
        No higher degree is tried for a bound of less.
    """
    powers, offs = [r._with(error=EXACT)], [r.error.fro]
    best = (r.norm() + r.error.fro) / gap * SLACK
    h, m = h.whole(), m.whole()
    gram = np.array([[float(np.real(r.dot(r)))]])
    for degree in range(1, degrees + 1):
        if best <= enough:
            break
        last, norm = powers[-1], powers[-1].norm()
        fine = 0.01 * norm * math.sqrt(gap * width)
        made = h._times(last, fine, plus=last._times(m, fine, scale=-1.0), weight=1.0)
        powers.append(made._with(error=EXACT))
        offs.append(made.error.fro)
        new = [float(np.real(powers[-1].dot(x))) for x in powers]
        gram = np.block([[gram, np.array(new[:-1])[:, None]], [np.array(new)]])
        z, least = _polynomial(gram, gap, degree)
        if z is None:
            break
        norms = np.sqrt(np.diag(gram))
        square = float(np.real(z.conj() @ gram @ z)) + _DOT * float(np.abs(z) @ norms) ** 2
        # What the power of degree j is off by reaches z(L) B times the polynomial that follows it in Horner's scheme.
        lost = sum(off * _largest(z[j:], gap, width) for j, off in enumerate(offs))
        bound = (math.sqrt(max(square, 0.0)) + lost) / least * SLACK
        done = bound > 0.9 * best or bound <= _CLOSE * norms[0] * gram[0, 0] / max(gram[0, 1], 1e-300)
        best = min(best, bound)
        if done:
            break
    return best


def _largest(z: Any, low: float, high: float) -> float:
    """Return what ``|z(x)|`` is at most between two numbers."""
    square = np.polynomial.Polynomial(z) * np.polynomial.Polynomial(z.conj())
    turns = square.deriv().roots().real
    points = [low, high, *turns[(turns > low) & (turns < high)]]
    return float(np.abs(np.polynomial.polynomial.polyval(points, z)).max()) * SLACK


def _polynomial(gram: Any, gap: float, degree: int) -> tuple[Any | None, float]:
    """Return z, its constant first, and the minimum of ``|x z(x)|`` over ``x >= gap``."""
    with np.errstate(all="ignore"):
        unit = gram / gap ** np.add.outer(np.arange(degree + 1), np.arange(degree + 1)) / max(gram[0, 0], 1e-300)
    outer, inner = unit[1:, 1:] - unit[1:, :-1], unit[:-1, 1:] - unit[:-1, :-1]
    try:
        nodes = scipy.linalg.eigh((outer + outer.T) / 2, (inner + inner.T) / 2, eigvals_only=True)
    except (np.linalg.LinAlgError, ValueError):  # the moments of fewer nodes, but for rounding
        return None, 0.0
    nodes = np.maximum(nodes, 1.0)
    one = np.polynomial.Polynomial([1.0])
    below = one
    for node in [1.0, *nodes, *nodes, -1 / (1 + 2 * (1 / nodes).sum())]:
        below = below * np.polynomial.Polynomial([1.0, -1 / node])
    square = np.polynomial.Polynomial((one - below).coef[2:])
    roots = square.roots()
    roots = roots[roots.imag > 0]
    if len(roots) != degree:
        return None, 0.0
    scale = math.sqrt(abs(square.coef[-1]))
    z = np.polynomial.polynomial.polyfromroots(roots) * scale

    def value(x: float) -> float:
        return x * scale * math.prod(abs(x - root) for root in roots.tolist())

    turns = (np.polynomial.Polynomial([0.0, 0.0, 1.0]) * square).deriv().roots().real
    least = min(map(value, [1.0, *nodes.tolist(), *turns[turns > 1].tolist()]))
    return z / gap ** np.arange(degree + 1), least * gap / SLACK
