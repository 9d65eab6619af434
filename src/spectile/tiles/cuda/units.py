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

UNITS = (
    SEARCH,
    *(tiles_unit(dtype) for dtype in _TYPES),
    *(_product_unit(dtype, 2, 3) for dtype in _TYPES),
    _product_unit("float64", 2, 4),
)
