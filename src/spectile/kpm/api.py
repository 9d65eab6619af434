"""Spectral densities by the kernel polynomial method: what a user calls (Kwant's vocabulary)."""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spectile.bench.whole import whole
from spectile.gpu.device import choose_backend
from spectile.kpm import bounds as spectrum_bounds
from spectile.kpm import reference

Array = npt.NDArray[Any]
Backend = Literal["auto", "cpu", "cuda"]
Kernel = Literal["jackson", "lorentz"]

# Steps between two looks at the norms: a spectrum outside the bounds shows within a few steps, and grows exponentially.
_FIRST_LOOK = 8
_LOOK = 64
_MAX_WIDENINGS = 40
_MAX_BLOCK = 64


def kpm_dos(
    H: Any,
    num_moments: int = 2000,
    num_vectors: int = 32,
    kernel: Kernel = "jackson",
    rng: int | np.random.Generator | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
) -> SpectralDensity:
    """Compute the density of states of a large sparse Hermitian matrix.

    Parameters
    ----------
    H : sparse matrix, ndarray, operator or TopologicalInsulator, shape (N, N)
        Hermitian; ``scipy.sparse`` or ``cupyx.scipy.sparse``, float32, float64, complex64 or complex128.  A
        :class:`spectile.inputs.topological_insulator.TopologicalInsulator` is never stored as a matrix; any other
        object needs ``shape``, ``dtype`` and ``@`` with an (N, R) array.
    num_moments : int
        M, Chebyshev moments; the energy resolution is about π/M of the bandwidth.
    num_vectors : int
        R, random vectors of the trace; the error falls with 1/sqrt(R N).
    kernel : {"jackson", "lorentz"}
        Damping of the series.
    rng : int, Generator or None
        Seed or generator of the random vectors.
    bounds : (float, float) or None
        Lowest and highest energy; found by Lanczos and Gershgorin if None.
    backend : {"auto", "cpu", "cuda"}
        "auto" takes CUDA where H is on a GPU or a GPU is found.
    checkpoint : path or None
        File to which the state is written every `checkpoint_s` seconds, and from which an interrupted call goes on,
        with bitwise the same result.  Removed at the end.
    checkpoint_s : float
        Seconds between checkpoints.

    Returns
    -------
    SpectralDensity

    Raises
    ------
    ValueError
        If H is not square, not Hermitian or not finite, if `num_moments` or `num_vectors` is invalid, or if the
        spectrum leaves the given bounds.
    TypeError
        If H has an unusable type.

    Notes
    -----
    Kreutzer et al., "Performance Engineering of the Kernel Polynomial Method on Large-Scale CPU-GPU Systems" (IPDPS
    2015), Figure 5; Weiße et al., Rev. Mod. Phys. 78, 275 (2006).

    Examples
    --------
    >>> from spectile import kpm_dos
    >>> from spectile.inputs.lattices import graphene
    >>> density = kpm_dos(graphene(40, 40), num_moments=64, num_vectors=8, rng=1, backend="cpu")
    >>> round(density.integrate())
    3200
    """
    if checkpoint is None:
        return SpectralDensity(H, num_moments, num_vectors, kernel, rng, bounds=bounds, backend=backend)
    num_moments, num_vectors = _check_counts(num_moments, num_vectors)
    path = Path(checkpoint)
    if path.exists():
        density = SpectralDensity.load(path, H, backend=backend)
        if (density.num_vectors, density.kernel) != (num_vectors, kernel) or density.num_moments > num_moments:
            raise ValueError(
                f"{path} holds {density.num_moments} moments of {density.num_vectors} vectors and the {density.kernel} "
                f"kernel, not {num_moments} of {num_vectors} and {kernel}: remove the file, or ask for the same again"
            )
        if bounds is not None and density.bounds != (float(bounds[0]), float(bounds[1])):
            raise ValueError(f"{path} has bounds {density.bounds}, not {bounds}: remove the file, or give the same")
    else:
        density = SpectralDensity(H, 2, num_vectors, kernel, rng, bounds=bounds, backend=backend)
    written = time.monotonic()
    while density.num_moments < num_moments:
        density.add_moments(min(2 * _LOOK, num_moments - density.num_moments))
        if time.monotonic() - written > checkpoint_s and density.num_moments < num_moments:
            density.save(path)
            written = time.monotonic()
    path.unlink(missing_ok=True)
    return density


class SpectralCurves:
    """Densities expanded in Chebyshev polynomials: one curve for each column of moments.

    Parameters
    ----------
    moments : ndarray, shape (M, K)
        μ_m of each curve, undamped.
    bounds : (float, float)
        Energies to which the expansion was scaled.
    kernel : {"jackson", "lorentz"}
        Damping.

    Attributes
    ----------
    energies : ndarray, shape (2 M,)
        Gauss–Chebyshev abscissas, ascending, in the units of H.
    densities : ndarray, shape (2 M, K)
        Density at `energies`, per unit energy.
    """

    def __init__(self, moments: Array, bounds: tuple[float, float], kernel: Kernel = "jackson") -> None:
        self.moments, self.bounds, self.kernel = moments, bounds, kernel
        self._damped = moments * _damping(kernel, len(moments))[:, None]
        self._a, self._b = spectrum_bounds.scaling(bounds)
        x, self._weights = (grid[::-1] for grid in reference.chebyshev_density_on_grid(self._damped, 2 * len(moments)))
        self.energies = x / self._a + self._b
        self.densities = self._weights * (self._a / (np.pi * np.sqrt(1 - x**2)))[:, None]

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return the densities at any energies: shape (..., K), zero outside the bounds."""
        x = self._a * (np.asarray(energy, dtype=np.float64) - self._b)
        return self._a * reference.chebyshev_density(self._damped, x.ravel()).reshape(*x.shape, self.moments.shape[1])

    def integrate(self, f: Callable[[Array], Array] | None = None) -> Array:
        """Return ∫ f(E) ρ(E) dE of each curve by Gauss–Chebyshev quadrature; f None is 1."""
        values = np.ones_like(self.energies) if f is None else np.asarray(f(self.energies))
        if values.shape not in ((), self.energies.shape):
            raise ValueError(
                f"f gave shape {values.shape} for {len(self.energies)} energies: it must give one value for each"
            )
        return np.asarray(np.broadcast_to(values, self.energies.shape) @ self._weights / len(self.energies))


class SpectralDensity:
    """Density of states ρ(E) = Σ δ(E − E_n) of a matrix, by a stochastic trace over R vectors (paper, Eq. 2).

    Parameters are those of :func:`kpm_dos`.

    Attributes
    ----------
    energies : ndarray, shape (2 M,)
        Energies of `densities`, ascending, in the units of H.
    densities : ndarray, shape (2 M,)
        States per unit energy; the integral is N.
    errors : ndarray, shape (2 M,)
        Standard error of `densities` over the vectors; NaN for R = 1.
    moments : ndarray, shape (M,)
        Estimates of tr T_m(H̃).
    bounds : (float, float)
        Bounds of the spectrum that the expansion uses.
    """

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
    ) -> None:
        num_moments, num_vectors = _check_counts(num_moments, num_vectors)
        _damping(kernel, 2)
        self.kernel: Kernel = kernel
        self._seed = int(np.random.default_rng(rng).integers(2**62))
        self._engine = make_engine(H, backend)
        _check_hermitian(self._engine)
        self._fixed_bounds = bounds is not None
        self.bounds = _find_bounds(self._engine, H, bounds)
        self._blocks: list[Any] = []
        self._etas: list[Array] = []
        self._keep = True
        self._num_moments = num_moments
        self._start(num_vectors)
        self._update()

    @property
    def num_moments(self) -> int:
        """M."""
        return self._num_moments

    @property
    def num_vectors(self) -> int:
        """R."""
        return sum(etas.shape[1] for etas in self._etas)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, N) of the matrix."""
        return (self._engine.num_rows,) * 2

    def add_moments(self, num_moments: int) -> None:
        """Add moments; the result equals a construction with more, bitwise.

        Parameters
        ----------
        num_moments : int
            Moments to add, at least 1.
        """
        self._num_moments += _whole(num_moments, "num_moments", 1)
        self._advance()
        self._update()

    def add_vectors(self, num_vectors: int) -> None:
        """Add random vectors: the same ones that a construction with more would take.

        Parameters
        ----------
        num_vectors : int
            Vectors to add, at least 1.
        """
        self._start(_whole(num_vectors, "num_vectors", 1))
        self._update()

    def __call__(self, energy: npt.ArrayLike) -> Array:
        """Return ρ at any energies, zero outside the bounds."""
        return self._mean(energy)[..., 0]

    def integrate(self, f: Callable[[Array], Array] | None = None) -> float:
        """Return ∫ f(E) ρ(E) dE by Gauss–Chebyshev quadrature; f None is 1 and gives N.

        Parameters
        ----------
        f : callable or None
            Function of an array of energies, for example a Fermi distribution.
        """
        return float(self._mean.integrate(f)[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, so that :meth:`load` can add moments later, bitwise as if never stopped.

        Parameters
        ----------
        path : path
            NumPy archive; replaced only when the new one is complete.

        Raises
        ------
        ValueError
            If the states did not fit into memory together and were dropped.
        """
        path = Path(path)
        if None in self._blocks:
            raise ValueError(
                "the states did not fit into memory together and were dropped: there is nothing to go on from"
            )
        arrays: dict[str, Any] = {
            "seed": self._seed, "bounds": self.bounds, "kernel": self.kernel, "num_moments": self._num_moments,
            "fixed_bounds": self._fixed_bounds, "blocks": len(self._blocks), "fingerprint": _fingerprint(self._engine),
            "backend": self._engine.name,
        }  # fmt: skip
        for n, (block, etas) in enumerate(zip(self._blocks, self._etas, strict=True)):
            arrays[f"etas_{n}"] = etas
            arrays |= {f"{key}_{n}": value for key, value in block.state().items()}
        with whole(path) as partial, partial.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], H: Any, *, backend: Backend = "auto") -> SpectralDensity:
        """Read a state written by :meth:`save`.

        Parameters
        ----------
        path : path
            The file.
        H : as in :func:`kpm_dos`
            The same matrix as when the state was written.
        backend : {"auto", "cpu", "cuda"}
            The backend that wrote the state.

        Raises
        ------
        ValueError
            If the file is no such state, or H not the matrix, or the backend not the one, of the state.
        """
        self = cls.__new__(cls)
        with _open_state(path) as state:
            self._engine = make_engine(H, backend)
            if self._engine.name != str(state["backend"]):
                raise ValueError(f"{path} was written by the {state['backend']} backend: load it with backend=that")
            fingerprint = _fingerprint(self._engine)
            if fingerprint.shape != state["fingerprint"].shape or not np.array_equal(fingerprint, state["fingerprint"]):
                raise ValueError(f"{path} belongs to another matrix: give the H with which it was written")
            self._seed, self.kernel = int(state["seed"]), str(state["kernel"])  # type: ignore[assignment]
            self.bounds = (float(state["bounds"][0]), float(state["bounds"][1]))
            self._fixed_bounds, self._num_moments = bool(state["fixed_bounds"]), int(state["num_moments"])
            self._blocks, self._etas, self._keep = [], [], True
            a, b = spectrum_bounds.scaling(self.bounds)
            for n in range(int(state["blocks"])):
                self._etas.append(state[f"etas_{n}"])
                # As wide as the block that was saved: the kernel, and so the rounding, depends on the width.
                block = self._engine.random(self._seed, 0, self._etas[n].shape[1], a, b)
                block.restore({key: state[f"{key}_{n}"] for key in block.state()})
                self._blocks.append(block)
        self._update()
        return self

    def _start(self, num_vectors: int) -> None:
        first = self.num_vectors
        most = self._engine.capacity()
        # Where not all states fit into memory, each block is dropped when its moments are known.
        self._keep = self._keep and first + num_vectors <= most
        width = min(_MAX_BLOCK, most)
        for offset in range(0, num_vectors, width):
            count = min(width, num_vectors - offset)
            self._blocks.append(None)
            self._etas.append(np.empty((0, count)))
        self._advance()

    def _advance(self) -> None:
        """Bring all blocks to M moments; widen bounds of our own that turn out too narrow and begin again."""
        for attempt in range(_MAX_WIDENINGS):
            if all(self._advance_block(n) for n in range(len(self._blocks))):
                return
            if self._fixed_bounds:
                raise ValueError(
                    f"the spectrum leaves the given bounds {self.bounds}: give wider ones, or None to have them found"
                )
            self.bounds = spectrum_bounds.widened(self.bounds, attempt)
            self._blocks = [None] * len(self._blocks)
            self._etas = [etas[:0] for etas in self._etas]
        raise ValueError("no bounds hold the spectrum: H is not Hermitian or not finite")

    def _advance_block(self, n: int) -> bool:
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
            first = sum(etas.shape[1] for etas in self._etas[:n])
            a, b = spectrum_bounds.scaling(self.bounds)
            self._blocks[n] = self._engine.random(self._seed, first, self._etas[n].shape[1], a, b)
        self._etas[n], inside = advance_watched(self._blocks[n], self._etas[n], self._num_moments)
        return inside

    def _update(self) -> None:
        etas = np.concatenate([e[: self._num_moments] for e in self._etas], axis=1)
        by_vector = reference.moments_from_etas(etas)
        self.moments = by_vector.mean(axis=1)
        self._mean = SpectralCurves(self.moments[:, None], self.bounds, self.kernel)
        self.energies = self._mean.energies
        self.densities = self._mean.densities[:, 0]
        count = by_vector.shape[1]
        if count == 1:
            self.errors = np.full_like(self.densities, np.nan)
        else:
            curves = SpectralCurves(by_vector, self.bounds, self.kernel)
            self.errors = curves.densities.std(axis=1, ddof=1) / np.sqrt(count)


def ldos(
    H: Any,
    rows: Sequence[int] | Array,
    num_moments: int = 2000,
    kernel: Kernel = "jackson",
    *,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> SpectralCurves:
    """Compute local densities of states ρ_i(E) = Σ_n |⟨i|n⟩|² δ(E − E_n): exact moments, no random vectors.

    Parameters
    ----------
    H, num_moments, kernel, bounds, backend
        As in :func:`kpm_dos`.
    rows : sequence of int
        Rows i of the matrix; each gives one curve.

    Returns
    -------
    SpectralCurves
        Each curve integrates to 1.

    Raises
    ------
    ValueError
        As :func:`kpm_dos`; and if a row is not in the matrix.
    """
    engine = make_engine(H, backend)
    chosen = np.asarray(rows).ravel()
    if chosen.dtype.kind not in "iu" or chosen.size == 0 or chosen.min() < 0 or chosen.max() >= engine.num_rows:
        raise ValueError(f"rows must be whole numbers from 0 to {engine.num_rows - 1}, at least one")

    def vectors(first: int, stop: int) -> Array:
        block = np.zeros((engine.num_rows, stop - first), dtype=engine.dtype)
        block[chosen[first:stop], np.arange(stop - first)] = 1
        return block

    moments, bounds = _moments_of(engine, H, vectors, chosen.size, num_moments, bounds)
    return SpectralCurves(moments, bounds, kernel)


def spectral_function(
    H: Any,
    wavevectors: npt.ArrayLike,
    positions: npt.ArrayLike,
    orbitals: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    num_moments: int = 2000,
    kernel: Kernel = "jackson",
    *,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> SpectralCurves:
    """Compute the momentum-resolved spectral function A(k, E) = Σ_o ⟨k,o|δ(E − H)|k,o⟩ (paper, Figure 2).

    Parameters
    ----------
    H, num_moments, kernel, bounds, backend
        As in :func:`kpm_dos`; H is treated as complex.
    wavevectors : array_like, shape (K, d)
        k; each gives one curve.
    positions : array_like, shape (N, d)
        Position of each row's site, in the inverse units of k.
    orbitals : array_like of int, shape (N,), or None
        Orbital of each row: plane waves |k,o⟩ live on one orbital, and o is summed over.  None is one orbital.
    weights : array_like, shape (N,), or None
        Weight of each row in the plane waves, for example 1 on a surface and 0 elsewhere.

    Returns
    -------
    SpectralCurves
        Each curve integrates to the number of orbitals.

    Raises
    ------
    ValueError
        As :func:`kpm_dos`; and if the shapes do not fit, a number is not finite, or an orbital has no weight.
    """
    engine = make_engine(H, backend, complex_vectors=True)
    n = engine.num_rows
    k = np.atleast_2d(np.asarray(wavevectors, dtype=np.float64))
    r = np.asarray(positions, dtype=np.float64)
    r = r[:, None] if r.ndim == 1 else r
    label = np.zeros(n, dtype=np.int64) if orbitals is None else np.asarray(orbitals)
    weight = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if r.shape != (n, k.shape[1]) or label.shape != (n,) or weight.shape != (n,):
        raise ValueError(
            f"positions {r.shape}, orbitals {label.shape} and weights {weight.shape} must have one row for each of the "
            f"{n} rows of H, and positions the {k.shape[1]} components of the wavevectors"
        )
    if not all(np.isfinite(values).all() for values in (k, r, weight)):
        raise ValueError("wavevectors, positions and weights must be finite numbers")
    kinds = np.unique(label)
    norms = {kind: float(np.sqrt(np.sum(weight[label == kind] ** 2))) for kind in kinds}
    if min(norms.values()) == 0:
        raise ValueError("an orbital has no weight on any row: leave it out of `orbitals`, or give it weight")

    def vectors(first: int, stop: int) -> Array:
        block = np.zeros((n, stop - first), dtype=engine.dtype)
        for column, number in enumerate(range(first, stop)):
            kind = kinds[number % kinds.size]
            rows = np.flatnonzero(label == kind)
            block[rows, column] = weight[rows] * np.exp(1j * (r[rows] @ k[number // kinds.size])) / norms[kind]
        return block

    moments, bounds = _moments_of(engine, H, vectors, len(k) * kinds.size, num_moments, bounds)
    return SpectralCurves(moments.reshape(-1, len(k), kinds.size).sum(axis=2), bounds, kernel)


def make_engine(H: Any, backend: Backend = "auto", *, complex_vectors: bool = False) -> Any:
    """Return the backend's view of H: makes recursions and applies H to single vectors.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        The matrix.
    backend : {"auto", "cpu", "cuda"}
        Where to work.
    complex_vectors : bool
        Work with complex vectors even if H is real.

    Raises
    ------
    TypeError
        If H has an unusable type.
    ValueError
        If H is not square or empty, or the backend unknown.
    """
    if isinstance(H, list | tuple):
        H = np.asarray(H)
    shape = getattr(H, "shape", None)
    if (
        shape is None
        or getattr(H, "dtype", None) is None
        or (not hasattr(H, "__matmul__") and not hasattr(H, "gershgorin"))
    ):
        raise TypeError(
            f"H is a {type(H).__name__}: give a sparse matrix, an array or an operator with shape, dtype and @"
        )
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"H has shape {tuple(shape)}: a Hamiltonian is a square matrix")
    dtype = np.dtype(H.dtype)
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise TypeError(f"H has dtype {dtype}: convert it to float32, float64, complex64 or complex128")
    if dtype.kind in "biu" or dtype == np.float16:
        dtype = np.dtype(np.float64)
    if complex_vectors:
        dtype = np.result_type(dtype, np.complex64)
    if hasattr(H, "engine"):
        return H.engine(dtype)
    on_gpu = type(H).__module__.startswith("cupy")
    # A matrix on a GPU is copied for backend="cpu".
    if choose_backend(backend, on_gpu and backend != "cpu") == "cuda":
        from spectile.kpm.gpu import GpuEngine

        if GpuEngine.takes(H):
            return GpuEngine(H, dtype)
        if backend == "cuda":
            raise TypeError(f"H is a {type(H).__name__}: the GPU takes sparse matrices and TopologicalInsulator")
    if on_gpu:
        H = H.get()
    return CpuEngine(H, dtype)


class CpuEngine:
    """H on the CPU: compiled kernels for matrices and the topological insulator, NumPy for any other operator."""

    name = "cpu"
    xp = np

    def __init__(self, H: Any, dtype: np.dtype[Any]) -> None:
        import scipy.sparse as sp

        self.num_rows, self.dtype = int(H.shape[0]), dtype
        self.operator: Any = None
        if sp.issparse(H) or isinstance(H, np.ndarray):
            from spectile.kpm.cpu import CpuOperator

            matrix = sp.csr_array(H, dtype=dtype)
            if not matrix.has_canonical_format:
                matrix = matrix.copy()  # the arrays may be the caller's
                matrix.sum_duplicates()
            self.operator = CpuOperator.from_matrix(matrix)
        elif hasattr(H, "gershgorin"):
            from spectile.kpm.cpu import CpuOperator

            self.operator = CpuOperator.from_topological_insulator(H, dtype)
        self._H = H

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once: the host's is not limited here."""
        return 2**31

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        return reference.random_phases(
            seed, self.num_rows, 1, real=self.dtype.kind != "c", dtype=self.dtype
        )[:, 0]  # fmt: skip

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        if self.operator is None:
            image = np.asarray(self._H @ x.reshape(-1, 1))
            if image.shape != (x.size, 1):
                raise ValueError(
                    f"H @ x has shape {image.shape} for an x of shape {(x.size, 1)}: it must have the same"
                )
            return image[:, 0]
        v = self.operator.to_block(x.reshape(-1, 1))
        w = np.zeros_like(v)
        self.operator.update(v, w, 1.0, 0.0, 0.0, 1, self.operator.blocks())
        return (w[:, 0, 0] + 1j * w[:, 1, 0]) if self.operator.parts == 2 else w[:, 0, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> Any:
        """Return the recursion of a block of random vectors."""
        if self.operator is None:
            real = self.dtype.kind != "c"
            block = reference.random_phases(
                seed, self.num_rows, num_vectors, first_vector=first_vector, real=real, dtype=self.dtype
            )
            return reference.Recursion(self._H, a, b, block)
        from spectile.kpm.cpu import CpuRecursion

        return CpuRecursion(self.operator, a, b, self.operator.random_block(seed, first_vector, num_vectors))

    def start(self, vectors: Array, a: float, b: float) -> Any:
        """Return the recursion of given vectors, shape (N, R)."""
        if self.operator is None:
            return reference.Recursion(self._H, a, b, vectors)
        from spectile.kpm.cpu import CpuRecursion

        return CpuRecursion(self.operator, a, b, self.operator.to_block(vectors))


def advance_watched(recursion: Any, etas: Array, num_moments: int) -> tuple[Array, bool]:
    """Advance a recursion to `num_moments` moments; stop where a norm shows an eigenvalue outside [−1, 1].

    Parameters
    ----------
    recursion : Recursion
        Of any backend.
    etas : ndarray, shape (2 * steps, R)
        Scalar products so far.
    num_moments : int
        M.

    Returns
    -------
    ndarray, bool
        All scalar products, and whether the spectrum stayed inside.

    Raises
    ------
    ValueError
        If the numbers are no longer finite though they did not grow before: H holds NaN or infinity.
    """
    target = -(-num_moments // 2)
    while len(etas) < 2 * target:
        done = len(etas) // 2
        steps = min(_FIRST_LOOK if done < _FIRST_LOOK else _LOOK, target - done)
        with np.errstate(over="ignore", invalid="ignore"):
            etas = np.concatenate([etas, recursion.advance(steps)])
        # |T_m(x)| <= 1 inside, so no norm may exceed the first one by more than rounding.
        if not np.all(etas[2 * done :: 2] <= etas[0] * (1 + 1e-3)):
            if not np.isfinite(etas[:2]).all():
                raise ValueError("H holds NaN or infinity: every entry must be a finite number")
            return etas, False
    return etas, True


def _moments_of(
    engine: Any, H: Any, vectors: Callable[[int, int], Array], count: int, num_moments: int,
    bounds: tuple[float, float] | None
) -> tuple[Array, tuple[float, float]]:  # fmt: skip
    num_moments = _whole(num_moments, "num_moments", 2)
    _check_hermitian(engine)
    fixed = bounds is not None
    bounds = _find_bounds(engine, H, bounds)
    for attempt in range(_MAX_WIDENINGS):
        a, b = spectrum_bounds.scaling(bounds)
        columns = []
        for first in range(0, count, _MAX_BLOCK):
            recursion = engine.start(vectors(first, min(count, first + _MAX_BLOCK)), a, b)
            etas, inside = advance_watched(recursion, np.empty((0, recursion.num_vectors)), num_moments)
            if not inside:
                break
            columns.append(reference.moments_from_etas(etas[:num_moments]))
        else:
            return np.concatenate(columns, axis=1), bounds
        if fixed:
            raise ValueError(f"the spectrum leaves the given bounds {bounds}: give wider ones, or bounds=None")
        bounds = spectrum_bounds.widened(bounds, attempt)
    raise ValueError("no bounds hold the spectrum: H is not Hermitian or not finite")


def _find_bounds(engine: Any, H: Any, bounds: tuple[float, float] | None) -> tuple[float, float]:
    if bounds is not None:
        try:
            low, high = (float(bound) for bound in bounds)
        except (TypeError, ValueError):
            raise ValueError(f"bounds={bounds!r} are no two energies: give the lowest and the highest") from None
        spectrum_bounds.scaling((low, high))
        return low, high
    # A vector without the symmetries of H: phases alone can be orthogonal to the states that bound the spectrum.
    start = engine.vector(1)
    start *= engine.xp.linspace(1, 2, engine.num_rows).astype(start.real.dtype)
    low, high = spectrum_bounds.lanczos(engine.apply, start, xp=engine.xp)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("H holds NaN or infinity: every entry must be a finite number")
    if hasattr(H, "gershgorin"):
        certain = H.gershgorin()
    elif hasattr(H, "diagonal") and hasattr(H, "nnz"):
        certain = spectrum_bounds.gershgorin(H)
    else:
        return low, high
    # Lanczos is the closer one; where its residuals reach beyond the circles, the circles are right.
    return max(low, certain[0]), min(high, certain[1])


def _check_hermitian(engine: Any) -> None:
    """Compare ⟨y|Hx⟩ with ⟨Hy|x⟩ for two random vectors: two products with H, no transpose."""
    xp = engine.xp
    x, y = engine.vector(2), engine.vector(3)
    # Unequal lengths, so that no symmetry of the phases can hide an error.
    x *= xp.linspace(1, 2, engine.num_rows).astype(x.real.dtype)
    y *= xp.linspace(1, 3, engine.num_rows).astype(x.real.dtype)
    hx, hy = engine.apply(x), engine.apply(y)
    one, two = complex(xp.vdot(y, hx)), complex(xp.vdot(hy, x))
    size = float(xp.linalg.norm(y) * xp.linalg.norm(hx) + xp.linalg.norm(hy) * xp.linalg.norm(x))
    if not np.isfinite(size):
        raise ValueError("H holds NaN or infinity: every entry must be a finite number")
    tolerance = 1e-10 if engine.dtype.itemsize // (2 if engine.dtype.kind == "c" else 1) == 8 else 1e-4
    imaginary = max(abs(complex(xp.vdot(x, hx)).imag), abs(complex(xp.vdot(y, hy)).imag))
    if max(abs(one - two), imaginary) > tolerance * size:
        raise ValueError(
            f"H is not Hermitian: ⟨y|Hx⟩ and ⟨Hy|x⟩ differ by {abs(one - two) / size:.1e} of their size; "
            "symmetrize it with (H + H.conj().T) / 2 if that is what you mean"
        )


@contextlib.contextmanager
def _open_state(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a file written by :meth:`SpectralDensity.save`."""
    try:
        state = np.load(path)
        held = "fingerprint" in state
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} holds no saved density, or not all of it: remove it, and begin again") from error
    if not held:
        raise ValueError(f"{path} holds no saved density: give a file that SpectralDensity.save wrote")
    with state:
        yield state


def _fingerprint(engine: Any) -> Array:
    """Return a few numbers that another matrix would not give."""
    image = engine.apply(engine.vector(4))
    first = image[:16].get() if hasattr(image, "get") else image[:16]
    return np.concatenate([[engine.num_rows], first.real, [float(engine.xp.abs(image).sum())]])


def _damping(kernel: str, num_moments: int) -> Array:
    kernels = {"jackson": reference.jackson_kernel, "lorentz": reference.lorentz_kernel}
    if kernel not in kernels:
        raise ValueError(f'kernel={kernel!r} is unknown: choose "jackson" or "lorentz"')
    return kernels[kernel](num_moments)


def _check_counts(num_moments: int, num_vectors: int) -> tuple[int, int]:
    return _whole(num_moments, "num_moments", 2), _whole(num_vectors, "num_vectors", 1)


def _whole(value: Any, name: str, least: int) -> int:
    try:
        valid = not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise ValueError(f"{name}={value} is invalid: give a whole number of at least {least}")
    return int(value)
