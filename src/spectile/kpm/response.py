"""Linear response: correlators of two operators, and the conductivity from one set of moments.

García, Covaci and Rappoport, Phys. Rev. Lett. 114, 116602 (2015), "GCR" below.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spectile.core.copies import Fixed
from spectile.core.device import Backend
from spectile.core.memory import require_host_free
from spectile.core.options import number, numbers, positive_number, whole_number, word
from spectile.core.pictures import shown, shown_html
from spectile.kpm import bounds as spectrum
from spectile.kpm.checkpoint import Run
from spectile.kpm.curves import damping, drawn
from spectile.kpm.iterator import (
    OutsideBoundsError,
    Terms,
    columns_at_once,
    engine_for,
    most_rows,
    over_ranks,
    own_rows,
    random_source,
    room_for_vectors,
    slices_of,
    within_bounds,
)
from spectile.kpm.moments import check_counts, make_engine, where_it_works
from spectile.kpm.observables import Observable, velocity
from spectile.kpm.operators.protocol import on_host
from spectile.kpm.reference import standard_error
from spectile.kpm.types import Array, Engine, Kernel

Formula = Literal["bastin", "greenwood"]
#: Share of the free memory that kept vectors may take, the recurrences' own beside them.
SHARE = 0.85
#: Vectors of a block that are kept on the right: so many at least, so many where there is room, as larger products are
#: nearer a GPU's peak; and those that exist beside all that are kept.
RIGHT, MOST_RIGHT, BESIDE = 64, 256, 12
#: Columns of a product's tile: others than whole tiles take as long as them.
WHOLE = 128
#: By how much the bounds are widened on either side, so that damped edges of a spectrum are integrated to their ends.
MARGIN = 0.06
#: Products of energies and moments that are made at a time.
ENERGIES = 1 << 22


class Correlator(Fixed):
    """Moments μ_mn = tr[A T_m(H̃) B T_n(H̃)]; :func:`correlator` makes it.

    Attributes
    ----------
    moments : ndarray, shape (M, M)
        Estimate of μ_mn, undamped; real where all of H, A, B and the vectors are.
    moments_by_vector : ndarray, shape (R, M, M)
        The estimate of each vector.
    scale, centre : float
        Of H̃ = (H − `centre`) / `scale`.
    bounds : (float, float)
        Energies between which the spectrum lies.
    """

    def __init__(self, moments_by_vector: Array, bounds: tuple[float, float], kernel: Kernel) -> None:
        self.moments_by_vector, self.bounds, self.kernel = moments_by_vector, bounds, kernel
        self.moments = moments_by_vector.mean(axis=0)
        a, self.centre = spectrum.scaling(bounds)
        self.scale = 1 / a
        half = np.ones(self.num_moments)
        half[0] = 0.5
        self._damped = damping(kernel, self.num_moments) * half

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        low, high = self.bounds
        return [
            f"{self.num_moments} x {self.num_moments} moments of {self.num_vectors} vectors",
            f"energies {low:.6g} to {high:.6g}",
        ]

    @property
    def num_moments(self) -> int:
        """M."""
        return int(self.moments.shape[0])

    @property
    def num_vectors(self) -> int:
        """R."""
        return len(self.moments_by_vector)

    def __call__(self, first: npt.ArrayLike, second: npt.ArrayLike) -> Array:
        """Return j(E, E') = tr[A δ(E − H) B δ(E' − H)], damped and zero outside, of two arrays of energies."""
        one, two = np.broadcast_arrays(numbers("first", first), numbers("second", second))
        values = self._density(self.moments, self._scaled(one.ravel()), self._scaled(two.ravel()))
        return np.where(np.isnan(one) | np.isnan(two), np.nan, values.reshape(one.shape))

    def damped(self, moments: Array) -> Array:
        """Return moments with the kernel's factors and those of the series' first terms."""
        return moments * self._damped[:, None] * self._damped

    def _scaled(self, energies: Array) -> Array:
        return (energies - self.centre) / self.scale

    def _density(self, moments: Array, x: Array, y: Array) -> Array:
        """Return j at scaled energies, per unit of both unscaled ones."""
        inside = (abs(x) < 1) & (abs(y) < 1)
        x, y = np.where(inside, x, 0.0), np.where(inside, y, 0.0)
        weight = np.where(inside, 4 / (np.pi**2 * np.sqrt(1 - x**2) * np.sqrt(1 - y**2)), 0.0)
        damped, values = self.damped(moments), np.empty(x.shape, moments.dtype)
        for some in slices_of(len(x), max(1, ENERGIES // self.num_moments)):
            left, right = (polynomials(z[some], self.num_moments) for z in (x, y))
            values[some] = ((left @ damped) * right).sum(axis=1)
        # The square of the scale may leave the range where the quotient does not.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values * weight / self.scale / self.scale


def correlator(
    H: Any,
    A: Any,
    B: Any,
    *,
    num_moments: int = 256,
    num_vectors: int = 8,
    vectors: Any = None,
    kernel: Kernel = "jackson",
    rng: int | np.random.Generator | None = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    memory_limit: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> Correlator:
    """Compute the moments μ_mn = tr[A T_m(H̃) B T_n(H̃)] of two operators.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N).
    A, B : matrix, object with ``@``, callable or None
        Sparse or dense, shape (N, N); or what gives A times a block of vectors, shape (N, R), by ``@`` or by a call,
        and is Hermitian.  None is the identity.
    num_moments : int
        M, in either direction.
    num_vectors : int
        R, random vectors of the trace.
    vectors : array, shape (N, R), or None
        Vectors to take instead: the trace is N times the mean of ⟨v|...|v⟩/⟨v|v⟩, which the rows of the identity make
        exact, and one row of each kind where H has equivalent sites.
    kernel : {"jackson", "lorentz", "none"} or callable
        Damping, when the moments are summed up.
    rng : int, Generator or None
        Seed or generator of the random vectors.
    bounds, backend
        As in :func:`kpm_dos`.
    memory_limit : int or None
        Bytes for vectors that are kept, of each rank where there are several, which keeps its own rows; most of what
        is free if None.  With less memory the recurrence is repeated.
    checkpoint, checkpoint_s, progress
        As in :func:`evolve`; a continued call repeats at most two recurrences.

    Returns
    -------
    Correlator

    Raises
    ------
    ValueError
        As :func:`kpm_dos`; if an operator's shape does not fit, it writes into its input, or, where it is no matrix, it
        is not Hermitian; if the checkpoint is of another call.
    MemoryError
        If the moments do not fit into memory.
    OSError
        If the checkpoint cannot be written where it is to be.

    Notes
    -----
    Some of the vectors T_m A†|r⟩ are kept, as many as memory holds, and multiplied with blocks of B T_n|r⟩ as
    matrices.  GCR, Eq. (6).

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import correlator
    >>> from spectile.kpm.operators.lattices import chain
    >>> mu = correlator(chain(10), None, None, num_moments=4, vectors=np.eye(10), backend="cpu").moments
    >>> bool(abs(mu[1, 2] - (mu[0, 3] + mu[0, 1]) / 2) < 1e-12)  # T_1 T_2 = (T_3 + T_1) / 2
    True
    """
    with Run("correlator", H, progress, checkpoint, checkpoint_s) as run:
        return _correlated(
            run, H, (A, B), num_moments, num_vectors, vectors, kernel, rng, bounds, backend, memory_limit
        )


def _correlated(
    run: Run,
    H: Any,
    operators: Sequence[Any],
    num_moments: int,
    num_vectors: int,
    vectors: Any,
    kernel: Kernel,
    rng: int | np.random.Generator | None,
    bounds: tuple[float, float] | None,
    backend: Backend,
    memory_limit: int | None,
    margin: float = 0.0,
) -> Correlator:
    """Return what :func:`correlator` does; `margin` widens the bounds by this share of their half width."""
    num_moments, num_vectors = check_counts(num_moments, num_vectors)
    damping(kernel, 2)
    if memory_limit is not None:
        memory_limit = min(2**62, whole_number(memory_limit, "memory_limit", 1))
    if vectors is None:
        engine, given, seed = make_engine(H, backend), None, run.seed(rng)
    else:
        if callable(vectors):
            raise TypeError("vectors is a function: give a block of them, shape (N, R)")
        engine, given = engine_for(H, vectors, backend)
        largest = abs(given).max(axis=0)
        if not bool((largest > 0).all()):
            raise ValueError("vectors hold a column of zeros: leave it out")
        given = given / largest  # whose squares are within any type's range
        norms = (abs(given) ** 2).sum(axis=0)
        given *= (np.sqrt(engine.num_rows) / engine.xp.sqrt(norms)).astype(norms.dtype)
        num_vectors, seed = given.shape[1], -1
    require_host_free(3 * 16 * num_vectors * num_moments**2, "the moments of all vectors")
    start = random_source(engine, seed) if given is None else lambda first, stop: given[:, first:stop]
    one = Observable(operators[0], engine, "A")
    two = one if operators[1] is operators[0] else Observable(operators[1], engine, "B")

    def work(tried: tuple[float, float]) -> tuple[Array, tuple[float, float]]:
        low, high = tried
        more = margin * (high / 2 - low / 2)
        memory = int(SHARE * room_for_vectors(engine)) if memory_limit is None else memory_limit
        shown = start(0, 1)
        expansion = _Expansion(engine, one, two, num_moments, (low - more, high + more), run, shown)
        widths = np.array([expansion.width(memory), max(1, memory)])
        moments = np.zeros((num_vectors, num_moments, num_moments), np.result_type(*expansion.kinds, np.float64))

        def arguments() -> Iterator[Any]:
            yield from (num_moments, given, seed, margin, memory_limit)
            yield from (each.shown() for each in (one, two))

        run.begin(tried, arguments(), widths, moments=moments)
        width, memory = widths.tolist()
        for first in range(0, num_vectors, width):
            stop = min(num_vectors, first + width)
            expansion.fill(moments[first:stop], functools.partial(start, first, stop), memory)
        return moments, expansion.bounds

    try:
        by_vector, used = within_bounds(engine, bounds, work, run)
    except OutsideBoundsError:
        raise OutsideBoundsError(
            f"the spectrum leaves the given bounds {bounds}: give wider ones, or None to have them found"
        ) from None
    factor = one.factor * two.factor
    return Correlator(by_vector * (factor.real if factor.imag == 0 else factor), used, kernel)


class _Expansion:
    """μ_mn = ⟨v|A T_m B T_n|v⟩ of blocks of vectors, in stages of a run: products of some m with some n."""

    def __init__(
        self,
        engine: Engine,
        A: Observable,
        B: Observable,
        count: int,
        bounds: tuple[float, float],
        run: Run,
        shown: Any,
    ) -> None:
        self.engine, self.A, self.B, self.count, self.bounds, self.run = engine, A, B, count, bounds, run
        # Types of the vectors on the left and on the right, of start vectors like the one that is shown.
        self.kinds = [np.result_type(each(shown).dtype, shown.dtype, engine.dtype) for each in (A.adjoint, B)]
        # Bytes of a vector that is kept, of which a rank of several keeps its own rows.
        self.vector_bytes = most_rows(engine) * max(kind.itemsize for kind in self.kinds)

    def width(self, memory: int) -> int:
        """Return how many vectors to take together, in so many bytes for what is kept.

        So few that all vectors on the left are kept, if one's can be: else the recurrence on the right is repeated,
        which costs more than wider blocks save.
        """
        each = (self.count + min(self.count, RIGHT) + BESIDE) * self.vector_bytes
        most = max(1, min(8, columns_at_once(self.engine, 4), memory // each))
        return 1 << (most.bit_length() - 1)

    def _keeping(self, kept: Any) -> Callable[[Any, int], None]:
        """Return what writes B times a block to a place of what is kept, shape (R, places, N).

        Of a matrix on a GPU by one kernel, which leaves each vector in one piece.
        """
        matrix, dtype = self.B._matrix, kept.dtype
        if self.engine.xp is np or matrix is None or not matrix.dtype == self.engine.dtype == dtype:
            product = self.B.of_own_rows(dtype) if hasattr(self.engine, "own_vectors") else self.B
            return lambda block, place: _keep(kept, place, product(block))
        from spectile.kpm.cuda.csr.launch import CsrOperator

        step = CsrOperator(matrix).turning(len(kept), kept.strides[0] // dtype.itemsize)

        def keep(block: Any, place: int) -> None:
            step(self.engine.xp.ascontiguousarray(block), kept[:, place], 1.0, 0.0, 0.0, None)

        return keep

    def fill(self, moments: Array, start: Callable[[], Any], memory: int) -> None:
        """Write the moments of the vectors that `start` returns, shape (R, M, M), in so many bytes for vectors."""
        run, xp, count = self.run, self.engine.xp, self.count
        width, block = len(moments), start()
        # Vectors of either kind that are kept: as many on the left as possible, fewer on the right.
        held = memory // (width * self.vector_bytes) - BESIDE
        right_count = max(1, min(RIGHT, count, held // 3), min(MOST_RIGHT, count, held - count))
        if right_count > WHOLE:
            right_count -= right_count % WHOLE
        left_count = max(1, min(count, held - right_count))
        pieces = [slice(k, min(k + right_count, count)) for k in range(0, count, right_count)]
        chunks = [slice(m, min(m + left_count, count)) for m in range(0, count, left_count)]
        run.progress.total = run.progress.done + (count - 1) * width * (1 + len(chunks))
        if run.past(len(pieces) * len(chunks)):
            return
        starts = [own_rows(self.engine, each) for each in (self.A.adjoint(block), block)]
        left = Terms(self.engine, starts[0], self.bounds, run.progress)
        lefts = xp.empty((width, left_count, len(starts[0])), self.kinds[0])
        rights = xp.empty((width, right_count, len(starts[1])), self.kinds[1])
        keep_image = self._keeping(rights)
        for rows in chunks:
            done = run.past(len(pieces))
            for m in range(rows.start, rows.stop):
                if m:
                    left.step()
                if not done:
                    _keep(lefts, m - rows.start, left.vectors(), conjugated=True)
                run.pause(dict)
            if done:
                continue
            right, at = Terms(self.engine, starts[1], self.bounds, run.progress), 0
            for columns in run.each(pieces):
                for n_right in range(columns.start, columns.stop):
                    while at < n_right:
                        right.step()
                        at += 1
                    keep_image(right.vectors(), n_right - columns.start)
                # One vector after the other: of matrices in two dimensions nothing is copied, not even transposed, and
                # a GPU's library splits the long sums among all multiprocessors.
                for one, left_kept, right_kept in zip(moments, lefts, rights, strict=True):
                    product = left_kept[: rows.stop - rows.start] @ right_kept[: columns.stop - columns.start].T
                    one[rows, columns] = over_ranks(self.engine, on_host(product))
            right.finish()
        left.finish()


def _keep(kept: Any, place: int, block: Any, *, conjugated: bool = False) -> None:
    """Write each vector of a block (N, R), or its conjugate, to a row: kept has the shape (R, rows, N)."""
    if isinstance(block, np.ndarray) or not block.flags.c_contiguous:
        kept[:, place] = block.conj().T if conjugated else block.T
        return
    length, width = block.shape
    turned = _turning_kernel(conjugated and block.dtype.kind == "c")
    turned(block, width, kept.shape[1], place, length, kept, size=length)


@functools.cache
def _turning_kernel(conjugated: bool) -> Any:
    """Return the kernel whose threads read the numbers of a row, which are neighbours, and write each to its vector."""
    import cupy

    value = "conj(block[i * width + r])" if conjugated else "block[i * width + r]"
    return cupy.ElementwiseKernel(
        "raw S block, int64 width, int64 rows, int64 place, int64 length",
        "raw T kept",
        f"for (long long r = 0; r < width; ++r) kept[(r * rows + place) * length + i] = T({value});",
        "spectile_kpm_turned",
    )


class Conductivity:
    """Static and optical conductivity at any Fermi energy and temperature; :func:`conductivity` makes it.

    Attributes
    ----------
    correlator : Correlator
        The moments of the two velocities.
    area : float
        Area or volume of the sample.
    formula : {"bastin", "greenwood"}
        What a call evaluates.
    """

    def __init__(self, moments: Correlator, area: float, formula: Formula) -> None:
        self.correlator, self.area, self.formula = moments, area, formula

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        j = self.correlator
        low, high = j.centre - j.scale, j.centre + j.scale
        return [
            self.formula,
            f"{j.num_moments} moments of {j.num_vectors} vectors",
            f"energies {low:.6g} to {high:.6g}",
        ]

    def plot(self, mu: npt.ArrayLike | None = None, temperature: float = 0.0, axes: Any = None) -> Any:
        """Draw σ by Fermi energy, with a band of one standard error to both sides where there are several vectors.

        Parameters
        ----------
        mu : array_like, shape (n,), optional
            Fermi energies; by default 401 from one end of the spectrum to the other.
        temperature : float
            k_B T.
        axes : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            Without Matplotlib.
        """
        j = self.correlator
        levels = np.linspace(j.centre - j.scale, j.centre + j.scale, 401) if mu is None else np.atleast_1d(mu)
        values, errors = self(levels, temperature), self.error(levels, temperature)
        return drawn(axes, levels, values, errors, "Fermi energy", "conductivity")

    def __call__(self, mu: npt.ArrayLike = 0.0, temperature: float = 0.0) -> Any:
        """Return σ at Fermi energies.

        Parameters
        ----------
        mu : array_like
            Fermi energies.
        temperature : float
            k_B T, an energy.

        Returns
        -------
        ndarray or float, shape of `mu`
            In e²/h times a length to the power 2 − d, so e²/h in two dimensions.
        """
        return self._static(self._curves, mu, temperature)[0]

    def error(self, mu: npt.ArrayLike = 0.0, temperature: float = 0.0) -> Any:
        """Return the standard error of a call's result over the vectors; NaN for one vector."""
        return standard_error(self._static(self._curves_by_vector, mu, temperature), 0)

    def optical(
        self, omega: npt.ArrayLike, mu: float = 0.0, temperature: float = 0.0, *, points: int | None = None
    ) -> Any:
        """Return the absorptive part of the optical conductivity at frequencies ω.

        σ(ω) = (2π²/(A ω)) ∫ [f(E) − f(E + ω)] tr[v_α δ(E + ω − H) v_β δ(E − H)] dE, in the units of a call: the real
        part of σ_αα(ω), and (σ_αβ(ω) + σ_βα(ω)*)/2 for two directions.

        Parameters
        ----------
        omega : array_like
            ħω, energies that are not zero.
        mu, temperature : float
            Fermi energy and k_B T.
        points : int or None
            Energies at which the integrand is taken; four times the moments if None.

        Returns
        -------
        ndarray or number, shape of `omega`
            Complex where two directions make it so.
        """
        # A level beyond all energies is as good as an infinite one, whose differences are no numbers.
        frequencies, mu = numbers("omega", omega), float(np.clip(number("mu", mu), -1e300, 1e300))
        if not np.isfinite(frequencies).all() or (frequencies == 0).any():
            raise ValueError("omega must be finite and not zero: a call gives the static conductivity")
        from scipy.special import roots_legendre

        _require_temperature(temperature)
        j = self.correlator
        count = min(4 * j.num_moments, 2048) if points is None else whole_number(points, "points", 1)
        nodes, weights = roots_legendre(count)
        reach = 40 * temperature
        values = []
        for w in frequencies.ravel():
            low = max(min(mu - w, mu) - reach, j.centre - j.scale, j.centre - j.scale - w)
            high = min(max(mu - w, mu) + reach, j.centre + j.scale, j.centre + j.scale - w)
            half, middle = max(0.0, (high - low) / 2), (high + low) / 2
            energies = middle + half * nodes
            occupied = fermi(energies - mu, temperature) - fermi(energies + w - mu, temperature)
            values.append(2 * np.pi**2 / (self.area * w) * half * (weights * occupied) @ j(energies + w, energies))
        return np.array(values).reshape(frequencies.shape)[()]

    def _static(self, curves: Callable[[Array], Array], mu: npt.ArrayLike, temperature: float) -> Array:
        """Return the values of curves of zero temperature, shape (K, ...), at any."""
        _require_temperature(temperature)
        levels = numbers("mu", mu)
        if temperature == 0:
            return np.where(np.isnan(levels), np.nan, curves(levels))
        # ∫ (−f'(E)) σ(E) dE: −f' is analytic, so that equal steps converge fast; none is wider than the grid's.
        step = min(0.25, max(0.01, 0.5 * self._spacing / temperature))
        t = np.arange(-40, 40 + step, step)
        weights = step / (4 * np.cosh(t / 2) ** 2)
        return np.where(np.isnan(levels), np.nan, curves(levels[..., None] + temperature * t) @ weights)

    @property
    def _spacing(self) -> float:
        """Width of the narrowest structure of a curve in energy, at the centre."""
        return np.pi * self.correlator.scale / self.correlator.num_moments

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the curves, which are functions and made anew."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_curves")}

    @functools.cached_property
    def _curves(self) -> Callable[[Array], Array]:
        return self._zero_temperature(self.correlator.moments[None])

    @functools.cached_property
    def _curves_by_vector(self) -> Callable[[Array], Array]:
        return self._zero_temperature(self.correlator.moments_by_vector)

    def _zero_temperature(self, moments: Array) -> Callable[[Array], Array]:
        """Return the function of Fermi energies at zero temperature, shape (K, ...) for K sets of moments."""
        j = self.correlator
        if self.formula == "greenwood":

            def greenwood(levels: Array) -> Array:
                x = j._scaled(levels.ravel())
                values = [2 * np.pi**2 / self.area * j._density(each, x, x).real for each in moments]
                return np.array(values).reshape(len(moments), *levels.shape)

            return greenwood
        from scipy.interpolate import CubicSpline

        # The spectrum ends at ±FILL/(1 + MARGIN); beyond the middle of what is left there are but tails of the kernel.
        end = np.arccos((1 + spectrum.FILL / (1 + MARGIN)) / 2)
        theta = np.linspace(end, np.pi - end, 8 * j.num_moments)
        rate = np.array([self._bastin(each, theta) for each in moments])
        # Over energies from below: theta falls from π to 0.
        integral = CubicSpline(theta, rate, axis=1).antiderivative()
        below = integral(theta[-1])[:, None]

        def bastin(levels: Array) -> Array:
            at = np.arccos(np.clip(j._scaled(levels.ravel()), np.cos(theta[-1]), np.cos(end)))
            return (below - integral(at)).reshape(len(moments), *levels.shape)

        return bastin

    def _bastin(self, moments: Array, theta: Array) -> Array:
        """Return the integrand over θ = arccos x of Kubo and Bastin's formula, without the Fermi function."""
        j = self.correlator
        damped, n = j.damped(moments), np.arange(j.num_moments)
        values = np.empty(theta.shape)
        for some in slices_of(len(theta), max(1, ENERGIES // j.num_moments)):
            angle = theta[some, None]
            cosines, turns = np.cos(n * angle), np.exp(1j * n * angle)
            x, root = np.cos(angle), np.sin(angle)
            # Of G⁺ = −2i Σ_n e^(−inθ) T_n/sin θ and its adjoint; GCR print the complex conjugate.
            first = ((x + 1j * n * root) * turns.conj() * (cosines @ damped)).sum(axis=1)
            second = ((x - 1j * n * root) * turns * (cosines @ damped.T)).sum(axis=1)
            values[some] = (first + second).real
        return 8 / self.area * (values / j.scale / j.scale) / np.sin(theta) ** 3


def conductivity(
    H: Any,
    alpha: Any = "x",
    beta: Any = "x",
    positions: npt.ArrayLike | None = None,
    *,
    periods: npt.ArrayLike | None = None,
    area: float | None = None,
    num_moments: int = 256,
    num_vectors: int = 8,
    vectors: Any = None,
    kernel: Kernel = "jackson",
    rng: int | np.random.Generator | None = None,
    formula: Formula | None = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    memory_limit: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> Conductivity:
    """Compute the conductivity σ_αβ of a sample for all Fermi energies and temperatures from one set of moments.

    Kubo and Bastin: σ_αβ(μ) = i e² ħ/A ∫ f(E) tr[v_α δ(E − H) v_β dG⁺/dE − v_α dG⁻/dE v_β δ(E − H)] dE, for any two
    directions; Kubo and Greenwood: σ_αα(μ) = π e² ħ/A tr[v_α δ(μ − H) v_α δ(μ − H)].

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N); a stored matrix where velocities are made from it.
    alpha, beta : {"x", "y", "z"} or operator
        Directions, or velocities dr/dt = i [H, r] as :func:`correlator` takes operators.
    positions : array_like, shape (N, d), or None
        Position of each row's site.
    periods : array_like, shape (P, d), or None
        Vectors by which a periodic sample repeats: each hop then goes the shortest way.
    area : float or None
        A, area or volume of the sample; that which d `periods` span if None.
    num_moments, num_vectors, vectors, kernel, rng, bounds, backend, memory_limit, checkpoint, checkpoint_s, progress
        As in :func:`correlator`.
    formula : {"bastin", "greenwood"} or None
        Kubo and Greenwood's if None and `alpha` is `beta`, else Kubo and Bastin's.

    Returns
    -------
    Conductivity
        ``sigma(mu, temperature=0.0)`` in e²/h (in two dimensions), ``sigma.error(...)`` and ``sigma.optical(omega)``.

    Raises
    ------
    ValueError
        As :func:`correlator`; if positions are missing or not one for each row, the area is not known, or a hop of a
        periodic sample has two shortest ways.

    See Also
    --------
    correlator : of two operators of your own.
    velocity : the operators that it makes.

    Notes
    -----
    Energies are resolved to about π/M of the bandwidth, and a conductivity needs level spacings below that.  A
    Hamiltonian of one spin gives that of one spin.  The sign is that of v_α and v_β as above: current per field along
    β.  GCR, Eqs. (4) to (6).

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import conductivity
    >>> from spectile.kpm.operators.lattices import chain
    >>> ring, sites = chain(600, periodic=True), np.arange(600.0)[:, None]
    >>> sigma = conductivity(ring, positions=sites, periods=[[600.0]], vectors=np.eye(600)[:, :1], backend="cpu")
    >>> float(round(sigma(5.0), 9)), bool(sigma(0.0) > 10)
    (0.0, True)
    """
    if isinstance(alpha, str) or isinstance(beta, str):
        H = where_it_works(H, backend)  # its velocities are made there, too
    operators: list[Any] = []
    for name, direction in (("alpha", alpha), ("beta", beta)):
        if operators and isinstance(alpha, str) and alpha == direction:
            operators *= 2
        elif isinstance(direction, str):
            if positions is None:
                raise ValueError(
                    f"{name}={direction!r} needs positions=, one for each row of H: give them, or an operator"
                )
            operators.append(velocity(H, direction, positions, periods=periods))
        else:
            operators.append(direction)
    if area is None:
        spanned = None if periods is None else np.atleast_2d(numbers("periods", periods))
        if spanned is None or spanned.shape[0] != spanned.shape[1]:
            raise ValueError("area is not known: give area=, or as many periods as there are dimensions")
        area = float(abs(np.linalg.det(spanned)))
    area = positive_number(area, "area")
    same = alpha is beta or (isinstance(alpha, str) and alpha == beta)
    if formula is not None:
        word("formula", formula, "bastin", "greenwood")
    if formula == "greenwood" and not same:
        raise ValueError('formula="greenwood" is for one direction: take alpha=beta, or formula="bastin"')
    with Run("conductivity", H, progress, checkpoint, checkpoint_s) as run:
        moments = _correlated(
            run, H, operators, num_moments, num_vectors, vectors, kernel, rng, bounds, backend, memory_limit, MARGIN
        )
    return Conductivity(moments, area, formula or ("greenwood" if same else "bastin"))


def polynomials(x: Array, count: int) -> Array:
    """Return T_m(x) for m below `count`: shape (len(x), count)."""
    return np.asarray(np.cos(np.arange(count) * np.arccos(x)[:, None]))


def fermi(energy: Array, temperature: float) -> Array:
    """Return 1/(exp(E/k_B T) + 1), a step (1/2 at zero) for zero temperature."""
    if temperature == 0:
        return np.heaviside(-energy, 0.5)
    return 0.5 * (1 - np.tanh(energy / (2 * temperature)))


def _require_temperature(temperature: float) -> None:
    if not 0 <= number("temperature", temperature) < np.inf:
        raise ValueError(f"temperature={temperature} is invalid: give k_B T, an energy that is not negative")
