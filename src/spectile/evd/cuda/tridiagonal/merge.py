"""Merges of divide and conquer: the rank-one problems of a level, and the last merge, which works in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix, empty_matrix
from spectile.evd.cuda.units import DIVIDE, ROOTS, VECTORS

#: Columns that one launch moves: a grid has at most 65,535 blocks along y.
MOST_MOVED = 32_768


def entries_shape(m: int, merges: int) -> Shape:
    """Launch of `order` and `rank`: one thread for each entry."""
    return Shape((-(-m // 256), merges), 256, 256 * 8)


def deflate_shape(merges: int) -> Shape:
    """Launch of `deflate`."""
    return Shape((merges,), 256, 256 * (8 + 8 + 4 + 8))


def roots_shape(m: int, merges: int) -> Shape:
    """Launch of `secular` and `refine_z`: one warp for each entry."""
    return Shape((-(-m // 4), merges), 128)


def vectors_shape(columns: int, merges: int) -> Shape:
    """Launch of `vectors`."""
    return Shape((columns, merges), 256, 64)


def rotate_shape(columns: int, merges: int) -> Shape:
    """Launch of `rotate`."""
    return Shape((-(-columns // 64), merges), 64)


def move_shape(rows: int, columns: int) -> Shape:
    """Launch of `move_columns`."""
    return Shape((-(-rows // 1024), columns), 256)


class Merges:
    """All merges of a level at once, from the eigenvalues of the halves to those of the wholes.

    `w` begins as the eigenvalues of the leaves, and each `solve` writes over them; `coupling` are off-diagonals, both
    of shape (order,).
    """

    def __init__(self, w: Any, coupling: Any, order: int, leaves: int) -> None:
        import cupy

        self.order, self._w, self._coupling = order, w, coupling
        self._ds, self._zs, self.dk, self._zk, self._zr, self._offset = (
            cupy.empty(order, np.float64) for _ in range(6)
        )
        self._column, self.kept, self._origin, self.of_rank, self.of_column = (
            cupy.empty(order, np.int32) for _ in range(5)
        )
        self.count, self.turns = cupy.empty(leaves, np.int32), cupy.empty(leaves, np.int32)
        self.pairs, self.rotations = cupy.empty((order, 2), np.int32), cupy.empty((order, 2), np.float64)
        self.m = 0

    def solve(self, q: Matrix, m: int, shift: int) -> None:
        """Solve the rank-one problems of order m; `shift` is where the blocks of the first half of Q stand."""
        self.m = m
        merges, m32, coupling = self.order // m, np.int32(m), self._coupling
        roots = (self._origin, self._offset)
        kernel(DIVIDE, "order")(
            entries_shape(m, merges),
            *(self._w, np.uintp(q.pointer), np.int64(q.ld), coupling, m32, np.int32(shift)),
            *(self._ds, self._zs, self._column),
        )
        kernel(DIVIDE, "deflate")(
            deflate_shape(merges),
            *(self._ds, self._zs, self._column, coupling, m32, self.count, self.dk, self._zk, self.kept),
            *(self.turns, self.pairs, self.rotations),
        )
        shape = roots_shape(m, merges)
        kernel(ROOTS, "secular")(shape, coupling, m32, self.count, self.dk, self._zk, *roots)
        kernel(ROOTS, "refine_z")(shape, m32, self.count, self.dk, self._zk, *roots, self._zr)
        kernel(DIVIDE, "rank")(
            entries_shape(m, merges),
            *(m32, self.count, self.dk, self.kept, *roots, self._w, self.of_rank, self.of_column),
        )

    def write_vectors(
        self, s: Any, columns: int, height: int, *, first: int = 0, ranks: Any = None, rows: Any = None,
        pairs: Any = None,
    ) -> None:  # fmt: skip
        """Write columns of each merge's eigenvector matrix to `s`, deflating rotations included.

        Parameters
        ----------
        s : cupy.ndarray
            merges x `columns` x `height`.
        columns, height : int
        first : int
            The first column; of `ranks`, where they are given.
        ranks, rows : cupy.ndarray of int32, optional
            Which columns and rows; None for 0, 1, 2, ...
        pairs : cupy.ndarray of int32, optional
            The pairs of the rotations, where rows have other places.
        """
        merges, m32 = self.order // self.m, np.int32(self.m)
        null = np.uintp(0)
        kernel(VECTORS, "vectors")(
            vectors_shape(columns, merges),
            *(m32, self.count, self.dk, self._zr, self._origin, self._offset, self.of_rank, self.of_column),
            *(null if ranks is None else ranks, np.int32(first), np.int32(columns)),
            *(null if rows is None else rows, np.int32(height), s),
        )
        kernel(VECTORS, "rotate")(
            rotate_shape(columns, merges),
            *(m32, self.turns, self.pairs if pairs is None else pairs, self.rotations),
            *(np.int32(columns), np.int32(height), s),
        )


class LastMerge:
    """The merge of the two halves of Q in place: only what is not deflated is multiplied.

    A dropped column that no rotation has touched moves to its place.  The merges are given after their last `solve`,
    `starts` are the first columns of the halves' blocks, `sizes` columns and rows at a time, as `workspace.merge_sizes`
    says, and `s` is room for the rank-one eigenvectors.
    """

    def __init__(
        self, blas: Blas, q: Matrix, merges: Merges, starts: tuple[int, int], sizes: tuple[int, int], s: Any
    ) -> None:
        import cupy

        self._blas, self._q, self._merges, self._starts, self._s = blas, q, merges, starts, s
        self._chunk, self._step = sizes
        m = self._m = merges.m
        self._half = m // 2
        of_rank, of_column = cupy.asnumpy(merges.of_rank), cupy.asnumpy(merges.of_column)
        touched = cupy.asnumpy(merges.pairs[: int(merges.turns[0])])
        active = of_column >= 0
        active[touched.ravel()] = True
        column_of_rank = cupy.asnumpy(merges.kept)[of_rank]
        moved = (of_rank >= int(merges.count[0])) & ~active[column_of_rank]
        products, moves = np.flatnonzero(~moved), np.flatnonzero(moved)
        self._products, self._moves = _list(products), _list(moves)
        self._order_columns(active, column_of_rank[moves])
        self._order_rows(active, touched)

    def _order_columns(self, active: np.ndarray, moved: np.ndarray) -> None:
        """List the columns of each half, those that are multiplied first, and where among them the `moved` ones are."""
        h = self._half
        self._columns, self._sources = [], []
        for start in (0, h):
            own = np.arange(start, start + h)
            ordered = np.concatenate([own[active[own]], own[~active[own]]])
            place = np.full(self._m, -1)
            place[ordered] = np.arange(h)
            self._columns.append(_list(ordered - start))
            self._sources.append(_list(place[moved]))

    def _order_rows(self, active: np.ndarray, touched: np.ndarray) -> None:
        """List the rows of both halves of S, each filled up to the same number, so many that columns are aligned."""
        h = self._half
        depth = max(int(active[:h].sum()), int(active[h:].sum()))
        depth = min(-(-depth // 16) * 16, h)
        rows, position = np.full(2 * depth, -1), np.zeros(self._m, np.int64)
        for start, first in ((0, 0), (h, depth)):
            own = start + np.flatnonzero(active[start : start + h])
            rows[first : first + len(own)] = own
            position[own] = first + np.arange(len(own))
        self._depth, self._rows, self._pairs = depth, _list(rows), _list(position[touched])

    def run(self) -> None:
        """Merge, `step` rows of each half at a time."""
        both = empty_matrix(self._step, self._m, np.float64)
        width = min(self._chunk, len(self._products))
        result = empty_matrix(self._step, 2 * width, np.float64)
        for row in range(0, self._half, self._step):
            rows = min(self._step, self._half - row)
            self._merge_rows(row, rows, both, result, width)

    def _merge_rows(self, row: int, rows: int, both: Matrix, result: Matrix, width: int) -> None:
        blas, q, h, depth = self._blas, self._q, self._half, self._depth
        tops = (row, row + h)
        parts = (both.pointer, both.at(0, h))
        for part, columns, start, top in zip(parts, self._columns, self._starts, tops, strict=True):
            _move_columns(q.at(top, start), q.ld, columns, part, both.ld, None, h, rows)
        for first in range(0, len(self._products), self._chunk):
            count = min(self._chunk, len(self._products) - first)
            self._merges.write_vectors(
                self._s, count, 2 * depth, first=first, ranks=self._products, rows=self._rows, pairs=self._pairs
            )
            blas.batched(
                *(rows, count, depth, 1.0, both.pointer, both.ld, h * both.ld, address(self._s), 2 * depth, depth),
                *(0.0, result.pointer, result.ld, width * result.ld, 2),
            )
            targets = self._products[first : first + count]
            for number, top in enumerate(tops):
                _move_columns(result.at(0, number * width), result.ld, None, q.at(top, 0), q.ld, targets, count, rows)
        for part, sources, top in zip(parts, self._sources, tops, strict=True):
            _move_columns(part, both.ld, sources, q.at(top, 0), q.ld, self._moves, len(self._moves), rows)


def _list(numbers: Any) -> Any:
    import cupy

    return cupy.asarray(np.ascontiguousarray(numbers, np.int32))


def _move_columns(
    source: int, lds: int, origins: Any, target: int, ldt: int, places: Any, columns: int, rows: int
) -> None:
    """Copy columns `origins` of the source to columns `places` of the target; None stands for 0, 1, 2, ..."""
    for first in range(0, columns, MOST_MOVED):
        count = min(MOST_MOVED, columns - first)
        # A list is cut; where there is none, the matrix begins further right.
        origin, own_source = (np.uintp(0), source + 8 * first * lds) if origins is None else (origins[first:], source)
        place, own_target = (np.uintp(0), target + 8 * first * ldt) if places is None else (places[first:], target)
        kernel(VECTORS, "move_columns")(
            move_shape(rows, count),
            *(np.uintp(own_source), np.int64(lds), origin, np.uintp(own_target), np.int64(ldt), place, np.int32(rows)),
        )
