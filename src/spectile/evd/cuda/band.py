"""Detached band reduction: panels, A W, and the trailing update (Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import device
from spectile.evd.cuda.blas import SYR2K_BLOCK, Blas, add_lower
from spectile.evd.cuda.matrix import Matrix, empty_matrix, mirror
from spectile.evd.cuda.units import BANDWIDTHS, PANEL_THREADS, STAGES, launch, panel_width


@dataclass(frozen=True)
class Panels:
    """Q1: the reflectors below the band of `a`, and T of each panel."""

    a: Matrix
    t: Any
    bandwidth: int
    n: int


def largest_order() -> int:
    """Return the largest order that the panel kernel takes on the current device: one row a thread."""
    return PANEL_THREADS * device.describe().multiprocessors


def panel_bandwidth(n: int, dtype: Any, wanted: int) -> int:
    """Return the widest supported bandwidth up to `wanted`, for an order that the panel kernel takes."""
    if n > largest_order():
        rows = largest_order()
        raise ValueError(f"order {n:,} is beyond the {rows:,} rows that the panel kernel holds on this device")
    return max(b for b in BANDWIDTHS[np.dtype(dtype).name] if b <= wanted)


class _PanelFactor:
    """QR of panels of A in place: reflectors also into V and X, T apart."""

    def __init__(self, a: Matrix, bandwidth: int, blas: Blas) -> None:
        import cupy

        dtype = a.owner.dtype
        self._a, self._blas, self._bandwidth, self._size = a, blas, bandwidth, a.itemsize
        self._unit, self._width = STAGES[dtype.name, bandwidth], panel_width(dtype.name, bandwidth)
        parts, warps, width = (2 if dtype.kind == "c" else 1), PANEL_THREADS // 32, self._width
        self._shared = 8 * (warps + 1) * width * parts + self._size * width * (3 * warps + 2 + width)
        # What the blocks tell each other carries its epoch, so nothing has to be cleared.
        self._lines = cupy.zeros(2 * (device.describe().multiprocessors + 1) * width * parts * 4, np.uint32)
        self._epoch = 0
        self._products = [empty_matrix(width, width, dtype) for _ in range(2)]

    def _householder(self, a: int, m: int, y1: int, y2: int, ldy: int, t: int, clear: int = 0) -> None:
        pointer = np.uintp
        arguments = (
            *(pointer(a), np.int64(self._a.ld), np.int32(m), pointer(y1), pointer(y2), np.int64(ldy)),
            *(pointer(t), np.int32(clear), self._lines, np.uint32(self._epoch)),
        )
        tall = m > PANEL_THREADS // 2 * device.describe().multiprocessors
        threads = PANEL_THREADS if tall else PANEL_THREADS // 2
        name = "tall_panel_qr" if tall else "panel_qr"
        launch(self._unit, name, -(-m // threads), threads, arguments, self._shared)
        self._epoch += self._width + 1

    def factor(self, row: int, column: int, m: int, y1: int, y2: int, ldy: int, t: int) -> None:
        """Factor the panel of m rows at (row, column); y1, y2 and t are addresses.  T is for `join` to complete."""
        width, size, a, blas = self._width, self._size, self._a, self._blas
        self._householder(a.at(row, column), m, y1, y2, ldy, t, self._bandwidth - width)
        if width == self._bandwidth:
            return
        # The other half: A2 - Y1 T1^H Y1^H A2, and its own reflectors.
        inner, scaled = self._products
        other, right = a.at(row, column + width), width * ldy * size
        blas.gemm(width, width, m, 1.0, y1, ldy, other, a.ld, 0.0, inner.pointer, inner.ld, ops="CN")
        corner = (t, self._bandwidth, inner.pointer, inner.ld, 0.0, scaled.pointer, scaled.ld)
        blas.gemm(width, width, width, 1.0, *corner, ops="CN")
        blas.gemm(m, width, width, -1.0, y1, ldy, scaled.pointer, scaled.ld, 1.0, other, a.ld)
        down = width * size
        if m > width:
            second = t + width * (1 + self._bandwidth) * size
            self._householder(other + down, m - width, y1 + right + down, y2 + right + down, ldy, second)

    def join(self, t: int, gram: int, ldg: int) -> None:
        """Complete T of the panel from Y^H Y; both are addresses."""
        width = self._width
        if width == self._bandwidth:
            return
        beside = np.uintp(gram + width * ldg * self._size)
        shared = 4 * width * width * self._size
        launch(self._unit, "join_halves", 1, 256, (np.uintp(t), beside, np.int64(ldg)), shared)


def band_reduction(
    a: Matrix, n: int, *, bandwidth: int, block: int, syr2k_block: int = SYR2K_BLOCK, update: Any = add_lower
) -> Panels:
    """Reduce a Hermitian matrix, both triangles given, to a band by detached band reduction (Algorithm 1).

    Parameters
    ----------
    a : Matrix
        n x n; overwritten: band and, below it, the reflectors.
    n : int
    bandwidth, block : int
        b and nb, a multiple of b.
    syr2k_block : int
        Diagonal blocks of the trailing update.
    update : callable
        The trailing update: `add_lower`, or a function with its parameters.
    """
    import cupy

    dtype = a.owner.dtype
    size, b = a.itemsize, bandwidth
    unit = STAGES[dtype.name, b]
    blas = Blas(dtype)
    block = max(b, min(block, -(-n // b) * b))
    v, x = empty_matrix(n, 2 * block, dtype), empty_matrix(n, 2 * block, dtype)
    s, gram, factor = (empty_matrix(rows, b, dtype) for rows in (2 * block, b, 2 * block))
    panels = max(-(-(n - b) // b), 0)
    t = cupy.zeros((max(panels, 1), b * b), dtype)
    factorization = _PanelFactor(a, b, blas)
    pointer, int64, int32 = np.uintp, np.int64, np.int32
    for i in range(0, n - b, block):
        p = 0  # columns of V and X in use
        for j in range(i, min(i + block, n), b):
            local = j - i
            if p:
                rows, columns = n - j, min(b, n - j)
                blas.gemm(
                    *(rows, columns, p, -1.0, v.at(local, 0), v.ld, x.at(local, 0), x.ld, 1.0, a.at(j, j), a.ld),
                    ops="NC",
                )
            top = j + b
            m = n - top
            if m <= 0:
                break
            local += b
            y, z, product = x.at(local, p + b), x.at(local, p), v.at(local, p + b)
            t_panel = t.data.ptr + (j // b) * b * b * size
            factorization.factor(top, j, m, v.at(local, p), y, v.ld, t_panel)
            # A Y at memory speed, next to V and Y; one product then gives Vᴴ Y, Yᴴ Y and (A Y)ᴴ Y, and with S = Xᴴ Y
            # the pending updates of the block's panels before this one make it P = A Y − V S.
            blas.gemm(m, b, m, 1.0, a.at(top, top), a.ld, y, x.ld, 0.0, product, v.ld)
            blas.gemm(p + 2 * b, b, m, 1.0, v.at(local, 0), v.ld, y, x.ld, 0.0, s.pointer, s.ld, ops="CN")
            factorization.join(t_panel, s.at(p, 0), s.ld)
            inner = (pointer(s.pointer), int64(s.ld), int32(p))
            launch(unit, "correct_gram", (b, b // 8), 256, (*inner, pointer(gram.pointer)))
            arguments = (*inner, pointer(gram.pointer), pointer(t_panel), pointer(factor.pointer), int64(factor.ld))
            launch(unit, "small_factor", (b, 1 + -(-p // 256)), 256, arguments, size * (256 + b * (b + 1)))
            # Z = P T + Y K = [V Y A Y] [-S T; K; T]
            blas.gemm(m, b, p + 2 * b, 1.0, v.at(local, 0), v.ld, factor.pointer, factor.ld, 0.0, z, x.ld)
            copied = (pointer(z), int64(x.ld), pointer(product), int64(v.ld), int32(m))
            launch(unit, "copy_panel", (-(-m // 1024), b), 256, copied)
            p += 2 * b
        rest = i + block
        m = n - rest
        if m > 0:
            update(blas, m, p, -1.0, v.at(block, 0), v.ld, x.at(block, 0), x.ld, a, rest, syr2k_block)
            mirror(unit, a, rest, m, from_upper=False, factor=1.0)
    return Panels(a, t, b, n)


def extract_band(panels: Panels) -> Any:
    """Return the band as ``band[j, i - j]`` with room for the bulges, shape (n + 2, 2 b)."""
    import cupy

    n, b = panels.n, panels.bandwidth
    band = cupy.zeros((n + 2, 2 * b), panels.a.owner.dtype)
    arguments = (np.uintp(panels.a.pointer), np.int64(panels.a.ld), np.int32(n), np.int32(b), band)
    launch(STAGES[band.dtype.name, b], "extract_band", min(n, 2048), 256, arguments)
    return band
