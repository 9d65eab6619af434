"""KPM over MPI ranks: rows in blocks, the halo exchanged while the interior is computed, one reduction at the end.

Every rank calls the same functions with the same arguments and gets the same result::

    from mpi4py import MPI
    from spectile.kpm import kpm_dos
    from spectile.kpm.distributed.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD), backend="cpu")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from spectile.core.memory import host_free_bytes
from spectile.kpm.cpu.operator import CpuOperator
from spectile.kpm.cpu.threads import num_threads
from spectile.kpm.distributed.multi_gpu import MultiGpuEngine
from spectile.kpm.distributed.partition import localize, split_rows
from spectile.kpm.distributed.transport import wait_for_ranks
from spectile.kpm.operators.engine import ProductEngine
from spectile.kpm.operators.protocol import PartitionedOperator
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.reference import random_phases
from spectile.kpm.types import Array


class DistributedMatrix(PartitionedOperator):
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
    weights : sequence of float or None
        Speeds of the ranks, the same sequence on every rank: each has rows in proportion.  Ranks with and without a GPU
        may then share a matrix (each gives its own `backend`), and messages travel through the hosts.

    Raises
    ------
    ValueError
        If `backend` is unknown, or there is not one positive weight for each rank.
    """

    def __init__(
        self,
        H: Any,
        comm: Any,
        *,
        timeout_s: float = 300.0,
        reduce_every_step: bool = False,
        backend: Literal["cpu", "cuda"] = "cpu",
        weights: Sequence[float] | None = None,
    ) -> None:
        if backend not in ("cpu", "cuda"):
            raise ValueError(f'backend={backend!r} is unknown: choose "cpu" or "cuda"')
        self.comm, self.timeout_s, self.reduce_every_step = comm, timeout_s, reduce_every_step
        self.H, self.backend, self.shape, self.dtype = H, backend, H.shape, np.dtype(H.dtype)
        if weights is not None and (len(weights) != comm.size or not min(weights) > 0):
            raise ValueError(f"weights={list(weights)} are not {comm.size} positive numbers: give one for each rank")
        self.through_hosts = weights is not None
        if backend == "cuda" and not self.through_hosts:
            return
        matrix = (H.matrix() if isinstance(H, TopologicalInsulator) else H).tocsr()
        # Whole sites of four rows where N allows, and a bound that depends on N and the weights alone.
        unit = 4 if self.shape[0] % 4 == 0 else 1
        share = np.cumsum([0.0, *(weights or [1.0] * comm.size)])
        self.edges = np.floor(share / share[-1] * (self.shape[0] // unit)).astype(np.int64) * unit
        self.edges[-1] = self.shape[0]
        if self.through_hosts and np.diff(self.edges).min() < 1:
            raise ValueError(f"weights={list(weights or ())} leave a rank without rows: give it more, or fewer ranks")
        self.rows = matrix[self.edges[comm.rank] : self.edges[comm.rank + 1]]

    def engine(self, dtype: np.dtype[Any]) -> Any:
        """Return this rank's engine for vectors of this type."""
        if not self.through_hosts:
            return MpiEngine(self, dtype) if self.backend == "cpu" else MultiGpuEngine.of_rank(self, dtype)
        from spectile.kpm.distributed.mpi_device import MpiDeviceEngine

        return (MpiEngine if self.backend == "cpu" else MpiDeviceEngine)(self, dtype)

    def bounds(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles over all ranks."""
        if self.backend == "cuda" and not self.through_hosts:
            return (self.H if isinstance(self.H, TopologicalInsulator) else StoredMatrix(self.H)).bounds()
        first = int(self.edges[self.comm.rank])
        diagonal = self.rows.diagonal(k=first)
        radius = np.asarray(abs(self.rows).sum(axis=1)).ravel() - abs(diagonal)
        mine = (diagonal.real - radius).min(initial=np.inf), (diagonal.real + radius).max(initial=-np.inf)
        everybody = self.comm.allgather(mine)
        return float(min(low for low, _ in everybody)), float(max(high for _, high in everybody))


class MpiEngine(ProductEngine):
    """One rank's partition of a distributed matrix, an :class:`~spectile.kpm.types.Engine`."""

    name = "mpi"
    xp = np

    def __init__(self, matrix: DistributedMatrix, dtype: np.dtype[Any]) -> None:
        self.matrix, self.comm, self.dtype = matrix, matrix.comm, dtype
        self.num_rows = int(matrix.shape[0])
        self.first, self.last = (int(edge) for edge in matrix.edges[self.comm.rank : self.comm.rank + 2])
        local, self.halo, self.receives = localize(matrix.rows.astype(dtype), matrix.edges, self.comm.rank)
        self._hold(local)
        wanted: list[Any] = [np.empty(0, dtype=np.int64)] * self.comm.size
        for rank, start, stop in self.receives:
            wanted[rank] = self.halo[start:stop].astype(np.int64)
        self.sends = [(rank, rows - self.first) for rank, rows in enumerate(self.comm.alltoall(wanted)) if rows.size]

    def _hold(self, local: Any) -> None:
        """Take this rank's rows, whose columns beyond them are the halo's."""
        self.operator = CpuOperator.from_csr(local)
        own = local.indices < self.last - self.first
        self.interior, self.boundary = split_rows(local.indptr, own, self.operator.blocks())

    def capacity(self) -> int:
        """Return how many vectors' states fit into every rank's memory at once, with a reserve."""
        return max(1, min(self.comm.allgather(self._fitting())))

    def _fitting(self) -> int:
        return int(0.9 * host_free_bytes()) // (2 * self.operator.num_columns * self.dtype.itemsize * self.comm.size)

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self.matrix.bounds()

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
        wait_for_ranks(self.engine.comm, list(zip(requests, ranks, strict=True)), self.engine.matrix.timeout_s)

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this rank must hold."""
        return {"v": self.v, "w": self.w, "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        self.v, self.w, self.steps = state["v"], state["w"], int(state["steps"])
