"""The multiplications of a product, and rows of like cost for the threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spectile.core.threads import num_threads
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import ZERO, count_products

BLOCKS = 4096  # of rows whose multiplications are counted together, at most
ROW_COST = 8  # of a row, in multiplications
WORTH_A_CHUNK = 200_000  # cost of rows that a thread takes at a time
WORTH_ALONE = 2**26  # the same where it is alone: what an interrupt waits for, a fraction of a second


@dataclass(frozen=True)
class Work:
    """The multiplications of ``A @ B``, rows of A taken together by some."""

    edges: np.ndarray  # the first rows of those taken together, and the number of rows
    before: np.ndarray  # multiplications of the rows before each edge

    @property
    def products(self) -> int:
        """All multiplications."""
        return int(self.before[-1])

    def products_before(self, row: int) -> int:
        """Return the multiplications of the rows before an edge."""
        return int(self.before[np.searchsorted(self.edges, row)])


def work_bytes(rows: int) -> int:
    """Return the bytes that the count of multiplications takes, and the cutting of chunks."""
    return 24 * (min(rows, BLOCKS) + 1)


def survey(indptr_a: np.ndarray, indices_a: np.ndarray, rows_b: threads.Pointer) -> Work:
    """Return the multiplications of ``A @ B``."""
    rows = len(indptr_a) - 1
    blocks = min(rows, BLOCKS)
    edges = np.arange(blocks + 1)
    if blocks < rows:
        edges *= rows
        edges //= blocks
    before = np.zeros(blocks + 1, np.int64)
    arrays = threads.unsigned(edges, indptr_a, indices_a, *threads.bounds(rows_b), before[1:])
    count = num_threads() if len(indices_a) >= threads.WORTH_A_PIECE else 1
    pieces = (
        threads.between(np.arange(1, 4 * count) * blocks // (4 * count), blocks)
        if count > 1
        else [(ZERO, np.uint64(blocks))]
    )
    threads.over_rows(pieces, count, lambda start, stop: count_products(start, stop, *arrays))
    np.cumsum(before, out=before)
    return Work(edges, before)


def chunks(work: Work, count: int, worth: int = WORTH_A_CHUNK) -> threads.Chunks:
    """Return the first row and the end of chunks of rows of like cost: one for little work, few for one thread."""
    rows = int(work.edges[-1])
    if count == 1:
        worth = WORTH_ALONE
    if rows < 2 or work.products + ROW_COST * rows < worth:
        return [(ZERO, np.uint64(rows))]
    costs = ROW_COST * work.edges
    costs += work.before
    pieces = count * int(1 + costs[-1] // (count * worth))
    return threads.between(work.edges[np.searchsorted(costs, np.linspace(0, costs[-1], pieces + 1)[1:-1])], rows)
