"""Eigenpairs inside a spectrum: how many there are in an interval, and all of them by a filter of polynomials."""

from __future__ import annotations

import functools
import math
import os
import reprlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spectile.core.device import Backend
from spectile.core.memory import require_host_free
from spectile.core.options import flag, positive_number, whole_number
from spectile.core.pictures import ends_told, shown, shown_html
from spectile.core.progress import Progress
from spectile.kpm import bounds as spectrum
from spectile.kpm import reference
from spectile.kpm.checkpoint import PRODUCTS, Run
from spectile.kpm.density import SpectralDensity
from spectile.kpm.functions import column_sums, sums_at_once
from spectile.kpm.iterator import columns_at_once, random_source, room_for_vectors, slices_of, within_bounds
from spectile.kpm.moments import check_counts, make_engine
from spectile.kpm.operators.protocol import on_host
from spectile.kpm.reference import seed_of
from spectile.kpm.types import Array, Engine

#: Vectors for each state that is expected in the interval, at least; beyond those within the filter's reach for each of
#: them, and beside them.
OVERSAMPLED, SPARE, BESIDE = 1.25, 0.1, 12
#: The first where the polynomial's degree is given.
GIVEN = 3.0
#: The logarithm of the ratio by which the first sweep's polynomial, of all vectors, separates, over that of two alike;
#: the second's, of those that the interval needs, makes up for it.
FIRST = 15 / 16
#: Products that take as long as, for each vector of a basis, its part in making it.
PRODUCTS_OF_BASIS = 1 / 16
#: How alike what is left of two states beyond the reach is.
ALIKE = 0.1
MOST_SWEEPS = 60
#: Moments of the density by which states are counted.
MOST_MOMENTS = 1 << 15
#: Times the width of a spectrum from which bounds are told to be too wide.
WIDE = 10.0
#: Resolutions from an end of the interval beyond which its sharpness does not matter.
FAR = 2.0
#: Half widths, over that of the interval, beyond which a filter leaves little.
LEAST_REACH, MOST_REACH = 1.25, 64.0
#: Growth with the degree that stands for none that float64 shows, of an interval too narrow for its reach.
SLOWEST = 1e-30
#: Arrays as large as all filtered vectors for which there must be room: these, and as much for what works on parts.
ARRAYS = 2
#: Bytes of rows of vectors that products of all of them take at a time.
TOGETHER = 1 << 28
#: Of a Gram matrix's eigenvalues, the least over the largest of vectors that one more pass makes orthonormal.
NEARLY = 0.1
#: Passes after which what is missing is left out.
PASSES = 8


class Count(NamedTuple):
    """A number of states and its error."""

    #: Number of states, not rounded.
    value: float
    #: Standard error over the vectors, with half of the states that the energy resolution leaves at either end and what
    #: is counted of those beyond, or is not of those well within.
    error: float


class InteriorPairs(NamedTuple):
    """All eigenpairs in an interval."""

    #: Ascending, shape (K,), on the host.
    eigenvalues: Array
    #: Shape (N, K), where H was applied.
    eigenvectors: Any
    #: Norms of H x − λ x, shape (K,).
    residuals: Array
    #: What :func:`count` estimated beforehand.
    estimate: Count

    def __repr__(self) -> str:
        return shown(self)

    def _repr_html_(self) -> str:
        return shown_html(self)

    def _told(self) -> list[str]:
        largest = f"{float(self.residuals.max()):.2g}" if self.residuals.size else "none"
        return [
            ends_told("eigenvalues", self.eigenvalues),
            f"eigenvectors {' x '.join(f'{n:,}' for n in self.eigenvectors.shape)} {self.eigenvectors.dtype}",
            f"largest residual {largest}",
            f"estimated {self.estimate.value:.4g} ± {self.estimate.error:.2g}",
        ]


def count(
    H: Any,
    interval: tuple[float, float],
    *,
    num_moments: int = 512,
    num_vectors: int = 16,
    rng: int | np.random.Generator | None = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    progress: bool = True,
) -> Count:
    """Estimate how many eigenvalues lie in an interval.

    Parameters
    ----------
    H, num_moments, num_vectors, rng, bounds, backend, progress
        As in :func:`kpm_dos`.
    interval : (float, float)
        Lowest and highest energy.

    Returns
    -------
    Count
        ``value`` and ``error``.

    Raises
    ------
    ValueError, TypeError
        As :func:`kpm_dos`; if the interval is no two energies in order.

    Notes
    -----
    The damped density's integral in closed form: Di Napoli, Polizzi and Saad, Numer. Linear Algebra Appl. 23, 674
    (2016).

    Examples
    --------
    >>> from spectile.kpm import count
    >>> from spectile.kpm.operators.lattices import chain
    >>> found = count(chain(1000), (-1.0, 1.0), rng=1, backend="cpu")  # a third of them
    >>> bool(abs(found.value - 1000 / 3) < 4 * found.error)
    True
    """
    low, high = _ends(interval)
    num_moments, num_vectors = check_counts(num_moments, num_vectors)
    seed = seed_of(rng)
    with Progress("count", shown=flag("progress", progress), unit=PRODUCTS) as counted:
        engine = make_engine(H, backend, steps=num_moments // 2, num_vectors=num_vectors)
        engine.check_hermitian()
        found = spectrum.given_or_found(engine, bounds)
        density = SpectralDensity.of_engine(
            engine, num_moments, num_vectors, seed, found, fixed=bounds is not None, progress=counted
        )
    return _counted(density, low, high)


def _counted(density: SpectralDensity, low: float, high: float) -> Count:
    from scipy.fft import dct

    each, M = density.moments_by_vector, density.num_moments
    ends = np.clip((np.array([low, high]) - density.centre) / density.scale, -1, 1)
    weights = _window(ends, M) * reference.jackson_kernel(M)
    by_vector = weights @ each
    size = by_vector.size
    spread = by_vector.std(ddof=1) / math.sqrt(size) if size > 1 else math.sqrt(2 * abs(float(by_vector.mean())))
    resolution = np.pi / M * np.sqrt(1 - ends**2) * density.scale
    blurred = density(np.array([low, high])) * resolution / 2
    # States farther from both ends than the resolution count as what the damped window is there, which is not 1 or 0.
    x = np.clip((density.energies - density.centre) / density.scale, -1, 1)
    far = (abs(np.arccos(x)[:, None] - np.arccos(ends)) > FAR * np.pi / M).all(axis=1)
    window = dct(weights / np.where(np.arange(M), 2, 1), type=3, n=len(x))[::-1]
    tails = density.integrate(lambda _: far * abs(window - ((ends[0] < x) & (x < ends[1]))))
    return Count(float(by_vector.mean()), float(np.sqrt(spread**2 + np.sum(blurred**2) + tails**2) + 1e-12 * size))


def filter_diagonalize(
    H: Any,
    interval: tuple[float, float],
    *,
    num_states: int | None = None,
    num_moments: int | None = None,
    tolerance: float | None = None,
    rng: int | np.random.Generator | None = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> InteriorPairs:
    """Compute all eigenvalues in an interval inside the spectrum, and their eigenvectors.

    A block of vectors, more than there are states in the interval, is multiplied by a polynomial of H that is large on
    the interval and small beyond; H is diagonalized in the space that they span, and so on until all residuals are
    small: two times as a rule.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N).
    interval : (float, float)
        Lowest and highest energy.
    num_states : int or None
        Vectors to filter; as many as take the fewest products, of those that fit into memory, if None.
    num_moments : int or None
        Terms of the polynomial; so many that two multiplications suffice if None.
    tolerance : float or None
        Of the residuals, relative to half the width of the spectrum; they are checked.  Levels so close to an end of
        the interval belong to it.  None is 1e-10, or 64 ε of the largest energy if that is more; ε is that of H's type,
        or float64's for a stored matrix or a sample far from zero.
    rng : int, Generator or None
        Seed or generator of the first vectors.
    bounds, backend, checkpoint, checkpoint_s, progress
        As in :func:`evolve`.

    Returns
    -------
    InteriorPairs
        ``eigenvalues``, ``eigenvectors``, ``residuals`` and the ``estimate`` of :func:`count`, with which the number
        found agrees within four of its errors.

    Warns
    -----
    RuntimeWarning
        If the given bounds are more than ten times as wide as the spectrum: the products grow with their width.

    Raises
    ------
    ValueError, TypeError
        As :func:`kpm_dos`; if the interval is no two energies in order.
    MemoryError
        If the interval holds more states than fit into memory.
    RuntimeError
        If the residuals do not become small, or the number found is not the one estimated.

    See Also
    --------
    count : how many states an interval has.
    spectile.eigh : all states of a dense matrix.

    Notes
    -----
    Of all polynomials of its degree that are at most 1 outside of a wider interval, which is expected to hold as many
    states as there are vectors, it is the largest on the interval.  The method: Pieper et al., "High-performance
    implementation of Chebyshev filter diagonalization for interior eigenvalue computations", J. Comput. Phys. 325, 226
    (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import filter_diagonalize
    >>> from spectile.kpm.operators.lattices import chain
    >>> pairs = filter_diagonalize(chain(300), (0.0, 0.05), rng=1, backend="cpu")
    >>> exact = np.sort(-2 * np.cos(np.pi * np.arange(1, 301) / 301))
    >>> bool(np.allclose(pairs.eigenvalues, exact[(exact > 0) & (exact < 0.05)], atol=1e-9))
    True
    """
    low, high = _ends(interval)
    tolerance = None if tolerance is None else positive_number(tolerance, "tolerance")
    given = None if num_moments is None else whole_number(num_moments, "num_moments", 2)
    wanted = None if num_states is None else whole_number(num_states, "num_states", 1)
    with Run("filter_diagonalize", H, progress, checkpoint, checkpoint_s) as run:
        seed, engine = run.seed(rng), make_engine(H, backend)

        if wanted is not None and wanted > engine.num_rows:
            raise ValueError(f"num_states = {reprlib.repr(num_states)} is too many: H has {engine.num_rows} states")
        if bounds is not None:
            _tell_if_wide(engine, spectrum.given_or_found(engine, bounds), high - low)
        if given is not None:
            require_host_free(16 * given, "a polynomial of so many moments")

        def work(tried: tuple[float, float]) -> InteriorPairs:
            # Moments that resolve an eighth of the interval's half width: vectors are filtered for states that may be.
            a, centre = spectrum.scaling(tried)
            hidden = a * spectrum.known_to(engine, tried)
            if 1.01 * spectrum.NARROWEST * hidden > spectrum.FILL:  # nothing is left of the spectrum
                spectrum.require_resolved(engine, tried, high - low, "the interval")
            length = max(256, min(MOST_MOMENTS, math.ceil(16 * math.pi / max(a * (high - low), 1e-7))))
            density = SpectralDensity.of_engine(
                engine, length, 16, seed, tried, fixed=bounds is not None, progress=run.progress
            )
            # What lies beyond the spectrum has no states, and the filter's middle no business there.
            inside = max(low, tried[0]), min(high, tried[1])
            ends = inside if inside[0] < inside[1] else (low, high)
            estimate = _counted(density, *ends)
            if max(low - centre, centre - high) * a > 1 + (tolerance or 0):  # as the norms showed
                vectors = engine.xp.zeros((engine.num_rows, 0), engine.dtype)
                return InteriorPairs(np.zeros(0), vectors, np.zeros(0), estimate)
            fitting = room_for_vectors(engine) // (ARRAYS * engine.num_rows * engine.dtype.itemsize)
            least = tolerance or max(1e-10, 64 * hidden)
            gain = math.log(_ratio(engine, max(1.0, estimate.value), least))
            most = min(engine.num_rows, fitting)
            # Of a given degree the ratio is the larger, the more vectors there are.
            many = min(most, math.ceil(GIVEN * (estimate.value + 2 * estimate.error)) + BESIDE) if given else None
            states, reach = _width(density, ends, estimate, wanted or many, most, gain)
            arguments = [low, high, num_states, num_moments, tolerance, seed]
            return _Filter(engine, *ends, states, given, least, estimate, arguments, run).run(tried, reach)

        pairs: InteriorPairs = within_bounds(engine, bounds, work, run)
        return pairs


def _tell_if_wide(engine: Engine, bounds: tuple[float, float], interval: float) -> None:
    """Warn where bounds are far wider than the spectrum and an interval, over which a filter's degree grows."""
    width = bounds[1] - bounds[0]
    if width <= WIDE * interval:  # whatever the spectrum is, which takes products to find
        return
    near = spectrum.lanczos(engine)
    times = width / max(near[1] - near[0], interval)
    if times > WIDE:
        warnings.warn(
            f"bounds={bounds} are {times:.2g} times as wide as the spectrum, about {near}, and the filter takes so "
            "many times the products: leave them out, or give closer ones",
            RuntimeWarning,
            stacklevel=3,
        )


@dataclass
class _Filter:
    """The sweeps of :func:`filter_diagonalize`, which explains the arguments."""

    engine: Engine
    low: float
    high: float
    states: int
    given: int | None
    tolerance: float
    estimate: Count
    arguments: list[Any]
    call: Run

    def _require_room(self, states: int) -> None:
        engine = self.engine
        needed = ARRAYS * engine.num_rows * states * engine.dtype.itemsize
        free = room_for_vectors(engine)
        if needed > free:
            raise MemoryError(
                f"the interval holds about {self.estimate.value:.0f} states, {states:,} vectors for them need "
                f"{needed:,} bytes and {free:,} are free: take a narrower interval"
            )

    def run(self, bounds: tuple[float, float], reach: float) -> InteriorPairs:
        """Filter and diagonalize until all pairs in the interval have converged."""
        self._require_room(self.states)
        engine, xp = self.engine, self.engine.xp
        a, b = spectrum.scaling(bounds)
        limit, (low, high) = self.tolerance / a, self.arguments[:2]
        ends = (np.array([self.low, self.high]) - b) * a
        ratio = _ratio(engine, self.states, self.tolerance)
        (first, sweeps), (second, _) = (
            _resonance(ends, reach * a, ratio**power, self.given) for power in (FIRST, 2 - FIRST)
        )
        source, rows = random_source(engine, self.arguments[-1]), engine.num_rows
        # As many random vectors as there are rows may be dependent, where these are few; the identity's are not.
        identity = functools.partial(xp.eye, rows, dtype=engine.dtype)
        # Of a pair that is not filtered again its residual, over its distance, times the square of what the first sweep
        # leaves is left in the interval's, as far as they are alike.
        apart = ALIKE * engine.num_rows / self.states * ratio ** (-2 * FIRST) / (limit * a)
        saved = self.call.length("block", 0)
        if saved:
            self._require_room(saved)
            block = xp.zeros((rows, saved), engine.dtype)
        else:
            block = identity() if self.states == rows else source(0, self.states)
        # Vectors made, pairs that the last sweep told from mixtures, sweeps done.
        counts = np.array([self.states, -1, 0])
        # Vectors that a sweep filters: all, and once the space holds the interval's states those that may be of it.
        # The others stay as they are: of what a state beyond the interval has left of itself in a pair, a sweep and
        # the diagonalization leave as much as if both were filtered.
        filtered = np.ones(block.shape[1], bool)
        while counts[2] < MOST_SWEEPS:
            widths = np.array([sums_at_once(engine, block, first[:, None])])
            self.call.begin(bounds, self.arguments, widths, block=block, counts=counts, filtered=filtered)
            weights = (second if counts[2] else first)[:, None]
            chosen = xp.asarray(np.flatnonzero(filtered))
            for columns, (piece,) in column_sums(engine, block, weights, bounds, self.call, widths[0], chosen):
                block[:, columns] = piece
                del piece
            values, block, residuals = self._diagonalized(block, a, reach)
            # A level at an end is one of the interval's: rounding puts its copies on both sides, and beyond the bounds.
            distance = np.maximum(low - values, values - high)
            inside = distance <= limit
            good = inside & (residuals <= limit)
            # What is left in the interval has either converged or is a mixture of states on both its sides.
            resolved = int((inside & (residuals <= max(limit, 0.05 * (self.high - self.low)))).sum())
            found = int(good.sum())
            held, filtered = counts[2] + 1 >= sweeps or block.shape[1] == rows, np.ones(block.shape[1], bool)
            if held:
                filtered[len(values) :] = False
                filtered[: len(values)] = (distance <= np.maximum(limit, apart * residuals)) & ~good
            full = inside.sum() + BESIDE // 2 > block.shape[1] and counts[0] < rows
            if full:
                more, made = min(rows - block.shape[1], max(BESIDE, block.shape[1] // 2)), int(counts[0])
                self._require_room(block.shape[1] + more)
                whole = block.shape[1] + more == rows
                block = identity() if whole else xp.concatenate([block, source(made, made + more)], axis=1)
                filtered = np.ones(block.shape[1], bool)
                counts[0], counts[2] = made + more, -1
            # Before vectors were filtered for it, what is missing need not show itself.
            elif (held or found > self.estimate.value + 4 * self.estimate.error - 0.5) and (
                found == resolved == counts[1] or (found and not (inside & ~good & (residuals < 4 * reach)).any())
            ):
                if abs(found - self.estimate.value) > 4 * self.estimate.error + 1:
                    break
                chosen = np.flatnonzero(good)
                vectors = block[:, xp.asarray(chosen)]
                # Of one sign or phase, in whichever order the work was done.
                phases = _overlaps(source(0, 1), vectors, xp)[0].conj()
                phases[phases == 0] = 1
                vectors *= (phases / abs(phases)).astype(vectors.dtype)
                return InteriorPairs(values[chosen], vectors, residuals[chosen], self.estimate)
            counts[1:] = resolved, counts[2] + 1
        raise RuntimeError(
            f"{found} pairs of the interval converged and {self.estimate.value:.1f} ± {self.estimate.error:.1f} are "
            "expected: give more num_states or num_moments, or a larger tolerance"
        )

    def _diagonalized(self, block: Any, a: float, reach: float) -> tuple[Array, Any, Array]:
        """Return Ritz values, vectors, written over a block, and residuals' norms of those near the interval.

        The block's other vectors stand behind them: mixtures of states on both sides.  Squares of the distance from the
        interval's middle show how far they are, about as far as the spectrum's end; between it and the reach lies the
        geometric mean of both.
        """
        xp: Any = self.engine.xp
        b = (self.low + self.high) / 2
        block = _orthonormal(block, xp)
        once, twice = (
            xp.concatenate([_overlaps(block, image, xp) for _, image in self._images(block, a, b, m)], axis=1)
            for m in (1, 2)
        )
        squares, turn = xp.linalg.eigh((twice + twice.conj().T) / 4)  # T_2 is 2 x² − 1
        near = int((squares + 0.5 <= max(a * reach, (a * reach) ** 2)).sum())
        some = turn[:, :near]
        once = some.conj().T @ once @ some
        values, within = xp.linalg.eigh((once + once.conj().T) / 2) if near else (xp.zeros(0), once)
        turn[:, :near] = some @ within
        block = _turned(block, turn)
        residuals = xp.empty(near)
        for columns, image in self._images(block[:, :near], a, b):
            image -= block[:, columns] * values[columns].astype(image.real.dtype)
            residuals[columns] = xp.linalg.norm(image, axis=0)
        levels, errors = (np.asarray(on_host(each)) for each in (values, residuals))
        return levels / a + b, block, errors / a

    def _images(self, block: Any, a: float, b: float, degree: int = 1) -> Iterator[tuple[slice, Any]]:
        """Yield T_degree of a (H − b) times some columns of a block, and which."""
        engine = self.engine
        for some in slices_of(block.shape[1], columns_at_once(engine, 3)):
            recursion: Any = engine.start(engine.xp.array(block[:, some], order="C", copy=True), a, b)
            recursion.advance(degree)
            yield some, recursion.vectors(recursion.blocks())


def _ratio(engine: Engine, states: float, tolerance: float) -> float:
    """Return the ratio of which two polynomials leave the tolerance of what R vectors hold beyond the reach.

    It is √(N/R) times as much as of a state.
    """
    return math.sqrt(100 * math.sqrt(engine.num_rows / states) / tolerance)


def _width(
    density: SpectralDensity, ends: tuple[float, float], estimate: Count, wanted: int | None, most: int, gain: float
) -> tuple[int, float]:
    """Return how many vectors to filter, and half the width, around the interval's middle, of one for as many states.

    Of those that fit the number, or `wanted`, that takes the fewest products; with more vectors the polynomials' degree
    is lower.  Never fewer than there are states within the least width: those of the interval would drown in them.
    `gain` is the logarithm of the ratio that each of two polynomials is to have.
    """
    middle, half = sum(ends) / 2, (ends[1] - ends[0]) / 2
    a, b = spectrum.scaling(density.bounds)
    needed = max(1.0, estimate.value + 2 * estimate.error)
    least = wanted or math.ceil(OVERSAMPLED * needed) + BESIDE
    best = math.inf, 0, 0.0
    # And beyond, doubled up to the whole spectrum, where it is more than rounding: few states may be near.
    far = range(max(1, (zoom := -math.frexp(MOST_REACH * a * half)[1]) - 52), max(1, zoom + 1))
    for wider in half * np.append(np.geomspace(LEAST_REACH, MOST_REACH, 64), [MOST_REACH * 2.0**k for k in far]):
        found = _counted(density, middle - wider, middle + wider)
        spare = max(2 * found.error, SPARE * found.value)
        states = min(density.shape[0], max(least, math.ceil(found.value + spare) + BESIDE))
        if best[1] and states > (wanted or max(least, most)):
            break
        degree = 2 * gain / max(SLOWEST, float(_growth(a * half, a * (middle - b), a * wider)))
        swept = FIRST * states + (2 - FIRST) * needed
        best = min(best, (swept * degree + 2 * PRODUCTS_OF_BASIS * states**2, states, float(wider)))
    return best[1:]


def _parts(block: Any) -> list[slice]:
    """Return slices of the rows of a block, few enough bytes each to be copied."""
    return slices_of(len(block), max(1, TOGETHER // (16 * block.shape[1])))


def _overlaps(left: Any, right: Any, xp: Any) -> Any:
    """Return leftᴴ right in double precision, a small matrix."""
    wide = np.result_type(left.dtype, np.float64)
    total = xp.zeros((left.shape[1], right.shape[1]), wide)
    for rows in _parts(left):
        total += left[rows].astype(wide, copy=False).conj().T @ right[rows].astype(wide, copy=False)
    return total


def _turned(block: Any, matrix: Any) -> Any:
    """Return block times a small matrix of no more columns than rows, written over the block."""
    count = matrix.shape[1]
    for rows in _parts(block):
        block[rows, :count] = block[rows].astype(matrix.dtype, copy=False) @ matrix
    return block[:, :count]


def _orthonormal(block: Any, xp: Any) -> Any:
    """Return an orthonormal basis of the space of a block, written over it: by its Gram matrix, so often as it takes.

    Directions that rounding hides in the Gram matrix are lengthened by as much as it shows, until it shows them; those
    that are not there at all become rounding's own, or are left out.  Stathopoulos and Wu, SIAM J. Sci. Comput. 23,
    2165 (2002).
    """
    for left in reversed(range(PASSES)):
        gram = _overlaps(block, block, xp)
        lengths = xp.sqrt(xp.diagonal(gram).real)
        lengths = xp.where(lengths > 0, lengths, 1)
        values, turn = xp.linalg.eigh(gram / lengths / lengths[:, None])
        floor = len(values) * np.finfo(np.float64).eps * values[-1]
        kept = values > (NEARLY * values[-1] if left == 0 else -xp.inf)
        block = _turned(block, (turn / lengths[:, None])[:, kept] / xp.sqrt(xp.maximum(values[kept], floor)))
        if bool(values[0] > NEARLY * values[-1]):
            break
    return block


def _window(ends: Array, count: int) -> Array:
    """Return the coefficients of a function that is 1 between two scaled energies and 0 beyond, shape (count,)."""
    upper, lower = np.arccos(ends)
    m = np.arange(1, count)
    return np.concatenate([[(upper - lower) / np.pi], 2 * (np.sin(m * upper) - np.sin(m * lower)) / (np.pi * m)])


def _resonance(ends: Array, reach: float, ratio: float, count: int | None) -> tuple[Array, float]:
    """Return coefficients of the polynomial that is largest between two scaled energies and small beyond their `reach`.

    Beyond half the width `reach` around their middle it is at most 1/`ratio` of its least value between them; `count`
    fixes the number of coefficients instead.  T_k of the parabola that maps what lies beyond to [−1, 1].  The second
    result is how often it has to be applied for that ratio.
    """
    from scipy.fft import dct

    middle, half = ends.sum() / 2, (ends[1] - ends[0]) / 2
    ratio, slope = max(2.0, ratio), max(SLOWEST, float(_growth(half, middle, reach)))
    if count is None:
        degree = max(1, math.ceil(math.acosh(ratio) / slope))
        require_host_free(128 * degree, "a polynomial of so high a degree")
    else:
        degree = max(1, (count - 1) // 2)
    points = 1 << (2 * degree + 1).bit_length()
    x = np.cos(np.pi * (np.arange(points) + 0.5) / points) - middle
    most, here = float(_growth(0.0, middle, reach)), _growth(x, middle, reach)
    inner = (1 + np.exp(-2 * degree * here)) / (1 + np.exp(-2 * degree * most)) * np.exp(degree * (here - most))
    angle = np.arccos(np.clip(_parabola(x, middle, reach), -1, 1))
    values = np.where(here > 0, inner, np.cos(degree * angle) / math.cosh(min(700.0, degree * most)))
    c = dct(values, type=2)[: 2 * degree + 1] / points
    c[0] /= 2
    gained = degree * slope + math.log1p(math.exp(-2 * degree * slope)) - math.log(2)  # the logarithm of its cosh
    return np.asarray(c), math.log(ratio) / gained


def _parabola(offset: Any, middle: float, reach: float) -> Any:
    """Return the parabola that maps what lies beyond a distance from the middle, as far as the spectrum, to [−1, 1]."""
    far = max(1 + abs(middle), 1.01 * reach)
    return (far**2 + reach**2 - 2 * offset**2) / (far**2 - reach**2)


def _growth(offset: Any, middle: float, reach: float) -> Any:
    """Return by how much the logarithm of the polynomial grows with its degree at a distance from the middle."""
    return np.arccosh(np.maximum(1, _parabola(offset, middle, reach)))


def _ends(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = spectrum.two_energies("interval", interval)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"interval=({low}, {high}) is empty: give the lowest and the highest energy, in this order")
    return low, high
