"""A stored matrix whose adjacent rows couple the same columns: groups of them on tensor cores (``grouped.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.choose import MOST_GROUPED, GroupedShape, grouped_launch, grouped_shape
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.cuda.units import FULL, grouped_unit, vectors_unit
from spectile.kpm.types import Array


def groups_of(matrix: Any) -> Any:
    """Return the first row of each group of up to eight adjacent rows with the same columns, then the number of rows.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        Canonical.

    Returns
    -------
    cupy.ndarray, int32, shape (groups + 1,)
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
    kernel(unit, "sell_sum")(Shape((1,), 1024), counts, starts, np.int64(chunks))
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


class GroupedOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device, whose adjacent rows couple the same columns.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128; canonical.
    first : cupy.ndarray or None
        What :func:`groups_of` returns of it.
    tuning : GroupedShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.grouped_shape`.
    """

    def __init__(self, matrix: Any, first: Any = None, tuning: GroupedShape | None = None) -> None:
        super().__init__(matrix)
        self.first = groups_of(matrix) if first is None else first
        self._shape = tuning

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return grouped_unit(str(self.dtype), num_vectors, wide=self.wide, mode=mode, shape=self._kernel(num_vectors))

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors on all rows; `rows` must be None."""
        assert rows is None
        shape = self._kernel(num_vectors)
        step = kernel(self.unit(num_vectors, mode), "thirds" if shape.thirds else "grouped", beside_l1=shape.blocks)
        groups = self.first.size - 1
        launched = grouped_launch(shape, groups, num_vectors, describe())
        settings = np.int32(groups), np.int32(num_vectors)
        operands = self.first, self.starts[0], self.indices, self.data
        return Step(step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode == FULL)

    def _kernel(self, num_vectors: int) -> GroupedShape:
        return self._shape or grouped_shape(num_vectors, self.dtype)
