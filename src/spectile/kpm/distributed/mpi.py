"""KPM over MPI ranks: rows in blocks, the halo exchanged while the interior is computed, one reduction at the end.

Every rank calls the same functions with the same arguments and gets the same result::

    from mpi4py import MPI
    from spectile.kpm import kpm_dos
    from spectile.kpm.distributed.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD), backend="cpu")
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Literal

import numpy as np

from spectile.kpm.bounds import gershgorin
from spectile.kpm.cpu.recursion import CpuOperator
from spectile.kpm.cpu.threads import num_threads
from spectile.kpm.reference import Array, random_phases

#: Runs of interior rows shorter than this are computed with the boundary: fewer, longer pieces.
SHORTEST_RUN = 64


class DistributedMatrix:
    """A Hermitian matrix whose rows are spread over the ranks of a communicator.

    Parameters
    ----------
    H : scipy.sparse matrix, shape (N, N), or TopologicalInsulator
        The whole matrix, the same on every rank; each keeps its own rows.
    comm : mpi4py.MPI.Comm
        The ranks.
    timeout_s : float
        Seconds to wait for another rank before it is taken for dead.
    reduce_every_step : bool
        Sum the dot products over the ranks in every step instead of once at the end (the paper's ``aug_spmmv()*``).
    backend : {"cpu", "cuda"}
        Where a rank computes: on the CPU, or on a GPU of its own, with NCCL between the ranks.
    """

    def __init__(
        self,
        H: Any,
        comm: Any,
        *,
        timeout_s: float = 300.0,
        reduce_every_step: bool = False,
        backend: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        if backend not in ("cpu", "cuda"):
            raise ValueError(f'backend={backend!r} is unknown: choose "cpu" or "cuda"')
        self.comm, self.timeout_s, self.reduce_every_step = comm, timeout_s, reduce_every_step
        self.H, self.backend, self.shape, self.dtype = H, backend, H.shape, np.dtype(H.dtype)
        if backend == "cuda":
            return
        matrix = (H.matrix() if hasattr(H, "gershgorin") else H).tocsr()
        # Whole sites of four rows where N allows, and a bound that depends on N and the number of ranks alone.
        unit = 4 if self.shape[0] % 4 == 0 else 1
        self.edges = np.linspace(0, self.shape[0] // unit, comm.size + 1).astype(np.int64) * unit
        self.rows = matrix[self.edges[comm.rank] : self.edges[comm.rank + 1]]

    def engine(self, dtype: np.dtype[Any]) -> Any:
        """Return the view that :func:`spectile.kpm.kpm_dos` works with."""
        if self.backend == "cpu":
            return MpiEngine(self, dtype)
        from spectile.kpm.distributed.multi_gpu import MultiGpuEngine

        return MultiGpuEngine.of_rank(self, dtype)

    def gershgorin(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles over all ranks."""
        if self.backend == "cuda":
            bounds: tuple[float, float] = self.H.gershgorin() if hasattr(self.H, "gershgorin") else gershgorin(self.H)
            return bounds
        first = int(self.edges[self.comm.rank])
        diagonal = self.rows.diagonal(k=first)
        radius = np.asarray(abs(self.rows).sum(axis=1)).ravel() - abs(diagonal)
        mine = (diagonal.real - radius).min(initial=np.inf), (diagonal.real + radius).max(initial=-np.inf)
        everybody = self.comm.allgather(mine)
        return float(min(low for low, _ in everybody)), float(max(high for _, high in everybody))


class MpiEngine:
    """A distributed matrix as :class:`spectile.kpm.engine.CpuEngine` is a local one."""

    name = "mpi"
    xp = np

    def __init__(self, matrix: DistributedMatrix, dtype: np.dtype[Any]) -> None:
        self.matrix, self.comm, self.dtype = matrix, matrix.comm, dtype
        self.num_rows = int(matrix.shape[0])
        self.first, self.last = (int(edge) for edge in matrix.edges[self.comm.rank : self.comm.rank + 2])
        local, self.halo, self.receives = localize(matrix.rows.astype(dtype), matrix.edges, self.comm.rank)
        self.operator = CpuOperator.from_csr(local)
        own = local.indices < self.last - self.first
        self.interior, self.boundary = split_rows(local.indptr, own, self.operator.blocks())
        wanted: list[Any] = [np.empty(0, dtype=np.int64)] * self.comm.size
        for rank, start, stop in self.receives:
            wanted[rank] = self.halo[start:stop].astype(np.int64)
        self.sends = [(rank, rows - self.first) for rank, rows in enumerate(self.comm.alltoall(wanted)) if rows.size]

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once: the host's is not limited here."""
        return 2**31

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,), the same on every rank."""
        return random_phases(seed, self.num_rows, 1, real=self.dtype.kind != "c", dtype=self.dtype)[:, 0]

    def apply(self, x: Array) -> Array:
        """Return H x of one replicated vector."""
        parts = self.comm.allgather(np.asarray(self.matrix.rows @ x, dtype=self.dtype))
        return np.concatenate(parts)

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> MpiRecursion:
        """Return the recursion of a block of random vectors."""
        block = self.operator.random_block(seed, first_vector, num_vectors, first_row=self.first)
        return MpiRecursion(self, a, b, block)

    def start(self, vectors: Array, a: float, b: float) -> MpiRecursion:
        """Return the recursion of given vectors, shape (N, R), the same on every rank."""
        own = self.operator.to_block(vectors[self.first : self.last])
        block = np.zeros((self.operator.num_columns, *own.shape[1:]), dtype=own.dtype)
        block[: len(own)] = own
        return MpiRecursion(self, a, b, block)


def wait_for(comm: Any, requests: list[tuple[Any, Any]], timeout_s: float) -> None:
    """Wait for (request, rank) pairs, but not for ever: a dead rank must not hang the others.

    Raises
    ------
    RuntimeError
        If a rank does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while requests:
        requests = [(request, rank) for request, rank in requests if not request.Test()]
        if requests and time.monotonic() > deadline:
            who = requests[0][1] if isinstance(requests[0][1], str) else f"rank {requests[0][1]}"
            raise RuntimeError(
                f"{who} did not answer rank {comm.rank} for {timeout_s:g} s: it has died or hangs; see its output, and "
                "start the job again"
            )


def localize(rows: Any, edges: Array, number: int) -> tuple[Any, Array, list[tuple[int, int, int]]]:
    """Renumber the columns of a share of the rows: its own rows first, then the halo.

    Parameters
    ----------
    rows : scipy.sparse CSR matrix, shape (rows of the share, N)
        The share.
    edges : ndarray, shape (shares + 1,)
        First row of each share.
    number : int
        The share's number.

    Returns
    -------
    local : CSR matrix, shape (rows of the share, rows of the share + halo)
    halo : ndarray
        Rows of the whole matrix, ascending, that belong to others.
    receives : list of (owner, start, stop)
        What one share owns of the halo; contiguous, since the halo is sorted: it is received in place.
    """
    local = rows.copy()
    first, last = int(edges[number]), int(edges[number + 1])
    own = (local.indices >= first) & (local.indices < last)
    halo = np.unique(local.indices[~own])
    columns = np.where(own, local.indices - first, 0)
    columns[~own] = last - first + np.searchsorted(halo, local.indices[~own])
    local.indices = columns.astype(local.indices.dtype)
    local._shape = (last - first, last - first + halo.size)
    owner = np.searchsorted(edges, halo, side="right") - 1
    receives = [
        (int(rank), int(np.searchsorted(owner, rank)), int(np.searchsorted(owner, rank, side="right")))
        for rank in np.unique(owner)
    ]
    return local, halo, receives


def split_rows(indptr: Array, own: Array, blocks: list[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
    """Split row blocks into runs that need no halo and runs that do.

    Parameters
    ----------
    indptr : ndarray, shape (rows + 1,)
        Row pointers.
    own : ndarray of bool, shape (nnz,)
        Whether an entry's column is this rank's.
    blocks : list of (start, stop)
        Row blocks.

    Returns
    -------
    interior, boundary : list of (start, stop)
    """
    foreign = np.concatenate([[0], np.cumsum(~own)])
    needs = np.diff(foreign[indptr]) > 0
    interior: list[tuple[int, int]] = []
    boundary: list[tuple[int, int]] = []
    for start, stop in blocks:
        changes = np.flatnonzero(np.diff(needs[start:stop])) + start + 1
        for low, high in itertools.pairwise([start, *changes.tolist(), stop]):
            target = boundary if needs[low] or high - low < SHORTEST_RUN else interior
            if target and target[-1][1] == low and low != start:
                target[-1] = (target[-1][0], high)
            else:
                target.append((low, high))
    return interior, boundary


class MpiRecursion:
    """The recurrence of a block of vectors, each rank on its rows.

    Parameters
    ----------
    engine : MpiEngine
        The distributed matrix.
    a, b : float
        H̃ = a (H − b).
    block : ndarray, shape (rows + halo, parts, R)
        |ν₀⟩ on this rank's rows, taken over; the halo's rows follow.
    """

    def __init__(self, engine: MpiEngine, a: float, b: float, block: Array) -> None:
        self.engine, self.a, self.b = engine, a, b
        self.v, self.w = block, np.zeros_like(block)
        self.steps = 0
        self.threads = max(1, num_threads() // engine.comm.size)

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[2])

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of all ranks, shape (2 * steps, R).

        Raises
        ------
        RuntimeError
            If another rank does not answer in time.
        """
        etas = np.empty((steps, 2, self.num_vectors))
        for n in range(steps):
            if self.steps:
                self.v, self.w = self.w, self.v
            etas[n] = self._step()
            self.steps += 1
            if self.engine.matrix.reduce_every_step:
                etas[n] = self._sum(etas[n])
        total = etas if self.engine.matrix.reduce_every_step else self._sum(etas)
        return total.reshape(2 * steps, -1)

    def _step(self) -> Array:
        engine, comm = self.engine, self.engine.comm
        rows = engine.last - engine.first
        requests = [
            comm.Irecv(self.v[rows + start : rows + stop], source=rank) for rank, start, stop in engine.receives
        ]
        packed = [np.ascontiguousarray(self.v[chosen]) for _, chosen in engine.sends]
        requests += [comm.Isend(data, dest=rank) for (rank, _), data in zip(engine.sends, packed, strict=True)]
        factors = (2 * self.a, -2 * self.a * self.b, 1.0) if self.steps else (self.a, -self.a * self.b, 0.0)
        inside = engine.operator.update(self.v, self.w, *factors, self.threads, engine.interior)
        self._wait(requests, [rank for rank, _, _ in engine.receives] + [rank for rank, _ in engine.sends])
        return inside + engine.operator.update(self.v, self.w, *factors, self.threads, engine.boundary)

    def _sum(self, values: Array) -> Array:
        total = np.empty_like(values)
        self._wait([self.engine.comm.Iallreduce(values, total)], ["another rank"])
        return total

    def _wait(self, requests: list[Any], ranks: list[Any]) -> None:
        wait_for(self.engine.comm, list(zip(requests, ranks, strict=True)), self.engine.matrix.timeout_s)

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this rank must hold."""
        return {"v": self.v, "w": self.w, "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        self.v, self.w, self.steps = state["v"], state["w"], int(state["steps"])
