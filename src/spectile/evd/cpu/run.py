"""The eigensolver on the CPU: from the caller's array to its eigenpairs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from spectile.core import memory
from spectile.core.host import in_kind_of
from spectile.evd.cpu import drivers, solver
from spectile.evd.cpu.load import largest_entry, load_matrix
from spectile.evd.types import SCALARS, Definite, Options, Subset, require_finite, working_dtype

#: Bytes of a matrix from which our two stages find eigenvalues faster than LAPACK's one stage, which reads the matrix
#: from memory again and again once it outgrows the caches (docs/notes).
STAGES_BYTES = 72 * 2**20
#: Order from which the host's memory is looked up before it is used, which takes 0.3 ms; below, a matrix is a few MB.
CHECKED_ORDER = 1024
#: Order up to which NumPy's loop over a batch, in C, takes less time than a call from Python for each matrix.
LOOPED_ORDER = 16


def eigh(a: Any, options: Options, definite: Definite | None = None) -> Any:
    """`api.eigh` on the CPU.

    Parameters
    ----------
    a : array, shape (..., n, n)
    options : Options
    definite : Definite, optional
        The second matrix, of the same shape or one that broadcasts.
    """
    array, in_kind = _as_matrices(a), in_kind_of(a)
    if definite is not None:
        array, b = _as_pair(array, _as_matrices(definite.b))
        definite = definite._replace(b=b)
    if array.ndim == 2 and array.size:
        w, v = _solve(array, options, definite)
    else:
        w, v = _solve_each(array, options, definite)
    return (in_kind(w), in_kind(v)) if options.vectors else in_kind(w)


def _as_pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both operands in one dtype and one shape."""
    dtype = np.promote_types(a.dtype, b.dtype)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    return (a if a.shape == shape else np.broadcast_to(a, shape)), (
        b if b.shape == shape else np.broadcast_to(b, shape)
    )


def _solve_each(array: np.ndarray, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    n, lead = array.shape[-1], array.shape[:-2]
    if n <= LOOPED_ORDER and array.size and definite is None and options.driver is None and np.isfinite(array).all():
        return _solve_small_batch(array, options)
    m = n if options.subset is None else options.subset.count()
    w = np.empty((*lead, m), SCALARS[array.dtype.name].real)
    v = np.empty((*lead, n, m), array.dtype)
    for index in np.ndindex(*lead) if n else ():
        own = None if definite is None else definite._replace(b=definite.b[index])
        w[index], vectors = _solve(array[index], options, own)
        if options.vectors:
            v[index] = vectors
    return w, v


def _solve_small_batch(array: np.ndarray, options: Options) -> tuple[Any, Any]:
    uplo: Literal["L", "U"] = "L" if options.lower else "U"
    wanted = slice(None) if options.subset is None else slice(options.subset.low, options.subset.high + 1)
    if not options.vectors:
        return np.linalg.eigvalsh(array, UPLO=uplo)[..., wanted], None
    w, v = np.linalg.eigh(array, UPLO=uplo)
    return w[..., wanted], v[..., wanted]


def _solve(array: np.ndarray, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    """Solve one problem of order at least 1 by whatever is fastest, or by the driver that is named."""
    if definite is not None:
        return _solve_generalized(array, options, definite)
    lower, vectors, overwrite, _, subset, driver = options
    if driver is None and by_stages(array, vectors=vectors):
        return solve_by_stages(array, options)
    if len(array) >= CHECKED_ORDER:
        _require_memory(array, options)
    if not np.isfinite(array).all():
        _require_finite(array, options)
    if driver is None and vectors and subset is not None and subset.by_index and subset.count() <= len(array) // 8:
        driver = "evr"  # of a part, bisection and inverse iteration, as orthogonal as divide and conquer
    if subset is None or driver in ("evr", "evx"):
        return drivers.standard(array, lower, vectors, overwrite and array.flags.writeable, driver, subset)
    return _part(*drivers.standard(array, lower, vectors, overwrite and array.flags.writeable, driver), subset)


def _solve_generalized(array: np.ndarray, options: Options, definite: Definite) -> tuple[Any, Any]:
    if len(array) >= CHECKED_ORDER:
        _require_memory(array, options)
    for matrix in (array, definite.b):
        if not np.isfinite(matrix).all():
            _require_finite(matrix, options)
    divided = not options.vectors or len(array) <= drivers.DIVIDED_ORDER
    driver = options.driver or ("gvd" if divided else "gvx")
    w, v = drivers.generalized(
        array,
        definite.b,
        kind=definite.kind,
        lower=options.lower,
        vectors=options.vectors,
        overwrite=options.overwrite and array.flags.writeable,
        overwrite_b=definite.overwrite and definite.b.flags.writeable,
        driver=driver,
        part=options.subset if driver == "gvx" else None,
    )
    return (w, v) if driver == "gvx" or options.subset is None else _part(w, v, options.subset)


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
    _require_memory(array, options)
    matrix, scale = load_matrix(
        array, lower=options.lower, overwrite=options.overwrite, check_finite=options.check_finite
    )
    subset = options.subset
    values, v = solver.eigh(
        matrix,
        vectors=options.vectors,
        choose=lambda w: slice(0, len(w)) if subset is None else subset.of(np.ldexp(w, -scale)),
        threads=_threads(len(array)),
    )
    return np.ldexp(values, -scale), v


def tridiagonalize(a: Any, options: Options) -> tuple[Any, Any, Any]:
    """`api.tridiagonalize` on the CPU, for one matrix."""
    in_kind = in_kind_of(a)
    d, e, q = _tridiagonalize(_as_matrices(a), options)
    return in_kind(d), in_kind(e), None if q is None else in_kind(q)


def _tridiagonalize(array: np.ndarray, options: Options) -> tuple[Any, Any, Any]:
    n, scalar = array.shape[0], SCALARS[array.dtype.name]
    if n == 0:
        empty = np.empty(0, scalar.real)
        return empty, empty.copy(), np.empty((0, 0), array.dtype) if options.vectors else None
    _require_memory(array, options)
    matrix, scale = load_matrix(
        array, lower=options.lower, overwrite=options.overwrite, check_finite=options.check_finite
    )
    factors = solver.tridiagonalize(
        matrix, bandwidth=solver.BANDWIDTH, block=solver.BLOCK, keep=options.vectors, threads=_threads(n)
    )
    q = solver.apply_q(factors, np.eye(n, dtype=matrix.dtype)) if options.vectors else None
    return np.ldexp(factors.d, -scale), np.ldexp(factors.e, -scale), q


def _as_matrices(a: Any) -> np.ndarray:
    array = np.asarray(a)
    dtype = working_dtype(array.dtype)
    return array if array.dtype is dtype else array.astype(dtype, copy=False)


def _require_memory(array: np.ndarray, options: Options) -> None:
    n = array.shape[-1]
    needed = array.dtype.itemsize * n * n * (5 if options.vectors else 2)
    memory.require_host_free(needed, f"the eigenproblem of order {n:,}")


def _require_finite(array: np.ndarray, options: Options) -> None:
    """Raise where it is the triangle that is read that holds NaN or infinity; LAPACK may not come to an end then."""
    require_finite(largest_entry(array if options.lower else array.T), options.lower, options.check_finite)


def _threads(n: int) -> int:
    """Threads of the chasing: those of the BLAS, so that threadpoolctl governs both; one where more cannot help."""
    if n < 256:
        return 1
    from threadpoolctl import threadpool_info

    return min((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
