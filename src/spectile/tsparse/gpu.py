"""The product on CUDA devices: rows by bitmap or hash (``rows.cu``), buffers and launches.

One product is a handful of launches and one short wait: after `place` the host reads the entries of C and the bins of
the numeric phase.  Nothing but C, a few integers a row and bitmaps of narrow rows (`_kept_words`) is allocated.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpu.compile import Unit
from .precision import BY_ENTRY, IN_TILES, HalfRange, Precision, half_exponents, lookup

ARCHS = ("sm_80", "sm_90a", "sm_100")
ROWS = {
    "float32": Unit("tsparse", ("rows.cu",), ARCHS, {"VALUE": "float"}),
    "float64": Unit("tsparse", ("rows.cu",), ARCHS, {"VALUE": "double"}),
}
_CODES = {"float16": "16", "tf32": "19", "float32": "32", "float64": "64"}
TILES = {name: Unit("tsparse", ("tiles.cu",), ARCHS, {"PRECISION": code}) for name, code in _CODES.items()}
UNITS = (*ROWS.values(), *TILES.values())

# Places in the head of counters, and flags of bad input (rows.cu).
_SYMBOLIC, _NUMERIC, _FLAGS, _MAX_SPAN, _MAX_BYTES, _DESCENTS, _HEAD = 0, 8, 20, 22, 24, 34, 64
_BLOCK_BIN = 6  # of the symbolic phase
_PRODUCTS, _ENTRIES = 15, 16  # of 64 bits
_BAD_INDEX, _UNSORTED, _NOT_FINITE, _HALF_RANGE, _FLOAT_RANGE, _LOST = 1, 2, 4, 8, 16, 32
_EMPTY = -(2**20)  # exponent of a row or column without a nonzero
_ROUNDING = {"float64": 0, "float32": 0, "tf32": 1, "float16": 2}
_ROUND_TILES = 3  # float16 as tiles hold it
_WINDOWS = ((64, 256), (64, 2048), (256, 1024))  # words and sums of the window bins
_NUMERIC_LOGS = (5, 6, 8, 9, 10)  # logarithms of the tables of the hash bins
_BLOCKS = (("small", 128), ("large", 512), ("sums_global", 512), ("global", 256))  # block bins and their threads
_BINS_NUMERIC = 12
_ANALYSTS = 512  # threads of a block of the analysis
_THREADS = 128  # of the kernels that give a row to a group of lanes
_MOST_ENTRIES = 2**31 - 1  # of C, or of some rows of it, that 32-bit offsets reach
_PART_ENTRIES = 2**28  # of C that are made at a time where C is too large for one piece
_SCRATCH_BYTES = 1 << 28  # of bitmaps that shared memory does not hold
# A block takes a row of the symbolic phase where there are few rows a multiprocessor and many entries a row (measured:
# docs/performance/tsparse.md, step 7 of the ladder).
_FEW_ROWS, _LONG_ROWS = 96, 16
_ROW_WORDS = 128  # words of bitmaps kept a row, at most on average
# Bytes of work space a row takes at most: 5 integers, its place in the lists of the bins, bitmaps.
_ROW_BYTES = 4 * (5 + _BINS_NUMERIC) + 4 * _ROW_WORDS


@dataclass
class Factor:
    """A CSR factor on the device whose values are rounded to the precision of the product."""

    shape: tuple[int, int]
    indptr: Any  # int32
    indices: Any  # int32
    data: Any
    exponents: Any = None  # of the rows of A or the columns of B, where float16 needed scaling
    half: HalfRange = BY_ENTRY

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)


@dataclass
class _Phase:
    """What the symbolic phase of some rows leaves for the numeric phase; addresses point into `work` and `kept`."""

    first: int
    rows: int
    head: np.ndarray
    work: Any
    low: int
    span: int
    slot: int
    lists: int
    scratch_bytes: int
    kept: Any  # bitmaps of the rows of window bins; a row whose words would lie beyond its end has none
    indptr: Any

    @property
    def entries(self) -> int:
        """Stored entries of these rows of C."""
        return int(self.head.view(np.uint64)[_ENTRIES])

    @property
    def counts(self) -> Any:
        """Stored entries of each of these rows, on the device."""
        import cupy

        return self.work[3 * self.rows : 4 * self.rows] if self.rows else cupy.empty(0, np.int32)

    @property
    def products(self) -> int:
        """Multiplications of these rows."""
        return int(self.head.view(np.uint64)[_PRODUCTS])


class _Unfit(Exception):
    """The check of the factors found something; carries the flags of A and of B."""


def spgemm(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None, host: bool) -> Any:
    """Multiply on the device; see `spectile.tsparse.spgemm`.  `host` tells that A and B are scipy matrices."""
    array = _is_array(A) or _is_array(B)
    if method == "tiles" and memory_limit is not None:
        raise ValueError('memory_limit is kept by method="rows" and "auto", not by "tiles": choose one of them')

    def product(left: Factor, right: Factor, counters: Any) -> Any:
        if method == "tiles":
            C = _by_tiles(*_checked(left, right, counters), precision)
            return _get(C, array) if host else C
        if host:
            return _to_host(left, right, precision, memory_limit, array, counters)
        return _to_device(left, right, precision, memory_limit, counters)

    return _with_checked_factors(A, B, precision, product, IN_TILES if method == "tiles" else BY_ENTRY)


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
        _, scratch = _check_limit(memory_limit, *self.shape)
        self._host = host

        def analyse(left: Factor, right: Factor, counters: Any) -> _Phase:
            self._patterns = [(x.indptr, x.indices) for x in (left, right)]
            return _symbolic(left, right, 0, left.shape[0], "float64", counters, scratch)

        self._phase = _with_checked_factors(A, B, lookup("float64"), analyse)
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
        factors = _with_checked_factors(A, B, chosen, _checked)
        for name, factor, (indptr, indices) in zip("AB", factors, self._patterns, strict=True):
            same = len(factor.indices) == len(indices) and len(factor.indptr) == len(indptr)
            if not (same and (factor.indptr == indptr).all() and (factor.indices == indices).all()):
                raise ValueError(f"the pattern of {name} differs from the analysed one: call symbolic() again for it")
        indptr, indices, data = _finish(factors[0], factors[1], self._phase, chosen)
        C = _csr(self.shape, indptr.copy(), indices, data)
        return _get(C, _is_array(A) or _is_array(B)) if self._host else C


def symbolic(A: Any, B: Any, memory_limit: int | None, host: bool) -> SymbolicProduct:
    """Analyse the pattern of a product on the device; see `spectile.tsparse.symbolic`."""
    return SymbolicProduct(A, B, memory_limit, host)


# ---- factors


def _is_array(matrix: Any) -> bool:
    import scipy.sparse as sp

    return isinstance(matrix, sp.sparray)


def _with_checked_factors(
    A: Any, B: Any, precision: Precision, use: Callable[[Factor, Factor, Any], Any], half: HalfRange = BY_ENTRY
) -> Any:
    """Return ``use(A, B, counters)`` of both factors on the device, their values rounded.

    The flags of the check are among the counters of the symbolic phase, and read with them, which spares a wait; where
    one is set, `_Unfit` is raised, and `use` is called again with mended factors.
    """
    import cupy

    same = A is B
    raw = [_device_csr(A, "A")]
    raw.append(raw[0] if same else _device_csr(B, "B"))
    counters = _counters(A.shape[0])
    left = _prepare(raw[0], precision, counters, 0, half)
    try:
        return use(left, left if same else _prepare(raw[1], precision, counters, 1, half), counters)
    except _Unfit as unfit:
        found = [unfit.args[0], unfit.args[0] if same else unfit.args[1]]
    # What scaling loses is flagged among the new counters, and read with them as well.
    counters = _counters(A.shape[0])
    mended = [_mend(m, int(found[i]), precision, counters, i, half) for i, m in enumerate(raw)]
    try:
        return use(mended[0][1], mended[1][1], counters)
    except _Unfit as unfit:
        which = 0 if unfit.args[0] else 1
    matrix, factor = mended[which]
    owner = matrix.indices if which else _row_of_entries(matrix.indptr, factor.nnz)
    what = "column of B" if which else "row of A"
    half_exponents(matrix.data, lambda: owner, len(factor.exponents), what, half, cupy)  # raises, naming it
    raise RuntimeError(f"scaling of the {what} to float16 failed")


def _counters(rows: int) -> Any:
    """Return the cleared head and the states of the scan over `rows` rows."""
    import cupy

    return cupy.zeros(_HEAD // 2 + -(-rows // 2048), np.uint64)


def _raise_unfit(head: np.ndarray) -> None:
    values = head.tolist()
    flags = [values[_FLAGS + i] | (_UNSORTED if values[_DESCENTS + i] else 0) for i in range(2)]
    if any(flags):
        raise _Unfit(*flags)


def _checked(left: Factor, right: Factor, counters: Any) -> tuple[Factor, Factor]:
    """Read the flags of the check by themselves."""
    if counters is not None:
        _raise_unfit(_read_head(counters))
    return left, right


def _device_csr(matrix: Any, name: str) -> Any:
    """Return a cupyx CSR matrix of float32 or float64 with 32-bit indices."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    csr = matrix.tocsr()
    if max(csr.shape) >= 2**31 or csr.nnz >= 2**31:
        raise ValueError(f'{name} has {csr.nnz} entries and shape {csr.shape}, beyond 32 bits; use backend="cpu"')
    if isinstance(csr, csr_matrix) and csr.dtype in (np.float32, np.float64) and csr.indices.dtype == np.int32:
        return csr
    dtype = csr.dtype if csr.dtype in (np.float32, np.float64) else np.float32 if csr.dtype.itemsize < 4 else np.float64
    arrays = (cupy.asarray(csr.data, dtype), cupy.asarray(csr.indices, np.int32), cupy.asarray(csr.indptr, np.int32))
    return csr_matrix(arrays, shape=csr.shape)


def _rounding(precision: Precision, half: HalfRange) -> int:
    return _ROUND_TILES if precision.name == "float16" and half is IN_TILES else _ROUNDING[precision.name]


def _prepare(matrix: Any, precision: Precision, counters: Any, which: int, half: HalfRange) -> Factor:
    import cupy

    rows, columns = matrix.shape
    rounding = _rounding(precision, half)
    nnz = len(matrix.indices)
    keep = matrix.dtype == precision.dtype and rounding == 0
    out = matrix.data if keep else cupy.empty(nnz, precision.dtype)
    if nnz:
        kernel = _kernel(precision.value, f"prepare_{'double' if matrix.dtype == np.float64 else 'float'}")
        sizes = (np.int32(rows), np.int32(columns), np.int32(nnz), np.int32(rounding))
        arrays = (matrix.indptr, matrix.indices, matrix.data, 0 if keep else out.data.ptr, counters)
        kernel((min(-(-max(nnz, rows) // 256), 2048),), (256,), (*sizes, *arrays, np.int32(which)))
    return Factor(matrix.shape, matrix.indptr, matrix.indices, out, half=half)


def _mend(
    matrix: Any, found: int, precision: Precision, counters: Any, which: int, half: HalfRange
) -> tuple[Any, Factor]:
    """Sort and sum what is not canonical, scale what float16 does not hold, raise on the rest."""
    import cupy

    name = "AB"[which]
    if found & _BAD_INDEX:
        raise ValueError(f"{name} holds a column index outside 0 to {matrix.shape[1] - 1}: check indices")
    if found & _NOT_FINITE:
        worst = int(cupy.argmin(cupy.isfinite(matrix.data)))
        row = int(cupy.searchsorted(matrix.indptr, cupy.asarray(worst), side="right")) - 1
        value = float(matrix.data[worst])
        raise ValueError(
            f"{name} holds {value} at row {row}, column {int(matrix.indices[worst])}: remove or replace it"
        )
    if found & _FLOAT_RANGE and precision.name != "float16":
        raise ValueError(f'{name} holds entries beyond the range of float32; use precision="float64"')
    if found & _UNSORTED:
        matrix = matrix.copy()
        matrix.has_canonical_format = False
        matrix.sum_duplicates()
        summed = _counters(1)
        factor = _prepare(matrix, precision, summed, 0, half)
        found = _read_head(summed)[_FLAGS] if precision.name == "float16" else 0
    else:
        factor = _prepare(matrix, precision, _counters(1), 0, half)
    if precision.name == "float16" and found & (_HALF_RANGE | _FLOAT_RANGE):
        _scale(matrix, factor, counters, which)
    return matrix, factor


def _scale(matrix: Any, factor: Factor, counters: Any, which: int) -> None:
    """Divide the rows of A, or the columns of B, by powers of two that bring them into the range of float16."""
    import cupy

    rows, by_row = matrix.shape[0], which == 0
    exponents = cupy.full(rows if by_row else matrix.shape[1], _EMPTY, np.int32)
    blocks, kind = ((-(-rows // 32)),), "double" if matrix.dtype == np.float64 else "float"
    sizes: tuple[Any, ...] = (np.int32(rows), np.int32(by_row))
    arrays = (matrix.indptr, matrix.indices, matrix.data, exponents)
    _kernel("float32", f"exponents_{kind}")(blocks, (256,), (*sizes, *arrays))
    sizes = (*sizes, np.int32(_rounding(lookup("float16"), factor.half)), np.int32(factor.half.top))
    flags = counters.data.ptr + 4 * which  # so that the kernel finds those of this factor
    _kernel("float32", f"scale_{kind}")(blocks, (256,), (*sizes, *arrays, factor.data, flags))
    factor.exponents = exponents


# ---- launches


def _kernel(value: str, name: str, shared_bytes: int = 0) -> Any:
    import cupy

    return _function(value, name, shared_bytes, cupy.cuda.runtime.getDevice())


@functools.cache
def _function(value: str, name: str, shared_bytes: int, device: int) -> Any:
    """Return a kernel loaded on `device`, which launches with less ado than CuPy's wrapper of it."""
    return ROWS[value].function(name, shared_bytes).kernel


@functools.cache
def _processors() -> int:
    """Return the number of multiprocessors."""
    from ..gpu.device import describe

    return describe().multiprocessors


@functools.cache
def _shared_limit() -> int:
    """Return the dynamic shared memory that a block kernel may ask for, beside its static kilobytes."""
    from ..gpu.device import describe

    return describe().shared_bytes - 12 * 1024


class _Local(threading.local):
    """Streams, events and pinned memory of one host thread, by device."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[list[Any], list[Any], Any]] = {}

    def get(self) -> tuple[list[Any], list[Any], Any]:
        import cupy

        device = cupy.cuda.runtime.getDevice()
        if device not in self.kept:
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(_BINS_NUMERIC - 1)]
            events = [cupy.cuda.Event(disable_timing=True) for _ in range(_BINS_NUMERIC)]
            self.kept[device] = streams, events, cupy.cuda.alloc_pinned_memory(4 * _HEAD)
        return self.kept[device]


_local = _Local()
_Launch = tuple[Any, int, int, tuple[Any, ...], int]  # kernel, blocks, threads, arguments, shared bytes


def _run(launches: list[_Launch]) -> None:
    """Launch kernels that do not depend on each other side by side; the current stream waits for all."""
    import cupy

    if not launches:
        return
    main = cupy.cuda.get_current_stream()
    streams, events, _ = _local.get()
    begin = events[-1]
    if len(launches) > 1:
        begin.record(main)
    kernel, blocks, threads, arguments, shared = launches[0]
    kernel((blocks,), (threads,), arguments, shared)
    for (kernel, blocks, threads, arguments, shared), stream, event in zip(launches[1:], streams, events, strict=False):
        stream.wait_event(begin)
        kernel((blocks,), (threads,), arguments, shared, stream)
        event.record(stream)
        main.wait_event(event)


def _read_head(counters: Any) -> np.ndarray:
    """Wait for the current stream and return the head."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    pinned = _local.get()[2]
    cupy.cuda.runtime.memcpyAsync(pinned.ptr, counters.data.ptr, 4 * _HEAD, 2, stream.ptr)  # 2: device to host
    stream.synchronize()
    return np.frombuffer(pinned, np.int32, _HEAD).copy()


# ---- phases


def _symbolic(
    A: Factor, B: Factor, first: int, stop: int, value: str, counters: Any = None, scratch_bytes: int = _SCRATCH_BYTES
) -> _Phase:
    """Find the row pointer of rows `first` to `stop` of C.

    `counters` are those that the check of the factors wrote to; `_Unfit` is raised if a flag is set.
    """
    import cupy

    rows = stop - first
    if counters is None:
        counters = _counters(rows)
    indptr = cupy.empty(rows + 1, np.int32)
    if not rows:
        indptr.fill(0)
        return _Phase(first, 0, np.zeros(_HEAD, np.int32), None, 0, 0, 0, 0, 0, cupy.empty(0, np.uint32), indptr)
    work = cupy.empty((4 + _BINS_NUMERIC) * rows, np.int32)
    low, span, slot, entries, lists = (work.data.ptr + 4 * rows * i for i in range(5))
    head, count = counters.data.ptr, np.int32(rows)
    ptr_a = A.indptr.data.ptr + 4 * first
    pattern = (ptr_a, A.indices.data.ptr, B.indptr.data.ptr, B.indices.data.ptr)
    mean = A.nnz / max(A.shape[0], 1)
    group = 2 if mean <= 6 else 3 if mean <= 16 else 5
    arguments: tuple[Any, ...] = (count, np.int32(A.shape[1]), np.int32(group), *pattern)
    arguments = (*arguments, low, span, entries, slot, lists, head)
    _kernel(value, "analyse")((-(-rows // (_ANALYSTS >> group)),), (_ANALYSTS,), arguments)
    # How many rows fall into which bin stays on the device: the kernels read it, so that the host need not wait.
    nnz = np.int32(min(max(A.nnz * rows // A.shape[0], 1), 2**31 - 1))
    kept = cupy.empty(_kept_words(rows, int(nnz)), np.uint32)
    many = _processors()
    arguments = (count, nnz, lists, *pattern, low, span, slot, entries, kept.data.ptr, np.int32(len(kept)), head)
    by_blocks = rows <= _FEW_ROWS * many and nnz >= _LONG_ROWS * rows
    blocks = min(rows if by_blocks else -(-rows // 4), 24 * many)
    groups: _Launch = (_kernel(value, "symbolic_groups"), blocks, 128, (*arguments, np.int32(by_blocks)), 0)
    words = (B.shape[1] + 31) // 32
    blocks, scratch, place = min(rows, 4 * many), None, "shared"
    if 4 * words > _shared_limit():
        found = _read_head(counters)
        _raise_unfit(found)
        words, place = (int(found[_MAX_SPAN]) + 31) // 32, "global"
        blocks = min(int(found[_SYMBOLIC + _BLOCK_BIN]), 2 * many, max(1, scratch_bytes // (4 * words)))
        scratch = cupy.empty(blocks * words, np.uint32)
    shared = 4 * words if place == "shared" else 0
    kernel = _kernel(value, f"symbolic_block_{place}", _shared_limit() if shared else 0)
    arguments = (count, nnz, lists, *pattern, low, span, entries, head, _address(scratch), np.int32(words))
    _run([groups, (kernel, blocks, 256, arguments, shared)] if blocks else [groups])
    states = head + 4 * _HEAD
    arguments = (count, np.int32(_shared_limit()), entries, span, slot, indptr.data.ptr, lists, head, states)
    _kernel(value, "place")((-(-rows // 2048),), (256,), arguments)
    found = _read_head(counters)
    _raise_unfit(found)
    return _Phase(first, rows, found, work, low, span, slot, lists, scratch_bytes, kept, indptr)


def _kept_words(rows: int, nnz: int) -> int:
    """Return the words of bitmaps that a phase keeps at most: a row for which no room is left is gathered twice."""
    return min(_ROW_WORDS * rows, 3 * nnz + 1024, 2**31 - 2**10)


def _numeric(A: Factor, B: Factor, phase: _Phase, indices: Any, data: Any) -> None:
    """Fill the columns and values of the rows of `phase`."""
    import cupy

    size, rows = data.dtype.itemsize, phase.rows
    value = "float64" if size == 8 else "float32"
    head = phase.head
    bins = head[_NUMERIC : _NUMERIC + _BINS_NUMERIC].tolist()
    mean_b = phase.products / max(A.nnz * rows / max(A.shape[0], 1), 1)
    left = (A.indptr.data.ptr + 4 * phase.first, A.indices.data.ptr, A.data.data.ptr)
    factors = (*left, B.indptr.data.ptr, B.indices.data.ptr, B.data.data.ptr)
    product = (phase.indptr.data.ptr, indices.data.ptr, data.data.ptr)
    window = (phase.low, phase.span)
    launches: list[_Launch] = []

    def rows_of(bin: int) -> tuple[Any, ...]:
        return np.int32(bins[bin]), phase.lists + 4 * bin * rows, *factors

    scratch = None
    for bin, (name, threads) in reversed(list(enumerate(_BLOCKS, start=8))):
        if bins[bin]:
            blocks, words, shared = bins[bin], 0, int(head[_MAX_BYTES + bin - 8])
            if name == "global":
                words, shared = (int(head[_MAX_SPAN]) + 31) // 32, 0
                blocks = min(bins[bin], 256, max(1, phase.scratch_bytes // (8 * words)))
                scratch = cupy.empty(blocks * words, np.uint64)
            kernel = _kernel(value, f"numeric_block_{name}", _shared_limit() if shared else 0)
            arguments = (np.int32(bins[bin]), np.int32(_width(mean_b)), *rows_of(bin)[1:], *window, *product)
            arguments = (*arguments, _address(scratch), np.int32(words))
            launches.append((kernel, blocks, threads, arguments, shared))
    for bin, log in reversed(list(enumerate(_NUMERIC_LOGS, start=3))):
        if bins[bin]:
            lanes = _hash_lanes(log, mean_b)
            row_bytes = (4 + size) * _padded(1 << log, lanes) + (2 << log)
            call = _groups(value, f"numeric_hash_{lanes}_{log}", bins[bin], lanes, row_bytes)
            launches.append(call(*rows_of(bin), phase.low, *product))
    bitmaps = (phase.slot, phase.kept.data.ptr, np.int32(len(phase.kept)))
    for bin, (words, sums) in enumerate(_WINDOWS):
        if bins[bin]:
            lanes = _window_lanes(bin, mean_b)
            row_bytes = 8 * _padded(words, lanes) + size * _padded(sums, lanes)
            call = _groups(value, f"numeric_window_{lanes}_{words}_{sums}", bins[bin], lanes, row_bytes)
            launches.append(call(*rows_of(bin), *window, *bitmaps, *product))
    _run(launches)


def _groups(value: str, name: str, count: int, lanes: int, row_bytes: int) -> Callable[..., _Launch]:
    """Return what makes the launch of a kernel that gives each of `count` rows to a group of lanes."""
    per_block = _THREADS // lanes
    shared = per_block * row_bytes
    kernel = _kernel(value, name, shared)
    return lambda *arguments: (kernel, -(-count // per_block), _THREADS, arguments, shared)


def _address(array: Any) -> int:
    return 0 if array is None else array.data.ptr


def _padded(length: int, lanes: int) -> int:
    """Return the length of a group's table in shared memory, with the padding that keeps groups in different banks."""
    return length + lanes if lanes < 32 else length


# The limits below are measured: docs/performance/tsparse.md, step 5 of the ladder.
def _hash_lanes(log: int, mean_b: float) -> int:
    # Larger tables fill shared memory: fewer rows a block and more lanes a row keep more warps at work.
    if log >= 8:
        return 32
    return 4 if mean_b <= 6 else 8


def _window_lanes(bin: int, mean_b: float) -> int:
    return 32 if bin or mean_b > 24 else 16 if mean_b > 10 else 8


def _width(mean_b: float) -> int:
    return max(4, min(32, 1 << max(int(mean_b) - 1, 1).bit_length()))


# ---- results


def _check_limit(memory_limit: int | None, rows: int, columns: int) -> tuple[int, int]:
    """Return the rows of one chunk, and the bytes for bitmaps that shared memory does not hold."""
    if memory_limit is None:
        return max(rows, 1), _SCRATCH_BYTES
    bitmap = 8 * ((columns + 31) // 32)
    fixed = 4 * _HEAD + (bitmap if bitmap > _shared_limit() else 0)
    if memory_limit < fixed + _ROW_BYTES:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and one row takes {fixed + _ROW_BYTES}; "
            f"raise it to at least {fixed + _ROW_BYTES}"
        )
    chunk = min(max(rows, 1), (memory_limit - fixed) // _ROW_BYTES)
    return chunk, memory_limit - 4 * _HEAD - chunk * _ROW_BYTES


def _finish(A: Factor, B: Factor, phase: _Phase, precision: Precision) -> tuple[Any, Any, Any]:
    import cupy

    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    _numeric(A, B, phase, indices, data)
    return phase.indptr, indices, _unscale(data, phase.indptr, indices, A, B, phase.first)


def _row_of_entries(indptr: Any, nnz: int) -> Any:
    import cupy

    return cupy.searchsorted(indptr, cupy.arange(nnz, dtype=indptr.dtype), side="right") - 1


def _unscale(data: Any, indptr: Any, indices: Any, A: Factor, B: Factor, first: int) -> Any:
    """Multiply C by the powers of two that the inputs were divided by."""
    if A.exponents is None and B.exponents is None:
        return data
    rows, counters = len(indptr) - 1, _counters(1)
    row_exponents = 0 if A.exponents is None else A.exponents[first:].data.ptr
    column_exponents = 0 if B.exponents is None else B.exponents.data.ptr
    if len(data):
        sizes = (np.int32(rows), np.int32(A.half.top))
        arguments = (*sizes, indptr, indices, data, row_exponents, column_exponents, counters)
        _kernel("float32", "unscale")((-(-rows // 32),), (256,), arguments)
    if _read_head(counters)[_FLAGS]:
        raise ValueError('an entry of C is beyond the range of float32; use precision="float64"')
    return data


def _by_tiles(A: Factor, B: Factor, precision: Precision) -> Any:
    from . import gpu_tiles

    indptr, indices, data = gpu_tiles.multiply_to_csr(A, B, precision)
    return _csr((A.shape[0], B.shape[1]), indptr, indices, _unscale(data, indptr, indices, A, B, 0))


def _to_device(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, counters: Any) -> Any:
    """Return C on the device: in one piece, or count by chunks of rows and fill in a second pass over them."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = _check_limit(memory_limit, *shape)
    if chunk >= rows:
        phase = _symbolic(A, B, 0, rows, value, counters, scratch)
        if phase.entries <= _MOST_ENTRIES:
            return _csr(shape, *_finish(A, B, phase, precision))
        counts = [phase.counts.get()]
    else:
        _checked(A, B, counters)
        chunks = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)]
        counts = [_symbolic(A, B, a, b, value, None, scratch).counts.get() for a, b in chunks]
    starts = np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64)
    index = np.int32 if starts[-1] <= _MOST_ENTRIES else np.int64
    if index is np.int64 and not hasattr(csr_matrix, "_from_parts"):
        raise MemoryError(
            f"C has {starts[-1]} entries, beyond the 32-bit indices of cupyx matrices before CuPy 14: "
            "pass scipy matrices, and C is gathered on the host"
        )
    indices, data = cupy.empty(int(starts[-1]), index), cupy.empty(int(starts[-1]), precision.dtype)
    for a, b, part in _parts(starts, chunk, _PART_ENTRIES):
        here = _symbolic(A, B, a, b, value, None, scratch)
        columns = indices[part] if index is np.int32 else cupy.empty(here.entries, np.int32)
        _numeric(A, B, here, columns, data[part])
        _unscale(data[part], here.indptr, columns, A, B, a)
        if index is np.int64:
            indices[part] = columns
        del here, columns  # before the next rows take their place
    return _csr(shape, cupy.asarray(starts.astype(index)), indices, data)


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
    from ..gpu.device import free_bytes
    from .api import _csr as host_csr

    rows, value = A.shape[0], precision.value
    shape = (rows, B.shape[1])
    chunk, scratch = _check_limit(memory_limit, *shape)
    _checked(A, B, counters)
    entry_bytes = 4 + precision.dtype.itemsize
    counts = [np.zeros(1, np.int64)]
    for a in range(0, rows, chunk):
        phase = _symbolic(A, B, a, min(a + chunk, rows), value, None, scratch)
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
        _, columns, values = _finish(A, B, _symbolic(A, B, a, b, value, None, scratch), precision)
        columns.astype(index, copy=False).get(out=indices[part])
        values.get(out=data[part])
    return host_csr(shape, starts, indices, data, array)


def _csr(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    from cupyx.scipy.sparse import csr_matrix

    if hasattr(csr_matrix, "_from_parts"):  # CuPy >= 14: the constructor reads indptr back, which costs a wait
        return csr_matrix._from_parts(data, indices, indptr, shape, has_canonical_format=True)
    C = csr_matrix((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C


def _get(C: Any, array: bool) -> Any:
    from .api import _csr as host_csr

    return host_csr(C.shape, C.indptr.get().astype(np.int64), C.indices.get(), C.data.get(), array)
