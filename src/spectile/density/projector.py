"""Projectors on the states below a gap: the passes of a purification, and the certificate at their end."""

from __future__ import annotations

import dataclasses
import logging
import math
from functools import partial
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.density.dense import STEPS, diagonalized, purified, require_inside
from spectile.density.maps import distance
from spectile.density.purify import MOST_STEPS, Pass, budgets, exact, purify
from spectile.density.result import DensityMatrix
from spectile.evd import eigvalsh
from spectile.tiles import TileMatrix
from spectile.tiles.grid import GridMatrix, in_lists, on_grid
from spectile.tiles.spread import Spread
from spectile.tiles.types import EXACT, SLACK, Error, excess, roundoff

_LOGGER = logging.getLogger("spectile.density")
#: What the first step of the passes that look for the gap may be off by in the spectral norm, one after the other; by
#: how much more each later one, since the gap opens, and at most.
_LOOKS, _OPENS, _WIDEST = (3e-4, 1e-6, 1e-10), 1.25, 3e-3
#: Idempotency of their last iterate, in the spectral norm.
_SEEN = 0.05
#: Passes with a budget; each tightens it by what the certificate of the last one was off by.
_PASSES = 4
#: The a-priori bound of the error over the certificate, about, for one term in an entry.
_PESSIMISM = 0.6
#: What the products of the certificate may be off by, as shares of the error: Q^2 - Q, and F Q - Q F in gaps.
_FINE, _CLOSE = 0.1, 0.05
#: A certificate of at most so many errors is worth steps that turn Q back; how many, and what one may be off by.
_NEAR, _TURNS, _ABOUT = 3.0, 2, 0.1
#: What the last iterate may lack in idempotency, as a share of the error.
_IDEMPOTENT = 0.3
#: Error over the root of the order beyond which nothing is gained: P is no longer told from zero.
_SURE = 0.1
#: Budget of all steps together that leaves no doubt which subspace was found.
_LARGEST = 0.3
#: Eigenvalues of tiles on either side of a gap whose distances it is compared with, how much wider it has to be, and
#: what is left out of it on either side; steps of a pass after its plan, where HOMO and LUMO are but guessed.
_AROUND, _CLEAR, _LEFT, _MORE = 8, 16.0, 1 / 16, 10
#: Steps that follow a plan, about.
_AFTER = 2


class _DearerError(Exception):
    """A purification that takes longer than the eigenvectors."""


class Unresolved(ValueError):
    """The error of F, or rounding, is too large for the gap; `enough` may be asked for, as far as it is known."""

    def __init__(self, message: str, enough: float = math.inf) -> None:
        super().__init__(message)
        self.enough = enough


def projector(
    given: TileMatrix | GridMatrix, occupied: int, mu: float | None, error: float, method: str,
    asked: float | None = None, guess: tuple[float, float] | None = None, rival: float = math.inf,
) -> DensityMatrix:  # fmt: skip
    """Return the projector on the lowest eigenvectors of F, so many or, with `occupied` below 0, those below `mu`.

    `asked` is the error that the caller was asked for, where `error` is a share of it; `guess` is about HOMO and LUMO.
    Where the certificate of ``method="eigh"`` does not reach the error, it is purified as by "sp2_accelerated".

    `rival` is the seconds that eigenvectors are predicted to take.  What products keep, norms of F do not tell; a step
    does.  Where the steps that are left would take longer, each with as many products of tiles as the last two, they
    are left for the eigenvectors.  Steps keep more and more: so all takes less than 3 times the shorter way.  So are
    those that there is no memory for.
    """
    asked = error if asked is None else asked
    h, reached = on_grid(given), math.inf
    purified_by = partial(_purified, h, occupied, mu, error, asked, guess)
    if method != "eigh":
        try:
            return purified_by(method, rival=rival)
        except (MemoryError, _DearerError) as reason:
            if rival == math.inf:
                raise
            _LOGGER.debug("eigenvectors are made: %s", reason)
    solved = diagonalized(h, occupied, mu)
    if solved is not None:
        if solved.error <= min(error, _SURE * math.sqrt(h.shape[0])):
            return solved
        reached = solved.error
    return purified_by("sp2_accelerated", reached=reached)


def _purified(
    h: Any, occupied: int, mu: float | None, error: float, asked: float, guess: tuple[float, float] | None, method: str,
    rival: float = math.inf, reached: float = math.inf,
) -> DensityMatrix:  # fmt: skip
    """Return the projector by purification; `reached` is a certificate that was not enough."""
    n, share = h.shape[0], asked / error
    error = min(error, _SURE * math.sqrt(n))
    low, high = h.eigenvalue_bounds()
    if mu is not None and not low < mu < high:
        occupied = n if mu >= high else 0
    if occupied in (0, n):
        return _trivial(in_lists(h), occupied, low, high)
    width = (high - low) * SLACK
    if width == 0:
        raise _no_gap(0.0)
    x0 = exact(h)._combined(-1 / width, shift=high / width)
    image = 0.5 if mu is None else (high - mu) / width
    wide = x0.error.spectral

    def fine(by: Pass) -> float:
        # The energy counts what Q^2 - Q is off by in units of the width.
        return min(_FINE * error * min(1.0, by.homo[0] - by.lumo[1]), 0.05 / math.sqrt(n))

    def trial(by: Pass, wanted: float) -> tuple[Pass, DensityMatrix]:
        end = ends_at(error)
        budget, polynomials = budgets(by, method, wanted, end)
        most = MOST_STEPS if known else len(polynomials) + _MORE
        steps = len(polynomials) + _AFTER
        if by.products:  # those of a pass that was not as strict
            _hold_against(rival, h, steps, by.products)

        def watch(done: Pass) -> None:
            _hold_against(rival, h, max(steps - len(done.products), 0), done.products[-2:], done.x)

        last = purify(
            x0, occupied, image, end, budget, polynomials, fine(by), most, watch=watch, guessed=not by.polynomials
        )
        last.know(by)
        found = _certified(h, last, occupied, mu, error, low, high, width, wide)
        _LOGGER.debug("a pass with a budget of %.2g has a certificate of %.2g, of %.2g", wanted, found.error, error)
        # From inside of the gap, where the widest is the nearest, or what led here and was not found to be wrong.
        edges = max((by.homo[0], by.lumo[1]), (last.homo[0], last.lumo[1]), key=lambda one: one[0] - one[1])
        if hint is not None:
            edges = max(edges[0], min(hint[0], last.homo[1])), min(edges[1], max(hint[1], last.lumo[0]))
        return last, dataclasses.replace(found, edges=(high - width * edges[0], high - width * edges[1]))

    wanted = min(pessimism(x0) * error, _LARGEST)
    hint = None if guess is None else ((high - guess[0]) / width, (high - guess[1]) / width)
    about = _of_tiles(h, occupied, mu) if guess is None else guess
    plan = None if about is None else _guessed(*((high - edge) / width for edge in about))
    # What a bad guess cannot resolve may have a gap all the same.
    seen, known = _look(x0, occupied, image, width, rival) if plan is None else (plan, False)
    sure = plan is None or guess is not None
    for _ in range(_PASSES):
        try:
            last, found = trial(seen, wanted)
            certain = math.isfinite(found.error)
        except ValueError:
            if known:
                raise
            certain = False
        if not (certain or known):
            seen, known = _look(x0, occupied, image, width, rival, certain=sure)
            sure = True
            continue
        if found.error <= error:
            return dataclasses.replace(found, matrix=in_lists(found.matrix))
        reached = min(reached, found.error)
        # Rounding alone: what the squares and sums of a step may be off by, whatever is kept.
        if wanted < 40 * roundoff(h.dtype) * math.sqrt(n):
            break
        wanted *= 0.7 * error / found.error if certain else 0.03
        seen, known = (last, True) if certain else (seen, known)
        del last, found  # their memory, for the next pass
    enough = 2 * reached * share
    if reached == math.inf and error < _LARGEST:  # how far one comes is seen by coming there
        try:
            coarse = max(100 * error, n * roundoff(h.dtype))
            enough = 2 * share * projector(h, occupied, mu, coarse, method, guess=guess).error
        except ValueError as coarser:
            enough = share * getattr(coarser, "enough", math.inf)
    advice = f"ask for {enough:.2g} or more" if enough < math.inf else "give a temperature (beta=)"
    message = f"error = {asked} is below what can be guaranteed in {h.dtype} with this gap and input: {advice}"
    raise Unresolved(message, enough)


def pessimism(x0: TileMatrix) -> float:
    """Return how many times the certificate the a-priori bound is about: the first budget makes use of it.

    What is left out of an entry are terms of either sign, by n times the stored share of tiles in number: their norms
    add up, and they themselves as the root of their number.
    """
    return _PESSIMISM * math.sqrt(x0.shape[0] * x0.truncate(_LOOKS[0], "spectral").fill)


def ends_at(error: float) -> float:
    """Return the idempotency of the last iterate that leaves most of the wanted error to what turns it."""
    return min(1e-2, _IDEMPOTENT * error)


def _look(
    x0: TileMatrix, occupied: int, image: float, width: float, rival: float, certain: bool = False
) -> tuple[Pass, bool]:  # fmt: skip
    """Return a pass that shows HOMO and LUMO, as coarse as it can be, and whether they are known or likely."""

    def watch(done: Pass) -> None:
        # A pass with a plan follows, of steps that are as dear at least.
        _hold_against(rival, x0, STEPS, done.products[-2:], done.x)

    resolved = 0.0
    for size in _LOOKS:
        most = 30 + 2 * math.ceil(math.log2(1 / size))  # enough for a gap that can be told from such errors
        seen = purify(x0, occupied, image, _SEEN, partial(_looks, size), most=most, certain=certain, watch=watch)
        seen.taken()  # its memory: what it shows is wanted, and not its end
        if seen.ended:
            if min(seen.gaps(), default=1.0) > 4 * size and seen.homo[0] > seen.lumo[1]:
                return seen, seen.counted
            likely = None if certain else _guessed(*seen.likely())
            if likely is not None:
                return likely, False
        resolved = max([size, *(error.spectral for error in seen.errors)])  # rounding may be the larger part
    raise _no_gap(2e3 * resolved * width)


def _of_tiles(h: TileMatrix | GridMatrix, occupied: int, mu: float | None) -> tuple[float, float] | None:
    """Return about HOMO and LUMO by the eigenvalues of the tiles on the diagonal, where these have a gap there.

    Of whole molecules they do.  It is much wider than the distances between the eigenvalues around it.
    """
    found = [eigvalsh(tiles, check_finite=False).ravel() for tiles in h._diagonal_tiles()]
    values = np.sort(
        np.concatenate([np.zeros(0), *(one if isinstance(one, np.ndarray) else one.get() for one in found)])
    )
    k = int(np.searchsorted(values, mu)) if mu is not None else occupied
    if not 0 < k < len(values) == h.shape[0]:
        return None
    near, gap = np.diff(values[max(0, k - 1 - _AROUND) : k + 1 + _AROUND]), values[k] - values[k - 1]
    margin = _LEFT * gap
    return (values[k - 1] + margin, values[k] - margin) if gap > _CLEAR * float(np.median(near)) else None


def _hold_against(rival: float, h: Any, left: int, seen: list[int], x: Any = None) -> None:
    """Raise where so many steps, with products as those that were seen, and their certificate are dearer than that.

    So it does where memory is too small for the certificate of an iterate.
    """
    if rival == math.inf:
        return
    each = sum(seen) / len(seen)
    if (seconds := purified(h, left, each)) > rival:
        raise _DearerError(
            f"{left} steps of {each:.3g} products of tiles, and a certificate, would take {seconds:.3g} s, and "
            f"eigenvectors {rival:.3g} s: those are made"
        )
    if x is not None and isinstance(h, TileMatrix) and not isinstance(h.data, Spread):
        # F - c by half and whole; of Q's tiles (F - c) Q, W, a Y that turns it by half and whole, and F Y.
        require = memory.require_host_free if h._xp is np else memory.require_free
        require(3 * h.data.nbytes + 9 * x.data.nbytes, "the certificate of a density matrix")


def _looks(size: float, number: int) -> float:
    """Return what a step of a pass that looks for the gap may be off by."""
    return min(size * _OPENS**number, max(size, _WIDEST))


def _guessed(h: float, l_: float) -> Pass | None:
    """Return a pass that was not made, with a guess of HOMO and LUMO to plan by, the gap a little narrower."""
    margin = (h - l_) / 32
    h, l_ = h - margin, l_ + margin
    return Pass(None, homo=(h, 1.0), lumo=(0.0, l_)) if 0 < l_ < h < 1 else None


def _no_gap(size: float) -> ValueError:
    return ValueError(
        f"there is no gap at this number of electrons, or where the sign changes, or it is at most about {size:.2g}: "
        "give a temperature (beta=) or another number of electrons, or shift the matrix"
    )


def _turned_back(
    shifted: TileMatrix, q: TileMatrix, g: TileMatrix, skew: TileMatrix, close: float, size: float
) -> tuple[TileMatrix, TileMatrix]:
    """Return Q turned back by a step of a solver of the Sylvester equation, and ``(F - c) Q`` of it.

    Whatever Y is, W becomes ``W - (F Y - Y F)``, of which `skew`, that is W, says how long a step is best.  `close` is
    what the product with Y may be off by, relative to Y, and `size` bounds the spectral norm of ``F - c``.
    """
    y = exact(skew._times(exact(q._combined(2.0, shift=-1.0)), _ABOUT * skew.norm(), half="upper"))
    f_y = shifted._times(y, close * y.norm())
    # Of M - M^H, and W = -W^H: <W, M - M^H> = 2 <W, M>, and the square of its norm is 2 (||M||^2 - <M^H, M>).
    step = skew.dot(f_y) / (f_y.norm() ** 2 - f_y.H.dot(f_y) or 1.0)
    made, g = q._combined(1.0, y, -step), g._combined(1.0, f_y, -step)
    return exact(made), g._with(error=g.error + made.error.times(size))


def _certified(
    h: TileMatrix, last: Pass, occupied: int, mu: float | None, error: float, low: float, high: float, width: float,
    wide: float,
) -> DensityMatrix:  # fmt: skip
    """Return the last iterate Q of a pass as a result, with the bounds that it gives for itself.

    F's projector P cuts Q into blocks.  ``(I - P) Q P`` solves a Sylvester equation whose right side is that block of
    ``W = F Q - Q F``, so that it is at most ``||W||_F / (sqrt(2) gap)``: W is skew.  The blocks on the diagonal are as
    near to 0 and to 1 as ``Q^2 - Q`` and the square of that block allow, if they are on the right side of 1/2.
    """
    n, (q, z) = h.shape[0], last.taken()
    if z is None:
        return _uncertain(q)
    # Intervals of the stored F, and of the exact one.
    homo_up, homo_low = high - width * (last.homo[0] - wide), high - width * (last.homo[1] + wide)
    lumo_low, lumo_up = high - width * (last.lumo[1] + wide), high - width * (last.lumo[0] - wide)
    gap, centre = lumo_low - homo_up, (lumo_low + homo_up) / 2
    slip = h.error.spectral
    if gap <= 2 * slip:
        raise Unresolved(str(_no_gap(lumo_up - homo_low + 2 * slip)))
    shifted = exact(h).shifted(-centre)
    size = max(high - centre, centre - low) * SLACK
    moved = math.sqrt(2) * h.error.fro / (gap - slip) if h.error.fro else 0.0
    close = _CLOSE * gap * error
    g = shifted._times(q, close)
    before = math.inf
    for turns_left in range(_TURNS, -1, -1):
        skew = g - g.H
        off = (z.norm() + z.error.fro) * SLACK
        d_q, between = distance(off), (skew.norm() + skew.error.fro) / gap / math.sqrt(2) * SLACK
        d = distance((off + math.sqrt(2) * between**2) * SLACK)
        bound = math.hypot(math.sqrt(2) * between, d) * SLACK
        # A turn that would do no more than the last one has to be enough.
        near = error < bound < _NEAR * error and bound * min(1.0, bound / before) <= error
        if not (turns_left and near and between > d and skew.norm() > 2 * skew.error.fro):
            break
        before, allowed = bound, z.error.fro
        del z  # its memory, for what comes
        q, g = _turned_back(shifted, q, g, skew, close / between, size)
        del skew
        z = q._second_degree((0.0, -1.0, 1.0), allowed, "fro")[0]
    # The trace of 3 Q^2 - 2 Q^3, each of whose eigenvalues is as near to 0 or 1 as the square of Q's.
    trace = 3 * (q.trace() + z.trace()) - 2 * (q.norm() ** 2 + q.dot(z))
    count = round(trace) if occupied < 0 and math.isfinite(trace) else occupied
    unsure = 4 * d_q**2 + (3 * math.sqrt(n) + 2 * q.norm()) * z.error.fro + 3 * (excess(h.rows) + n * 2.0**-52) * n
    # Another number of states is 1 away, to the last bit.
    if not (d < 0.25 and last.angle() + d_q + d < 1 and abs(trace - count) + unsure < 0.5):
        return _uncertain(q)
    require_inside(mu, homo_up + slip, lumo_low - slip)
    # tr (F - c) (3 Q^2 - 2 Q^3), whose error is of second order.
    energy = shifted.dot(q) + shifted.dot(z) - 2 * float(np.real(g.dot(z.whole())))
    norm_h = shifted.norm()
    energy_error = (
        size * ((bound + d_q)**2 + 4 * d_q**2)
        + z.error.fro * norm_h * (1 + 2 * d_q) + 2 * g.error.fro * off
        + (n + 64) * roundoff(np.float64) * norm_h * q.norm()
    )  # fmt: skip
    lost = h.error + shifted.error  # F - c is rounded, too
    energy_error += (1 + d_q) ** 2 * min(lost.fro * math.sqrt(count), lost.spectral * count)
    nearest = _nearest(shifted, q, g, size, bound)
    homo_low, lumo_up = max(homo_low, centre + nearest[0]), min(lumo_up, centre + nearest[1])
    bound = (bound + moved) * SLACK
    return DensityMatrix(
        q._with(error=Error.of(bound, bound)), bound, energy + centre * count, energy_error * SLACK,
        (homo_low - slip, homo_up + slip), (lumo_low - slip, lumo_up + slip), centre if mu is None else mu,
        float(count), last.history(),
    )  # fmt: skip


def _nearest(a: Any, q: Any, g: Any, size: float, off: float) -> tuple[float, float]:
    """Return what the last eigenvalue of A below 0 is at least, and the first above 0 at most, where Q is about P.

    For ``v = Q e``, e in one tile, ``v* A v`` is at most that eigenvalue times ``|v|^2``, but for what v has outside of
    the subspace, `off`, squared, times `size` twice; the same for ``(I - Q) e``.  ``v* A v`` follows from G, about A Q.
    """
    if isinstance(q.data, Spread):
        return -math.inf, math.inf
    of_a, of_q, of_g = (np.real(x.diagonal()) for x in (a, q, g))
    ends, found = [-math.inf, math.inf], q.rows
    inside = np.where(of_q > 0.3, of_g / np.maximum(of_q, 0.3), -math.inf).argmax()
    outside = np.where(of_q < 0.7, (of_a - of_g) / np.maximum(1 - of_q, 0.3), math.inf).argmin()
    lost = a.error.spectral + 8 * g.error.spectral + (4 * off**2 + 32 * len(of_q) * roundoff(np.float64)) * size
    for empty, entry in enumerate((inside, outside)):
        t = int(np.searchsorted(found, entry, side="right")) - 1
        own = slice(int(found[t]), int(found[t + 1]))
        columns = (x._column_of_tiles(t) for x in (q, g, a))
        column, image, tile = (one.astype(np.result_type(one.dtype, np.float64)) for one in columns)
        told: Any = np.stack([column.conj().T @ column, column.conj().T @ image, column[own], image[own], tile[own]])
        squares, energies, column, image, tile = told if type(told) is np.ndarray else told.get()
        if empty:
            squares += np.eye(len(squares)) - column - column.conj().T
            energies += tile - image - image.conj().T
        lengths, e = np.linalg.eigh(squares)
        e = e[:, lengths > 0.5] / np.sqrt(lengths[lengths > 0.5])
        values = np.linalg.eigvalsh(e.conj().T @ (energies + energies.conj().T) @ e) / 2
        if len(values):
            ends[empty] = values[0] + lost if empty else values[-1] - lost
    return ends[0], ends[1]


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
