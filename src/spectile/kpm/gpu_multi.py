"""KPM on several GPUs: rows in shares, halos exchanged while the interior is computed, one reduction at the end.

One process drives the devices of a host::

    from spectile.kpm import kpm_dos
    from spectile.kpm.gpu_multi import MultiGpuMatrix
    density = kpm_dos(MultiGpuMatrix(H))

or each MPI rank drives one device (``mpiexec -n 8 python ...``)::

    from mpi4py import MPI
    from spectile.kpm.mpi import DistributedMatrix
    density = kpm_dos(DistributedMatrix(H, MPI.COMM_WORLD, backend="cuda"))

A sweep computes the rows that other shares wait for first; they travel on a second stream while the rest is computed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from spectile.gpu.device import describe, free_bytes
from spectile.kpm.gpu import STRIP, Slab, StencilOperator, StoredOperator, rows_in_strips, stages
from spectile.kpm.gpu_staged import Runs, StagedOperator
from spectile.kpm.mpi import localize, wait_for
from spectile.kpm.reference import Array, random_phases

#: Of each share: its place, places that it sends to, places that send to it, messages.
MessagePlan = list[tuple["Place", list["Place"], list["Place"], list[Any]]]
#: Parts of a share's rows, each with scalar products of its own.
PARTS: tuple[Literal["boundary", "interior"], ...] = ("boundary", "interior")


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


class Place:
    """One share's device: streams for the boundary, the interior and the messages, and the events that order them."""

    def __init__(self, number: int, device: int) -> None:
        import cupy

        self.number, self.device = number, device
        with cupy.cuda.Device(device):
            # The interior runs beside the boundary, on the multiprocessors that it leaves.
            self.compute = cupy.cuda.Stream(non_blocking=True, priority=-1)
            self.bulk = cupy.cuda.Stream(non_blocking=True)
            self.copies = cupy.cuda.Stream(non_blocking=True, priority=-2)
            self.begun, self.computed, self.done, self.arrived, self.summed = (
                cupy.cuda.Event(disable_timing=True) for _ in range(5)
            )

    @contextmanager
    def working(self, stream: Any = None) -> Iterator[None]:
        """Make this device and one of its streams, `compute` if None, the current ones."""
        import cupy

        with cupy.cuda.Device(self.device), stream or self.compute:
            yield

    def synchronize(self) -> None:
        """Wait for everything enqueued here."""
        for stream in (self.compute, self.bulk, self.copies):
            stream.synchronize()


def hold(
    H: Any, dtype: np.dtype[Any], places: Sequence[Place], count: int, *, stored: bool, steps_a_sweep: int
) -> list[Any]:
    """Return what each place holds of H, in `count` shares of about the same number of rows."""
    if not hasattr(H, "gershgorin"):
        matrix = H.get() if type(H).__module__.startswith("cupy") else H
        return _hold_rows(matrix.tocsr().astype(dtype), places, count)
    edges = np.linspace(0, H.nx, count + 1).astype(int)
    least = 1 if stored else steps_a_sweep
    if np.diff(edges).min() < least:
        raise ValueError(
            f"{count} shares of {H.nx} planes have {np.diff(edges).min()} each, and a halo is {least} wide: take fewer "
            "devices, or a sample that is longer in x"
        )
    holders: list[Any] = []
    for place in places:
        first, planes = int(edges[place.number]), int(np.diff(edges)[place.number])
        with place.working():
            if stored:
                edge = Slab(first, planes, 1).edge
                holders.append(hold_planes(H, dtype, place, first, planes, count, edge))
            else:
                operator = StencilOperator(H, dtype, Slab(first, planes, steps_a_sweep))
                holders.append(StencilHolder(place, operator, ((place.number - 1) % count, (place.number + 1) % count)))
    return holders


@dataclass
class StencilHolder:
    """A slab of the topological insulator on one device, and the numbers of the shares behind and ahead in x."""

    place: Place
    operator: StencilOperator
    neighbours: tuple[int, int]
    reserve = 0

    @property
    def rows(self) -> int:
        """Rows held, halo included."""
        sample = self.operator.sample
        return len(self.operator.held) * 4 * sample.ny * sample.nz

    def share(self, block: Any) -> StencilShare:
        """Return the recurrence's state on this device."""
        return StencilShare(self, block)

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return random start vectors, halo included."""
        return self.operator.random_block(seed, first_vector, num_vectors)

    def to_block(self, vectors: Array) -> Any:
        """Return this slab's part, halo included, of vectors of shape (N, R)."""
        return self.operator.to_block(vectors)

    def from_block(self, block: Any) -> tuple[Array, Array]:
        """Return the numbers of this slab's rows, and the rows of a block."""
        slab, rows = self.operator.slab, self.operator.num_rows // self.operator.sample.nx
        assert slab is not None
        return np.arange(slab.first * rows, (slab.first + slab.planes) * rows), self.operator.from_block(block).get()


class StencilShare:
    """ν_m and ν_m−1 on one slab: what to launch, and which planes travel after it."""

    def __init__(self, holder: StencilHolder, block: Any) -> None:
        import cupy

        self.holder, self.place = holder, holder.place
        self.v, self.w = block, cupy.zeros_like(block)
        self.v_out = self.w_out = None
        self._launchers: dict[Any, Any] = {}

    def begin(self, steps: int, first: bool) -> None:
        """Choose the arrays of a sweep of so many steps."""
        import cupy

        if steps == 1:
            if not first:
                self.v, self.w = self.w, self.v
            self._arrays = self.v, self.w, self.w, self.w
        else:
            if self.v_out is None:
                self.v_out, self.w_out = (cupy.empty_like(self.v) for _ in range(2))
            # As in StencilRecursion: afterwards w is the newest vector and v the one before.
            self._arrays = self.w, self.v, self.v_out, self.w_out
            self.v, self.w, self.v_out, self.w_out = self.w_out, self.v_out, self.v, self.w
        self._steps = steps

    def launch(self, part: Literal["boundary", "interior"], factors: tuple[float, ...], etas: Any) -> None:
        """Enqueue one part of the sweep; it writes its scalar products to `etas`, shape (steps, 2, R)."""
        operator = self.holder.operator
        if operator.pieces(part)[1] == 0:
            return
        key = part, self._steps
        if key not in self._launchers:
            self._launchers[key] = operator.launcher(self.v.shape[1], self._steps, part)
        self._launchers[key](*self._arrays, *factors, etas)

    def messages(self) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Return what to send and to receive after the boundary, as (other share, contiguous planes).

        The newest vector needs as many planes of halo as a sweep has steps, the one before one fewer.
        """
        slab = self.holder.operator.slab
        assert slab is not None
        behind, ahead = self.holder.neighbours
        low, high = slab.halo, slab.halo + slab.planes
        sends, receives = [], []
        for block, depth in ((self.w, slab.halo), (self.v, slab.halo - 1 if self._steps == 2 else 0)):
            if depth:
                sends += [(behind, block[low : low + depth]), (ahead, block[high - depth : high])]
                receives += [(ahead, block[high : high + depth]), (behind, block[low - depth : low])]
        return sends, receives


@dataclass
class StoredHolder:
    """Rows of a stored matrix on one device: its own, then the halo's as rows of the block vectors.

    Attributes
    ----------
    place : Place
        The device.
    operator : StoredOperator
        Own rows; columns from the number of own rows on are the halo's.
    order : cupy.ndarray, int32
        Number in the whole matrix of each own row and each row of the halo.
    interior : (int, int)
        Run of own rows that need no halo and that nobody waits for.
    sends : list of (share, rows)
        Own rows that another share needs: a slice, or their numbers on the device.
    receives : list of (share, start, stop)
        Rows of the halo, counted from its beginning, that a share owns.
    matrix : cupyx CSR matrix or None
        What the staged kernel may plan from, where own rows are whole planes.
    """

    place: Place
    operator: StoredOperator
    order: Any
    interior: tuple[int, int]
    sends: list[tuple[int, Any]]
    receives: list[tuple[int, int, int]]
    matrix: Any = None
    _staged: StagedOperator | None = field(default=None, init=False)

    @property
    def rows(self) -> int:
        """Rows held, halo included."""
        return len(self.order)

    @property
    def reserve(self) -> int:
        """Bytes of the staged kernel's plans, which are made with the first block of vectors."""
        return 0 if self.matrix is None else 2 * int(self.matrix.data.nbytes)

    def pieces(self) -> dict[str, Runs]:
        """Return the rows of each part, as runs (start, stop)."""
        (start, stop), own = self.interior, self.operator.num_rows
        runs = {"boundary": ((0, start), (stop, own)), "interior": ((start, stop),)}
        return {part: tuple(run for run in each if run[1] > run[0]) for part, each in runs.items()}

    def staged(self, num_vectors: int) -> StagedOperator | None:
        """Return the operator that stages V through shared memory; None where that is not possible or slower."""
        if self.matrix is None or not stages(num_vectors, self.operator.dtype):
            return None
        try:
            self._staged = self._staged or StagedOperator(self.matrix)
            for runs in filter(None, self.pieces().values()):
                self._staged.planned(num_vectors, runs)
        except MemoryError:
            self.matrix = None
            return None
        return self._staged

    def share(self, block: Any) -> StoredShare:
        """Return the recurrence's state on this device."""
        return StoredShare(self, block)

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return random start vectors, halo included."""
        import cupy

        block = cupy.empty((len(self.order), num_vectors), self.operator.dtype)
        self.operator.fill(block, seed, first_vector, self.order)
        return block

    def to_block(self, vectors: Array) -> Any:
        """Return this share's rows, halo included, of vectors of shape (N, R)."""
        import cupy

        return cupy.asarray(vectors[self.order.get()], self.operator.dtype)

    def from_block(self, block: Any) -> tuple[Array, Array]:
        """Return the numbers of this share's rows, and the rows of a block."""
        own = self.operator.num_rows
        return self.order[:own].get(), block[:own].get()


class StoredShare:
    """ν_m and ν_m−1 on the rows of one share."""

    def __init__(self, holder: StoredHolder, block: Any) -> None:
        import cupy

        self.holder, self.place = holder, holder.place
        self.v, self.w = block, cupy.zeros_like(block)
        width, staged = block.shape[1], holder.staged(block.shape[1])
        self._launchers = {
            part: [staged.launcher(width, runs=runs)]
            if staged is not None and runs
            else [holder.operator.launcher(width, rows=run) for run in runs]
            for part, runs in holder.pieces().items()
        }
        # Two pieces of one part write their scalar products side by side, and are added up.
        self._partial = cupy.empty((2, 2, width))
        self._packed = [
            None if isinstance(rows, slice) else cupy.empty((len(rows), width), block.dtype) for _, rows in holder.sends
        ]

    def begin(self, steps: int, first: bool) -> None:
        """Choose the arrays of a step."""
        assert steps == 1
        if not first:
            self.v, self.w = self.w, self.v

    def launch(self, part: Literal["boundary", "interior"], factors: tuple[float, ...], etas: Any) -> None:
        """Enqueue one part of the step; it writes its scalar products to `etas`, shape (1, 2, R)."""
        import cupy

        launchers = self._launchers[part]
        targets = [etas[0]] if len(launchers) == 1 else list(self._partial)
        for launch, target in zip(launchers, targets, strict=False):
            launch(self.v, self.w, *factors, target)
        if len(launchers) == 2:
            cupy.add(*self._partial, out=etas[0])
        if part == "boundary":
            for (_, rows), packed in zip(self.holder.sends, self._packed, strict=True):
                if packed is not None:
                    cupy.take(self.w, rows, axis=0, out=packed)

    def messages(self) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Return what to send and to receive after the boundary, as (other share, contiguous rows)."""
        own = self.holder.operator.num_rows
        sends = [
            (number, self.w[rows] if packed is None else packed)
            for (number, rows), packed in zip(self.holder.sends, self._packed, strict=True)
        ]
        return sends, [(number, self.w[own + start : own + stop]) for number, start, stop in self.holder.receives]


def local_planes(sample: Any, dtype: np.dtype[Any], first: int, planes: int, strip: int, xp: Any) -> tuple[Any, Any]:
    """Return the stored matrix of some planes of the topological insulator, and the numbers of its columns' rows.

    Parameters
    ----------
    sample : TopologicalInsulator
        The whole sample.
    dtype : dtype
        Type of the entries.
    first, planes : int
        Own planes.
    strip : int
        As for ``TopologicalInsulator.matrix``.
    xp : module
        numpy or cupy: where to build it.

    Returns
    -------
    matrix : CSR matrix
        Own rows; columns are own planes, then the plane ahead, then the one behind.
    order : ndarray, int32
        Row of the whole matrix, in natural order, for each column.
    """
    from spectile.inputs.topological_insulator import TopologicalInsulator

    plane = 4 * sample.ny * sample.nz
    held = np.arange(first - 1, first + planes + 1) % sample.nx
    # A periodic sample of the planes held: its first and last plane have wrong neighbours, and are not taken.
    around = TopologicalInsulator(planes + 2, sample.ny, sample.nz, sample.potential[held], sample.hopping)
    own = around.matrix(dtype, xp=xp, strip=strip)[plane : (planes + 1) * plane]
    own.indices = ((own.indices.astype(np.int64) - plane) % ((planes + 2) * plane)).astype(np.int32)
    # The plane behind is the first of the periodic sample, and so its last after the shift.
    return own, rows_in_strips(sample, np.roll(held, -1), strip, xp)


def hold_planes(
    sample: Any, dtype: np.dtype[Any], place: Place, first: int, planes: int, count: int, edge: int = 1
) -> StoredHolder:
    """Return the stored matrix of some planes of the topological insulator on a device, `edge` of either side first."""
    import cupy

    plane = 4 * sample.ny * sample.nz
    # The inspector of the staged kernel finds patches of its own in the natural order.
    staging = describe().compute_capability[0] >= 9
    own, order = local_planes(
        sample, dtype, first, planes, STRIP if sample.nz % STRIP == 0 and not staging else sample.nz, cupy
    )
    behind, ahead = (place.number - 1) % count, (place.number + 1) % count
    return StoredHolder(
        place,
        StoredOperator(own, "csr", plane),
        order,
        (edge * plane, max(edge, planes - edge) * plane),
        [(behind, slice(0, plane)), (ahead, slice((planes - 1) * plane, planes * plane))],
        [(ahead, 0, plane), (behind, plane, 2 * plane)],
        own if staging else None,
    )


def _hold_rows(matrix: Any, places: Sequence[Place], count: int) -> list[Any]:
    """Return shares of the rows of any sparse matrix; `places` are some or all of `count`."""
    import cupy
    from cupyx.scipy import sparse

    if matrix.shape[0] < count:
        raise ValueError(f"{matrix.shape[0]} rows cannot be spread over {count} devices: take fewer")
    edges = np.linspace(0, matrix.shape[0], count + 1).astype(np.int64)
    locals_ = [localize(matrix[edges[n] : edges[n + 1]], edges, n) for n in range(count)]
    holders = []
    for place in places:
        local, halo, receives = locals_[place.number]
        first, last = (int(edge) for edge in edges[place.number : place.number + 2])
        sends: list[tuple[int, Any]] = []
        waits = np.zeros(last - first, dtype=bool)
        for other, (_, wanted, from_whom) in enumerate(locals_):
            for owner, start, stop in from_whom:
                if owner == place.number:
                    rows = wanted[start:stop] - first
                    waits[rows] = True
                    whole = rows[-1] - rows[0] + 1 == len(rows)
                    sends.append((other, slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows))
        foreign = np.concatenate([[0], np.cumsum(local.indices >= last - first)])
        waits |= np.diff(foreign[local.indptr]) > 0
        with place.working():
            on_device = sparse.csr_matrix(
                (cupy.asarray(local.data), cupy.asarray(local.indices), cupy.asarray(local.indptr)), shape=local.shape
            )
            holders.append(
                StoredHolder(
                    place,
                    StoredOperator(on_device),
                    cupy.asarray(np.r_[first:last, halo].astype(np.int32)),
                    longest_run(~waits),
                    [(number, rows if isinstance(rows, slice) else cupy.asarray(rows)) for number, rows in sends],
                    receives,
                )
            )
    return holders


def longest_run(flags: Array) -> tuple[int, int]:
    """Return (start, stop) of the longest run of true flags; (0, 0) where none is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest])


class Transport(Protocol):
    """How messages travel between shares, and sums over processes."""

    def plan(self, shares: Sequence[Any]) -> MessagePlan:
        """Return (place, places that it sends to, places that send to it, messages) of each share."""

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind the boundaries."""

    def await_halo(self, place: Place, senders: Sequence[Place]) -> None:
        """Let a share's next sweep wait for the messages to it."""

    def reduce(self, shares: Sequence[Any], totals: Sequence[Any]) -> None:
        """Sum an array of each share over all shares, in place, on their computing streams."""

    def finish(self, shares: Sequence[Any]) -> None:
        """Wait until everything enqueued is done."""

    def sum(self, values: Array) -> Array:
        """Return the sum over all processes."""

    def gather(self, part: Any) -> list[Any]:
        """Return what all processes give, in their order."""


class PeerCopies:
    """Messages between the devices of one process by their copy engines, which leave the multiprocessors alone."""

    def __init__(self, places: Sequence[Place]) -> None:
        import cupy

        self.places = places
        for here in {place.device for place in places}:
            with cupy.cuda.Device(here):
                for there in {place.device for place in places} - {here}:
                    if cupy.cuda.runtime.deviceCanAccessPeer(here, there):
                        try:
                            cupy.cuda.runtime.deviceEnablePeerAccess(there)
                        except cupy.cuda.runtime.CUDARuntimeError as error:
                            if "PeerAccessAlreadyEnabled" not in str(error):
                                raise

    def plan(self, shares: Sequence[Any]) -> MessagePlan:
        """Return the copies; messages between two shares are matched in their order, as NCCL does it."""
        boxes: dict[tuple[int, int], list[Any]] = defaultdict(list)
        messages = [share.messages() for share in shares]
        for share, (_, receives) in zip(shares, messages, strict=True):
            for source, array in receives:
                boxes[source, share.place.number].append(array)
        plan = []
        for share, (sends, receives) in zip(shares, messages, strict=True):
            place, copies = share.place, []
            for number, array in sends:
                target = boxes[place.number, number].pop(0)
                copies.append((target.data.ptr, self.places[number].device, array.data.ptr, place.device, array.nbytes))
            receivers = {place.number, *(number for number, _ in sends)}
            senders = {place.number, *(number for number, _ in receives)}
            plan.append((place, *([self.places[n] for n in sorted(group)] for group in (receivers, senders)), copies))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind the boundaries of sender and receiver."""
        import cupy

        copy = cupy.cuda.runtime.memcpyPeerAsync
        for place, receivers, _, copies in plan:
            with cupy.cuda.Device(place.device):
                for receiver in receivers:
                    place.copies.wait_event(receiver.computed)
                for arguments in copies:
                    copy(*arguments, place.copies.ptr)
                place.arrived.record(place.copies)

    def await_halo(self, place: Place, senders: Sequence[Place]) -> None:
        """Let a share's next sweep wait for the messages to it."""
        for sender in senders:
            place.compute.wait_event(sender.arrived)

    def reduce(self, shares: Sequence[Any], totals: Sequence[Any]) -> None:
        """Sum an array of each share over all shares, in place, on their computing streams."""
        import cupy

        copy = cupy.cuda.runtime.memcpyPeerAsync
        for share in shares:
            share.place.summed.record(share.place.compute)
        root = shares[0].place
        with root.working():
            everybody = cupy.empty((len(shares), *totals[0].shape))
            for share, total, target in zip(shares, totals, everybody, strict=True):
                root.compute.wait_event(share.place.summed)
                copy(target.data.ptr, root.device, total.data.ptr, share.place.device, total.nbytes, root.compute.ptr)
            everybody.sum(axis=0, out=totals[0])
            for share, total in zip(shares[1:], totals[1:], strict=True):
                copy(
                    total.data.ptr, share.place.device, totals[0].data.ptr, root.device, total.nbytes, root.compute.ptr
                )
            root.summed.record(root.compute)
        for share in shares[1:]:
            share.place.compute.wait_event(root.summed)

    def finish(self, shares: Sequence[Any]) -> None:
        """Wait until everything enqueued is done."""
        for share in shares:
            share.place.synchronize()

    def sum(self, values: Array) -> Array:
        """Return the sum over other processes: there are none."""
        return values

    def gather(self, part: Any) -> list[Any]:
        """Return what all processes give: this one's."""
        return [part]


class NcclMessages:
    """Messages by NCCL: between the devices of one process, or of the ranks of an MPI communicator.

    Parameters
    ----------
    communicators : dict
        NCCL communicator of each share of this process.
    comm : mpi4py.MPI.Comm or None
        The ranks.
    timeout_s : float
        Seconds to wait for another rank before it is taken for dead.
    """

    def __init__(self, communicators: dict[int, Any], comm: Any = None, timeout_s: float = 300.0) -> None:
        self.communicators, self.comm, self.timeout_s = communicators, comm, timeout_s

    @classmethod
    def of_process(cls, devices: Sequence[int]) -> NcclMessages:
        """Return the messages of one process with several devices.

        Raises
        ------
        ValueError
            If a device comes twice, which NCCL refuses.
        RuntimeError
            If CuPy finds no NCCL.
        """
        if len(set(devices)) < len(devices):
            raise ValueError(f'devices={list(devices)} holds one twice, which NCCL refuses: use transport="peer"')
        return cls(dict(enumerate(_nccl().NcclCommunicator.initAll(list(devices)))))

    @classmethod
    def of_ranks(cls, comm: Any, device: int, timeout_s: float) -> NcclMessages:
        """Return the messages of one rank with one device."""
        import cupy

        nccl = _nccl()
        identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        with cupy.cuda.Device(device):
            return cls({comm.rank: nccl.NcclCommunicator(comm.size, identity, comm.rank)}, comm, timeout_s)

    def plan(self, shares: Sequence[Any]) -> MessagePlan:
        """Return the messages; NCCL makes both sides wait by itself."""
        plan = []
        for share in shares:
            communicator = self.communicators[share.place.number]
            sends, receives = share.messages()
            calls = [(communicator.send, array.data.ptr, array.nbytes, number) for number, array in sends]
            calls += [(communicator.recv, array.data.ptr, array.nbytes, number) for number, array in receives]
            plan.append((share.place, [share.place], [share.place], calls))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind the boundaries."""
        import cupy

        nccl = _nccl()
        for place, *_ in plan:
            place.copies.wait_event(place.computed)
        nccl.groupStart()
        for place, _, _, calls in plan:
            with cupy.cuda.Device(place.device):
                for call, pointer, size, number in calls:
                    call(pointer, size, nccl.NCCL_UINT8, number, place.copies.ptr)
        nccl.groupEnd()
        for place, *_ in plan:
            with cupy.cuda.Device(place.device):
                place.arrived.record(place.copies)

    def await_halo(self, place: Place, senders: Sequence[Place]) -> None:
        """Let a share's next sweep wait for the messages to it."""
        place.compute.wait_event(place.arrived)

    def reduce(self, shares: Sequence[Any], totals: Sequence[Any]) -> None:
        """Sum an array of each share over all shares, in place, on their computing streams."""
        import cupy

        nccl = _nccl()
        nccl.groupStart()
        for share, total in zip(shares, totals, strict=True):
            with cupy.cuda.Device(share.place.device):
                self.communicators[share.place.number].allReduce(
                    total.data.ptr,
                    total.data.ptr,
                    total.size,
                    nccl.NCCL_FLOAT64,
                    nccl.NCCL_SUM,
                    share.place.compute.ptr,
                )
        nccl.groupEnd()

    def finish(self, shares: Sequence[Any]) -> None:
        """Wait until everything enqueued is done.

        Raises
        ------
        RuntimeError
            If another rank does not answer in time; the communicator is of no use afterwards.
        """
        deadline = time.monotonic() + self.timeout_s
        for share in shares:
            for stream in (share.place.compute, share.place.bulk, share.place.copies):
                while not stream.done:
                    if time.monotonic() > deadline:
                        self.communicators[share.place.number].abort()
                        raise RuntimeError(
                            f"another rank did not answer rank {share.place.number} for {self.timeout_s:g} s: it has "
                            "died or hangs; see its output, and start the job again"
                        )
                    time.sleep(2e-5)

    def sum(self, values: Array) -> Array:
        """Return the sum over the ranks."""
        if self.comm is None:
            return values
        total = np.empty_like(values)
        wait_for(self.comm, [(self.comm.Iallreduce(values, total), "another rank")], self.timeout_s)
        return total

    def gather(self, part: Any) -> list[Any]:
        """Return what all ranks give, in the order of their numbers."""
        return [part] if self.comm is None else list(self.comm.allgather(part))


def _nccl() -> Any:
    from cupy.cuda import nccl

    if not nccl.available:
        raise RuntimeError('CuPy finds no NCCL: install it (pip install nvidia-nccl-cu13), or use transport="peer"')
    return nccl


def rank_device(comm: Any) -> int:
    """Return the device of this rank: the ranks of a host take its devices in turn.

    Raises
    ------
    ValueError
        If a host has more ranks than devices.
    """
    import cupy
    from mpi4py import MPI

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    count = cupy.cuda.runtime.getDeviceCount()
    # Every rank raises, so that none waits for one that did.
    if max(comm.allgather(here.size - count)) > 0:
        raise ValueError(f"a host has more ranks than its CUDA devices (here {here.size} and {count}): start one a GPU")
    return int(here.rank)


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
        """Return the engine of one MPI rank of a :class:`spectile.kpm.mpi.DistributedMatrix`."""
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
        self._plan(num_vectors)
        shares = []
        for holder in self.holders:
            with holder.place.working():
                shares.append(holder.share(holder.random_block(seed, first_vector, num_vectors)))
        return MultiGpuRecursion(self, a, b, shares, num_vectors)

    def start(self, vectors: Array, a: float, b: float) -> MultiGpuRecursion:
        """Return the recursion of given vectors, shape (N, R), the same in every process."""
        self._plan(vectors.shape[1])
        shares = []
        for holder in self.holders:
            with holder.place.working():
                shares.append(holder.share(holder.to_block(vectors)))
        return MultiGpuRecursion(self, a, b, shares, vectors.shape[1])

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
    """The recurrence of a block of vectors, each share on its device.

    Sweeps of two steps pair them by their number, as :class:`spectile.kpm.gpu.StencilRecursion` does.
    """

    def __init__(self, engine: MultiGpuEngine, a: float, b: float, shares: list[Any], num_vectors: int) -> None:
        self.engine, self.a, self.b, self.shares, self.num_vectors = engine, a, b, shares, num_vectors
        self.steps = 0
        self.pending: Any = None
        self._plans: dict[tuple[int, ...], Any] = {}
        self._plan: Any = None

    def sweep(self, etas: Sequence[Any], done: int, count: int) -> None:
        """Enqueue one sweep of `count` steps on every share.

        `etas` of each take its scalar products, shape (parts, steps, 2, R), from step `done` on.
        """
        transport, shares = self.engine.transport, self.shares
        first = self.steps == 0
        factors = (self.a, -self.a * self.b, 0.0) if first else (2 * self.a, -2 * self.a * self.b, 1.0)
        now = slice(done, done + count)
        for number, (share, mine) in enumerate(zip(shares, etas, strict=True)):
            place = share.place
            with place.working():
                share.begin(count, first)
                # Both parts read and overwrite what both wrote in the sweeps before.
                place.begun.record(place.compute)
                place.bulk.wait_event(place.begun)
                place.compute.wait_event(place.done)
                if self._plan is not None:
                    transport.await_halo(place, self._plan[number][2])
                share.launch("boundary", factors, mine[0, now])
                place.computed.record(place.compute)
        # The arrays take turns: their messages come again after a few sweeps.
        key = count, *(share.w.data.ptr for share in shares)
        if key not in self._plans:
            self._plans[key] = transport.plan(shares)
        self._plan = self._plans[key]
        transport.exchange(self._plan)
        for share, mine in zip(shares, etas, strict=True):
            with share.place.working(share.place.bulk):
                share.launch("interior", factors, mine[1, now])
                share.place.done.record(share.place.bulk)
        if self.engine.reduce_every_step:
            for share, mine in zip(shares, etas, strict=True):
                with share.place.working():
                    share.place.compute.wait_event(share.place.done)
                    mine[0, now] += mine[1, now]
            transport.reduce(shares, [mine[0, now] for mine in etas])
        self.steps += count

    def enqueue(self, steps: int) -> tuple[list[Any], int]:
        """Enqueue sweeps until at least `steps` steps more; return each share's scalar products and the steps done."""
        import cupy

        etas = []
        for share in self.shares:
            with share.place.working():
                etas.append(cupy.zeros((len(PARTS), steps + 1, 2, self.num_vectors)))
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

    def collect(self, etas: Sequence[Any]) -> Array:
        """Wait for the enqueued sweeps and return their scalar products, summed in the order of the shares."""
        engine = self.engine
        engine.transport.finish(self.shares)
        total = np.zeros(etas[0].shape[1:])
        for share, mine in zip(self.shares, etas, strict=True):
            with share.place.working():
                parts = mine.get()
            if engine.reduce_every_step:
                return np.asarray(parts[0])
            total += parts.sum(axis=0)
        return np.asarray(engine.transport.sum(total))

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint of this process must hold."""
        pending = np.empty((0, 2, self.num_vectors)) if self.pending is None else self.pending
        state = {"steps": np.array(self.steps), "pending": pending}
        for share in self.shares:
            state |= {f"v{share.place.number}": share.v.get(), f"w{share.place.number}": share.w.get()}
        return state

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.steps = int(state["steps"])
        self.pending = state["pending"] if len(state["pending"]) else None
        self.num_vectors = int(state["pending"].shape[-1])
        shares = []
        for holder in (share.holder for share in self.shares):
            with holder.place.working():
                share = holder.share(cupy.asarray(state[f"v{holder.place.number}"]))
                share.w = cupy.asarray(state[f"w{holder.place.number}"])
                shares.append(share)
        self.shares, self._plans, self._plan = shares, {}, None
