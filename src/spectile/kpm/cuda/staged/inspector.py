"""Inspector of the staged GPU kernel (``kernel.cu``): which rows of V lie where in shared memory, and when.

Rows of the matrix are grouped into pages of four.  Every worker (a thread block) owns a list of pages, cut into tiles.
A page of V is copied into a slot before the first tile that needs it and stays until the last, or until the slot is
needed for a page that is used sooner (Belady's rule, which an inspector can follow because it knows the future).  Slots
that the last ``depth`` tiles read are never written, so the copies of a tile may start as soon as the tile ``depth``
before it is done.

All of it happens on the device (``inspector.cu``); the host learns a few sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.memory import free_bytes
from spectile.kpm.cuda.common import BULK, PACKAGE
from spectile.kpm.cuda.staged.when import INSPECTOR_THREADS, PAGE
from spectile.kpm.types import Array

_MOST = 2**31 - 1
_MOST_ON_HOST = 2**16
# Entries of a row that are compared with those of another; pages and places at which pages are looked at.
_LIKE, _SEEN, _PLACES = 32, 64, 4


@functools.cache
def inspector_unit(value_bytes: int, *, wide: bool = False) -> Unit:
    """Return the unit of the inspector (``inspector.cu``) for values of so many bytes."""
    defines = {"BYTES": str(value_bytes), "THREADS": str(INSPECTOR_THREADS), "WIDE": str(int(wide))}
    return Unit(PACKAGE, ("staged/inspector.cu",), BULK, defines)


@dataclass(frozen=True)
class Plan:
    """The schedule of all workers: arrays of CuPy, or of NumPy where tests make it on the host."""

    first: Any  #: First tile of each worker: array, int32, shape (workers + 1,).
    #: First copy, first 16 bytes of codes, first four values of each tile, and whether it copies the last page:
    #: array, int32, shape (tiles + 1, 4).
    tiles: Any
    loads: Any  #: Page and slot of each copy: array, int32, shape (copies, 2).
    codes: Any  #: Headers and codes of the tiles as the kernel reads them: array, uint16.
    values: Any  #: The matrix's entries in the kernel's order, zero for fill-in.
    pages: int  #: Pages of V.

    @property
    def reuse(self) -> float:
        """Times that a row of V is copied to shared memory; 1 would be the least."""
        return len(self.loads) / self.pages


def lattice_of(indptr: Any, indices: Any, xp: Any = np) -> tuple[int, int]:
    """Return (pages of a wave, pages of a line) of a matrix whose rows number the sites of a lattice.

    A wave is how far apart the farthest rows are that a row couples, in most rows (a plane of a cube); a line is the
    same within a wave.  Zero where the matrix shows no such distance.  `xp` is the arrays' module.
    """
    num_rows = len(indptr) - 1
    if not len(indices):
        return 0, 0
    row = xp.asarray(np.linspace(0, num_rows - 1, min(num_rows, 2001)).astype(np.int64))
    start, length = indptr[row].astype(np.int64), indptr[row + 1] - indptr[row]
    entry = xp.arange(max(1, int(length.max())))
    other = indices[xp.minimum(start[:, None] + entry, len(indices) - 1)] // PAGE
    distance = xp.where(entry < length[:, None], abs(other - row[:, None] // PAGE), 0)
    distance = distance if xp is np else distance.get()
    wave = int(np.median(distance.max(axis=1)))
    line = int(np.median(np.where(distance < wave / 2, distance, 0).max(axis=1)))
    return wave, line


def likeness_of(indptr: Any, indices: Any, xp: Any = np) -> float:
    """Return the share of entries of some rows whose place a page further, or one close to it, has an entry, too.

    Of lattices these are almost all, of rows at random few: then hardly two entries of a tile name the same page.
    `xp` is the arrays' module.
    """
    num_rows = len(indptr) - 1
    row = np.linspace(0, num_rows - 1 - PAGE, min(num_rows, 128)).astype(np.int64)
    if not len(indices) or row[-1] < 0:
        return 1.0
    row = xp.asarray(np.stack([row, row + PAGE]))
    start = indptr[row].astype(np.int64)
    entry = xp.arange(_LIKE)
    columns = indices[xp.minimum(start[..., None] + entry, len(indices) - 1)]
    columns = xp.where(entry < (indptr[row + 1] - start)[..., None], columns, -1)
    one, other = columns if xp is np else columns.get()
    near = abs(one[:, :, None] + PAGE - other[:, None, :]) <= 2 * PAGE
    near &= other[:, None, :] >= 0
    there = one >= 0
    return float(near.any(axis=2)[there].mean()) if there.any() else 1.0


def reach_of(indptr: Any, indices: Any, xp: Any = np) -> Array:
    """Return how many pages 0, 1, 2, ... adjacent ones name, themselves included: at several places, in the median.

    `xp` is the arrays' module.
    """
    rows = len(indptr) - 1
    pages = -(-rows // PAGE)
    seen = min(pages, _SEEN)
    first = np.linspace(0, pages - seen, _PLACES).astype(np.int64)
    at = np.minimum((first[:, None] + np.arange(seen + 1)) * PAGE, rows)
    edges, counts = indptr[xp.asarray(at)], []
    edges = (edges if xp is np else edges.get()).astype(np.int64)
    named = xp.concatenate([indices[row[0] : row[-1]] // PAGE for row in edges])
    named = named if xp is np else named.get()
    for place, row, stop in zip(first, edges, np.cumsum(edges[:, -1] - edges[:, 0]), strict=True):
        here, own = named[stop - (row[-1] - row[0]) : stop].astype(np.int64), np.arange(seen)
        keys = np.append(here * seen + np.repeat(own, np.diff(row)), (place + own) * seen + own)
        keys.sort()
        earliest = keys[np.append(True, np.diff(keys // seen) > 0)] % seen  # which one names a page first
        counts.append(np.cumsum(np.bincount(earliest, minlength=seen)))
    return np.append(0, np.median(counts, axis=0))


def worker_pages(
    num_pages: int, wave_pages: int, line_pages: int, workers: int, turns: int, xp: Any = np
) -> tuple[Any, Any]:
    """Return the pages of all workers, one worker's after the other's, and how many each has.

    Waves (planes of a lattice) are cut into `turns` regions of whole lines, each into one compact part a worker, strips
    of lines one after the other; a worker walks through all waves with a part of the first region, then of the next.
    What lies around a region is read from memory twice, what lies around a part comes from a cache.  Strips wind (every
    other one goes backwards), which keeps a part together that ends one strip and begins the next.
    """
    parts = workers * turns
    # What is found of a plane of ordinary size costs less on the host than launches do.
    at = np if wave_pages <= _MOST_ON_HOST else xp
    order = at.arange(wave_pages)
    region = order * turns // wave_pages
    if 1 < line_pages < wave_pages:
        strips = max(1, round(line_pages / np.sqrt(wave_pages / parts)))
        line, within = order // line_pages, order % line_pages
        region = at.minimum(line * line_pages * turns // wave_pages, turns - 1)
        strip = within * strips // line_pages
        lines = wave_pages // line_pages + 1
        wound = at.where(strip % 2 == 1, lines - line, line)
        # By region, then strip, then line, then place in the line: no two pages have the same key.
        order = at.argsort(((region * strips + strip) * (lines + 1) + wound) * line_pages + within)
    waves = -(-num_pages // wave_pages)
    # The parts' bounds move by less than a page from wave to wave, so that no worker always has the longer part.
    offset = (np.arange(waves) * ((np.sqrt(5) - 1) / 2) % 1)[:, None]
    sizes = at.bincount(region, minlength=turns)
    edges = np.concatenate([[0], np.cumsum(sizes if at is np else sizes.get())])
    inner = (edges[:-1, None] + np.diff(edges)[:, None] / workers * np.arange(workers)).ravel()
    bounds = np.floor(np.append(inner, wave_pages) + offset).astype(np.int64)
    bounds[:, ::workers] = edges
    # A span is the part of a region that a worker has of a wave, in the order (worker, turn, wave).
    begins, ends = (each.T.reshape(turns, workers, waves).swapaxes(0, 1) for each in (bounds[:, :-1], bounds[:, 1:]))
    lengths = ends - begins
    starts = np.cumsum(lengths) - lengths.ravel()
    number = xp.arange(int(lengths.sum()))
    span = xp.searchsorted(xp.asarray(starts), number, side="right") - 1
    # The last of the spans that begin there, empty ones included, is the one that holds the number.
    pages = span % waves * wave_pages + xp.asarray(order)[number + xp.asarray(begins.ravel() - starts)[span]]
    counts = lengths.sum(axis=(1, 2))
    if waves * wave_pages > num_pages:
        present = pages < num_pages
        behind = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(present.astype(np.int64))])[
            xp.asarray(np.cumsum(counts))
        ]
        counts = np.diff(behind if xp is np else behind.get(), prepend=0)
        pages = pages[present]
    return pages.astype(np.int32), counts


def pages_of_runs(
    runs: Sequence[tuple[int, int]], wave_pages: int, line_pages: int, workers: int, turns: int, xp: Any = np
) -> tuple[Any, Any]:
    """Return :func:`worker_pages` of runs of pages (start, stop): each worker has its part of one after the other."""
    pages, counts = [], []
    for start, stop in runs:
        found, sizes = worker_pages(stop - start, min(wave_pages, stop - start), line_pages, workers, turns, xp)
        pages.append(found + np.int32(start))
        counts.append(sizes)
    if len(runs) == 1:
        return pages[0], counts[0]
    ends = np.cumsum(counts, axis=1)
    pieces = [
        each[end[w] - size[w] : end[w]]
        for w in range(workers)
        for each, end, size in zip(pages, ends, counts, strict=True)
    ]
    return xp.concatenate(pieces), np.sum(counts, axis=0)


def plan(
    indptr: Any,
    indices: Any,
    data: Any,
    *,
    wave_pages: int,
    line_pages: int,
    workers: int,
    turns: int,
    slots: int,
    tile: int,
    depth: int,
    groups: int,
    runs: Sequence[tuple[int, int]] = (),
    num_columns: int = 0,
) -> Plan | None:
    """Schedule a CSR matrix; None where the tiles in flight need more than the slots, or memory ends.

    Parameters
    ----------
    indptr, indices, data : cupy.ndarray
        The matrix, columns in 32 bits; its first columns are its rows.
    wave_pages, line_pages : int
        Pages of a wave and of a line (:func:`worker_pages`).
    workers, turns : int
        Thread blocks that share the rows, and parts of each.
    slots : int
        Pages of V that shared memory holds.
    tile, depth, groups : int
        Pages of a tile, tiles in flight, tiles at work: a warp's next page lies so many tiles ahead.
    runs : sequence of (start, stop)
        Pages to compute; all rows if empty.
    num_columns : int
        Rows of V; those of the matrix if zero.
    """
    import cupy

    num_rows = len(indptr) - 1
    num_pages = -(-max(num_rows, num_columns) // PAGE)
    runs = runs or [(0, -(-num_rows // PAGE))]
    pages, sizes = pages_of_runs(runs, wave_pages, line_pages, workers, turns, cupy)
    on_host = np.zeros((2, workers + 1), np.int32)
    on_host[0, 1:], on_host[1, 1:] = np.cumsum(sizes), np.cumsum(-(-sizes // tile))
    tiles, (begin, first) = int(on_host[1, -1]), cupy.asarray(on_host)

    unit = inspector_unit(data.dtype.itemsize, wide=indptr.dtype.itemsize == 8)
    # A warp for a tile, its set of pages at most half full; it stops once there are more than slots.
    places = 1 << (2 * (slots + 32) - 1).bit_length()
    warps = INSPECTOR_THREADS // 32
    by_tile = Shape((max(1, -(-tiles // warps)),), INSPECTOR_THREADS, 4 * places * warps)
    matrix = indptr, indices, np.int64(num_rows)
    owners = pages, begin, first, np.int32(workers), np.int32(tiles), np.int32(tile)
    mask = np.uint32(places - 1)

    failed = cupy.zeros(1, np.int32)
    counts = cupy.zeros((3, tiles + 1), np.int64)
    kernel(unit, "count_needs")(by_tile, *matrix, *owners, np.int32(slots), mask, counts, failed)
    start, code_start, value_start = (cupy.cumsum(each) for each in counts)
    totals = cupy.stack([failed[0].astype(np.int64), start[-1], code_start[-1], value_start[-1]]).get().tolist()
    # A worker's tiles times the slots are numbers of 31 bits, too.
    if totals[0] or max(*totals, slots * (int(np.diff(on_host[1]).max()) + 1)) > _MOST:
        return None
    _, num_needs, num_codes, num_values = totals
    if free_bytes() < 44 * num_needs + 16 * num_codes + PAGE * data.dtype.itemsize * num_values:
        return None

    keys = cupy.empty(num_needs, np.int64)
    needed, tile_of, next_use, previous, slot_of = (cupy.empty(num_needs, np.int32) for _ in range(5))
    kernel(unit, "list_needs")(by_tile, *matrix, *owners, np.int32(slots), mask, start, keys, needed, tile_of, failed)
    keys.sort()
    kernel(unit, "link_needs")(
        Shape((max(1, -(-num_needs // 256)),), 256), keys, np.int32(num_needs), tile_of, first, np.int32(workers),
        next_use, previous,
    )  # fmt: skip
    copies, table = cupy.empty((num_needs, 2), np.int32), cupy.zeros((tiles + 1, 4), np.int32)
    counts[0] = 0
    kernel(unit, "assign_slots")(
        Shape((workers,), 32, 24 * slots), start, needed, next_use, previous, first, np.int32(slots), np.int32(depth),
        np.int32(num_pages - 1), slot_of, copies, counts[0], table, failed,
    )  # fmt: skip
    load_start = cupy.cumsum(counts[0])
    refused, num_loads = cupy.stack([failed[0].astype(np.int64), load_start[-1]]).get().tolist()
    if refused:
        return None
    loads, codes = cupy.empty((num_loads, 2), np.int32), cupy.empty(8 * num_codes, np.uint16)
    values = cupy.empty(PAGE * num_values, data.dtype)
    kernel(unit, "write_tiles")(
        Shape(by_tile.grid, by_tile.threads, 2 * by_tile.shared_bytes), indptr, indices, data,
        np.int64(num_rows), *owners, np.int32(groups), mask, start, needed, slot_of, load_start, code_start,
        value_start, copies, table, loads, codes, values,
    )  # fmt: skip
    return Plan(first, table, loads, codes, values, num_pages)
