"""How halos travel between GPUs: copy engines in one process, or NCCL in one process or between MPI ranks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.kpm.cpu.threads import give_way
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.types import Array

#: Of each local state: its device, devices that it sends to, devices that send to it, messages.
MessagePlan = list[tuple[PartitionDevice, list[PartitionDevice], list[PartitionDevice], list[Any]]]


def _runs(array: Any) -> tuple[int, int, int, int]:
    """Return (address, distance, bytes, number) of the contiguous runs of an array, along its first axis at most."""
    if array.flags.c_contiguous:
        return address(array), array.nbytes, array.nbytes, 1
    return address(array), array.strides[0], array[0].nbytes, len(array)


class Transport(ABC):
    """How messages travel between states, and sums over processes."""

    @abstractmethod
    def plan(self, states: Sequence[Any]) -> MessagePlan:
        """Return (device, devices that it sends to, devices that send to it, messages) of each state."""

    @abstractmethod
    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what the states have computed."""

    @abstractmethod
    def await_halo(self, device: PartitionDevice, senders: Sequence[PartitionDevice]) -> None:
        """Let a state's next sweep wait for the messages to it."""

    @abstractmethod
    def finish(self, states: Sequence[Any]) -> None:
        """Wait until everything enqueued is done."""

    def sum(self, values: Array) -> Array:
        """Return the sum over all processes: this one alone."""
        return values

    def gather(self, part: Any) -> list[Any]:
        """Return what all processes give, in their order."""
        return [part]


class PeerCopies(Transport):
    """Messages between the devices of one process by their copy engines, which leave the multiprocessors alone."""

    def __init__(self, devices: Sequence[PartitionDevice]) -> None:
        import cupy

        ordinals = {device.ordinal for device in devices}
        for ordinal in ordinals:
            with cupy.cuda.Device(ordinal):
                for other in ordinals - {ordinal}:
                    if cupy.cuda.runtime.deviceCanAccessPeer(ordinal, other):
                        try:
                            cupy.cuda.runtime.deviceEnablePeerAccess(other)
                        except cupy.cuda.runtime.CUDARuntimeError as error:
                            if "PeerAccessAlreadyEnabled" not in str(error):
                                raise

    def plan(self, states: Sequence[Any]) -> MessagePlan:
        """Return the copies; messages between two states are matched in their order, as NCCL does it."""
        import cupy

        targets: dict[tuple[int, int], list[Any]] = defaultdict(list)
        devices = {state.device.partition: state.device for state in states}
        messages = [state.messages() for state in states]
        for state, (_, receives) in zip(states, messages, strict=True):
            for source, array in receives:
                targets[source, state.device.partition].append(array)
        plan = []
        for state, (sends, receives) in zip(states, messages, strict=True):
            device, copies = state.device, []
            for number, array in sends:
                target = targets[device.partition, number].pop(0)
                copies.append((*_runs(target)[:2], *_runs(array), cupy.cuda.runtime.memcpyDefault))
            receivers = {device.partition, *(number for number, _ in sends)}
            senders = {device.partition, *(number for number, _ in receives)}
            plan.append((device, *([devices[n] for n in sorted(group)] for group in (receivers, senders)), copies))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what sender and receiver have computed."""
        import cupy

        copy = cupy.cuda.runtime.memcpy2DAsync
        for device, receivers, _, copies in plan:
            with cupy.cuda.Device(device.ordinal):
                for receiver in receivers:
                    device.copies.wait_event(receiver.computed)
                for arguments in copies:
                    copy(*arguments, device.copies.ptr)
                device.arrived.record(device.copies)

    def await_halo(self, device: PartitionDevice, senders: Sequence[PartitionDevice]) -> None:
        """Let a state's next sweep wait for the messages to it."""
        for sender in senders:
            device.compute.wait_event(sender.arrived)

    def finish(self, states: Sequence[Any]) -> None:
        """Wait until everything enqueued is done."""
        for state in states:
            state.device.synchronize()


class NcclMessages(Transport):
    """Messages by NCCL: between the devices of one process, or of the ranks of an MPI communicator.

    `communicators` has that of each state of this process; after `timeout_s` another rank is taken for dead.
    """

    def __init__(self, communicators: dict[int, Any], comm: Any = None, timeout_s: float = 300.0) -> None:
        self.communicators, self.comm, self.timeout_s = communicators, comm, timeout_s

    @classmethod
    def of_ranks(cls, comm: Any, device: int, timeout_s: float) -> NcclMessages:
        """Return the messages of one rank with one device."""
        import cupy

        nccl = _nccl()
        identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        with cupy.cuda.Device(device):
            return cls({comm.rank: nccl.NcclCommunicator(comm.size, identity, comm.rank)}, comm, timeout_s)

    def plan(self, states: Sequence[Any]) -> MessagePlan:
        """Return the messages; NCCL makes both sides wait by itself."""
        plan = []
        for state in states:
            communicator = self.communicators[state.device.partition]
            sends, receives = state.messages()
            calls = [
                (call, first + n * distance, width, number)
                for call, arrays in ((communicator.send, sends), (communicator.recv, receives))
                for number, array in arrays
                for first, distance, width, count in [_runs(array)]
                for n in range(count)
            ]
            plan.append((state.device, [state.device], [state.device], calls))
        return plan

    def exchange(self, plan: MessagePlan) -> None:
        """Enqueue all messages behind what the states have computed."""
        import cupy

        nccl = _nccl()
        for device, *_ in plan:
            device.copies.wait_event(device.computed)
        nccl.groupStart()
        for device, _, _, calls in plan:
            with cupy.cuda.Device(device.ordinal):
                for call, pointer, size, number in calls:
                    call(pointer, size, nccl.NCCL_UINT8, number, device.copies.ptr)
        nccl.groupEnd()
        for device, *_ in plan:
            with cupy.cuda.Device(device.ordinal):
                device.arrived.record(device.copies)

    def await_halo(self, device: PartitionDevice, senders: Sequence[PartitionDevice]) -> None:
        """Let a state's next sweep wait for the messages to it."""
        device.compute.wait_event(device.arrived)

    def finish(self, states: Sequence[Any]) -> None:
        """Wait until everything enqueued is done.

        Raises RuntimeError if another rank does not answer in time; the communicator is of no use afterwards.
        """
        deadline = time.monotonic() + self.timeout_s
        for state in states:
            for stream in (state.device.compute, state.device.bulk, state.device.copies):
                while not stream.done:
                    if time.monotonic() > deadline:
                        self.communicators[state.device.partition].abort()
                        raise RuntimeError(
                            f"another rank did not answer rank {state.device.partition} for {self.timeout_s:g} s: it "
                            "has died or hangs; see its output, and start the job again"
                        )
                    time.sleep(2e-5)

    def sum(self, values: Array) -> Array:
        """Return the sum over the ranks."""
        if self.comm is None:
            return values
        total = np.empty_like(values)
        wait_for_ranks(self.comm, [(self.comm.Iallreduce(values, total), "another rank")], self.timeout_s)
        return total

    def gather(self, part: Any) -> list[Any]:
        """Return what all ranks give, in the order of their numbers."""
        return [part] if self.comm is None else list(self.comm.allgather(part))


def _nccl() -> Any:
    from cupy.cuda import nccl

    if not nccl.available:
        raise RuntimeError("CuPy finds no NCCL: install it (pip install nvidia-nccl-cu13), or give weights=")
    return nccl


def rank_device(comm: Any) -> int:
    """Return the device of this rank: the ranks of a host take its devices in turn.

    Raises ValueError if a host has more ranks than devices.
    """
    import cupy
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    count = cupy.cuda.runtime.getDeviceCount()
    # Every rank raises, so that none waits for one that did.
    if max(comm.allgather(host.size - count)) > 0:
        raise ValueError(
            f"a host has more ranks than its CUDA devices (here {host.size} and {count}): start one for each GPU"
        )
    return int(host.rank)


def wait_for_ranks(comm: Any, requests: list[tuple[Any, Any]], timeout_s: float) -> None:
    """Wait for (request, rank) pairs, but not for ever: a dead rank must not hang the others.

    Raises RuntimeError if a rank does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while requests:
        requests = [(request, rank) for request, rank in requests if not request.Test()]
        give_way()  # to a rank on the same core, where there are more of them than cores
        if requests and time.monotonic() > deadline:
            who = requests[0][1] if isinstance(requests[0][1], str) else f"rank {requests[0][1]}"
            raise RuntimeError(
                f"{who} did not answer rank {comm.rank} for {timeout_s:g} s: it has died or hangs; see its output, and "
                "start the job again"
            )
