"""The steps of a refinement on CUDA: products by cuBLAS, and one pass over S and G where arrays would take dozens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.evd import steps
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix, scaled_values, symmetrize
from spectile.evd.cuda.units import REFINE
from spectile.evd.types import Scalar, scalar_of

#: Shares of gaps that are counted at once, as in refine.cu.
LEVELS = 3


class Steps(steps.Steps):
    """As on the host, in CuPy's arrays; S and G are right below the diagonal and on it."""

    def __init__(self, a: Any, b: Any = None, *, lower: bool) -> None:
        import cupy

        self.xp, self.n, self.dtype, self._scalar = cupy, len(a), a.dtype, scalar_of(a.dtype)
        self._a, self.shift = load_matrix(a, lower=lower, check_finite=False)
        self._b, self._shift_b = None, 0
        if b is not None:
            self._b, self._shift_b = load_matrix(b, lower=lower, check_finite=False)
        self._x, self._y, self._s, self._g = (empty_matrix(self.n, self.n, a.dtype) for _ in range(4))
        self.s, self.g = (as_array(each, self.n, self.n) for each in (self._s, self._g))
        self._blas = Blas(a.dtype)

    def begin(self, x: Any) -> None:
        """Take a copy of the vectors."""
        self.x = as_array(self._x, self.n, self.n)
        self.x.T[...] = x.T  # along columns

    def pencil(self) -> None:
        """Make S and G."""
        for left, out in ((self._a, self._s), (self._b, self._g)):
            if left is not None:
                self._multiply(left, self._x, 0.0, self._y)
            right = self._x if left is None else self._y
            self._blas.gram(self.n, self.n, self._x.pointer, self._x.ld, right.pointer, right.ld, out.pointer, out.ld)

    def survey(self, shares: tuple[float, ...]) -> steps.Seen:
        """Return what all pairs show."""
        import cupy

        sums = cupy.empty((self.n, 3 + LEVELS))
        size = cupy.linalg.norm(self.w)
        self._noise = size * self.w.dtype.type(float(np.finfo(self.dtype).eps) / self.n**0.5)
        kernel(REFINE[self._scalar.name], "survey")(
            survey_shape(self.n), *self._pencil(), cupy.asarray(shares, np.float32), sums
        )
        *total, norm = (float(one) for one in cupy.asnumpy(cupy.append(sums.sum(axis=0), size)))
        residual, defect, turned = np.sqrt(total[:3])
        return steps.Seen(float(residual), float(defect), float(turned), norm, [round(one) for one in total[3:]])

    def pairs(self, share: float, count: int) -> tuple[np.ndarray, ...]:
        """Return i and j of the `count` pairs that are coupled by more than this share of their gap."""
        import cupy

        pairs, found = cupy.empty((count, 2), np.int32), cupy.zeros(1, np.int32)
        kernel(REFINE[self._scalar.name], "strong_pairs")(
            pairs_shape(self.n), *self._pencil(), np.float32(share), pairs, found, np.int32(count)
        )
        return tuple(cupy.asnumpy(pairs).T)

    def turn(self, clusters: list[np.ndarray]) -> None:
        """Turn the vectors of each cluster so that nothing couples them."""
        for each in (self._s, self._g):
            symmetrize(each, 0, self.n, from_upper=False)
        super().turn(clusters)

    def advance(self, share: float, second: bool) -> None:
        """Correct the vectors."""
        n, name, low = self.n, self._scalar.name, np.dtype("F" if self._scalar.is_complex else "f")
        lower = [empty_matrix(n, n, low) for _ in range(5 * second)]
        couplings, turns, left, product, squared = (each.pointer for each in lower) if second else [0] * 5
        ld = np.int64(lower[0].ld if second else n)
        if second:
            kernel(REFINE[name], "lower_turns")(
                tiles_shape(n, self._scalar, 3), *self._pencil(), self.cluster,
                *(np.uintp(couplings), np.uintp(turns), np.uintp(left), ld),
            )  # fmt: skip
            blas = Blas(low)
            for of, out in ((couplings, product), (left, squared)):
                blas.lower_product(n, of, turns, out, int(ld))
        kernel(REFINE[name], "correct")(
            tiles_shape(n, self._scalar, 2), *self._pencil(), self.cluster, np.float32(share),
            *(np.uintp(product), np.uintp(squared), ld, np.uintp(self._y.pointer), np.int64(self._y.ld)),
        )  # fmt: skip
        before, self._x = self._x, empty_matrix(n, n, self.dtype)
        self._x.owner[...] = before.owner
        self._multiply(before, self._y, 1.0, self._x)
        self.x = as_array(self._x, n, n)

    def result(self) -> tuple[Any, Any] | None:
        """Return values, ascending, and vectors."""
        if self._shift_b:
            self.x *= self.w.dtype.type(2.0 ** (self._shift_b // 2))  # it is even
        return super().result()

    def unscaled(self, w: Any) -> Any:
        """Return the values of A for those of what it was multiplied to."""
        return scaled_values(w.astype(np.float64), self._shift_b - self.shift, self._scalar)

    def _multiply(self, left: Matrix, right: Matrix, beta: float, out: Matrix) -> None:
        n = self.n
        self._blas.gemm(n, n, n, 1.0, left.pointer, left.ld, right.pointer, right.ld, beta, out.pointer, out.ld)

    def _pencil(self) -> tuple[Any, ...]:
        """Return what each kernel is told first."""
        of = np.uintp(self._s.pointer), np.uintp(self._g.pointer), np.int64(self._s.ld)
        return *of, self.scale, self.w, np.int32(self.n), self._noise


def survey_shape(n: int) -> Shape:
    """Launch of `survey`."""
    return Shape((n,), 256, (3 + LEVELS) * 256 * 8)


def pairs_shape(n: int) -> Shape:
    """Launch of `strong_pairs`."""
    return Shape((n,), 256)


def tiles_shape(n: int, scalar: Scalar, held: int) -> Shape:
    """Launch of a kernel over tiles that holds so many in shared memory."""
    tiles = -(-n // 32)
    return Shape((tiles, tiles), 256, held * 32 * 33 * scalar.itemsize)


def shapes(n: int, scalar: Scalar) -> Iterator[tuple[str, Shape]]:
    """Yield every launch of this module, with the kernel's name."""
    yield "survey", survey_shape(n)
    yield "strong_pairs", pairs_shape(n)
    yield "lower_turns", tiles_shape(n, scalar, 3)
    yield "correct", tiles_shape(n, scalar, 2)
