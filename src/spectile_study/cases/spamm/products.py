"""Table 2, Figure 5 and Table 3 on CUDA: the product at Table 1's thresholds beside cuBLAS and cuSPARSE.

Norm maps and candidate lists are inside every clock; N <= 2048 is timed by graph replay on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.nearsparse.api import spamm
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm.device import VENDOR_MODES, Operands
from spectile_study.cases.spamm.spread import Spread, spread_product
from spectile_study.cases.spamm.thresholds import BLOCK, thresholds
from spectile_study.cases.spamm.truncation import intermediate_products, share_at_a_time, truncation_values


def product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM at Table 1's thresholds and cuBLAS on the same matrices (Table 2, Figure 5)."""
    if row["gpus"] > 1:
        return spread_product(row, context)
    precision = row["precision"]
    operands = Operands(row["n"], precision, context.seed)
    methods: list[Method | Skipped] = [operands.spamm(name, tau) for name, tau in thresholds(row).items()]
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    if precision == "tf32x3":
        methods.append(operands.vendor("cublas_tf32", "tf32", 3e-3))
    if precision.startswith("fp16"):
        methods.append(operands.half_sums())
    methods += as_called(operands, {name.replace("spectile", "called"): tau for name, tau in thresholds(row).items()})
    methods.append(copy())
    return Problem(methods, inputs={"a": digest_array(operands.first)})


def as_called(operands: Operands, taus: Mapping[str, float]) -> list[Method | Skipped]:
    """Return SpAMM and the dense product as a user calls them, wall clock; the last tau is searched as well.

    One call after another with one synchronisation at their end; ``latency_...`` waits for each call.
    """
    import cupy

    methods: list[Method | Skipped] = [operands.called(name, tau=tau) for name, tau in taus.items()]
    name, tau = list(taus.items())[-1]
    known = spamm(operands.a, operands.b, tau=tau, precision=operands.precision)  # type: ignore[arg-type]
    scale = float(cupy.linalg.norm(operands.a.astype(np.float32))) ** 2
    methods.append(operands.called("called_valid_ratio", valid_ratio=known.valid_ratio))
    methods.append(operands.called("called_rtol", rtol_factors=1.001 * known.error_bound / scale))
    dense = operands.called_dense("called_dense")
    methods.append(dense)
    for method, shown in ((methods[len(taus) - 1], name.replace("called", "latency")), (dense, "latency_dense")):
        assert isinstance(method, Method)
        methods.append(waiting(method, shown))
    return methods


def waiting(method: Method, name: str) -> Method:
    """Return a method whose every call is waited for."""
    import cupy

    def run() -> Any:
        result = method.run()
        cupy.cuda.get_current_stream().synchronize()
        return result

    return dataclasses.replace(method, name=name, run=run, clock="wall", prepare=None)


def copy() -> Method:
    """Time a copy in device memory, far larger than any cache: the rate that the bounds by memory are drawn with."""
    import cupy

    source = cupy.arange(2**27, dtype=np.float64)
    target = cupy.empty_like(source)
    return Method(
        "copy",
        run=lambda: cupy.copyto(target, source),
        check=lambda _: {"error_fro_rel": float(not bool((target == source).all()))},
        limits={"error_fro_rel": 0.0},
        bytes=2.0 * source.nbytes,
        clock="events",
        prepare=lambda: target.fill(np.nan),
    )


def truncation(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM and cuSPARSE's product of the truncated matrices at the same level of error (Table 3)."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile_study.bench.vendor import spgemm

    n, tau, cutoff = row["n"], row["tau"], row["truncation"]
    near_sparse, truncated = truncation_values(n, tau, cutoff)
    operands = Operands(n, row["precision"], context.seed)
    ours = operands.spamm("spectile", tau)
    # The values are those of the float64 product over the valid set; what the kernel executes beyond it errs less.
    ours.values = lambda _: near_sparse | {"tau": tau}
    kept = cupy.where(operands.a < cutoff, 0, operands.a)
    sparse = csr_matrix(kept)
    exact = {tile: kept[tile * BLOCK : (tile + 1) * BLOCK].astype(np.float64) @ kept for tile in operands.tile_rows}
    del kept
    algorithm = "alg1" if n <= 1024 else "alg3"

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    first = np.where(operands.first < cutoff, 0, operands.first)
    chunk = share_at_a_time(intermediate_products(first), cupy.cuda.runtime.memGetInfo()[0])

    def multiply() -> Any:
        square = spgemm(sparse, sparse, algorithm, chunk)  # type: ignore[arg-type]
        cupy.cuda.get_current_stream().synchronize()
        return square

    def check(result: Any) -> dict[str, float]:
        rows = ((result[0][tile * BLOCK : (tile + 1) * BLOCK].toarray(), wanted) for tile, wanted in exact.items())
        return {"error_fro_rel": max(float(cupy.linalg.norm(x - y) / cupy.linalg.norm(y)) for x, y in rows)}

    def values(result: Any) -> dict[str, Value]:
        product, memory = result
        return {
            "algorithm": algorithm,
            "chunk": chunk,
            "nnz": int(product.nnz),
            "workspace_bytes": memory["total"],
        }

    theirs = Method(
        "cusparse",
        run=multiply,
        check=check,
        limits={"error_fro_rel": 1e-5},
        clock="wall",
        values=values,
        once=n > 1024,
        time_limit_s=180.0,
    )
    plain = Method(
        "truncation",
        run=lambda: truncated,
        check=lambda result: {"error_above_bound": max(0.0, result["error_rel"] - 1.0)},
        limits={"error_above_bound": 0.0},
        clock="none",
        values=dict,
    )
    called = operands.called("called", tau=tau)
    methods: list[Method | Skipped] = [ours, called, plain, theirs]
    if row["gpus"] > 1:
        spread = Spread(operands.a, operands.b, operands.out, row["precision"], row["gpus"], tau)
        methods = [spread.resident("spectile", tau), spread.called("called", tau), plain, theirs]
    return Problem(methods, inputs={"a": digest_array(operands.first)})
