"""A stored matrix in CSR form on the device (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import kernel
from spectile.kpm.cuda.common import FULL, PACKAGE, WALK, mode_defines, number_defines, row_defines
from spectile.kpm.cuda.csr.when import CsrShape, shape, walks
from spectile.kpm.cuda.problem import row_launch
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator


@functools.cache
def csr_unit(dtype: str, num_vectors: int, shape: CsrShape, *, wide: bool = False, mode: int = FULL) -> Unit:
    """Return the unit for a type, a width of the block vector and a shape; `mode` is one of ``common.py``."""
    defines = number_defines(dtype, wide) | mode_defines(mode) | row_defines(num_vectors, shape)
    defines |= {"SPLIT": str(shape.split), "WALK": str(int(mode == WALK))}
    return Unit(PACKAGE, ("csr/kernel.cu",), PORTABLE, defines)


class CsrOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device, rows of any length.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N) or (N, K)
        float32, float64, complex64 or complex128.  Columns from N on are rows of V that others compute.
    """

    #: The kernel's name.
    kernel = "csr"

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return csr_unit(str(self.dtype), num_vectors, self._shape(num_vectors), wide=self.wide, mode=mode)

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""
        start, stop = rows or (0, self.num_rows)
        launched = row_launch(self._shape(num_vectors), stop - start, num_vectors, describe())
        settings = np.int64(start), np.int64(stop), np.int32(num_vectors)
        operands = self.indptr, self.indices, self.data
        step = kernel(self.unit(num_vectors, mode), "walk" if mode == WALK else self.kernel, beside_l1=1)
        return Step(step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode >= FULL, mode == WALK)

    def mode(self, num_vectors: int) -> int:
        """Return the mode of a recurrence's steps."""
        return WALK if walks(self.problem(num_vectors), describe()) else FULL

    def _shape(self, num_vectors: int) -> Any:
        return shape(self.problem(num_vectors))
