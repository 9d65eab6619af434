"""A product planned once for a layout of its operands, and run many times: choosing, checking and packing come before.

What changes from run to run are addresses and the threshold, or the ratio or error that one is searched for, which are
written into the packed parameters in place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.copies import Uncopied
from spectile.core.options import kind_of
from spectile.core.plan import Bound
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse import checks
from spectile.nearsparse.bounds import LEAST_NORM
from spectile.nearsparse.cuda import dense, parts
from spectile.nearsparse.cuda.after import PER_THREAD, mark, read_after
from spectile.nearsparse.cuda.choose import Way
from spectile.nearsparse.cuda.norms import NormMaps, Norms, told, told_grain
from spectile.nearsparse.cuda.product import Product, prepared_choice
from spectile.nearsparse.cuda.search import FIELD, Search, Wanted, check_error, found, refusal, tolerance_of
from spectile.nearsparse.cuda.search import Places as SearchPlaces
from spectile.nearsparse.cuda.survey import bind_count, error_bound, frobenius, ratio, rounding
from spectile.nearsparse.cuda.tuning import WGMMA
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Grain, Request


class _Planned:
    """What the plans of both products have: the request, and what is known of operands laid out as these."""

    def __init__(self, a: Any, b: Any, out: Any, request: Request) -> None:
        self.request, self.shape, self.device = request, (*a.shape, b.shape[1]), a.data.device_id
        self._spans = tuple(map(span, (a, b, out)))

    def empty(self) -> Any:
        """Return memory for C on the current device."""
        import cupy

        return cupy.empty((self.shape[0], self.shape[2]), self.request.arithmetic.output)


class CallPlan(_Planned):
    """One product of two device matrices, C = alpha A B + beta C, for operands of one layout.

    Later runs take arrays of the same shapes, strides, dtype and alignment, and other values of what the request asks:
    tau, a valid ratio or an error.  C may be `out`; `way` is that of a larger product of which this is a part.
    """

    def __init__(self, a: Any, b: Any, out: Any, request: Request, c: Any = None, way: Way | None = None) -> None:
        import cupy

        super().__init__(a, b, out, request)
        self._lock = threading.Lock()
        #: What multiplies, or "count" where the valid products decide; and the share up to which SpAMM is faster.
        self.verdict, limit = dense.decide_here(self.shape, request)
        paired, given = request.arithmetic.parts == 2, b
        if paired:
            a, b, out = parts.real_view(a), parts.empty_expanded(b), parts.real_view(out)
            c = None if c is None else parts.real_view(c)
        #: Bytes of B as a real matrix, which every run makes anew; 0 where it is one.
        self._expanded = b.nbytes if paired else 0
        choice = prepared_choice(a, b, out, request.real, counts=self.verdict == "count", way=way)
        maps = NormMaps(a, b, request.block, paired=paired)
        tiles = told(maps, request)
        self._search, tau = None, 0.0
        if request.tau is None:
            self._search = Search(tiles.a, tiles.b, Wanted.of(request), self.shape, request.precision, 0, 0)
            tau = cupy.empty(1, np.float64)  # the memory of each run is its own: this address is replaced
        product = Product(
            a, b, out, maps, tau,
            precision=request.real.precision, alpha=request.alpha, beta=request.beta, c=c, choice=choice, scratch=0,
        )  # fmt: skip
        self.grain: Grain = told_grain(product.grain, request)
        self._norm = maps.a.dtype
        expansion = parts.Expansion(given, b) if paired else None
        self._before = [] if expansion is None else [expansion.launch]
        self._before += [*maps.bind(), *([] if self._search is None else [self._search.launch])]
        self._multiply = product.launches
        self._count = _Count(maps, limit) if self.verdict == "count" else None
        self._varies = self._count is not None or (request.method == "auto" and request.valid_ratio is not None)
        self._places = _Places.of(maps, tiles, self._search, choice.scratch_bytes, counted=self._count is not None)
        self._bound = self._bind(maps, expansion, product)

    def _bind(self, maps: NormMaps, expansion: parts.Expansion | None, product: Product) -> Bound:
        """Return what runs set in the parameters of all launches."""
        bound = Bound(_NAMES)
        if expansion is not None and maps.pairing is not None:
            bound.add(expansion.parameters, {"b": "b", "out": "real_b"})
            bound.add(maps.pairing.parameters, {name: name for name in _OF_PAIRING})
        bound.add(maps.parameters, _OF_NORMS)
        bound.add(product.parameters, _SHARED, inside="fields" if product.kernel in WGMMA else "")
        if self._count is not None:
            bound.add(self._count.parameters, _SHARED)
        if self._search is not None:
            bound.add(self._search.parameters, {FIELD[self.request.asked[0]]: "value"} | _OF_SEARCH)
        if product.kernel in WGMMA:
            # The maps of A, B and C, as many as the kernel has, begin the parameters.
            moved = zip(["a", "real_b", "out"], product.addresses(), strict=True)
            for number, (name, pointer) in enumerate(list(moved)[: 2 + product.choice.copies]):
                bound.add_map(address(product.parameters) + 128 * number, name, pointer)
        return bound

    def _verdict_on(self, value: float) -> dense.Verdict:
        """Return the verdict on a run that has its own: a valid ratio decides, or what was counted before."""
        if self._count is not None:
            return self._count.kept.verdict(value)
        return dense.decide_here(self.shape, dataclasses.replace(self.request, valid_ratio=value))[0]

    def run(self, a: Any, b: Any, out: Any, value: float, c: Any = None) -> RunNorms | None:
        """Launch on the current stream and return the norms and tau; nothing is copied, and only a count is waited for.

        `value` is of tau, a valid ratio or an error, as the request has it.  Nothing is launched, and nothing returned,
        where the memory of `out` overlaps that of an operand, which would be overwritten while it is read.
        """
        import cupy

        at_a, at_b, at_out = address(a), address(b), address(out)
        if overlaps(at_a, at_b, at_out, self._spans):
            return None
        current = cupy.cuda.get_current_stream()
        verdict = self.verdict
        if self._varies:
            with self._lock:
                verdict = self._verdict_on(value)
        if verdict == "dense":
            dense.multiply(a, b, None, out, self.request)
            return DenseNorms(a, b, self.request.block, value).enqueued(self.device, current)
        memory_ = cupy.cuda.alloc(self._places.bytes)
        # Memory that is given back serves what follows on the same stream.
        expanded = cupy.cuda.alloc(self._expanded) if self._expanded else None
        tolerance = 0.0 if self.request.valid_ratio is None else tolerance_of(value)
        real_b = at_b if expanded is None else expanded.ptr
        at_c = 0 if c is None else address(c)
        values = (at_a, at_b, real_b, at_c, at_out, value, tolerance, *self._places.addresses(memory_.ptr))
        stream = current.ptr
        with self._lock:
            self._bound.set(values)
            for launch in self._before:
                launch(stream)
            count = self._count if verdict == "count" else None
            if count is not None:
                count(stream)
            for launch in self._multiply:
                launch(stream)
            norms = CallNorms(memory_, self, value)
            # The product that was launched does nothing then; else it has begun while this waits.
            if count is not None:
                norms.dense = count.too_many()
                count.kept.found(value, norms.dense)
            if norms.dense:
                dense.multiply(a, b, None, out, self.request)
        norms.end = self.device, current, mark(current) if stream == PER_THREAD else None
        return norms

    def result(self, out: Any, norms: RunNorms) -> SpammResult:
        """Return the result of a run, whose numbers are read when they are asked for."""
        request = self.request
        if norms.dense:
            return dense_result(out, norms, request, self.shape, norms.value, read=norms.read)
        assert isinstance(norms, CallNorms)
        return SpammResult(
            out,
            tau=norms.read_tau,
            valid_ratio=lambda: ratio(norms, (0, 0), norms.tau),
            executed_ratio=norms.executed_ratio,
            error_bound=lambda: error_bound(norms, (0, 0), norms.tau, request, self.shape, 0.0),
            norm_c=functools.partial(frobenius, out),
            read=norms.read,
        )


class RunNorms(Norms):
    """The norm maps of a run of either product."""

    #: Whether the dense product ran.
    dense = False
    #: What was given of tau, a ratio and an error.
    value: float
    #: Device, stream and mark of the run.
    end: tuple[int, Any, Any]

    def enqueued(self, device: int, stream: Any) -> RunNorms:
        """Remember the stream of the run, and return itself."""
        self.end = device, stream, mark(stream)
        return self

    def read(self, number: Callable[[], Any]) -> Any:
        """Return a number of the run, read after it."""
        return read_after(*self.end, number)


class DenseNorms(RunNorms):
    """The norm maps of operands that were multiplied without them, computed when a number is asked for."""

    dense = True

    def __init__(self, a: Any, b: Any, block: int, value: float = 0.0) -> None:
        self._operands, self.block, self.value = (a, b), block, value

    @functools.cached_property
    def _maps(self) -> Norms:
        import cupy

        # Of complex matrices those of their real and imaginary parts: they are summed.
        with self._operands[0].device:
            a, b = (parts.real_view(x) if x.dtype.kind == "c" else x for x in self._operands)
            none = cupy.empty((a.shape[1], 0), a.dtype), cupy.empty((0, b.shape[0]), b.dtype)
            maps = NormMaps(a, none[0], self.block), NormMaps(none[1], b, self.block)
            for one in maps:
                one()
        return Norms(maps[0].a, maps[1].b, self.block)

    @property
    def a(self) -> Any:
        """Norm map of A."""
        return self._maps.a

    @property
    def b(self) -> Any:
        """Norm map of B, transposed."""
        return self._maps.b


def dense_result(
    out: Any,
    norms: Norms,
    request: Request,
    shape: tuple[int, int, int],
    value: float,
    norm_c: Any = None,
    *,
    read: Any,
) -> SpammResult:
    """Return the result of a dense product, whose bound is of rounding alone.

    `value` is of tau, a ratio or an error, as the request has it, and `norm_c` finds the norm of an added C.
    """

    def tau() -> float:
        # An error is of the product without alpha and C.
        if request.within_error:
            norm_a, norm_b = frobenius(norms.a), frobenius(norms.b)
            known = min(norm_a, norm_b) >= LEAST_NORM[norms.a.dtype.name]
            bound = rounding(shape, norms.a, norms.b, plain)
            allowed = value if request.atol is not None else value * norm_a * norm_b
            kept = known and bound < math.inf and bound <= allowed
            if not kept and 0 not in (norm_a, norm_b):
                raise refusal(request.asking(value), "nothing was left out")
        return 0.0

    plain = request if request.alpha == 1 and request.beta == 0 else dataclasses.replace(request, alpha=1.0, beta=0.0)
    return SpammResult(
        out,
        tau=tau if request.within_error else 0.0,
        valid_ratio=1.0,
        executed_ratio=1.0,
        error_bound=lambda: rounding(shape, norms.a, norms.b, request, norm_c() if norm_c else 0.0),
        norm_c=functools.partial(frobenius, out),
        method="dense",
        read=read,
    )


class DensePlan(_Planned):
    """The dense product of two matrices of one layout: what :class:`CallPlan` is where nothing else is ever faster."""

    def __init__(self, a: Any, b: Any, out: Any, request: Request) -> None:
        super().__init__(a, b, out, request)
        self._multiply = dense.Gemm(a, b, out, request)

    def run(self, a: Any, b: Any, out: Any, value: float) -> RunNorms | None:
        """Multiply on the current stream, or return None where `out` overlaps an operand."""
        import cupy

        places = address(a), address(b), address(out)
        if overlaps(*places, self._spans):
            return None
        self._multiply(*places)
        return DenseNorms(a, b, self.request.block, value).enqueued(self.device, cupy.cuda.get_current_stream())

    def result(self, out: Any, norms: RunNorms) -> SpammResult:
        """Return the result of a run."""
        return dense_result(out, norms, self.request, self.shape, norms.value, read=norms.read)


def overlaps(at_a: int, at_b: int, at_out: int, spans: tuple[int, ...]) -> bool:
    """Return whether a result of so many bytes, the last span, reaches into one of two operands."""
    span_a, span_b, span_out = spans
    return at_out - span_a < at_a < at_out + span_out or at_out - span_b < at_b < at_out + span_out


class CallNorms(RunNorms):
    """The norm maps of one run, in one buffer, and its threshold; made into arrays when a number is asked for."""

    def __init__(self, memory_: Any, plan: CallPlan, value: float) -> None:
        self._memory, self._plan, self.value, self.block = memory_, plan, value, plan.request.block

    def _array(self, shape: tuple[int, ...], dtype: Any, first: int) -> Any:
        import cupy

        return cupy.ndarray(shape, dtype, memptr=self._memory + first)

    @property
    def a(self) -> Any:
        """Norm map of A."""
        return self._array(self._plan._places.tiles[0], self._plan._norm, self._plan._places.complex_a)

    @property
    def b(self) -> Any:
        """Norm map of B, transposed."""
        return self._array(self._plan._places.tiles[1], self._plan._norm, self._plan._places.complex_b)

    def executed_ratio(self) -> float:
        """Return the share of the tile products that were multiplied."""
        return ratio(self, (0, 0), self.tau, self._plan.grain)

    @property
    def tau(self) -> Any:
        """The threshold, or one float64 on the device."""
        if self._plan._search is None:
            return self.value
        return self._array((1,), np.float64, self._plan._places.scratch)

    def read_tau(self) -> float:
        """Return the threshold, read back where it was searched."""
        return found(self.tau, self._plan.request.asking(self.value))


class _Count:
    """The count of the valid products of a plan, which decides on the device whether its product does anything."""

    def __init__(self, maps: NormMaps, limit: float) -> None:
        import cupy

        self.kept = _Kept()
        # The host has the verdict as soon as the count has ended, not when a copy after it has.
        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._verdict = np.frombuffer(self._memory, np.uint32, 1)
        self._ended = cupy.cuda.Event(disable_timing=True)
        self._launch, self.parameters = bind_count(maps.a, maps.b, limit=limit, verdict=self._memory.ptr)

    def __call__(self, stream: int) -> None:
        """Launch on a stream, the current one."""
        self._launch(stream)
        self._ended.record()

    def too_many(self) -> bool:
        """Wait for the count and return whether the dense product is the faster one."""
        self._ended.synchronize()
        return bool(self._verdict[0])


class _Kept:
    """What was counted, and for how many runs it stands: longer and longer while the verdict stays the same.

    The verdict on a run follows from the runs before it alone, so that the same program computes the same bits.
    """

    #: Most runs between two counts.
    MOST = 64

    def __init__(self) -> None:
        self._value, self._dense, self._left, self._span = math.nan, False, 0, 0

    def verdict(self, value: float) -> dense.Verdict:
        """Return what multiplies in the next run, "count" where that is to be found out."""
        if value != self._value or self._left == 0:
            return "count"
        self._left -= 1
        return "dense" if self._dense else "spamm"

    def found(self, value: float, dense: bool) -> None:
        """Remember a verdict."""
        same = value == self._value and dense == self._dense
        self._span = min(2 * self._span, self.MOST) if same else 1
        self._value, self._dense, self._left = value, dense, self._span


# What runs set, in the order in which a run has it: the value is of tau, a ratio or an error.
_NAMES = (
    "a", "b", "real_b", "c", "out", "value", "tolerance",
    "norms_a", "norms_b", "complex_a", "complex_b", "counter", "arrived", "count", "ended", "cancelled", "parts",
    "tau_device", "result", "counts", "partial", "columns_a", "sorted",
)  # fmt: skip
_OF_NORMS = {
    "task.0.matrix": "a",
    "task.0.norms": "norms_a",
    "task.1.matrix": "real_b",
    "task.1.norms": "norms_b",
    "counter": "counter",
}
_OF_PAIRING = ("norms_a", "norms_b", "complex_a", "complex_b")
_OF_SEARCH = {"norms_a": "complex_a", "norms_b": "complex_b"} | {
    name: name for name in ("tolerance", "arrived", "result", "counts", "partial", "columns_a", "sorted")
}
# Of the product and of what counts first, as far as they have them.
_SHARED = {"tau": "value", "b": "real_b"} | {
    name: name
    for name in ("a", "c", "out", "norms_a", "norms_b", "counter", "count", "ended", "cancelled", "parts", "tau_device")
}


@dataclass(frozen=True)
class _Places:
    """Where a run's arrays lie in its memory, in bytes: norm maps, eight counters, what a search and a product need.

    Maps of complex tiles, beside those of the real tiles that are multiplied; of a real product the two are one.
    """

    tiles: tuple[tuple[int, ...], tuple[int, ...]]
    norms_b: int
    complex_a: int
    complex_b: int
    counter: int
    scratch: int
    parts: int
    bytes: int
    search: SearchPlaces | None
    #: Whether a count decides if the product does anything.
    counted: bool = False

    @classmethod
    def of(cls, maps: Norms, tiles: Norms, search: Search | None, shared: int, *, counted: bool) -> _Places:
        """Return the places for maps, those of complex tiles, which may be the same, and a product's bytes."""
        held = [maps.a, maps.b] + ([] if tiles is maps else [tiles.a, tiles.b])
        _, norms_b, *more, end = np.cumsum([0, *(x.size * x.dtype.itemsize for x in held)]).tolist()
        complex_a, complex_b = more or (0, norms_b)
        counter = ceil_div(end, 8) * 8
        scratch = ceil_div(counter + 32, 16) * 16
        places = None if search is None else search.places
        shapes = tiles.a.shape, tiles.b.shape
        parts = ceil_div(scratch + (0 if places is None else places.bytes), 16) * 16
        return cls(shapes, norms_b, complex_a, complex_b, counter, scratch, parts, parts + shared, places, counted)

    def addresses(self, base: int) -> tuple[int, ...]:
        """Return the addresses from ``norms_a`` on; no `tau_device` where tau is given, nor `cancelled` uncounted."""
        counter = base + self.counter
        cancelled = counter + 20 if self.counted else 0
        norms = base, base + self.norms_b, base + self.complex_a, base + self.complex_b
        own = *norms, counter, counter + 4, counter + 8, counter + 16, cancelled, base + self.parts
        search = self.search
        if search is None:
            return (*own, 0)
        scratch = base + self.scratch
        return (
            *own, scratch, scratch, scratch + search.counts, scratch + search.partial, scratch + search.columns_a,
            scratch + search.sorted,
        )  # fmt: skip


def span(x: Any) -> int:
    """Return the bytes from the first entry of a row-major matrix to behind its last one."""
    rows, columns = x.shape
    return int((rows - 1) * x.strides[0] + columns * x.itemsize)


class SpammPlan(Uncopied):
    """A product of two GPU matrices, planned once and executed many times; see :func:`spectile.spamm_plan`."""

    _instead = "it is of two arrays on one GPU and its work space; make another with spamm_plan"

    def __init__(self, a: Any, b: Any, request: Request) -> None:
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            raise ValueError("a plan is made before the capture of a graph, not in it")
        self._a, self._b, self._request = a, b, request
        self._device, self._device_id = a.device, a.data.device_id
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

    def execute(
        self,
        tau: float | None = None,
        out: Any = None,
        *,
        valid_ratio: float | None = None,
        atol: float | None = None,
        rtol_factors: float | None = None,
    ) -> SpammResult:
        """Multiply on the current stream, with one of `tau`, a valid ratio and an error; nothing waits.

        Parameters
        ----------
        tau : float
            Threshold.
        out : cupy.ndarray, shape (m, n), optional
            Receives C; C-contiguous, apart from A and B, at a multiple of 16 bytes.
        valid_ratio, atol, rtol_factors : float
            As in :func:`spectile.spamm`: the threshold is searched on the device.

        Returns
        -------
        SpammResult
            Read nothing of it inside the capture of a graph.  A graph needs the plan and the result to live on.

        Raises
        ------
        ValueError
            If `out` is laid out otherwise or overlaps A or B, or the current device is not that of the operands.
        """
        import cupy

        if cupy.cuda.runtime.getDevice() != self._device_id:
            raise ValueError(
                f"the plan is of arrays on device {self._device_id}, which is not the current device: execute it "
                f"inside `with cupy.cuda.Device({self._device_id}):`"
            )
        if valid_ratio is atol is rtol_factors is None and tau is not None and tau >= 0:
            kind, value = "tau", float(tau)
        else:
            kind, value = checks.check_choice(tau, valid_ratio, atol, rtol_factors)
        plan = self._plan(kind, value)
        check_error(plan.request, value, plan.shape)
        if out is None:
            with memory.allocating(
                f"the product of shape {self._shape}", math.prod(self._shape) * self._dtype.itemsize
            ):
                out = cupy.empty(self._shape, self._dtype)
        elif type(out) is not cupy.ndarray:
            raise TypeError(f"out is {kind_of(out)}: pass a CuPy array")
        elif (
            out.shape != self._shape
            or out.dtype != self._dtype
            or not out.flags.c_contiguous
            or address(out) % 16
            or out.data.device_id != self._device_id
        ):
            raise ValueError(
                f"out of shape {out.shape} and dtype {out.dtype}: pass a C-contiguous {self._dtype} array of shape "
                f"{self._shape} on device {self._device_id}, at a multiple of 16 bytes"
            )
        norms = plan.run(self._a, self._b, out, value)
        if norms is None:
            raise ValueError("out overlaps an operand, which would be overwritten while it is read: pass another array")
        return plan.result(out, norms)
