"""KPM on a GPU and the CPU beside it: planes of the topological insulator shared by weights that trials find.

The paper's heterogeneous run (Figure 11), with the weights that its outlook asks for: each side is timed on a few
planes, and gets so many that both end soonest; a CPU that could only delay the GPU gets none.  Both sides compute their
boundary first; halos travel in the CPU's layout, which the GPU packs and unpacks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.kpm.cpu.kernels import fill_phases
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix
from spectile.kpm.distributed.partition import local_planes, split_rows
from spectile.kpm.distributed.rows import local_plane_rows
from spectile.kpm.operators.adopt import framed
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array

#: Planes on which each side is timed, steps of a round, so many that its one wait weighs little, and rounds.
TRIAL_PLANES = {"cuda": 128, "cpu": 4}
TRIAL_STEPS, TRIAL_ROUNDS = 20, 3
#: Rows of a block of the CPU's: short, so that its threads end together.
BLOCK_ROWS = 256


def seconds_a_step(recursion: Any) -> float:
    """Return the seconds of a step of a recursion: the least of some rounds, since nothing makes a round too fast."""
    recursion.advance(2)
    least = math.inf
    for _ in range(TRIAL_ROUNDS):
        start = time.perf_counter()
        recursion.advance(TRIAL_STEPS)
        least = min(least, time.perf_counter() - start)
    return least / TRIAL_STEPS


def planes_of_cpu(planes: int, seconds: Mapping[str, float]) -> int:
    """Return how many planes the CPU takes so that the slower side ends soonest, fewer than all.

    Parameters
    ----------
    planes : int
        Planes of both.
    seconds : mapping
        What ``"cuda"`` and ``"cpu"`` take for a step on one plane.

    Returns
    -------
    int
        Whole planes: none where the CPU takes longer for one than the GPU for all.
    """
    balanced = planes * seconds["cuda"] / (seconds["cuda"] + seconds["cpu"])
    near = {min(int(each), planes - 1) for each in (balanced, balanced + 1)}
    return min(sorted(near), key=lambda mine: max(mine * seconds["cpu"], (planes - mine) * seconds["cuda"]))


def trial(sample: TopologicalInsulator, threads: int, num_vectors: int) -> dict[str, float]:
    """Return the seconds that the first GPU and the CPU take, each alone, for a step on one plane of a sample."""
    seconds, dtype = {}, np.dtype(np.complex128)
    for side, planes in TRIAL_PLANES.items():
        few = TopologicalInsulator(planes, sample.ny, sample.nz, hopping=sample.hopping)
        recursion: Any
        if side == "cuda":
            recursion = MultiGpuMatrix(few, [0], stored=True).engine(dtype).random(0, 0, num_vectors, 0.1, 0.0)
        else:
            operator = CpuOperator.from_csr(few.matrix())
            recursion = CpuRecursion(operator, 0.1, 0.0, operator.random_block(0, 0, num_vectors), threads)
        seconds[side] = seconds_a_step(recursion) / planes
    return seconds


def fill_planes(block: Array, plane: int, order: Array, seed: int, first_vector: int) -> None:
    """Write random vectors in the CPU's layout on planes of so many rows, whose numbers in the whole are `order`."""
    for start in range(0, len(order), plane):
        fill_phases(block[start : start + plane], np.uint64(seed), int(order[start]), first_vector)


class HybridEngine:
    """The two partitions of a topological insulator, stored as a matrix: the first GPU's and the CPU's.

    Parameters
    ----------
    sample : TopologicalInsulator
        The Hamiltonian.
    cpu_planes : int
        Planes x of the CPU, the last ones; the GPU takes the others.
    threads : int
        Threads of the CPU.

    Raises
    ------
    ValueError
        If one side would have no plane.
    """

    def __init__(self, sample: TopologicalInsulator, cpu_planes: int, threads: int) -> None:
        if not 0 < cpu_planes < sample.nx:
            raise ValueError(f"cpu_planes={cpu_planes} of {sample.nx} leaves one side without a plane")
        self.device, self.threads, dtype = PartitionDevice(0, 0), threads, np.dtype(np.complex128)
        self.plane = 4 * sample.ny * sample.nz
        self.frame, sample = framed(sample, dtype)
        first = sample.nx - cpu_planes
        with self.device.working():
            self.local = local_plane_rows(sample, dtype, self.device, 0, first, 2)
        matrix, self.order = local_planes(sample, dtype, first, cpu_planes, np)
        self.operator = CpuOperator.from_csr(matrix)
        own = matrix.indices < self.operator.num_rows
        edges = [*range(0, self.operator.num_rows, BLOCK_ROWS), self.operator.num_rows]
        self.interior, self.boundary = split_rows(matrix.indptr, own, list(itertools.pairwise(edges)))

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> HybridRecursion:
        """Return the recursion of a block of random vectors."""
        with self.device.working():
            state = self.local.new_state(self.local.random_block(seed, first_vector, num_vectors))
        block = self.pinned(num_vectors)
        fill_planes(block, self.plane, self.order, seed, first_vector)
        return HybridRecursion(self, *self.frame.scaling(a, b), state, block)

    def pinned(self, num_vectors: int) -> Array:
        """Return zeroed page-locked memory for the CPU's rows and halo, in the CPU kernels' layout."""
        import cupyx

        block = np.asarray(cupyx.empty_pinned((len(self.order), 2, num_vectors)))
        block[:] = 0
        return block


class HybridRecursion:
    """The recurrence of a block of vectors, the first planes on the GPU, the last ones on the CPU."""

    def __init__(self, engine: HybridEngine, a: float, b: float, local: Any, block: Array) -> None:
        import cupy

        self.engine, self.a, self.b, self.local = engine, a, b, local
        self.v, self.w = block, engine.pinned(block.shape[2])
        self.steps = 0
        with engine.device.working():
            # Two planes each way, in the CPU's layout.
            self._leaving, self._coming = (cupy.empty((2, engine.plane, *block.shape[1:])) for _ in range(2))
            self._sent = cupy.cuda.Event(disable_timing=True)

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[2])

    def step(self, etas: Any) -> Array:
        """Do one step; the GPU's scalar products go to `etas`, shape (parts, 1, 2, R), the CPU's are returned."""
        import cupy

        engine, local, device, plane = self.engine, self.local, self.engine.device, self.engine.plane
        first = self.steps == 0
        factors = (self.a, -self.a * self.b, 0.0) if first else (2 * self.a, -2 * self.a * self.b, 1.0)
        own, on_gpu = engine.operator.num_rows, engine.local.operator.num_rows
        with device.working():
            if not first:
                device.compute.wait_event(device.arrived)
                for number, source in enumerate(self._coming):
                    rows = local.w[on_gpu + number * plane : on_gpu + (number + 1) * plane]
                    rows.real, rows.imag = source[:, 0], source[:, 1]
            local.begin(1, first)
            local.launch("boundary", factors, etas[0])
            # The GPU packs and unpacks: its interior leaves no multiprocessor to a second stream.
            for target, (_, rows) in zip(self._leaving, local.messages()[0], strict=True):
                target[:, 0], target[:, 1] = rows.real, rows.imag
            device.computed.record(device.compute)
            local.launch("interior", factors, etas[1])
        if not first:
            self._sent.synchronize()  # the planes that came with the step before
            self.v, self.w = self.w, self.v
        copy, runtime = cupy.cuda.runtime.memcpyAsync, cupy.cuda.runtime
        with cupy.cuda.Device(device.ordinal):
            # The GPU's first plane is ahead of the CPU's planes, its last one behind them.
            device.copies.wait_event(device.computed)
            copy(
                address(self.w[own:]),
                address(self._leaving),
                self._leaving.nbytes,
                runtime.memcpyDeviceToHost,
                device.copies.ptr,
            )
            self._sent.record(device.copies)
        sums = engine.operator.update(self.v, self.w, *factors, engine.threads, engine.boundary)
        with cupy.cuda.Device(device.ordinal):
            for source, target in zip((self.w[:plane], self.w[own - plane : own]), self._coming, strict=True):
                copy(address(target), address(source), target.nbytes, runtime.memcpyHostToDevice, device.copies.ptr)
            device.arrived.record(device.copies)
        if engine.interior:
            sums += engine.operator.update(self.v, self.w, *factors, engine.threads, engine.interior)
        self.steps += 1
        return np.asarray(sums)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of both sides, shape (2 * steps, R)."""
        import cupy

        device = self.engine.device
        with device.working():
            etas = cupy.zeros((2, steps, 2, self.num_vectors))
        on_cpu = np.array([self.step(etas[:, n : n + 1]) for n in range(steps)])
        device.compute.synchronize()
        device.copies.synchronize()
        with device.working():
            on_gpu = etas.get().sum(axis=0)
        return np.asarray((on_gpu + on_cpu).reshape(2 * steps, -1))
