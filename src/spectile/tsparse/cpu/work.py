"""The multiplications of a product, and rows of like cost for the threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectile.core.threads import num_threads
from spectile.core.tiling import ceil_div
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import ZERO, count_products

BLOCKS = 4096  # of rows whose multiplications are counted together, at most
ROW_COST = 8  # of a row, in multiplications
WORTH_A_CHUNK = 200_000  # cost of rows that a thread takes at a time
WORTH_ALONE = 2**26  # the same where it is alone: what an interrupt waits for, a fraction of a second


class Work(NamedTuple):
    """The multiplications of ``A @ B``, of blocks of so many rows of A and what is left."""

    rows: int
    each: int
    before: np.ndarray  # multiplications of the rows before each block, and of all

    @property
    def products(self) -> int:
        """All multiplications."""
        return int(self.before[-1])

    @property
    def edges(self) -> np.ndarray:
        """The first row of each block, and the number of rows."""
        return np.minimum(np.arange(len(self.before)) * self.each, self.rows)

    def products_before(self, row: int) -> int:
        """Return the multiplications of the rows before the first one of a block, or before the end."""
        return int(self.before[ceil_div(row, self.each)])


def work_bytes(rows: int) -> int:
    """Return the bytes that the count of multiplications takes, and the cutting of chunks."""
    return 24 * (min(rows, BLOCKS) + 1)


def survey(indptr_a: np.ndarray, indices_a: np.ndarray, rows_b: threads.Pointer) -> Work:
    """Return the multiplications of ``A @ B``."""
    rows = len(indptr_a) - 1
    each = max(1, ceil_div(rows, BLOCKS))
    blocks = ceil_div(rows, each)
    before = np.zeros(blocks + 1, np.int64)
    arrays = np.uint64(each), indptr_a, indices_a, *threads.bounds(rows_b), before
    count = num_threads() if len(indices_a) >= threads.WORTH_A_PIECE else 1
    pieces = [(ZERO, np.uint64(blocks))]
    if count > 1:
        pieces = threads.between(np.arange(1, 4 * count) * blocks // (4 * count), blocks)
    threads.over_rows(pieces, count, lambda start, stop: count_products(start, stop, *arrays))
    for start, stop in pieces[1:]:
        before[int(start) + 1 : int(stop) + 1] += before[int(start)]
    return Work(rows, each, before)


def chunks(work: Work, count: int | None = None, worth: int = WORTH_A_CHUNK) -> threads.Chunks:
    """Return the first row and the end of chunks of rows of like cost: one for little work, few for one thread."""
    rows = work.rows
    cost = work.products + ROW_COST * rows
    count = count or (num_threads() if cost >= worth else 1)
    if count == 1:
        worth = WORTH_ALONE
    if rows < 2 or cost < worth:
        return [(ZERO, np.uint64(rows))]
    edges = work.edges
    costs = ROW_COST * edges + work.before
    pieces = count * int(1 + costs[-1] // (count * worth))
    return threads.between(edges[np.searchsorted(costs, np.linspace(0, costs[-1], pieces + 1)[1:-1])], rows)
