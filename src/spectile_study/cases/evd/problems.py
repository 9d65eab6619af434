"""Generalized, partial, batched, banded and tridiagonal problems: the public functions as called, beside their rivals.

Every method is a call as a user writes it, with its checks, copies and work space, on the wall clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import numpy as np

from spectile.evd import eig_banded, eigh, eigh_tridiagonal, eigvalsh
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd.common import LIMITS, MRRR_LIMITS, NO_GPU, VALUES
from spectile_study.inputs import counted

#: Orders up to which SciPy, on the host's cores, is measured beside a device.
HOST_ORDER = 4096
TOO_LONG = f"left out above n = {HOST_ORDER:,}: SciPy takes many seconds a call on the host's cores"
NO_STAGES = "on the host's cores LAPACK finds parts of a spectrum, in one call"
#: Limits of eigenpairs that are held to their matrix alone.
PAIRS = {name: LIMITS[name] for name in ("error_residual", "error_orthogonality")}
#: Definite matrices are 1 plus a Hermitian one of about this norm.
SHIFT = 0.5


Check = Callable[[Any], Mapping[str, float]]


class Place:
    """Where the problems lie and are solved: here the host, in NumPy's arrays; ``cuda.place`` has the device."""

    backend: Literal["cpu", "cuda"] = "cpu"
    xp: ModuleType = np

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def hermitian(self, n: int, seed: int) -> Any:
        """Return the counted matrix of order n, float64, column-major."""
        return counted.matrix(n, seed)

    def reference(self, n: int) -> Any:
        """Return all eigenvalues of that matrix by the vendor."""
        return np.linalg.eigvalsh(self.hermitian(n, self.seed))

    def wait(self, result: Any) -> Any:
        """Return `result` when it has been made."""
        return result

    def to_host(self, array: Any) -> Any:
        """Return the array on the host."""
        return array

    def generalized_rival(self, a: Any, b: Any, check: Check, limits: Mapping[str, float]) -> Method | Skipped:
        """Return the device's vendor on A v = w B v."""
        return Skipped("cusolver", NO_GPU)

    def partial_rival(self, a: Any, k: int, check: Check, limits: Mapping[str, float]) -> Method | Skipped:
        """Return the device's vendor on the k lowest eigenpairs."""
        return Skipped("cusolver", NO_GPU)

    def way_back(self, a: Any, k: int, check: Check, limits: Mapping[str, float]) -> Method | Skipped:
        """Return the way of the k lowest eigenvectors from the tridiagonal matrix back to A, alone."""
        return Skipped("spectile_back", NO_STAGES)

    def batched_rival(self, batch: Any, check: Check, limits: dict[str, float]) -> Method | Skipped:
        """Return CuPy's call on a batch."""
        return Skipped("cupy", NO_GPU)

    def call(self, function: Callable[..., Any], *operands: Any, **options: Any) -> Callable[[], Any]:
        """Return a call of one of our functions, over when its results are there."""
        return lambda: self.wait(function(*operands, backend=self.backend, **options))


def problems(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``problems`` on the host."""
    return build(row, Place(context.seed))


def build(row: Mapping[str, Any], place: Place) -> Problem:
    """Return the problem of one row of the study ``problems``; its column ``problem`` chooses the kind."""
    return _KINDS[row["problem"]](row, place)


def _norm(x: Any) -> float:
    return float(np.sqrt((abs(x) ** 2).sum()))


def check_pairs(a: Any, b: Any, w: Any, v: Any) -> dict[str, float]:
    """Return residual and orthogonality of eigenpairs of A v = w B v, B None for 1, in units of n ε."""
    n, units = a.shape[0], a.shape[0] * float(np.finfo(w.dtype).eps)
    bv = v if b is None else b @ v
    gram = v.conj().T @ bv
    gram[np.arange(len(w)), np.arange(len(w))] -= 1
    scale = _norm(a) * np.sqrt(len(w) / n)
    return {"error_residual": _norm(a @ v - bv * w) / (scale * units), "error_orthogonality": _norm(gram) / units}


def _values(w: Any, reference: Any, n: int) -> dict[str, float]:
    scale = n * float(np.finfo(w.dtype).eps) * float(abs(reference).max())
    return {"error_values": float(abs(w - reference).max()) / scale}


def _scipy(n: int, name: str, run: Callable[[], Any], check: Any, limits: Mapping[str, float]) -> Method | Skipped:
    """Return SciPy's method on the host, or why it is left out."""
    return Method(name, run, check, limits, once=n == HOST_ORDER) if n <= HOST_ORDER else Skipped(name, TOO_LONG)


def _generalized(row: Mapping[str, Any], place: Place) -> Problem:
    """A v = w B v with all vectors: ours, our standard problem, cuSOLVER's sygvd, SciPy's gvd."""
    import scipy.linalg

    n, xp = row["n"], place.xp
    a, b = place.hermitian(n, place.seed), place.hermitian(n, place.seed + 1)
    b *= SHIFT / (2 * np.sqrt(n / 3))
    b[np.arange(n), np.arange(n)] += 1

    def check(result: Any, second: Any = b) -> dict[str, float]:
        return check_pairs(a, second, *map(xp.asarray, result))

    methods: list[Method | Skipped] = [
        Method("spectile", place.call(eigh, a, b), check, PAIRS),
        Method("spectile_standard", place.call(eigh, a), lambda result: check(result, None), PAIRS),
    ]
    methods.append(place.generalized_rival(a, b, check, PAIRS))
    on_host = [place.to_host(each) for each in (a, b)] if n <= HOST_ORDER else [None, None]
    methods.append(_scipy(n, "scipy", lambda: scipy.linalg.eigh(*on_host, driver="gvd"), check, PAIRS))
    return Problem(methods, inputs={"b_first_columns": digest_array(place.to_host(b[:, :8]))})


def _partial(row: Mapping[str, Any], place: Place) -> Problem:
    """The k lowest eigenpairs: ours, our whole problems, our way back of k, cuSOLVER's syevdx, SciPy's evr."""
    import scipy.linalg

    n, k, xp = row["n"], row["k"], place.xp
    a = place.hermitian(n, place.seed)
    reference = place.reference(n)

    def check(result: Any) -> dict[str, float]:
        w, v = map(xp.asarray, result)
        return check_pairs(a, None, w, v) | _values(w, reference[: len(w)], n)

    part = {"subset_by_index": (0, k - 1)}
    methods: list[Method | Skipped] = [
        Method("spectile", place.call(eigh, a, **part), check, LIMITS),
        Method("spectile_values", place.call(eigvalsh, a), lambda w: _values(w, reference, n), VALUES),
        Method("spectile_all", place.call(eigh, a), check, LIMITS),
    ]
    methods += [place.way_back(a, k, check, LIMITS), place.partial_rival(a, k, check, LIMITS)]
    host = place.to_host(a) if n <= HOST_ORDER else None
    run = functools.partial(scipy.linalg.eigh, host, driver="evr", **part)
    methods.append(_scipy(n, "scipy", run, check, MRRR_LIMITS))
    return Problem(methods, inputs={"a_first_columns": digest_array(place.to_host(a[:, :8]))})


def _batched(row: Mapping[str, Any], place: Place) -> Problem:
    """Many small matrices with all vectors: ours, CuPy's eigh, NumPy's on the host."""
    n, count, precision, xp = row["n"], row["batch"], row["precision"], place.xp
    host = np.stack([counted.matrix(n, place.seed + each, precision).T for each in range(count)])
    batch = xp.asarray(host)
    reference = np.linalg.eigvalsh(host.astype(np.promote_types(precision, np.float64)))

    def check(result: Any) -> dict[str, float]:
        w, v = map(xp.asarray, result)
        units = n * float(np.finfo(w.dtype).eps)
        residual = batch @ v - v * w[:, None]
        gram = v.conj().swapaxes(1, 2) @ v - xp.eye(n, dtype=v.dtype)
        squares = ((abs(each) ** 2).sum(axis=(1, 2)) for each in (residual, gram, batch))
        parts, basis, whole = (xp.sqrt(each) for each in squares)
        errors = abs(place.to_host(w) - reference).max(axis=1) / (units * abs(reference).max(axis=1))
        return {
            "error_residual": float((parts / whole).max()) / units,
            "error_orthogonality": float(basis.max()) / units,
            "error_values": float(errors.max()),
        }

    methods: list[Method | Skipped] = [Method("spectile", place.call(eigh, batch), check, LIMITS)]
    methods.append(place.batched_rival(batch, check, LIMITS))
    methods.append(Method("numpy", lambda: tuple(np.linalg.eigh(host)), check, LIMITS))
    return Problem(methods, inputs={"batch": digest_array(host)})


def _banded(row: Mapping[str, Any], place: Place) -> Problem:
    """A band matrix: ours, SciPy's eig_banded on the host."""
    import scipy.linalg

    n, b = row["n"], row["bandwidth"]
    host = np.ascontiguousarray(counted.band(n, b, place.seed)[:, : b + 1].T)
    options: dict[str, Any] = {"lower": True, "eigvals_only": not row["vectors"]}
    return _narrow(row, place, (host,), functools.partial(_banded_matrix, b),
                   functools.partial(eig_banded, **options),
                   functools.partial(scipy.linalg.eig_banded, **options))  # fmt: skip


def _banded_matrix(b: int, band: Any) -> Any:
    """Return the matrix of a lower band of shape (b + 1, n)."""
    n = band.shape[1]
    dense = np.zeros((n, n))
    for offset in range(min(b, n - 1) + 1):
        at = np.arange(n - offset)
        dense[at + offset, at] = dense[at, at + offset] = band[offset, : n - offset]
    return dense


def _tridiagonal(row: Mapping[str, Any], place: Place) -> Problem:
    """A tridiagonal matrix: ours, SciPy's eigh_tridiagonal on the host."""
    import scipy.linalg

    n = row["n"]
    d, e = (counted.dense(np.arange(n), side, place.seed) for side in range(2))
    options: dict[str, Any] = {"eigvals_only": not row["vectors"]}

    def matrix(d: Any, e: Any) -> Any:
        return _banded_matrix(1, np.stack([d, np.append(e, 0)]))

    return _narrow(row, place, (d, e[: n - 1]), matrix, functools.partial(eigh_tridiagonal, **options),
                   functools.partial(scipy.linalg.eigh_tridiagonal, **options))  # fmt: skip


def _narrow(row: Mapping[str, Any], place: Place, host: tuple[Any, ...], matrix: Any, ours: Any, rival: Any) -> Problem:
    """Return the problem of a narrow matrix: ours on the device, SciPy on the host.

    Eigenvalues alone are compared with SciPy's; all eigenpairs are held to the matrix by residual and orthogonality.
    """
    n, vectors, xp = row["n"], row["vectors"], place.xp
    operands = tuple(map(xp.asarray, host))
    known = xp.asarray(matrix(*host) if vectors else rival(*host))

    def check(result: Any) -> dict[str, float]:
        return check_pairs(known, None, *map(xp.asarray, result)) if vectors else _values(xp.asarray(result), known, n)

    limits = [PAIRS, PAIRS | {"error_orthogonality": MRRR_LIMITS["error_orthogonality"]}] if vectors else [VALUES] * 2
    methods: list[Method | Skipped] = [
        Method("spectile", place.call(ours, *operands), check, limits[0]),
        Method("scipy", lambda: rival(*host), check, limits[1], once=n >= HOST_ORDER),
    ]
    return Problem(methods, inputs={"diagonals": digest_array(*host)})


_KINDS = {
    "generalized": _generalized,
    "partial": _partial,
    "batched": _batched,
    "banded": _banded,
    "tridiagonal": _tridiagonal,
}
