"""How a product is spread over the GPUs of a host: cuts of rows and columns, and what each GPU can do in time.

Rows of C are cut at multiples of a tile's height and columns at multiples of its width, so that every tile is computed
as on one GPU, to the bit.  Nothing here needs a GPU.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

from spectile.core.tiling import ceil_div

# Height and width at whose multiples C may be cut: every kernel's tiles, and blocks of norms, divide them.
ROW_UNIT, COLUMN_UNIT = 128, 256
# B travels in panels of columns, each in pieces of rows, so that the last GPU of the ring waits for pieces only.
PANELS = 16
PIECES = 2
# Narrower panels leave multiprocessors of small products idle.
PANEL_COLUMNS = 2048
# Panels of B that host memory sends: the first block's columns of C begin to leave when one is multiplied.  The links
# read narrow columns slowly: an eighth of a row at 32, a half at 55 GB/s.
HOST_PANELS = 4


def cut_rows(work: Any, shares: Any) -> list[int]:
    """Cut a sequence of units into contiguous parts whose work is nearest to the wanted shares.

    Parameters
    ----------
    work : array, shape (units,)
        Work of each unit, for example its candidate tile products; all zero means equal work.
    shares : array, shape (parts,)
        Wanted shares of the work, in any scale.

    Returns
    -------
    list of int, length parts + 1
        Part p holds the units ``cuts[p]:cuts[p + 1]``; it may be empty.
    """
    work = np.asarray(work, np.float64)
    if not work.any():
        work = np.ones_like(work)
    shares = np.asarray(shares, np.float64)
    done = np.concatenate([[0.0], np.cumsum(work)])
    wanted = np.cumsum(shares)[:-1] / shares.sum() * done[-1]
    above = np.searchsorted(done, wanted)
    below = np.maximum(above - 1, 0)
    nearest = np.where(wanted - done[below] < done[above] - wanted, below, above)
    return [0, *(int(cut) for cut in nearest), len(work)]


def panels(columns: int, count: int = PANELS, least: int = COLUMN_UNIT) -> list[tuple[int, int]]:
    """Return at most `count` panels of at least 256 or `least` columns, equal but the last, cut at multiples of 256."""
    width = max(ceil_div(columns, COLUMN_UNIT * count), ceil_div(least, COLUMN_UNIT)) * COLUMN_UNIT
    return [(start, min(start + width, columns)) for start in range(0, columns, width)]


def pieces(rows: int, count: int = PIECES) -> list[tuple[int, int]]:
    """Return at most `count` pieces of rows."""
    height = max(1, ceil_div(rows, count))
    return [(start, min(start + height, rows)) for start in range(0, rows, height)]


def schedule(parts: int, panel_count: int) -> list[tuple[Literal["a", "b"], int]]:
    """Return the order in which the first GPU sends: rows of A to part p as ("a", p), panel j of B as ("b", j).

    Two parts get their rows of A for each panel of B: the first parts have work while the later wait for theirs, and no
    part waits long for its next panel.
    """
    order: list[tuple[Literal["a", "b"], int]] = []
    waiting = list(range(1, parts))
    for panel in range(panel_count):
        order.append(("b", panel))
        order += [("a", part) for part in waiting[:2]]
        waiting = waiting[2:]
    return order + [("a", part) for part in waiting]


@functools.lru_cache
def shares(
    parts: int, seconds: float, a_bytes: int, b_bytes: int, c_bytes: int, sent: tuple[float, ...], link: float
) -> tuple[float, ...]:
    """Return the shares of the work with which all parts end together when all data lie on the first GPU.

    Parameters
    ----------
    parts : int
        Number of GPUs.
    seconds : float
        Time of the whole product on one of them.
    a_bytes, b_bytes, c_bytes : int
        Sizes of the matrices.  A and B leave the first GPU once (B travels around a ring), and C returns to it.
    sent : tuple of float
        What share of each panel of B is sent.
    link : float
        Bytes a second of a copy between two GPUs.

    Returns
    -------
    tuple of float, length parts
        Their sum is 1.
    """
    if parts == 1:
        return (1.0,)
    given = np.full(parts, 1 / parts)
    # Parts with few rows let those after them begin earlier: a fixed point, near enough after some rounds.
    for _ in range(4):
        given = _shares(given, seconds, a_bytes, b_bytes / len(sent) * np.array(sent), c_bytes, link)
    return tuple(float(share) for share in given)


def _shares(previous: Any, seconds: float, a_bytes: float, panel_bytes: Any, c_bytes: float, link: float) -> Any:
    parts, panel_count = len(previous), len(panel_bytes)
    time, rows_there, panel_there = 0.0, np.zeros(parts), np.zeros((parts, panel_count))
    for kind, index in schedule(parts, panel_count):
        if kind == "a":
            time += a_bytes * previous[index] / link
            rows_there[index] = time
        else:
            time += panel_bytes[index] / link
            panel_there[1:, index] = time + panel_bytes[index] / PIECES / link * np.arange(parts - 1)
    start = np.maximum(panel_there, rows_there[:, None])[1:]
    last_copy = (c_bytes * previous / panel_count / link)[1:]
    left = panel_count - np.arange(panel_count)

    def possible(end: float) -> Any:
        # What is still to be multiplied when a panel comes must fit between then and the end; C must get back, too.
        others = np.maximum(0.0, ((end - last_copy - start.T).T / left).min(axis=1)) * panel_count / seconds
        room = max(0.0, end - start[0, 0]) * link / c_bytes
        return np.concatenate([[end / seconds], others * min(1.0, room / max(others.sum(), 1e-30))])

    low, high = 0.0, seconds
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle).sum() >= 1 else (middle, high)
    shares_ = possible(high)
    return shares_ / shares_.sum()


def round_robin(rows: int, height: int, parts: int) -> list[list[tuple[int, int]]]:
    """Return the blocks of rows of each part, given out in turn, so that every part gets some of every region."""
    blocks = [(start, min(start + height, rows)) for start in range(0, rows, height)]
    return [blocks[part::parts] for part in range(parts)]


def block_height(rows: int, parts: int, most: int) -> int:
    """Return the height of streamed row blocks: four a part where possible, of at most `most` rows.

    Returns 0 if `most` rows are fewer than a unit, which is enough for fewer rows, too.
    """
    wanted = ceil_div(rows, 4 * parts * ROW_UNIT) * ROW_UNIT
    return min(wanted, most // ROW_UNIT * ROW_UNIT)
