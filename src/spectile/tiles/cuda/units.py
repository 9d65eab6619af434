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
#: Tiles of C of a block, and rows of blocks that run together.
_BLOCK = {"DOWN_TILES": 2, "ACROSS_TILES": 4, "GROUP": 16}
#: Rows and columns of the largest tile of a matrix with room for every tile.
MOST_ROWS = 16 * _MOST_DOWN


@functools.cache
def grid_unit(dtype: str, largest: int, uniform: bool) -> Unit:
    """Return the unit of matrices with room for every tile, the largest of so many rows, or all of them."""
    matrix_units = dtype == "float64"
    sizes = {"DOWN": ceil_div(largest, 16), "ACROSS": ceil_div(largest, 8)}
    sizes["SIZE"] = largest if uniform and matrix_units else 0
    return _unit("grid.cu", dtype, MATRIX_UNITS=int(matrix_units), **sizes, **_BLOCK)


def block_tiles() -> tuple[int, int]:
    """Return the tiles of C that a block of `grid_multiply` has, down and across."""
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
