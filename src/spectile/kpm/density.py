"""The density of states as an object that can be continued, saved and loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from spectile.core.atomic_file import require_writable
from spectile.core.device import Backend
from spectile.core.memory import require_host_free
from spectile.core.options import flag, positive_number, whole_number
from spectile.core.options import path as named_path
from spectile.core.pictures import curve_html
from spectile.core.pointers import read_only
from spectile.core.progress import Progress
from spectile.kpm import bounds as spectrum
from spectile.kpm import reference
from spectile.kpm.checkpoint import (
    PRODUCTS,
    Continued,
    SavedState,
    comm_of,
    fingerprint,
    fingerprint_if_lent,
    matrix_of,
    on_any_rank,
    ranked,
    require_alike,
    require_unchanged,
    seconds_between,
    signals_deferred,
    write_arrays,
)
from spectile.kpm.curves import Drawn, SpectralCurves, damping, moments_for
from spectile.kpm.moments import LOOK_STEPS, MAX_BLOCK, advance_watched, check_counts, make_engine
from spectile.kpm.reference import seed_of, standard_error
from spectile.kpm.types import Array, Engine, Kernel, Named

#: What a file calls a kernel that is a function.
_CALLABLE = "callable"


class SpectralDensity(Continued, Drawn):
    """Density of states ρ(E) = Σ δ(E − E_n) of a matrix, by a stochastic trace over R vectors (paper, Eq. 2).

    Parameters are those of :func:`kpm_dos`.  A copy, also a deep one, goes on by itself, with the same H.  A pickle
    holds the numbers alone, without H: :meth:`save` keeps what it takes to go on in another process.

    Attributes
    ----------
    energies : ndarray, shape (2 M,)
        Energies of `densities`, ascending, in the units of H.
    densities : ndarray, shape (2 M,)
        States per unit energy; the integral is N.
    errors : ndarray, shape (2 M,)
        Standard error of `densities` over the vectors; NaN for R = 1.
    moments : ndarray, shape (M,)
        Estimates of tr T_m(H̃), undamped, with H̃ = (H − `centre`) / `scale`.
    moments_by_vector : ndarray, shape (M, R)
        The estimate of each vector.
    scale, centre : float
        Of H̃, in the units of H: the expansion reaches from `centre` − `scale` to `centre` + `scale`.
    bounds : (float, float)
        Energies between which the spectrum lies: `centre` ∓ 0.99 `scale`, so that it stays within [−0.99, 0.99].
    """

    _ylabel = "states per unit of energy"

    def __init__(
        self,
        H: Any,
        num_moments: int = 2000,
        num_vectors: int = 32,
        kernel: Kernel = "jackson",
        rng: int | np.random.Generator | None = None,
        *,
        bounds: tuple[float, float] | None = None,
        backend: Backend = "auto",
        energy_resolution: float | None = None,
        progress: bool = True,
    ) -> None:
        num_moments, num_vectors = check_counts(num_moments, num_vectors)
        damping(kernel, 2)
        seed, self._shown = seed_of(rng), flag("progress", progress)
        engine = make_engine(H, backend, steps=num_moments // 2, num_vectors=num_vectors)
        engine.check_hermitian()
        self._prepare(engine, kernel, seed, spectrum.given_or_found(engine, bounds), bounds is not None)
        with Progress("kpm_dos", shown=self._shown, unit=PRODUCTS) as self._progress:
            self._begin(num_moments, num_vectors, energy_resolution)
        self._progress = None
        self._fingerprint = fingerprint_if_lent(engine)

    @classmethod
    def of_engine(
        cls,
        engine: Engine,
        num_moments: int,
        num_vectors: int,
        seed: int,
        bounds: tuple[float, float],
        *,
        fixed: bool,
        progress: Progress,
    ) -> SpectralDensity:
        """Return the density of an engine whose H is known to be Hermitian; bounds that are not `fixed` may widen."""
        self = cls.__new__(cls)
        self._progress = progress
        self._prepare(engine, "jackson", seed, bounds, fixed)
        self._begin(num_moments, num_vectors, None)
        return self

    def _begin(self, num_moments: int, num_vectors: int, energy_resolution: float | None) -> None:
        self._num_moments, self._total = self._asked(num_moments, energy_resolution), num_vectors
        self._require_room(num_vectors, self._num_moments)
        self._start(num_vectors)
        while self._num_moments < (asked := self._asked(num_moments, energy_resolution)):  # wider bounds ask for more
            self._num_moments = asked
            self._advance()
        self._update()

    def __repr__(self) -> str:
        low, high = self.bounds
        moments, vectors = self.moments_by_vector.shape
        return (
            f"SpectralDensity({self.moments[0]:.6g} states, {moments} moments of {vectors} vectors, "
            f"energies {low:.6g} to {high:.6g})"
        )

    def _repr_html_(self) -> str:
        """Return the same with the curve, for notebooks."""
        return curve_html(repr(self), self.energies, self.densities)

    def _asked(self, num_moments: int, energy_resolution: float | None) -> int:
        """Return the moments that a call asks for, by their number or by an energy."""
        if energy_resolution is None:
            return num_moments
        resolved = positive_number(energy_resolution, "energy_resolution")
        return moments_for(resolved, self._engine, self.bounds)

    #: What counts the steps of several calls; each shows its own where there is none.
    _progress: Progress | None = None
    _shown = True
    #: Of an H that is not copied, once the call which makes the density is over.
    _fingerprint: Array | None = None

    def _prepare(self, engine: Engine, kernel: Kernel, seed: int, bounds: tuple[float, float], fixed: bool) -> None:
        """Take what an expansion needs; nothing is expanded yet."""
        self._num_rows = engine.num_rows
        self.kernel: Kernel = kernel
        self._seed, self._engine, self._fixed_bounds = seed, engine, fixed
        self._use(bounds)
        self._widenings = 0
        self._blocks: list[Any] = []
        self._etas: list[Array] = []
        self._finished: list[Array] = []  # scalar products of passes whose states are dropped
        self._keep = True

    def _use(self, bounds: tuple[float, float]) -> None:
        """Let the expansion use these bounds."""
        self.bounds, self._scaling = bounds, spectrum.scaling(bounds)

    @classmethod
    def with_checkpoints(
        cls,
        path: Path,
        H: Any,
        num_moments: int,
        num_vectors: int,
        kernel: Kernel,
        rng: int | np.random.Generator | None,
        bounds: tuple[float, float] | None,
        backend: Backend,
        seconds: float,
        energy_resolution: float | None = None,
        progress: bool = True,
    ) -> SpectralDensity:
        """Return a density whose state is written to a file meanwhile, and which goes on from the file if it exists.

        Parameters are those of :func:`kpm_dos`; `seconds` lie between two files.
        """
        num_moments, num_vectors = check_counts(num_moments, num_vectors)
        seconds, shown = seconds_between(seconds), flag("progress", progress)
        damping(kernel, 2)
        comm = comm_of(H)
        path = ranked(path, comm)
        require_writable(path)
        held = require_alike(comm, path, "num_moments", "finished")
        if held:
            self = cls.load(path, H, kernel=kernel if callable(kernel) else None, backend=backend)
        else:
            self = cls.__new__(cls)
            engine = make_engine(H, backend, steps=num_moments // 2, num_vectors=num_vectors)
            engine.check_hermitian()
            self._prepare(engine, kernel, seed_of(rng), spectrum.given_or_found(engine, bounds), bounds is not None)
            self._total = num_vectors
        self._fingerprint = None
        num_moments = self._asked(num_moments, energy_resolution)
        self._require_room(num_vectors, num_moments)
        if held:
            self._require_same(path, num_moments, num_vectors, kernel, rng, bounds)
        else:
            self._start_pass()
        with signals_deferred() as signals, Progress("kpm_dos", shown=shown, unit=PRODUCTS) as self._progress:
            written = time.monotonic()
            while self._num_moments < num_moments or self.num_vectors < num_vectors:
                if self._num_moments == num_moments:
                    self._start_pass()
                self.add_moments(min(2 * LOOK_STEPS, num_moments - self._num_moments))
                num_moments = self._asked(num_moments, energy_resolution)
                complete = self._num_moments == num_moments and self.num_vectors == num_vectors
                due = signals.waiting or (not complete and time.monotonic() - written > seconds)
                if on_any_rank(comm, due):
                    self.save(path)
                    written = time.monotonic()
                    signals.deliver()
        if self._finished:
            # One density of all passes, whose states are gone.
            self._etas, self._finished, self._keep = [*self._finished, *self._etas], [], False
            self._blocks = [None] * len(self._etas)
        self._progress, self._fingerprint = None, fingerprint_if_lent(self._engine)
        self._update()
        path.unlink(missing_ok=True)
        return self

    def _require_same(
        self,
        path: Path,
        num_moments: int,
        num_vectors: int,
        kernel: Kernel,
        rng: int | np.random.Generator | None,
        bounds: tuple[float, float] | None,
    ) -> None:
        """Raise ValueError where a file's state is not that of this call."""
        if (self._total, self.kernel) != (num_vectors, kernel) or self.num_moments > num_moments:
            raise ValueError(
                f"{path} holds {self.num_moments} moments of {self._total} vectors and the {self.kernel} kernel, not "
                f"{num_moments} of {num_vectors} and {kernel}: remove the file, or ask for the same again"
            )
        if bounds is not None and self.bounds != spectrum.given_or_found(self._engine, bounds):
            raise ValueError(f"{path} has bounds {self.bounds}, not {bounds}: remove the file, or give the same")
        if rng is not None and self._seed != seed_of(rng):
            raise ValueError(f"{path} belongs to another rng: remove the file, or give the same rng, or None")

    def _start_pass(self) -> None:
        """Drop the states of this pass, whose moments are known, and begin with as many vectors as fit together."""
        self._finished += self._etas
        self._blocks, self._etas, self._num_moments = [], [], 2
        self._add_blocks(min(self._total - self.num_vectors, self._engine.capacity()), MAX_BLOCK)
        self._advance()
        self._update()

    @property
    def num_moments(self) -> int:
        """M."""
        return self._num_moments

    @property
    def num_vectors(self) -> int:
        """R."""
        return sum(etas.shape[1] for etas in (*self._finished, *self._etas))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, N) of the matrix."""
        return (self._num_rows,) * 2

    def add_moments(self, num_moments: int) -> None:
        """Add moments; the result equals a construction with more, bitwise.

        Parameters
        ----------
        num_moments : int
            Moments to add, at least 1.

        Raises
        ------
        ValueError
            If H has been written to meanwhile and is not held as a copy, or this comes from a pickle, which holds no H.
        """
        length = self._num_moments + whole_number(num_moments, "num_moments", 1)
        require_unchanged(self._engine, self._fingerprint)
        self._require_room(self.num_vectors, length)
        with self._or_as_before():
            self._num_moments = length
            self._advance()
            self._update()

    def add_vectors(self, num_vectors: int) -> None:
        """Add random vectors: the same ones that a construction with more would take.

        Parameters
        ----------
        num_vectors : int
            Vectors to add, at least 1.

        Raises
        ------
        ValueError
            As :meth:`add_moments`.
        """
        num_vectors = whole_number(num_vectors, "num_vectors", 1)
        require_unchanged(self._engine, self._fingerprint)
        self._require_room(num_vectors, self._num_moments)
        with self._or_as_before():
            self._total += num_vectors
            self._start(num_vectors)
            self._update()

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return ρ at any energies, zero outside the bounds."""
        return self._mean(energy)[..., 0]

    def integrate(
        self, f: Callable[[Array], Array] | None = None, *, damped: bool = True, return_error: bool = False
    ) -> Any:
        """Return ∫ f(E) ρ(E) dE by Gauss–Chebyshev quadrature, complex where f is; f None is 1 and gives N.

        Parameters
        ----------
        f : callable or None
            Function of an array of energies, for example a Fermi distribution; it may give rows of values, shape
            (..., 2 M), for example of many temperatures.
        damped : bool
            Whether with the kernel; without it smooth functions are integrated to rounding.
        return_error : bool
            Return the standard error over the vectors beside it, NaN for one vector.

        Returns
        -------
        number or ndarray, or two of them
        """
        value = self._mean.integrate(f, damped=damped)[..., 0]
        value = value if value.ndim else value.item()
        if not flag("return_error", return_error):
            return value
        each = SpectralCurves(self.moments_by_vector, self.bounds, self.kernel, self._scaling).integrate(
            f, damped=damped
        )
        return value, standard_error(each, -1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, so that :meth:`load` can add moments later, bitwise as if never stopped.

        Parameters
        ----------
        path : path
            NumPy archive; replaced only when the new one is complete.  A kernel that is a function is not held.

        Raises
        ------
        ValueError
            If the states did not fit into memory together and were dropped, or as :meth:`add_moments`.
        TypeError, OSError
            If `path` is none, or the file cannot be written.
        """
        file = named_path("path", path)
        require_unchanged(self._engine, self._fingerprint)
        self._advance()  # what a call that was broken off has left to begin anew
        if None in self._blocks:
            raise ValueError(
                "the states did not fit into memory together and were dropped: there is nothing to go on from"
            )
        held = fingerprint(self._engine) if self._fingerprint is None else self._fingerprint
        arrays: dict[str, Any] = {
            "seed": self._seed, "bounds": self.bounds, "scaling": self._scaling, "num_moments": self._num_moments,
            "kernel": _CALLABLE if callable(self.kernel) else self.kernel,
            "fixed_bounds": self._fixed_bounds, "blocks": len(self._blocks), "finished": len(self._finished),
            "total": self._total, "widenings": self._widenings, **matrix_of(self._engine, held),
        }  # fmt: skip
        arrays |= {f"finished_{n}": etas for n, etas in enumerate(self._finished)}
        for n, (block, etas) in enumerate(zip(self._blocks, self._etas, strict=True)):
            arrays[f"etas_{n}"] = etas
            arrays |= {f"{key}_{n}": value for key, value in block.state().items()}
        write_arrays(file, arrays)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], H: Any, *, kernel: Kernel | None = None, backend: Backend = "auto"
    ) -> SpectralDensity:
        """Read a state written by :meth:`save`.

        Parameters
        ----------
        path : path
            The file.
        H : as in :func:`kpm_dos`
            The same matrix as when the state was written.
        kernel : as in :func:`kpm_dos`, or None
            Damping; None takes that of the file, which holds names only.
        backend : {"auto", "cpu", "cuda"}
            The backend that wrote the state.

        Raises
        ------
        ValueError
            If the file is no such state or damaged, or H not the matrix, or the backend not the one, of the state, or
            its kernel was a function and none is given.
        """
        self, state = cls.__new__(cls), SavedState(path)
        on_host = backend == "auto" and state.text("backend") == "cpu"
        engine = self._engine = make_engine(H, "cpu" if on_host else backend)
        self._num_rows, own = engine.num_rows, fingerprint(engine)
        state.require_engine(engine, own)
        self._fingerprint = own if engine.lent else None
        self.kernel = state.text("kernel") if kernel is None else kernel  # type: ignore[assignment]
        if self.kernel == _CALLABLE:
            raise ValueError(f"{path} was written with a function as kernel: give it as kernel= again")
        if kernel is None and self.kernel not in get_args(Named):
            raise state.damaged(f"kernel is {self.kernel}")
        self._seed, self._num_moments = state.number("seed", 0), state.number("num_moments", 2)
        self._fixed_bounds = bool(state.array("fixed_bounds", np.bool_, ()))
        low, high = state.array("bounds", np.float64, (2,)).tolist()
        self.bounds = low, high
        a, b = state.array("scaling", np.float64, (2,)).tolist()
        if not (low <= b <= high and a > 0):
            raise state.damaged(f"bounds {self.bounds} and scaling {(a, b)} are not of one spectrum")
        self._scaling = a, b
        self._keep, self._total, self._widenings = True, state.number("total", 1), state.number("widenings", -1)
        self._finished = [
            state.etas(f"finished_{n}", self._num_moments, engine.num_rows) for n in range(state.number("finished", 0))
        ]
        self._etas = [
            state.etas(f"etas_{n}", self._num_moments, engine.num_rows) for n in range(state.number("blocks", 1))
        ]
        if self.num_vectors > self._total:
            raise state.damaged(f"it holds {self.num_vectors} vectors of {self._total}")
        self._blocks = []
        for n, etas in enumerate(self._etas):
            # As wide as the block that was saved: the kernel, and so the rounding, depends on the width.
            block = engine.random(self._seed, 0, etas.shape[1], a, b)
            block.restore(state.recursion(block, n, len(etas) // 2))
            self._blocks.append(block)
        self._update()
        return self

    @contextlib.contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Leave all as it was where a call is broken off, by Ctrl-C or an H that fails.

        The states may stand anywhere between two steps then: they begin anew when more is asked for.
        """
        before = {name: value.copy() if isinstance(value, list) else value for name, value in self.__dict__.items()}
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__ |= before
            for n, block in enumerate(self._blocks):
                if block is not None:
                    self._blocks[n], self._etas[n] = None, self._etas[n][:0]
            raise

    def _own_blocks(self) -> list[Any]:
        made: list[Any] = []
        for block, etas in zip(self._blocks, self._etas, strict=False):  # none of what comes from a pickle
            made.append(block and self._engine.random(self._seed, 0, etas.shape[1], *self._scaling))
            if block is not None:
                made[-1].restore({name: value.copy() for name, value in block.state().items()})
        return made

    def _require_room(self, num_vectors: int, num_moments: int) -> None:
        """Raise MemoryError where so many moments of so many vectors are not held: at least where they are more than
        a vector, of which some must fit beside a reserve.
        """
        needed = 8 * num_vectors * num_moments
        if needed > self._engine.num_rows * self._engine.dtype.itemsize:
            require_host_free(needed, "the moments of all vectors")

    def _start(self, num_vectors: int) -> None:
        first = self.num_vectors
        most = self._engine.capacity()
        # Where not all states fit into memory, each block is dropped when its moments are known.
        self._keep = self._keep and first + num_vectors <= most
        self._add_blocks(num_vectors, min(MAX_BLOCK, most))
        self._advance()

    def _add_blocks(self, num_vectors: int, width: int) -> None:
        """Note the blocks of so many vectors more, none of which has begun."""
        for offset in range(0, num_vectors, width):
            self._blocks.append(None)
            self._etas.append(np.empty((0, min(width, num_vectors - offset))))

    def _advance(self) -> None:
        """Bring all blocks to M moments; widen bounds of our own that turn out too narrow and begin again."""
        with contextlib.ExitStack() as stack:
            progress = self._progress or stack.enter_context(Progress("kpm_dos", shown=self._shown, unit=PRODUCTS))
            while True:
                left = [etas.shape[1] * max(0, -(-(self._num_moments - len(etas)) // 2)) for etas in self._etas]
                progress.total = progress.done + sum(left)
                if all(self._advance_block(n, progress) for n in range(len(self._blocks))):
                    return
                if self._fixed_bounds:
                    raise ValueError(f"the spectrum leaves the given bounds {self.bounds}: give wider ones, or None")
                self._use(spectrum.widened(self.bounds, self._widenings))
                self._widenings += 1
                self._blocks = [None] * len(self._blocks)
                self._etas = [etas[:0] for etas in self._etas]
                self._finished = []  # their vectors come again, with the new bounds

    def _advance_block(self, n: int, progress: Progress) -> bool:
        if len(self._etas[n]) >= self._num_moments:
            return True
        if self._blocks[n] is None:
            if len(self._etas[n]):
                raise ValueError(
                    "the states of these vectors did not fit into memory together and were dropped: "
                    "construct the density with all moments at once"
                )
            if not self._keep:
                self._blocks = [None] * len(self._blocks)
            first = sum(etas.shape[1] for etas in (*self._finished, *self._etas[:n]))
            self._blocks[n] = self._engine.random(self._seed, first, self._etas[n].shape[1], *self._scaling)
        self._etas[n], inside = advance_watched(self._blocks[n], self._etas[n], self._num_moments, progress)
        return inside

    def _update(self) -> None:
        etas = np.concatenate([e[: self._num_moments] for e in (*self._finished, *self._etas)], axis=1)
        by_vector = self.moments_by_vector = reference.moments_from_etas(etas)
        self.moments = by_vector.mean(axis=1)
        self._mean = SpectralCurves(self.moments[:, None], self.bounds, self.kernel, self._scaling)
        self.scale, self.centre, self.energies = self._mean.scale, self._mean.centre, self._mean.energies
        self.densities = self._mean.densities[:, 0]
        self.__dict__.pop("errors", None)

    @functools.cached_property
    def errors(self) -> Array:
        """Standard error of `densities` over the vectors, shape (2 M,); NaN for R = 1, infinity beyond float64."""
        # Of H̃, without the unit of energy: single curves may leave the range of numbers where their mean does not.
        curves = SpectralCurves(self.moments_by_vector, (-0.99, 0.99), self.kernel, (1.0, 0.0))
        with np.errstate(over="ignore"):
            error: Array = read_only(standard_error(curves.densities, 1) / self.scale)
        return error
