"""What the workflow measures of SpAMM: one function a study; the run sheet's column ``study`` chooses.

A case holds one input and all its thresholds: ours is one method a threshold (``spectile_30`` at 30 % valid products,
``spectile_1e-04`` at tau = 1e-4; the value ``tau`` holds the number), the vendor's product one method beside them, so
that it is timed once and in the same rounds.  On a CUDA context ``cases_gpu.build(row, context)`` builds the studies
named in ``TIMED``, with these names and the thresholds of :func:`thresholds`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spectile.nearsparse import reference
from spectile.nearsparse.api import PRECISIONS, spamm
from spectile.nearsparse.cpu import product as cpu
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.inputs import decay

PAPER = "spamm"
BLOCK = 32

# Table 1: nominal valid ratios in per cent, and the thresholds printed for a_ij = 0.1 / (|i - j|^0.1 + 1).
RATIOS = (30, 25, 20, 15, 10, 5)
TABLE_1: dict[int, tuple[float, ...]] = {
    1024: (1.434815, 1.456555, 1.489164, 1.521774, 1.586993, 1.695691),
    2048: (1.310666, 1.330525, 1.360312, 1.40003, 1.449676, 1.548969),
    4096: (1.195803, 1.222981, 1.250158, 1.277335, 1.322631, 1.413222),
    8192: (1.093354, 1.113983, 1.138739, 1.171746, 1.204753, 1.28727),
    16384: (0.997847, 1.012852, 1.03536, 1.06537, 1.110386, 1.170407),
    32768: (0.905539, 0.919156, 0.939582, 0.966816, 1.007668, 1.062136),
}
# Table 4: thresholds for the matrices of electronic structure.
ERGO_TAUS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
# Table 5: valid ratios in per cent of the five thresholds of each layer; the digits' are spread alike.
NETWORK_RATIOS: dict[str, tuple[float, ...]] = {
    "conv21": (97.47, 96.84, 85.00, 82.90, 63.41),
    "conv31": (97.92, 94.21, 87.44, 74.36, 43.38),
    "digits": (97.0, 90.0, 75.0, 60.0, 45.0),
}

# Largest relative Frobenius error allowed against the float64 product over the valid set.
ERROR_LIMIT = {"fp16": 1e-5, "fp16c16": 2e-3, "fp32": 1e-5, "tf32x3": 1e-5, "fp64": 1e-13}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/spamm.tsv``."""
    study = row["study"]
    if context.device == "cuda" and study in ("water", "vgg"):
        from spectile_study.cases.spamm import case_studies

        return case_studies.problem(row, context)
    if context.device == "cuda" and study in TIMED:
        from spectile_study.cases.spamm import cuda as cases_gpu

        return cases_gpu.build(row, context)
    return _STUDIES[study](row, context)


def thresholds(row: Mapping[str, Any]) -> dict[str, float]:
    """Return method name -> tau of a ``product`` or ``water`` row, in the paper's order."""
    if row["study"] == "product":
        return {f"spectile_{ratio:02}": tau for ratio, tau in zip(RATIOS, TABLE_1[row["n"]], strict=True)}
    return {f"spectile_{tau:.0e}": tau for tau in ERGO_TAUS}


def network_ratios(layer: str) -> dict[str, float]:
    """Return method name -> wanted valid ratio of a network's layer."""
    return {f"spectile_{ratio:g}".replace(".", "p"): ratio / 100 for ratio in NETWORK_RATIOS[layer]}


def skip_reasons(rows: Any) -> list[str]:
    """Return why methods of these frame rows were skipped, one sentence for all cases that lacked GPUs."""
    reasons = sorted(set(rows.loc[rows["status"] == "skipped", "reason"].dropna())) if len(rows) else []
    wanted = {reason: int(found[1]) for reason in reasons if (found := re.search(r" needs (\d+) GPUs and ", reason))}
    others = [reason for reason in reasons if reason not in wanted]
    if not wanted:
        return others
    counts = " or ".join(map(str, sorted(set(wanted.values()))))
    return [*others, f"{len(wanted)} cases were skipped for want of {counts} GPUs on one host."]


def executed_ratio(norms: Any, tau: float, rows: int, columns: int) -> float:
    """Return the share of products that tiles of `rows` x `columns` 32-blocks of C execute over their union of valid k.

    A union holds k iff the largest norms of its rows and columns multiply to tau.
    """

    def pooled(x: Any, size: int) -> Any:
        return np.maximum.reduceat(x, np.arange(0, x.shape[0], size), axis=0)

    wide_a, wide_b = pooled(norms, rows), pooled(norms.T, columns).T
    return cpu.count_valid(wide_a, wide_b, tau) / (wide_a.size * wide_b.shape[1])


@functools.cache
def executed_64x128(n: int, ratio: int) -> float:
    """Return the share of products that 64 x 128 tiles of C execute at a nominal ratio of Table 1 (the time bound)."""
    return executed_ratio(decay.algebraic_norm_map(n), TABLE_1[n][RATIOS.index(ratio)], 2, 4)


def sampled_rows(n: int, seed: int) -> list[int]:
    """Return the tile rows of C that a check recomputes: the first, the last, the middle and one at random."""
    last = -(-n // BLOCK) - 1
    return sorted({0, last // 2, int(np.random.default_rng(seed).integers(0, last + 1)), last})


def product_over_valid_set(a: Any, b: Any, tau: float, tile_rows: Sequence[int]) -> tuple[Any, int]:
    """Return these tile rows of SpAMM(A, B, tau) in float64, stacked, and how many tile products they hold."""
    norms_a, norms_b = reference.norm_map(a, BLOCK), reference.norm_map(b, BLOCK)
    strips, count = [], 0
    for i in tile_rows:
        rows = a[i * BLOCK : (i + 1) * BLOCK].astype(np.float64)
        strip = np.zeros((rows.shape[0], b.shape[1]))
        for k in range(norms_a.shape[1]):
            valid = ~(norms_a[i, k] * norms_b[k] < tau)
            if valid.any():
                count += int(valid.sum())
                columns = np.flatnonzero(np.repeat(valid, BLOCK)[: b.shape[1]])
                inner = slice(k * BLOCK, (k + 1) * BLOCK)
                strip[:, columns] += rows[:, inner] @ b[inner, columns].astype(np.float64)
        strips.append(strip)
    return np.concatenate(strips), count


def strips(c: Any, tile_rows: Sequence[int]) -> Any:
    """Return these tile rows of C, stacked, in float64."""
    return np.concatenate([c[i * BLOCK : (i + 1) * BLOCK] for i in tile_rows]).astype(np.float64)


def relative_error(found: Any, expected: Any) -> float:
    """Return the Frobenius error relative to the expected matrix (0 where both are zero)."""
    error, norm = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected))
    return error / norm if norm else error


# --- Table 2 and Figure 5: against the dense product ---------------------------------------------------------------


def _product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM at Table 1's thresholds and BLAS on the same matrices, norm maps in the clock."""
    n, precision = row["n"], row["precision"]
    dtype = np.dtype(PRECISIONS[precision][0])
    skipped: list[Method | Skipped] = [Skipped("cublas", "this machine has no CUDA device")]
    if precision not in ("fp32", "fp64"):
        why = f"{precision} is measured on CUDA devices: NumPy's BLAS has no {precision} product to compare with"
        return Problem([*(Skipped(name, why) for name in thresholds(row)), *skipped])
    a = decay.algebraic(n, dtype=dtype)
    b = a.copy()
    norms = cpu.norm_map(a)
    tile_rows = sampled_rows(n, context.seed)
    methods: list[Method | Skipped] = [
        _cpu_method(name, a, b, tau, precision, norms, tile_rows) for name, tau in thresholds(row).items()
    ]
    methods += [_blas_method(a, b, precision, tile_rows), _norms_method(a, b)]
    return Problem([*methods, *skipped], inputs={"a": digest_array(a)})


def _cpu_method(name: str, a: Any, b: Any, tau: float, precision: str, norms: Any, tile_rows: Sequence[int]) -> Method:
    out = np.empty((a.shape[0], b.shape[1]), PRECISIONS[precision][1])
    valid, total = cpu.count_valid(norms, norms, tau), norms.shape[0] ** 3

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
        run=lambda: (cpu.norm_map(a), cpu.norm_map(b)),
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


def _table_1(row: Mapping[str, Any], context: Context) -> Problem:
    """Count what Table 1's thresholds leave, and search them; the decay matrix's norm map is known in closed form."""
    n = row["n"]

    def run() -> dict[str, float]:
        norms = decay.algebraic_norm_map(n, dtype=np.float32)
        found = {"mean_norm_product": float(norms.sum(axis=0) @ norms.sum(axis=1)) / norms.shape[0] ** 3}
        for ratio, tau in zip(RATIOS, TABLE_1[n], strict=True):
            found[f"valid_ratio_{ratio:02}"] = cpu.count_valid(norms, norms, tau) / norms.shape[0] ** 3
            found[f"tau_{ratio:02}"] = cpu.tune_tau(norms, norms, ratio / 100)[0]
        return found

    def check(found: dict[str, float]) -> dict[str, float]:
        return {
            "error_valid_ratio": max(abs(found[f"valid_ratio_{ratio:02}"] - ratio / 100) for ratio in RATIOS),
            "error_tau_rel": max(
                abs(found[f"tau_{ratio:02}"] / tau - 1) for ratio, tau in zip(RATIOS, TABLE_1[n], strict=True)
            ),
        }

    limits = {"error_valid_ratio": 0.01, "error_tau_rel": 1e-5}
    return Problem([Method("spectile", run, check, limits, clock="none", values=lambda found: found)])


# --- Table 3: SpAMM and truncation at the same error -----------------------------------------------------------------


def toeplitz_squared(first: Any) -> Iterator[Any]:
    """Yield the rows of T^2 for the symmetric Toeplitz matrix T with this first column, in O(n) each.

    T^2 is not Toeplitz, but (T^2)_{i+1,j+1} - (T^2)_{ij} = t_{i+1} t_{j+1} - t_{n-1-i} t_{n-1-j}.
    """
    n = len(first)
    circulant = np.fft.rfft(np.concatenate([first, [0.0], first[:0:-1]]))
    edge = np.fft.irfft(circulant * np.fft.rfft(first, 2 * n), 2 * n)[:n]
    row = edge
    for i in range(n):
        yield row
        if i + 1 < n:
            below = np.empty(n)
            below[0] = edge[i + 1]
            below[1:] = row[:-1] + first[i + 1] * first[1:] - first[n - 1 - i] * first[:0:-1]
            row = below


def difference_norms(rows: Any, others: Any) -> tuple[float, float]:
    """Return the Frobenius norm of a difference, summed in float64 and as the paper did: in one float32, row by row.

    A float32 sum stops growing at 2^31 when the addends are below half its last place: sqrt(2^31) = 46,340.95.
    """
    total, single = 0.0, np.zeros(1, np.float32)
    for row, other in zip(rows, others, strict=True):
        difference = row - other
        total += float(difference @ difference)
        squares = np.square(difference.astype(np.float32))
        single = np.add.accumulate(np.concatenate([single, squares]), dtype=np.float32)[-1:]
    return float(np.sqrt(total)), float(np.sqrt(single[0]))


def truncation_values(n: int, tau: float, truncation: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the values of SpAMM at `tau` and of the truncated product at `truncation`, in float64 (Table 3)."""
    a = decay.algebraic(n)
    first = a[0].copy()
    norm_c = float(np.sqrt(sum(float(row @ row) for row in toeplitz_squared(first))))
    result = spamm(a, a, tau=tau, backend="cpu")
    ours, printed = difference_norms(toeplitz_squared(first), result.c)
    near_sparse = {
        "norm_c": norm_c,
        "valid_ratio": result.valid_ratio,
        "error_fro": ours,
        "error_fro_float32": printed,
        "error_rel": ours / norm_c,
        "error_bound_rel": result.error_bound / norm_c,
    }
    kept = np.where(first < truncation, 0.0, first)
    theirs, printed = difference_norms(toeplitz_squared(first), toeplitz_squared(kept))
    # Each diagonal but the main one occurs twice.
    diagonals = np.flatnonzero(kept)
    nonzeros = int(np.sum((n - diagonals) * np.where(diagonals, 2, 1)))
    truncated = {
        "norm_c": norm_c,
        "nz_ratio": nonzeros / n**2,
        "error_fro": theirs,
        "error_fro_float32": printed,
        "error_rel": theirs / norm_c,
    }
    return near_sparse, truncated


def _truncation(row: Mapping[str, Any], context: Context) -> Problem:
    values = truncation_values(row["n"], row["tau"], row["truncation"])

    def check(found: dict[str, float]) -> dict[str, float]:
        # The relative error is at most 1 for matrices without negative entries, and the bound must hold.
        above = found["error_rel"] - found.get("error_bound_rel", 1.0)
        return {"error_above_bound": max(0.0, above)}

    def method(name: str, found: Mapping[str, float]) -> Method:
        return Method(name, lambda: found, check, {"error_above_bound": 0.0}, clock="none", values=dict)

    methods: list[Method | Skipped] = [method(*pair) for pair in zip(("spectile", "truncation"), values, strict=True)]
    skipped = Skipped("cusparse", "this machine has no CUDA device for cuSPARSE's product of the truncated matrices")
    return Problem([*methods, skipped])


# --- Figure 4: the map of valid products and its assignment ----------------------------------------------------------


def _map(row: Mapping[str, Any], context: Context) -> Problem:
    n, tau = row["n"], row["tau"]
    norms = decay.algebraic_norm_map(n, dtype=np.float32)

    def run() -> Any:
        return reference.valid_map(norms, norms, tau)

    def values(valid: Any) -> dict[str, Value]:
        found: dict[str, Value] = {"tau": tau, "valid_ratio": float(valid.mean() / norms.shape[0])}
        for stride in (1, 2):
            loads = reference.assigned_loads(valid, stride)
            found[f"loads_{stride}"] = [int(load) for load in loads.ravel()]
            found[f"max_over_mean_{stride}"] = float(loads.max() / loads.mean())
        return found

    def check(valid: Any) -> dict[str, float]:
        return {"error_products": float(abs(int(valid.sum()) - cpu.count_valid(norms, norms, tau)))}

    return Problem([Method("spectile", run, check, {"error_products": 0}, clock="none", values=values)])


# --- Table 4 and Figure 6: matrices of electronic structure ----------------------------------------------------------


def _water(row: Mapping[str, Any], context: Context) -> Problem:
    """Square a matrix of a water cluster at Table 4's thresholds."""
    from spectile_study.cases.spamm.case_studies import water_operator

    a, facts = water_operator(row, context)
    exact = a @ a
    norm_c = float(np.linalg.norm(exact))
    methods: list[Method | Skipped] = [
        _water_method(name, a, tau, exact, norm_c) for name, tau in thresholds(row).items()
    ]
    methods += [
        _blas_method(a, a, "fp64", sampled_rows(len(a), context.seed)),
        Skipped("cublas", "this machine has no CUDA device"),
    ]
    return Problem(methods, inputs={"a": digest_array(a)}, values=facts | {"norm_c": norm_c, "rows": len(a)})


def _water_method(name: str, a: Any, tau: float, exact: Any, norm_c: float) -> Method:
    out = np.empty_like(a)

    def check(result: Any) -> dict[str, float]:
        error = float(np.linalg.norm(result.c - exact))
        return {"error_fro_rel": error / norm_c, "error_over_bound": error / result.error_bound}

    def values(result: Any) -> dict[str, Value]:
        return {
            "tau": tau,
            "valid_ratio": result.valid_ratio,
            "executed_ratio": result.executed_ratio,
            "error_fro": float(np.linalg.norm(result.c - exact)),
        }

    return Method(
        name,
        run=lambda: spamm(a, a, tau=tau, out=out, backend="cpu"),
        check=check,
        limits={"error_over_bound": 1.0},
        bytes=float(2 * a.nbytes + out.nbytes),
        values=values,
        prepare=lambda: out.fill(np.nan),
    )


# --- Table 5: a convolutional network --------------------------------------------------------------------------------


def _digits(row: Mapping[str, Any], context: Context) -> Problem:
    """Classify held-out digits with the second convolution of a small network thresholded."""
    from spectile_study.cases.spamm import digits

    network = digits.trained_network(context.seed, context.resources)
    weights, patches = network.operands()
    base = network.accuracy()
    norms = cpu.norm_map(weights), cpu.norm_map(patches)
    methods: list[Method | Skipped] = []
    for name, ratio in network_ratios("digits").items():
        tau, _ = cpu.tune_tau(*norms, ratio, iterations=60, tolerance=0.005)
        methods.append(_network_method(name, network, weights, patches, tau, base))
    methods.append(_blas_method(weights, patches, "fp32", [0]))
    shape = "x".join(map(str, (*weights.shape, patches.shape[1])))
    return Problem(methods, {"a": digest_array(weights)}, {"accuracy_base": base, "shape": shape})


def _vgg(row: Mapping[str, Any], context: Context) -> Problem:
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


def _ablation(row: Mapping[str, Any], context: Context) -> Problem:
    return Problem([Skipped("spectile", "the variants of the GPU kernel are measured on a CUDA device")])


_STUDIES: Mapping[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "product": _product,
    "thresholds": _table_1,
    "truncation": _truncation,
    "map": _map,
    "water": _water,
    "digits": _digits,
    "vgg": _vgg,
    "ablation": _ablation,
}
# Studies that a CUDA context hands to cases_gpu.
TIMED = ("product", "truncation", "ablation")
