"""The chain of library calls, vector by vector: SciPy and BLAS, or cuSPARSE and cuBLAS, as kernels are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.common import vectors_unit
from spectile.kpm.types import Array


def fill_columns(block: Any, seed: int) -> None:
    """Write random start vectors one after the other: row r of `block`, shape (R, N), is vector r."""
    for r in range(block.shape[0]):
        kernel(vectors_unit(str(block.dtype)), "random_phases")(
            Shape((1024,), 256), block[r], np.uint64(0), np.int64(block.shape[1]), np.int32(1), np.int32(1),
            np.uint64(seed), np.uint64(r),
        )  # fmt: skip


def fill_rows(block: Any, seed: int) -> None:
    """Write random start vectors as the columns of `block`, shape (N, R)."""
    rows, width = block.shape
    kernel(vectors_unit(str(block.dtype)), "random_phases")(
        Shape((1024,), 256),
        block,
        np.uint64(0),
        np.int64(rows),
        np.int32(width),
        np.int32(width),
        np.uint64(seed),
        np.uint64(0),
    )


def etas_naive(matrix: Any, start: Array, steps: int, a: float, b: float) -> Array:
    """Run Figure 3 through SciPy's product and BLAS, vector by vector: the chain of library calls to compare with.

    Parameters
    ----------
    matrix : scipy.sparse matrix, shape (N, N)
        H.
    start : ndarray, shape (N, R), Fortran order
        |ν₀⟩.
    steps : int
        Applications of H̃, M/2.
    a, b : float
        Scaling.

    Returns
    -------
    ndarray, shape (2 * steps, R)
    """
    from scipy.linalg import get_blas_funcs

    vector = np.empty(0, dtype=matrix.dtype)
    axpy, scal, nrm2 = get_blas_funcs(("axpy", "scal", "nrm2"), (vector,))
    dot = get_blas_funcs("dotc" if matrix.dtype.kind == "c" else "dot", (vector,))
    etas = np.empty((2 * steps, start.shape[1]))
    for r in range(start.shape[1]):
        v, w = start[:, r].astype(matrix.dtype), np.zeros(start.shape[0], dtype=matrix.dtype)
        for m in range(steps):
            if m:
                v, w = w, v
            u = axpy(v, matrix @ v, a=-b)
            w = axpy(u, scal(-1.0, w), a=2 * a if m else a)
            etas[2 * m : 2 * m + 2, r] = nrm2(v) ** 2, dot(w, v).real
    return etas


def etas_naive_cuda(matrix: Any, start: Any, steps: int, a: float, b: float) -> Any:
    """Run Figure 3 through cuSPARSE and cuBLAS, vector by vector: the vendor's chain to compare with.

    Parameters
    ----------
    matrix : cupyx.scipy.sparse.csr_matrix, shape (N, N)
        H.
    start : cupy.ndarray, shape (N, R), Fortran order
        |ν₀⟩.
    steps : int
        Applications of H̃, M/2.
    a, b : float
        Scaling.

    Returns
    -------
    cupy.ndarray, shape (2 * steps, R)
    """
    import cupy
    from cupy import cublas
    from cupyx import cusparse

    etas = cupy.empty((2 * steps, start.shape[1]), matrix.dtype)
    dot = cublas.dotc if matrix.dtype.kind == "c" else cublas.dot
    minus_one = cupy.array(-1, matrix.dtype)
    for r in range(start.shape[1]):
        v, w = cupy.ascontiguousarray(start[:, r]), cupy.zeros(start.shape[0], matrix.dtype)
        u = cupy.empty_like(v)
        for m in range(steps):
            if m:
                v, w = w, v
            cusparse.spmv(matrix, v, u)
            cublas.axpy(-b, v, u)
            cublas.scal(minus_one, w)
            cublas.axpy(2 * a if m else a, u, w)
            dot(v, v, out=etas[2 * m, r : r + 1].reshape(()))
            dot(w, v, out=etas[2 * m + 1, r : r + 1].reshape(()))
    return etas.real
