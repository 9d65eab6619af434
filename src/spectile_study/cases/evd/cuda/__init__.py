"""The studies on a CUDA device: ours against cuSOLVER and cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy

from spectile_study.bench.case import Context, Problem
from spectile_study.cases.evd.cpu import drivers
from spectile_study.cases.evd.cuda import place, several, solvers, stages, updates

STUDIES = {
    "evd": solvers.evd,
    "stages": stages.stages,
    "tridiagonal": solvers.tridiagonal,
    "reduction": stages.reduction,
    "chasing": stages.chasing,
    "syr2k": updates.update,
    "int8": updates.int8,
    "roofline": updates.roofline,
    "problems": place.problems,
    "drivers": drivers,
    "devices": several.devices,
    "gradients": place.gradients,
    "sequences": place.sequences,
}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/evd.tsv`` on the current device."""
    # The vendor's work space of the previous case is freed first, since the largest cases need nearly all memory.
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    return STUDIES[row["study"]](row, context)
