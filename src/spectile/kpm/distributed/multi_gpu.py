"""KPM on several GPUs: rows in partitions, halos exchanged while the interior is computed, one reduction at the end.

One process drives the devices of a host::

    from spectile.kpm import kpm_dos
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix
    density = kpm_dos(MultiGpuMatrix(H))

or each MPI rank drives one device (``mpiexec -n 8 python ...``)::

    from mpi4py import MPI
    from spectile.kpm.distributed.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD, backend="cuda"))

Halos travel on a stream of their own while something else is computed: the other half of the vectors, or, with a stored
matrix, the rows that no other partition waits for.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from spectile.core.device import require_device
from spectile.core.memory import free_bytes
from spectile.core.pointers import address
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.distributed.rows import LocalRows, local_matrix_rows, local_plane_rows
from spectile.kpm.distributed.slab import LocalSlab, local_slabs
from spectile.kpm.distributed.transport import NcclMessages, PeerCopies, Transport, rank_device
from spectile.kpm.operators.adopt import framed, whole_csr
from spectile.kpm.operators.engine import ProductEngine
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import PartitionedOperator
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array


class MultiGpuMatrix(PartitionedOperator):
    """A Hermitian matrix whose rows are spread over the GPUs of this process.

    Parameters
    ----------
    H : scipy.sparse matrix, shape (N, N), or TopologicalInsulator
        The matrix.
    devices : sequence of int or None
        CUDA devices, one partition each; None takes all.  The same device may come several times.
    stored : bool
        Store the matrix of a TopologicalInsulator; otherwise its stencil is applied.
    steps_a_sweep : {1, 2}
        Chebyshev steps of the stencil for one pass over the vectors.

    Raises
    ------
    ValueError
        If a partition has fewer planes than its neighbours' halo is wide, or no rows.
    """

    def __init__(
        self, H: Any, devices: Sequence[int] | None = None, *, stored: bool = False, steps_a_sweep: int = 2
    ) -> None:
        if devices is None:
            require_device("pass the matrix itself to compute on the host")
            import cupy

            devices = range(cupy.cuda.runtime.getDeviceCount())
        if not isinstance(devices, Sequence | np.ndarray):
            raise TypeError(f"devices = {reprlib.repr(devices)} is no list of CUDA devices: name them, or None for all")
        if not len(devices):
            raise ValueError("devices is empty: name at least one CUDA device, or None for all")
        self.H, self.devices, self.stored, self.steps_a_sweep = H, list(devices), stored, steps_a_sweep
        self.shape, self.dtype = H.shape, np.dtype(H.dtype)

    def engine(self, dtype: np.dtype[Any], partitions: list[Any] | None = None) -> MultiGpuEngine:
        """Return the engine for vectors of this type; `partitions` of another one are used again."""
        frame, held = framed(self.H, dtype)
        if partitions is None:
            devices = [PartitionDevice(number, ordinal) for number, ordinal in enumerate(self.devices)]
            partitions = local_operators(
                held, dtype, devices, len(devices), stored=self.stored, steps_a_sweep=self.steps_a_sweep
            )
        return MultiGpuEngine(self, partitions, PeerCopies([local.device for local in partitions]), dtype, frame)

    def bounds(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles."""
        return (self.H if isinstance(self.H, TopologicalInsulator) else StoredMatrix(self.H)).bounds()

    def derived(self, entries: Callable[[Any, int], Any]) -> Any:
        """Return the matrix of other entries in the places of this one's, whole and on the host."""
        return entries(whole_csr(self.H), 0)


def local_operators(
    H: Any, dtype: np.dtype[Any], devices: Sequence[PartitionDevice], count: int, *, stored: bool, steps_a_sweep: int
) -> list[Any]:
    """Return what each device holds of H, in `count` partitions of about the same number of rows.

    Raises ValueError if a partition has fewer planes than its neighbours' halo is wide, or no rows.
    """
    if not isinstance(H, TopologicalInsulator):
        return local_matrix_rows(StoredMatrix(H).on_host().csr(dtype), devices, count)
    edges = np.linspace(0, H.nx, count + 1).astype(int)
    least = 1 if stored else steps_a_sweep
    if np.diff(edges).min() < least:
        raise ValueError(
            f"{count} partitions of {H.nx} planes have {np.diff(edges).min()} each, and a halo is {least} wide: take "
            "fewer devices, or a sample that is longer in x"
        )
    if not stored:
        return list(local_slabs(H, dtype, devices, edges, steps_a_sweep))
    partitions = []
    for device in devices:
        first, planes = int(edges[device.partition]), int(np.diff(edges)[device.partition])
        with device.working():
            # A quarter on either side is computed first: few planes at a time are read many times.
            partitions.append(local_plane_rows(H, dtype, device, first, planes, count, max(1, planes // 4)))
    return partitions


class MultiGpuEngine(ProductEngine):
    """Partitions of a matrix on several GPUs, an :class:`~spectile.kpm.types.Engine`.

    This process holds one of `partitions` for each of its devices, in a frame; the bounds are those of `operator`, the
    caller's matrix.
    """

    name = "cuda partitions"
    xp = np

    def __init__(
        self, operator: Any, partitions: list[Any], transport: Transport, dtype: np.dtype[Any], frame: Frame
    ) -> None:
        self.operator, self.partitions, self.transport, self.dtype = operator, partitions, transport, dtype
        self.frame = frame
        self.num_rows = int(operator.shape[0])
        slabs = isinstance(partitions[0], LocalSlab)
        self.steps_a_sweep: int = partitions[0].operator.slab.halo if slabs else 1

    @classmethod
    def of_rank(cls, matrix: Any, dtype: np.dtype[Any]) -> MultiGpuEngine:
        """Return the engine of one MPI rank of a :class:`spectile.kpm.distributed.mpi.DistributedMatrix`."""
        comm = matrix.comm
        device = PartitionDevice(comm.rank, rank_device(comm))
        transport = NcclMessages.of_ranks(comm, device.ordinal, matrix.timeout_s)
        frame, held = framed(matrix.H, dtype)
        partitions = local_operators(held, dtype, [device], comm.size, stored=False, steps_a_sweep=2)
        return cls(matrix, partitions, transport, dtype, frame)

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        bounds: tuple[float, float] = self.operator.bounds()
        return bounds

    def capacity(self) -> int:
        """Return how many vectors' states fit into the memory of every device at once, with a reserve."""
        arrays = 4 if self.steps_a_sweep == 2 else 2
        together = [local.device.ordinal for local in self.partitions]
        least = []
        for local in self.partitions:
            with local.device.working():
                room = int(0.95 * free_bytes()) // together.count(local.device.ordinal) - local.reserve
                least.append(room // (arrays * local.rows * self.dtype.itemsize))
        return max(1, min(self.transport.gather(min(least))))

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        return self._times(x, 1.0, 0.0)

    def framed(self, x: Array) -> Array:
        """Return H' x of one vector, in the frame."""
        return self._times(x, 1 / self.frame.unit, self.frame.offset)

    def _times(self, x: Array, a: float, b: float) -> Array:
        """Return a (H − b) x of one vector."""
        recursion = self.start(np.asarray(x, self.dtype).reshape(-1, 1), a, b)
        recursion.advance(1)
        image: Array = recursion.vectors(recursion.blocks())[:, 0]
        return image

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> MultiGpuRecursion:
        """Return the recursion of a block of random vectors."""

        def block(local: Any, batch: slice) -> Any:
            return local.random_block(seed, first_vector + batch.start, batch.stop - batch.start)

        return self._recursion(a, b, num_vectors, block)

    def start(self, vectors: Array, a: float, b: float) -> MultiGpuRecursion:
        """Return the recursion of given vectors, shape (N, R), the same in every process."""
        return self._recursion(a, b, vectors.shape[1], lambda local, batch: local.to_block(vectors[:, batch]))

    def _recursion(self, a: float, b: float, num_vectors: int, block: Callable[[Any, slice], Any]) -> MultiGpuRecursion:
        self._plan(num_vectors)
        batches = []
        for number, batch in enumerate(self.partitions[0].batches(num_vectors)):
            states = []
            for local in self.partitions:
                with local.device.of_batch(number).working():
                    states.append(local.new_state(block(local, batch), number))
            batches.append(states)
        return MultiGpuRecursion(self, *self.frame.scaling(a, b), batches)

    def _plan(self, num_vectors: int) -> None:
        """Let all inspectors plan beside one another."""
        stored = [local for local in self.partitions if isinstance(local, LocalRows)]

        def one(local: LocalRows) -> None:
            with local.device.working():
                local.staged(num_vectors)

        if stored:
            with ThreadPoolExecutor(len(stored)) as pool:
                list(pool.map(one, stored))


class MultiGpuRecursion:
    """The recurrence of a block of vectors, in one or two batches, each local state of a batch on its device.

    Sweeps of two steps pair them by their number, as :class:`spectile.kpm.cuda.stencil.launch.StencilRecursion` does.
    """

    def __init__(self, engine: MultiGpuEngine, a: float, b: float, batches: list[list[Any]]) -> None:
        self.engine, self.a, self.b, self.batches = engine, a, b, batches
        self.steps = 0
        self.pending: Any = None
        self._plans: dict[tuple[int, ...], Any] = {}
        self._halos: dict[int, Any] = {}

    @property
    def states(self) -> list[Any]:
        """The local states of all batches."""
        return [state for states in self.batches for state in states]

    @property
    def num_vectors(self) -> int:
        """R."""
        return sum(states[0].num_vectors for states in self.batches)

    def sweep(self, etas: Sequence[Sequence[Any]], done: int, count: int) -> None:
        """Enqueue one sweep of `count` steps on every state, batch after batch.

        `etas` of each state take its scalar products, shape (parts, steps, 2, R), from step `done` on.
        """
        for batch, mine in enumerate(etas):
            self._sweep(batch, [each[:, done : done + count] for each in mine], count)
        self.steps += count

    def _sweep(self, batch: int, etas: Sequence[Any], count: int) -> None:
        transport, states = self.engine.transport, self.batches[batch]
        first = self.steps == 0
        factors = (self.a, -self.a * self.b, 0.0) if first else (2 * self.a, -2 * self.a * self.b, 1.0)
        halo = self._halos.get(batch)
        before, *beside = states[0].parts
        for number, (state, mine) in enumerate(zip(states, etas, strict=True)):
            device = state.device
            with device.working():
                state.begin(count, first)
                if beside:
                    # Both parts read and overwrite what both wrote in the sweeps before.
                    device.begun.record(device.compute)
                    device.bulk.wait_event(device.begun)
                    device.compute.wait_event(device.done)
                if halo is not None:
                    transport.await_halo(device, halo[number][2])
                state.launch(before, factors, mine[0])
                device.computed.record(device.compute)
        # The arrays take turns: their messages come again after a few sweeps.
        key = count, *(address(state.w) for state in states)
        if key not in self._plans:
            self._plans[key] = transport.plan(states)
        self._halos[batch] = self._plans[key]
        transport.exchange(self._plans[key])
        for part in beside:
            for state, mine in zip(states, etas, strict=True):
                with state.device.working(state.device.bulk):
                    state.launch(part, factors, mine[1])
                    state.device.done.record(state.device.bulk)

    def enqueue(self, steps: int) -> tuple[list[list[Any]], int]:
        """Enqueue sweeps until at least `steps` steps more; return each state's scalar products and the steps done."""
        import cupy

        etas: list[list[Any]] = [[] for _ in self.batches]
        for mine, states in zip(etas, self.batches, strict=True):
            for state in states:
                with state.device.working():
                    mine.append(cupy.zeros((len(state.parts), steps + 1, 2, state.num_vectors)))
        done = 0
        while done < steps:
            count = 1 if self.steps == 0 else self.engine.steps_a_sweep
            self.sweep(etas, done, count)
            done += count
        return etas, done

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of all states, shape (2 * steps, R).

        Raises RuntimeError if another rank does not answer in time.
        """
        waiting = [] if self.pending is None or not steps else [self.pending]
        etas, done = self.enqueue(steps - len(waiting))
        fresh = self.collect(etas)[:done]
        result = np.concatenate([*waiting, fresh])
        self.pending = self.pending if not steps else result[steps:] if len(result) > steps else None
        return np.asarray(result[:steps].reshape(2 * steps, -1))

    def collect(self, etas: Sequence[Sequence[Any]]) -> Array:
        """Wait for the enqueued sweeps and return their scalar products, summed in the order of the states."""
        transport = self.engine.transport
        transport.finish(self.states)
        batches = []
        for states, mine in zip(self.batches, etas, strict=True):
            total = np.zeros(mine[0].shape[1:])
            for state, each in zip(states, mine, strict=True):
                with state.device.working():
                    total += each.get().sum(axis=0)
            batches.append(total)
        return np.asarray(transport.sum(np.concatenate(batches, axis=2)))

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step, gathered from all states: shape (N, R) on the host of every process."""
        newest = not (self.steps == 0 or self.pending is not None)
        batches = []
        for states in self.batches:
            mine = []
            for state in states:
                with state.device.working():
                    mine.append(state.local.from_block(state.w if newest else state.v))
            whole = np.empty((self.engine.num_rows, states[0].num_vectors), self.engine.dtype)
            for numbers, rows in (pair for parts in self.engine.transport.gather(mine) for pair in parts):
                whole[numbers] = rows
            batches.append(whole)
        return [np.concatenate(batches, axis=1)]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block, shape (N, R), or these rows of it."""
        return blocks[0] if rows is None else blocks[0][rows]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this process must hold."""
        pending = np.empty((0, 2, self.num_vectors)) if self.pending is None else self.pending
        arrays = {"steps": np.array(self.steps), "pending": pending}
        for batch, states in enumerate(self.batches):
            for state in states:
                key = f"{state.device.partition}_{batch}"
                arrays |= {f"v{key}": state.v.get(), f"w{key}": state.w.get()}
        return arrays

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.steps = int(state["steps"])
        self.pending = state["pending"] if len(state["pending"]) else None
        batches: list[list[Any]] = []
        for batch, before in enumerate(self.batches):
            batches.append([])
            for local in (each.local for each in before):
                key = f"{local.device.partition}_{batch}"
                with local.device.of_batch(batch).working():
                    fresh = local.new_state(cupy.asarray(state[f"v{key}"]), batch)
                    fresh.w = cupy.asarray(state[f"w{key}"])
                batches[-1].append(fresh)
        self.batches, self._plans, self._halos = batches, {}, {}
