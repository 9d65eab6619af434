"""What the workflow measures of KPM: one function a study; the run sheet's column ``study`` chooses.

Steps are timed from the second on, on fresh start vectors, and their scalar products are compared with SciPy's in
float64.  On a CUDA context ``cases_gpu`` builds the studies of one device; ``host_step``, ``threads`` and ``ranks`` are
about the CPU and stay here.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spectile.kpm import api, bounds, engine, reference
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import model

PAPER = "kpm"
#: Steps of one timed call; even, since the temporally blocked sweep does two at once.
STEPS = 4
LIMIT = {"complex128": 1e-12, "complex64": 1e-5}
NO_DEVICE = "this machine has no CUDA device"
#: Environment variable that names a Python which has Kwant.
KWANT = "SPECTILE_KWANT"
GPU_METHODS = ("aug_spmmv_sell", "spmmv", "aug_spmmv_nodots", "aug_spmmv_table", "aug_spmmv_mixed", "blocked")

#: Methods whose bytes are counted for Figures 9 and 10, and the work of each (``model.step_bytes``).
COUNTED = {
    "spmmv": "spmmv", "aug_spmmv_nodots": "aug_spmmv", "aug_spmmv": "aug_spmmv", "stencil": "stencil",
    "blocked": "blocked"
}  # fmt: skip


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/kpm.tsv``."""
    study = row["study"]
    if context.device == "cuda" and study in ("machine", "functions", "step", "counters", "dos", "surface"):
        from spectile_study.cases.kpm.cuda import build as build_on_device

        return build_on_device(row, context)
    return _STUDIES[study](row, context)


def sample_of(row: Mapping[str, Any]) -> TopologicalInsulator:
    """Return the topological insulator of a row."""
    return TopologicalInsulator(row["nx"], row["ny"], row["nz"])


@functools.lru_cache(maxsize=1)
def _matrix(nx: int, ny: int, nz: int) -> Any:
    return TopologicalInsulator(nx, ny, nz).matrix()


@functools.lru_cache(maxsize=4)
def reference_etas(nx: int, ny: int, nz: int, seed: int) -> Any:
    """Return the scalar products of two vectors after STEPS + 1 steps in float64, by SciPy."""
    matrix = _matrix(nx, ny, nz)
    a, b = scaling(TopologicalInsulator(nx, ny, nz))
    start = reference.random_phases(seed, matrix.shape[0], 2)
    return reference.etas_blocked(matrix, start, 2 * (STEPS + 1), a, b)


def scaling(sample: TopologicalInsulator) -> tuple[float, float]:
    """Return a and b of every timed step: Gershgorin's bounds, which need no time."""
    return bounds.scaling(sample.gershgorin())


def checker(row: Mapping[str, Any], context: Context, first: int) -> Callable[[Any], dict[str, float]]:
    """Return the check of a step's scalar products, shape (2 STEPS, R), that begin with step `first`."""
    expected = reference_etas(row["nx"], row["ny"], row["nz"], context.seed)[2 * first : 2 * (first + STEPS)]

    def check(result: Any) -> dict[str, float]:
        etas = result.get() if hasattr(result, "get") else result
        found = np.asarray(etas).reshape(2 * STEPS, -1)[:, :2]
        wanted = expected[:, : found.shape[1]]
        return {"error_fro_rel": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))}

    return check


def case_values(sample: TopologicalInsulator) -> dict[str, Value]:
    """Return what belongs to the sample."""
    return {"rows": sample.shape[0], "nnz": sample.nnz, "nnz_per_row": sample.nnz / sample.shape[0]}


# --- the stages, Figures 7, 8 and 11 ----------------------------------------------------------------------------------


def _step(row: Mapping[str, Any], context: Context) -> Problem:
    sample = sample_of(row)
    threads = row["threads"] or context.threads
    measured = _host_methods(row, context, threads)
    methods: list[Method | Skipped] = list(measured)
    here = {method.name for method in measured}
    methods += [
        Skipped(name, f"{name} is a variant of the GPU kernels, and {NO_DEVICE}")
        for name in GPU_METHODS
        if name not in here
    ]
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def _host_methods(row: Mapping[str, Any], context: Context, threads: int) -> Sequence[Method]:
    from spectile.kpm.cpu import recursion as cpu
    from spectile.kpm.sell import SellMatrix

    sample, r, dtype = sample_of(row), int(row["num_vectors"]), np.dtype(row["precision"])
    a, b = scaling(sample)
    matrix = _matrix(sample.nx, sample.ny, sample.nz).astype(dtype)
    shared = dict[str, Any](limits={"error_fro_rel": LIMIT[str(dtype)]})
    size = (sample.shape[0], sample.nnz, r, dtype)
    flops = STEPS * model.step_flops(*size)

    def stage(name: str, operator: Any, work: str) -> Method:
        start = operator.random_block(context.seed, 0, r)
        recursion = cpu.CpuRecursion(operator, a, b, start.copy(), threads)

        def prepare() -> None:
            recursion.v[:] = start
            recursion.w[:] = 0
            recursion.steps = 0
            recursion.advance(1)

        return Method(
            name, lambda: recursion.advance(STEPS), checker(row, context, 1), flops=flops,
            bytes=STEPS * model.step_bytes(work, *size), prepare=prepare, **shared
        )  # fmt: skip

    def one_by_one() -> Any:
        # Figure 4: the loop over the vectors outside, each with a block of one.
        operator = cpu.CpuOperator.from_csr(matrix)
        blocks = [operator.random_block(context.seed, n, 1) for n in range(r)]
        recursions = [cpu.CpuRecursion(operator, a, b, block.copy(), threads) for block in blocks]

        def prepare() -> None:
            for recursion, block in zip(recursions, blocks, strict=True):
                recursion.v[:], recursion.w[:], recursion.steps = block, 0, 0
                recursion.advance(1)

        return Method(
            "aug_spmv", lambda: np.concatenate([each.advance(STEPS) for each in recursions], axis=1),
            checker(row, context, 1), flops=flops, bytes=STEPS * model.step_bytes("aug_spmv", *size), prepare=prepare,
            **shared
        )  # fmt: skip

    start = np.asfortranarray(reference.random_phases(context.seed, sample.shape[0], r, dtype=dtype))
    naive = Method(
        "naive", lambda: cpu.etas_naive(matrix, start, STEPS, a, b), checker(row, context, 0), flops=flops,
        bytes=STEPS * model.step_bytes("naive", *size), **shared
    )  # fmt: skip
    return [
        naive,
        one_by_one(),
        stage("aug_spmmv", cpu.CpuOperator.from_csr(matrix), "aug_spmmv"),
        stage("aug_spmmv_sell", cpu.CpuOperator.from_sell(SellMatrix.from_csr(matrix)), "aug_spmmv"),
        stage("aug_spmmv_table", cpu.CpuOperator.from_matrix(matrix), "rows"),
        stage("stencil", cpu.CpuOperator.from_topological_insulator(sample, dtype), "stencil"),
    ]


# --- the functions of the naive version, Table I ----------------------------------------------------------------------


def _functions(row: Mapping[str, Any], context: Context) -> Problem:
    from scipy.linalg import get_blas_funcs

    sample = sample_of(row)
    matrix = _matrix(sample.nx, sample.ny, sample.nz)
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
    return engine.CpuEngine(sample, np.dtype(np.complex128)).apply(v)


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


# --- the machine, Table II --------------------------------------------------------------------------------------------


def _machine(row: Mapping[str, Any], context: Context) -> Problem:
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
    values: dict[str, Value] = {"cores": threads}
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
    return values


# --- densities, Figures 1 and 2 ---------------------------------------------------------------------------------------


def _dos(row: Mapping[str, Any], context: Context) -> Problem:
    return dos_problem(row, context, "cpu")


def dos_problem(row: Mapping[str, Any], context: Context, backend: Any) -> Problem:
    """Return the problem of a density of states, from the Hamiltonian to the curve with error bars."""
    sample, moments, vectors = sample_of(row), int(row["num_moments"]), int(row["num_vectors"])

    def check(density: Any) -> dict[str, float]:
        n = sample.shape[0]
        # Exact: the number of states, and the mean energy, which is the mean potential (Γ¹ has no trace).
        spread = float(np.sqrt(density.integrate(lambda energy: energy**2) / n))
        mean = density.integrate(lambda energy: energy) / n - float(sample.potential.mean())
        return {
            "error_states_rel": abs(density.integrate() / n - 1),
            "error_mean_sigma": abs(mean) / (spread / np.sqrt(n * vectors)) / 5,
        }

    def values(density: Any) -> dict[str, Value]:
        low, high = density.bounds
        energies = np.linspace(low, high, 1500)
        near = np.searchsorted(density.energies, energies).clip(0, len(density.energies) - 1)
        return {
            "energies": energies.tolist(),
            "densities": density(energies).tolist(),
            "errors": density.errors[near].tolist(),
        }

    def run() -> Any:
        return api.SpectralDensity(sample, moments, vectors, rng=context.seed, backend=backend)

    size = (sample.shape[0], sample.nnz, vectors)
    method = Method(
        "spectile", run, check, {"error_states_rel": 1e-10, "error_mean_sigma": 1.0},
        flops=moments / 2 * model.step_flops(*size), bytes=moments / 2 * model.step_bytes("stencil", *size),
        values=values
    )  # fmt: skip
    return Problem([method], inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def _host_dos(row: Mapping[str, Any], context: Context) -> Problem:
    """Compare a density of the stored matrix with Kwant's: the same vectors, bounds and moments, on the CPU."""
    sample, moments, vectors = sample_of(row), int(row["num_moments"]), int(row["num_vectors"])
    matrix, limits = _matrix(sample.nx, sample.ny, sample.nz), sample.gershgorin()
    energies = np.linspace(*limits, 201)[10:-10]

    @functools.cache
    def expected() -> Any:
        # The chain of library calls, on the vectors that the density takes.
        start = _vectors_of(context.seed, sample.shape[0], vectors)
        a, b = scaling(sample)
        moment = reference.moments_from_etas(reference.etas_blocked(matrix, start, moments, a, b)).mean(axis=1)
        return a * reference.chebyshev_density(moment * reference.jackson_kernel(moments), a * (energies - b))

    def check(densities: Any) -> dict[str, float]:
        wanted = expected()
        return {"error_fro_rel": float(np.linalg.norm(densities - wanted) / np.linalg.norm(wanted))}

    def run() -> Any:
        return api.SpectralDensity(matrix, moments, vectors, rng=context.seed, bounds=limits, backend="cpu")

    size = (sample.shape[0], sample.nnz, vectors)
    shared = dict[str, Any](
        limits={"error_fro_rel": 1e-9}, flops=moments / 2 * model.step_flops(*size),
        bytes=moments / 2 * model.step_bytes("aug_spmmv", *size)
    )  # fmt: skip
    methods: list[Method | Skipped] = [
        Method("spectile", run, lambda density: check(density(energies)), **shared),
        _kwant(sample, moments, vectors, energies, context, check, shared),
    ]
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def _vectors_of(seed: int, rows: int, count: int) -> Any:
    """Return the start vectors, shape (rows, count), of a density whose `rng` is `seed`."""
    return reference.random_phases(int(np.random.default_rng(seed).integers(2**62)), rows, count)


def _kwant(
    sample: TopologicalInsulator, moments: int, vectors: int, energies: Any, context: Context,
    check: Callable[[Any], dict[str, float]], shared: Mapping[str, Any]
) -> Method | Skipped:  # fmt: skip
    python = os.environ.get(KWANT)
    if python is None:
        return Skipped(
            "kwant", f"Kwant 1.5 needs NumPy 1: install it in an environment of its own, and name its Python in {KWANT}"
        )

    def run() -> Any:
        matrix = _matrix(sample.nx, sample.ny, sample.nz)
        with tempfile.TemporaryDirectory() as folder:
            problem = f"{folder}/problem.npz"
            np.savez(
                problem, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, energies=energies,
                vectors=_vectors_of(context.seed, matrix.shape[0], vectors).T, bounds=sample.gershgorin(),
                eps=2 - 2 * bounds.FILL
            )  # fmt: skip
            command = [python, str(Path(__file__).with_name("kwant_dos.py")), problem, str(moments), "1"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise RuntimeError(f"Kwant ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        found = json.loads(done.stdout)
        return np.array(found["densities"]), found["seconds"][0]

    return Method("kwant", run, check, clock="external", **shared)


def _surface(row: Mapping[str, Any], context: Context) -> Problem:
    return surface_problem(row, context, "cpu")


def surface_problem(row: Mapping[str, Any], context: Context, backend: Any) -> Problem:
    """Return the problem of Figure 2: the local density on the surface, and A(k, E) of surface waves."""
    sample, moments = sample_of(row), int(row["num_moments"])
    limits = (-1.0, 1.0)
    x, y = np.meshgrid(np.arange(sample.nx), np.arange(sample.ny), indexing="ij")
    sites = np.array([sample.row(int(i), int(j), 0) for i, j in zip(x.ravel(), y.ravel(), strict=True)])
    rows = (sites[:, None] + np.arange(4)).ravel()
    k = 2 * np.pi * np.arange(-(sample.nx // 2), sample.nx // 2 + 1) / sample.nx
    row_numbers = np.arange(sample.shape[0])
    site = row_numbers // 4
    positions = np.stack([site // (sample.ny * sample.nz), site // sample.nz % sample.ny], axis=1)
    surface = (site % sample.nz == 0).astype(float)

    def local() -> Any:
        return api.ldos(sample, rows, moments, bounds=sample.gershgorin(), backend=backend)

    def momentum() -> Any:
        return api.spectral_function(
            sample, np.stack([k, 0 * k], axis=1), positions, row_numbers % 4, surface, moments,
            bounds=sample.gershgorin(), backend=backend
        )  # fmt: skip

    def local_values(curves: Any) -> dict[str, Value]:
        at = float(sample.potential.max()) / 2
        image = curves(at).reshape(-1, 4).sum(axis=1)
        return {"map": image.tolist(), "map_energy": at}

    def momentum_values(curves: Any) -> dict[str, Value]:
        energies = np.linspace(*limits, max(2, min(96, 4096 // len(k))))
        return {
            "image": curves(energies).ravel().tolist(), "wavevectors": k.tolist(), "image_energies": energies.tolist()
        }  # fmt: skip

    def check(expected: float) -> Callable[[Any], dict[str, float]]:
        return lambda curves: {"error_states_rel": float(np.abs(curves.integrate() / expected - 1).max())}

    methods: list[Method | Skipped] = [
        Method("ldos", local, check(1.0), {"error_states_rel": 1e-10}, values=local_values),
        Method("spectral_function", momentum, check(4.0), {"error_states_rel": 1e-10}, values=momentum_values),
    ]
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


# --- ranks, Figure 12 and Table III -----------------------------------------------------------------------------------


def mpiexec() -> tuple[str, str | None]:
    """Return the command that starts MPI ranks, and why there is none."""
    command = shutil.which("mpiexec") or shutil.which("mpiexec", path=f"{sys.prefix}/bin")
    if command is None:
        return "", "no MPI runtime was found: install one (pip install mpich, or the system's openmpi-bin)"
    return command, None


class RankRuns:
    """Timed calls of one method on MPI ranks, each (scalar products, seconds).

    Ranks take seconds to start: one start times many calls, each from barrier to barrier, and hands them out.
    """

    def __init__(
        self, command: str, sample: Any, num_vectors: int, ranks: int, steps: int, seed: int, method: str, calls: int,
        first: int = 1
    ) -> None:  # fmt: skip
        size = (sample.nx, sample.ny, sample.nz, num_vectors, steps, seed)
        self._command = [
            command,
            "-n",
            str(ranks),
            sys.executable,
            "-m",
            "spectile_study.cases.kpm.ranks",
            *map(str, size),
        ]
        self._command += [method, str(calls), str(first)]
        self._seconds: list[float] = []
        self._etas = np.empty(0)

    def __call__(self) -> tuple[Any, float]:
        """Return the next call; start ranks where none is left."""
        if not self._seconds:
            # Open MPI would bind all threads of a rank to one core.
            free = dict.fromkeys(
                ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy"), "none"
            )
            done = subprocess.run(
                self._command, capture_output=True, text=True, check=False, timeout=600, env=os.environ | free
            )
            if done.returncode:
                raise RuntimeError(f"mpiexec ended with {done.returncode}: {done.stderr.strip()[-300:]}")
            # MPI runtimes add lines of their own.
            answers = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
            if not answers:
                raise RuntimeError(f"the ranks answered nothing: {(done.stdout + done.stderr).strip()[-300:]}")
            found = json.loads(answers[-1])
            self._seconds, self._etas = list(found["seconds"]), np.array(found["etas"])
        return self._etas, self._seconds.pop()


def _ranks(row: Mapping[str, Any], context: Context) -> Problem:
    """Time ranks of one machine: throughput mode, a reduction every step, one reduction."""
    sample, r, ranks = sample_of(row), int(row["num_vectors"]), int(row["ranks"])
    size = (sample.shape[0], sample.nnz, r)
    values = case_values(sample)
    command, reason = mpiexec()
    if reason is None and ranks > context.threads:
        reason = f"{ranks} ranks need as many cores, and this run has {context.threads}"
    methods: list[Method | Skipped] = []
    for name in ("aug_spmv", "aug_spmmv_star", "aug_spmmv"):
        if reason is not None:
            methods.append(Skipped(name, reason))
            continue
        run = RankRuns(command, sample, r, ranks, STEPS, context.seed, name, 12)
        work = "aug_spmv" if name == "aug_spmv" else "aug_spmmv"
        methods.append(
            Method(
                name, run, checker(row, context, 1), {"error_fro_rel": 1e-12}, flops=STEPS * model.step_flops(*size),
                bytes=STEPS * model.step_bytes(work, *size), clock="external"
            )
        )  # fmt: skip
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=values)


def _counters(row: Mapping[str, Any], context: Context) -> Problem:
    return Problem([Skipped(name, f"counters are those of the GPU's memories, and {NO_DEVICE}") for name in COUNTED])


def _devices(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.kpm.multi import build as build_on_several

    return build_on_several(row, context)


_STUDIES: dict[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "machine": _machine,
    "host_machine": _machine,
    "functions": _functions,
    "step": _step,
    "counters": _counters,
    "host_step": _step,
    "threads": _step,
    "dos": _dos,
    "host_dos": _host_dos,
    "surface": _surface,
    "ranks": _ranks,
    "devices": _devices,
    "hybrid": _devices,
}
