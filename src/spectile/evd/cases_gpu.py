"""The studies of `cases` on a CUDA device: ours against cuSOLVER and cuBLAS."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import cupy
import numpy as np

from spectile.bench.case import Context, Method, Problem, Skipped
from spectile.bench.provenance import digest_array

from . import cases, cpu, gpu, vendor
from .api import eigh, eigvalsh, tridiagonalize

EPS = float(np.finfo(np.float64).eps)


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/evd.tsv`` on the current device."""
    # The vendor's work space of the case before is given back first: the largest cases need nearly all memory.
    cupy.get_default_memory_pool().free_all_blocks()
    return _STUDIES[row["study"]](row, context)


def _matrix(n: int, seed: int) -> Any:
    """Return a symmetric matrix of standard normal entries, column-major, made on the device."""
    a = cupy.random.RandomState(seed).standard_normal((n, n))
    for start in range(0, n, 4096):
        # Mirrored block by block, so that no second matrix is needed.
        stop = min(start + 4096, n)
        a[start:stop, start:] = a[start:, start:stop].T.copy()
    return a.T


def _digest(a: Any) -> dict[str, str]:
    """Digest the input's first columns: a matrix of 8 GiB is not sent through the host for its name."""
    return {"a_first_columns": digest_array(cupy.asnumpy(a[:, :8]))}


def _vendors(
    a: Any, vectors: bool, one_stage: bool, reference: Any
) -> list[tuple[str, Callable[[], Any], Callable[[], None], int] | Skipped]:
    """Return name, call, restore and work space of cuSOLVER's two algorithms."""
    path = os.environ.get(vendor.CUSOLVER_PATH)
    reason = vendor.two_stage_reason()
    found: list[tuple[str, Callable[[], Any], Callable[[], None], int] | Skipped] = []
    work = cupy.empty(a.shape, a.dtype, order="F")

    def restore() -> None:
        work[...] = a

    if one_stage:
        solver = vendor.Syevd(work, vectors=vectors, algorithm="one_stage")
        found.append(("cusolver_one_stage", solver, restore, solver.device_bytes))
    else:
        found.append(Skipped("cusolver_one_stage", "left out of this row: it takes about 20 s a call at this order"))
    if reason:
        found.append(Skipped("cusolver_two_stage", reason))
    else:
        solver = vendor.Syevd(work, vectors=vectors, algorithm="two_stage", path=path)
        found.append(("cusolver_two_stage", solver, restore, solver.device_bytes))
    return found


def _reference(a: Any) -> Any:
    """Eigenvalues by cuSOLVER's two-stage solver where there is one, else by its one-stage solver."""
    path = os.environ.get(vendor.CUSOLVER_PATH)
    two_stage = vendor.two_stage_reason() is None
    solver = vendor.Syevd(
        a.copy(order="F"),
        vectors=False,
        algorithm="two_stage" if two_stage else "one_stage",
        path=path if two_stage else None,
    )
    w = solver()[0].copy()
    del solver
    cupy.get_default_memory_pool().free_all_blocks()
    return w


def _check(a: Any, reference: Any, vectors: bool) -> Callable[[Any], dict[str, float]]:
    n = a.shape[0]
    norm, size = float(cupy.abs(reference).max()), float(cupy.linalg.norm(reference))

    def check(result: Any) -> dict[str, float]:
        w, v = result if vectors else (result[0] if isinstance(result, tuple) else result, None)
        errors = {"error_values": float(cupy.abs(w - reference).max()) / (n * EPS * norm)}
        if v is not None:
            residual = orthogonality = 0.0
            for start in range(0, n, 4096):  # in column blocks, for memory
                block = slice(start, min(start + 4096, n))
                residual += float(cupy.linalg.norm(a @ v[:, block] - v[:, block] * w[block])) ** 2
                gram = v.T @ v[:, block]
                gram[np.arange(block.start, block.stop), np.arange(block.stop - block.start)] -= 1
                orthogonality += float(cupy.linalg.norm(gram)) ** 2
            errors["error_residual"] = residual**0.5 / (size * n * EPS)
            errors["error_orthogonality"] = orthogonality**0.5 / (n * EPS)
        return errors

    return check


def _evd(row: Mapping[str, Any], context: Context) -> Problem:
    n, vectors = row["n"], row["vectors"]
    a = _matrix(n, context.seed)
    reference = _reference(a)
    check = _check(a, reference, vectors)
    limits = cases.LIMITS if vectors else {"error_values": 10.0}
    work = cases.flops(n, vectors=vectors)

    def ours() -> Any:
        result = eigh(a, backend="cuda") if vectors else eigvalsh(a, backend="cuda")
        cupy.cuda.get_current_stream().synchronize()
        return result

    methods: list[Method | Skipped] = [
        Method(
            "spectile", ours, check, limits, flops=work, memory_bytes=gpu.workspace_bytes(n, a.dtype, vectors=vectors)
        )
    ]
    for found in _vendors(a, vectors, row["one_stage"], reference):
        if isinstance(found, Skipped):
            methods.append(found)
        else:
            name, call, restore, memory = found
            methods.append(Method(name, call, check, limits, flops=work, memory_bytes=memory, prepare=restore))
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=_digest(a), values={"below_crossover": n < gpu.CROSSOVER_VALUES})


def _tridiagonal(row: Mapping[str, Any], context: Context) -> Problem:
    n = row["n"]
    a = _matrix(n, context.seed)
    check = _check_tridiagonal(a, _reference(a))
    methods: list[Method | Skipped] = [
        Method(
            "spectile",
            lambda: _wait(tridiagonalize(a, backend="cuda")),
            check,
            {"error_values": 10.0},
            flops=cases.flops(n),
        )
    ]
    if row["one_stage"]:
        work = cupy.empty(a.shape, a.dtype, order="F")
        solver = vendor.Sytrd(work)

        def restore() -> None:
            work[...] = a

        methods.append(
            Method("cusolver_one_stage", solver, check, {"error_values": 10.0}, flops=cases.flops(n), prepare=restore)
        )
    else:
        methods.append(Skipped("cusolver_one_stage", "left out of this row: it takes about 20 s a call at this order"))
    methods.append(
        Skipped("cusolver_two_stage", "cuSOLVER does not offer the tridiagonalization of its two-stage solver")
    )
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=_digest(a))


def _wait(result: Any) -> Any:
    cupy.cuda.get_current_stream().synchronize()
    return result


def _check_tridiagonal(a: Any, reference: Any) -> Callable[[Any], dict[str, float]]:
    n, norm = a.shape[0], float(cupy.abs(reference).max())

    def check(result: Any) -> dict[str, float]:
        e = cupy.zeros(n, np.float64)
        e[: n - 1] = result[1][: n - 1]
        w = gpu.eigenvalues(cupy.asarray(result[0]), e)
        return {"error_values": float(cupy.abs(w - reference).max()) / (n * EPS * norm)}

    return check


def _reduction(row: Mapping[str, Any], context: Context) -> Problem:
    """Detached band reduction at one b and nb, and the chasing of its band, on the GPU and on the host's cores."""
    n, b, block = row["n"], row["bandwidth"], row["block"]
    if b not in gpu.BANDWIDTHS["float64"]:
        reason = f"the panel kernel holds at most {gpu.BANDWIDTHS['float64'][-1]} columns"
        return Problem(
            [Skipped("spectile", reason), Skipped("spectile_chasing", reason), Skipped("magma", cases.NO_MAGMA)]
        )
    a = _matrix(n, context.seed)
    check = _check_tridiagonal(a, _reference(a))
    work = gpu.empty_matrix(n, n, np.float64)

    def restore() -> None:
        gpu.as_array(work, n, n)[...] = a

    def reduce() -> Any:
        return _wait(gpu.extract_band(gpu.band_reduction(work, n, bandwidth=b, block=block)))

    def check_band(band: Any) -> dict[str, float]:
        return check(gpu.chase_band(band.copy(), n, b, None))

    restore()
    band = reduce()
    limits = {"error_values": 10.0}
    methods: list[Method | Skipped] = [
        Method("spectile", reduce, check_band, limits, flops=cases.flops(n), prepare=restore),
        Method(
            "spectile_chasing",
            lambda: _wait(gpu.chase_band(band.copy(), n, b, None)),
            check,
            limits,
            flops=6.0 * n * n * b,
        ),
    ]
    if row["cpu_chasing"]:
        host = cupy.asnumpy(band)[:n]
        methods.append(
            Method(
                "spectile_cpu",
                lambda: cpu.chase_band(host.copy(), b, keep=False, threads=context.threads)[:2],
                check,
                limits,
                flops=6.0 * n * n * b,
            )
        )
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=_digest(a))


def _chasing(row: Mapping[str, Any], context: Context) -> Problem:
    n, b = row["n"], row["bandwidth"]
    host = cases.random_band(n, b, context.seed)
    limits, work = {"error_values": 10.0}, 6.0 * n * n * b
    if b not in gpu.BANDWIDTHS["float64"]:
        reason = f"the chasing kernel is built for b = {', '.join(map(str, gpu.BANDWIDTHS['float64']))}"
        return Problem([Skipped("spectile", reason), Skipped("magma", cases.NO_MAGMA)])
    band = cupy.zeros((n + 2, 2 * b))
    band[:n] = cupy.asarray(host)
    # The reference is the CPU's chasing: other arithmetic order, other code.
    d, e = (cupy.asarray(x) for x in cpu.chase_band(host.copy(), b, keep=False, threads=context.threads)[:2])
    padded = cupy.zeros(n)
    padded[: n - 1] = e
    reference = gpu.eigenvalues(d, padded)
    norm = float(cupy.abs(reference).max())

    def check(result: Any) -> dict[str, float]:
        e = cupy.zeros(n)
        e[: n - 1] = cupy.asarray(result[1])[: n - 1]
        w = gpu.eigenvalues(cupy.asarray(result[0]), e)
        return {"error_values": float(cupy.abs(w - reference).max()) / (n * EPS * norm)}

    methods: list[Method | Skipped] = [
        Method("spectile", lambda: _wait(gpu.chase_band(band.copy(), n, b, None)), check, limits, flops=work),
        cases._chasing_method("spectile_cpu", host, b, context.threads, check)
        if row["cpu_chasing"]
        else Skipped("spectile_cpu", "left out of this row: minutes on the host's cores"),
        Skipped("magma", cases.NO_MAGMA),
    ]
    return Problem(methods, inputs={"band": digest_array(host)})


def _syr2k(row: Mapping[str, Any], context: Context) -> Problem:
    n, k = row["n"], row["k"] or row["n"]
    random = cupy.random.RandomState(context.seed)
    a, b = (random.standard_normal((k, n)).T for _ in range(2))
    c = cupy.zeros((n, n), order="F")
    rows = np.unique(np.random.default_rng(context.seed).integers(0, n, 16))
    mask = cupy.asarray(np.arange(n) <= rows[:, None])
    expected = cupy.where(mask, a[rows] @ b.T + b[rows] @ a.T, 0)
    norm = float(cupy.linalg.norm(expected))

    def check(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.linalg.norm(cupy.where(mask, c[rows], 0) - expected)) / norm}

    def clear() -> None:
        c.fill(0)

    work, limits = 2.0 * n * n * k, {"error_fro_rel": 1e-12}
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: gpu.syr2k(a, b, c), check, limits, flops=work, clock="events", prepare=clear),
        Method(
            "cublas", lambda: vendor.syr2k(a, b, c, alpha=1.0), check, limits, flops=work, clock="events", prepare=clear
        ),
    ]
    return Problem(methods, inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))})


def _roofline(row: Mapping[str, Any], context: Context) -> Problem:
    n, width = row["n"], row["bandwidth"] or row["n"]
    random = cupy.random.RandomState(context.seed)
    a, w = random.standard_normal((n, n)).T, random.standard_normal((width, n)).T
    out, product = cupy.empty((n, n), order="F"), cupy.empty((n, width), order="F")
    rows = np.random.default_rng(context.seed).integers(0, n, 8)
    exact = a[rows] @ w
    blas = gpu.Blas(np.float64)

    def multiply() -> Any:
        blas.gemm(n, width, n, 1.0, a.data.ptr, n, w.data.ptr, n, 0.0, product.data.ptr, n)
        return product

    def copy() -> Any:
        cupy.copyto(out, a)
        return out

    def check_product(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.linalg.norm(result[rows] - exact) / cupy.linalg.norm(exact))}

    def check_copy(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(not bool((result == a).all()))}

    moved = 8.0 * (n * n + 2 * n * width)
    return Problem(
        [
            Method("cublas", multiply, check_product, {"error_fro_rel": 1e-12}, flops=2.0 * n * n * width, bytes=moved,
                   clock="events"),
            Method("copy", copy, check_copy, {"error_fro_rel": 0.0}, bytes=16.0 * n * n, clock="events"),
        ],
        inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))},
    )  # fmt: skip


_STUDIES = {
    "evd": _evd,
    "tridiagonal": _tridiagonal,
    "reduction": _reduction,
    "chasing": _chasing,
    "syr2k": _syr2k,
    "roofline": _roofline,
}
