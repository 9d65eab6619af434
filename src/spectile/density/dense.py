"""Density matrices by the lowest eigenvectors, where that is predicted to be faster, for the same certificate."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from spectile.core import device, placement
from spectile.core.choice import Candidate
from spectile.core.placement import Work
from spectile.core.pointers import address
from spectile.core.threads import cores
from spectile.density.result import DensityMatrix
from spectile.evd import eigh
from spectile.evd.costs import dense
from spectile.evd.cuda.blas import factorize
from spectile.evd.cuda.choose import WHOLE_ORDER
from spectile.evd.types import Subset
from spectile.tiles import TileMatrix
from spectile.tiles.cuda import launch
from spectile.tiles.grid import GridMatrix, has_room, in_lists
from spectile.tiles.layout import Layout
from spectile.tiles.spread import Spread
from spectile.tiles.types import SLACK, Error, gamma, roundoff

#: Steps of a purification, about; what the products of its certificate keep, as precise as the result, over what steps
#: do, and their number in halves of all products: Q^2 - Q and F Q, which is no half.
STEPS, _PRECISE, _JUDGED = 20, 2, 3
#: Operations of a product of tiles over those of dense ones: on a GPU, with those of small norms made in float16, or in
#: lists, all in float64; on a host.
_ON_GPU, _LISTED, _ON_HOST = 1.2, 2, 2
#: Scalar operations of the host that a product of tile matrices takes besides those of its tiles; of a GPU its steps,
#: and how often it reads or writes each number, in lists, norms and dense arrays too (seven clusters of waters, H200).
_SCALAR, _GPU_STEPS, _PASSES = 5e5, 180, 12
#: Seconds of the host for each tile of a matrix in lists on a GPU (1,728 and 2,000 model waters, H200).
_TILE = 6e-6
#: Bytes that a GPU streams to tridiagonalize in two stages, over those of one (these clusters again).
_TWO_STAGES = 0.3


def near(h: TileMatrix, error: float) -> Layout:
    """Return the tiles that count for a density matrix within an error."""
    return h.layout.of_tiles(np.flatnonzero(h.norms > _least(h, error)))


def _least(h: TileMatrix | GridMatrix, error: float) -> float:
    return error * h.norm("spectral") / max(len(h.rows) - 1, 1)


def candidates(h: TileMatrix | GridMatrix, error: float, occupied: int) -> list[Candidate]:
    """Return the ways to a density matrix and what each is predicted to take, by the tiles that count."""
    n, size = h.shape[0], len(h.rows) - 1
    on_gpu, parts = _on_gpu(h), 4 if h.dtype.kind == "c" else 1
    part = Subset(True, 0, occupied) if 0 <= occupied < n - 1 else None
    found = dense((n, n), (np.zeros(0, h.dtype),), vectors=True, subset=part)
    columns = n if part is None else occupied + 1
    # A GPU makes a Cholesky factor at about half of the rate.
    flops = found.flops + parts * (n**2 * (4.0 * columns + (2 if on_gpu else 1) * n / 3) + 2.0 * n * columns**2)
    vectors = found._replace(moved=0, flops=flops, streamed=found.streamed * (_TWO_STAGES if on_gpu else 1))
    # Whatever the gap is, so much is what rounding alone is bounded by.
    least = _lost(n, np.result_type(h.dtype, np.float64)) * math.sqrt(n * max(occupied, 1))
    eigenvectors = Candidate("eigh", _seconds(h, vectors), f"{columns} eigenvectors, n = {n}")
    if isinstance(h.data, Spread):
        eigenvectors = Candidate("eigh", None, "the matrix is on several GPUs")
    elif least > error:
        eigenvectors = Candidate("eigh", None, f"at best certified to {least:.1g}")
    listed = on_gpu and not has_room(h)
    tiles, told = purified(h, STEPS, 0, listed), "at least, whatever the products of tiles are"
    if eigenvectors.seconds is None or tiles < eigenvectors.seconds:
        if isinstance(h, GridMatrix):
            counts = (h.norms > _least(h, error)).sum(axis=1).get()
        else:
            # P reaches farther than F: about as far as its square.
            counts = near(h, error).squared() if h._xp is np else np.diff(near(h, error).whole[0].indptr)
        share = float((counts.astype(float) ** 2).sum()) / max(size, 1) ** 3
        tiles = purified(h, STEPS, share * size**3 / 2, listed)
        told = f"{share:.2g} of the products of tiles in a step"
    return [eigenvectors, Candidate("sp2_accelerated", tiles, told)]


def purified(h: TileMatrix | GridMatrix, steps: float, products: float, listed: bool | None = None) -> float:
    """Return what so many steps, each of so many products of tiles, and a certificate are predicted to take.

    `listed` is whether tiles on a GPU are in lists then; by default those of a `TileMatrix` are.
    """
    listed = _on_gpu(h) and (isinstance(h, TileMatrix) if listed is None else listed)
    n, size, there = h.shape[0], max(len(h.rows) - 1, 1), _on_gpu(h)
    parts, matrices = 4 if h.dtype.kind == "c" else 1, steps + _JUDGED
    # So many products are of two factors with the root of 2 products / size tiles in a row, half of which are stored.
    on_host = _TILE * matrices * math.sqrt(size * products / 2) if listed else 0.0
    products = steps * products + _JUDGED * min(size**3 / 2, _PRECISE * products)
    flops = products * (_LISTED if listed else _ON_GPU if there else _ON_HOST) * parts * 2 * (n / size) ** 3
    if isinstance(h.data, Spread):
        flops /= len(h.data.parts)
    passes = matrices * _PASSES * h.dtype.itemsize * n**2 if there else 0
    work = Work(np.finfo(h.dtype).dtype.name, flops, passes, matrices * _SCALAR, matrices * _GPU_STEPS, 0)
    return on_host + _seconds(h, work)


def _seconds(h: TileMatrix | GridMatrix, work: Work) -> float:
    return placement.on_gpu(work, device.describe()) if _on_gpu(h) else placement.on_host(work, cores())


def _on_gpu(h: TileMatrix | GridMatrix) -> bool:
    return isinstance(h, GridMatrix) or h._xp is not np


def _lost(n: int, dtype: Any) -> float:
    """Return what sums of n products are off by, at most, and of some more, relative to the sum of their moduli."""
    return 1.1 * float(gamma(n + 8, dtype))


def diagonalized(given: TileMatrix | GridMatrix, occupied: int, mu: float | None) -> DensityMatrix | None:
    """Return the projector on the lowest eigenvectors V of F, or None where rounding hides the gap.

    With ``R = F V - V W`` and ``D = V* V - I`` of all vectors, or of the k occupied ones and the next, as computed, F
    has as many eigenvalues within ``||R|| (1 + ||D||)^(1/2) + 3 ||F|| ||D||`` of W.  Of a part of them, where
    ``F + a V V* - t I`` of the k is positive definite, which a Cholesky factor shows, F has no more than k below t: on
    what is orthogonal to V it is above (Courant and Fischer).  The part of V outside of the occupied subspace solves a
    Sylvester equation with R on the right, and has at most the norm ``s = ||R||_F / (t - w_k)``.  P has it once on
    either side of its blocks, and V V* differs on them by D and ``s^2``.  The trace of F over the space of V is that of
    W and of ``(I + D)^-1 V* R``; over that of P it is less by at most ``s^2`` times the width of the spectrum.

    Parameters
    ----------
    given, occupied, mu
        As for :func:`spectile.density.projector.projector`.
    """
    n, xp = given.shape[0], importlib.import_module("cupy") if isinstance(given, GridMatrix) else given._xp
    if occupied in (0, n):
        return None
    unit = 2.0 ** min(1000, -math.frexp(given.norm())[1])  # F has a norm from 1/2 to 1
    a = given.to_dense().astype(np.result_type(given.dtype, np.float64), copy=False)
    a *= unit
    # On a GPU a part of a small spectrum is cut from the whole, which needs no factor to show that nothing is left out.
    at_once = xp is not np and n <= WHOLE_ORDER
    values, v = eigh(a) if at_once or occupied < 0 else eigh(a, subset_by_index=(0, occupied))
    count = int((values < mu * unit).sum()) if occupied < 0 and mu is not None else occupied
    if not 0 < count < n:
        return None
    if not at_once:
        values, v = values[: count + 1], v[:, : count + 1]
    whole, rows = len(values) == n, v.conj().T
    image, gram = rows @ a, rows @ v
    if xp is np:
        told = values, *((abs(x) ** 2).sum(axis=1) for x in (image - values[:, None] * rows, gram - np.eye(len(gram))))
    else:
        told = launch.residuals(values, rows, image, gram).get()
    del image, gram
    w, *squares = told
    lost, size = _lost(n, a.dtype), given.norm() * unit
    # Of the matrix of the moduli this bounds the spectral norm.
    moduli = min(given.norm(), given._moduli_norm()) * unit

    def norms(k: int) -> list[float]:
        return [
            (math.sqrt(one[:k].sum()) * (1 + 2 * lost) + lost * of * math.sqrt(k)) * SLACK
            for one, of in zip(squares, (moduli, math.sqrt(n)), strict=True)
        ]

    (r, d), (r_u, d_u) = norms(len(w)), norms(count)
    moved = (r + 3 * d * (r + float(abs(w).max()))) * SLACK
    lift, error = float(w[count] - w[0]), given.error.times(unit)
    # What a factor and the matrix that it is of are off by, of a trace of such moduli (Rump, BIT 46 (2006) 433): eight
    # times as much is left to factors by blocks.
    trace = math.sqrt(n) * size + (1 + d) * lift * count + n * abs(float(w[count]))
    off = 0.0 if whole else 9 * lost * trace * SLACK
    low, high = float(w[count - 1]) + moved, float(w[count]) - moved - 3 * off
    gap, slip = high - low, error.spectral
    if not (d < 0.1 and gap > 2 * max(moved, slip)):
        return None
    q = v[:, :count] @ rows[:count]
    if not whole:
        a += lift * q
        diagonal = a.reshape(-1)[:: n + 1]
        diagonal -= high + off
        if not _is_definite(a, xp):
            return None
    del a
    ends = (
        (low - 2 * moved - slip) / unit, (low + slip) / unit, (high - slip) / unit,
        (float(w[count]) + moved + slip) / unit,
    )  # fmt: skip
    require_inside(mu, *ends[1:3])
    s = r_u / (gap + moved) * SLACK
    bound = math.sqrt(2) * s * (1 + d) + d_u + 2 * s * s + lost * count + 2 * roundoff(given.dtype) * math.sqrt(count)
    bound = (bound + math.sqrt(2) * error.fro / (gap - slip)) * SLACK
    energy_error = (1 + 2 * d) * (math.sqrt(count) * r_u + 2 * size * s * s)
    energy_error += min(error.fro * math.sqrt(count), slip * count)
    rows, order = given.rows, given.permutation
    if isinstance(given, GridMatrix):
        p = given.tiles_of(q.astype(given.dtype, copy=False))
    elif xp is not np and (made := GridMatrix.of_dense(q.astype(given.dtype, copy=False), rows, order)) is not None:
        p = in_lists(made[0])
    else:
        q = ((q + q.conj().T) / 2).astype(given.dtype)
        p = TileMatrix.from_dense(q, np.diff(rows), hermitian=True, permutation=order)._beside(given)
    return DensityMatrix(
        p._with(error=Error.of(bound, bound)), bound, math.fsum(w[:count]) / unit, energy_error / unit * SLACK,
        ends[:2], ends[2:], (ends[1] + ends[2]) / 2 if mu is None else mu, float(count), [],
        edges=(low / unit, high / unit),
    )  # fmt: skip


def _is_definite(a: Any, xp: Any) -> bool:
    """Return whether a contiguous matrix, which is overwritten on a GPU, has a Cholesky factor."""
    if xp is not np:
        info = xp.empty(1, np.int32)
        factorize(a.dtype, len(a), address(a), len(a), address(info))
        return not int(info.get()[0])
    try:
        np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return False
    return True


def require_inside(mu: float | None, low: float, high: float) -> None:
    """Raise ValueError where a chemical potential is not inside of a gap."""
    if mu is not None and not low < mu < high:
        raise ValueError(f"mu = {mu} is not inside of a gap that can be resolved: give a temperature (beta=)")


def inverse_root(s: TileMatrix | GridMatrix) -> Any:
    """Return about S^(-1/2), not stored as Hermitian, or None where it is none."""
    values, v = eigh(s.to_dense())
    if not float(values[0]) > 0:
        return None
    made = TileMatrix.from_dense((v / values**0.5) @ v.conj().T, np.diff(s.rows), permutation=s.permutation)
    return GridMatrix.of_tiles(made) if isinstance(s, GridMatrix) else made._beside(s)
