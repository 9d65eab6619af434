"""The studies of KPM on one CUDA device: the stages, the library calls, the machine, densities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.bench.case import Context, Method, Problem, Skipped
from spectile.bench.provenance import digest_array

from . import cases, gpu, model, reference
from .cases import LIMIT, STEPS
from .gpu_staged import StagedOperator

#: Sites of a strip of the plane (``TopologicalInsulator.matrix``): the patch that one multiprocessor works on.
STRIP = 8


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row on the CUDA device."""
    return {
        "machine": _machine,
        "functions": _functions,
        "step": _step,
        "dos": lambda row, context: cases.dos_problem(row, context, "cuda"),
        "surface": lambda row, context: cases.surface_problem(row, context, "cuda"),
    }[row["study"]](row, context)


@functools.lru_cache(maxsize=2)
def _matrix(nx: int, ny: int, nz: int, strip: int | None) -> Any:
    import cupy

    from spectile.inputs.topological_insulator import TopologicalInsulator

    return TopologicalInsulator(nx, ny, nz).matrix(xp=cupy, strip=strip)


class _Block:
    """The pair of block vectors that the methods of a case share: only one method runs at a time."""

    def __init__(self) -> None:
        self.arrays: dict[Any, Any] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        import cupy

        size = int(np.prod(shape))
        if name not in self.arrays or self.arrays[name].size < size:
            self.arrays[name] = cupy.empty(size, dtype)
        return self.arrays[name][:size].view(dtype)[:size].reshape(shape)


def _step(row: Mapping[str, Any], context: Context) -> Problem:
    import cupy

    sample, r, dtype = cases.sample_of(row), int(row["num_vectors"]), np.dtype(row["precision"])
    a, b = cases.scaling(sample)
    n, plane = sample.shape[0], 4 * sample.ny * sample.nz
    size = (n, sample.nnz, r, dtype)
    flops = STEPS * model.step_flops(*size)
    limits = {"error_fro_rel": LIMIT[str(dtype)]}
    check_from_1 = cases.checker(row, context, 1)
    strip = STRIP if sample.nz % STRIP == 0 else None
    patches, natural = (_cast(_matrix(sample.nx, sample.ny, sample.nz, s), dtype) for s in (strip, None))
    shared = _Block()
    wide = gpu.stages(r, dtype)
    narrow = "blocks of fewer than 32 vectors, or devices before Hopper, do not stage V through shared memory"

    def method(name: str, work: str, run: Any, prepare: Any, check: Any) -> Method:
        return Method(
            name, run, check, limits, flops=flops, bytes=STEPS * model.step_bytes(work, *size), clock="events",
            prepare=prepare
        )  # fmt: skip

    staged = functools.cache(lambda table, work: StagedOperator(natural, table, work))

    def stored(
        name: str, work: str, mode: int = gpu.FULL, layout: str = "csr", table: bool = False, arithmetic: Any = None
    ) -> Method:
        # SELL gives a row to a thread, and then the natural order is the coalesced one; the inspector finds its own.
        in_patches = layout == "csr" and r > 8 and not wide
        if layout == "csr" and wide:
            operator: gpu.StoredOperator = staged(table, arithmetic)
        else:
            operator = gpu.StoredOperator(patches if in_patches else natural, layout, plane if in_patches else None)
        order = cupy.asarray(_patch_order(sample, strip)) if in_patches and strip else None
        launch, first = operator.launcher(r, mode), operator.launcher(r)
        etas = cupy.empty((STEPS + 1, 2, r))
        v, w = (shared.get(part, (n, r), dtype) for part in "vw")

        def prepare() -> None:
            operator.fill(v, context.seed, 0, order)
            w.fill(0)
            first(v, w, a, -a * b, 0.0, etas[0])
            etas[1:].fill(np.nan)

        def run() -> Any:
            x, y = v, w
            for step in range(1, STEPS + 1):
                x, y = y, x
                launch(x, y, 2 * a, -2 * a * b, 1.0, etas[step])
            return etas[1:]

        if mode == gpu.FULL:
            return method(name, work, run, prepare, check_from_1)

        def check_product(_: Any) -> dict[str, float]:
            # One launch against the full kernel, on the same vectors: W = H V, or the recurrence without its dots.
            prepare()
            wanted = w.copy()
            first(v, wanted, *((1.0, 0.0, 0.0) if mode == gpu.PLAIN else (2 * a, -2 * a * b, 1.0)), etas[1])
            w_found = w.copy()
            launch(v, w_found, 2 * a, -2 * a * b, 1.0, etas[1])
            return {"error_fro_rel": float(cupy.linalg.norm(w_found - wanted) / cupy.linalg.norm(wanted))}

        return method(name, work, run, prepare, check_product)

    def one_by_one() -> Method:
        operator = gpu.StoredOperator(natural, "sell")
        launch = operator.launcher(1)
        etas = cupy.empty((STEPS + 1, 2, r))
        one = cupy.empty((r, STEPS + 1, 2, 1))
        v, w = (shared.get(part, (r, n, 1), dtype) for part in "vw")

        def prepare() -> None:
            w.fill(0)
            for k in range(r):
                operator.fill(v[k], context.seed, k, None)
                launch(v[k], w[k], a, -a * b, 0.0, one[k, 0])

        def run() -> Any:
            for k in range(r):
                x, y = v[k], w[k]
                for step in range(1, STEPS + 1):
                    x, y = y, x
                    launch(x, y, 2 * a, -2 * a * b, 1.0, one[k, step])
            etas[:] = one[..., 0].transpose(1, 2, 0)
            return etas[1:]

        return method("aug_spmv", "aug_spmv", run, prepare, check_from_1)

    def sweep(name: str, work: str, steps: int) -> Method:
        operator = gpu.StencilOperator(sample, dtype)
        shape = operator.shape(r)
        names = "vw" if steps == 1 else "vwxy"
        first, launch = operator.launcher(r, 1), operator.launcher(r, steps)
        etas = cupy.empty((STEPS + 1, 2, r))
        blocks = [shared.get(part, shape, dtype) for part in names]

        def prepare() -> None:
            operator.fill(blocks[0], context.seed, 0)
            blocks[1].fill(0)
            first(blocks[0], blocks[1], blocks[1], blocks[1], a, -a * b, 0.0, etas[:1])
            etas[1:].fill(np.nan)

        def run() -> Any:
            now, before, *free = blocks[1], blocks[0], *blocks[2:]
            for step in range(1, STEPS + 1, steps):
                if steps == 1:
                    launch(now, before, before, before, 2 * a, -2 * a * b, 1.0, etas[step : step + 1])
                    now, before = before, now
                else:
                    launch(now, before, free[0], free[1], 2 * a, -2 * a * b, 1.0, etas[step : step + 2])
                    now, before, free = free[0], free[1], [before, now]
            return etas[1:]

        return method(name, work, run, prepare, check_from_1)

    def naive() -> Method:
        start = shared.get("v", (r, n), dtype)

        def prepare() -> None:
            gpu.fill_columns(start, context.seed)

        def run() -> Any:
            return gpu.etas_naive(natural, start.T, STEPS, a, b)

        return method("naive", "naive", run, prepare, cases.checker(row, context, 0))

    methods: list[Method | Skipped] = [
        naive(),
        one_by_one(),
        stored("aug_spmmv", "aug_spmmv"),
        stored("aug_spmmv_sell", "aug_spmmv", layout="sell")
        if r <= 8
        else Skipped("aug_spmmv_sell", "with more than 8 vectors a row's entries are read side by side: CSR is SELL-1"),
        stored("spmmv", "spmmv", gpu.PLAIN),
        stored("aug_spmmv_nodots", "aug_spmmv", gpu.NO_DOTS),
        stored("aug_spmmv_table", "table", table=True) if wide else Skipped("aug_spmmv_table", narrow),
        stored("aug_spmmv_mixed", "aug_spmmv", arithmetic="complex128")
        if wide and dtype == np.complex64
        else Skipped(
            "aug_spmmv_mixed", "complex128 arithmetic on complex64 storage needs a complex64 case of 32 vectors"
        ),
        sweep("stencil", "stencil", 1),
        sweep("blocked", "blocked", 2),
    ]
    return Problem(methods, {"potential": digest_array(sample.potential)}, cases.case_values(sample))


def _cast(matrix: Any, dtype: Any) -> Any:
    return matrix if matrix.dtype == dtype else matrix.astype(dtype)


def _patch_order(sample: Any, strip: int | None) -> Any:
    """Return the natural row of each row of the matrix that is numbered in strips."""
    strip = strip or sample.nz
    site = np.arange(sample.num_sites).reshape(sample.nx, sample.ny, sample.nz // strip, strip)
    natural = site.transpose(0, 2, 1, 3).reshape(-1)
    return (natural[:, None] * 4 + np.arange(4)).reshape(-1).astype(np.int32)


def _functions(row: Mapping[str, Any], context: Context) -> Problem:
    import cupy
    from cupy import cublas
    from cupyx import cusparse

    sample = cases.sample_of(row)
    matrix = _matrix(sample.nx, sample.ny, sample.nz, None)
    v, w = (cupy.asarray(reference.random_phases(context.seed + k, sample.shape[0], 1)[:, 0]) for k in range(2))
    u = cupy.empty_like(v)
    minus, out = cupy.array(-1, v.dtype), cupy.empty((), v.dtype)
    real_out = cupy.empty((), np.float64)

    def host(name: str) -> Callable[[], Any]:
        # Evaluated when checked: axpy and scal change w, and the check knows what w was.
        return lambda: expected[name]

    x, y = v.get(), w.get()
    expected = {
        "spmv": cases.sample_product(sample, x), "axpy": y + 0.3 * x, "scal": -(y + 0.3 * x),
        "nrm2": np.sum(np.abs(x) ** 2), "dot": np.sum((-(y + 0.3 * x)).conj() * x),
    }  # fmt: skip

    def axpy() -> Any:
        cublas.axpy(0.3, v, w)
        return w

    def scal() -> Any:
        cublas.scal(minus, w)
        return w

    def nrm2() -> Any:
        return cublas.nrm2(v, out=real_out)

    calls = {
        "spmv": (lambda: cusparse.spmv(matrix, v, u), host("spmv")),
        "axpy": (axpy, host("axpy")),
        "scal": (scal, host("scal")),
        "nrm2": (nrm2, host("nrm2")),
        "dot": (lambda: cublas.dotc(w, v, out=out), host("dot")),
    }

    def fetch(result: Any) -> Any:
        found = result.get()
        return found**2 if found.dtype == np.float64 else found

    return cases.functions_problem(sample, calls, fetch, "events")


def _machine(row: Mapping[str, Any], context: Context) -> Problem:
    import cupy

    from spectile.gpu.device import describe

    size = 200_000_000
    x, y, z = cupy.zeros(size), cupy.ones(size), cupy.full(size, 2.0)
    triad = cupy.ElementwiseKernel("float64 y, float64 z", "float64 x", "x = y + 3.0 * z", "kpm_triad")
    threads, rounds = 2048 * describe().multiprocessors, 4096
    peak = gpu.peak_unit().function("multiply_add")
    out = cupy.empty(threads)

    def run_triad() -> Any:
        return triad(y, z, x)

    def run_peak() -> Any:
        peak((threads // 256,), (256,), (out, np.int32(rounds), np.float64(0.5)))
        return out

    def spread(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.abs(result - result[0]).max())}

    methods: list[Method | Skipped] = [
        Method(
            "triad", run_triad, lambda result: {"error_fro_rel": float(cupy.abs(result - 7.0).max())},
            {"error_fro_rel": 0.0}, flops=2.0 * size, bytes=24.0 * size, clock="events"
        ),
        Method(
            "fma_peak", run_peak, spread, {"error_fro_rel": 0.0}, flops=2.0 * 8 * rounds * threads, bytes=0.0,
            clock="events"
        ),
    ]  # fmt: skip
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    clock = cupy.cuda.runtime.deviceGetAttribute(13, cupy.cuda.Device().id)  # cudaDevAttrClockRate, kHz
    return Problem(
        methods,
        values={
            "cores": describe().multiprocessors,
            "llc_mib": properties["l2CacheSize"] / 2**20,
            "clock_mhz": clock / 1000,
            "simd_bytes": 512,
        },
    )
