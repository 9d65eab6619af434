"""Launches of the kernels of matrices with room for every tile, on the current device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.arrays import require_here
from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.tiles.cuda.units import GRID_SEARCH, block_warps, grid_unit, in_blocks, tiles_of_warp

_THREADS, _BINS = 256, 49
#: Numbers of a search, three thresholds first, and looks: the first is likely to be the last.
SEARCH, _LOOKS = 8, 3
#: Kinds of products, as they are made.
_KINDS = 3
#: Units of which float64 holds what products in float16 are scaled by.
_IN_HALVES = 2.0**-600, 2.0**600
#: Rows of products that a search looks at, about, and the share of a limit that it aims at where those are not all.
_LOOKED, _AIM = 72, 0.9
#: Half octaves below which, and above which, no first look begins; an octave is a power of two of norms in their unit.
_LOWEST, _HIGHEST = 2 * (127 + 2), 2 * (127 + 36)
#: The unit of norms in a search over what is about their largest: float32 has more room below 1 than above.
_LARGE = 2.0**-30
#: Maps of a result: norms, norms of what it differs from the added matrix by, rounding, products, what was left out.
NORMS, APART, LOST, PRODUCTS, SKIPPED, MAPS = 0, 1, 2, 3, 4, 5
_GRID = np.dtype([("rows", np.uint64), ("size", np.int32), ("_", np.int32)])
_ROUNDING = np.dtype([("unit", np.float64), ("least", np.float64), ("hermitian", np.int32), ("_", np.int32)])


class Room(NamedTuple):
    """Where the tiles of a square matrix are, on a GPU."""

    #: Where tile rows begin, and the end; rows of the given matrix in the order of the stored ones, or None: int64.
    rows: Any
    order: Any
    #: The same on the host.
    starts: np.ndarray
    permutation: np.ndarray | None
    #: Tile rows, rows, and rows of the largest tile.
    size: int
    n: int
    largest: int
    uniform: bool  #: Whether all tiles are of one size.

    @classmethod
    def of(cls, rows: np.ndarray, order: np.ndarray | None = None) -> Room:
        """Return the room for tiles that begin at these rows."""
        import cupy

        heights, there = np.diff(rows), None if order is None else cupy.asarray(order)
        sizes = len(heights), int(rows[-1]), int(heights.max()), bool((heights == heights[0]).all())
        return cls(cupy.asarray(rows), there, rows, order, *sizes)

    @property
    def argument(self) -> Any:
        """The same as kernels read it."""
        return np.array([(address(self.rows), self.size, 0)], _GRID)

    def unit(self, data: Any) -> Unit:
        """Return the unit for entries of this type."""
        return grid_unit(data.dtype.name, self.largest, self.uniform)


def _rounding(dtype: Any, hermitian: bool) -> Any:
    info = np.finfo(dtype)
    return np.array([(float(info.eps) / 2, float(info.smallest_subnormal), int(hermitian), 0)], _ROUNDING)


def _by_tiles(room: Room) -> Shape:
    return Shape((ceil_div(32 * room.size**2, _THREADS),), _THREADS)


def _optional(array: Any) -> Any:
    return np.uint64(0) if array is None else array


def search_product(
    room: Room, a: Any, turned_a: Any, b: Any, turned_b: Any, units: tuple[float, float], hermitian: bool, limit: float,
    guess: float, share: float, least: float, spectral: bool, halves: bool,
) -> Any:  # fmt: skip
    """Return the largest threshold of products that leaves out about `limit` at most, and others.

    An array of the device, whose first three numbers they are (with `halves` products below the second one may be made
    in float16, below the third one of two float16 for each number), then bounds of what is left out in the Frobenius
    norm and the spectral one (of Hermitian results), estimates where some of the rows were looked at.  `units` are
    powers of two, about the norms of the matrices.  `share` of all of the product, and `least`, are kept back for
    rounding, at most half of the limit.
    """
    units = units[0] * _LARGE, units[1] * _LARGE
    narrow: dict[int, Any] = {}
    for one, unit in ((a, units[0]), (turned_a, units[0]), (b, units[1]), (turned_b, units[1])):
        narrow[id(one)] = narrow.get(id(one)) if id(one) in narrow else _narrowed(one, unit)
    maps = [narrow[id(one)] for one in (a, turned_a, b, turned_b)]
    stride = max(1, room.size // _LOOKED)
    looked, parts = ceil_div(room.size - stride // 2, stride), ceil_div(room.size, _THREADS)
    shape = Shape((looked * parts,), _THREADS, 4 * ((_BINS + 1) * _THREADS + 2 * room.size))

    def look(*begun: Any) -> None:
        sizes = np.int32(room.size), np.int32(hermitian), np.int32(stride)
        kernel(GRID_SEARCH, "grid_left_out")(shape, *maps, *sizes, *begun)

    limit *= _AIM if stride > 1 else 1.0
    return _searched(room, look, (looked, parts), units[0] * units[1], limit, guess, share, least, halves, spectral)


def search_tiles(room: Room, norms: Any, unit: float, limit: float, guess: float, spectral: bool) -> Any:
    """Return the same of the tiles of a matrix: of all norms below the threshold."""
    unit *= _LARGE
    shape, narrow = Shape((room.size,), _THREADS, 4 * (_BINS + 1) * _THREADS), _narrowed(norms, unit)

    def look(*begun: Any) -> None:
        kernel(GRID_SEARCH, "grid_dropped")(shape, narrow, np.int32(room.size), *begun)

    return _searched(room, look, (room.size, 1), unit, limit, guess, 0.0, 0.0, False, spectral)


def _narrowed(norms: Any, unit: float) -> Any:
    import cupy

    out = cupy.empty(norms.shape, np.float32)
    shape = Shape((ceil_div(norms.size, _THREADS),), _THREADS)
    kernel(GRID_SEARCH, "grid_narrowed")(shape, norms, np.float64(unit), out, np.int64(norms.size))
    return out


def _searched(
    room: Room, look: Any, looked: tuple[int, int], unit: float, limit: float, guess: float, share: float, least: float,
    halves: bool, spectral: bool,
) -> Any:  # fmt: skip
    import cupy

    state, rows = cupy.empty(SEARCH), cupy.empty((_BINS, 2, math.prod(looked)))
    exponent = math.frexp(guess / unit)[1] if guess > 0 else -1000
    begin = np.int32(min(max(2 * (126 + exponent) - _BINS // 3, _LOWEST), _HIGHEST))
    for number in range(_LOOKS):
        first = np.int32(number == 0)
        look(state, first, begin, rows)
        kernel(GRID_SEARCH, "grid_narrow")(
            Shape((1,), 1024), state, rows, *map(np.int32, (*looked, room.size)), first, begin, np.float64(unit),
            np.float64(limit), np.float64(share), np.float64(least), np.int32(halves), np.int32(spectral),
        )  # fmt: skip
    return state


def drop(norms: Any, found: Any) -> None:
    """Drop the tiles whose norms are below a threshold that was found."""
    shape = Shape((ceil_div(norms.size, _THREADS),), _THREADS)
    kernel(GRID_SEARCH, "grid_drop")(shape, norms, found, np.int64(norms.size))


def multiply(
    room: Room, a: Any, norms_a: Any, b: Any, turned_b: Any, d: Any, norms_d: Any, found: Any, unit: float,
    alpha: float, beta: float, shift: float, hermitian: bool, hermitian_b: bool, halves_a: Any = None,
    halves_b: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return ``alpha A B + beta D + shift I`` with the products that were found, and its maps.

    Norms reach the first threshold of `found`; where tiles are in blocks, products below the second one are made in
    float16, and below the third one of two float16 for each number.  `unit`, a power of two, is no smaller than the
    product of the norms of the matrices.  What `halved` makes of A and of a Hermitian B may be given.
    """
    import cupy

    for one in (a, b) if d is None else (a, b, d):
        require_here("the matrix", one)
    kind = a.dtype.name, room.largest, room.uniform
    if in_blocks(*kind) and not hermitian_b:
        b, halves_b = adjoint(room, b, turned_b), None
    if in_blocks(*kind) and _IN_HALVES[0] < unit < _IN_HALVES[1]:
        halves_a = halved(room, a, norms_a) if halves_a is None else halves_a
        if halves_b is None:
            halves_b = halves_a if b is a and turned_b is norms_a else halved(room, b, turned_b)
    else:
        halves_a = halves_b = None
    c, maps = cupy.empty_like(a), cupy.empty((MAPS, room.size, room.size))
    lists = cupy.empty((room.size, room.size, _KINDS, ceil_div(room.size, 32)), np.uint32)
    numbers = np.float64(unit), np.float64(alpha), np.float64(beta), np.float64(shift), room.argument
    kernel(room.unit(a), "grid_list")(
        _by_tiles(room), norms_a, turned_b, _optional(norms_d), found, np.int32(halves_a is not None), *numbers,
        _rounding(a.dtype, hermitian), lists, maps,
    )  # fmt: skip
    warps = block_warps()
    down, across = ceil_div(room.size, tiles_of_warp(*kind) * warps[0]), ceil_div(room.size, warps[1])
    kernel(room.unit(a), "grid_multiply")(
        Shape((down * across,), 32 * warps[0] * warps[1]), a, norms_a, b, turned_b, _optional(halves_a),
        _optional(halves_b), _optional(d), _optional(norms_d), lists, *numbers, np.int32(hermitian), c, maps,
        np.int32(down), np.int32(across),
    )  # fmt: skip
    return c, maps


def halved(room: Room, a: Any, norms: Any) -> Any:
    """Return the tiles as two float16 for each number, where they are in blocks: see grid.cu."""
    import cupy

    out = cupy.empty(a.size, np.uint32)
    kernel(room.unit(a), "grid_halved")(_by_tiles(room), a, norms, room.argument, out)
    return out


def adjoint(room: Room, a: Any, norms: Any) -> Any:
    """Return the conjugate transpose, whose map of norms is given."""
    import cupy

    c = cupy.empty_like(a)
    kernel(room.unit(a), "grid_adjoint")(_by_tiles(room), a, norms, room.argument, c)
    return c


def combine(
    room: Room, a: Any, norms_a: Any, alpha: float, b: Any, norms_b: Any, beta: float, shift: float, hermitian: bool
) -> tuple[Any, Any]:
    """Return ``alpha A + beta B + shift I`` and its maps."""
    import cupy

    c, maps = cupy.empty_like(a), cupy.empty((MAPS, room.size, room.size))
    kernel(room.unit(a), "grid_combine")(
        _by_tiles(room), a, norms_a, np.float64(alpha), _optional(b), _optional(norms_b), np.float64(beta),
        np.float64(shift), room.argument, _rounding(a.dtype, hermitian), c, maps,
    )  # fmt: skip
    return c, maps


def dots(room: Room, a: Any, norms_a: Any, b: Any, norms_b: Any) -> Any:
    """Return the inner products of the tiles, real and imaginary parts, shape (2, size, size)."""
    import cupy

    out = cupy.empty((2, room.size, room.size))
    kernel(room.unit(a), "grid_dots")(_by_tiles(room), a, norms_a, b, norms_b, room.argument, out)
    return out


def row_sums(room: Room, a: Any, norms: Any) -> Any:
    """Return the sums of moduli over the rows of the matrix."""
    import cupy

    out = cupy.empty(room.n)
    kernel(room.unit(a), "grid_row_sums")(Shape((room.size,), _THREADS), a, norms, room.argument, out)
    return out


def diagonal(room: Room, a: Any, norms: Any) -> Any:
    """Return the real parts of the diagonal."""
    import cupy

    out = cupy.empty(room.n)
    kernel(room.unit(a), "grid_diagonal")(Shape((room.size,), 32), a, norms, room.argument, out)
    return out


def of_dense(room: Room, a: Any, hermitian: bool) -> tuple[Any, Any]:
    """Return a dense matrix in tiles, or its Hermitian part, and its maps: apart is how far that is."""
    import cupy

    c, maps = cupy.empty(room.n * room.n, a.dtype), cupy.empty((MAPS, room.size, room.size))
    kernel(room.unit(a), "grid_of_dense")(
        _by_tiles(room), a, _optional(room.order), room.argument, np.int32(hermitian), c, maps
    )
    return c, maps


def to_dense(room: Room, a: Any, norms: Any) -> Any:
    """Return a dense matrix, in the order of the given one."""
    import cupy

    out = cupy.empty((room.n, room.n), a.dtype)
    kernel(room.unit(a), "grid_to_dense")(_by_tiles(room), a, norms, _optional(room.order), room.argument, out)
    return out


def copy(room: Room, flat: Any, starts: Any, places: Any, grid: Any, to_grid: bool) -> None:
    """Copy tiles at `places` of the map from a flat array, where they begin at `starts`, or to it."""
    tiles = len(places)
    if tiles:
        shape = Shape((ceil_div(32 * tiles, _THREADS),), _THREADS)
        kernel(room.unit(grid), "grid_copy")(
            shape, flat, starts, places, room.argument, np.int32(to_grid), grid, np.int32(tiles)
        )


def totals(room: Room, maps: Any) -> Any:
    """Return of each map the root of its squares, its largest sum over a row, its sum, and how many are not 0."""
    import cupy

    count = len(maps)
    rows, out = cupy.empty((count, 3, room.size)), cupy.empty((count, 4))
    kernel(GRID_SEARCH, "grid_rows")(Shape((count * room.size,), _THREADS), maps, np.int32(room.size), rows)
    kernel(GRID_SEARCH, "grid_totals")(Shape((1,), 32 * count), rows, np.int32(room.size), out)
    return out


def spectral_bound(room: Room, norms: Any, steps: int) -> Any:
    """Return a bound, but for rounding, of the spectral norm of a Hermitian matrix with these norms of tiles, an array.

    For a map N of norms and positive y: ``||N||_2 <= max(N y / y)``, sharpened by steps of the power method.
    """
    import cupy

    image, quotients = None, cupy.empty((steps, room.size))
    for step in range(steps):
        before, image = image, cupy.empty(room.size)
        kernel(GRID_SEARCH, "grid_sharpen")(
            Shape((room.size,), _THREADS), norms, _optional(before), np.int32(room.size), image, quotients[step]
        )
    return quotients.max(axis=1).min().reshape(1)
