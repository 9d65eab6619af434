"""What is wanted of a product: its semiring, what is added, what is kept; in the arrays of NumPy or CuPy alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.tsparse.semirings import Semiring

#: Row pointer, columns and values of rows of C.
Rows = tuple[Any, Any, Any]


@dataclass
class Wanted:
    """What is wanted of ``alpha A B + beta C``."""

    semiring: Semiring
    #: Entries of C outside of those that it holds and that are not 0 are dropped; with `complement`, those within:
    #: sparse matrix or None.
    mask: Any = None
    complement: bool = False
    alpha: complex = 1
    beta: complex = 0
    C: Any = None  #: A sparse matrix or None.
    prune: float | None = None  #: Entries below it in size are dropped.
    #: Of each row so many entries are kept at most: the largest, by size where they are complex, and of equal ones
    #: those of the least columns.
    top_n: int | None = None
    boolean: bool = False  #: Whether entries count as True or False before they are selected, whatever their sums are.

    @property
    def in_blocks(self) -> bool:
        """Whether what is kept may be far less than what is made, so that rows are made block by block."""
        return self.mask is not None or self.prune is not None or self.top_n is not None

    @property
    def all_of_it(self) -> bool:
        """Whether it is the product of two matrices as they are."""
        return self.semiring.name == "plus_times" and self.C is None and self.alpha == 1 and not self.in_blocks

    def of(self, rows: Rows, added: Rows | None, mask: Rows | None, columns: int, xp: Any = np) -> Rows:
        """Return what is wanted of rows of A B, with the same rows of C and of the mask.

        Where the mask is not complemented, the rows of A B are those that it has.
        """
        indptr, indices, data = rows
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # as where the products are summed
            if self.alpha != 1:
                data = data * data.dtype.type(self.alpha)
            rows = indptr, indices, data
            if added is not None:
                if mask is not None and not self.complement:
                    added = inside(added, mask, columns, xp)
                added = *added[:2], added[2] * data.dtype.type(self.beta)
                rows = add(rows, added, columns, xp)
        if mask is not None and self.complement:
            rows = outside(rows, mask, columns, xp)
        if self.boolean and (self.prune is not None or self.top_n is not None):
            rows = *rows[:2], (rows[2] != 0).astype(rows[2].dtype)
        if self.prune is not None:
            # What is no number is kept: it is not below anything.
            rows = keep(rows, ~(xp.abs(rows[2]) < _least(self.prune, rows[2].dtype)), xp)
        return rows if self.top_n is None else _largest(rows, self.top_n, xp)


def _least(limit: float, dtype: np.dtype) -> Any:
    """Return the least number that is not below a limit, of the type of sizes; infinity where all are below."""
    if dtype.kind not in "fc":
        return limit
    real = np.finfo(dtype).dtype.type
    with np.errstate(over="ignore", under="ignore"):
        near = real(limit)
        return np.nextafter(near, real(np.inf)) if float(near) < limit else near


def _largest(rows: Rows, count: int, xp: Any) -> Rows:
    """Return the largest entries of each row, so many at most."""
    indptr, _, data = rows
    if not len(data) or int(xp.diff(indptr).max()) <= count:
        return rows
    owner = owners(indptr, len(data), xp)
    # Columns ascend within a row: a sort that keeps the order of equal ones prefers the least.
    order = _by_row_and_size(owner, xp.abs(data) if data.dtype.kind == "c" else data, xp)
    rank = xp.arange(len(data)) - indptr[owner]
    kept = xp.zeros(len(data), bool)
    kept[order[rank < count]] = True
    return keep(rows, kept, xp)


def _by_row_and_size(owner: Any, size: Any, xp: Any) -> Any:
    """Return places by row, and within one the largest first, then the least column; NaN counts as the largest."""
    if size.dtype.kind == "i":
        falling = -1 - size
    else:
        falling = xp.where(xp.isnan(size), -xp.inf, -size)
    first = xp.argsort(falling, kind="stable")
    return first[xp.argsort(owner[first], kind="stable")]


def keep(rows: Rows, kept: Any, xp: Any = np) -> Rows:
    """Return the entries of rows for which `kept` is True."""
    indptr, indices, data = rows
    before = xp.zeros(len(kept) + 1, indptr.dtype)
    before[1:] = xp.cumsum(kept)
    return before[indptr], indices[kept], data[kept]


def part(rows: Rows, first: int, stop: int) -> Rows:
    """Return some rows of a matrix."""
    if (first, stop) == (0, len(rows[0]) - 1):
        return rows
    begin, end = int(rows[0][first]), int(rows[0][stop])
    return rows[0][first : stop + 1] - begin, rows[1][begin:end], rows[2][begin:end]


def joined(parts: list[Rows], xp: Any = np) -> Rows:
    """Return rows that follow each other as one."""
    starts = np.cumsum([0, *(len(indices) for _, indices, _ in parts)])
    pointers = [one[0][1:].astype(np.int64) + int(start) for one, start in zip(parts, starts, strict=False)]
    indptr = xp.concatenate([xp.zeros(1, np.int64), *pointers])
    return indptr, xp.concatenate([one[1] for one in parts]), xp.concatenate([one[2] for one in parts])


def owners(indptr: Any, entries: int, xp: Any = np) -> Any:
    """Return the row of each entry, int64."""
    if xp is np:
        return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return xp.searchsorted(indptr, xp.arange(entries, dtype=indptr.dtype), side="right").astype(np.int64) - 1


def _keys(rows: Rows, columns: int, xp: Any) -> Any:
    return owners(rows[0], len(rows[1]), xp) * columns + rows[1]


def outside(rows: Rows, mask: Rows, columns: int, xp: Any = np) -> Rows:
    """Return the entries of rows that a mask has not."""
    return keep(rows, ~_in_mask(rows, mask, columns, xp), xp) if len(mask[1]) else rows


def inside(rows: Rows, mask: Rows, columns: int, xp: Any = np) -> Rows:
    """Return the entries of rows that a mask has."""
    return keep(rows, _in_mask(rows, mask, columns, xp), xp)


def _in_mask(rows: Rows, mask: Rows, columns: int, xp: Any) -> Any:
    """Return which entries of rows a mask has, sorted within its rows."""
    mine, theirs = _keys(rows, columns, xp), _keys(mask, columns, xp)
    if not len(theirs):
        return xp.zeros(len(mine), bool)
    place = xp.minimum(xp.searchsorted(theirs, mine), len(theirs) - 1)
    return theirs[place] == mine


def add(left: Rows, right: Rows, columns: int, xp: Any = np) -> Rows:
    """Return the sum of the same rows of two matrices, on the union of their patterns."""
    mine, theirs = _keys(left, columns, xp), _keys(right, columns, xp)
    both, place = xp.unique(xp.concatenate([mine, theirs]), return_inverse=True)
    place = place.reshape(-1)
    data = xp.zeros(len(both), xp.result_type(left[2].dtype, right[2].dtype))
    data[place[: len(mine)]] = left[2]
    data[place[len(mine) :]] += right[2]
    rows = len(left[0]) - 1
    indptr = xp.searchsorted(both, xp.arange(rows + 1, dtype=np.int64) * columns).astype(left[0].dtype)
    return indptr, (both % max(columns, 1)).astype(left[1].dtype), data
