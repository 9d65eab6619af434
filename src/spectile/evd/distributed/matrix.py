"""Dense matrices whose blocks are dealt out to the ranks of a communicator, row by row and column by column."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import numpy as np

from spectile.core.arrays import on_device, to_device
from spectile.core.copies import Unpickled
from spectile.core.device import require_device
from spectile.core.options import word
from spectile.core.pictures import shown, shown_html
from spectile.core.pointers import read_only
from spectile.core.ranks import on_every_rank, require_communicator

#: Rows and columns of a block, unless a caller chooses: what BLAS multiplies fast, and still many for each rank.
BLOCK = 64


def nearly_square(ranks: int) -> tuple[int, int]:
    """Return rows and columns of the grid of so many ranks that is nearest to a square.

    Examples
    --------
    >>> nearly_square(6), nearly_square(7)
    ((2, 3), (1, 7))
    """
    rows = next(p for p in range(math.isqrt(ranks), 0, -1) if ranks % p == 0)
    return rows, ranks // rows


def held_by(place: int, places: int, length: int, block: int) -> np.ndarray:
    """Return which of `length` indices, dealt out in blocks to so many places in turn, one place holds.

    Examples
    --------
    >>> held_by(1, 2, 9, 2).tolist()
    [2, 3, 6, 7]
    """
    index = np.arange(length)
    return index[index // block % places == place]


class BlockCyclicMatrix(Unpickled):
    """A dense matrix in ScaLAPACK's layout: each rank of a communicator holds every so-and-so-many-th block.

    Its entries lie in host memory, for ScaLAPACK, or on the ranks' GPUs, each on its own, for cuSOLVERMp.

    Every rank makes one with the same arguments and fills its own part.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks.
    shape : (int, int)
        Of the whole matrix.
    dtype : dtype, default float64
        float32, float64, complex64 or complex128.
    block : int, default 64
        Rows and columns of a block.
    grid : (int, int), optional
        Rows and columns of ranks, whose product is their number; by default as square as that allows.  Rank r is at
        ``divmod(r, grid[1])``.
    backend : {"cpu", "cuda"}
        Where the entries lie; on a GPU that is the current device of each rank.

    Attributes
    ----------
    rows, columns : array of int
        Those of the whole matrix that this rank holds.
    local : array, shape (rows.size, columns.size)
        Their entries, zero at first: fill it in place.  A CuPy array with ``backend="cuda"``.
    comm, shape, dtype, block, grid, backend
        As given.

    Raises
    ------
    ValueError
        If the shape, the dtype, the block, the grid or the backend is none.

    See Also
    --------
    spectile.eigh : takes such matrices.

    Examples
    --------
    Of one rank; ``mpiexec -n 4`` starts four:

    >>> from mpi4py import MPI
    >>> from spectile.evd.distributed import BlockCyclicMatrix
    >>> a = BlockCyclicMatrix.from_function(MPI.COMM_WORLD, (3, 3), lambda i, j: 1.0 / (1 + i + j))
    >>> if MPI.COMM_WORLD.size == 1: a.local.round(2).tolist()
    [[1.0, 0.5, 0.33], [0.5, 0.33, 0.25], [0.33, 0.25, 0.2]]
    """

    def __init__(
        self,
        comm: Any,
        shape: tuple[int, int],
        dtype: Any = np.float64,
        *,
        block: int = BLOCK,
        grid: tuple[int, int] | None = None,
        backend: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        require_communicator(comm)
        # Libraries read numbers in the machine's order of bytes.
        self.comm, self.shape, self.dtype = comm, _two("shape", shape, 0), np.dtype(dtype).newbyteorder("=")
        (self.block,) = _integers("block", (block,), 1)
        self.grid = nearly_square(comm.size) if grid is None else _two("grid", grid, 1)
        if self.dtype.char not in "fdFD":
            raise ValueError(f"dtype {self.dtype} is not solved: choose float32, float64, complex64 or complex128")
        if math.prod(self.grid) != comm.size:
            raise ValueError(f"grid = {self.grid} has not the {comm.size} ranks of comm: leave it out, or name another")
        if word("backend", backend, "cpu", "cuda") == "cuda":
            require_device('make it with backend="cpu"')
        self.backend = backend
        self.rows, self.columns = map(read_only, self._held(comm.rank))
        self._local = self.module.zeros((self.rows.size, self.columns.size), self.dtype, order="F")

    _instead = "its ranks have a part each; gather() gives the whole on one rank, and scatter() deals it out"

    def __copy__(self) -> BlockCyclicMatrix:
        made = self.like(self.shape)
        made.local[:] = self.local
        return made

    def __deepcopy__(self, memo: Any) -> BlockCyclicMatrix:
        return self.__copy__()

    @property
    def local(self) -> Any:
        """Entries of this rank, column-major."""
        return self._local

    @property
    def module(self) -> ModuleType:
        """NumPy or CuPy, whose array the entries are."""
        if self.backend == "cpu":
            return np
        import cupy

        return cupy

    @classmethod
    def from_function(
        cls, comm: Any, shape: tuple[int, int], f: Callable[[Any, Any], Any], dtype: Any = np.float64, **layout: Any
    ) -> BlockCyclicMatrix:
        """Return the matrix of entries ``f(i, j)``, of which each rank computes its own.

        Parameters
        ----------
        comm, shape, dtype
            As for the class, and `layout` is its `block`, `grid` and `backend`.
        f : callable
            Takes row numbers, shape (p, 1), and column numbers, shape (1, q), and returns entries, shape (p, q); of an
            array that each rank has, ``lambda i, j: a[i, j]``.  With ``backend="cuda"`` all of them are CuPy arrays.

        Raises
        ------
        TypeError
            If the entries are complex and `dtype` is not.
        """
        matrix = cls(comm, shape, dtype, **layout)
        asarray = matrix.module.asarray
        entries = asarray(f(asarray(matrix.rows[:, None]), asarray(matrix.columns[None, :])))
        if not np.can_cast(entries.dtype, matrix.dtype, "same_kind"):
            raise TypeError(f"entries of {entries.dtype} do not fit in {matrix.dtype}: pass dtype={entries.dtype}")
        matrix.local[:] = entries
        return matrix

    @classmethod
    def scatter(cls, comm: Any, whole: Any, root: int = 0, **layout: Any) -> BlockCyclicMatrix:
        """Return a matrix that one rank has whole, dealt out to all, all of which call this.

        Parameters
        ----------
        comm
            As for the class, and `layout` is its `block` and `grid`.
        whole : array, shape (m, n), or None
            None, or anything, on the other ranks.  An array on a GPU is dealt out to GPUs.
        root : int, default 0
            The rank that has it.
        """

        def given() -> Any:
            if comm.rank != root:
                return None, None
            backend = "cuda" if on_device(whole) else "cpu"
            array = to_device(whole)[0] if backend == "cuda" else np.asarray(whole)
            if array.ndim != 2:
                raise ValueError(f"the matrix has shape {array.shape}: give one of two dimensions")
            return array, (array.shape, array.dtype, backend)

        require_communicator(comm)
        array, told = on_every_rank(comm, given)
        shape, dtype, backend = comm.bcast(told, root)
        matrix = cls(comm, shape, dtype, backend=backend, **layout)
        parts = None if array is None else [array[matrix._at(*matrix._held(rank))] for rank in range(comm.size)]
        matrix.local[:] = comm.scatter(parts, root)
        return matrix

    def gather(self, root: int = 0) -> Any:
        """Return the whole matrix on one rank, and None on the others, all of which call this.

        Parameters
        ----------
        root : int, default 0
            The rank that gets it.
        """
        if self.comm.rank != root:
            self.comm.gather((self.rows, self.columns, self.local), root)
            return None
        whole = self.module.zeros(self.shape, self.dtype)
        for rows, columns, local in self.comm.gather((self.rows, self.columns, self.local), root):
            whole[self._at(rows, columns)] = local
        return whole

    def columns_from(self, first: int, count: int) -> BlockCyclicMatrix:
        """Return some columns, dealt out as a matrix of their own; all ranks call this.

        Parameters
        ----------
        first, count : int
            The first one, and how many.
        """
        part = self.like((self.shape[0], count))
        self._send(part, self.local, self._held, lambda rows, columns: (rows, columns + first))
        return part

    def adjoint(self) -> BlockCyclicMatrix:
        """Return the conjugate transpose, dealt out as this matrix is; all ranks call this."""
        turned = self.like((self.shape[1], self.shape[0]))
        self._send(turned, self.local.T.conj(), lambda rank: self._held(rank)[::-1], lambda *held: held)
        return turned

    def _send(
        self, target: BlockCyclicMatrix, local: Any, held: Callable[[int], Any], wanted: Callable[[Any, Any], Any]
    ) -> None:
        """Fill a matrix from those of all ranks.

        `local` are entries of this rank, ``held(rank)`` the rows and columns of any rank's, and ``wanted(rows,
        columns)`` those of them that become rows and columns of the target.
        """
        ranks = range(self.comm.size)

        def meeting(here: tuple[Any, Any], there: tuple[Any, Any]) -> Any:
            return self._at(*(np.flatnonzero(np.isin(*pair)) for pair in zip(here, there, strict=True)))

        own, mine = held(self.comm.rank), wanted(target.rows, target.columns)
        parts = self.comm.alltoall([local[meeting(own, wanted(*target._held(rank)))] for rank in ranks])
        for rank, part in zip(ranks, parts, strict=True):
            target.local[meeting(mine, held(rank))] = part

    def _at(self, rows: np.ndarray, columns: np.ndarray) -> tuple[Any, Any]:
        """Return what picks rows and columns of an array that lies where this matrix does."""
        return self.module.asarray(rows)[:, None], self.module.asarray(columns)[None, :]

    def _held(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and the columns of a rank."""
        rows, columns = (
            held_by(place, places, length, self.block)
            for place, places, length in zip(divmod(rank, self.grid[1]), self.grid, self.shape, strict=True)
        )
        return rows, columns

    def like(self, shape: tuple[int, int]) -> BlockCyclicMatrix:
        """Return a matrix of zeros of another shape on the same ranks."""
        return BlockCyclicMatrix(self.comm, shape, self.dtype, block=self.block, grid=self.grid, backend=self.backend)

    __repr__ = shown
    _repr_html_ = shown_html

    def _told(self) -> list[str]:
        rows, columns = self.shape
        return [
            f"{rows} x {columns} {self.dtype} in blocks of {self.block}",
            f"{self.grid[0]} x {self.grid[1]} ranks",
            f"{self.local.shape[0]} x {self.local.shape[1]} on this one" + ("'s GPU" if self.backend == "cuda" else ""),
        ]


def _two(name: str, given: Any, least: int) -> tuple[int, int]:
    try:
        first, second = given
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {given!r} is not two integers: give rows and columns") from None
    return _integers(name, (first, second), least)  # type: ignore[return-value]


def _integers(name: str, given: tuple[Any, ...], least: int) -> tuple[int, ...]:
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or not least <= one < 2**31:
            raise ValueError(f"{name} holds {one!r}: give integers from {least} to 2**31 - 1")
    return tuple(int(one) for one in given)
