"""Everyday draws of the eigensolver: ``eigh`` and ``eigvalsh``, whole spectra and parts, generalized problems, batches.

Residuals and the orthogonality of vectors are those of the whole result in float64; eigenvalues alone are held against
the vendor's of the same matrix in float64, or, where these would take too long, by trace and Frobenius norm.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile import eigh, eigvalsh
from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.evd.common import LIMITS, MRRR_LIMITS
from spectile_study.everyday.problem import Cost, Drawn, Params, Place, method
from spectile_study.everyday.strata import Strata

ORDERS, BATCHED = (8, 16384), (8, 512)
DTYPES = ("float32", "float64", "complex64", "complex128")
FORMS = ("values", "vectors", "part", "generalized", "batch")
KINDS = ("random", "clustered", "graded")
#: Matrices of a batch, and entries of all.
MOST_MATRICES, MOST_ENTRIES = 4096, 2**26
#: Parts: by number from the lowest, by number in the middle, or by value.
PARTS = ("lowest", "middle", "by value")
#: Orders up to which a whole spectrum is compared with the vendor's in float64.
REFERENCE_ORDER = {"cpu": 1500, "cuda": 8192}
#: Eigenvalues of random matrices lie in [-RADIUS, RADIUS].
RADIUS = 2.0
#: SciPy's drivers; those of the second list take far longer above that order.
DRIVERS, SLOW_DRIVERS, SLOW_ORDER = ("evd", "evr"), ("ev", "evx"), 600


def draw(strata: Strata) -> Params:
    """Return the parameters of a draw."""
    form = strata.one_of("form", FORMS)
    params: Params = {"form": form, "dtype": strata.one_of("dtype", DTYPES), "kind": strata.one_of("kind", KINDS)}
    if form == "batch":
        n = params["n"] = strata.log_integer("order of a batch", *BATCHED)
        most = max(2, min(MOST_MATRICES, MOST_ENTRIES // n**2))
        params["count"] = strata.log_integer("matrices", 2, most)
    else:
        n = params["n"] = strata.log_integer("order", *ORDERS)
    params["with_vectors"] = form != "values" and (form == "vectors" or strata.one_of("vectors", (True, True, False)))
    if form == "part":
        params["part"] = strata.one_of("part", PARTS)
        params["wanted"] = strata.log_integer("wanted", 1, max(1, n // 2))
    return params


def told(params: Params) -> str:
    """Return the draw in words."""
    count = f"{params['count']} of " if "count" in params else ""
    part = f" ({params['wanted']} {params['part']})" if "part" in params else ""
    what = "vectors" if params["with_vectors"] else "values"
    form = f"{params['form']}{part}, " if params["form"] not in ("values", "vectors") else ""
    return f"{count}n = {params['n']} {params['dtype']}, {form}{what}, {params['kind']}"


def _complex(params: Params) -> bool:
    return params["dtype"].startswith("complex")


def cost(params: Params) -> Cost:
    """Return about what the draw takes."""
    n, count = params["n"], params.get("count", 1)
    bytes_ = np.dtype(params["dtype"]).itemsize * n * n * count
    work = float(n) ** 3 * count * (9.0 if params["with_vectors"] else 3.0) * (3.0 if _complex(params) else 1.0)
    return Cost(bytes_ * 8.0 + 6 * 16.0 * n * n * count, dense=work)


def build(params: Params, numbers: np.random.Generator, place: Place) -> Drawn:
    """Return the draw with its matrices."""
    xp, rng = place.xp, place.rng(numbers)
    n, vectors, form = params["n"], params["with_vectors"], params["form"]
    lead = (params["count"],) if form == "batch" else ()
    a = _hermitian(n, lead, params["dtype"], params["kind"], rng, xp)
    b = None
    if form == "generalized":
        b = _hermitian(n, (), params["dtype"], "random", rng, xp) / (2 * RADIUS)
        b[xp.arange(n), xp.arange(n)] += 1
    options: dict[str, Any] = _subset(params)
    check = _checked(a, b, options, vectors, place)
    operands = (a,) if b is None else (a, b)
    function = eigh if vectors else eigvalsh
    call = place.call(function, *operands, backend=place.device, **options)
    spelled = ", ".join(
        ["a", *(["b"] if b is not None else []), *(f"{name}={value}" for name, value in options.items())]
    )
    real = np.dtype(params["dtype"]).itemsize // (2 if _complex(params) else 1)
    return Drawn(
        call=f"{'eigh' if vectors else 'eigvalsh'}({spelled})",
        function=function,
        arguments=(operands, {"backend": place.device, **options}),
        ours=method("spectile", call, check(LIMITS), 1.0),
        rivals=(_on_device if place.device == "cuda" else _on_host)(a, b, options, vectors, check, place),
        asked=1.0,
        check="residuals",
        result_bytes=a.nbytes if vectors else a.nbytes // n // max(1, a.itemsize // real),
    )


def _subset(params: Params) -> dict[str, Any]:
    if "part" not in params:
        return {}
    n, wanted = params["n"], params["wanted"]
    if params["part"] == "lowest":
        return {"subset_by_index": (0, wanted - 1)}
    if params["part"] == "middle":
        first = (n - wanted) // 2
        return {"subset_by_index": (first, first + wanted - 1)}
    # About as many, since the density of eigenvalues in the middle is n / (π RADIUS / 2).
    half = float(f"{wanted * np.pi * RADIUS / 4 / n:.3g}")
    return {"subset_by_value": (-half, half)}


def _hermitian(n: int, lead: tuple[int, ...], dtype: str, kind: str, rng: Any, xp: Any) -> Any:
    """Return Hermitian matrices, the random ones with eigenvalues in about [-RADIUS, RADIUS].

    clustered: a multiple of one and a part of low rank, so that most eigenvalues are equal; graded: rows and columns
    scaled over six orders of magnitude.
    """
    shape, real = (*lead, n, n), np.empty(0, dtype).real.dtype

    def normal(shape: tuple[int, ...]) -> Any:
        x = rng.standard_normal(shape, dtype=real)
        return x + 1j * rng.standard_normal(shape, dtype=real) if dtype.startswith("complex") else x

    if kind == "clustered":
        rank = max(1, n // 16)
        u = normal((*lead, n, rank)) / real.type(np.sqrt(n * (2 if dtype.startswith("complex") else 1)))
        a = (u * xp.linspace(-1, 1, rank, dtype=real)) @ u.conj().swapaxes(-1, -2)
        a = a + xp.eye(n, dtype=real) / 2
    else:
        a = normal(shape)
        a += a.conj().swapaxes(-1, -2)
        a *= real.type(1 / np.sqrt(2 * n * (2 if dtype.startswith("complex") else 1)))
    if kind == "graded":
        scale = xp.asarray(10.0 ** -np.linspace(0, 3, n), real)
        a = scale[:, None] * a * scale
    a = (a + a.conj().swapaxes(-1, -2)) / 2
    return xp.ascontiguousarray(a.astype(dtype))


Checker = Callable[[Mapping[str, float]], Callable[[Any], dict[str, float]]]


def _checked(a: Any, b: Any, options: Mapping[str, Any], vectors: bool, place: Place) -> Checker:
    """Return ``check(limits)``: the largest residual over its limit, which is allowed to be 1."""
    xp, n = place.xp, a.shape[-1]
    wide = np.promote_types(a.dtype, np.float64)

    @functools.cache
    def reference() -> Any:
        """Return all eigenvalues in float64, None where they take too long."""
        whole = not options and b is None and a.ndim == 2
        if (vectors and not options) or (whole and n > REFERENCE_ORDER[place.device]):
            return None
        if b is None:
            return xp.linalg.eigvalsh(a.astype(wide))
        half = xp.linalg.inv(xp.linalg.cholesky(b.astype(wide)))
        inner = half @ a.astype(wide) @ half.conj().T
        return xp.linalg.eigvalsh((inner + inner.conj().T) / 2)

    def check(limits: Mapping[str, float]) -> Callable[[Any], dict[str, float]]:
        def errors(result: Any) -> dict[str, float]:
            w, v = (xp.asarray(result[0]), xp.asarray(result[1])) if vectors else (xp.asarray(result), None)
            found = _values(w, reference(), a, options, b is not None, xp)
            if v is not None:
                found |= _pairs(a.astype(wide), None if b is None else b.astype(wide), w, v, xp)
            over = [value / limits[name] for name, value in found.items()]
            return {"error": float("nan") if np.isnan(over).any() else max(over), **found}

        return errors

    return check


def _values(w: Any, reference: Any, a: Any, options: Mapping[str, Any], generalized: bool, xp: Any) -> dict[str, float]:
    """Return the error of eigenvalues in units of n ε ‖A‖."""
    n, unit = a.shape[-1], a.shape[-1] * float(np.finfo(w.dtype).eps)
    w = w.astype(np.float64)
    if w.size and not bool((xp.diff(w, axis=-1) >= 0).all()):
        return {"error_values": float("nan")}
    if reference is None:
        if w.shape != a.shape[:-1]:
            return {"error_values": float("nan")}
        if generalized:  # whose residuals say it all
            return {"error_values": 0.0}
        # Trace and Frobenius norm, of each matrix.
        diagonal = xp.diagonal(a, axis1=-2, axis2=-1).real.astype(np.float64)
        norm = xp.sqrt((abs(a).astype(np.float64) ** 2).sum(axis=(-2, -1)))
        trace = xp.abs(w.sum(axis=-1) - diagonal.sum(axis=-1))
        frobenius = xp.abs(xp.sqrt((w**2).sum(axis=-1)) - norm)
        return {"error_values": float((xp.maximum(trace, frobenius) / (norm * unit)).max())}
    scale = unit * xp.abs(reference).max(axis=-1, keepdims=True)
    if "subset_by_value" in options:
        return {"error_values": _by_value(w, reference, options["subset_by_value"], float(scale[0]))}
    first, last = options.get("subset_by_index", (0, n - 1))
    wanted = reference[..., first : last + 1]
    return {"error_values": float((xp.abs(w - wanted) / scale).max()) if w.shape == wanted.shape else float("nan")}


def _by_value(w: Any, reference: Any, interval: tuple[float, float], scale: float) -> float:
    """Return the error of the eigenvalues within an interval; one near an end may be in or out."""
    near = LIMITS["error_values"] * scale
    (s0, s1), (e0, e1) = (tuple(int((reference <= end + sign * near).sum()) for sign in (-1, 1)) for end in interval)
    starts = [s for s in range(s0, s1 + 1) if e0 <= s + len(w) <= e1]
    return min(
        (float(abs(w - reference[s : s + len(w)]).max()) / scale if len(w) else 0.0 for s in starts),
        default=float("nan"),
    )


def _pairs(a: Any, b: Any, w: Any, v: Any, xp: Any) -> dict[str, float]:
    """Return residual and orthogonality in units of n ε, the largest of a batch."""
    n = a.shape[-1]
    unit = n * float(np.finfo(w.dtype).eps)
    v, w = v.astype(a.dtype), w.astype(np.float64)
    if v.shape != (*w.shape[:-1], n, w.shape[-1]):
        return {"error_residual": float("nan"), "error_orthogonality": float("nan")}
    bv = v if b is None else b @ v

    def norm(x: Any) -> Any:
        return xp.sqrt((abs(x) ** 2).sum(axis=(-2, -1)))

    gram = v.conj().swapaxes(-1, -2) @ bv
    gram = gram - xp.eye(w.shape[-1])
    residual = norm(a @ v - bv * w[..., None, :]) / (norm(a) * unit)
    return {"error_residual": float(residual.max()), "error_orthogonality": float((norm(gram) / unit).max())}


def _on_host(
    a: Any, b: Any, options: dict[str, Any], vectors: bool, check: Checker, place: Place
) -> list[Method | Skipped]:
    import scipy.linalg

    if a.ndim > 2:
        solve = np.linalg.eigh if vectors else np.linalg.eigvalsh
        return [method("numpy", lambda: solve(a), check(LIMITS), 1.0)]
    slow = SLOW_DRIVERS if a.shape[-1] <= SLOW_ORDER else ()
    drivers = {"ev": "gv", "evd": "gvd", "evx": "gvx"} if b is not None else {name: name for name in (*DRIVERS, *slow)}
    if b is not None and a.shape[-1] > SLOW_ORDER:
        drivers = {"evd": "gvd"}
    if options:
        drivers = {"gvx": "gvx"} if b is not None else {name: name for name in ("evr", "evx")}
    return [
        method(
            f"scipy_{driver}",
            functools.partial(scipy.linalg.eigh, a, b, eigvals_only=not vectors, driver=driver, **options),
            check(LIMITS if driver in ("ev", "evd", "gv", "gvd") else MRRR_LIMITS),
            1.0,
        )
        for driver in drivers.values()
    ]


def _on_device(
    a: Any, b: Any, options: dict[str, Any], vectors: bool, check: Checker, place: Place
) -> list[Method | Skipped]:
    import cupy

    from spectile_study.cases.evd import rivals

    solve = cupy.linalg.eigh if vectors else cupy.linalg.eigvalsh
    if b is not None:
        return [method("cupy", place.call(_reduced, a, b, vectors), check(LIMITS), 1.0), *_sygvd(a, b, vectors, check)]
    if a.ndim > 2:
        # Jacobi rotations, which cuSOLVER takes for small matrices, leave vectors less orthogonal.
        return [method("cupy", place.call(solve, a), check(MRRR_LIMITS), 1.0)]

    def part(result: Any) -> Any:
        """Return the wanted pairs of all."""
        if not options:
            return result
        w, v = result if vectors else (result, None)
        if "subset_by_index" in options:
            chosen = slice(options["subset_by_index"][0], options["subset_by_index"][1] + 1)
        else:
            low, high = options["subset_by_value"]
            chosen = slice(
                *(int(cupy.searchsorted(w, cupy.asarray(end, w.dtype), side="right")) for end in (low, high))
            )
        return (w[chosen], v[:, chosen]) if v is not None else w[chosen]

    found: list[Method | Skipped] = [method("cupy", place.call(lambda: part(solve(a))), check(LIMITS), 1.0)]
    algorithms = {"cusolver_one_stage": "one_stage"} | (
        {} if rivals.two_stage_reason() else {"cusolver_two_stage": "two_stage"}
    )
    for name, algorithm in algorithms.items():
        found.append(method(name, _cusolver(a, vectors, algorithm, part), check(LIMITS), 1.0))
    if rivals.two_stage_reason():
        found.append(Skipped("cusolver_two_stage", str(rivals.two_stage_reason())))
    first, last = options.get("subset_by_index", (1, 0))
    if vectors and first == 0 and last >= first:
        found.append(method("cusolver_part", _syevdx(a, last + 1), check(LIMITS), 1.0))
    return found


def _cusolver(a: Any, vectors: bool, algorithm: Any, part: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a call of cuSOLVER in prepared memory; the copy of the matrix, which it overwrites, is in the call."""
    import cupy

    from spectile_study.cases.evd import rivals

    solver: list[Any] = []

    def run() -> Any:
        if not solver:
            path = os.environ.get(rivals.CUSOLVER_PATH) if algorithm == "two_stage" else None
            solver.append(rivals.Syevd(cupy.empty_like(a, order="F"), vectors=vectors, algorithm=algorithm, path=path))
        solver[0].a[...] = a
        w, v = solver[0]()
        return part((w, v) if vectors else w)

    return run


def _syevdx(a: Any, k: int) -> Callable[[], Any]:
    import cupy

    from spectile_study.cases.evd import rivals

    solver: list[Any] = []

    def run() -> Any:
        if not solver:
            solver.append(rivals.Syevdx(cupy.empty_like(a, order="F"), k))
        solver[0].restore(a)
        return solver[0]()

    return run


def _reduced(a: Any, b: Any, vectors: bool) -> Any:
    """Solve A v = w B v by CuPy: Cholesky's factor, two triangular solves, ``eigh``, and one solve back."""
    import cupy
    from cupyx.scipy.linalg import solve_triangular

    factor = cupy.linalg.cholesky(b)
    half = solve_triangular(factor, a, lower=True)
    inner = solve_triangular(factor, half.conj().T, lower=True)
    if not vectors:
        return cupy.linalg.eigvalsh(inner)
    w, v = cupy.linalg.eigh(inner)
    return w, solve_triangular(factor, v, lower=True, trans="C")


def _sygvd(a: Any, b: Any, vectors: bool, check: Checker) -> list[Method | Skipped]:
    import cupy

    from spectile_study.cases.evd import rivals

    if a.dtype != np.float64 or not vectors:
        return []
    solver: list[Any] = []

    def run() -> Any:
        if not solver:
            solver.append(rivals.Sygvd(cupy.empty_like(a, order="F"), cupy.empty_like(b, order="F")))
        solver[0].restore(a, b)
        return solver[0]()

    return [method("cusolver", run, check(LIMITS), 1.0)]
