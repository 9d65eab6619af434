"""How fast a thresholded product can be at best: by what it executes, by memory, and by the link to the host.

The rates are a machine's: measured on it, or here for the machines whose records hold none.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core import devices
from spectile.nearsparse.types import PRECISIONS
from spectile_study.cases.spamm.thresholds import RATIOS, TABLE_1
from spectile_study.inputs import decay


@dataclass(frozen=True)
class Machine:
    """What bounds a product on a machine.

    Attributes
    ----------
    copy_bytes : float
        Bytes a second of a device-to-device copy, read and written.
    l2_bytes : float
        Cache of the device: matrices that fit it do not pass through memory every time.
    host_bytes, host_bytes_together : float
        Bytes a second from pinned host memory to one GPU, and to all of a host together.
    launches_s : float
        Seconds of the launches of one product.
    """

    copy_bytes: float
    l2_bytes: float
    host_bytes: float
    host_bytes_together: float
    launches_s: float = 5e-6


# Measured on each machine, before its records held the copy's rate.
MACHINES = {"NVIDIA H200": Machine(4.06e12, 50e6, 52e9, 152e9)}


# Share of the specified bandwidth that a copy reaches on an H200: taken for devices whose records hold no copy.
COPY_SHARE = 4.06 / 4.917


def machine(device: str = "NVIDIA H200", copy_bytes: float | None = None) -> Machine:
    """Return the rates of a machine: of `MACHINES`, or by the library's description of its device.

    Parameters
    ----------
    device : str
        Name of its GPU, as records have it.
    copy_bytes : float, optional
        What the method ``copy`` of a record measured, in place of the table's.

    Raises
    ------
    KeyError
        If neither holds the device.
    """
    known = MACHINES.get(device) or _described(device)
    return (
        known
        if copy_bytes is None
        else Machine(copy_bytes, known.l2_bytes, known.host_bytes, known.host_bytes_together)
    )


def _described(name: str) -> Machine:
    """Return what the library's table of devices says; of links to the host it says nothing."""
    for device in devices.TABLE.values():
        if device.name == name:
            return Machine(COPY_SHARE * device.bytes_per_second, device.l2_bytes, math.nan, math.nan)
    raise KeyError(name)


def executed_ratio(norms: Any, tau: float, rows: int, columns: int) -> float:
    """Return the share of products that tiles of `rows` x `columns` 32-blocks of C execute over their union of valid k.

    A union holds k iff the largest norms of its rows and columns multiply to tau.
    """
    from spectile.nearsparse.cpu.search import count_valid  # most drawings need no bound, and none of them Numba

    def pooled(x: Any, size: int) -> Any:
        return np.maximum.reduceat(x, np.arange(0, x.shape[0], size), axis=0)

    wide_a, wide_b = pooled(norms, rows), pooled(norms.T, columns).T
    return count_valid(wide_a, wide_b, tau) / (wide_a.size * wide_b.shape[1])


@functools.cache
def executed_64x64(n: int, ratio: int) -> float:
    """Return the share of products that 64 x 64 tiles of C execute at a nominal ratio of Table 1 (the time bound).

    They are the smallest tiles of any kernel here: no other skips more.
    """
    return executed_ratio(decay.algebraic_norm_map(n), TABLE_1[n][RATIOS.index(ratio)], 2, 2)


def _entry_bytes(precision: str) -> tuple[int, int]:
    """Return the bytes of an entry of A and B, and of C."""
    row = PRECISIONS[precision]
    return np.dtype(row.dtype).itemsize, np.dtype(row.output).itemsize


def speedup_bound(vendor_s: float, n: int, precision: str, executed: float, on: Machine | None = None) -> float:
    """Bound the speed-up over a dense product of two n x n matrices.

    Both matrices are read for their norms, and what is executed runs at the vendor's rate.  C and the second reading of
    A and B are left out, so that very little work cannot reach it.

    Parameters
    ----------
    vendor_s : float
        Seconds of the vendor's dense product.
    n : int
        Rows and columns.
    precision : str
        A key of ``PRECISIONS``.
    executed : float
        Share of the tile products that 64 x 64 tiles of C execute.
    on : Machine, optional
        The H200 by default.
    """
    on = on or machine()
    norms_s = 2 * n * n * _entry_bytes(precision)[0] / on.copy_bytes + on.launches_s
    return vendor_s / (norms_s + executed * vendor_s)


def bytes_bound(vendor_s: float, n: int, precision: str, on: Machine | None = None) -> float:
    """Bound the speed-up by memory alone: A and B are read for their norms and for the product, and C is written.

    Infinity where the three fit the L2 cache, which may keep them.  Where few tiles are valid this lies below
    :func:`speedup_bound`, which leaves out C and the second reading.

    Parameters
    ----------
    vendor_s : float
        Seconds of the vendor's dense product.
    n : int
        Rows and columns.
    precision : str
        A key of ``PRECISIONS``.
    on : Machine, optional
        The H200 by default.
    """
    on = on or machine()
    into, out = _entry_bytes(precision)
    if n * n * (2 * into + out) <= on.l2_bytes:
        return math.inf
    return vendor_s * on.copy_bytes / (n * n * (4 * into + out))


def host_bound(n: int, precision: str, gpus: int, on: Machine | None = None) -> float:
    """Return the seconds that two n x n matrices need from host memory to the GPUs, or C back, whichever is longer."""
    on = on or machine()
    into, out = _entry_bytes(precision)
    return n * n * max(2 * into, out) / min(gpus * on.host_bytes, on.host_bytes_together)
