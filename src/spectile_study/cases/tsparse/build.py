"""What the workflow measures of sparse products: the square of one matrix by every method, in one process.

Methods (the column ``method``): ``spectile_<precision>`` is ``spgemm(A, A, precision=...)``, CSR to CSR with sorted
columns, check of the input, analysis and allocations included; ``rows_<precision>`` and ``tiles_<precision>`` the
product in the kernels' format, conversions apart as in the paper: of checked and rounded CSR factors, and of bitmap
tiles (``tiles_float32`` is its nonTCU); ``tiles_csr_<precision>`` the tiles from CSR to CSR; ``cusparse_<precision>``
the vendor's product with its allocations; ``scipy_<precision>`` SciPy's product and the sort that brings it to the same
form (entries that cancel are left out).  The ending ``_empty_pool`` marks calls that find CuPy's memory pool empty,
``_one_thread`` calls on one thread of the CPU, where the others take as many as Numba is given.  On a GPU times are
events after the second-level cache was overwritten.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spectile.tsparse import error_bound, reference, spgemm
from spectile.tsparse.precision import (
    BY_ENTRY,
    HALF_MAX,
    HALF_NORMAL,
    IN_TILES,
    HalfRange,
    fits_half,
    half_exponents,
    lookup,
)
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.tsparse import comparators
from spectile_study.inputs import suitesparse

PAPER = "tsparse"
PRECISIONS = ("float64", "float32", "tf32", "float16")
#: Products of up to this many entries are checked entry by entry; larger ones by their action on a random vector.
LARGEST_CHECKED = 20_000_000
#: Products of entries a product of tiles from which the tiles' own methods are measured, and entries of C up to which.
DENSE_TILES, LARGEST_TILED = 4, 100_000_000
#: Calls of which the times of phases are medians.
PHASE_CALLS = 9
_MATRICES = Path("config/matrices.tsv")


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/tsparse.tsv``."""
    table = _MATRICES if _MATRICES.exists() else None
    A = suitesparse.matrix(row["matrix"], context.resources, table)
    counts = table1(A)
    check = Check(A, int(counts["nnz_c"]), context.seed)
    methods: list[Method | Skipped]
    if context.device == "cuda":
        methods = _gpu_methods(A, counts, check, bool(row["empty_pool"]))
    else:
        methods = _cpu_methods(A, counts, check)
    methods += comparators.methods(A, int(counts["nnz_c"]))
    inputs = {"A": digest_array(A.data), "pattern": digest_array(A.indices)}
    return Problem(methods, inputs, counts | conditions(A))


def table1(A: Any) -> dict[str, Any]:
    """Return Table 1's counts of A squared, tile counts after the filter (as `reference.table1`, compiled)."""
    from spectile.tsparse.cpu import rows as cpu

    tiles = reference.to_bitmap(A)
    width = -(-A.shape[1] // reference.TILE)
    start = np.searchsorted(tiles.tile_rows, np.arange(-(-A.shape[0] // reference.TILE) + 1))
    factor = (start, tiles.tile_columns, tiles.bitmaps)
    tiles_c, tile_products, nnz_c = cpu.tile_counts(factor, factor, max(width, 1))
    density = tiles.density if tiles.tiles else np.zeros(1)
    return {
        "n": int(A.shape[0]),
        "nnz": int(A.nnz),
        "nnz_c": int(nnz_c),
        "products": int(np.diff(A.indptr).astype(np.int64)[A.indices].sum()),
        "tiles_a": int(tiles.tiles),
        "tiles_c": int(tiles_c),
        "tile_products": int(tile_products),
        "tile_density_median": float(np.median(density)),
        "tile_density_mean": float(density.mean()),
        "tile_density_std": float(density.std()),
    }


def conditions(A: Any) -> dict[str, Any]:
    """Return what Section 6.1 asks of a matrix of the collection (bitmap density is among Table 1's counts)."""
    size = np.abs(A.data[A.data != 0])
    return {
        "square": A.shape[0] == A.shape[1],
        "half_range": bool(size.size == 0 or (size.max() <= HALF_MAX and size.min() >= HALF_NORMAL)),
        "row_mean": float(A.nnz / max(A.shape[0], 1)),
        "row_max": int(np.diff(A.indptr).max(initial=0)),
    }


class Check:
    """Compares products of one matrix with the float64 reference: pattern, bound of every entry, SMAPE (Equation 3).

    A product too large for that is compared through its action on a random vector.
    """

    def __init__(self, A: Any, nnz_c: int, seed: int) -> None:
        self.A, self.nnz_c = A, nnz_c
        self.x = np.random.default_rng(seed).standard_normal(A.shape[1])
        self.smape: dict[str, float] = {}
        self._kept: dict[tuple[str, str], Any] = {}

    def __call__(self, name: str, precision: Any, C: Any) -> dict[str, float]:
        """Return the errors of C, computed by method `name` in `precision`."""
        if self.nnz_c > LARGEST_CHECKED:
            return self._action(name, precision, C)
        C.sort_indices()
        xp: Any = importlib.import_module("cupy") if hasattr(C, "get") else np
        exact = self._array("exact", np)
        if name.startswith("scipy"):
            C = _with_cancelled(C, exact)
        indptr, indices, data = (self._array(part, xp) for part in ("indptr", "indices", "data"))
        if C.nnz != exact.nnz or bool((C.indptr != indptr).any()) or bool((C.indices != indices).any()):
            return {"error_pattern": 1.0, "error_fro_rel": float("nan"), "error_bound_ratio": float("nan")}
        found = C.data.astype(np.float64)
        error = xp.abs(found - data)
        size = xp.abs(found) + xp.abs(data)
        bound = f"{precision} in tiles" if precision == "float16" and name.startswith("tiles") else precision
        self.smape[name] = float(100 * (error / xp.where(size > 0, size, 1)).mean()) if len(error) else 0.0
        scale = float(xp.linalg.norm(data)) or 1.0
        return {
            "error_pattern": 0.0,
            "error_fro_rel": float(xp.linalg.norm(error)) / scale,
            "error_bound_ratio": float((error / self._array(bound, xp)).max()) if len(error) else 0.0,
        }

    def _array(self, name: str, xp: Any) -> Any:
        """Return the float64 product, one of its arrays, or the bound of a precision, kept on host and device."""
        key = name, xp.__name__
        if key in self._kept:
            return self._kept[key]
        found: Any
        if xp is not np:
            found = xp.asarray(self._array(name, np))
        elif name == "exact":
            found = spgemm(self.A, self.A, backend="cpu")
        elif name in ("indptr", "indices", "data"):
            found = getattr(self._array("exact", np), name)
        elif name == "rounding of the reference":
            found = error_bound(self.A, self.A).data
        else:
            reference = own = self._array("rounding of the reference", np)
            if name != "float64":
                precision, _, tiles = name.partition(" ")
                method: Any = "tiles" if tiles else "rows"
                own = error_bound(self.A, self.A, precision=precision, method=method).data  # type: ignore[arg-type]
            found = own + reference
        self._kept[key] = found
        return found

    def _action(self, name: str, precision: str, C: Any) -> dict[str, float]:
        A, x = self.A, self.x
        exact, size = A @ (A @ x), abs(A) @ (abs(A) @ abs(x))
        if hasattr(C, "get"):
            import cupy

            found = (C.astype(np.float64) @ cupy.asarray(x)).get()
        else:
            found = C.astype(np.float64) @ x
        unit = 2.0**-10 if precision in ("tf32", "float16") else lookup(precision).unit
        products = float(np.diff(A.indptr).max(initial=1)) + 2
        error = np.abs(found - exact) / np.where(size > 0, size, 1)
        return {
            "error_pattern": float(max(C.nnz - self.nnz_c, 0) if name.startswith("scipy") else abs(C.nnz - self.nnz_c)),
            "error_fro_rel": float(np.linalg.norm(found - exact) / (np.linalg.norm(exact) or 1)),
            "error_bound_ratio": float(error.max(initial=0) / (4 * products * unit)),
        }

    def method(
        self,
        name: str,
        precision: str,
        run: Callable[[], Any],
        counts: Mapping[str, Any],
        values: Callable[[Any], Mapping[str, Value]] = lambda result: {},
        **more: Any,
    ) -> Method:
        """Return the method `name` with this check, its work, and what `values` makes of a result."""
        limits = {"error_pattern": 0.0, "error_bound_ratio": 1.0}
        entry = 4 + lookup(precision).dtype.itemsize
        return Method(
            name,
            run,
            lambda C: self(name, precision, C),
            limits,
            flops=2.0 * counts["products"],
            bytes=float(entry * (2 * counts["nnz"] + counts["nnz_c"]) + 8 * counts["n"]),
            values=lambda C: {"precision": precision, "smape_percent": self.smape.get(name)} | dict(values(C)),
            **more,
        )


def _with_cancelled(C: Any, exact: Any) -> Any:
    """Return C with the entries that SciPy leaves out because they cancelled, or C if its pattern has others."""
    width = exact.shape[1]
    places, wanted = (
        np.repeat(np.arange(x.shape[0], dtype=np.int64), np.diff(x.indptr)) * width + x.indices for x in (C, exact)
    )
    at = np.searchsorted(wanted, places)
    if C.nnz > exact.nnz or not np.array_equal(wanted[np.minimum(at, len(wanted) - 1)], places):
        return C
    data = np.zeros(exact.nnz, C.dtype)
    data[at] = C.data
    return type(exact)((data, exact.indices, exact.indptr), shape=exact.shape)


def half_reason(A: Any, half: HalfRange) -> str | None:
    """Return why `half` cannot hold A even when its rows and columns are scaled, or None where it can."""
    if fits_half(A.data, half):
        return None
    try:
        half_exponents(A.data, np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.shape[0], "row of A", half)
        half_exponents(A.data, A.indices, A.shape[1], "column of B", half)
    except ValueError as error:
        return str(error)
    return None


def _cpu_methods(A: Any, counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    methods: list[Method | Skipped] = []
    for precision in PRECISIONS:
        if precision == "float16" and (reason := half_reason(A, BY_ENTRY)):
            methods.append(Skipped("spectile_float16", reason))
            continue
        narrow = A.astype(lookup(precision).dtype)
        phases = (lambda C: _cpu_phases(A)) if precision == "float64" else (lambda C: {})
        methods.append(
            check.method(f"spectile_{precision}", precision, _product(narrow, precision, "cpu"), counts, values=phases)
        )
    for precision in ("float64", "float32"):
        run = _on_one_thread(_product(A.astype(precision), precision, "cpu"))
        methods.append(check.method(f"spectile_{precision}_one_thread", precision, run, counts))
        methods.append(check.method(f"scipy_{precision}", precision, _scipy(A, precision), counts))
    reason = "needs a CUDA device"
    names = ("cusparse_float64", "cusparse_float32")
    return methods + [Skipped(name, f"{name} {reason}") for name in names]


def _product(A: Any, precision: Any, backend: Any) -> Callable[[], Any]:
    return lambda: spgemm(A, A, precision=precision, backend=backend)


def _on_one_thread(run: Callable[[], Any]) -> Callable[[], Any]:
    import numba

    def call() -> Any:
        before = numba.get_num_threads()
        numba.set_num_threads(1)
        try:
            return run()
        finally:
            numba.set_num_threads(before)

    return call


def _scipy(A: Any, precision: str) -> Callable[[], Any]:
    narrow = A.astype(lookup(precision).dtype)

    def run() -> Any:
        C = narrow @ narrow
        C.sort_indices()
        return C

    return run


def _cpu_phases(A: Any) -> dict[str, Value]:
    """Time the phases of one product in float64: check of the factor, count of products, product."""
    import numba

    from spectile.tsparse.cpu import rows as cpu

    threads = numba.get_num_threads()
    marks = [time.perf_counter()]
    indptr = A.indptr.astype(np.int64)
    cpu.examine(indptr, A.indices, A.data, A.shape[1])
    marks.append(time.perf_counter())
    work = cpu.survey(indptr, A.indices, indptr)
    marks.append(time.perf_counter())
    factor = (indptr, A.indices, A.data)
    if cpu.multiply(factor, factor, A.shape[1], work, cpu.chunks(work, threads), threads) is None:
        return {}
    marks.append(time.perf_counter())
    return {"phases": ["check", "count of products", "product"], "phases_s": np.diff(marks).tolist()}


# ---- GPU


def _gpu_methods(A: Any, counts: Mapping[str, Any], check: Check, empty_pool: bool) -> list[Method | Skipped]:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile_study.bench import vendor

    methods: list[Method | Skipped] = []
    pool = cupy.get_default_memory_pool()
    on_gpu = {}
    for dtype in ("float64", "float32"):
        arrays = (A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
        on_gpu[dtype] = csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)

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
        add(f"spectile_{precision}", precision, _product(G, precision, "cuda"), values=_phases_of(G, precision))
    methods += _row_methods(on_gpu, counts, check) + _tile_methods(on_gpu, counts, check)
    for precision, G in on_gpu.items():
        add(f"cusparse_{precision}", precision, lambda G=G: vendor.spgemm(G, G)[0])  # type: ignore[misc]
    return methods


def _row_methods(on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return ``rows_<precision>``, the product of factors that are checked and rounded already."""
    from spectile.tsparse.cuda import run as gpu
    from spectile.tsparse.cuda.factors import checked, with_checked_factors

    methods: list[Method | Skipped] = []
    for name in PRECISIONS:
        if name == "float16" and (reason := half_reason(check.A, BY_ENTRY)):
            methods.append(Skipped("rows_float16", reason))
            continue
        precision = lookup(name)
        G = on_gpu[precision.dtype.name]
        left, right = with_checked_factors(G, G, precision, checked)

        def run(left: Any = left, right: Any = right, precision: Any = precision) -> Any:
            return gpu._to_device(left, right, precision, None, None)

        methods.append(check.method(f"rows_{name}", name, run, counts, clock="events"))
    return methods


def _tile_methods(on_gpu: Mapping[str, Any], counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return ``tiles_<precision>``, tiles to tiles with the conversions apart (the paper's time), and ``tiles_csr``."""
    from spectile.tsparse.cuda import tiles as gpu_tiles
    from spectile.tsparse.cuda.factors import checked, unscale, with_checked_factors

    reason = ""
    if counts["products"] < DENSE_TILES * counts["tile_products"]:
        per_task = counts["products"] / max(counts["tile_products"], 1)
        reason = f"tiles are nearly empty: {per_task:.1f} products of entries a product of tiles"
    elif counts["nnz_c"] > LARGEST_TILED:
        reason = f"C has {counts['nnz_c']:,} entries, and tiles are measured up to {LARGEST_TILED:,}"
    half = half_reason(check.A, IN_TILES)
    methods: list[Method | Skipped] = []
    for name in PRECISIONS:
        precision = lookup(name)
        G = on_gpu[precision.dtype.name]
        if reason:
            methods.append(Skipped(f"tiles_{name}", reason))
            continue
        if name == "float16" and half:
            methods.append(Skipped("tiles_float16", half))
            continue
        # Scaled for float16, the two factors differ: rows of one, columns of the other.
        left, right = with_checked_factors(G, G, precision, checked, IN_TILES)
        tiles = gpu_tiles.convert(left, precision)
        others = tiles if right is left else gpu_tiles.convert(right, precision)

        def run(tiles: Any = tiles, others: Any = others, precision: Any = precision) -> Any:
            return gpu_tiles.multiply(tiles, others, precision)

        def unscaled(C: Any, name: str = name, left: Any = left, right: Any = right) -> dict[str, float]:
            found = gpu_tiles.to_csr(C)
            unscale(found.data, found.indptr, found.indices, left, right, 0)
            return check(f"tiles_{name}", name, found)

        method = check.method(f"tiles_{name}", name, run, counts, clock="events", memory_bytes=peak_bytes(run))
        method.check = unscaled
        methods.append(method)
    for name in ("tf32", "float16"):
        why = reason or (half if name == "float16" else "")
        if why:
            methods.append(Skipped(f"tiles_csr_{name}", why))
            continue

        def to_csr(name: Any = name) -> Any:
            return spgemm(on_gpu["float32"], on_gpu["float32"], precision=name, method="tiles")

        methods.append(check.method(f"tiles_csr_{name}", name, to_csr, counts, clock="events"))
    return methods


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


def _phases_of(G: Any, name: Any) -> Callable[[Any], Mapping[str, Value]]:
    """Return what times the phases of one product on the device (their medians, each phase synchronised)."""

    def phases(result: Any) -> Mapping[str, Value]:
        import cupy

        from spectile.tsparse.cuda.factors import with_checked_factors
        from spectile.tsparse.cuda.rows import count_rows, fill_rows

        precision = lookup(name)
        marks: list[float] = []

        def mark() -> None:
            cupy.cuda.runtime.deviceSynchronize()
            marks.append(time.perf_counter())

        def product(left: Any, right: Any, counters: Any) -> None:
            mark()
            phase = count_rows(left, right, 0, G.shape[0], precision.dtype.name, counters)
            mark()
            indices = cupy.empty(phase.entries, np.int32)
            data = cupy.empty(phase.entries, precision.dtype)
            mark()
            fill_rows(left, right, phase, indices, data)
            mark()

        times = []
        for _ in range(PHASE_CALLS):
            marks.clear()
            mark()
            with_checked_factors(G, G, precision, product)
            times.append(np.diff(marks[-5:]))
        labels = ["check and rounding", "symbolic", "allocation", "numeric"]
        return {"phases": labels, "phases_s": np.median(times, axis=0).tolist()}

    return phases
