"""Bulge chasing (sb2st): a band to tridiagonal form (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
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
    # WORKSPACE of chasing.cu, and the ticket.
    shared = scalar.itemsize * (b * (b + 8) + 4 * (threads // 32) * b + 4) + 8
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


def chase_band(
    band: Any, n: int, bandwidth: int, reflectors: Matrix | None, *, grid: int | None = None
) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form by bulge chasing (Algorithm 2); return its d and e, float64, shape (n,).

    The band, ``band[j, i - j]`` of shape (n + 2, 2 b), is overwritten, and the last element of e is not set.  The part
    of `reflectors` above the diagonal receives them, reversed: element i of sweep s at (n − 1 − i, n − 1 − s), τ in
    place of each leading 1.  `grid` is a number of blocks; by default as `chase_shape` says.
    """
    import cupy

    b, scalar = bandwidth, scalar_of(band.dtype)
    unit = CHASING[scalar.name, b]
    shape = chase_shape(n, scalar, b, device.describe(), grid)
    progress = cupy.zeros(2 * n + 2, np.int32)  # of each sweep the released tasks of O and of D; then the ticket
    ticket = np.uintp(address(progress) + 4 * (2 * n + 1))
    messages = cupy.zeros((shape.grid[0] + 1) * (n // b + 2) * 2 * b * scalar.parts * 4, np.uint32)
    if reflectors is None:
        vectors = (np.uintp(0), np.int64(0), np.int64(0))
    else:
        vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    kernel(unit, "chase")(shape, band, np.int32(n), progress, ticket, messages, *vectors)
    d, e = cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    kernel(unit, "tridiagonal_of_band")(tridiagonal_shape(n), band, np.int32(n), np.int32(b), d, e)
    return d, e
