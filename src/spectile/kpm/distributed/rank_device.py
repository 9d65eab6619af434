"""One MPI rank with a GPU beside ranks without one: its messages travel through the host, in the CPU kernels' layout.

The paper's heterogeneous node: a process drives the GPU, another one the cores::

    matrix = DistributedMatrix(H, MPI.COMM_WORLD, backend="cuda" if rank == 0 else "cpu", weights=(50, 1))
    density = kpm_dos(matrix)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.memory import free_bytes
from spectile.kpm.cuda.csr.launch import CsrOperator
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.distributed.partition import longest_run
from spectile.kpm.distributed.ranks import MpiEngine, MpiRecursion
from spectile.kpm.types import Array


class RankDeviceEngine(MpiEngine):
    """One rank's partition of a distributed matrix on the current GPU, an :class:`~spectile.kpm.types.Engine`."""

    backend = "mpi cuda"

    def _hold(self, local: Any) -> None:
        import cupy
        from cupyx.scipy import sparse

        self.device = PartitionDevice(self.comm.rank, cupy.cuda.runtime.getDevice())
        foreign = np.concatenate([[0], np.cumsum(local.indices >= self.last - self.first)])
        # What needs no halo is computed while the messages travel.
        start, stop = longest_run(np.diff(foreign[local.indptr]) == 0)
        own = self.last - self.first
        self.runs = [(start, stop), (0, start), (stop, own)]
        with self.device.working():
            on_device = sparse.csr_matrix(
                (cupy.asarray(local.data), cupy.asarray(local.indices), cupy.asarray(local.indptr)), shape=local.shape
            )
            self.on_device = CsrOperator(on_device)
            self.order = cupy.asarray(np.r_[self.first : self.last, self.halo].astype(np.int32))
            self.device.synchronize()

    def _fitting(self) -> int:
        with self.device.working():
            return int(0.9 * free_bytes()) // (2 * self.order.size * self.dtype.itemsize)

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> RankDeviceRecursion:
        """Return the recursion of a block of random vectors."""
        import cupy

        with self.device.working():
            block = cupy.empty((self.order.size, num_vectors), self.dtype)
            self.on_device.fill(block, seed, first_vector, self.order)
        return RankDeviceRecursion(self, *self.frame.scaling(a, b), block)

    def start(self, vectors: Array, a: float, b: float) -> RankDeviceRecursion:
        """Return the recursion of given vectors, shape (N, R), the same on every rank, or of their own rows."""
        import cupy

        own = self._own(vectors)
        with self.device.working():
            block = cupy.zeros((self.order.size, own.shape[1]), self.dtype)
            block[: len(own)] = cupy.asarray(own, self.dtype)
        return RankDeviceRecursion(self, *self.frame.scaling(a, b), block)


class RankDeviceRecursion(MpiRecursion):
    """The recurrence of a block of vectors, shape (rows + halo, R), on the rows of a rank with a GPU."""

    engine: RankDeviceEngine
    v: Any
    w: Any

    def __init__(self, engine: RankDeviceEngine, a: float, b: float, block: Any) -> None:
        import cupy

        self.engine, self.a, self.b = engine, a, b
        self.steps = 0
        width, parts = block.shape[1], 2 if engine.dtype.kind == "c" else 1
        real = np.empty(0, engine.dtype).real.dtype
        with engine.device.working():
            self.v, self.w = block, cupy.zeros_like(block)
            # A launch for each run of rows, and where its scalar products go.
            self._launchers = [
                (place, engine.on_device.launcher(width, rows=run))
                for place, run in enumerate(engine.runs)
                if run[1] > run[0]
            ]
            self._sent_rows = [cupy.asarray(rows) for _, rows in engine.sends]
        self._leaving = [_pinned((len(rows), parts, width), real) for _, rows in engine.sends]
        self._coming = _pinned((len(engine.halo), parts, width), real)

    def _step(self) -> Array:
        import cupy

        engine, comm, device = self.engine, self.engine.comm, self.engine.device
        own = engine.last - engine.first
        factors = (2 * self.a, -2 * self.a * self.b, 1.0) if self.steps else (self.a, -self.a * self.b, 0.0)
        requests = [comm.Irecv(self._coming[start:stop], source=rank) for rank, start, stop in engine.receives]
        with device.working():
            etas = cupy.zeros((3, 2, self.num_vectors))
            for rows, target in zip(self._sent_rows, self._leaving, strict=True):
                self._pack(self.v[rows]).get(out=target, blocking=False)
            device.computed.record(device.compute)
            for place, launch in self._launchers:
                if place == 0:
                    launch(self.v, self.w, *factors, etas[place])
            device.computed.synchronize()
        requests += [comm.Isend(data, dest=rank) for (rank, _), data in zip(engine.sends, self._leaving, strict=True)]
        self._wait(requests, [rank for rank, _, _ in engine.receives] + [rank for rank, _ in engine.sends])
        with device.working():
            halo = cupy.asarray(self._coming)
            self.v[own:] = halo[:, 0] if halo.shape[1] == 1 else halo[:, 0] + 1j * halo[:, 1]
            for place, launch in self._launchers:
                if place > 0:
                    launch(self.v, self.w, *factors, etas[place])
            return np.asarray(etas.sum(axis=0).get())

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step on this rank's rows, on the host."""
        with self.engine.device.working():
            return [super().blocks()[0].get()]

    def own(self, blocks: Sequence[Any]) -> Array:
        """Return such a block, which is this rank's rows of vectors."""
        own: Array = blocks[0]
        return own

    @staticmethod
    def _pack(rows: Any) -> Any:
        """Return rows as the CPU kernels have them: real parts, then imaginary ones, shape (rows, parts, R)."""
        import cupy

        return cupy.stack([rows.real, rows.imag], axis=1) if rows.dtype.kind == "c" else rows[:, None]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this rank must hold."""
        with self.engine.device.working():
            return {"v": self.v.get(), "w": self.w.get(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        with self.engine.device.working():
            self.v, self.w, self.steps = cupy.asarray(state["v"]), cupy.asarray(state["w"]), int(state["steps"])


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return page-locked memory of the host; a rank alone has no halo."""
    import cupyx

    return np.asarray(cupyx.empty_pinned(shape, dtype)) if min(shape) else np.empty(shape, dtype)
