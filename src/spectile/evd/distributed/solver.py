"""`api.eigh` on the ranks of a communicator."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.arrays import host_array
from spectile.core.ranks import on_every_rank
from spectile.evd.cpu import run
from spectile.evd.distributed.matrix import BlockCyclicMatrix
from spectile.evd.distributed.scalapack import Grid, grid_of, library
from spectile.evd.load import divided_by_power
from spectile.evd.types import (
    SCALARS,
    Definite,
    Options,
    exponent_near_one,
    not_definite,
    require_finite,
    working_dtype,
)


def eigh(a: Any, options: Options, definite: Definite | None, comm: Any) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
    """Return the wanted eigenvalues on every rank, and their eigenvectors, dealt out as A is, or None.

    Parameters
    ----------
    a : BlockCyclicMatrix or array
        An array is the same on every rank.
    options : Options
    definite : Definite, optional
        The second matrix, of the same kinds.
    comm : mpi4py.MPI.Comm

    Raises
    ------
    ImportError
        If there is no ScaLAPACK.
    ValueError, OverflowError, MemoryError, numpy.linalg.LinAlgError
        As `api.eigh`, on every rank.
    """
    a, b = on_every_rank(comm, lambda: _operands(a, definite, comm))
    # The last part of a matrix's line is of its own rank.
    said = [str(one).rpartition(",")[0] for one in (a, b)], options._replace(overwrite=False, check_finite=True)
    if any(other != said for other in comm.allgather(said)):
        raise ValueError("the ranks call with different arguments: pass the same to each, but for the entries")
    n, lower = a.shape[0], options.lower
    if comm.size == 1 or n < a.block * max(a.grid):
        return _on_one(a, b, options, definite)
    on_every_rank(comm, library)
    a = _owned(a, options, options.overwrite)
    scale = scale_b = _prepared(a, options, even=b is not None)
    with grid_of(a) as grid:
        if definite is not None and b is not None:
            b = _owned(b, options, definite.overwrite)
            scale_b = _prepared(b, options, even=True)
            scale -= scale_b
            _reduce(grid, a, b, lower)
        w, v = _solved(grid, a, options)
        if b is not None and v is not None:  # L⁻ᴴ Y of a lower factor, U⁻¹ Y of an upper one
            grid.call("trsm", "L", "L" if lower else "U", "C" if lower else "N", "N", n, n, 1.0, b, v)
            v.local[:] *= v.dtype.type(2.0 ** (scale_b // 2))
        if options.subset is not None:
            wanted = options.subset.of(w, scale=scale)
            w = w[wanted]
            v = None if v is None else _columns(grid, v, wanted.start, w.size)
    return divided_by_power(w, scale), v


def _operands(a: Any, definite: Definite | None, comm: Any) -> tuple[BlockCyclicMatrix, BlockCyclicMatrix | None]:
    from mpi4py import MPI

    given = {"a": a} if definite is None else {"a": a, "b": definite.b}
    arrays = {name: host_array(name, one) for name, one in given.items() if not isinstance(one, BlockCyclicMatrix)}
    dealt: dict[str, BlockCyclicMatrix] = {name: one for name, one in given.items() if name not in arrays}
    every: list[Any] = [*dealt.values(), *arrays.values()]
    dtype = np.result_type(*[working_dtype(one.dtype) for one in every])
    layout = {"block": every[0].block, "grid": every[0].grid} if dealt else {}
    dealt |= {name: _dealt_out(name, array, comm, dtype, layout) for name, array in arrays.items()}
    own, b = dealt["a"], dealt.get("b")
    for name, one in dealt.items():
        if MPI.Comm.Compare(one.comm, comm) not in (MPI.IDENT, MPI.CONGRUENT):
            raise ValueError(f"{name} lies on other ranks than comm: pass the communicator that it was made with")
        if (one.shape, one.block, one.grid, one.dtype) != (own.shape, own.block, own.grid, own.dtype):
            raise ValueError(f"b is dealt out as {b!r}, and a as {own!r}: give both one shape, dtype, block and grid")
        if one.local.size >= 2**31:
            count = f"{one.local.size:,} entries of {name} lie on one rank"
            raise ValueError(f"{count}, and ScaLAPACK counts them in 32 bits: use more ranks")
    return own, b


def _dealt_out(name: str, array: np.ndarray, comm: Any, dtype: Any, layout: dict[str, Any]) -> BlockCyclicMatrix:
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}, and ranks solve one matrix together: pass it alone")
    return BlockCyclicMatrix.from_function(comm, array.shape, lambda i, j: array[i, j], dtype, **layout)


def _on_one(
    a: BlockCyclicMatrix, b: BlockCyclicMatrix | None, options: Options, definite: Definite | None
) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
    """Solve a problem of one rank, or of which not all have a whole block, where ScaLAPACK errs, on the first alone."""
    comm, whole, second = a.comm, a.gather(), None if b is None else b.gather()

    def solved() -> Any:
        if comm.rank:
            return None
        return run.eigh(whole, options._replace(overwrite=True), definite and Definite(second, overwrite=True))

    found = on_every_rank(comm, solved)
    if not options.vectors:
        return comm.bcast(found), None
    w, v = found or (None, None)
    return comm.bcast(w), BlockCyclicMatrix.scatter(comm, v, block=a.block, grid=a.grid)


def _owned(matrix: BlockCyclicMatrix, options: Options, overwrite: bool) -> BlockCyclicMatrix:
    """Return a matrix that may be written to; memory is asked for, for it and for eigenvectors."""
    copies = (not overwrite) + options.vectors
    what = f"the eigenproblem of order {matrix.shape[0]:,} on {matrix.comm.size} ranks"
    on_every_rank(matrix.comm, lambda: memory.require_host_free(copies * matrix.local.nbytes, what))
    if overwrite:
        return matrix
    copy = matrix.like(matrix.shape)
    copy.local[:] = matrix.local
    return copy


def _prepared(matrix: BlockCyclicMatrix, options: Options, *, even: bool) -> int:
    """Clear what is not read, bring the largest entry near 1 by a power of two, and return that."""
    local, largest = matrix.local, 0.0
    for start in range(0, local.shape[1], matrix.block):
        part, columns = local[:, start : start + matrix.block], matrix.columns[start : start + matrix.block]
        below = matrix.rows[:, None] - columns
        part[(below < 0) if options.lower else (below > 0)] = 0
        if local.dtype.kind == "c":
            part.imag[below == 0] = 0
        for values in _parts(part):
            largest = max(largest, float(np.abs(values).max(initial=0.0)) if np.isfinite(values).all() else math.inf)
    largest = max(matrix.comm.allgather(largest))
    require_finite(largest, options.lower, options.check_finite)
    scale = exponent_near_one(largest)
    scale -= even and scale % 2
    if scale:
        for values in _parts(local):
            np.ldexp(values, scale, out=values)
    return scale


def _parts(array: np.ndarray) -> tuple[np.ndarray, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def _reduce(grid: Grid, a: BlockCyclicMatrix, b: BlockCyclicMatrix, lower: bool) -> None:
    """Bring A x = w B x to a standard problem in the place of A, with the factor of B in the place of B."""
    n, uplo, info = a.shape[0], "L" if lower else "U", ctypes.c_int()
    grid.call("potrf", uplo, n, b, info)
    minor = max(a.comm.allgather(info.value))
    if minor:
        raise not_definite(minor)
    one = ctypes.c_double() if a.dtype.char in "dD" else ctypes.c_float()
    grid.call("sygst", 1, uplo, n, a, b, one, info)


def _solved(grid: Grid, a: BlockCyclicMatrix, options: Options) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
    """Return all eigenvalues, and eigenvectors by divide and conquer or None; A is overwritten."""
    n, real = a.shape[0], np.dtype(SCALARS[a.dtype.name].real)
    w, v = np.zeros(n, real), a.like(a.shape) if options.vectors else None
    name = "syevd" if options.vectors else "syev"
    kinds = [a.dtype, *([real] if a.dtype.kind == "c" else []), *([np.dtype(np.int32)] if options.vectors else [])]
    info = ctypes.c_int()

    def call(spaces: list[np.ndarray], lengths: list[int]) -> None:
        work = [one for pair in zip(spaces, lengths, strict=True) for one in pair]
        job, uplo = "V" if options.vectors else "N", "L" if options.lower else "U"
        grid.call(name, job, uplo, n, a, w, a if v is None else v, *work, info)
        found = max(a.comm.allgather(info.value), key=abs)
        if found:
            raise np.linalg.LinAlgError(f"ScaLAPACK's {name} ended with info = {found}: no convergence")

    asked = [np.zeros(4, kind) for kind in kinds]
    call(asked, [-1] * len(kinds))
    # Single precision may have rounded a length down, and of the back-transformation's own space nothing is said.
    lengths = [max(4 * n, int(one[0].real * (1 + 2 * np.finfo(np.float32).eps)) + 1) for one in asked]
    lengths[0] += a.block * (a.block + sum(a.local.shape))

    def spaces() -> list[np.ndarray]:
        needed = sum(length * kind.itemsize for length, kind in zip(lengths, kinds, strict=True))
        memory.require_host_free(needed, f"the work space of ScaLAPACK for order {n:,}")
        if max(lengths) >= 2**31:
            raise ValueError(f"ScaLAPACK counts work space in 32 bits, which order {n:,} exceeds: use more ranks")
        return [np.zeros(length, kind) for length, kind in zip(lengths, kinds, strict=True)]

    call(on_every_rank(a.comm, spaces), lengths)
    # A rank without a block has no eigenvalues of ScaLAPACK's, and all must find the same part of them.
    return a.comm.bcast(w, 0), v


def _columns(grid: Grid, v: BlockCyclicMatrix, first: int, count: int) -> BlockCyclicMatrix:
    """Return some columns, dealt out as a matrix of their own."""
    part = v.like((v.shape[0], count))
    if count:
        whole = (v.local, 1, first + 1, grid.description(v))
        grid.call("gemr2d", v.shape[0], count, *whole, part, grid.context)
    return part
