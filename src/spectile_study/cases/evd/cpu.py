"""The studies on the CPU: ours against LAPACK and BLAS."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.evd.api import eigh, eigvalsh
from spectile.evd.cpu import lapack
from spectile.evd.cpu import solver as cpu
from spectile.evd.cpu.run import solve_by_stages
from spectile.evd.load import load_matrix
from spectile.evd.types import Options
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd.common import (
    LIMITS,
    LONGEST_S,
    MRRR_LIMITS,
    NO_GPU,
    NO_MAGMA,
    ONCE_S,
    VALUES,
    chasing_flops,
    chasing_seconds,
    flops,
    too_long,
    with_work,
)
from spectile_study.cases.evd.gradients import gradients
from spectile_study.cases.evd.problems import problems
from spectile_study.cases.evd.sequences import sequences
from spectile_study.inputs import counted
from spectile_study.inputs.spectra import residuals

#: SciPy's drivers of the standard problem; the last two are left out where they take many times as long.
DRIVERS = ("evd", "evr", "ev", "evx")
SLOW_DRIVERS, SLOW_DRIVERS_ORDER = ("ev", "evx"), 1000
#: From these orders on a driver is called once: all take seconds from the first on (ours is not, because its first call
#: compiles), and with eigenvectors these fall so far behind that the time is better spent on rounds of the others.
ONCE_DRIVERS = 4000
ONCE_VECTORS = {"ev": 300, "evx": 300, "evr": 1000}
SLOW_DRIVER = f"left out above n = {SLOW_DRIVERS_ORDER:,}, where the rows of smaller orders show that it falls behind"


def _evd(row: Mapping[str, Any], context: Context) -> Problem:
    """Ours against LAPACK's divide and conquer and MRRR (Figure 11)."""
    import scipy.linalg

    n, vectors = row["n"], row["vectors"]
    a = counted.matrix(n, context.seed, row["precision"])
    reference = np.linalg.eigvalsh(a.astype(np.float64 if a.dtype.kind == "f" else np.complex128))

    def check(result: Any) -> dict[str, float]:
        w, v = result if vectors else (result, None)
        return residuals(a, w, v, reference)

    def vendor(driver: str) -> Any:
        return scipy.linalg.eigh(a, eigvals_only=not vectors, driver=driver, check_finite=False)

    limits = LIMITS if vectors else VALUES
    ours = (lambda: eigh(a, backend="cpu")) if vectors else (lambda: eigvalsh(a, backend="cpu"))

    def two_stages() -> Any:
        w, v = solve_by_stages(a, Options(vectors=vectors))
        return (w, v) if vectors else w

    work = flops(n, vectors=vectors)
    methods: list[Method | Skipped] = [
        Method("spectile", ours, check, limits, flops=work),
        Method("spectile_two_stage", two_stages, check, limits, flops=work),
        Method("lapack", lambda: vendor("evd"), check, limits, flops=work),
        Method("lapack_mrrr", lambda: vendor("evr"), check, MRRR_LIMITS if vectors else limits, flops=work),
        *(Skipped(name, NO_GPU) for name in ("cusolver_one_stage", "cusolver_two_stage")),
        Skipped("magma", NO_MAGMA),
    ]
    return Problem(methods, inputs={"a": digest_array(a)})


def _stages(row: Mapping[str, Any], context: Context) -> Problem:
    """Each stage of the solver with eigenvectors, begun from what the stages before it leave."""
    n, b, threads = row["n"], row["bandwidth"] or cpu.BANDWIDTH_VECTORS, context.threads
    a = counted.matrix(n, context.seed)
    reference = np.linalg.eigvalsh(a)
    norm = float(np.abs(reference).max())
    factors = cpu.tridiagonalize(a.copy(order="F"), bandwidth=b, block=cpu.BLOCK, keep=True, threads=threads)
    band = cpu.extract_band(factors.factor, b)
    _, s = cpu.eigh_tridiagonal(factors.d, factors.e, vectors=True)
    assert s is not None
    half_way = np.array(s, order="C")
    cpu.apply_chasing(factors.vectors, b, half_way)
    work = np.empty_like(a)
    rows, columns = np.empty((n, n)), np.empty((n, n), order="F")

    def from_s() -> None:
        rows[...] = s

    def from_half_way() -> None:
        columns[...] = half_way

    def copy() -> None:
        work[...] = a

    def reduce() -> Any:
        cpu.band_reduction(work, bandwidth=b, block=cpu.BLOCK)
        return cpu.extract_band(work, b)

    def check_w(w: Any) -> dict[str, float]:
        return {"error_values": float(np.abs(w - reference).max()) / (n * np.finfo(w.dtype).eps * norm)}

    check_t = _check_tridiagonal(a, reference)

    def check_band(band: Any) -> dict[str, float]:
        return check_t(cpu.chase_band(band.copy(), b, keep=False, threads=threads)[:2])

    def check_basis(v: Any) -> dict[str, float]:
        return {"error_orthogonality": float(np.linalg.norm(v.T @ v - np.eye(n))) / (n * np.finfo(v.dtype).eps)}

    def check_pairs(v: Any) -> dict[str, float]:
        return residuals(a, cpu.eigh_tridiagonal(factors.d, factors.e, vectors=False)[0], v, reference)

    def back_chasing() -> Any:
        cpu.apply_chasing(factors.vectors, b, rows)
        return rows

    def back_panels() -> Any:
        cpu.apply_panels(factors, columns)
        return columns

    basis = {"error_orthogonality": 10.0}
    methods: list[Method | Skipped] = [
        Method(
            "load",
            lambda: load_matrix(a, lower=True, overwrite=False, check_finite=True)[0],
            lambda result: {"error_fro_rel": float(not np.array_equal(np.tril(result), np.tril(a)))},
            {"error_fro_rel": 0.0},
        ),
        Method("band_reduction", reduce, check_band, VALUES, prepare=copy),
        Method("chasing", lambda: cpu.chase_band(band.copy(), b, keep=True, threads=threads)[:2], check_t, VALUES),
        Method("eigenvalues", lambda: cpu.eigh_tridiagonal(factors.d, factors.e, vectors=False)[0], check_w, VALUES),
        Method("divide_and_conquer", lambda: cpu.eigh_tridiagonal(factors.d, factors.e, vectors=True),
               lambda result: check_w(result[0]) | check_basis(result[1]), VALUES | basis),
        Method("back_chasing", back_chasing, check_basis, basis, prepare=from_s),
        Method("back_panels", back_panels, check_pairs, LIMITS, prepare=from_half_way),
        Skipped("cusolver_stedc", NO_GPU),
    ]  # fmt: skip
    return Problem(with_work(methods, n, b), inputs={"a": digest_array(a)}, values={"bandwidth": b})


def _tridiagonal(row: Mapping[str, Any], context: Context) -> Problem:
    """Ours against LAPACK's one-stage sytrd (Figure 10)."""
    from scipy.linalg import get_lapack_funcs

    n = row["n"]
    a = counted.matrix(n, context.seed)
    reference = np.linalg.eigvalsh(a)
    sytrd, sizes = get_lapack_funcs(("sytrd", "sytrd_lwork"), (a,))
    lwork = int(sizes(n, lower=1)[0])

    def vendor() -> tuple[Any, Any]:
        _, d, e, _, _ = sytrd(a, lower=1, lwork=lwork)
        return d, e

    def ours() -> tuple[Any, Any]:
        threads = context.threads
        factors = cpu.tridiagonalize(a.copy(order="F"), bandwidth=32, block=cpu.BLOCK, keep=False, threads=threads)
        return factors.d, factors.e

    methods: list[Method | Skipped] = [
        Method("spectile", ours, _check_tridiagonal(a, reference), VALUES, flops=flops(n)),
        Method("lapack", vendor, _check_tridiagonal(a, reference), VALUES, flops=flops(n)),
        Skipped("cusolver_one_stage", NO_GPU),
        Skipped("magma", NO_MAGMA),
    ]
    return Problem(methods, inputs={"a": digest_array(a)})


def _check_tridiagonal(a: Any, reference: Any) -> Any:
    def check(result: Any) -> dict[str, float]:
        d, e = result
        w, _ = cpu.eigh_tridiagonal(np.array(d), np.array(e), vectors=False)
        return {"error_values": residuals(a, w, None, reference)["error_values"]}

    return check


def _reduction(row: Mapping[str, Any], context: Context) -> Problem:
    """Detached band reduction at one b and nb, and the chasing of its band (Table 2, Figure 4)."""
    n, b, block = row["n"], row["bandwidth"], row["block"]
    a = counted.matrix(n, context.seed)
    reference = np.linalg.eigvalsh(a)
    work = np.empty_like(a)

    def restore() -> None:
        work[...] = a

    def reduce() -> Any:
        cpu.band_reduction(work, bandwidth=b, block=block)
        return cpu.extract_band(work, b)

    def check_band(band: Any) -> dict[str, float]:
        d, e = lapack.sbtrd(band[:, : b + 1].copy(), b)
        return _check_tridiagonal(a, reference)((d, e))

    restore()
    band = reduce()
    methods: list[Method | Skipped] = [
        Method("spectile", reduce, check_band, VALUES, flops=flops(n), prepare=restore),
        chasing_method(
            "spectile_chasing", n, b, context.threads, lambda: band, _check_tridiagonal(a, reference), VALUES
        ),
        Skipped("magma", NO_MAGMA),
    ]
    return Problem(methods, inputs={"a": digest_array(a)})


def chasing_method(
    name: str, n: int, b: int, threads: int, band: Callable[[], Any], check: Any, limits: Mapping[str, float]
) -> Method | Skipped:
    """Return the method that chases the band that `band` returns on the host's cores; once where it takes long."""
    seconds = chasing_seconds(n, b, threads)
    if seconds > LONGEST_S:
        return Skipped(name, too_long(seconds))
    given: list[Any] = []

    def prepare() -> None:
        given[:] = [band()]

    def run() -> tuple[Any, Any]:
        return cpu.chase_band(given[0].copy(), b, keep=False, threads=threads)[:2]

    once = seconds > ONCE_S
    if once:  # what is called once is compiled before
        cpu.chase_band(counted.band(8 * b, b, 0), b, keep=False, threads=threads)
    return Method(name, run, check, limits, flops=chasing_flops(n, b), prepare=prepare, once=once)


def _chasing(row: Mapping[str, Any], context: Context) -> Problem:
    """Bulge chasing with our threads and by LAPACK's sbtrd (Figure 9)."""
    import scipy.linalg

    n, b = row["n"], row["bandwidth"]
    band = counted.band(n, b, context.seed)
    reference = scipy.linalg.eigvals_banded(band[:, : b + 1].T, lower=True)
    norm = float(np.abs(reference).max())

    def check(result: Any) -> dict[str, float]:
        w, _ = cpu.eigh_tridiagonal(np.array(result[0]), np.array(result[1]), vectors=False)
        return {"error_values": float(np.abs(w - reference).max()) / (n * np.finfo(w.dtype).eps * norm)}

    vendor = Method("lapack", lambda: lapack.sbtrd(band[:, : b + 1].copy(), b), check, VALUES)
    methods: list[Method | Skipped] = [
        Skipped("spectile", NO_GPU),
        chasing_method("spectile_cpu", n, b, context.threads, lambda: band, check, VALUES),
        vendor,
        Skipped("magma", NO_MAGMA),
    ]
    return Problem(methods, inputs={"band": digest_array(band)})


def syr2k_recursive(c: Any, a: Any, b: Any, *, block: int, alpha: float = 1.0) -> None:
    """Add alpha (A Bᴴ + B Aᴴ) to the lower triangle of C in place, by growing square products (Algorithm 3).

    Parameters
    ----------
    c : array, shape (n, n), column-major
        Overwritten; the diagonal blocks are written whole.
    a, b : array, shape (n, k), column-major
    block : int
        Size of the diagonal blocks.
    alpha : float
    """
    n = c.shape[0]

    def add(rows: slice, columns: slice) -> None:
        for left, right in ((a, b), (b, a)):
            lapack.gemm(alpha, left[rows], right[columns], 1, c[rows, columns], hb=True)

    for start in range(0, n, block):
        add(slice(start, min(start + block, n)), slice(start, min(start + block, n)))
    size = block
    while size < n:
        for start in range(0, n - size, 2 * size):
            add(slice(start + size, min(start + 2 * size, n)), slice(start, start + size))
        size *= 2


def _syr2k(row: Mapping[str, Any], context: Context) -> Problem:
    """The recursive rank-2k update against BLAS's (Table 1, Figure 8)."""
    from scipy.linalg.blas import dsyr2k

    n, k = row["n"], row["k"] or row["n"]
    i, j = np.arange(n)[:, None], np.arange(k)
    a, b = (np.asfortranarray(counted.dense(i, j, context.seed + side)) for side in range(2))
    c = np.zeros((n, n), order="F")
    rows = np.unique(np.random.default_rng(context.seed).integers(0, n, 16))
    expected = a[rows] @ b.T + b[rows] @ a.T

    def check(result: Any) -> dict[str, float]:
        mask = np.arange(n) <= rows[:, None]
        difference = np.linalg.norm(np.where(mask, result[rows], 0) - np.where(mask, expected, 0))
        return {"error_fro_rel": float(difference / np.linalg.norm(np.where(mask, expected, 0)))}

    def ours() -> Any:
        syr2k_recursive(c, a, b, block=256)
        return c

    work, limits = 2.0 * n * n * k, {"error_fro_rel": 1e-12}
    methods: list[Method | Skipped] = [
        Method("spectile", ours, check, limits, flops=work, prepare=lambda: c.fill(0)),
        Method("blas", lambda: dsyr2k(1.0, a, b, 1.0, c, lower=1, overwrite_c=1), check, limits, flops=work,
               prepare=lambda: c.fill(0)),
        Skipped("cublas", NO_GPU),
    ]  # fmt: skip
    return Problem(methods, inputs={"a": digest_array(a), "b": digest_array(b)})


def _int8(row: Mapping[str, Any], context: Context) -> Problem:
    """The trailing update from INT8 products is a variant of the GPU's."""
    return Problem([Skipped(name, NO_GPU) for name in ("spectile", "int8_15", "int8_12")])


def _roofline(row: Mapping[str, Any], context: Context) -> Problem:
    """Ceilings of the machine: a copy and a large product; and A W, the skinny product of the reduction (Figure 3)."""
    n, width = row["n"], row["bandwidth"] or row["n"]
    i = np.arange(n)
    a, w = counted.dense(i[:, None], i, context.seed), counted.dense(i[:, None], np.arange(width), context.seed + 1)
    out = np.empty_like(a)
    product = np.empty((n, width))
    rows = np.random.default_rng(context.seed).integers(0, n, 8)

    def multiply() -> Any:
        return np.matmul(a, w, out=product)

    def copy() -> Any:
        np.copyto(out, a)
        return out

    def check_product(result: Any) -> dict[str, float]:
        exact = a[rows] @ w
        return {"error_fro_rel": float(np.linalg.norm(result[rows] - exact) / np.linalg.norm(exact))}

    methods: list[Method | Skipped] = [
        Method("blas", multiply, check_product, {"error_fro_rel": 1e-12}, flops=2.0 * n * n * width,
               bytes=8.0 * (n * n + 2 * n * width)),
        Method("copy", copy, lambda result: {"error_fro_rel": float(not np.array_equal(result, a))},
               {"error_fro_rel": 0.0}, bytes=16.0 * n * n),
        Skipped("cublas", NO_GPU),
    ]  # fmt: skip
    return Problem(methods, inputs={"a": digest_array(a)})


def drivers(row: Mapping[str, Any], context: Context) -> Problem:
    """Ours on the host's cores, as called, against each of SciPy's drivers."""
    import scipy.linalg

    n, vectors = row["n"], row["vectors"]
    a = counted.matrix(n, context.seed, row["precision"])
    reference = np.linalg.eigvalsh(a.astype(np.promote_types(row["precision"], np.float64)))

    def check(result: Any) -> dict[str, float]:
        w, v = result if vectors else (result, None)
        return residuals(a, w, v, reference)

    ours = eigh if vectors else eigvalsh
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: ours(a, backend="cpu"), check, LIMITS if vectors else VALUES)
    ]
    for driver in DRIVERS:
        if driver in SLOW_DRIVERS and n > SLOW_DRIVERS_ORDER:
            methods.append(Skipped(f"scipy_{driver}", SLOW_DRIVER))
            continue
        run = functools.partial(scipy.linalg.eigh, a, eigvals_only=not vectors, driver=driver)
        limits = MRRR_LIMITS if vectors else VALUES
        once = n >= (ONCE_VECTORS.get(driver, ONCE_DRIVERS) if vectors else ONCE_DRIVERS)
        methods.append(Method(f"scipy_{driver}", run, check, limits, once=once))
    return Problem(methods, inputs={"a": digest_array(a)})


def _devices(row: Mapping[str, Any], context: Context) -> Problem:
    """Say that several GPUs are not here."""
    return Problem([Skipped(name, NO_GPU) for name in ("devices_1", "devices_2", "cusolver_mg")])


STUDIES = {
    "evd": _evd,
    "stages": _stages,
    "tridiagonal": _tridiagonal,
    "reduction": _reduction,
    "chasing": _chasing,
    "syr2k": _syr2k,
    "int8": _int8,
    "roofline": _roofline,
    "problems": problems,
    "drivers": drivers,
    "devices": _devices,
    "gradients": gradients,
    "sequences": sequences,
}
