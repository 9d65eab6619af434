"""The product on CUDA devices: in one piece or by chunks of rows, left on the device or gathered on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.device import describe
from spectile.tsparse.cuda import choose, parts
from spectile.tsparse.cuda.counters import CONSTANTS, Counters
from spectile.tsparse.cuda.factors import checked, unscale, with_checked_factors
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.rows.fill import fill_rows
from spectile.tsparse.cuda.tiles.choose import may_pay, pay
from spectile.tsparse.cuda.tiles.convert import count_tiles
from spectile.tsparse.cuda.tiles.product import multiply_to_csr
from spectile.tsparse.matrices import device_csr, host_csr, is_array, to_host
from spectile.tsparse.types import BY_ENTRY, IN_TILES, TILED, Factor, Precision


def spgemm(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None, host: bool) -> Any:
    """Multiply on the device; see `spectile.tsparse.spgemm`.  `host` tells that A and B are scipy matrices."""
    if method in TILED:
        return _by_tiles(A, B, precision, method, memory_limit, host)

    def product(left: Factor, right: Factor, counters: Counters | None) -> Any:
        if host:
            return _gather_on_host(left, right, precision, memory_limit, is_array(A, B), counters)
        if method == "auto" and memory_limit is None and may_pay(left.nnz, left.shape[0], precision.name):
            tiles = count_tiles(checked(left, right, counters)[0])
            if pay(left.nnz, tiles.tiles, precision.name):
                C = multiply_to_csr(left, right, precision, counted=tiles)
                return device_csr((left.shape[0], right.shape[1]), *C)
            counters = None
        return to_device(left, right, precision, memory_limit, counters)

    return with_checked_factors(A, B, precision, product, BY_ENTRY)


def _by_tiles(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None, host: bool) -> Any:
    if memory_limit is not None:
        raise ValueError(f'memory_limit is kept by method="rows" and "auto", not by "{method}": choose one of them')

    def product(left: Factor, right: Factor, counters: Counters | None) -> Any:
        C = multiply_to_csr(*checked(left, right, counters), precision, drop_cancelled=method == "tasks")
        return device_csr((left.shape[0], right.shape[1]), *C)

    C = with_checked_factors(A, B, precision, product, IN_TILES)
    return to_host(C, is_array(A, B)) if host else C


def chunk_of(memory_limit: int | None, rows: int, columns: int) -> tuple[int, int]:
    """Return the rows of one chunk, and the bytes for bitmaps that shared memory does not hold."""
    if memory_limit is None:
        return max(rows, 1), choose.SCRATCH_BYTES
    need = least_bytes(1, columns)
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and one row takes {need}; raise it to at least {need}"
        )
    chunk = min(max(rows, 1), 1 + (memory_limit - need) // choose.ROW_BYTES)
    return chunk, memory_limit - 4 * CONSTANTS["HEAD"] - chunk * choose.ROW_BYTES


def least_bytes(rows: int, columns: int) -> int:
    """Return the work space of some rows made together, of which one at a time may need bitmaps in global memory."""
    bitmap = 8 * choose.bitmap_words(columns)
    return 4 * CONSTANTS["HEAD"] + (bitmap if bitmap > choose.shared_limit(describe()) else 0) + rows * choose.ROW_BYTES


def finish(A: Factor, B: Factor, phase: Phase, precision: Precision) -> tuple[Any, Any, Any]:
    """Return row pointer, columns and values of the rows of `phase`."""
    import cupy

    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    fill_rows(A, B, phase, indices, data)
    return phase.indptr, indices, unscale(data, phase.indptr, indices, A, B, phase.first)


def to_device(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, counters: Counters | None) -> Any:
    """Return C on the device: in one piece, or count by chunks of rows and fill in a second pass over them."""
    rows, value = A.shape[0], precision.value
    chunk, scratch = chunk_of(memory_limit, rows, B.shape[1])
    if chunk >= rows:
        phase = count_rows(A, B, 0, rows, value, counters, scratch)
        if phase.entries <= parts.MOST_ENTRIES:
            return device_csr((rows, B.shape[1]), *finish(A, B, phase, precision))
        counts = [phase.counts.get()]
        del phase  # before its rows are made anew
    else:
        checked(A, B, counters)
        chunks = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)]
        counts = [count_rows(A, B, a, b, value, None, scratch).counts.get() for a, b in chunks]
    return _fill_parts(A, B, precision, parts.row_pointer(counts), chunk, scratch)


def _fill_parts(A: Factor, B: Factor, precision: Precision, starts: np.ndarray, chunk: int, scratch: int) -> Any:
    """Return C on the device, its rows counted again and filled part by part."""
    import cupy

    total = int(starts[-1])
    parts.require_wide_indices(total)
    index = parts.index_type(total)
    indices, data = cupy.empty(total, index), cupy.empty(total, precision.dtype)
    for a, b, part in parts.parts(starts, chunk, parts.PART_ENTRIES):
        phase = count_rows(A, B, a, b, precision.value, None, scratch)
        columns = indices[part] if index is np.int32 else cupy.empty(phase.entries, np.int32)
        fill_rows(A, B, phase, columns, data[part])
        unscale(data[part], phase.indptr, columns, A, B, a)
        if index is np.int64:
            indices[part] = columns
        del phase, columns  # before the next rows take their place
    return device_csr((A.shape[0], B.shape[1]), cupy.asarray(starts.astype(index)), indices, data)


def _gather_on_host(
    A: Factor, B: Factor, precision: Precision, memory_limit: int | None, array: bool, counters: Counters | None
) -> Any:
    """Gather C on the host, by as many chunks of rows as its size and the limit ask for."""
    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = chunk_of(memory_limit, *shape)
    checked(A, B, counters)
    entry_bytes = 4 + precision.dtype.itemsize
    counts = []
    for a in range(0, rows, chunk):
        phase = count_rows(A, B, a, min(a + chunk, rows), value, None, scratch)
        if chunk >= rows and phase.entries <= parts.MOST_ENTRIES and phase.entries * entry_bytes <= memory.free_bytes():
            indptr, indices, data = (x.get() for x in finish(A, B, phase, precision))
            return host_csr(shape, indptr.astype(np.int64), indices, data, array)
        counts.append(phase.counts.get())
        del phase  # before the next rows take their place
    starts = parts.row_pointer(counts)
    index = parts.index_type(starts[-1])
    indices, data = np.empty(starts[-1], index), np.empty(starts[-1], precision.dtype)
    most = min(parts.PART_ENTRIES, max(memory.free_bytes() // (2 * (entry_bytes + index().itemsize)), 1))
    for a, b, part in parts.parts(starts, chunk, most):
        _, columns, values = finish(A, B, count_rows(A, B, a, b, value, None, scratch), precision)
        columns.astype(index, copy=False).get(out=indices[part])
        values.get(out=data[part])
    return host_csr(shape, starts, indices, data, array)
