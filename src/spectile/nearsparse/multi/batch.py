"""Batches of products over several GPUs: whole products on every device, copied while others are multiplied."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.pointers import overlap
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda.choose import LAUNCHED_ITEMS, Problem
from spectile.nearsparse.cuda.survey import frobenius, kept_norms
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Plan, empty_operand, host_threshold
from spectile.nearsparse.multi.streams import Stream, pairs
from spectile.nearsparse.types import Request

# Pieces of a device's items, each copied while the one before is multiplied.
CHUNKS = 4


@dataclass
class Share:
    """The products of one device: batches in order, or one matrix for all of them; on any device or the host."""

    device: int
    a: Any
    b: Any
    out: Any
    c: Any = None

    def part(self, first: int, last: int) -> Share:
        """Return these products of it."""
        a, b, out, c = (
            None if x is None else x[first:last] if x.ndim == 3 else x for x in (self.a, self.b, self.out, self.c)
        )
        return Share(self.device, a, b, out, c)


def partitioned(a: Any, b: Any, out: Any, c: Any, devices: Sequence[int]) -> list[Share]:
    """Return the shares of the devices in a batch ``out`` of shape (items, m, n), as equal as its items allow."""
    cuts = partition.cut_rows(np.ones(len(out)), np.ones(len(devices)))
    whole = Share(-1, a, b, out, c)
    parts = [whole.part(first, last) for first, last in itertools.pairwise(cuts)]
    return [Share(index, x.a, x.b, x.out, x.c) for index, x in zip(devices, parts, strict=True) if len(x.out)]


class Batch(Plan):
    """Several products, whole ones on every device.

    Parameters
    ----------
    shares : sequence of Share
        In the order of the items.
    request : Request
        Tau is searched for each item, where it lies, when the plan is made.
    batch : tuple of int
        Shape of the numbers of the result.
    """

    def __init__(self, shares: Sequence[Share], request: Request, batch: tuple[int, ...]) -> None:
        first = shares[0]
        shape = (*first.a.shape[-2:], first.b.shape[-1])
        a, b = ([getattr(share, name) for share in shares] for name in ("a", "b"))
        count = sum(len(share.out) for share in shares)
        problem = Problem.of_parts(shape, a, b, request.block, request.real.precision, request.strict, count)
        super().__init__([share.device for share in shares], problem, request)
        self._batch = batch
        self._out = [share.out for share in shares]
        #: What is added to each item, or an array of its norm where `out` overwrites it.
        self._added: list[Any] = []
        for share in shares:
            if share.c is not None:
                overwritten = overlap(share.c, share.out)
                self._added.extend(kept_norms(share.c, request.block) if overwritten else share.c)
        self._work = [_Work(self, share, self._thresholds(share)) for share in shares]
        self._items = [item for work in self._work for item in work.items]

    def _thresholds(self, share: Share) -> list[float]:
        """Return tau for each item of a share."""
        request, count = self.request, len(share.out)
        if isinstance(share.a, np.ndarray):
            if request.tau is not None:
                return [float(request.tau)] * count
            return [host_threshold(one.a, one.b, request) for one in _matrices(share)]
        if not request.norms_first:
            return [self.tau] * count
        with share.a.device:
            maps = self.norm_maps(share.a, share.b)
            maps()
            cuda_norms.check_norms(maps, share.a, share.b)
            return [self.threshold(maps, _index(share, number)) for number in range(count)]

    def _enqueue(self) -> None:
        """Bring what all products of a device share, and multiply the chunks.

        Devices by turns, since the host sends to one after another.
        """
        for work in self._work:
            work.fetch()
        for turn in itertools.zip_longest(*(work.chunks for work in self._work)):
            for chunk in turn:
                if chunk is not None:
                    chunk.multiply()

    def maps(self) -> Any:
        """Return nothing: every item has its own maps."""

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self._out

    def check_host(self) -> None:
        """Raise ValueError where host memory is to hold numbers and does not, after a call; synchronises."""
        import cupy

        if not self.request.check_finite or not isinstance(self._out[0], np.ndarray):
            return
        for work in self._work:
            with cupy.cuda.Device(work.share.device):
                for chunk in work.chunks:
                    cuda_norms.check_norms(chunk.maps, chunk.a, chunk.b)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a `SpammResult`, one an item, each read when asked for."""

        def collect(number: Callable[[int, _Product], float]) -> Callable[[], Any]:
            def read() -> Any:
                import cupy

                values = np.empty(len(self._items))
                for position, item in enumerate(self._items):
                    with cupy.cuda.Device(item.device):
                        values[position] = number(position, item)
                return values.reshape(self._batch)

            return read

        def bound(position: int, item: _Product) -> float:
            norm_c = frobenius(self._added[position]) if self._added else 0.0
            return self.bound(item.norms, item.index, item.tau, norm_c)

        return {
            "tau": collect(lambda _, item: item.tau),
            "valid_ratio": collect(lambda _, item: self.ratio(item.norms, item.index, item.tau)),
            "executed_ratio": collect(lambda _, item: self.ratio(item.norms, item.index, item.tau, self.grain)),
            "error_bound": collect(bound),
            "norm_c": collect(lambda _, item: frobenius(item.out)),
        }

    def release(self) -> None:
        """Give the copies of operands back."""
        self._work.clear()


@dataclass
class _Product:
    """What the numbers of a product are read from."""

    device: int
    norms: cuda_norms.Norms
    index: tuple[int, int]
    tau: float
    out: Any


class _Work:
    """What a device holds and does: its products in chunks."""

    def __init__(self, plan: Batch, share: Share, taus: list[float]) -> None:
        import cupy

        #: Chunks are multiplied in them by turns, so that one is copied while the other is multiplied.
        self.streams = plan.stream(share.device), plan.stream(share.device)
        self.share = share
        self.chunks: list[_Chunk] = []
        self.items: list[_Product] = []
        needed = sum(x.nbytes for x in (share.a, share.b, share.out) if not _lies_on(x, share.device))
        with cupy.cuda.Device(share.device), memory.allocating(f"the products of device {share.device}", needed):
            common = [_held(plan, x, share.device) if x.ndim == 2 else x for x in (share.a, share.b)]
            self._shared = [pair for pair in zip(common, (share.a, share.b), strict=True) if pair[0] is not pair[1]]
            count = max(CHUNKS, ceil_div(len(share.out), LAUNCHED_ITEMS))
            for number, (first, last) in enumerate(partition.pieces(len(share.out), count)):
                source = share.part(first, last)
                chunk = _Chunk(plan, source, common, self.streams[number % 2], taus[first:last])
                self.chunks.append(chunk)
                norms = cuda_norms.Norms(chunk.maps.a, chunk.maps.b, plan.request.block)
                self.items += [
                    _Product(share.device, norms, _index(source, item), taus[first + item], source.out[item])
                    for item in range(last - first)
                ]

    def fetch(self) -> None:
        """Enqueue the copies of what all items share."""
        for target, source in self._shared:
            self.streams[0].copy(target, source)
        if self._shared:
            self.streams[1].wait(self.streams[0].mark())


class _Chunk:
    """Some products of a device: where they lie, and what stands for it on the device.

    `common` are A and B of all products, one matrix there or the batch as it is given.
    """

    def __init__(self, plan: Batch, source: Share, common: list[Any], stream: Stream, taus: list[float]) -> None:
        import cupy

        index = source.device
        self._stream = stream
        self.a, self.b = (
            shared if shared.ndim == 2 else _held(plan, x, index)
            for x, shared in zip((source.a, source.b), common, strict=True)
        )
        self._loads = [
            (x, y) for x, y in ((self.a, source.a), (self.b, source.b)) if y.ndim == 3 and not _lies_on(y, index)
        ]
        self._stores: list[tuple[Any, Any]] = []
        out, c = source.out, source.c
        # Kernels reach what another device holds, but not the host.
        if not _reached(out, index, plan.connected):
            out = cupy.empty(out.shape, plan.arithmetic.output)
            self._stores.append((source.out, out))
        if c is not None and not _reached(c, index, plan.connected):
            self._loads.append((out, c))
            c = out
        self.maps = plan.norm_maps(self.a, self.b)
        tau = taus[0] if len(set(taus)) == 1 else cupy.asarray(taus, np.float64)
        self._product = plan.product(self.a, self.b, out, self.maps, c, tau)

    def multiply(self) -> None:
        """Enqueue the copies of what these products alone multiply, their norms, the products and their copies."""
        for target, source in self._loads:
            self._copy(target, source)
        with self._stream.current():
            self.maps()
            self._product()
        for target, source in self._stores:
            self._copy(target, source)

    def _copy(self, target: Any, source: Any) -> None:
        for pair in pairs(target, source):
            self._stream.copy(*pair)


def _held(plan: Batch, x: Any, index: int) -> Any:
    """Return an operand that lies on a device, or memory for its copy there."""
    return x if _lies_on(x, index) else empty_operand(plan.request, *x.shape)


def _reached(x: Any, index: int, connected: bool) -> bool:
    """Return whether kernels of a device reach an array."""
    return _lies_on(x, index) or (connected and not isinstance(x, np.ndarray))


def _matrices(share: Share) -> list[Share]:
    """Return each product of a share alone."""
    products = []
    for number in range(len(share.out)):
        a, b = (x[number] if x.ndim == 3 else x for x in (share.a, share.b))
        products.append(Share(share.device, a, b, share.out[number]))
    return products


def _index(share: Share, number: int) -> tuple[int, int]:
    """Return which matrices of A and of B an item multiplies."""
    return number if share.a.ndim == 3 else 0, number if share.b.ndim == 3 else 0


def _lies_on(x: Any, index: int) -> bool:
    return not isinstance(x, np.ndarray) and x.device.id == index
