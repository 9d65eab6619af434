"""A large Cholesky factor, with which triangular systems become products: the inverses of its diagonal blocks."""

from __future__ import annotations

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix, empty_matrix, zero_matrix
from spectile.evd.cuda.units import TRIANGULAR
from spectile.evd.types import Scalar

BASE = 32  # rows of the blocks that one launch inverts
#: Rows of the diagonal blocks whose inverses are made; cuBLAS's solver takes 0.4 ms for each on its own.
SIZE = 1024


def invert_shape(rows: int, scalar: Scalar) -> Shape:
    """Launch of `invert_blocks` for `rows` rows."""
    return Shape((-(-rows // BASE),), BASE, 2 * BASE * (BASE + 1) * scalar.itemsize)


class Factor:
    """L, lower triangular, of order n; above the diagonal there may be anything."""

    def __init__(self, blas: Blas, lower: Matrix, n: int) -> None:
        self._blas, self.lower, self.n = blas, lower, n
        dtype, count = lower.owner.dtype, -(-n // SIZE)
        self._inverses = zero_matrix(SIZE, SIZE * count, dtype)
        self._product = empty_matrix(SIZE // 2, SIZE // 2, dtype)
        for number in range(count):
            start = number * SIZE
            self._invert(lower.at(start, start), lower.ld, min(SIZE, n - start), self._inverses.at(0, start))

    def _invert(self, block: int, ld: int, rows: int, inverse: int) -> None:
        """Invert a block of `rows` rows: [[L1, 0], [L21, L2]]⁻¹ = [[I1, 0], [−I2 L21 I1, I2]], from 32 rows up."""
        blas, size, out, product = self._blas, self.lower.itemsize, self._inverses.ld, self._product
        kernel(TRIANGULAR[self.lower.scalar.name], "invert_blocks")(
            invert_shape(rows, self.lower.scalar),
            *(np.uintp(block), np.int64(ld), np.int32(rows), np.uintp(inverse), np.int64(out)),
        )
        span = BASE
        while span < rows:
            # Pairs that are whole, as one batch, and one that ends earlier.
            whole, rest = divmod(rows, 2 * span)
            parts = [(0, span, whole)] if whole else []
            if rest > span:
                parts.append((whole * 2 * span, rest - span, 1))
            for start, height, count in parts:
                first, step = inverse + start * (1 + out) * size, 2 * span * (1 + out)
                beside, second = block + (start * (1 + ld) + span) * size, first + span * (1 + out) * size
                blas.batched(
                    *(height, span, span, 1.0, beside, ld, 2 * span * (1 + ld), first, out, step),
                    *(0.0, product.pointer, product.ld, span * product.ld, count),
                )
                blas.batched(
                    *(height, span, height, -1.0, second, out, step, product.pointer, product.ld, span * product.ld),
                    *(0.0, first + span * size, out, step, count),
                )
            span *= 2

    def divide(self, start: int, rows: int, columns: int, b: int, ldb: int, x: int, ldx: int) -> None:
        """X = L⁻¹ B with the diagonal block of order `rows` at `start`, a multiple of SIZE; B is overwritten.

        Matrices are addresses and leading dimensions; B and X are `rows` x `columns`.
        """
        blas, lower, size = self._blas, self.lower, self.lower.itemsize
        for i in range(0, rows, SIZE):
            r, down = min(SIZE, rows - i), i * size
            blas.gemm(r, columns, i, -1.0, lower.at(start + i, start), lower.ld, x, ldx, 1.0, b + down, ldb)
            blas.gemm(r, columns, r, 1.0, *self._inverse(start + i), b + down, ldb, 0.0, x + down, ldx)

    def divide_right(self, start: int, rows: int, columns: int, b: int, ldb: int, x: int, ldx: int) -> None:
        """X = B L⁻ᴴ likewise, with the diagonal block of order `columns` at `start`."""
        blas, lower, size = self._blas, self.lower, self.lower.itemsize
        for j in range(0, columns, SIZE):
            r, own, target = min(SIZE, columns - j), b + j * ldb * size, x + j * ldx * size
            blas.gemm(rows, r, j, -1.0, x, ldx, lower.at(start + j, start), lower.ld, 1.0, own, ldb, ops="NC")
            blas.gemm(rows, r, r, 1.0, own, ldb, *self._inverse(start + j), 0.0, target, ldx, ops="NC")

    def divide_conjugate(self, columns: int, b: int, ldb: int, x: int, ldx: int) -> None:
        """X = L⁻ᴴ B with the whole of L; B is overwritten."""
        blas, lower, size = self._blas, self.lower, self.lower.itemsize
        for i in range((self.n - 1) // SIZE * SIZE, -1, -SIZE):
            r, down = min(SIZE, self.n - i), i * size
            below = lower.at(i + r, i), lower.ld, x + (i + r) * size, ldx
            blas.gemm(r, columns, self.n - i - r, -1.0, *below, 1.0, b + down, ldb, ops="CN")
            blas.gemm(r, columns, r, 1.0, *self._inverse(i), b + down, ldb, 0.0, x + down, ldx, ops="CN")

    def _inverse(self, start: int) -> tuple[int, int]:
        return self._inverses.at(0, start), self._inverses.ld
