"""The eigensolver on the CPU: from the caller's array to its eigenpairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import memory
from spectile.evd.cpu import solver
from spectile.evd.cpu.load import load_matrix
from spectile.evd.types import SCALARS, Options, working_dtype


def eigh(a: Any, options: Options) -> Any:
    """`api.eigh` on the CPU.

    Parameters
    ----------
    a : array, shape (..., n, n)
    options : Options
    """
    array = _as_matrices(a)
    n, lead = array.shape[-1], array.shape[:-2]
    real = SCALARS[array.dtype.name].real
    if n > 0 and not lead:
        w, v = solve(array, options)
        return (w, v) if options.vectors else w
    m = n if options.subset is None else options.subset.count()
    w = np.empty((*lead, m), real)
    v = np.empty((*lead, n, m), array.dtype)
    for index in np.ndindex(*lead) if n else ():
        w[index], vectors = solve(array[index], options)
        if options.vectors:
            v[index] = vectors
    return (w, v) if options.vectors else w


def solve(array: np.ndarray, options: Options) -> tuple[Any, Any]:
    """Solve one problem of order at least 1; return w, and v or None."""
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
    array = _as_matrices(a)
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
    array = array.astype(working_dtype(array.dtype), copy=False)
    return array


def _require_memory(array: Any, options: Options) -> None:
    n = array.shape[-1]
    needed = array.dtype.itemsize * n * n * (5 if options.vectors else 2)
    memory.require_host_free(needed, f"the eigenproblem of order {n:,}")


def _threads(n: int) -> int:
    """Threads of the chasing: those of the BLAS, so that threadpoolctl governs both; one where more cannot help."""
    if n < 256:
        return 1
    from threadpoolctl import threadpool_info

    return min((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
