"""SpAMM where all matrices lie on the first GPU: its link to the others is the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core import device, memory
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import tuning
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.cut import reach, row_work
from spectile.nearsparse.multi.plan import Part, Piece, Plan, Step, empty_operand
from spectile.nearsparse.multi.streams import Pinned, Stream
from spectile.nearsparse.types import Request

# From this size of B on, every call finds out from the norms which rows of its panels are needed: the host waits for
# that while the first panel and rows of A are sent.
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
        Tau is searched, and rows are cut by the norms, once: when the plan is made.
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
            self.out, self.c = out, c
            if c is not None:
                self.add([c], [out])
            self._norms = cuda_norms.Norms(maps.a, maps.b, block, maps.counter)
            self.panels = partition.panels(shape[2], least=partition.PANEL_COLUMNS)
            self._sparing = b.nbytes >= SPARED_BYTES
            self.rows = rows = self._cut(a.nbytes, b.nbytes, out.nbytes)
            self._main, self.sender = self.stream(devices[0]), self.stream(devices[0])
            self.parts = [Part(self._main)]
            if rows[1]:
                head = slice(0, rows[1])
                norms = cuda_norms.Norms(maps.a[: ceil_div(rows[1], block)], maps.b, block, maps.counter)
                product = self.product(a[head], b, out[head], norms, None if c is None else c[head])
                self.parts[0].pieces.append(Piece(0, None, product))
        self._keep = a, b
        self._ring = [
            _RingPart(self, index, first, last)
            for index, first, last in zip(devices[1:], rows[1:-1], rows[2:], strict=True)
            if first < last
        ]
        self.parts += self._ring
        self._sparing = self._sparing and bool(self._ring)
        source, stream = b, self.sender
        for part in self._ring:
            part.connect(a, source, stream, self.sender, self._norms)
            source, stream = part.b, part.sender
        # The link has work while the first GPU finds out what of the other panels is needed.
        order = partition.schedule(len(self.parts), len(self.panels)) if self._ring else []
        self.steps = [Step("a", 0), *(Step(kind, number) for kind, number in order)]
        #: Rows of each panel of B, first and end, that each part needs or passes on.
        self._reach = np.tile(np.array([0, shape[1]], np.int32), (len(self._ring), len(self.panels), 1))
        self._scouted = Pinned(devices[0], self._reach.shape, "int32") if self._sparing else None
        #: The events after which norms are there, and what is needed.
        self._measured: Any = None
        self._known: Any = None

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

    def fetch_a(self, number: int, block: int) -> None:
        """Take all norms, or send rows of A to a part, and the norms behind them."""
        if number == 0:
            self._measure()
            return
        part = self._ring[number - 1]
        part.get_rows()
        # The norms follow in the same queue: a copy that `part` pulled would wait for all that are pushed here.
        self.sender.wait(self._measured)
        part.get_norms()
        part.multiply_after(self.sender.mark())

    def _measure(self) -> None:
        import cupy

        main = self._main
        with main.current():
            self._maps()
        self._measured, self._known = main.mark(), None
        self._reach[...] = 0, self.shape[1]
        # A capture cannot wait for numbers: all of B is sent there.
        if self._scouted is not None and not cupy.cuda.get_current_stream(main.device).is_capturing():
            parts = [(part.rows.start, part.rows.stop) for part in self._ring]
            with main.current():
                reach(self._norms, parts, self.panels, self.tau, self.shape[1], self._scouted.device)
            self._known = main.mark()

    def fetch_b(self, panel: int) -> None:
        """Pass the rows of a panel of B that are needed round the ring, piece by piece."""
        if self._known is not None and panel > 0:
            assert self._scouted is not None
            self._known.synchronize()
            self._reach[...], self._known = self._scouted.host, None
        start, stop = (int(row) for row in self._reach[0, panel])
        for first, last in partition.pieces(stop - start) or [(0, 0)]:
            stream, before = self.sender, None
            for number, part in enumerate(self._ring):
                if before is not None:
                    stream.wait(before)
                low, high = (int(row) for row in self._reach[number, panel])
                part.get_panels[panel](max(start + first, low), min(start + last, high))
                before = part.panels[panel] = stream.mark()
                stream = part.sender

    def store_c(self, number: int, piece: Piece, stream: Stream) -> None:
        """Copy a panel of C back where kernels do not write it there."""
        if number > 0:
            self._ring[number - 1].put(piece, stream)

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        return self._norms

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]

    def release(self) -> None:
        """Give the copies on the other devices back."""
        self._ring.clear()
        self.parts.clear()


class _RingPart(Part):
    """What a device other than the first holds and does."""

    def __init__(self, plan: FromDevice, index: int, first: int, last: int) -> None:
        import cupy

        _, k, n = plan.shape
        request, block = plan.request, plan.request.block
        self.rows, self.norm_rows = slice(first, last), slice(first // block, ceil_div(last, block))
        super().__init__(plan.stream(index), plan.stream(index))
        self.sender, self.back = plan.stream(index), plan.stream(index)
        target, added = plan.out[self.rows], None if plan.c is None else plan.c[self.rows]
        needed = np.dtype(plan.arithmetic.dtype).itemsize * k * (last - first + n) + (
            0 if plan.connected else target.nbytes
        )
        with cupy.cuda.Device(index), memory.allocating(f"the product's part on device {index}", needed):
            self.a, self.b = empty_operand(request, last - first, k), empty_operand(request, k, n)
            # Products write into the first device's memory: copies would queue behind those of B.
            self.c = target if plan.connected else cupy.empty(target.shape, plan.arithmetic.output)
            self.norms_a, self.norms_b = (
                empty_map(last - first, k, request),
                empty_map(n, k, request),
            )
            self.counters = cupy.zeros(len(plan.panels), cupy.uint32)
            self._columns = [slice(*panel) for panel in plan.panels]
            self._get_c, c_on_device = None, added
            if added is not None and not plan.connected:
                self._get_c, c_on_device = plan.sender.copying(self.c, added), self.c
            for number, columns in enumerate(self._columns):
                norms_b = self.norms_b[columns.start // block : ceil_div(columns.stop, block)]
                norms = cuda_norms.Norms(self.norms_a, norms_b, block, self.counters[number : number + 1])
                added_columns = None if c_on_device is None else c_on_device[:, columns]
                product = plan.product(self.a, self.b[:, columns], self.c[:, columns], norms, added_columns)
                self.pieces.append(Piece(0, number, product))
        self._put = [
            self.back.copying(target[:, columns], self.c[:, columns])
            for columns in ([] if plan.connected else self._columns)
        ]

    def connect(self, a: Any, b: Any, stream: Stream, first: Stream, norms: cuda_norms.Norms) -> None:
        """Prepare the copies: rows of A and norms from the first device, B from the device before."""
        self._get_a = first.copying(self.a, a[self.rows])
        self._get_norms = (
            first.copying(self.norms_a, norms.a[self.norm_rows]),
            first.copying(self.norms_b, norms.b),
        )
        self.get_panels = [stream.copying_rows(self.b[:, columns], b[:, columns]) for columns in self._columns]

    def get_rows(self) -> None:
        """Enqueue the copies of rows of A, and of C where it is added and out of reach."""
        self._get_a()
        if self._get_c is not None:
            self._get_c()

    def get_norms(self) -> None:
        """Enqueue the copies of the norm maps."""
        for copy in self._get_norms:
            copy()

    def multiply_after(self, ready: Any) -> None:
        """Let products wait for rows of A and norms to be ready."""
        with self.streams[0].current():
            self.counters.data.memset_async(0, self.counters.nbytes)
        zeroed = self.streams[0].mark()
        for stream in self.streams:
            stream.wait(ready, zeroed)

    def put(self, piece: Piece, stream: Stream) -> None:
        """Copy a panel of C back after its product, where it is out of reach."""
        if self._put and piece.panel is not None:
            self.back.wait(stream.mark())
            self._put[piece.panel]()
