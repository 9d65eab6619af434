"""What the workflow measures of SpAMM: the column ``study`` of the run sheet chooses the function.

A case holds one input and all its thresholds: ours is one method for each threshold (``spectile_30`` at 30 % valid
products, ``spectile_1e-04`` at tau = 1e-4; the value ``tau`` holds the number), the vendor's product one method beside
them, so that it is timed once and in the same rounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from spectile_study.bench.case import Context, Problem

PAPER = "spamm"


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/spamm.tsv``."""
    studies = _CUDA_STUDIES if context.device == "cuda" else _STUDIES
    module, _, function = studies[row["study"]].rpartition(".")
    return getattr(importlib.import_module(module), function)(row, context)


_STUDIES = {
    "product": "spectile_study.cases.spamm.cpu.product",
    "thresholds": "spectile_study.cases.spamm.cpu.table_1",
    "truncation": "spectile_study.cases.spamm.cpu.truncation",
    "map": "spectile_study.cases.spamm.cpu.valid_product_map",
    "water": "spectile_study.cases.spamm.cpu.water",
    "accuracy": "spectile_study.cases.spamm.cpu.accuracy",
    "digits": "spectile_study.cases.spamm.cpu.digits",
    "vgg": "spectile_study.cases.spamm.cpu.vgg",
    "ablation": "spectile_study.cases.spamm.cpu.ablation",
    "density": "spectile_study.cases.spamm.density.problem",
    "partition": "spectile_study.cases.spamm.partition.partition",
}
#: The same on a CUDA context; what no device computes is the CPU's.
_CUDA_STUDIES = {
    "product": "spectile_study.cases.spamm.products.product",
    "thresholds": "spectile_study.cases.spamm.cpu.table_1",
    "truncation": "spectile_study.cases.spamm.products.truncation",
    "map": "spectile_study.cases.spamm.cpu.valid_product_map",
    "water": "spectile_study.cases.spamm.case_studies.problem",
    "accuracy": "spectile_study.cases.spamm.case_studies.problem",
    "digits": "spectile_study.cases.spamm.cpu.digits",
    "vgg": "spectile_study.cases.spamm.case_studies.problem",
    "ablation": "spectile_study.cases.spamm.ablation.ablation",
    "density": "spectile_study.cases.spamm.density.problem",
    "partition": "spectile_study.cases.spamm.partition.partition",
}
