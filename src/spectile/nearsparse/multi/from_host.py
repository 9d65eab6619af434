"""SpAMM where all matrices lie in host memory, larger than a device's perhaps."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.progress import PARTS, count, counted_in
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Plan, host_threshold, norm_of_added
from spectile.nearsparse.multi.streams import joined
from spectile.nearsparse.types import Request


class FromHost(Plan):
    """The product where A, B and C lie in host memory, which is fast where it is pinned (`cupyx.empty_pinned`).

    Parameters
    ----------
    a, b, out : numpy.ndarray, shapes (m, k), (k, n), (m, n)
        Rows are contiguous.
    devices : sequence of int
        Blocks of rows are given to them in turn, which evens their work without knowing it.
    request : Request
        Tau is searched when the plan is made, by norms that the CPU takes.
    c : numpy.ndarray, shape (m, n), optional
        What beta multiplies, of the dtype of C with contiguous rows; may be `out`.
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
        request: Request,
        c: Any = None,
        memory_bytes: int | None = None,
    ) -> None:

        shape = (*a.shape, b.shape[1])
        # One GPU would multiply contiguous copies.
        problem = Problem.of_parts(shape, [a], [b], request.block, request.real.precision, request.strict)
        super().__init__(devices, problem, request)
        self.tau = host_threshold(a, b, request)
        self.a, self.b, self.c, self.out = a, b, c, out
        if c is not None:
            self._norm_c = norm_of_added([c], [out], request.block)
        height = self._height(memory_bytes)
        blocks = partition.round_robin(shape[0], height, len(devices))
        self.panels = [slice(*panel) for panel in partition.panels(shape[2], partition.HOST_PANELS)]
        #: Rows of a panel that each part reads from the host.
        self._pieces = [slice(*piece) for piece in partition.pieces(shape[1], len(devices))]
        self.parts = [_Part(self, index, mine, height) for index, mine in zip(devices, blocks, strict=True)]
        #: Ends of the pieces of C on their way to the host.
        self._under_way: deque[Any] = deque()

    def _height(self, memory_bytes: int | None) -> int:
        """Return the rows of a block, as many as fit twice beside B on every device."""
        import cupy

        m, k, n = self.shape
        request = self.request
        itemsize, output = (np.dtype(self.arithmetic.dtype).itemsize, np.dtype(self.arithmetic.output).itemsize)
        norms = np.dtype(self.arithmetic.norm).itemsize * (ceil_div(m, request.block) + ceil_div(n, request.block))
        fixed = itemsize * k * n + norms * ceil_div(k, request.block) + (8 << 20)
        row = 2 * (itemsize * k + output * n)
        height = partition.block_height(m, len(self.devices), max(m, partition.ROW_UNIT))
        for index in dict.fromkeys(self.devices):
            with cupy.cuda.Device(index):
                free = free_bytes() if memory_bytes is None else memory_bytes
            shares = self.devices.count(index)
            height = min(height, partition.block_height(m, len(self.devices), max(0, (free // shares - fixed) // row)))
            if height == 0:
                raise MemoryError(
                    f"the product of shapes {self.a.shape} and {self.b.shape} in blocks of {partition.ROW_UNIT} "
                    f"rows needs {shares * (fixed + row * partition.ROW_UNIT):,} bytes of device memory and device "
                    f'{index} has {free:,} free: free other arrays, split b by columns, or use backend="cpu"'
                )
        return height

    def _enqueue(self) -> None:
        """Read the first panel of B and the first blocks, whose columns of C leave while further panels come.

        Other blocks are multiplied whole.
        """
        if (call := counted_in(PARTS)) is not None:
            call.total = call.done + sum(len(part.products) for part in self.parts)
        first = [part for part in self.parts if part.rows]
        for panel in range(len(self.panels)):
            self._fetch(panel)
            for part in first:
                if panel == 0:
                    part.read(0, self.a, self.c)
                self._multiply(part, 0, panel)
        for block in range(1, max(len(part.rows) for part in self.parts)):
            for part in self.parts:
                if block < len(part.rows):
                    part.read(block, self.a, self.c)
                    self._multiply(part, block, None)

    def _fetch(self, panel: int) -> None:
        """Read a panel of B, every part its rows, and pass them on to the other parts; take its norms."""
        columns = self.panels[panel]
        for owner, rows in enumerate(self._pieces):
            reader = self.parts[owner]
            reader.reader.copy(reader.b[rows, columns], self.b[rows, columns])
            read = reader.reader.mark()
            reader.stream.wait(read)
            reader.sender.wait(read)
            # Each reader begins with its neighbour, so that no device receives from all at once.
            for step in range(1, len(self.parts)):
                other = self.parts[(owner + step) % len(self.parts)]
                reader.sender.copy(other.b[rows, columns], reader.b[rows, columns])
                other.stream.wait(reader.sender.mark())
        for part in self.parts:
            part.measure(panel)

    def _multiply(self, part: _Part, block: int, panel: int | None) -> None:
        """Multiply rows of a block with a panel of B, or all of it, and write the piece of C to the host."""
        with part.stream.current():
            part.products[block, panel]()
        self._under_way.append(part.write(block, slice(None) if panel is None else self.panels[panel], self.out))
        # Copies of memory that is not pinned hold the host up, and so this is told meanwhile.
        while self._under_way and self._under_way[0].done:
            self._under_way.popleft()
            count(PARTS)

    def wait(self) -> None:
        """Wait until C is there, and tell how far it is."""
        while self._under_way:
            self._under_way.popleft().synchronize()
            count(PARTS)

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        by_turns = itertools.zip_longest(*(part.norms_a for part in self.parts))
        norms = [block for turn in by_turns for block in turn if block is not None]
        return cuda_norms.Norms(joined(norms), self.parts[0].norms_b, self.request.block)

    def check_host(self) -> None:
        """Raise ValueError where A or B is to hold numbers and does not, after a call; synchronises."""
        import cupy

        if self.request.check_finite:
            with cupy.cuda.Device(self.devices[0]):
                cuda_norms.check_norms(self.maps(), self.a, self.b)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]

    def release(self) -> None:
        """Give the copies on the devices back."""
        for part in self.parts:
            part.release()


class _Part:
    """What a device holds and does: B, and two buffers for blocks of rows of A and C each."""

    def __init__(self, plan: FromHost, index: int, row_blocks: list[tuple[int, int]], height: int) -> None:
        import cupy

        _, k, n = plan.shape
        request = plan.request
        self.rows = [slice(*rows) for rows in row_blocks]
        self.stream, self.reader, self.sender, self.back = (plan.stream(index) for _ in range(4))
        slots = min(2, len(row_blocks))
        with cupy.cuda.Device(index):
            self.b = cupy.empty((k, n), plan.arithmetic.dtype)
            self.a = [cupy.empty((height, k), plan.arithmetic.dtype) for _ in range(slots)]
            self.c = [cupy.empty((height, n), plan.arithmetic.output) for _ in range(slots)]
            self.norms_a = [empty_map(last - first, k, request) for first, last in row_blocks]
            self.norms_b = empty_map(n, k, request)
            nothing = (cupy.empty((0, k), plan.arithmetic.dtype), cupy.empty((k, 0), plan.arithmetic.dtype))
            none = empty_map(0, k, request)
            self._norms_of_rows = [
                plan.norm_maps(self._rows(self.a, block), nothing[1], (norms, none))
                for block, norms in enumerate(self.norms_a)
            ]
            self._norms_of_panels = [
                plan.norm_maps(nothing[0], self.b[:, columns], (none, self._norms_b(plan, columns)))
                for columns in plan.panels
            ]
            # All of B is there when another than the first block is.
            first = [(0, panel) for panel in range(len(plan.panels))] if self.rows else []
            places = [*first, *((block, None) for block in range(1, len(self.rows)))]
            #: By the block of rows, and the panel of B.
            self.products = {place: self._product(plan, *place) for place in places}
        self._multiplied: list[Any] = [None] * slots
        self._taken: list[Any] = [None] * slots

    def _rows(self, buffers: list[Any], block: int) -> Any:
        """Return the rows of a block in its buffer."""
        rows = self.rows[block]
        return buffers[block % 2][: rows.stop - rows.start]

    def _norms_b(self, plan: FromHost, columns: slice) -> Any:
        block = plan.request.block
        return self.norms_b[columns.start // block : ceil_div(columns.stop, block)]

    def _product(self, plan: FromHost, block: int, panel: int | None) -> cuda_product.Product:
        columns = slice(0, plan.shape[2]) if panel is None else plan.panels[panel]
        measured = self._norms_of_rows[block] if panel is None else self._norms_of_panels[panel]
        of_panel, size = self._norms_b(plan, columns), plan.request.block
        norms = cuda_norms.Norms(self.norms_a[block], of_panel, size, measured.counter)
        target = self._rows(self.c, block)[:, columns]
        # What beta multiplies is read into the buffer that receives the result.
        added = None if plan.c is None else target
        return plan.product(self._rows(self.a, block), self.b[:, columns], target, norms, added)

    def read(self, block: int, a: Any, c: Any) -> None:
        """Read a block of rows of A, and of C where it is added, and take A's norms, as soon as a buffer is free."""
        rows, slot = self.rows[block], block % 2
        again = block >= 2
        if again:
            self.reader.wait(self._multiplied[slot])
        self.reader.copy(self._rows(self.a, block), a[rows])
        if c is not None:
            if again:
                self.reader.wait(self._taken[slot])
            self.reader.copy(self._rows(self.c, block), c[rows])
        self.stream.wait(self.reader.mark())
        with self.stream.current():
            self._norms_of_rows[block]()
        if again:
            self.stream.wait(self._taken[slot])

    def measure(self, panel: int) -> None:
        """Take the norms of a panel of B, which is there then."""
        with self.stream.current():
            self._norms_of_panels[panel]()

    def write(self, block: int, columns: slice, out: Any) -> Any:
        """Write columns of a block of C to the host when they are multiplied; return the event of their end."""
        slot = block % 2
        self._multiplied[slot] = self.stream.mark()
        self.back.wait(self._multiplied[slot])
        self.back.copy(out[self.rows[block], columns], self._rows(self.c, block)[:, columns])
        self._taken[slot] = self.back.mark()
        return self._taken[slot]

    def release(self) -> None:
        """Give everything but the norms back."""
        self.b = None
        for held in (self.a, self.c, self.products, self._norms_of_rows, self._norms_of_panels):
            held.clear()


def free_bytes() -> int:
    """Return the bytes that the current device can still allocate, within the limit of CuPy's memory pool.

    What is idle in the pool is given back first, since pieces beside arrays in use hold no large array.
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    return memory.free_bytes() - pool.free_bytes()
