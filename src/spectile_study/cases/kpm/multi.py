"""The studies of KPM on several devices: scaling over GPUs (Figure 12, Table III), a GPU and its CPU (Figure 11)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import build as cases
from spectile_study.cases.kpm import model

#: Steps of one timed call; even, and many, so that filling the streams is a small part of it.
STEPS = 20
#: Steps before it: the first one, and a sweep of two, which takes the memory that later sweeps use again.
FIRST = 3
#: Options of each version that shares rows, and the work that it does.
VERSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "aug_spmmv": ({"stored": True}, "aug_spmmv"),
    "aug_spmmv_star": ({"stored": True, "reduce_every_step": True}, "aug_spmmv"),
    "stencil": ({"steps_a_sweep": 1}, "stencil"),
    "blocked": ({"steps_a_sweep": 2}, "blocked"),
    "blocked_nccl": ({"steps_a_sweep": 2, "transport": "nccl"}, "blocked"),
}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row: as many GPUs as its column ``gpus``."""
    names: tuple[str, ...] = tuple(VERSIONS)
    if row["study"] == "hybrid":
        names = ("aug_spmmv", "aug_spmmv_cpu_gpu")
    elif "throughput" in row["scaling"]:
        names = ("aug_spmv",)
    elif "strong" in row["scaling"]:
        names = (*VERSIONS, "blocked_ranks")
    sample = cases.sample_of(row)
    inputs, values = {"potential": digest_array(sample.potential)}, cases.case_values(sample)
    if context.device != "cuda":
        return Problem([Skipped(name, f"{name} is compared on GPUs here, and {cases.NO_DEVICE}") for name in names])
    live: dict[str, Any] = {}
    holders: dict[Any, Any] = {}
    methods: list[Method | Skipped] = []
    for name in names:
        if name == "aug_spmv":
            methods.append(_throughput(row, context, live))
        elif name == "aug_spmmv_cpu_gpu":
            methods.append(_hybrid(row, context, live))
        elif row["gpus"] > 1:
            several = name == "blocked_ranks"
            methods.append(_ranks(name, row, context, live) if several else _shared(name, row, context, live, holders))
        elif name in ("aug_spmmv_star", "blocked_nccl", "blocked_ranks"):
            methods.append(Skipped(name, "one GPU has nobody to send to or to sum with"))
        else:
            methods.append(_alone(name, row, context, live))
    return Problem(methods, inputs, values)


@functools.lru_cache(maxsize=1)
def reference_etas(nx: int, ny: int, nz: int, seed: int, threads: int) -> Any:
    """Return the scalar products of two vectors after FIRST + STEPS steps, by the CPU's matrix-free kernel in float64.

    SciPy would need the stored matrix, which is too large for these samples; that both agree is tested.
    """
    from spectile.kpm.cpu.recursion import CpuOperator, CpuRecursion

    sample = TopologicalInsulator(nx, ny, nz)
    operator = CpuOperator.from_topological_insulator(sample, np.dtype(np.complex128))
    start = operator.random_block(seed, 0, 2)
    return CpuRecursion(operator, *cases.scaling(sample), start, threads).advance(FIRST + STEPS)


def _method(
    name: str,
    work: str,
    row: Mapping[str, Any],
    context: Context,
    run: Callable[[], Any],
    prepare: Callable[[], None] | None = None,
    clock: Clock = "wall",
) -> Method:
    sample, r = cases.sample_of(row), int(row["num_vectors"])
    size = (sample.shape[0], sample.nnz, r)

    def check(etas: Any) -> dict[str, float]:
        expected = reference_etas(sample.nx, sample.ny, sample.nz, context.seed, context.threads)[2 * FIRST :]
        found = np.asarray(etas)[:, :2]
        return {"error_fro_rel": float(np.linalg.norm(found - expected) / np.linalg.norm(expected))}

    return Method(
        name,
        run,
        check,
        {"error_fro_rel": 1e-12},
        flops=STEPS * model.step_flops(*size),
        bytes=STEPS * model.step_bytes(work, *size),
        prepare=prepare,
        clock=clock,
    )


def _ranks(name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method | Skipped:
    """Time one MPI rank a GPU, with NCCL between them."""
    command, reason = cases.mpiexec()
    if reason is not None:
        return Skipped(name, reason)

    def prepare() -> None:
        live.clear()
        _give_back(row["gpus"])

    run = cases.RankRuns(
        command, cases.sample_of(row), int(row["num_vectors"]), row["gpus"], STEPS, context.seed, "blocked", 12, FIRST
    )
    return _method(name, "blocked", row, context, run, prepare, "external")


def _give_back(gpus: int) -> None:
    """Give the memory that CuPy keeps back to the devices: ranks and NCCL take theirs from there."""
    import cupy

    for device in range(gpus):
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().free_all_blocks()


def _hybrid(row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method:
    """Time one GPU and the CPU beside it, planes shared by what each does alone."""
    from spectile.kpm.distributed.hybrid import HybridInsulator

    sample, r = cases.sample_of(row), int(row["num_vectors"])
    a, b = cases.scaling(sample)
    # One thread launches what the GPU does.
    engine = HybridInsulator(sample, threads=max(1, context.threads - 1)).engine(np.dtype(np.complex128))

    def prepare() -> None:
        live.clear()
        live["recursion"] = engine.random(context.seed, 0, r, a, b)
        live["recursion"].advance(FIRST)

    method = _method("aug_spmmv_cpu_gpu", "aug_spmmv", row, context, lambda: live["recursion"].advance(STEPS), prepare)
    return replace(method, values=lambda _: {"cpu_planes": engine.cpu_planes, "cpu_threads": engine.threads})


def _alone(name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method:
    """Time one GPU with the whole sample: what scaling is measured against."""
    import cupy

    from spectile.kpm.cuda.staged import StagedOperator, stages
    from spectile.kpm.cuda.stencil import StencilOperator, StencilRecursion
    from spectile.kpm.cuda.stored import STRIP, StoredOperator, StoredRecursion, rows_in_strips

    options, work = VERSIONS[name]
    sample, r = cases.sample_of(row), int(row["num_vectors"])
    a, b = cases.scaling(sample)
    operator: Any
    if "stored" in options and stages(r, np.dtype(np.complex128)):
        operator = StagedOperator(sample.matrix(xp=cupy))

        def fresh() -> Any:
            return StoredRecursion(operator, a, b, operator.random_block(context.seed, 0, r))
    elif "stored" in options:
        strip = STRIP if sample.nz % STRIP == 0 else sample.nz
        plane = 4 * sample.ny * sample.nz
        operator = StoredOperator(sample.matrix(xp=cupy, strip=strip), "csr", plane)
        numbers = rows_in_strips(sample, range(sample.nx), strip, cupy)

        def fresh() -> Any:
            block = cupy.empty((sample.shape[0], r), np.complex128)
            operator.fill(block, context.seed, 0, numbers)
            return StoredRecursion(operator, a, b, block)
    else:
        operator = StencilOperator(sample)

        def fresh() -> Any:
            return StencilRecursion(operator, a, b, operator.random_block(context.seed, 0, r), options["steps_a_sweep"])

    def prepare() -> None:
        live.clear()
        live["recursion"] = fresh()
        live["recursion"].advance(FIRST)

    return _method(name, work, row, context, lambda: live["recursion"].advance(STEPS), prepare)


def _shared(
    name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any], holders: dict[Any, Any]
) -> Method:
    """Time several GPUs; versions that differ in messages alone take what the devices hold from `holders`."""
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    options, work = VERSIONS[name]
    sample, r = cases.sample_of(row), int(row["num_vectors"])
    a, b = cases.scaling(sample)
    held = options.get("stored"), options.get("steps_a_sweep")
    engine = MultiGpuMatrix(sample, range(max(1, row["gpus"])), **options).engine(
        np.dtype(np.complex128), holders.get(held)
    )
    holders[held] = engine.holders

    def prepare() -> None:
        live.clear()  # one method's vectors at a time fit into memory
        if options.get("transport") == "nccl":
            _give_back(row["gpus"])
        live["recursion"] = engine.random(context.seed, 0, r, a, b)
        live["recursion"].advance(FIRST)

    return _method(name, work, row, context, lambda: live["recursion"].advance(STEPS), prepare)


def _throughput(row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method:
    """Time the non-blocked version: every GPU has the whole matrix, and runs vectors of its own one by one."""
    import cupy

    from spectile.kpm.cuda.stored import StoredOperator
    from spectile.kpm.distributed.shares import Place

    sample, r = cases.sample_of(row), int(row["num_vectors"])
    a, b = cases.scaling(sample)
    places = [Place(number, number) for number in range(max(1, row["gpus"]))]
    operators = []
    for place in places:
        with place.working():
            operators.append(StoredOperator(sample.matrix(xp=cupy), "sell"))

    def prepare() -> None:
        live.clear()
        live["etas"], live["blocks"] = [], []
        for place, operator in zip(places, operators, strict=True):
            mine = range(place.number, r, len(places))
            with place.working():
                launch = operator.launcher(1)
                etas = cupy.empty((len(mine), FIRST + STEPS, 2, 1))
                pairs = []
                for target, number in zip(etas, mine, strict=True):
                    v = operator.random_block(context.seed, number, 1)
                    w = cupy.zeros_like(v)
                    launch(v, w, a, -a * b, 0.0, target[0])
                    for step in range(1, FIRST):
                        v, w = w, v
                        launch(v, w, 2 * a, -2 * a * b, 1.0, target[step])
                    pairs.append((v, w))
                live["etas"].append(etas)
                live["blocks"].append((launch, pairs))

    def run() -> Any:
        for turn in range(-(-r // len(places))):
            for place, etas, (launch, pairs) in zip(places, live["etas"], live["blocks"], strict=True):
                if turn < len(pairs):
                    v, w = pairs[turn]
                    with place.working():
                        for step in range(FIRST, FIRST + STEPS):
                            v, w = w, v
                            launch(v, w, 2 * a, -2 * a * b, 1.0, etas[turn, step])
        whole = np.empty((2 * STEPS, r))
        for place, etas in zip(places, live["etas"], strict=True):
            with place.working():
                whole[:, place.number :: len(places)] = etas[:, FIRST:].get().reshape(-1, 2 * STEPS).T
        return whole

    return _method("aug_spmv", "aug_spmv", row, context, run, prepare)
