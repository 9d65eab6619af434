"""The numeric phase of the product by rows: columns and values of C, bin by bin, or the values alone.

``few.cu, sort.cu, window.cu, hash.cu, block.cu``; where the columns are known, short rows write them once more.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.core.pointers import address
from spectile.tsparse.cuda import choose, units
from spectile.tsparse.cuda.plans import Addresses, plan
from spectile.tsparse.cuda.rows.count import Phase
from spectile.tsparse.cuda.streams import side_by_side
from spectile.tsparse.types import Factor

_LOG = logging.getLogger("spectile.tsparse")


def fill_rows(A: Factor, B: Factor, phase: Phase, indices: Any, data: Any, reuse: bool = False) -> None:
    """Fill the columns and values of the rows of `phase`, or with `reuse` the values beside known columns."""
    import cupy

    if not phase.entries:
        return
    sizes = (phase.rows, A.shape, A.nnz, B.shape[1], phase.kept_words, phase.scratch_bytes)
    key = ("fill", cupy.cuda.runtime.getDevice(), reuse, data.dtype.char, sizes, phase.head.key)
    launches: Launches = plan(key, lambda: Launches(A, B, phase, data.dtype, reuse))
    launches(A, B, phase, indices, data)


class Launches:
    """The launches of the numeric phase, for addresses that are set before."""

    def __init__(self, A: Factor, B: Factor, phase: Phase, dtype: np.dtype, reuse: bool) -> None:
        mean_b = phase.products / max(A.nnz * phase.rows / max(A.shape[0], 1), 1)
        self._lanes = choose.row_lanes(mean_b)
        value = str(dtype)
        self._units = {name: unit[value] for name, unit in (units.REUSE if reuse else units.NUMERIC).items()}
        summed = max(dtype.itemsize, 4)  # Booleans are summed in float32
        in_blocks = phase.head.hubs and phase.hubs is None
        most_parts = choose.MOST_HUB_PARTS if in_blocks else choose.MOST_PARTS
        most_parts = 1 if phase.scratch_bytes < choose.SCRATCH_BYTES else most_parts  # memory is limited
        chosen = list(choose.numeric(phase.head, phase.rows, B.shape[1], mean_b, summed, describe(), most_parts))
        names = tuple((one.family, one.name) for one in chosen)
        units.prepare_numeric(value, names, reuse)
        _LOG.debug("rows are filled by %s", ", ".join(f"{one.name} ({one.rows} rows)" for one in chosen))
        self._lists = [0 if one.bin is None else 4 * choose.list_start(one.bin, phase.rows, one.rows) for one in chosen]
        self._addresses, self._states = Addresses(14 + len(chosen)), 13 + len(chosen)
        #: Words in which blocks that share rows tell what their parts hold.
        self._told = max((1 + one.shape.grid[0] for one in chosen if one.parts > 1), default=0)
        #: Those that follow each other on one stream, and those beside them.
        self._launches: tuple[list[Any], list[Any]] = [], []
        for i, one in enumerate(chosen):
            launch = self._bound(one, 13 + i, phase.kept_words, phase.rows)
            self._launches[one.family not in choose.SHORT_FAMILIES].append(launch)

    def _bound(self, chosen: choose.NumericLaunch, number: int, kept_words: int, rows_of_c: int) -> Any:
        *left, low, span, slot, kept, indptr, indices, data = (self._addresses[i] for i in range(13))
        rows, product, count = (self._addresses[number], *left, low), (indptr, indices, data), np.int32(chosen.rows)
        lanes = np.int32(self._lanes)
        arguments: tuple[Any, ...]
        if chosen.family == "window":
            arguments = (count, lanes, *rows, span, slot, kept, np.int32(kept_words), *product)
        elif chosen.family == "block":
            words = np.int32((chosen.shape.shared_bytes - 4 * chosen.listed) // 8)
            shared = np.int32(chosen.parts), self._addresses[self._states], np.int32(chosen.listed)
            arguments = (count, lanes, words, *rows, span, *product, *shared)
        elif chosen.family == "few":
            arguments = (np.int32(rows_of_c), *left, low, span, slot, *product)
        elif chosen.family == "sort":
            arguments = (count, *rows, *product)
        else:
            arguments = (count, lanes, *rows, *product)
        return kernel(self._units[chosen.family][chosen.name], chosen.name).bind(chosen.shape, *arguments)

    def __call__(self, A: Factor, B: Factor, phase: Phase, indices: Any, data: Any) -> None:
        """Launch for these factors."""
        import cupy

        states = cupy.zeros(self._told, np.int32) if self._told else None
        self._addresses.set(
            address(A.indptr) + 4 * phase.first,
            address(A.indices), address(A.data), address(B.indptr), address(B.indices), address(B.data),
            phase.low, phase.span, phase.slot, phase.kept,
            address(phase.indptr), address(indices), address(data),
            *[phase.lists + one for one in self._lists], 0 if states is None else address(states),
        )  # fmt: skip
        launches, beside = self._launches
        if (hubs := phase.hubs) is not None:
            launches = [*launches, lambda _: hubs.fill(A, B, phase.first, (phase.indptr, indices, data))]
        side_by_side(launches, beside)
