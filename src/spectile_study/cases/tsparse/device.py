"""The methods measured on a GPU: the paper's, ours as called and in the kernels' format, and cuSPARSE's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.tsparse import spgemm
from spectile.tsparse.types import BY_ENTRY, PRECISIONS, lookup
from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.tsparse import called, installed
from spectile_study.cases.tsparse.checks import Check, half_reason
from spectile_study.cases.tsparse.host import product
from spectile_study.cases.tsparse.phases import phases_of, phases_of_tasks
from spectile_study.cases.tsparse.tiles.half import IN_TILES, unscale

#: Products of entries a product of tiles from which our product by tiles is measured, and entries of C up to which.
DENSE_TILES, LARGEST_TILED = 4, 100_000_000


def methods(A: Any, counts: Mapping[str, Any], check: Check, empty_pool: bool) -> list[Method | Skipped]:
    """Return the methods for the square of `A`."""
    import cupy

    from spectile_study.bench import vendor

    methods: list[Method | Skipped] = []
    pool = cupy.get_default_memory_pool()
    kept = called.Kept(one_at_a_time=counts["nnz_c"] > LARGEST_TILED)
    on_gpu = {dtype: to_device(A, dtype) for dtype in ("float64", "float32")}

    check.library = lambda: vendor.spgemm(on_gpu["float32"], on_gpu["float32"])[0]

    def add(name: str, precision: str, run: Callable[[], Any], **more: Any) -> None:
        peak = peak_bytes(run)
        methods.append(check.method(name, precision, run, counts, clock="events", memory_bytes=peak, **more))
        if empty_pool and precision == "float32":
            prepare = pool.free_all_blocks
            cold = check.method(f"{name}_empty_pool", precision, run, counts, clock="events", prepare=prepare)
            methods.append(cold)

    for precision in PRECISIONS:
        if precision == "float16" and (reason := half_reason(A, BY_ENTRY)):
            methods.append(Skipped("spectile_float16", reason))
            continue
        G = on_gpu[lookup(precision).dtype.name]
        add(f"spectile_{precision}", precision, product(G, precision, "cuda"), values=phases_of(G, precision))
        methods += called.product(G, G, precision, counts, check)
    methods += _task_methods(on_gpu, counts, check)
    methods += installed.methods(on_gpu, counts, check, on_device=True)
    methods += _row_methods(on_gpu, counts, check) + _tile_methods(on_gpu, counts, check)
    for precision, G in on_gpu.items():
        add(f"cusparse_{precision}", precision, lambda G=G: vendor.spgemm(G, G)[0])  # type: ignore[misc]
        methods += called.beside(G, G, precision, counts, check, kept)
    kept.absent(methods)
    return methods


def methods_of_pair(A: Any, B: Any, counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return the methods for the product of two matrices of the second set."""
    from spectile_study.bench import vendor

    methods: list[Method | Skipped] = []
    kept = called.Kept()
    for precision in ("float64", "float32"):
        left = to_device(A, precision)
        right = left if B is A else to_device(B, precision)

        def ours(left: Any = left, right: Any = right, precision: Any = precision) -> Any:
            return spgemm(left, right, precision=precision)

        def theirs(left: Any = left, right: Any = right) -> Any:
            return vendor.spgemm(left, right)[0]

        methods.append(check.method(f"spectile_{precision}", precision, ours, counts, clock="events"))
        methods += called.product(left, right, precision, counts, check)
        methods.append(check.method(f"cusparse_{precision}", precision, theirs, counts, clock="events"))
        methods += called.beside(left, right, precision, counts, check, kept)
    return methods


def to_device(A: Any, dtype: str) -> Any:
    """Return a copy on the device, with 32-bit indices."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
    return csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)


def _task_methods(on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return the paper's method: ``tasks_<precision>``, ``tasks_nontcu`` and ``tasks_csr_float16``."""
    reason, half = _too_large(counts), half_reason(check.A, IN_TILES)
    methods: list[Method | Skipped] = []
    for name in PRECISIONS:
        why = reason or (half if name == "float16" else None)
        names = [f"tasks_{name}"] + ["tasks_nontcu", "tasks_csr_float16"] * (name == "float16")
        if why:
            methods += [Skipped(method, why) for method in names]
        else:
            methods += _tasks(name, on_gpu, counts, check)
    return methods


def _tasks(name: str, on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method]:
    """Return the paper's method in one precision, its factors converted already as in the paper's time."""
    import cupy

    from spectile.tsparse.matrices import device_csr
    from spectile_study.cases.tsparse.tiles import product as by_tiles
    from spectile_study.cases.tsparse.tiles import units
    from spectile_study.cases.tsparse.tiles.convert import to_csr

    precision = lookup(name)
    G = on_gpu[precision.dtype.name]
    tiles, others, exponents = by_tiles.tiled(G, G, precision)

    def method(called: str, unit: Any) -> Method:
        def run() -> Any:
            return by_tiles.product(tiles, others, precision, unit)

        def check_unscaled(C: Any) -> dict[str, float]:
            indptr, indices, data = to_csr(C, precision)
            data = unscale(data, indptr, indices, exponents, 0, cupy)
            return check(called, name, device_csr(C.shape, indptr, indices, data))

        phases = phases_of_tasks(tiles, others, precision, unit)
        made = check.method(called, name, run, counts, phases, clock="events", memory_bytes=peak_bytes(run))
        made.check = check_unscaled
        return made

    methods = [method(f"tasks_{name}", units.PRODUCT[name])]
    if name == "float16":
        methods.append(method("tasks_nontcu", units.PLAIN))

        def csr_to_csr() -> Any:
            return by_tiles.spgemm(G, G, precision="float16", drop_cancelled=True)

        peak = peak_bytes(csr_to_csr)
        called = "tasks_csr_float16"
        methods.append(check.method(called, name, csr_to_csr, counts, clock="events", memory_bytes=peak))
    return methods


def _row_methods(on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return ``rows_<precision>``, the product of factors that are checked and rounded already."""
    from spectile.tsparse.cuda.factors import checked, with_checked_factors
    from spectile.tsparse.cuda.run import to_csr
    from spectile.tsparse.matrices import device_csr

    methods: list[Method | Skipped] = []
    for name in PRECISIONS:
        if name == "float16" and (reason := half_reason(check.A, BY_ENTRY)):
            methods.append(Skipped("rows_float16", reason))
            continue
        precision = lookup(name)
        G = on_gpu[precision.dtype.name]
        left, right = with_checked_factors(G, G, precision, checked)

        def run(left: Any = left, right: Any = right, precision: Any = precision) -> Any:
            return device_csr(check.A.shape, *to_csr(left, right, precision, None, None))

        methods.append(check.method(f"rows_{name}", name, run, counts, clock="events"))
    return methods


def _tile_methods(on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return ``tiles_csr_<precision>``, the paper's product from CSR to CSR, entries that cancel kept."""
    from spectile_study.cases.tsparse.tiles import product as by_tiles

    reason, half = _not_tiled(counts), half_reason(check.A, IN_TILES)
    methods: list[Method | Skipped] = []
    for name in PRECISIONS:
        why = reason or (half if name == "float16" else None)
        if why:
            methods.append(Skipped(f"tiles_csr_{name}", why))
            continue

        def to_csr(name: Any = name) -> Any:
            G = on_gpu[lookup(name).dtype.name]
            return by_tiles.spgemm(G, G, precision=name, drop_cancelled=False)

        methods.append(check.method(f"tiles_csr_{name}", name, to_csr, counts, clock="events"))
    return methods


def _not_tiled(counts: Mapping[str, Any]) -> str | None:
    """Return why our product by tiles is not measured, or None."""
    if counts["products"] < DENSE_TILES * counts["tile_products"]:
        per_task = counts["products"] / max(counts["tile_products"], 1)
        return f"tiles are nearly empty: {per_task:.1f} products of entries a product of tiles"
    return _too_large(counts)


def _too_large(counts: Mapping[str, Any]) -> str | None:
    """Return why C is too large for methods by tiles, or None."""
    if counts["nnz_c"] > LARGEST_TILED:
        return f"C has {counts['nnz_c']:,} entries, and tiles are measured up to {LARGEST_TILED:,}"
    return None


def peak_bytes(run: Callable[[], Any]) -> int | None:
    """Return the most device memory that a call holds at a time beside its inputs, its result included, or None."""
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "spectile.peak"
        now = most = 0

        def malloc_postprocess(self, **event: Any) -> None:
            self.now += event["mem_size"]
            self.most = max(self.most, self.now)

        def free_postprocess(self, **event: Any) -> None:
            self.now -= event["mem_size"]

    hook = Peak()
    try:
        with hook:
            run()
    except (MemoryError, RuntimeError):
        return None  # the method's own check reports it
    return int(hook.most)
