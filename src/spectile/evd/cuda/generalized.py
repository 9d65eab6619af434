"""Generalized problems on CUDA: brought to standard form by the Cholesky factor of the second matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.evd.cuda.blas import Blas, factorize
from spectile.evd.cuda.matrix import Matrix, load_triangle, symmetrize
from spectile.evd.types import Definite, Options, not_definite, require_finite


def solve(
    array: Any, definite: Definite, options: Options, solve_standard: Callable[[Any, Options], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Solve one generalized problem of order at least 1.

    With B = L Lᴴ the matrix of the standard problem is L⁻¹ A L⁻ᴴ for A x = λ B x, and Lᴴ A L for the other two.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    definite : Definite
        Its matrix is of the dtype of `array`.
    options : Options
    solve_standard : callable
        ``solve_standard(matrix, options)`` returns w, and v or None.

    Raises
    ------
    numpy.linalg.LinAlgError
        If B is not positive definite, with the order of the minor.
    """
    n = len(array)
    with memory.allocating(f"the generalized eigenproblem of order {n:,}", 8 * array.nbytes):
        problem = _Problem(array, definite, options)
        w, v = solve_standard(problem.standard(), options._replace(lower=True, overwrite=True))
        return w, None if v is None else problem.transform_back(v)


class _Problem:
    """A, and the Cholesky factor of B, both column-major."""

    def __init__(self, array: Any, definite: Definite, options: Options) -> None:
        import cupy

        self._n, self._kind, self._blas = len(array), definite.kind, Blas(array.dtype)
        # Whether A or B is not finite, and the order of the first minor of B that is not positive definite.
        status = cupy.zeros(3, np.int32)
        self._a, self._factor = (cupy.zeros(array.shape, array.dtype, order="F") for _ in range(2))
        load_triangle(array, options.lower, self._a, status.data.ptr)
        load_triangle(definite.b, options.lower, self._factor, status.data.ptr + 4)
        factorize(self._factor, status.data.ptr + 8)
        symmetrize(Matrix(self._a.data.ptr, self._n, array.itemsize, self._a), 0, self._n, from_upper=False, factor=1.0)
        a_not_finite, b_not_finite, minor = status.get().tolist()
        if a_not_finite or b_not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if minor:
            raise not_definite(minor)

    def standard(self) -> Any:
        """Return the matrix of the standard problem, of which the lower triangle counts; A is overwritten."""
        n, blas, a, factor = self._n, self._blas, self._a.data.ptr, self._factor.data.ptr
        if self._kind == 1:
            blas.solve_lower("L", "N", n, n, factor, n, a, n)
            blas.solve_lower("R", "C", n, n, factor, n, a, n)
            return self._a
        import cupy

        # cuSOLVER may leave anything above the diagonal.
        self._factor = cupy.asfortranarray(cupy.tril(self._factor))
        product, factor = cupy.empty_like(self._a), self._factor.data.ptr
        blas.gemm(n, n, n, 1.0, a, n, factor, n, 0.0, product.data.ptr, n)
        blas.gemm(n, n, n, 1.0, factor, n, product.data.ptr, n, 0.0, a, n, ops="CN")
        return self._a

    def transform_back(self, v: Any) -> Any:
        """Return the eigenvectors of the generalized problem: L⁻ᴴ V, or L V; V may be overwritten."""
        import cupy

        n, m = v.shape
        if v.strides[0] != v.itemsize or (m > 1 and v.strides[1] < n * v.itemsize):
            v = cupy.asfortranarray(v)
        ld, factor = (v.strides[1] // v.itemsize if m > 1 else n), self._factor.data.ptr
        if self._kind != 3:
            self._blas.solve_lower("L", "C", n, m, factor, n, v.data.ptr, ld)
            return v
        x = cupy.empty((n, m), v.dtype, order="F")
        self._blas.gemm(n, m, n, 1.0, factor, n, v.data.ptr, ld, 0.0, x.data.ptr, n)
        return x
