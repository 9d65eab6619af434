"""The product on CUDA devices: in one piece or by chunks of rows, left on the device or gathered on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.api import _csr as host_csr
from spectile.tsparse.cuda.factors import Factor, checked, unscale, with_checked_factors
from spectile.tsparse.cuda.rows import ROW_BYTES, SCRATCH_BYTES, Phase, count_rows, fill_rows
from spectile.tsparse.cuda.units import HEAD, shared_limit
from spectile.tsparse.precision import BY_ENTRY, IN_TILES, Precision, lookup

__all__ = ["SymbolicProduct", "device_csr", "spgemm", "symbolic"]

_MOST_ENTRIES = 2**31 - 1  # of C, or of some rows of it, that 32-bit offsets reach
_PART_ENTRIES = 2**28  # of C that are made at a time where C is too large for one piece


def spgemm(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None, host: bool) -> Any:
    """Multiply on the device; see `spectile.tsparse.spgemm`.  `host` tells that A and B are scipy matrices."""
    array = _is_array(A) or _is_array(B)
    if method == "tiles" and memory_limit is not None:
        raise ValueError('memory_limit is kept by method="rows" and "auto", not by "tiles": choose one of them')

    def product(left: Factor, right: Factor, counters: Any) -> Any:
        if method == "tiles":
            C = _by_tiles(*checked(left, right, counters), precision)
            return _get(C, array) if host else C
        if host:
            return _to_host(left, right, precision, memory_limit, array, counters)
        return _to_device(left, right, precision, memory_limit, counters)

    return with_checked_factors(A, B, precision, product, IN_TILES if method == "tiles" else BY_ENTRY)


class SymbolicProduct:
    """The pattern of C = A B on the device, kept for further products of matrices with the same patterns.

    Attributes
    ----------
    shape : tuple of int
        Shape of C.
    nnz : int
        Stored entries of C.
    products : int
        Multiplications of one product.
    """

    def __init__(self, A: Any, B: Any, memory_limit: int | None, host: bool) -> None:
        self.shape = (A.shape[0], B.shape[1])
        chunk, scratch = _check_limit(memory_limit, *self.shape)
        if chunk < self.shape[0]:
            need = _least_bytes(*self.shape)
            raise MemoryError(
                f"memory_limit is {memory_limit} bytes, and the kept pattern of {self.shape[0]} rows takes {need}; "
                f"raise it to at least {need}, or use spgemm"
            )
        self._host = host

        def analyse(left: Factor, right: Factor, counters: Any) -> Phase:
            self._patterns = [(x.indptr, x.indices) for x in (left, right)]
            return count_rows(left, right, 0, left.shape[0], "float64", counters, scratch)

        self._phase = with_checked_factors(A, B, lookup("float64"), analyse)
        self.nnz = self._phase.entries
        self.products = self._phase.products
        if self.nnz > _MOST_ENTRIES:
            raise MemoryError(f"C has {self.nnz} entries, and a kept pattern holds fewer than 2**31: use spgemm")

    def multiply(self, A: Any, B: Any, *, precision: Any = "float64") -> Any:
        """Return C = A B for factors with the analysed patterns.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of ``spgemm``.
        """
        chosen = lookup(precision)
        factors = with_checked_factors(A, B, chosen, checked)
        for name, factor, (indptr, indices) in zip("AB", factors, self._patterns, strict=True):
            same = len(factor.indices) == len(indices) and len(factor.indptr) == len(indptr)
            if not (same and (factor.indptr == indptr).all() and (factor.indices == indices).all()):
                raise errors.other_pattern(name)
        indptr, indices, data = _finish(factors[0], factors[1], self._phase, chosen)
        C = device_csr(self.shape, indptr.copy(), indices, data)
        return _get(C, _is_array(A) or _is_array(B)) if self._host else C


def symbolic(A: Any, B: Any, memory_limit: int | None, host: bool) -> SymbolicProduct:
    """Analyse the pattern of a product on the device; see `spectile.tsparse.symbolic`."""
    return SymbolicProduct(A, B, memory_limit, host)


def _is_array(matrix: Any) -> bool:
    import scipy.sparse as sp

    return isinstance(matrix, sp.sparray)


def _check_limit(memory_limit: int | None, rows: int, columns: int) -> tuple[int, int]:
    """Return the rows of one chunk, and the bytes for bitmaps that shared memory does not hold."""
    if memory_limit is None:
        return max(rows, 1), SCRATCH_BYTES
    need = _least_bytes(1, columns)
    if memory_limit < need:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and one row takes {need}; raise it to at least {need}"
        )
    chunk = min(max(rows, 1), 1 + (memory_limit - need) // ROW_BYTES)
    return chunk, memory_limit - 4 * HEAD - chunk * ROW_BYTES


def _least_bytes(rows: int, columns: int) -> int:
    """Return the work space of some rows made together, of which one at a time may need bitmaps in global memory."""
    bitmap = 8 * ((columns + 31) // 32)
    return 4 * HEAD + (bitmap if bitmap > shared_limit() else 0) + rows * ROW_BYTES


def _finish(A: Factor, B: Factor, phase: Phase, precision: Precision) -> tuple[Any, Any, Any]:
    import cupy

    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    fill_rows(A, B, phase, indices, data)
    return phase.indptr, indices, unscale(data, phase.indptr, indices, A, B, phase.first)


def _by_tiles(A: Factor, B: Factor, precision: Precision) -> Any:
    from spectile.tsparse.cuda import tiles as gpu_tiles

    indptr, indices, data = gpu_tiles.multiply_to_csr(A, B, precision)
    return device_csr((A.shape[0], B.shape[1]), indptr, indices, unscale(data, indptr, indices, A, B, 0))


def _to_device(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, counters: Any) -> Any:
    """Return C on the device: in one piece, or count by chunks of rows and fill in a second pass over them."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = _check_limit(memory_limit, *shape)
    if chunk >= rows:
        phase = count_rows(A, B, 0, rows, value, counters, scratch)
        if phase.entries <= _MOST_ENTRIES:
            return device_csr(shape, *_finish(A, B, phase, precision))
        counts = [phase.counts.get()]
    else:
        checked(A, B, counters)
        chunks = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)]
        counts = [count_rows(A, B, a, b, value, None, scratch).counts.get() for a, b in chunks]
    starts = np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64)
    index = np.int32 if starts[-1] <= _MOST_ENTRIES else np.int64
    if index is np.int64 and not hasattr(csr_matrix, "_from_parts"):
        raise MemoryError(
            f"C has {starts[-1]} entries, beyond the 32-bit indices of cupyx matrices before CuPy 14: "
            "pass scipy matrices, and C is gathered on the host"
        )
    indices, data = cupy.empty(int(starts[-1]), index), cupy.empty(int(starts[-1]), precision.dtype)
    for a, b, part in _parts(starts, chunk, _PART_ENTRIES):
        here = count_rows(A, B, a, b, value, None, scratch)
        columns = indices[part] if index is np.int32 else cupy.empty(here.entries, np.int32)
        fill_rows(A, B, here, columns, data[part])
        unscale(data[part], here.indptr, columns, A, B, a)
        if index is np.int64:
            indices[part] = columns
        del here, columns  # before the next rows take their place
    return device_csr(shape, cupy.asarray(starts.astype(index)), indices, data)


def _parts(starts: np.ndarray, chunk: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Yield successive rows [a, b) of C and their places: at most `chunk` rows, of `most` entries if more than one."""
    a, rows = 0, len(starts) - 1
    while a < rows:
        end = starts[a] + min(most, _MOST_ENTRIES)
        b = max(min(a + chunk, int(np.searchsorted(starts, end, side="right")) - 1, rows), a + 1)
        if starts[b] - starts[a] > _MOST_ENTRIES:
            raise MemoryError(f"row {a} of C has {starts[b] - starts[a]} entries, more than 32-bit offsets reach")
        if starts[a] < starts[b]:
            yield a, b, slice(int(starts[a]), int(starts[b]))
        a = b


def _to_host(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, array: bool, counters: Any) -> Any:
    """Gather C on the host, by as many chunks of rows as its size and the limit ask for."""
    from spectile.core.memory import free_bytes

    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = _check_limit(memory_limit, *shape)
    checked(A, B, counters)
    entry_bytes = 4 + precision.dtype.itemsize
    counts = [np.zeros(1, np.int64)]
    for a in range(0, rows, chunk):
        phase = count_rows(A, B, a, min(a + chunk, rows), value, None, scratch)
        if chunk >= rows and phase.entries <= _MOST_ENTRIES and phase.entries * entry_bytes <= free_bytes():
            indptr, indices, data = (x.get() for x in _finish(A, B, phase, precision))
            return host_csr(shape, indptr.astype(np.int64), indices, data, array)
        counts.append(phase.counts.get())
        del phase  # before the next rows take its place
    starts = np.cumsum(np.concatenate(counts), dtype=np.int64)
    # As scipy has it: one type for columns and row pointer.
    index = np.int32 if starts[-1] <= _MOST_ENTRIES else np.int64
    indices, data = np.empty(starts[-1], index), np.empty(starts[-1], precision.dtype)
    most = min(_PART_ENTRIES, max(free_bytes() // (2 * (entry_bytes + index().itemsize)), 1))
    for a, b, part in _parts(starts, chunk, most):
        _, columns, values = _finish(A, B, count_rows(A, B, a, b, value, None, scratch), precision)
        columns.astype(index, copy=False).get(out=indices[part])
        values.get(out=data[part])
    return host_csr(shape, starts, indices, data, array)


def device_csr(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    """Return a cupyx matrix whose rows are known to be sorted, without a wait."""
    from cupyx.scipy.sparse import csr_matrix

    if hasattr(csr_matrix, "_from_parts"):  # CuPy >= 14: the constructor reads indptr back, which costs a wait
        return csr_matrix._from_parts(data, indices, indptr, shape, has_canonical_format=True)
    C = csr_matrix((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C


def _get(C: Any, array: bool) -> Any:
    return host_csr(C.shape, C.indptr.get().astype(np.int64), C.indices.get(), C.data.get(), array)
