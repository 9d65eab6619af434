"""Matrices with decay: the inputs of SpAMM, and their norm maps without the matrices themselves.

A decay matrix is Toeplitz: its entry depends on ``|i - j|`` alone.  So does the norm of a tile on the block offset, and
the norm map of N = 32768 (a matrix of 8 GB in float64) takes milliseconds.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def algebraic(m: int, n: int | None = None, *, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Matrix with algebraic decay, a_ij = 0.1 / (|i - j|^0.1 + 1): that of cuSpAMM's Tables 1 to 3 (section 4).

    Parameters
    ----------
    m, n : int
        Rows and columns, both at least 1; square if `n` is left out.
    dtype : {float16, float32, float64}
        Entries are computed in float64 and rounded once.

    Returns
    -------
    ndarray, shape (m, n), C order

    Raises
    ------
    ValueError
        A size below 1, or another dtype.
    """
    rows, columns, kind = _sizes(m, n, dtype)
    # line[rows - 1 + d] = a(|d|), d = j - i; row i is the window that starts at rows - 1 - i.
    line = _profile(np.arange(-(rows - 1), columns)).astype(kind)
    return np.lib.stride_tricks.sliding_window_view(line, columns)[::-1].copy()


def _profile(offset: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the entries by how far they are from the diagonal."""
    entries: npt.NDArray[np.float64] = 0.1 / (np.abs(offset).astype(np.float64) ** 0.1 + 1.0)
    return entries


def _sizes(m: int, n: int | None, dtype: npt.DTypeLike) -> tuple[int, int, np.dtype[Any]]:
    columns = m if n is None else n
    for name, size in (("m", m), ("n", columns)):
        if size != int(size) or size < 1:
            raise ValueError(f"{name} of a decay matrix is {size}; ask for a whole number of at least 1")
    kind = np.dtype(dtype)
    if kind not in _DTYPES:
        raise ValueError(f"a decay matrix of dtype {kind} is not defined; use float16, float32 or float64")
    return int(m), int(columns), kind


def algebraic_norm_map(
    m: int, n: int | None = None, *, block: int = 32, dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[np.float64]:
    """Frobenius norms of the tiles of `algebraic`, without the matrix.

    Parameters
    ----------
    m, n, dtype
        As in `algebraic`: the norms are those of the entries as rounded to `dtype`.
    block : int
        Tile edge (the paper's LoNum).  Tiles at the lower and right edge may be smaller.

    Returns
    -------
    ndarray of float64, shape (ceil(m / block), ceil(n / block))

    Raises
    ------
    ValueError
        As `algebraic`, or `block` below 1.
    """
    rows, columns, kind = _sizes(m, n, dtype)
    if block != int(block) or block < 1:
        raise ValueError(f"block of a norm map is {block}; ask for a whole number of at least 1")
    row_blocks, column_blocks = -(-rows // block), -(-columns // block)
    last_height, last_width = rows - (row_blocks - 1) * block, columns - (column_blocks - 1) * block

    def norms(height: int, width: int, offset: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Norms of height x width tiles by their offset: the diagonal d of the tile holds count[d] equal entries."""
        delta = np.arange(-(height - 1), width)
        count = np.convolve(np.ones(height), np.ones(width))
        entries = _profile(offset[:, None] * block + delta[None, :]).astype(kind).astype(np.float64)
        return np.sqrt(np.square(entries) @ count)

    offsets = np.arange(-(row_blocks - 1), column_blocks)
    full = norms(block, block, offsets)
    norm_map = np.lib.stride_tricks.sliding_window_view(full, column_blocks)[::-1].copy()
    norm_map[-1, :] = norms(last_height, block, offsets[:column_blocks])
    norm_map[:, -1] = norms(block, last_width, offsets[column_blocks - 1 :][::-1])
    norm_map[-1, -1] = norms(last_height, last_width, offsets[column_blocks - 1 : column_blocks])[0]
    return norm_map


#: Profiles of matrices that decay with the distance of points of a lattice, whose spacing is one.
DISTANCE_PROFILES: dict[str, str] = {"exponential": "exp(-r)", "gaussian": "exp(-r²/2)"}


def lattice_points(n: int, axes: int) -> npt.NDArray[np.float64]:
    """Return the first n points of a cubic lattice along a Hilbert curve, shape (n, axes), float64."""
    from spectile_study.inputs.water import hilbert_order

    bits = next(bits for bits in range(1, 64) if 2 ** (bits * axes) >= n)
    grid = np.stack(np.meshgrid(*[np.arange(2.0**bits)] * axes, indexing="ij"), axis=-1).reshape(-1, axes)
    return grid[hilbert_order(grid, bits)[:n]]


def by_distance(name: str, n: int, xp: Any = np, rows: int | None = None) -> Any:
    """Return a matrix that decays with the distance r of points of a lattice.

    Parameters
    ----------
    name : str
        ``<profile>_<axes>d``, a profile of ``DISTANCE_PROFILES`` in one to three dimensions: ``exponential_3d``.
    n : int
        Points, rows and columns.
    xp : module
        NumPy or CuPy.
    rows : int, optional
        Only so many rows.

    Returns
    -------
    array, shape (rows or n, n), float64

    Raises
    ------
    ValueError
        If there is no such matrix.
    """
    match = re.fullmatch(r"([a-z]+)_([123])d", name)
    if match is None or match[1] not in DISTANCE_PROFILES:
        raise ValueError(f"no decay matrix is called {name!r}: take {' or '.join(DISTANCE_PROFILES)} with _1d to _3d")
    points = xp.asarray(lattice_points(n, int(match[2])))
    squares = sum((points[:rows, axis, None] - points[None, :, axis]) ** 2 for axis in range(points.shape[1]))
    return xp.exp(-xp.sqrt(squares)) if match[1] == "exponential" else xp.exp(-0.5 * squares)


def label(name: str) -> str:
    """Return in words what `by_distance` calls by name."""
    profile, _, axes = name.partition("_")
    return f"{DISTANCE_PROFILES[profile]} of the distance r on a lattice in {axes[0]}D"
