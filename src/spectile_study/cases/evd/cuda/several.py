"""Whole solutions on several GPUs of a host, beside one and beside cuSOLVERMg on as many."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.evd.api import eigh, eigvalsh
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.cases.evd.common import LIMITS, VALUES, flops
from spectile_study.cases.evd.cuda import mg
from spectile_study.cases.evd.cuda.checks import NORM_LIMITS, check_pairs_of
from spectile_study.cases.evd.cuda.inputs import first_columns, matrix_of, reference_values, wait

#: Above this order eigenvalues are held to trace and norm: the vendor's work space is four times the matrix.
REFERENCE_ORDER = 16_384


#: Above this order a call takes many seconds and is not repeated.
ONCE = 16_384
#: Above this order one GPU's call is left out, whose memory may not hold it, and the vendor's, which takes minutes.
LARGEST = 40_000


def devices(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row: the same call with one GPU and with all of the row's, the matrix on the first.

    The vendor's solver finds the matrix spread as it wants it, and leaves the vectors so; neither is timed.
    """
    n, vectors, precision = row["n"], row["vectors"], row["precision"]
    count = max(row["gpus"], 2)
    a = matrix_of(n, context.seed, precision)
    known = n <= REFERENCE_ORDER
    pairs = {name: LIMITS[name] for name in ("error_residual", "error_orthogonality")} if vectors else {}
    check = check_pairs_of(lambda: a, reference_values(n, context.seed, precision) if known else None, vectors)
    limits = (VALUES if known else NORM_LIMITS) | pairs
    solve = eigh if vectors else eigvalsh
    work = flops(n, vectors=vectors) * (4 if a.dtype.kind == "c" else 1)

    def ours(number: int) -> Method:
        run = lambda: wait(solve(a, devices=number, backend="cuda"))  # noqa: E731
        return Method(f"devices_{number}", run, check, limits, flops=work, once=n > LARGEST)

    def vendors() -> Method | Skipped:
        # Eigenvalues alone take it three times as long as with vectors, and complex matrices four times.
        if n > (LARGEST if vectors and a.dtype == np.float64 else ONCE):
            return Skipped("cusolver_mg", "cuSOLVERMg takes minutes at this order and is left out")
        try:
            run = mg.Syevd(n, a.dtype.name, count, vectors)
        except RuntimeError as error:
            return Skipped("cusolver_mg", f"{error}")

        def checked(w: Any) -> dict[str, float]:
            return check((w, run.vectors()) if vectors else w)

        restore = functools.partial(run.spread, a)
        return Method("cusolver_mg", run, checked, limits, flops=work, prepare=restore, once=n >= ONCE)

    reason = f"one GPU is left out above n = {LARGEST:,}, where its memory may not hold a call"
    one = ours(1) if n <= LARGEST else Skipped("devices_1", reason)
    return Problem([one, ours(count), vendors()], inputs=first_columns(a, context.seed))
