"""Back-transformation through the band reduction: Z = Q1 Z."""

from __future__ import annotations

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import empty_matrix
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.cuda.units import BACK_PANELS
from spectile.evd.cuda.workspace import back_columns
from spectile.evd.types import Scalar


def gather_shape(rows: int, reflectors: int) -> Shape:
    """Launch of `gather_panels`."""
    return Shape((-(-rows // 256), reflectors), 256)


def place_shape(reflectors: int) -> Shape:
    """Launch of `place_factors`."""
    return Shape((-(-reflectors * reflectors // 256),), 256)


#: Single reflectors whose factor T is made at once: GROUP of back/panels.cu.
GROUP = 32


def form_shape(reflectors: int, scalar: Scalar) -> Shape:
    """Launch of `form_factors`."""
    return Shape((-(-reflectors // GROUP),), 256, scalar.itemsize * GROUP * (2 * GROUP + 1))


def _sizes(n: int, bandwidth: int) -> tuple[int, int]:
    """Return how many reflectors there are, in whole panels, and how many are applied together."""
    count = max(-(-(n - bandwidth) // bandwidth), 0) * bandwidth
    together = back_columns(n)[0]
    while together > bandwidth and together >= 2 * count:
        together //= 2
    return count, together


def apply_panels(panels: Panels, z: int, ldz: int, columns: int) -> None:
    """Z = Q1 Z in place, `back_columns` reflectors and columns at a time; Z is given by its address."""
    n, b = panels.n, panels.bandwidth
    count, together = _sizes(n, b)
    if count == 0:
        return
    block = _Block(panels, count, together, min(columns, back_columns(n)[1]))
    for first in range((count - 1) // together * together, -1, -together):
        block.load(first)
        block.apply(z, ldz, columns)


class _Block:
    """A block reflector I − Y T Yᴴ of neighbouring panels, and space for its products with `width` columns of Z."""

    def __init__(self, panels: Panels, count: int, together: int, width: int) -> None:
        import cupy

        dtype = panels.a.owner.dtype
        self._panels, self._count, self._k, self._width = panels, count, together, width
        self._unit = BACK_PANELS[panels.a.scalar.name, panels.bandwidth]
        self._blas = Blas(dtype)
        self._y = empty_matrix(panels.n - panels.bandwidth, together, dtype)
        self._s = empty_matrix(together, 2 * width, dtype)
        self._t, self._gram, self._product = (cupy.empty(together * together, dtype) for _ in range(3))
        self._first = 0

    @property
    def _rows(self) -> int:
        return self._panels.n - self._first - self._panels.bandwidth

    def load(self, first: int) -> None:
        """Gather Y and T of the panels from reflector `first` on."""
        self._first = first
        a, b, k, y, size = self._panels.a, self._panels.bandwidth, self._k, self._y, self._panels.a.itemsize
        kernel(self._unit, "gather_panels")(
            gather_shape(self._rows, k),
            *(np.uintp(a.pointer), np.int64(a.ld), np.int32(self._panels.n), np.int32(first)),
            *(np.uintp(y.pointer), np.int64(y.ld)),
        )
        factors = np.uintp(address(self._panels.t) + first // b * b * b * size)
        number = np.int32(min(k, self._count - first) // b)
        self._blas.gemm(
            *(k, k, self._rows, 1.0, y.pointer, y.ld, y.pointer, y.ld, 0.0, address(self._gram), k), ops="CN"
        )
        if b > 1:
            kernel(self._unit, "place_factors")(place_shape(k), factors, number, np.int32(k), self._t)
        else:
            shape = form_shape(k, self._panels.a.scalar)
            kernel(self._unit, "form_factors")(shape, self._gram, factors, number, np.int32(k), self._t)
        span = b if b > 1 else GROUP
        while span < k:
            self._join(span)
            span *= 2

    def _join(self, span: int) -> None:
        """Complete T of neighbouring blocks of `span` columns: [[T1, −T1 (Y1ᴴ Y2) T2], [0, T2]]."""
        k, size, t, product = self._k, self._panels.a.itemsize, address(self._t), address(self._product)
        step, corner, second = 2 * span * (1 + k), span * k * size, t + span * (1 + k) * size
        pairs = k // (2 * span)
        self._blas.batched(
            *(span, span, span, 1.0, address(self._gram) + corner, k, step, second, k, step),
            *(0.0, product, k, step, pairs),
        )
        self._blas.batched(*(span, span, span, -1.0, t, k, step, product, k, step), *(0.0, t + corner, k, step, pairs))

    def apply(self, z: int, ldz: int, columns: int) -> None:
        """Apply the loaded block to Z."""
        k, y, s, rows, blas = self._k, self._y, self._s, self._rows, self._blas
        top = self._first + self._panels.bandwidth
        for start in range(0, columns, self._width):
            part = min(self._width, columns - start)
            target = z + (top + start * ldz) * self._panels.a.itemsize
            inner, scaled = s.at(0, 0), s.at(0, self._width)
            blas.gemm(k, part, rows, 1.0, y.pointer, y.ld, target, ldz, 0.0, inner, s.ld, ops="CN")
            blas.gemm(k, part, k, 1.0, address(self._t), k, inner, s.ld, 0.0, scaled, s.ld)
            blas.gemm(rows, part, k, -1.0, y.pointer, y.ld, scaled, s.ld, 1.0, target, ldz)
