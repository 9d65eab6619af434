"""A slab of the topological insulator on one device of several, without a stored matrix.

A slab does its vectors in two batches: the halo of one travels while the other is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.kpm.cuda.stencil.launch import Slab, StencilOperator
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array


@dataclass
class LocalSlab:
    """A slab of the topological insulator on one device, and the numbers of the partitions behind and ahead in x."""

    device: PartitionDevice
    operator: StencilOperator
    neighbours: tuple[int, int]
    reserve = 0

    @property
    def rows(self) -> int:
        """Rows held, halo included."""
        sample = self.operator.sample
        return len(self.operator.held) * 4 * sample.ny * sample.nz

    def batches(self, num_vectors: int) -> list[slice]:
        """Return the vectors of each batch."""
        half = -(-num_vectors // 2)
        return [slice(0, half), slice(half, num_vectors)] if num_vectors > 1 else [slice(0, 1)]

    def new_state(self, block: Any, batch: int = 0) -> SlabState:
        """Return the recurrence's state on this device; `block` was made on the stream of this batch."""
        return SlabState(self, block, self.device.of_batch(batch))

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


class SlabState:
    """ν_m and ν_m−1 of one batch of vectors on one slab: what to launch, and which planes travel after it."""

    parts = ("all",)

    def __init__(self, local: LocalSlab, block: Any, device: PartitionDevice) -> None:
        import cupy

        self.local, self.device = local, device
        self.v, self.w = block, cupy.zeros_like(block)
        self.v_out = self.w_out = None
        self._launchers: dict[int, Any] = {}

    @property
    def num_vectors(self) -> int:
        """R of this batch."""
        return int(self.v.shape[0])

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

    def launch(self, _: str, factors: tuple[float, ...], etas: Any) -> None:
        """Enqueue the sweep; it writes its scalar products to `etas`, shape (steps, 2, R)."""
        if self._steps not in self._launchers:
            self._launchers[self._steps] = self.local.operator.launcher(self.num_vectors, self._steps)
        self._launchers[self._steps](*self._arrays, *factors, etas)

    def messages(self) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Return what to send and to receive after the sweep, as (other partition, planes of each vector).

        The newest vector needs as many planes of halo as a sweep has steps, the one before one fewer.
        """
        slab = self.local.operator.slab
        assert slab is not None
        behind, ahead = self.local.neighbours
        low, high = slab.halo, slab.halo + slab.planes
        sends, receives = [], []
        for block, depth in ((self.w, slab.halo), (self.v, slab.halo - 1 if self._steps == 2 else 0)):
            if depth:
                sends += [(behind, block[:, low : low + depth]), (ahead, block[:, high - depth : high])]
                receives += [(ahead, block[:, high : high + depth]), (behind, block[:, low - depth : low])]
        return sends, receives


def local_slabs(
    sample: TopologicalInsulator,
    dtype: np.dtype[Any],
    devices: Sequence[PartitionDevice],
    edges: Array,
    steps_a_sweep: int,
) -> list[LocalSlab]:
    """Return the slab of each device, which begins and ends at the planes `edges` of its partition."""
    count = len(edges) - 1
    slabs = []
    for device in devices:
        first, stop = (int(edge) for edge in edges[device.partition : device.partition + 2])
        with device.working():
            operator = StencilOperator(sample, dtype, Slab(first, stop - first, steps_a_sweep))
        slabs.append(LocalSlab(device, operator, ((device.partition - 1) % count, (device.partition + 1) % count)))
    return slabs
