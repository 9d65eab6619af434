"""Bulge chasing: a band to tridiagonal form (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.units import STAGES, chase_blocks, chase_threads, launch


def chase_band(
    band: Any, n: int, bandwidth: int, reflectors: Matrix | None, *, grid: int | None = None
) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form by bulge chasing (Algorithm 2).

    Parameters
    ----------
    band : cupy.ndarray, shape (n + 2, 2 b)
        ``band[j, i - j]``; overwritten.
    n, bandwidth : int
    reflectors : Matrix, optional
        n x n; its part above the diagonal receives the reflectors, reversed: element i of sweep s at
        (n − 1 − i, n − 1 − s), τ in place of each leading 1.
    grid : int, optional
        Blocks; by default as many as there can be sweeps under way, or as run at the same time.

    Returns
    -------
    d, e : cupy.ndarray of float64, shape (n,)
        Diagonal and subdiagonal (the last element of e is not set).
    """
    import cupy

    b = bandwidth
    unit = STAGES[band.dtype.name, b]
    threads = chase_threads(b)
    if grid is None:
        grid = min(n // (2 * b) + 2, chase_blocks(band.dtype.name, b) * device.describe().multiprocessors)
    progress = cupy.zeros(2 * n + 2, np.int32)
    shared = band.itemsize * (b * (b + 8) + 4 * (threads // 32) * b + 4) + 8  # ROOM of chasing.cu, and the ticket
    if reflectors is None:
        vectors = (np.uintp(0), np.int64(0), np.int64(0))
    else:
        vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    ticket = np.uintp(progress.data.ptr + 4 * (2 * n + 1))
    parts = 2 if band.dtype.kind == "c" else 1
    mail = cupy.zeros((grid + 1) * (n // b + 2) * 2 * b * parts * 4, np.uint32)
    arguments = (band, np.int32(n), progress, ticket, mail, *vectors)
    launch(unit, "chase", grid, 2 * threads + 4 * 32, arguments, shared)
    d, e = cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    launch(unit, "tridiagonal_of_band", -(-n // 256), 256, (band, np.int32(n), np.int32(b), d, e))
    return d, e
