"""One device of several: its streams, and the events that order what they do."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PartitionDevice:
    """The device of a partition: streams for the boundary, the interior and the messages, and events that order them.

    `beside` is the same partition's for another batch of vectors, whose stream of messages is shared.
    """

    def __init__(self, partition: int, ordinal: int, beside: PartitionDevice | None = None) -> None:
        import cupy

        self.partition, self.ordinal = partition, ordinal
        with cupy.cuda.Device(ordinal):
            # The interior runs beside the boundary, on the multiprocessors that it leaves.
            self.compute = cupy.cuda.Stream(non_blocking=True, priority=-1)
            self.bulk = cupy.cuda.Stream(non_blocking=True)
            self.copies: Any = beside.copies if beside else cupy.cuda.Stream(non_blocking=True, priority=-2)
            self.begun, self.computed, self.done, self.arrived = (
                cupy.cuda.Event(disable_timing=True) for _ in range(4)
            )

    @functools.cached_property
    def beside(self) -> PartitionDevice:
        """The same device for a second batch of vectors: streams and events of its own.

        What this one's computing stream has been given so far, the operator's arrays, comes before what they compute.
        """
        import cupy

        second = PartitionDevice(self.partition, self.ordinal, self)
        with cupy.cuda.Device(self.ordinal):
            self.begun.record(self.compute)
            second.compute.wait_event(self.begun)
        return second

    def of_batch(self, number: int) -> PartitionDevice:
        """Return what computes a batch of vectors: its block is made on the stream that reads it."""
        return self.beside if number else self

    @contextmanager
    def working(self, stream: Any = None) -> Iterator[None]:
        """Make this device and one of its streams, `compute` if None, the current ones."""
        import cupy

        with cupy.cuda.Device(self.ordinal), stream or self.compute:
            yield

    def synchronize(self) -> None:
        """Wait for everything enqueued here."""
        for stream in (self.compute, self.bulk, self.copies):
            stream.synchronize()
