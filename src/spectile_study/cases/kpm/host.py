"""The studies of KPM on the CPU: the stages (Figures 7, 8, 11), the library calls (Table I), the machine (Table II).

Steps are timed from the second on, on fresh start vectors, and their scalar products are compared with SciPy's in
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spectile.kpm import reference
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import called, model
from spectile_study.cases.kpm.naive import Chain
from spectile_study.cases.kpm.rivals import etas_naive
from spectile_study.cases.kpm.shared import (
    GPU_METHODS,
    LIMIT,
    NO_DEVICE,
    STEPS,
    case_values,
    checker,
    host_matrix,
    sample_of,
    scaling,
)  # fmt: skip


def step(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one step by every stage, and of calls of ``kpm_dos``."""
    sample = sample_of(row)
    threads = row["threads"] or context.threads
    measured = _host_methods(row, context, threads)
    methods: list[Method | Skipped] = list(measured)
    names = {method.name for method in measured}
    if row["study"] == "step":
        methods += [
            Skipped(name, f"{name} is a variant of the GPU kernels, and {NO_DEVICE}")
            for name in GPU_METHODS
            if name not in names
        ]
    if row["study"] != "threads" and "naive_scipy" not in names:
        methods.append(Skipped("naive_scipy", "SciPy's product takes one thread, and each vector as long as the first"))
    if row["study"] != "threads":
        # Over the threads (Figure 7) nothing is called: a call takes as many as it finds useful.
        matrix = host_matrix(sample.nx, sample.ny, sample.nz).astype(row["precision"])
        methods += called.methods(row, context, matrix)
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def size_of(row: Mapping[str, Any]) -> tuple[int, int, int, np.dtype[Any]]:
    """Return N, N_nz, R and the type of a row."""
    sample = sample_of(row)
    return sample.shape[0], sample.nnz, int(row["num_vectors"]), np.dtype(row["precision"])


def _host_methods(row: Mapping[str, Any], context: Context, threads: int) -> Sequence[Method]:
    from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
    from spectile_study.cases.kpm.sell import sell_operator

    sample, (rows, nnz, r, dtype) = sample_of(row), size_of(row)
    a, b = scaling(sample)
    matrix = host_matrix(sample.nx, sample.ny, sample.nz).astype(dtype)
    # Over the threads (Figure 7) what goes vector by vector takes one: its rate is that of many.
    few = 1 if row["study"] == "threads" else r

    def method(name: str, work: str, vectors: int, run: Any, prepare: Any = None) -> Method:
        size = (rows, nnz, vectors, dtype)
        return Method(
            name, run, checker(row, context, 0 if prepare is None else 1), {"error_fro_rel": LIMIT[str(dtype)]},
            flops=STEPS * model.step_flops(*size), bytes=STEPS * model.step_bytes(work, *size), prepare=prepare
        )  # fmt: skip

    def stage(name: str, operator: Any, work: str) -> Method:
        start = operator.random_block(context.seed, 0, r)
        recursion = CpuRecursion(operator, a, b, start.copy(), threads)

        def prepare() -> None:
            recursion.v[:] = start
            recursion.w[:] = 0
            recursion.steps = 0
            recursion.advance(1)

        return method(name, work, r, lambda: recursion.advance(STEPS), prepare)

    def one_by_one() -> Any:
        # Figure 4: the loop over the vectors outside, each with a block of one.
        operator = CpuOperator.from_csr(matrix)
        blocks = [operator.random_block(context.seed, n, 1) for n in range(few)]
        recursions = [CpuRecursion(operator, a, b, block.copy(), threads) for block in blocks]

        def prepare() -> None:
            for recursion, block in zip(recursions, blocks, strict=True):
                recursion.v[:], recursion.w[:], recursion.steps = block, 0, 0
                recursion.advance(1)

        def run() -> Any:
            return np.concatenate([each.advance(STEPS) for each in recursions], axis=1)

        return method("aug_spmv", "aug_spmv", few, run, prepare)

    start = np.asfortranarray(reference.random_phases(context.seed, rows, few, dtype=dtype))
    chain = Chain(matrix, threads)
    methods = [method("naive", "naive", few, lambda: chain.etas(start, STEPS, a, b)), one_by_one()]
    methods.append(stage("aug_spmmv", CpuOperator.from_csr(matrix), "aug_spmmv"))
    if row["study"] == "threads":
        return methods
    if r == 1:
        # Vector by vector, on one thread.
        methods.append(method("naive_scipy", "naive", r, lambda: etas_naive(matrix, start, STEPS, a, b)))
    return [
        *methods,
        stage("aug_spmmv_sell", sell_operator(matrix), "aug_spmmv"),
        stage("aug_spmmv_table", CpuOperator.from_matrix(matrix), "rows"),
        stage("stencil", CpuOperator.from_topological_insulator(sample, dtype), "stencil"),
    ]


def functions(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of the functions of the naive version."""
    from scipy.linalg import get_blas_funcs

    sample = sample_of(row)
    matrix = host_matrix(sample.nx, sample.ny, sample.nz)
    v, w = (reference.random_phases(context.seed + n, sample.shape[0], 1)[:, 0] for n in range(2))
    axpy, scal, nrm2, dotc = get_blas_funcs(("axpy", "scal", "nrm2", "dotc"), (v,))
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "spmv": (lambda: matrix @ v, lambda: sample_product(sample, v)),
        "axpy": (lambda: axpy(v, w.copy(), a=0.3), lambda: w + 0.3 * v),
        "scal": (lambda: scal(-1.0, w.copy()), lambda: -w),
        "nrm2": (lambda: nrm2(v) ** 2, lambda: np.sum(np.abs(v) ** 2)),
        "dot": (lambda: dotc(w, v), lambda: np.sum(w.conj() * v)),
    }
    return functions_problem(sample, calls, lambda result: result)


def sample_product(sample: TopologicalInsulator, v: Any) -> Any:
    """Return H v by the matrix-free kernel: an independent check of the stored matrix."""
    from spectile.kpm.cpu.engine import CpuEngine

    return CpuEngine(sample, np.dtype(np.complex128)).apply(v)


def functions_problem(
    sample: TopologicalInsulator, calls: Mapping[str, Any], fetch: Callable[[Any], Any], clock: Any = "wall"
) -> Problem:
    """Return the problem of Table I: one method a function, with the paper's least bytes and flop."""
    methods: list[Method | Skipped] = []
    for name, (least_bytes, flops) in model.functions(sample.shape[0], sample.nnz).items():
        run, expected = calls[name]

        def check(result: Any, expected: Any = expected) -> dict[str, float]:
            wanted = np.asarray(expected())
            return {"error_fro_rel": float(np.linalg.norm(fetch(result) - wanted) / np.linalg.norm(wanted))}

        methods.append(
            Method(name, run, check, {"error_fro_rel": 1e-12}, flops=flops, bytes=least_bytes, clock=clock)
        )  # fmt: skip
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def machine(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of the bandwidth and the arithmetic rate of the CPU."""
    from concurrent.futures import ThreadPoolExecutor

    from spectile_study.cases.kpm import peaks as cpu_peaks

    pool = ThreadPoolExecutor(context.threads)
    size = 30_000_000
    x, y, z = np.zeros(size), np.ones(size), np.full(size, 2.0)
    edges = np.linspace(0, size, context.threads + 1).astype(int)

    def threaded(work: Callable[[int], Any]) -> Any:
        return list(pool.map(work, range(context.threads)))

    def triad() -> Any:
        threaded(lambda n: cpu_peaks.triad(x, y, z, edges[n], edges[n + 1]))
        return x

    def update() -> Any:
        # In place, as aug_spmmv() writes W: no line is fetched only to be overwritten, and every byte is counted.
        threaded(lambda n: cpu_peaks.update(y, z, edges[n], edges[n + 1]))
        return y

    def peak() -> Any:
        return threaded(lambda n: cpu_peaks.multiply_add(cpu_peaks.ROUNDS))

    methods: list[Method | Skipped] = [
        Method(
            "triad", triad, lambda out: {"error_fro_rel": float(np.abs(out - 7.0).max())}, {"error_fro_rel": 0.0},
            flops=2.0 * size, bytes=24.0 * size
        ),
        Method(
            "update", update, lambda out: {"error_fro_rel": float(np.abs(out - 1.0).max())}, {"error_fro_rel": 0.0},
            flops=2.0 * size, bytes=24.0 * size
        ),
        Method(
            "fma_peak", peak, lambda out: {"error_fro_rel": float(max(abs(each - out[0]) for each in out))},
            {"error_fro_rel": 0.0}, flops=float(context.threads * cpu_peaks.ROUNDS * cpu_peaks.FLOPS), bytes=0.0
        ),
    ]  # fmt: skip
    return Problem(methods, values=_host_values(context.threads))


def _host_values(threads: int) -> dict[str, Value]:
    values: dict[str, Any] = {"cores": threads}
    cache = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [path.read_text().strip() for path in sorted(cache.glob("index*/size"))]
    kib = [int(size[:-1]) * (1024 if size.endswith("M") else 1) for size in sizes if size[:-1].isdigit()]
    if kib:
        values["llc_mib"] = max(kib) / 1024
    info = Path("/proc/cpuinfo")
    if info.exists():
        text = info.read_text()
        clocks = [float(line.split(":")[1]) for line in text.splitlines() if line.startswith("cpu MHz")]
        values["clock_mhz"] = max(clocks, default=None)
        values["simd_bytes"] = 64 if " avx512f" in text else 32 if " avx" in text else 16
        if clocks:
            # Two pipes, each a multiply-add of a whole register in a cycle.
            values["specified_gflops"] = threads * max(clocks) / 1e3 * values["simd_bytes"] / 8 * 4
    return values
