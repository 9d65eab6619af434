"""The inspector of the staged GPU kernel on the host, one page after the other: the reference of the device's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from spectile.core.jit import njit
from spectile.kpm.cuda.staged.inspector import Plan, pages_of_runs
from spectile.kpm.cuda.staged.when import PAGE
from spectile.kpm.types import Array

#: 16-bit words of a page's header in the codes (``Header`` in ``staged/kernel.cu``), counted in such units; no page.
WORDS, NO_PAGE = 8, 0xFFFF


def plan(
    indptr: Array,
    indices: Array,
    data: Array,
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
    """Return what :func:`spectile.kpm.cuda.staged.inspector.plan` returns of these parameters, all arrays NumPy's."""
    num_rows = len(indptr) - 1
    num_pages = -(-max(num_rows, num_columns) // PAGE)
    runs = runs or [(0, -(-num_rows // PAGE))]
    pages, sizes = pages_of_runs(runs, wave_pages, line_pages, workers, turns)
    lists = np.split(pages, np.cumsum(sizes)[:-1])
    with ThreadPoolExecutor(numba.get_num_threads()) as pool:
        parts = list(
            pool.map(lambda pages: _plan_worker(indptr, indices, pages, num_pages, slots, tile, depth, groups), lists)
        )
    if any(part[0] < 0 for part in parts):
        return None
    totals = np.zeros(3, dtype=np.int64)
    loads, codes, source = (np.concatenate([part[k] for part in parts]) for k in (2, 3, 4))
    tables = []
    for _, table, *_ in parts:
        tables.append(table[:-1] + totals)
        totals += table[-1]
    if totals.max() > np.iinfo(np.int32).max:
        return None
    table = np.zeros((sum(map(len, tables)) + 1, 4), dtype=np.int32)
    table[:-1, :3] = np.concatenate(tables)
    table[-1, :3] = totals
    table[table[1:, 0].searchsorted(np.flatnonzero(loads[:, 0] == num_pages - 1), side="right"), 3] = 1
    first = np.concatenate([[0], np.cumsum([len(each) for each in tables])]).astype(np.int32)
    values = np.append(data, data.dtype.type(0))[source]
    return Plan(first, table, loads, codes, values, num_pages)


@njit(nogil=True)
def _plan_worker(
    indptr: Any, indices: Any, pages: Any, num_pages: int, slots: int, tile: int, depth: int, groups: int
) -> Any:
    """Return (copies or -1, table of tiles, loads, codes, source) of one worker's pages."""
    table, start, needed, next_use, lengths = _needs(indptr, indices, pages, num_pages, tile)
    loads, slot_of_need = _slots(table, start, needed, next_use, num_pages, slots, depth)
    if loads.size == 0 and needed.size:
        return -1, table, loads, np.empty(0, np.uint16), np.empty(0, indptr.dtype)
    numbered = (needed, slot_of_need, num_pages)
    codes, source = _codes(indptr, indices, pages, table, start, numbered, lengths, tile, groups)
    return len(loads), table, loads, codes, source


@njit(nogil=True)
def _needs(indptr: Any, indices: Any, pages: Any, num_pages: int, tile: int) -> Any:
    """Return the pages of V that each tile needs, when each is needed next, and the sizes of codes and values.

    `needed[start[t]:start[t + 1]]` are the pages of tile t, `next_use` the tile that needs each next, `lengths` the
    entries of each page's longest row; the table's columns 1 and 2 count codes (16 bytes) and values (fours).
    """
    rows = indptr.size - 1
    tiles = (pages.size + tile - 1) // tile
    table = np.zeros((tiles + 1, 3), np.int64)
    entries = 0
    for page in pages:
        entries += indptr[min(rows, PAGE * page + PAGE)] - indptr[PAGE * page]
    needed = np.empty(entries + pages.size, np.int32)
    start = np.zeros(tiles + 1, np.int64)
    lengths = np.zeros(pages.size, np.int64)
    stamp = np.full(num_pages, -1, np.int32)
    count = 0
    for t in range(tiles):
        quads = 0
        for n in range(t * tile, min(pages.size, t * tile + tile)):
            page = pages[n]
            if stamp[page] != t:
                stamp[page] = t
                needed[count] = page
                count += 1
            for row in range(PAGE * page, min(rows, PAGE * page + PAGE)):
                lengths[n] = max(lengths[n], indptr[row + 1] - indptr[row])
                for entry in range(indptr[row], indptr[row + 1]):
                    other = indices[entry] // PAGE
                    if stamp[other] != t:
                        stamp[other] = t
                        needed[count] = other
                        count += 1
            quads += (lengths[n] + 3) // 4
            table[t + 1, 2] += lengths[n]
        start[t + 1] = count
        table[t + 1, 1] = tile + 2 * quads
    for t in range(1, tiles + 1):
        table[t, 1] += table[t - 1, 1]
        table[t, 2] += table[t - 1, 2]
    next_use = np.empty(count, np.int32)
    stamp[:] = tiles
    for t in range(tiles - 1, -1, -1):
        for k in range(start[t], start[t + 1]):
            next_use[k] = stamp[needed[k]]
            stamp[needed[k]] = t
    return table, start, needed[:count], next_use, lengths


@njit(nogil=True)
def _slots(table: Any, start: Any, needed: Any, next_use: Any, num_pages: int, slots: int, depth: int) -> Any:
    """Return the copies (page, slot), none if a tile finds no slot, and each need's slot; count copies in `table`."""
    tiles = start.size - 1
    slot_of = np.full(num_pages, -1, np.int16)
    page_in = np.full(slots, -1, np.int32)
    next_of = np.full(slots, tiles, np.int32)
    last_of = np.full(slots, -depth, np.int32)
    loads = np.empty((needed.size, 2), np.int32)
    slot_of_need = np.empty(needed.size, np.int16)
    num_loads = 0
    for t in range(tiles):
        for k in range(start[t], start[t + 1]):
            slot = slot_of[needed[k]]
            if slot >= 0:
                next_of[slot] = next_use[k]
                last_of[slot] = t
        for k in range(start[t], start[t + 1]):
            page = needed[k]
            if slot_of[page] < 0:
                best = -1
                for slot in range(slots):
                    if last_of[slot] <= t - depth and (best < 0 or next_of[slot] > next_of[best]):
                        best = slot
                if best < 0:
                    return loads[:0].copy(), slot_of_need
                if page_in[best] >= 0:
                    slot_of[page_in[best]] = -1
                page_in[best] = page
                slot_of[page] = best
                next_of[best] = next_use[k]
                last_of[best] = t
                loads[num_loads, 0] = page
                loads[num_loads, 1] = best
                num_loads += 1
            slot_of_need[k] = slot_of[page]
        table[t + 1, 0] = num_loads
    return loads[:num_loads].copy(), slot_of_need


@njit(nogil=True)
def _codes(
    indptr: Any,
    indices: Any,
    pages: Any,
    table: Any,
    start: Any,
    numbered: Any,
    lengths: Any,
    tile: int,
    groups: int,
) -> Any:
    """Return the codes as the kernel reads them, the header of each page first, and where each value comes from.

    `numbered` holds the needs, the slot of each, and the number of pages of V.
    """
    needed, slot_of_need, num_pages = numbered
    rows = indptr.size - 1
    tiles = start.size - 1
    codes = np.zeros(WORDS * table[tiles, 1], np.uint16)
    source = np.full(PAGE * table[tiles, 2], -1, indptr.dtype)
    slot_of = np.empty(num_pages, np.int16)
    for t in range(tiles):
        for k in range(start[t], start[t + 1]):
            slot_of[needed[k]] = slot_of_need[k]
        begin = WORDS * table[t, 1]
        at = begin + WORDS * tile
        values = PAGE * table[t, 2]
        for n in range(tile):
            head = begin + WORDS * n
            if t * tile + n >= pages.size:
                codes[head] = codes[head + 1] = NO_PAGE
                continue
            page = pages[t * tile + n]
            length = lengths[t * tile + n]
            own = PAGE * np.int64(slot_of[page])
            codes[head] = page & 0xFFFF
            codes[head + 1] = page >> 16
            codes[head + 2] = own
            codes[head + 3] = length
            codes[head + 4] = (at - begin) // 4
            codes[head + 5] = (values - PAGE * table[t, 2]) // PAGE
            later = (t + groups) * tile + n
            codes[head + 6] = pages[later] & 0xFFFF if later < pages.size else NO_PAGE
            codes[head + 7] = pages[later] >> 16 if later < pages.size else NO_PAGE
            for r in range(PAGE):
                row = PAGE * page + r
                for k in range((length + 3) // 4 * 4):
                    code = own + r
                    if row < rows and k < indptr[row + 1] - indptr[row]:
                        entry = indptr[row] + k
                        code = PAGE * np.int64(slot_of[indices[entry] // PAGE]) + indices[entry] % PAGE
                        source[values + PAGE * k + r] = entry
                    codes[at + k // 4 * 16 + 4 * r + k % 4] = code
            at += (length + 3) // 4 * 16
            values += PAGE * length
    return codes, source
