"""Norms of tiles and of matrices, rounded up: bounds that hold are made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.tiles import kernels
from spectile.tiles.cuda import launch
from spectile.tiles.layout import Layout
from spectile.tiles.spread import Spread
from spectile.tiles.types import SLACK, Error

#: Norms outside of these are found anew, from entries that are scaled: float64 may not have held their squares.
_SAFE = (2.0**-450, 2.0**500)
#: What entries of small norms and of large ones are scaled by.
_SCALES = (2.0**600, 2.0**-560)
#: Most iterations of a bound by a positive vector, and the share that the last one leaves.
_SHARPENED, _NEAR = 12, 0.999


def tile_norms(xp: Any, data: Any, layout: Layout) -> np.ndarray:
    """Return the Frobenius norms of the tiles, float64, not below the exact ones."""
    if isinstance(data, Spread):
        own = layout.parts(data.cuts)
        return np.concatenate(data.each(lambda at: tile_norms(xp, data.parts[at], own[at][1])))
    if not len(layout.indices):
        return np.zeros(0)
    slack = 1 + (layout.largest**2 + 8) * 2.0**-52
    if xp is not np:
        return launch.norms(data, layout.placed()).get() * slack

    def roots(scale: float) -> np.ndarray:
        out = np.empty(len(layout.indices))
        kernels.tile_norms(data.view(data.real.dtype), layout.starts, 1 + (data.dtype.kind == "c"), scale, out)
        return out

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norms = roots(1.0)
        for beyond, scale in zip((norms < _SAFE[0], ~(norms < _SAFE[1])), _SCALES, strict=True):
            if beyond.any():
                norms[beyond] = roots(scale)[beyond]
        return norms * slack


def root_of_squares(norms: np.ndarray, weights: np.ndarray) -> float:
    """Return the root of the sum of squares, times weights, not below the exact one, whatever the size of the norms."""
    largest = float(norms.max(initial=0.0))
    if not 0 < largest < math.inf:
        return largest
    # Few numbers are added one after the other: rounding stays within the slack.
    sums = np.empty(math.isqrt(len(norms)))
    kernels.squares(norms, weights, largest, sums)
    return largest * math.sqrt(float(sums.sum())) * SLACK


def row_and_column_sums(norms: Any, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of numbers of tiles over tile rows and over tile columns, mirror images included."""
    rows, columns = (np.zeros(size) for size in layout.grid)
    kernels.sums(layout.indptr, layout.indices, norms, layout.hermitian, rows, columns)
    if layout.hermitian:
        rows = columns = rows + columns
    return rows * SLACK, columns * SLACK


def bound_of_map(norms: Any, layout: Layout) -> Error:
    """Return bounds of both norms of a matrix whose tiles have norms of at most these."""
    fro = root_of_squares(norms, layout.copies)
    rows, columns = row_and_column_sums(norms, layout)
    most = float(rows.max(initial=0.0)), float(columns.max(initial=0.0))
    return Error.of(fro, math.sqrt(most[0]) * math.sqrt(most[1]) * SLACK)


def spectral_tile_norms(xp: Any, data: Any, layout: Layout, norms: Any) -> np.ndarray:
    """Return bounds of the spectral norms of the tiles: by row and column sums, or by the Frobenius norm."""
    if isinstance(data, Spread):
        own = layout.parts(data.cuts)
        bounds = data.each(lambda at: spectral_tile_norms(xp, data.parts[at], own[at][1], norms[own[at][0]]))
        return np.concatenate(bounds)
    if not len(layout.indices):
        return np.zeros(0)
    if xp is not np:
        largest = launch.largest_line_sums(data, layout.placed()).get().T * _line_slack(layout)
    else:
        sums = zip(absolute_sums(xp, data, layout), (layout.heights, layout.widths), strict=True)
        largest = [np.maximum.reduceat(each, _firsts(sizes)) for each, sizes in sums]
    return np.minimum(norms, np.sqrt(largest[0]) * np.sqrt(largest[1]) * SLACK)


def absolute_sums(xp: Any, data: Any, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of moduli over each row of each tile, and over each column, one tile after the other."""
    if isinstance(data, Spread):
        own = layout.parts(data.cuts)
        sums = data.each(lambda at: absolute_sums(xp, data.parts[at], own[at][1]))
        return np.concatenate([rows for rows, _ in sums]), np.concatenate([columns for _, columns in sums])
    if not len(layout.indices):
        return np.zeros(0), np.zeros(0)
    slack = _line_slack(layout)
    sizes = layout.heights, layout.widths
    if xp is not np:
        (first_rows, first_columns), (count, width) = map(_firsts, sizes), (int(size.sum()) for size in sizes)
        rows, columns = launch.line_sums(data, layout.placed(), first_rows, first_columns, count, width)
        return rows.get() * slack, columns.get() * slack
    rows, columns = (np.empty(int(size.sum())) for size in sizes)
    kernels.line_sums(data, layout.starts, *sizes, rows, columns)
    return rows * slack, columns * slack


def _line_slack(layout: Layout) -> float:
    return 1 + (int(layout.heights.max()) + int(layout.widths.max())) * 2.0**-52


def _firsts(sizes: Any) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def spectral_bound(norms: Any, layout: Layout) -> float:
    """Return a bound of the spectral norm of a matrix whose tiles have spectral norms of at most these.

    For a map N of norms and positive x, y: ``||N||_2^2 <= max(N y / x) max(N^T x / y)``, sharpened by steps of the
    power method.
    """
    unit = float(norms.max(initial=0.0))
    if unit == 0:
        return 0.0
    with np.errstate(under="ignore"):
        scaled = norms / unit
    ones = (np.ones(size) for size in layout.grid)
    best = kernels.map_bound(layout.indptr, layout.indices, scaled, layout.hermitian, *ones, _SHARPENED, _NEAR)
    return math.sqrt(best) * unit * SLACK


def spectral_least(norms: Any, layout: Layout) -> float:
    """Return what the spectral norm of a matrix with tiles of these norms is at least, but for rounding."""
    unit = float(norms.max(initial=0.0))
    with np.errstate(under="ignore"):
        squares = row_and_column_sums((norms / (unit or 1.0)) ** 2, layout)
    lines = zip(squares, (layout.rows, layout.columns), strict=True)
    return unit * math.sqrt(max(float((sums / np.diff(ends)).max(initial=0.0)) for sums, ends in lines))
