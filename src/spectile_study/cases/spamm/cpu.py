"""What the workflow measures of SpAMM on the CPU, and what needs no clock: one function for each study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spectile.nearsparse.api import spamm
from spectile.nearsparse.cpu import search
from spectile.nearsparse.cpu.norms import norm_map
from spectile.nearsparse.types import PRECISIONS
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm import reference
from spectile_study.cases.spamm.checks import (
    ERROR_LIMIT,
    product_over_valid_set,
    relative_error,
    sampled_rows,
    strips,
)
from spectile_study.cases.spamm.molecules import water_operator
from spectile_study.cases.spamm.thresholds import BLOCK, RATIOS, TABLE_1, network_ratios, thresholds, tolerances
from spectile_study.cases.spamm.truncation import left_out, truncation_values
from spectile_study.inputs import decay

# --- Table 2 and Figure 5: against the dense product ---------------------------------------------------------------


def product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM at Table 1's thresholds and BLAS on the same matrices, norm maps in the clock."""
    n, precision = row["n"], row["precision"]
    dtype = np.dtype(PRECISIONS[precision].dtype)
    skipped: list[Method | Skipped] = [Skipped("cublas", "this machine has no CUDA device")]
    if precision not in ("fp32", "fp64"):
        why = f"{precision} is measured on CUDA devices: NumPy's BLAS has no {precision} product to compare with"
        return Problem([*(Skipped(name, why) for name in thresholds(row)), *skipped])
    a = decay.algebraic(n, dtype=dtype)
    b = a.copy()
    norms = norm_map(a)
    tile_rows = sampled_rows(n, context.seed)
    methods: list[Method | Skipped] = [
        _cpu_method(name, a, b, tau, precision, norms, tile_rows) for name, tau in thresholds(row).items()
    ]
    methods += [_blas_method(a, b, precision, tile_rows), _norms_method(a, b)]
    return Problem([*methods, *skipped], inputs={"a": digest_array(a)})


def _cpu_method(name: str, a: Any, b: Any, tau: float, precision: str, norms: Any, tile_rows: Sequence[int]) -> Method:
    out = np.empty((a.shape[0], b.shape[1]), PRECISIONS[precision].output)
    valid, total = search.count_valid(norms, norms, tau), norms.shape[0] ** 3

    def check(result: Any) -> dict[str, float]:
        expected, _ = product_over_valid_set(a, b, tau, tile_rows)
        executed = round(result.executed_ratio * total)
        return {
            "error_fro_rel": relative_error(strips(result.c, tile_rows), expected),
            "error_products": abs(executed - valid),
        }

    def values(result: Any) -> dict[str, Value]:
        return {"tau": tau, "valid_ratio": result.valid_ratio, "executed_ratio": result.executed_ratio}

    return Method(
        name,
        run=lambda: spamm(a, b, tau=tau, out=out, backend="cpu"),
        check=check,
        limits={"error_fro_rel": ERROR_LIMIT[precision], "error_products": 0},
        flops=2.0 * BLOCK**3 * valid,
        bytes=float(a.nbytes + b.nbytes + out.nbytes),
        values=values,
        prepare=lambda: out.fill(np.nan),
    )


def _norms_method(a: Any, b: Any) -> Method:
    """Time both norm maps alone: what the bound by time adds to the valid products."""

    def check(result: Any) -> dict[str, float]:
        return {"error_fro_rel": max(relative_error(*pair) for pair in zip(result, exact, strict=True))}

    exact = (reference.norm_map(a), reference.norm_map(b))
    return Method(
        "norm_maps",
        run=lambda: (norm_map(a), norm_map(b)),
        check=check,
        limits={"error_fro_rel": 1e-12 if a.dtype == np.float64 else 1e-6},
        flops=2.0 * (a.size + b.size),
        bytes=float(a.nbytes + b.nbytes),
    )


def _blas_method(a: Any, b: Any, precision: str, tile_rows: Sequence[int]) -> Method:
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)

    def check(result: Any) -> dict[str, float]:
        return {"error_fro_rel": relative_error(strips(result, tile_rows), strips(a, tile_rows) @ b.astype(np.float64))}

    return Method(
        "blas",
        run=lambda: np.matmul(a, b, out=out),
        check=check,
        limits={"error_fro_rel": ERROR_LIMIT[precision]},
        flops=2.0 * a.shape[0] * a.shape[1] * b.shape[1],
        bytes=float(a.nbytes + b.nbytes + out.nbytes),
        prepare=lambda: out.fill(np.nan),
    )


# --- Table 1: thresholds ---------------------------------------------------------------------------------------------


def table_1(row: Mapping[str, Any], context: Context) -> Problem:
    """Count what Table 1's thresholds leave, and search them; the decay matrix's norm map is known in closed form.

    What they leave out of C belongs to Table 2.
    """
    n = row["n"]

    def run() -> dict[str, float]:
        norms = decay.algebraic_norm_map(n, dtype=np.float32)
        result = {"mean_norm_product": float(norms.sum(axis=0) @ norms.sum(axis=1)) / norms.shape[0] ** 3}
        for ratio, tau in zip(RATIOS, TABLE_1[n], strict=True):
            result[f"valid_ratio_{ratio:02}"] = search.count_valid(norms, norms, tau) / norms.shape[0] ** 3
            result[f"tau_{ratio:02}"] = search.tune_tau(norms, norms, ratio / 100)[0]
        missing = left_out(decay.algebraic(n, 1)[:, 0], TABLE_1[n], norms[0].astype(np.float32), BLOCK)
        return result | {f"error_rel_{ratio:02}": error for ratio, error in zip(RATIOS, missing, strict=True)}

    def check(result: dict[str, float]) -> dict[str, float]:
        return {
            "error_valid_ratio": max(abs(result[f"valid_ratio_{ratio:02}"] - ratio / 100) for ratio in RATIOS),
            "error_tau_rel": max(
                abs(result[f"tau_{ratio:02}"] / tau - 1) for ratio, tau in zip(RATIOS, TABLE_1[n], strict=True)
            ),
        }

    limits = {"error_valid_ratio": 0.01, "error_tau_rel": 1e-5}
    return Problem([Method("spectile", run, check, limits, clock="none", values=lambda result: result)])


# --- Table 3: SpAMM and truncation at the same error -----------------------------------------------------------------


def truncation(row: Mapping[str, Any], context: Context) -> Problem:
    """Hold SpAMM and the truncated product against the exact one."""
    values = truncation_values(row["n"], row["tau"], row["truncation"])

    def check(result: dict[str, float]) -> dict[str, float]:
        # The relative error is at most 1 for matrices without negative entries, and the bound must hold.
        above = result["error_rel"] - result.get("error_bound_rel", 1.0)
        return {"error_above_bound": max(0.0, above)}

    def method(name: str, result: Mapping[str, float]) -> Method:
        return Method(name, lambda: result, check, {"error_above_bound": 0.0}, clock="none", values=dict)

    methods: list[Method | Skipped] = [method(*pair) for pair in zip(("spectile", "truncation"), values, strict=True)]
    skipped = Skipped("cusparse", "this machine has no CUDA device for cuSPARSE's product of the truncated matrices")
    return Problem([*methods, skipped])


# --- Figure 4: the map of valid products and its assignment ----------------------------------------------------------


def valid_product_map(row: Mapping[str, Any], context: Context) -> Problem:
    """Count the valid products of each tile of C, and the loads of the paper's assignment."""
    n, tau = row["n"], row["tau"]
    norms = decay.algebraic_norm_map(n, dtype=np.float32)

    def run() -> Any:
        return reference.valid_map(norms, norms, tau)

    def values(valid: Any) -> dict[str, Value]:
        result: dict[str, Value] = {"tau": tau, "valid_ratio": float(valid.mean() / norms.shape[0])}
        for stride in (1, 2):
            loads = reference.assigned_loads(valid, stride)
            result[f"loads_{stride}"] = [int(load) for load in loads.ravel()]
            result[f"max_over_mean_{stride}"] = float(loads.max() / loads.mean())
        return result

    def check(valid: Any) -> dict[str, float]:
        return {"error_products": float(abs(int(valid.sum()) - search.count_valid(norms, norms, tau)))}

    return Problem([Method("spectile", run, check, {"error_products": 0}, clock="none", values=values)])


# --- Table 4 and Figure 6: matrices of electronic structure ----------------------------------------------------------


def water(row: Mapping[str, Any], context: Context) -> Problem:
    """Square a matrix of a water cluster at Table 4's thresholds."""
    a, facts = water_operator(row, context)
    exact = a @ a
    norm_c = float(np.linalg.norm(exact))
    methods: list[Method | Skipped] = [
        _square_method(name, a, {"tau": tau}, exact, norm_c) for name, tau in thresholds(row).items()
    ]
    methods += [
        _square_method(name, a, {"rtol_factors": rtol}, exact, norm_c) for name, rtol in tolerances("fp64").items()
    ]
    methods += [
        _blas_method(a, a, "fp64", sampled_rows(len(a), context.seed)),
        Skipped("cublas", "this machine has no CUDA device"),
    ]
    return Problem(methods, inputs={"a": digest_array(a)}, values=facts | {"norm_c": norm_c, "rows": len(a)})


def accuracy(row: Mapping[str, Any], context: Context) -> Problem:
    """Square a matrix that decays with distance, at errors that somebody asks for."""
    a = decay.by_distance(row["operator"], row["n"])
    exact = a @ a
    norm_c = float(np.linalg.norm(exact))
    methods: list[Method | Skipped] = [
        _square_method(name, a, {"rtol_factors": rtol}, exact, norm_c) for name, rtol in tolerances("fp64").items()
    ]
    methods += [
        _blas_method(a, a, "fp64", sampled_rows(len(a), context.seed)),
        Skipped("cublas", "this machine has no CUDA device"),
    ]
    values: dict[str, Value] = {"matrix": decay.label(row["operator"]), "norm_c": norm_c, "rows": len(a)}
    return Problem(methods, inputs={"a": digest_array(a)}, values=values)


def _square_method(name: str, a: Any, choice: dict[str, float], exact: Any, norm_c: float) -> Method:
    out = np.empty_like(a)

    def check(result: Any) -> dict[str, float]:
        error = float(np.linalg.norm(result.c - exact))
        return {"error_fro_rel": error / norm_c, "error_over_bound": error / result.error_bound}

    def values(result: Any) -> dict[str, Value]:
        return {
            **choice,
            "tau": result.tau,
            "valid_ratio": result.valid_ratio,
            "executed_ratio": result.executed_ratio,
            "error_fro": float(np.linalg.norm(result.c - exact)),
        }

    return Method(
        name,
        run=lambda: spamm(a, a, out=out, backend="cpu", **choice),  # type: ignore[arg-type]
        check=check,
        limits={"error_over_bound": 1.0},
        bytes=float(2 * a.nbytes + out.nbytes),
        values=values,
        prepare=lambda: out.fill(np.nan),
    )


# --- Table 5: a convolutional network --------------------------------------------------------------------------------


def digits(row: Mapping[str, Any], context: Context) -> Problem:
    """Classify held-out digits with the second convolution of a small network thresholded."""
    from spectile_study.cases.spamm.networks import digits

    network = digits.trained_network(context.seed, context.resources)
    weights, patches = network.operands()
    base = network.accuracy()
    norms = norm_map(weights), norm_map(patches)
    methods: list[Method | Skipped] = []
    for name, ratio in network_ratios("digits").items():
        tau, _ = search.tune_tau(*norms, ratio, iterations=60, tolerance=0.005)
        methods.append(_network_method(name, network, weights, patches, tau, base))
    methods.append(_blas_method(weights, patches, "fp32", [0]))
    shape = "x".join(map(str, (*weights.shape, patches.shape[1])))
    return Problem(methods, {"a": digest_array(weights)}, {"accuracy_base": base, "shape": shape})


def vgg(row: Mapping[str, Any], context: Context) -> Problem:
    """Say where the network is measured."""
    why = "VGG13 is trained and measured on a GPU machine (extra vgg)"
    return Problem([Skipped(name, why) for name in (*network_ratios(row["layer"]), "cublas")])


def _network_method(name: str, network: Any, weights: Any, patches: Any, tau: float, base: float) -> Method:
    out = np.empty((weights.shape[0], patches.shape[1]), np.float32)

    def check(result: Any) -> dict[str, float]:
        error = float(np.linalg.norm(result.c - weights.astype(np.float64) @ patches))
        return {"error_over_bound": error / result.error_bound}

    def values(result: Any) -> dict[str, Value]:
        accuracy = network.accuracy(lambda w, x: spamm(w, x, tau=tau, backend="cpu").c)
        return {
            "tau": tau,
            "valid_ratio": result.valid_ratio,
            "executed_ratio": result.executed_ratio,
            "accuracy": accuracy,
            "accuracy_change": accuracy - base,
        }

    return Method(
        name,
        run=lambda: spamm(weights, patches, tau=tau, out=out, backend="cpu"),
        check=check,
        limits={"error_over_bound": 1.0},
        bytes=float(weights.nbytes + patches.nbytes + out.nbytes),
        values=values,
        prepare=lambda: out.fill(np.nan),
    )


def ablation(row: Mapping[str, Any], context: Context) -> Problem:
    """Say where the variants are measured."""
    return Problem([Skipped("spectile", "the variants of the GPU kernel are measured on a CUDA device")])
