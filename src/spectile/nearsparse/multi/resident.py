"""SpAMM where the operands lie on their GPUs: rows of A and all of B on each, or all of A and columns of B."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from spectile.core import device
from spectile.core.places import connect
from spectile.core.pointers import overlap
from spectile.nearsparse.cuda import choose, parts
from spectile.nearsparse.cuda.after import After
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import NormMaps, Norms, check_norms, told
from spectile.nearsparse.cuda.plan import CallPlan, RunNorms
from spectile.nearsparse.cuda.search import threshold
from spectile.nearsparse.cuda.survey import error_bound, ratio
from spectile.nearsparse.multi.plan import norm_there
from spectile.nearsparse.multi.streams import event, joined
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import Request, Split

_CURRENT = contextlib.nullcontext()


class Resident:
    """The product where every GPU holds its rows of A and all of B, or all of A and its columns of B: a plan on each.

    Its rows or columns of C stay there.  Columns are for products of few rows, as of a network's layers: units of 128
    rows would not go round.  Runs take operands laid out as those of the first, on the streams that are current on
    their devices: each begins after the work of the first device's stream, which waits for all.

    `a`, `b` and `out` are parts in order, cut as by :func:`spectile.nearsparse.distribute`, and copies, one of each a
    device; `c`, which may be `out`, is what beta multiplies.  Runs are given a threshold; `threshold` searches that of
    a request without one.
    """

    def __init__(
        self,
        a: Sequence[Any],
        b: Sequence[Any],
        out: Sequence[Any],
        request: Request,
        c: Sequence[Any] | None = None,
        split: Split = "rows",
    ) -> None:
        import cupy

        self._asked, self._by_rows = request, split == "rows"
        #: Of each run, where nothing is searched.
        self.request = dataclasses.replace(
            request, tau=0.0, valid_ratio=None, atol=None, rtol_factors=None, check_finite=False, method="spamm"
        )
        self.devices = [part.device.id for part in a]
        connect(self.devices)
        rows, columns = (a, b[:1]) if self._by_rows else (a[:1], b)
        self.shape = sum(x.shape[0] for x in rows), a[0].shape[1], sum(y.shape[1] for y in columns)
        self._shapes = [part.shape for part in out]
        # Every part uses what one GPU would use for the whole product.
        with cupy.cuda.Device(self.devices[0]):
            self.way = choose.choose_way(self._problem(a, b), device.describe())
        #: Of the parts that have entries, with their numbers and devices.
        self._plans: list[tuple[int, int, CallPlan]] = []
        for number, (x, y, z, added) in enumerate(zip(a, b, out, c or [None] * len(a), strict=True)):
            if z.size:
                with x.device:
                    plan = CallPlan(x, y, z, self.request, added, self.way)
                self._plans.append((number, self.devices[number], plan))
        self.grain = plan.grain
        self._begun, self._ended = event(self.devices[0]), [event(index) for index in self.devices]
        self._streams: dict[int, Any] = {}
        #: Where a part of C could overlap the operands of another one.
        pairs = itertools.permutations(range(len(a)), 2)
        self._together = [(i, j) for i, j in pairs if self.devices[i] == self.devices[j]]

    def _problem(self, a: Sequence[Any], b: Sequence[Any]) -> Problem:
        """Return the real product of the whole matrices."""
        request, (m, k, n), pair = self.request, self.shape, self.request.arithmetic.parts
        if pair == 2:
            a, b = [parts.real_view(x) for x in a], [parts.empty_expanded(y) for y in b]
        return Problem.of_parts((m, pair * k, pair * n), a, b, request.block, request.real.precision, request.strict)

    def empty(self) -> list[Any]:
        """Return memory for the parts of C, each on its device."""
        import cupy

        made = []
        for index, shape in zip(self.devices, self._shapes, strict=True):
            with cupy.cuda.Device(index):
                made.append(cupy.empty(shape, self.request.arithmetic.output))
        return made

    def run(
        self, a: Sequence[Any], b: Sequence[Any], out: Sequence[Any], tau: float, c: Sequence[Any] | None = None
    ) -> list[RunNorms] | None:
        """Launch on the current streams and return the norms of the parts that have entries; nothing waits.

        None where the memory of a part of `out` overlaps that of an operand.
        """
        if self._together and any(overlap(out[i], x[j]) for i, j in self._together for x in (a, b)):
            return None

        def multiply(number: int, plan: CallPlan) -> RunNorms | None:
            return plan.run(a[number], b[number], out[number], tau, None if c is None else c[number])

        made = self._on_each(multiply)
        return None if None in made else made

    def _on_each(self, work: Callable[[int, CallPlan], Any]) -> list[Any]:
        """Return what `work` makes of the parts with entries, given their numbers and plans, each on its device.

        They begin after the first device's stream, which waits for all.  In a capture, which may wait for nothing
        outside it, the other devices work on streams of their own.
        """
        import cupy

        current, runtime, first = cupy.cuda.get_current_stream, cupy.cuda.runtime, self.devices[0]
        made, ended, here = [], [], runtime.getDevice()
        try:
            runtime.setDevice(first)
            home = current()
            home.record(self._begun)
            captured = home.is_capturing()
            for number, index, plan in self._plans:
                runtime.setDevice(index)
                if index == first:
                    made.append(work(number, plan))
                    continue
                stream = self._apart(index) if captured else current()
                stream.wait_event(self._begun)
                ended.append(self._ended[number])
                try:
                    with stream if captured else _CURRENT:
                        made.append(work(number, plan))
                finally:
                    stream.record(ended[-1])
        finally:
            runtime.setDevice(first)
            for end in ended:
                home.wait_event(end)
            runtime.setDevice(here)
        return made

    def _apart(self, index: int) -> Any:
        """Return the stream of a device for captures, which lives as long as the plan."""
        import cupy

        if index not in self._streams:
            self._streams[index] = cupy.cuda.Stream(non_blocking=True)
        return self._streams[index]

    def threshold(self, a: Sequence[Any], b: Sequence[Any]) -> float:
        """Return the threshold that was asked for, or one searched in norms that are taken now, of finite parts."""
        import cupy

        request, paired = self._asked, self._asked.arithmetic.parts == 2
        if not request.norms_first:
            return request.value

        def measure(number: int, _: CallPlan) -> Norms:
            x, y = a[number], b[number]
            x, y = (parts.real_view(x), parts.expanded(y)) if paired else (x, y)
            maps = NormMaps(x, y, request.block, paired=paired)
            maps()
            return told(maps, request)

        norms = self._on_each(measure)
        with cupy.cuda.Device(self.devices[0]):
            whole = self._whole(norms)
            check_norms(whole, *((a, b[0]) if self._by_rows else (a[0], b)))
            return threshold(whole, (0, 0), request, self.shape)

    def _whole(self, norms: Sequence[Norms]) -> Norms:
        """Return both whole norm maps on the current device, the first."""
        several, one = [part.a for part in norms], [norms[0].b]
        if not self._by_rows:
            several, one = [norms[0].a], [part.b for part in norms]
        return Norms(joined(several), joined(one), self.request.block)

    def result(self, out: Any, norms: list[RunNorms], norm_c: Callable[[], float] = float) -> SpammResult:
        """Return the result of a run, whose numbers are read when they are asked for; `norm_c` is of what was added."""
        import cupy

        tau, request = norms[0].value, self.request

        def read(number: Callable[[Norms], float]) -> Callable[[], float]:
            def on_first() -> float:
                with cupy.cuda.Device(self.devices[0]):
                    return number(self._whole(norms))

            return on_first

        return SpammResult(
            out,
            tau=tau,
            valid_ratio=read(lambda maps: ratio(maps, (0, 0), tau)),
            executed_ratio=read(lambda maps: ratio(maps, (0, 0), tau, self.grain)),
            error_bound=read(lambda maps: error_bound(maps, (0, 0), tau, request, self.shape, norm_c())),
            norm_c=lambda: math.hypot(*map(norm_there, out)),
            read=After([one.end for one in norms]),
        )
