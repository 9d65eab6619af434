"""Whole solutions on several GPUs of a host, beside one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from spectile.evd.api import eigh, eigvalsh
from spectile_study.bench.case import Context, Method, Problem
from spectile_study.cases.evd.common import LIMITS, VALUES, flops
from spectile_study.cases.evd.cuda.checks import NORM_LIMITS, check_pairs_of
from spectile_study.cases.evd.cuda.inputs import first_columns, matrix_of, reference_values, wait

#: Above this order eigenvalues are held to trace and norm: the vendor's work space is four times the matrix.
REFERENCE_ORDER = 16_384


def devices(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row: the same call with one GPU and with all of the row's, the matrix on the first."""
    n, vectors, precision = row["n"], row["vectors"], row["precision"]
    a = matrix_of(n, context.seed, precision)
    known = n <= REFERENCE_ORDER
    pairs = {name: LIMITS[name] for name in ("error_residual", "error_orthogonality")} if vectors else {}
    check = check_pairs_of(lambda: a, reference_values(n, context.seed, precision) if known else None, vectors)
    limits = (VALUES if known else NORM_LIMITS) | pairs
    solve = eigh if vectors else eigvalsh
    work = flops(n, vectors=vectors) * (4 if a.dtype.kind == "c" else 1)

    def solved(count: int) -> Any:
        return wait(solve(a, devices=count, backend="cuda"))

    methods = [
        Method(f"devices_{count}", functools.partial(solved, count), check, limits, flops=work)
        for count in (1, max(row["gpus"], 2))
    ]
    return Problem([*methods], inputs=first_columns(a, context.seed))
