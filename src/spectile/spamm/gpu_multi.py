"""SpAMM over several GPUs of one host: every GPU multiplies rows of C, cut where their work is even.

Three placements of the data, each a plan that is made once and called as often as wanted:

- `Resident`: every GPU holds its rows of A and all of B; C stays where its rows are.  `ResidentColumns` is the same
  with all of A and columns of B, for few rows.
- `FromDevice`: all on the first GPU.  Rows of A go to their GPUs, B goes round a ring in panels of columns, each
  multiplied when it is there, and every GPU writes its rows of C into the first one's memory.
- `FromHost`: all in host memory (pinned, to be fast).  Every GPU reads a share of each panel of B and passes it on;
  blocks of rows of A and C are streamed through two buffers, so that matrices larger than a GPU's memory can be
  multiplied, too.  The first block is multiplied panel by panel, so that C begins to leave early.

Cuts are multiples of the tiles', and every part uses the kernel that one GPU would use for the whole product: the
result is that of one GPU, to the bit.  The same device may be named several times.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from spectile.gpu import device

from . import gpu, gpu_launch, gpu_norms, gpu_survey, partition
from .api import PRECISIONS
from .result import SpammResult

# From this size of B on, the GPUs share the norm pass over their copies of it: exchanging the maps costs 0.2 ms.
SHARED_NORM_BYTES = 1 << 30


class _Lane:
    """A stream of one device and the events recorded on it, which every call of a plan uses again."""

    def __init__(self, index: int) -> None:
        import cupy

        self.device = index
        with cupy.cuda.Device(index):
            self.stream = cupy.cuda.Stream(non_blocking=True)
        self._events: list[Any] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin a new call: its events are those of the call before."""
        self._next = 0

    def mark(self) -> Any:
        """Record and return an event."""
        if self._next == len(self._events):
            self._events.append(_event(self.device))
        event = self._events[self._next]
        self._next += 1
        self.stream.record(event)
        return event

    def wait(self, *events: Any) -> None:
        """Let what comes next wait for events of any device."""
        for event in events:
            self.stream.wait_event(event)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make device and stream CuPy's current ones."""
        import cupy

        with cupy.cuda.Device(self.device), self.stream:
            yield

    def copy(self, target: Any, source: Any) -> None:
        """Copy a matrix whose rows are contiguous, between any two devices or a device and the host."""
        self.copying(target, source)()

    def copying(self, target: Any, source: Any) -> Callable[[], None]:
        """Return a function that copies, with everything looked up: a plan launches hundreds of copies."""
        from cupy.cuda import runtime

        rows, width = source.shape[0], source.shape[1] * source.itemsize
        into, pitch, out_of, step = _address(target), target.strides[0], _address(source), source.strides[0]
        end = runtime.memcpyDefault, self.stream.ptr
        if rows * width == 0:
            return lambda: None
        if rows <= 1 or pitch == step == width:
            return functools.partial(runtime.memcpyAsync, into, out_of, rows * width, *end)
        return functools.partial(runtime.memcpy2DAsync, into, pitch, out_of, step, width, rows, *end)


def _event(index: int) -> Any:
    import cupy

    with cupy.cuda.Device(index):
        return cupy.cuda.Event(disable_timing=True)


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


class _Plan(ABC):
    """What the placements share: streams that start after and end before the current streams, and the numbers."""

    def __init__(
        self,
        devices: Sequence[int],
        shape: tuple[int, int, int],
        kernel: gpu.Kernel,
        *,
        tau: float,
        precision: str,
        alpha: float,
        block: int,
    ) -> None:
        self.devices, self.shape, self.kernel = tuple(devices), shape, kernel
        self.tau, self.precision, self.alpha, self.block = tau, precision, alpha, block
        self.dtype, self.output = PRECISIONS[precision]
        self.norm = "float64" if self.dtype == "float64" else "float32"
        self.lanes: list[_Lane] = []
        #: Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid.
        self.grain = (1, 1, 1)
        self._started = {index: _event(index) for index in dict.fromkeys(devices)}
        #: Whether every device reads and writes the others' memory.
        self.connected = _connect(self.devices)

    def lane(self, index: int) -> _Lane:
        """Return a new stream of a device; it takes part in every call."""
        self.lanes.append(_Lane(index))
        return self.lanes[-1]

    def empty_map(self, rows: int, k: int) -> Any:
        """Return an empty norm map, k blocks along the last axis, on the current device."""
        import cupy

        return cupy.empty((gpu_launch.blocks(rows, self.block), gpu_launch.blocks(k, self.block)), self.norm)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return a norm map, whose parts lie on several devices, on the first device."""
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            whole = cupy.empty((sum(map(len, parts)), parts[0].shape[1]), self.norm)
            stream, row = cupy.cuda.get_current_stream(), 0
            for part in parts:
                if part.size:
                    cupy.cuda.runtime.memcpyAsync(
                        whole[row:].data.ptr, part.data.ptr, part.nbytes, cupy.cuda.runtime.memcpyDefault, stream.ptr
                    )
                row += len(part)
        return whole

    def product(self, a: Any, b: Any, out: Any, norms: Any) -> gpu.Product:
        """Return the prepared product of one part on the current device."""
        made = gpu.Product(a, b, out, norms, self.tau, precision=self.precision, alpha=self.alpha, kernel=self.kernel)
        self.grain = made.grain
        return made

    def __call__(self) -> None:
        """Enqueue everything; the current stream of every device waits for its end, and nothing else does."""
        import cupy

        first = self.devices[0]
        # A capture may wait for nothing outside it: the other devices' streams are left alone there.
        capturing = cupy.cuda.get_current_stream(first).is_capturing()
        outside = [first] if capturing else list(self._started)
        for index in outside:
            # The default stream is that of the current device, whichever device its object came from.
            with cupy.cuda.Device(index):
                cupy.cuda.get_current_stream().record(self._started[index])
        for lane in self.lanes:
            lane.rewind()
            lane.wait(*(self._started[index] for index in outside if index in (first, lane.device)))
        self._enqueue()
        ends = [(lane.device, lane.mark()) for lane in self.lanes]
        for index in outside:
            with cupy.cuda.Device(index):
                stream = cupy.cuda.get_current_stream()
                for device_of_lane, end in ends:
                    if index in (first, device_of_lane):
                        stream.wait_event(end)

    @abstractmethod
    def _enqueue(self) -> None: ...

    @abstractmethod
    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""

    @abstractmethod
    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a `SpammResult`, each read when asked for."""
        return {
            "tau": self.tau,
            "valid_ratio": lambda: self._ratio((1, 1, 1)),
            "executed_ratio": lambda: self._ratio(self.grain),
            "error_bound": self._error_bound,
            "norm_c": lambda: math.sqrt(sum(_square_sum(part) for part in self.outputs())),
        }

    def _ratio(self, grain: tuple[int, int, int]) -> float:
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            maps = self.maps()
            count = gpu.count_products(maps, (0, 0), cupy.asarray([self.tau]), grain)
            return float(count[0]) / (maps.a.size * maps.b.shape[0])

    def _error_bound(self) -> float:
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            maps = self.maps()
            skipped = float(gpu.skipped_bound(maps, (0, 0), cupy.asarray([self.tau])))
            return abs(self.alpha) * skipped + gpu_survey.rounding(
                self.shape, maps.a, maps.b, self.precision, self.alpha
            )


def _square_sum(part: Any) -> float:
    if isinstance(part, np.ndarray):
        return float(sum(np.vdot(x, x) for x in (part[i : i + 64].astype(np.float64) for i in range(0, len(part), 64))))
    with part.device:
        return gpu_survey.frobenius(part) ** 2


def _connect(devices: Sequence[int]) -> bool:
    """Let the devices read and write one another's memory; return whether all can.  Copies go by the host elsewhere."""
    import cupy

    runtime, connected = cupy.cuda.runtime, True
    for index, peer in itertools.permutations(dict.fromkeys(devices), 2):
        if runtime.deviceCanAccessPeer(index, peer):
            with cupy.cuda.Device(index):
                runtime._deviceEnsurePeerAccess(peer)
        else:
            connected = False
    return connected


def _choose(
    shape: tuple[int, int, int], arrays: Sequence[Sequence[Any]], block: int, precision: str, strict: bool
) -> gpu.Kernel:
    """Return the kernel that one GPU would use for the whole product of these parts or copies of A and of B."""
    like_a, like_b = (
        SimpleNamespace(
            shape=size,
            strides=(math.gcd(*(part.strides[0] for part in parts)), parts[0].strides[1]),
            data=SimpleNamespace(ptr=math.gcd(*(part.data.ptr for part in parts))),
        )
        for size, parts in zip((shape[:2], shape[1:]), arrays, strict=True)
    )
    return gpu.choose_kernel(like_a, like_b, 1, block, precision, strict)


class Resident(_Plan):
    """The product where every GPU holds its rows of A and all of B; its rows of C stay there.

    Parameters
    ----------
    a : sequence of cupy.ndarray, shapes (m_p, k)
        Rows of A in order, cut as by :func:`distribute`, one part a device.
    b : sequence of cupy.ndarray, shape (k, n)
        Copies of B on the same devices.
    out : sequence of cupy.ndarray, shapes (m_p, n), optional
        Receive the rows of C; made here by default.
    tau, precision, alpha, block, strict
        As in :func:`spectile.spamm`.
    """

    def __init__(
        self,
        a: Sequence[Any],
        b: Sequence[Any],
        out: Sequence[Any] | None,
        *,
        tau: float,
        precision: str,
        alpha: float = 1.0,
        block: int = 32,
        strict: bool = False,
    ) -> None:
        import cupy

        devices = [part.device.id for part in a]
        shape = (sum(part.shape[0] for part in a), *b[0].shape)
        with cupy.cuda.Device(devices[0]):
            kernel = _choose(shape, (a, b), block, precision, strict)
        super().__init__(devices, shape, kernel, tau=tau, precision=precision, alpha=alpha, block=block)
        self._shared = b[0].nbytes >= SHARED_NORM_BYTES and len(a) > 1
        panels = partition.panels(shape[2], len(a)) if self._shared else [(0, shape[2])] * len(a)
        panels += [(0, 0)] * (len(a) - len(panels))
        self.out: list[Any] = []
        self._parts: list[_ResidentPart] = []
        for number, (index, (first, last)) in enumerate(zip(devices, panels, strict=True)):
            with cupy.cuda.Device(index):
                mine, copy = a[number], b[number]
                target = cupy.empty((len(mine), shape[2]), self.output) if out is None else out[number]
                norms_a, norms_b = (self.empty_map(size, shape[1]) for size in (len(mine), shape[2]))
                panel = slice(first // block, gpu_launch.blocks(last, block))
                maps = gpu.NormMaps(mine, copy[:, first:last], block, (norms_a, norms_b[panel]))
                norms = gpu.Norms(norms_a, norms_b, block, maps.counter)
                product = self.product(mine, copy, target, norms) if target.size else None
            self.out.append(target)
            self._parts.append(_ResidentPart(self.lane(index), maps, norms, panel, product))

    def _enqueue(self) -> None:
        for part in self._parts:
            with part.lane.current():
                part.maps()
        if self._shared:
            # The first device collects the map of B from the panels and hands it to the others.
            main, *others = self._parts
            whole = main.norms.b
            for part in others:
                part.lane.copy(whole[part.panel], part.norms.b[part.panel])
                main.lane.wait(part.lane.mark())
            complete = main.lane.mark()
            for part in others:
                part.lane.wait(complete)
                part.lane.copy(part.norms.b, whole)
        for part in self._parts:
            if part.product is not None:
                with part.lane.current():
                    part.product()

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        whole = self.joined([part.norms.a for part in self._parts])
        return gpu.Norms(whole, self._parts[0].norms.b, self.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self.out


@dataclass
class _ResidentPart:
    lane: _Lane
    maps: gpu.NormMaps
    norms: gpu.Norms
    panel: slice
    product: gpu.Product | None


class ResidentColumns(_Plan):
    """The product where every GPU holds all of A and its columns of B; its columns of C stay there.

    For products of few rows, as of a network's layers: units of 128 rows would not go round.

    Parameters
    ----------
    a : sequence of cupy.ndarray, shape (m, k)
        Copies of A, one a device.
    b : sequence of cupy.ndarray, shapes (k, n_p)
        Columns of B in order on the same devices, cut as by :func:`distribute_columns`.
    out : sequence of cupy.ndarray, shapes (m, n_p)
        Receive the columns of C.
    tau, precision, alpha, block, strict
        As in :func:`spectile.spamm`.
    """

    def __init__(
        self,
        a: Sequence[Any],
        b: Sequence[Any],
        out: Sequence[Any],
        *,
        tau: float,
        precision: str,
        alpha: float = 1.0,
        block: int = 32,
        strict: bool = False,
    ) -> None:
        import cupy

        shape = (*a[0].shape, sum(part.shape[1] for part in b))
        with cupy.cuda.Device(a[0].device.id):
            kernel = _choose(shape, (a, b), block, precision, strict)
        devices = [part.device.id for part in b]
        super().__init__(devices, shape, kernel, tau=tau, precision=precision, alpha=alpha, block=block)
        self.out = list(out)
        self._parts: list[tuple[_Lane, gpu.NormMaps, gpu.Product]] = []
        for index, copy, mine, target in zip(devices, a, b, out, strict=True):
            with cupy.cuda.Device(index):
                maps = gpu.NormMaps(copy, mine, block)
                self._parts.append((self.lane(index), maps, self.product(copy, mine, target, maps)))

    def _enqueue(self) -> None:
        for lane, maps, product in self._parts:
            with lane.current():
                maps()
                product()

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        whole = self.joined([maps.b for _, maps, _ in self._parts])
        return gpu.Norms(self._parts[0][1].a, whole, self.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self.out


class FromDevice(_Plan):
    """The product where A, B and C lie on the first device.

    Parameters
    ----------
    a, b, out : cupy.ndarray, shapes (m, k), (k, n), (m, n)
        On one device.
    devices : sequence of int
        The first is that device.
    tau, precision, alpha, block, strict
        As in :func:`spectile.spamm`.
    maps : gpu.NormMaps, optional
        Of `a` and `b`, already computed.  The rows are cut by them once, when the plan is made; every call computes the
        maps anew.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out: Any,
        devices: Sequence[int],
        *,
        tau: float,
        precision: str,
        alpha: float = 1.0,
        block: int = 32,
        strict: bool = False,
        maps: gpu.NormMaps | None = None,
    ) -> None:
        import cupy

        shape = (*a.shape, b.shape[1])
        with cupy.cuda.Device(devices[0]):
            kernel = _choose(shape, ([a], [b]), block, precision, strict)
            if maps is None:
                maps = gpu.NormMaps(a, b, block)
                maps()
            super().__init__(devices, shape, kernel, tau=tau, precision=precision, alpha=alpha, block=block)
            self._maps = maps
            self.out = out
            self._norms = gpu.Norms(maps.a, maps.b, block, maps.counter)
            panels = partition.panels(shape[2])
            work = row_work(maps, tau, shape[0])
            seconds = 2.0 * float(work.sum()) * math.prod(shape) / partition.RATES[precision]
            # Two digits of the time are enough, and let one answer serve many calls.
            shares = partition.shares(
                len(devices), float(f"{seconds:.2g}"), a.nbytes, b.nbytes, out.nbytes, len(panels)
            )
            rows = [min(partition.ROW_UNIT * cut, shape[0]) for cut in partition.cut_rows(work, shares)]
            self._first = self.product(a[: rows[1]], b, out[: rows[1]], self._norms_of(0, rows[1])) if rows[1] else None
        self._keep = a, b
        self._main, self._sender = self.lane(devices[0]), self.lane(devices[0])
        self._parts = [
            _Part(self, index, first, last, panels)
            for index, first, last in zip(devices[1:], rows[1:-1], rows[2:], strict=True)
            if first < last
        ]
        source, lane = b, self._sender
        for part in self._parts:
            part.connect(a, source, lane, self._sender, self._norms)
            source, lane = part.b, part.sender
        self.rows = rows
        self._order = partition.schedule(len(self._parts) + 1, len(panels)) if self._parts else []

    def _norms_of(self, first: int, last: int) -> gpu.Norms:
        whole = self._norms
        return gpu.Norms(
            whole.a[first // self.block : gpu_launch.blocks(last, self.block)], whole.b, self.block, whole.counter
        )

    def _enqueue(self) -> None:
        main = self._main
        with main.current():
            self._maps()
        measured = main.mark()
        if self._first is not None:
            with main.current():
                self._first()
        ready: list[_Part] = []
        for kind, index in self._order:
            if kind == "a":
                part = self._parts[index - 1]
                part.get_rows()
                # The norms follow in the same queue: a copy that `part` pulled would wait for all that are pushed here.
                self._sender.wait(measured)
                part.get_norms()
                part.begin(self._sender.mark())
                ready.append(part)
            else:
                self._send(index)
            for part in ready:
                part.multiply_arrived()

    def _send(self, panel: int) -> None:
        """Pass a panel of B round the ring, piece by piece."""
        for piece in range(len(self._parts[0].get_pieces[panel])):
            lane, before = self._sender, None
            for part in self._parts:
                if before is not None:
                    lane.wait(before)
                part.get_pieces[panel][piece]()
                before = part.arrived[panel] = lane.mark()
                lane = part.sender

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        return self._norms

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]


class _Part:
    """What a device other than the first holds and does in `FromDevice`."""

    def __init__(self, plan: FromDevice, index: int, first: int, last: int, panels: list[tuple[int, int]]) -> None:
        import cupy

        _, k, n = plan.shape
        block = plan.block
        self.rows, self.norm_rows = slice(first, last), slice(first // block, gpu_launch.blocks(last, block))
        #: Panels of B on their way or here, not multiplied yet, and the events after which they are here.
        self.arrived: dict[int, Any] = {}
        # Panels are multiplied in two streams, so that one fills the multiprocessors that the other's end leaves idle.
        self.lanes = plan.lane(index), plan.lane(index)
        self.sender, self.back = plan.lane(index), plan.lane(index)
        target = plan.out[first:last]
        needed = np.dtype(plan.dtype).itemsize * k * (last - first + n) + (0 if plan.connected else target.nbytes)
        with cupy.cuda.Device(index), device.allocating(f"the product's part on device {index}", needed):
            self.a, self.b = cupy.empty((last - first, k), plan.dtype), cupy.empty((k, n), plan.dtype)
            # Products write into the first device's memory: copies would queue behind those of B.
            self.c = target if plan.connected else cupy.empty(target.shape, plan.output)
            self.norms_a, self.norms_b = plan.empty_map(last - first, k), plan.empty_map(n, k)
            self.counters = cupy.zeros(len(panels), cupy.uint32)
            self.panels = [slice(*panel) for panel in panels]
            self.products = [
                plan.product(
                    self.a, self.b[:, columns], self.c[:, columns],
                    gpu.Norms(
                        self.norms_a, self.norms_b[columns.start // block : gpu_launch.blocks(columns.stop, block)],
                        block, self.counters[number : number + 1],
                    ),
                )
                for number, columns in enumerate(self.panels)
            ]  # fmt: skip
        self.put_panels = [
            None if plan.connected else self.back.copying(target[:, columns], self.c[:, columns])
            for columns in self.panels
        ]

    def connect(self, a: Any, b: Any, lane: _Lane, first: _Lane, norms: gpu.Norms) -> None:
        """Prepare the copies: rows of A and norms from the first device, B from the device before."""
        self.get_rows = first.copying(self.a, a[self.rows])
        self._get_norms = (
            first.copying(self.norms_a, norms.a[self.norm_rows]),
            first.copying(self.norms_b, norms.b),
        )
        rows = [slice(*piece) for piece in partition.pieces(len(b))]
        self.get_pieces = [
            [lane.copying(self.b[piece, columns], b[piece, columns]) for piece in rows] for columns in self.panels
        ]

    def get_norms(self) -> None:
        """Enqueue the copies of the norm maps."""
        for copy in self._get_norms:
            copy()

    def begin(self, here: Any) -> None:
        """Let products wait for rows of A and norms to be here."""
        with self.lanes[0].current():
            self.counters.data.memset_async(0, self.counters.nbytes)
        zeroed = self.lanes[0].mark()
        for lane in self.lanes:
            lane.wait(here, zeroed)

    def multiply_arrived(self) -> None:
        """Multiply with the panels of B that were sent, each when it is here."""
        for panel, arrived in self.arrived.items():
            lane, put = self.lanes[panel % 2], self.put_panels[panel]
            lane.wait(arrived)
            with lane.current():
                self.products[panel]()
            if put is not None:
                self.back.wait(lane.mark())
                put()
        self.arrived.clear()


class FromHost(_Plan):
    """The product where A, B and C lie in host memory, which is fast where it is pinned (`cupyx.empty_pinned`).

    Parameters
    ----------
    a, b, out : numpy.ndarray, shapes (m, k), (k, n), (m, n)
        Rows are contiguous.
    devices : sequence of int
        Blocks of rows are dealt to them in turn, which evens their work without knowing it.
    tau, precision, alpha, block, strict
        As in :func:`spectile.spamm`.
    memory_bytes : int, optional
        What each device may hold: B and two blocks of rows of A and C each.  By default what is free.

    Raises
    ------
    MemoryError
        If B and two blocks of 128 rows do not fit.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out: Any,
        devices: Sequence[int],
        *,
        tau: float,
        precision: str,
        alpha: float = 1.0,
        block: int = 32,
        strict: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        import cupy

        shape = (*a.shape, b.shape[1])
        with cupy.cuda.Device(devices[0]):
            # One GPU would multiply aligned copies, as these parts are.
            kernel = _choose(shape, ([_Aligned(a)], [_Aligned(b)]), block, precision, strict)
        super().__init__(devices, shape, kernel, tau=tau, precision=precision, alpha=alpha, block=block)
        self.a, self.b, self.out = a, b, out
        height = self._height(memory_bytes)
        blocks = partition.dealt(shape[0], height, len(devices))
        self._panels = [slice(*panel) for panel in partition.panels(shape[2], partition.HOST_PANELS)]
        #: Rows of a panel that each part reads from the host.
        self._pieces = [slice(*piece) for piece in partition.pieces(shape[1], len(devices))]
        self._parts = [_HostPart(self, index, mine, height) for index, mine in zip(devices, blocks, strict=True)]

    def _height(self, memory_bytes: int | None) -> int:
        """Return the rows of a block, as many as fit twice beside B on every device."""
        import cupy

        m, k, n = self.shape
        itemsize, output = np.dtype(self.dtype).itemsize, np.dtype(self.output).itemsize
        norms = np.dtype(self.norm).itemsize * (gpu_launch.blocks(m, self.block) + gpu_launch.blocks(n, self.block))
        fixed = itemsize * k * n + norms * gpu_launch.blocks(k, self.block) + (8 << 20)
        row = 2 * (itemsize * k + output * n)
        height = partition.block_height(m, len(self.devices), max(m, partition.ROW_UNIT))
        for index in dict.fromkeys(self.devices):
            with cupy.cuda.Device(index):
                free = free_bytes() if memory_bytes is None else memory_bytes
            here = self.devices.count(index)
            height = min(height, partition.block_height(m, len(self.devices), max(0, (free // here - fixed) // row)))
            if height == 0:
                raise MemoryError(
                    f"the product of shapes {self.a.shape} and {self.b.shape} in blocks of {partition.ROW_UNIT} "
                    f"rows needs {here * (fixed + row * partition.ROW_UNIT):,} bytes of device memory and device "
                    f'{index} has {free:,} free: free other arrays, split b by columns, or use backend="cpu"'
                )
        return height

    def _enqueue(self) -> None:
        for number, columns in enumerate(self._panels):
            self._share(columns)
            for part in self._parts:
                if number == 0 and part.blocks:
                    part.read(0, self.a)
                part.multiply_panel(number, self.out)
        for turn in range(1, max(len(part.blocks) for part in self._parts)):
            for part in self._parts:
                if turn < len(part.blocks):
                    part.multiply(turn, self.a, self.out)

    def _share(self, columns: slice) -> None:
        """Read a panel of B, every part its rows, and pass them on to the other parts."""
        for owner, rows in enumerate(self._pieces):
            reader = self._parts[owner]
            reader.reader.copy(reader.b[rows, columns], self.b[rows, columns])
            read = reader.reader.mark()
            reader.lane.wait(read)
            reader.sender.wait(read)
            # Each reader begins with its neighbour, so that no device receives from all at once.
            for step in range(1, len(self._parts)):
                other = self._parts[(owner + step) % len(self._parts)]
                reader.sender.copy(other.b[rows, columns], reader.b[rows, columns])
                other.lane.wait(reader.sender.mark())

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        blocks = [part.norms_a[turn] for turn in range(len(self._parts[0].blocks)) for part in self._parts
                  if turn < len(part.blocks)]  # fmt: skip
        return gpu.Norms(self.joined(blocks), self._parts[0].norms_b, self.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]

    def check_finite(self) -> None:
        """Raise ValueError where A or B holds NaN or infinity; synchronises."""
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            gpu_norms.check_norms(self.maps(), self.a, self.b)


class _HostPart:
    """What a device holds and does in `FromHost`: B, and two buffers for blocks of rows of A and C each."""

    def __init__(self, plan: FromHost, index: int, blocks: list[tuple[int, int]], height: int) -> None:
        import cupy

        _, k, n = plan.shape
        self.blocks = [slice(*rows) for rows in blocks]
        self.lane, self.reader, self.sender, self.back = (plan.lane(index) for _ in range(4))
        slots = min(2, len(blocks))
        with cupy.cuda.Device(index):
            self.b = cupy.empty((k, n), plan.dtype)
            self.a = [cupy.empty((height, k), plan.dtype) for _ in range(slots)]
            self.c = [cupy.empty((height, n), plan.output) for _ in range(slots)]
            self.norms_b = plan.empty_map(n, k)
            self.norms_a: list[Any] = []
            self._steps: list[tuple[gpu.NormMaps, gpu.Product]] = []
            for turn, (first, last) in enumerate(blocks):
                mine, target = self.a[turn % 2][: last - first], self.c[turn % 2][: last - first]
                norms = plan.empty_map(last - first, k)
                columns = cupy.empty((k, 0), plan.dtype)
                maps = gpu.NormMaps(mine, columns, plan.block, (norms, plan.empty_map(0, k)))
                product = plan.product(mine, self.b, target, gpu.Norms(norms, self.norms_b, plan.block, maps.counter))
                self.norms_a.append(norms)
                self._steps.append((maps, product))
            #: Norms of a panel of B, and the first block's product with it.
            self._panels = [self._panel(plan, columns) for columns in plan._panels]
        self._multiplied: list[Any] = [None] * slots
        self._taken: list[Any] = [None] * slots

    def _panel(self, plan: FromHost, columns: slice) -> tuple[slice, gpu.NormMaps, gpu.Product | None]:
        import cupy

        _, k, _ = plan.shape
        norms_b = self.norms_b[columns.start // plan.block : gpu_launch.blocks(columns.stop, plan.block)]
        nothing = cupy.empty((0, k), plan.dtype)
        maps = gpu.NormMaps(nothing, self.b[:, columns], plan.block, (plan.empty_map(0, k), norms_b))
        if not self.blocks:
            return columns, maps, None
        count = self.blocks[0].stop - self.blocks[0].start
        norms = gpu.Norms(self.norms_a[0], norms_b, plan.block, maps.counter)
        return columns, maps, plan.product(self.a[0][:count], self.b[:, columns], self.c[0][:count, columns], norms)

    def read(self, turn: int, a: Any) -> None:
        """Read a block of rows of A and take its norms, as soon as a buffer is free."""
        rows, slot = self.blocks[turn], turn % 2
        if turn >= 2:
            self.reader.wait(self._multiplied[slot])
        self.reader.copy(self.a[slot][: rows.stop - rows.start], a[rows])
        self.lane.wait(self.reader.mark())
        with self.lane.current():
            self._steps[turn][0]()

    def multiply_panel(self, number: int, out: Any) -> None:
        """Take the norms of a panel of B, multiply the first block with it, and write these columns of C."""
        columns, maps, product = self._panels[number]
        with self.lane.current():
            maps()
            if product is not None:
                product()
        if product is not None:
            self._write(0, columns, out)

    def multiply(self, turn: int, a: Any, out: Any) -> None:
        """Multiply a further block of rows of A with all of B, and write its rows of C."""
        self.read(turn, a)
        if turn >= 2:
            self.lane.wait(self._taken[turn % 2])
        with self.lane.current():
            self._steps[turn][1]()
        self._write(turn, slice(None), out)

    def _write(self, turn: int, columns: slice, out: Any) -> None:
        rows, slot = self.blocks[turn], turn % 2
        self._multiplied[slot] = self.lane.mark()
        self.back.wait(self._multiplied[slot])
        self.back.copy(out[rows, columns], self.c[slot][: rows.stop - rows.start, columns])
        self._taken[slot] = self.back.mark()


class _Aligned:
    """A host matrix as the contiguous copy of it on a device looks to the choice of the kernel."""

    def __init__(self, matrix: Any) -> None:
        self.shape, self.strides = matrix.shape, (matrix.shape[1] * matrix.itemsize, matrix.itemsize)
        self.data = SimpleNamespace(ptr=0)


def free_bytes() -> int:
    """Return the bytes that the current device can still allocate, within the limit of CuPy's memory pool."""
    import cupy

    pool = cupy.get_default_memory_pool()
    free = device.free_bytes()
    limit = pool.get_limit()
    return min(free, limit - pool.used_bytes()) if limit else free


def fits(a: Any, b: Any, output: str) -> bool:
    """Return whether copies of two host matrices and their product fit the current device, which may be none."""
    device.require_device()
    size = a.nbytes + b.nbytes + a.shape[0] * b.shape[1] * np.dtype(output).itemsize
    return size + size // 20 <= free_bytes()


def current_device() -> list[int]:
    """Return the id of the current device, as a list of devices."""
    import cupy

    return [cupy.cuda.Device().id]


def row_work(maps: Any, tau: float, rows: int) -> Any:
    """Return the share of the whole product that each unit of 128 rows of C multiplies.

    Parameters
    ----------
    maps : gpu.NormMaps
        Of A and B, computed; on the current device, whose current stream is synchronised.
    tau : float
        Threshold.
    rows : int
        Rows of C.

    Returns
    -------
    ndarray, shape (units,)
        Candidate tile products over units of rows and 256 columns, relative to all tile products.
    """
    unit = partition.ROW_UNIT
    high = _pooled(maps.a, unit // maps.block)
    wide = _pooled(maps.b, max(1, partition.COLUMN_UNIT // maps.block))
    count = _candidates()(high[:, None], wide[None], high.dtype.type(tau), axis=(1, 2)).get()
    units = -(-rows // unit)
    height = np.minimum(unit, rows - unit * np.arange(units))
    return count * height / (float(wide.size) * rows)


def _pooled(norms: Any, size: int) -> Any:
    """Return the largest norm of every `size` rows of a map."""
    import cupy

    padded = cupy.zeros((gpu_launch.blocks(len(norms), size) * size, norms.shape[1]), norms.dtype)
    padded[: len(norms)] = norms
    return padded.reshape(-1, size, norms.shape[1]).max(axis=1)


@functools.cache
def _candidates() -> Any:
    import cupy

    # A product that is not a number is not below tau.
    return cupy.ReductionKernel(
        "T a, T b, T tau", "int64 n", "a * b < tau ? 0 : 1", "a + b", "n = a", "0", "candidates"
    )


def device_list(devices: int | Sequence[int]) -> list[int]:
    """Return the ids of the devices asked for: the first so many, or those named.

    Raises
    ------
    ValueError
        If there are fewer.
    """
    device.require_device()
    import cupy

    visible = cupy.cuda.runtime.getDeviceCount()
    found = list(range(devices)) if isinstance(devices, (int, np.integer)) else [int(index) for index in devices]
    if not found or min(found) < 0 or max(found) >= visible:
        raise ValueError(
            f"devices = {devices!r}: {visible} are visible, name some of 0 to {visible - 1} or their number"
        )
    return found


def distribute(
    a: Any, b: Any, tau: float, devices: int | Sequence[int], *, block: int = 32
) -> tuple[list[Any], list[Any]]:
    """Copy A's rows, cut so that their work is even, and all of B to devices; see :func:`spectile.spamm.distribute`."""
    import cupy

    found = device_list(devices)
    _connect(found)
    with cupy.cuda.Device(found[0]):
        # Host arrays go to the first device, where their norms are taken.
        a, b = (gpu_launch.row_major(n, device.to_device(x)[0], on_device=True) for n, x in (("a", a), ("b", b)))
        maps = gpu.NormMaps(a, b, block)
        if a.size or b.size:
            maps()
        work = row_work(maps, tau, a.shape[0])
        cuts = partition.cut_rows(work, np.ones(len(found)))
        _synchronize()
    rows = [min(partition.ROW_UNIT * cut, a.shape[0]) for cut in cuts]
    return _copied([a[first:last] for first, last in itertools.pairwise(rows)], found), _copied([b] * len(found), found)


def distribute_columns(a: Any, b: Any, devices: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Copy all of A and columns of B, in parts as equal as units of 256 allow, to devices; for `ResidentColumns`.

    Parameters
    ----------
    a, b : cupy.ndarray, shapes (m, k), (k, n)
        On one device.
    devices : sequence of int
        At most one for each 256 columns.

    Raises
    ------
    ValueError
        If there are more devices than units of columns.

    Returns
    -------
    a_parts : list of cupy.ndarray, shape (m, k)
        Copies of A.
    b_parts : list of cupy.ndarray, shapes (k, n_p)
        Columns of B in order.
    """
    _connect(devices)
    n, units = b.shape[1], -(-b.shape[1] // partition.COLUMN_UNIT)
    if units < len(devices):
        raise ValueError(f"{n} columns are {units} units of whole tiles, too few for {len(devices)} devices: use fewer")
    cuts = partition.cut_rows(np.ones(units), np.ones(len(devices)))
    columns = [min(partition.COLUMN_UNIT * cut, n) for cut in cuts]
    parts = [b[:, first:last] for first, last in itertools.pairwise(columns)]
    with b.device:
        _synchronize()
    return _copied([a] * len(devices), devices), _copied(parts, devices)


def _copied(parts: Sequence[Any], devices: Sequence[int]) -> list[Any]:
    """Return copies of device arrays, one on each device, when they are there."""
    import cupy

    found = []
    for source, index in zip(parts, devices, strict=True):
        lane = _Lane(index)
        with cupy.cuda.Device(index), device.allocating(f"a copy on device {index}", source.nbytes):
            found.append(cupy.empty(source.shape, source.dtype))
            _synchronize()
            lane.copy(found[-1], source)
        lane.stream.synchronize()
    return found


def _synchronize() -> None:
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def spamm_devices(
    a: Any,
    b: Any,
    *,
    tau: float | None,
    valid_ratio: float | None,
    rtol: float | None,
    block: int,
    alpha: float,
    out: Any,
    strict: bool,
    precision: str,
    check_finite: bool,
    devices: Sequence[int],
) -> SpammResult:
    """Multiply on several devices; see :func:`spectile.spamm.spamm`."""
    import cupy

    options: dict[str, Any] = {"precision": precision, "alpha": alpha, "block": block, "strict": strict}
    plan: Any
    gpu_launch.log2(block)
    if isinstance(a, list | tuple):
        if tau is None:
            raise ValueError("distributed operands need tau: search it with tune_tau before they are distributed")
        if not all(device.on_device(part) for part in (*a, *b, *(out or ()))):
            raise ValueError("distributed operands are GPU arrays, one a device: see distribute")
        mine, copies, targets = ([part for part, _ in _on_devices(parts, devices)] for parts in (a, b, out or ()))
        plan = Resident(mine, copies, targets or None, tau=tau, **options)
        plan()
        result = out
        if out is None:
            result = [give(part) for (_, give), part in zip(_on_devices(a, devices), plan.out, strict=True)]
    elif device.on_device(a):
        (a_, give_back), (b_, _) = device.to_device(a), device.to_device(b)
        if a_.device.id not in devices or b_.device != a_.device:
            raise ValueError(
                f"a and b lie on devices {a_.device.id} and {b_.device.id}: both must lie on one of devices = {devices}"
            )
        order = sorted(devices, key=lambda index: index != a_.device.id)
        with a_.device:
            a_, b_ = (gpu_launch.row_major(name, x, on_device=True) for name, x in (("a", a_), ("b", b_)))
            target = cupy.empty((a_.shape[0], b_.shape[1]), PRECISIONS[precision][1]) if out is None else out
            target = device.to_device(target)[0]
            maps = gpu.NormMaps(a_, b_, block)
            maps()
            if check_finite or tau is None:
                gpu_norms.check_norms(maps, a_, b_)
            if valid_ratio is not None:
                tau = float(gpu.search_tau(maps, (0, 0), valid_ratio)[0][0])
            elif rtol is not None:
                tau = gpu_survey.tau_for_error(maps, (0, 0), rtol, (*a_.shape, b_.shape[1]), precision)
            assert tau is not None
            plan = FromDevice(a_, b_, target, order, tau=tau, maps=maps, **options)
            plan()
        result = give_back(target) if out is None else out
    else:
        a, b = (x if x.strides[1] == x.itemsize and x.strides[0] > 0 else np.ascontiguousarray(x) for x in (a, b))
        if tau is None:
            tau = _host_threshold(a, b, valid_ratio, rtol, block, precision)
        result = np.empty((a.shape[0], b.shape[1]), PRECISIONS[precision][1]) if out is None else out
        plan = FromHost(a, b, result, devices, tau=tau, **options)
        plan()
        if check_finite:
            plan.check_finite()
        for index in plan.devices:
            with cupy.cuda.Device(index):
                _synchronize()
    if check_finite and precision == "fp16c16" and any(_overflows(part) for part in plan.outputs()):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    return SpammResult(result, **plan.numbers())


def _on_devices(parts: Sequence[Any], devices: Sequence[int]) -> list[tuple[Any, Callable[[Any], Any]]]:
    """Return each part as a CuPy array of its device, and the function that gives one back in its kind."""
    import cupy

    found = []
    for part, index in zip(parts, devices, strict=False):
        # CuPy would copy what lies on another than the current device.
        with cupy.cuda.Device(index):
            found.append(device.to_device(part))
    return found


def _host_threshold(a: Any, b: Any, valid_ratio: float | None, rtol: float | None, block: int, precision: str) -> float:
    """Search tau from norm maps that the CPU takes: no device need hold both matrices."""
    from . import cpu
    from .bounds import rounding_bound

    def rounding(norm_a: float, norm_b: float) -> float:
        lost = gpu_survey.TF32X3_ROUNDOFF if precision == "tf32x3" else 0.0
        return rounding_bound((*a.shape, b.shape[1]), norm_a, norm_b, precision, product_roundoff=lost)

    maps = cpu.norm_map(a, block), cpu.norm_map(b, block)
    cpu._check_norms(*maps, required=True)
    return cpu._threshold(*maps, None, valid_ratio, rtol, rounding)


def _overflows(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return bool(np.isinf(part).any())
    with part.device:
        return bool(abs(part).max() == math.inf) if part.size else False
