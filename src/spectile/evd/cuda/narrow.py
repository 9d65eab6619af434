"""Tridiagonal and banded problems on CUDA, from the stages of the dense solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import arrays, memory
from spectile.evd.arguments import batch_shape, check_tridiagonal, refuse_ragged, require_dimensions, selected
from spectile.evd.cuda import run
from spectile.evd.cuda.back.sweeps import apply_chasing
from spectile.evd.cuda.chasing.chase import chase_band
from spectile.evd.cuda.matrix import as_array, near_one, widened, zero_matrix
from spectile.evd.types import Options, Subset, exponent_near_one, not_finite, scalar_of, working_dtype


def eigh_tridiagonal(
    d: Any, e: Any, *, eigvals_only: bool, select: Any, select_range: Any, check_finite: bool, tol: float,
    lapack_driver: str,
) -> Any:  # fmt: skip
    """`narrow.eigh_tridiagonal` on the current device; `tol` is LAPACK's."""
    import cupy

    diagonal, to_caller_kind = arrays.to_device(run.host_as_array(d, "d"), "d")
    beside, _ = arrays.to_device(run.host_as_array(e, "e"), "e")
    for name, array in (("d", diagonal), ("e", beside)):
        arrays.require_here(name, array)
    check_tridiagonal(diagonal, beside, lapack_driver, whole=select == "a", vectors=not eigvals_only)
    n, lead = diagonal.shape[-1], batch_shape(diagonal.shape[:-1], beside.shape[:-1])
    diagonal, beside = cupy.broadcast_to(diagonal, (*lead, n)), cupy.broadcast_to(beside, (*lead, n - 1))
    subset = selected(select, select_range, n)
    dtype = working_dtype(np.promote_types(diagonal.dtype, beside.dtype))

    def solve(index: tuple[int, ...]) -> tuple[Any, Any]:
        return _solve_tridiagonal(diagonal[index], beside[index], dtype, not eigvals_only, subset, check_finite)

    return _solve_each(solve, lead, eigvals_only, to_caller_kind)


def _solve_each(solve: Any, lead: tuple[int, ...], eigvals_only: bool, to_caller_kind: Any) -> Any:
    """Solve the problems of a batch one after the other, or the one there is."""
    if not lead:
        w, v = solve(())
    else:
        values, vectors = zip(*(solve(index) for index in np.ndindex(*lead)), strict=True)
        refuse_ragged(values)
        w, v = run.stacked(values, lead), None if eigvals_only else run.stacked(vectors, lead)
    return to_caller_kind(w) if eigvals_only else (to_caller_kind(w), to_caller_kind(v))


def _solve_tridiagonal(
    d: Any, e: Any, dtype: Any, vectors: bool, subset: Subset | None, check_finite: bool
) -> tuple[Any, Any]:
    import cupy

    n, scalar = len(d), scalar_of(dtype)
    wide, beside = widened(d), cupy.zeros(n, np.float64)
    beside[: n - 1] = widened(e)
    tops = {name: float(cupy.abs(x).max()) for name, x in (("d", wide), ("e", beside))}
    for name, top in tops.items():
        if not math.isfinite(top):
            raise not_finite(name, check_finite)
    largest = max(tops.values())
    if n == 1:
        wanted = slice(0, 1) if subset is None else subset.of(cupy.asnumpy(wide), scalar.real)
        return run.own_values(wide[wanted], 0, scalar), cupy.ones((1, 1), dtype)[:, wanted] if vectors else None
    scale = exponent_near_one(largest)
    wide, beside = cupy.ldexp(wide, scale), cupy.ldexp(beside, scale)
    if not vectors:
        return run.own_values(run.wanted_values(wide, beside, scale, subset, scalar), scale, scalar), None
    with memory.allocating(f"the tridiagonal eigenproblem of order {n:,}", 16 * n * n):
        w, z, columns = run.wanted_vectors(wide, beside, scalar, scale, subset)
        return run.own_values(w, scale, scalar), as_array(z, n, columns).astype(dtype, order="F")


def eig_banded(
    a_band: Any, *, lower: bool, eigvals_only: bool, overwrite_a_band: bool, select: Any, select_range: Any,
    max_ev: int, check_finite: bool,
) -> Any:  # fmt: skip
    """`narrow.eig_banded` on the current device; `overwrite_a_band` and `max_ev` are LAPACK's."""
    import cupy

    a_band = run.host_as_array(a_band, "a_band")
    if isinstance(a_band, np.ndarray):
        a_band = a_band.astype(working_dtype(a_band.dtype, "a_band"), copy=False)
    band, to_caller_kind = arrays.to_device(a_band, "a_band")
    arrays.require_here("a_band", band)
    require_dimensions("a_band", band, 2)
    band = band.astype(working_dtype(band.dtype, "a_band"), copy=False)
    n, lead = band.shape[-1], batch_shape(band.shape[:-2])
    subset = selected(select, select_range, n) if band.size else None

    def solve(index: tuple[int, ...]) -> tuple[Any, Any]:
        if band.size == 0:
            return cupy.empty(0, scalar_of(band.dtype).real), cupy.empty((0, 0), band.dtype)
        return _solve_banded(_lower_band(band[index], lower), not eigvals_only, subset, check_finite)

    return _solve_each(solve, lead, eigvals_only, to_caller_kind)


def _lower_band(band: Any, lower: bool) -> Any:
    """Return ``band[i - j, j] == a[i, j]``, shape (u + 1, n), with zeros beyond the matrix and a real diagonal."""
    import cupy

    rows, n = band.shape
    result = cupy.zeros((min(rows, n), n), band.dtype)
    for offset in range(min(rows, n)):
        result[offset, : n - offset] = band[offset, : n - offset] if lower else band[rows - 1 - offset, offset:]
    if band.dtype.kind == "c":
        parts = result.view(scalar_of(band.dtype).real)
        parts[0, 1::2] = 0
        if not lower:  # the sign alone, because arithmetic of CuPy takes small numbers of float32 for 0
            bits = parts.view(f"uint{8 * parts.itemsize}")[:, 1::2]
            bits ^= bits.dtype.type(1 << 8 * parts.itemsize - 1)
    return result


def _solve_banded(band: Any, vectors: bool, subset: Subset | None, check_finite: bool) -> tuple[Any, Any]:
    import cupy

    rows, n = band.shape
    scalar = scalar_of(band.dtype)
    fitting = [b for b in scalar.bandwidths if rows - 1 <= b]
    if not fitting:
        return _solve_dense(band, vectors, subset, check_finite)
    scale, b = near_one(band), fitting[0]
    if scale is None:
        raise not_finite("a_band", check_finite)
    run.prepare_stages(n, scalar.name, b, vectors=vectors, subset=subset, dense=False)
    space = cupy.zeros((n + 2, 2 * b), band.dtype)
    space[:n, :rows] = band.T
    with memory.allocating(
        f"the banded eigenproblem of order {n:,}", (3 if vectors else 0) * n * n * scalar.wide_bytes
    ):
        reflectors = zero_matrix(n, n, band.dtype) if vectors else None
        d, e = chase_band(space, n, b, reflectors)
        if reflectors is None:
            return run.own_values(run.wanted_values(d, e, scale, subset, scalar), scale, scalar), None
        w, z, columns = run.wanted_vectors(d, e, scalar, scale, subset)
        if columns:
            apply_chasing(reflectors, n, b, z.pointer, z.ld, columns)
        return run.own_values(w, scale, scalar), as_array(z, n, columns).astype(band.dtype, order="F")


def _solve_dense(band: Any, vectors: bool, subset: Subset | None, check_finite: bool) -> tuple[Any, Any]:
    """Solve a band that is wider than the chasing kernels hold as a dense matrix."""
    import cupy

    if not bool(cupy.isfinite(band).all()):
        raise not_finite("a_band", check_finite)
    rows, n = band.shape
    flat = cupy.zeros(n * n, band.dtype)  # column-major
    for offset in range(rows):
        flat[offset :: n + 1][: n - offset] = band[offset, : n - offset]
    options = Options(vectors=vectors, overwrite=True, check_finite=check_finite, subset=subset)
    return run.solve(flat.reshape(n, n).T, options)
