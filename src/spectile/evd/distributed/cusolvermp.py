"""cuSOLVERMp: the library, a grid of ranks that have a GPU each, and its eigensolvers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.pointers import address
from spectile.core.ranks import on_every_rank
from spectile.evd.distributed.matrix import BlockCyclicMatrix
from spectile.evd.types import SCALARS, Options, not_definite

MISSING = (
    "eigenproblems of several ranks on GPUs need cuSOLVERMp and NCCL ({}): pip install 'spectile[cusolvermp13]' brings "
    "them, or 'spectile[cusolvermp12]' for CUDA 12"
)
#: Of the library's enumerations: a triangle, a type of problem, a kind of result, an order of ranks; types of entries.
_LOWER, _TYPE_1, _VECTORS, _BY_ROWS = 0, 1, 1, 1
_ENTRIES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}


@functools.cache
def library() -> Any:
    """Return the library; raises ImportError if there is none, or no NCCL that it can use."""
    try:
        from cuda import pathfinder
        from cupy.cuda import nccl

        if not nccl.available:
            raise ImportError("CuPy finds no NCCL")
        # Names that a part of it misses, as those of a newer NCCL, are told now and not in the midst of a call.
        return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cusolverMp").abs_path)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ImportError(MISSING.format(str(error).partition("\n")[0].rstrip(".:"))) from error


def check(name: str, matrix: BlockCyclicMatrix) -> None:
    """Raise ValueError where cuSOLVERMp cannot take this rank's part of a matrix."""
    if matrix.block & (matrix.block - 1):
        raise ValueError(
            f"{name} has blocks of {matrix.block}, and cuSOLVERMp's merges need a power of two: choose one"
        )


@contextlib.contextmanager
def grid_of(matrix: BlockCyclicMatrix) -> Iterator[Grid]:
    """Give the grid of ranks that a matrix lies on, which takes seconds to make, and is kept for the next call.

    Raises ValueError if two ranks have one GPU.
    """
    import cupy

    handle = _handle(cupy.cuda.Device().id)
    _call("SetStream", handle, cupy.cuda.get_current_stream().ptr)
    yield Grid(handle, _ranks(matrix, handle).grid)


class Grid:
    """A grid of the ranks of a communicator, for one call."""

    def __init__(self, handle: int, grid: int) -> None:
        self.handle, self.grid, version = handle, grid, ctypes.c_int()
        _call("GetVersion", handle, ctypes.byref(version))
        # Before 0.9 eigenvectors, which are always found, are asked for as LAPACK's routine for a tridiagonal matrix.
        self.job, self.values_alone = ("V", True) if version.value >= 900 else ("Z", False)

    def solve(
        self, a: BlockCyclicMatrix, b: BlockCyclicMatrix | None, options: Options
    ) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
        """Return all eigenvalues, and eigenvectors or None; both matrices are overwritten.  See `scalapack.Grid`."""
        if not options.lower:  # it reads lower triangles
            a, b = a.adjoint(), None if b is None else b.adjoint()
        v = a.like(a.shape) if options.vectors or b is not None or not self.values_alone else None
        if b is not None:
            self._require_definite(b)
        w = a.module.empty(a.shape[0], SCALARS[a.dtype.name].real)
        with contextlib.ExitStack() as stack:
            places = {id(one): self._place(one, stack) for one in (a, b, v) if one is not None}
            of_a, of_v = places[id(a)], (0, 1, 1, 0) if v is None else places[id(v)]
            if b is None:
                job = ctypes.c_char_p((self.job if v is not None else "N").encode())
                given = [job, _LOWER, a.shape[0], *of_a, address(w), *of_v]
                info = self._run("Syevd", a, given, given)
            else:
                head, of_b = [_TYPE_1, _VECTORS, _LOWER, a.shape[0]], places[id(b)]
                asked = [*head, *of_a[1:], *of_b[1:], *of_v[1:]]
                info = self._run("Sygvd", a, asked, [*head, *of_a, *of_b, address(w), *of_v])
        if info:
            raise np.linalg.LinAlgError(f"cuSOLVERMp's eigensolver ended with info = {info}: no convergence")
        return w.get(), v if options.vectors else None

    def _require_definite(self, b: BlockCyclicMatrix) -> None:
        """Raise LinAlgError if B is not positive definite, of which the solver of both matrices says nothing.

        Version 0.8 ends with an internal error then, and the order of the minor is not known.
        """
        factor = b.like(b.shape)
        factor.local[:] = b.local
        with contextlib.ExitStack() as stack:
            given = [_LOWER, b.shape[0], *self._place(factor, stack)]
            try:
                minor = self._run("Potrf", b, given, given)
            except RuntimeError as error:
                raise np.linalg.LinAlgError(f"B seems not to be positive definite: {error}") from error
        if minor:
            raise not_definite(minor)

    def _place(self, matrix: BlockCyclicMatrix, stack: contextlib.ExitStack) -> tuple[int, int, int, int]:
        """Return where the library finds a matrix: its entries, their first row and column, and its description."""
        layout = *matrix.shape, matrix.block, matrix.block, 0, 0, max(1, matrix.local.shape[0])
        arguments = self.grid, _ENTRIES[matrix.dtype.name], *layout
        description = _new("CreateMatrixDesc", *arguments)
        stack.callback(_call, "DestroyMatrixDesc", description)
        return address(matrix.local), 1, 1, description

    def _run(self, name: str, a: BlockCyclicMatrix, asked: list[Any], given: list[Any]) -> int:
        """Return the info of a routine on all ranks; `asked` are the arguments that tell the size of its work space."""
        kind, sizes = _ENTRIES[a.dtype.name], [ctypes.c_size_t(), ctypes.c_size_t()]

        def spaces() -> tuple[Any, np.ndarray, Any]:
            _call(f"{name}_bufferSize", self.handle, *asked, kind, *map(ctypes.byref, sizes))
            here, beside = (size.value for size in sizes)
            memory.require_free(here, f"the work space of cuSOLVERMp for order {a.shape[0]:,}")
            memory.require_host_free(beside, f"the work space of cuSOLVERMp for order {a.shape[0]:,}")
            module = a.module
            return module.empty(here, np.uint8), np.empty(beside, np.uint8), module.zeros(1, np.int32)

        here, beside, info = on_every_rank(a.comm, spaces)
        work = address(here), here.size, address(beside), beside.size
        on_every_rank(a.comm, lambda: _call(name, self.handle, *given, kind, *work, address(info)))
        return max(a.comm.allgather(int(info.get()[0])), key=abs)


@functools.cache
def _handle(device: int) -> int:
    """Return the library's handle of a device, of which a process may have one."""
    return _new("Create", device, 0)


class _Ranks:
    """NCCL's communicator of ranks on their current devices, and the library's grid of them, until nobody has it."""

    def __init__(self, matrix: BlockCyclicMatrix, handle: int) -> None:
        from cupy.cuda import nccl

        comm = matrix.comm
        identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        self._communicator = nccl.NcclCommunicator(comm.size, identity, comm.rank)
        self.grid = _new("CreateDeviceGrid", handle, self._communicator.comm, *matrix.grid, _BY_ROWS, out=1)

    def __del__(self) -> None:
        if hasattr(self, "grid"):
            _call("DestroyGrid", self.grid)


def _ranks(matrix: BlockCyclicMatrix, handle: int) -> _Ranks:
    """Return the ranks of a matrix, made once for each communicator of MPI's, which keeps them."""
    import cupy
    from mpi4py import MPI

    comm = matrix.comm
    places = comm.allgather((MPI.Get_processor_name(), cupy.cuda.Device().pci_bus_id))
    for rank, place in enumerate(places):
        first = places.index(place)
        if first != rank:
            raise ValueError(
                f"ranks {first} and {rank} are both on GPU {place[1]} of {place[0]}: let each use one of its own, as "
                "cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use() does"
            )
    known, wanted = comm.Get_attr(_key()), (matrix.grid, *places)
    if known is None:
        comm.Set_attr(_key(), known := {})
    if wanted not in known:
        known[wanted] = _Ranks(matrix, handle)
    return known[wanted]


@functools.cache
def _key() -> int:
    """Return the key under which a communicator of MPI keeps its ranks."""
    from mpi4py import MPI

    return int(MPI.Comm.Create_keyval())


def _new(make: str, *arguments: Any, out: int = 0) -> int:
    """Return an object of the library, which is argument `out` of what makes it."""
    found = ctypes.c_void_p()
    _call(make, *arguments[:out], ctypes.byref(found), *arguments[out:])
    return int(found.value or 0)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the library; raises RuntimeError if it fails.

    Integers of any width, and enumerations, are handed over in 64 bits, as both of Linux's ABIs pass them.
    """
    passed = [ctypes.c_int64(one) if isinstance(one, int) else one for one in arguments]
    status = getattr(library(), f"cusolverMp{name}")(*passed)
    if status:
        raise RuntimeError(f"cuSOLVERMp's {name} ended with status {status}: CUSOLVERMP_LOG_LEVEL=5 lets it say why")
