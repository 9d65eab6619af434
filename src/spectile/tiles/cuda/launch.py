"""Launches of the kernels of tile matrices, on the current device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spectile.core.arrays import require_here
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.tiles.cuda.units import SEARCH, product_unit, tiles_unit

_THREADS = 256
#: Thresholds that are looked at together.
TAUS = 8


class Places(NamedTuple):
    """Where tiles are and how large, as the kernels read it."""

    starts: Any  #: Where each tile begins, and the end: int64.
    #: Rows and columns of each tile: int32.
    heights: Any
    widths: Any

    @classmethod
    def of(cls, starts: np.ndarray, heights: np.ndarray, widths: np.ndarray) -> Places:
        """Return the same of arrays of the host."""
        import cupy

        return cls(cupy.asarray(starts), *(cupy.asarray(size.astype(np.int32)) for size in (heights, widths)))


def _by_warps(name: str, data: Any, tiles: int, *arguments: Any) -> None:
    require_here("the matrix", data)
    if tiles:
        shape = Shape((ceil_div(32 * tiles, _THREADS),), _THREADS)
        kernel(tiles_unit(data.dtype.name), name)(shape, *arguments, np.int32(tiles))


def norms(data: Any, places: Places) -> Any:
    """Return the Frobenius norms of the tiles, rounded to nearest."""
    import cupy

    tiles = len(places.heights)
    out = cupy.empty(tiles)
    _by_warps("norms", data, tiles, data, places.starts, out)
    return out


def line_sums(data: Any, places: Places, first_rows: Any, first_columns: Any, rows: int, columns: int) -> Any:
    """Return the sums of moduli over each row of each tile, which begin at `first_rows`, and over each column."""
    import cupy

    out = cupy.empty(rows), cupy.empty(columns)
    firsts = cupy.asarray(first_rows), cupy.asarray(first_columns)
    tiles = len(places.heights)
    _by_warps("line_sums", data, tiles, data, *places, *firsts, *out, cupy.empty((tiles, 2)))
    return out


def largest_line_sums(data: Any, places: Places) -> Any:
    """Return the largest sum of moduli over a row and over a column of each tile, shape (tiles, 2)."""
    import cupy

    none = np.uint64(0)
    largest = cupy.empty((len(places.heights), 2))
    _by_warps("line_sums", data, len(largest), data, *places, none, none, none, none, largest)
    return largest


def gather(
    given: Any, sources: np.ndarray, flipped: np.ndarray, places: Places, out: Any, pitches: tuple[int, int] = (0, 0)
) -> None:
    """Copy the tiles that begin at `sources` to their places in `out`, those that are flipped transposed and conjugate.

    `given` may lie on another device, whose memory the current one reaches.  Rows of a tile follow one another, or
    begin so many entries apart, in `given` and in `out`.
    """
    import cupy

    held = cupy.asarray(sources), cupy.asarray(flipped.astype(np.uint8))
    _by_warps("gather", out, len(sources), given, *held, out, *places, *map(np.int64, pitches))


def add(factor: complex, given: Any, places: Places, targets: np.ndarray, out: Any) -> None:
    """Add a multiple of tiles to those of `out` that begin at `targets`; both of one type."""
    import cupy

    parts = np.float64(factor.real), np.float64(factor.imag)
    _by_warps("add", given, len(targets), *parts, given, places.starts, out, cupy.asarray(targets))


def dots(x: Any, at_x: np.ndarray, y: Any, at_y: np.ndarray, sizes: np.ndarray) -> Any:
    """Return the inner products of tiles that begin at these places, of one type: real and imaginary parts."""
    import cupy

    out = cupy.empty((len(sizes), 2))
    at_x, at_y, sizes = (cupy.asarray(one) for one in (at_x, at_y, sizes))
    _by_warps("dots", x, len(sizes), x, at_x, y, at_y, sizes, out)
    return out


def residuals(values: Any, vectors: Any, image: Any, gram: Any) -> Any:
    """Return the values, and sums of squares over each row of ``V A - W V`` and of ``V V* - I``, shape (3, rows)."""
    import cupy

    out = cupy.empty((3, len(values)))
    rows = (cupy.ascontiguousarray(one) for one in (values, vectors, image, gram))
    _by_warps("residuals", image, len(values), *rows, np.int64(vectors.shape[1]), out)
    return out


def multiply(
    a: Any, in_a: Places, b: Any, in_b: Places, pointer: np.ndarray, left: np.ndarray, right: np.ndarray, c: Any,
    in_c: Places, largest: tuple[int, int],
) -> None:  # fmt: skip
    """Write the sums of the listed products to the tiles of C, none of more rows and columns than `largest`."""
    import cupy

    tiles = len(pointer) - 1
    require_here("the first matrix", a)
    require_here("the second matrix", b)
    if not tiles:
        return
    unit, down, across = product_unit(c.dtype.name, *largest)
    pointer, left, right = (cupy.asarray(one) for one in (pointer, left, right))
    # The longest lists begin first, so that none is left for the end.
    order = cupy.argsort(-cupy.diff(pointer)).astype(np.int32)
    shape = Shape((tiles * down * across,), 32)
    kernel(unit, "multiply")(
        shape, a, in_a.starts, in_a.widths, b, in_b.starts, pointer, left, right, c, *in_c, order, np.int32(down),
        np.int32(across),
    )  # fmt: skip


class Maps(NamedTuple):
    """What is known of all tiles of two factors, as maps that are zero where there is no tile."""

    #: Norms, float64, shapes (rows, inner) and (inner, columns).
    a: Any
    b: Any
    #: Numbers of the tiles, int32.
    numbers_a: Any
    numbers_b: Any


def _by_pairs(maps: Maps) -> Shape:
    """Return a launch with a thread for each tile of C, each block in one of its rows."""
    return Shape((maps.a.shape[0] * ceil_div(maps.b.shape[1], _THREADS),), _THREADS)


def left_out(maps: Maps, taus: np.ndarray) -> Any:
    """Return the sums of products of norms below each of `TAUS` thresholds, for each tile of C."""
    import cupy

    (rows, inner), columns = maps.a.shape, maps.b.shape[1]
    sums = cupy.empty((TAUS, rows, columns))
    kernel(SEARCH, "left_out")(
        _by_pairs(maps), maps.a, maps.b, cupy.asarray(taus), sums, np.int64(rows), np.int32(inner), np.int32(columns)
    )
    return sums


def kept(maps: Maps, sizes: np.ndarray, tau: float, upper: bool) -> tuple[Any, Any, Any]:
    """Return of each tile of C the products that are kept, the sum of their norms, and the terms of an entry."""
    import cupy

    (rows, inner), columns = maps.a.shape, maps.b.shape[1]
    counts, sums, terms = (cupy.empty((rows, columns), dtype) for dtype in (np.int32, np.float64, np.int32))
    kernel(SEARCH, "kept")(
        _by_pairs(maps), maps.a, maps.b, cupy.asarray(sizes.astype(np.int32)), np.float64(tau), np.int32(upper), counts,
        sums, terms, np.int32(inner), np.int32(columns),
    )  # fmt: skip
    return counts, sums, terms


def listed(maps: Maps, tau: float, places: Any, pointer: Any, first: int, last: int) -> tuple[Any, Any, Any]:
    """Return tiles of A and of B whose products are added to those at ``places[first:last]`` of the map of C.

    Before them stands where those of each begin, from 0 on, and the end, as `pointer` has it for all.
    """
    import cupy

    inner, columns = maps.b.shape
    tiles, pointer = last - first, pointer[first : last + 1] - pointer[first]
    left, right = (cupy.empty(int(pointer[-1]), np.int32) for _ in range(2))
    if tiles:
        shape = Shape((ceil_div(32 * tiles, _THREADS),), _THREADS)
        kernel(SEARCH, "list")(
            shape, maps.a, maps.b, maps.numbers_a, maps.numbers_b, np.float64(tau), places[first:last],
            pointer, left, right, np.int32(inner), np.int32(columns), np.int32(tiles),
        )  # fmt: skip
    return pointer, left, right
