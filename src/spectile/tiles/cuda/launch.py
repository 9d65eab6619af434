"""Launches of the kernels of tile matrices, on the current device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spectile.core.arrays import require_here
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.tiles.cuda.units import product_unit, tiles_unit

_THREADS = 256


class Places(NamedTuple):
    """Where tiles are and how large, as the kernels read it.

    Attributes
    ----------
    starts : cupy.ndarray of int64
        Where each tile begins, and the end.
    heights, widths : cupy.ndarray of int32
        Rows and columns of each tile.
    """

    starts: Any
    heights: Any
    widths: Any


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
    _by_warps("line_sums", data, len(places.heights), data, *places, *firsts, *out)
    return out


def gather(given: Any, sources: np.ndarray, flipped: np.ndarray, places: Places, size: int) -> Any:
    """Return tiles that begin at `sources`, those that are flipped transposed and conjugate."""
    import cupy

    out = cupy.empty(size, given.dtype)
    held = cupy.asarray(sources), cupy.asarray(flipped.astype(np.uint8))
    _by_warps("gather", given, len(sources), given, *held, out, *places)
    return out


def add(given: Any, places: Places, targets: np.ndarray, out: Any) -> None:
    """Add tiles to those of `out` that begin at `targets`; both of one type."""
    import cupy

    _by_warps("add", given, len(targets), given, places.starts, out, cupy.asarray(targets))


def dots(x: Any, at_x: np.ndarray, y: Any, at_y: np.ndarray, sizes: np.ndarray) -> Any:
    """Return the inner products of tiles that begin at these places, of one type: real and imaginary parts."""
    import cupy

    out = cupy.empty((len(sizes), 2))
    at_x, at_y, sizes = (cupy.asarray(one) for one in (at_x, at_y, sizes))
    _by_warps("dots", x, len(sizes), x, at_x, y, at_y, sizes, out)
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
    # The longest lists begin first, so that none is left for the end.
    order = np.argsort(-np.diff(pointer), kind="stable").astype(np.int32)
    lists = (cupy.asarray(one) for one in (pointer, left, right))
    shape = Shape((tiles * down * across,), 32)
    kernel(unit, "multiply")(
        shape, a, in_a.starts, in_a.widths, b, in_b.starts, *lists, c, *in_c, cupy.asarray(order), np.int32(down),
        np.int32(across),
    )  # fmt: skip
