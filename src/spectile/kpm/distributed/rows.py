"""Rows of a stored matrix on one device of several.

The rows that others wait for are computed apart from the rest: their messages travel while the rest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.kpm.cuda.csr.launch import CsrOperator
from spectile.kpm.cuda.staged import when as staging
from spectile.kpm.cuda.staged.launch import Runs, StagedOperator
from spectile.kpm.distributed.device import PartitionDevice
from spectile.kpm.distributed.partition import local_planes, localize, longest_run
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import Array


@dataclass
class LocalRows:
    """Rows of a stored matrix on one device: its own, then the halo's as rows of the block vectors."""

    device: PartitionDevice  #: The device.
    operator: CsrOperator  #: Own rows; columns from the number of own rows on are the halo's.
    order: Any  #: Number in the whole matrix of each own row and each row of the halo: int32.
    interior: tuple[int, int]  #: Run of own rows that need no halo and that nobody waits for: (int, int).
    #: Own rows that another partition needs: a slice, or their numbers on the device.  List of (partition, rows).
    sends: list[tuple[int, Any]]
    #: Rows of the halo, counted from its beginning, that a partition owns: list of (partition, start, stop).
    receives: list[tuple[int, int, int]]
    #: What the staged kernel may plan from, where own rows are whole planes: cupyx CSR matrix or None.
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
        if self.matrix is None or staging.applies(self.operator.problem(num_vectors), describe()):
            return None
        self._staged = self._staged or StagedOperator(self.matrix)
        if any(self._staged.planned(num_vectors, runs) is None for runs in self.pieces().values() if runs):
            self.matrix = self._staged = None
        return self._staged

    def batches(self, num_vectors: int) -> list[slice]:
        """Return the vectors of each batch: all, since each batch would read the matrix."""
        return [slice(0, num_vectors)]

    def new_state(self, block: Any, _: int = 0) -> RowsState:
        """Return the recurrence's state on this device."""
        return RowsState(self, block)

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return random start vectors, halo included."""
        import cupy

        block = cupy.empty((len(self.order), num_vectors), self.operator.dtype)
        self.operator.fill(block, seed, first_vector, self.order)
        return block

    def to_block(self, vectors: Array) -> Any:
        """Return this partition's rows, halo included, of vectors of shape (N, R)."""
        import cupy

        return cupy.asarray(vectors[self.order.get()], self.operator.dtype)

    def from_block(self, block: Any) -> tuple[Array, Array]:
        """Return the numbers of this partition's rows, and the rows of a block."""
        own = self.operator.num_rows
        return self.order[:own].get(), block[:own].get()


class RowsState:
    """ν_m and ν_m−1 on the rows of one partition."""

    parts = ("boundary", "interior")

    def __init__(self, local: LocalRows, block: Any) -> None:
        import cupy

        self.local, self.device = local, local.device
        self.v, self.w = block, cupy.zeros_like(block)
        width, staged = block.shape[1], local.staged(block.shape[1])
        self._launchers = {
            part: [staged.launcher(width, runs=runs)]
            if staged is not None and runs
            else [local.operator.launcher(width, rows=run) for run in runs]
            for part, runs in local.pieces().items()
        }
        # The two pieces of one part each write their scalar products, which are then added.
        self._partial = cupy.empty((2, 2, width))
        self._packed = [
            None if isinstance(rows, slice) else cupy.empty((len(rows), width), block.dtype) for _, rows in local.sends
        ]

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[1])

    def begin(self, steps: int, first: bool) -> None:
        """Choose the arrays of a step."""
        assert steps == 1
        if not first:
            self.v, self.w = self.w, self.v

    def launch(self, part: str, factors: tuple[float, ...], etas: Any) -> None:
        """Enqueue one part of the step; it writes its scalar products to `etas`, shape (1, 2, R)."""
        import cupy

        launchers, (scale, shift, keep) = self._launchers[part], factors
        targets = [etas[0]] if len(launchers) == 1 else list(self._partial)
        for launch, target in zip(launchers, targets, strict=False):
            launch(self.v, self.w, scale, shift, keep, target)
        if len(launchers) == 2:
            cupy.add(*self._partial, out=etas[0])
        if part == "boundary":
            for (_, rows), packed in zip(self.local.sends, self._packed, strict=True):
                if packed is not None:
                    cupy.take(self.w, rows, axis=0, out=packed)

    def messages(self) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Return what to send and to receive after the boundary, as (other partition, contiguous rows)."""
        own = self.local.operator.num_rows
        sends = [
            (number, self.w[rows] if packed is None else packed)
            for (number, rows), packed in zip(self.local.sends, self._packed, strict=True)
        ]
        return sends, [(number, self.w[own + start : own + stop]) for number, start, stop in self.local.receives]


def local_plane_rows(
    sample: TopologicalInsulator,
    dtype: np.dtype[Any],
    device: PartitionDevice,
    first: int,
    planes: int,
    count: int,
    edge: int = 1,
) -> LocalRows:
    """Return the stored matrix of some planes of the topological insulator on a device, `edge` of either side first."""
    import cupy

    plane = 4 * sample.ny * sample.nz
    own, order = local_planes(sample, dtype, first, planes, cupy)
    behind, ahead = (device.partition - 1) % count, (device.partition + 1) % count
    return LocalRows(
        device,
        CsrOperator(own),
        order,
        (edge * plane, max(edge, planes - edge) * plane),
        [(behind, slice(0, plane)), (ahead, slice((planes - 1) * plane, planes * plane))],
        [(ahead, 0, plane), (behind, plane, 2 * plane)],
        own,
    )


def local_matrix_rows(matrix: Any, devices: Sequence[PartitionDevice], count: int) -> list[LocalRows]:
    """Return the rows of any stored matrix on each device; `devices` are some or all of `count` partitions.

    Raises ValueError if there are fewer rows than partitions.
    """
    if matrix.shape[0] < count:
        raise ValueError(f"{matrix.shape[0]} rows cannot be spread over {count} devices: take fewer")
    edges = np.linspace(0, matrix.shape[0], count + 1).astype(np.int64)
    everybody = [localize(matrix[edges[n] : edges[n + 1]], edges, n) for n in range(count)]
    return [_rows_of(device, everybody, edges) for device in devices]


def _rows_of(device: PartitionDevice, everybody: Sequence[Any], edges: Array) -> LocalRows:
    """Return one partition's rows on its device; `everybody` holds what :func:`localize` returns of each partition."""
    import cupy
    from cupyx.scipy import sparse

    local, halo, receives = everybody[device.partition]
    first, last = (int(edge) for edge in edges[device.partition : device.partition + 2])
    sends: list[tuple[int, Any]] = []
    waits = np.zeros(last - first, dtype=bool)
    for other, (_, wanted, owners) in enumerate(everybody):
        for owner, start, stop in owners:
            if owner == device.partition:
                rows = wanted[start:stop] - first
                waits[rows] = True
                contiguous = rows[-1] - rows[0] + 1 == len(rows)
                sends.append((other, slice(int(rows[0]), int(rows[-1]) + 1) if contiguous else rows))
    foreign = np.concatenate([[0], np.cumsum(local.indices >= last - first)])
    waits |= np.diff(foreign[local.indptr]) > 0
    with device.working():
        on_device = sparse.csr_matrix(
            (cupy.asarray(local.data), cupy.asarray(local.indices), cupy.asarray(local.indptr)), shape=local.shape
        )
        return LocalRows(
            device,
            CsrOperator(on_device),
            cupy.asarray(np.r_[first:last, halo].astype(np.int32)),
            longest_run(~waits),
            [(number, rows if isinstance(rows, slice) else cupy.asarray(rows)) for number, rows in sends],
            receives,
        )
