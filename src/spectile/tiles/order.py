"""Orders in which neighbours in space are neighbours in a matrix, and partitions of rows into tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.options import numbers, whole_number
from spectile.tiles.layout import offsets

_BITS = 16


def hilbert_order(positions: Any) -> np.ndarray:
    """Return the order of points along a Hilbert curve.

    Parameters
    ----------
    positions : array of shape (n,) or (n, d)
        Coordinates, d from 1 to 3.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
        ``positions[order]`` follows the curve; points of one cell keep their order.

    Raises
    ------
    TypeError, ValueError
        For another shape, or coordinates that are no real and finite numbers.

    Notes
    -----
    J. Skilling, Programming the Hilbert curve, AIP Conf. Proc. 707, 381 (2004).

    Examples
    --------
    >>> from spectile.tiles import hilbert_order
    >>> hilbert_order([[0, 0], [1, 1], [0, 1], [1, 0]]).tolist()
    [0, 2, 1, 3]
    """
    points = numbers("positions", positions)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not 1 <= points.shape[1] <= 3:
        raise ValueError(f"positions has shape {points.shape}: pass n points of 1 to 3 coordinates")
    if not np.isfinite(points).all():
        raise ValueError("positions has coordinates that are NaN or infinite: correct them")
    if len(points) == 0:
        return np.zeros(0, np.int64)
    low = points.min(axis=0)
    width = float((points - low).max()) or 1.0
    cells = np.minimum(((points - low) / width * 2.0**_BITS).astype(np.int64), 2**_BITS - 1).T.copy()
    return np.argsort(_along_curve(cells), kind="stable")


def _along_curve(x: np.ndarray) -> np.ndarray:
    """Return the place on the curve of cells, whose coordinates are the rows of `x` and are overwritten."""
    d = len(x)
    bit = 1 << (_BITS - 1)
    while bit > 1:
        low = bit - 1
        for i in range(d):
            set_ = (x[i] & bit) != 0
            swapped = np.where(set_, 0, (x[0] ^ x[i]) & low)
            x[0] ^= np.where(set_, low, swapped)
            x[i] ^= swapped
        bit >>= 1
    for i in range(1, d):
        x[i] ^= x[i - 1]
    flipped, bit = np.zeros_like(x[0]), 1 << (_BITS - 1)
    while bit > 1:
        flipped ^= np.where((x[d - 1] & bit) != 0, bit - 1, 0)
        bit >>= 1
    x ^= flipped
    place = np.zeros_like(x[0])
    for b in range(_BITS - 1, -1, -1):
        for i in range(d):
            place = (place << 1) | ((x[i] >> b) & 1)
    return place


def partition(sizes: Any, block: int = 32, *, positions: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return a permutation of rows and a partition into tiles that keep atoms, or molecules, whole.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each atom or molecule, in the order of the matrix.
    block : int, default 32
        Atoms that follow one another share a tile while it has at most so many rows.
    positions : array of shape (len(sizes), d), optional
        Of the atoms: they follow one another along a Hilbert curve.

    Returns
    -------
    permutation : numpy.ndarray of int64
        Row i of the permuted matrix is row ``permutation[i]`` of the given one.
    rows : numpy.ndarray of int64
        Rows of each tile.

    Raises
    ------
    TypeError, ValueError
        If sizes are no whole numbers or not positive, positions no real numbers, or they do not fit.

    Examples
    --------
    >>> from spectile.tiles import partition
    >>> partition([2, 1, 2], 3, positions=[0.0, 9.0, 1.0])
    (array([0, 1, 3, 4, 2]), array([2, 3]))
    """
    if np.ndim(sizes) != 1:
        raise ValueError("sizes is no list of numbers: pass the number of rows of each atom")
    ends, block = offsets("sizes", None, sizes), whole_number(block, "block", 1)
    starts, lengths = ends[:-1], np.diff(ends)
    order = np.arange(len(lengths)) if positions is None else hilbert_order(positions)
    if len(order) != len(lengths):
        raise ValueError(f"positions has {len(order)} points and sizes {len(lengths)}: pass a point for each atom")
    rows: list[int] = []
    for size in lengths[order].tolist():
        if rows and rows[-1] + size <= block:
            rows[-1] += size
        else:
            rows.append(size)
    return ranges(starts[order], lengths[order]), np.array(rows, np.int64)


def ranges(starts: Any, lengths: Any) -> np.ndarray:
    """Return the numbers of ranges, one after the other: starts[0], starts[0] + 1, ..., starts[1], ...

    Examples
    --------
    >>> ranges([5, 0], [2, 3]).tolist()
    [5, 6, 0, 1, 2]
    """
    starts, lengths = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
