"""Density matrices of water: `density_matrix` beside dense solvers, dense SP2, and SciPy's CSR with dropping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import spectile
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm.molecules import water_operator
from spectile_study.inputs import hartree_fock, model_water, water
from spectile_study.inputs.water import FUNCTIONS, OCCUPIED

#: Errors of P that are asked for, in its norm.
ERRORS = (1e-5, 1e-8)
#: What a dense solver leaves, and most molecules that SciPy's CSR is measured with: minutes beyond.
_DENSE, _MOST_CSR = 1e-10, 16
#: Most rows of which the vendor's dense solver is the judge, dense rivals are measured, and ours more than once; the
#: share of an error that a judge may be off by.
_MOST_DENSE, _SHARE = 24_000, 1e-2
#: Most rows at which dense rivals, of some 50 n^3 operations, are called more than once: 7 s at 60 TFLOP/s.
_MOST_REPEATED = 20_000
_MOST_STEPS = 100


class _Given(NamedTuple):
    """F' and what is known of it: NumPy or CuPy."""

    fock: Any
    occupied: int
    exact: Any  #: Of a large F' on the host, for the memory is for what is measured.
    norm: float
    gap: float


def problem(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of a row of the study ``density``.

    Raises
    ------
    FileNotFoundError
        Without a Fock matrix: the case is skipped with this reason.
    """
    on_gpu, molecules = context.device == "cuda", row["molecules"]
    try:
        fock, facts = _fock(row, context)
    except ModuleNotFoundError as absent:
        raise FileNotFoundError(str(absent)) from None
    given = _judged(fock, OCCUPIED * molecules)
    once, large = len(fock) > _MOST_REPEATED, len(fock) > _MOST_DENSE
    methods: list[Method | Skipped] = [_ours(given, error, large) for error in ERRORS]
    methods.append(_method("eigh", given, lambda: _by_eigenvectors(given, spectile_part), _DENSE, large))
    vendor, sp2 = ("cusolver", "sp2_cublas") if on_gpu else ("lapack", "sp2_blas")
    if large:
        why = f"dense rivals take minutes, and most of the memory, beyond {_MOST_DENSE:,} rows"
        methods += [Skipped(vendor, why), Skipped(sp2, why)]
    else:
        run = lambda: dense_sp2(fock, given.occupied, min(ERRORS) / 2 * given.norm)  # noqa: E731
        methods.append(_method(vendor, given, lambda: _by_eigenvectors(given, vendor_part), _DENSE, once))
        methods.append(_method(sp2, given, run, min(ERRORS), once))
    for error in ERRORS:
        name = f"sp2_csr_{error:.0e}"
        if molecules > _MOST_CSR:
            methods.append(Skipped(name, f"SciPy's CSR takes minutes beyond {_MOST_CSR} molecules"))
        else:
            methods.append(_by_csr(name, given, error))
    values: dict[str, Value] = facts | {"rows": len(fock), "gap": given.gap, "norm_p": given.norm}
    return Problem(methods, {"fock": digest_array(fock)}, values)


def _fock(row: Mapping[str, Any], context: Context) -> tuple[Any, dict[str, Value]]:
    if row["operator"] != "fock_model":
        return water_operator(row, context)
    few = water.generated_cluster(model_water.TRUE_MOLECULES, context.seed)
    true, source = hartree_fock.scf_matrix("fock_orthogonal", few, context.resources)
    oxygens = water.generated_cluster(row["molecules"], context.seed).coordinates[:, 0]
    fock = model_water.fock(model_water.fitted(true, few.coordinates[:, 0]), model_water.levels(true), oxygens)
    facts: dict[str, Value] = {"matrix": "model of F'", "cluster": f"generated; decay and levels by {source}"}
    return water.place(fock, context.device == "cuda"), facts


def _judged(fock: Any, occupied: int) -> _Given:
    """Return what is exact of F': by the vendor's dense solver, or by ours where that takes minutes."""
    xp = water.namespace(fock)
    if len(fock) <= _MOST_DENSE:
        values, vectors = xp.linalg.eigh(fock)
    else:
        values, vectors = spectile.eigh(fock, subset_by_index=(0, occupied))
    gap = float(values[occupied] - values[occupied - 1])
    if not gap > 0:
        raise ValueError(f"F' has no gap above {occupied} states: give another cluster")
    exact = vectors[:, :occupied] @ vectors[:, :occupied].T
    large = xp is not np and len(fock) > _MOST_DENSE
    return _Given(fock, occupied, exact.get() if large else exact, math.sqrt(occupied), gap)


def _off(p: Any, given: _Given) -> float:
    xp = water.namespace(p)
    return float(xp.linalg.norm(p - xp.asarray(given.exact)))


def _method(name: str, given: _Given, run: Callable[[], Any], limit: float, once: bool = False) -> Method:
    def check(p: Any) -> dict[str, float]:
        return {"error_fro_rel": _off(p, given) / given.norm}

    return Method(name, run, check, {"error_fro_rel": limit}, once=once)


def _ours(given: _Given, error: float, once: bool) -> Method:
    """Return the call for an error: what is found of it, and its bound, are within that."""
    asked = error * given.norm

    def run() -> Any:
        return spectile.density_matrix(given.fock, electrons=given.occupied, error=asked, block=FUNCTIONS)

    def check(p: Any) -> dict[str, float]:
        found = _off(p.matrix.to_dense(), given)
        # Beyond its bound by more than the judge's own error, it is wrong.
        excess = max(0.0, found - p.error) / given.norm
        return {"error_fro_rel": found / given.norm, "error_bound_rel": p.error / given.norm, "error_excess": excess}

    def values(p: Any) -> dict[str, Value]:
        return {
            "products": p.products,
            "steps": len(p.history),
            "fill": p.matrix.fill,
            "fill_most": max((step.fill for step in p.history), default=0.0),
            "gap_share": p.gap / given.gap,
            "energy_bound": p.energy_error,
        }

    limits = {"error_fro_rel": error, "error_bound_rel": error, "error_excess": min(_DENSE, _SHARE * error)}
    return Method(f"density_{error:.0e}", run, check, limits, values=values, once=once)


def _by_eigenvectors(given: _Given, part: Callable[[Any, int], Any]) -> Any:
    vectors = part(given.fock, given.occupied)
    return vectors @ vectors.T


def spectile_part(fock: Any, occupied: int) -> Any:
    """Return the occupied eigenvectors, by ours."""
    return spectile.eigh(fock, subset_by_index=(0, occupied - 1))[1]


def vendor_part(fock: Any, occupied: int) -> Any:
    """Return the occupied eigenvectors, by cuSOLVER or LAPACK."""
    if isinstance(fock, np.ndarray):
        import scipy.linalg

        return scipy.linalg.eigh(fock, subset_by_index=[0, occupied - 1])[1]
    return water.namespace(fock).linalg.eigh(fock)[1][:, :occupied]


def _ends(fock: Any) -> tuple[float, float]:
    """Return the ends of the spectrum, by Gershgorin's theorem."""
    diagonal = fock.diagonal()
    radii = abs(fock).sum(axis=1) - abs(diagonal)
    return float((diagonal - radii).min()), float((diagonal + radii).max())


def dense_sp2(fock: Any, occupied: int, error: float) -> Any:
    """Return P by SP2 with dense products, to an idempotency of `error` (A. M. N. Niklasson, 2002)."""
    xp = water.namespace(fock)
    low, high = _ends(fock)
    x = (high * xp.eye(len(fock)) - fock) / (high - low)
    for _ in range(_MOST_STEPS):
        square = x @ x
        trace, squares = float(xp.trace(x)), float(xp.trace(square))
        if float(xp.linalg.norm(x - square)) <= error:
            break
        x = square if abs(squares - occupied) < abs(2 * trace - squares - occupied) else 2 * x - square
    return x


def csr_sp2(fock: Any, occupied: int, drop: float, error: float) -> Any:
    """Return P by SP2 on SciPy's CSR, entries below `drop` left out of each iterate."""
    import scipy.sparse

    low, high = _ends(fock)
    x = _without(scipy.sparse.csr_array((high * np.eye(len(fock)) - fock) / (high - low)), drop)
    sizes: list[float] = []
    for _ in range(_MOST_STEPS):
        square = x @ x
        rest = x - square
        size = float(np.sqrt((rest.data**2).sum()))
        # What is dropped keeps it from becoming smaller; the two polynomials in turn make it smaller in two steps.
        if size <= error or (len(sizes) > 10 and size < 1e-2 * math.sqrt(occupied) and size >= 0.5 * max(sizes[-2:])):
            break
        sizes.append(size)
        trace, squares = float(x.trace()), float(square.trace())
        x = _without(square if abs(squares - occupied) < abs(2 * trace - squares - occupied) else x + rest, drop)
    return x


def _without(x: Any, drop: float) -> Any:
    x.data[abs(x.data) < drop] = 0
    x.eliminate_zeros()
    return x


def _by_csr(name: str, given: _Given, error: float) -> Method:
    """Return SP2 on CSR with the largest of some thresholds that keeps the error, which is found beforehand."""
    host = given.fock if isinstance(given.fock, np.ndarray) else given.fock.get()
    exact = given.exact if isinstance(given.exact, np.ndarray) else given.exact.get()
    idempotent, drop = error / 3 * given.norm, error
    while drop > 1e-3 * error:
        found = csr_sp2(host, given.occupied, drop, idempotent)
        if np.linalg.norm(found.toarray() - exact) <= error * given.norm:
            break
        drop /= 2

    def check(p: Any) -> dict[str, float]:
        return {"error_fro_rel": float(np.linalg.norm(p.toarray() - exact)) / given.norm}

    def values(p: Any) -> dict[str, Value]:
        return {"drop": drop, "fill": p.nnz / len(host) ** 2}

    run = lambda: csr_sp2(host, given.occupied, drop, idempotent)  # noqa: E731
    return Method(name, run, check, {"error_fro_rel": error}, values=values)
