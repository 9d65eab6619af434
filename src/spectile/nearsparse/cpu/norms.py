"""Norm maps on the CPU, with squares and sums in float64."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.core.pointers import without_read_only
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
# Between them products of norms, and their sums, are far from the ends of the range of float64.
_SAFE_NORMS = (2.0**-400, 2.0**400)
# Norms of tiles of up to 2**62 finite entries are below the largest number over this power of two.
_TILE_EXPONENT = 32
# The smallest normal number of float64, and the smallest.
_NORMAL, _SMALLEST = 2.0**-1022, 2.0**-1074


@njit(nogil=True)
def _scaled_norm(tile: Any, shift: int) -> float:
    """Return the norm of a tile over 2**shift, where its squares may leave the range of float64.

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
    norm = math.ldexp(root, exponent - shift)
    if norm < _NORMAL and math.ldexp(norm, shift - exponent) < root:
        norm += _SMALLEST
    return norm


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _sum_squares(x: Any, block: int, width: int, first: int, last: int, squares: Any) -> None:
    """Sum the squares of the tiles, of `block` rows and `width` columns, of tile rows first ... last - 1."""
    for i in range(first, last):
        squares[i] = 0
        # Row by row through all tiles: memory is read as a stream.
        for r in range(i * block, min((i + 1) * block, x.shape[0])):
            for j in range(squares.shape[1]):
                row = x[r, j * width : min((j + 1) * width, x.shape[1])]
                total = 0.0
                for s in range(row.shape[0]):
                    value = np.float64(row[s])
                    total += value * value
                squares[i, j] += total


@njit(nogil=True)
def _take_roots(
    x: Any, block: int, width: int, first: int, last: int, norms: Any, low: float, high: float, shift: int
) -> None:
    """Turn sums of squares into norms over 2**shift, and take those anew that float64 squares do not hold."""
    for i in range(first, last):
        for j in range(norms.shape[1]):
            if shift == 0 and (x.itemsize < 8 or low <= norms[i, j] <= high):
                norms[i, j] = math.sqrt(norms[i, j])
            else:
                norms[i, j] = _scaled_norm(x[i * block : (i + 1) * block, j * width : (j + 1) * width], shift)


def norm_map(x: Any, block: int = 32, shift: int = 0) -> Any:
    """Return the Frobenius norms of the tiles over 2**shift, float64, shape (ceil(m / block), ceil(n / block))."""
    x = row_major(as_summed(x))
    norms = np.empty((ceil_div(x.shape[0], block), ceil_div(x.shape[1], block)))
    rows, parts = norms.shape[0], parts_of(x)
    x = without_read_only(real_view(x))

    threads = blas_threads() if norms.size > SERIAL_NORMS else 1
    height = STRIP if threads > 1 else max(1, rows)

    def strip(first: int) -> None:
        last = min(first + height, rows)
        _sum_squares(x, block, parts * block, first, last, norms)
        _take_roots(x, block, parts * block, first, last, norms, *_SAFE_SQUARES, shift)

    each(range(0, rows, height), threads, strip)
    return norms


@dataclass(frozen=True)
class Maps:
    """The norm maps of A and B, brought near 1 by powers of two where their products would leave float64's range."""

    #: Norms over 2**p and 2**q.
    a: Any
    b: Any
    exponent: int = 0  #: p + q: products of these norms are those of A and B over 2**exponent.

    @functools.cached_property
    def largest(self) -> tuple[float, float]:
        """The largest norm of each, NaN where there is one."""
        return float(self.a.max(initial=0.0)), float(self.b.max(initial=0.0))

    @functools.cached_property
    def whole(self) -> tuple[float, float]:
        """The Frobenius norms of both matrices over 2**p and 2**q, rounded up where they have few digits."""
        return whole_norm(self.a, self.largest[0]), whole_norm(self.b, self.largest[1])

    @classmethod
    def of(cls, a: Any, b: Any, block: int, given: Any = None) -> Maps:
        """Return the maps of two matrices, whose norms may be given."""
        (one, p), (two, q) = (
            _near_one(x, block, norms) for x, norms in zip((a, b), given or (None, None), strict=True)
        )
        return cls(one, two, p + q)

    @classmethod
    def of_norms(cls, a: Any, b: Any, matrix_a: Any, matrix_b: Any, block: int) -> Maps:
        """Return given maps, those with infinite norms taken anew of their matrices over a power of two.

        Of the matrices None stands for one that is not there.
        """
        (one, p), (two, q) = (_finite(*pair, block) for pair in ((a, matrix_a), (b, matrix_b)))
        return cls(one, two, p + q)

    def inside(self, value: float) -> float:
        """Return a threshold, or a bound, in the unit of the products of these norms."""
        return shifted(value, -self.exponent)

    def outside(self, value: float) -> float:
        """Return a bound in the unit of A B."""
        return shifted(value, self.exponent)


def _near_one(x: Any, block: int, norms: Any) -> tuple[Any, int]:
    norms = norm_map(x, block) if norms is None else np.asarray(norms, np.float64)
    largest = float(norms.max(initial=0.0))
    if largest == 0 or math.isnan(largest) or _SAFE_NORMS[0] <= largest <= _SAFE_NORMS[1]:
        return norms, 0
    # Of a norm that overflows the entries do not.
    shift = math.frexp(largest)[1] if largest < math.inf else sys.float_info.max_exp
    return norm_map(x, block, shift), shift


def _finite(norms: Any, x: Any, block: int) -> tuple[Any, int]:
    if x is None or norms.max(initial=0.0) < math.inf:
        return norms, 0
    return norm_map(x, block, _TILE_EXPONENT), _TILE_EXPONENT


def shifted(value: float, exponent: int) -> float:
    """Return ``value * 2**exponent``, rounded up where it is subnormal, and infinite where it is too large."""
    digits, own = math.frexp(value)
    try:
        result = math.ldexp(digits, own + exponent)
    except OverflowError:
        return math.inf
    if result < _NORMAL and math.ldexp(result, -own - exponent) < digits:
        return math.nextafter(result, math.inf)
    return result


def whole_norm(norms: Any, largest: float | None = None) -> float:
    """Return the Frobenius norm of the matrix of a norm map, rounded up where it has few digits, near 0.

    The map's largest norm may be given.
    """
    largest = float(norms.max(initial=0.0)) if largest is None else largest
    if not 0 < largest < math.inf:
        return largest
    scaled = norms.reshape(-1) / largest
    norm = largest * math.sqrt(float(scaled.dot(scaled)))
    return norm if norm >= sys.float_info.min else math.nextafter(norm, math.inf)


def as_summed(x: Any) -> Any:
    """Return `x` in the dtype of the sums: float16 is multiplied in float32, where its products are exact."""
    return x.astype(np.float32, order="C") if x.dtype == np.float16 else x


def parts_of(x: Any) -> int:
    """Return the real numbers in an entry."""
    return 2 if x.dtype.kind == "c" else 1


def real_view(x: Any) -> Any:
    """Return a row-major matrix as one of real numbers, the parts of a complex entry side by side."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


def check_norms(maps: Maps) -> None:
    """Raise where a norm map shows NaN or infinity."""
    for name, norms, largest in zip("ab", (maps.a, maps.b), maps.largest, strict=True):
        if not math.isfinite(largest):
            i, k = np.argwhere(~np.isfinite(norms))[0]
            raise ValueError(
                f"tile ({i}, {k}) of {name} holds NaN or infinity: correct {name}, or give tau with check_finite=False "
                "to let them propagate as in a dense product"
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
