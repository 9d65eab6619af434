"""`api.eigh` on the ranks of a communicator."""

from __future__ import annotations

import copy
import math
from types import ModuleType
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.arrays import host_array, require_here, to_device
from spectile.core.device import require_device
from spectile.core.pointers import overlap
from spectile.core.ranks import on_every_rank
from spectile.evd.arguments import any_on_device
from spectile.evd.cpu import run
from spectile.evd.distributed import cusolvermp, scalapack
from spectile.evd.distributed.matrix import BlockCyclicMatrix
from spectile.evd.load import divided_by_power, parts
from spectile.evd.types import Definite, Options, exponent_near_one, require_finite, working_dtype

#: Of matrices in host memory and on GPUs: modules with the same functions `library`, `check` and `grid_of`.
ENGINES: dict[str, ModuleType] = {"cpu": scalapack, "cuda": cusolvermp}


def eigh(
    a: Any, options: Options, definite: Definite | None, comm: Any, backend: str = "auto"
) -> tuple[Any, BlockCyclicMatrix | None]:
    """Return the wanted eigenvalues on every rank, and their eigenvectors, dealt out as A is, or None.

    Parameters
    ----------
    a : BlockCyclicMatrix or array
        An array is the same on every rank.
    options : Options
    definite : Definite, optional
        The second matrix, of the same kinds.
    comm : mpi4py.MPI.Comm
    backend : {"auto", "cpu", "cuda"}
        ``auto`` is where the operands lie.

    Raises
    ------
    ImportError
        If there is no ScaLAPACK, or no cuSOLVERMp for operands on GPUs.
    ValueError, OverflowError, MemoryError, numpy.linalg.LinAlgError
        As `api.eigh`, on every rank.
    """
    a, b = on_every_rank(comm, lambda: _operands(a, definite, comm, backend))
    used = ENGINES[a.backend]
    # The last part of a matrix's line is of its own rank.
    said = [str(one).rpartition(",")[0] for one in (a, b)], options._replace(overwrite=False, check_finite=True)
    if any(other != said for other in comm.allgather(said)):
        raise ValueError("the ranks call with different arguments: pass the same to each, but for the entries")
    if comm.size == 1 or a.shape[0] < a.block * max(a.grid):
        return _on_one(a, b, options, definite)
    on_every_rank(comm, used.library)
    together = b is not None and overlap(a.local, b.local)  # one would be overwritten while the other is read
    a = _owned(a, options, options.overwrite and not together)
    scale = scale_b = _prepared(a, options, even=b is not None)
    if definite is not None and b is not None:
        b = _owned(b, options, definite.overwrite and not together)
        scale_b = _prepared(b, options, even=True, name="b")
        scale -= scale_b
    with used.grid_of(a) as grid:
        w, v = grid.solve(a, b, options)
    # A rank without a block has no eigenvalues of ScaLAPACK's, and all must find the same part of them.
    w = comm.bcast(w)
    if b is not None and v is not None:
        v.local[:] *= v.dtype.type(2.0 ** (scale_b // 2))
    if options.subset is not None:
        wanted = options.subset.of(w, scale=scale)
        w = w[wanted]
        v = None if v is None else v.columns_from(wanted.start, w.size)
    return a.module.asarray(divided_by_power(w, scale)), v


def _operands(
    a: Any, definite: Definite | None, comm: Any, backend: str
) -> tuple[BlockCyclicMatrix, BlockCyclicMatrix | None]:
    from mpi4py import MPI

    given = {"a": a} if definite is None else {"a": a, "b": definite.b}
    dealt: dict[str, BlockCyclicMatrix] = {k: one for k, one in given.items() if isinstance(one, BlockCyclicMatrix)}
    rest = {name: one for name, one in given.items() if name not in dealt}
    places = {one.backend for one in dealt.values()} | ({"cuda"} if any_on_device(tuple(rest.values())) else set())
    # A plain array in host memory goes where the other operand lies, or the caller wants it.
    places = places or {"cuda" if backend == "cuda" else "cpu"}
    if len(places) > 1 or backend not in ("auto", *places):
        raise ValueError(
            f"operands lie on {' and '.join(sorted(places))}, and backend = {backend!r}: make all with that backend"
        )
    (place,) = places
    if place == "cuda":
        require_device()
    arrays = {k: host_array(k, one) if place == "cpu" else to_device(one, k)[0] for k, one in rest.items()}
    every: dict[str, Any] = dealt | arrays
    dtype = np.result_type(*[working_dtype(one.dtype, name) for name, one in every.items()])
    first = next(iter(every.values()))
    layout = {"block": first.block, "grid": first.grid} if dealt else {}
    layout["backend"] = place
    dealt |= {name: _dealt_out(name, array, comm, dtype, layout) for name, array in arrays.items()}
    own, b = dealt["a"], dealt.get("b")
    for name, one in dealt.items():
        if MPI.Comm.Compare(one.comm, comm) not in (MPI.IDENT, MPI.CONGRUENT):
            raise ValueError(f"{name} lies on other ranks than comm: pass the communicator that it was made with")
        if (one.shape, one.block, one.grid, one.dtype) != (own.shape, own.block, own.grid, own.dtype):
            raise ValueError(f"b is dealt out as {b!r}, and a as {own!r}: give both one shape, dtype, block and grid")
        if place == "cuda":
            require_here(name, one.local)
        ENGINES[place].check(name, one)
    return own, b


def _dealt_out(name: str, array: Any, comm: Any, dtype: Any, layout: dict[str, Any]) -> BlockCyclicMatrix:
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}, and ranks solve one matrix together: pass it alone")
    return BlockCyclicMatrix.from_function(comm, array.shape, lambda i, j: array[i, j], dtype, **layout)


def _on_one(
    a: BlockCyclicMatrix, b: BlockCyclicMatrix | None, options: Options, definite: Definite | None
) -> tuple[Any, BlockCyclicMatrix | None]:
    """Solve a problem of one rank, or of which not all have a whole block, where ScaLAPACK errs, on the first alone."""
    comm, whole, second = a.comm, a.gather(), None if b is None else b.gather()

    def solved() -> Any:
        if comm.rank:
            return None
        given = whole, options._replace(overwrite=True), definite and Definite(second, overwrite=True)
        return _alone(a.backend).eigh(*given)

    found = on_every_rank(comm, solved)
    if not options.vectors:
        return comm.bcast(found), None
    w, v = found or (None, None)
    return comm.bcast(w), BlockCyclicMatrix.scatter(comm, v, block=a.block, grid=a.grid)


def _alone(backend: str) -> ModuleType:
    """Return what solves a problem of one rank, imported here so that a process on the CPU needs no CuPy."""
    if backend == "cpu":
        return run
    from spectile.evd.cuda import run as cuda_run

    return cuda_run


def _owned(matrix: BlockCyclicMatrix, options: Options, overwrite: bool) -> BlockCyclicMatrix:
    """Return a matrix that may be written to; memory is asked for, for it and for eigenvectors."""
    copies = (not overwrite) + options.vectors
    what = f"the eigenproblem of order {matrix.shape[0]:,} on {matrix.comm.size} ranks"
    require = memory.require_host_free if matrix.backend == "cpu" else memory.require_free
    on_every_rank(matrix.comm, lambda: require(copies * matrix.local.nbytes, what))
    return matrix if overwrite else copy.copy(matrix)


def _prepared(matrix: BlockCyclicMatrix, options: Options, *, even: bool, name: str = "a") -> int:
    """Clear what is not read, bring the largest entry near 1 by a power of two, and return that."""
    local, module, tops = matrix.local, matrix.module, []
    rows, columns = module.asarray(matrix.rows)[:, None], module.asarray(matrix.columns)
    for start in range(0, local.shape[1], matrix.block):
        part = local[:, start : start + matrix.block]
        below = rows - columns[start : start + matrix.block]
        part[(below < 0) if options.lower else (below > 0)] = 0
        if local.dtype.kind == "c":
            part.imag[below == 0] = 0
        tops += [abs(values).max() for values in parts(part) if values.size]
    largest = float(module.stack(tops).max()) if tops else 0.0  # NaN, if there is one
    largest = largest if math.isfinite(largest) else math.inf
    largest = max(matrix.comm.allgather(largest))
    require_finite(largest, options.lower, options.check_finite, name)
    scale = exponent_near_one(largest)
    scale -= even and scale % 2
    if scale:
        for values in parts(local):
            module.ldexp(values, module.asarray(scale, np.int32), values)
    return scale
