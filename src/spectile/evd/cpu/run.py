"""The eigensolver on the CPU: from the caller's array to its eigenpairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from spectile.core import memory, progress
from spectile.core.arrays import host_array
from spectile.core.choice import Candidate
from spectile.core.host import in_kind_of
from spectile.core.pointers import overlap, overwritable
from spectile.core.threads import blas_threads
from spectile.evd.arguments import refuse_ragged
from spectile.evd.cpu import drivers, part, solver
from spectile.evd.load import all_finite, divided_by_power, exponent_of, largest_entry, load_matrix, require_in_range
from spectile.evd.types import SCALARS, Definite, Options, Subset, require_finite, scalar_of, working_dtype

#: Bytes of a matrix from which our two stages find eigenvalues faster than LAPACK's one stage, which reads the matrix
#: from memory again and again once it outgrows the caches (docs/notes).
STAGES_BYTES = 72 * 2**20
#: Matrices that LAPACK works in, at most.
MOST_MATRICES = 4
#: Orders up to which NumPy's loop over a batch, in C, takes less time than a call from Python for each matrix, which
#: costs 10 to 25 us: for eigenvalues alone, and with eigenvectors.  The loop works in double precision, so that for
#: single it soon takes twice LAPACK's time.  For double both call the same driver: the loop has memory that is touched
#: once for all matrices, ours the faster reduction of eigenvalues alone, and tells how far a long call is.
LOOPED_ORDER = {"s": (32, 32), "c": (32, 24), "d": (90, 1023), "z": (90, 1023)}
#: Order from which all eigenvectors come by LAPACK's steps, of which the reduction is faster (`drivers.REDUCED_BLOCK`):
#: after each a long call tells how far it is.
STEPS_ORDER = 192


def eigh(a: Any, options: Options, definite: Definite | None = None) -> Any:
    """`api.eigh` on the CPU.

    Parameters
    ----------
    a : array, shape (..., n, n)
    options : Options
    definite : Definite, optional
        The second matrix, of the same shape or one that broadcasts.
    """
    array, in_kind = _as_matrices("a", a), in_kind_of(a)
    if definite is not None:
        array, b = _as_pair(array, _as_matrices("b", definite.b))
        if b is not definite.b:
            definite = Definite(b, definite.kind, definite.overwrite or _is_new(b, definite.b))
        if definite.overwrite and not overwritable(b):
            definite = definite._replace(overwrite=False)
    options = _with_own(options, array, a)
    if definite is not None and (options.overwrite or definite.overwrite) and overlap(array, definite.b):
        # One would be overwritten while the other is read.
        options, definite = options._replace(overwrite=False), definite._replace(overwrite=False)
    if array.ndim == 2 and array.size:
        w, v = _solve(array, options, definite)
    else:
        w, v = _solve_each(array, options, definite)
    require_in_range(w)
    return (in_kind(w), in_kind(v)) if options.vectors else in_kind(w)


def _as_pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both operands in one dtype and one shape."""
    if a.dtype is b.dtype and a.shape == b.shape:
        return a, b
    dtype = np.promote_types(a.dtype, b.dtype)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b = _converted(a, dtype), _converted(b, dtype)
    return (a if a.shape == shape else np.broadcast_to(a, shape)), (
        b if b.shape == shape else np.broadcast_to(b, shape)
    )


def _solve_each(array: np.ndarray, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    n, lead, subset = array.shape[-1], array.shape[:-2], options.subset
    looped = definite is None and array.size and _is_looped(array, options)
    # Not looked at by SciPy's BLAS, whose threads would spin beside those of NumPy's loop.
    if looped and np.logical_and.reduce(np.isfinite(array), axis=None):
        return _solve_small_batch(array, options)
    indices = list(np.ndindex(*lead)) if n else []
    own = (_solve(array[i], options, definite and definite._replace(b=definite.b[i])) for i in indices)
    if subset is not None and not subset.by_index and indices:
        return _stacked(list(own), lead)
    m = n if subset is None or not subset.by_index else subset.count()
    w = np.empty((*lead, m), SCALARS[array.dtype.name].real)
    v = np.empty((*lead, m, n), array.dtype).swapaxes(-1, -2) if options.vectors else None  # in columns, as LAPACK's
    for index, (values, vectors) in zip(indices, own, strict=True):
        w[index] = values
        if v is not None:
            v[index] = vectors
    return w, v


def _is_looped(array: np.ndarray, options: Options) -> bool:
    """Return whether a batch goes to NumPy, which knows no driver, and no part of a larger matrix that costs less."""
    n = array.shape[-1]
    if n > _looped_order(array, options) or options.driver is not None:
        return False
    return options.subset is None or n <= drivers.QR_ORDER or _way(array, options) == "all"


def _looped_order(array: np.ndarray, options: Options) -> int:
    return LOOPED_ORDER[scalar_of(array.dtype).letter][options.vectors]


def _way(array: np.ndarray, options: Options) -> str:
    """Return whether one "call" of a driver finds what is wanted, LAPACK's "steps" do, or "all" is found first."""
    n, subset = array.shape[-1], options.subset
    if options.driver is not None:
        return "call"
    if subset is None:
        return "steps" if options.vectors and STEPS_ORDER <= n <= drivers.DIVIDED_ORDER else "all"
    return part.way(scalar_of(array.dtype), n, subset.count() if subset.by_index else None, options.vectors)


def _stacked(results: list[tuple[Any, Any]], lead: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the parts of the spectra of a batch, equally large, as one."""
    refuse_ragged([w for w, _ in results])
    values, vectors = (None if part[0] is None else np.stack(part) for part in zip(*results, strict=True))
    assert values is not None
    return values.reshape(*lead, -1), None if vectors is None else vectors.reshape(*lead, *vectors.shape[1:])


def _solve_small_batch(array: np.ndarray, options: Options) -> tuple[Any, Any]:
    uplo: Literal["L", "U"] = "L" if options.lower else "U"
    w, v = np.linalg.eigh(array, UPLO=uplo) if options.vectors else (np.linalg.eigvalsh(array, UPLO=uplo), None)
    subset = options.subset
    if subset is not None and not subset.by_index:
        lead, n = w.shape[:-1], w.shape[-1]
        own = [None] * w[..., 0].size if v is None else v.reshape(-1, n, n)
        return _stacked([_part(*pair, subset) for pair in zip(w.reshape(-1, n), own, strict=True)], lead)
    wanted = slice(None) if subset is None else slice(subset.low, subset.high + 1)
    return w[..., wanted], None if v is None else v[..., wanted]


def _solve(array: np.ndarray, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    """Solve one problem of order at least 1 by whatever is fastest, or by the driver that is named."""
    if definite is not None:
        return _solve_generalized(array, options, definite)
    lower, vectors, overwrite, _, subset, driver = options
    if driver is None and by_stages(array, vectors=vectors):
        return solve_by_stages(array, options)
    n = len(array)
    way = _way(array, options)
    driver = "evx" if way == "call" and driver is None else driver
    if _is_large(array):
        _require_memory(array, _elements(array, options, driver or drivers.fastest(n, vectors)))
    part_of, scale = subset if driver in ("evr", "evx") else None, 0
    if way == "steps" or part_of is not None:
        scale = exponent_of(array, lower, options.check_finite)
    elif not all_finite(array):
        _require_finite(array, options)
    if way == "steps":
        return part.solve(array, lower, vectors, overwrite, subset, scale)
    w, v = _told(drivers.standard, array, lower, vectors, overwrite, driver, part_of, scale)
    return (w, v) if subset is None or part_of is not None else _part(w, v, subset)


def _is_large(array: np.ndarray) -> bool:
    """Return whether the host's memory is asked for one matrix; otherwise a call is short, too."""
    return MOST_MATRICES * array.nbytes > memory.UNASKED


def _told(call: Callable[..., Any], array: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    """Return what one call of LAPACK gives; one that may take long is told of."""
    if not _is_large(array):
        return call(array, *args, **kwargs)
    with progress.Progress("eigh", unit=progress.OPERATIONS):
        return call(array, *args, **kwargs)


def _generalized_driver(n: int, options: Options) -> str:
    subset = options.subset
    few = subset is not None and subset.by_index and subset.count() <= n // 16
    driver = "evx" if few else drivers.fastest(n, options.vectors)
    return options.driver or {"evr": "gvx"}.get(driver, "g" + driver[1:])


def explain(shape: tuple[int, ...], a: Any, options: Options, definite: Definite | None) -> list[Candidate]:
    """`api.explain` on the CPU, for matrices of a shape."""
    array, n, batch = _as_matrices("a", a), shape[-1], len(shape) > 2
    if definite is not None:
        taken = f"LAPACK's {_generalized_driver(n, options)}"
        return [Candidate(taken, math.nan, "the generalized problem")]
    looped = batch and _is_looped(array, options)
    staged = not looped and n > 0 and options.driver is None
    staged = staged and by_stages(array.reshape(-1, n, n)[0], vectors=options.vectors)
    way = "" if looped or staged else _way(array, options)
    driver = options.driver or ("evx" if way == "call" else drivers.fastest(n, options.vectors))
    return [
        Candidate("NumPy's loop", math.nan if looped else None, f"a batch up to order {_looped_order(array, options)}"),
        Candidate("two stages", math.nan if staged else None, f"eigenvalues of {STAGES_BYTES:,} bytes and few threads"),
        Candidate("LAPACK's steps", math.nan if way == "steps" else None, "parts, and vectors of larger matrices"),
        Candidate(f"LAPACK's {driver}", math.nan if way in ("call", "all") else None, "all else"),
    ]


def _solve_generalized(array: np.ndarray, options: Options, definite: Definite) -> tuple[Any, Any]:
    driver = _generalized_driver(len(array), options)
    if _is_large(array):
        both = options._replace(overwrite=options.overwrite and definite.overwrite)
        _require_memory(array, _elements(array, both, driver))
    scale_a = exponent_of(array, options.lower, options.check_finite)
    if not all_finite(definite.b):
        _require_finite(definite.b, options, "b")
    # The ends of an interval are compared with all eigenvalues, whose norm says what roundoff is.
    part = options.subset if driver == "gvx" and options.subset is not None and options.subset.by_index else None
    w, v = _told(
        drivers.generalized, array, definite.b, kind=definite.kind, lower=options.lower,
        vectors=options.vectors, overwrite=options.overwrite, overwrite_b=definite.overwrite, driver=driver,
        scale_a=scale_a, part=part,
    )  # fmt: skip
    return (w, v) if part is not None or options.subset is None else _part(w, v, options.subset)


def _part(w: Any, v: Any, subset: Subset) -> tuple[Any, Any]:
    wanted = subset.of(w)
    return w[wanted], None if v is None else v[:, wanted]


def by_stages(array: np.ndarray, *, vectors: bool) -> bool:
    """Return whether our two stages are faster than LAPACK: for the eigenvalues alone of large matrices.

    The more threads, the larger: in float64 at order 3000 they take 0.75 of LAPACK's time with one thread, 0.85 with
    two and 0.95 with four, but twice as long with eight at order 2000 (docs/notes).
    """
    if vectors or array.nbytes < STAGES_BYTES:
        return False
    return array.nbytes >= 8e6 * (_threads(len(array)) - 1) ** 2


def solve_by_stages(array: np.ndarray, options: Options) -> tuple[Any, Any]:
    """Solve one problem of order at least 1 by our two stages; return w, and v or None."""
    matrix, scale = _loaded(array, options)
    subset = options.subset
    with progress.Progress("eigh", unit=progress.OPERATIONS):
        values, v = solver.eigh(
            matrix,
            vectors=options.vectors,
            choose=lambda w: slice(0, len(w)) if subset is None else subset.of(w, scale=scale),
            threads=_threads(len(array)),
        )
    return divided_by_power(values, scale), v


def tridiagonalize(a: Any, options: Options) -> tuple[Any, Any, Any]:
    """`api.tridiagonalize` on the CPU, for one matrix."""
    array, in_kind = _as_matrices("a", a), in_kind_of(a)
    d, e, q = _tridiagonalize(array, _with_own(options, array, a))
    return in_kind(d), in_kind(e), None if q is None else in_kind(q)


def _tridiagonalize(array: np.ndarray, options: Options) -> tuple[Any, Any, Any]:
    n, scalar = array.shape[0], SCALARS[array.dtype.name]
    if n == 0:
        empty = np.empty(0, scalar.real)
        return empty, empty.copy(), np.empty((0, 0), array.dtype) if options.vectors else None
    matrix, scale = _loaded(array, options)
    factors = solver.tridiagonalize(
        matrix, bandwidth=solver.BANDWIDTH, block=solver.BLOCK, keep=options.vectors, threads=_threads(n)
    )
    q = solver.apply_q(factors, np.eye(n, dtype=matrix.dtype)) if options.vectors else None
    return divided_by_power(factors.d, scale), divided_by_power(factors.e, scale), q


def _as_matrices(name: str, a: Any) -> np.ndarray:
    array = host_array(name, a)
    dtype = working_dtype(array.dtype, name)
    if array.dtype is not dtype:
        array = _converted(array, dtype)
    return array if array.flags.aligned else _converted(array, dtype, copy=True)


def _converted(array: np.ndarray, dtype: Any, copy: bool = False) -> np.ndarray:
    """Return an array in a dtype; a new one is in columns, as LAPACK works, and its memory is asked for."""
    if not copy and array.dtype == dtype:
        return array
    _require_memory(array, array.size, dtype)
    return array.astype(dtype, order="F" if array.ndim == 2 else "C")


def _with_own(options: Options, array: np.ndarray, given: Any) -> Options:
    """Return the options for the matrices of an operand, which are overwritten where they are new or lent, and may."""
    overwrite = (options.overwrite or _is_new(array, given)) and overwritable(array)
    return options if overwrite == options.overwrite else options._replace(overwrite=overwrite)


def _is_new(array: np.ndarray, given: Any) -> bool:
    """Return whether an array is a copy of what a caller gave, so that it may be overwritten."""
    return array is not given and isinstance(given, np.ndarray) and not overlap(array, given)


def _elements(array: np.ndarray, options: Options, driver: str) -> int:
    """Return how many elements LAPACK works in; a matrix that is not in columns is copied in any case."""
    n, subset = len(array), options.subset
    own = options.overwrite and array.flags.f_contiguous
    columns = subset.count() if subset is not None and subset.by_index else n
    if _way(array, options) == "steps" and not driver.startswith("g"):
        return part.work_elements(array.dtype, n, columns, vectors=options.vectors, overwrite=own)
    return drivers.work_elements(driver, n, columns, vectors=options.vectors, overwrite=own)


def _loaded(array: np.ndarray, options: Options) -> tuple[np.ndarray, int]:
    """Return a matrix as our stages take it, and its scale; the memory that they work in is asked for."""
    n, (lower, vectors, overwrite, check_finite, *_) = len(array), options
    own = overwrite and array.flags.f_contiguous
    # Matrix, panels and band, and with Q the reflectors and Q twice.
    elements = n * n * (not own) + 2 * n * (solver.BLOCK + solver.BANDWIDTH) + (3 * n * n if vectors else 0)
    _require_memory(array, elements)
    return load_matrix(array, lower=lower, overwrite=overwrite, check_finite=check_finite)


def _require_memory(array: np.ndarray, elements: int, dtype: Any = None) -> None:
    itemsize = np.dtype(array.dtype if dtype is None else dtype).itemsize
    memory.require_host_free(itemsize * elements, f"the eigenproblem of order {array.shape[-1]:,}")


def _require_finite(array: np.ndarray, options: Options, name: str = "a") -> None:
    """Raise where it is the triangle that is read that holds NaN or infinity; LAPACK may not come to an end then."""
    require_finite(largest_entry(array if options.lower else array.T), options.lower, options.check_finite, name)


def _threads(n: int) -> int:
    """Threads of the chasing: those of the BLAS, so that threadpoolctl governs both; one where more cannot help."""
    return 1 if n < 256 else blas_threads()
