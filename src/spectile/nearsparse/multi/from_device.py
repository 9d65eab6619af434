"""SpAMM where all matrices lie on the first GPU: its link to the others is the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core import device, memory
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda import tuning
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.cut import reach, row_work
from spectile.nearsparse.multi.plan import Plan, empty_operand, norm_of_added
from spectile.nearsparse.types import Request

# From this size of B on, the norms tell which rows of its panels are needed.
SPARED_BYTES = 1 << 31


class FromDevice(Plan):
    """The product where A, B and C lie on the first device.

    Rows of A go to their GPUs.  B goes round a ring in panels of columns, each multiplied when it is there, without the
    rows that no valid product of the GPUs to come needs.  Every GPU writes its rows of C into the first one's memory.

    Parameters
    ----------
    a, b, out : cupy.ndarray, shapes (m, k), (k, n), (m, n)
        On one device.
    devices : sequence of int
        The first is that device.
    request : Request
        Norms are taken when the plan is made, tau is searched in them, and rows are cut by them: a plan is for what A
        and B hold then, and is called once.
    c : cupy.ndarray, shape (m, n), optional
        What beta multiplies; may be `out`.
    """

    def __init__(self, a: Any, b: Any, out: Any, devices: Sequence[int], request: Request, c: Any = None) -> None:
        import cupy

        shape = (*a.shape, b.shape[1])
        block = request.block
        with cupy.cuda.Device(devices[0]):
            problem = Problem.of_parts(shape, [a], [b], block, request.real.precision, request.strict)
            super().__init__(devices, problem, request)
            self._maps = maps = self.norm_maps(a, b)
            maps()
            if request.norms_first:
                cuda_norms.check_norms(maps, a, b)
            self.tau = self.threshold(maps)
            self.a, self.b, self.c, self.out = a, b, c, out
            if c is not None:
                self._norm_c = norm_of_added([c], [out], request.block)
            self._norms = cuda_norms.Norms(maps.a, maps.b, block, maps.counter)
            self.panels = partition.panels(shape[2], least=partition.PANEL_COLUMNS)
            self._sparing = b.nbytes >= SPARED_BYTES
            self.rows = rows = self._cut(a.nbytes, b.nbytes, out.nbytes)
            self._main, self.sender = self.stream(devices[0]), self.stream(devices[0])
            self._own: cuda_product.Product | None = None
            if rows[1]:
                head = slice(0, rows[1])
                norms = cuda_norms.Norms(maps.a[: ceil_div(rows[1], block)], maps.b, block, maps.counter)
                self._own = self.product(a[head], b, out[head], norms, None if c is None else c[head])
        self._ring = [
            _RingPart(self, index, first, last)
            for index, first, last in zip(devices[1:], rows[1:-1], rows[2:], strict=True)
            if first < last
        ]
        #: Rows of each panel of B, first and end, that each part needs or passes on.
        self._reach = np.tile(np.array([0, shape[1]], np.int32), (len(self._ring), len(self.panels), 1))
        if self._sparing and self._ring:
            ends = [(part.rows.start, part.rows.stop) for part in self._ring]
            with cupy.cuda.Device(devices[0]):
                self._reach = reach(self._norms, ends, self.panels, self.tau, shape[1]).get()

    def _cut(self, a_bytes: int, b_bytes: int, c_bytes: int) -> list[int]:
        """Return where the rows are cut so that all GPUs end together."""
        shape, parts = self.shape, len(self.devices)
        work = row_work(self._maps, self.tau, shape[0])
        rates = tuning.rates(device.describe())
        seconds = 2.0 * float(work.sum()) * math.prod(shape) / rates.executed[self.real.precision]
        sent = (1.0,) * len(self.panels)
        # What of B is sent depends on the cuts, and they on it.
        for turn in range(3):
            # Two digits of the time are enough, and let one answer serve many calls.
            shares = partition.shares(parts, float(f"{seconds:.2g}"), a_bytes, b_bytes, c_bytes, sent, rates.peer_bytes)
            rows = [min(partition.ROW_UNIT * cut, shape[0]) for cut in partition.cut_rows(work, shares)]
            if not self._sparing or turn == 2 or rows[1] == shape[0]:
                break
            end = shape[0]
            needed = reach(self._norms, [(rows[1], end)], self.panels, self.tau, shape[1]).get()[0]
            sent = tuple(round(float(stop - start) / shape[1], 2) for start, stop in needed)
        return rows

    def _enqueue(self) -> None:
        """Multiply the first device's rows, send rows of A and panels of B, and multiply what is there."""
        if self._own is not None:
            with self._main.current():
                self._own()
        for kind, number in partition.schedule(1 + len(self._ring), len(self.panels)) if self._ring else []:
            if kind == "a":
                self._send_rows(self._ring[number - 1])
            else:
                self._send_panel(number)
            for part in self._ring:
                part.multiply_what_is_there()

    def _send_rows(self, part: _RingPart) -> None:
        """Send a part its rows of A, the norms, and rows of C where they are added and out of reach."""
        self.sender.copy(part.a, self.a[part.rows])
        if self.c is not None and not self.connected:
            self.sender.copy(part.c, self.c[part.rows])
        self.sender.copy(part.norms_a, self._norms.a[part.norm_rows])
        self.sender.copy(part.norms_b, self._norms.b)
        part.multiply_after(self.sender.mark())

    def _send_panel(self, panel: int) -> None:
        """Pass the rows of a panel of B that are needed round the ring, piece by piece."""
        columns, (start, stop) = slice(*self.panels[panel]), self._reach[0, panel].tolist()
        for first, last in partition.pieces(stop - start) or [(0, 0)]:
            stream, source, before = self.sender, self.b, None
            for part, (low, high) in zip(self._ring, self._reach[:, panel].tolist(), strict=True):
                if before is not None:
                    stream.wait(before)
                rows = slice(max(start + first, low), min(start + last, high))
                stream.copy(part.b[rows, columns], source[rows, columns])
                before = part.arrived[panel] = stream.mark()
                stream, source = part.sender, part.b

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        return self._norms

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]

    def release(self) -> None:
        """Give the copies on the other devices back."""
        self._ring.clear()
        self._own = None


class _RingPart:
    """What a device other than the first holds and does."""

    def __init__(self, plan: FromDevice, index: int, first: int, last: int) -> None:
        import cupy

        _, k, n = plan.shape
        request, block = plan.request, plan.request.block
        self.rows, self.norm_rows = slice(first, last), slice(first // block, ceil_div(last, block))
        #: Panels are multiplied in two streams by turns, so that one fills what another's end leaves idle.
        self._streams = plan.stream(index), plan.stream(index)
        self.sender, self._back = plan.stream(index), plan.stream(index)
        #: The events after which panels of B are there.
        self.arrived: dict[int, Any] = {}
        self._ready, self._done = False, 0
        target, added = plan.out[self.rows], None if plan.c is None else plan.c[self.rows]
        needed = np.dtype(plan.arithmetic.dtype).itemsize * k * (last - first + n) + (
            0 if plan.connected else target.nbytes
        )
        with cupy.cuda.Device(index), memory.allocating(f"the product's part on device {index}", needed):
            self.a, self.b = empty_operand(request, last - first, k), empty_operand(request, k, n)
            # Products write into the first device's memory: copies would queue behind those of B.
            self.c = target if plan.connected else cupy.empty(target.shape, plan.arithmetic.output)
            self.norms_a, self.norms_b = empty_map(last - first, k, request), empty_map(n, k, request)
            counters = cupy.zeros(len(plan.panels), cupy.uint32)
            if added is not None and not plan.connected:
                added = self.c
            columns = [slice(*panel) for panel in plan.panels]
            self._products = []
            for number, panel in enumerate(columns):
                norms_b = self.norms_b[panel.start // block : ceil_div(panel.stop, block)]
                norms = cuda_norms.Norms(self.norms_a, norms_b, block, counters[number : number + 1])
                part_of_c = None if added is None else added[:, panel]
                self._products.append(plan.product(self.a, self.b[:, panel], self.c[:, panel], norms, part_of_c))
        self._put = [] if plan.connected else [(target[:, panel], self.c[:, panel]) for panel in columns]

    def multiply_after(self, ready: Any) -> None:
        """Let products wait for rows of A and norms to be ready."""
        self._ready = True
        for stream in self._streams:
            stream.wait(ready)

    def multiply_what_is_there(self) -> None:
        """Multiply the next panels, and copy what they give back where kernels do not write it there."""
        while self._ready and self._done in self.arrived:
            stream = self._streams[self._done % 2]
            stream.wait(self.arrived[self._done])
            with stream.current():
                self._products[self._done]()
            if self._put:
                self._back.wait(stream.mark())
                self._back.copy(*self._put[self._done])
            self._done += 1
