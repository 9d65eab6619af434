"""Row kernels of KPM on the CPU, compiled by Numba: CSR, rows by number and the stencil.

The kernel of a row is written once, as LLVM vector code for 32, 16, ... 1 lanes (the paper generated AVX code for the
same reason: a compiler does not keep the accumulators of a row in registers); formats differ only in where a row's
entries lie.  A single vector has a kernel of its own, without lanes: its sums over rows stay in registers, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core.errors import TypingError

from spectile.core.jit import njit
from spectile.kpm import reference
from spectile.kpm.cpu.lanes import Lanes

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
                place = offset(row, part)
                mine, old = lanes.load(v, place), lanes.load(w, place)
                fresh = lanes.multiply_add(shift, mine, builder.fmul(scale, sums[part]))
                fresh = lanes.multiply_subtract(keep, old, fresh)
                lanes.store(fresh, w, place)
                even_sum = lanes.multiply_add(mine, mine, even_sum)
                odd_sum = lanes.multiply_add(fresh, mine, odd_sum)
            lanes.store(even_sum, even, column)
            lanes.store(odd_sum, odd, column)
            return context.get_dummy_value()

        arrays = (indices, data, v, w, even, odd, scalars)
        return types.void(*arrays, real, *([types.intp] * 7)), codegen

    return aug_row


_row32, _row16, _row8, _row4, _row2, _row1 = (_aug_row(lanes) for lanes in (32, 16, 8, 4, 2, 1))


def _require_plain(array: Any) -> None:
    """Raise TypingError for an array that a kernel cannot read by its address."""
    if array.layout != "C" or not array.aligned:
        raise TypingError(f"a kernel reads {array} by its address: make it C-contiguous and aligned")


@intrinsic
def _pointer(typingctx: Any, array: Any, offset: Any) -> Any:
    """Return where the element at flat `offset` of a contiguous array lies.

    Loops pass pointers on: an array handed from function to function would be counted as used, atomically, every row.
    """
    _require_plain(array)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])

    return types.CPointer(array.dtype)(array, types.intp), codegen


@intrinsic
def _pointer_like(typingctx: Any, array: Any, like: Any) -> Any:
    """Return where a contiguous array begins, as a pointer to elements of the type of another one."""
    _require_plain(array)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.bitcast(data, context.get_data_type(like.dtype).as_pointer())

    return types.CPointer(like.dtype)(array, like), codegen


@intrinsic
def _read(typingctx: Any, base: Any, index: Any) -> Any:
    """Return the element `index` after a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(args[0], [args[1]]))

    return base.dtype(base, types.intp), codegen


@intrinsic
def _write(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Write the element `index` after a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(base, types.intp, base.dtype), codegen


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
def _single(arrays, sums, own, row, origin, first, end):  # type: ignore[no-untyped-def]
    """Do :func:`_aug_row` for a single vector and return the sums with this row.

    Four sums at a time hide that an addition waits for the one before.
    """
    indices, data, v, w, scale, keep, zero = arrays
    one = two = three = four = zero
    k = first
    while k + 3 < end:
        one += _read(data, k) * _read(v, origin + _read(indices, k))
        two += _read(data, k + 1) * _read(v, origin + _read(indices, k + 1))
        three += _read(data, k + 2) * _read(v, origin + _read(indices, k + 2))
        four += _read(data, k + 3) * _read(v, origin + _read(indices, k + 3))
        k += 4
    while k < end:
        one += _read(data, k) * _read(v, origin + _read(indices, k))
        k += 1
    mine = _read(v, row)
    fresh = scale * ((one + two) + (three + four)) + own * mine - keep * _read(w, row)
    _write(w, row, fresh)
    even = mine.real * mine.real + mine.imag * mine.imag
    return sums[0] + even, sums[1] + (fresh.real * mine.real + fresh.imag * mine.imag)


@numba.njit(forceinline=True)
def _row(arrays, even, odd, own, row, origin, first, stride, count, parts, width):  # type: ignore[no-untyped-def]
    indices, data, v, w, scalars = arrays
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


@numba.njit(forceinline=True)
def _single_pointers(indices, data, v, w, scalars):  # type: ignore[no-untyped-def]
    """Return what rows of a single vector, which is of the type of the matrix, are updated by, and zero."""
    entries = _pointer(indices, 0), _pointer(data, 0)
    return *entries, _pointer_like(v, data), _pointer_like(w, data), scalars[0], scalars[2], data.dtype.type(0)


@numba.njit(forceinline=True)
def _none(scalars):  # type: ignore[no-untyped-def]
    """Return the sums of no rows."""
    return scalars.dtype.type(0), scalars.dtype.type(0)


@numba.njit(forceinline=True)
def _add_up(partial, n, sums):  # type: ignore[no-untyped-def]
    """Add the sums of a block's rows to what is summed of it."""
    partial[n, 0, 0] += sums[0]
    partial[n, 1, 0] += sums[1]


@njit(nogil=True, fastmath=_MATH)
def csr_rows(indptr, indices, data, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    """Update row blocks of a CSR matrix, shape (n, 2), and sum their scalar products into `partial`."""
    parts, width = v.shape[1:]
    if width == 1:
        single = _single_pointers(indices, data, v, w, scalars)
        for n in range(blocks.shape[0]):
            sums = _none(scalars)
            for row in range(blocks[n, 0], blocks[n, 1]):
                sums = _single(single, sums, scalars[1], row, 0, indptr[row], indptr[row + 1])
            _add_up(partial, n, sums)
        return
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


@numba.njit(forceinline=True)
def _pattern_row(arrays, even, odd, own, first, end, row, parts, width, size):  # type: ignore[no-untyped-def]
    line = parts * width
    if line >= PREFETCHED_LINE:
        for k in range(max(end - 2, first), end):
            _prefetch(arrays[2], (row + ROWS_AHEAD + arrays[0][k]) * line * size, _lines(line * size))
    _row(arrays, even, odd, own, row, row, first, 1, end - first, parts, width)


@njit(nogil=True, fastmath=_MATH)
def pattern_rows(first, offsets, values, number, diagonal, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    """Do :func:`csr_rows` for rows by number (``patterns.py``)."""
    parts, width = v.shape[1:]
    arrays, single = _pointers(offsets, values, v, w, scalars), _single_pointers(offsets, values, v, w, scalars)
    scale, shift = scalars[0], scalars[1]
    for n in range(blocks.shape[0]):
        if width == 1:
            sums = _none(scalars)
            for row in range(blocks[n, 0], blocks[n, 1]):
                begin, end = first[number[row]], first[number[row] + 1]
                sums = _single(single, sums, shift + scale * diagonal[row], row, row, begin, end)
            _add_up(partial, n, sums)
            continue
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        for row in range(blocks[n, 0], blocks[n, 1]):
            begin, end = first[number[row]], first[number[row] + 1]
            own = shift + scale * diagonal[row]
            _pattern_row(arrays, even, odd, own, begin, end, row, parts, width, v.itemsize)


@njit(nogil=True, fastmath=_MATH)
def stencil_rows(first, offsets, values, sides, mass, potential, v, w, scalars, blocks, partial):  # type: ignore[no-untyped-def]
    """Rows of the topological insulator: which of the patterns a row has follows from where its site lies."""
    nx, ny, nz = sides
    parts, width = v.shape[1:]
    arrays, single = _pointers(offsets, values, v, w, scalars), _single_pointers(offsets, values, v, w, scalars)
    scale, shift = scalars[0], scalars[1]
    for n in range(blocks.shape[0]):
        even, odd = _pointer(partial, 2 * n * width), _pointer(partial, (2 * n + 1) * width)
        sums, pattern = _none(scalars), 0
        for row in range(blocks[n, 0], blocks[n, 1]):
            site, orbital = row // 4, row % 4
            if orbital == 0:
                x, y, z = site // (nz * ny), site // nz % ny, site % nz
                pattern = 4 * (9 * _position_class(x, nx) + 3 * _position_class(y, ny) + _position_class(z, nz))
            begin, end = first[pattern + orbital], first[pattern + orbital + 1]
            own = shift + scale * (mass[orbital] + potential[site])
            if width == 1:
                sums = _single(single, sums, own, row, row, begin, end)
            else:
                _pattern_row(arrays, even, odd, own, begin, end, row, parts, width, v.itemsize)
        _add_up(partial, n, sums)


@numba.njit(forceinline=True)
def _position_class(position, side):  # type: ignore[no-untyped-def]
    """Return 0 on the first plane, 2 on the last, and 1 between."""
    return 0 if position == 0 else 2 if position == side - 1 else 1


@njit(nogil=True, fastmath={*_MATH, "reassoc"})
def subtract(v, w, factor):  # type: ignore[no-untyped-def]
    """Subtract `factor` times v from w, both flat and real, and return ⟨w|w⟩ in double precision."""
    scale, square = v.dtype.type(factor), 0.0
    for i in range(v.size):
        w[i] -= scale * v[i]
        square += np.float64(w[i]) * np.float64(w[i])
    return square


@njit(nogil=True, fastmath=_MATH)
def add_scaled(a, b, x, y, total):  # type: ignore[no-untyped-def]
    """Add x a + y b to a total, all flat and of one type."""
    for i in range(total.size):
        total[i] += x * a[i] + y * b[i]


_phase_bits = numba.njit(inline="always")(reference.phase_bits)


@njit(nogil=True)
def fill_phases(block, seed, first_row, first_vector):  # type: ignore[no-untyped-def]
    """Write :func:`spectile.kpm.reference.random_phases` of rows from `first_row` on."""
    parts = block.shape[1]
    for i in range(block.shape[0]):
        for r in range(block.shape[2]):
            bits = _phase_bits(np.uint64(seed), np.uint64(first_row + i), np.uint64(first_vector + r))
            if parts == 1:
                block[i, 0, r] = 1.0 - 2.0 * (bits >> np.uint64(63))
            else:
                quarter = bits >> np.uint64(62)
                block[i, 0, r] = 1.0 if quarter == 0 else (-1.0 if quarter == 2 else 0.0)
                block[i, 1, r] = 1.0 if quarter == 1 else (-1.0 if quarter == 3 else 0.0)
