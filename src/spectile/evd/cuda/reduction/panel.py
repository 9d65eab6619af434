"""The panels of the band reduction: their QR by Householder reflectors, and the small kernels around it."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.choose import CLUSTER_BLOCKS, PANEL_THREADS, cluster_rows, panel_threads, panel_width
from spectile.evd.cuda.matrix import Matrix, empty_matrix
from spectile.evd.cuda.units import PANEL, PRODUCTS
from spectile.evd.types import Scalar


@dataclass(frozen=True)
class Panels:
    """Q1: the reflectors below the band of `a`, and T of each panel."""

    a: Matrix
    t: Any
    bandwidth: int
    n: int


def panel_kernel(m: int, on: Device) -> str:
    """Return the kernel that factors m rows: that of one cluster, as far as it reaches, or of blocks anywhere."""
    if m <= cluster_rows(on):
        return "cluster_panel_qr"
    return "tall_panel_qr" if m > PANEL_THREADS // 2 * on.multiprocessors else "panel_qr"


def panel_kernels(m: int, on: Device) -> list[str]:
    """Return the kernels of panels of m and fewer rows."""
    kernels = [panel_kernel(rows, on) for rows in (m, PANEL_THREADS // 2 * on.multiprocessors, 1) if rows <= m]
    return list(dict.fromkeys(kernels))


def panel_shape(m: int, scalar: Scalar, bandwidth: int, on: Device) -> tuple[str, Shape]:
    """Return the kernel that factors m rows, and its launch: its blocks wait for each other, so all run at once."""
    name, threads, width = panel_kernel(m, on), panel_threads(m, on), panel_width(scalar, bandwidth)
    near = name == "cluster_panel_qr"
    sets, warps, blocks = (2, threads // 32, CLUSTER_BLOCKS) if near else (1, PANEL_THREADS // 32, -(-m // threads))
    exchanged = 2 * (CLUSTER_BLOCKS + 1) * width * scalar.parts + 2 if near else (warps + 1) * width * scalar.parts
    shared = 8 * exchanged + scalar.itemsize * width * ((sets + 2) * warps + sets + 1 + width)
    return name, Shape((blocks,), threads, shared, cooperative=not near)


def join_shape(scalar: Scalar, bandwidth: int) -> Shape:
    """Launch of `join_halves`."""
    return Shape((1,), 256, 4 * panel_width(scalar, bandwidth) ** 2 * scalar.itemsize)


def gram_shape(bandwidth: int) -> Shape:
    """Launch of `correct_gram`."""
    return Shape((bandwidth, bandwidth // 8), 256)


def factor_shape(columns: int, scalar: Scalar, bandwidth: int) -> Shape:
    """Launch of `small_factor` behind `columns` columns of V."""
    shared = scalar.itemsize * (256 + bandwidth * (bandwidth + 1))
    return Shape((bandwidth, 1 + -(-columns // 256)), 256, shared)


def copy_shape(m: int, bandwidth: int) -> Shape:
    """Launch of `copy_panel` for m rows."""
    return Shape((-(-m // 1024), bandwidth), 256)


@functools.cache
def _device_of(scalar: Scalar, bandwidth: int, index: int) -> Device:
    """Return the current device, number `index`; as one without clusters where it cannot run those of the panels."""
    on = device.describe()
    rows = cluster_rows(on)
    if rows:
        name, shape = panel_shape(rows, scalar, bandwidth, on)
        if not kernel(PANEL[scalar.name, bandwidth, name], name).clusters(shape):
            return dataclasses.replace(on, compute_capability=(8, 0))
    return on


class PanelFactor:
    """QR of panels of A in place: reflectors also into V and X, T apart."""

    def __init__(self, a: Matrix, bandwidth: int, blas: Blas) -> None:
        import cupy

        self._a, self._blas, self._bandwidth, self._size = a, blas, bandwidth, a.itemsize
        self._scalar, self._device = a.scalar, _device_of(a.scalar, bandwidth, cupy.cuda.runtime.getDevice())
        self._width = panel_width(a.scalar, bandwidth)
        # A message between blocks carries its epoch, so nothing has to be cleared.
        blocks = self._device.multiprocessors + 1
        self._messages = cupy.zeros(2 * blocks * self._width * self._scalar.parts * 4, np.uint32)
        self._epoch = 0
        self._products = [empty_matrix(self._width, self._width, a.owner.dtype) for _ in range(2)]

    def factor(self, row: int, column: int, m: int, y1: int, y2: int, ldy: int, t: int) -> None:
        """Factor the panel of m rows at (row, column); y1, y2 and t are addresses.  T is for `join` to complete."""
        width, size, a, blas = self._width, self._size, self._a, self._blas
        self._householder(a.at(row, column), m, y1, y2, ldy, t, self._bandwidth - width)
        if width == self._bandwidth:
            return
        # The other half: A2 - Y1 T1ᴴ Y1ᴴ A2, and its own reflectors.
        other, right = a.at(row, column + width), width * ldy * size
        inner, scaled = self._products
        blas.gemm(width, width, m, 1.0, y1, ldy, other, a.ld, 0.0, inner.pointer, inner.ld, ops="CN")
        blas.gemm(
            *(width, width, width, 1.0, t, self._bandwidth, inner.pointer, inner.ld, 0.0, scaled.pointer, scaled.ld),
            ops="CN",
        )
        blas.gemm(m, width, width, -1.0, y1, ldy, scaled.pointer, scaled.ld, 1.0, other, a.ld)
        down = width * size
        if m > width:
            second = t + width * (1 + self._bandwidth) * size
            self._householder(other + down, m - width, y1 + right + down, y2 + right + down, ldy, second)

    def _householder(self, a: int, m: int, y1: int, y2: int, ldy: int, t: int, clear: int = 0) -> None:
        name, shape = panel_shape(m, self._scalar, self._bandwidth, self._device)
        messages = () if name == "cluster_panel_qr" else (self._messages, np.uint32(self._epoch))
        kernel(PANEL[self._scalar.name, self._bandwidth, name], name)(
            shape,
            *(np.uintp(a), np.int64(self._a.ld), np.int32(m), np.uintp(y1), np.uintp(y2), np.int64(ldy)),
            *(np.uintp(t), np.int32(clear), *messages),
        )
        self._epoch += self._width + 1

    def join(self, t: int, gram: int, ldg: int) -> None:
        """Complete T of the panel from Yᴴ Y; both are addresses."""
        width = self._width
        if width < self._bandwidth:
            beside = np.uintp(gram + width * ldg * self._size)
            shape = join_shape(self._scalar, self._bandwidth)
            kernel(PRODUCTS[self._scalar.name, self._bandwidth], "join_halves")(
                shape, np.uintp(t), beside, np.int64(ldg)
            )
