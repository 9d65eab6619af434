"""Purification with a budget: the steps, and the eigenvalues around the gap that they reveal.

A step takes X to f(X) and is off by E.  f(X) has the invariant subspaces of X, so only E turns the occupied one, by
``sin <= ||E|| / (gap of f(X) - ||E||)``, in the Frobenius norm for the Frobenius norm of E.  With the gap known, each
step gets the error that its share of the wanted angle allows: large where the gap has opened.

With ``y = x - x^2`` of the eigenvalues of X, ``v = ||X - X^2||_F`` is no smaller than the largest y, and ``v^2 / tr(X -
X^2)`` no larger: bounds of the images of HOMO and LUMO, which are taken back through the steps to bounds of both.

Source: E. H. Rubensson, E. Rudberg, P. Sałek, J. Chem. Phys. 128, 074106 (2008); E. H. Rubensson, A. M. N. Niklasson,
SIAM J. Sci. Comput. 36, B147 (2014).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spectile.density.maps import DOWN, UP, Polynomial, distance, planned
from spectile.density.result import Step
from spectile.tiles import Error, TileMatrix
from spectile.tiles.matrix import Apart
from spectile.tiles.types import EXACT, SLACK, excess

_LOGGER = logging.getLogger("spectile.density")
#: Steps after which a gap would have opened, however small: two double it at least, and there are 53 bits.
MOST_STEPS = 120
#: Share of the bounds of the steps' errors that their sum is likely to have.
_TOGETHER = 0.05
#: Gaps that budgets follow, at most so many times the first: what is left out later reaches high energies.
_NARROW = 16.0
#: Idempotency in the Frobenius norm below which its spectral norm is looked at, once, for the eigenvalues around the
#: gap; what the products for it may be off by, relative to the square of the Frobenius norm.
_SHARP, _ROUGH = 1e-2, 1e-3
#: Idempotency below which steps after a plan by a guess are no longer rough, in what one of them may be off by.
_ABOUT = 4.0
NormName = Literal["fro", "spectral"]


@dataclass
class Pass:
    """A purification from X0 to its end.

    Attributes
    ----------
    x : TileMatrix
        The last iterate, taken as exact; None of a pass that was not made.
    polynomials, errors, idempotencies, most, least, fills, products, ranges : list
        Of each step: its polynomial, what it is off by, and before it ``||X - X^2||_F`` at most and the largest
        ``|x - x^2|`` at most and at least; the share of tiles after it; the products of tiles that it took; the
        interval of all eigenvalues before it, and at the end after the last.
    homo, lumo : tuple of float
        Intervals of the images in X0 of the last occupied and the first empty eigenvalue: 1 is the lowest energy.
    ended : bool
        Whether X is as idempotent as was wanted, or as the errors of the steps allow.
    counted : bool
        Whether as many eigenvalues as were wanted are near 1 at the end, for certain.
    idempotent : TileMatrix
        ``X^2 - X`` of the last iterate after planned steps, with its error.
    """

    x: Any
    polynomials: list[Polynomial] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
    idempotencies: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    fills: list[float] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    ranges: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 1.0)])
    homo: tuple[float, float] = (0.0, 1.0)
    lumo: tuple[float, float] = (0.0, 1.0)
    ended: bool = False
    counted: bool = False
    idempotent: Any = None

    def taken(self) -> tuple[Any, Any]:
        """Return the last iterate and `idempotent`, and hold them no longer: the larger part of the memory."""
        both, self.x, self.idempotent = (self.x, self.idempotent), None, None
        return both

    def know(self, other: Pass) -> None:
        """Narrow the intervals by those of another pass from the same X0, if both found the same gap.

        Neither gap has an eigenvalue inside: where they overlap, as many lie above the one as above the other.  A pass
        that was not made, with a guess in place of its end, knows nothing.
        """
        if other.polynomials and max(self.lumo[1], other.lumo[1]) < min(self.homo[0], other.homo[0]):
            self.homo = max(self.homo[0], other.homo[0]), min(self.homo[1], other.homo[1])
            self.lumo = max(self.lumo[0], other.lumo[0]), min(self.lumo[1], other.lumo[1])

    def gaps(self) -> list[float]:
        """Return the gaps after each step before its error is added, at least, from the intervals of X0."""
        h, l_ = self.homo[0], self.lumo[1]
        found = []
        for polynomial, error, (low, high) in zip(self.polynomials, self.errors, self.ranges[:-1], strict=True):
            h, l_ = polynomial.image(h, high)[0], polynomial.image(low, l_)[1]
            found.append(h - l_)
            h, l_ = h - error.spectral, l_ + error.spectral
        return found

    def angle(self) -> float:
        """Return a bound of the sine of the angle that the occupied subspace was turned by."""
        total = 0.0
        for gap, error in zip(self.gaps(), self.errors, strict=True):
            if not gap > 2 * error.spectral:
                return math.inf
            total += error.spectral / (gap - error.spectral)
        return total * SLACK

    def likely(self) -> tuple[float, float]:
        """Return what the images of HOMO and LUMO in X0 are about, from inside of the gap.

        Errors of steps turn to all sides: together they come to a small part of what each may come to alone.
        """
        about = replace(self, errors=[error.times(_TOGETHER) for error in self.errors])
        _reveal(about)
        return about.homo[0], about.lumo[1]

    def history(self) -> list[Step]:
        """Return the steps for the result."""
        columns = self.polynomials, self.errors, self.gaps(), self.idempotencies, self.fills, self.products
        return [
            Step(polynomial.coefficients, error, max(0.0, gap), v, fill, products)
            for polynomial, error, gap, v, fill, products in zip(*columns, strict=True)
        ]


def exact(x: TileMatrix) -> TileMatrix:
    """Return a matrix as if it had no error."""
    return x._with(error=EXACT)


def purify(
    x0: TileMatrix, occupied: int, mu: float, ends_at: float, budget: Callable[[int], float],
    polynomials: list[Polynomial] | None = None, fine: float = 0.0, most: int = MOST_STEPS,
    certain: bool = False, watch: Callable[[Pass], None] | None = None, guessed: bool = False,
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
        Idempotency that is wanted.
    budget : callable
        ``budget(number)`` is what a step may be off by.  Both are meant in the Frobenius norm with `polynomials`, and
        in the spectral one without.
    polynomials : list of Polynomial, optional
        Those of the first steps; the others are x squared or 2 x - x squared, whichever brings the trace nearer to
        `occupied`.
    fine : float
        With `polynomials`: what X squared less X may be off by, of which the steps after them are made, and which is
        kept of the last iterate.
    most : int
        Steps after which it gives up.
    certain : bool
        Without `polynomials`: whether it goes on until the eigenvalues near 1 are counted.
    watch : callable, optional
        Gets what is done after each step, and may raise.
    guessed : bool
        With `polynomials` by a guess of the gap: steps after them keep to the budget until X is about idempotent.
    """
    done = Pass(exact(x0))
    n = x0.shape[0]
    norm: NormName = "spectral" if polynomials is None else "fro"
    first_fine = 0 if polynomials is None else len(polynomials)
    for number in range(most):
        x, (low, high) = done.x, done.ranges[-1]
        trace, squares = x.trace(), x.norm() ** 2
        planned = polynomials is not None and number < len(polynomials)
        if polynomials is not None and planned:
            polynomial = polynomials[number]
        elif occupied < 0:
            polynomial = DOWN if mu > 0.5 else UP
        else:
            polynomial = DOWN if abs(squares - occupied) < abs(2 * trace - squares - occupied) else UP
        allowed, rough = budget(number), guessed and number == first_fine
        first_fine += rough
        if polynomials is None or planned or rough:
            made, apart = _step(polynomial, x, (low, high), allowed, norm)
        else:
            done.idempotent, apart = x._second_degree((0.0, -1.0, 1.0), fine, "fro")
            made = x
        outside = max(-low, high - 1, 0.0)
        # Of both nothing but their difference is left at the end.
        lost = excess(x.rows) + n * 2.0**-52
        w = (abs(trace - squares) + lost * (abs(trace) + squares) + 2 * n * outside * (1 + outside)) * (1 + lost)
        least = apart.least**2 / w if w > 0 else 0.0
        done.idempotencies.append(apart.fro)
        done.most.append(min(apart.fro, apart.spectral))
        done.least.append(least if least > 2 * outside else 0.0)
        if polynomials is None:
            # Or as idempotent as what the last step was off by allows.
            done.counted = _told_apart(done.most[-1], trace, w, occupied, mu, certain=True)
            told = done.counted if certain else _told_apart(done.most[-1], trace, w, occupied, mu, certain=False)
            reached = done.most[-1] if told else math.inf
            done.ended = reached <= max(ends_at, 2 * done.errors[-1].spectral if done.errors else 0.0)
        elif rough:
            guessed = apart.fro > max(ends_at, _ABOUT * allowed)
        elif not planned:
            # Or as idempotent as it will be: two steps would square it.
            before = done.idempotencies[-3] if number >= first_fine + 2 else math.inf
            done.ended = apart.fro <= ends_at or (before < 0.05 and apart.fro > before / 4)
        if planned and polynomial.products == 1 and apart.fro <= _SHARP < min(done.idempotencies[:-1], default=1.0):
            constant, linear, quadratic = polynomial.coefficients
            lacking = x._combined(1 + linear / quadratic, made, -1 / quadratic, constant / quadratic)  # X - X^2
            done.most[-1] = min(done.most[-1], _spectral(lacking))
        # It was looked at, and makes no step; what may be far outside no step brings back.
        if done.ended or number == most - 1 or outside > 0.5:
            break
        if made is x:
            made = (x + done.idempotent if polynomial is DOWN else x - done.idempotent).truncate(fine)
            made.products = done.idempotent.products
        low, high = polynomial.image(low, high)
        mu = polynomial(mu)
        done.polynomials.append(polynomial)
        done.errors.append(made.error)
        done.fills.append(made.fill)
        done.products.append(made.products)
        done.ranges.append((low - made.error.spectral, high + made.error.spectral))
        done.x = exact(made)
        if watch is not None:
            watch(done)
    _reveal(done)
    done.idempotencies.pop()  # the last iterate makes no step
    if _LOGGER.isEnabledFor(logging.DEBUG):
        for number, step in enumerate(done.history()):
            _LOGGER.debug(
                "step %d: idempotency before %.2g, error %.2g, gap %.2g, %d products of tiles, %.3g stored", number,
                step.idempotency, step.error.fro, step.gap, step.products, step.fill,
            )  # fmt: skip
    return done


def _spectral(z: TileMatrix) -> float:
    """Return a bound of the spectral norm of a Hermitian matrix, by that of its fourth power; products may be off."""
    square = exact(z)._times(exact(z), _ROUGH * z.norm() ** 2, "fro", "square")
    s = exact(square)
    fourth = s._times(s, _ROUGH * s.norm() ** 2, "fro", "square")
    of_square = math.sqrt(fourth.norm("spectral") + fourth.error.spectral) + square.error.spectral
    return (math.sqrt(of_square) + z.error.spectral) * SLACK


def _told_apart(most: float, trace: float, lack: float, occupied: int, mu: float, certain: bool) -> bool:
    """Return whether the eigenvalues near 1 are those that should be there, likely or for certain.

    What all eigenvalues of an X that is nearly idempotent lack of 0 and 1 comes to the trace of X - X^2, `lack`.
    """
    if occupied < 0:
        return distance(most) < mu < 1 - distance(most)
    if certain:
        return most < 0.2 and abs(trace - occupied) + lack / (1 - distance(most)) < 0.75
    return abs(trace - occupied) <= 0.5 + 1.2 * lack


def _step(
    polynomial: Polynomial, x: TileMatrix, ends: tuple[float, float], allowed: float, norm: NormName
) -> tuple[TileMatrix, Apart]:
    """Return a polynomial of X, and how far X is from its square; `norm` is of those of one product alone."""
    c = polynomial.coefficients
    if polynomial.products == 1:
        return x._second_degree((*c, 0.0, 0.0)[:3], allowed, norm)
    square = x._times(x, allowed / 2 / sum(map(abs, c[2:])), "fro", "square")
    apart = Apart.of(x - square)
    low = (c[1] * x).shifted(c[0]) if c[0] else c[1] * x if c[1] else None
    s = exact(square)
    inner = c[3] * x
    inner = (inner + c[4] * s if len(c) > 4 else inner).shifted(c[2])
    product = s._times(exact(inner), allowed / 4, "fro", "upper")
    # What the square is off by reaches it through both factors, of which bounds are known by the eigenvalues of X.
    largest = max(map(abs, Polynomial(c[2:]).image(*ends))) + (abs(c[4]) if len(c) > 4 else 0.0) * (
        max(map(abs, ends)) ** 2 + square.error.spectral
    )
    lost = square.error.times(largest) + inner.error.times(max(map(abs, ends)) ** 2 + square.error.spectral)
    both = math.sqrt(2) * lost.fro * SLACK  # one half is computed, and counts twice in squares
    products = square.products + product.products
    product = product._with(error=product.error + Error.of(both, both))
    made = (product if low is None else low + product).truncate(allowed / 4)
    made.products = products
    return made, apart


def _reveal(done: Pass) -> None:
    """Find the intervals of HOMO and LUMO by all that the steps have shown.

    From the last step back: h and l bound the images of HOMO and LUMO before each step from inside of the gap, outer_h
    and outer_l from outside.  Where all eigenvalues are known to be near 0 or 1, the bounds that come from the steps
    after it say near which of them the two are.
    """
    outer_l, outer_h = done.ranges[-1]
    h, l_ = (0.5, 0.5) if distance(done.most[-1]) < 0.5 else done.ranges[-1]
    for number in range(len(done.polynomials), -1, -1):
        eta, value = distance(done.most[number]), done.least[number]
        if h > eta:
            h = max(h, 1 - eta)
        if l_ < 1 - eta:
            l_ = min(l_, eta)
        # The largest x - x^2 belongs to one side of the gap; where it is smaller on one, it is known to which.
        if 0 < value <= 0.25 and h > 0.5 > l_:
            root = math.sqrt(1 - 4 * value)
            if l_ * (1 - l_) < value:
                outer_h = min(outer_h, (1 + root) / 2)
            if h * (1 - h) < value:
                outer_l = max(outer_l, (1 - root) / 2)
        if number:
            polynomial, shift = done.polynomials[number - 1], done.errors[number - 1].spectral
            ends = done.ranges[number - 1]
            h, outer_l = (_less(polynomial.lowest(x - shift, *ends)) for x in (h, outer_l))
            l_, outer_h = (-_less(-polynomial.highest(x + shift, *ends)) for x in (l_, outer_h))
    done.homo, done.lumo = (h, max(h, outer_h)), (min(l_, outer_l), l_)


def _less(x: float) -> float:
    return x - (SLACK - 1) * abs(x)


def budgets(
    pass_: Pass, method: str, wanted: float, ends_at: float
) -> tuple[Callable[[int], float], list[Polynomial]]:  # fmt: skip
    """Return the budget of each step for a wanted bound of the whole angle, and the polynomials of a method.

    Both follow from the intervals of an earlier pass: ``sqrt(2) d / (gap - d) = share``, the same for each step, with
    gaps that stay narrow.  What a late step is off by turns states of all energies alike, and the certificate counts
    each by its distance, in units of the gap; what an early one is off by turns the near ones.
    """
    polynomials, gaps = planned_to(method, pass_.homo[0], pass_.lumo[1], ends_at)
    share = wanted / len(gaps) / math.sqrt(2)
    allowed = [max(min(gap, _NARROW * gaps[0]), 1e-3) * share / (1 + share) for gap in gaps]
    return lambda number: allowed[min(number, len(allowed) - 1)], polynomials


def planned_to(method: str, h: float, l_: float, ends_at: float) -> tuple[list[Polynomial], list[float]]:
    """Return the polynomials of a method that bring the images of HOMO and LUMO near their ends, and the gaps after."""
    polynomials, gaps = [], []
    for polynomial, high, low in itertools.islice(planned(method, h, l_), MOST_STEPS):
        polynomials.append(polynomial)
        gaps.append(high - low)
        if max(high * (1 - high), low * (1 - low)) <= max(ends_at / 4, 1e-15):
            break
    return polynomials, gaps
