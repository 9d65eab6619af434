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

from spectile.kpm.distributed.multi_gpu import MultiGpuEngine
from spectile.kpm.distributed.ranks import MpiEngine
from spectile.kpm.operators.adopt import vector_dtype
from spectile.kpm.operators.protocol import PartitionedOperator
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator


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
        matrix = H.matrix() if isinstance(H, TopologicalInsulator) else H
        matrix = StoredMatrix(matrix).on_host().csr(vector_dtype(self.dtype))
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
        from spectile.kpm.distributed.rank_device import RankDeviceEngine

        return (MpiEngine if self.backend == "cpu" else RankDeviceEngine)(self, dtype)

    def bounds(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles over all ranks."""
        if self.backend == "cuda" and not self.through_hosts:
            return (self.H if isinstance(self.H, TopologicalInsulator) else StoredMatrix(self.H)).bounds()
        first = int(self.edges[self.comm.rank])
        diagonal = self.rows.diagonal(k=first).astype(np.result_type(self.rows.dtype, np.float64))
        radius = np.asarray(abs(self.rows).astype(np.float64).sum(axis=1)).ravel() - abs(diagonal)
        mine = (diagonal.real - radius).min(initial=np.inf), (diagonal.real + radius).max(initial=-np.inf)
        everybody = self.comm.allgather(mine)
        return float(min(low for low, _ in everybody)), float(max(high for _, high in everybody))
