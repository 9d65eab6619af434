"""Products of tile matrices: which tile products are kept, what the others can add up to, and the sums.

The host lists the products that are kept, grouped by the tile of C that they are added to; the CPU's kernel and the
GPU's follow the same lists.  Rows of B are sorted by falling norms, so that the products that are kept are found at a
cost of their number, and the sums of the tails bound the others without a look at them.

Source: the threshold of N. Bock and M. Challacombe, SIAM J. Sci. Comput. 35, C72 (2013); the bounds are elementary.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.threads import blas_threads, each
from spectile.tiles import kernels
from spectile.tiles.cuda import launch
from spectile.tiles.layout import Layout
from spectile.tiles.norms import bound_of_map, root_of_squares
from spectile.tiles.types import SLACK, Error, gamma, underflow

#: Products below which starting threads costs more than it gains, and pieces a thread.
_SERIAL, _PIECES = 512, 4
#: The search for a threshold ends at one whose bound is at least this share of what is allowed.
_CLOSE = 0.9
_BISECTIONS = 60


@dataclass(frozen=True)
class Factor:
    """One side of a product: all of its tiles, and their norms."""

    layout: Layout
    norms: np.ndarray


class SortedRows:
    """The rows of B by falling norms, with the norms of the tails."""

    def __init__(self, b: Factor) -> None:
        layout = b.layout
        self.indptr = layout.indptr
        self.order = np.lexsort((-b.norms, layout.tile_rows))
        self.norms, self.tail_fro, self.tail_one = (np.empty(len(b.norms)) for _ in range(3))
        kernels.sorted_rows(self.indptr, b.norms, self.order, self.norms, self.tail_fro, self.tail_one)
        # The tails are sums: none may be too small.
        longest = 1 + 4e-16 * (int(np.diff(layout.indptr).max(initial=0)) + 8)
        self.tail_fro *= longest
        self.tail_one *= longest

    def skipped(self, a: Factor, tau: float) -> tuple[float, float]:
        """Bound what tau leaves out of A B: in the Frobenius norm, and in the largest sum over a row."""
        fro, largest = kernels.skipped(
            a.layout.indptr, a.layout.indices, a.norms, self.indptr, self.norms, self.tail_fro, self.tail_one, tau
        )
        return fro * SLACK, largest * SLACK


class Skipping:
    """What a threshold leaves out of a product.

    Parameters
    ----------
    a, b : Factor
        A and B.
    same : bool
        Whether both are one Hermitian matrix, whose rows and columns are alike.
    """

    def __init__(self, a: Factor, b: Factor, same: bool) -> None:
        self.a, self.b, self.by_rows = a, b, SortedRows(b)
        self.turned: tuple[Factor, SortedRows] | None = None
        if not same:
            (of_a, order_a), (of_b, order_b) = a.layout.transposed(), b.layout.transposed()
            self.turned = Factor(of_b, b.norms[order_b]), SortedRows(Factor(of_a, a.norms[order_a]))

    def error(self, tau: float) -> Error:
        """Return bounds of what is left out, in both norms."""
        fro, rows = self.by_rows.skipped(self.a, tau)
        columns = rows
        if self.turned is not None:
            # What is left out is decided by rows: a product at the threshold itself may be on either side here.
            other, columns = self.turned[1].skipped(self.turned[0], tau * SLACK)
            fro = min(fro, other)
        return Error.of(fro, math.sqrt(rows) * math.sqrt(columns) * SLACK)

    def threshold(self, limit: float, spectral: bool) -> float:
        """Return a tau that leaves out at most `limit`."""
        everything = self.error(math.inf)[spectral]
        if everything <= limit:
            return math.inf
        if limit <= 0 or not math.isfinite(everything):
            return 0.0
        norms_a, norms_b = self.a.norms, self.by_rows.norms
        high = float(norms_a.max(initial=0.0)) * float(norms_b.max(initial=0.0))
        low, best = high * 2.0**-200, 0.0
        guess = min(high, limit / math.sqrt(max(1, len(norms_a))))
        for step in range(_BISECTIONS):
            left_out = self.error(guess)[spectral]
            if left_out <= limit:
                best = low = guess
                if left_out >= _CLOSE * limit:
                    break
            else:
                high = guess
            if high <= 1.02 * low:
                break
            # Few steps from a good guess, and by halves of the exponents after that.
            near = guess * (8 if left_out <= limit else 0.125)
            guess = near if low < near < high and step < 12 else math.sqrt(low) * math.sqrt(high)
        return best


@dataclass(frozen=True)
class Lists:
    """The products that are kept.

    Attributes
    ----------
    layout : Layout
        Of C.
    pointer : numpy.ndarray of int64
        Where the products of each tile of C begin in the lists, and the end.
    left, right : numpy.ndarray of int32
        Numbers of the tiles of A and of B.
    skipped, rounding : Error
        Bounds of what was left out, and of rounding.
    """

    layout: Layout
    pointer: np.ndarray
    left: np.ndarray
    right: np.ndarray
    skipped: Error
    rounding: Error


def list_products(a: Factor, b: Factor, skipping: Skipping, tau: float, upper: bool, dtype: Any) -> Lists:
    """Return the products that tau keeps; with `upper` those of the tiles on and above the diagonal."""
    rows, columns = a.layout.grid[0], b.layout.grid[1]
    by_rows = skipping.by_rows
    search = (a.layout.indptr, a.layout.indices, a.norms, by_rows.indptr)
    columns_b = b.layout.indices[by_rows.order]
    tiles, products = np.zeros(rows, np.int64), np.zeros(rows, np.int64)

    def count(first: int, last: int) -> None:
        mark = np.zeros(columns, np.int64)
        kernels.count_products(*search, columns_b, by_rows.norms, tau, upper, mark, first, last, tiles, products)

    _in_pieces(count, a.layout.indptr)
    indptr, begin = _ends(tiles), _ends(products)
    indices, sums, terms = np.empty(indptr[-1], np.int64), np.empty(indptr[-1]), np.empty(indptr[-1], np.int64)
    pointer = np.zeros(indptr[-1] + 1, np.int64)
    left, right = np.empty(begin[-1], np.int32), np.empty(begin[-1], np.int32)
    inner, order = np.diff(b.layout.rows), by_rows.order.astype(np.int32)

    def fill(first: int, last: int) -> None:
        place, cursor = np.full(columns, -1, np.int64), np.zeros(columns, np.int64)
        kernels.list_products(
            *search, columns_b, order, by_rows.norms, tau, upper, inner, place, cursor, first, last, indptr, begin,
            indices, pointer, left, right, sums, terms,
        )  # fmt: skip

    _in_pieces(fill, begin)
    layout = Layout(a.layout.rows, b.layout.columns, indptr, indices, hermitian=upper)
    lost = gamma(terms, dtype) * sums * SLACK + underflow(terms, dtype) * np.sqrt(layout.heights * layout.widths)
    return Lists(layout, pointer, left, right, skipping.error(tau), bound_of_map(lost, layout))


def rounding_at_most(skipping: Skipping, dtype: Any) -> float:
    """Bound the rounding of the product with nothing left out, in the Frobenius norm and so in both."""
    a, b = skipping.a.layout, skipping.b.layout
    terms = int(np.bincount(a.tile_rows, a.widths, a.grid[0]).max(initial=0))
    absolute = float(underflow(terms, dtype)) * math.sqrt(a.shape[0]) * math.sqrt(b.shape[1])
    return float(gamma(terms, dtype)) * skipping.error(math.inf).fro * SLACK + absolute


def multiply(xp: Any, a: Any, b: Any, given_a: Layout, given_b: Layout, lists: Lists, dtype: Any) -> Any:
    """Return the tiles of C.

    Parameters
    ----------
    xp : module
        numpy or cupy.
    a, b : array
        Tiles of `given_a` and of `given_b`, of `dtype`.
    given_a, given_b : Layout
        All tiles of A and of B.
    lists : Lists
        What is added.
    dtype : dtype
        Of C.
    """
    layout = lists.layout
    heights, widths = layout.heights, layout.widths
    if xp is not np:
        c = xp.empty(int(layout.starts[-1]), dtype)
        largest = int(heights.max(initial=0)), int(widths.max(initial=0))
        listed = lists.pointer, lists.left, lists.right
        launch.multiply(a, given_a.placed(), b, given_b.placed(), *listed, c, layout.placed(), largest)
        return c
    c = np.zeros(int(layout.starts[-1]), dtype)

    def piece(first: int, last: int) -> None:
        kernels.multiply(
            a, given_a.starts, heights, widths, b, given_b.starts, lists.pointer, lists.left, lists.right, first, last,
            c, layout.starts,
        )  # fmt: skip

    _in_pieces(piece, lists.pointer)
    return c


def _ends(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _in_pieces(function: Any, work: np.ndarray) -> None:
    """Run a function of ranges, on threads where it pays, of about equal parts of work that was summed up."""
    total, count = int(work[-1]), len(work) - 1
    workers = blas_threads() if total > _SERIAL else 1
    pieces = workers * _PIECES if workers > 1 else 1
    cuts = np.unique(np.searchsorted(work, np.linspace(0, total, pieces + 1)[1:-1]))
    ends = [0, *cuts.tolist(), count]
    each(itertools.pairwise(ends), workers, lambda ends: function(*ends))


def product_norm_estimate(a: Factor, b: Factor) -> float:
    """Return about the Frobenius norm of A B, as if no two products of tiles had anything in common."""
    columns = np.sqrt(np.bincount(a.layout.indices, a.norms**2, a.layout.grid[1]))
    rows = np.sqrt(np.bincount(b.layout.tile_rows, b.norms**2, b.layout.grid[0]))
    return root_of_squares(columns * rows)
