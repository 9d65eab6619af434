"""Spectral projection with a budget: the steps, and the eigenvalues around the gap that they reveal.

A step takes X to f(X) and is off by E.  f(X) has the invariant subspaces of X, so only E turns the occupied one, by
``sin <= ||E|| / (gap of f(X) - ||E||)``, in the Frobenius norm for the Frobenius norm of E.  With the gap known, each
step gets the error that its share of the wanted angle allows: large where the gap has opened.

With ``y = x - x^2`` of the eigenvalues of X, ``v = ||X - X^2||_F`` is no smaller than the largest y, and ``v^2 / tr(X -
X^2)`` no larger: bounds of the images of HOMO and LUMO, which are taken back through the steps to bounds of both.

Source: E. H. Rubensson, E. Rudberg, P. Sałek, J. Chem. Phys. 128, 074106 (2008); E. H. Rubensson, A. M. N. Niklasson,
SIAM J. Sci. Comput. 36, B147 (2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from spectile.density.maps import backward, distance, forward
from spectile.density.result import Step
from spectile.tiles import Error, TileMatrix
from spectile.tiles.types import EXACT, SLACK

#: Steps after which a gap would have opened, however small: two double it at least, and there are 53 bits.
MOST_STEPS = 120


@dataclass
class Pass:
    """A purification from X0 to its end.

    Attributes
    ----------
    x : TileMatrix
        The last iterate, taken as exact.
    downs, errors, idempotencies, least, fills : list
        Of each step: its polynomial, what it is off by, and before it ``||X - X^2||_F`` at most and the largest
        ``x - x^2`` at least; the share of tiles after it.
    homo, lumo : tuple of float
        Intervals of the images in X0 of the last occupied and the first empty eigenvalue: 1 is the lowest energy.
    ended : bool
        Whether X is as idempotent as was wanted, or as the errors of the steps allow.
    """

    x: TileMatrix
    downs: list[bool] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
    idempotencies: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    fills: list[float] = field(default_factory=list)
    homo: tuple[float, float] = (0.0, 1.0)
    lumo: tuple[float, float] = (0.0, 1.0)
    ended: bool = False

    def know(self, other: Pass) -> None:
        """Narrow the intervals by those of another pass from the same X0, if both found the same gap.

        Neither gap has an eigenvalue inside: where they overlap, as many lie above the one as above the other.
        """
        if max(self.lumo[1], other.lumo[1]) < min(self.homo[0], other.homo[0]):
            self.homo = max(self.homo[0], other.homo[0]), min(self.homo[1], other.homo[1])
            self.lumo = max(self.lumo[0], other.lumo[0]), min(self.lumo[1], other.lumo[1])

    def gaps(self) -> list[float]:
        """Return the gaps after each step before its error is added, at least, from the intervals of X0."""
        h, l_ = self.homo[0], self.lumo[1]
        found = []
        for down, error in zip(self.downs, self.errors, strict=True):
            h, l_ = forward(down, h), forward(down, l_)
            found.append(h - l_)
            h, l_ = h - error.spectral, l_ + error.spectral
        return found

    def angle(self) -> float:
        """Return a bound of the sine of the largest angle that the occupied subspace was turned by."""
        total = 0.0
        for gap, error in zip(self.gaps(), self.errors, strict=True):
            if not gap > 2 * error.spectral:
                return math.inf
            total += error.spectral / (gap - error.spectral)
        return total * SLACK

    def history(self) -> list[Step]:
        """Return the steps for the result."""
        columns = self.downs, self.errors, self.gaps(), self.idempotencies, self.fills
        return [Step(down, error, max(0.0, gap), v, fill) for down, error, gap, v, fill in zip(*columns, strict=True)]


def exact(x: TileMatrix) -> TileMatrix:
    """Return a matrix as if it had no error."""
    return x._with(error=EXACT)


def purify(
    x0: TileMatrix, occupied: int, mu: float, ends_at: float, budget: Any, spectral: bool, known: Any = (),
    most: int = MOST_STEPS,
) -> Pass:  # fmt: skip
    """Purify X0, whose eigenvalues are from 0 to 1.

    Parameters
    ----------
    x0 : TileMatrix
        Taken as exact.
    occupied : int
        Eigenvalues that go to 1; below 0 where `mu` decides which do.
    mu : float
        The chemical potential's image in X0.
    ends_at : float
        Idempotency that is wanted, in the Frobenius norm.
    budget : callable
        ``budget(number)`` is what a step may be off by.
    spectral : bool
        Whether that is meant in the spectral norm.
    known : sequence of bool
        The first polynomials, as an earlier pass chose them.
    most : int
        Steps after which it gives up.
    """
    norm: Literal["fro", "spectral"] = "spectral" if spectral else "fro"
    done = Pass(exact(x0))
    n = x0.shape[0]
    low, high = 0.0, 1.0
    for number in range(most):
        x = done.x
        allowed = budget(number)
        square = x._times(x, allowed / 2, norm, "square")
        rest = x - square
        trace, squares = x.trace(), x.norm() ** 2
        v = (rest.norm() + rest.error.fro) * SLACK
        outside = max(-low, high - 1, 0.0)
        w = (abs(trace - squares) + 2e-12 * squares + 2 * n * outside * (1 + outside)) * SLACK
        least = max(0.0, rest.norm() / SLACK - rest.error.fro) ** 2 / w if w > 0 else 0.0
        done.idempotencies.append(v)
        done.least.append(least if least > 2 * outside else 0.0)
        # Or as idempotent as what the last step was off by allows.
        if v <= ends_at or (done.errors and v <= 2 * done.errors[-1].fro):
            done.ended = True
            break
        if number < len(known):
            down = known[number]
        elif occupied < 0:
            down = mu > 0.5
        else:
            down = abs(squares - occupied) < abs(2 * trace - squares - occupied)
        made = (square if down else x + rest).truncate(allowed / 4, norm)
        low, high = (0.0, high * high) if down else (1 - (1 - low) ** 2, 1.0)
        low, high = low - made.error.spectral, high + made.error.spectral
        mu = forward(down, mu)
        done.downs.append(down)
        done.errors.append(made.error)
        done.fills.append(made.fill)
        done.x = exact(made)
    # The last iterate was looked at and makes no step.
    steps = len(done.idempotencies) - 1
    done.x, done.downs, done.errors, done.fills = x, done.downs[:steps], done.errors[:steps], done.fills[:steps]
    _reveal(done, done.idempotencies.pop(), done.least.pop())
    return done


def _reveal(done: Pass, v: float, least: float) -> None:
    """Find the intervals of HOMO and LUMO by all that the steps have shown.

    From the last step back: h and l bound the images of HOMO and LUMO before each step.  Where all eigenvalues are
    known to be near 0 or 1, the bounds that come from the steps after it say near which of them the two are.
    """
    values, leasts = [*done.idempotencies, v], [*done.least, least]
    h, l_ = (0.5, 0.5) if distance(v) < 0.5 else (0.0, 1.0)
    inner = []
    for number in range(len(done.downs), -1, -1):
        eta = distance(values[number])
        if h > eta:
            h = max(h, 1 - eta)
        if l_ < 1 - eta:
            l_ = min(l_, eta)
        inner.append((h, l_))
        if number:
            down, shift = done.downs[number - 1], done.errors[number - 1].spectral
            h, l_ = backward(down, h - shift) / SLACK, backward(down, l_ + shift) * SLACK
    inner.reverse()
    outer_h, outer_l = 1.0, 0.0
    for number, value in enumerate(leasts):
        h, l_ = inner[number]
        # The largest x - x^2 belongs to one side of the gap; where it is smaller on one, it is known to which.
        if 0 < value <= 0.25 and h > 0.5 > l_:
            root = math.sqrt(1 - 4 * value)
            if l_ * (1 - l_) < value:
                outer_h = min(outer_h, _out(done, number, (1 + root) / 2, 1))
            if h * (1 - h) < value:
                outer_l = max(outer_l, _out(done, number, (1 - root) / 2, -1))
    (h, l_) = inner[0]
    done.homo, done.lumo = (h, max(h, outer_h)), (min(l_, outer_l), l_)


def _out(done: Pass, number: int, x: float, side: int) -> float:
    """Return what an eigenvalue of X0 is at most, or with `side` below 0 at least, from that of a step."""
    for down, error in zip(reversed(done.downs[:number]), reversed(done.errors[:number]), strict=True):
        x = backward(down, x + side * error.spectral)
    return x * SLACK if side > 0 else x / SLACK


def budgets(pass_: Pass, wanted: float, count: int) -> Any:
    """Return the budget of each step for a wanted bound of the whole angle, from the intervals of an earlier pass.

    ``sqrt(2) d / (gap - d) = share``, the same share for each step, whose polynomials the earlier pass has shown.
    """
    share = wanted / count / math.sqrt(2)
    h, l_ = pass_.homo[0], pass_.lumo[1]
    allowed = []
    for down in pass_.downs:
        h, l_ = forward(down, h), forward(down, l_)
        allowed.append(max(h - l_, 1e-3) * share / (1 + share))
    last = allowed[-1] if allowed else share

    def budget(number: int) -> float:
        return allowed[number] if number < len(allowed) else last

    return budget
