"""Products by rows: over several GPUs of a host, or block after block where they exceed one.

B is whole on every device, and A's rows, with those of a mask and of a matrix that is added, go where they are
multiplied.  A row has the same bits wherever it is made.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.tiling import ceil_div
from spectile.tsparse.cpu.operands import factors, one_operand
from spectile.tsparse.cpu.wanted import arrays
from spectile.tsparse.cuda import parts, run
from spectile.tsparse.cuda import wanted as selected
from spectile.tsparse.cuda.counters import Counters
from spectile.tsparse.cuda.factors import checked, with_checked_factors
from spectile.tsparse.cuda.given import Given, arranged, copied_bytes, given, require_finite
from spectile.tsparse.cuda.pinned import Pinned
from spectile.tsparse.cuda.rows.count import Phase, count_rows
from spectile.tsparse.cuda.streams import own_streams, pool
from spectile.tsparse.matrices import device_csr, host_csr, index_type, is_array
from spectile.tsparse.selection import Wanted, joined, part
from spectile.tsparse.types import Factor, Operand, Precision

#: Entries of a block of rows, about, bytes of free memory for each of its products, and blocks that are made at a time:
#: one is copied to the host while the next is computed.  Of the first block a part in so many.
_BLOCK_ENTRIES, _PRODUCT_BYTES, _BLOCKS, _FIRST = 2**23, 64, 3, 8
_SAMPLE = 64  # one part of the rows in so many is counted, to tell the products of an entry
_PINNED_BYTES = 2**30  # of blocks on the host that the caller has not dropped


class RowProduct:
    """A product whose rows are made apart, of matrices of SciPy, `host`, or on the current device.

    `form` is that of C; ``dense`` is made as such, and all others in CSR.  Factors of the host that are copied as a
    whole take `copied` bytes on the current device.
    """

    def __init__(
        self,
        A: Any,
        B: Any,
        precision: Precision,
        wanted: Wanted,
        host: bool,
        check_finite: bool,
        form: str = "csr",
        copied: int | None = None,
    ) -> None:
        self._precision, self._wanted, self._host, self._check_finite = precision, wanted, host, check_finite
        self._form = form if form == "dense" and wanted.all_of_it else "csr"
        self._array, self.shape = is_array(A, B), (A.shape[0], B.shape[1])
        self._left: Any
        self._right: Any
        self._copied = copied or 0
        if host and copied is None:
            self._left, self._right = factors(A, B, check_finite=check_finite, integers=precision.dtype.kind == "i")
        else:
            self._left, self._right = _checked(A, B, check_finite)
        self._beside = {
            name: _in_order(getattr(wanted, name), name, host, check_finite)
            for name in ("mask", "C")
            if getattr(wanted, name) is not None
        }
        self.before = products_before(self._left, self._right)

    def right_here(self) -> Any:
        """Return B on the current device."""
        if isinstance(self._right, Given):
            return _here(self._right)
        matrix = _host_matrix(self._right)
        return given(matrix, matrix)[1]

    def rows(
        self,
        first: int,
        stop: int,
        right: Any,
        memory_limit: int | None,
        fetch: Callable[[Any], np.ndarray] | None = None,
    ) -> Any:
        """Return what is wanted of some rows, made on the current device with a B that is there."""
        some = {name: self._part(one, first, stop) for name, one in self._beside.items()}
        wanted, left = replace(self._wanted, **some), self._part(self._left, first, stop)
        options = {"host": self._host, "check_finite": self._check_finite}
        if wanted.all_of_it:
            return run.spgemm(left, right, self._precision, memory_limit, form=self._form, fetch=fetch, **options)
        return selected.spgemm(left, right, self._precision, memory_limit, wanted, **options)

    def _part(self, matrix: Any, first: int, stop: int) -> Any:
        if not isinstance(matrix, Given):
            return host_csr((stop - first, matrix.shape[1]), *part(arrays(matrix), first, stop), matrix.array)
        indptr, indices, data = part((matrix.indptr, matrix.indices, matrix.data), first, stop)
        return _here(
            replace(
                matrix, shape=(stop - first, matrix.shape[1]), indptr=indptr, indices=indices, data=data, places=None
            )
        )

    def on_devices(self, ids: Sequence[int], memory_limit: int | None) -> Any:
        """Return the product, made on several devices; of factors on a device it is on the current one."""
        import cupy

        home = cupy.cuda.Device()
        home.synchronize()

        def made(piece: tuple[int, int, int]) -> Any:
            number, first, stop = piece
            with cupy.cuda.Device(number) as device:
                C = self.rows(first, stop, self.right_here(), memory_limit)
                device.synchronize()
                return C

        pieces = [(number, a, b) for number, (a, b) in zip(ids, _even(self.before, len(ids)), strict=True) if a < b]
        with ThreadPoolExecutor(len(ids)) as threads:
            waiting = [threads.submit(made, piece) for piece in pieces or [(ids[0], 0, self.shape[0])]]
        made_parts = [one.result() for one in waiting]
        if self._host:
            return self._joined(made_parts, np)
        return self._joined(made_parts, cupy)

    def _joined(self, made: list[Any], xp: Any) -> Any:
        if self._form == "dense":
            return xp.concatenate([_array_here(one) for one in made])
        rows = [tuple(map(_array_here, (one.indptr, one.indices, one.data))) for one in made]
        return self._csr(self.shape[0], *joined(rows, xp))

    def _csr(self, rows: int, indptr: Any, indices: Any, data: Any) -> Any:
        """Return some rows of C, all its columns among those that it may have, of the library and kind asked for."""
        shape, index = (rows, self.shape[1]), index_type(max(len(indices), self.shape[1]))
        indptr, indices = indptr.astype(index, copy=False), indices.astype(index, copy=False)
        if self._host:
            return host_csr(shape, indptr, indices, data, self._array)
        parts.require_wide_indices(len(indices))
        return device_csr(shape, indptr, indices, data, self._array)

    def _products_an_entry(self, right: Any) -> float:
        """Return about how many products an entry of C has, of rows in the middle of factors on a device."""
        if not isinstance(self._left, Given) or not self._wanted.all_of_it:
            return 1.0
        middle = self.shape[0] // 2
        some = self._part(self._left, middle, min(middle + ceil_div(self.shape[0], _SAMPLE), self.shape[0]))

        def counted(left: Factor, right: Factor, counters: Counters) -> Phase:
            return count_rows(left, right, 0, left.shape[0], "float64", counters)

        phase: Phase = with_checked_factors(some, right, None, counted, check_finite=False)
        return phase.products / max(phase.entries, 1) or 1.0

    def blocks(self, memory_limit: int | None) -> Iterator[tuple[int, int, Any]]:
        """Yield first row, end and what is wanted of the rows between, each made while the one before is read."""
        import cupy

        device, right = cupy.cuda.Device(), self.right_here()
        device.synchronize()  # what makes blocks has streams of its own
        most, limit = memory.free_bytes() // (_BLOCKS * _PRODUCT_BYTES), memory_limit
        workers = _BLOCKS
        fetch = Pinned(min(memory_limit or _PINNED_BYTES, _PINNED_BYTES)).fetch
        if memory_limit is not None:
            entry = 4 + self._precision.dtype.itemsize
            room, least = memory_limit - self._copied, 2 * (run.least_bytes(1, right.shape[1]) + 4096)
            if room < least:
                least += self._copied
                raise MemoryError(
                    f"memory_limit is {memory_limit} bytes, and a row and a block of C take {least}; "
                    f"raise it to at least {least}"
                )
            workers = 2 if room >= 2 * least else 1  # one is copied while the next is made
            limit = room // (2 * workers)
            most = limit // entry
        else:
            most = min(int(_BLOCK_ENTRIES * self._products_an_entry(right)), most)

        def made(first: int, stop: int) -> Any:
            with cupy.cuda.Device(device.id), own_streams(1)[0] as stream:
                C = self.rows(first, stop, right, limit, fetch)
                stream.synchronize()
                return self._csr(stop - first, C.indptr, C.indices, C.data)

        threads, waiting = pool("blocks", workers), deque[tuple[int, int, Any]]()
        try:
            for first, stop in _blocks(self.before, max(int(most), 1)):
                waiting.append((first, stop, threads.submit(made, first, stop)))
                if len(waiting) > workers - (memory_limit is not None):
                    first, stop, C = waiting.popleft()
                    yield first, stop, C.result()
            while waiting:
                first, stop, C = waiting.popleft()
                yield first, stop, C.result()
        finally:
            wait([one for *_, one in waiting if not one.cancel()])


def products_before(left: Given | Factor | Operand, right: Given | Factor | Operand) -> np.ndarray:
    """Return the products of the rows before each, and in the end of all, on the host."""
    xp: Any = np
    if not isinstance(left, Operand):
        import cupy

        xp = cupy
    lengths = (right.indptr[1:] - right.indptr[:-1]).astype(np.int64)
    products = xp.zeros(len(left.indices) + 1, np.int64)
    products[1:] = xp.cumsum(lengths[left.indices])
    before = products[left.indptr]
    return np.asarray(before if xp is np else xp.asnumpy(before))


def fits(A: Any, B: Any, precision: Precision, memory_limit: int | None) -> int | None:
    """Return the bytes of both factors on the current device, or None where they take more than half of the room."""
    taken = sum(copied_bytes(one, precision, precision.dtype.kind == "i") for one in ((A,) if A is B else (A, B)))
    free = memory.free_bytes() if memory_limit is None else min(memory_limit, memory.free_bytes())
    return taken if taken <= free // 2 else None


def _checked(A: Any, B: Any, check_finite: bool) -> tuple[Given, Given]:
    """Return both factors on the device with their entries in order and each once."""

    def both(left: Factor, right: Factor, counters: Counters) -> tuple[Given, Given]:
        checked(left, right, counters)
        return left.given, right.given

    pair = given(A, B, check_finite=check_finite)
    found: tuple[Given, Given] = with_checked_factors(*pair, None, both, check_finite=False)
    if check_finite:
        for name, one in zip("AB", found, strict=True):
            require_finite(name, one)
    return found


def _in_order(matrix: Any, name: str, host: bool, check_finite: bool) -> Given | Operand:
    """Return a mask or a matrix that is added with its entries in order and each once."""
    if host:
        return one_operand(matrix, name, check_finite=check_finite and name == "C")
    return arranged(name, matrix)


def _host_matrix(operand: Operand) -> Any:
    return host_csr(operand.shape, operand.indptr, operand.indices, operand.data, operand.array)


def _array_here(array: Any) -> Any:
    """Return an array of the current device, or of the host as it is."""
    if isinstance(array, np.ndarray):
        return array
    import cupy

    return array if array.device.id == cupy.cuda.runtime.getDevice() else array.copy()


def _here(matrix: Given) -> Given:
    """Return a factor on the current device."""
    copied = {name: _array_here(getattr(matrix, name)) for name in ("indptr", "indices", "data")}
    return replace(matrix, **copied, held=None if matrix.held is None else _array_here(matrix.held))


def _even(before: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return first row and end of so many parts of like products."""
    rows = len(before) - 1
    costs = before + np.arange(rows + 1)  # rows without products count, too
    cuts = np.searchsorted(costs, costs[-1] * np.arange(1, count) / count)
    edges = [0, *(int(cut) for cut in cuts), rows]
    return list(itertools.pairwise(edges))


def _blocks(before: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield first row and end of successive rows, of so many products at most if more than one.

    The first ones are smaller, and none has more products than all before it, so that the link has work soon.
    """
    first, rows = 0, len(before) - 1
    while first < rows or not rows:
        upto = before[first] + min(most, max(before[first], ceil_div(most, _FIRST)))
        stop = max(int(np.searchsorted(before, upto, side="right")) - 1, min(first + 1, rows))
        yield first, stop
        if not rows:
            return
        first = stop
