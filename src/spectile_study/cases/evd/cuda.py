"""The studies of `cases` on a CUDA device: ours against cuSOLVER and cuBLAS."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import cupy
import numpy as np

from spectile.evd.api import eigh, eigvalsh, tridiagonalize
from spectile.evd.cpu import solver as cpu
from spectile.evd.cuda import run as gpu
from spectile.evd.cuda.back import apply_chasing, apply_panels
from spectile.evd.cuda.band import band_reduction, extract_band
from spectile.evd.cuda.blas import Blas, add_lower, syr2k
from spectile.evd.cuda.chasing import chase_band
from spectile.evd.cuda.divide import divide_and_conquer
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix
from spectile.evd.cuda.sturm import eigenvalues
from spectile.evd.cuda.units import BANDWIDTHS
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd import build as cases
from spectile_study.cases.evd import ozaki
from spectile_study.cases.evd import rivals as vendor

EPS = float(np.finfo(np.float64).eps)
#: A matrix above this order is made again where it is wanted, instead of being kept beside its work space.
KEPT_ORDER = 40_000
#: A band is compared with the eigenvalues of the dense matrix up to this order, above with its trace and norm.
DENSE_BAND_ORDER = 8192
NORM_LIMITS = {"error_trace": 10.0, "error_norm": 10.0}
#: Orders up to which our two stages are measured beside the vendor's code that `eigh` calls there.
CROSSOVER_STUDY = 4096
#: Moduli of the INT8 products, and the error that so many may have: as accurate as FP64, and with fewer products.
INT8_COUNTS = {ozaki.ACCURATE: 1e-12, 12: 1e-9}
ONE_STAGE_LEFT_OUT = "left out of this row: it takes about 20 s a call at this order"


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/evd.tsv`` on the current device."""
    # The vendor's work space of the case before is given back first: the largest cases need nearly all memory.
    cupy.get_default_memory_pool().free_all_blocks()
    return _STUDIES[row["study"]](row, context)


def _fill(a: Any, seed: int) -> Any:
    """Fill a column-major matrix with a Hermitian one of standard normal entries, and return it."""
    n = a.shape[0]
    random = cupy.random.RandomState(seed)
    for start in range(0, n, 4096):
        # Row block by row block of the transpose, mirrored at once, so that no second matrix is needed.
        stop = min(start + 4096, n)
        rows = random.standard_normal((stop - start, n - start))
        if a.dtype.kind == "c":
            rows = rows + 1j * random.standard_normal(rows.shape)
        square = cupy.tril(rows[:, : stop - start], -1)
        diagonal = cupy.diag(cupy.diag(rows).real)
        a[start:stop, start:stop] = square + square.conj().T + diagonal
        a[stop:, start:stop] = rows[:, stop - start :].conj().T
        a[start:stop, stop:] = rows[:, stop - start :]
    return a


def _matrix(n: int, seed: int, precision: str = "float64") -> Any:
    """Return a Hermitian matrix of standard normal entries, column-major, made on the device."""
    return _fill(cupy.empty((n, n), precision, order="F"), seed)


def _digest(a: Any) -> dict[str, str]:
    """Digest the input's first columns: a matrix of 8 GiB is not sent through the host for its name."""
    return {"a_first_columns": digest_array(cupy.asnumpy(a[:, :8]))}


def _vendors(a: Any, vectors: bool, one_stage: bool) -> list[tuple[str, vendor.Syevd, Callable[[], None]] | Skipped]:
    """Return name, solver and restore of cuSOLVER's two algorithms."""
    found: list[tuple[str, vendor.Syevd, Callable[[], None]] | Skipped] = []
    work = cupy.empty(a.shape, a.dtype, order="F")

    def restore() -> None:
        work[...] = a

    reasons = {"one_stage": None if one_stage else ONE_STAGE_LEFT_OUT, "two_stage": vendor.two_stage_reason()}
    for algorithm, reason in reasons.items():
        name = f"cusolver_{algorithm}"
        path = os.environ.get(vendor.CUSOLVER_PATH) if algorithm == "two_stage" else None
        if reason is None:
            try:
                solver = vendor.Syevd(work, vectors=vectors, algorithm=algorithm, path=path)  # type: ignore[arg-type]
            except RuntimeError as error:  # a type that this algorithm does not take
                reason = f"{error} to {algorithm.replace('_', ' ')} of {a.dtype}"
            except cupy.cuda.memory.OutOfMemoryError as error:
                reason = f"its work space does not fit beside the matrix ({error})"
            else:
                found.append((name, solver, restore))
                continue
        found.append(Skipped(name, reason))
    return found


def _vendor_values(a: Any) -> Any:
    """Eigenvalues by cuSOLVER's two-stage solver where there is one, else by its one-stage solver; overwrites `a`."""
    two_stage = vendor.two_stage_reason() is None
    solver = vendor.Syevd(
        a,
        vectors=False,
        algorithm="two_stage" if two_stage else "one_stage",
        path=os.environ.get(vendor.CUSOLVER_PATH) if two_stage else None,
    )
    w = solver()[0].copy()
    del solver
    cupy.get_default_memory_pool().free_all_blocks()
    return w


@functools.cache
def _reference(n: int, seed: int, precision: str = "float64") -> Any:
    """Eigenvalues of `_matrix` by the vendor in float64 or complex128; many cases share one."""
    a = _matrix(n, seed, precision)
    return _vendor_values(a.astype(np.promote_types(precision, np.float64), order="F", copy=False))


def _check(make: Callable[[], Any], reference: Any, vectors: bool) -> Callable[[Any], dict[str, float]]:
    """Return the check of a solver's result on the matrix that `make` returns.

    Without a reference, eigenvalues are checked by the trace and the Frobenius norm.
    """

    def check(result: Any) -> dict[str, float]:
        w, v = result if vectors else (result[0] if isinstance(result, tuple) else result, None)
        a = make()
        n, eps = a.shape[0], float(np.finfo(w.dtype).eps)
        norm = float(cupy.abs(w).max())
        if reference is None:
            size = float(cupy.linalg.norm(w))
            trace = abs(float(w.sum()) - float(cupy.trace(a).real))
            squares = abs(size - _norm(a))
            errors = {"error_trace": trace / (n * eps * norm), "error_norm": squares / (n * eps * norm)}
        else:
            norm, size = float(cupy.abs(reference).max()), float(cupy.linalg.norm(reference))
            errors = {"error_values": float(cupy.abs(w - reference).max()) / (n * eps * norm)}
        if v is not None:
            residual = 0.0
            for start in range(0, n, 4096):  # in column blocks, for memory
                block = slice(start, min(start + 4096, n))
                residual += float(cupy.linalg.norm(a @ v[:, block] - v[:, block] * w[block])) ** 2
            errors["error_residual"] = residual**0.5 / (size * n * eps)
            errors |= _check_basis(v)
        return errors

    return check


def _check_basis(v: Any) -> dict[str, float]:
    n, squares = v.shape[0], 0.0
    for start in range(0, n, 4096):
        block = slice(start, min(start + 4096, n))
        gram = v.conj().T @ v[:, block]
        gram[np.arange(block.start, block.stop), np.arange(block.stop - block.start)] -= 1
        squares += float(cupy.linalg.norm(gram)) ** 2
    return {"error_orthogonality": squares**0.5 / (n * float(np.finfo(v.dtype).eps))}


def _norm(a: Any) -> float:
    """Frobenius norm, in column blocks, for memory."""
    squares = [float(cupy.linalg.norm(a[:, start : start + 4096])) ** 2 for start in range(0, a.shape[1], 4096)]
    return sum(squares) ** 0.5


def _evd(row: Mapping[str, Any], context: Context) -> Problem:
    n, vectors, precision = row["n"], row["vectors"], row["precision"]
    if n > KEPT_ORDER:
        return _large(row, context)
    a = _matrix(n, context.seed, precision)
    check = _check(lambda: a, _reference(n, context.seed, precision), vectors)
    limits = cases.LIMITS if vectors else cases.VALUES
    work = cases.flops(n, vectors=vectors) * (4 if a.dtype.kind == "c" else 1)

    def two_stages() -> Any:
        bandwidth, block = gpu.parameters(n, a.dtype, vectors=vectors)
        w, v = gpu.eigh(
            a,
            lower=True,
            eigvals_only=not vectors,
            check_finite=True,
            choose=lambda w: slice(0, n),
            bandwidth=bandwidth,
            block=block,
        )
        return _wait((w, v) if vectors else w)

    solve = eigh if vectors else eigvalsh
    memory = gpu.workspace_bytes(n, a.dtype, vectors=vectors)
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: _wait(solve(a, backend="cuda")), check, limits, flops=work, memory_bytes=memory)
    ]
    if n <= CROSSOVER_STUDY:
        methods.append(Method("spectile_two_stage", two_stages, check, limits, flops=work, memory_bytes=memory))
    for found in _vendors(a, vectors, row["one_stage"]):
        if isinstance(found, Skipped):
            methods.append(found)
        else:
            name, solver, restore = found
            memory = solver.device_bytes
            methods.append(Method(name, solver, check, limits, flops=work, memory_bytes=memory, prepare=restore))
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=_digest(a), values={"vendor_called": gpu.calls_vendor(n, a.dtype, vectors=vectors)})


def _large(row: Mapping[str, Any], context: Context) -> Problem:
    """An order whose matrix fills a quarter of the device: solved in its own memory and made again for the check."""
    n, vectors = row["n"], row["vectors"]
    a = cupy.empty((n, n), np.float64, order="F")
    limits = NORM_LIMITS | (
        {name: cases.LIMITS[name] for name in ("error_residual", "error_orthogonality")} if vectors else {}
    )
    solve = eigh if vectors else eigvalsh

    def restore() -> None:
        _wait(_fill(a, context.seed))

    ours = Method(
        "spectile",
        lambda: _wait(solve(a, overwrite_a=True, backend="cuda")),
        _check(lambda: _fill(a, context.seed), None, vectors),
        limits,
        flops=cases.flops(n, vectors=vectors),
        memory_bytes=gpu.workspace_bytes(n, a.dtype, vectors=vectors, overwrite_a=True),
        prepare=restore,
    )
    needed = 5 * 8 * n * n
    reason = f"cuSOLVER needs about {needed:,} bytes at this order: its work space is four times the matrix"
    return Problem(
        [
            ours,
            Skipped("cusolver_one_stage", reason),
            Skipped("cusolver_two_stage", reason),
            Skipped("magma", cases.NO_MAGMA),
        ],
        inputs=_digest(_fill(a, context.seed)),
    )


def _stages(row: Mapping[str, Any], context: Context) -> Problem:
    n = row["n"]
    a = _matrix(n, context.seed)
    reference = _reference(n, context.seed)
    best, block = gpu.parameters(n, a.dtype, vectors=True)
    b = row["bandwidth"] or best
    check_t = _check_values(reference)
    norm = float(cupy.abs(reference).max())
    # What each stage begins from, left by those before it.
    kept, _ = load_matrix(a, lower=True, bandwidth=b, check_finite=True)
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

    def check_w(found: Any) -> dict[str, float]:
        return {"error_values": float(cupy.abs(found - reference).max()) / (n * EPS * norm)}

    def check_pairs(found: Any) -> dict[str, float]:
        return check_w(found[0][:n]) | _check_basis(found[1])

    def reduce() -> Any:
        return _wait(extract_band(band_reduction(work, n, bandwidth=b, block=block)))

    def divide() -> Any:
        values, vectors = _wait(divide_and_conquer(d, e))
        return values, as_array(vectors, n, n)

    def back_chasing() -> Any:
        apply_chasing(kept, n, b, z.pointer, z.ld, n)
        return _wait(as_array(z, n, n))

    def back_panels() -> Any:
        apply_panels(panels, z.pointer, z.ld, n)
        return _wait((w[:n], as_array(z, n, n)))

    values, basis = cases.VALUES, {"error_orthogonality": 10.0}
    methods: list[Method | Skipped] = [
        Method(
            "load",
            lambda: _wait(as_array(load_matrix(a, lower=True, bandwidth=b, check_finite=True)[0], n, n)),
            lambda found: {"error_fro_rel": float(not bool((found == a).all()))},
            {"error_fro_rel": 0.0},
        ),
        Method("band_reduction", reduce, lambda found: check_t(chase_band(found.copy(), n, b, None)), values,
               prepare=lambda: copy(work, a)),
        Method("chasing", lambda: _wait(chase_band(band.copy(), n, b, kept)), check_t, values),
        Method("eigenvalues", lambda: _wait(eigenvalues(d, e)), check_w, values),
        Method("divide_and_conquer", divide, check_pairs, values | basis),
        Method("back_chasing", back_chasing, _check_basis, basis, prepare=lambda: copy(z, source)),
        Method("back_panels", back_panels, _check(lambda: a, reference, True), cases.LIMITS,
               prepare=lambda: copy(z, as_array(half_way, n, n))),
    ]  # fmt: skip
    path = vendor.stedc_path()
    if path is None:
        methods.append(Skipped("cusolver_stedc", "the cuSOLVER at hand has no Xstedc: it came with CUDA 13.4"))
    else:
        methods.append(Method("cusolver_stedc", vendor.Stedc(d, e, path), check_pairs, values | basis))
    return Problem(cases.with_work(methods, n, b), inputs=_digest(a), values={"bandwidth": b, "block": block})


def _tridiagonal(row: Mapping[str, Any], context: Context) -> Problem:
    n, large = row["n"], row["n"] > KEPT_ORDER
    a = _matrix(n, context.seed)
    digest = _digest(a)

    def refill() -> None:
        _wait(_fill(a, context.seed))

    check = _check_norms(float(cupy.trace(a)), _norm(a)) if large else _check_values(_reference(n, context.seed))
    limits = NORM_LIMITS if large else cases.VALUES
    methods: list[Method | Skipped] = [
        Method(
            "spectile",
            lambda: _wait(tridiagonalize(a, overwrite_a=large, backend="cuda")),
            check,
            limits,
            flops=cases.flops(n),
            prepare=refill if large else None,
        )
    ]
    if row["one_stage"]:
        work = cupy.empty(a.shape, a.dtype, order="F")
        solver = vendor.Sytrd(work)

        def restore() -> None:
            work[...] = a

        methods.append(Method("cusolver_one_stage", solver, check, limits, flops=cases.flops(n), prepare=restore))
    else:
        methods.append(Skipped("cusolver_one_stage", ONE_STAGE_LEFT_OUT))
    methods.append(
        Skipped("cusolver_two_stage", "cuSOLVER does not offer the tridiagonalization of its two-stage solver")
    )
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=digest)


def _wait(result: Any) -> Any:
    cupy.cuda.get_current_stream().synchronize()
    return result


def _check_values(reference: Any) -> Callable[[Any], dict[str, float]]:
    """Return the check of a tridiagonal matrix (d, e) against the eigenvalues that it must have."""
    n, norm = len(reference), float(cupy.abs(reference).max())

    def check(result: Any) -> dict[str, float]:
        e = cupy.zeros(n, np.float64)
        e[: n - 1] = cupy.asarray(result[1])[: n - 1]
        w = eigenvalues(cupy.asarray(result[0]), e)
        return {"error_values": float(cupy.abs(w - reference).max()) / (n * EPS * norm)}

    return check


def _check_norms(trace: float, norm: float) -> Callable[[Any], dict[str, float]]:
    """Return the check of a tridiagonal matrix (d, e) by the trace and the Frobenius norm of the one it came from."""

    def check(result: Any) -> dict[str, float]:
        d, e = (cupy.asarray(x) for x in result[:2])
        n = len(d)
        e = e[: n - 1]
        scale = n * EPS * float((cupy.abs(d[:-1]) + cupy.abs(e)).max())
        size = float(cupy.sqrt((d * d).sum() + 2 * (e * e).sum()))
        return {"error_trace": abs(float(d.sum()) - trace) / scale, "error_norm": abs(size - norm) / scale}

    return check


def _reduction(row: Mapping[str, Any], context: Context) -> Problem:
    """Detached band reduction at one b and nb, and the chasing of its band, on the GPU and on the host's cores."""
    n, b, block = row["n"], row["bandwidth"], row["block"]
    limits, work = cases.VALUES, 6.0 * n * n * b
    a = _matrix(n, context.seed)
    check = _check_values(_reference(n, context.seed))
    target = empty_matrix(n, n, np.float64)
    ours = b in BANDWIDTHS["float64"]

    def restore() -> None:
        as_array(target, n, n)[...] = a

    def reduce() -> Any:
        if ours:
            return _wait(extract_band(band_reduction(target, n, bandwidth=b, block=block)))
        return _wait(_reduce_by_vendor(as_array(target, n, n), b))

    def chase(band: Any) -> Any:
        return _wait(chase_band(band.copy(), n, b, None))

    def chase_on_host(band: Any) -> Any:
        return cpu.chase_band(band.copy(), b, keep=False, threads=context.threads)[:2]

    def check_band(band: Any) -> dict[str, float]:
        return check(chase(band) if ours else chase_on_host(cupy.asnumpy(band)[:n]))

    methods: list[Method | Skipped] = [
        Method("spectile" if ours else "cusolver_panels", reduce, check_band, limits, flops=cases.flops(n),
               prepare=restore)
    ]  # fmt: skip
    if not ours:
        reason = f"our panel and chasing kernels hold at most {BANDWIDTHS['float64'][-1]} columns"
        methods += [Skipped("spectile", reason), Skipped("spectile_chasing", reason)]
    elif block != b:
        methods.append(Skipped("spectile_chasing", "measured in the row with nb = b, whose band is as wide"))
    if (ours and block == b) or row["cpu_chasing"]:
        restore()
        band = reduce()
        if ours and block == b:
            methods.append(Method("spectile_chasing", lambda: chase(band), check, limits, flops=work))
        if row["cpu_chasing"]:
            host = cupy.asnumpy(band)[:n]
            methods.append(Method("spectile_cpu", lambda: chase_on_host(host), check, limits, flops=work))
    methods.append(Skipped("magma", cases.NO_MAGMA))
    return Problem(methods, inputs=_digest(a))


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


def _chasing(row: Mapping[str, Any], context: Context) -> Problem:
    n, b = row["n"], row["bandwidth"]
    host = cases.random_band(n, b, context.seed)
    work = 6.0 * n * n * b
    band = cupy.zeros((n + 2, 2 * b))
    band[:n] = cupy.asarray(host)
    if n > DENSE_BAND_ORDER:
        check = _check_norms(
            float(host[:, 0].sum()), float(np.sqrt((host[:, 0] ** 2).sum() + 2 * (host[:, 1:] ** 2).sum()))
        )
    else:
        # The reference is the vendor's solver on the dense matrix: column-major, lower triangle.
        dense = cupy.zeros(n * n)
        for offset in range(b + 1):
            dense[offset :: n + 1][: n - offset] = band[: n - offset, offset]
        check = _check_values(_vendor_values(dense.reshape(n, n).T))
    limits = NORM_LIMITS if n > DENSE_BAND_ORDER else cases.VALUES
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: _wait(chase_band(band.copy(), n, b, None)), check, limits, flops=work),
        cases._chasing_method("spectile_cpu", host, b, context.threads, check, limits)
        if row["cpu_chasing"]
        else Skipped("spectile_cpu", "left out of this row: many seconds a call on the host's cores"),
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
        Method("spectile", lambda: syr2k(a, b, c), check, limits, flops=work, clock="events", prepare=clear),
        Method(
            "cublas", lambda: vendor.syr2k(a, b, c, alpha=1.0), check, limits, flops=work, clock="events", prepare=clear
        ),
    ]
    return Problem(methods, inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))})


def _int8(row: Mapping[str, Any], context: Context) -> Problem:
    """The rank-2k update, or the band reduction with it, in FP64 and from INT8 products (Ozaki's second scheme)."""
    return _int8_reduction(row, context) if row["block"] else _int8_update(row, context)


def _int8_update(row: Mapping[str, Any], context: Context) -> Problem:
    n, k = row["n"], row["k"]
    random = cupy.random.RandomState(context.seed)
    a, b = (random.standard_normal((k, n)).T for _ in range(2))
    c = cupy.zeros((n, n), order="F")
    # FP64's own error is to be seen, too: some entries of the last rows in extended precision.
    rows = slice(n - 4, n)
    at = np.unique(np.random.default_rng(context.seed).integers(0, n - 4, 256))
    wide = [cupy.asnumpy(x).astype(np.longdouble) for x in (a[rows], b[rows], a[at], b[at])]
    expected = wide[0] @ wide[3].T + wide[1] @ wide[2].T

    def check(result: Any) -> dict[str, float]:
        difference = np.linalg.norm((cupy.asnumpy(c[rows][:, at]) - expected).astype(np.float64))
        return {"error_fro_rel": float(difference / np.linalg.norm(expected.astype(np.float64)))}

    def clear() -> None:
        c.fill(0)

    work = 2.0 * n * n * k
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: syr2k(a, b, c), check, {"error_fro_rel": 1e-12}, flops=work, clock="events",
               prepare=clear),
        *(
            Method(f"int8_{count}", functools.partial(ozaki.syr2k, a, b, c, count=count), check,
                   {"error_fro_rel": limit}, flops=work, clock="events", prepare=clear)
            for count, limit in INT8_COUNTS.items()
        ),
    ]  # fmt: skip
    return Problem(methods, inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))})


def _int8_reduction(row: Mapping[str, Any], context: Context) -> Problem:
    n, b, block = row["n"], row["bandwidth"], row["block"]
    a = _matrix(n, context.seed)
    check_values = _check_values(_reference(n, context.seed))
    target = empty_matrix(n, n, np.float64)

    def restore() -> None:
        as_array(target, n, n)[...] = a

    def reduce(update: Any) -> Any:
        return _wait(extract_band(band_reduction(target, n, bandwidth=b, block=block, update=update)))

    def check(band: Any) -> dict[str, float]:
        return check_values(chase_band(band.copy(), n, b, None))

    updates = {"spectile": add_lower} | {
        f"int8_{count}": functools.partial(ozaki.add_lower, count=count) for count in INT8_COUNTS
    }
    methods: list[Method | Skipped] = [
        Method(name, functools.partial(reduce, update), check, cases.VALUES, flops=cases.flops(n),
               prepare=restore)
        for name, update in updates.items()
    ]  # fmt: skip
    return Problem(methods, inputs=_digest(a))


def _roofline(row: Mapping[str, Any], context: Context) -> Problem:
    n, width = row["n"], row["bandwidth"] or row["n"]
    random = cupy.random.RandomState(context.seed)
    a, w = random.standard_normal((n, n)).T, random.standard_normal((width, n)).T
    out, product = cupy.empty((n, n), order="F"), cupy.empty((n, width), order="F")
    rows = np.random.default_rng(context.seed).integers(0, n, 8)
    exact = a[rows] @ w
    blas = Blas(np.float64)

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
    "stages": _stages,
    "tridiagonal": _tridiagonal,
    "reduction": _reduction,
    "chasing": _chasing,
    "syr2k": _syr2k,
    "int8": _int8,
    "roofline": _roofline,
}
