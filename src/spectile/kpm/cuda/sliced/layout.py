"""Sliced ELLPACK of a CSR matrix on the device: slices of 32 rows, stored slot by slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import vectors_unit
from spectile.kpm.cuda.sliced.when import SLICE, even_slots


def slice_starts(indptr: Any, dtype: Any) -> Any:
    """Return where each slice's slots begin and the last one's end, int64, shape (slices + 1,): as long as its rows.

    Every slice has a slot at least.
    """
    import cupy

    rows = indptr.size - 1
    slices = ceil_div(rows, SLICE)
    unit = vectors_unit(str(dtype), wide=indptr.dtype.itemsize == 8)
    slots, starts = cupy.empty(slices, np.int64), cupy.empty(slices + 1, np.int64)
    kernel(unit, "slice_slots")(_by_row(slices), indptr, np.int64(rows), slots)
    kernel(unit, "running_sum")(Shape((1,), 1024), slots, starts, np.int64(slices))
    return starts


def even_starts(rows: int, longest: int) -> Any:
    """Return the same where every slice is as long as the longest row."""
    import cupy

    starts = cupy.empty(ceil_div(rows, SLICE) + 1, np.int64)
    each = even_slots(SLICE, longest)
    shape = Shape((ceil_div(starts.size, 256),), 256)
    kernel(vectors_unit("float64"), "even_starts")(shape, starts, np.int64(each), np.int64(starts.size))
    return starts


def slice_entries(indptr: Any, indices: Any, data: Any, starts: Any, slots: int) -> tuple[Any, Any]:
    """Return the columns and values of all slots, of which there are `slots`."""
    import cupy

    columns, values = cupy.empty(slots, np.int32), cupy.empty(slots, data.dtype)
    unit = vectors_unit(str(data.dtype), wide=indptr.dtype.itemsize == 8)
    operands = indptr, indices, data, np.int64(indptr.size - 1), starts, columns, values
    kernel(unit, "slice_fill")(_by_row(starts.size - 1), *operands)
    return columns, values


def _by_row(slices: int) -> Shape:
    return Shape((ceil_div(slices * SLICE, 256),), 256)
