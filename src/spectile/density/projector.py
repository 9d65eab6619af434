"""Projectors on the states below a gap: the passes of a purification, and the certificate at their end."""

from __future__ import annotations

import dataclasses
import logging
import math
from functools import partial
from typing import Any

import numpy as np

from spectile.density.maps import distance
from spectile.density.moments import MOST_DEGREES, turned_by
from spectile.density.purify import Pass, budgets, exact, purify
from spectile.density.result import DensityMatrix
from spectile.tiles import TileMatrix
from spectile.tiles.grid import GridMatrix, in_lists, on_grid
from spectile.tiles.types import EXACT, SLACK, Error, roundoff

_LOGGER = logging.getLogger("spectile.density")
#: What the first step of the passes that look for the gap may be off by in the spectral norm, one after the other; by
#: how much more each later one, since the gap opens, and at most.
_LOOKS, _OPENS, _WIDEST = (3e-4, 1e-6, 1e-10), 1.25, 3e-3
#: Idempotency of their last iterate, in the spectral norm.
_SEEN = 0.05
#: Passes with a budget; each tightens it by what the certificate of the last one was off by.
_PASSES = 4
#: The a-priori bound is about so many times the true error: the first budget makes use of it.
PESSIMISM = 12.0
#: What the products of the certificate may be off by, as shares of the error: those of which Q is made, relative to the
#: gap in the unit of the width, and those of its residual, relative to the gap.
_FINE, _CLOSE = 0.02, 0.005
#: No sharper bound is looked for where it is at most so large a share of the error.
_ENOUGH = 0.5
#: Budget of all steps together that leaves no doubt which subspace was found.
_LARGEST = 0.3


class Unresolved(ValueError):
    """The error of F, or rounding, is too large for the gap."""


def projector(
    given: TileMatrix | GridMatrix, occupied: int, mu: float | None, error: float, method: str,
    asked: float | None = None, guess: tuple[float, float] | None = None,
) -> DensityMatrix:  # fmt: skip
    """Return the projector on the lowest eigenvectors of F, so many or, with `occupied` below 0, those below `mu`.

    `asked` is the error that the caller was asked for, where `error` is a share of it; `guess` is about HOMO and LUMO.
    """
    asked = error if asked is None else asked
    h: Any = on_grid(given)
    low, high = h.eigenvalue_bounds()
    n = h.shape[0]
    if mu is not None and not low < mu < high:
        occupied = n if mu >= high else 0
    if occupied in (0, n):
        return _trivial(in_lists(given), occupied, low, high)
    width = (high - low) * SLACK
    if width == 0:
        raise _no_gap(0.0)
    x0 = (-1 / width * h._with(error=EXACT)).shifted(high / width)
    image = 0.5 if mu is None else (high - mu) / width
    wide = x0.error.spectral

    def trial(by: Pass, wanted: float, known: bool) -> tuple[Pass, DensityMatrix]:
        end = ends_at(error, by.homo[0] - by.lumo[1])
        budget, polynomials = budgets(by, method, wanted, end)
        last = purify(x0, occupied, image, end, budget, "fro", polynomials)
        if known:
            last.know(by)
        found = _certified(h, x0, last, occupied, mu, error, low, high, width, wide)
        _LOGGER.debug("a pass with a budget of %.2g has a certificate of %.2g, of %.2g", wanted, found.error, error)
        # All bounds are from inside of the gap: the widest is the nearest.
        nearest = max(by, last, key=lambda one: one.homo[0] - one.lumo[1])
        return last, dataclasses.replace(found, edges=(high - width * nearest.homo[0], high - width * nearest.lumo[1]))

    wanted, reached = min(PESSIMISM * error, _LARGEST), math.inf
    plan = None if guess is None else _guessed(x0, (high - guess[0]) / width, (high - guess[1]) / width)
    # What a bad guess cannot resolve may have a gap all the same.
    seen, known = _look(x0, occupied, image, width) if plan is None else (plan, False)
    for _ in range(_PASSES):
        try:
            last, found = trial(seen, wanted, known)
            certain = math.isfinite(found.error)
        except ValueError:
            if known:
                raise
            certain = False
        if not (certain or known):
            seen, known = _look(x0, occupied, image, width, certain=True)
            continue
        if found.error <= error:
            return _in_tiles(found)
        reached = min(reached, found.error)
        # Rounding alone: what the squares and sums of a step may be off by, whatever is kept.
        if wanted < 40 * roundoff(h.dtype) * math.sqrt(n):
            break
        wanted *= min(0.3, 0.5 * error / found.error) if certain else 0.03
        seen, known = (last, True) if certain else (seen, known)
    enough = 2 * reached * (asked / error)
    advice = f"ask for {enough:.2g} or more" if reached < math.inf else "ask for more, or use float64"
    raise Unresolved(f"error = {asked} is below what can be guaranteed in {h.dtype} with this gap and input: {advice}")


def _in_tiles(found: DensityMatrix) -> DensityMatrix:
    """Return the result with P as a tile matrix."""
    return dataclasses.replace(found, matrix=in_lists(found.matrix))


def ends_at(error: float, gap: float) -> float:
    """Return the idempotency of the last iterate, by the wanted error and the gap of X0.

    A last step squares what Q lacks in idempotency, which the certificate divides by the gap.
    """
    return min(1e-2, math.sqrt(error * gap) / 10)


def _look(
    x0: TileMatrix, occupied: int, image: float, width: float, certain: bool = False
) -> tuple[Pass, bool]:  # fmt: skip
    """Return a pass that shows HOMO and LUMO, as coarse as it can be, and whether they are known or likely."""
    resolved = 0.0
    for size in _LOOKS:
        most = 30 + 2 * math.ceil(math.log2(1 / size))  # enough for a gap that can be told from such errors
        seen = purify(x0, occupied, image, _SEEN, partial(_looks, size), "spectral", most=most)
        if seen.ended:
            if min(seen.gaps(), default=1.0) > 4 * size and seen.homo[0] > seen.lumo[1]:
                return seen, True
            likely = None if certain else _guessed(x0, *seen.likely())
            if likely is not None:
                return likely, False
        resolved = max([size, *(error.spectral for error in seen.errors)])  # rounding may be the larger part
    raise _no_gap(2e3 * resolved * width)


def _looks(size: float, number: int) -> float:
    """Return what a step of a pass that looks for the gap may be off by."""
    return min(size * _OPENS**number, max(size, _WIDEST))


def _guessed(x0: TileMatrix, h: float, l_: float) -> Pass | None:
    """Return a pass that was not made, with a guess of HOMO and LUMO to plan by, the gap a little narrower."""
    margin = (h - l_) / 16
    h, l_ = h - margin, l_ + margin
    return Pass(x0, homo=(h, 1.0), lumo=(0.0, l_)) if 0 < l_ < h < 1 else None


def _no_gap(size: float) -> ValueError:
    return ValueError(
        f"there is no gap at this number of electrons, or it is at most about {size:.2g}: give a temperature (beta=), "
        "or another number of electrons"
    )


def _certified(
    h: TileMatrix, x0: TileMatrix, last: Pass, occupied: int, mu: float | None, error: float, low: float, high: float,
    width: float, wide: float,
) -> DensityMatrix:  # fmt: skip
    """Return the result of a pass after a McWeeny step, with the bounds that its residual gives."""
    n, x, stored = h.shape[0], last.x, exact(h)
    # Intervals of the stored F, and of the exact one.
    homo_up, homo_low = high - width * (last.homo[0] - wide), high - width * (last.homo[1] + wide)
    lumo_low, lumo_up = high - width * (last.lumo[1] + wide), high - width * (last.lumo[0] - wide)
    gap, centre = lumo_low - homo_up, (lumo_low + homo_up) / 2
    slip = h.error.spectral
    if gap <= 2 * slip:
        raise Unresolved(str(_no_gap(gap + 2 * slip)))
    shifted = exact(stored.shifted(-centre))
    size = max(high - centre, centre - low) * SLACK
    fine = _FINE * error * min(1.0, gap / size)
    square = x._times(x, fine, half="square")
    cubic = x._times(square, fine, half="upper", scale=-2.0, plus=square, weight=3.0)
    q = exact(cubic.truncate(fine))
    z = q._times(q, fine, half="square", plus=q, weight=-1.0)
    off = (z.norm() + z.error.fro) * SLACK
    d_q = distance(off)
    close = _CLOSE * gap * min(error, last.angle("fro"))
    g = shifted._times(q, close)
    # What takes the place of Q F Q: of Hermitian matrices whichever is stored, so that its own error does no harm.
    deep = q._times(g, close, half="upper", plus=q, weight=gap / 2, shift=-gap / 2)
    residual = q._times(exact(deep), close, scale=-1.0, plus=g, weight=1.0)
    # q's own projector against that of the last iterate: eigenvalues of f(x) are this close to 0 and 1.
    eta = distance(last.idempotency)
    turned = cubic.error.spectral + 2 * fine
    apart = 1 - 2 * (3 * eta**2 + 2 * eta**3)
    s = last.angle() + (turned / (apart - turned) if apart > 2 * turned else math.inf)
    trace, count = q.trace(), occupied
    if math.sqrt(n) * d_q < 0.5:
        count = round(trace) if occupied < 0 else occupied
    if not (d_q < 0.1 and s < 1 and math.sqrt(n) * d_q < 0.5 and round(trace) == count):
        return _uncertain(q)
    if mu is not None and not homo_up + slip < mu < lumo_low - slip:
        raise ValueError(f"mu = {mu} is not inside of a gap that can be resolved: give a temperature (beta=)")
    # By how much the eigenvalues of what is stored may lie above those of Q F Q, Q a projector.
    above = size * d_q * (2 + d_q) + gap / 2 * d_q + deep.error.spectral
    sine = math.inf
    moved = math.sqrt(2) * h.error.fro / (gap - slip) if h.error.fro else 0.0
    enough = (_ENOUGH * error - d_q - moved) * (1 - d_q) / math.sqrt(2) / SLACK**2
    for degrees in (0, 0, 0, MOST_DEGREES):
        room = gap - (high - homo_up) * s * s - above
        if room <= 0:
            return _uncertain(q)
        found = turned_by(shifted, exact(deep), residual, degrees, room, high - low + above, enough)
        sine = min(sine, found / (1 - d_q) * SLACK)
        s = min(s, sine)
    projector = math.sqrt(2) * sine
    bound = (projector + d_q + moved) * SLACK
    # tr (F - c) (3 Q^2 - 2 Q^3), whose error is of second order in the idempotency of Q.
    energy = shifted.dot(q) + shifted.dot(z) - 2 * float(np.real(g.dot(z.whole())))
    norm_h = shifted.norm()
    energy_error = (
        size * (projector**2 + 4 * d_q**2)
        + z.error.fro * norm_h * (1 + 2 * d_q) + 2 * g.error.fro * off
        + (n + 64) * roundoff(np.float64) * norm_h * q.norm()
    )  # fmt: skip
    if h.error.fro:
        energy_error += min(h.error.fro * math.sqrt(count), slip * count)
    return DensityMatrix(
        q._with(error=Error.of(bound, bound)), bound, energy + centre * count, energy_error * SLACK,
        (homo_low - slip, homo_up + slip), (lumo_low - slip, lumo_up + slip), centre if mu is None else mu,
        float(count), last.history(),
    )  # fmt: skip


def _uncertain(q: TileMatrix) -> DensityMatrix:
    """Return what makes the next pass a hundred times as strict: no certificate."""
    return DensityMatrix(q, math.inf, math.nan, math.inf, None, None, math.nan, math.nan, [])


def _trivial(h: TileMatrix, occupied: int, low: float, high: float) -> DensityMatrix:
    """Return the density matrix of no electrons, or of as many as there is room for."""
    n = h.shape[0]
    none = h.truncate(2 * h.norm())._with(error=EXACT)
    p = exact(none.shifted(1.0)) if occupied else none
    energy = float(h.trace()) if occupied else 0.0
    slip = (n + 8) * roundoff(np.float64) * h.norm() * math.sqrt(n) + h.error.spectral * n
    outside = (math.inf, math.inf), (-math.inf, -math.inf)
    homo, lumo = ((low, high), outside[0]) if occupied else (outside[1], (low, high))
    middle = math.inf if occupied else -math.inf
    return DensityMatrix(p, 0.0, energy, slip if occupied else 0.0, homo, lumo, middle, float(occupied), [])
