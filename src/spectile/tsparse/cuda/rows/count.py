"""The symbolic phase of the product by rows: analysis, entries of each row of C, row pointer (``rows.cuh``).

It ends with the one wait of a product: the host reads the entries of C and the bins of the numeric phase.  Nothing but
C, a few integers per row and bitmaps of narrow rows (`choose.kept_words`) is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.counters import CONSTANTS, Head, new_counters, read_head
from spectile.tsparse.cuda.streams import Launch, side_by_side
from spectile.tsparse.types import Factor


@dataclass
class Phase:
    """What the symbolic phase of some rows leaves for the numeric phase; addresses point into `work`.

    Attributes
    ----------
    first, rows : int
        The first row of C and their number.
    indptr : int32
        Row pointer of these rows of C.
    head : Head
        The counters.
    counts : int32
        Stored entries of each row.
    low, span, slot, lists : int
        Addresses of the first column and the width of each row's window, of the place of its bitmap, and of the rows
        of each bin.
    kept
        Bitmaps of the rows of window bins; a row whose words would lie beyond its end has none.
    scratch_bytes : int
        Bytes of bitmaps in global memory, at most.
    """

    first: int
    rows: int
    indptr: Any
    head: Head
    counts: Any
    work: Any = None
    low: int = 0
    span: int = 0
    slot: int = 0
    lists: int = 0
    kept: Any = None
    scratch_bytes: int = 0

    @property
    def entries(self) -> int:
        """Stored entries of these rows of C."""
        return self.head.wide("ENTRIES")

    @property
    def products(self) -> int:
        """Multiplications of these rows."""
        return self.head.wide("PRODUCTS")


def count_rows(
    A: Factor,
    B: Factor,
    first: int,
    stop: int,
    value: str,
    counters: Any = None,
    scratch_bytes: int = choose.SCRATCH_BYTES,
) -> Phase:
    """Find the row pointer of rows `first` to `stop` of C.

    `counters` are those that the check of the factors wrote to; `Invalid` is raised if a flag is set.
    """
    import cupy

    rows = stop - first
    if counters is None:
        counters = new_counters(rows)
    indptr = cupy.empty(rows + 1, np.int32)
    if not rows:
        indptr.fill(0)
        return Phase(first, 0, indptr, Head.empty(), cupy.empty(0, np.int32))
    device = describe()
    work = cupy.empty((4 + CONSTANTS["BINS_NUMERIC"]) * rows, np.int32)
    low, span, slot, entries, lists = (work.data.ptr + 4 * rows * i for i in range(5))
    pattern = (A.indptr.data.ptr + 4 * first, A.indices, B.indptr, B.indices)
    sizes = (np.int32(rows), np.int32(A.shape[1]))

    mean_a = A.nnz / max(A.shape[0], 1)
    log, shape = choose.analysis(rows, mean_a, device)
    arguments: tuple[Any, ...] = (*sizes, np.int32(log), *pattern, low, span, entries, slot, lists, counters)
    kernel(units.ANALYSIS[value], "analyse")(shape, *arguments)

    nnz = np.int32(min(max(A.nnz * rows // A.shape[0], 1), 2**31 - 1))
    kept = cupy.empty(choose.kept_words(rows, int(nnz)), np.uint32)
    by_blocks, shape = choose.symbolic_groups(rows, int(nnz), device)
    arguments = (sizes[0], nnz, lists, *pattern, low, span, slot, entries, kept, np.int32(len(kept)), counters)
    groups = Launch(kernel(units.SYMBOLIC, "symbolic_groups"), shape, (*arguments, np.int32(by_blocks)))
    arguments = (sizes[0], nnz, lists, *pattern, low, span, entries, counters)
    scratch, blocks = _block_bin(rows, B.shape[1], counters, arguments, scratch_bytes)
    side_by_side([groups, *blocks])

    limit = np.int32(choose.shared_limit(device))
    states = counters.data.ptr + 4 * CONSTANTS["HEAD"]
    arguments = (sizes[0], limit, entries, span, slot, indptr, lists, counters, states)
    kernel(units.ANALYSIS[value], "place")(choose.scan(rows), *arguments)
    head = read_head(counters)
    del scratch
    head.raise_invalid()
    counts = work[3 * rows : 4 * rows]
    return Phase(first, rows, indptr, head, counts, work, low, span, slot, lists, kept, scratch_bytes)


def _block_bin(
    rows: int, columns: int, counters: Any, arguments: tuple[Any, ...], scratch_bytes: int
) -> tuple[Any, list[Launch]]:
    """Return the launch for the block bin, none where it is known to be empty, and its bitmaps in global memory.

    How many rows fall into which bin stays on the device, and the kernels read it, so that the host need not wait; only
    bitmaps that shared memory does not hold ask for their size.
    """
    import cupy

    shape = choose.symbolic_block(rows, columns, describe())
    if shape is not None:
        words = np.int32(choose.bitmap_words(columns))
        return None, [_block_launch("shared", shape, (*arguments, 0, words))]
    head = read_head(counters)
    head.raise_invalid()
    words_used, shape = choose.symbolic_block_global(head, scratch_bytes, describe())
    if shape is None:
        return None, []
    scratch = cupy.empty(shape.grid[0] * words_used, np.uint32)
    return scratch, [_block_launch("global", shape, (*arguments, scratch, np.int32(words_used)))]


def _block_launch(memory: str, shape: Shape, arguments: tuple[Any, ...]) -> Launch:
    return Launch(kernel(units.SYMBOLIC, f"symbolic_block_{memory}"), shape, arguments)
