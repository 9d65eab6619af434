"""A stored matrix in CSR form on the device (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel, measured_device
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import (
    FULL,
    PACKAGE,
    PLAIN,
    TURNED,
    WALK,
    mode_defines,
    number_defines,
    row_defines,
    vectors_unit,
)
from spectile.kpm.cuda.csr.when import CsrShape, cut_at, shape, walks
from spectile.kpm.cuda.problem import row_launch
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator


@functools.cache
def csr_unit(
    dtype: str, num_vectors: int, shape: CsrShape, *, wide: bool = False, mode: int = FULL, hubs: bool = False
) -> Unit:
    """Return the unit for a type, a width of the block vector and a shape; `mode` is one of ``common.py``.

    With `hubs` it takes rows that were cut.
    """
    defines = number_defines(dtype, wide) | mode_defines(mode) | row_defines(num_vectors, shape)
    defines |= {"SPLIT": str(shape.split), "WALK": str(int(mode == WALK)), "HUBS": str(int(hubs))}
    defines |= {"TURNED": str(int(mode == TURNED))}
    return Unit(PACKAGE, ("csr/kernel.cu",), PORTABLE, defines)


def cut_rows(indptr: Any, dtype: Any, most: int) -> tuple[Any, Any, Any, Any]:
    """Return rows of more than `most` entries, the first piece of each, and where pieces of as many begin and end."""
    import cupy

    rows, limit = np.int64(indptr.size - 1), np.int32(most)
    unit, chunks = vectors_unit(str(dtype), wide=indptr.dtype.itemsize == 8), ceil_div(indptr.size - 1, 32)
    by_row = Shape((ceil_div(32 * chunks, 256),), 256)
    counts, starts = cupy.empty(chunks, np.int64), cupy.empty(chunks + 1, np.int64)
    kernel(unit, "cut_counts")(by_row, indptr, rows, limit, counts)
    kernel(unit, "running_sum")(Shape((1,), 1024), counts, starts, np.int64(chunks))
    cut, pieces = divmod(int(starts[-1]), 2**32)
    row, first = (cupy.empty(cut, np.int32) for _ in range(2))
    begin, until = (cupy.empty(pieces, indptr.dtype) for _ in range(2))
    kernel(unit, "cut_rows")(by_row, indptr, rows, limit, starts, row, first, begin, until)
    return row, first, begin, until


class CsrOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device, shape (N, N) or (N, K), rows of any length.

    Columns from N on are rows of V that others compute.
    """

    #: The kernel's name.
    kernel = "csr"

    def __init__(self, matrix: Any, longest: int | None = None) -> None:
        super().__init__(matrix, longest)
        # By their most entries: rows that are cut, the first piece of each, and where pieces begin and end.
        self._cut: dict[int, tuple[Any, ...]] = {}

    def unit(self, num_vectors: int, mode: int = FULL, *, hubs: bool = False) -> Unit:
        """Return the unit that this operator launches for R vectors; with `hubs` it takes rows that were cut."""
        return csr_unit(str(self.dtype), num_vectors, self._shape(num_vectors), wide=self.wide, mode=mode, hubs=hubs)

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""
        operands, before = self._operands(), None
        most = 0 if rows or mode == WALK else self._cut_at(num_vectors)
        if most:
            before, hubs = self._pieces(num_vectors, most)
            operands += hubs
        return self._step(num_vectors, mode, operands, rows or (0, self.num_rows), before)

    def turning(self, num_vectors: int, apart: int) -> Step:
        """Return the product of R vectors that writes each in one piece, `apart` numbers behind the one before."""
        return self._step(num_vectors, TURNED, self._operands(), (0, self.num_rows), apart=apart)

    def mode(self, num_vectors: int) -> int:
        """Return the mode of a recurrence's steps."""
        return WALK if walks(self.problem(num_vectors)._replace(longest=self.longest), measured_device()) else FULL

    def _operands(self) -> tuple[Any, ...]:
        return self.indptr, self.indptr[1:], self.indices, self.data

    def _cut_at(self, num_vectors: int) -> int:
        """Return from how many entries on rows are cut into pieces of as many; 0 where none is."""
        return cut_at(self.problem(num_vectors)._replace(longest=self.longest), measured_device())

    def _step(
        self,
        num_vectors: int,
        mode: int,
        operands: tuple[Any, ...],
        rows: tuple[int, int],
        before: tuple[Step, Any] | None = None,
        apart: int | None = None,
    ) -> Step:
        start, stop = rows
        launched = row_launch(self._shape(num_vectors), stop - start, num_vectors, describe())
        settings: tuple[Any, ...] = np.int64(start), np.int64(stop), np.int32(num_vectors)
        settings += () if apart is None else (np.int64(apart),)
        name = "walk" if mode == WALK else self.kernel
        step = kernel(self.unit(num_vectors, mode, hubs=before is not None), name, beside_l1=1)
        return Step(
            step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode >= FULL, mode == WALK, before
        )

    def _pieces(self, num_vectors: int, most: int) -> tuple[tuple[Step, Any], tuple[Any, ...]]:
        """Return the product of long rows' pieces, with its result, and by what a step knows the rows."""
        import cupy

        if most not in self._cut:
            self._cut[most] = cut_rows(self.indptr, self.dtype, most)
        row, first, begin, until = self._cut[most]
        operands = begin, until, self.indices, self.data
        product = self._step(num_vectors, PLAIN, operands, (0, begin.size))
        sums = cupy.empty((begin.size, num_vectors), self.dtype)
        return (product, sums), (sums, row, first, np.int32(row.size), np.int32(most))

    def _shape(self, num_vectors: int) -> Any:
        return shape(self.problem(num_vectors))
