"""A timed MPI rank: ``mpiexec -n 2 python -m spectile_study.cases.kpm.processes.ranks nx ny nz R steps seed ...``.

Rank 0 prints one line of JSON: the seconds of each call from barrier to barrier, and the scalar products.  A call is
`steps` steps, after the `first` ones.  With the method "mixed" rank 0 has a GPU, and so many times the rows of the
others, which compute on the CPU, as the last argument says.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def main(arguments: list[str]) -> None:
    """Time one method on the ranks of ``MPI.COMM_WORLD``."""
    from mpi4py import MPI

    from spectile.core.threads import num_threads
    from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
    from spectile.kpm.distributed.mpi import DistributedMatrix
    from spectile_study.cases.kpm.shared import insulator, scaling

    nx, ny, nz, num_vectors, steps, seed = (int(text) for text in arguments[:6])
    method, calls, first = arguments[6], int(arguments[7]), int(arguments[8])
    weight = float(arguments[9]) if method == "mixed" else 0.0
    comm = MPI.COMM_WORLD
    sample = insulator(nx, ny, nz)
    a, b = scaling(sample)
    recursions: list[Any]
    if method == "aug_spmv":
        # Throughput mode: each rank has vectors of its own and runs them one after the other.
        operator = CpuOperator.from_csr(sample.matrix())
        mine = range(comm.rank, num_vectors, comm.size)
        threads = max(1, num_threads() // comm.size)

        def fresh() -> list[Any]:
            return [CpuRecursion(operator, a, b, operator.random_block(seed, n, 1), threads) for n in mine]
    else:
        # On GPUs: one rank for each device, two steps in one sweep.
        backend: Any = "cuda" if method == "blocked" or (weight and comm.rank == 0) else "cpu"
        weights = [weight] + [1.0] * (comm.size - 1) if weight else None
        matrix = DistributedMatrix(sample, comm, backend=backend, weights=weights)
        engine = matrix.engine(matrix.dtype)

        def fresh() -> list[Any]:
            return [engine.random(seed, 0, num_vectors, a, b)]

    seconds = []
    etas = np.empty((0, 0))
    recursions = []
    for _ in range(calls):
        recursions.clear()  # the vectors of two calls need not fit into memory together
        recursions += fresh()
        for recursion in recursions:
            recursion.advance(first)
        comm.Barrier()
        start = time.perf_counter()
        # The scalar products are summed over the ranks after each call.
        each = [1] * steps if method == "aug_spmmv_star" else [steps]
        parts = [np.concatenate([recursion.advance(some) for some in each]) for recursion in recursions]
        comm.Barrier()
        seconds.append(time.perf_counter() - start)
        etas = np.concatenate(parts, axis=1) if parts else np.empty((2 * steps, 0))
    if method == "aug_spmv":
        gathered = comm.gather(etas)
        if comm.rank == 0:
            whole = np.empty((2 * steps, num_vectors))
            for rank, part in enumerate(gathered or ()):
                whole[:, rank :: comm.size] = part
            etas = whole
    if comm.rank == 0:
        print(json.dumps({"seconds": seconds, "etas": etas.tolist()}))


if __name__ == "__main__":
    main(sys.argv[1:])
