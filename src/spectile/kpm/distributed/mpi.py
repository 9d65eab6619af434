"""KPM over MPI ranks: rows in blocks, the halo exchanged while the interior is computed, one reduction at the end.

Every rank calls the same functions with the same arguments and gets the same result::

    from mpi4py import MPI
    from spectile.kpm import kpm_dos
    from spectile.kpm.distributed.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD), backend="cpu")

Vectors that a caller gives or gets, positions and operators that are matrices are the same on every rank; each may give
rows of its own of H (:meth:`DistributedMatrix.from_rows`), and take and get these rows of vectors (`vectors`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from spectile.core.options import kind_of, word
from spectile.core.ranks import on_every_rank, require_communicator
from spectile.kpm.distributed.multi_gpu import MultiGpuEngine
from spectile.kpm.distributed.ranks import MpiEngine
from spectile.kpm.operators.adopt import vector_dtype, whole_csr
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
    backend : {"cpu", "cuda"}
        Where a rank computes: on the CPU, or on a GPU of its own, with NCCL between the ranks.
    weights : sequence of float or None
        Speeds of the ranks, the same sequence on every rank: each has rows in proportion.  Ranks with and without a GPU
        may then share a matrix (each gives its own `backend`), and messages travel through the hosts.
    vectors : {"whole", "own"}
        What :func:`chebyshev`, :func:`evolve` and :func:`apply` take and give: whole vectors, the same on every rank,
        or of each rank its own rows, from ``edges[rank]`` to ``edges[rank + 1]``, so that none holds all of them.

    Raises
    ------
    ValueError
        If `backend` or `vectors` is unknown, there is not one positive weight for each rank, or own rows are asked for
        where NCCL is between the ranks.
    """

    def __init__(
        self,
        H: Any,
        comm: Any,
        *,
        timeout_s: float = 300.0,
        backend: Literal["cpu", "cuda"] = "cpu",
        weights: Sequence[float] | None = None,
        vectors: Literal["whole", "own"] = "whole",
    ) -> None:
        require_communicator(comm)
        word("backend", backend, "cpu", "cuda")
        word("vectors", vectors, "whole", "own")
        self.own_vectors = vectors == "own"
        self.comm, self.timeout_s = comm, timeout_s
        self.H, self.backend, self.shape, self.dtype = H, backend, H.shape, np.dtype(H.dtype)
        if weights is not None and (len(weights) != comm.size or not min(weights) > 0):
            raise ValueError(f"weights={list(weights)} are not {comm.size} positive numbers: give one for each rank")
        self.through_hosts = weights is not None
        if backend == "cuda" and not self.through_hosts:
            if self.own_vectors:
                raise ValueError('vectors="own" is for messages through the hosts: give weights=, or use from_rows')
            return
        matrix = whole_csr(H)
        # Whole sites of four rows where N allows, and a bound that depends on N and the weights alone.
        unit = 4 if self.shape[0] % 4 == 0 else 1
        share = np.cumsum([0.0, *(weights or [1.0] * comm.size)])
        self.edges = np.floor(share / share[-1] * (self.shape[0] // unit)).astype(np.int64) * unit
        self.edges[-1] = self.shape[0]
        if self.through_hosts and np.diff(self.edges).min() < 1:
            raise ValueError(f"weights={list(weights or ())} leave a rank without rows: give it more, or fewer ranks")
        self.rows = matrix[self.edges[comm.rank] : self.edges[comm.rank + 1]]

    @classmethod
    def from_rows(
        cls,
        rows: Any,
        comm: Any,
        *,
        timeout_s: float = 300.0,
        backend: Literal["cpu", "cuda"] = "cpu",
        vectors: Literal["whole", "own"] = "whole",
    ) -> DistributedMatrix:
        """Return the matrix of which each rank gives its own rows, so that none holds all of them.

        Parameters
        ----------
        rows : scipy.sparse matrix or ndarray, shape (own rows, N)
            Rows of this rank, behind those of the ranks before it.
        comm, timeout_s, vectors
            As above.
        backend : {"cpu", "cuda"}
            Where this rank computes: on the CPU, or on its current GPU, with messages through the hosts.

        Raises
        ------
        ValueError, TypeError
            On every rank, if the rows of one are no matrix or its backend is unknown, or the rows of all are not N.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from spectile.kpm import evolve
        >>> from spectile.kpm.distributed.mpi import DistributedMatrix
        >>> from spectile.kpm.operators.lattices import chain
        >>> comm = MPI.COMM_WORLD
        >>> own = np.array_split(np.arange(100), comm.size)[comm.rank]
        >>> H = DistributedMatrix.from_rows(chain(100)[own], comm, vectors="own")
        >>> evolve(H, np.eye(100)[own, :1], [1.0, 2.0]).shape == (2, len(own), 1)
        True
        """

        def taken() -> Any:
            word("backend", backend, "cpu", "cuda")
            word("vectors", vectors, "whole", "own")
            if not hasattr(rows, "shape"):
                raise TypeError(f"rows are {kind_of(rows)}: give a sparse matrix or an array")
            stored = StoredMatrix(rows).on_host()
            if len(stored.shape) != 2 or stored.shape[0] < 1 or stored.dtype.kind not in "biufc":
                raise ValueError(f"rows have shape {stored.shape} and dtype {stored.dtype}: give at least one row of H")
            return stored.csr(vector_dtype(stored.dtype))

        require_communicator(comm)
        mine = on_every_rank(comm, taken)
        shapes = [(*shape, kind) for shape, kind in comm.allgather((mine.shape, mine.dtype.str))]
        counts, widths = [each[0] for each in shapes], {each[1] for each in shapes}
        if widths != {sum(counts)}:
            raise ValueError(
                f"the ranks give {counts} rows of {', '.join(map(str, sorted(widths)))} columns: together they must "
                "have as many rows as columns"
            )
        self = cls.__new__(cls)
        self.comm, self.timeout_s = comm, timeout_s
        self.H, self.backend, self.through_hosts, self.own_vectors = None, backend, True, vectors == "own"
        self.shape, self.dtype = (sum(counts),) * 2, np.result_type(*(each[2] for each in shapes))
        self.edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.rows = mine.astype(self.dtype)
        return self

    def __matmul__(self, block: Any) -> Any:
        """Return the product with vectors, shape (N,) or (N, R), the same on every rank, as it is there."""
        if self.backend == "cuda" and not self.through_hosts:
            return whole_csr(self.H) @ block
        return np.concatenate(self.comm.allgather(self.rows @ block))

    def derived(self, entries: Callable[[Any, int], Any]) -> Any:
        """Return the matrix of other entries in the places of this one's, spread alike; whole where NCCL is between."""
        if self.backend == "cuda" and not self.through_hosts:
            return entries(whole_csr(self.H), 0)
        rows = on_every_rank(self.comm, lambda: entries(self.rows, int(self.edges[self.comm.rank])))
        return DistributedMatrix.from_rows(
            rows, self.comm, timeout_s=self.timeout_s, backend=self.backend,
            vectors="own" if self.own_vectors else "whole",
        )  # fmt: skip

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
