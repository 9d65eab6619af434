"""The studies of KPM on several devices: scaling over GPUs (Figure 12, Table III), a GPU and its CPU (Figure 11)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import model, shared
from spectile_study.cases.kpm.processes import mpi_runs

#: Steps of one timed call; even, and many, so that filling the streams is a small part of it.
STEPS = 20
#: Steps before it: the first one, and a sweep of two, which takes the memory that later sweeps use again.
FIRST = 3
#: Vectors of a stage that takes them one by one, in a heterogeneous run.
ONE_BY_ONE = 2
#: Options of each version that shares rows, and the work that it does.
VERSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "aug_spmmv": ({"stored": True}, "aug_spmmv"),
    "aug_spmmv_star": ({"stored": True}, "aug_spmmv"),
    "stencil": ({"steps_a_sweep": 1}, "stencil"),
    "blocked": ({"steps_a_sweep": 2}, "blocked"),
}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row: as many GPUs as its column ``gpus``."""
    names: tuple[str, ...] = tuple(VERSIONS)
    if row["study"] == "hybrid" and row.get("ranks"):
        names = ("aug_spmmv", "aug_spmmv_ranks_cpu_gpu")
    elif row["study"] == "hybrid":
        names = ("naive", "naive_cpu_gpu", "aug_spmv", "aug_spmv_cpu_gpu", "aug_spmmv", "aug_spmmv_cpu_gpu")
    elif "throughput" in row["scaling"]:
        names = ("aug_spmv",)
    elif "strong" in row["scaling"]:
        names = (*VERSIONS, "blocked_ranks")
    sample = shared.sample_of(row)
    inputs, values = {"potential": digest_array(sample.potential)}, shared.case_values(sample)
    if context.device != "cuda":
        return Problem([Skipped(name, f"{name} is compared on GPUs here, and {shared.NO_DEVICE}") for name in names])
    live: dict[str, Any] = {}
    partitions: dict[Any, Any] = {}
    methods: list[Method | Skipped] = []
    for name in names:
        if name.startswith("naive"):
            methods.append(_naive(name, row, context, live, methods[-1:]))
        elif name == "aug_spmv":
            methods.append(_throughput(row, context, live))
        elif name == "aug_spmmv_ranks_cpu_gpu":
            methods.append(_mixed_ranks(name, row, context, live, methods[-1:]))
        elif name.endswith("_cpu_gpu"):
            methods.append(_hybrid(name, row, context, live, methods[-1:]))
        elif row["gpus"] > 1:
            if name == "blocked_ranks":
                methods.append(_ranks(name, row, context, live))
            else:
                methods.append(_shared(name, row, context, live, partitions))
        elif name in ("aug_spmmv_star", "blocked_ranks"):
            methods.append(Skipped(name, "one GPU has nobody to send to or to sum with"))
        else:
            methods.append(_alone(name, row, context, live))
    return Problem(methods, inputs, values)


@functools.lru_cache(maxsize=1)
def reference_etas(nx: int, ny: int, nz: int, seed: int, threads: int) -> Any:
    """Return the scalar products of two vectors after FIRST + STEPS steps, by the CPU's matrix-free kernel in float64.

    SciPy would need the stored matrix, which is too large for these samples; that both agree is tested.
    """
    from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion

    sample = shared.insulator(nx, ny, nz)
    operator = CpuOperator.from_topological_insulator(sample, np.dtype(np.complex128))
    start = operator.random_block(seed, 0, 2)
    return CpuRecursion(operator, *shared.scaling(sample), start, threads).advance(FIRST + STEPS)


def _method(
    name: str,
    work: str,
    row: Mapping[str, Any],
    context: Context,
    run: Callable[[], Any],
    prepare: Callable[[], None] | None = None,
    clock: Clock = "wall",
    vectors: int | None = None,
) -> Method:
    sample = shared.sample_of(row)
    size = (sample.shape[0], sample.nnz, vectors or int(row["num_vectors"]))

    def check(etas: Any) -> dict[str, float]:
        expected = reference_etas(sample.nx, sample.ny, sample.nz, context.seed, context.threads)[2 * FIRST :]
        sums = np.asarray(etas)[:, :2]
        return {"error_fro_rel": float(np.linalg.norm(sums - expected) / np.linalg.norm(expected))}

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
    command, reason = mpi_runs.mpiexec()
    if reason is not None:
        return Skipped(name, reason)

    def prepare() -> None:
        live.clear()
        _free_pools(row["gpus"])

    run = mpi_runs.RankRuns(
        command, shared.sample_of(row), int(row["num_vectors"]), row["gpus"], STEPS, context.seed, "blocked", 12, FIRST
    )
    return _method(name, "blocked", row, context, run, prepare, "external")


def _free_pools(gpus: int) -> None:
    """Give the memory that CuPy keeps back to the devices: ranks and NCCL take theirs from there."""
    import cupy

    for device in range(gpus):
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().free_all_blocks()


def _with_gain(method: Method, alone: Sequence[Method | Skipped], cpu_s: float, values: Mapping[str, Any]) -> Method:
    """Return a method of the GPU and the CPU together whose record says what it could gain at best.

    Parameters
    ----------
    method : Method
        The GPU and the CPU together.
    alone : sequence of Method
        The GPU alone, timed as it is in this case: a trial of its own would differ from what the reader compares with.
    cpu_s : float
        Seconds that the CPU would take alone.
    values : mapping
        How the rows are shared.
    """
    (gpu,) = alone
    assert isinstance(gpu, Method) and gpu.prepare and gpu.flops and method.flops
    gpu.prepare()
    gpu_s = min(_seconds(gpu.run) for _ in range(3)) * method.flops / gpu.flops
    # Seconds of the sum of both rates, over those of both together, is the paper's parallel efficiency.
    found = {**values, "sum_of_both_s": 1 / (1 / gpu_s + 1 / cpu_s), "most_gain_percent": 100 * gpu_s / cpu_s}
    return replace(method, values=lambda _: found)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _no_plane(name: str, planes: int) -> Skipped:
    return Skipped(name, f"the CPU gets no plane: by a trial it takes longer for one than the GPU for all {planes}")


def _hybrid(
    name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any], alone: Sequence[Method | Skipped]
) -> Method | Skipped:  # fmt: skip
    """Time one GPU and the CPU beside it, planes divided by what each does alone in the same stage."""
    from spectile_study.cases.kpm.hybrid import HybridEngine, planes_of_cpu, trial

    sample, r = shared.sample_of(row), int(row["num_vectors"])
    a, b = shared.scaling(sample)
    # Figure 4 takes vector by vector: a few, whose rate is that of many.
    width, count = (1, ONE_BY_ONE) if name.startswith("aug_spmv_") else (r, 1)
    # One thread launches what the GPU does.
    threads = max(1, context.threads - 1)
    seconds = trial(sample, threads, width)
    planes = planes_of_cpu(sample.nx, seconds)
    if not planes:
        return _no_plane(name, sample.nx)
    engine = HybridEngine(sample, planes, threads)

    def prepare() -> None:
        live.clear()
        live["recursions"] = [engine.random(context.seed, n, width, a, b) for n in range(count)]
        for recursion in live["recursions"]:
            recursion.advance(FIRST)

    def run() -> Any:
        return np.concatenate([recursion.advance(STEPS) for recursion in live["recursions"]], axis=1)

    method = _method(name, name.removesuffix("_cpu_gpu"), row, context, run, prepare, vectors=width * count)
    values = {"cpu_planes": planes, "cpu_threads": threads, "cpu_weight_percent": _weight(seconds)}
    return _with_gain(method, alone, STEPS * count * sample.nx * seconds["cpu"], values)


def _weight(seconds: Mapping[str, float]) -> float:
    """Return the CPU's part of the sum of both rates, in percent."""
    return 100 * seconds["cuda"] / (seconds["cuda"] + seconds["cpu"])


def _naive(
    name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any], gpu_alone: Sequence[Method | Skipped]
) -> Method | Skipped:  # fmt: skip
    """Time the naive chain of a few vectors on one GPU, or on it and the CPU."""
    from spectile_study.cases.kpm.hybrid import planes_of_cpu
    from spectile_study.cases.kpm.together import NaiveTogether, alone

    sample, (a, b) = shared.sample_of(row), shared.scaling(shared.sample_of(row))
    threads, planes = max(1, context.threads - 1), 0
    together = name.endswith("_cpu_gpu")
    if together:
        seconds = alone(sample, threads, a, b)
        planes = planes_of_cpu(sample.nx, seconds)
        if not planes:
            return _no_plane(name, sample.nx)

    def prepare() -> None:
        live.clear()
        _free_pools(1)
        live["chains"] = []
        for vector in range(ONE_BY_ONE):
            chain = NaiveTogether(sample, planes, threads, a, b)
            chain.begin(context.seed, vector)
            chain.advance(FIRST)
            live["chains"].append(chain)

    def run() -> Any:
        return np.concatenate([chain.advance(STEPS) for chain in live["chains"]], axis=1)

    method = _method(name, "naive", row, context, run, prepare, vectors=ONE_BY_ONE)
    if not together:
        return method
    values = {"cpu_planes": planes, "cpu_threads": threads, "cpu_weight_percent": _weight(seconds)}
    return _with_gain(method, gpu_alone, STEPS * ONE_BY_ONE * sample.nx * seconds["cpu"], values)


def _mixed_ranks(
    name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any], alone: Sequence[Method | Skipped]
) -> Method | Skipped:  # fmt: skip
    """Time one MPI rank with the GPU and one with the CPU, rows divided by what each does alone with the same kernels.

    A rank has rows, not planes, and may have very few: how little they could gain is in the record.
    """
    import cupy

    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.stored import StoredRecursion
    from spectile_study.cases.kpm.hybrid import TRIAL_PLANES, seconds_a_step, trial

    command, reason = mpi_runs.mpiexec()
    if reason is not None:
        return Skipped(name, reason)
    sample, r = shared.sample_of(row), int(row["num_vectors"])
    # `num_threads` shares the cores among the ranks.
    seconds = trial(sample, max(1, context.threads // 2), r)
    # A rank's rows are any matrix's to its GPU, which takes them without staging V.
    few = TopologicalInsulator(TRIAL_PLANES["cuda"], sample.ny, sample.nz, hopping=sample.hopping)
    operator = CsrOperator(few.matrix(xp=cupy))
    recursion = StoredRecursion(operator, *shared.scaling(few), operator.random_block(0, 0, r))
    seconds["cuda"] = seconds_a_step(recursion) / few.nx
    del operator, recursion
    weight = seconds["cpu"] / seconds["cuda"]

    def prepare() -> None:
        live.clear()
        _free_pools(1)

    run = mpi_runs.RankRuns(command, sample, r, row["ranks"], STEPS, context.seed, "mixed", 12, FIRST, weight)
    method = _method(name, "aug_spmmv", row, context, run, prepare, "external")
    values = {"cpu_weight_percent": _weight(seconds)}
    return _with_gain(method, alone, STEPS * sample.nx * seconds["cpu"], values)


def _alone(name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method:
    """Time one GPU with the whole sample: what scaling is measured against."""
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.staged import when as staging
    from spectile.kpm.cuda.staged.launch import StagedOperator
    from spectile.kpm.cuda.stencil.launch import StencilOperator, StencilRecursion
    from spectile.kpm.cuda.stored import StoredRecursion

    options, work = VERSIONS[name]
    sample, r = shared.sample_of(row), int(row["num_vectors"])
    a, b = shared.scaling(sample)
    operator: Any
    if "stored" in options:
        matrix = sample.matrix(xp=cupy)
        operator = CsrOperator(matrix)
        if staging.applies(operator.problem(r), describe()) == "":
            operator = StagedOperator(matrix)

        def fresh() -> Any:
            return StoredRecursion(operator, a, b, operator.random_block(context.seed, 0, r))
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
    name: str, row: Mapping[str, Any], context: Context, live: dict[str, Any], partitions: dict[Any, Any]
) -> Method:
    """Time several GPUs; versions that differ in messages alone take what the devices hold from `partitions`."""
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    options, work = VERSIONS[name]
    sample, r = shared.sample_of(row), int(row["num_vectors"])
    a, b = shared.scaling(sample)
    kind = options.get("stored"), options.get("steps_a_sweep")
    engine = MultiGpuMatrix(sample, range(max(1, row["gpus"])), **options).engine(
        np.dtype(np.complex128), partitions.get(kind)
    )
    partitions[kind] = engine.partitions

    def prepare() -> None:
        live.clear()  # one method's vectors at a time fit into memory
        live["recursion"] = engine.random(context.seed, 0, r, a, b)
        live["recursion"].advance(FIRST)

    def run() -> Any:
        recursion = live["recursion"]
        if name == "aug_spmmv_star":  # a reduction every step
            return np.concatenate([recursion.advance(1) for _ in range(STEPS)])
        return recursion.advance(STEPS)

    return _method(name, work, row, context, run, prepare)


def _throughput(row: Mapping[str, Any], context: Context, live: dict[str, Any]) -> Method:
    """Time the non-blocked version: every GPU has the whole matrix, and runs vectors of its own one by one."""
    import cupy

    from spectile.kpm.cuda.sliced.launch import SlicedOperator
    from spectile.kpm.distributed.device import PartitionDevice

    sample, r = shared.sample_of(row), int(row["num_vectors"])
    a, b = shared.scaling(sample)
    devices = [PartitionDevice(number, number) for number in range(max(1, row["gpus"]))]
    operators = []
    for device in devices:
        with device.working():
            operators.append(SlicedOperator(sample.matrix(xp=cupy)))

    def prepare() -> None:
        live.clear()
        live["etas"], live["blocks"] = [], []
        for device, operator in zip(devices, operators, strict=True):
            mine = range(device.partition, r, len(devices))
            with device.working():
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
        for turn in range(-(-r // len(devices))):
            for device, etas, (launch, pairs) in zip(devices, live["etas"], live["blocks"], strict=True):
                if turn < len(pairs):
                    v, w = pairs[turn]
                    with device.working():
                        for step in range(FIRST, FIRST + STEPS):
                            v, w = w, v
                            launch(v, w, 2 * a, -2 * a * b, 1.0, etas[turn, step])
        whole = np.empty((2 * STEPS, r))
        for device, etas in zip(devices, live["etas"], strict=True):
            with device.working():
                whole[:, device.partition :: len(devices)] = etas[:, FIRST:].get().reshape(-1, 2 * STEPS).T
        return whole

    return _method("aug_spmv", "aug_spmv", row, context, run, prepare)
