"""The numeric phase of the product by rows: columns and values of C, bin by bin (``window.cu, hash.cu, block.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.rows.count import Phase
from spectile.tsparse.cuda.streams import Launch, side_by_side
from spectile.tsparse.types import Factor

_FAMILIES = {"window": units.WINDOW, "hash": units.HASH, "wide_hash": units.WIDE_HASH, "block": units.BLOCK}


def fill_rows(A: Factor, B: Factor, phase: Phase, indices: Any, data: Any) -> None:
    """Fill the columns and values of the rows of `phase`."""
    side_by_side([_launch(one, A, B, phase, indices, data) for one in _chosen(A, B, phase, data.dtype.itemsize)])


def _chosen(A: Factor, B: Factor, phase: Phase, itemsize: int) -> list[choose.NumericLaunch]:
    if not phase.rows:
        return []
    return list(choose.numeric(phase.head, B.shape[1], _mean_b(A, phase), itemsize, phase.scratch_bytes, describe()))


def _mean_b(A: Factor, phase: Phase) -> float:
    """Return the mean length of the rows of B that the rows of `phase` meet."""
    return phase.products / max(A.nnz * phase.rows / max(A.shape[0], 1), 1)


def _launch(chosen: choose.NumericLaunch, A: Factor, B: Factor, phase: Phase, indices: Any, data: Any) -> Launch:
    import cupy

    unit = _FAMILIES[chosen.family]["float64" if data.dtype.itemsize == 8 else "float32"]
    left = (A.indptr.data.ptr + 4 * phase.first, A.indices, A.data)
    rows = (phase.lists + 4 * chosen.bin * phase.rows, *left, B.indptr, B.indices, B.data, phase.low)
    product, count = (phase.indptr, indices, data), np.int32(chosen.rows)
    arguments: tuple[Any, ...]
    if chosen.family in ("hash", "wide_hash"):
        arguments = (count, *rows, *product)
    elif chosen.family == "window":
        arguments = (count, *rows, phase.span, phase.slot, phase.kept, np.int32(len(phase.kept)), *product)
    else:
        words = chosen.scratch_words
        scratch = cupy.empty(chosen.shape.grid[0] * words, np.uint64) if words else 0
        width = np.int32(choose.block_width(_mean_b(A, phase)))
        arguments = (count, width, *rows, phase.span, *product, scratch, np.int32(words))
    return Launch(kernel(unit, chosen.name), chosen.shape, arguments)
