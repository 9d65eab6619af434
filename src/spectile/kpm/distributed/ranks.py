"""One MPI rank of several on the CPU: its rows, its halo, and the recurrence on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.memory import host_free_bytes
from spectile.core.threads import num_threads
from spectile.kpm.cpu.operator import CpuOperator
from spectile.kpm.distributed.partition import localize, split_rows
from spectile.kpm.distributed.transport import wait_for_ranks
from spectile.kpm.operators.engine import Pair, ProductEngine
from spectile.kpm.operators.frame import Frame
from spectile.kpm.types import Array


class MpiEngine(ProductEngine):
    """One rank's partition of a distributed matrix, an :class:`~spectile.kpm.types.Engine`."""

    backend = "mpi"
    xp = np
    #: Whether vectors that are given and got are this rank's rows; else they are whole ones.
    own_vectors = False

    def __init__(self, matrix: Any, dtype: np.dtype[Any]) -> None:
        self.matrix, self.comm, self.dtype = matrix, matrix.comm, dtype
        self.num_rows = int(matrix.shape[0])
        self.first, self.last = (int(edge) for edge in matrix.edges[self.comm.rank : self.comm.rank + 2])
        # A state belongs to its rank, even where all have as many rows.
        self.name = f"{self.backend} rank {self.comm.rank} of {self.comm.size}"
        self._bounds = matrix.bounds()
        self.frame = Frame.around(self._bounds, dtype)
        rows = self.frame.inside(matrix.rows.astype(dtype), self.first)
        local, self.halo, self.receives = localize(rows, matrix.edges, self.comm.rank)
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
        return self._bounds

    def apply(self, x: Array) -> Array:
        """Return H x of one replicated vector."""
        parts = self.comm.allgather(np.asarray(self.matrix.rows @ x, dtype=np.result_type(self.dtype, x.dtype)))
        return np.concatenate(parts)

    def framed(self, x: Array) -> Array:
        """Return H' x of one replicated vector, by a product with H in double precision."""
        wide = x.astype(np.result_type(x.dtype, np.float64))
        image: Array = ((self.apply(wide) - self.frame.offset * wide) / self.frame.unit).astype(x.dtype)
        return image

    def _own(self, vectors: Array) -> Array:
        return vectors if self.own_vectors else vectors[self.first : self.last]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> MpiRecursion:
        """Return the recursion of a block of random vectors."""
        block = self.operator.random_block(seed, first_vector, num_vectors, first_row=self.first)
        return MpiRecursion(self, *self.frame.scaling(a, b), block)

    def start(self, vectors: Array, a: float, b: float) -> MpiRecursion:
        """Return the recursion of given vectors, shape (N, R), the same on every rank, or of their own rows."""
        own = self.operator.to_block(self._own(vectors))
        block = np.zeros((self.operator.num_columns, *own.shape[1:]), dtype=own.dtype)
        block[: len(own)] = own
        return MpiRecursion(self, *self.frame.scaling(a, b), block)


class MpiRecursion(Pair):
    """The recurrence of a block of vectors, each rank on its rows; H̃ = a (H − b).

    The block, shape (rows + halo, parts, R), is taken over: |ν₀⟩ on this rank's rows, and then the halo's.
    """

    def __init__(self, engine: MpiEngine, a: float, b: float, block: Array) -> None:
        self.engine, self.a, self.b = engine, a, b
        self.v, self.w = block, np.zeros_like(block)
        self.steps = 0
        self.threads = max(1, num_threads() // engine.comm.size)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of all ranks, shape (2 * steps, R).

        Raises RuntimeError if another rank does not answer in time.
        """
        etas = np.empty((steps, 2, self.num_vectors))
        for n in range(steps):
            if self.steps:
                self.v, self.w = self.w, self.v
            etas[n] = self._step()
            self.steps += 1
        return self._sum(etas).reshape(2 * steps, -1)

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

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step on this rank's rows, in its layout."""
        return [super().blocks()[0][: self.engine.last - self.engine.first]]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block as vectors of shape (N, R), or as these rows of them, gathered on every rank, or own."""
        found = self.gathered(self.own(blocks))
        return found if rows is None else found[rows]

    def own(self, blocks: Sequence[Any]) -> Array:
        """Return such a block as vectors, this rank's rows of them."""
        return self.engine.operator.from_block(blocks[0])

    def gathered(self, own: Array) -> Array:
        """Return rows of vectors, shape (..., rows, R), gathered on every rank, or as they are."""
        return own if self.engine.own_vectors else np.concatenate(self.engine.comm.allgather(own), axis=-2)
