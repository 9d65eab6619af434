"""Products over semirings, of which a mask or a selection tells what is wanted, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.cpu.operands import one_operand
from spectile.tsparse.cuda import parts
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, in_order, with_checked_factors
from spectile.tsparse.cuda.given import MOST_INDEX, Given, given, one_given, require_finite
from spectile.tsparse.cuda.masked import MaskedProduct
from spectile.tsparse.cuda.rows.count import count_rows
from spectile.tsparse.cuda.run import (
    beside_copies,
    chunk_of,
    finish,
    largest_sum,
    least_bytes,
    of_device,
    of_integers,
    on_host,
    sizes,
)
from spectile.tsparse.matrices import LARGEST_INTEGER, device_csr, host_csr, index_type, is_array, require_exact
from spectile.tsparse.selection import Rows, Wanted, joined, keep, part
from spectile.tsparse.types import Factor, Precision

_BLOCK_ENTRIES = 2**24  # of rows that are made before their entries are selected
_SELECTED = 64  # bytes an entry of a block of rows, at most, that its selection takes


def spgemm(
    A: Any,
    B: Any,
    precision: Precision,
    memory_limit: int | None,
    wanted: Wanted,
    host: bool,
    *,
    check_finite: bool = True,
) -> Any:
    """Multiply on the device over a semiring and return what is wanted; see `spectile.tsparse.spgemm`."""
    precision, kind = of_device(precision)
    array, (rows, columns) = is_array(A, B), (A.shape[0], B.shape[1])
    if memory_limit is not None:
        copied = [one for one in (A, None if B is A else B, wanted.mask, wanted.C) if one is not None]
        what, least = "what is given and one row", least_bytes(1, min(columns, MOST_INDEX))
        values = kind is not None or wanted.semiring.multiply in ("and", "pair")  # which are made anew
        memory_limit = beside_copies(memory_limit, copied, precision, values, least, what)
    same, masked = B is A, wanted.mask is not None and not wanted.complement
    patterns = masked and not wanted.semiring.reads_values
    #: The factor that the mask is, which need not be looked at once more.
    which = 0 if wanted.mask is A else 1 if wanted.mask is B else -1
    if wanted.semiring.multiply in ("and", "pair") and not patterns:
        which = -1
        A = _of_ones(A, "A", wanted, precision, host, check_finite)
        B = A if same else _of_ones(B, "B", wanted, precision, host, check_finite)
    factors = given(A, B, check_finite=check_finite)
    if factors[1].held is not None:
        raise ValueError(
            f'B has {columns} columns, beyond 32 bits, and a mask or a semiring is given: use backend="cpu"'
        )
    if kind is not None and wanted.semiring.reads_values:
        _require_held(factors, wanted, kind, memory_limit)
    named = None if wanted.mask is None or which >= 0 else _on_device(wanted.mask, "mask", host)
    added = None if wanted.C is None else _rows_of(_canonical(wanted.C, "C", host), precision)

    def product(left: Factor, right: Factor, counters: Counters, *beside: Factor) -> Rows:
        import cupy

        made, mask = [], None
        if added is not None or not masked:
            checked(left, right, counters)
        if wanted.mask is not None:
            mask = _mask_of((left, right, *beside)[which].given, wanted)
        for first, stop, block in _blocks(left, right, mask, wanted, precision, memory_limit, counters):
            some = [None if one is None else part(one, first, stop) for one in (added, mask)]
            made.append(wanted.of(block, some[0], some[1], columns, cupy))
        return made[0] if len(made) == 1 else joined(made, cupy)

    taken = None if patterns else precision
    third = None if named is None else (named, None)
    options: dict[str, Any] = {"check_finite": check_finite, "beside": third, "names": ("A", "B", "mask")}
    indptr, indices, data = with_checked_factors(*factors, taken, product, **options)
    data = data != 0 if wanted.semiring.value == "bool" else data
    if not host:
        index = index_type(len(indices))
        arrays = indptr.astype(index, copy=False), indices.astype(index, copy=False), data
        return device_csr((rows, columns), *arrays, array)
    C = host_csr((rows, columns), *on_host(indptr, indices, data), array)
    return C if kind is None else of_integers(C, kind)


def _canonical(matrix: Any, name: str, host: bool) -> Given:
    """Return a matrix on the device with its entries in order and each once."""
    one = _on_device(matrix, name, host)
    return one if host and not isinstance(matrix, Given) else in_order(name, one)


def _on_device(matrix: Any, name: str, host: bool) -> Given:
    """Return a matrix on the device, one of the host with its entries in order and each once."""
    if not host or isinstance(matrix, Given):
        return one_given(name, matrix)
    one = one_operand(matrix, name, check_finite=False)
    return given(*[host_csr(one.shape, one.indptr, one.indices, one.data, one.array)] * 2)[0]


def _of_ones(matrix: Any, name: str, wanted: Wanted, precision: Precision, host: bool, check_finite: bool) -> Given:
    """Return a factor with 1 for its entries, or where these are read for those that are not 0."""
    import cupy

    one = _canonical(matrix, name, host)
    if not wanted.semiring.reads_values:
        return replace(one, data=cupy.ones(one.indices.size, precision.dtype), largest=None)
    if check_finite:
        require_finite(name, one)
    return replace(one, data=_not_zero(one.data).astype(precision.dtype), largest=None)


def _not_zero(data: Any) -> Any:
    """Return which values are not 0; in single precision CuPy's comparison takes those below 2^-126 for 0."""
    if data.dtype.char not in "fF":
        return data != 0
    return ((data.view(np.uint32).reshape(len(data), data.dtype.itemsize // 4) << np.uint32(1)) != 0).any(axis=1)


def _require_held(factors: tuple[Given, Given], wanted: Wanted, kind: Any, memory_limit: int | None) -> None:
    """Raise where an integer of C may be beyond what float64, in which it is made, holds."""
    largest, terms = sizes(*factors)
    if wanted.semiring.multiply == "times":
        require_exact(largest, terms, lambda: largest_sum(*factors, memory_limit), LARGEST_INTEGER, "float64")
    elif max(largest) > LARGEST_INTEGER or (wanted.semiring.multiply == "plus" and sum(largest) > LARGEST_INTEGER):
        raise errors.inexact(LARGEST_INTEGER, "float64")


def _rows_of(one: Given, precision: Precision) -> Rows:
    """Return row pointer, columns and values in the type of the product."""
    import cupy

    data = one.data.astype(precision.dtype)
    if bool((cupy.isfinite(one.data) & ~cupy.isfinite(data)).any()):
        raise errors.beyond_float32("C holds entries")
    return one.indptr, one.indices.astype(np.int32, copy=False), data


def _mask_of(one: Given, wanted: Wanted) -> Rows:
    """Return row pointer, columns and values of a mask; without those that are 0 where more than A B falls on it."""
    import cupy

    rows = one.indptr, one.indices.astype(np.int32, copy=False), one.data
    return keep(rows, _not_zero(one.data), cupy) if wanted.complement or wanted.C is not None else rows


def _blocks(
    A: Factor,
    B: Factor,
    mask: Rows | None,
    wanted: Wanted,
    precision: Precision,
    memory_limit: int | None,
    counters: Counters | None,
) -> Iterator[tuple[int, int, Rows]]:
    """Yield first row, end, and the entries of blocks of rows of A B; with a mask, those that it has."""
    rows, code = A.shape[0], wanted.semiring.code
    masked = MaskedProduct(A, B, precision, code, not wanted.semiring.reads_values)
    if mask is not None and not wanted.complement:
        if memory_limit is None:
            yield 0, rows, masked.rows(mask, counters=counters)
        else:
            checked(A, B, counters)
            yield from _masked_blocks(masked, mask, memory_limit)
        return
    chunk, scratch = chunk_of(memory_limit, rows, B.shape[1])
    ranges = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)] or [(0, 0)]
    counts = [count_rows(A, B, a, b, precision.value, None, scratch).counts.get() for a, b in ranges]
    most = parts.PART_ENTRIES if not wanted.in_blocks else _BLOCK_ENTRIES
    if memory_limit is not None:
        most = max(1, min(most, memory_limit // _SELECTED))
    if not rows:
        yield 0, 0, finish(A, B, count_rows(A, B, 0, 0, precision.value), precision)
    for a, b, _ in parts.parts(parts.row_pointer(counts), chunk, most, empty=True):
        made = finish(A, B, count_rows(A, B, a, b, precision.value, None, scratch), precision)
        yield a, b, masked.rows((*made[:2], None), a) if code else made


def _masked_blocks(masked: MaskedProduct, mask: Rows, memory_limit: int) -> Iterator[tuple[int, int, Rows]]:
    """Yield what `_blocks` does of a mask, as many rows at a time as their work space allows."""
    starts = mask[0].get().astype(np.int64)
    rows, entries, longest = len(starts) - 1, len(mask[1]), int(np.diff(starts).max(initial=0))
    most, held = entries, 0
    if masked.work_bytes(entries, rows) + held > memory_limit:
        held = masked.entry_bytes * entries  # rows of C are joined in the end
        most = masked.entries_within(memory_limit - held, rows)
    if most < longest:
        need = masked.work_bytes(longest, rows) + held
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes beside copies, and a row of {longest} entries of the mask takes "
            f"{need}; raise it by at least {need - memory_limit}"
        )
    for a, b, _ in parts.parts(starts, max(rows, 1), max(most, 1), empty=True):
        yield a, b, masked.rows(part(mask, a, b), a)
    if not rows:
        yield 0, 0, masked.rows(mask)
