"""Generalized problems on CUDA: brought to standard form by the Cholesky factor of the second matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.evd.cuda.blas import Blas, add_lower, factorize
from spectile.evd.cuda.choose import REDUCED_ORDER
from spectile.evd.cuda.matrix import as_array, empty_matrix, load_triangle, symmetrize, zero_matrix
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
        self._a, self._factor = (empty_matrix(self._n, self._n, array.dtype) for _ in range(2))
        load_triangle(array, options.lower, self._a.pointer, self._a.ld, status.data.ptr)
        load_triangle(definite.b, options.lower, self._factor.pointer, self._factor.ld, status.data.ptr + 4)
        factorize(array.dtype, self._n, self._factor.pointer, self._factor.ld, status.data.ptr + 8)
        a_not_finite, b_not_finite, minor = status.get().tolist()
        if a_not_finite or b_not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if minor:
            raise not_definite(minor)

    def standard(self) -> Any:
        """Return the matrix of the standard problem, of which the lower triangle counts; A is overwritten."""
        if self._kind == 1:
            self._divide(0, self._n)
        else:
            self._multiply()
        return as_array(self._a, self._n, self._n)

    def _divide(self, start: int, n: int) -> None:
        """A = L⁻¹ A L⁻ᴴ in the diagonal block of order n at `start`, whose lower triangle counts.

        By halves, with A11 first: then A21 = L22⁻¹ (A21 L11⁻ᴴ − L21 A11), and between the two halves of the subtraction
        A22 −= A21 L21ᴴ + L21 A21ᴴ.  These are n³ operations, half of those of two triangular solutions of the whole.
        """
        blas, a, factor = self._blas, self._a, self._factor
        own, lower = a.at(start, start), factor.at(start, start)
        if n <= REDUCED_ORDER:
            symmetrize(a, start, n, from_upper=False, factor=1.0)
            blas.solve_lower("L", "N", n, n, lower, factor.ld, own, a.ld)
            blas.solve_lower("R", "C", n, n, lower, factor.ld, own, a.ld)
            return
        h = -(-n // 2 // REDUCED_ORDER) * REDUCED_ORDER
        m, middle = n - h, start + h
        self._divide(start, h)
        symmetrize(a, start, h, from_upper=False, factor=1.0)
        below, beside = a.at(middle, start), factor.at(middle, start)
        blas.solve_lower("R", "C", m, h, lower, factor.ld, below, a.ld)
        half = empty_matrix(m, h, a.owner.dtype)
        blas.gemm(m, h, h, -0.5, beside, factor.ld, own, a.ld, 0.0, half.pointer, half.ld)
        blas.add(m, h, half.pointer, half.ld, below, a.ld)
        for left, right in (((below, a.ld), (beside, factor.ld)), ((beside, factor.ld), (below, a.ld))):
            add_lower(blas, m, h, -1.0, *left, *right, a, middle, REDUCED_ORDER)
        blas.add(m, h, half.pointer, half.ld, below, a.ld)
        blas.solve_lower("L", "N", m, h, factor.at(middle, middle), factor.ld, below, a.ld)
        self._divide(middle, m)

    def _multiply(self) -> None:
        """A = Lᴴ A L, with zeros above the diagonal of L."""
        n, blas, a = self._n, self._blas, self._a
        symmetrize(a, 0, n, from_upper=False, factor=1.0)
        factor, product = zero_matrix(n, n, a.owner.dtype), empty_matrix(n, n, a.owner.dtype)
        # cuSOLVER may leave anything above the diagonal.
        for start in range(0, n, REDUCED_ORDER):
            stop = min(start + REDUCED_ORDER, n)
            as_array(factor, n, n)[start:, start:stop] = as_array(self._factor, n, n)[start:, start:stop]
        self._factor = factor
        blas.gemm(n, n, n, 1.0, a.pointer, a.ld, factor.pointer, factor.ld, 0.0, product.pointer, product.ld)
        blas.gemm(
            *(n, n, n, 1.0, factor.pointer, factor.ld, product.pointer, product.ld, 0.0, a.pointer, a.ld), ops="CN"
        )

    def transform_back(self, v: Any) -> Any:
        """Return the eigenvectors of the generalized problem: L⁻ᴴ V, or L V; V may be overwritten."""
        import cupy

        n, m = v.shape
        if v.strides[0] != v.itemsize or (m > 1 and v.strides[1] < n * v.itemsize):
            v = cupy.asfortranarray(v)
        ld, factor = (v.strides[1] // v.itemsize if m > 1 else n), self._factor
        if self._kind != 3:
            self._blas.solve_lower("L", "C", n, m, factor.pointer, factor.ld, v.data.ptr, ld)
            return v
        x = cupy.empty((n, m), v.dtype, order="F")
        self._blas.gemm(n, m, n, 1.0, factor.pointer, factor.ld, v.data.ptr, ld, 0.0, x.data.ptr, n)
        return x
