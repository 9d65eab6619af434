"""Modes of kernels that only measurements launch: the product alone, and steps without scalar products."""

from __future__ import annotations

from spectile.kpm.cuda.common import NO_DOTS, PLAIN
from spectile.kpm.cuda.csr.launch import csr_unit
from spectile.kpm.cuda.csr.when import shape as csr_shape
from spectile.kpm.cuda.problem import Problem
from spectile.kpm.cuda.staged.launch import staged_unit
from spectile.kpm.cuda.staged.when import staged_shapes
from spectile.kpm.operators.topological_insulator import ROW_ENTRIES

_ROWS = 10**6
_INSULATOR = Problem(_ROWS, ROW_ENTRIES * _ROWS, ROW_ENTRIES, ROW_ENTRIES * _ROWS, _ROWS, "complex128", 32)
_STAGED = staged_shapes(32, "complex128", ROW_ENTRIES)[0]
UNITS = (
    *(csr_unit("complex128", 32, csr_shape(_INSULATOR), mode=mode) for mode in (PLAIN, NO_DOTS)),
    *(
        staged_unit("complex128", 32, slots=96, code_bytes=576, value_bytes=4096, mode=mode, shape=_STAGED)
        for mode in (PLAIN, NO_DOTS)
    ),
)
