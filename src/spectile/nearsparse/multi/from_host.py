"""SpAMM where all matrices lie in host memory, larger than a device's perhaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Plan, host_threshold
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
        problem = Problem.of_parts(shape, [a], [b], request.block, request.precision, request.strict)
        super().__init__(devices, problem, request)
        self.tau = host_threshold(a, b, request)
        self.a, self.b, self.c, self.out = a, b, c, out
        if c is not None:
            self.add([c], [out])
        height = self._height(memory_bytes)
        blocks = partition.round_robin(shape[0], height, len(devices))
        self.panels = [slice(*panel) for panel in partition.panels(shape[2], partition.HOST_PANELS)]
        #: Rows of a panel that each part reads from the host.
        self._pieces = [slice(*piece) for piece in partition.pieces(shape[1], len(devices))]
        self._parts = [_StreamedPart(self, index, mine, height) for index, mine in zip(devices, blocks, strict=True)]

    def _height(self, memory_bytes: int | None) -> int:
        """Return the rows of a block, as many as fit twice beside B on every device."""
        import cupy

        m, k, n = self.shape
        request = self.request
        itemsize, output = np.dtype(request.arithmetic.dtype).itemsize, np.dtype(request.arithmetic.output).itemsize
        norms = np.dtype(request.arithmetic.norm).itemsize * (ceil_div(m, request.block) + ceil_div(n, request.block))
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
        for number, columns in enumerate(self.panels):
            self._share(columns)
            for part in self._parts:
                if number == 0 and part.blocks:
                    part.read(0, self.a, self.c)
                part.multiply_panel(number, self.out)
        for turn in range(1, max(len(part.blocks) for part in self._parts)):
            for part in self._parts:
                if turn < len(part.blocks):
                    part.multiply(turn, self.a, self.c, self.out)

    def _share(self, columns: slice) -> None:
        """Read a panel of B, every part its rows, and pass them on to the other parts."""
        for owner, rows in enumerate(self._pieces):
            reader = self._parts[owner]
            reader.reader.copy(reader.b[rows, columns], self.b[rows, columns])
            read = reader.reader.mark()
            reader.stream.wait(read)
            reader.sender.wait(read)
            # Each reader begins with its neighbour, so that no device receives from all at once.
            for step in range(1, len(self._parts)):
                other = self._parts[(owner + step) % len(self._parts)]
                reader.sender.copy(other.b[rows, columns], reader.b[rows, columns])
                other.stream.wait(reader.sender.mark())

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        norms = [
            part.norms_a[turn]
            for turn in range(len(self._parts[0].blocks))
            for part in self._parts
            if turn < len(part.blocks)
        ]
        return cuda_norms.Norms(self.joined(norms), self._parts[0].norms_b, self.request.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return [self.out]

    def release(self) -> None:
        """Give the copies on the devices back."""
        for part in self._parts:
            part.release()


class _StreamedPart:
    """What a device holds and does in `FromHost`: B, and two buffers for blocks of rows of A and C each."""

    def __init__(self, plan: FromHost, index: int, row_blocks: list[tuple[int, int]], height: int) -> None:
        import cupy

        _, k, n = plan.shape
        request, block = plan.request, plan.request.block
        self.blocks = [slice(*rows) for rows in row_blocks]
        self.stream, self.reader, self.sender, self.back = (plan.stream(index) for _ in range(4))
        slots = min(2, len(row_blocks))
        with cupy.cuda.Device(index):
            self.b = cupy.empty((k, n), request.arithmetic.dtype)
            self.a = [cupy.empty((height, k), request.arithmetic.dtype) for _ in range(slots)]
            self.c = [cupy.empty((height, n), request.arithmetic.output) for _ in range(slots)]
            self.norms_b = empty_map(n, k, request)
            self.norms_a: list[Any] = []
            self._steps: list[tuple[cuda_norms.NormMaps, cuda_product.Product]] = []
            columns = cupy.empty((k, 0), request.arithmetic.dtype)
            for turn, (first, last) in enumerate(row_blocks):
                mine = self.a[turn % 2][: last - first]
                own = empty_map(last - first, k, request)
                maps = cuda_norms.NormMaps(mine, columns, block, (own, empty_map(0, k, request)))
                norms = cuda_norms.Norms(own, self.norms_b, block, maps.counter)
                self.norms_a.append(own)
                self._steps.append((maps, self._product(plan, turn, slice(None), norms)))
            #: Norms of a panel of B, and the first block's product with it.
            self._panels = [self._panel(plan, panel) for panel in plan.panels]
        self._multiplied: list[Any] = [None] * slots
        self._taken: list[Any] = [None] * slots

    def _product(self, plan: FromHost, turn: int, columns: slice, norms: cuda_norms.Norms) -> cuda_product.Product:
        rows, slot = self.blocks[turn], turn % 2
        count = rows.stop - rows.start
        target = self.c[slot][:count, columns]
        # What beta multiplies is read into the buffer that receives the result.
        return plan.product(self.a[slot][:count], self.b[:, columns], target, norms, None if plan.c is None else target)

    def _panel(self, plan: FromHost, columns: slice) -> tuple[slice, cuda_norms.NormMaps, cuda_product.Product | None]:
        import cupy

        request, block, k = plan.request, plan.request.block, plan.shape[1]
        norms_b = self.norms_b[columns.start // block : ceil_div(columns.stop, block)]
        nothing = cupy.empty((0, k), request.arithmetic.dtype)
        maps = cuda_norms.NormMaps(nothing, self.b[:, columns], block, (empty_map(0, k, request), norms_b))
        if not self.blocks:
            return columns, maps, None
        norms = cuda_norms.Norms(self.norms_a[0], norms_b, block, maps.counter)
        return columns, maps, self._product(plan, 0, columns, norms)

    def read(self, turn: int, a: Any, c: Any) -> None:
        """Read a block of rows of A, and of C where it is added, and take A's norms, as soon as a buffer is free."""
        rows, slot = self.blocks[turn], turn % 2
        count = rows.stop - rows.start
        if turn >= 2:
            self.reader.wait(self._multiplied[slot])
        self.reader.copy(self.a[slot][:count], a[rows])
        if c is not None:
            if turn >= 2:
                self.reader.wait(self._taken[slot])
            self.reader.copy(self.c[slot][:count], c[rows])
        self.stream.wait(self.reader.mark())
        with self.stream.current():
            self._steps[turn][0]()

    def release(self) -> None:
        """Give everything but the norms back."""
        self.b = None
        for held in (self.a, self.c, self._steps, self._panels):
            held.clear()

    def multiply_panel(self, number: int, out: Any) -> None:
        """Take the norms of a panel of B, multiply the first block with it, and write these columns of C."""
        columns, maps, product = self._panels[number]
        with self.stream.current():
            maps()
            if product is not None:
                product()
        if product is not None:
            self._write(0, columns, out)

    def multiply(self, turn: int, a: Any, c: Any, out: Any) -> None:
        """Multiply a further block of rows of A with all of B, and write its rows of C."""
        self.read(turn, a, c)
        if turn >= 2:
            self.stream.wait(self._taken[turn % 2])
        with self.stream.current():
            self._steps[turn][1]()
        self._write(turn, slice(None), out)

    def _write(self, turn: int, columns: slice, out: Any) -> None:
        rows, slot = self.blocks[turn], turn % 2
        self._multiplied[slot] = self.stream.mark()
        self.back.wait(self._multiplied[slot])
        self.back.copy(out[rows, columns], self.c[slot][: rows.stop - rows.start, columns])
        self._taken[slot] = self.back.mark()


def free_bytes() -> int:
    """Return the bytes that the current device can still allocate, within the limit of CuPy's memory pool.

    What is idle in the pool is given back first, since pieces beside arrays in use hold no large array.
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free = memory.free_bytes() - pool.free_bytes()
    limit = pool.get_limit()
    return min(free, limit - pool.total_bytes()) if limit else free
