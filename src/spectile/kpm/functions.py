"""Functions of a Hamiltonian applied to vectors: time evolution, any smooth function, Green's functions."""

from __future__ import annotations

import functools
import math
import os
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.arrays import host_array
from spectile.core.device import Backend
from spectile.core.memory import require_host_free
from spectile.core.options import kind_of, number, numbers, positive_number, whole_number
from spectile.kpm import bounds as spectrum
from spectile.kpm.checkpoint import Run
from spectile.kpm.iterator import (
    TOGETHER,
    Terms,
    columns_at_once,
    engine_for,
    in_range,
    is_doubled,
    slices_of,
    times_powers,
    within_bounds,
)
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.protocol import namespace, on_host
from spectile.kpm.types import Array, Engine

#: Energies whose vectors are summed in one pass.
PASS = 16
#: Sums beside the recurrence up to which two terms at a time are the least traffic: 1 + K blocks a term, and 3 + K/4 by
#: copies of 8.
PAIRED = 2
#: Points at which a function of energy is looked at first, to see whether a series of fewer holds between them, and at
#: most before it is called not smooth.  Odd numbers of them, so that the middle is one: there a multiple of one has its
#: energies.
LEAST_POINTS, CHECKED_POINTS, MOST_POINTS = (1 << 6) + 1, (1 << 12) + 1, (1 << 18) + 1


def evolve(
    H: Any,
    psi: Any,
    times: npt.ArrayLike,
    *,
    tolerance: float = 1e-12,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> Any:
    """Return exp(−i H t) |ψ⟩ at given times, by an expansion in Chebyshev polynomials.

    exp(−i H t) = exp(−i b t) Σ_m (2 − δ_m0) (−i)^m J_m(t/a) T_m(H̃), with H̃ = a (H − b) and Bessel functions J_m.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N).
    psi : array, shape (N, R) or (N,)
        States at time 0.
    times : array_like, shape (T,) or ()
        Times in units of ħ over that of H, in any order and of either sign.
    tolerance : float
        Of the error's norm, relative to that of |ψ⟩: so many terms are taken that the ones left out are smaller, as
        |T_m| <= 1.  Rounding adds about the type's ε for each term.
    bounds : (float, float) or None
        Lowest and highest energy; found if None.
    backend : {"auto", "cpu", "cuda"}
        As in :func:`kpm_dos`.
    checkpoint, checkpoint_s, progress
        As in :func:`kpm_dos`; of several ranks each writes a file, whose name ends with its number.

    Returns
    -------
    array, complex, shape (T, N, R), without the axes that `times` or `psi` lacks
        NumPy's, or CuPy's where H is applied on a GPU.

    Raises
    ------
    ValueError, TypeError
        As :func:`chebyshev`; if a time or `tolerance` is not finite, or the latter not positive; if rounding of H hides
        what a time resolves; or the checkpoint of another call.
    MemoryError
        If the states do not fit into memory.
    OSError
        If the checkpoint cannot be written where it is to be.

    See Also
    --------
    apply : other functions of H.

    Notes
    -----
    About t/a terms for a time t; times in between cost sums alone.  Tal-Ezer and Kosloff, J. Chem. Phys. 81, 3967
    (1984); Weiße et al., Rev. Mod. Phys. 78, 275 (2006), Section IV.D.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import evolve
    >>> from spectile.kpm.operators.lattices import chain
    >>> packet = np.zeros(201)
    >>> packet[100] = 1
    >>> states = evolve(chain(201), packet, [0, 10, 20], backend="cpu")
    >>> spread = np.sqrt((abs(states) ** 2) @ (np.arange(201) - 100) ** 2)  # ballistic: sqrt(2) t
    >>> np.round(spread / np.sqrt(2), 6).tolist()
    [0.0, 10.0, 20.0]
    """
    when = _finite_numbers("times", times)
    tolerance = positive_number(tolerance, "tolerance")
    flat = when.ravel()

    def coefficients(lasting: Array, scale: float, allowed: float) -> Array:
        columns = [_bessel(float(scale) * float(time), allowed) for time in lasting]
        joined = np.zeros((max(map(len, columns)), len(columns)), np.complex128)
        for column, values in zip(joined.T, columns, strict=True):
            column[: len(values)] = values
        return joined

    def work(tried: tuple[float, float]) -> Any:
        a, centre = spectrum.scaling(tried)
        if last := abs(flat).max():
            spectrum.require_resolved(engine, tried, 1 / last, f"a time of {last:.6g}")
        states = engine.xp.zeros((len(flat), *block.shape), np.result_type(engine.dtype, np.complex64))
        passes = _passes(flat, 1 / a, *costs(engine))
        durations = [lasting for _, _, lasting in passes]
        tables = [coefficients(lasting, 1 / a, tolerance / len(passes)) for lasting in durations]
        widths = np.array(
            [sums_at_once(engine, block if first else states, c) for (first, *_), c in zip(passes, tables, strict=True)]
        )
        run.begin(tried, [block, flat, tolerance], widths, states=states)
        run.progress.total = run.progress.done + sum(len(c) - 1 for c in tables) * block.shape[1]
        state = block
        for (fresh, chosen, lasting), c, width in zip(passes, tables, widths, strict=True):
            phases = engine.xp.asarray(np.exp(-1j * centre * lasting).astype(states.dtype))[:, None, None]
            for columns, found in column_sums(engine, block if fresh else state, c, tried, run, width):
                found *= phases
                for place, one in zip(chosen, found, strict=True):
                    states[place, :, columns] = one
            state = states[chosen[-1]]
        return states

    with Run("evolve", H, progress, checkpoint, checkpoint_s) as run:
        engine, block = engine_for(H, psi, backend, spread=True)
        if flat.size:
            block, powers = in_range(engine, block)
            states = times_powers(within_bounds(engine, bounds, work, run), powers)
        else:
            states = engine.xp.empty((0, *block.shape), np.result_type(engine.dtype, np.complex64))
    states = states[:, :, 0] if np.ndim(psi) == 1 else states
    return states if when.ndim else states[0]


def apply(
    f: Callable[[Array], Any],
    H: Any,
    psi: Any,
    *,
    tolerance: float = 1e-12,
    num_moments: int | None = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> Any:
    """Return f(H)|ψ⟩ for a smooth function of energy, by its Chebyshev series.

    Parameters
    ----------
    f : callable
        Function of an array of energies, real or complex, for example ``lambda energy: numpy.exp(-energy / 0.1)``.  It
        is looked at in the middle between the bounds and at 4,096 energies or more around it; a peak narrower than the
        spaces between these is not seen.
    H, psi, bounds, backend, checkpoint, checkpoint_s, progress
        As in :func:`evolve`.
    tolerance : float
        Of the error's norm, relative to that of |ψ⟩ and the largest |f|: those left out sum to less, or are rounding.
    num_moments : int or None
        Terms of the series; so many as `tolerance` asks for if None.

    Returns
    -------
    array, shape of `psi`
        Complex where f or |ψ⟩ or H is.

    Raises
    ------
    ValueError
        As :func:`evolve`; if f is not finite between the bounds, does not give one value for each energy, or is not
        smooth there: then its series, whose length `num_moments` fixes, converges slowly.
    MemoryError
        If so many terms do not fit into memory.

    See Also
    --------
    evolve : exp(-iHt).
    spectile.density_matrix : the Fermi function as a matrix, with a bound.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import apply
    >>> from spectile.kpm.operators.lattices import chain
    >>> start = np.zeros(9)
    >>> start[4] = 1
    >>> square = apply(np.square, chain(9), start, backend="cpu")
    >>> np.round(square, 12).astype(int).tolist()
    [0, 0, 1, 0, 2, 0, 1, 0, 0]
    """
    if not callable(f):
        raise TypeError(f"f is {kind_of(f)}: give a function of an array of energies")
    tolerance = positive_number(tolerance, "tolerance")
    count = None if num_moments is None else whole_number(num_moments, "num_moments", 1)

    def work(tried: tuple[float, float]) -> Any:
        a, b = spectrum.scaling(tried)
        c = series(f, 1 / a, b, tolerance, count)[:, None]
        if not abs(c).sum() < np.finfo(engine.dtype).max:
            raise ValueError(f"f reaches beyond the range of {engine.dtype}: divide it, or give H in a wider type")
        if count is None:
            spectrum.require_resolved(engine, tried, 1 / (a * len(c)), f"a series of {len(c)} terms of f")
        kind = np.complex64 if "c" in (c.dtype.kind, block.dtype.kind) else np.float32
        found = engine.xp.zeros(block.shape, np.result_type(engine.dtype, kind))
        widths = np.array([sums_at_once(engine, block, c)])
        run.begin(tried, [block, c], widths, found=found)
        run.progress.total = run.progress.done + (len(c) - 1) * block.shape[1]
        for columns, (piece,) in column_sums(engine, block, c, tried, run, widths[0]):
            found[:, columns] = piece
        return found

    with Run("apply", H, progress, checkpoint, checkpoint_s) as run:
        engine, block = engine_for(H, psi, backend, spread=True)
        block, powers = in_range(engine, block)
        found = times_powers(within_bounds(engine, bounds, work, run), powers)
    return found[:, 0] if np.ndim(psi) == 1 else found


def greens_function(
    H: Any,
    i: int | Sequence[int] | None,
    j: int | Sequence[int],
    energies: npt.ArrayLike,
    eta: float,
    *,
    tolerance: float = 1e-10,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_s: float = 600.0,
    progress: bool = True,
) -> Any:
    """Return entries or columns of the retarded Green's function G(E) = (E + iη − H)⁻¹.

    G(E) = (a / sqrt(z² − 1)) Σ_m (2 − δ_m0) w^m T_m(H̃) with z = a (E + iη − b) and w = z − sqrt(z² − 1), |w| < 1:
    the series of the resolvent itself, without a kernel.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N).
    i : int, sequence of int or None
        Rows; None gives whole columns.
    j : int or sequence of int
        Columns.
    energies : array_like, shape (E,) or ()
        Real energies.
    eta : float
        η, an energy: positive for the retarded function, negative for the advanced one.
    tolerance : float
        Of the entries, relative to 1/abs(eta), the largest norm that G can have: the terms left out sum to less.
    bounds, backend, checkpoint, checkpoint_s, progress
        As in :func:`evolve`.

    Returns
    -------
    array, complex, shape (E, I, J) or, for whole columns, (E, N, J), without the axes that numbers have not
        Entries are NumPy's; columns are CuPy's where H is applied on a GPU.

    Raises
    ------
    ValueError
        As :func:`evolve`; if η is zero, not finite or less than the differences between energies that rounding of H
        hides, or a row or column not in the matrix.

    See Also
    --------
    ldos : local densities of states with a kernel.

    Notes
    -----
    About ln(1/tolerance) scale/η terms, for all energies together.  Ferreira and Mucciolo, Phys. Rev. Lett. 115, 106601
    (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import greens_function
    >>> from spectile.kpm.operators.lattices import chain
    >>> G = greens_function(chain(400), 200, 200, 0.0, 0.1, backend="cpu")  # -i / sqrt(4 + eta**2) in an endless chain
    >>> bool(abs(G + 1j / np.sqrt(4.01)) < 1e-8)
    True
    """
    energy = _finite_numbers("energies", energies)
    eta = number("eta", eta)
    if not (np.isfinite(eta) and eta != 0):
        raise ValueError(f"eta={eta} is invalid: give a finite energy, positive for the retarded function")
    tolerance = positive_number(tolerance, "tolerance")
    flat = energy.ravel()
    if i is None and len(flat) == 0:
        raise ValueError("energies are empty: give at least one")

    def coefficients(some: slice, tried: tuple[float, float]) -> Array:
        spectrum.require_resolved(engine, tried, abs(eta), f"eta = {eta}")
        a, centre = spectrum.scaling(tried)
        scale = 1 / a
        z = (flat[some] + 1j * eta - centre) / scale
        root = np.sqrt(z - 1) * np.sqrt(z + 1)
        w = 1 / (z + root)  # z − root would cancel far outside
        # |w| = exp(−decay), of which rounding may leave 1; the slowest decay decides how many terms there are:
        # Σ_{m>=M} 2 |w|^m |1/root| / scale below tolerance / |η|.
        decay = abs(np.arccos(z).imag)
        with np.errstate(divide="ignore"):
            left = np.log(2 * abs(eta) / (tolerance * abs(root) * scale * -np.expm1(-decay))) / decay
        count = max(1, math.ceil(min(left.max(initial=1.0), 1e15)))
        require_host_free(64 * count * z.size, "the series of so small an eta")
        m = np.arange(count)[:, None]
        return np.asarray((2.0 - (m == 0)) * w**m / (root * scale))

    def whole(tried: tuple[float, float]) -> Any:
        block = engine.xp.asarray(start)
        found = engine.xp.zeros((len(flat), *start.shape), np.result_type(engine.dtype, np.complex64))
        parts = [slice(first, first + PASS) for first in range(0, len(flat), PASS)]
        tables = [coefficients(part, tried) for part in parts]
        widths = np.array([sums_at_once(engine, block, c) for c in tables])
        run.begin(tried, ["columns", columns, flat, eta, tolerance], widths, found=found)
        run.progress.total = run.progress.done + sum(len(c) - 1 for c in tables) * len(columns)
        for part, c, width in zip(parts, tables, widths, strict=True):
            for some, piece in column_sums(engine, block, c, tried, run, width):
                found[part, :, some] = piece
        return found

    def entries(tried: tuple[float, float]) -> Array:
        weights = coefficients(slice(None), tried)
        found = np.zeros((len(flat), len(rows), len(columns)), np.complex128)
        widths = np.array([columns_at_once(engine, 2)])
        run.begin(tried, ["entries", rows, columns, flat, eta, tolerance], widths, found=found)
        run.progress.total = run.progress.done + (len(weights) - 1) * len(columns)
        picked, parts = engine.xp.asarray(rows), slices_of(len(columns), widths[0])
        for part in run.each(parts, lambda part: (len(weights) - 1) * (part.stop - part.start)):
            terms = Terms(engine, engine.xp.asarray(start[:, part]), tried, run.progress)
            wide = np.result_type(terms.dtype, np.float64)
            held = engine.xp.empty((TERMS_HELD, len(rows), terms.recursion.num_vectors), wide)
            total = engine.xp.zeros((len(flat), held[0].size), np.complex128)
            for m in range(_order(run, terms, [total]), len(weights)):
                if m:
                    terms.step()
                held[m % TERMS_HELD] = terms.vectors(rows=picked)
                if m % TERMS_HELD == TERMS_HELD - 1 or m == len(weights) - 1:
                    count = m % TERMS_HELD + 1
                    these = engine.xp.asarray(weights[m + 1 - count : m + 1].T)
                    total += these @ held[:count].reshape(count, -1)
                    _pause(run, terms, m, [total])
            terms.finish()
            found[:, :, part] = on_host(total).reshape(len(flat), len(rows), part.stop - part.start)
        return found

    with Run("greens_function", H, progress, checkpoint, checkpoint_s) as run:
        engine = make_engine(H, backend)
        n = engine.num_rows
        columns = _places("j", j, n)
        rows = columns if i is None else _places("i", i, n)
        start = np.zeros((n, len(columns)), engine.dtype)
        start[columns, np.arange(len(columns))] = 1
        found = within_bounds(engine, bounds, whole if i is None else entries, run)
    found = found.reshape(*energy.shape, *found.shape[1:])
    found = found[..., 0] if np.ndim(j) == 0 else found
    if i is not None and np.ndim(i) == 0:
        found = found.take(0, axis=energy.ndim)
    return found[()] if found.ndim == 0 else found


#: Terms of which entries are held before they are summed.
TERMS_HELD = 64


def series(
    f: Callable[[Array], Any], scale: float, centre: float, tolerance: float, num_moments: int | None = None
) -> Array:
    """Return c_m of f(centre + scale x) = Σ c_m T_m(x), as many as `tolerance` of the largest |f| asks."""
    if num_moments is not None:
        points = max(LEAST_POINTS, (1 << (2 * num_moments - 1).bit_length()) + 1)
        require_host_free(64 * points, "a series of so many terms")
        return _interpolant(f, scale, centre, points)[2][:num_moments]
    points = LEAST_POINTS
    while True:
        x, values, c = _interpolant(f, scale, centre, points)
        largest, steepest = abs(values).max(), abs(np.diff(values) / np.diff(x)).max() * (1 + abs(centre) / scale)
        # The terms of f's rounding, and of its argument's, have all the same size.
        rounding = np.finfo(float).eps * (largest + steepest)
        allowed = max(tolerance * largest, rounding * points**0.5)
        tails = np.cumsum(abs(c[::-1]))[::-1]  # Σ_{k>=m} |c_k|
        # Zeros at all points may be a narrow Gaussian's, which shows at more of them.
        if tails[points // 2] <= allowed and (largest or points >= MOST_POINTS):
            if points < CHECKED_POINTS:  # so may be what lies beside a narrow peak
                more = _interpolant(f, scale, centre, CHECKED_POINTS)[2]
                more[:points] -= c
                if abs(more).sum() > max(allowed, 4 * rounding * CHECKED_POINTS**0.5):
                    points = CHECKED_POINTS
                    continue
            return c[: max(2, int(np.argmax(tails <= allowed)))]  # a step at least, which looks at the bounds
        if points >= MOST_POINTS:
            rest = tails[points // 2] / largest
            raise ValueError(
                f"f is not smooth between {centre - scale:.6g} and {centre + scale:.6g}, where H is expanded: "
                f"{points // 2:,} terms leave {rest:.1e} of it; give num_moments=, a fixed number of terms, or a "
                "larger tolerance"
            )
        points = 2 * points - 1


def _interpolant(f: Callable[[Array], Any], scale: float, centre: float, points: int) -> tuple[Array, Array, Array]:
    """Return Chebyshev's points x, f(centre + scale x), and the c_m of as many terms."""
    x = np.cos(np.pi * (np.arange(points) + 0.5) / points)
    x[points // 2] = 0.0
    values = host_array("f's result", f(centre + scale * x))
    if values.shape not in ((), x.shape):
        raise ValueError(f"f gave shape {values.shape} for {points} energies: it must give one value for each")
    values = np.broadcast_to(values, x.shape)
    if values.dtype.kind not in "biufc" or not np.isfinite(values).all():
        raise ValueError(
            f"f is not finite everywhere between {centre - scale:.6g} and {centre + scale:.6g}, where H is expanded"
        )
    c = _cosines(values) / points
    c[0] /= 2
    return x, values, c


def _cosines(values: Array) -> Array:
    """Return 2 Σ_k values_k cos(π m (k + 1/2) / K)."""
    from scipy.fft import dct

    if values.dtype.kind == "c":
        return np.asarray(dct(values.real, type=2) + 1j * dct(values.imag, type=2))
    return np.asarray(dct(values.astype(np.float64), type=2))


def _passes(times: Array, scale: float, term: float, addition: float) -> list[tuple[bool, Array, Array]]:
    """Return passes over times: whether each begins at time 0, the numbers of its times, and how long each lasts.

    Away from zero on either side, some times in a pass, each of which begins with the last states of the one before: as
    many as cost least, where a term of a pass costs `term` and another one the addition of a term to a sum.
    """

    def split(size: int) -> list[tuple[bool, Array, Array]]:
        passes = []
        for side in (np.flatnonzero(times >= 0), np.flatnonzero(times < 0)):
            order = side[np.argsort(abs(times[side]), kind="stable")]
            for first in range(0, len(order), size):
                chosen = order[first : first + size]
                passes.append((first == 0, chosen, times[chosen] - (times[order[first - 1]] if first else 0.0)))
        return passes

    def cost(passes: list[tuple[bool, Array, Array]]) -> float:
        total = 0.0
        for _, _, lasting in passes:
            z = abs(lasting) * scale
            terms = z + 10 * np.cbrt(z) + 20  # about what a usual tolerance takes
            total += term * terms.max() + addition * terms.sum()
        return total

    return min((split(size) for size in (16, 8, 4, 2, 1)), key=cost)


def costs(engine: Engine) -> tuple[float, float]:
    """Return blocks that a term of sums moves, and that each sum of it does: by steps that add, or by copies."""
    return (4.0, 2 / 3) if getattr(engine, "adds_terms", False) else (7.0, 2 / TOGETHER)


def _bessel(z: float, tolerance: float) -> Array:
    """Return (2 − δ_m0) (−i)^m J_m(z) up to where the sum of all later ones is below `tolerance`."""
    from scipy.special import jv

    # J_m(z) falls faster than exponentially from m = |z| on, over some |z|^(1/3).
    long = min(abs(z), 1e300)
    count = math.ceil(long + 20 * long ** (1 / 3) + 60)
    require_host_free(64 * count, "the terms of so long a time")
    m = np.arange(count)
    values = (2.0 - (m == 0)) * jv(m, z)
    tails = np.cumsum(abs(values[::-1]))[::-1]
    # One step at least, whose norms show whether the bounds hold.
    kept = max(1 + (z != 0), int(np.argmax(tails <= tolerance)) if tails[-1] <= tolerance else count)
    return np.asarray(values[:kept] * np.array([1, -1j, -1, 1j])[m[:kept] % 4])


def sums_at_once(engine: Engine, vectors: Any, coefficients: Array) -> int:
    """Return of how many vectors :func:`column_sums` finds room for the sums at once."""
    doubled = 2 if is_doubled(engine, vectors) else 1
    return columns_at_once(engine, doubled * (2 + TOGETHER + 6 * coefficients.shape[1]) / 2)


def column_sums(
    engine: Engine,
    vectors: Any,
    coefficients: Array,
    bounds: tuple[float, float],
    run: Run,
    width: int,
    chosen: Any = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield, for some columns of vectors (N, R), which, and Σ_m c_mk T_m(H̃)|v⟩ for every k, shape (K, N, r).

    c has the shape (M, K).  They are slices of all columns, or parts of those chosen, an array of numbers where the
    vectors are.  Each is a stage of the run, of at most `width` vectors.
    """
    parts, steps = slices_of(vectors.shape[1] if chosen is None else len(chosen), width), len(coefficients) - 1
    for part in run.each(parts, lambda part: steps * (part.stop - part.start)):
        columns = part if chosen is None else chosen[part]
        yield columns, summed(Terms(engine, vectors[:, columns], bounds, run.progress), coefficients, run)


def summed(terms: Terms, coefficients: Array, run: Run) -> Any:
    """Return Σ_m c_mk T_m|v⟩ for every k, shape (K, N, R), of terms that have not begun; c has the shape (M, K).

    The sums are made in the layout of the recurrence: by its own kernels where they can, whose steps have three terms
    at hand, else some terms at a time from copies, each of which then costs less reading and writing of the sums.
    """
    c = np.asarray(coefficients)
    first = terms.blocks()
    xp = terms.engine.xp
    real = np.empty(0, terms.dtype).real.dtype
    if _are_complex(first, terms):
        # Real and imaginary parts are neighbours: one sum takes a coefficient's two parts.
        number, kinds = np.result_type(real, np.complex64), [(c, np.arange(c.shape[1]))]
    else:
        number = real
        kinds = [(part, np.flatnonzero(part.any(axis=0))) for part in (c.real, c.imag)]
    weights = np.concatenate([part[:, columns] for part, columns in kinds], axis=1).astype(number)
    sums = [xp.zeros((weights.shape[1], _flat(block, number).size), number) for block in first]
    if by_steps := _in_steps(terms, weights):
        _added(terms, by_steps, sums, run)
    else:
        _copied(terms, weights, sums, run)
    terms.finish()

    # Of ranks each sums its own rows, in a layout of its own: they meet once, whatever that asks for.
    own = terms.own(first)
    dtype = np.result_type(terms.dtype, np.complex64) if c.dtype.kind == "c" else terms.dtype
    result = xp.zeros((c.shape[1], *own.shape), dtype)
    place = 0
    for factor, (_, columns) in zip((1, 1j), kinds, strict=False):
        for k in columns:
            blocks = [total[place].view(one.dtype).reshape(one.shape) for total, one in zip(sums, first, strict=True)]
            result[k] += terms.own(blocks) if factor == 1 else factor * terms.own(blocks)
            place += 1
    return terms.gathered(result)


def additions(weights: Array, terms: int = 3) -> list[Array | None]:
    """Return what the steps s = 1, 2, ..., M − 1 add to the sums of T_s−2, T_s−1, ...: weights (K, terms), or None.

    A sum waits until its oldest term leaves those that a step has at hand, and takes all of these then.  `weights` have
    the shape (M, K).
    """
    count, sums = weights.shape
    padded = np.pad(weights, ((2, 2), (0, 0)))
    found: list[Array | None] = [None] * (count - 1)
    for k in range(sums):
        added = 0  # terms before this one are in the sum
        for oldest in np.flatnonzero(weights[:, k]).tolist():
            if oldest < added:
                continue
            step = min(oldest + 2, count - 1)
            each = found[step - 1]
            if each is None:
                each = found[step - 1] = np.zeros((sums, terms), weights.dtype)
            each[k, max(0, added + 2 - step) :] = padded[max(step, added + 2) : step + terms, k]
            added = step - 2 + terms
    return found


def _in_steps(terms: Terms, weights: Array) -> list[Array | None]:
    """Return what steps add to these sums where that moves less than copies of terms: each addition two blocks.

    A term of copies moves three blocks, and `TOGETHER` of them two for each sum.
    """
    count, sums = weights.shape
    at_hand = getattr(terms.recursion, "terms", 0)
    if not 0 < sums <= getattr(terms.recursion, "most_sums", 0) or count < at_hand - 1:
        return []
    found = additions(weights, at_hand)
    moved = sum(2 * int(each.any(axis=1).sum()) for each in found if each is not None)
    return found if moved <= (3 + 2 * sums / TOGETHER) * count else []


def _added(terms: Terms, by_steps: list[Array | None], sums: list[Any], run: Run) -> None:
    """Make sums by the steps themselves, which add these."""
    begun = _order(run, terms, sums)
    shapes = [(len(total), *block.shape) for total, block in zip(sums, terms.blocks(), strict=True)]
    types = [block.dtype for block in terms.blocks()]
    arrays = [total.view(kind).reshape(shape) for total, kind, shape in zip(sums, types, shapes, strict=True)]
    terms.recursion.sum_into(arrays)  # type: ignore[attr-defined]
    for m, each in enumerate(by_steps, 1):
        if m < begun:
            continue
        terms.step(each)
        if each is not None:
            _pause(run, terms, m, sums)


def _copied(terms: Terms, weights: Array, sums: list[Any], run: Run) -> None:
    """Make sums of some terms at a time: few take the last two, which lie in memory, many are worth copies of more."""
    together = 2 if weights.shape[1] <= PAIRED else TOGETHER
    held = [namespace(one).empty((TOGETHER, one.shape[1]), one.dtype) for one in sums] if together == TOGETHER else []
    latest: list[list[Any]] = [[] for _ in sums]
    for m in range(_order(run, terms, sums), len(weights)):
        if m:
            terms.step()
        for n, block in enumerate(terms.blocks()):
            one = _flat(block, weights.dtype)
            if held:
                held[n][m % TOGETHER] = one
            else:
                latest[n].append(one)  # the next step leaves it as it is
        count = m % together + 1
        if count == together or m == len(weights) - 1:
            these = np.ascontiguousarray(weights[m + 1 - count : m + 1].T)
            for n, total in enumerate(sums):
                _add(total, these, held[n][:count] if held else latest[n])
            latest = [[] for _ in sums]
            _pause(run, terms, m, sums)


def _are_complex(blocks: list[Any], terms: Terms) -> bool:
    """Return whether the numbers of a recurrence's blocks are complex ones, or pairs that are."""
    if terms.doubled:
        return all(block.shape[-1] % 2 == 0 and block.flags.c_contiguous for block in blocks)
    return all(block.dtype.kind == "c" for block in blocks)


def _add(total: Any, weights: Array, terms: Any) -> None:
    """Add Σ_t weights_kt terms_t to each total_k: all of one type, the terms in one piece, or one or two apart."""
    xp: Any = namespace(total)
    if isinstance(terms, list):
        factors = weights if len(terms) == 2 else np.pad(weights, ((0, 0), (0, 1)))
        for one, (x, y) in zip(total, factors, strict=True):
            _pair_kernel(xp.__name__)(terms[0], terms[-1], x, y, one)
    elif xp is np:
        total += weights @ terms
    else:
        length = terms.shape[1]
        _sums_kernel()(terms, xp.asarray(weights), length, len(total), len(terms), total, size=length)


@functools.cache
def _pair_kernel(module: str) -> Any:
    if module == "numpy":
        from spectile.kpm.cpu.operator import add_pair

        return add_pair
    import cupy

    return cupy.ElementwiseKernel("T a, T b, T x, T y", "T total", "total += x * a + y * b", "spectile_kpm_pair")


@functools.cache
def _sums_kernel() -> Any:
    """Return the kernel that reads up to `TOGETHER` terms once for all sums."""
    import cupy

    code = f"""
    T x[{TOGETHER}];
    #pragma unroll
    for (int t = 0; t < {TOGETHER}; ++t) x[t] = t < count ? terms[t * length + i] : T(0);
    for (int k = 0; k < sums; ++k) {{
        T sum = total[k * length + i];
        #pragma unroll
        for (int t = 0; t < {TOGETHER}; ++t) if (t < count) sum += weights[k * count + t] * x[t];
        total[k * length + i] = sum;
    }}
    """
    return cupy.ElementwiseKernel(
        "raw T terms, raw T weights, int64 length, int32 sums, int32 count", "raw T total", code, "spectile_kpm_sums"
    )


def _pause(run: Run, terms: Terms, order: int, sums: list[Any]) -> None:
    """Let a run write how far sums over terms have come: all terms up to this order are in them."""

    def state() -> dict[str, Any]:
        return {"order": order} | {f"sum_{n}": on_host(total) for n, total in enumerate(sums)} | terms.state()

    run.pause(state)


def _order(run: Run, terms: Terms, sums: list[Any]) -> int:
    """Return the order from which sums over terms go on: 0, or what follows where the run's file left them."""
    state = run.resumed()
    if state is None:
        return 0
    order = state.number("order", 0)
    for n, total in enumerate(sums):
        total[...] = namespace(total).asarray(state.array(f"sum_{n}", total.dtype, total.shape))
    terms.restore(state, order)
    terms.progress.add(order * terms.width)
    return order + 1


def _flat(block: Any, real: Any) -> Any:
    """Return the numbers of an array in one piece as real ones, sharing its memory."""
    return block.reshape(-1).view(real)


def _finite_numbers(name: str, given: npt.ArrayLike) -> Array:
    """Return one finite number or a sequence of them as an array."""
    found = numbers(name, given)
    if found.ndim > 1 or not np.isfinite(found).all():
        raise ValueError(f"{name} have shape {found.shape}: give one finite number or a sequence of them")
    return found


def _places(name: str, places: int | Sequence[int], length: int) -> Array:
    """Return row numbers, counted from the end where negative, as an array."""
    found = np.atleast_1d(host_array(name, places))
    if (
        found.ndim != 1
        or not found.size
        or found.dtype.kind not in "iu"
        or not np.all((-length <= found) & (found < length))
    ):
        raise ValueError(
            f"{name}={reprlib.repr(places)} must be whole numbers from {-length} to {length - 1}, at least one"
        )
    return found.astype(np.int64) % length
