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


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/spamm.tsv``."""
    study = row["study"]
    return (_CUDA_STUDIES if context.device == "cuda" else _STUDIES)[study](row, context)


def _case_study(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm import case_studies

    return case_studies.problem(row, context)


def _ablation(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm.ablation import ablation

    return ablation(row, context)


def _product(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm import products

    return products.product(row, context)


def _truncation(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm import products

    return products.truncation(row, context)


def _density(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm import density

    return density.problem(row, context)


def _partition(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.spamm import partition

    return partition.partition(row, context)


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
    "density": _density,
    "partition": _partition,
}
#: The same on a CUDA context; what no device computes is the CPU's.
_CUDA_STUDIES: Mapping[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "product": _product,
    "thresholds": cpu.table_1,
    "truncation": _truncation,
    "map": cpu.valid_product_map,
    "water": _case_study,
    "accuracy": _case_study,
    "digits": cpu.digits,
    "vgg": _case_study,
    "ablation": _ablation,
    "density": _density,
    "partition": _partition,
}
