"""A stored matrix in CSR form on the device, whose entries are taken side by side (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import FULL, PACKAGE, mode_defines, number_defines, row_defines, vectors_unit
from spectile.kpm.cuda.flat.when import FlatShape, launch, shape, tiles
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator


@functools.cache
def flat_unit(dtype: str, num_vectors: int, shape: FlatShape, *, wide: bool = False, mode: int = FULL) -> Unit:
    """Return the unit for a type, a width of the block vector and a shape; `mode` is one of ``common.py``."""
    defines = number_defines(dtype, wide) | mode_defines(mode) | row_defines(num_vectors, shape)
    defines |= {"SPLIT": str(shape.split), "BLOCKS": str(shape.blocks)}
    return Unit(PACKAGE, ("flat/kernel.cu",), PORTABLE, defines)


def tile_rows(indptr: Any, dtype: Any, first: int, last: int, count: int) -> Any:
    """Return where tiles of rows `first` to `last` begin and end, int32: of as many entries and rows together each."""
    import cupy

    edges = cupy.empty(count + 1, np.int32)
    unit = vectors_unit(str(dtype), wide=indptr.dtype.itemsize == 8)
    rows = np.int64(first), np.int64(last)
    kernel(unit, "tile_rows")(Shape((ceil_div(count + 1, 256),), 256), indptr, *rows, np.int64(count), edges)
    return edges


class FlatOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device, rows of unlike lengths and few vectors.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N) or (N, K)
        float32, float64, complex64 or complex128.  Columns from N on are rows of V that others compute.
    """

    #: The kernel's name.
    kernel = "flat"

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return flat_unit(str(self.dtype), num_vectors, shape(self.problem(num_vectors)), wide=self.wide, mode=mode)

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""
        first, last = rows or (0, self.num_rows)
        problem = self.problem(num_vectors)
        shaped = shape(problem)
        entries = int(self.indptr[last] - self.indptr[first]) if rows else problem.entries
        count = tiles(problem._replace(rows=last - first, entries=entries))
        table = tile_rows(self.indptr, self.dtype, first, last, count)
        step = kernel(self.unit(num_vectors, mode), self.kernel, beside_l1=shaped.blocks)
        operands, grid = (table, self.indptr, self.indices, self.data), launch(shaped, count, describe())
        return Step(step, grid, operands, lambda _: (np.int32(count),), num_vectors, self.dtype, mode >= FULL)
