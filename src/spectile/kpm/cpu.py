"""KPM on the CPU: the three stages of the paper, threaded over row blocks and vectorised over the block vector.

A block vector of R complex vectors is stored row by row, real parts beside real parts: shape (N, 2, R); real ones are
(N, 1, R).  So a row of the block is a run of SIMD lanes, every matrix entry is a scalar broadcast, and no shuffles are
needed.  The row kernel is written once, as LLVM vector code for 32, 16, ... 1 lanes (the paper generated AVX code for
the same reason: a compiler does not keep the accumulators of a row in registers); CSR, SELL-C-sigma and the matrix-free
stencil differ only in where a row's entries lie.  A single complex vector has a kernel of its own, with its real and
imaginary part as two lanes.

Dot products are summed in row blocks whose bounds depend on the matrix alone, then over the blocks in order: results
are bitwise the same with any number of threads.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from spectile.kpm.lanes import Lanes
from spectile.kpm.patterns import RowPatterns, table
from spectile.kpm.reference import Array

MAX_BLOCKS = 64
MIN_BLOCK_ROWS = 512
# Rows of a plane that are followed through all planes before the next: three such patches stay in a core's L2 cache.
PATCH_ROWS = 1024
# A plane is cut in patches where three of its like exceed the second-level cache.
CACHE_BYTES = 2 << 20
# Rows ahead whose farthest neighbours are prefetched, and the shortest row of the block vector for which that pays.
ROWS_AHEAD = 8
PREFETCHED_LINE = 32
# Entries of the matrix that are prefetched ahead: the hardware fetches half as fast as a core can take.
ENTRIES_AHEAD = 384
_MATH = {"contract", "nsz"}
# Untyped: mypy would want the typing context, which Numba supplies, of every caller.
intrinsic: Any = extending.intrinsic


def _over_entries(
    lanes: Lanes, indices: Any, first: Any, stride: Any, count: Any, num_sums: int, add: Callable[..., list[Any]]
) -> list[Any]:
    """Emit the loop over a row's entries and return its sums; `add(position, column, sums)` emits one entry's part."""
    builder, intp = lanes.builder, first.type
    before = builder.block
    head, body, done = (builder.append_basic_block(name) for name in ("entry", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    k, position = builder.phi(intp), builder.phi(intp)
    sums = [builder.phi(lanes.type) for _ in range(num_sums)]
    for value, start in zip([k, position, *sums], [intp(0), first, *[lanes.zero] * num_sums], strict=True):
        value.add_incoming(start, before)
    builder.cbranch(builder.icmp_signed("<", k, count), body, done)
    builder.position_at_end(body)
    column = builder.load(builder.gep(indices, [position]))
    if column.type != intp:
        column = builder.sext(column, intp)
    following = [builder.add(k, intp(1)), builder.add(position, stride), *add(position, column, sums)]
    for value, update in zip([k, position, *sums], following, strict=True):
        value.add_incoming(update, body)
    builder.branch(head)
    builder.position_at_end(done)
    return sums


def _aug_row(count_lanes: int) -> Any:
    """Make the kernel of one matrix row and so many columns of the block vector, from `column` on.

    w[row] = scale Σ_k data[k] v[origin + indices[k]] + own v[row] − keep w[row],
    even += |v[row]|², odd += Re conj(w[row]) v[row].
    """

    @intrinsic
    def aug_row(
        typingctx: Any, indices: Any, data: Any, v: Any, w: Any, even: Any, odd: Any, scalars: Any, own: Any,
        row: Any, origin: Any, first: Any, stride: Any, count: Any, column: Any, width: Any
    ) -> Any:  # fmt: skip
        is_complex = isinstance(data.dtype, types.Complex)
        parts = 2 if is_complex else 1
        real = data.dtype.underlying_float if is_complex else data.dtype

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width = args
            lanes = Lanes(builder, context.get_value_type(real), count_lanes)
            intp = row.type
            data = builder.bitcast(data, lanes.scalar.as_pointer())

            def offset(block_row: Any, part: int) -> Any:
                line = builder.add(builder.mul(block_row, intp(parts)), intp(part))
                return builder.add(builder.mul(line, width), column)

            def broadcast(base: Any, position: Any) -> Any:
                return lanes.splat(builder.load(builder.gep(base, [position])))

            def add(position: Any, target: Any, sums: list[Any]) -> list[Any]:
                neighbour, entry = builder.add(target, origin), builder.mul(position, intp(parts))
                re, x = broadcast(data, entry), lanes.load(v, offset(neighbour, 0))
                total = lanes.multiply_add(re, x, sums[0])
                if not is_complex:
                    return [total]
                im, y = broadcast(data, builder.add(entry, intp(1))), lanes.load(v, offset(neighbour, 1))
                crossed = lanes.multiply_add(im, x, lanes.multiply_add(re, y, sums[1]))
                return [lanes.multiply_subtract(im, y, total), crossed]

            sums = _over_entries(lanes, indices, first, stride, count, parts, add)
            scale, keep, shift = broadcast(scalars, intp(0)), broadcast(scalars, intp(2)), lanes.splat(own)
            even_sum, odd_sum = lanes.load(even, column), lanes.load(odd, column)
            for part in range(parts):
                here = offset(row, part)
                mine, old = lanes.load(v, here), lanes.load(w, here)
                fresh = lanes.multiply_add(shift, mine, builder.fmul(scale, sums[part]))
                fresh = lanes.multiply_subtract(keep, old, fresh)
                lanes.store(fresh, w, here)
                even_sum = lanes.multiply_add(mine, mine, even_sum)
                odd_sum = lanes.multiply_add(fresh, mine, odd_sum)
            lanes.store(even_sum, even, column)
            lanes.store(odd_sum, odd, column)
            return context.get_dummy_value()

        arrays = (indices, data, v, w, even, odd, scalars)
        return types.void(*arrays, real, *([types.intp] * 7)), codegen

    return aug_row


_row32, _row16, _row8, _row4, _row2, _row1 = (_aug_row(lanes) for lanes in (32, 16, 8, 4, 2, 1))


@intrinsic
def _row_pair(
    typingctx: Any, indices: Any, data: Any, v: Any, w: Any, even: Any, odd: Any, scalars: Any, own: Any,
    row: Any, origin: Any, first: Any, stride: Any, count: Any
) -> Any:  # fmt: skip
    """Do :func:`_aug_row` for a single complex vector, whose real and imaginary part are two lanes."""
    is_complex = isinstance(data.dtype, types.Complex)
    real = data.dtype.underlying_float if is_complex else data.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not is_complex:  # compiled with real matrices, too, but never reached
            return context.get_dummy_value()
        indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count = args
        lanes = Lanes(builder, context.get_value_type(real), 2)
        intp = row.type
        data, v, w = (builder.bitcast(base, lanes.type.as_pointer()) for base in (data, v, w))

        def add(position: Any, target: Any, sums: list[Any]) -> list[Any]:
            entry, x = lanes.load(data, position), lanes.load(v, builder.add(target, origin))
            crossed = lanes.multiply_add(entry, lanes.shuffle(x, x, 1, 0), sums[1])
            return [lanes.multiply_add(entry, x, sums[0]), crossed]

        # (re re, im im) and (re im, im re), put together behind the loop.
        straight, crossed = _over_entries(lanes, indices, first, stride, count, 2, add)
        cross, along = lanes.shuffle(straight, crossed, 1, 3), lanes.shuffle(straight, crossed, 0, 2)
        total = lanes.multiply_add(cross, lanes.constant(-1.0, 1.0), along)
        scale, keep = (lanes.splat(builder.load(builder.gep(scalars, [intp(n)]))) for n in (0, 2))
        mine, old = lanes.load(v, row), lanes.load(w, row)
        fresh = lanes.multiply_add(lanes.splat(own), mine, builder.fmul(scale, total))
        fresh = lanes.multiply_subtract(keep, old, fresh)
        lanes.store(fresh, w, row)
        for target, product in ((even, builder.fmul(mine, mine)), (odd, builder.fmul(fresh, mine))):
            dot = builder.fadd(lanes.lane(product, 0), lanes.lane(product, 1))
            builder.store(builder.fadd(builder.load(target), dot), target)
        return context.get_dummy_value()

    arrays = (indices, data, v, w, even, odd, scalars)
    return types.void(*arrays, real, *([types.intp] * 5)), codegen


@intrinsic
def _pointer(typingctx: Any, array: Any, offset: Any) -> Any:
    """Return where the element at flat `offset` of a contiguous array lies.

    Loops pass pointers on: an array handed from function to function would be counted as used, atomically, every row.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])

    return types.CPointer(array.dtype)(array, types.intp), codegen


@intrinsic
def _prefetch_line(typingctx: Any, base: Any, offset: Any) -> Any:
    """Prefetch the cache line `offset` bytes from `base` for reading; it may lie beyond the array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int32, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        name = "llvm.prefetch.p0"
        prefetch = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        pointer = builder.gep(builder.bitcast(args[0], byte), [args[1]])
        builder.call(prefetch, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(base, types.intp), codegen


@intrinsic
def _atomic_add(typingctx: Any, array: Any, value: Any) -> Any:
    """Add to the first element of an array of int64, seen by all threads at once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw(
            "add", context.make_array(signature.args[0])(context, builder, args[0]).data, args[1], "seq_cst"
        )
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def _atomic_load(typingctx: Any, array: Any) -> Any:
    """Return the first element of an array of int64 as other threads last wrote it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(context.make_array(array)(context, builder, args[0]).data, "acquire", 8)

    return types.int64(array), codegen


@numba.njit(nogil=True, cache=True)
def _arrive(arrived, value):  # type: ignore[no-untyped-def]
    _atomic_add(arrived, value)


@numba.njit(nogil=True, cache=True)
def _reached(arrived, total, spins):  # type: ignore[no-untyped-def]
    """Return whether so many threads have arrived, looking a limited number of times."""
    seen = _atomic_load(arrived)
    while seen < total and spins:
        spins -= 1
        seen = _atomic_load(arrived)
    return seen >= total


@numba.njit(forceinline=True)
def _prefetch(base, offset, lines):  # type: ignore[no-untyped-def]
    """Prefetch cache lines from `offset` bytes after `base` on."""
    for line in range(lines):
        _prefetch_line(base, offset + 64 * line)


@numba.njit(forceinline=True)
def _lines(size):  # type: ignore[no-untyped-def]
    """Return how many cache lines hold `size` bytes."""
    return (size + 63) // 64


@numba.njit(forceinline=True)
def _row(arrays, even, odd, own, row, origin, first, stride, count, parts, width):  # type: ignore[no-untyped-def]
    indices, data, v, w, scalars = arrays
    if width == 1 and parts == 2:
        _row_pair(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count)
        return
    column = 0
    while column + 32 <= width:
        _row32(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)
        column += 32
    if column + 16 <= width:
        _row16(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)
        column += 16
    if column + 8 <= width:
        _row8(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)
        column += 8
    if column + 4 <= width:
        _row4(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)
        column += 4
    if column + 2 <= width:
        _row2(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)
        column += 2
    if column < width:
        _row1(indices, data, v, w, even, odd, scalars, own, row, origin, first, stride, count, column, width)


@numba.njit(forceinline=True)
def _pointers(indices, data, v, w, scalars):  # type: ignore[no-untyped-def]
    return _pointer(indices, 0), _pointer(data, 0), _pointer(v, 0), _pointer(w, 0), _pointer(scalars, 0)


@numba.njit(nogil=True, cache=True, fastmath=_MATH)
def _csr_rows(indptr, indices, data, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    parts, width = v.shape[1:]
    arrays = _pointers(indices, data, v, w, scalars)
    num_rows, line = indptr.shape[0] - 1, parts * width
    entry_lines = _lines(indptr[num_rows] * data.itemsize // max(1, num_rows))
    # Columns ascend: the last two of a row are the ones that no cache has seen, and too far apart for the hardware.
    ahead = ROWS_AHEAD if line >= PREFETCHED_LINE else num_rows
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        for row in range(blocks[n, 0], blocks[n, 1]):
            first = indptr[row]
            if row + ahead < num_rows:
                end = indptr[row + ahead + 1]
                for k in range(max(end - 2, indptr[row + ahead]), end):
                    _prefetch(arrays[2], indices[k] * line * v.itemsize, _lines(line * v.itemsize))
            _prefetch(arrays[0], (first + ENTRIES_AHEAD) * indices.itemsize, 1)
            _prefetch(arrays[1], (first + ENTRIES_AHEAD) * data.itemsize, entry_lines)
            _row(arrays, even, odd, scalars[1], row, 0, first, 1, indptr[row + 1] - first, parts, width)


@numba.njit(nogil=True, cache=True, fastmath=_MATH)
def _sell_rows(chunk_start, row_length, chunk, indices, data, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    parts, width = v.shape[1:]
    arrays = _pointers(indices, data, v, w, scalars)
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        for row in range(blocks[n, 0], blocks[n, 1]):
            start, lane, count = chunk_start[row // chunk], row % chunk, row_length[row]
            # A row's share of what its chunk will need, in the order of memory.
            ahead = start + lane * count + ENTRIES_AHEAD
            _prefetch(arrays[0], ahead * indices.itemsize, 1)
            _prefetch(arrays[1], ahead * data.itemsize, _lines(count * data.itemsize))
            _row(arrays, even, odd, scalars[1], row, 0, start + lane, chunk, count, parts, width)


@numba.njit(forceinline=True)
def _pattern_row(arrays, even, odd, own, first, end, row, parts, width, size):  # type: ignore[no-untyped-def]
    line = parts * width
    if line >= PREFETCHED_LINE:
        for k in range(max(end - 2, first), end):
            _prefetch(arrays[2], (row + ROWS_AHEAD + arrays[0][k]) * line * size, _lines(line * size))
    _row(arrays, even, odd, own, row, row, first, 1, end - first, parts, width)


@numba.njit(nogil=True, cache=True, fastmath=_MATH)
def _pattern_rows(first, offsets, values, number, diagonal, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    parts, width = v.shape[1:]
    arrays = _pointers(offsets, values, v, w, scalars)
    scale, shift = scalars[0], scalars[1]
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        for row in range(blocks[n, 0], blocks[n, 1]):
            begin, end = first[number[row]], first[number[row] + 1]
            own = shift + scale * diagonal[row]
            _pattern_row(arrays, even, odd, own, begin, end, row, parts, width, v.itemsize)


@numba.njit(nogil=True, cache=True, fastmath=_MATH)
def _stencil_rows(first, offsets, values, sides, mass, potential, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    """Rows of the topological insulator: which of the patterns a row has follows from where its site lies."""
    nx, ny, nz = sides
    parts, width = v.shape[1:]
    arrays = _pointers(offsets, values, v, w, scalars)
    scale, shift = scalars[0], scalars[1]
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        pattern = 0
        for row in range(blocks[n, 0], blocks[n, 1]):
            site, orbital = row // 4, row % 4
            if orbital == 0:
                x, y, z = site // (nz * ny), site // nz % ny, site % nz
                pattern = 4 * (9 * _place(x, nx) + 3 * _place(y, ny) + _place(z, nz))
            begin, end = first[pattern + orbital], first[pattern + orbital + 1]
            own = shift + scale * (mass[orbital] + potential[site])
            _pattern_row(arrays, even, odd, own, begin, end, row, parts, width, v.itemsize)


@numba.njit(forceinline=True)
def _place(position, side):  # type: ignore[no-untyped-def]
    """Return 0 on the first plane, 2 on the last, and 1 between."""
    return 0 if position == 0 else 2 if position == side - 1 else 1


@numba.njit(nogil=True, cache=True)
def _fill_phases(block, seed, rows, first_row, first_vector, start, stop):  # type: ignore[no-untyped-def]
    """Write :func:`spectile.kpm.reference.random_phases` of the rows named by `rows` (or of all, if it is empty)."""
    parts = block.shape[1]
    for i in range(start, stop):
        row = np.uint64(rows[i]) if rows.size else np.uint64(first_row + i)
        for r in range(block.shape[2]):
            vector = np.uint64(seed) + np.uint64(first_vector + r) * np.uint64(0x9E3779B97F4A7C15)
            bits = _mix(_mix(vector) + row * np.uint64(0xD1B54A32D192ED03))
            if parts == 1:
                block[i, 0, r] = 1.0 - 2.0 * (bits >> np.uint64(63))
            else:
                quarter = bits >> np.uint64(62)
                block[i, 0, r] = 1.0 if quarter == 0 else (-1.0 if quarter == 2 else 0.0)
                block[i, 1, r] = 1.0 if quarter == 1 else (-1.0 if quarter == 3 else 0.0)


@numba.njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class CpuOperator:
    """A Hermitian matrix as the CPU kernels take it.

    Attributes
    ----------
    num_rows, num_columns : int
        Rows to update, and rows of the block vector that they read (more than `num_rows` where a halo follows).
    dtype : dtype
        Of the matrix: complex128, complex64, float64 or float32.
    rows : callable
        ``rows(v, w, scalars, blocks, partial)`` updates row blocks, shape (n, 2), and sums into `partial`, (n, 2, R).
    order : ndarray or None
        Original row of each row, where a format permutes.
    plane_rows : int
        Rows of a lattice plane, where the rows are known to lie plane by plane; else zero.
    """

    num_rows: int
    num_columns: int
    dtype: np.dtype[Any]
    rows: Callable[..., None]
    order: Array | None = None
    plane_rows: int = 0

    @classmethod
    def from_matrix(cls, matrix: Any) -> CpuOperator:
        """Take a ``scipy.sparse`` CSR matrix (rows <= columns): by patterns where its rows repeat, else by entries."""
        patterns = RowPatterns.from_csr(matrix)
        if patterns is None:
            return cls.from_csr(matrix)
        return cls.from_patterns(patterns, matrix.shape[1], _plane_rows(matrix.indptr, matrix.indices))

    @classmethod
    def from_patterns(cls, matrix: RowPatterns, num_columns: int, plane_rows: int = 0) -> CpuOperator:
        """Take a :class:`spectile.kpm.patterns.RowPatterns`."""
        rows = functools.partial(
            _pattern_rows, matrix.first, matrix.offsets, matrix.values, matrix.number, matrix.diagonal
        )
        return cls(matrix.number.size, num_columns, matrix.values.dtype, rows, plane_rows=plane_rows)

    @classmethod
    def from_csr(cls, matrix: Any) -> CpuOperator:
        """Take a ``scipy.sparse`` CSR matrix (rows <= columns) by its entries."""
        rows = functools.partial(_csr_rows, matrix.indptr, matrix.indices, matrix.data)
        plane = _plane_rows(matrix.indptr, matrix.indices)
        return cls(matrix.shape[0], matrix.shape[1], matrix.dtype, rows, plane_rows=plane)

    @classmethod
    def from_sell(cls, matrix: Any) -> CpuOperator:
        """Take a :class:`spectile.kpm.sell.SellMatrix`."""
        rows = functools.partial(
            _sell_rows, matrix.chunk_start, matrix.row_length, matrix.chunk, matrix.indices, matrix.data
        )
        return cls(matrix.shape[0], matrix.shape[1], matrix.dtype, rows, matrix.order)

    @classmethod
    def from_topological_insulator(cls, sample: Any, dtype: Any = np.complex128) -> CpuOperator:
        """Take a :class:`spectile.inputs.topological_insulator.TopologicalInsulator` without storing its matrix."""
        from spectile.inputs.topological_insulator import GAMMA_1, MASS

        mass = (MASS * GAMMA_1.diagonal().real).astype(np.empty(0, dtype).real.dtype)
        potential = sample.potential.ravel().astype(mass.dtype)
        sides = (sample.nx, sample.ny, sample.nz)
        lists = [
            _stencil_row(sample, place, orbital)
            for place in itertools.product(range(3), repeat=3)
            for orbital in range(4)
        ]
        rows = functools.partial(_stencil_rows, *table(lists, dtype), sides, mass, potential)
        plane = 4 * sample.ny * sample.nz
        return cls(sample.shape[0], sample.shape[1], np.dtype(dtype), rows, plane_rows=plane)

    @property
    def parts(self) -> int:
        """Two real numbers an element of a complex matrix, else one."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def real_dtype(self) -> np.dtype[Any]:
        """Type of the block vector's numbers."""
        return np.empty(0, self.dtype).real.dtype

    def blocks(self, num_vectors: int = 64) -> list[tuple[int, int]]:
        """Return the row blocks, in the order of computation, in which dot products are summed.

        They depend on the matrix and the number of vectors alone, not on threads.
        """
        three_planes = 3 * self.plane_rows * num_vectors * self.dtype.itemsize
        if three_planes > CACHE_BYTES and 2 * PATCH_ROWS <= self.plane_rows <= self.num_rows // 3:
            planes = -(-self.num_rows // self.plane_rows)
            patch = np.linspace(0, self.plane_rows // 4, round(self.plane_rows / PATCH_ROWS) + 1).astype(int) * 4
            patch[-1] = self.plane_rows
            patches = (
                (plane * self.plane_rows + int(low), min(self.num_rows, plane * self.plane_rows + int(high)))
                for low, high in itertools.pairwise(patch)
                for plane in range(planes)
            )
            return [(start, stop) for start, stop in patches if start < stop]
        # Sums of a block are kept in the type of the vectors: shorter blocks where that is single precision.
        most = MAX_BLOCKS if self.real_dtype.itemsize == 8 else 16 * MAX_BLOCKS
        count = max(1, min(most, self.num_rows // MIN_BLOCK_ROWS))
        edges = np.linspace(0, self.num_rows // 4, count + 1).astype(int) * 4
        edges[-1] = self.num_rows
        return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    def update(
        self, v: Array, w: Array, scale: float, shift: float, keep: float, threads: int, blocks: list[tuple[int, int]]
    ) -> Array:
        """Do one ``aug_spmmv()``: w = scale H v + shift v − keep w on the rows of `blocks`.

        Parameters
        ----------
        v, w : ndarray, shape (num_columns, parts, R)
            Block vectors; w is overwritten.
        scale, shift, keep : float
            2a, −2ab and 1 in the recurrence; a, −ab and 0 in the first step.
        threads : int
            Threads to use.
        blocks : list of (start, stop)
            Row blocks.

        Returns
        -------
        ndarray, float64, shape (2, R)
            ⟨v|v⟩ and Re ⟨w|v⟩ of each column, summed over these rows.
        """
        partial = np.zeros((len(blocks), 2, v.shape[2]), dtype=v.dtype)
        scalars = np.array([scale, shift, keep], dtype=v.dtype)
        edges = np.array(blocks, dtype=np.int64).reshape(-1, 2)
        # One call a thread, the first by this one: what it sums depends on the blocks, not on who does them.
        shares = np.linspace(0, len(blocks), threads + 1).astype(int)

        def work(n: int) -> None:
            mine = slice(shares[n], shares[n + 1])
            self.rows(v, w, scalars, edges[mine], partial[mine])

        if threads == 1 or len(blocks) <= 1:
            self.rows(v, w, scalars, edges, partial)
        else:
            others = [_pool(threads - 1).submit(work, n) for n in range(1, threads)]
            work(0)
            for other in others:
                other.result()
        return partial.sum(axis=0, dtype=np.float64)

    def random_block(self, seed: int, first_vector: int, num_vectors: int, first_row: int = 0) -> Array:
        """Return random start vectors as a block vector of this operator's layout."""
        block = np.zeros((self.num_columns, self.parts, num_vectors), dtype=self.real_dtype)
        rows = np.empty(0, dtype=np.int64) if self.order is None else self.order
        _fill_phases(block, np.uint64(seed), rows, first_row, first_vector, 0, self.num_rows)
        return block

    def to_block(self, vectors: Array) -> Array:
        """Return vectors of shape (N, R) in this operator's layout and row order."""
        vectors = vectors if self.order is None else vectors[self.order]
        if self.parts == 1:
            return np.ascontiguousarray(vectors[:, None, :], dtype=self.real_dtype)
        return np.ascontiguousarray(np.stack([vectors.real, vectors.imag], axis=1), dtype=self.real_dtype)


def _stencil_row(sample: Any, place: tuple[int, ...], orbital: int) -> tuple[Array, Array]:
    """Return offsets and values of a row without its diagonal, of a site first, between or last along each axis."""
    from spectile.inputs.topological_insulator import GAMMA_1, GAMMA_HOP, PARTNER

    sides, strides = (sample.nx, sample.ny, sample.nz), (sample.ny * sample.nz, sample.nz, 1)
    offsets, values = [], []
    for axis, step in itertools.product(range(3), (1, -1)):
        leaves = place[axis] == (2 if step == 1 else 0)
        if leaves and axis == 2:
            continue
        sites = (step - step * sides[axis] * leaves) * strides[axis]
        # Towards n + e_j the entry is the adjoint of the hop from n.
        block = -sample.hopping * (GAMMA_1 + 1j * step * GAMMA_HOP[axis]) / 2
        for other in (orbital, PARTNER[axis][orbital]):
            offsets.append(4 * sites + other - orbital)
            values.append(block[orbital, other])
    return np.array(offsets, dtype=np.int64), np.array(values)


def _plane_rows(indptr: Array, indices: Array) -> int:
    """Return how far apart the farthest rows are that a row couples, in most rows, in whole sites of four orbitals."""
    num_rows = len(indptr) - 1
    rows = np.linspace(0, num_rows - 1, min(num_rows, 2001)).astype(np.int64)
    far = [np.abs(indices[indptr[row] : indptr[row + 1]] // 4 - row // 4).max(initial=0) for row in rows]
    return 4 * int(np.median(far))


def num_threads() -> int:
    """Return the number of threads that Numba is allowed (``NUMBA_NUM_THREADS``), or of usable processors."""
    if "NUMBA_NUM_THREADS" in os.environ:
        return int(os.environ["NUMBA_NUM_THREADS"])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kpm")


_TEAM = threading.Lock()  # a second team in the same pool would wait for threads that wait for it
_STOP = 1 << 40  # more than all arrivals of a run; several threads may add it
SPINS = 20_000
# Rows times (vectors and three for the matrix) that are worth a thread: about 0.15 ms, what it costs to begin and meet.
THREAD_WORK = 50_000


def side_by_side(threads: int, steps: int, work: Callable[[int, int], None], after: Callable[[int], None]) -> None:
    """Do steps on several threads that meet after each one.

    They spin until they meet: threads that sleep between short steps are woken on the core of the one that wakes them,
    and stay there together while another core has nothing to do.

    Parameters
    ----------
    threads : int
        Threads, this one among them.
    steps : int
        Steps.
    work : callable
        ``work(n, m)`` does thread n's share of step m.
    after : callable
        ``after(m)`` is called by this thread when all have done step m; the others go on meanwhile.
    """
    arrived = np.zeros(1, dtype=np.int64)

    def run(n: int) -> None:
        try:
            _spread(n, threads)
            for m in range(steps):
                work(n, m)
                _arrive(arrived, 1)
                while not _reached(arrived, threads * (m + 1), SPINS):
                    _give_way()
                if arrived[0] >= _STOP:
                    return
                if n == 0:
                    after(m)
        except BaseException:
            _arrive(arrived, _STOP)
            raise

    with _TEAM:
        others = [_pool(threads - 1).submit(run, n) for n in range(1, threads)]
        try:
            run(0)
        finally:
            for other in others:
                other.result()


def _spread(n: int, threads: int) -> None:
    """Move this thread to processor n where the team has them all; it is free to move on from there."""
    if hasattr(os, "sched_setaffinity"):
        processors = os.sched_getaffinity(0)
        if len(processors) == threads:
            os.sched_setaffinity(0, {sorted(processors)[n]})
            os.sched_setaffinity(0, processors)


_give_way: Callable[[], None] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))


class CpuRecursion:
    """The recurrence of a block of vectors: |ν_m⟩ and |ν_m−1⟩, advanced in place.

    Parameters
    ----------
    operator : CpuOperator
        H.
    a, b : float
        H̃ = a (H − b).
    block : ndarray, shape (num_columns, parts, R)
        |ν₀⟩, taken over.
    threads : int or None
        Defaults to :func:`num_threads`, and to fewer for small samples.
    """

    def __init__(self, operator: CpuOperator, a: float, b: float, block: Array, threads: int | None = None) -> None:
        self.operator, self.a, self.b = operator, a, b
        self.v, self.w = block, np.zeros_like(block)
        enough = operator.num_rows * (block.shape[2] + 3) // THREAD_WORK
        self.threads = threads or max(1, min(num_threads(), enough))
        self.steps = 0
        self._blocks = operator.blocks(self.num_vectors)

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[2])

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        etas = np.empty((steps, 2, self.num_vectors))
        edges = np.array(self._blocks, dtype=np.int64).reshape(-1, 2)
        threads = min(self.threads, len(edges))
        shares = np.linspace(0, len(edges), threads + 1).astype(int)
        # Two sets of sums: one is added up while the next step begins.
        partial = np.zeros((2, len(edges), 2, self.num_vectors), dtype=self.v.dtype)
        a, b = self.a, self.b
        scalars = np.array([[a, -a * b, 0.0], [2 * a, -2 * a * b, 1.0]], dtype=self.v.dtype)
        first = self.steps

        def vectors(m: int) -> tuple[Array, Array]:
            swapped = (m + (first > 0)) % 2
            return (self.w, self.v) if swapped else (self.v, self.w)

        def work(n: int, m: int) -> None:
            mine = slice(shares[n], shares[n + 1])
            self.operator.rows(*vectors(m), scalars[int(first + m > 0)], edges[mine], partial[m % 2, mine])

        def after(m: int) -> None:
            etas[m] = partial[m % 2].sum(axis=0, dtype=np.float64)
            partial[m % 2] = 0

        if threads == 1:
            for m in range(steps):
                work(0, m)
                after(m)
        else:
            side_by_side(threads, steps, work, after)
        if steps:
            self.v, self.w = vectors(steps - 1)
        self.steps += steps
        return etas.reshape(2 * steps, self.num_vectors)

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"v": self.v, "w": self.w, "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        self.v, self.w, self.steps = state["v"], state["w"], int(state["steps"])


def etas_naive(matrix: Any, start: Array, steps: int, a: float, b: float) -> Array:
    """Run Figure 3 through SciPy's product and BLAS, vector by vector: the chain of library calls to compare with.

    Parameters
    ----------
    matrix : scipy.sparse matrix, shape (N, N)
        H.
    start : ndarray, shape (N, R), Fortran order
        |ν₀⟩.
    steps : int
        Applications of H̃, M/2.
    a, b : float
        Scaling.

    Returns
    -------
    ndarray, shape (2 * steps, R)
    """
    from scipy.linalg import get_blas_funcs

    vector = np.empty(0, dtype=matrix.dtype)
    axpy, scal, nrm2 = get_blas_funcs(("axpy", "scal", "nrm2"), (vector,))
    dot = get_blas_funcs("dotc" if matrix.dtype.kind == "c" else "dot", (vector,))
    etas = np.empty((2 * steps, start.shape[1]))
    for r in range(start.shape[1]):
        v, w = start[:, r].astype(matrix.dtype), np.zeros(start.shape[0], dtype=matrix.dtype)
        for m in range(steps):
            if m:
                v, w = w, v
            u = axpy(v, matrix @ v, a=-b)
            w = axpy(u, scal(-1.0, w), a=2 * a if m else a)
            etas[2 * m : 2 * m + 2, r] = nrm2(v) ** 2, dot(w, v).real
    return etas
