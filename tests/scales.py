"""Eigenproblems from the smallest to the largest numbers of a dtype, against the same near 1 in double precision.

What is compared is exact: a scale is a power of two, and what it rounds, below the normal numbers, is rounded before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile import evd
from spectile_study.inputs.spectra import random_hermitian

#: Whether a path has a second matrix, and the keywords of the call.
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("dense", {}),
    "upper": ("dense", {"lower": False}),
    "batch": ("batch", {}),
    "index": ("dense", {"subset_by_index": (1, 2)}),
    "value": ("dense", {"subset_by_value": "interval"}),
    "ev": ("dense", {"driver": "ev"}),
    "evd": ("dense", {"driver": "evd"}),
    "evr": ("dense", {"driver": "evr"}),
    "evx": ("dense", {"driver": "evx"}),
    "evr by value": ("dense", {"driver": "evr", "subset_by_value": "interval"}),
    "evx by index": ("dense", {"driver": "evx", "subset_by_index": (1, 2)}),
    "A v = w B v": ("pair", {"type": 1}),
    "A B v = w v": ("pair", {"type": 2}),
    "B A v = w v": ("pair", {"type": 3}),
    "gv": ("pair", {"driver": "gv"}),
    "gvx by index": ("pair", {"driver": "gvx", "subset_by_index": (1, 2)}),
    "pair by value": ("pair", {"subset_by_value": "interval"}),
    "band": ("band", {}),
    "upper band": ("band", {"lower": False}),
    "wide band": ("wide band", {}),
    "band by value": ("band", {"select": "v", "select_range": "interval"}),
    "tridiagonal": ("tridiagonal", {}),
    "tridiagonal by index": ("tridiagonal", {"select": "i", "select_range": (1, 2)}),
    "tridiagonal by value": ("tridiagonal", {"select": "v", "select_range": "interval"}),
    "reduction": ("reduction", {}),
}


def scales_of(dtype: Any, n: int) -> list[int]:
    """Return exponents of two from where most entries are subnormal to where eigenvalues reach the largest number."""
    limits = np.finfo(dtype)
    top = limits.maxexp - 4 - n.bit_length()
    return [limits.minexp - 1, limits.minexp + 3, limits.minexp // 2, -20, 0, limits.maxexp // 2, top]


def wide(array: Any) -> Any:
    """Return an array of the host in double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def scaled(array: Any, exponent: int) -> Any:
    """Return an array times 2**exponent, rounded where it is subnormal."""
    if array.dtype.kind != "c":
        return np.ldexp(array, exponent)
    result = np.empty_like(array)
    result.real, result.imag = np.ldexp(array.real, exponent), np.ldexp(array.imag, exponent)
    return result


def check_path(
    path: str, n: int, dtype: Any, scale: int, *, backend: str, given: Callable[[Any], Any] = np.asarray,
    host: Callable[[Any], Any] = np.asarray,
) -> None:  # fmt: skip
    """Solve a problem of `path` times 2**scale and compare it with NumPy's solution near 1.

    Parameters
    ----------
    path : str
    n : int
    dtype : dtype
    scale : int
    backend : str
    given, host : callable
        From NumPy's arrays to those that are passed, and from the results to NumPy's.
    """
    kind, keywords = PATHS[path]
    rng = np.random.default_rng([n, abs(scale), len(path)])
    reach = {"band": 2, "wide band": min(70, n - 1), "tridiagonal": 1}.get(kind, n)
    full = random_hermitian(n, rng, dtype)
    if kind == "tridiagonal":
        full = full.real
    full[np.abs(np.subtract.outer(np.arange(n), np.arange(n))) > reach] = 0
    full = scaled(full, scale)
    near = scaled(wide(full), -scale)  # exactly what is solved
    matrix, second, shift = near, None, scale
    if kind == "pair":
        q = np.linalg.qr(random_hermitian(n, rng, dtype))[0]
        definite = (q * np.linspace(1, 3, n, dtype=q.real.dtype)) @ q.conj().T
        definite = (definite + definite.conj().T) / 2
        # Eigenvalues of the first kind stay where they are, and those of the others stay in the range.
        power = scale if keywords.get("type", 1) == 1 else -(scale // 2 * 2) if abs(scale) < 100 else 0
        second = scaled(definite, power)
        definite = scaled(wide(second), -power)
        root = np.linalg.cholesky(definite)
        inner = np.linalg.inv(root)
        matrix = inner @ near @ inner.conj().T if keywords.get("type", 1) == 1 else root.conj().T @ near @ root
        shift = scale - power if keywords.get("type", 1) == 1 else scale + power
    reference = np.linalg.eigvalsh(matrix)
    keywords = {
        name: (-np.inf, float(np.ldexp((reference[n // 2] + reference[n // 2 - 1]) / 2, shift)))
        if value == "interval"
        else value
        for name, value in keywords.items()
    }
    first, stop = 0, n
    if any(value == (1, 2) for value in keywords.values()):
        first, stop = 1, 3
    elif "value" in path:
        stop = n // 2
    eps = float(np.finfo(dtype).eps) * 10 * n * max(1.0, float(np.abs(reference).max())) * (10 if kind == "pair" else 1)
    where = f"{path}, n = {n}, {np.dtype(dtype).name}, 2**{scale}"

    def right(w: Any, v: Any, back: Any) -> None:
        w, v = np.ldexp(host(w).astype(np.float64), -shift), wide(host(v))
        smallest = np.ldexp(float(np.finfo(dtype).smallest_subnormal), -shift) * n
        assert w.shape == (stop - first,), where
        assert np.abs(w - reference[first:stop]).max(initial=0) <= eps + smallest, where
        lengths = np.linalg.norm(v, axis=0)
        assert np.isfinite(lengths).all() and (lengths > 0).all(), where
        v = v / lengths
        assert np.linalg.norm(back(v) - v * w) <= eps + smallest * n, where

    if kind == "reduction":
        t = evd.tridiagonalize(given(full), calc_q=True, backend=backend)
        d, e, q = (wide(host(x)) for x in t)
        tridiagonal = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
        difference = q @ scaled(tridiagonal, -scale) @ q.conj().T - near
        assert np.linalg.norm(difference) <= eps + np.ldexp(float(np.finfo(dtype).smallest_subnormal), -scale) * n, (
            where
        )
        return
    if kind in ("band", "wide band"):
        lower = keywords.pop("lower", True)
        band = np.zeros((reach + 1, n), dtype)
        for offset in range(min(reach + 1, n)):
            if lower:
                band[offset, : n - offset] = np.diagonal(full, -offset)
            else:
                band[reach - offset, offset:] = np.diagonal(full, offset)
        right(*evd.eig_banded(given(band), lower=lower, **keywords, backend=backend), lambda v: near @ v)
        return
    if kind == "tridiagonal":
        d, e = np.diagonal(full).copy(), np.diagonal(full, 1).copy()
        right(*evd.eigh_tridiagonal(given(d), given(e), **keywords, backend=backend), lambda v: near @ v)
        return
    if kind == "batch":
        for w, v in zip(*evd.eigh(given(np.stack([full, full])), backend=backend), strict=True):
            right(w, v, lambda v: near @ v)
        return
    if second is None:
        right(*evd.eigh(given(full), **keywords, backend=backend), lambda v: near @ v)
        return
    one, two = near, definite
    back = {
        1: lambda v: np.linalg.solve(two, one @ v),
        2: lambda v: one @ (two @ v),
        3: lambda v: two @ (one @ v),
    }[keywords.get("type", 1)]
    w, v = evd.eigh(given(full), given(second), **keywords, backend=backend)
    right(w, v, back)
    lengths = wide(host(v))
    own = scaled(lengths, power // 2 if keywords.get("type", 1) != 3 else -(power // 2))
    metric = two if keywords.get("type", 1) != 3 else np.linalg.inv(two)
    if power % 2 == 0:
        assert np.abs(own.conj().T @ metric @ own - np.eye(stop - first)).max() <= 100 * eps, where
