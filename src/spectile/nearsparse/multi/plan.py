"""What products over several GPUs have in common, wherever their data lie.

A plan holds the parts of its devices and enqueues its copies, norms and products on streams of its own; which of them
waits for which decides when a piece of C is multiplied and not how: C has the same bits in every order.

Complex matrices come here in their real forms (``cuda.parts``), and the request is of the complex product.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.places import connect
from spectile.core.pointers import overlap
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cpu import norms as cpu_norms
from spectile.nearsparse.cpu import search as cpu_search
from spectile.nearsparse.cuda import choose
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import told, told_grain
from spectile.nearsparse.cuda.parts import real_view
from spectile.nearsparse.cuda.search import threshold
from spectile.nearsparse.cuda.survey import error_bound, frobenius, kept_norms, ratio
from spectile.nearsparse.multi.streams import Stream, event
from spectile.nearsparse.types import Grain, Request


def empty_operand(request: Request, *shape: int) -> Any:
    """Return an empty operand on the current device; its rows begin at multiples of 16 bytes for every kernel."""
    import cupy

    dtype = np.dtype(request.real.arithmetic.dtype)
    unit = 16 // dtype.itemsize
    return cupy.empty((*shape[:-1], ceil_div(shape[-1], unit) * unit), dtype)[..., : shape[-1]]


def norm_of_added(c: Sequence[Any], out: Sequence[Any], block: int) -> Callable[[], float]:
    """Return what finds the norm of the parts of a C that is added: of their norms now where `out` overwrites them."""
    if any(overlap(x, y) for x in c for y in out):
        c = [kept_norms(real_view(x) if x.dtype.kind == "c" else x, block) for x in c]
    return lambda: math.hypot(*map(norm_there, c))


def norm_there(part: Any) -> float:
    """Return the Frobenius norm of an array of the host or of any device."""
    with contextlib.nullcontext() if isinstance(part, np.ndarray) else part.device:
        return frobenius(part)


def host_threshold(a: np.ndarray, b: np.ndarray, request: Request) -> float:
    """Return tau, searched in norm maps that the CPU takes: no device need hold both matrices."""
    if request.tau is not None:
        return float(request.tau)
    if request.arithmetic.parts == 2:
        # Every other row of B's real form has the entries as they were.
        a, b = (x.view(request.arithmetic.dtype) for x in (a, b[::2]))
    maps = cpu_norms.Maps.of(a, b, request.block)
    cpu_norms.check_norms(maps)
    return cpu_search.threshold(maps, request, (*a.shape, b.shape[1]))[0]


class Plan(ABC):
    """A product over several GPUs: streams that start after and end before the current streams, and the numbers."""

    def __init__(self, devices: Sequence[int], problem: Problem, request: Request) -> None:
        import cupy

        self.devices, self.request, self.real = tuple(devices), request, request.real
        self.arithmetic = self.real.arithmetic
        #: Of the real matrices that are multiplied.
        self.shape = problem.m, problem.k, problem.n
        #: What one GPU would use for the whole product; every part does.
        with cupy.cuda.Device(devices[0]):
            self.way = choose.choose_way(problem, device.describe())
        self.tau = math.nan if request.tau is None else float(request.tau)
        self.streams: list[Stream] = []
        #: Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid.
        self.grain: Grain = (1, 1, 1)
        self._started = {index: event(index) for index in dict.fromkeys(devices)}
        #: Whether every device reads and writes the others' memory.
        self.connected = connect(self.devices)
        self._norm_c: Callable[[], float] = float

    def stream(self, index: int) -> Stream:
        """Return a new stream of a device."""
        self.streams.append(Stream(index))
        return self.streams[-1]

    def norm_maps(self, a: Any, b: Any, into: tuple[Any, Any] | None = None) -> cuda_norms.NormMaps:
        """Return what takes the norms of A and B on the current device."""
        return cuda_norms.NormMaps(a, b, self.request.block, into, paired=self.request.arithmetic.parts == 2)

    def product(self, a: Any, b: Any, out: Any, norms: Any, c: Any = None, tau: Any = None) -> cuda_product.Product:
        """Return the prepared product of one part on the current device; by the plan's tau where none is given."""
        request = self.request
        made = cuda_product.Product(
            a, b, out, norms, self.tau if tau is None else tau,
            precision=self.real.precision, alpha=request.alpha, beta=request.beta, c=c, way=self.way,
        )  # fmt: skip
        self.grain = made.grain
        return made

    def __call__(self) -> None:
        """Enqueue everything on the streams, after the current streams' work; these alone wait for its end."""
        import cupy

        first = self.devices[0]
        # A capture may wait for nothing outside it: the other devices' streams are left alone there.
        capturing = cupy.cuda.get_current_stream(first).is_capturing()
        outside = [first] if capturing else list(self._started)
        for index in outside:
            # The default stream is that of the current device, whichever device its object came from.
            with cupy.cuda.Device(index):
                cupy.cuda.get_current_stream().record(self._started[index])
        for stream in self.streams:
            stream.wait(*(self._started[index] for index in outside if index in (first, stream.device)))
        self._enqueue()
        ends = [(stream.device, stream.mark()) for stream in self.streams]
        for index in outside:
            with cupy.cuda.Device(index):
                current = cupy.cuda.get_current_stream()
                for device_of_stream, end in ends:
                    if index in (first, device_of_stream):
                        current.wait_event(end)

    @abstractmethod
    def _enqueue(self) -> None:
        """Enqueue everything on the streams."""

    @abstractmethod
    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""

    @abstractmethod
    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""

    @abstractmethod
    def release(self) -> None:
        """Give the copies of operands back, which a call needed.  The numbers can still be read."""

    def threshold(self, maps: Any, item: tuple[int, int] = (0, 0)) -> float:
        """Return tau, searched in maps on the current device where it is not given."""
        if self.request.tau is not None:
            return float(self.request.tau)
        return threshold(told(maps, self.request), item, self.request, self.told_shape)

    @property
    def told_shape(self) -> tuple[int, int, int]:
        """The sizes of the product that was asked for."""
        (m, k, n), parts = self.shape, self.request.arithmetic.parts
        return m, k // parts, n // parts

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a `SpammResult`, each read when asked for."""
        return {
            "tau": self.tau,
            "valid_ratio": lambda: self._read(lambda maps: self.ratio(maps, (0, 0), self.tau)),
            "executed_ratio": lambda: self._read(lambda maps: self.ratio(maps, (0, 0), self.tau, self.grain)),
            "error_bound": lambda: self._read(lambda maps: self.bound(maps, (0, 0), self.tau, self._norm_c())),
            "norm_c": lambda: math.hypot(*map(norm_there, self.outputs())),
        }

    def ratio(self, maps: Any, item: tuple[int, int], tau: float, grain: Grain = (1, 1, 1)) -> float:
        """Return the share of the tile products of an item that are valid, or multiplied."""
        return ratio(told(maps, self.request), item, tau, told_grain(grain, self.request))

    def bound(self, maps: Any, item: tuple[int, int], tau: float, norm_c: float) -> float:
        """Return the bound of the error of a product, given the maps of it and the norm of what is added."""
        return error_bound(told(maps, self.request), item, tau, self.request, self.told_shape, norm_c)

    def _read(self, number: Callable[[Any], float]) -> float:
        import cupy

        with cupy.cuda.Device(self.devices[0]):
            return number(self.maps())
