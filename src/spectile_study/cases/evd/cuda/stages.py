"""The stages one by one: band reduction, bulge chasing, divide and conquer, back-transformation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from spectile.core import device
from spectile.evd.cpu import lapack
from spectile.evd.cpu import solver as cpu
from spectile.evd.cuda.back.panels import apply_panels
from spectile.evd.cuda.back.sweeps import apply_chasing
from spectile.evd.cuda.chasing.chase import chase_band, extract_band
from spectile.evd.cuda.choose import stage_parameters
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix
from spectile.evd.cuda.reduction.band import band_reduction
from spectile.evd.cuda.tridiagonal.divide import divide_and_conquer
from spectile.evd.cuda.tridiagonal.sturm import eigenvalues
from spectile.evd.types import SCALARS
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd import rivals, wide
from spectile_study.cases.evd.common import LIMITS, ONCE_S, VALUES, chasing_flops, flops, with_work
from spectile_study.cases.evd.cpu import chasing_method
from spectile_study.cases.evd.cuda import hybrid
from spectile_study.cases.evd.cuda.checks import (
    EPS,
    NORM_LIMITS,
    check_basis,
    check_norms_of,
    check_pairs_of,
    check_values_of,
    frobenius_norm,
)
from spectile_study.cases.evd.cuda.inputs import (
    KEPT_ORDER,
    fill,
    first_columns,
    matrix_of,
    reference_values,
    vendor_values,
    wait,
)
from spectile_study.inputs import counted

#: A band is compared with the eigenvalues of the dense matrix up to this order, above with its trace and norm.
DENSE_BAND_ORDER = 8192
#: A reduction of this order warms up one that is called once.
WARM_ORDER = 4096
#: Operations a second of the reduction by cuSOLVER's panels and of Algorithm 2 in global memory, as recorded.
PANELS_RATE, WIDE_RATE = 4e12, 1.6e11
#: Orders up to which LAPACK's sbtrd, which has one thread, is measured beside a device.
LAPACK_ORDER = 4096


def stages(row: Mapping[str, Any], context: Context) -> Problem:
    """Each stage of the solver with eigenvectors, begun from what the stages before it leave."""
    n = row["n"]
    a = matrix_of(n, context.seed)
    reference = reference_values(n, context.seed)
    best, block = stage_parameters(n, SCALARS["float64"], vectors=True, device=device.describe())
    b = row["bandwidth"] or best
    check_t = check_values_of(reference)
    norm = float(cupy.abs(reference).max())
    # What each stage begins from, left by those before it.
    kept, _ = load_matrix(a, lower=True, check_finite=True)
    panels = band_reduction(kept, n, bandwidth=b, block=block)
    band = extract_band(panels)
    d, e = chase_band(band.copy(), n, b, kept)
    w, q = divide_and_conquer(d, e)
    source = as_array(q, n, n)
    work, z = empty_matrix(n, n, np.float64), empty_matrix(n, n, np.float64)
    half_way = empty_matrix(n, n, np.float64)

    def copy(target: Matrix, given: Any) -> None:
        as_array(target, n, n).T[...] = given.T

    copy(half_way, source)
    apply_chasing(kept, n, b, half_way.pointer, half_way.ld, n)

    def check_w(result: Any) -> dict[str, float]:
        return {"error_values": float(cupy.abs(result - reference).max()) / (n * EPS * norm)}

    def check_pairs(result: Any) -> dict[str, float]:
        return check_w(result[0][:n]) | check_basis(result[1])

    def reduce() -> Any:
        return wait(extract_band(band_reduction(work, n, bandwidth=b, block=block)))

    def divide() -> Any:
        values, vectors = wait(divide_and_conquer(d, e))
        return values, as_array(vectors, n, n)

    def back_chasing() -> Any:
        apply_chasing(kept, n, b, z.pointer, z.ld, n)
        return wait(as_array(z, n, n))

    def back_panels() -> Any:
        apply_panels(panels, z.pointer, z.ld, n)
        return wait((w[:n], as_array(z, n, n)))

    values, basis = VALUES, {"error_orthogonality": 10.0}
    methods: list[Method | Skipped] = [
        Method(
            "load",
            lambda: wait(as_array(load_matrix(a, lower=True, check_finite=True)[0], n, n)),
            lambda result: {"error_fro_rel": float(not bool((result == a).all()))},
            {"error_fro_rel": 0.0},
        ),
        Method("band_reduction", reduce, lambda result: check_t(chase_band(result.copy(), n, b, None)), values,
               prepare=lambda: copy(work, a)),
        Method("chasing", lambda: wait(chase_band(band.copy(), n, b, kept)), check_t, values),
        Method("eigenvalues", lambda: wait(eigenvalues(d, e)), check_w, values),
        Method("divide_and_conquer", divide, check_pairs, values | basis),
        Method("back_chasing", back_chasing, check_basis, basis, prepare=lambda: copy(z, source)),
        Method("back_panels", back_panels, check_pairs_of(lambda: a, reference, True), LIMITS,
               prepare=lambda: copy(z, as_array(half_way, n, n))),
    ]  # fmt: skip
    path = rivals.stedc_path()
    if path is None:
        methods.append(Skipped("cusolver_stedc", "the cuSOLVER at hand has no Xstedc: it came with CUDA 13.4"))
    else:
        methods.append(Method("cusolver_stedc", rivals.Stedc(d, e, path), check_pairs, values | basis))
    return Problem(
        with_work(methods, n, b), inputs=first_columns(a, context.seed), values={"bandwidth": b, "block": block}
    )


def reduction(row: Mapping[str, Any], context: Context) -> Problem:
    """Detached band reduction at one b and nb, and the chasing of its band, on the GPU and on the host's cores."""
    n, b, block = row["n"], row["bandwidth"], row["block"]
    target = empty_matrix(n, n, np.float64)
    given = as_array(target, n, n)
    ours = b in SCALARS["float64"].bandwidths
    limits, check, restore = _checked_reduction(n, given, context.seed)
    digest = first_columns(given, context.seed)
    once = n > KEPT_ORDER if ours else flops(n) / PANELS_RATE > ONCE_S
    bands: list[Any] = []  # the newest one

    def reduce_from(matrix: Matrix, order: int, columns: int) -> Any:
        if ours:
            return wait(extract_band(band_reduction(matrix, order, bandwidth=b, block=columns)))
        return wait(_reduce_by_vendor(as_array(matrix, order, order), b))

    def reduce() -> Any:
        bands[:] = [reduce_from(target, n, block)]
        return bands[0]

    def chase(band: Any) -> Any:
        if ours:
            return wait(chase_band(band.copy(), len(band) - 2, b, None))
        if b in wide.BANDWIDTHS:
            return wait(wide.chase(band.copy(), b))
        return cpu.chase_band(cupy.asnumpy(band), b, keep=False, threads=context.threads)[:2]

    if once:  # what is called once is compiled and loaded before
        small = empty_matrix(WARM_ORDER, WARM_ORDER, np.float64)
        fill(as_array(small, WARM_ORDER, WARM_ORDER), context.seed)
        chase(reduce_from(small, WARM_ORDER, min(block, WARM_ORDER // 2)))

    methods: list[Method | Skipped] = [
        Method("spectile" if ours else "cusolver_panels", reduce, lambda band: check(chase(band)), limits,
               flops=flops(n), prepare=restore, once=once)
    ]  # fmt: skip
    name = "spectile_chasing" if ours else "algorithm2_chasing"
    if not ours:
        reason = f"our panel and chasing kernels hold at most {SCALARS['float64'].bandwidths[-1]} columns"
        methods += [Skipped("spectile", reason), Skipped("spectile_chasing", reason)]
    if ours and block != b:
        methods.append(Skipped(name, "measured in the row with nb = b, whose band is as wide"))
    elif ours or b in wide.BANDWIDTHS:
        work = chasing_flops(n, b)
        long = not ours and work / WIDE_RATE > ONCE_S
        methods.append(Method(name, lambda: chase(bands[0]), check, limits, flops=work, once=long))
    else:
        methods.append(Skipped(name, f"written for bands of {wide.BANDWIDTHS} subdiagonals"))
    if row["cpu_chasing"]:
        methods.append(
            chasing_method(
                "spectile_cpu", n, b, context.threads, lambda: cupy.asnumpy(bands[0])[:n], check, limits
            )
        )  # fmt: skip

    def source() -> Any:
        restore()
        return given

    def check_magma(band: Any) -> dict[str, float]:
        padded = cupy.zeros((n + 2 * ours, 2 * b))
        padded[:n] = cupy.asarray(band)
        return check(chase(padded))

    methods += hybrid.band_reduction(row, context.threads, source, check_magma, check, limits)
    return Problem(methods, inputs=digest)


def _checked_reduction(n: int, given: Any, seed: int) -> tuple[dict[str, float], Any, Any]:
    """Fill the matrix `given`; return limits and check of a tridiagonal matrix that comes of it, and its restoring.

    A matrix above `KEPT_ORDER` is made again before each call, and checked by its trace and norm.
    """
    if n > KEPT_ORDER:
        fill(given, seed)
        check = check_norms_of(float(cupy.trace(given)), frobenius_norm(given))
        return NORM_LIMITS, check, lambda: wait(fill(given, seed))
    a = matrix_of(n, seed)

    def restore() -> None:
        given[...] = a

    restore()
    return VALUES, check_values_of(reference_values(n, seed)), restore


def _reduce_by_vendor(a: Any, b: int) -> Any:
    """Conventional band reduction (nb = b) with cuSOLVER's panels, for bands that our panel kernel does not hold.

    Parameters
    ----------
    a : cupy.ndarray, shape (n, n), column-major
        Both triangles given; overwritten.
    b : int

    Returns
    -------
    cupy.ndarray, shape (n, 2 b)
        The band as ``band[j, i - j]``.
    """
    from cupyx.scipy.linalg import solve_triangular

    n = a.shape[0]
    band = cupy.zeros((n, 2 * b))
    for j in range(0, n, b):
        top = min(j + b, n)
        if top < n:
            factors, tau = cupy.linalg.qr(a[top:, j:top], mode="raw")
            size = len(tau)
            y = cupy.tril(factors.T, -1)[:, :size]
            y[np.arange(size), np.arange(size)] = 1
            # The inverse of T is the upper triangle of YᵀY with 1/τ on its diagonal; τ = 0 is no reflection.
            inverse = cupy.triu(y.T @ y, 1) + cupy.diag(1 / cupy.where(tau == 0, 1e-300, tau))
            t = solve_triangular(inverse, cupy.eye(size))
            a[top:, j:top] = cupy.triu(factors.T)
            rest = a[top:, top:]
            z = rest @ (y @ t)
            z -= y @ (t.T @ (y.T @ z) / 2)
            rest -= z @ y.T
            rest -= y @ z.T
    for offset in range(min(b + 1, n)):
        band[: n - offset, offset] = cupy.diagonal(a, -offset)
    return band


def chasing(row: Mapping[str, Any], context: Context) -> Problem:
    """Bulge chasing of a random band, on the GPU and on the host's cores (Figure 9)."""
    n, b = row["n"], row["bandwidth"]
    host = counted.band(n, b, context.seed)
    work = chasing_flops(n, b)
    band = cupy.zeros((n + 2, 2 * b))
    band[:n] = cupy.asarray(host)
    if n > DENSE_BAND_ORDER:
        check = check_norms_of(
            float(host[:, 0].sum()), float(np.sqrt((host[:, 0] ** 2).sum() + 2 * (host[:, 1:] ** 2).sum()))
        )
    else:
        # The reference is the vendor's solver on the dense matrix: column-major, lower triangle.
        dense = cupy.zeros(n * n)
        for offset in range(b + 1):
            dense[offset :: n + 1][: n - offset] = band[: n - offset, offset]
        check = check_values_of(vendor_values(dense.reshape(n, n).T))
    limits = NORM_LIMITS if n > DENSE_BAND_ORDER else VALUES
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: wait(chase_band(band.copy(), n, b, None)), check, limits, flops=work),
        chasing_method("spectile_cpu", n, b, context.threads, lambda: host, check, limits)
        if row["cpu_chasing"]
        else Skipped("spectile_cpu", "left out of this row: many seconds a call on the host's cores"),
        hybrid.chasing(row, context.threads, host, check, limits),
        Method("lapack", lambda: lapack.sbtrd(host[:, : b + 1].copy(), b), check, limits, flops=work, once=True)
        if n <= LAPACK_ORDER
        else Skipped("lapack", f"left out above n = {LAPACK_ORDER:,}: LAPACK's sbtrd has one thread"),
    ]
    return Problem(methods, inputs={"band": digest_array(host)})
