"""Eigenproblems of any dtype, layout, triangle, batch and part, for Hypothesis, and what holds of their solutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from hypothesis import strategies as st

from spectile import evd
from spectile_study.inputs.spectra import FAMILIES, residuals, with_spectrum

DTYPES = ("float64", "float32", "complex128", "complex64", "float16", "int32", "int8", "bool", ">f8")
LAYOUTS = ("C", "F", "gaps", "backwards", "unaligned", "half")


@dataclass(frozen=True)
class Problem:
    """One call.

    Attributes
    ----------
    matrices, second : array
        Hermitian, of the dtype that is passed; `second` is None but for a generalized problem.
    layouts : (str, str)
        How they lie in memory.
    keywords : dict
        Of `eigh`.
    """

    matrices: np.ndarray
    second: np.ndarray | None
    layouts: tuple[str, str]
    keywords: dict[str, Any]

    def operands(self, xp: Any) -> tuple[Any, Any]:
        """Return what is passed, arrays of NumPy or CuPy (which knows no other order of bytes than the machine's)."""
        lower = self.keywords["lower"]
        return tuple(
            None if one is None else laid_out(one, layout, lower, xp if one.dtype.isnative else np)
            for one, layout in zip((self.matrices, self.second), self.layouts, strict=True)
        )


def laid_out(matrices: np.ndarray, layout: str, lower: bool, xp: Any) -> Any:
    """Return the matrices in a layout of memory; "half" has something else in the triangle that is not read."""
    full, n = xp.asarray(matrices), matrices.shape[-1]
    if layout == "half":
        inside = xp.tri(n, dtype=bool) if lower else xp.tri(n, dtype=bool).T
        return xp.where(inside, full, xp.asarray(3, full.dtype))
    if layout == "F":
        return xp.swapaxes(xp.ascontiguousarray(xp.swapaxes(full, -1, -2)), -1, -2)
    if layout == "gaps":
        space = xp.zeros((*full.shape[:-2], 2 * n, 2 * n + 1), full.dtype)
        space[..., ::2, : 2 * n : 2] = full
        return space[..., ::2, : 2 * n : 2]
    if layout == "backwards":
        return full[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if layout == "unaligned":
        space = xp.zeros((*full.shape[:-2], n + 1, n + 3), full.dtype)
        space[..., 1:, 3:] = full
        return space[..., 1:, 3:]
    return full


@st.composite
def problems(draw: Any, orders: st.SearchStrategy[int], *, generalized: bool = False) -> Problem:
    """Draw a problem."""
    n, dtype = draw(orders), draw(st.sampled_from(DTYPES))
    lead = draw(st.sampled_from([(), (), (), (1,), (3,), (2, 2), (0,)]))
    layouts = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    working = dtype if dtype in DTYPES[:4] else "float32" if dtype == "float16" else "float64"
    family = draw(st.sampled_from(sorted(set(FAMILIES) - {"near_overflow", "near_underflow"})))
    if n == 0:
        family = "random"
    whole = dtype in ("int32", "int8", "bool")
    full = np.empty((*lead, n, n), working)
    for index in np.ndindex(*lead):
        one = FAMILIES[family](n, rng, working)
        full[index] = np.rint(np.clip(20 * one.real, -100, 100)) if whole else one
    if dtype == "bool":
        full = (full > 0).astype(working)
    keywords: dict[str, Any] = {"lower": draw(st.booleans())}
    if n and draw(st.booleans()):
        low = draw(st.integers(0, n - 1))
        keywords["subset_by_index"] = (low, draw(st.integers(low, n - 1)))
    second = None
    if generalized:
        half = rng.standard_normal((n, n))
        second = (half @ half.T / n + np.eye(n)).astype(working)
    return Problem(full.astype(dtype), second, layouts, keywords)


def check_solution(problem: Problem, *, backend: str, xp: Any = np) -> None:
    """Assert that eigenvalues and vectors are those of the matrix to a few n ε, and that nothing was overwritten."""
    a, b = problem.operands(xp)
    w, v = (_to_host(x) for x in evd.eigh(a, b, backend=backend, **problem.keywords))
    values = _to_host(evd.eigvalsh(a, b, backend=backend, **problem.keywords))
    for one, given in zip((a, b), problem.operands(np), strict=True):
        assert given is None or np.array_equal(_to_host(one), given)
    wide = np.complex128 if problem.matrices.dtype.kind == "c" else np.float64
    full, second = problem.matrices.astype(wide), None if b is None else problem.second.astype(wide)
    n = full.shape[-1]
    first, last = problem.keywords.get("subset_by_index", (0, n - 1))
    count = max(last - first + 1, 0)
    assert w.shape == values.shape == (*full.shape[:-2], count)
    assert v.shape == (*full.shape[:-1], count)
    eps = float(np.finfo(w.dtype).eps)
    for index in np.ndindex(*full.shape[:-2]) if n else ():
        a, x = full[index], v[index].astype(wide)
        if second is None:
            left, right, gram, size = a @ x, x * w[index], x.conj().T @ x, 1.0
            expected = np.linalg.eigvalsh(a)
        else:
            left, right, gram = a @ x, second @ x * w[index], x.conj().T @ second @ x
            inverse = np.linalg.inv(np.linalg.cholesky(second))
            size = float(np.linalg.cond(second))
            expected = np.linalg.eigvalsh(inverse @ a @ inverse.conj().T)
        norm = max(float(np.linalg.norm(a)), float(np.abs(expected).max()), 1e-300)
        allowed = 20 * n * eps * size
        for found in (w[index], values[index]):
            assert np.abs(found - expected[first : last + 1]).max() <= allowed * norm
        assert np.linalg.norm(left - right) <= allowed * norm * max(1.0, float(np.linalg.norm(x)))
        assert np.linalg.norm(gram - np.eye(count)) <= allowed


def _to_host(x: Any) -> np.ndarray:
    return x.get() if hasattr(x, "get") else np.asarray(x)


#: LAPACK's generated families whose tridiagonal form and bands SciPy solves in float64 without overflow.
NARROW_FAMILIES = sorted(set(FAMILIES) - {"near_overflow", "near_underflow"})


def check_narrow_families(family: str, n: int, dtype: str, backend: str) -> None:
    """Assert that a family's tridiagonal form, bands and pencil with a definite matrix are solved to a few n ε."""
    rng = np.random.default_rng([n, sum(map(ord, family))])
    a = FAMILIES[family](n, rng, dtype)
    if np.dtype(dtype).kind == "f":
        t = scipy.linalg.hessenberg(a.astype(np.float64)) if n > 1 else a
        d, e = np.diag(t).astype(dtype), np.diag(t, -1).astype(dtype)
        full = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
        _check_pairs(full, *evd.eigh_tridiagonal(d, e, backend=backend))
        _check_pairs(full, evd.eigvalsh_tridiagonal(d, e, backend=backend))
        few = max(1, n // 9)
        _check_pairs(
            full, *evd.eigh_tridiagonal(d, e, select="i", select_range=(n - few, n - 1), backend=backend), n - few
        )
    for u in (1, 5, 33):
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        full = np.where(distance <= u, a, np.asarray(0, a.dtype))
        band = np.zeros((min(u, n - 1) + 1, n), dtype)
        for offset in range(len(band)):
            band[offset, : n - offset] = np.diag(full, -offset)
        _check_pairs(full, *evd.eig_banded(band, lower=True, backend=backend))
        _check_pairs(full, evd.eigvals_banded(band, lower=True, backend=backend))
    b = with_spectrum(np.linspace(1, 10, n), rng, dtype)
    w, v = evd.eigh(a, b, backend=backend)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    a, b, v, eps = a.astype(wide), b.astype(wide), v.astype(wide), float(np.finfo(dtype).eps)
    assert np.linalg.norm(a @ v - b @ v * w) <= 100 * n * eps * max(float(np.linalg.norm(a)), 1e-300)
    assert np.linalg.norm(v.conj().T @ b @ v - np.eye(n)) <= 100 * n * eps


def _check_pairs(full: np.ndarray, w: np.ndarray, v: np.ndarray | None = None, first: int = 0) -> None:
    wide = np.complex128 if full.dtype.kind == "c" else np.float64
    reference = np.linalg.eigvalsh(full.astype(wide))[first : first + len(w)]
    assert all(error < 10 for error in residuals(full, w, v, reference).values())
