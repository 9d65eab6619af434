"""What the workflow measures of SpAMM: the column ``study`` of the run sheet chooses the function.

A case holds one input and all its thresholds: ours is one method for each threshold (``spectile_30`` at 30 % valid
products, ``spectile_1e-04`` at tau = 1e-4; the value ``tau`` holds the number), the vendor's product one method beside
them, so that it is timed once and in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spectile_study.bench.case import Context, Problem
from spectile_study.cases.spamm import cpu

PAPER = "spamm"

_STUDIES: Mapping[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "product": cpu.product,
    "thresholds": cpu.table_1,
    "truncation": cpu.truncation,
    "map": cpu.valid_product_map,
    "water": cpu.water,
    "accuracy": cpu.accuracy,
    "digits": cpu.digits,
    "vgg": cpu.vgg,
    "ablation": cpu.ablation,
}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/spamm.tsv``."""
    study = row["study"]
    return (_on_cuda(study) if context.device == "cuda" else _STUDIES[study])(row, context)


def _on_cuda(study: str) -> Callable[[Mapping[str, Any], Context], Problem]:
    """Return the function of a study on a CUDA context; the CPU's for those that no device computes."""
    if study in ("water", "accuracy", "vgg"):
        from spectile_study.cases.spamm import case_studies

        return case_studies.problem
    if study == "ablation":
        from spectile_study.cases.spamm.ablation import ablation

        return ablation
    if study in ("product", "truncation"):
        from spectile_study.cases.spamm import products

        return {"product": products.product, "truncation": products.truncation}[study]
    return _STUDIES[study]
