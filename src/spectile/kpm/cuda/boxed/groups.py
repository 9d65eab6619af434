"""Groups of adjacent rows that couple the same columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.boxed.when import MOST_GROUPED
from spectile.kpm.cuda.common import vectors_unit
from spectile.kpm.types import Array


def groups_of(matrix: Any) -> Any:
    """Return the first row of each group of up to eight adjacent rows with the same columns, then the number of rows.

    Of a canonical CSR matrix of cupyx: int32, shape (groups + 1,).
    """
    import cupy

    rows = int(matrix.shape[0])
    chunks = -(-rows // 32)
    begins = cupy.empty(rows, np.bool_)
    # Where the groups of each chunk begin, how many there are, and whether one has too many rows: read in one copy.
    found = cupy.zeros(chunks + 2, np.int64)
    counts, starts, long_run = cupy.empty(chunks, np.int64), found[:-1], found[-1:]
    first = cupy.empty(rows + 1, np.int32)
    unit = vectors_unit(str(matrix.dtype), wide=matrix.indptr.dtype.itemsize == 8)
    by_row = Shape((-(-chunks * 32 // 256),), 256)
    kernel(unit, "group_begins")(Shape((-(-rows // 8),), 256), matrix.indptr, matrix.indices, np.int64(rows), begins)
    kernel(unit, "group_counts")(by_row, begins, np.int64(rows), np.int32(MOST_GROUPED), counts, long_run)
    kernel(unit, "running_sum")(Shape((1,), 1024), counts, starts, np.int64(chunks))
    kernel(unit, "group_edges")(by_row, begins, np.int64(rows), starts, first)
    groups, any_long = found[-2:].get().tolist()
    first = first[: groups + 1]
    # Nearly all matrices have groups of eight rows at most.
    return cupy.asarray(cut(first.get())) if any_long else first


def cut(runs: Array) -> Array:
    """Return the edges of groups of at most eight rows, int32, from the edges of runs of rows with the same columns."""
    lengths = np.diff(runs)
    pieces = -(-lengths // MOST_GROUPED)
    # Groups of a run are about as long as each other.
    place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.repeat(runs[:-1], pieces) + place * np.repeat(lengths, pieces) // np.repeat(pieces, pieces)
    return np.append(first, runs[-1]).astype(np.int32)
