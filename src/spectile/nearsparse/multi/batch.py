"""Batches of products over several GPUs: whole products on every device, copied while others are multiplied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.nearsparse.cuda import norms as gpu_norms
from spectile.nearsparse.cuda import product as gpu_product
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Options, Plan, error_bound, kept_norms, overlap, ratio, square_sum
from spectile.nearsparse.multi.streams import Lane, address, pairs

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

    def some(self, first: int, last: int) -> Share:
        """Return these products of it."""
        a, b, out, c = (
            None if x is None else x[first:last] if x.ndim == 3 else x for x in (self.a, self.b, self.out, self.c)
        )
        return Share(self.device, a, b, out, c)


def dealt(a: Any, b: Any, out: Any, c: Any, devices: Sequence[int]) -> list[Share]:
    """Return the shares of the devices in a batch ``out`` of shape (items, m, n), as equal as its items allow."""
    cuts = partition.cut_rows(np.ones(len(out)), np.ones(len(devices)))
    whole = Share(-1, a, b, out, c)
    parts = [whole.some(first, last) for first, last in itertools.pairwise(cuts)]
    return [Share(index, x.a, x.b, x.out, x.c) for index, x in zip(devices, parts, strict=True) if len(x.out)]


class Batch(Plan):
    """Several products, whole ones on every device.

    Parameters
    ----------
    shares : sequence of Share
        In the order of the items.
    asked : Options
        Tau is searched for each item, where it lies, when the plan is made.
    batch : tuple of int
        Shape of the numbers of the result.
    """

    def __init__(self, shares: Sequence[Share], asked: Options, batch: tuple[int, ...]) -> None:
        import cupy

        first = shares[0]
        shape = (*first.a.shape[-2:], first.b.shape[-1])
        with cupy.cuda.Device(first.device):
            a, b = (_laid_out([getattr(share, name) for share in shares]) for name in ("a", "b"))
            count = sum(len(share.out) for share in shares)
            kernel = gpu_product.choose_kernel(a, b, count, asked.block, asked.precision, asked.strict)
        super().__init__([share.device for share in shares], shape, kernel, asked)
        self._batch = batch
        self._out = [share.out for share in shares]
        #: What is added to each item, or an array of its norm where `out` overwrites it.
        self._added: list[Any] = []
        for share in shares:
            if share.c is not None:
                overwritten = overlap(share.c, share.out)
                self._added.extend(kept_norms(share.c, asked.block) if overwritten else share.c)
        self._work: list[_Work] = []
        self._items: list[_Item] = []
        for share in shares:
            self._work.append(_Work(self, share, self._thresholds(share)))
            self._items += self._work[-1].items

    def _thresholds(self, share: Share) -> list[float]:
        """Return tau for each item of a share."""
        asked, count = self.asked, len(share.out)
        if isinstance(share.a, np.ndarray):
            if asked.tau is not None:
                return [float(asked.tau)] * count
            return [asked.host_threshold(one.a, one.b) for one in _matrices(share)]
        if not asked.measured_first:
            return [self.tau] * count
        with share.a.device:
            maps = gpu_norms.NormMaps(share.a, share.b, asked.block)
            maps()
            gpu_norms.check_norms(maps, share.a, share.b)
            return [asked.threshold(maps, self.shape, _index(share, number)) for number in range(count)]

    def _enqueue(self) -> None:
        for work in self._work:
            work.begin()
        for chunks in itertools.zip_longest(*(work.chunks for work in self._work)):
            for chunk in chunks:
                if chunk is not None:
                    chunk()

    def maps(self) -> Any:
        """Return nothing: every item has its own maps."""

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self._out

    def check_host(self) -> None:
        """Raise ValueError where an operand in host memory holds NaN or infinity, after a call; synchronises."""
        import cupy

        for work in self._work:
            with cupy.cuda.Device(work.share.device):
                for chunk in work.chunks:
                    gpu_norms.check_norms(chunk.maps, chunk.here.a, chunk.here.b)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a `SpammResult`, one an item, each read when asked for."""
        asked = self.asked

        def collect(number: Callable[[int, _Item], float]) -> Callable[[], Any]:
            def read() -> Any:
                import cupy

                found = np.empty(len(self._items))
                for position, item in enumerate(self._items):
                    with cupy.cuda.Device(item.device):
                        found[position] = number(position, item)
                return found.reshape(self._batch)

            return read

        def bound(position: int, item: _Item) -> float:
            norm_c = math.sqrt(square_sum(self._added[position])) if self._added else 0.0
            return error_bound(item.norms, item.index, item.tau, self.shape, asked, norm_c)

        return {
            "tau": collect(lambda _, item: item.tau),
            "valid_ratio": collect(lambda _, item: ratio(item.norms, item.index, item.tau, (1, 1, 1))),
            "executed_ratio": collect(lambda _, item: ratio(item.norms, item.index, item.tau, self.grain)),
            "error_bound": collect(bound),
            "norm_c": collect(lambda _, item: math.sqrt(square_sum(item.out))),
        }

    def release(self) -> None:
        """Give the copies of operands back."""
        self._work.clear()


@dataclass
class _Item:
    """What the numbers of a product are read from."""

    device: int
    norms: gpu_norms.Norms
    index: tuple[int, int]
    tau: float
    out: Any


class _Work:
    """What a device holds and does."""

    def __init__(self, plan: Batch, share: Share, taus: list[float]) -> None:
        import cupy

        self.share = share
        self.lanes = plan.lane(share.device), plan.lane(share.device)
        self._loads: list[Callable[[], None]] = []
        self.chunks: list[_Chunk] = []
        self.items: list[_Item] = []
        needed = sum(x.nbytes for x in (share.a, share.b, share.out) if not _lies_on(x, share.device))
        with cupy.cuda.Device(share.device), memory.allocating(f"the products of device {share.device}", needed):
            a, b = (self._here(plan, x, self._loads) for x in (share.a, share.b))
            common = Share(share.device, a, b, share.out)
            for number, (first, last) in enumerate(partition.pieces(len(share.out), CHUNKS)):
                there = share.some(first, last)
                chunk = self._chunk(plan, there, common, self.lanes[number % 2], taus[first:last])
                self.chunks.append(chunk)
                norms = gpu_norms.Norms(chunk.maps.a, chunk.maps.b, plan.asked.block)
                self.items += [
                    _Item(share.device, norms, _index(there, item), taus[first + item], there.out[item])
                    for item in range(last - first)
                ]

    def _here(self, plan: Batch, x: Any, loads: list[Callable[[], None]]) -> Any:
        """Return a matrix that all items share, copied to this device where it lies elsewhere; a batch as it is."""
        if x.ndim == 3 or _lies_on(x, self.share.device):
            return x
        buffer = plan.asked.empty_operand(*x.shape)
        loads.append(self.lanes[0].copying(buffer, x))
        return buffer

    def _chunk(self, plan: Batch, there: Share, common: Share, lane: Lane, taus: list[float]) -> _Chunk:
        import cupy

        asked, index = plan.asked, there.device
        loads: list[Callable[[], None]] = []
        stores: list[Callable[[], None]] = []

        def moved(target: Any, source: Any) -> list[Callable[[], None]]:
            return [lane.copying(*pair) for pair in pairs(target, source)]

        def operand(x: Any, shared: Any) -> Any:
            if x.ndim == 2 or _lies_on(x, index):
                return shared if x.ndim == 2 else x
            buffer = asked.empty_operand(*x.shape)
            loads.extend(moved(buffer, x))
            return buffer

        a, b = operand(there.a, common.a), operand(there.b, common.b)
        out, c = there.out, there.c
        # Kernels reach what another device holds, but not the host.
        if not _lies_on(out, index) and (isinstance(out, np.ndarray) or not plan.connected):
            out = cupy.empty(out.shape, asked.output)
            stores = moved(there.out, out)
        if c is not None and not _lies_on(c, index) and (isinstance(c, np.ndarray) or not plan.connected):
            loads.extend(moved(out, c))
            c = out
        maps = gpu_norms.NormMaps(a, b, asked.block)
        tau = taus[0] if len(set(taus)) == 1 else cupy.asarray(taus, np.float64)
        product = gpu_product.Product(
            a, b, out, maps, tau,
            precision=asked.precision, alpha=asked.alpha, beta=asked.beta, c=c, kernel=plan.kernel,
        )  # fmt: skip
        plan.grain = product.grain
        return _Chunk(lane, there, Share(index, a, b, out, c), maps, product, loads, stores)

    def begin(self) -> None:
        """Enqueue the copies of what all items share."""
        for copy in self._loads:
            copy()
        if self._loads:
            self.lanes[1].wait(self.lanes[0].mark())


@dataclass
class _Chunk:
    """Some products of a device: where they lie, and what stands for it on the device."""

    lane: Lane
    there: Share
    here: Share
    maps: gpu_norms.NormMaps
    product: gpu_product.Product
    loads: list[Callable[[], None]] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)

    def __call__(self) -> None:
        for copy in self.loads:
            copy()
        with self.lane.current():
            self.maps()
            self.product()
        for copy in self.stores:
            copy()


def _matrices(share: Share) -> list[Share]:
    """Return each product of a share alone."""
    found = []
    for number in range(len(share.out)):
        a, b = (x[number] if x.ndim == 3 else x for x in (share.a, share.b))
        found.append(Share(share.device, a, b, share.out[number]))
    return found


def _index(share: Share, number: int) -> tuple[int, int]:
    """Return which matrices of A and of B an item multiplies."""
    return number if share.a.ndim == 3 else 0, number if share.b.ndim == 3 else 0


def _lies_on(x: Any, index: int) -> bool:
    return not isinstance(x, np.ndarray) and x.device.id == index


def _laid_out(parts: Sequence[Any]) -> Any:
    """Return what the choice of the kernel reads of an operand in parts, or of the contiguous copy of a host array."""
    first, itemsize = parts[0], parts[0].itemsize
    pitch = first.shape[-1] * itemsize
    if not isinstance(first, np.ndarray):
        sizes = [x.strides[-2] for x in parts] + [x.strides[0] for x in parts if x.ndim == 3]
        pitch = math.gcd(*sizes, *(address(x) for x in parts))
    return SimpleNamespace(shape=first.shape[-2:], strides=(pitch, itemsize), data=SimpleNamespace(ptr=pitch))
