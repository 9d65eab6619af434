"""Generalized problems on CUDA: brought to standard form by the Cholesky factor of the second matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas, add_lower, factorize
from spectile.evd.cuda.choose import SOLVED_ORDER
from spectile.evd.cuda.matrix import (
    EVER,
    as_array,
    empty_matrix,
    is_finite,
    load_triangle,
    require_in_range,
    scale_triangle,
    scaled_values,
    shift_of,
    symmetrize,
    zero_matrix,
)
from spectile.evd.cuda.triangular import SIZE, Factor
from spectile.evd.cuda.workspace import SMALL_ORDER
from spectile.evd.types import Definite, Options, Subset, not_definite, require_finite, scalar_of


def solve(
    array: Any, definite: Definite, options: Options, solve_standard: Callable[[Any, Options], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Solve one generalized problem of order at least 1, both of whose matrices are of one dtype.

    With B = L Lᴴ the matrix of the standard problem is L⁻¹ A L⁻ᴴ for A x = λ B x, and Lᴴ A L for the other two;
    ``solve_standard(matrix, options)`` returns its w, and v or None.  Raises LinAlgError if B is not positive definite,
    with the order of the minor, and OverflowError if an eigenvalue is beyond the range of its dtype.
    """
    n = len(array)
    with memory.allocating(f"the generalized eigenproblem of order {n:,}", 8 * array.nbytes):
        problem = _Problem(array, definite, options)
        own, shift = options._replace(lower=True, overwrite=n >= SMALL_ORDER), problem.shift_of_values
        if options.subset is not None and not options.subset.by_index and shift:
            with np.errstate(over="ignore", under="ignore"):
                ends = (float(np.ldexp(end, shift)) for end in (options.subset.low, options.subset.high))
                own = own._replace(subset=Subset(False, *ends))
        w, v = solve_standard(problem.standard(), own)
        if shift:
            w = require_in_range(scaled_values(w.astype(np.float64), -shift, scalar_of(array.dtype)), EVER)
        return w, None if v is None else problem.transform_back(v)


class _Problem:
    """A, and the Cholesky factor of B, both column-major and each near 1 by a power of four, which has a root.

    The eigenvalues of what is solved are those of the problem times 2**`shift_of_values`.
    """

    def __init__(self, array: Any, definite: Definite, options: Options) -> None:
        import cupy

        self._n, self._kind, self._blas = len(array), definite.kind, Blas(array.dtype)
        # The words of A and of B, the order of the first minor of B that is not positive definite, and a spare word.
        status = self._status = cupy.zeros(4, np.int32)
        self._a, self._lower = (empty_matrix(self._n, self._n, array.dtype) for _ in range(2))
        start = address(status)
        for given, matrix, word in ((array, self._a, start), (definite.b, self._lower, start + 4)):
            load_triangle(given, options.lower, matrix.pointer, matrix.ld, word)
            scale_triangle(array.dtype.name, matrix.pointer, matrix.ld, self._n, word)
        factorize(array.dtype, self._n, self._lower.pointer, self._lower.ld, start + 8)
        word_a, word_b, minor, _ = status.get().tolist()
        for name, word in (("a", word_a), ("b", word_b)):
            if not is_finite(word):
                require_finite(np.nan, options.lower, options.check_finite, name)
        if minor:
            raise not_definite(minor)
        self._shift_b = shift_of(word_b)
        self.shift_of_values = shift_of(word_a) + (-self._shift_b if self._kind == 1 else self._shift_b)
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
            symmetrize(a, 0, n)
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
            symmetrize(a, start, n)
            product = empty_matrix(n, n, a.owner.dtype)
            factor.divide(start, n, n, own, a.ld, product.pointer, product.ld)
            factor.divide_right(start, n, n, product.pointer, product.ld, own, a.ld)
            return
        m, middle = n - h, start + h
        self._divide(factor, start, h)
        symmetrize(a, start, h)
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
        symmetrize(a, 0, n)
        load_triangle(as_array(self._lower, n, n), True, lower.pointer, lower.ld, address(self._status) + 12)
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
        v = self._transformed(v)
        if self._shift_b:
            v *= v.real.dtype.type(2.0 ** (self._shift_b // 2 * (-1 if self._kind == 3 else 1)))
        return v

    def _transformed(self, v: Any) -> Any:
        import cupy

        n, m = v.shape
        if v.strides[0] != v.itemsize or (m > 1 and v.strides[1] < n * v.itemsize):
            v = cupy.asfortranarray(v)
        ld, lower = (v.strides[1] // v.itemsize if m > 1 else n), self._lower
        if self._kind != 3 and self._factor is None:
            self._blas.solve_lower("L", "C", n, m, lower.pointer, lower.ld, address(v), ld)
            return v
        x = cupy.empty((n, m), v.dtype, order="F")
        if self._factor is not None:
            self._factor.divide_conjugate(m, address(v), ld, address(x), n)
        else:
            self._blas.gemm(n, m, n, 1.0, lower.pointer, lower.ld, address(v), ld, 0.0, address(x), n)
        return x
