"""Which tiles a matrix stores and where: the host's side of a tile matrix, the same for the CPU and a GPU.

The tiles of a tile row follow one another by rising tile column, each with its rows contiguous, in one flat array.  A
Hermitian matrix stores its diagonal tiles and those above; :meth:`Layout.whole` has them all.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import numpy as np

from spectile.core.arrays import host_array
from spectile.core.options import flag
from spectile.core.pointers import without_read_only
from spectile.core.tiling import ceil_div
from spectile.tiles import kernels
from spectile.tiles.cuda import launch
from spectile.tiles.cuda.launch import Places
from spectile.tiles.spread import Spread, meeting


def offsets(name: str, length: int | None, tiles: Any) -> np.ndarray:
    """Return where tiles begin, and the end: of tiles of one size, or of a list of sizes.

    Parameters
    ----------
    name : str
        The argument's name, for messages.
    length : int or None
        Rows in all; None for as many as the tiles have.
    tiles : int or sequence of int
        Rows of every tile, the last one having what is left, or of each.

    Raises
    ------
    ValueError
        If a size is not positive, or the sizes do not add up to `length`.

    Examples
    --------
    >>> offsets("rows", 5, 2).tolist(), offsets("rows", 5, [1, 4]).tolist()
    ([0, 2, 4, 5], [0, 1, 5])
    """
    sizes = host_array(name, tiles)
    if sizes.size and not np.issubdtype(sizes.dtype, np.integer):
        raise TypeError(f"{name} is of {sizes.dtype}: pass whole numbers of rows")
    length = int(sizes.sum()) if length is None else length
    if sizes.ndim == 0:
        size = int(sizes)
        if size <= 0:
            raise ValueError(f"{name} is {size}: pass a positive number of rows")
        size = min(size, max(1, length))
        return np.minimum(np.arange(ceil_div(length, size) + 1) * size, length)
    if sizes.ndim != 1 or (sizes <= 0).any():
        raise ValueError(f"{name} has a tile without rows: pass positive sizes, as numpy.diff of where tiles begin")
    if int(sizes.sum()) != length:
        raise ValueError(f"{name} adds up to {int(sizes.sum())}, and the matrix has {length}: pass sizes that fit")
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class Layout:
    """The stored tiles of a matrix.

    Parameters
    ----------
    rows, columns : numpy.ndarray of int64
        Where tile rows and tile columns begin, and the end.
    indptr, indices : numpy.ndarray of int64
        Tile columns of each tile row, as in CSR, rising.
    hermitian : bool
        Whether the tiles below the diagonal are those above, transposed and conjugate.
    """

    def __init__(self, rows: Any, columns: Any, indptr: Any, indices: Any, hermitian: bool = False) -> None:
        self.rows, self.columns = without_read_only(rows), without_read_only(columns)
        self.hermitian = flag("hermitian", hermitian)
        self.indptr, self.indices = np.asarray(indptr, np.int64), np.asarray(indices, np.int64)
        self._placed: dict[int, Places] = {}
        self._parts: dict[tuple[int, ...], list[tuple[slice, Layout]]] = {}
        #: Another layout, and what :func:`joined` made of both: a step adds the same matrices twice.
        self._last: Any = None

    @classmethod
    def of_keys(cls, rows: Any, columns: Any, keys: Any, hermitian: bool = False) -> Layout:
        """Return the layout of tiles by their numbers in row-major order, rising."""
        width = max(1, len(columns) - 1)
        firsts = np.arange(len(rows)) * width
        indptr = np.searchsorted(keys, firsts)
        made = cls(rows, columns, indptr, keys - np.repeat(firsts[:-1], np.diff(indptr)), hermitian)
        made.keys = np.asarray(keys, np.int64)
        return made

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return int(self.rows[-1]), int(self.columns[-1])

    @property
    def grid(self) -> tuple[int, int]:
        """Tile rows and tile columns."""
        return len(self.rows) - 1, len(self.columns) - 1

    @cached_property
    def tile_rows(self) -> np.ndarray:
        """The tile row of each tile."""
        return np.repeat(np.arange(self.grid[0]), np.diff(self.indptr))

    @cached_property
    def keys(self) -> np.ndarray:
        """The number of each tile in row-major order."""
        return self.tile_rows * self.grid[1] + self.indices

    @cached_property
    def heights(self) -> np.ndarray:
        """Rows of each tile."""
        return np.diff(self.rows)[self.tile_rows]

    @cached_property
    def widths(self) -> np.ndarray:
        """Columns of each tile."""
        return np.diff(self.columns)[self.indices]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each tile begins in the flat array, and the end."""
        out = np.zeros(len(self.indices) + 1, np.int64)
        np.cumsum(self.heights * self.widths, out=out[1:])
        return out

    @property
    def largest(self) -> float:
        """The root of the number of entries that a tile has at most."""
        return float(np.sqrt(np.diff(self.rows).max(initial=0) * np.diff(self.columns).max(initial=0)))

    def in_dense(self) -> np.ndarray:
        """Return where each tile begins in a dense matrix, by rows."""
        return self.rows[self.tile_rows] * self.shape[1] + self.columns[self.indices]

    @cached_property
    def mirrored(self) -> np.ndarray:
        """Which tiles stand for two."""
        return self.hermitian & (self.tile_rows != self.indices)

    @cached_property
    def copies(self) -> np.ndarray:
        """How many tiles of the matrix each one stands for, float64."""
        return 1.0 + self.mirrored

    @cached_property
    def longest(self) -> int:
        """The columns of the tiles of a tile row, at most."""
        return int(np.bincount(self.tile_rows, self.widths, self.grid[0]).max(initial=0))

    @cached_property
    def diagonal(self) -> np.ndarray:
        """The numbers of the tiles on the diagonal."""
        return np.flatnonzero(self.tile_rows == self.indices)

    def on_diagonal(self) -> np.ndarray:
        """Return where the entries of the diagonal are, of the diagonal tiles that are stored, which are square."""
        starts, sizes = self.starts[self.diagonal], self.heights[self.diagonal]
        step = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.repeat(starts, sizes) + step * (np.repeat(sizes, sizes) + 1)

    def placed(self) -> Places:
        """Return where the tiles are and how large, on the current GPU."""
        import cupy

        device = cupy.cuda.runtime.getDevice()
        if device not in self._placed:
            self._placed[device] = Places.of(self.starts, self.heights, self.widths)
        return self._placed[device]

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is on a GPU behind."""
        return self.__dict__ | {"_placed": {}, "_parts": {}, "_last": None}

    def parts(self, cuts: tuple[int, ...]) -> list[tuple[slice, Layout]]:
        """Return the tiles between cuts of the tile rows, and the layouts of the matrices that have no others."""
        if cuts not in self._parts:
            self._parts[cuts] = [
                (slice(first, last), Layout(
                    self.rows, self.columns, np.clip(self.indptr, first, last) - first, self.indices[first:last],
                    self.hermitian,
                ))
                for first, last in itertools.pairwise(self.indptr[list(cuts)].tolist())
            ]  # fmt: skip
        return self._parts[cuts]

    def work(self) -> np.ndarray:
        """Return how many products each tile row of the square of a Hermitian matrix is made of, in its upper half."""
        whole = self.whole[0]
        first = np.searchsorted(whole.keys, whole.indices * self.grid[1] + whole.tile_rows)
        return np.bincount(whole.tile_rows, whole.indptr[whole.indices + 1] - first, self.grid[0])

    def transposed(self) -> tuple[Layout, np.ndarray]:
        """Return the layout of the transpose, and which tile each of its tiles is."""
        import scipy.sparse

        numbered = np.arange(len(self.indices)), self.indices, self.indptr
        turned = scipy.sparse.csr_array(numbered, self.grid).tocsc()
        return Layout(self.columns, self.rows, turned.indptr, turned.indices), turned.data

    @cached_property
    def whole(self) -> tuple[Layout, np.ndarray, np.ndarray]:
        """Return the layout with the tiles below the diagonal, which tile each one is, and which are mirror images."""
        order = self.transposed()[1]
        twice = order[self.mirrored[order]]
        mirror = self.indices[twice] * self.grid[1] + self.tile_rows[twice]
        keys, places = merged(self.keys, mirror)
        source, flipped = np.empty(len(keys), np.int64), np.zeros(len(keys), bool)
        source[places[0]], source[places[1]] = np.arange(len(self.keys)), twice
        flipped[places[1]] = True
        return Layout.of_keys(self.rows, self.columns, keys), source, flipped

    def squared(self) -> np.ndarray:
        """Return how many tiles each tile row of the square of a Hermitian matrix has, where none is zero."""
        whole, (counts, mark, products) = self.whole[0], np.zeros((3, self.grid[0]), np.int64)
        pattern = whole.indptr, whole.indices, np.ones(len(whole.indices))
        kernels.count_products(*pattern, *pattern, 0.0, False, mark, 0, len(counts), counts, products)
        return counts

    def shared(self, other: Layout) -> Layout:
        """Return this layout where the other one is the same, with all that is known of it, and else the other one."""
        same = self.hermitian == other.hermitian and np.array_equal(self.columns, other.columns)
        same = same and np.array_equal(self.indptr, other.indptr) and np.array_equal(self.indices, other.indices)
        return self if same and np.array_equal(self.rows, other.rows) else other

    def of_tiles(self, kept: Any) -> Layout:
        """Return the layout of some of the tiles, by their numbers, rising."""
        return Layout.of_keys(self.rows, self.columns, self.keys[kept], self.hermitian)


def merged(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the numbers that either of two rising lists without repetitions has, rising, and where theirs are.

    >>> merged(np.array([1, 5]), np.array([0, 5]))
    (array([0, 1, 5]), (array([1, 2]), array([0, 2])))
    """
    both, of_a, of_b = (np.empty(count, np.int64) for count in (len(a) + len(b), len(a), len(b)))
    return both[: kernels.merge(a, b, both, of_a, of_b)], (of_a, of_b)


def joined(a: Layout, b: Layout) -> tuple[Layout, list[np.ndarray]]:
    """Return the layout of the tiles that either of two has, of one partition, and where theirs are in it."""
    if a.shared(b) is a:
        return a, [np.arange(len(a.indices))] * 2
    if a._last is None or a._last[0] is not b:
        keys, places = merged(a.keys, b.keys)
        held = [one for one in (a, b) if len(one.indices) == len(keys)]
        made = held[0] if held else Layout.of_keys(a.rows, a.columns, keys, a.hermitian)
        a._last = b, made, [*places]
    return a._last[1:]


def owners(xp: Any, starts: Any) -> Any:
    """Return which range each of the entries from ``starts[0]`` to ``starts[-1]`` is in."""
    if xp is np:
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    at = xp.asarray(starts)
    return xp.searchsorted(at[1:], xp.arange(int(starts[-1])), side="right")


def gather(xp: Any, data: Any, given: Layout, wanted: Layout, source: Any, flipped: Any = None) -> Any:
    """Return the flat array of tiles that are tiles of another array, some of them transposed and conjugate.

    Each tile of the result, of the layout `wanted`, is tile `source` of `data`, of the layout `given`.
    """
    turned = np.zeros(len(source), bool) if flipped is None else flipped
    if isinstance(data, Spread):
        parts = wanted.parts(data.cuts)
        with meeting(data.parts):
            return data.made(
                lambda at: collected(xp, at, data, given, parts[at][1], source[parts[at][0]], turned[parts[at][0]])
            )
    out = xp.empty(int(wanted.starts[-1]), data.dtype)
    _copy(xp, data, given.starts[source], turned, wanted, out)
    return out


def _copy(
    xp: Any, data: Any, sources: Any, turned: Any, wanted: Layout, out: Any, pitches: tuple[int, int] = (0, 0)
) -> None:
    """Copy tiles that begin at `sources` to those of a layout, or of a dense matrix where the second pitch is not 0."""
    starts = wanted.in_dense() if pitches[1] else wanted.starts
    if xp is np:
        kernels.gather(data, sources, starts, wanted.heights, wanted.widths, turned, *pitches, out)
    else:
        places = wanted.placed()  # which keeps where its tiles begin there
        at = places._replace(starts=xp.asarray(starts)) if pitches[1] else places
        launch.gather(data, sources, turned, at, out, pitches)


def to_dense(xp: Any, data: Any, layout: Layout) -> Any:
    """Return tiles as a dense matrix."""
    out, width = xp.zeros(layout.shape, data.dtype), layout.shape[1]
    whole, source, turned = layout, np.arange(len(layout.indices)), np.zeros(len(layout.indices), bool)
    if layout.hermitian:
        whole, source, turned = layout.whole
    _copy(xp, data, layout.starts[source], turned, whole, out.reshape(-1), (0, width))
    return out


def of_dense(xp: Any, a: Any, layout: Layout) -> Any:
    """Return the flat array of tiles of a dense matrix."""
    a, out = xp.ascontiguousarray(a), xp.empty(int(layout.starts[-1]), a.dtype)
    turned = np.zeros(len(layout.indices), bool)
    _copy(xp, a.reshape(-1), layout.in_dense(), turned, layout, out, (a.shape[1], 0))
    return out


def collected(xp: Any, reader: int, data: Spread, given: Layout, wanted: Layout, source: Any, turned: Any) -> Any:
    """Return the flat array of tiles of any parts, on the device of one of them, where the devices meet."""
    out, ends = xp.empty(int(wanted.starts[-1]), data.dtype), given.indptr[list(data.cuts)]
    owner = np.searchsorted(ends, source, side="right") - 1
    for number in np.unique(owner).tolist():
        mine = np.flatnonzero(owner == number)
        at = given.starts[source[mine]] - given.starts[ends[number]]
        to = wanted.starts[mine], wanted.heights[mine], wanted.widths[mine]
        if xp is np:
            kernels.gather(data.parts[number], at, *to, turned[mine], 0, 0, out)
        else:
            launch.gather(data.reached(number, reader), at, turned[mine], Places.of(*to), out)
    return out
