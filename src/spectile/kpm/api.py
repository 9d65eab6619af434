"""Spectral densities by the kernel polynomial method: what a user calls (Kwant's vocabulary)."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.arrays import host_array
from spectile.core.choice import Candidate
from spectile.core.device import Backend
from spectile.core.options import flag, numbers, path, positive_number, whole_number
from spectile.kpm.checkpoint import Run, seconds_between
from spectile.kpm.curves import SpectralCurves, moments_for
from spectile.kpm.density import SpectralDensity
from spectile.kpm.expectation import Count, SpectralExpectation, moments_with, source_of
from spectile.kpm.iterator import engine_for, random_source
from spectile.kpm.moments import candidates_of, check_counts, make_engine, other_place
from spectile.kpm.operators.adopt import as_operator
from spectile.kpm.types import Array, Kernel


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
    operator: Any = None,
    vectors: Any = None,
    mean: bool = True,
    energy_resolution: float | None = None,
    progress: bool = True,
) -> Any:
    """Compute the density of states of a large sparse Hermitian matrix.

    Parameters
    ----------
    H : sparse matrix, ndarray, operator or TopologicalInsulator, shape (N, N)
        Hermitian; ``scipy.sparse`` or ``cupyx.scipy.sparse``, float32, float64, complex64 or complex128 (integers,
        Booleans and float16 are taken as float64); dense ones of any library that has the array API.  A
        :class:`~spectile.kpm.TopologicalInsulator` is never stored as a matrix; any
        other object is an :class:`~spectile.kpm.Operator`, or needs ``shape``, ``dtype`` and ``@``
        with an (N, R) array, which is CuPy's with ``backend="cuda"``.
    num_moments : int
        M, Chebyshev moments; the energy resolution is about π/M of the bandwidth.
    num_vectors : int
        R, random vectors of the trace; the error falls with 1/sqrt(R N).
    kernel : {"jackson", "lorentz", "none"} or callable
        Damping of the series, or a function that returns its M factors for M, as ``kpm.LorentzKernel(6.0)`` is.
    rng : int, Generator or None
        Seed or generator of the random vectors.
    bounds : (float, float) or None
        Lowest and highest energy; found by Lanczos and Gershgorin if None.  Bounds closer than 8192 ε of the energies
        are taken for so far apart: rounding leaves no more of such a spectrum.  ε is that of H's type, or float64's for
        a stored matrix or a sample far from zero, which is held without the middle of its spectrum.
    backend : {"auto", "cpu", "cuda"}
        "auto" chooses CUDA if H is on a GPU, or if it is a matrix and there is a GPU which is predicted to take less,
        by its bandwidth and the link; with `operator` or `vectors`, if there is one.
    checkpoint : path or None
        File to which the state is written every `checkpoint_s` seconds and after Ctrl-C or SIGTERM, of which both then
        do what they would have done.  The next call with the same arguments continues from it, to the same bits.  The
        file is removed at the end.
    checkpoint_s : float
        Seconds between checkpoints.
    operator : matrix, object with ``@``, callable or None
        A of tr[A δ(E − H)], as :func:`correlator` takes operators; None is the identity.
    vectors : array, shape (N, R), callable or None
        Vectors |v⟩ instead of random ones: a block, or ``vectors(number)``, shape (N,), which is asked for
        `num_vectors`.  The result is the mean of ⟨v|A δ(E − H)|v⟩, as they are.
    mean : bool
        Whether the mean over the vectors, or each of them.
    energy_resolution : float or None
        An energy: then M is what resolves it, π/M of the expansion's width, instead of `num_moments`.  It is refused
        where rounding of H hides such differences.
    progress : bool
        Whether progress is shown after ten seconds: a bar on standard error where that is a terminal and tqdm is
        installed, elsewhere a line every ten seconds of the logger ``spectile.progress``, at INFO.

    Returns
    -------
    SpectralDensity, or SpectralExpectation with `operator`, `vectors` or ``mean=False``

    Raises
    ------
    ValueError
        If H is not square, not Hermitian or not finite, if `num_moments` or `num_vectors` is invalid, if the spectrum
        leaves the given bounds, if the checkpoint is of another call, or if an operator or vectors do not fit.
    MemoryError
        If not even one vector's state fits into memory.
    TypeError
        If H has an unusable type.
    OSError
        If the checkpoint cannot be written where it is to be.

    See Also
    --------
    ldos : of single sites.
    spectral_function : by wave vector.
    count, filter_diagonalize : states of an interval.

    Notes
    -----
    Kreutzer et al., "Performance Engineering of the Kernel Polynomial Method on Large-Scale CPU-GPU Systems" (IPDPS
    2015), Figure 5; Weiße et al., Rev. Mod. Phys. 78, 275 (2006).

    Examples
    --------
    >>> from spectile import kpm_dos
    >>> from spectile.kpm.operators.lattices import graphene
    >>> density = kpm_dos(graphene(40, 40), num_moments=64, num_vectors=8, rng=1, backend="cpu")
    >>> round(density.integrate())
    3200
    """
    if operator is not None or vectors is not None or not flag("mean", mean):
        num_moments, num_vectors = check_counts(num_moments, num_vectors)
        given = not (vectors is None or callable(vectors))
        with Run("kpm_dos", H, progress, checkpoint, checkpoint_s) as run:
            engine = engine_for(H, vectors, backend)[0] if given else make_engine(H, backend)
            if vectors is None:
                seed = run.seed(rng)
                source, held = random_source(engine, seed), None
                arguments: list[Any] = [seed]
            else:
                source, held = source_of(engine, vectors)
                arguments = [vectors if given else None]
            return SpectralExpectation(
                engine, operator, source, held or num_vectors, _count(num_moments, energy_resolution), kernel, bounds,
                mean=mean, grows=held is None, traced=vectors is None, arguments=arguments, run=run,
            )  # fmt: skip
    seconds_between(checkpoint_s)
    if checkpoint is None:
        return SpectralDensity(
            H, num_moments, num_vectors, kernel, rng, bounds=bounds, backend=backend,
            energy_resolution=energy_resolution, progress=progress,
        )  # fmt: skip
    return SpectralDensity.with_checkpoints(
        path("checkpoint", checkpoint), H, num_moments, num_vectors, kernel, rng, bounds, backend, checkpoint_s,
        energy_resolution, progress,
    )  # fmt: skip


def _count(num_moments: int, energy_resolution: float | None) -> Count:
    """Return what gives the moments of an expansion by its engine and bounds."""
    if energy_resolution is None:
        return lambda engine, bounds: num_moments
    resolved = positive_number(energy_resolution, "energy_resolution")
    return functools.partial(moments_for, resolved)


def explain(
    H: Any,
    num_moments: int = 2000,
    num_vectors: int = 32,
    kernel: Kernel = "jackson",
    rng: int | np.random.Generator | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> list[Candidate]:
    """Return the kernels that :func:`kpm_dos` may take with these arguments, and the predicted time of a step of each.

    Parameters
    ----------
    H, num_moments, num_vectors, kernel, rng, bounds, backend
        As for :func:`kpm_dos`; what decides is H, `num_vectors` and `backend`.  For :func:`ldos` and
        :func:`spectral_function` `num_vectors` is the number of their start vectors.

    Returns
    -------
    list of spectile.core.choice.Candidate
        Of each its name, seconds (None where it does not apply) and why; the one of least seconds is taken.  Where
        there is no choice, the one that works, its seconds NaN.  More vectors than a block holds are done in turn.

    Raises
    ------
    TypeError, ValueError
        As :func:`kpm_dos`.

    Examples
    --------
    >>> from spectile.kpm import explain
    >>> from spectile.kpm.operators.lattices import graphene
    >>> [one.kernel for one in explain(graphene(9, 9), backend="cpu")]
    ['cpu']
    """
    num_moments, num_vectors = check_counts(num_moments, num_vectors)
    operator, steps = as_operator(H), num_moments // 2
    engine = make_engine(operator, backend, steps=steps, num_vectors=num_vectors)
    return candidates_of(engine, num_vectors) + other_place(engine, operator, backend, steps, num_vectors)


def ldos(
    H: Any,
    rows: Sequence[int] | Array | slice,
    num_moments: int = 2000,
    kernel: Kernel = "jackson",
    *,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    operator: Any = None,
    energy_resolution: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> SpectralCurves:
    """Compute local densities of states ρ_i(E) = Σ_n |⟨i|n⟩|² δ(E − E_n): exact moments, no random vectors.

    Parameters
    ----------
    H, num_moments, kernel, bounds, backend, energy_resolution, checkpoint, checkpoint_s, progress
        As in :func:`kpm_dos`.
    operator : as in :func:`kpm_dos`
        A of ⟨i|A δ(E − H)|i⟩.
    rows : sequence of int, sequence of bool or slice
        Rows i of the matrix, as NumPy takes them: by number, from the end if negative, or where a mask is true.  Each
        gives one curve.

    Returns
    -------
    SpectralCurves
        Each curve integrates to 1.

    Raises
    ------
    ValueError
        As :func:`kpm_dos`; and if a row is not in the matrix.

    See Also
    --------
    kpm_dos : of the whole matrix.
    greens_function : with a broadening of your own.

    Examples
    --------
    >>> from spectile import ldos
    >>> from spectile.kpm.operators.lattices import chain
    >>> curves = ldos(chain(100), [0, 50], num_moments=32, backend="cpu")  # at an end, and in the middle
    >>> curves.integrate().round(12).tolist()
    [1.0, 1.0]
    >>> curves(0.0).shape
    (2,)
    """
    num_moments = whole_number(num_moments, "num_moments", 2)
    count = _count(num_moments, energy_resolution)
    with Run("ldos", H, progress, checkpoint, checkpoint_s) as run:
        engine = make_engine(H, backend, steps=None if operator is not None else num_moments // 2)
        try:
            chosen = np.arange(engine.num_rows)[rows if isinstance(rows, slice) else host_array("rows", rows)].ravel()
        except IndexError:
            chosen = np.empty(0, np.int64)
        if chosen.size == 0:
            raise ValueError(
                f"rows must be whole numbers from {-engine.num_rows} to {engine.num_rows - 1}, a slice, or a mask of "
                f"{engine.num_rows}, and name at least one row"
            )

        def vectors(first: int, stop: int) -> Any:
            block = engine.xp.zeros((engine.num_rows, stop - first), dtype=engine.dtype)
            block[engine.xp.asarray(chosen[first:stop]), engine.xp.arange(stop - first)] = 1
            return block

        moments, bounds = moments_with(run, engine, operator, vectors, chosen.size, count, bounds, [chosen])
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
    operator: Any = None,
    energy_resolution: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> SpectralCurves:
    """Compute the momentum-resolved spectral function A(k, E) = Σ_o ⟨k,o|δ(E − H)|k,o⟩ (paper, Figure 2).

    Parameters
    ----------
    H, num_moments, kernel, bounds, backend, energy_resolution, checkpoint, checkpoint_s, progress
        As in :func:`kpm_dos`; H is treated as complex.
    operator : as in :func:`kpm_dos`
        A of ⟨k,o|A δ(E − H)|k,o⟩, for example a spin.
    wavevectors : array_like, shape (K, d)
        k; each gives one curve.
    positions : array_like, shape (N, d)
        Position of each row's site, in the inverse units of k.
    orbitals : array_like of int, shape (N,), or None
        Orbital of each row: plane waves |k,o⟩ live on one orbital, and o is summed over.  None is one orbital.
    weights : array_like, real, shape (N,), or None
        Weight of each row in the plane waves, for example 1 on a surface and 0 elsewhere.

    Returns
    -------
    SpectralCurves
        Each curve integrates to the number of orbitals.

    Raises
    ------
    ValueError
        As :func:`kpm_dos`; and if the shapes do not fit, a number is not finite, or an orbital has no weight.

    See Also
    --------
    kpm_dos : summed over all wave vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile import spectral_function
    >>> from spectile.kpm.operators.lattices import chain
    >>> ring, place = chain(64, periodic=True), np.arange(64)[:, None]
    >>> curves = spectral_function(ring, [[0.0], [np.pi / 2]], place, num_moments=64, backend="cpu")
    >>> energies = curves.energies[curves.densities.argmax(axis=0)]
    >>> bool(np.allclose(energies, [-2.0, 0.0], atol=0.1))  # -2 cos k
    True
    """
    num_moments, k = whole_number(num_moments, "num_moments", 2), np.atleast_2d(numbers("wavevectors", wavevectors))
    steps, count = None if operator is not None else num_moments // 2, _count(num_moments, energy_resolution)
    with Run("spectral_function", H, progress, checkpoint, checkpoint_s) as run:
        engine = make_engine(H, backend, complex_vectors=True, steps=steps, num_vectors=max(1, len(k)))
        n = engine.num_rows
        r = numbers("positions", positions)
        r = r[:, None] if r.ndim == 1 else r
        label = np.zeros(n, dtype=np.int64) if orbitals is None else host_array("orbitals", orbitals)
        weight = np.ones(n) if weights is None else numbers("weights", weights)
        if k.ndim != 2 or not k.size:
            raise ValueError(f"wavevectors have shape {k.shape}: give at least one, one a row")
        if r.shape != (n, k.shape[1]) or label.shape != (n,) or weight.shape != (n,):
            raise ValueError(
                f"positions {r.shape}, orbitals {label.shape} and weights {weight.shape} must have one row for each of "
                f"the {n} rows of H, and positions the {k.shape[1]} components of the wavevectors"
            )
        with np.errstate(over="ignore"):
            longest = k.shape[1] * abs(k).max() * abs(r).max()  # NaN where one is
        if not (np.isfinite(longest) and np.isfinite(weight).all()):
            raise ValueError("wavevectors, positions, their products and weights must be finite numbers")
        if label.dtype.kind == "f" and np.isnan(label).any():
            raise ValueError("orbitals hold NaN: give each row the number or the name of its orbital")
        try:
            kinds, index = np.unique(label, return_inverse=True)
        except TypeError:
            raise TypeError("orbitals cannot be put in order: give numbers alone, or names alone") from None
        scaled = weight.copy()  # by powers of two, so that squares stay within the range
        for kind in kinds:
            scaled[label == kind] = np.ldexp(part := weight[label == kind], -np.frexp(abs(part).max())[1])
        norms = {kind: float(np.sqrt(np.sum(scaled[label == kind] ** 2))) for kind in kinds}
        if min(norms.values()) == 0:
            raise ValueError("an orbital has no weight on any row: leave it out of `orbitals`, or give it weight")

        def vectors(first: int, stop: int) -> Array:
            block = np.zeros((n, stop - first), dtype=engine.dtype)
            for column, number in enumerate(range(first, stop)):
                kind = kinds[number % kinds.size]
                rows = np.flatnonzero(label == kind)
                block[rows, column] = scaled[rows] * np.exp(1j * (r[rows] @ k[number // kinds.size])) / norms[kind]
            return block

        total, arguments = len(k) * kinds.size, [k, r, index, weight]
        moments, bounds = moments_with(run, engine, operator, vectors, total, count, bounds, arguments)
    return SpectralCurves(moments.reshape(-1, len(k), kinds.size).sum(axis=2), bounds, kernel)


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"kpm_dos": explain}
