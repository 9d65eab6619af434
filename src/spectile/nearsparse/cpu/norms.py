"""Norm maps on the CPU, with squares and sums in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.core.threads import blas_threads, each
from spectile.core.tiling import ceil_div

# Tile rows in one task of the norm map.
STRIP = 4
# Tiles of a norm map below which starting threads costs more than it gains.
SERIAL_NORMS = 4096
# Rows and columns of a tile that is transposed at a time, and entries below which threads cost more than they gain.
TRANSPOSED, SERIAL_ENTRIES = 32, 1 << 16
# Sums of squares outside of these may hold squares that overflowed, or have lost squares that underflowed.
_SAFE_SQUARES = (2.0**-900, 2.0**1000)
# The smallest normal number of float64, and the smallest.
_NORMAL, _SMALLEST = 2.0**-1022, 2.0**-1074


@njit(nogil=True)
def _scaled_norm(tile: Any) -> float:
    """Return the norm of a tile whose squares leave the range of float64, scaled by a power of two meanwhile.

    One that has fewer digits than a normal number is rounded up: bounds must not be too small.
    """
    largest: Any = 0.0
    for r in range(tile.shape[0]):
        for s in range(tile.shape[1]):
            value: Any = abs(np.float64(tile[r, s]))
            if value != value:
                return value
            largest = max(largest, value)
    if largest == 0 or not (largest < math.inf):
        return largest
    exponent = math.frexp(largest)[1]
    total: Any = 0.0
    for r in range(tile.shape[0]):
        for s in range(tile.shape[1]):
            value = math.ldexp(np.float64(tile[r, s]), -exponent)
            total += value * value
    root = math.sqrt(total)
    norm = math.ldexp(root, exponent)
    if norm < _NORMAL and math.ldexp(norm, -exponent) < root:
        norm += _SMALLEST
    return norm


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _sum_squares(x: Any, block: int, first: int, last: int, squares: Any) -> None:
    """Sum the squares of the tiles of tile rows first ... last - 1."""
    for i in range(first, last):
        squares[i] = 0
        # Row by row through all tiles: memory is read as a stream.
        for r in range(i * block, min((i + 1) * block, x.shape[0])):
            for j in range(squares.shape[1]):
                row = x[r, j * block : min((j + 1) * block, x.shape[1])]
                total = 0.0
                for s in range(row.shape[0]):
                    value = np.float64(row[s])
                    total += value * value
                squares[i, j] += total


@njit(nogil=True)
def _take_roots(x: Any, block: int, first: int, last: int, norms: Any, low: float, high: float) -> None:
    """Turn sums of squares into norms, and take those anew that float64 squares do not hold."""
    for i in range(first, last):
        for j in range(norms.shape[1]):
            if x.itemsize < 8 or low <= norms[i, j] <= high:
                norms[i, j] = math.sqrt(norms[i, j])
            else:
                norms[i, j] = _scaled_norm(x[i * block : (i + 1) * block, j * block : (j + 1) * block])


def norm_map(x: Any, block: int = 32) -> Any:
    """Return the Frobenius norms of the tiles, float64, shape (ceil(m / block), ceil(n / block))."""
    x = row_major(as_summed(x))
    norms = np.empty((ceil_div(x.shape[0], block), ceil_div(x.shape[1], block)))
    rows = norms.shape[0]

    def strip(first: int) -> None:
        last = min(first + STRIP, rows)
        _sum_squares(x, block, first, last, norms)
        _take_roots(x, block, first, last, norms, *_SAFE_SQUARES)

    each(range(0, rows, STRIP), blas_threads() if norms.size > SERIAL_NORMS else 1, strip)
    return norms


def as_summed(x: Any) -> Any:
    """Return `x` in the dtype of the sums: float16 is multiplied in float32, where its products are exact."""
    return x.astype(np.float32, order="C") if x.dtype == np.float16 else x


def check_norms(norms_a: Any, norms_b: Any) -> None:
    """Raise where a norm map shows NaN or infinity."""
    for name, norms in (("a", norms_a), ("b", norms_b)):
        if not np.isfinite(norms).all():
            i, k = np.argwhere(~np.isfinite(norms))[0]
            raise ValueError(
                f"tile ({i}, {k}) of {name} holds NaN or infinity, or its norm overflows: correct or scale {name}, "
                "or give tau with check_finite=False to let them propagate as in a dense product"
            )


@njit(nogil=True)
def _copy_transposed(x: Any, first: int, last: int, out: Any) -> None:
    """Copy columns first ... last - 1 of `x` to rows of `out`, by tiles that the cache holds."""
    for j in range(0, x.shape[0], TRANSPOSED):
        for column in range(first, last):
            for row in range(j, min(j + TRANSPOSED, x.shape[0])):
                out[column, row] = x[row, column]


def row_major(x: Any) -> Any:
    """Return `x` with its rows contiguous: itself, or a copy, which of Fortran's order is made by tiles and threads."""
    if x.flags.c_contiguous or not (x.ndim == 2 and x.flags.f_contiguous):
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)

    def strip(first: int) -> None:
        _copy_transposed(x.T, first, min(first + TRANSPOSED, len(x)), out)

    each(range(0, len(x), TRANSPOSED), blas_threads() if x.size > SERIAL_ENTRIES else 1, strip)
    return out
