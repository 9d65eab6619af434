"""Test matrices with known difficulty for eigensolvers: the types of LAPACK's testing, Wilkinson's, glued, graded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_EPS = 2.0**-52


def with_spectrum(values: Array, rng: np.random.Generator, dtype: Any = np.float64) -> Array:
    """Return U diag(values) Uᴴ with a random unitary U, in `dtype`.

    Parameters
    ----------
    values : array, shape (n,)
    rng : numpy.random.Generator
    dtype : dtype
        Real or complex.
    """
    n = len(values)
    u = rng.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        u = u + 1j * rng.standard_normal((n, n))
    q = np.linalg.qr(u)[0] if n else u
    a = (q * values) @ q.conj().T
    return ((a + a.conj().T) / 2).astype(dtype)


def _signs(n: int, rng: np.random.Generator) -> Array:
    return rng.choice([-1.0, 1.0], n)


def _tridiagonal(d: Array, e: Array) -> Array:
    return np.diag(d) + np.diag(e, 1) + np.diag(e, -1)


def wilkinson(n: int) -> Array:
    """Return Wilkinson's W_n: diagonal |i − (n − 1)/2|, off-diagonals 1; its large eigenvalues come in close pairs."""
    return _tridiagonal(np.abs(np.arange(n) - (n - 1) / 2), np.ones(max(n - 1, 0)))


def glued_wilkinson(n: int, glue: float = 1e-7) -> Array:
    """Return copies of W_21 on the diagonal, joined by `glue`: large clusters of eigenvalues."""
    block = np.abs(np.arange(21) - 10.0)
    d = np.resize(block, n)
    e = np.ones(max(n - 1, 0))
    e[20::21] = glue
    return _tridiagonal(d, e)


def random_hermitian(n: int, rng: np.random.Generator, dtype: Any = np.float64) -> Array:
    """Return a Hermitian matrix of standard normal entries in `dtype`."""
    a = rng.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal((n, n))
    return ((a + a.conj().T) / 2).astype(dtype)


def _banded(n: int, rng: np.random.Generator, dtype: Any) -> Array:
    a = random_hermitian(n, rng, dtype)
    i = np.arange(n)
    a[np.abs(i[:, None] - i) > 3] = 0
    return a


def _even(n: int) -> Array:
    return np.linspace(_EPS, 1, n)


def _geometric(n: int) -> Array:
    return _EPS ** (np.arange(n) / max(n - 1, 1))


def _clustered(n: int) -> Array:
    values = np.full(n, _EPS)
    values[:1] = 1
    return values


# Name -> function of (n, rng, dtype).  The scaled ones keep clear of the limits of the dtype itself by its own range.
FAMILIES: dict[str, Callable[[int, np.random.Generator, Any], Array]] = {
    "zero": lambda n, rng, dtype: np.zeros((n, n), dtype),
    "identity": lambda n, rng, dtype: np.eye(n, dtype=dtype),
    "diagonal": lambda n, rng, dtype: np.diag(_even(n) * _signs(n, rng)).astype(dtype),
    "even": lambda n, rng, dtype: with_spectrum(_even(n) * _signs(n, rng), rng, dtype),
    "geometric": lambda n, rng, dtype: with_spectrum(_geometric(n) * _signs(n, rng), rng, dtype),
    "clustered": lambda n, rng, dtype: with_spectrum(_clustered(n) * _signs(n, rng), rng, dtype),
    "near_overflow": lambda n, rng, dtype: with_spectrum(_even(n) * np.finfo(dtype).max / 4, rng, dtype),
    "near_underflow": lambda n, rng, dtype: with_spectrum(_even(n) * np.finfo(dtype).tiny * 4 / _EPS, rng, dtype),
    "random": random_hermitian,
    "banded": _banded,
    "wilkinson": lambda n, rng, dtype: wilkinson(n).astype(dtype),
    "glued_wilkinson": lambda n, rng, dtype: glued_wilkinson(n).astype(dtype),
    "repeated": lambda n, rng, dtype: with_spectrum(np.repeat([1.0, 2.0, -3.0], -(-n // 3))[:n], rng, dtype),
    "graded": lambda n, rng, dtype: (lambda g: g[:, None] * random_hermitian(n, rng, dtype) * g)(
        (10.0 ** -np.linspace(0, 12, n)).astype(np.finfo(dtype).dtype)
    ),
}


def residuals(a: Array, w: Array, v: Array | None, reference: Array | None = None) -> dict[str, float]:
    """Return the residuals of LAPACK's testing; each should be below 10.

    Parameters
    ----------
    a : array, shape (n, n)
        Hermitian.
    w : array, shape (m,)
    v : array, shape (n, m), optional
    reference : array, shape (m,), optional
        Eigenvalues in float64; computed by LAPACK if m = n and none are given.

    Returns
    -------
    dict
        ``error_residual`` = ‖A V − V Λ‖_F / (‖A‖_F n ε), ``error_orthogonality`` = ‖I − Vᴴ V‖_F / (n ε) and
        ``error_values`` = max |λ − λ_ref| / (n ε ‖A‖₂), ε that of the precision of `w`.
    """
    n = max(a.shape[0], 1)
    eps = float(np.finfo(w.dtype).eps)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    # The scale of A is taken out, so that squares in the norms neither over- nor underflow.
    scale = float(np.abs(a).max(initial=0)) or 1.0
    a, w = a.astype(wide) / scale, w.astype(np.float64) / scale
    out = {}
    if reference is None:
        reference = np.linalg.eigvalsh(a)
    else:
        reference = reference / scale
    norm = float(np.abs(np.linalg.eigvalsh(a) if len(reference) < n else reference).max(initial=0)) or 1.0
    out["error_values"] = float(np.abs(w - reference).max(initial=0)) / (n * eps * norm)
    if v is not None:
        v = v.astype(wide)
        fro = float(np.linalg.norm(a)) or 1.0
        out["error_residual"] = float(np.linalg.norm(a @ v - v * w)) / (fro * n * eps)
        out["error_orthogonality"] = float(np.linalg.norm(v.conj().T @ v - np.eye(v.shape[1]))) / (n * eps)
    return out
