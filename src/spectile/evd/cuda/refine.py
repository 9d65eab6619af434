"""The steps of a refinement on CUDA: products by cuBLAS, and one pass over S and G where arrays would take dozens."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd import steps
from spectile.evd.cuda.blas import Blas, factorize
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix, scaled_values, symmetrize, triangle_shape
from spectile.evd.cuda.units import REFINE
from spectile.evd.types import scalar_of

#: Shares of gaps that are counted at once, as in refine.cu.
LEVELS = 3


class Steps(steps.Steps):
    """As on the host, in CuPy's arrays; S is right below the diagonal and on it."""

    def __init__(self, a: Any, b: Any = None, *, lower: bool) -> None:
        import cupy

        self.xp, self.n, self.dtype, self._scalar = cupy, len(a), a.dtype, scalar_of(a.dtype)
        self._a, self.shift = load_matrix(a, lower=lower, check_finite=False)
        self._b, self._shift_b, self.a, self.b = None, 0, as_array(self._a, self.n, self.n), None
        if b is not None:
            self._b, self._shift_b = load_matrix(b, lower=lower, check_finite=False)
            self.b = as_array(self._b, self.n, self.n)
        self._x, self._y, self._s = (empty_matrix(self.n, self.n, a.dtype) for _ in range(3))
        self._blas = Blas(a.dtype)
        self._view()

    def _view(self) -> None:
        """Make arrays of X and S where they are now."""
        self.x, self.s = (as_array(each, self.n, self.n) for each in (self._x, self._s))

    def begin(self, x: Any) -> None:
        """Take a copy of the vectors."""
        self.x.T[...] = x.T  # along columns

    def pencil(self) -> None:
        """Make S."""
        self._make_gram(self._a)

    def orthonormalize(self) -> None:
        """Make Xᴴ B X one, by its Cholesky factor."""
        import cupy

        n, s, info = self.n, self._s, cupy.zeros(1, np.int32)
        self._make_gram(self._b)
        factorize(self.dtype, n, s.pointer, s.ld, address(info))
        if int(info.item()):
            raise np.linalg.LinAlgError
        self._blas.solve_lower("R", "C", n, n, s.pointer, s.ld, self._x.pointer, self._x.ld)

    def survey(self, shares: tuple[float, ...]) -> steps.Seen:
        """Return what all pairs show."""
        import cupy

        sums = cupy.empty((self.n, 1 + 2 * LEVELS))
        size = cupy.linalg.norm(self.w)
        self._noise = size * self.w.dtype.type(float(np.finfo(self.dtype).eps) / self.n**0.5)
        self._launch("survey", survey_shape(self.n), cupy.asarray(shares, np.float32), sums)
        *total, norm = (float(one) for one in cupy.asnumpy(cupy.append(sums.sum(axis=0), size)))
        residual, *turned = np.sqrt(total[: 1 + LEVELS]).tolist()
        self._most = residual, dict(zip(shares, turned, strict=True))  # of couplings, and of turns
        return steps.Seen(residual, turned, norm, [round(one) for one in total[1 + LEVELS :]])

    def pairs(self, share: float, count: int) -> tuple[np.ndarray, ...]:
        """Return i and j of the `count` pairs that are coupled by more than this share of their gap."""
        import cupy

        pairs, found = cupy.empty((count, 2), np.int32), cupy.zeros(1, np.int32)
        self._launch("strong_pairs", pairs_shape(self.n), np.float32(share), pairs, found, np.int32(count))
        return tuple(cupy.asnumpy(pairs).T)

    def turn(self, clusters: list[np.ndarray]) -> None:
        """Turn the vectors of each cluster so that nothing couples them."""
        symmetrize(self._s, 0, self.n)
        super().turn(clusters)

    def advance(self, share: float, *, exactly: bool, third: bool) -> None:
        """Correct the vectors and values."""
        import cupy

        n, room, (residual, turned_by) = self.n, self._y, self._most
        parts, low = ("F", "F") if self._scalar.is_complex else ("e", "f")
        coupling, first = (empty_matrix(n, 2 * n, parts) for _ in range(2))
        product, turn = empty_matrix(n, n, low), turned_by[share]
        blas, shape = Blas(low), functools.partial(triangle_shape, n, self._scalar)
        pair, ld = (np.uintp(coupling.pointer), np.uintp(first.pointer)), np.int64(coupling.ld)
        made, turned = ((np.uintp(one.pointer), np.int64(one.ld)) for one in (product, room))
        # What brings couplings, turns, and what is made of them into the range of float16.
        bounds = residual, 4 * share, 4 * residual * turn, (2 * turn) ** 2, share + (2 * turn) ** 2
        c, k, d, squared, left_over = (2.0 ** (14 - math.frexp(most)[1]) for most in bounds)

        def multiply(*factors: tuple[int, int, float]) -> None:
            for number, (left, right, scale) in enumerate(factors):
                blas.product_of_parts(
                    *(n, 1 / scale, left, right, coupling.ld, float(number > 0), product.pointer, product.ld)
                )

        def in_parts(scale: float) -> tuple[tuple[int, int, float], ...]:
            """Return factors of a product in single precision, scaled so in all."""
            small = 2**11 * scale
            return (*highest, scale), (highest[0], rest[1], small), (rest[0], highest[1], small)

        highest, rest = (coupling.pointer, first.pointer), (coupling.at(0, n), first.at(0, n))
        self._launch("lower_turns", shape(2), self.cluster, *pair, ld, np.float32(c), np.float32(k))
        multiply(*in_parts(c * k)[: 3 if exactly else 1])
        change = cupy.zeros(n, self._scalar.real)
        for order in (2, 3)[: 1 + third]:
            left, half = (np.uintp(one if third and order == 2 else 0) for one in rest)
            self._launch(
                *("raise_order", shape(3), self.cluster, np.float32(share), np.int32(order), *made),
                *(half, left, ld, np.float32(k), np.float32(d), *turned, change),
            )
            if third and order == 2:
                multiply((highest[0], rest[1], c * k), (rest[0], highest[1], d * k))
        self._blas.gram(n, n, room.pointer, room.ld, room.pointer, room.ld, self._s.pointer, self._s.ld)
        kernel(REFINE[self._scalar.name], "exponent")(
            *(shape(2), *turned, np.uintp(self._s.pointer), np.int64(self._s.ld), np.int32(n)),
            *(*(pair if third else [np.uintp(0)] * 2), ld, np.float32(squared), np.float32(left_over)),
        )
        if third:
            multiply(*in_parts(squared * left_over))
            cubes = as_array(room, n, n).T  # along rows, as CuPy adds fast
            cubes += as_array(product, n, n).T
        self.w = self.w + change
        self._s.owner[...] = self._x.owner
        self._multiply(self._x, room, 1.0, self._s)
        self._x, self._s = self._s, self._x
        self._view()

    def result(self) -> tuple[Any, Any] | None:
        """Return values, ascending, and vectors."""
        if self._shift_b:
            self.x *= self.w.dtype.type(2.0 ** (self._shift_b // 2))  # it is even
        return super().result()

    def unscaled(self, w: Any) -> Any:
        """Return the values of A for those of what it was multiplied to."""
        return scaled_values(w.astype(np.float64), self._shift_b - self.shift, self._scalar)

    def _make_gram(self, middle: Matrix | None) -> None:
        """Make Xᴴ M X in place of S."""
        x, right = self._x, self._x if middle is None else self._y
        if middle is not None:
            self._multiply(middle, x, 0.0, right)
        self._blas.gram(self.n, self.n, x.pointer, x.ld, right.pointer, right.ld, self._s.pointer, self._s.ld)

    def _multiply(self, left: Matrix, right: Matrix, beta: float, out: Matrix) -> None:
        n = self.n
        self._blas.gemm(n, n, n, 1.0, left.pointer, left.ld, right.pointer, right.ld, beta, out.pointer, out.ld)

    def _launch(self, name: str, shape: Shape, *arguments: Any) -> None:
        """Launch a kernel that is told of all pairs first."""
        of = np.uintp(self._s.pointer), np.int64(self._s.ld), self.w, np.int32(self.n), self._noise
        kernel(REFINE[self._scalar.name], name)(shape, *of, *arguments)


def survey_shape(n: int) -> Shape:
    """Launch of `survey`."""
    return Shape((n,), 256, (1 + 2 * LEVELS) * 256 * 8)


def pairs_shape(n: int) -> Shape:
    """Launch of `strong_pairs`."""
    return Shape((n,), 256)
