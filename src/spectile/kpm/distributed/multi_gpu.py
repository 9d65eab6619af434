"""KPM on several GPUs: rows in shares, halos exchanged while the interior is computed, one reduction at the end.

One process drives the devices of a host::

    from spectile.kpm import kpm_dos
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix
    density = kpm_dos(MultiGpuMatrix(H))

or each MPI rank drives one device (``mpiexec -n 8 python ...``)::

    from mpi4py import MPI
    from spectile.kpm.distributed.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD, backend="cuda"))

Halos travel on a stream of their own while something else is computed: the other half of the vectors, or, with a stored
matrix, the rows that no other share waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from spectile.core.memory import free_bytes
from spectile.kpm.distributed.messages import NcclMessages, PeerCopies, Transport, rank_device
from spectile.kpm.distributed.shares import Place, StencilHolder, StoredHolder, hold
from spectile.kpm.reference import Array, random_phases


class MultiGpuMatrix:
    """A Hermitian matrix whose rows are spread over the GPUs of this process.

    Parameters
    ----------
    H : scipy.sparse matrix, shape (N, N), or TopologicalInsulator
        The matrix.
    devices : sequence of int or None
        CUDA devices, one share each; None takes all.  The same device may come several times.
    transport : {"peer", "nccl"}
        Copy engines from device to device, or NCCL, whose kernels share the multiprocessors with the computation.
    stored : bool
        Store the matrix of a TopologicalInsulator; otherwise its stencil is applied.
    steps_a_sweep : {1, 2}
        Chebyshev steps of the stencil for one pass over the vectors.
    reduce_every_step : bool
        Sum the dot products over the devices after every sweep instead of once at the end (the paper's
        ``aug_spmmv()*``).

    Raises
    ------
    ValueError
        If a share has fewer planes than its neighbours' halo is wide, or no rows.
    """

    def __init__(
        self,
        H: Any,
        devices: Sequence[int] | None = None,
        *,
        transport: Literal["peer", "nccl"] = "peer",
        stored: bool = False,
        steps_a_sweep: int = 2,
        reduce_every_step: bool = False,
    ) -> None:
        if devices is None:
            import cupy

            devices = range(cupy.cuda.runtime.getDeviceCount())
        if transport not in ("peer", "nccl"):
            raise ValueError(f'transport={transport!r} is unknown: choose "peer" or "nccl"')
        if not devices:
            raise ValueError("devices is empty: name at least one CUDA device, or None for all")
        self.H, self.devices, self.transport = H, list(devices), transport
        self.stored, self.steps_a_sweep, self.reduce_every_step = stored, steps_a_sweep, reduce_every_step
        self.shape, self.dtype = H.shape, np.dtype(H.dtype)

    def engine(self, dtype: np.dtype[Any], holders: list[Any] | None = None) -> MultiGpuEngine:
        """Return the view that :func:`spectile.kpm.kpm_dos` works with; `holders` of another one are used again."""
        if holders is None:
            places = [Place(number, device) for number, device in enumerate(self.devices)]
            holders = hold(self.H, dtype, places, len(places), stored=self.stored, steps_a_sweep=self.steps_a_sweep)
        places = [holder.place for holder in holders]
        transport = PeerCopies(places) if self.transport == "peer" else NcclMessages.of_process(self.devices)
        return MultiGpuEngine(holders, transport, int(self.shape[0]), dtype, self.steps_a_sweep, self.reduce_every_step)

    def gershgorin(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles."""
        from spectile.kpm.bounds import gershgorin

        bounds: tuple[float, float] = self.H.gershgorin() if hasattr(self.H, "gershgorin") else gershgorin(self.H)
        return bounds


class MultiGpuEngine:
    """H in shares on several GPUs, as :class:`spectile.kpm.engine.CpuEngine` is on the CPU.

    Parameters
    ----------
    holders : list
        What this process holds: one for each of its devices.
    transport : Transport
        How messages travel.
    num_rows : int
        N.
    dtype : dtype
        Type of the vectors.
    steps_a_sweep : {1, 2}
        Steps of one sweep of the stencil.
    reduce_every_step : bool
        As for :class:`MultiGpuMatrix`.
    """

    name = "cuda shares"
    xp = np

    def __init__(
        self,
        holders: list[Any],
        transport: Transport,
        num_rows: int,
        dtype: np.dtype[Any],
        steps_a_sweep: int,
        reduce_every_step: bool,
    ) -> None:
        self.holders, self.transport, self.num_rows, self.dtype = holders, transport, num_rows, dtype
        self.steps_a_sweep = steps_a_sweep if isinstance(holders[0], StencilHolder) else 1
        self.reduce_every_step = reduce_every_step

    @classmethod
    def of_rank(cls, matrix: Any, dtype: np.dtype[Any]) -> MultiGpuEngine:
        """Return the engine of one MPI rank of a :class:`spectile.kpm.distributed.mpi.DistributedMatrix`."""
        comm = matrix.comm
        place = Place(comm.rank, rank_device(comm))
        transport = NcclMessages.of_ranks(comm, place.device, matrix.timeout_s)
        holders = hold(matrix.H, dtype, [place], comm.size, stored=False, steps_a_sweep=2)
        return cls(holders, transport, int(matrix.shape[0]), dtype, 2, matrix.reduce_every_step)

    def capacity(self) -> int:
        """Return how many vectors' states fit into the memory of every device at once, with some room."""
        arrays = 4 if self.steps_a_sweep == 2 else 2
        together = [holder.place.device for holder in self.holders]
        least = []
        for holder in self.holders:
            with holder.place.working():
                room = int(0.95 * free_bytes()) // together.count(holder.place.device) - holder.reserve
                least.append(room // (arrays * holder.rows * self.dtype.itemsize))
        return max(1, min(self.transport.gather(min(least))))

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        return random_phases(seed, self.num_rows, 1, real=self.dtype.kind != "c", dtype=self.dtype)[:, 0]

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        recursion = self.start(np.asarray(x, self.dtype).reshape(-1, 1), 1.0, 0.0)
        recursion.advance(1)
        mine = []
        for share in recursion.shares:
            with share.place.working():
                mine.append(share.holder.from_block(share.w))
        image = np.empty(self.num_rows, self.dtype)
        for numbers, rows in (pair for parts in self.transport.gather(mine) for pair in parts):
            image[numbers] = rows[:, 0]
        return image

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> MultiGpuRecursion:
        """Return the recursion of a block of random vectors."""

        def block(holder: Any, lot: slice) -> Any:
            return holder.random_block(seed, first_vector + lot.start, lot.stop - lot.start)

        return self._recursion(a, b, num_vectors, block)

    def start(self, vectors: Array, a: float, b: float) -> MultiGpuRecursion:
        """Return the recursion of given vectors, shape (N, R), the same in every process."""
        return self._recursion(a, b, vectors.shape[1], lambda holder, lot: holder.to_block(vectors[:, lot]))

    def _recursion(self, a: float, b: float, num_vectors: int, block: Callable[[Any, slice], Any]) -> MultiGpuRecursion:
        self._plan(num_vectors)
        lots = []
        for number, lot in enumerate(self.holders[0].lots(num_vectors)):
            shares = []
            for holder in self.holders:
                with holder.place.working():
                    shares.append(holder.share(block(holder, lot), number))
            lots.append(shares)
        return MultiGpuRecursion(self, a, b, lots)

    def _plan(self, num_vectors: int) -> None:
        """Let all inspectors plan beside one another: each takes seconds."""
        stored = [holder for holder in self.holders if isinstance(holder, StoredHolder)]

        def one(holder: StoredHolder) -> None:
            with holder.place.working():
                holder.staged(num_vectors)

        if stored:
            with ThreadPoolExecutor(len(stored)) as pool:
                list(pool.map(one, stored))


class MultiGpuRecursion:
    """The recurrence of a block of vectors, in one or two lots, each share of a lot on its device.

    Sweeps of two steps pair them by their number, as :class:`spectile.kpm.cuda.stencil.StencilRecursion` does.
    """

    def __init__(self, engine: MultiGpuEngine, a: float, b: float, lots: list[list[Any]]) -> None:
        self.engine, self.a, self.b, self.lots = engine, a, b, lots
        self.steps = 0
        self.pending: Any = None
        self._plans: dict[tuple[int, ...], Any] = {}
        self._halos: dict[int, Any] = {}

    @property
    def shares(self) -> list[Any]:
        """The shares of all lots."""
        return [share for shares in self.lots for share in shares]

    @property
    def num_vectors(self) -> int:
        """R."""
        return sum(shares[0].num_vectors for shares in self.lots)

    def sweep(self, etas: Sequence[Sequence[Any]], done: int, count: int) -> None:
        """Enqueue one sweep of `count` steps on every share, lot after lot.

        `etas` of each share take its scalar products, shape (parts, steps, 2, R), from step `done` on.
        """
        for lot, mine in enumerate(etas):
            self._sweep(lot, [each[:, done : done + count] for each in mine], count)
        self.steps += count

    def _sweep(self, lot: int, etas: Sequence[Any], count: int) -> None:
        transport, shares = self.engine.transport, self.lots[lot]
        first = self.steps == 0
        factors = (self.a, -self.a * self.b, 0.0) if first else (2 * self.a, -2 * self.a * self.b, 1.0)
        halo = self._halos.get(lot)
        before, *beside = shares[0].parts
        for number, (share, mine) in enumerate(zip(shares, etas, strict=True)):
            place = share.place
            with place.working():
                share.begin(count, first)
                if beside:
                    # Both parts read and overwrite what both wrote in the sweeps before.
                    place.begun.record(place.compute)
                    place.bulk.wait_event(place.begun)
                    place.compute.wait_event(place.done)
                if halo is not None:
                    transport.await_halo(place, halo[number][2])
                share.launch(before, factors, mine[0])
                place.computed.record(place.compute)
        # The arrays take turns: their messages come again after a few sweeps.
        key = count, *(share.w.data.ptr for share in shares)
        if key not in self._plans:
            self._plans[key] = transport.plan(shares)
        self._halos[lot] = self._plans[key]
        transport.exchange(self._plans[key])
        for part in beside:
            for share, mine in zip(shares, etas, strict=True):
                with share.place.working(share.place.bulk):
                    share.launch(part, factors, mine[1])
                    share.place.done.record(share.place.bulk)
        if self.engine.reduce_every_step:
            for share, mine in zip(shares, etas, strict=True):
                with share.place.working():
                    if beside:
                        share.place.compute.wait_event(share.place.done)
                        mine[0] += mine[1]
            transport.reduce(shares, [mine[0] for mine in etas])

    def enqueue(self, steps: int) -> tuple[list[list[Any]], int]:
        """Enqueue sweeps until at least `steps` steps more; return each share's scalar products and the steps done."""
        import cupy

        etas: list[list[Any]] = [[] for _ in self.lots]
        for mine, shares in zip(etas, self.lots, strict=True):
            for share in shares:
                with share.place.working():
                    mine.append(cupy.zeros((len(share.parts), steps + 1, 2, share.num_vectors)))
        done = 0
        while done < steps:
            count = 1 if self.steps == 0 else self.engine.steps_a_sweep
            self.sweep(etas, done, count)
            done += count
        return etas, done

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products of all shares, shape (2 * steps, R).

        Raises
        ------
        RuntimeError
            If another rank does not answer in time.
        """
        waiting = [] if self.pending is None or not steps else [self.pending]
        etas, done = self.enqueue(steps - len(waiting))
        fresh = self.collect(etas)[:done]
        result = np.concatenate([*waiting, fresh])
        self.pending = self.pending if not steps else result[steps:] if len(result) > steps else None
        return np.asarray(result[:steps].reshape(2 * steps, -1))

    def collect(self, etas: Sequence[Sequence[Any]]) -> Array:
        """Wait for the enqueued sweeps and return their scalar products, summed in the order of the shares."""
        engine = self.engine
        engine.transport.finish(self.shares)
        lots = []
        for shares, mine in zip(self.lots, etas, strict=True):
            total = np.zeros(mine[0].shape[1:])
            for share, each in zip(shares, mine, strict=True):
                with share.place.working():
                    parts = each.get()
                if engine.reduce_every_step:
                    total = parts[0]  # every share has the sum
                    break
                total += parts.sum(axis=0)
            lots.append(total)
        whole = np.concatenate(lots, axis=2)
        return whole if engine.reduce_every_step else np.asarray(engine.transport.sum(whole))

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this process must hold."""
        pending = np.empty((0, 2, self.num_vectors)) if self.pending is None else self.pending
        state = {"steps": np.array(self.steps), "pending": pending}
        for lot, shares in enumerate(self.lots):
            for share in shares:
                key = f"{share.place.number}_{lot}"
                state |= {f"v{key}": share.v.get(), f"w{key}": share.w.get()}
        return state

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.steps = int(state["steps"])
        self.pending = state["pending"] if len(state["pending"]) else None
        lots = []
        for lot, before in enumerate(self.lots):
            shares = []
            for holder in (share.holder for share in before):
                key = f"{holder.place.number}_{lot}"
                with holder.place.working():
                    share = holder.share(cupy.asarray(state[f"v{key}"]), lot)
                    share.w = cupy.asarray(state[f"w{key}"])
                    shares.append(share)
            lots.append(shares)
        self.lots, self._plans, self._halos = lots, {}, {}
