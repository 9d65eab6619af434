"""Products of tile matrices: which tile products are kept, what the others can add up to, and the sums.

The host lists the products that are kept, grouped by the tile of C that they are added to; the CPU's kernel and the
GPU's follow the same lists.  Rows of B are sorted by falling norms, so that the products that are kept are found at a
cost of their number, and the sums of the tails bound the others without a look at them.

Source: the threshold of N. Bock and M. Challacombe, SIAM J. Sci. Comput. 35, C72 (2013); the bounds are elementary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from spectile.core.progress import MATRICES, count
from spectile.core.threads import blas_threads, each
from spectile.tiles import kernels
from spectile.tiles.cuda import launch
from spectile.tiles.layout import Layout, collected
from spectile.tiles.norms import bound_of_map, root_of_squares
from spectile.tiles.spread import Spread, meeting
from spectile.tiles.types import EXACT, SLACK, Error, gamma, underflow

#: Products below which starting threads costs more than it gains, and pieces a thread.
_SERIAL, _PIECES = 512, 4
#: The search for a threshold ends at one whose bound is at least this share of what is allowed.
_CLOSE = 0.9
_BISECTIONS = 60
#: Products that a GPU lists at a time: 1 GiB, enough for all of its multiprocessors.
_LISTED = 2**27


@dataclass(frozen=True)
class Factor:
    """One side of a product: all of its tiles, and their norms."""

    layout: Layout
    norms: np.ndarray
    stored: Layout | None = None  #: What the matrix stores of them.

    def shared(self, layout: Layout) -> Layout:
        """Return the layout of what the matrix stores, with all that is known of it, where a product has the same."""
        return layout if self.stored is None else self.stored.shared(layout)


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

    def searched(self, limit: float, spectral: bool) -> float:
        """Return `threshold` where neither everything nor nothing may be left out."""
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

    def lists(self, tau: float, upper: bool, dtype: Any) -> Lists:
        """Return the products that tau keeps; with `upper` those of the tiles on and above the diagonal."""
        a, b, by_rows = self.a, self.b, self.by_rows
        rows, columns = a.layout.grid[0], b.layout.grid[1]
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
        layout = a.shared(Layout(a.layout.rows, b.layout.columns, indptr, indices, hermitian=upper))

        def between(first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            some = slice(pointer[first], pointer[last])
            return pointer[first : last + 1] - pointer[first], left[some], right[some]

        return Lists(layout, pointer, len(left), between, self.error(tau), _rounding(sums, terms, layout, dtype))


class MappedSkipping:
    """The same of tiles on a GPU, which looks at all triples of tiles: maps of the norms have zeros where none is.

    Parameters as those of `Skipping`; several thresholds are looked at together, and products are listed there.
    """

    def __init__(self, a: Factor, b: Factor, same: bool) -> None:
        self.a, self.b = a, b
        # Norms are scaled by powers of two to at most 1, so that squares of their sums are in range.
        units = [2.0 ** max(-1000, math.frexp(float(one.norms.max(initial=0.0)))[1]) for one in (a, b)]
        self._units = units
        of_a = _maps(a, units[0])
        of_b = of_a if b is a or same else _maps(b, units[1])
        self._maps = launch.Maps(of_a[0], of_b[0], of_a[1], of_b[1])
        self._known: dict[float, Error] = {0.0: EXACT}

    def error(self, tau: float) -> Error:
        """Return bounds of what is left out, in both norms."""
        if tau not in self._known:
            self._errors([tau])
        return self._known[tau]

    def _errors(self, taus: Any) -> list[Error]:
        scaled = np.zeros(launch.TAUS)
        scaled[: len(taus)] = [self._scaled(tau) for tau in taus]
        sums = launch.left_out(self._maps, scaled)
        squares, rows = (sums * sums).sum(axis=(1, 2)).get(), sums.sum(axis=2).max(axis=1).get()
        columns = sums.sum(axis=1).max(axis=1).get()
        slack = SLACK * (1 + (sum(self.a.layout.grid) + self.b.layout.grid[1] + 64) * 2.0**-52)
        for tau, square, row, column in zip(taus, squares.tolist(), rows.tolist(), columns.tolist(), strict=False):
            # Of sums below 1e-154 the squares are lost.
            fro, spectral = math.sqrt(square) + 1e-150, math.sqrt(row) * math.sqrt(column) + 1e-150
            self._known[tau] = Error.of(*(x * slack * self._units[0] * self._units[1] for x in (fro, spectral)))
        return [self._known[tau] for tau in taus]

    def _scaled(self, tau: float) -> float:
        return tau / self._units[0] / self._units[1]

    def searched(self, limit: float, spectral: bool) -> float:
        """Return `threshold` where neither everything nor nothing may be left out."""
        low, high = 0.0, self._units[0] * self._units[1]  # what is left out at these is known: nothing, everything
        step = 16.0
        middle = min(high, limit / math.sqrt(max(1, len(self.a.norms))))
        taus = [middle * step**place for place in range(-4, 4)]
        for _ in range(_BISECTIONS):
            taus = [tau for tau in taus if low < tau < high]
            if not taus or not taus[0] > 0:
                break
            left_out = [error[spectral] for error in self._errors(taus)]
            good = [tau for tau, size in zip(taus, left_out, strict=True) if size <= limit]
            low, high = max([low, *good]), min([high, *(tau for tau in taus if tau not in good)])
            if low and (self._known[low][spectral] >= _CLOSE * limit or high <= 1.02 * low):
                break
            # Down by large steps while all leave out too much, and between the two ends once both are known.
            ratio = (high / low) ** (1 / (launch.TAUS + 1)) if low else step
            first = low if low else high * step ** -(launch.TAUS + 1)
            taus = [first * ratio**place for place in range(1, launch.TAUS + 1)]
        return low

    def lists(self, tau: float, upper: bool, dtype: Any) -> Lists:
        """Return the products that tau keeps; with `upper` those of the tiles on and above the diagonal."""
        import cupy

        scaled = self._scaled(tau)
        counts, sums, terms = launch.kept(self._maps, np.diff(self.b.layout.rows), scaled, upper)
        places = cupy.flatnonzero(counts.ravel())
        pointer = cupy.zeros(len(places) + 1, np.int64)
        pointer[1:] = cupy.cumsum(counts.ravel()[places], dtype=np.int64)
        layout = self.a.shared(Layout.of_keys(self.a.layout.rows, self.b.layout.columns, places.get(), hermitian=upper))
        with np.errstate(over="ignore"):
            norms = sums.ravel()[places].get() * self._units[0] * self._units[1]
        rounding = _rounding(norms, terms.ravel()[places].get(), layout, dtype)
        between = partial(launch.listed, self._maps, scaled, places, pointer)
        return Lists(layout, pointer, int(pointer[-1]), between, self.error(tau), rounding)


def _maps(factor: Factor, unit: float) -> tuple[Any, Any]:
    """Return the maps of norms, divided by a power of two, and of the numbers of the tiles."""
    import cupy

    grid, keys = factor.layout.grid, cupy.asarray(factor.layout.keys)
    norms, numbers = cupy.zeros(grid), cupy.zeros(grid, np.int32)
    norms.reshape(-1)[keys] = cupy.asarray(factor.norms / unit)
    numbers.reshape(-1)[keys] = cupy.arange(len(keys), dtype=np.int32)
    return norms, numbers


#: A GPU looks at so many triples of tiles while the host finds one product in sorted rows.
_TRIPLES = 1000


def skipping(xp: Any, a: Factor, b: Factor, same: bool) -> Skipping | MappedSkipping:
    """Return what finds the products that are kept, on the host or where the tiles are."""
    if xp is not np:
        rows, columns = np.bincount(a.layout.indices, minlength=a.layout.grid[1]), np.diff(b.layout.indptr)
        triples = math.prod(a.layout.grid) * b.layout.grid[1]
        if triples <= _TRIPLES * int((rows * columns).sum()):
            return MappedSkipping(a, b, same)
    return Skipping(a, b, same)


def threshold(skipping: Skipping | MappedSkipping, limit: float, spectral: bool) -> float:
    """Return a tau that leaves out at most `limit`."""
    everything = skipping.error(math.inf)[spectral]
    if everything <= limit:
        return math.inf
    if limit <= 0 or not math.isfinite(everything):
        return 0.0
    return skipping.searched(limit, spectral)


@dataclass(frozen=True)
class Lists:
    """The products that are kept."""

    layout: Layout  #: Of C.
    #: Where the products of each tile of C begin in the lists, and the end: array of int64, of NumPy or CuPy.
    pointer: Any
    products: int
    #: ``between(first, last)`` returns the products of these tiles of C: where those of each begin, from 0 on, and the
    #: end, and numbers of tiles of A and of B, int32 arrays.
    #: A GPU makes them on demand: all together may be larger than the matrices.
    between: Callable[[int, int], tuple[Any, Any, Any]]
    #: Bounds of what was left out, and of rounding.
    skipped: Error
    rounding: Error


def _rounding(sums: np.ndarray, terms: np.ndarray, layout: Layout, dtype: Any) -> Error:
    """Bound the rounding of tiles by the sums of the products of norms in them, and by the terms of an entry."""
    most = int(terms.max(initial=0))
    lost = gamma(np.arange(most + 1), dtype)[terms]
    lost *= sums * SLACK
    lost += underflow(most, dtype) * layout.largest
    return bound_of_map(lost, layout)


def rounding_at_most(skipping: Skipping | MappedSkipping, dtype: Any) -> float:
    """Bound the rounding of the product with nothing left out, in the Frobenius norm and so in both."""
    a, b = skipping.a.layout, skipping.b.layout
    absolute = float(underflow(a.longest, dtype)) * math.sqrt(a.shape[0]) * math.sqrt(b.shape[1])
    return float(gamma(a.longest, dtype)) * skipping.error(math.inf).fro * SLACK + absolute


def multiply(xp: Any, a: Any, b: Any, given_a: Layout, given_b: Layout, lists: Lists, dtype: Any) -> Any:
    """Return the tiles of C, of `dtype`, for those of A and of B and the lists of what is added."""
    count(MATRICES)
    if isinstance(a, Spread):
        return _multiply_parts(xp, a, b, given_a, given_b, lists, dtype)
    return _multiply(xp, a, b, given_a, given_b, lists, dtype)


def _multiply_parts(
    xp: Any, a: Spread, b: Spread, given_a: Layout, given_b: Layout, lists: Lists, dtype: Any
) -> Spread:
    """Return the tiles of C, of which each device makes its tile rows, of its own of A and those of B that it needs."""
    asked: list[Any] = []
    where = lists.layout.indptr[list(a.cuts)]
    first_of_a = given_a.indptr[list(a.cuts)]
    for number, (first, last) in enumerate(itertools.pairwise(where.tolist())):
        pointer, left, right = lists.between(first, last)
        needed = xp.zeros(len(given_b.indices), bool)
        needed[right] = True
        places = xp.cumsum(needed, dtype=np.int32) - 1
        mine = left - np.int32(first_of_a[number]), places[right]
        tiles = xp.flatnonzero(needed)
        asked.append((pointer, *mine, tiles if xp is np else tiles.get()))

    def made(number: int) -> Any:
        pointer, left, right, tiles = asked[number]
        needed = given_b.of_tiles(tiles)
        near = collected(xp, number, b, given_b, needed, tiles, np.zeros(len(tiles), bool))
        (_, of_a), (_, of_c) = (layout.parts(a.cuts)[number] for layout in (given_a, lists.layout))
        # Lists are copied to the device whose they are.
        pointer, left, right = pointer.copy(), left.copy(), right.copy()
        mine = Lists(of_c, pointer, len(left), lambda *_: (pointer, left, right), EXACT, EXACT)
        return _multiply(xp, a.parts[number], near, of_a, needed, mine, dtype)

    with meeting(a.parts):
        return a.made(made)


def _multiply(xp: Any, a: Any, b: Any, given_a: Layout, given_b: Layout, lists: Lists, dtype: Any) -> Any:
    layout = lists.layout
    heights, widths = layout.heights, layout.widths
    if xp is not np:
        c = xp.empty(int(layout.starts[-1]), dtype)
        largest = int(heights.max(initial=0)), int(widths.max(initial=0))
        ends = xp.searchsorted(xp.asarray(lists.pointer), xp.arange(_LISTED, lists.products, _LISTED)).tolist()
        for first, last in itertools.pairwise([0, *ends, len(heights)]):
            of_c = launch.Places(*(one[first:last] for one in layout.placed()))
            listed = lists.between(first, last)
            launch.multiply(a, given_a.placed(), b, given_b.placed(), *listed, c, of_c, largest)
        return c
    pointer, left, right = lists.between(0, len(heights))
    c = np.zeros(int(layout.starts[-1]), dtype)

    def piece(first: int, last: int) -> None:
        kernels.multiply(
            a, given_a.starts, heights, widths, b, given_b.starts, pointer, left, right, first, last,
            c, layout.starts,
        )  # fmt: skip

    _in_pieces(piece, pointer)
    return c


def _ends(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _in_pieces(function: Any, work: np.ndarray) -> None:
    """Run a function of ranges, on threads where it pays, of about equal parts of work that was summed up."""
    total, count = int(work[-1]), len(work) - 1
    workers = blas_threads() if total > _SERIAL else 1
    if workers == 1:
        return function(0, count)
    cuts = np.unique(np.searchsorted(work, np.linspace(0, total, workers * _PIECES + 1)[1:-1]))
    ends = [0, *cuts.tolist(), count]
    each(itertools.pairwise(ends), workers, lambda ends: function(*ends))


def product_norm_estimate(a: Factor, b: Factor) -> float:
    """Return about the Frobenius norm of A B, as if no two products of tiles had anything in common."""
    largest = [float(factor.norms.max(initial=0.0)) or 1.0 for factor in (a, b)]
    columns = np.bincount(a.layout.indices, (a.norms / largest[0]) ** 2, a.layout.grid[1])
    rows = np.bincount(b.layout.tile_rows, (b.norms / largest[1]) ** 2, b.layout.grid[0])
    return root_of_squares(np.sqrt(columns * rows), np.ones(len(rows))) * largest[0] * largest[1]
