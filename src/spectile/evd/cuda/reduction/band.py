"""Detached band reduction (sy2sb): panels, A W, and the trailing update (Algorithm 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.launch import kernel
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas, add_lower
from spectile.evd.cuda.choose import largest_order, tuning
from spectile.evd.cuda.matrix import Matrix, empty_matrix, symmetrize
from spectile.evd.cuda.reduction.panel import PanelFactor, Panels, copy_shape, factor_shape, gram_shape
from spectile.evd.cuda.units import PRODUCTS


def band_reduction(a: Matrix, n: int, *, bandwidth: int, block: int, update: Any = add_lower) -> Panels:
    """Reduce a Hermitian matrix, both triangles given, to a band by detached band reduction (Algorithm 1).

    It is overwritten: band and, below it, the reflectors; nb, `block`, is a multiple of b.  The diagonal blocks of the
    trailing update are as tuned, and `update` is `add_lower` or a function with its parameters.  Raises
    ValueError if the panel kernel does not hold a matrix of order n.
    """
    most = largest_order(device.describe())
    if n > most:
        raise ValueError(f"order {n:,} is beyond the {most:,} rows that the panel kernel holds on this device")
    syr2k_block = tuning(device.describe()).syr2k_block
    reduction = _Reduction(a, n, bandwidth, block)
    for first in range(0, n - bandwidth, reduction.block):
        columns = reduction.reduce_block(first)
        rest = first + reduction.block
        m = n - rest
        if m > 0:
            v, x = reduction.v, reduction.x
            left, right = v.at(reduction.block, 0), x.at(reduction.block, 0)
            update(reduction.blas, m, columns, -1.0, left, v.ld, right, x.ld, a, rest, syr2k_block)
            symmetrize(a, rest, m)
    return reduction.panels


class _Reduction:
    """The panels of a block, and what they leave for its trailing update A − V Xᴴ.

    V and X hold, panel by panel, [Y Z] and [Z Y], from the block's first row on; each panel's A Y waits for a moment
    where its Z comes.
    """

    def __init__(self, a: Matrix, n: int, bandwidth: int, block: int) -> None:
        import cupy

        dtype, b = a.owner.dtype, bandwidth
        self.block = max(b, min(block, -(-n // b) * b))
        self.blas = Blas(dtype)
        self.v, self.x = (empty_matrix(n, 2 * self.block, dtype) for _ in range(2))
        self._s, self._gram, self._factor = (
            empty_matrix(rows, b, dtype) for rows in (2 * self.block, b, 2 * self.block)
        )
        count = max(-(-(n - b) // b), 0)
        self.panels = Panels(a, cupy.zeros((max(count, 1), b * b), dtype), b, n)
        self._factorization = PanelFactor(a, b, self.blas)
        self._unit = PRODUCTS[a.scalar.name, b]

    def reduce_block(self, first: int) -> int:
        """Reduce the panels of the block at column `first`; return how many columns of V and X are in use."""
        n, b = self.panels.n, self.panels.bandwidth
        used = 0
        for j in range(first, min(first + self.block, n), b):
            if used:
                self._update_panel(j, j - first, used)
            if n - j - b <= 0:
                break
            self._reduce_panel(j, j - first + b, used)
            used += 2 * b
        return used

    def _update_panel(self, j: int, local: int, used: int) -> None:
        """Bring the columns of the panel at j up to date: A − V Xᴴ."""
        n, b, a, v, x = self.panels.n, self.panels.bandwidth, self.panels.a, self.v, self.x
        rows, columns = n - j, min(b, n - j)
        self.blas.gemm(
            *(rows, columns, used, -1.0, v.at(local, 0), v.ld, x.at(local, 0), x.ld, 1.0, a.at(j, j), a.ld), ops="NC"
        )

    def _reduce_panel(self, j: int, local: int, used: int) -> None:
        """Factor the panel at column j, whose rows begin at row `local` of V and X, and make its Z."""
        b, a, v, x, s, factor = self.panels.bandwidth, self.panels.a, self.v, self.x, self._s, self._factor
        blas, top = self.blas, j + b
        m = self.panels.n - top
        y, z, product = x.at(local, used + b), x.at(local, used), v.at(local, used + b)
        t = address(self.panels.t) + (j // b) * b * b * a.itemsize
        self._factorization.factor(top, j, m, v.at(local, used), y, v.ld, t)
        # A Y at memory speed, next to V and Y; one product then gives Vᴴ Y, Yᴴ Y and (A Y)ᴴ Y, and with S = Xᴴ Y
        # the pending updates of the block's panels before this one make it P = A Y − V S.
        self._multiply(top, local, used, product)
        blas.gemm(used + 2 * b, b, m, 1.0, v.at(local, 0), v.ld, y, x.ld, 0.0, s.pointer, s.ld, ops="CN")
        self._factorization.join(t, s.at(used, 0), s.ld)
        self._small_factor(t, used)
        # Z = P T + Y K = [V Y A Y] [-S T; K; T]
        blas.gemm(m, b, used + 2 * b, 1.0, v.at(local, 0), v.ld, factor.pointer, factor.ld, 0.0, z, x.ld)
        kernel(self._unit, "copy_panel")(
            copy_shape(m, b), np.uintp(z), np.int64(x.ld), np.uintp(product), np.int64(v.ld), np.int32(m)
        )

    def _multiply(self, top: int, local: int, used: int, product: int) -> None:
        """Make A Y, of rows and columns from `top` on, at an address in V."""
        b, a, x, m = self.panels.bandwidth, self.panels.a, self.x, self.panels.n - top
        y = x.at(local, used + b)
        self.blas.gemm(m, b, m, 1.0, a.at(top, top), a.ld, y, x.ld, 0.0, product, self.v.ld)

    def _small_factor(self, t: int, used: int) -> None:
        """Make [-S T; K; T] with K = −1/2 Tᴴ (Yᴴ P) T, from the products in S."""
        b, scalar, gram, factor = self.panels.bandwidth, self.panels.a.scalar, self._gram, self._factor
        products = (np.uintp(self._s.pointer), np.int64(self._s.ld), np.int32(used), np.uintp(gram.pointer))
        kernel(self._unit, "correct_gram")(gram_shape(b), *products)
        kernel(self._unit, "small_factor")(
            factor_shape(used, scalar, b), *products, np.uintp(t), np.uintp(factor.pointer), np.int64(factor.ld)
        )
