"""What the plans of SpAMM over several GPUs share: how a product is asked for, streams, threshold and numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from spectile.nearsparse.api import PRECISIONS
from spectile.nearsparse.cuda import norms as gpu_norms
from spectile.nearsparse.cuda import product as gpu_product
from spectile.nearsparse.cuda import survey as gpu_survey
from spectile.nearsparse.cuda.launch import blocks
from spectile.nearsparse.cuda.units import Kernel
from spectile.nearsparse.multi.streams import Lane, address, connect, event


@dataclass(frozen=True)
class Options:
    """A request for a product, as :func:`spectile.nearsparse.spamm` takes it; one of the first three is given."""

    precision: str
    tau: float | None = None
    valid_ratio: float | None = None
    rtol: float | None = None
    alpha: float = 1.0
    beta: float = 0.0
    block: int = 32
    strict: bool = False
    check_finite: bool = False

    @property
    def dtype(self) -> str:
        """Of A and B."""
        return PRECISIONS[self.precision][0]

    @property
    def output(self) -> str:
        """Dtype of C."""
        return PRECISIONS[self.precision][1]

    @property
    def norm(self) -> str:
        """Dtype of the norms."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def measured_first(self) -> bool:
        """Whether norms are needed before anything is multiplied."""
        return self.tau is None or self.check_finite

    def empty_map(self, rows: int, k: int) -> Any:
        """Return an empty norm map, k blocks along the last axis, on the current device."""
        import cupy

        return cupy.empty((blocks(rows, self.block), blocks(k, self.block)), self.norm)

    def empty_operand(self, *shape: int) -> Any:
        """Return an empty operand on the current device; its rows begin at multiples of 16 bytes for every kernel."""
        import cupy

        unit = 16 // np.dtype(self.dtype).itemsize
        return cupy.empty((*shape[:-1], blocks(shape[-1], unit) * unit), self.dtype)[..., : shape[-1]]

    def threshold(self, maps: Any, shape: tuple[int, int, int], item: tuple[int, int] = (0, 0)) -> float:
        """Return tau, searched in norm maps on the current device where it is not given."""
        if self.tau is not None:
            return float(self.tau)
        if self.valid_ratio is not None:
            return float(gpu_survey.search_tau(maps, item, self.valid_ratio)[0][0])
        assert self.rtol is not None
        return gpu_survey.tau_for_error(maps, item, self.rtol, shape, self.precision)

    def host_threshold(self, a: np.ndarray, b: np.ndarray) -> float:
        """Return tau, searched in norm maps that the CPU takes: no device need hold both matrices."""
        if self.tau is not None:
            return float(self.tau)
        from spectile.nearsparse.bounds import rounding_bound
        from spectile.nearsparse.cpu import product as cpu

        def rounding(norm_a: float, norm_b: float) -> float:
            lost = gpu_survey.TF32X3_ROUNDOFF if self.precision == "tf32x3" else 0.0
            shape = *a.shape, b.shape[1]
            return rounding_bound(shape, norm_a, norm_b, self.precision, product_roundoff=lost)

        maps = cpu.norm_map(a, self.block), cpu.norm_map(b, self.block)
        cpu._check_norms(*maps, required=True)
        return cpu._threshold(*maps, None, self.valid_ratio, self.rtol, rounding)

    def kernel(self, shape: tuple[int, int, int], a: Sequence[Any], b: Sequence[Any], batches: int = 1) -> Kernel:
        """Return the kernel that one GPU would use for the whole product of these parts or copies of A and of B."""
        like_a, like_b = (
            SimpleNamespace(
                shape=size,
                strides=(math.gcd(*(part.strides[-2] for part in parts)), parts[0].strides[-1]),
                data=SimpleNamespace(ptr=math.gcd(*(part.data.ptr for part in parts))),
            )
            for size, parts in zip((shape[:2], shape[1:]), (a, b), strict=True)
        )
        return gpu_product.choose_kernel(like_a, like_b, batches, self.block, self.precision, self.strict)


class Plan(ABC):
    """What the placements share: streams that start after and end before the current streams, and the numbers."""

    def __init__(self, devices: Sequence[int], shape: tuple[int, int, int], kernel: Kernel, asked: Options) -> None:
        self.devices, self.shape, self.kernel, self.asked = tuple(devices), shape, kernel, asked
        self.tau = math.nan if asked.tau is None else float(asked.tau)
        self.lanes: list[Lane] = []
        #: Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid.
        self.grain = (1, 1, 1)
        self._started = {index: event(index) for index in dict.fromkeys(devices)}
        #: Whether every device reads and writes the others' memory.
        self.connected = connect(self.devices)
        #: Whether calls after the first replay a graph: what is enqueued is always the same, and takes the host long.
        self.replayed = False
        self._calls, self._graph, self._ended = 0, None, event(devices[0])
        self._norm_c: Callable[[], float] = float

    def lane(self, index: int) -> Lane:
        """Return a new stream of a device; it takes part in every call."""
        self.lanes.append(Lane(index))
        return self.lanes[-1]

    def product(self, a: Any, b: Any, out: Any, norms: Any, c: Any = None) -> gpu_product.Product:
        """Return the prepared product of one part on the current device."""
        asked = self.asked
        made = gpu_product.Product(
            a, b, out, norms, self.tau,
            precision=asked.precision, alpha=asked.alpha, beta=asked.beta, c=c, kernel=self.kernel,
        )  # fmt: skip
        self.grain = made.grain
        return made

    def add(self, c: Sequence[Any], out: Sequence[Any]) -> None:
        """Remember parts of the C that is added, for the error bound: their norms now where `out` overwrites them."""
        parts = [kept_norms(x, self.asked.block) for x in c] if any(overlap(x, y) for x in c for y in out) else c
        self._norm_c = lambda: math.sqrt(sum(map(square_sum, parts)))

    def __call__(self) -> None:
        """Enqueue everything; the current stream of every device waits for its end, and nothing else does."""
        import cupy

        if not self.replayed or cupy.cuda.get_current_stream(self.devices[0]).is_capturing():
            self._run(self._enqueue)
            return
        # The first call loads the kernels, which a capture must not.
        self._calls += 1
        if self._calls == 1:
            self._run(self._enqueue)
            return
        if self._graph is None:
            with cupy.cuda.Device(self.devices[0]), cupy.cuda.Stream(non_blocking=True) as stream:
                stream.begin_capture()
                try:
                    self._run(self._enqueue)
                finally:
                    self._graph = stream.end_capture()
        self._replay()

    def _replay(self) -> None:
        import cupy

        first, *others = self._started
        for index in others:
            with cupy.cuda.Device(index):
                cupy.cuda.get_current_stream().record(self._started[index])
        with cupy.cuda.Device(first):
            stream = cupy.cuda.get_current_stream()
            for index in others:
                stream.wait_event(self._started[index])
            self._graph.launch(stream)  # type: ignore[attr-defined]
            stream.record(self._ended)
        for index in others:
            with cupy.cuda.Device(index):
                cupy.cuda.get_current_stream().wait_event(self._ended)

    def _run(self, work: Callable[[], None]) -> None:
        """Enqueue `work` on the lanes, after the current streams' work and before what follows there."""
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
        work()
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

    @abstractmethod
    def release(self) -> None:
        """Give back what only further calls need: copies of operands.  The numbers can still be read."""

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return a norm map, whose parts lie on several devices, on the first device."""
        import cupy

        runtime = cupy.cuda.runtime
        with cupy.cuda.Device(self.devices[0]):
            whole = cupy.empty((sum(map(len, parts)), parts[0].shape[1]), self.asked.norm)
            stream, row = cupy.cuda.get_current_stream(), 0
            for part in parts:
                if part.size:
                    end = part.nbytes, runtime.memcpyDefault, stream.ptr
                    runtime.memcpyAsync(whole[row:].data.ptr, part.data.ptr, *end)
                row += len(part)
        return whole

    def check_finite(self, a: Any, b: Any) -> None:
        """Raise ValueError where A or B, each whole or in parts, holds NaN or infinity; synchronises."""
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            gpu_norms.check_norms(self.maps(), a, b)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a `SpammResult`, each read when asked for."""
        return {
            "tau": self.tau,
            "valid_ratio": lambda: self._ratio((1, 1, 1)),
            "executed_ratio": lambda: self._ratio(self.grain),
            "error_bound": self._error_bound,
            "norm_c": lambda: math.sqrt(sum(map(square_sum, self.outputs()))),
        }

    def _ratio(self, grain: tuple[int, int, int]) -> float:
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            return ratio(self.maps(), (0, 0), self.tau, grain)

    def _error_bound(self) -> float:
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            return error_bound(self.maps(), (0, 0), self.tau, self.shape, self.asked, self._norm_c())


def ratio(maps: Any, item: tuple[int, int], tau: float, grain: tuple[int, int, int]) -> float:
    """Return the share of the tile products of an item of a batch that are valid, or executed at a coarser grain."""
    import cupy

    norms_a, norms_b = maps.of(item)
    count = gpu_survey.count_products(maps, item, cupy.asarray([tau]), grain)
    return float(count[0]) / (norms_a.size * norms_b.shape[0])


def error_bound(
    maps: Any, item: tuple[int, int], tau: float, shape: tuple[int, int, int], asked: Options, norm_c: float
) -> float:
    """Return the bound of the error of an item of a batch, by what is skipped and by rounding."""
    import cupy

    norms_a, norms_b = maps.of(item)
    skipped = float(gpu_survey.skipped_bound(maps, item, cupy.asarray([tau])))
    added = asked.alpha, asked.beta, norm_c
    return abs(asked.alpha) * skipped + gpu_survey.rounding(shape, norms_a, norms_b, asked.precision, *added)


def square_sum(part: Any) -> float:
    """Return the sum of squares, in float64, of an array of the host or of a device."""
    if isinstance(part, np.ndarray):
        return float(sum(np.vdot(x, x) for x in (part[i : i + 64].astype(np.float64) for i in range(0, len(part), 64))))
    with part.device:
        return gpu_survey.frobenius(part) ** 2


def kept_norms(x: Any, block: int) -> Any:
    """Return an array of the norm of a matrix that is about to be overwritten, or one such array an item of a batch."""
    if isinstance(x, np.ndarray):
        norms = [math.sqrt(square_sum(one)) for one in x.reshape(-1, *x.shape[-2:])]
        return np.reshape(norms, (*x.shape[:-2], 1, 1))
    with x.device:
        return gpu_survey.kept_norms(x, block)


def apart(c: Any, out: Any, fresh: bool) -> Any:
    """Return C, copied where what is written to `out` would overwrite entries of it still to be read."""
    if c is None or out is None or not overlap(c, out):
        return c
    same = not fresh and address(c) == address(out) and c.strides == out.strides
    return c if same else c.copy()


def overlap(x: Any, y: Any) -> bool:
    """Return whether two arrays of the host, or two of devices, may share memory."""
    if isinstance(x, np.ndarray):
        return bool(np.may_share_memory(x, y))
    import cupy

    return bool(cupy.may_share_memory(x, y))
