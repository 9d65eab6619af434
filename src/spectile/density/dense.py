"""Density matrices by all eigenvectors, where that is predicted to be faster, for the same certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import device, placement
from spectile.core.choice import Candidate
from spectile.core.placement import Work
from spectile.core.threads import cores
from spectile.density.purify import Pass, exact
from spectile.evd import eigh
from spectile.evd.costs import dense
from spectile.tiles import TileMatrix
from spectile.tiles.grid import GridMatrix, in_lists
from spectile.tiles.types import SLACK, gamma, roundoff

#: Products that a purification and its certificate take, about, and those of dense matrices besides eigenvectors.
_PRODUCTS, _OTHERS = 25, 8
#: Scalar operations of the host that a product of tile matrices takes besides those of its tiles, and steps of a GPU.
_SCALAR, _STEPS = 2e6, 180


def candidates(h: TileMatrix | GridMatrix, error: float) -> list[Candidate]:
    """Return the ways to a density matrix and what each is predicted to take, by the tiles of F that count."""
    n, size = h.shape[0], len(h.rows) - 1
    least = error * h.norm("spectral") / max(size, 1)
    if isinstance(h, GridMatrix):
        counts = (h.norms > least).sum(axis=1).get()
    else:
        kept = h.norms > least
        counts = np.bincount(h.layout.tile_rows[kept], minlength=size)
        counts = counts + np.bincount(h.indices[kept & h.layout.mirrored], minlength=size)
    share = float((counts.astype(float) ** 2).sum()) / max(size, 1) ** 3
    whole = dense((n, n), (np.zeros(0, h.dtype),), vectors=True, functions=_OTHERS)._replace(moved=0)
    parts = 4 if h.dtype.kind == "c" else 1
    tiles = Work(whole.real, _PRODUCTS * 2 * parts * share * n**3, 0, _PRODUCTS * _SCALAR, _PRODUCTS * _STEPS, 0)
    described = device.describe() if isinstance(h, GridMatrix) or h._xp is not np else None

    def seconds(work: Work) -> float:
        return placement.on_gpu(work, described) if described is not None else placement.on_host(work, cores())

    return [
        Candidate("eigh", seconds(whole), f"all eigenvectors, n = {n}"),
        Candidate("sp2_accelerated", seconds(tiles), f"{share:.2g} of the products of tiles in a step"),
    ]


@dataclass
class Solved(Pass):
    """The end of a purification that was not made: a projector by eigenvectors, turned by `turned` at most."""

    turned: float = 0.0

    def angle(self, norm: Any = "spectral") -> float:
        """Return a bound of the sine of the angle of the occupied subspace."""
        return self.turned


def diagonalized(x0: TileMatrix | GridMatrix, occupied: int, mu: float) -> Solved | None:
    """Return the projector on the highest eigenvectors of X0 by all of them, or None where rounding hides the gap.

    With ``R = X V - V W`` and ``D = V* V - I`` of what is computed, V W V* differs from X by at most ``||R|| (1 +
    ||D||)^(1/2) + ||X|| ||D||``, and its eigenvalues from W by factors within ``1 +- ||D||`` (Ostrowski).  The part of
    the occupied V outside of their subspace solves a Sylvester equation whose right side is that of R.

    Parameters
    ----------
    x0 : TileMatrix or GridMatrix
        Taken as exact; its eigenvalues are from 0 to 1.
    occupied, mu
        As for :func:`purify`.
    """
    n, given = x0.shape[0], in_lists(x0)
    a = given.to_dense().astype(np.result_type(x0.dtype, np.float64))
    values, v = eigh(a)
    w = values if given._xp is np else values.get()
    count = int((w > mu).sum()) if occupied < 0 else occupied
    if not 0 < count < n:
        return None
    lost, norm = 2 * float(gamma(n + 8, a.dtype)), math.sqrt(n)

    def size(x: Any) -> float:
        return math.sqrt(float(abs(x * x.conj()).sum())) * (1 + lost)

    rest, gram = a @ v - v * values, v.conj().T @ v - given._xp.eye(n)
    off = lost * x0.norm() * norm * SLACK
    d, r = size(gram) + lost * n, size(rest) + off
    moved = (r * (1 + d) + 3 * d) * SLACK
    low, high = float(w[n - count - 1]), float(w[n - count])
    if not (d < 0.1 and high - low > 4 * moved):
        return None
    upper = v[:, n - count :]
    q = upper @ upper.conj().T
    q = ((q + q.conj().T) / 2).astype(x0.dtype)
    rounded = lost * n + 2 * roundoff(x0.dtype) * norm
    return Solved(
        exact(_in_tiles(q, x0, hermitian=True)),
        homo=(high - moved, high + moved), lumo=(low - moved, low + moved), ended=True, counted=True,
        turned=(size(rest[:, n - count :]) + off) / (high - low - moved) * (1 + d) + 2 * (d + rounded),
    )  # fmt: skip


def inverse_root(s: TileMatrix | GridMatrix) -> Any:
    """Return about S^(-1/2), not stored as Hermitian, or None where it is none."""
    a = in_lists(s).to_dense()
    values, v = eigh(a)
    if not float(values[0]) > 0:
        return None
    return _in_tiles((v / values**0.5) @ v.conj().T, s, hermitian=False)


def _in_tiles(a: Any, like: TileMatrix | GridMatrix, hermitian: bool) -> Any:
    """Return a dense matrix in the tiles of another, and where they are."""
    made = TileMatrix.from_dense(a, np.diff(like.rows), hermitian=hermitian, permutation=like.permutation)
    return GridMatrix.of_tiles(made) if isinstance(like, GridMatrix) else made
