"""A stored matrix in sliced ELLPACK on the device (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.kpm.cuda.common import FULL, PACKAGE, mode_defines, number_defines, row_defines
from spectile.kpm.cuda.csr.launch import CsrOperator
from spectile.kpm.cuda.problem import Problem
from spectile.kpm.cuda.sliced.layout import even_starts, slice_entries, slice_starts
from spectile.kpm.cuda.sliced.when import SlicedShape, even_slots, is_even, shape
from spectile.kpm.cuda.stored import MOST_NARROW, narrowed


@functools.cache
def sliced_unit(dtype: str, num_vectors: int, shape: SlicedShape, *, wide: bool = False, mode: int = FULL) -> Unit:
    """Return the unit for a type, a width of the block vector and a shape; `mode` is one of ``common.py``."""
    defines = number_defines(dtype, wide) | mode_defines(mode) | row_defines(num_vectors, shape)
    defines |= {"UNIFORM": str(int(shape.uniform)), "KEEP": str(int(shape.keep))}
    return Unit(PACKAGE, ("sliced/kernel.cu",), PORTABLE, defines)


class SlicedOperator(CsrOperator):
    """A stored Hermitian matrix on the device, rows of about as many entries as their neighbours."""

    kernel = "sliced"

    def __init__(self, matrix: Any, longest: int | None = None) -> None:
        super().__init__(matrix, longest)
        if is_even(self.num_rows, self.entries, self.longest):
            starts, self.slots = (make(self.num_rows, self.longest) for make in (even_starts, even_slots))
        else:
            starts = slice_starts(self.indptr, self.dtype)
            self.slots = int(starts[-1])
        self.indices, self.data = slice_entries(self.indptr, self.indices, self.data, starts, self.slots)
        self.wide = self.slots > MOST_NARROW
        self.indptr = starts if self.wide else narrowed(starts)

    def problem(self, num_vectors: int) -> Problem:
        """Return what shapes are chosen by."""
        return super().problem(num_vectors)._replace(longest=self.longest, slots=self.slots)

    @property
    def form_bytes(self) -> int:
        """Bytes of the slots."""
        return int(self.indices.nbytes + self.data.nbytes + self.indptr.nbytes)

    def unit(self, num_vectors: int, mode: int = FULL, *, hubs: bool = False) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return sliced_unit(str(self.dtype), num_vectors, self._shape(num_vectors), wide=self.wide, mode=mode)

    def mode(self, num_vectors: int) -> int:
        """Return the mode of a recurrence's steps."""
        return FULL

    def _operands(self) -> tuple[Any, ...]:
        return self.indptr, self.indices, self.data

    def _cut_at(self, num_vectors: int) -> int:
        """Return 0: no row is cut."""
        return 0

    def _shape(self, num_vectors: int) -> SlicedShape:
        return shape(self.problem(num_vectors), describe())
