"""Where a product is cut for several GPUs, by the norms of its operands; distributed copies of the operands."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core import arrays
from spectile.core.places import connect
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda.geometry import row_major
from spectile.nearsparse.cuda.parts import expanded, real_view
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.streams import copied, here, synchronize
from spectile.nearsparse.types import Split


def row_work(maps: Any, tau: float, rows: int) -> Any:
    """Return the share of the whole product that each unit of 128 rows of C multiplies.

    Parameters
    ----------
    maps : Norms
        Of A and B, computed; on the current device, whose current stream is synchronised.
    tau : float
        Threshold.
    rows : int
        Rows of C.

    Returns
    -------
    ndarray, shape (units,)
        Candidate tile products over units of rows and 256 columns, relative to all tile products.
    """
    high, wide = _units(maps)
    count = _candidates()(high[:, None], wide[None], high.dtype.type(tau), axis=(1, 2)).get()
    return _share(count, partition.ROW_UNIT, rows, wide.size)


def column_work(maps: Any, tau: float, columns: int) -> Any:
    """Return the share of the whole product that each unit of 256 columns of C multiplies, as `row_work` does."""
    high, wide = _units(maps)
    count = _candidates()(high[None], wide[:, None], high.dtype.type(tau), axis=(1, 2)).get()
    return _share(count, partition.COLUMN_UNIT, columns, high.size)


def _units(maps: Any) -> tuple[Any, Any]:
    sizes = partition.ROW_UNIT // maps.block, partition.COLUMN_UNIT // maps.block
    return _pooled(maps.a, sizes[0]), _pooled(maps.b, sizes[1])


def _share(count: Any, unit: int, length: int, others: int) -> Any:
    units = ceil_div(length, unit)
    return count * np.minimum(unit, length - unit * np.arange(units)) / (float(others) * length)


def _pooled(norms: Any, size: int) -> Any:
    """Return the largest norm of every `size` rows of a map."""
    import cupy

    if len(norms) % size == 0:
        return norms.reshape(len(norms) // size, size, norms.shape[1]).max(axis=1)
    groups = ceil_div(len(norms), size)
    padded = cupy.zeros((groups * size, norms.shape[1]), norms.dtype)
    padded[: len(norms)] = norms
    return padded.reshape(groups, size, norms.shape[1]).max(axis=1)


@functools.cache
def _candidates() -> Any:
    import cupy

    # A product that is not a number is not below tau.
    return cupy.ReductionKernel(
        "T a, T b, T tau", "int64 n", "a * b < tau ? 0 : 1", "a + b", "n = a", "0", "candidates"
    )


def reach(
    norms: Any, parts: Sequence[tuple[int, int]], panels: Sequence[tuple[int, int]], tau: float, depth: int
) -> Any:
    """Return which rows of each panel of B some valid product of a part, or of a part after it, needs.

    Parameters
    ----------
    norms : Norms
        Of A and B, on the current device.
    parts : sequence of (int, int)
        First row of A and end of each part, in order and without gaps.
    panels : sequence of (int, int)
        First column of B and end of each panel, all of the width of the first but the last.
    tau : float
        Threshold.
    depth : int
        Rows of B.

    Returns
    -------
    cupy.ndarray, shape (parts, panels, 2), int32
        First row and end: multiples of 128, or the end of B.  Equal where none is needed.
    """
    import cupy

    block = norms.block
    last = ceil_div(parts[-1][1], block)
    # From each part on, the largest norm in each block of k.
    high = cupy.stack([norms.a[start // block : last].max(axis=0) for start, _ in parts])
    wide = _pooled(norms.b, (panels[0][1] - panels[0][0]) // block)[: len(panels)]
    # The product rounds tau to the norms' precision; a product that is not a number is not below it.
    needed = ~(high[:, None] * wide[None] < high.dtype.type(tau * (1 - 1e-6)))
    begin, behind = needed.argmax(axis=2), needed[..., ::-1].argmax(axis=2)
    end = cupy.where(needed.any(axis=2), needed.shape[2] - behind, begin)
    grain = partition.ROW_UNIT
    rows = cupy.stack([begin * block // grain * grain, ceil_div(end * block, grain) * grain], axis=-1)
    return cupy.minimum(rows.astype(np.int32), np.int32(depth))


def distribute(
    a: Any, b: Any, tau: float, devices: Sequence[int], *, block: int = 32, split: Split = "rows"
) -> tuple[list[Any], list[Any]]:
    """Copy operands to devices, cut so that their work is even; see :func:`spectile.nearsparse.distribute`."""
    import cupy

    connect(devices)
    with cupy.cuda.Device(devices[0]):
        # Norms are taken on the first device.
        a, b = (row_major(n, here(arrays.to_device(x, n)[0]), on_device=True) for n, x in (("a", a), ("b", b)))
        if max(a.ndim, b.ndim) > 2:
            cuts = partition.cut_rows(np.ones(len(a) if a.ndim > 2 else len(b)), np.ones(len(devices)))
            synchronize()
            parts = [[x[first:last] if x.ndim > 2 else x for first, last in itertools.pairwise(cuts)] for x in (a, b)]
            return copied(parts[0], devices), copied(parts[1], devices)
        paired = a.dtype.kind == "c"
        real_a, real_b = (real_view(a), expanded(b)) if paired else (a, b)
        maps = cuda_norms.NormMaps(real_a, real_b, block, paired=paired)
        if a.size or b.size:
            maps()
        by_rows, entry = split == "rows", 2 if paired else 1
        unit, length = (partition.ROW_UNIT, a.shape[0]) if by_rows else (partition.COLUMN_UNIT // entry, b.shape[1])
        work = (row_work if by_rows else column_work)(maps, tau, length if by_rows else entry * length)
        ends = [min(unit * cut, length) for cut in partition.cut_rows(work, np.ones(len(devices)))]
        synchronize()
    cut = list(itertools.pairwise(ends))
    if split == "rows":
        return copied([a[first:last] for first, last in cut], devices), copied([b] * len(devices), devices)
    return copied([a] * len(devices), devices), copied([b[:, first:last] for first, last in cut], devices)
