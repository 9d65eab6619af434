"""Whole solutions and tridiagonalizations: ours against cuSOLVER (Figures 10 and 11)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import cupy
import numpy as np

from spectile.core import device
from spectile.evd.api import eigh, eigvalsh, tridiagonalize
from spectile.evd.cuda import run as gpu
from spectile.evd.cuda.choose import calls_vendor, reduction_parameters, stage_parameters
from spectile.evd.cuda.workspace import workspace_bytes
from spectile.evd.types import SCALARS, Options
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.cases.evd import rivals
from spectile_study.cases.evd.common import LIMITS, VALUES, flops
from spectile_study.cases.evd.cuda import hybrid
from spectile_study.cases.evd.cuda.checks import (
    NORM_LIMITS,
    check_norms_of,
    check_pairs_of,
    check_values_of,
    frobenius_norm,
)
from spectile_study.cases.evd.cuda.inputs import KEPT_ORDER, fill, first_columns, matrix_of, reference_values, wait

#: Orders up to which our two stages are measured beside the vendor's code that `eigh` calls there.
CROSSOVER_STUDY = 4096
#: Orders up to which CuPy's own call is measured: it is cuSOLVER's one-stage solver, with its copy and work space.
CUPY_STUDY = 8192
#: Orders from which a call of cuSOLVER takes seconds, and is made once.
ONCE_ORDERS = {"cusolver_one_stage": 12_000, "cusolver_two_stage": 30_000}
ONE_STAGE_LEFT_OUT = "left out of this row: it takes about 20 s a call at this order"


def evd(row: Mapping[str, Any], context: Context) -> Problem:
    """Ours against cuSOLVER's two algorithms (Figure 11)."""
    n, vectors, precision = row["n"], row["vectors"], row["precision"]
    if n > KEPT_ORDER:
        return _solve_large(row, context)
    a = matrix_of(n, context.seed, precision)
    check = check_pairs_of(lambda: a, reference_values(n, context.seed, precision), vectors)
    limits = LIMITS if vectors else VALUES
    work = flops(n, vectors=vectors) * (4 if a.dtype.kind == "c" else 1)

    def by_stages(parameters: Callable[..., tuple[int, int]]) -> Any:
        bandwidth, block = parameters(n, SCALARS[precision], vectors=vectors, device=device.describe())
        w, v = gpu.solve_by_stages(a, Options(vectors=vectors), bandwidth=bandwidth, block=block)
        return (w, v) if vectors else w

    solve = eigh if vectors else eigvalsh
    memory = workspace_bytes(n, SCALARS[precision], device.describe(), vectors=vectors)
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: wait(solve(a, backend="cuda")), check, limits, flops=work, memory_bytes=memory)
    ]
    vendor_called = calls_vendor(n, SCALARS[precision], vectors=vectors, device=device.describe())
    # On the device's clock, without the checks and copies of a call: what it adds is the difference to the row above.
    on_device = (lambda: solve(a, backend="cuda")) if vendor_called else lambda: by_stages(reduction_parameters)
    methods.append(Method("spectile_device", on_device, check, limits, flops=work, memory_bytes=memory, clock="events"))
    if n <= CROSSOVER_STUDY:
        methods.append(
            Method(
                "spectile_two_stage",
                lambda: wait(by_stages(stage_parameters)),
                check,
                limits,
                flops=work,
                memory_bytes=memory,
            )
        )
    if n <= CUPY_STUDY and row["one_stage"]:
        library = cupy.linalg.eigh if vectors else cupy.linalg.eigvalsh
        methods.append(Method("cupy", lambda: wait(library(a)), check, limits, flops=work))
    for rival in _vendors(a, vectors, row["one_stage"]):
        if isinstance(rival, Skipped):
            methods.append(rival)
        else:
            name, solver, restore = rival
            memory = solver.device_bytes
            once = n >= ONCE_ORDERS[name]
            methods.append(
                Method(name, solver, check, limits, flops=work, memory_bytes=memory, prepare=restore, once=once)
            )
    methods.append(hybrid.solver(row, context.threads, lambda: a, check, limits))
    return Problem(
        methods,
        inputs=first_columns(a, context.seed),
        values={"vendor_called": vendor_called},
    )


def _vendors(a: Any, vectors: bool, one_stage: bool) -> list[tuple[str, rivals.Syevd, Callable[[], None]] | Skipped]:
    """Return name, solver and restore of cuSOLVER's two algorithms."""
    solvers: list[tuple[str, rivals.Syevd, Callable[[], None]] | Skipped] = []
    work = cupy.empty(a.shape, a.dtype, order="F")

    def restore() -> None:
        work[...] = a

    reasons = {"one_stage": None if one_stage else ONE_STAGE_LEFT_OUT, "two_stage": rivals.two_stage_reason()}
    for algorithm, reason in reasons.items():
        name = f"cusolver_{algorithm}"
        path = os.environ.get(rivals.CUSOLVER_PATH) if algorithm == "two_stage" else None
        if reason is None:
            try:
                solver = rivals.Syevd(work, vectors=vectors, algorithm=algorithm, path=path)  # type: ignore[arg-type]
            except RuntimeError as error:  # a type that this algorithm does not take
                reason = f"{error} to {algorithm.replace('_', ' ')} of {a.dtype}"
            except cupy.cuda.memory.OutOfMemoryError as error:
                reason = f"its work space does not fit beside the matrix ({error})"
            else:
                solvers.append((name, solver, restore))
                continue
        solvers.append(Skipped(name, reason))
    return solvers


def _solve_large(row: Mapping[str, Any], context: Context) -> Problem:
    """An order whose matrix fills a quarter of the device: solved in its own memory and made again for the check."""
    n, vectors = row["n"], row["vectors"]
    a = cupy.empty((n, n), np.float64, order="F")
    limits = NORM_LIMITS | (
        {name: LIMITS[name] for name in ("error_residual", "error_orthogonality")} if vectors else {}
    )
    solve = eigh if vectors else eigvalsh

    def restore() -> None:
        wait(fill(a, context.seed))

    ours = Method(
        "spectile",
        lambda: wait(solve(a, overwrite_a=True, backend="cuda")),
        check_pairs_of(lambda: fill(a, context.seed), None, vectors),
        limits,
        flops=flops(n, vectors=vectors),
        memory_bytes=workspace_bytes(n, SCALARS["float64"], device.describe(), vectors=vectors, overwrite=True),
        prepare=restore,
    )
    needed = 5 * 8 * n * n
    reason = f"cuSOLVER needs about {needed:,} bytes at this order: its work space is four times the matrix"
    return Problem(
        [
            ours,
            Skipped("cusolver_one_stage", reason),
            Skipped("cusolver_two_stage", reason),
            hybrid.solver(row, context.threads, lambda: fill(a, context.seed), ours.check, limits),
        ],
        inputs=first_columns(fill(a, context.seed), context.seed),
    )


def tridiagonal(row: Mapping[str, Any], context: Context) -> Problem:
    """Ours against cuSOLVER's one-stage sytrd (Figure 10)."""
    n, large = row["n"], row["n"] > KEPT_ORDER
    a = matrix_of(n, context.seed)
    digest = first_columns(a, context.seed)

    def refill() -> None:
        wait(fill(a, context.seed))

    check = (
        check_norms_of(float(cupy.trace(a)), frobenius_norm(a))
        if large
        else check_values_of(reference_values(n, context.seed))
    )
    limits = NORM_LIMITS if large else VALUES
    methods: list[Method | Skipped] = [
        Method(
            "spectile",
            lambda: wait(tridiagonalize(a, overwrite_a=large, backend="cuda")),
            check,
            limits,
            flops=flops(n),
            prepare=refill if large else None,
        )
    ]
    if not large:
        bandwidth, block = stage_parameters(n, SCALARS["float64"], vectors=False, device=device.describe())

        def by_stages() -> Any:
            return gpu.tridiagonalize_by_stages(a, Options(vectors=False), bandwidth=bandwidth, block=block)

        methods.append(Method("spectile_device", by_stages, check, limits, flops=flops(n), clock="events"))
    if row["one_stage"]:
        work = cupy.empty(a.shape, a.dtype, order="F")
        solver = rivals.Sytrd(work)

        def restore() -> None:
            work[...] = a

        once = n >= ONCE_ORDERS["cusolver_one_stage"]
        methods.append(Method("cusolver_one_stage", solver, check, limits, flops=flops(n), prepare=restore, once=once))
    else:
        methods.append(Skipped("cusolver_one_stage", ONE_STAGE_LEFT_OUT))
    methods.append(
        Skipped("cusolver_two_stage", "cuSOLVER does not offer the tridiagonalization of its two-stage solver")
    )
    source = (lambda: fill(a, context.seed)) if large else (lambda: a)
    methods.append(hybrid.tridiagonalization(row, context.threads, source, check, limits))
    return Problem(methods, inputs=digest)
