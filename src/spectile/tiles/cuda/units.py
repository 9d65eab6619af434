"""CUDA units of tile matrices, by the type of the entries."""

from __future__ import annotations

import functools

from spectile.core.compile import PORTABLE, Unit
from spectile.core.tiling import ceil_div

_TYPES = {
    "float32": {"REAL": "float", "COMPLEX": "0"},
    "float64": {"REAL": "double", "COMPLEX": "0"},
    "complex64": {"REAL": "float", "COMPLEX": "1"},
    "complex128": {"REAL": "double", "COMPLEX": "1"},
}
#: Parts of 16 rows and of 8 columns of a tile that a warp's registers hold.
_MOST_DOWN, _MOST_ACROSS = 2, 4


def _unit(source: str, dtype: str, **more: object) -> Unit:
    defines = _TYPES[dtype] | {name: str(value) for name, value in more.items()}
    return Unit(__package__, (source,), PORTABLE, defines)


@functools.cache
def tiles_unit(dtype: str) -> Unit:
    """Return the unit of what is done with each tile alone."""
    return _unit("tiles.cu", dtype)


@functools.cache
def _product_unit(dtype: str, down: int, across: int) -> Unit:
    return _unit("product.cu", dtype, DOWN=down, ACROSS=across, MATRIX_UNITS=int(dtype == "float64"))


def product_unit(dtype: str, height: int, width: int) -> tuple[Unit, int, int]:
    """Return the unit of products for tiles of at most this size, and the parts that they have down and across.

    >>> product_unit("float64", 24, 24)[1:], product_unit("float64", 40, 100)[1:]
    ((1, 1), (2, 4))
    """
    rows, columns = ceil_div(height, 16), ceil_div(width, 8)
    down, across = ceil_div(rows, _MOST_DOWN), ceil_div(columns, _MOST_ACROSS)
    return _product_unit(dtype, ceil_div(rows, down), ceil_div(columns, across)), down, across


SEARCH = Unit(__package__, ("search.cu",), PORTABLE)
GRID_SEARCH = Unit(__package__, ("grid_search.cu",), PORTABLE)
#: Warps of a block down and across, rows of blocks that run together, blocks that a multiprocessor has room for, and
#: how many windows of 32 k after one another the warps of a block wait for each other.
_BLOCK = {"DOWN_TILES": 1, "ACROSS_TILES": 4, "GROUP": 16, "RESIDENT": 3, "TOGETHER": 4}
#: Rows and columns of the largest tile of a matrix with room for every tile.
MOST_ROWS = 16 * _MOST_DOWN


def in_blocks(dtype: str, largest: int, uniform: bool) -> bool:
    """Return whether tiles are stored in blocks of 8 x 8, as the matrix units want them."""
    return dtype == "float64" and uniform and largest % 8 == 0


def tiles_of_warp(dtype: str, largest: int, uniform: bool) -> int:
    """Return the tiles of C, one below the other, of a warp of `grid_multiply`."""
    return 2 if in_blocks(dtype, largest, uniform) and largest % 16 else 1


@functools.cache
def grid_unit(dtype: str, largest: int, uniform: bool) -> Unit:
    """Return the unit of matrices with room for every tile, the largest of so many rows, or all of them."""
    pair = tiles_of_warp(dtype, largest, uniform)
    sizes = {"DOWN": ceil_div(pair * largest, 16), "ACROSS": ceil_div(largest, 8), "PAIR": pair}
    sizes["SIZE"] = largest if in_blocks(dtype, largest, uniform) else 0
    return _unit("grid.cu", dtype, MATRIX_UNITS=int(dtype == "float64"), **sizes, **_BLOCK)


def block_warps() -> tuple[int, int]:
    """Return the warps of a block of `grid_multiply`, down and across."""
    return _BLOCK["DOWN_TILES"], _BLOCK["ACROSS_TILES"]


UNITS = (
    SEARCH,
    GRID_SEARCH,
    *(grid_unit(dtype, 24, False) for dtype in _TYPES),
    grid_unit("float64", 24, True),
    *(tiles_unit(dtype) for dtype in _TYPES),
    *(_product_unit(dtype, 2, 3) for dtype in _TYPES),
    _product_unit("float64", 2, 4),
)
