"""KPM on a GPU and the CPU beside it: planes of the topological insulator shared by weights that it finds itself.

The paper's heterogeneous run (Figure 11), with the weights that its outlook asks for: each side is timed on a few
planes, and gets planes in proportion to its speed::

    density = kpm_dos(HybridInsulator(TopologicalInsulator(400, 100, 40)))

Both sides compute their boundary first; halos travel in the CPU's layout, which the GPU packs and unpacks.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from spectile.core.memory import free_bytes
from spectile.kpm.cpu.recursion import CpuOperator
from spectile.kpm.cpu.rows import fill_phases
from spectile.kpm.cpu.threads import num_threads
from spectile.kpm.distributed.mpi import split_rows
from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix
from spectile.kpm.distributed.shares import Place, hold_planes, local_planes
from spectile.kpm.reference import Array, random_phases

#: Planes and steps on which each side is timed.
TRIAL_PLANES = {"cuda": 128, "cpu": 4}
TRIAL_STEPS = 6
#: Rows of a block of the CPU's: short, so that its threads end together.
BLOCK_ROWS = 256


class HybridInsulator:
    """A topological insulator, stored as a matrix whose planes one GPU and the CPU share.

    Parameters
    ----------
    sample : TopologicalInsulator
        The Hamiltonian.
    device : int
        CUDA device.
    threads : int or None
        Threads of the CPU; None takes :func:`spectile.kpm.cpu.threads.num_threads`.
    cpu_planes : int or None
        Planes x of the CPU; None finds them by timing both sides.

    Raises
    ------
    ValueError
        If one side would have no plane.
    """

    def __init__(
        self, sample: Any, device: int = 0, *, threads: int | None = None, cpu_planes: int | None = None
    ) -> None:
        if cpu_planes is not None and not 0 < cpu_planes < sample.nx:
            raise ValueError(f"cpu_planes={cpu_planes} of {sample.nx} leaves one side without a plane")
        self.sample, self.device, self.threads, self.cpu_planes = sample, device, threads or num_threads(), cpu_planes
        self.shape, self.dtype = sample.shape, np.dtype(np.complex128)

    def gershgorin(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles."""
        bounds: tuple[float, float] = self.sample.gershgorin()
        return bounds

    def engine(self, dtype: np.dtype[Any]) -> HybridEngine:
        """Return the view that :func:`spectile.kpm.kpm_dos` works with."""
        planes = self.cpu_planes
        if planes is None:
            seconds = self.trial()
            weight = seconds["cuda"] / (seconds["cuda"] + seconds["cpu"])
            planes = min(max(1, round(self.sample.nx * weight)), self.sample.nx - 1)
        return HybridEngine(self.sample, Place(0, self.device), planes, self.threads)

    def trial(self, num_vectors: int = 32) -> dict[str, float]:
        """Return the seconds that each side takes alone for a step on one plane."""
        from spectile.kpm.operators.topological_insulator import TopologicalInsulator

        sample, seconds = self.sample, {}
        for side, planes in TRIAL_PLANES.items():
            few = TopologicalInsulator(planes, sample.ny, sample.nz, hopping=sample.hopping)
            recursion: Any
            if side == "cuda":
                engine = MultiGpuMatrix(few, [self.device], stored=True).engine(self.dtype)
                recursion = engine.random(0, 0, num_vectors, 0.1, 0.0)
            else:
                from spectile.kpm.cpu.recursion import CpuRecursion

                operator = CpuOperator.from_csr(few.matrix())
                recursion = CpuRecursion(operator, 0.1, 0.0, operator.random_block(0, 0, num_vectors), self.threads)
            recursion.advance(2)
            start = time.perf_counter()
            recursion.advance(TRIAL_STEPS)
            seconds[side] = (time.perf_counter() - start) / TRIAL_STEPS / planes
        return seconds


class HybridEngine:
    """The two shares of a topological insulator, as :class:`spectile.kpm.engine.CpuEngine` is for one CPU.

    Parameters
    ----------
    sample : TopologicalInsulator
        The Hamiltonian.
    place : Place
        The GPU, which takes the first planes.
    cpu_planes : int
        Planes of the CPU, the last ones.
    threads : int
        Threads of the CPU.
    """

    name = "cuda and cpu"
    xp = np

    def __init__(self, sample: Any, place: Place, cpu_planes: int, threads: int) -> None:
        self.place, self.cpu_planes, self.threads = place, cpu_planes, threads
        self.num_rows, self.dtype, self.plane = sample.shape[0], np.dtype(np.complex128), 4 * sample.ny * sample.nz
        first = sample.nx - cpu_planes
        with place.working():
            self.holder = hold_planes(sample, self.dtype, place, 0, first, 2)
        matrix, self.order = local_planes(sample, self.dtype, first, cpu_planes, sample.nz, np)
        self.operator = CpuOperator.from_csr(matrix)
        own = matrix.indices < self.operator.num_rows
        edges = [*range(0, self.operator.num_rows, BLOCK_ROWS), self.operator.num_rows]
        self.interior, self.boundary = split_rows(matrix.indptr, own, list(itertools.pairwise(edges)))

    def capacity(self) -> int:
        """Return how many vectors' states fit into the GPU's memory at once, with some room."""
        with self.place.working():
            return max(1, int(0.95 * free_bytes()) // (2 * (self.holder.rows + 2 * self.plane) * self.dtype.itemsize))

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        return random_phases(seed, self.num_rows, 1)[:, 0]

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        recursion = self.start(np.asarray(x, self.dtype).reshape(-1, 1), 1.0, 0.0)
        recursion.advance(1)
        image = np.empty(self.num_rows, self.dtype)
        with self.place.working():
            numbers, rows = self.holder.from_block(recursion.share.w)
        image[numbers] = rows[:, 0]
        own = self.operator.num_rows
        image[self.order[:own]] = recursion.w[:own, 0, 0] + 1j * recursion.w[:own, 1, 0]
        return image

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> HybridRecursion:
        """Return the recursion of a block of random vectors."""
        with self.place.working():
            share = self.holder.share(self.holder.random_block(seed, first_vector, num_vectors))
        block = self._pinned(num_vectors)
        fill_phases(block, np.uint64(seed), self.order, 0, first_vector, 0, len(self.order))
        return HybridRecursion(self, a, b, share, block)

    def start(self, vectors: Array, a: float, b: float) -> HybridRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        with self.place.working():
            share = self.holder.share(self.holder.to_block(vectors))
        block = self._pinned(vectors.shape[1])
        mine = vectors[self.order]
        block[:, 0], block[:, 1] = mine.real, mine.imag
        return HybridRecursion(self, a, b, share, block)

    def _pinned(self, num_vectors: int) -> Array:
        """Return zeroed page-locked memory for the CPU's rows and halo, in the CPU kernels' layout."""
        import cupyx

        block = np.asarray(cupyx.empty_pinned((len(self.order), 2, num_vectors)))
        block[:] = 0
        return block


class HybridRecursion:
    """The recurrence of a block of vectors, the first planes on the GPU, the last ones on the CPU."""

    def __init__(self, engine: HybridEngine, a: float, b: float, share: Any, block: Array) -> None:
        import cupy

        self.engine, self.a, self.b, self.share = engine, a, b, share
        self.v, self.w = block, engine._pinned(block.shape[2])
        self.steps = 0
        with engine.place.working():
            # Two planes each way, in the CPU's layout.
            self._leaving, self._coming = (cupy.empty((2, engine.plane, *block.shape[1:])) for _ in range(2))
            # The GPU numbers the sites of a plane in strips, the CPU along z.
            self._order = engine.holder.order[: engine.plane] % engine.plane
            self._sent = cupy.cuda.Event(disable_timing=True)

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[2])

    def step(self, etas: Any) -> Array:
        """Do one step; the GPU's scalar products go to `etas`, shape (parts, 1, 2, R), the CPU's are returned."""
        import cupy

        engine, share, place, plane = self.engine, self.share, self.engine.place, self.engine.plane
        first = self.steps == 0
        factors = (self.a, -self.a * self.b, 0.0) if first else (2 * self.a, -2 * self.a * self.b, 1.0)
        own, on_gpu = engine.operator.num_rows, engine.holder.operator.num_rows
        with place.working():
            if not first:
                place.compute.wait_event(place.arrived)
                for number, source in enumerate(self._coming):
                    rows = share.w[on_gpu + number * plane : on_gpu + (number + 1) * plane]
                    rows.real, rows.imag = source[self._order, 0], source[self._order, 1]
            share.begin(1, first)
            share.launch("boundary", factors, etas[0])
            # The GPU packs and unpacks: its interior leaves no multiprocessor to a second stream.
            for target, (_, rows) in zip(self._leaving, share.messages()[0], strict=True):
                target[self._order, 0], target[self._order, 1] = rows.real, rows.imag
            place.computed.record(place.compute)
            share.launch("interior", factors, etas[1])
        if not first:
            self._sent.synchronize()  # the planes that came with the step before
            self.v, self.w = self.w, self.v
        copy, runtime = cupy.cuda.runtime.memcpyAsync, cupy.cuda.runtime
        with cupy.cuda.Device(place.device):
            # The GPU's first plane is ahead of the CPU's planes, its last one behind them.
            place.copies.wait_event(place.computed)
            copy(
                self.w[own:].ctypes.data,
                self._leaving.data.ptr,
                self._leaving.nbytes,
                runtime.memcpyDeviceToHost,
                place.copies.ptr,
            )
            self._sent.record(place.copies)
        sums = engine.operator.update(self.v, self.w, *factors, engine.threads, engine.boundary)
        with cupy.cuda.Device(place.device):
            for source, target in zip((self.w[:plane], self.w[own - plane : own]), self._coming, strict=True):
                copy(target.data.ptr, source.ctypes.data, target.nbytes, runtime.memcpyHostToDevice, place.copies.ptr)
            place.arrived.record(place.copies)
        if engine.interior:
            sums += engine.operator.update(self.v, self.w, *factors, engine.threads, engine.interior)
        self.steps += 1
        return np.asarray(sums)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of both sides, shape (2 * steps, R)."""
        import cupy

        place = self.engine.place
        with place.working():
            etas = cupy.zeros((2, steps, 2, self.num_vectors))
        on_cpu = np.array([self.step(etas[:, n : n + 1]) for n in range(steps)])
        place.compute.synchronize()
        place.copies.synchronize()
        with place.working():
            on_gpu = etas.get().sum(axis=0)
        return np.asarray((on_gpu + on_cpu).reshape(2 * steps, -1))

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        with self.engine.place.working():
            on_gpu = {"v": self.share.v.get(), "w": self.share.w.get(), "coming": self._coming.get()}
        return {**on_gpu, "cpu_v": self.v, "cpu_w": self.w, "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        with self.engine.place.working():
            share = self.engine.holder.share(cupy.asarray(state["v"]))
            share.w = cupy.asarray(state["w"])
        fresh = HybridRecursion(self.engine, self.a, self.b, share, self.engine._pinned(state["v"].shape[1]))
        fresh.v[:], fresh.w[:] = state["cpu_v"], state["cpu_w"]
        with self.engine.place.working():  # on the stream that reads it
            fresh._coming.set(state["coming"])
        self.__dict__.update(fresh.__dict__)
        self.steps = int(state["steps"])
