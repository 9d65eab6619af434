"""A product planned once for a layout of its operands, and run many times: choosing, checking and packing come before.

What changes from run to run are addresses and the threshold, or the ratio or error that one is searched for, which are
written into the packed parameters in place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.tensor_map import replace_address
from spectile.nearsparse import checks
from spectile.nearsparse.cuda.geometry import Words
from spectile.nearsparse.cuda.norms import NormMaps, Norms
from spectile.nearsparse.cuda.product import Product
from spectile.nearsparse.cuda.search import Search, Wanted, found, tolerance_of
from spectile.nearsparse.cuda.survey import error_bound, frobenius, ratio
from spectile.nearsparse.cuda.tuning import WGMMA
from spectile.nearsparse.operands import address
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Grain, Request


class CallPlan:
    """One product of two device matrices, C = alpha A B, for operands of one layout.

    Parameters
    ----------
    a, b : cupy.ndarray
        Row-major; later runs take arrays of the same shapes, strides, dtype and alignment.
    out : cupy.ndarray
        Likewise.
    request : Request
        Without beta.  Runs give other values of the one of tau, `valid_ratio` and `rtol` that it has.
    """

    def __init__(self, a: Any, b: Any, out: Any, request: Request) -> None:
        self.request, self.shape = request, (*a.shape, b.shape[1])
        self.result_shape, self.output = (a.shape[0], b.shape[1]), np.dtype(request.arithmetic.output)
        self._lock = threading.Lock()
        maps = NormMaps(a, b, request.block)
        self._search = _Search(maps, request, self.shape) if request.tau is None else None
        tau = 0.0 if self._search is None else self._search.result
        product = Product(
            a, b, out, maps, tau, precision=request.precision, alpha=request.alpha, strict=request.strict
        )  # fmt: skip
        self.grain: Grain = product.grain
        #: Whether runs share memory that each leaves as it was: they follow one another on one stream.
        self.ordered_by_work = product.choice.order in ("bins", "sorted")
        self._map_shapes, self._norm = (maps.a.shape, maps.b.shape), maps.a.dtype
        self._rows = maps.a.size, maps.a.size + maps.b.size
        self._launches = [maps.bind(), *([] if self._search is None else [self._search.launch]), *product.bind()]
        # The order of the tiles lies in memory of the product; its operands' do not matter any more.
        self._held = product.held_for_later()
        self._norm_words = Words(maps.parameters)
        first, second = (start // 8 for start in (0, maps.parameters.dtype["task"].base.itemsize))
        self._norm_places = first, second, self._norm_words.places["counter"]
        self._tables = [_Table(product.parameters, "fields" if product.kernel in WGMMA else "")]
        if product.order is not None:
            self._tables.append(_Table(product.order[2], ""))
        self._boxes = _boxes(product)

    def check(self, value: float) -> None:
        """Raise for an error below what rounding alone is bounded by."""
        if self.request.rtol is not None:
            Search.error_terms(value, self.shape, self.request.precision, self._norm.name)

    def run(self, a: Any, b: Any, out: Any, value: float) -> CallNorms:
        """Launch on the current stream and return the norms and tau; nothing is copied or waited for.

        `value` is of tau, `valid_ratio` or `rtol`, as the request has it.
        """
        import cupy

        pointers = a.data.ptr, b.data.ptr, out.data.ptr
        buffer = cupy.empty(self._rows[1] + 2, self._norm)
        size, base = self._norm.itemsize, buffer.data.ptr
        norms_a, norms_b, counter = base, base + size * self._rows[0], base + size * self._rows[1]
        counter = (counter + 3) // 4 * 4
        search = self._search
        scratch = None if search is None else search.scratch()
        result = 0 if scratch is None else scratch.data.ptr
        with self._lock:
            words, (task_a, task_b, place) = self._norm_words.integers, self._norm_places
            words[task_a], words[task_a + 1] = pointers[0], norms_a
            words[task_b], words[task_b + 1] = pointers[1], norms_b
            words[place] = counter
            for table in self._tables:
                table.set((*pointers, norms_a, norms_b, counter, result), value)
            if search is not None:
                search.set(norms_a, norms_b, result, counter + 4, value)
            for box, pointer in zip(self._boxes, pointers, strict=False):
                box.move(pointer)
            for launch in self._launches:
                launch()
        return CallNorms(buffer, self, value, scratch)

    def result(self, out: Any, norms: CallNorms) -> SpammResult:
        """Return the result of a run, whose numbers are read when they are asked for."""
        request = self.request
        return SpammResult(
            out,
            tau=norms.read_tau,
            valid_ratio=lambda: ratio(norms, (0, 0), norms.tau),
            executed_ratio=lambda: ratio(norms, (0, 0), norms.tau, self.grain),
            error_bound=lambda: error_bound(norms, (0, 0), norms.tau, request, self.shape, 0.0),
            norm_c=functools.partial(frobenius, out),
        )


class CallNorms(Norms):
    """The norm maps of one run, in one buffer, and its threshold; made into arrays when a number is asked for."""

    def __init__(self, buffer: Any, plan: CallPlan, value: float, scratch: Any) -> None:
        self._buffer, self._plan, self.block = buffer, plan, plan.request.block
        self._value, self._scratch = value, scratch

    @property
    def a(self) -> Any:
        """Norm map of A."""
        return self._buffer[: self._plan._rows[0]].reshape(self._plan._map_shapes[0])

    @property
    def b(self) -> Any:
        """Norm map of B, transposed."""
        first, last = self._plan._rows
        return self._buffer[first:last].reshape(self._plan._map_shapes[1])

    @property
    def tau(self) -> Any:
        """The threshold, or one float64 on the device."""
        return self._value if self._scratch is None else self._scratch[:8].view(np.float64)

    def read_tau(self) -> float:
        """Return the threshold, read back where it was searched."""
        request = self._plan.request
        return found(self.tau, request if request.rtol is None else dataclasses.replace(request, rtol=self._value))


class _Search:
    """The search of a plan, and where its values and addresses lie."""

    def __init__(self, maps: NormMaps, request: Request, shape: tuple[int, int, int]) -> None:
        import cupy

        wanted = Wanted.of(request)
        self._is_ratio = wanted.kind == "ratio"
        # The memory of each run is its own; this address is replaced.
        self.result = cupy.empty(1, np.float64)
        search = Search(maps.a, maps.b, wanted, shape, request.precision, 0, 0)
        self._search, self._words, self.launch = search, Words(search.parameters), search.bind()

    def scratch(self) -> Any:
        """Return memory for one run; the result comes first."""
        import cupy

        return cupy.empty(self._search.places.bytes, np.uint8)

    def set(self, norms_a: int, norms_b: int, scratch: int, arrived: int, value: float) -> None:
        """Write addresses, and the ratio or error that is wanted."""
        floats: Any = self._words.floats
        places, integers = self._words.places, self._words.integers
        integers[places["norms_a"]], integers[places["norms_b"]] = norms_a, norms_b
        integers[places["arrived"]] = arrived
        for name, address_ in self._search.places.addresses(scratch).items():
            integers[places[name]] = address_
        if self._is_ratio:
            floats[places["wanted"]], floats[places["tolerance"]] = value, tolerance_of(value)
        else:
            floats[places["rtol"]] = value


class _Table:
    """The addresses and tau in the parameters of the product, or of what orders its tiles."""

    def __init__(self, parameters: Any, inside: str) -> None:
        words = Words(parameters, inside)
        places = words.places
        self._integers: Any = words.integers
        self._floats: Any = words.floats
        self._tau = places["tau"]
        #: Which of A, B, C, the norms of A and of B, the counter and a searched threshold goes where.
        order = ("a", "b", "out", "norms_a", "norms_b", "counter", "tau_device")
        self._places = [(places[name], number) for number, name in enumerate(order) if name in places]

    def set(self, pointers: tuple[int, ...], tau: float) -> None:
        for place, number in self._places:
            self._integers[place] = pointers[number]
        self._floats[self._tau] = tau


@dataclass
class _Box:
    """A tensor map inside the parameters."""

    encoded: int
    pointer: int

    def move(self, pointer: int) -> None:
        if pointer != self.pointer:
            replace_address(self.encoded, pointer)
            self.pointer = pointer


def _boxes(product: Product) -> list[_Box]:
    """Return the tensor maps of A, B and C, as many as the kernel has."""
    if product.kernel not in WGMMA:
        return []
    base = product.parameters.__array_interface__["data"][0]
    copies = bool(product.parameters["fields"]["copy_stores"])
    return [_Box(base + 128 * number, pointer) for number, pointer in enumerate(product.addresses()[: 2 + copies])]


def same_layout(x: Any, y: Any) -> bool:
    """Return whether a plan for one array serves another."""
    return bool(
        x.shape == y.shape
        and x.strides == y.strides
        and x.dtype == y.dtype
        and x.device == y.device
        and address(x) % 16 == address(y) % 16
    )


class SpammPlan:
    """A product of two GPU matrices, planned once and executed many times; see :func:`spectile.spamm_plan`."""

    def __init__(self, a: Any, b: Any, request: Request) -> None:
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            raise ValueError("a plan is made before the capture of a graph, not in it")
        self._a, self._b, self._request = a, b, request
        self._device = a.device
        self._dtype = np.dtype(request.arithmetic.output)
        self._shape = a.shape[0], b.shape[1]
        self._plans: dict[str, CallPlan] = {}
        self._plan("tau", 0.0)

    def _plan(self, kind: str, value: float) -> CallPlan:
        """Return the plan for runs with tau, a valid ratio or an error."""
        import cupy

        plan = self._plans.get(kind)
        if plan is None:
            if cupy.cuda.get_current_stream().is_capturing():
                raise ValueError(f"the first execution with {kind} plans it: execute once before the capture")
            given: dict[str, float | None] = {"tau": None, kind: value}
            with self._device:
                out = cupy.empty(self._shape, self._dtype)
                plan = CallPlan(self._a, self._b, out, dataclasses.replace(self._request, **given))  # type: ignore[arg-type]
            self._plans[kind] = plan
        return plan

    def reset_operands(self, a: Any = None, b: Any = None) -> None:
        """Take other operands of the same shape, strides, dtype, alignment and device.

        Raises
        ------
        ValueError
            If one of them has another layout: make another plan.
        """
        for name, old, new in (("a", self._a, a), ("b", self._b, b)):
            if new is not None and not same_layout(old, new):
                raise ValueError(
                    f"{name} of shape {new.shape}, strides {new.strides} and dtype {new.dtype} is not laid out as the "
                    f"one that was planned (shape {old.shape}, strides {old.strides}, {old.dtype}): make another plan"
                )
        self._a, self._b = (old if new is None else new for old, new in ((self._a, a), (self._b, b)))

    def execute(
        self,
        tau: float | None = None,
        out: Any = None,
        *,
        valid_ratio: float | None = None,
        rtol: float | None = None,
    ) -> SpammResult:
        """Multiply on the current stream, with one of `tau`, `valid_ratio` and `rtol`; nothing waits.

        Parameters
        ----------
        tau : float
            Threshold.
        out : cupy.ndarray, shape (m, n), optional
            Receives C; C-contiguous, apart from A and B, at a multiple of 16 bytes.
        valid_ratio, rtol : float
            As in :func:`spectile.spamm`: the threshold is searched on the device.

        Returns
        -------
        SpammResult
            Read nothing of it inside the capture of a graph.  A graph needs the plan and the result to live on.
        """
        import cupy

        if valid_ratio is rtol is None and tau is not None and tau >= 0:
            kind, value = "tau", float(tau)
        else:
            kind, value = checks.check_choice(tau, valid_ratio, rtol)
        plan = self._plan(kind, value)
        plan.check(value)
        if out is None:
            with memory.allocating(
                f"the product of shape {self._shape}", math.prod(self._shape) * self._dtype.itemsize
            ):
                out = cupy.empty(self._shape, self._dtype)
        elif out.shape != self._shape or out.dtype != self._dtype or not out.flags.c_contiguous or address(out) % 16:
            raise ValueError(
                f"out of shape {out.shape} and dtype {out.dtype}: pass a C-contiguous {self._dtype} array of shape "
                f"{self._shape} at a multiple of 16 bytes"
            )
        return plan.result(out, plan.run(self._a, self._b, out, value))
