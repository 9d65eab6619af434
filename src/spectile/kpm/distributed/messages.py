"""How halos travel between GPUs: copy engines in one process, or NCCL in one process or between MPI ranks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from spectile.kpm.distributed.mpi import wait_for
from spectile.kpm.distributed.shares import Place
from spectile.kpm.reference import Array

#: Of each share: its place, places that it sends to, places that send to it, messages.
MessagePlan = list[tuple[Place, list[Place], list[Place], list[Any]]]


def _runs(array: Any) -> tuple[int, int, int, int]:
    """Return (address, distance, bytes, number) of the contiguous runs of an array, along its first axis at most."""
    if array.flags.c_contiguous:
        return array.data.ptr, array.nbytes, array.nbytes, 1
    return array.data.ptr, array.strides[0], array[0].nbytes, len(array)


class Transport(Protocol):
    """How messages travel between shares, and sums over processes."""

    def plan(self, shares: Sequence[Any]) -> MessagePlan:
        """Return (place, places that it sends to, places that send to it, messages) of each share."""

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what the shares have computed."""

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
        import cupy

        boxes: dict[tuple[int, int], list[Any]] = defaultdict(list)
        places = {share.place.number: share.place for share in shares}
        messages = [share.messages() for share in shares]
        for share, (_, receives) in zip(shares, messages, strict=True):
            for source, array in receives:
                boxes[source, share.place.number].append(array)
        plan = []
        for share, (sends, receives) in zip(shares, messages, strict=True):
            place, copies = share.place, []
            for number, array in sends:
                target = boxes[place.number, number].pop(0)
                copies.append((*_runs(target)[:2], *_runs(array), cupy.cuda.runtime.memcpyDefault))
            receivers = {place.number, *(number for number, _ in sends)}
            senders = {place.number, *(number for number, _ in receives)}
            plan.append((place, *([places[n] for n in sorted(group)] for group in (receivers, senders)), copies))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what sender and receiver have computed."""
        import cupy

        copy = cupy.cuda.runtime.memcpy2DAsync
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
            calls = [
                (call, first + n * distance, width, number)
                for call, arrays in ((communicator.send, sends), (communicator.recv, receives))
                for number, array in arrays
                for first, distance, width, count in [_runs(array)]
                for n in range(count)
            ]
            plan.append((share.place, [share.place], [share.place], calls))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what the shares have computed."""
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
