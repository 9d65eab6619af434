"""Operands of Table 1 on a device, and SpAMM and cuBLAS on them as methods, checked on sampled tile rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.nearsparse.api import spamm
from spectile.nearsparse.cuda.choose import Choice, Problem, choose
from spectile.nearsparse.cuda.norms import NormMaps
from spectile.nearsparse.cuda.product import Product
from spectile.nearsparse.cuda.survey import ratio
from spectile.nearsparse.types import PRECISIONS, Grain
from spectile_study.bench.case import Clock, Method, Value
from spectile_study.cases.spamm.checks import ERROR_LIMIT, sampled_rows
from spectile_study.cases.spamm.thresholds import BLOCK
from spectile_study.inputs import decay

# Vendor's product that Table 2's speed-up refers to, and further ones shown beside it.
VENDOR_MODES = {"fp16": "fp16_fp32", "fp16c16": "fp16_fp16", "fp32": "fp32", "tf32x3": "fp32", "fp64": "fp64"}


def toeplitz(first: Any, n: int) -> Any:
    """Return the symmetric Toeplitz matrix with this first column on the device, made there strip by strip."""
    import cupy

    column, matrix = cupy.asarray(first), cupy.empty((n, n), first.dtype)
    indices = cupy.arange(n)
    for start in range(0, n, 512):
        matrix[start : start + 512] = column[cupy.abs(indices[start : start + 512, None] - indices[None])]
    return matrix


class Operands:
    """A and B in separate buffers, the output they share, and the float64 check of sampled tile rows."""

    def __init__(self, n: int, precision: str, seed: int) -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        self.first = decay.algebraic(n, 1, dtype=PRECISIONS[precision].dtype)[:, 0].copy()
        self.n, self.precision = n, precision
        self.a = toeplitz(self.first, n)
        self.b = self.a.copy()
        self.out = cupy.empty((n, n), PRECISIONS[precision].output)
        self.tile_rows = sampled_rows(n, seed)
        self.clock: Clock = "graph" if n <= 2048 else "events"
        self.bytes = float(self.a.nbytes + self.b.nbytes + self.out.nbytes)
        # A float32 sum of k addends of one sign may err by k u; an eighth of that is allowed.
        self.limit = max(ERROR_LIMIT[precision], 0.0 if precision == "fp64" else n / 8 * 2.0**-24)

    def poison(self) -> None:
        """Fill C with NaN, so that what a product leaves out shows."""
        self.out.fill(np.nan)

    def error(self, expected: Callable[[int], Any], product: Any = None) -> float:
        """Return the largest relative error of the sampled tile rows, and infinity where one holds NaN.

        `product` is C where it is not the output that the methods share.
        """
        import cupy

        worst, product = 0.0, self.out if product is None else product
        for tile in self.tile_rows:
            wanted = expected(tile)
            computed = product[tile * BLOCK : (tile + 1) * BLOCK].astype(np.float64)
            error = float(cupy.linalg.norm(computed - wanted) / cupy.linalg.norm(wanted))
            worst = max(worst, error if error == error else float("inf"))
        return worst

    def dense_rows(self, tile: int) -> Any:
        """Return a tile row of A B in float64."""
        return self._rows(tile, lambda start, stop: None)

    def executed_rows(self, tile: int, maps: NormMaps, tau: float, grain: Grain) -> Any:
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

    def spamm(self, name: str, tau: float, choice: Choice | None = None, norms: Any = None) -> Method:
        """Return SpAMM at `tau` with everything in the clock; another kernel, or norm kernel, where they are given."""
        maps = NormMaps(self.a, self.b, BLOCK, unit=norms)
        product = Product(self.a, self.b, self.out, maps, tau, precision=self.precision, choice=choice)
        maps()
        total = maps.a.size * maps.b.shape[0]
        valid, executed = ratio(maps, (0, 0), tau), ratio(maps, (0, 0), tau, product.grain)

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

    def called(self, name: str, **choice: float) -> Method:
        """Return SpAMM as a user calls it: the public function with tau, a valid ratio or an error, and C allocated."""
        maps = NormMaps(self.a, self.b, BLOCK)
        maps()
        problem = Problem.of(self.a, self.b, self.out, BLOCK, self.precision)
        grain = choose(problem, describe()).grain

        def run() -> Any:
            return spamm(self.a, self.b, precision=self.precision, **choice)  # type: ignore[arg-type]

        def check(result: Any) -> dict[str, float]:
            tau = result.tau
            return {"error_fro_rel": self.error(lambda tile: self.executed_rows(tile, maps, tau, grain), result.c)}

        def values(result: Any) -> dict[str, Value]:
            valid, executed = result.valid_ratio, result.executed_ratio
            return {"tau": result.tau, "valid_ratio": valid, "executed_ratio": executed}

        limits = {"error_fro_rel": self.limit}
        return Method(name, run, check, limits, bytes=self.bytes, clock="calls", values=values)

    def called_dense(self, name: str) -> Method:
        """Return the dense product as a user calls it: CuPy's, or cuBLAS where CuPy has none with C in float32."""
        import cupy

        if self.precision == "fp16":
            return dataclasses.replace(self.vendor(name, VENDOR_MODES["fp16"], self.limit), clock="calls")
        # CuPy, too, rounds C to float16.
        return Method(
            name,
            run=lambda: cupy.matmul(self.a, self.b),
            check=lambda c: {"error_fro_rel": self.error(self.dense_rows, c)},
            limits={"error_fro_rel": self.limit},
            flops=2.0 * self.n**3,
            bytes=self.bytes,
            clock="calls",
        )

    def half_sums(self) -> Method:
        """Return cuBLAS's product with sums in float16 (``cublasHgemm``), as the paper's baseline has them."""
        import cupy

        from spectile_study.bench.vendor import Gemm, gemm_flops

        out = cupy.empty((self.n, self.n), np.float16)
        # A float16 sum is rounded about once in eight terms, which all have one sign.
        limit = self.n / 8 * 2.0**-11
        return Method(
            "cublas_half_sums",
            run=Gemm(self.a, self.b, out, "fp16_sums"),
            check=lambda _: {"error_fro_rel": self.error(self.dense_rows, out)},
            limits={"error_fro_rel": limit},
            flops=gemm_flops(self.n, self.n, self.n),
            bytes=float(self.a.nbytes + self.b.nbytes + out.nbytes),
            clock=self.clock,
            prepare=lambda: out.fill(np.nan),
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
