"""Spectral densities of an operator, or of vectors of one's own: tr[A δ(E − H)] and ⟨v|A δ(E − H)|v⟩."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from spectile.core.memory import require_host_free
from spectile.core.options import flag, whole_number
from spectile.core.pictures import shown, shown_html
from spectile.kpm import reference
from spectile.kpm.checkpoint import Continued, Run, fingerprint_if_lent, require_unchanged
from spectile.kpm.curves import Drawn, SpectralCurves, damping
from spectile.kpm.iterator import (
    OutsideBoundsError,
    Terms,
    begun,
    columns_at_once,
    given_vectors,
    in_range,
    is_doubled,
    over_ranks,
    own_rows,
    slices_of,
    within_bounds,
)
from spectile.kpm.moments import LOOK_STEPS, advance_watched
from spectile.kpm.observables import Observable
from spectile.kpm.operators.protocol import on_host
from spectile.kpm.reference import standard_error
from spectile.kpm.types import Array, Engine, Kernel

#: Of 2, whose square moments in float64 may have as a factor.
LARGEST_POWER = 510
#: Returns the number of moments of an expansion by its engine and bounds.
Count = Callable[[Engine, tuple[float, float]], int]


class SpectralExpectation(Continued, Drawn):
    """Density ρ_A(E) = ⟨v|A δ(E − H)|v⟩ of the mean of vectors, or of each; ``kpm_dos(operator=)`` makes it.

    Random vectors have entries of size 1, so that the mean estimates the trace tr[A δ(E − H)].  A copy, also a deep
    one, goes on by itself, with the same H, A and vectors; a pickle holds the numbers alone, without these.

    Attributes
    ----------
    energies : ndarray, shape (2 M,)
        Energies of `densities`, ascending, in the units of H.
    densities : ndarray, shape (2 M,), or (2 M, R) with ``mean=False``
        Per unit energy.  The trace of a Hermitian A is real; ⟨v|A δ(E − H)|v⟩ of given vectors is complex where H, A or
        the vectors are, as A and H need not commute: its real part is that of (A δ + δ A)/2.
    errors : ndarray, shape (2 M,)
        Standard error of the mean over the vectors; NaN for R = 1.
    moments : ndarray, shape (M,), or (M, R) with ``mean=False``
        ⟨v|A T_m(H̃)|v⟩, undamped, with H̃ = (H − `centre`) / `scale`.
    scale, centre : float
        Of H̃, in the units of H.
    bounds : (float, float)
        Energies between which the spectrum lies.
    """

    def __init__(
        self,
        engine: Engine,
        operator: Any,
        source: Callable[[int, int], Any],
        num_vectors: int,
        count: Count,
        kernel: Kernel,
        bounds: tuple[float, float] | None,
        *,
        mean: bool,
        grows: bool,
        traced: bool,
        arguments: Sequence[Any],
        run: Run,
    ) -> None:
        damping(kernel, 2)
        self._engine, self._source, self._count, self._fixed, self._grows = engine, source, count, bounds, grows
        self.kernel, self._is_mean, self._added, self._traced = kernel, flag("mean", mean), 0, traced
        self._operator = None if operator is None else Observable(operator, engine, "operator")
        self._num_vectors, self._arguments = num_vectors, (*arguments, traced)
        self._what, self._shown = run.progress.what, run.progress.shown

        def begin(tried: tuple[float, float]) -> None:
            self._begin(tried, run)

        within_bounds(engine, bounds, begin, run)
        self._fingerprint = fingerprint_if_lent(engine)
        self._update()

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        low, high = self.bounds
        what = "mean" if self._is_mean else "each"
        return [
            f"{what} of {self.num_vectors} vectors",
            f"{self.num_moments} moments",
            f"energies {low:.6g} to {high:.6g}",
        ]

    @property
    def num_moments(self) -> int:
        """M."""
        return len(self.moments)

    @property
    def num_vectors(self) -> int:
        """R."""
        return self._num_vectors

    def _length(self) -> int:
        """Return the moments that are asked for between the bounds, which may have become wider."""
        return self._count(self._engine, self.bounds) + self._added

    def _own_blocks(self) -> list[Any]:
        return [block.held() for block in self._blocks]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | dict.fromkeys(("_source", "_operator", "_count", "_arguments"))

    def add_moments(self, num_moments: int) -> None:
        """Add moments; the result is that of a construction with more.

        Raises
        ------
        ValueError
            If H has been written to meanwhile and is not held as a copy, or this comes from a pickle, which holds no H.
        """
        self._go_on(self._num_vectors, self._added + whole_number(num_moments, "num_moments", 1))

    def add_vectors(self, num_vectors: int) -> None:
        """Add random vectors, or more of those that a function gives.

        Raises
        ------
        ValueError
            If the vectors were given as a block, or as :meth:`add_moments`.
        """
        if not self._grows:
            raise ValueError("the vectors were given as a block: give a function of a vector's number, or more of them")
        self._go_on(self._num_vectors + whole_number(num_vectors, "num_vectors", 1), self._added)

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return ρ_A at any energies, zero outside the expansion: of the mean, or of each vector in a last axis."""
        values = self._curves(energy)
        return values[..., 0] if self._is_mean else values

    def integrate(
        self, f: Callable[[Array], Array] | None = None, *, damped: bool = True, return_error: bool = False
    ) -> Any:
        """Return ∫ f(E) ρ_A(E) dE, as :meth:`SpectralDensity.integrate`; of each vector with ``mean=False``."""
        values = self._curves.integrate(f, damped=damped)
        if not self._is_mean:
            return values
        value = values[..., 0][()]
        if not flag("return_error", return_error):
            return value
        return value, standard_error(self._each.integrate(f, damped=damped), -1)

    def _begin(self, bounds: tuple[float, float], run: Run) -> None:
        """Expand all vectors from the start, with these bounds."""
        self.bounds = bounds
        _, self._blocks = expanded(
            run, self._engine, self._operator, self._source, self._num_vectors, self._length(), bounds,
            self._arguments, keep=True,
        )  # fmt: skip

    def _go_on(self, num_vectors: int, added: int) -> None:
        """Bring so many vectors to so many moments more than at first; bounds of our own that are too narrow widen."""
        require_unchanged(self._engine, self._fingerprint)
        length = self._length() - self._added + added
        require_host_free(64 * num_vectors * length, "the moments of all vectors")
        before = self.__dict__ | {"_blocks": self._own_blocks()}
        try:
            self._num_vectors, self._added = num_vectors, added
            with Run(self._what, progress=self._shown) as run:
                try:
                    self._extend(run)
                except OutsideBoundsError:
                    if self._fixed is not None:
                        raise
                    within_bounds(self._engine, None, lambda tried: self._begin(tried, run), run)
            self._update()
        except BaseException:  # a recurrence that is broken off, by Ctrl-C or an H that fails, may stand anywhere
            self.__dict__ |= before
            raise

    def _extend(self, run: Run) -> None:
        length = self._length()
        done = sum(block.width for block in self._blocks)
        fresh = self._num_vectors - done
        for part in slices_of(fresh, columns_at_once(self._engine, max(4, 3 * fresh / 64))):
            part = slice(done + part.start, done + part.stop)
            self._blocks.append(block_of(self._engine, self._operator, self._source, part, self.bounds))
        run.progress.total = run.progress.done + sum(block.left(length) for block in self._blocks)
        for block in self._blocks:
            block.extend(length, run)

    def _update(self) -> None:
        each = np.concatenate([block.moments[: self._length()] for block in self._blocks], axis=1)
        # A trace of a Hermitian operator is real; what one vector gives is not, as A and H need not commute.
        each = each.real if self._operator is None or (self._traced and self._operator.hermitian) else each
        self._each = SpectralCurves(each, self.bounds, self.kernel)
        mean = each.mean(axis=1)
        self._curves = SpectralCurves(mean[:, None], self.bounds, self.kernel) if self._is_mean else self._each
        self.scale, self.centre, self.energies = self._each.scale, self._each.centre, self._each.energies
        self.moments = mean if self._is_mean else each
        self.densities = self._curves.densities[:, 0] if self._is_mean else self._curves.densities
        self.errors = standard_error(self._each.densities, 1)


class _Block(ABC):
    """Some of the vectors: their moments, and the recurrence that makes more of them, begun when it is needed."""

    def __init__(self, engine: Engine, vectors: Callable[[], Any], width: int, bounds: tuple[float, float]) -> None:
        self._engine, self._vectors, self.width, self._bounds = engine, vectors, width, bounds
        self._recurrence: Any = None
        self._held: Array | None = None  # moments without the recurrence that made them
        self._weights: Array | float = 1.0  # of the moments: squares of what the vectors were divided by

    def _begun(self) -> Any:
        """Return the vectors, divided by powers of two where squares would leave the range of their type."""
        vectors, powers = in_range(self._engine, self._vectors())
        if powers.any():
            if abs(powers).max() > LARGEST_POWER:
                raise ValueError(
                    "the squares of the vectors' entries leave the range of float64: scale the vectors, and the result "
                    "by the square"
                )
            self._weights = np.ldexp(1.0, 2 * powers)
        return vectors

    @property
    def moments(self) -> Array:
        """The moments, at least as many as were asked for, shape (M, R)."""
        return self._found() * self._weights if self._held is None else self._held

    def hold(self, moments: Array) -> None:
        """Take these moments and let the recurrence go: for more of them it begins anew."""
        self._held, self._recurrence = moments, None

    def held(self) -> Self:
        """Return a block with the same moments, which begins anew for more of them."""
        other = copy.copy(self)
        other.hold(self.moments.copy())
        return other

    def left(self, length: int) -> int:
        """Return how many products of H with a vector bring this to so many moments."""
        begun = self._held is not None or self._recurrence is not None
        return self._steps(length, len(self.moments) if begun else 0) * self.width

    def extend(self, length: int, run: Run) -> None:
        """Make moments up to so many, from where the file of the run left this block, if it did."""
        if self._held is None or len(self._held) < length:
            self._held = None
            self._extend(length, run)

    @abstractmethod
    def _steps(self, length: int, done: int) -> int:
        """Return the steps from so many moments to others."""

    @abstractmethod
    def _found(self) -> Array: ...

    @abstractmethod
    def _extend(self, length: int, run: Run) -> None: ...


class _Alone(_Block):
    """⟨v|T_m|v⟩ of a block: two moments a step."""

    def _steps(self, length: int, done: int) -> int:
        return max(0, -(-(length - done) // 2))

    def _extend(self, length: int, run: Run) -> None:
        if self._recurrence is None:
            vectors = self._begun()
            # Of complex vectors on a real H the moments are those of their parts.
            self._doubled = is_doubled(self._engine, vectors)
            self._recurrence = begun(self._engine, vectors, self._bounds)
            self._etas = np.empty((0, self._recurrence.num_vectors))
        recursion = self._recurrence
        saved = run.resumed()
        if saved is not None:
            steps = saved.number("order", 0)
            self._etas = saved.array("etas", np.float64, (2 * steps, recursion.num_vectors))
            recursion.restore(saved.recursion(recursion, 0, steps))
            run.progress.add(steps * self.width)

        def pause(etas: Array) -> None:
            run.progress.add((len(etas) - len(self._etas)) // 2 * self.width)
            self._etas = etas
            run.pause(
                lambda: (
                    {"order": len(etas) // 2, "etas": etas}
                    | {f"{name}_0": value for name, value in recursion.state().items()}
                )
            )

        _, inside = advance_watched(recursion, self._etas, length, after=pause)
        if not inside:
            raise OutsideBoundsError(f"the spectrum leaves the given bounds {self._bounds}: give wider ones")

    def _found(self) -> Array:
        moments = reference.moments_from_etas(self._etas)
        return moments.reshape(len(moments), -1, 2).sum(axis=2) if self._doubled else moments


class _Between(_Block):
    """⟨v|A T_m|v⟩ of a block: one moment a step."""

    operator: Observable

    def _steps(self, length: int, done: int) -> int:
        return max(0, length - max(1, done))

    def _extend(self, length: int, run: Run) -> None:
        if self._recurrence is None:
            vectors = self._begun()
            xp = self._engine.xp
            bra = xp.conj(self.operator.adjoint(xp.ascontiguousarray(vectors)))  # a new array, of real numbers too
            # No rank needs all of a term for its part of the products.
            vectors, self._bra = (own_rows(self._engine, each) for each in (vectors, bra))
            self._recurrence = Terms(self._engine, vectors, self._bounds, run.progress)
            self._products: list[Any] = []
        terms = self._recurrence
        terms.progress = run.progress
        wide = np.result_type(self._bra.dtype, terms.dtype, np.float64)
        saved = run.resumed()
        if saved is not None:
            order = saved.number("order", 0)
            self._products = list(saved.array("products", wide, (order + 1, self.width)))
            terms.restore(saved, order)
            run.progress.add(order * self.width)

        def state() -> dict[str, Any]:
            return {"order": len(self._products) - 1, "products": self._on_host()} | terms.state()

        for m in range(len(self._products), length):
            if m:
                terms.step()
            self._products.append((self._bra * terms.vectors()).sum(axis=0, dtype=wide))
            if m % LOOK_STEPS == LOOK_STEPS - 1:
                run.pause(state)
        terms.finish()

    def _on_host(self) -> Array:
        return np.array([on_host(each) for each in self._products])

    def _found(self) -> Array:
        return np.asarray(self.operator.factor * over_ranks(self._engine, self._on_host()))


def block_of(
    engine: Engine,
    operator: Observable | None,
    source: Callable[[int, int], Any],
    part: slice,
    bounds: tuple[float, float],
) -> _Block:
    """Return what expands some of the vectors of a source."""

    def vectors() -> Any:
        return engine.xp.asarray(source(part.start, part.stop))

    if operator is None:
        return _Alone(engine, vectors, part.stop - part.start, bounds)
    block = _Between(engine, vectors, part.stop - part.start, bounds)
    block.operator = operator
    return block


def expanded(
    run: Run,
    engine: Engine,
    operator: Observable | None,
    source: Callable[[int, int], Any],
    count: int,
    length: int,
    bounds: tuple[float, float],
    arguments: Iterable[Any],
    *,
    keep: bool,
) -> tuple[Array, list[_Block]]:
    """Return the moments ⟨v|A T_m|v⟩ of vectors, shape (M, K), and the blocks that can make more of them.

    Each block is a stage of the run; without `keep` its recurrence is let go when it is done.
    """
    require_host_free(64 * count * length, "the moments of all vectors")
    widths = np.array([columns_at_once(engine, max(4, 3 * count / 64) if keep else 4)])
    found = np.zeros((length, count), np.float64 if operator is None else np.complex128)

    def identity() -> Iterator[Any]:
        yield from (length, count, engine.xp.asarray(source(0, 1)), *arguments)
        if operator is not None:
            yield operator.shown()

    run.begin(bounds, identity(), widths, found=found)
    parts = slices_of(count, int(widths[0]))
    blocks = [block_of(engine, operator, source, part, bounds) for part in parts]
    run.progress.total = run.progress.done + sum(block.left(length) for block in blocks)
    made = []
    for part, block in run.each(list(zip(parts, blocks, strict=True)), lambda pair: pair[1].left(length)):
        block.extend(length, run)
        found[:, part] = block.moments[:length]
        made.append(block)
    for part, block in zip(parts, blocks, strict=True):
        if not keep or block not in made:
            block.hold(found[:, part])
    return found, blocks


def moments_with(
    run: Run,
    engine: Engine,
    operator: Any,
    source: Callable[[int, int], Any],
    count: int,
    num_moments: Count,
    bounds: tuple[float, float] | None,
    arguments: Iterable[Any],
) -> tuple[Array, tuple[float, float]]:
    """Return ⟨v|A T_m|v⟩ of given vectors, shape (M, K), and the bounds."""
    A = None if operator is None else Observable(operator, engine, "operator")

    def work(tried: tuple[float, float]) -> tuple[Array, tuple[float, float]]:
        length = num_moments(engine, tried)
        return expanded(run, engine, A, source, count, length, tried, arguments, keep=False)[0], tried

    found: tuple[Array, tuple[float, float]] = within_bounds(engine, bounds, work, run)
    return found


def source_of(engine: Engine, vectors: Any) -> tuple[Callable[[int, int], Any], int | None]:
    """Return ``source(first, stop)`` of the caller's vectors, and how many there are; None for a function.

    They are a block, shape (N, R) or (N,), or ``vectors(number)``, shape (N,).
    """
    if not callable(vectors):
        block = given_vectors("vectors", vectors, engine.xp, (engine.num_rows, None))
        return lambda first, stop: block[:, first:stop], block.shape[1]

    def made(first: int, stop: int) -> Any:
        shape = engine.num_rows, 1
        # Copied: it may return one array, of other numbers each time.
        columns = [engine.xp.array(given_vectors("vectors", vectors(n), engine.xp, shape)) for n in range(first, stop)]
        return engine.xp.concatenate(columns, axis=1)

    return made, None
