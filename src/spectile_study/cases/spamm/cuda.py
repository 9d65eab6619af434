"""What the workflow measures of SpAMM on CUDA: the product at Table 1's thresholds, Table 3, and the kernel's ideas.

On several GPUs, ``spectile_30`` ... have rows of A and all of B on every GPU, ``spectile_30_device`` all on the first,
``spectile_30_host`` all in pinned host memory; ``one_gpu_30`` is one GPU's product in the same rounds.
Norm maps and candidate lists are inside every clock; N <= 2048 is timed by graph replay on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from spectile.nearsparse.api import PRECISIONS
from spectile.nearsparse.cuda import run as gpu
from spectile.nearsparse.cuda import units as gpu_kernels
from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm.build import BLOCK, ERROR_LIMIT, TABLE_1, sampled_rows, thresholds, truncation_values
from spectile_study.inputs import decay

# Vendor's product that Table 2's speed-up refers to, and further ones shown beside it.
VENDOR_MODES = {"fp16": "fp16_fp32", "fp16c16": "fp16_fp16", "fp32": "fp32", "tf32x3": "fp32", "fp64": "fp64"}
# Share of the intermediate products that cuSPARSE computes at a time where all at once do not fit.
CHUNK = 0.05


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of a ``product``, ``truncation`` or ``ablation`` row on one GPU."""
    return {"product": _product, "truncation": _truncation, "ablation": _ablation}[row["study"]](row, context)


def toeplitz(first: Any, n: int) -> Any:
    """Return the symmetric Toeplitz matrix with this first column on the device, made there strip by strip."""
    import cupy

    column, matrix = cupy.asarray(first), cupy.empty((n, n), first.dtype)
    indices = cupy.arange(n)
    for start in range(0, n, 512):
        matrix[start : start + 512] = column[cupy.abs(indices[start : start + 512, None] - indices[None])]
    return matrix


class _Operands:
    """A and B in separate buffers, the output they share, and the float64 check of sampled tile rows."""

    def __init__(self, n: int, precision: str, seed: int) -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        self.first = decay.algebraic(n, 1, dtype=PRECISIONS[precision][0])[:, 0].copy()
        self.n, self.precision = n, precision
        self.a = toeplitz(self.first, n)
        self.b = self.a.copy()
        self.out = cupy.empty((n, n), PRECISIONS[precision][1])
        self.tile_rows = sampled_rows(n, seed)
        self.clock: Clock = "graph" if n <= 2048 else "events"
        self.bytes = float(self.a.nbytes + self.b.nbytes + self.out.nbytes)
        # A float32 sum of k addends of one sign may err by k u; an eighth of that is allowed.
        self.limit = max(ERROR_LIMIT[precision], 0.0 if precision == "fp64" else n / 8 * 2.0**-24)

    def poison(self) -> None:
        self.out.fill(np.nan)

    def error(self, expected: Callable[[int], Any]) -> float:
        """Return the largest relative error of the sampled tile rows, and infinity where one holds NaN."""
        import cupy

        worst = 0.0
        for tile in self.tile_rows:
            wanted = expected(tile)
            found = self.out[tile * BLOCK : (tile + 1) * BLOCK].astype(np.float64)
            error = float(cupy.linalg.norm(found - wanted) / cupy.linalg.norm(wanted))
            worst = max(worst, error if error == error else float("inf"))
        return worst

    def dense_rows(self, tile: int) -> Any:
        """Return a tile row of A B in float64."""
        return self._rows(tile, lambda start, stop: None)

    def executed_rows(self, tile: int, maps: gpu.NormMaps, tau: float, grain: tuple[int, int, int]) -> Any:
        """Return a tile row of A B in float64 over what a kernel of this grain executes."""
        import cupy

        group = slice(tile // grain[0] * grain[0], (tile // grain[0] + 1) * grain[0])
        rows = maps.a[group].max(axis=0)
        starts = range(0, maps.b.shape[0], grain[1])
        wide = cupy.stack([maps.b[j : j + grain[1]].max(axis=0) for j in starts])
        columns = cupy.repeat(wide, grain[1], axis=0)[: maps.b.shape[0]]

        def mask(start: int, stop: int) -> Any:
            part = slice(start // BLOCK, stop // BLOCK)
            valid = rows[part, None] * columns[:, part].T >= rows.dtype.type(tau)
            return cupy.repeat(cupy.repeat(valid, BLOCK, 0), BLOCK, 1)[:, : self.n]

        return self._rows(tile, mask)

    def _rows(self, tile: int, mask: Callable[[int, int], Any]) -> Any:
        import cupy

        strip = cupy.zeros((BLOCK, self.n))
        rows = self.a[tile * BLOCK : (tile + 1) * BLOCK].astype(np.float64)
        for start in range(0, self.n, 1024):
            stop = min(start + 1024, self.n)
            part = self.b[start:stop].astype(np.float64)
            kept = mask(start, stop)
            strip += rows[:, start:stop] @ (part if kept is None else part * kept)
        return strip

    def spamm(self, name: str, tau: float, kernel: gpu.Kernel | None = None) -> Method:
        """Return SpAMM at `tau` with everything in the clock."""
        import cupy

        maps = gpu.NormMaps(self.a, self.b, BLOCK)
        product = gpu.Product(self.a, self.b, self.out, maps, tau, precision=self.precision, kernel=kernel)
        maps()
        total = maps.a.size * maps.b.shape[0]
        on_device = cupy.asarray([tau])
        valid = float(gpu.count_products(maps, (0, 0), on_device)[0]) / total
        executed = float(gpu.count_products(maps, (0, 0), on_device, product.grain)[0]) / total

        def run() -> None:
            maps()
            product()

        def check(_: None) -> dict[str, float]:
            return {"error_fro_rel": self.error(lambda tile: self.executed_rows(tile, maps, tau, product.grain))}

        def values(_: None) -> dict[str, Value]:
            return {"tau": tau, "valid_ratio": valid, "executed_ratio": executed, "kernel": product.kernel}

        return Method(
            name,
            run,
            check,
            {"error_fro_rel": self.limit},
            flops=2.0 * BLOCK**3 * total * valid,
            bytes=self.bytes,
            memory_bytes=int(self.out.nbytes + maps.a.nbytes + maps.b.nbytes),
            clock=self.clock,
            values=values,
            prepare=self.poison,
        )

    def vendor(self, name: str, mode: str, limit: float) -> Method:
        """Return cuBLAS's dense product."""
        from spectile_study.bench.vendor import Gemm, gemm_flops

        gemm = Gemm(self.a, self.b, self.out, mode)  # type: ignore[arg-type]
        return Method(
            name,
            run=gemm,
            check=lambda _: {"error_fro_rel": self.error(self.dense_rows)},
            limits={"error_fro_rel": limit},
            flops=gemm_flops(self.n, self.n, self.n),
            bytes=self.bytes,
            memory_bytes=int(self.out.nbytes),
            clock=self.clock,
            prepare=self.poison,
        )


def _product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM at Table 1's thresholds and cuBLAS on the same matrices (Table 2, Figure 5)."""
    if row["gpus"] > 1:
        return _spread_product(row, context)
    precision = row["precision"]
    operands = _Operands(row["n"], precision, context.seed)
    methods: list[Method | Skipped] = [operands.spamm(name, tau) for name, tau in thresholds(row).items()]
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    if precision == "tf32x3":
        methods.append(operands.vendor("cublas_tf32", "tf32", 3e-3))
    return Problem(methods, inputs={"a": digest_array(operands.first)})


def _spread_product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time the product spread over several GPUs, in three placements, beside one GPU's and cuBLAS (Figure 5)."""
    precision, taus = row["precision"], thresholds(row)
    operands = _Operands(row["n"], precision, context.seed)
    # Replays of a graph would leave out what launching on several devices costs.
    operands.clock = "events"
    spread = Spread(operands.a, operands.b, operands.out, precision, row["gpus"], TABLE_1[row["n"]][0])
    methods: list[Method | Skipped] = [spread.resident(name, tau) for name, tau in taus.items()]
    name, tau = next(iter(taus.items()))
    methods += [spread.from_device(f"{name}_device", tau), spread.from_host(f"{name}_host", tau)]
    methods.append(dataclasses.replace(operands.spamm(name, tau), name="one_gpu_30"))
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    return Problem(methods, inputs={"a": digest_array(operands.first)})


class Spread:
    """A product over several GPUs, timed in its placements and compared bit by bit with one GPU's.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        On the first device.
    precision : str
        Of the product.
    gpus : int
        How many devices share it.
    tau : float, optional
        Threshold at which the rows are cut for `resident`; without one columns are cut, in equal parts.
    """

    def __init__(self, a: Any, b: Any, out: Any, precision: str, gpus: int, tau: float | None) -> None:
        import cupy

        from spectile.nearsparse.multi import run as gpu_multi

        self.a, self.b, self.out, self.precision = a, b, out, precision
        self.devices = list(range(gpus))
        for index in self.devices[1:]:
            with cupy.cuda.Device(index):
                cupy.get_default_memory_pool().free_all_blocks()
        self.by_rows = tau is not None
        self._split: Literal["rows", "columns"] = "rows" if self.by_rows else "columns"
        # Without a threshold all parts have equal work.
        self.parts_a, self.parts_b = gpu_multi.distribute(a, b, tau or 0.0, self.devices, split=self._split)
        self.parts_c = []
        for mine, other in zip(self.parts_a, self.parts_b, strict=True):
            with mine.device:
                self.parts_c.append(cupy.empty((len(mine), other.shape[1]), out.dtype))
        self.bytes = float(a.nbytes + b.nbytes + out.nbytes)

    def resident(self, name: str, tau: float, clock: Clock = "events") -> Method:
        """Return the product of operands that lie on their GPUs."""
        from spectile.nearsparse.multi import run as gpu_multi

        asked = gpu_multi.Options(self.precision, tau)
        plan = gpu_multi.Resident(self.parts_a, self.parts_b, self.parts_c, asked, split=self._split)
        return dataclasses.replace(self._method(name, tau, plan, [len(part) for part in self.parts_a]), clock=clock)

    def from_device(self, name: str, tau: float) -> Method:
        """Return the product of matrices on the first GPU."""
        from spectile.nearsparse.multi import run as gpu_multi

        plan = gpu_multi.FromDevice(self.a, self.b, self.out, self.devices, gpu_multi.Options(self.precision, tau))
        return self._method(name, tau, plan, list(np.diff(plan.rows).tolist()))

    def from_host(self, name: str, tau: float) -> Method:
        """Return the product of matrices in pinned host memory."""
        import cupyx

        from spectile.nearsparse.multi import run as gpu_multi

        a, b, out = (cupyx.empty_pinned(x.shape, x.dtype) for x in (self.a, self.b, self.out))
        for target, source in ((a, self.a), (b, self.b)):
            source.get(out=target)
        plan = gpu_multi.FromHost(a, b, out, self.devices, gpu_multi.Options(self.precision, tau))
        return self._method(name, tau, plan, [])

    def _method(self, name: str, tau: float, plan: Any, rows: list[int]) -> Method:
        import cupy

        maps = gpu.NormMaps(self.a, self.b, BLOCK)
        maps()
        on_device, total = cupy.asarray([tau]), maps.a.size * maps.b.shape[0]
        valid, executed = (
            float(gpu.count_products(maps, (0, 0), on_device, grain)[0]) / total for grain in ((1, 1, 1), plan.grain)
        )

        def check(_: None) -> dict[str, float]:
            for index in self.devices:
                cupy.cuda.Device(index).synchronize()
            wanted = cupy.empty_like(self.out)
            maps()
            gpu.Product(self.a, self.b, wanted, maps, tau, precision=self.precision)()
            different, row, column = 0, 0, 0
            for part in plan.outputs():
                for start in range(0, len(part), 4096):
                    some = part[start : start + 4096]
                    found = cupy.empty(some.shape, some.dtype)
                    address = some.ctypes.data if isinstance(some, np.ndarray) else some.data.ptr
                    cupy.cuda.runtime.memcpy(found.data.ptr, address, some.nbytes, cupy.cuda.runtime.memcpyDefault)
                    beside = wanted[row + start :, column:][: len(found), : found.shape[1]]
                    word = f"u{found.itemsize}"
                    different += int((found.view(word) != beside.view(word)).sum())
                row, column = (row + len(part), 0) if self.by_rows else (0, column + part.shape[1])
            ends = (row, column) != ((len(wanted), 0) if self.by_rows else (0, wanted.shape[1]))
            return {"error_bits": float(different + ends)}

        def poison() -> None:
            for part in plan.outputs():
                if isinstance(part, np.ndarray):
                    part[::512] = np.nan
                else:
                    with part.device:
                        part.fill(np.nan)
            # The product waits for all devices: what poisons them is not in the clock.
            for index in self.devices:
                cupy.cuda.Device(index).synchronize()

        def values(_: None) -> dict[str, Value]:
            found: dict[str, Value] = {"tau": tau, "valid_ratio": valid, "executed_ratio": executed}
            return found | {"kernel": plan.kernel, "rows_of_gpus": rows}

        return Method(
            name,
            plan,
            check,
            {"error_bits": 0},
            flops=2.0 * BLOCK**3 * total * valid,
            bytes=self.bytes,
            clock="events",
            values=values,
            prepare=poison,
        )


def _truncation(row: Mapping[str, Any], context: Context) -> Problem:
    """Time SpAMM and cuSPARSE's product of the truncated matrices at the same level of error (Table 3)."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile_study.bench.vendor import spgemm

    n, tau, truncation = row["n"], row["tau"], row["truncation"]
    near_sparse, truncated = truncation_values(n, tau, truncation)
    operands = _Operands(n, row["precision"], context.seed)
    ours = operands.spamm("spectile", tau)
    # The values are those of the float64 product over the valid set; what the kernel executes beyond it errs less.
    ours.values = lambda _: near_sparse | {"tau": tau}
    kept = cupy.where(operands.a < truncation, 0, operands.a)
    sparse = csr_matrix(kept)
    exact = {tile: kept[tile * BLOCK : (tile + 1) * BLOCK].astype(np.float64) @ kept for tile in operands.tile_rows}
    del kept
    algorithm = "alg1" if n <= 1024 else "alg3"

    def multiply() -> Any:
        found = spgemm(sparse, sparse, algorithm, CHUNK)  # type: ignore[arg-type]
        cupy.cuda.get_current_stream().synchronize()
        return found

    def check(result: Any) -> dict[str, float]:
        rows = ((result[0][tile * BLOCK : (tile + 1) * BLOCK].toarray(), wanted) for tile, wanted in exact.items())
        return {"error_fro_rel": max(float(cupy.linalg.norm(x - y) / cupy.linalg.norm(y)) for x, y in rows)}

    def values(result: Any) -> dict[str, Value]:
        product, memory = result
        return {"algorithm": algorithm, "nnz": int(product.nnz), "workspace_bytes": memory["total"]}

    theirs = Method(
        "cusparse",
        run=multiply,
        check=check,
        limits={"error_fro_rel": 1e-5},
        clock="wall",
        values=values,
        time_limit_s=12.0,
    )
    plain = Method(
        "truncation",
        run=lambda: truncated,
        check=lambda found: {"error_above_bound": max(0.0, found["error_rel"] - 1.0)},
        limits={"error_above_bound": 0.0},
        clock="none",
        values=dict,
    )
    return Problem([ours, plain, theirs], inputs={"a": digest_array(operands.first)})


def _ablation(row: Mapping[str, Any], context: Context) -> Problem:
    """Time the kernel at 30 % and 5 % without one idea at a time, and with what the paper has in its place."""
    n, precision = row["n"], row["precision"]
    operands = _Operands(n, precision, context.seed)
    methods: list[Method | Skipped] = []
    for ratio, tau in ((30, TABLE_1[n][0]), (5, TABLE_1[n][-1])):
        methods.append(operands.spamm(f"spectile_{ratio:02}", tau))
        for name, kernel in _variants(precision).items():
            with kernel:
                methods.append(operands.spamm(f"{name}_{ratio:02}", tau, kernel.name))
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    return Problem(methods, inputs={"a": digest_array(operands.first)})


@dataclasses.dataclass
class _Variant:
    """A kernel whose tuning lacks one idea: in place while a method is prepared."""

    name: gpu.Kernel
    table: dict[str, Any]
    key: str
    changed: Any

    def __enter__(self) -> None:
        self.original, self.table[self.key] = self.table[self.key], self.changed

    def __exit__(self, *_: object) -> None:
        self.table[self.key] = self.original


def _variants(precision: str) -> dict[str, _Variant]:
    """Return the variants by the idea that each lacks, or that replaces ours."""
    portable: Any = gpu_kernels.PORTABLE
    norms: Any = gpu_kernels.NORM_UNITS
    replace, dtype = dataclasses.replace, np.dtype(PRECISIONS[precision][0]).name
    found: dict[str, _Variant] = {}
    winner: gpu.Kernel = "wgmma_wide_pair" if precision.startswith("fp16") else "portable"
    for name, reduction in (("norm_shared", gpu_kernels.SHARED), ("norm_ones", gpu_kernels.ONES)):
        found[name] = _Variant(winner, norms, dtype, gpu_kernels.norm_unit(dtype, reduction))
    if precision.startswith("fp16"):
        hopper: Any = gpu_kernels.WGMMA
        pair = hopper[winner]
        found["double_buffer_only"] = _Variant(winner, hopper, winner, replace(pair, stages=2))
        found["stride"] = _Variant(winner, hopper, winner, replace(pair, schedule="STRIDE"))
        found["no_balance"] = _Variant(winner, hopper, winner, replace(pair, schedule="RUNS"))
        found["no_cluster"] = _Variant("wgmma_wide", hopper, "wgmma_wide", hopper["wgmma_wide"])
        found["half_parts"] = _Variant("wgmma_pair", hopper, "wgmma_pair", hopper["wgmma_pair"])
        found["no_large_tile"] = _Variant("wgmma_small", hopper, "wgmma_small", hopper["wgmma_small"])
        found["no_wgmma"] = _Variant("portable", portable, precision, portable[precision])
        return found
    tuned = portable[precision]
    for name, change in (("no_compaction", {"compact": False}), ("no_double_buffering", {"stages": 1})):
        tiles = {which: replace(getattr(tuned, which), **change) for which in ("large", "small")}
        found[name] = _Variant("portable", portable, precision, replace(tuned, **tiles))
    found["no_large_tile"] = _Variant("portable", portable, precision, replace(tuned, large=tuned.small))
    found["unordered"] = _Variant("portable", portable, precision, replace(tuned, ordered_tiles=0))
    return found
