"""Generalized problems on CUDA: brought to standard form by the Cholesky factor of the second matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.evd.cuda.blas import Blas, add_lower, factorize
from spectile.evd.cuda.choose import SOLVED_ORDER
from spectile.evd.cuda.matrix import as_array, empty_matrix, load_triangle, symmetrize, zero_matrix
from spectile.evd.cuda.triangular import SIZE, Factor
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
        status = self._status = cupy.zeros(3, np.int32)
        self._a, self._lower = (zero_matrix(self._n, self._n, array.dtype) for _ in range(2))
        load_triangle(array, options.lower, self._a.pointer, self._a.ld, status.data.ptr)
        load_triangle(definite.b, options.lower, self._lower.pointer, self._lower.ld, status.data.ptr + 4)
        factorize(array.dtype, self._n, self._lower.pointer, self._lower.ld, status.data.ptr + 8)
        a_not_finite, b_not_finite, minor = status.get().tolist()
        if a_not_finite or b_not_finite:
            require_finite(np.nan, options.lower, options.check_finite)
        if minor:
            raise not_definite(minor)
        by_products = self._n > SOLVED_ORDER
        self._factor = Factor(self._blas, self._lower, self._n) if by_products and self._kind != 3 else None

    def standard(self) -> Any:
        """Return the matrix of the standard problem, of which the lower triangle counts; A is overwritten."""
        n, a, lower = self._n, self._a, self._lower
        if self._kind != 1:
            self._multiply()
        elif self._factor is not None:
            self._divide(self._factor, 0, n)
        else:
            symmetrize(a, 0, n, from_upper=False, factor=1.0)
            self._blas.solve_lower("L", "N", n, n, lower.pointer, lower.ld, a.pointer, a.ld)
            self._blas.solve_lower("R", "C", n, n, lower.pointer, lower.ld, a.pointer, a.ld)
        return as_array(a, n, n)

    def _divide(self, factor: Factor, start: int, n: int) -> None:
        """A = L⁻¹ A L⁻ᴴ in the diagonal block of order n at `start`, whose lower triangle counts.

        By halves, with A11 first: then A21 = L22⁻¹ (A21 L11⁻ᴴ − L21 A11), and between the two halves of the subtraction
        A22 −= A21 L21ᴴ + L21 A21ᴴ.  These are n³ operations, half of those of two triangular solutions of the whole.
        """
        blas, a, lower = self._blas, self._a, self._lower
        own, h = a.at(start, start), -(-n // 2 // SIZE) * SIZE
        if n <= SIZE:
            symmetrize(a, start, n, from_upper=False, factor=1.0)
            product = empty_matrix(n, n, a.owner.dtype)
            factor.divide(start, n, n, own, a.ld, product.pointer, product.ld)
            factor.divide_right(start, n, n, product.pointer, product.ld, own, a.ld)
            return
        m, middle = n - h, start + h
        self._divide(factor, start, h)
        symmetrize(a, start, h, from_upper=False, factor=1.0)
        below, beside = a.at(middle, start), lower.at(middle, start)
        rest, half = (empty_matrix(m, h, a.owner.dtype) for _ in range(2))
        factor.divide_right(start, m, h, below, a.ld, rest.pointer, rest.ld)
        blas.gemm(m, h, h, -0.5, beside, lower.ld, own, a.ld, 0.0, half.pointer, half.ld)
        blas.add(m, h, half.pointer, half.ld, rest.pointer, rest.ld)
        pair = (rest.pointer, rest.ld), (beside, lower.ld)
        for left, right in (pair, pair[::-1]):
            add_lower(blas, m, h, -1.0, *left, *right, a, middle, SIZE // 2)
        blas.add(m, h, half.pointer, half.ld, rest.pointer, rest.ld)
        factor.divide(middle, m, h, rest.pointer, rest.ld, below, a.ld)
        self._divide(factor, middle, m)

    def _multiply(self) -> None:
        """A = Lᴴ A L, with zeros above the diagonal of L, where cuSOLVER may leave anything."""
        n, blas, a, lower = self._n, self._blas, self._a, zero_matrix(self._n, self._n, self._a.owner.dtype)
        symmetrize(a, 0, n, from_upper=False, factor=1.0)
        load_triangle(as_array(self._lower, n, n), True, lower.pointer, lower.ld, self._status.data.ptr)
        self._lower, product = lower, empty_matrix(n, n, a.owner.dtype)
        # Of each column of A L, and of each row of Lᴴ A L, what L holds.
        for j in range(0, n, SIZE):
            width = min(SIZE, n - j)
            left, right = (a.at(0, j), a.ld), (lower.at(j, j), lower.ld)
            blas.gemm(n, width, n - j, 1.0, *left, *right, 0.0, product.at(0, j), product.ld)
        for i in range(0, n, SIZE):
            height = min(SIZE, n - i)
            left, right = (lower.at(i, i), lower.ld), (product.at(i, 0), product.ld)
            # Of its lower triangle, too.
            blas.gemm(height, i + height, n - i, 1.0, *left, *right, 0.0, a.at(i, 0), a.ld, ops="CN")

    def transform_back(self, v: Any) -> Any:
        """Return the eigenvectors of the generalized problem: L⁻ᴴ V, or L V; V may be overwritten."""
        import cupy

        n, m = v.shape
        if v.strides[0] != v.itemsize or (m > 1 and v.strides[1] < n * v.itemsize):
            v = cupy.asfortranarray(v)
        ld, lower = (v.strides[1] // v.itemsize if m > 1 else n), self._lower
        if self._kind != 3 and self._factor is None:
            self._blas.solve_lower("L", "C", n, m, lower.pointer, lower.ld, v.data.ptr, ld)
            return v
        x = cupy.empty((n, m), v.dtype, order="F")
        if self._factor is not None:
            self._factor.divide_conjugate(m, v.data.ptr, ld, x.data.ptr, n)
        else:
            self._blas.gemm(n, m, n, 1.0, lower.pointer, lower.ld, v.data.ptr, ld, 0.0, x.data.ptr, n)
        return x
