"""What each of several GPUs holds of a matrix: slabs of the topological insulator, or rows of a stored matrix.

Messages travel while a share computes something else.  A slab does its vectors in two lots, and the halo of one lot
travels while the other is computed; a stored matrix would be read twice, so there the rows that others wait for are
computed apart from the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.kpm.cuda.staged import Runs, StagedOperator, stages
from spectile.kpm.cuda.stencil import Slab, StencilOperator
from spectile.kpm.cuda.stored import STRIP, StoredOperator, rows_in_strips
from spectile.kpm.distributed.mpi import localize
from spectile.kpm.reference import Array


class Place:
    """One share's device: streams for the boundary, the interior and the messages, and the events that order them."""

    def __init__(self, number: int, device: int, beside: Place | None = None) -> None:
        import cupy

        self.number, self.device = number, device
        with cupy.cuda.Device(device):
            # The interior runs beside the boundary, on the multiprocessors that it leaves.
            self.compute = cupy.cuda.Stream(non_blocking=True, priority=-1)
            self.bulk = cupy.cuda.Stream(non_blocking=True)
            self.copies: Any = beside.copies if beside else cupy.cuda.Stream(non_blocking=True, priority=-2)
            self.begun, self.computed, self.done, self.arrived, self.summed = (
                cupy.cuda.Event(disable_timing=True) for _ in range(5)
            )

    @functools.cached_property
    def beside(self) -> Place:
        """The place of a second lot of vectors: the same device and messages, and streams and events of its own."""
        return Place(self.number, self.device, self)

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
                # A quarter on either side is computed first: few planes at a time are read many times.
                holders.append(hold_planes(H, dtype, place, first, planes, count, max(1, planes // 4)))
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

    def lots(self, num_vectors: int) -> list[slice]:
        """Return the vectors of each lot."""
        half = -(-num_vectors // 2)
        return [slice(0, half), slice(half, num_vectors)] if num_vectors > 1 else [slice(0, 1)]

    def share(self, block: Any, lot: int = 0) -> StencilShare:
        """Return the recurrence's state on this device."""
        return StencilShare(self, block, self.place.beside if lot else self.place)

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
    """ν_m and ν_m−1 of one lot of vectors on one slab: what to launch, and which planes travel after it."""

    parts = ("all",)

    def __init__(self, holder: StencilHolder, block: Any, place: Place) -> None:
        import cupy

        self.holder, self.place = holder, place
        self.v, self.w = block, cupy.zeros_like(block)
        self.v_out = self.w_out = None
        self._launchers: dict[int, Any] = {}

    @property
    def num_vectors(self) -> int:
        """R of this lot."""
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
            self._launchers[self._steps] = self.holder.operator.launcher(self.num_vectors, self._steps)
        self._launchers[self._steps](*self._arrays, *factors, etas)

    def messages(self) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """Return what to send and to receive after the sweep, as (other share, planes of each vector).

        The newest vector needs as many planes of halo as a sweep has steps, the one before one fewer.
        """
        slab = self.holder.operator.slab
        assert slab is not None
        behind, ahead = self.holder.neighbours
        low, high = slab.halo, slab.halo + slab.planes
        sends, receives = [], []
        for block, depth in ((self.w, slab.halo), (self.v, slab.halo - 1 if self._steps == 2 else 0)):
            if depth:
                sends += [(behind, block[:, low : low + depth]), (ahead, block[:, high - depth : high])]
                receives += [(ahead, block[:, high : high + depth]), (behind, block[:, low - depth : low])]
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

    def lots(self, num_vectors: int) -> list[slice]:
        """Return the vectors of each lot: all, since each lot would read the matrix."""
        return [slice(0, num_vectors)]

    def share(self, block: Any, _: int = 0) -> StoredShare:
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

    parts = ("boundary", "interior")

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
    from spectile.kpm.operators.topological_insulator import TopologicalInsulator

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
