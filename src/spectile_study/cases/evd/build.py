"""What the workflow measures of the eigensolver: one function for each study; the run sheet's column ``study`` chooses.

Methods are named alike on every machine: ``spectile`` is ours; ``lapack``, ``cublas``, ``cusolver_one_stage`` and
``cusolver_two_stage`` are the vendors'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectile_study.bench.case import Context, Problem

PAPER = "evd"


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/evd.tsv`` on the context's device."""
    if context.device == "cuda":
        from spectile_study.cases.evd import cuda

        return cuda.build(row, context)
    from spectile_study.cases.evd import cpu

    return cpu.STUDIES[row["study"]](row, context)
