"""ScaLAPACK through scalapack4py: the library, a grid of ranks, and its routines by LAPACK's names."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import importlib.metadata
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.ranks import on_every_rank
from spectile.evd.distributed.matrix import BlockCyclicMatrix
from spectile.evd.types import SCALARS, Options, not_definite

MISSING = (
    "eigenproblems of several ranks need ScaLAPACK ({}): pip install 'spectile[scalapack]' brings one for Linux on "
    "x86-64, Debian has libscalapack-mpich2.2, and SCALAPACK_LIB_PATH names a library of your own"
)


@functools.cache
def library() -> Any:
    """Return scalapack4py's functions of the library that is installed; raises ImportError if there is none."""
    try:
        import scalapack4py
        from mpi4py import MPI
        from scalapack4py.library_loader import load_scalapack

        mode = os.RTLD_LAZY | ctypes.RTLD_GLOBAL
        ctypes.CDLL(MPI.__file__, mode=mode)  # BLACS finds MPI among the names that all libraries see
        named = os.environ.get("SCALAPACK_LIB_PATH") or os.environ.get("MKLROOT")
        openmpi = "Open MPI" in MPI.Get_library_version()
        parts = [] if named else _of_the_wheel("openmpi" if openmpi else "intelmpi")
        for part in parts:
            ctypes.CDLL(part, mode=mode)
        # Debian has one for each MPI.
        system = None if named else ctypes.util.find_library(f"scalapack-{'openmpi' if openmpi else 'mpich'}")
        return scalapack4py.ScaLAPACK4py(ctypes.CDLL(None) if parts else load_scalapack(system))
    except (ImportError, OSError, AttributeError) as error:
        raise ImportError(MISSING.format(str(error).partition("\n")[0].rstrip(".:"))) from error


def _of_the_wheel(mpi: str) -> list[str]:
    """Return the parts of ScaLAPACK in MKL's wheel, in the order in which they need each other; none without it."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = ("libmkl_rt.so", f"libmkl_blacs_{mpi}_lp64.so", "libmkl_scalapack_lp64.so")
    found = [str(file.locate()) for name in names for file in files if file.name.startswith(name)]
    return found if len(found) == len(names) else []


def check(name: str, matrix: BlockCyclicMatrix) -> None:
    """Raise ValueError where ScaLAPACK cannot take this rank's part of a matrix."""
    if matrix.local.size >= 2**31:
        count = f"{matrix.local.size:,} entries of {name} lie on one rank"
        raise ValueError(f"{count}, and ScaLAPACK counts them in 32 bits: use more ranks")


class Grid:
    """A grid of the ranks of a communicator, for one call, by BLACS's number of it; `dtype` is that of the matrices."""

    def __init__(self, context: int, dtype: np.dtype[Any]) -> None:
        self.library, self.context, self.dtype = library(), context, dtype

    def solve(
        self, a: BlockCyclicMatrix, b: BlockCyclicMatrix | None, options: Options
    ) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
        """Return all eigenvalues in host memory, and eigenvectors dealt out as A is, or None without ``vectors``.

        With B those of A x = w B x, xᴴ B x = 1.  Of both one triangle is read, and both may be overwritten.
        """
        n, lower = a.shape[0], options.lower
        if b is not None:
            self._reduce(a, b, lower)
        w, v = self._solve(a, options)
        if b is not None and v is not None:  # L⁻ᴴ Y of a lower factor, U⁻¹ Y of an upper one
            self.call("trsm", "L", "L" if lower else "U", "C" if lower else "N", "N", n, n, 1.0, b, v)
        return w, v

    def _reduce(self, a: BlockCyclicMatrix, b: BlockCyclicMatrix, lower: bool) -> None:
        """Bring A x = w B x to a standard problem in the place of A, with the factor of B in the place of B."""
        n, uplo, info = a.shape[0], "L" if lower else "U", ctypes.c_int()
        self.call("potrf", uplo, n, b, info)
        minor = max(a.comm.allgather(info.value))
        if minor:
            raise not_definite(minor)
        one = ctypes.c_double() if a.dtype.char in "dD" else ctypes.c_float()
        self.call("sygst", 1, uplo, n, a, b, one, info)

    def _solve(self, a: BlockCyclicMatrix, options: Options) -> tuple[np.ndarray, BlockCyclicMatrix | None]:
        """Return all eigenvalues, and eigenvectors by divide and conquer or None; A is overwritten."""
        n, real = a.shape[0], np.dtype(SCALARS[a.dtype.name].real)
        w, v = np.zeros(n, real), a.like(a.shape) if options.vectors else None
        name = "syevd" if options.vectors else "syev"
        kinds = [a.dtype, *([real] if a.dtype.kind == "c" else []), *([np.dtype(np.int32)] if options.vectors else [])]
        info = ctypes.c_int()

        def call(spaces: list[np.ndarray], lengths: list[int]) -> None:
            work = [one for pair in zip(spaces, lengths, strict=True) for one in pair]
            job, uplo = "V" if options.vectors else "N", "L" if options.lower else "U"
            self.call(name, job, uplo, n, a, w, a if v is None else v, *work, info)
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
        return w, v

    def description(self, matrix: BlockCyclicMatrix) -> Any:
        """Return what ScaLAPACK reads of a matrix beside its entries."""
        return self.library.make_blacs_desc(self.context, *matrix.shape, matrix.block, matrix.block)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a routine by LAPACK's name without its prefix; of a matrix its three numbers are handed on, too.

        Raises ValueError if ScaLAPACK finds an argument wrong.
        """
        if self.dtype.kind == "c":
            name = {"syev": "heev", "syevd": "heevd", "sygst": "hegst"}.get(name, name)
        flat: list[Any] = []
        for one in arguments:
            flat += (one.local, 1, 1, self.description(one)) if isinstance(one, BlockCyclicMatrix) else [one]
        getattr(self.library, f"p{self.dtype.char.lower().translate(_LETTERS[self.dtype.kind])}{name}")(*flat)


#: From NumPy's characters to LAPACK's prefixes.
_LETTERS = {"f": str.maketrans("fd", "sd"), "c": str.maketrans("fd", "cz")}


@contextlib.contextmanager
def grid_of(matrix: BlockCyclicMatrix) -> Iterator[Grid]:
    """Give the grid of ranks that a matrix lies on."""
    found, handle = library(), ctypes.c_int(matrix.comm.py2f())
    blacs = found.blacs
    blacs.sys2blacs_handle_.restype = ctypes.c_int
    system = blacs.sys2blacs_handle_(ctypes.byref(handle))
    context = found.make_blacs_context(system, *matrix.grid)
    try:
        yield Grid(context, matrix.dtype)
    finally:
        found.close_blacs_context(context)
        blacs.free_blacs_system_handle_(ctypes.byref(ctypes.c_int(system)))
