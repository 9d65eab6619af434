"""Spectral densities of an operator, or of vectors of one's own: tr[A δ(E − H)] and ⟨v|A δ(E − H)|v⟩."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.memory import require_host_free
from spectile.core.options import flag
from spectile.core.progress import Progress
from spectile.kpm import bounds as spectrum
from spectile.kpm import reference
from spectile.kpm.checkpoint import Run
from spectile.kpm.curves import SpectralCurves, damping
from spectile.kpm.iterator import (
    OutsideBoundsError,
    Terms,
    begun,
    columns_at_once,
    given_vectors,
    is_doubled,
    within_bounds,
)
from spectile.kpm.moments import advance_watched, whole_number
from spectile.kpm.observables import Observable
from spectile.kpm.types import Array, Engine, Kernel

#: Returns the number of moments for half the width of the expansion.
Count = Callable[[float], int]


class SpectralExpectation:
    """Density ρ_A(E) = ⟨v|A δ(E − H)|v⟩ of the mean of vectors, or of each; ``kpm_dos(operator=)`` makes it.

    Random vectors have entries of size 1, so that the mean estimates the trace tr[A δ(E − H)].

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
        what: str,
        progress: bool,
    ) -> None:
        damping(kernel, 2)
        self._engine, self._source, self._count, self._fixed, self._grows = engine, source, count, bounds, grows
        self.kernel, self._is_mean, self._added, self._traced = kernel, flag("mean", mean), 0, traced
        self._operator = None if operator is None else Observable(operator, engine, "operator")
        self._num_vectors, self._what, self._shown = num_vectors, what, flag("progress", progress)
        with Run(what, progress=progress) as self._run:
            within_bounds(engine, bounds, self._begin, self._run)
        self._update()

    @property
    def num_moments(self) -> int:
        """M."""
        return self._count(1 / spectrum.scaling(self.bounds)[0]) + self._added

    @property
    def num_vectors(self) -> int:
        """R."""
        return self._num_vectors

    def add_moments(self, num_moments: int) -> None:
        """Add moments; the result is that of a construction with more."""
        self._added += whole_number(num_moments, "num_moments", 1)
        self._go_on()

    def add_vectors(self, num_vectors: int) -> None:
        """Add random vectors, or more of those that a function gives.

        Raises
        ------
        ValueError
            If the vectors were given as a block.
        """
        if not self._grows:
            raise ValueError("the vectors were given as a block: give a function of a vector's number, or more of them")
        self._num_vectors += whole_number(num_vectors, "num_vectors", 1)
        self._go_on()

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
        return value, self._error(self._each.integrate(f, damped=damped), -1)

    def _begin(self, bounds: tuple[float, float]) -> None:
        """Expand all vectors from the start, with these bounds."""
        self.bounds = bounds
        self._chunks: list[Any] = []
        self._extend()

    def _go_on(self) -> None:
        """Bring all vectors to M moments; bounds of our own that turn out too narrow are widened."""
        with Run(self._what, progress=self._shown) as self._run:
            try:
                self._extend()
            except OutsideBoundsError:
                if self._fixed is not None:
                    raise
                within_bounds(self._engine, None, self._begin, self._run)
        self._update()

    def _extend(self) -> None:
        length, progress = self.num_moments, self._run.progress
        require_host_free(64 * self._num_vectors * length, "the moments of all vectors")
        done = sum(chunk.width for chunk in self._chunks)
        width = columns_at_once(self._engine, max(4, 3 * (self._num_vectors - done) / 64))
        while done < self._num_vectors:
            stop = min(self._num_vectors, done + width)
            self._chunks.append(chunk_of(self._engine, self._operator, self._source(done, stop), self.bounds, progress))
            done = stop
        progress.total = progress.done + sum(chunk.left(length) for chunk in self._chunks)
        for chunk in self._chunks:
            chunk.extend(length, progress)

    def _update(self) -> None:
        each = np.concatenate([chunk.moments for chunk in self._chunks], axis=1)[: self.num_moments]
        # A trace of a Hermitian operator is real; what one vector gives is not, as A and H need not commute.
        each = each.real if self._operator is None or (self._traced and self._operator.hermitian) else each
        self._each = SpectralCurves(each, self.bounds, self.kernel)
        mean = each.mean(axis=1)
        self._curves = SpectralCurves(mean[:, None], self.bounds, self.kernel) if self._is_mean else self._each
        self.scale, self.centre, self.energies = self._each.scale, self._each.centre, self._each.energies
        self.moments = mean if self._is_mean else each
        self.densities = self._curves.densities[:, 0] if self._is_mean else self._curves.densities
        self.errors = self._error(self._each.densities, 1)

    def _error(self, values: Array, axis: int) -> Any:
        if values.shape[axis] == 1:
            return np.full(values.shape[:-1], np.nan)[()]
        return (values.std(axis=axis, ddof=1) / np.sqrt(values.shape[axis]))[()]


class _Alone:
    """⟨v|T_m|v⟩ of a block: two moments a step."""

    def __init__(self, engine: Engine, vectors: Any, bounds: tuple[float, float]) -> None:
        # Of complex vectors on a real H the moments are those of their parts.
        self._doubled = is_doubled(engine, vectors)
        self._recursion = begun(engine, vectors, bounds)
        self._etas, self._bounds = np.empty((0, self._recursion.num_vectors)), bounds
        self.width = vectors.shape[1]

    def left(self, length: int) -> int:
        """Return how many products of H with a vector bring this to so many moments."""
        return max(0, -(-(length - len(self._etas)) // 2)) * self._recursion.num_vectors

    def extend(self, length: int, progress: Progress) -> None:
        self._etas, inside = advance_watched(self._recursion, self._etas, length, progress)
        if not inside:
            raise OutsideBoundsError(f"the spectrum leaves the given bounds {self._bounds}: give wider ones")

    @property
    def moments(self) -> Array:
        moments = reference.moments_from_etas(self._etas)
        return moments.reshape(len(moments), -1, 2).sum(axis=2) if self._doubled else moments


class _Between:
    """⟨v|A T_m|v⟩ of a block: one moment a step."""

    def __init__(
        self, engine: Engine, operator: Observable, vectors: Any, bounds: tuple[float, float], progress: Progress
    ) -> None:
        self._terms = Terms(engine, vectors, bounds, progress)
        self._bra = operator.adjoint(engine.xp.ascontiguousarray(vectors)).conj()
        self._factor, self.width = operator.factor, vectors.shape[1]
        self._found: list[Array] = []

    def left(self, length: int) -> int:
        """Return how many products of H with a vector bring this to so many moments."""
        return max(0, length - max(1, len(self._found))) * self.width

    def extend(self, length: int, progress: Progress) -> None:
        self._terms.progress = progress
        for m in range(len(self._found), length):
            if m:
                self._terms.step()
            wide = np.result_type(self._bra.dtype, np.float64)
            self._found.append(
                (self._bra * self._terms.vectors()).sum(axis=0, dtype=np.result_type(wide, self._terms.dtype))
            )
        self._terms.finish()

    @property
    def moments(self) -> Array:
        host = [each if isinstance(each, np.ndarray) else each.get() for each in self._found]
        return np.asarray(self._factor * np.array(host))


def chunk_of(
    engine: Engine, operator: Observable | None, vectors: Any, bounds: tuple[float, float], progress: Progress
) -> Any:
    """Return what expands a block of vectors: it has ``extend``, ``left``, ``moments`` and ``width``."""
    if operator is None:
        return _Alone(engine, vectors, bounds)
    return _Between(engine, operator, vectors, bounds, progress)


def moments_with(
    engine: Engine,
    operator: Any,
    vectors: Callable[[int, int], Array],
    count: int,
    num_moments: Count,
    bounds: tuple[float, float] | None,
    what: str,
    progress: bool,
) -> tuple[Array, tuple[float, float]]:
    """Return ⟨v|A T_m|v⟩ of given vectors, shape (M, K), and the bounds: as :func:`moments.moments_of`."""
    held = SpectralExpectation(
        engine, operator, vectors, count, num_moments, "none", bounds, mean=False, grows=False, traced=False,
        what=what, progress=progress,
    )  # fmt: skip
    return held.moments, held.bounds


def source_of(engine: Engine, vectors: Any) -> tuple[Callable[[int, int], Any], int | None]:
    """Return ``source(first, stop)`` of the caller's vectors, and how many there are; None for a function.

    Parameters
    ----------
    engine : Engine
        H.
    vectors : array, shape (N, R) or (N,), or callable
        A block, or ``vectors(number)``, shape (N,).
    """
    if not callable(vectors):
        block = given_vectors("vectors", vectors, engine.xp, (engine.num_rows, None))
        return lambda first, stop: block[:, first:stop], block.shape[1]

    def made(first: int, stop: int) -> Any:
        columns = [given_vectors("vectors", vectors(n), engine.xp, (engine.num_rows, 1)) for n in range(first, stop)]
        return engine.xp.concatenate(columns, axis=1)

    return made, None
