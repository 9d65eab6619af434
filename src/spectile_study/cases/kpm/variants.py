"""Variants of the staged kernel that only measurements launch, from the library's source by defines of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.kpm.cuda.common import FULL, NO_DOTS, PLAIN
from spectile.kpm.cuda.csr.launch import csr_unit
from spectile.kpm.cuda.csr.when import shape as csr_shape
from spectile.kpm.cuda.problem import Problem
from spectile.kpm.cuda.staged.launch import StagedOperator, staged_unit
from spectile.kpm.cuda.staged.when import staged_shapes
from spectile.kpm.operators.topological_insulator import ROW_ENTRIES

#: Values of a table, zero among them.
MOST_KINDS = 256


def staged_variant(matrix: Any, dictionary: bool = False, work: str | None = None) -> StagedOperator:
    """Return a stored matrix on the device, V staged through shared memory.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    dictionary : bool
        Store a number of the value in a table instead of each value.
    work : str or None
        Type of the arithmetic, if it is not the matrix's own.

    Raises
    ------
    ValueError
        If the matrix has too many distinct values for a table.
    """
    operator = StagedOperator(matrix)
    operator.work = work
    if dictionary:
        operator.table, operator.kinds = _kinds(operator.data)
    return operator


def _kinds(data: Any) -> tuple[Any, Any]:
    """Return the distinct values, zero first, and the number of each entry's value among them."""
    import cupy

    # Complex numbers are compared through their parts.
    parts = data.view(data.real.dtype).reshape(data.size, -1)
    number = cupy.zeros(data.size, np.int64)
    for part in parts.T:
        values, index = cupy.unique(part, return_inverse=True)
        number = number * len(values) + index
    _, where, kinds = cupy.unique(number, return_index=True, return_inverse=True)
    if len(where) >= MOST_KINDS:
        raise ValueError(f"the matrix has {len(where)} distinct values: a table holds at most {MOST_KINDS - 1}")
    return cupy.concatenate([cupy.zeros(1, data.dtype), data[where]]), (kinds + 1).astype(np.uint16)


_ROWS = 10**6
_INSULATOR = Problem(_ROWS, ROW_ENTRIES * _ROWS, ROW_ENTRIES, ROW_ENTRIES * _ROWS, _ROWS, "complex128", 32)
UNITS = (
    *(csr_unit("complex128", 32, csr_shape(_INSULATOR), mode=mode) for mode in (PLAIN, NO_DOTS)),
    *(
        staged_unit(
            dtype, width, slots=96, code_bytes=576, value_bytes=0 if table else 4096, dictionary=table, work=work,
            mode=mode, shape=staged_shapes(width, dtype, ROW_ENTRIES)[0],
        )
        for dtype, width, table, work, mode in (
            ("complex128", 32, 0, "", NO_DOTS), ("complex128", 32, 0, "", PLAIN), ("complex128", 45, 16, "", FULL),
            ("complex64", 32, 0, "complex128", FULL), ("float32", 64, 2, "", FULL),
        )
    ),
)  # fmt: skip
