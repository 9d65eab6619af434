"""KPM on a stored matrix row by row, V through the caches (``gather.cu``, ``stream.cu``, ``slots.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.kpm.cuda.choose import (
    SELL_CHUNK,
    SHORT,
    GatherShape,
    SlotShape,
    gather_launch,
    gather_shape,
    slot_launch,
    slot_shape,
    strip_shape,
)
from spectile.kpm.cuda.sell import even_starts, sell_entries
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.cuda.units import FULL, gather_unit, slots_unit


class GatherOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    longest : int
        Entries of its longest row.
    plane : int
        Rows between a row and the farthest one that it couples, 0 if that is not known.
    tuning : GatherShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.gather_shape`.
    """

    def __init__(self, matrix: Any, longest: int, plane: int = 0, tuning: GatherShape | None = None) -> None:
        super().__init__(matrix)
        self.longest, self.plane = longest, plane if longest > SHORT else 0
        self._shape = tuning

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return gather_unit(str(self.dtype), num_vectors, wide=self.wide, mode=mode, shape=self._kernel(num_vectors))

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""
        name = "stream" if num_vectors == 1 else "gather"
        step = kernel(self.unit(num_vectors, mode), name, beside_l1=self._kernel(num_vectors).blocks)
        start, stop = rows or (0, self.num_rows)
        launched, wave = gather_launch(
            self._kernel(num_vectors), stop - start, num_vectors, describe(), self.plane, self.dtype.itemsize
        )
        settings = np.int64(start), np.int64(stop), np.int64(wave), np.int32(num_vectors)
        operands = self.starts[0], self.indices, self.data
        return Step(step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode == FULL)

    def _kernel(self, num_vectors: int) -> GatherShape:
        shape = self._shape or gather_shape(num_vectors, self.dtype, self.longest)
        if self._shape or num_vectors == 1:
            return shape
        return strip_shape(shape, num_vectors, self.plane, self.dtype.itemsize, describe())


class SlotsOperator(StoredOperator):
    """A stored Hermitian matrix on the device, as many slots a row as the longest has entries.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128; canonical.
    longest : int
        Entries of its longest row.
    tuning : SlotShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.slot_shape`.
    """

    overlaps = True

    def __init__(self, matrix: Any, longest: int, tuning: SlotShape | None = None) -> None:
        super().__init__(matrix)
        self.longest = longest
        self._shape = tuning
        chunks = -(-self.num_rows // SELL_CHUNK)
        starts = even_starts(matrix, chunks, SELL_CHUNK * longest)
        self.indices, self.data = sell_entries(matrix, starts, chunks * SELL_CHUNK * longest)

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return slots_unit(str(self.dtype), num_vectors, self.longest, mode=mode, shape=self._kernel(num_vectors))

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""
        shape = self._kernel(num_vectors)
        step = kernel(self.unit(num_vectors, mode), "slots", beside_l1=shape.blocks)
        start, stop = rows or (0, self.num_rows)
        launched = slot_launch(shape, stop - start, num_vectors, describe())
        settings = np.int64(start), np.int64(stop), np.int32(num_vectors)
        operands = self.indices, self.data
        return Step(step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode == FULL)

    def _kernel(self, num_vectors: int) -> SlotShape:
        return self._shape or slot_shape(num_vectors, self.dtype, self.longest, self.num_rows, describe())
