"""SELL-32 of a CSR matrix on the device, for one vector: a row to a thread, coalesced."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.choose import SELL_CHUNK
from spectile.kpm.cuda.units import vectors_unit


def sell_starts(matrix: Any) -> tuple[Any, Any]:
    """Return where each chunk's slots begin, int64, shape (chunks + 1,), and each row's length, in whole chunks."""
    import cupy

    rows = int(matrix.shape[0])
    chunks = -(-rows // SELL_CHUNK)
    lengths, slots = cupy.empty(chunks * SELL_CHUNK, np.int32), cupy.empty(chunks, np.int64)
    kernel(_unit(matrix), "sell_widths")(_rows(chunks), matrix.indptr, np.int64(rows), lengths, slots)
    starts = cupy.empty(chunks + 1, np.int64)
    kernel(_unit(matrix), "sell_sum")(Shape((1,), 1024), slots, starts, np.int64(chunks))
    return starts, lengths


def even_starts(matrix: Any, chunks: int, slots: int) -> Any:
    """Return where chunks of so many slots begin, int64, shape (chunks + 1,)."""
    import cupy

    starts = cupy.empty(chunks + 1, np.int64)
    shape = Shape((-(-starts.size // 256),), 256)
    kernel(_unit(matrix), "even_starts")(shape, starts, np.int64(slots), np.int64(starts.size))
    return starts


def narrowed(starts: Any) -> Any:
    """Return whole numbers as int32."""
    import cupy

    numbers = cupy.empty(starts.size, np.int32)
    kernel(vectors_unit("float64"), "narrowed")(
        Shape((-(-starts.size // 256),), 256), starts, numbers, np.int64(starts.size)
    )
    return numbers


def sell_entries(matrix: Any, starts: Any, slots: int) -> tuple[Any, Any]:
    """Return the columns and values of all slots, of which there are `slots`."""
    import cupy

    indices, data = cupy.empty(slots, np.int32), cupy.empty(slots, matrix.dtype)
    kernel(_unit(matrix), "sell_fill")(
        _rows(len(starts) - 1), matrix.indptr, matrix.indices, matrix.data, np.int64(matrix.shape[0]), starts, indices,
        data,
    )  # fmt: skip
    return indices, data


def _unit(matrix: Any) -> Any:
    return vectors_unit(str(matrix.dtype), wide=matrix.indptr.dtype.itemsize == 8)


def _rows(chunks: int) -> Shape:
    return Shape((-(-chunks * SELL_CHUNK // 256),), 256)
