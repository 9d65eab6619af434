"""Checks of results on the device, in column blocks, for memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from spectile.evd.cuda.tridiagonal.sturm import eigenvalues

EPS = float(np.finfo(np.float64).eps)
NORM_LIMITS = {"error_trace": 10.0, "error_norm": 10.0}


def check_pairs_of(make: Callable[[], Any], reference: Any, vectors: bool) -> Callable[[Any], dict[str, float]]:
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
            squares = abs(size - frobenius_norm(a))
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
            errors |= check_basis(v)
        return errors

    return check


def check_basis(v: Any) -> dict[str, float]:
    """Return how far the columns of V are from orthonormal."""
    n, squares = v.shape[0], 0.0
    for start in range(0, n, 4096):
        block = slice(start, min(start + 4096, n))
        gram = v.conj().T @ v[:, block]
        gram[np.arange(block.start, block.stop), np.arange(block.stop - block.start)] -= 1
        squares += float(cupy.linalg.norm(gram)) ** 2
    return {"error_orthogonality": squares**0.5 / (n * float(np.finfo(v.dtype).eps))}


def frobenius_norm(a: Any) -> float:
    """Frobenius norm, in column blocks, for memory."""
    squares = [float(cupy.linalg.norm(a[:, start : start + 4096])) ** 2 for start in range(0, a.shape[1], 4096)]
    return sum(squares) ** 0.5


def check_values_of(reference: Any) -> Callable[[Any], dict[str, float]]:
    """Return the check of a tridiagonal matrix (d, e) against the eigenvalues that it must have."""
    n, norm = len(reference), float(cupy.abs(reference).max())

    def check(result: Any) -> dict[str, float]:
        e = cupy.zeros(n, np.float64)
        e[: n - 1] = cupy.asarray(result[1])[: n - 1]
        w = eigenvalues(cupy.asarray(result[0]), e)
        return {"error_values": float(cupy.abs(w - reference).max()) / (n * EPS * norm)}

    return check


def check_norms_of(trace: float, norm: float) -> Callable[[Any], dict[str, float]]:
    """Return the check of a tridiagonal matrix (d, e) by the trace and the Frobenius norm of the one it came from."""

    def check(result: Any) -> dict[str, float]:
        d, e = (cupy.asarray(x) for x in result[:2])
        n = len(d)
        e = e[: n - 1]
        scale = n * EPS * float((cupy.abs(d[:-1]) + cupy.abs(e)).max())
        size = float(cupy.sqrt((d * d).sum() + 2 * (e * e).sum()))
        return {"error_trace": abs(float(d.sum()) - trace) / scale, "error_norm": abs(size - norm) / scale}

    return check
