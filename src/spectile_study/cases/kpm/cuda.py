"""The studies of KPM on one CUDA device: the stages, the library calls, the machine, densities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.kpm import reference
from spectile.kpm.cuda.common import FULL, NO_DOTS, PLAIN
from spectile.kpm.cuda.csr.launch import CsrOperator
from spectile.kpm.cuda.sliced.launch import SlicedOperator
from spectile.kpm.cuda.staged import when as staging
from spectile.kpm.cuda.staged.launch import StagedOperator
from spectile.kpm.cuda.stencil.launch import StencilOperator
from spectile.kpm.cuda.stored import StoredOperator
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import called, counters, densities, model, shared, spmm
from spectile_study.cases.kpm.host import functions_problem, sample_product
from spectile_study.cases.kpm.peaks import GPU_PEAK
from spectile_study.cases.kpm.rivals import etas_naive_cuda, fill_columns, fill_rows
from spectile_study.cases.kpm.shared import LIMIT, STEPS


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row on the CUDA device."""
    return _STUDIES[row["study"]](row, context)


@functools.lru_cache(maxsize=2)
def _matrix(nx: int, ny: int, nz: int) -> Any:
    import cupy

    return shared.insulator(nx, ny, nz).matrix(xp=cupy)


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


class _Step:
    """One step of every stage on the device, on the block vectors and matrices that they share."""

    def __init__(self, row: Mapping[str, Any], context: Context) -> None:
        self.row, self.context = row, context
        self.sample, self.r, self.dtype = shared.sample_of(row), int(row["num_vectors"]), np.dtype(row["precision"])
        sample = self.sample
        self.a, self.b = shared.scaling(sample)
        self.size = (sample.shape[0], sample.nnz, self.r, self.dtype)
        # From the second step on: H and the recurrence, as often as a call does it.
        self.factors = (2 * self.a, -2 * self.a * self.b, 1.0)
        self.first = (self.a, -self.a * self.b, 0.0)
        self.check = shared.checker(row, context, 1)
        self.natural = _cast(_matrix(sample.nx, sample.ny, sample.nz), self.dtype)
        self.csr = CsrOperator(self.natural)
        self.vectors = _Block()
        wide = staging.applies(self.csr.problem(self.r), describe()) == ""
        self.operator: StoredOperator = StagedOperator(self.natural) if wide else self.csr

    def problem(self) -> Problem:
        """Return all stages, and calls of ``kpm_dos``."""
        methods: list[Method | Skipped] = [
            self.naive(),
            self.spmm(),
            self.one_by_one(),
            self.stored("aug_spmmv"),
            self.stored("aug_spmmv_sell", operator=SlicedOperator(self.natural)),
            self.stored("spmmv", "spmmv", PLAIN),
            self.stored("aug_spmmv_nodots", mode=NO_DOTS),
            self.sweep("stencil", 1),
            self.sweep("blocked", 2),
            *called.methods(self.row, self.context, self.natural),
        ]
        return Problem(methods, {"potential": digest_array(self.sample.potential)}, shared.case_values(self.sample))

    def method(self, name: str, work: str, run: Any, prepare: Any, check: Any) -> Method:
        """Return one stage; `work` names its least bytes (``model.step_bytes``)."""
        return Method(
            name, run, check, {"error_fro_rel": LIMIT[str(self.dtype)]}, flops=STEPS * model.step_flops(*self.size),
            bytes=STEPS * model.step_bytes(work, *self.size), clock="events", prepare=prepare
        )  # fmt: skip

    def etas(self) -> Any:
        """Return an array for the scalar products of the first step and of a call."""
        import cupy

        return cupy.empty((STEPS + 1, 2, self.r))

    def stored(
        self, name: str, work: str = "aug_spmmv", mode: int = FULL, operator: StoredOperator | None = None
    ) -> Method:
        """Return the block step on the stored matrix."""
        import cupy

        operator = operator or self.operator
        launch, first = operator.launcher(self.r, mode), operator.launcher(self.r)
        etas = self.etas()
        v, w = (self.vectors.get(part, operator.shape(self.r), self.dtype) for part in "vw")

        def prepare() -> None:
            operator.fill(v, self.context.seed, 0)
            w.fill(0)
            first(v, w, *self.first, etas[0])
            etas[1:].fill(np.nan)

        def run() -> Any:
            x, y = v, w
            for step in range(1, STEPS + 1):
                x, y = y, x
                launch(x, y, *self.factors, etas[step])
            return etas[1:]

        def check_product(_: Any) -> dict[str, float]:
            # One launch against the full kernel, on the same vectors: W = H V, or the recurrence without its dots.
            prepare()
            wanted = w.copy()
            first(v, wanted, *((1.0, 0.0, 0.0) if mode == PLAIN else self.factors), etas[1])
            image = w.copy()
            launch(v, image, *self.factors, etas[1])
            return {"error_fro_rel": float(cupy.linalg.norm(image - wanted) / cupy.linalg.norm(wanted))}

        return self.method(name, work, run, prepare, self.check if mode == FULL else check_product)

    def one_by_one(self) -> Method:
        """Return aug_spmv(), vector by vector."""
        import cupy

        operator = SlicedOperator(self.natural)
        launch, r = operator.launcher(1), self.r
        etas, one = self.etas(), cupy.empty((r, STEPS + 1, 2, 1))
        v, w = (self.vectors.get(part, (r, self.sample.shape[0], 1), self.dtype) for part in "vw")

        def prepare() -> None:
            w.fill(0)
            for k in range(r):
                operator.fill(v[k], self.context.seed, k)
                launch(v[k], w[k], *self.first, one[k, 0])

        def run() -> Any:
            for k in range(r):
                x, y = v[k], w[k]
                for step in range(1, STEPS + 1):
                    x, y = y, x
                    launch(x, y, *self.factors, one[k, step])
            etas[:] = one[..., 0].transpose(1, 2, 0)
            return etas[1:]

        return self.method("aug_spmv", "aug_spmv", run, prepare, self.check)

    def sweep(self, name: str, steps: int) -> Method:
        """Return the matrix-free step, one or two a sweep."""
        operator = StencilOperator(self.sample, self.dtype)
        first, launch = operator.launcher(self.r, 1), operator.launcher(self.r, steps)
        etas = self.etas()
        blocks = [
            self.vectors.get(part, operator.shape(self.r), self.dtype) for part in ("vw" if steps == 1 else "vwxy")
        ]

        def prepare() -> None:
            operator.fill(blocks[0], self.context.seed, 0)
            blocks[1].fill(0)
            first(blocks[0], blocks[1], blocks[1], blocks[1], *self.first, etas[:1])
            etas[1:].fill(np.nan)

        def run() -> Any:
            now, before, *free = blocks[1], blocks[0], *blocks[2:]
            for step in range(1, STEPS + 1, steps):
                if steps == 1:
                    launch(now, before, before, before, *self.factors, etas[step : step + 1])
                    now, before = before, now
                else:
                    launch(now, before, free[0], free[1], *self.factors, etas[step : step + 2])
                    now, before, free = free[0], free[1], [before, now]
            return etas[1:]

        return self.method(name, name, run, prepare, self.check)

    def naive(self) -> Method:
        """Return the vendor's chain."""
        start = self.vectors.get("v", (self.r, self.sample.shape[0]), self.dtype)

        def prepare() -> None:
            fill_columns(start, self.context.seed)

        def run() -> Any:
            return etas_naive_cuda(self.natural, start.T, STEPS, self.a, self.b)

        return self.method("naive", "naive", run, prepare, shared.checker(self.row, self.context, 0))

    def spmm(self) -> Method | Skipped:
        """Return the vendor's product of the whole block, and one kernel of what it leaves."""
        if self.r > spmm.THREADS:
            return Skipped("spmm", f"the fused kernel takes {spmm.THREADS} vectors at most")
        v, w = (self.vectors.get(part, (self.sample.shape[0], self.r), self.dtype) for part in "vw")
        product = spmm.Vendor(self.natural, v, w)

        def prepare() -> None:
            fill_rows(v, self.context.seed)
            w.fill(0)

        def run() -> Any:
            return spmm.etas_fused(product, spmm.shift_and_dots, v, w, STEPS, self.a, self.b)

        return self.method("spmm", "spmm", run, prepare, shared.checker(self.row, self.context, 0))


def step(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one step of the recurrence, all stages beside each other."""
    return _Step(row, context).problem()


def _counters(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of counting the bytes that the kernels of one step move; nothing is timed."""
    sample, r, dtype = shared.sample_of(row), int(row["num_vectors"]), np.dtype(row["precision"])
    try:
        volumes_by_method = counters.count(dict(row) | {"study": "step"}, context.seed, context.threads, shared.COUNTED)
    except counters.NoCounters as reason:
        return Problem([Skipped(name, str(reason)) for name in shared.COUNTED], values=shared.case_values(sample))
    size = (sample.shape[0], sample.nnz, r, dtype)

    def method(name: str, work: str) -> Method:
        volumes = dict(volumes_by_method[name])
        error = volumes.pop("error_fro_rel")
        return Method(
            name, lambda: volumes, lambda _: {"error_fro_rel": error}, {"error_fro_rel": LIMIT[str(dtype)]},
            flops=STEPS * model.step_flops(*size), bytes=STEPS * model.step_bytes(work, *size), clock="none",
            values=lambda result: result,
        )  # fmt: skip

    return Problem(
        [method(name, work) for name, work in shared.COUNTED.items()],
        {"potential": digest_array(sample.potential)}, shared.case_values(sample)
    )  # fmt: skip


def _cast(matrix: Any, dtype: Any) -> Any:
    return matrix if matrix.dtype == dtype else matrix.astype(dtype)


def _functions(row: Mapping[str, Any], context: Context) -> Problem:
    import cupy
    from cupy import cublas
    from cupyx import cusparse

    sample = shared.sample_of(row)
    matrix = _matrix(sample.nx, sample.ny, sample.nz)
    v, w = (cupy.asarray(reference.random_phases(context.seed + k, sample.shape[0], 1)[:, 0]) for k in range(2))
    u = cupy.empty_like(v)
    minus, out = cupy.array(-1, v.dtype), cupy.empty((), v.dtype)
    real_out = cupy.empty((), np.float64)

    def host(name: str) -> Callable[[], Any]:
        # Evaluated when checked: axpy and scal change w, and the check knows what w was.
        return lambda: expected[name]

    x, y = v.get(), w.get()
    expected = {
        "spmv": sample_product(sample, x), "axpy": y + 0.3 * x, "scal": -(y + 0.3 * x),
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
        values = result.get()
        return values**2 if values.dtype == np.float64 else values

    return functions_problem(sample, calls, fetch, "events")


def _machine(row: Mapping[str, Any], context: Context) -> Problem:
    import cupy

    size = 200_000_000
    x, y, z = cupy.zeros(size), cupy.ones(size), cupy.full(size, 2.0)
    triad = cupy.ElementwiseKernel("float64 y, float64 z", "float64 x", "x = y + 3.0 * z", "kpm_triad")
    threads, rounds = 2048 * describe().multiprocessors, 4096
    peak = kernel(GPU_PEAK, "multiply_add")
    out = cupy.empty(threads)

    def run_triad() -> Any:
        return triad(y, z, x)

    def run_peak() -> Any:
        peak(Shape((threads // 256,), 256), out, np.int32(rounds), np.float64(0.5))
        return out

    def spread(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.abs(result - result[0]).max())}

    def run_copy() -> Any:
        cupy.cuda.runtime.memcpyAsync(
            address(x), address(z), z.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, cupy.cuda.get_current_stream().ptr
        )
        return x

    methods: list[Method | Skipped] = [
        Method(
            "copy", run_copy, lambda result: {"error_fro_rel": float(cupy.abs(result - 2.0).max())},
            {"error_fro_rel": 0.0}, flops=0.0, bytes=16.0 * size, clock="events"
        ),
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
            "specified_gbytes_s": describe().bytes_per_second / 1e9,
            "specified_gflops": _specified_gflops(clock / 1e6),
        },
    )


def _specified_gflops(clock_ghz: float) -> float | None:
    """Return the rate of double-precision multiply-adds without tensor cores, where they run at half of float32's."""
    device = describe()
    return (
        device.multiprocessors * 64 * 2 * clock_ghz
        if device.compute_capability >= (9, 0) and device.fast_fp64
        else None
    )


_STUDIES: dict[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "machine": _machine,
    "functions": _functions,
    "step": step,
    "counters": _counters,
    "dos": lambda row, context: densities.dos_problem(row, context, "cuda"),
    "surface": lambda row, context: densities.surface_problem(row, context, "cuda"),
}
