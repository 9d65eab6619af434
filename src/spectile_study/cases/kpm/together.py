"""Figure 3 on a GPU and the CPU beside it: each calls its library on planes of its own; halos go between the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.kpm import reference
from spectile.kpm.distributed.partition import local_planes
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array
from spectile_study.cases.kpm.hybrid import seconds_a_step
from spectile_study.cases.kpm.naive import Chain

#: Planes on which each side is timed alone.
TRIAL_PLANES = {"cuda": 64, "cpu": 16}


class NaiveTogether:
    """The naive chain of one vector on planes that a GPU and the CPU share.

    Parameters
    ----------
    sample : TopologicalInsulator
        The whole sample.
    cpu_planes : int
        Planes x of the CPU, the last ones; 0 leaves it out, and as many as there are leaves the GPU out.
    threads : int
        Threads of the CPU.
    a, b : float
        Scaling.
    """

    def __init__(self, sample: TopologicalInsulator, cpu_planes: int, threads: int, a: float, b: float) -> None:
        self.a, self.b, self.plane = a, b, 4 * sample.ny * sample.nz
        first, dtype = sample.nx - cpu_planes, np.dtype(np.complex128)
        self.on_gpu: Any = None
        self.on_cpu: Any = None
        if first:
            import cupy

            self.on_gpu, order = local_planes(sample, dtype, 0, first, cupy)
            self.on_gpu.has_canonical_format = False  # the halo's columns came first
            self.on_gpu.sum_duplicates()
            self.orders = [order.get()]
        if cpu_planes:
            matrix, order = local_planes(sample, dtype, first, cpu_planes, np)
            self.on_cpu = Chain(matrix, threads)
            self.orders = [*self.orders, order] if first else [order]

    def begin(self, seed: int, vector: int) -> None:
        """Take one random vector."""
        rows = max(int(order.max()) for order in self.orders) + 1
        start = reference.random_phases(seed, rows, 1, first_vector=vector)[:, 0]
        self.vectors = [[start[order], np.zeros(order.size, start.dtype)] for order in self.orders]
        if self.on_gpu is not None:
            import cupy

            self.vectors[0] = [cupy.asarray(each) for each in self.vectors[0]]
        self.steps = 0

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, 1)."""
        etas = np.empty((steps, 2))
        for n in range(steps):
            if self.steps:
                for pair in self.vectors:
                    pair.reverse()
                self._exchange()
            factor = 2 * self.a if self.steps else self.a
            waiting = self._gpu_step(factor) if self.on_gpu is not None else []
            etas[n] = self._cpu_step(factor) if self.on_cpu is not None else 0
            etas[n] += [float(each.real) for each in waiting] or 0
            self.steps += 1
        return etas.reshape(-1, 1)

    def _exchange(self) -> None:
        """Fill each side's two planes of halo with the newest vector of the other (or its own, where it is alone)."""
        sides, plane = [pair[0] for pair in self.vectors], self.plane
        others = sides[::-1]
        for mine, other in zip(sides, others, strict=True):
            own, last = mine.size - 2 * plane, other.size - 2 * plane
            for at, rows in ((own, other[:plane]), (own + plane, other[last - plane : last])):
                target = mine[at : at + plane]
                if hasattr(rows, "get") and not hasattr(mine, "get"):
                    target[:] = rows.get()
                elif hasattr(mine, "get") and not hasattr(rows, "get"):
                    target.set(rows)
                else:
                    target[:] = rows

    def _gpu_step(self, factor: float) -> list[Any]:
        from cupy import cublas
        from cupyx import cusparse

        (v, w), own = self.vectors[0], self.on_gpu.shape[0]
        u = cusparse.spmv(self.on_gpu, v)
        cublas.axpy(-self.b, v[:own], u)
        cublas.scal(-1.0, w[:own])
        cublas.axpy(factor, u, w[:own])
        return [cublas.dotc(v[:own], v[:own]), cublas.dotc(w[:own], v[:own])]

    def _cpu_step(self, factor: float) -> list[float]:
        chain, (v, w) = self.on_cpu, self.vectors[-1]
        own = chain.matrix.shape[0]
        return chain.step(v[:own], v, w[:own], factor, self.b)


def alone(sample: TopologicalInsulator, threads: int, a: float, b: float) -> dict[str, float]:
    """Return the seconds that each side takes alone for a step of one vector on one plane."""
    seconds = {}
    for side, planes in TRIAL_PLANES.items():
        few = TopologicalInsulator(planes, sample.ny, sample.nz, hopping=sample.hopping)
        chain = NaiveTogether(few, planes if side == "cpu" else 0, threads, a, b)
        chain.begin(0, 0)
        seconds[side] = seconds_a_step(chain) / planes
    return seconds
