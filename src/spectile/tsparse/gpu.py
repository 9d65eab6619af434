"""The product on CUDA devices: rows by bitmap or hash (``rows.cu``), buffers and launches.

One product is a handful of launches and two short waits: after `analyse` the host reads the bins of the symbolic phase,
after `place` the entries of C.  Nothing but C and a few integers a row is allocated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpu.compile import Unit
from .precision import Precision, half_exponents, lookup, round_half

ARCHS = ("sm_80", "sm_90a", "sm_100")
ROWS = {
    "float32": Unit("tsparse", ("rows.cu",), ARCHS, {"VALUE": "float"}),
    "float64": Unit("tsparse", ("rows.cu",), ARCHS, {"VALUE": "double"}),
}
UNITS = tuple(ROWS.values())

# Places in the head of counters and flags of bad input (rows.cu).
_SYMBOLIC, _NUMERIC, _FLAGS, _MAX_SPAN, _MAX_BYTES, _PRODUCTS, _ENTRIES, _HEAD = 0, 8, 20, 22, 24, 15, 16, 64
_BAD_INDEX, _UNSORTED, _NOT_FINITE, _HALF_RANGE, _FLOAT_RANGE = 1, 2, 4, 8, 16
_ROUNDING = {"float64": 0, "float32": 0, "tf32": 1, "float16": 2}
_KEPT_WORDS = (64, 256)  # words of a kept bitmap in the two window bins
_THREADS = 128  # of the kernels that give a row to a group of lanes
# Bytes of work space a row takes at most: 4 integers, its place in the lists of 10 bins, the larger bitmap.
_ROW_BYTES = 4 * (4 + 10) + 4 * _KEPT_WORDS[1]


@dataclass
class Factor:
    """A CSR factor on the device whose values are rounded to the precision of the product."""

    shape: tuple[int, int]
    indptr: Any  # int32
    indices: Any  # int32
    data: Any
    exponents: Any = None  # of the rows of A or the columns of B, where float16 needed scaling

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)


@dataclass
class _Phase:
    """What the symbolic phase of some rows leaves for the numeric phase."""

    first: int
    rows: int
    head: np.ndarray
    low: Any
    span: Any
    slot: Any
    lists: Any
    kept: tuple[Any, Any]
    indptr: Any

    @property
    def entries(self) -> int:
        return int(self.head.view(np.uint64)[_ENTRIES])

    @property
    def products(self) -> int:
        return int(self.head.view(np.uint64)[_PRODUCTS])


class _Unfit(Exception):
    """The check of the factors found something; carries the flags of A and of B."""


def spgemm(A: Any, B: Any, precision: Precision, method: str, memory_limit: int | None, host: bool) -> Any:
    """Multiply on the device; see `spectile.tsparse.spgemm`.  `host` tells that A and B are scipy matrices."""
    array = _is_array(A) or _is_array(B)

    def product(left: Factor, right: Factor, flags: Any) -> Any:
        if host:
            return _to_host(left, right, precision, memory_limit, array, flags)
        return _to_device(left, right, precision, memory_limit, flags)

    return _with_checked_factors(A, B, precision, product)


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
        _check_limit(memory_limit, A.shape[0])
        self.shape = (A.shape[0], B.shape[1])
        self._host = host

        def analyse(left: Factor, right: Factor, flags: Any) -> _Phase:
            self._patterns = [(x.indptr, x.indices) for x in (left, right)]
            return _symbolic(left, right, 0, left.shape[0], "float64", flags)

        self._phase = _with_checked_factors(A, B, lookup("float64"), analyse)
        self.nnz = self._phase.entries
        self.products = self._phase.products

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
        C = _csr(self.shape, *_finish(factors[0], factors[1], self._phase, chosen))
        return _get(C, _is_array(A) or _is_array(B)) if self._host else C


def symbolic(A: Any, B: Any, memory_limit: int | None, host: bool) -> SymbolicProduct:
    """Analyse the pattern of a product on the device; see `spectile.tsparse.symbolic`."""
    return SymbolicProduct(A, B, memory_limit, host)


# ---- factors


def _is_array(matrix: Any) -> bool:
    import scipy.sparse as sp

    return isinstance(matrix, sp.sparray)


def _with_checked_factors(A: Any, B: Any, precision: Precision, use: Callable[[Factor, Factor, Any], Any]) -> Any:
    """Return ``use(A, B, flags)`` of both factors on the device, their values rounded.

    The flags of the check are read by `use` together with its own counters, which spares a wait; where it finds one set
    it raises `_Unfit`, and is called again with mended factors.
    """
    import cupy

    same = A is B
    raw = [_device_csr(A, "A")]
    raw.append(raw[0] if same else _device_csr(B, "B"))
    flags = cupy.zeros(2, np.int32)
    left = _prepare(raw[0], precision, flags, 0)
    try:
        return use(left, left if same else _prepare(raw[1], precision, flags, 1), flags)
    except _Unfit as unfit:
        found = [unfit.args[0], unfit.args[0] if same else unfit.args[1]]
    left, right = (_mend(m, int(f), precision, name) for m, f, name in zip(raw, found, "AB", strict=True))
    return use(left, right, None)


def _checked(left: Factor, right: Factor, flags: Any) -> tuple[Factor, Factor]:
    if flags is not None:
        found = flags.get()
        if found.any():
            raise _Unfit(*found.tolist())
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


def _prepare(matrix: Any, precision: Precision, flags: Any, which: int) -> Factor:
    import cupy

    rows, columns = matrix.shape
    rounding = _ROUNDING[precision.name]
    keep = matrix.dtype == precision.dtype and rounding == 0
    out = matrix.data if keep else cupy.empty(matrix.nnz, precision.dtype)
    if rows and matrix.nnz:
        kernel = _kernel(precision.dtype.name, f"prepare_{'double' if matrix.dtype == np.float64 else 'float'}")
        arguments = (np.int32(rows), np.int32(columns), np.int32(rounding), matrix.indptr, matrix.indices, matrix.data)
        target = np.uintp(0) if keep else out
        kernel((min(-(-rows // 32), 4096),), (256,), (*arguments, target, flags[which:]))
    return Factor(matrix.shape, matrix.indptr, matrix.indices, out)


def _mend(matrix: Any, found: int, precision: Precision, name: str) -> Factor:
    """Sort and sum what is not canonical, scale what float16 does not hold, raise on the rest."""
    import cupy

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
    flags = cupy.zeros(1, np.int32)
    factor = _prepare(matrix, precision, flags, 0)
    if precision.name == "float16" and int(flags[0]) & (_HALF_RANGE | _FLOAT_RANGE):
        if name == "A":
            rows = cupy.repeat(cupy.arange(matrix.shape[0]), cupy.diff(matrix.indptr).tolist())
            owner, groups, what = rows, matrix.shape[0], "row of A"
        else:
            owner, groups, what = matrix.indices, matrix.shape[1], "column of B"
        exponents = half_exponents(matrix.data, lambda: owner, groups, what, cupy)
        factor.data = round_half(matrix.data, exponents, owner, cupy)
        factor.exponents = exponents
    return factor


# ---- phases


@functools.cache
def _kernel(value: str, name: str, shared_bytes: int = 0) -> Any:
    return ROWS[value].function(name, shared_bytes)


@functools.cache
def _shared_limit() -> int:
    """Return the dynamic shared memory that a block kernel may ask for, beside its few static kilobytes."""
    from ..gpu.device import describe

    return describe().shared_bytes - 8 * 1024


def _symbolic(A: Factor, B: Factor, first: int, stop: int, value: str, flags: Any = None) -> _Phase:
    """Find the row pointer of rows `first` to `stop` of C; raise `_Unfit` if `flags` tell of a bad factor."""
    import cupy

    rows = stop - first
    if not rows:
        none = cupy.zeros(1, np.int32)
        return _Phase(first, 0, np.zeros(_HEAD, np.int32), none, none, none, none, (none, none), none)
    counters = cupy.zeros(_HEAD // 2 + -(-rows // 2048), np.uint64)
    head, state = counters.view(np.int32), counters[_HEAD // 2 :]
    work = cupy.empty(15 * rows + 1, np.int32)
    low, span, slot = (work[i * rows : (i + 1) * rows] for i in range(3))
    indptr, lists = work[3 * rows : 4 * rows + 1], work[5 * rows + 1 :]
    entries = work[4 * rows + 1 : 5 * rows + 1]
    ptr_a = A.indptr[first : stop + 1]
    pattern = (ptr_a, A.indices, B.indptr, B.indices)
    mean = A.nnz / max(A.shape[0], 1)
    group = 2 if mean <= 6 else 3 if mean <= 16 else 5
    count = np.int32(rows)
    arguments: tuple[Any, ...] = (
        count,
        np.int32(A.shape[1]),
        np.int32(group),
        *pattern,
        low,
        span,
        entries,
        slot,
        lists,
        head,
    )
    arguments = (*arguments, np.uintp(0) if flags is None else flags)
    _kernel(value, "analyse")((-(-rows // (256 >> group)),), (256,), arguments)
    found = head[:_HEAD].get()
    if found[_FLAGS : _FLAGS + 2].any():
        raise _Unfit(*found[_FLAGS : _FLAGS + 2].tolist())
    bins = found[_SYMBOLIC : _SYMBOLIC + 6].tolist()
    mean_b = int(found.view(np.uint64)[_PRODUCTS]) / max(A.nnz, 1)
    kept = tuple(cupy.empty(max(n * w, 1), np.uint32) for n, w in zip(bins, _KEPT_WORDS, strict=False))

    def rows_of(bin: int) -> tuple[Any, ...]:
        return np.int32(bins[bin]), lists[bin * rows :], *pattern

    for bin, words in enumerate(_KEPT_WORDS):
        if bins[bin]:
            lanes = 8 if mean_b <= 16 and bin == 0 else 32
            _groups(value, f"symbolic_window_{lanes}_{words}", bins[bin], lanes, 4 * words)(
                *rows_of(bin), low, span, entries, kept[bin]
            )
    for bin, log in ((2, 6), (3, 8), (4, 10)):
        if bins[bin]:
            lanes = _hash_lanes(log, mean_b)
            _groups(value, f"symbolic_hash_{lanes}_{log}", bins[bin], lanes, 4 << log)(*rows_of(bin), entries)
    if bins[5]:
        words = (int(found[_MAX_SPAN]) + 31) // 32
        shared = 4 * words <= _shared_limit()
        blocks = bins[5] if shared else min(bins[5], 256)
        scratch = cupy.empty(1 if shared else blocks * words, np.uint32)
        name = f"symbolic_block_{'shared' if shared else 'global'}"
        kernel = _kernel(value, name, _shared_limit())
        arguments = (np.int32(bins[5]), np.int32(_width(mean_b)), *rows_of(5)[1:], low, span, entries)
        kernel((blocks,), (256,), (*arguments, scratch, np.int32(words)), shared_mem=4 * words if shared else 0)
    arguments = (count, np.int32(_shared_limit()), entries, span, slot, indptr, lists, head, state)
    _kernel(value, "place")((-(-rows // 2048),), (256,), arguments)
    return _Phase(first, rows, head[:_HEAD].get(), low, span, slot, lists, (kept[0], kept[1]), indptr)


def _numeric(A: Factor, B: Factor, phase: _Phase, indices: Any, data: Any) -> None:
    """Fill the columns and values of the rows of `phase`."""
    import cupy

    value, rows = data.dtype.name, phase.rows
    size = data.dtype.itemsize
    head = phase.head
    bins = head[_NUMERIC : _NUMERIC + 10].tolist()
    mean_b = phase.products / max(A.nnz, 1)
    factors = (A.indptr[phase.first :], A.indices, A.data, B.indptr, B.indices, B.data)
    product = (phase.indptr, indices, data)

    def rows_of(bin: int) -> tuple[Any, ...]:
        return np.int32(bins[bin]), phase.lists[bin * rows :], *factors

    for bin, (words, sums) in enumerate(((64, 256), (64, 2048), (256, 1024))):
        if bins[bin]:
            lanes = 8 if mean_b <= 16 and bin == 0 else 32
            kernel = _groups(value, f"numeric_window_{lanes}_{words}_{sums}", bins[bin], lanes, 8 * words + size * sums)
            kernel(*rows_of(bin), phase.low, phase.span, phase.slot, phase.kept[words == 256], *product)
    for bin, log in ((3, 6), (4, 8), (5, 10)):
        if bins[bin]:
            lanes = _hash_lanes(log, mean_b)
            kernel = _groups(value, f"numeric_hash_{lanes}_{log}", bins[bin], lanes, (4 + size) << log)
            kernel(*rows_of(bin), *product)
    names = ("small", "large", "sums_global", "global")
    for bin, name in enumerate(names, start=6):
        if bins[bin]:
            threads = 128 if name == "small" else 256
            blocks, words, scratch = bins[bin], 0, np.uintp(0)
            if name == "global":
                blocks, words = min(bins[bin], 256), (int(head[_MAX_SPAN]) + 31) // 32
                scratch = cupy.empty(blocks * words, np.uint64)
            shared = 0 if name == "global" else int(head[_MAX_BYTES + bin - 6])
            kernel = _kernel(value, f"numeric_block_{name}", _shared_limit() if name != "global" else 0)
            count, *rest = rows_of(bin)
            arguments = (
                count,
                np.int32(_width(mean_b)),
                *rest,
                phase.low,
                phase.span,
                *product,
                scratch,
                np.int32(words),
            )
            kernel((blocks,), (threads,), arguments, shared_mem=shared)


def _groups(value: str, name: str, count: int, lanes: int, bytes_a_row: int) -> Any:
    """Return a call of a kernel that gives each of `count` rows to a group of lanes."""
    per_block = _THREADS // lanes
    shared = per_block * bytes_a_row
    kernel = _kernel(value, name, shared)
    return lambda *arguments: kernel((-(-count // per_block),), (_THREADS,), arguments, shared_mem=shared)


def _hash_lanes(log: int, mean_b: float) -> int:
    if log == 6:
        return 4 if mean_b <= 6 else 8
    return 8 if log == 8 and mean_b <= 12 else 32


def _width(mean_b: float) -> int:
    return max(4, min(32, 1 << max(int(mean_b) - 1, 1).bit_length()))


# ---- results


def _check_limit(memory_limit: int | None, rows: int) -> int:
    """Return the rows of one chunk."""
    if memory_limit is None:
        return max(rows, 1)
    fixed = 4 * _HEAD
    if memory_limit < fixed + _ROW_BYTES:
        raise MemoryError(
            f"memory_limit is {memory_limit} bytes, and one row takes {fixed + _ROW_BYTES}; "
            f"raise it to at least {fixed + _ROW_BYTES}"
        )
    return min(max(rows, 1), (memory_limit - fixed) // _ROW_BYTES)


def _finish(A: Factor, B: Factor, phase: _Phase, precision: Precision) -> tuple[Any, Any, Any]:
    import cupy

    indices, data = cupy.empty(phase.entries, np.int32), cupy.empty(phase.entries, precision.dtype)
    _numeric(A, B, phase, indices, data)
    return phase.indptr.copy(), indices, _unscale(data, phase.indptr, indices, A, B, phase.first)


def _unscale(data: Any, indptr: Any, indices: Any, A: Factor, B: Factor, first: int) -> Any:
    """Multiply C by the powers of two that the inputs were divided by."""
    if A.exponents is None and B.exponents is None:
        return data
    import cupy

    exponent = cupy.zeros(len(data), np.int32)
    if A.exponents is not None:
        rows = A.exponents[first : first + len(indptr) - 1]
        exponent += cupy.repeat(rows, cupy.diff(indptr).tolist())
    if B.exponents is not None:
        exponent += B.exponents[indices]
    scaled = cupy.ldexp(data, exponent)
    if not bool(cupy.isfinite(scaled).all()):
        raise ValueError('an entry of C is beyond the range of float32; use precision="float64"')
    return scaled


def _to_device(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, flags: Any) -> Any:
    import cupy

    rows, value = A.shape[0], precision.dtype.name
    shape = (rows, B.shape[1])
    chunk = _check_limit(memory_limit, rows)
    if chunk >= rows:
        phase = _symbolic(A, B, 0, rows, value, flags)
        if phase.entries >= 2**31:
            raise MemoryError(
                f"C has {phase.entries} entries, beyond the 32-bit indices of cupyx matrices: "
                "pass scipy matrices, and C is gathered on the host"
            )
        return _csr(shape, *_finish(A, B, phase, precision))
    # Count in one pass over the chunks and fill in a second: nothing but one chunk's work space beside C.
    _checked(A, B, flags)
    edges = [*range(0, rows, chunk), rows]
    counts = [_symbolic(A, B, a, b, value).entries for a, b in itertools.pairwise(edges)]
    starts = np.concatenate(([0], np.cumsum(counts)))
    if starts[-1] >= 2**31:
        raise MemoryError(
            f"C has {starts[-1]} entries, beyond the 32-bit indices of cupyx matrices: pass scipy matrices"
        )
    indptr = cupy.empty(rows + 1, np.int32)
    indices, data = cupy.empty(int(starts[-1]), np.int32), cupy.empty(int(starts[-1]), precision.dtype)
    for a, b, start, end in zip(edges[:-1], edges[1:], starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        phase = _symbolic(A, B, a, b, value)
        _numeric(A, B, phase, indices[start:end], data[start:end])
        indptr[a : b + 1] = phase.indptr + np.int32(start)
    return _csr(shape, indptr, indices, _unscale(data, indptr, indices, A, B, 0))


def _to_host(A: Factor, B: Factor, precision: Precision, memory_limit: int | None, array: bool, flags: Any) -> Any:
    """Gather C on the host, by as many chunks of rows as its size and the limit ask for."""
    import cupy

    from ..gpu.device import free_bytes

    rows = A.shape[0]
    shape = (rows, B.shape[1])
    chunk = _check_limit(memory_limit, rows)
    _checked(A, B, flags)
    waiting = [(a, min(a + chunk, rows)) for a in range(0, rows, chunk)] if A.nnz and B.nnz else []
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    entry_bytes = 4 + precision.dtype.itemsize
    while waiting:
        a, b = waiting.pop(0)
        phase = _symbolic(A, B, a, b, precision.dtype.name)
        if phase.entries >= 2**31 or phase.entries * entry_bytes > free_bytes():
            if b - a == 1:
                raise MemoryError(f"row {a} of C has {phase.entries} entries, more than the device holds: use the CPU")
            waiting[:0] = [(a, (a + b) // 2), ((a + b) // 2, b)]
            continue
        indptr, indices, data = (cupy.asnumpy(x) for x in _finish(A, B, phase, precision))
        pieces.append((indptr, indices, data))
    from .api import _csr as host_csr

    if not pieces:
        empty = np.zeros(0, np.int32), np.zeros(0, precision.dtype)
        return host_csr(shape, np.zeros(rows + 1, np.int64), *empty, array)
    offsets = np.cumsum([0, *(len(p[1]) for p in pieces)])
    indptr = np.concatenate([[0], *(p[0][1:].astype(np.int64) + o for p, o in zip(pieces, offsets, strict=False))])
    return host_csr(
        shape, indptr, np.concatenate([p[1] for p in pieces]), np.concatenate([p[2] for p in pieces]), array
    )


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
