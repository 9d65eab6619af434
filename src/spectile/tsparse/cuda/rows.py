"""The product by rows on CUDA devices: its two phases, and which kernel takes which rows.

One product is a handful of launches and one short wait: after `place` the host reads the entries of C and the bins of
the numeric phase.  Nothing but C, a few integers a row and bitmaps of narrow rows (`_kept_words`) is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.tsparse.cuda.factors import Factor, raise_unfit
from spectile.tsparse.cuda.units import (
    ANALYSTS,
    BINS_NUMERIC,
    BLOCK_BIN,
    ENTRIES,
    HEAD,
    MAX_BYTES,
    MAX_SPAN,
    NUMERIC,
    PRODUCTS,
    SYMBOLIC,
    Launch,
    load,
    new_counters,
    processors,
    read_head,
    run,
    shared_limit,
)

_WINDOWS = ((64, 256), (64, 2048), (256, 1024))  # words and sums of the window bins
_NUMERIC_LOGS = (5, 6, 8, 9, 10)  # logarithms of the tables of the hash bins
_BLOCKS = (("small", 128), ("large", 512), ("sums_global", 512), ("global", 256))  # block bins and their threads
_THREADS = 128  # of the kernels that give a row to a group of lanes
SCRATCH_BYTES = 1 << 28  # of bitmaps that shared memory does not hold
# A block takes a row of the symbolic phase where there are few rows a multiprocessor and many entries a row (measured:
# docs/performance/tsparse.md, step 7 of the ladder).
_FEW_ROWS, _LONG_ROWS = 96, 16
_ROW_WORDS = 128  # words of bitmaps kept a row, at most on average
# Bytes of work space a row takes at most: 5 integers, its place in the lists of the bins, bitmaps.
ROW_BYTES = 4 * (5 + BINS_NUMERIC) + 4 * _ROW_WORDS


@dataclass
class Phase:
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
        return int(self.head.view(np.uint64)[ENTRIES])

    @property
    def counts(self) -> Any:
        """Stored entries of each of these rows, on the device."""
        import cupy

        return self.work[3 * self.rows : 4 * self.rows] if self.rows else cupy.empty(0, np.int32)

    @property
    def products(self) -> int:
        """Multiplications of these rows."""
        return int(self.head.view(np.uint64)[PRODUCTS])


def count_rows(
    A: Factor, B: Factor, first: int, stop: int, value: str, counters: Any = None, scratch_bytes: int = SCRATCH_BYTES
) -> Phase:
    """Find the row pointer of rows `first` to `stop` of C.

    `counters` are those that the check of the factors wrote to; `Unfit` is raised if a flag is set.
    """
    import cupy

    rows = stop - first
    if counters is None:
        counters = new_counters(rows)
    indptr = cupy.empty(rows + 1, np.int32)
    if not rows:
        indptr.fill(0)
        return Phase(first, 0, np.zeros(HEAD, np.int32), None, 0, 0, 0, 0, 0, cupy.empty(0, np.uint32), indptr)
    work = cupy.empty((4 + BINS_NUMERIC) * rows, np.int32)
    low, span, slot, entries, lists = (work.data.ptr + 4 * rows * i for i in range(5))
    head, count = counters.data.ptr, np.int32(rows)
    ptr_a = A.indptr.data.ptr + 4 * first
    pattern = (ptr_a, A.indices.data.ptr, B.indptr.data.ptr, B.indices.data.ptr)
    mean = A.nnz / max(A.shape[0], 1)
    group = 2 if mean <= 6 else 3 if mean <= 16 else 5
    arguments: tuple[Any, ...] = (count, np.int32(A.shape[1]), np.int32(group), *pattern)
    arguments = (*arguments, low, span, entries, slot, lists, head)
    load(value, "analyse")((-(-rows // (ANALYSTS >> group)),), (ANALYSTS,), arguments)
    # How many rows fall into which bin stays on the device: the kernels read it, so that the host need not wait.
    nnz = np.int32(min(max(A.nnz * rows // A.shape[0], 1), 2**31 - 1))
    kept = cupy.empty(_kept_words(rows, int(nnz)), np.uint32)
    many = processors()
    arguments = (count, nnz, lists, *pattern, low, span, slot, entries, kept.data.ptr, np.int32(len(kept)), head)
    by_blocks = rows <= _FEW_ROWS * many and nnz >= _LONG_ROWS * rows
    blocks = min(rows if by_blocks else -(-rows // 4), 24 * many)
    groups: Launch = (load(value, "symbolic_groups"), blocks, 128, (*arguments, np.int32(by_blocks)), 0)
    words = (B.shape[1] + 31) // 32
    blocks, scratch, place = min(rows, 4 * many), None, "shared"
    if 4 * words > shared_limit():
        found = read_head(counters)
        raise_unfit(found)
        words, place = (int(found[MAX_SPAN]) + 31) // 32, "global"
        blocks = min(int(found[SYMBOLIC + BLOCK_BIN]), 2 * many, max(1, scratch_bytes // (4 * words)))
        scratch = cupy.empty(blocks * words, np.uint32)
    shared = 4 * words if place == "shared" else 0
    kernel = load(value, f"symbolic_block_{place}", shared_limit() if shared else 0)
    arguments = (count, nnz, lists, *pattern, low, span, entries, head, _address(scratch), np.int32(words))
    run([groups, (kernel, blocks, 256, arguments, shared)] if blocks else [groups])
    states = head + 4 * HEAD
    arguments = (count, np.int32(shared_limit()), entries, span, slot, indptr.data.ptr, lists, head, states)
    load(value, "place")((-(-rows // 2048),), (256,), arguments)
    found = read_head(counters)
    raise_unfit(found)
    return Phase(first, rows, found, work, low, span, slot, lists, scratch_bytes, kept, indptr)


def _kept_words(rows: int, nnz: int) -> int:
    """Return the words of bitmaps that a phase keeps at most: a row for which no room is left is gathered twice."""
    return min(_ROW_WORDS * rows, 3 * nnz + 1024, 2**31 - 2**10)


def fill_rows(A: Factor, B: Factor, phase: Phase, indices: Any, data: Any) -> None:
    """Fill the columns and values of the rows of `phase`."""
    import cupy

    size, rows = data.dtype.itemsize, phase.rows
    value = "float64" if size == 8 else "float32"
    head = phase.head
    bins = head[NUMERIC : NUMERIC + BINS_NUMERIC].tolist()
    mean_b = phase.products / max(A.nnz * rows / max(A.shape[0], 1), 1)
    left = (A.indptr.data.ptr + 4 * phase.first, A.indices.data.ptr, A.data.data.ptr)
    factors = (*left, B.indptr.data.ptr, B.indices.data.ptr, B.data.data.ptr)
    product = (phase.indptr.data.ptr, indices.data.ptr, data.data.ptr)
    window = (phase.low, phase.span)
    launches: list[Launch] = []

    def rows_of(bin: int) -> tuple[Any, ...]:
        return np.int32(bins[bin]), phase.lists + 4 * bin * rows, *factors

    scratch = None
    for bin, (name, threads) in reversed(list(enumerate(_BLOCKS, start=8))):
        if bins[bin]:
            blocks, words, shared = bins[bin], 0, int(head[MAX_BYTES + bin - 8])
            if name == "global":
                words, shared = (int(head[MAX_SPAN]) + 31) // 32, 0
                blocks = min(bins[bin], 256, max(1, phase.scratch_bytes // (8 * words)))
                scratch = cupy.empty(blocks * words, np.uint64)
            kernel = load(value, f"numeric_block_{name}", shared_limit() if shared else 0)
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
    run(launches)


def _groups(value: str, name: str, count: int, lanes: int, row_bytes: int) -> Callable[..., Launch]:
    """Return what makes the launch of a kernel that gives each of `count` rows to a group of lanes."""
    per_block = _THREADS // lanes
    shared = per_block * row_bytes
    kernel = load(value, name, shared)
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
