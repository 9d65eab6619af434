"""Bulge chasing (sb2st): a band to tridiagonal form (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.compile import Unit
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.choose import chase_blocks, chase_threads
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.cuda.units import CHASING
from spectile.evd.types import Scalar, scalar_of


def band_shape(n: int) -> Shape:
    """Launch of `extract_band`."""
    return Shape((min(n, 2048),), 256)


def chase_shape(n: int, scalar: Scalar, bandwidth: int, on: Device, blocks: int | None = None) -> Shape:
    """Launch of `chase`: by default as many blocks as there can be sweeps under way, or as run at the same time."""
    b, threads = bandwidth, chase_threads(bandwidth)
    if blocks is None:
        blocks = min(n // (2 * b) + 2, chase_blocks(scalar, b) * on.multiprocessors)
    # WORKSPACE of chasing.cu, where the next sweep's band is, and the ticket.
    shared = scalar.itemsize * (b * (b + 8) + 4 * (threads // 32) * b + 4) + 16
    return Shape((blocks,), 2 * threads + 4 * 32, shared)


def tridiagonal_shape(n: int) -> Shape:
    """Launch of `tridiagonal_of_band`."""
    return Shape((-(-n // 256),), 256)


def extract_band(panels: Panels) -> Any:
    """Return the band as ``band[j, i - j]`` with space for the bulges, shape (n + 2, 2 b)."""
    import cupy

    n, b, a = panels.n, panels.bandwidth, panels.a
    band = cupy.zeros((n + 2, 2 * b), a.owner.dtype)
    kernel(CHASING[a.scalar.name, b], "extract_band")(
        band_shape(n), np.uintp(a.pointer), np.int64(a.ld), np.int32(n), np.int32(b), band
    )
    return band


class Sweeps:
    """The sweeps of one device: all, or those of one of several that chase a band by turns.

    The band, ``band[j, i - j]`` of shape (n + 2, 2 b), is overwritten; that of the first device is what is chased.
    """

    def __init__(
        self, band: Any, n: int, bandwidth: int, grid: int | None, unit: Unit, part: int = 0, parts: int = 1
    ) -> None:
        import cupy

        self._n, self._b, self._scalar = n, bandwidth, scalar_of(band.dtype)
        self._part = np.int32(part), np.int32(parts)
        self._kernels = [kernel(unit, name) for name in ("chase", "tridiagonal_of_band")]
        self._shape = chase_shape(n, self._scalar, bandwidth, device.describe(), grid)
        progress = cupy.zeros(2 * n + 2, np.int32)  # of each sweep the released tasks of O and of D; then the ticket
        slots = (self._shape.grid[0] + 1) * (n // bandwidth + 2)
        messages = cupy.zeros(slots * 2 * bandwidth * self._scalar.parts * 4, np.uint32)
        self._own = band, progress, messages

    def begin(self, following: Sweeps, reflectors: Matrix | None) -> None:
        """Chase; `following` is of the device that takes the next turn, which waits for this one as this for it."""
        n, (band, progress, messages) = self._n, self._own
        ticket = np.uintp(address(progress) + 4 * (2 * n + 1))
        if reflectors is None:
            vectors = (np.uintp(0), np.int64(0), np.int64(0))
        else:
            vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
        given = band, np.int32(n), progress, ticket, messages, *vectors, *self._part
        self._kernels[0](self._shape, *given, *(np.uintp(address(x)) for x in following._own))

    def write(self, d: Any, e: Any) -> None:
        """Write what lies here of d and e, once all devices are done."""
        n = self._n
        self._kernels[1](
            tridiagonal_shape(n), self._own[0], np.int32(n), np.int32(self._b),
            *(np.uintp(address(x)) for x in (d, e)), *self._part,
        )  # fmt: skip


def chase_band(
    band: Any, n: int, bandwidth: int, reflectors: Matrix | None, *, grid: int | None = None
) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form by bulge chasing (Algorithm 2); return its d and e, float64, shape (n,).

    The band, of `Sweeps`, is overwritten, and the last element of e is not set.  The part of `reflectors` above the
    diagonal receives them, reversed: element i of sweep s at (n − 1 − i, n − 1 − s), τ in place of each leading 1.
    `grid` is a number of blocks; by default as `chase_shape` says.
    """
    import cupy

    sweeps = Sweeps(band, n, bandwidth, grid, CHASING[scalar_of(band.dtype).name, bandwidth])
    sweeps.begin(sweeps, reflectors)
    d, e = cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    sweeps.write(d, e)
    return d, e
