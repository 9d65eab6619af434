"""Matrices with decay: the inputs of SpAMM, and their norm maps without the matrices themselves.

A decay matrix is Toeplitz: its entry depends on ``|i - j|`` alone.  So does the norm of a tile on the block offset, and
the norm map of N = 32768 (a matrix of 8 GB in float64) takes milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Profile = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

_DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def algebraic(
    m: int, n: int | None = None, *, c: float = 0.1, lam: float = 0.1, dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[Any]:
    """Matrix with algebraic decay, a_ij = c / (|i - j|^λ + 1).

    Parameters
    ----------
    m, n : int
        Rows and columns, both at least 1; square if `n` is left out.
    c : float
        Scale; the diagonal is c.
    lam : float
        Exponent λ > 0.
    dtype : {float16, float32, float64}
        Entries are computed in float64 and rounded once.

    Returns
    -------
    ndarray, shape (m, n), C order

    Raises
    ------
    ValueError
        A size below 1, `c` not finite, λ not positive, or another dtype.

    Notes
    -----
    cuSpAMM, section 4: c = λ = 0.1 in Tables 1 to 3.
    """
    return _toeplitz(m, n, _algebraic_profile(c, lam), dtype)


def exponential(
    m: int, n: int | None = None, *, c: float = 1.0, lam: float = 0.5, dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[Any]:
    """Matrix with exponential decay, a_ij = c λ^|i - j|.

    Parameters
    ----------
    m, n : int
        Rows and columns, both at least 1; square if `n` is left out.
    c : float
        Scale; the diagonal is c.
    lam : float
        Base λ in (0, 1).
    dtype : {float16, float32, float64}
        Entries are computed in float64 and rounded once; far from the diagonal they round to 0.

    Returns
    -------
    ndarray, shape (m, n), C order

    Raises
    ------
    ValueError
        A size below 1, `c` not finite, λ outside (0, 1), or another dtype.

    Notes
    -----
    cuSpAMM, section 2.1 (|a_ij| < c λ^|i - j|).
    """
    return _toeplitz(m, n, _exponential_profile(c, lam), dtype)


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


def algebraic_norm_map(
    m: int,
    n: int | None = None,
    *,
    block: int = 32,
    c: float = 0.1,
    lam: float = 0.1,
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[np.float64]:
    """Frobenius norms of the tiles of `algebraic`, without the matrix.

    Parameters
    ----------
    m, n, c, lam, dtype
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
    return _toeplitz_norm_map(m, n, _algebraic_profile(c, lam), dtype, block)


def exponential_norm_map(
    m: int,
    n: int | None = None,
    *,
    block: int = 32,
    c: float = 1.0,
    lam: float = 0.5,
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[np.float64]:
    """Frobenius norms of the tiles of `exponential`, without the matrix.

    Parameters
    ----------
    m, n, c, lam, dtype
        As in `exponential`: the norms are those of the entries as rounded to `dtype`.
    block : int
        Tile edge.  Tiles at the lower and right edge may be smaller.

    Returns
    -------
    ndarray of float64, shape (ceil(m / block), ceil(n / block))

    Raises
    ------
    ValueError
        As `exponential`, or `block` below 1.
    """
    return _toeplitz_norm_map(m, n, _exponential_profile(c, lam), dtype, block)


def _algebraic_profile(c: float, lam: float) -> Profile:
    if not np.isfinite(c):
        raise ValueError(f"c of a decay matrix is {c}; it must be finite")
    if not (np.isfinite(lam) and lam > 0):
        raise ValueError(f"lam of an algebraic decay matrix is {lam}; the exponent must be finite and above 0")
    return lambda distance: c / (distance**lam + 1.0)


def _exponential_profile(c: float, lam: float) -> Profile:
    if not np.isfinite(c):
        raise ValueError(f"c of a decay matrix is {c}; it must be finite")
    if not 0 < lam < 1:
        raise ValueError(f"lam of an exponential decay matrix is {lam}; the base must lie in (0, 1)")
    return lambda distance: c * lam**distance


def _sizes(m: int, n: int | None, dtype: npt.DTypeLike) -> tuple[int, int, np.dtype[Any]]:
    columns = m if n is None else n
    for name, size in (("m", m), ("n", columns)):
        if size != int(size) or size < 1:
            raise ValueError(f"{name} of a decay matrix is {size}; ask for a whole number of at least 1")
    kind = np.dtype(dtype)
    if kind not in _DTYPES:
        raise ValueError(f"a decay matrix of dtype {kind} is not defined; use float16, float32 or float64")
    return int(m), int(columns), kind


def _toeplitz(m: int, n: int | None, profile: Profile, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    rows, columns, kind = _sizes(m, n, dtype)
    # line[rows - 1 + d] = a(|d|), d = j - i; row i is the window that starts at rows - 1 - i.
    line = profile(np.abs(np.arange(-(rows - 1), columns)).astype(np.float64)).astype(kind)
    return np.lib.stride_tricks.sliding_window_view(line, columns)[::-1].copy()


def _toeplitz_norm_map(
    m: int, n: int | None, profile: Profile, dtype: npt.DTypeLike, block: int
) -> npt.NDArray[np.float64]:
    rows, columns, kind = _sizes(m, n, dtype)
    if block != int(block) or block < 1:
        raise ValueError(f"block of a norm map is {block}; ask for a whole number of at least 1")
    row_blocks, column_blocks = -(-rows // block), -(-columns // block)
    last_height, last_width = rows - (row_blocks - 1) * block, columns - (column_blocks - 1) * block

    def norms(height: int, width: int, offset: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Norms of height x width tiles by their offset: the diagonal d of the tile holds count[d] equal entries."""
        delta = np.arange(-(height - 1), width)
        count = np.convolve(np.ones(height), np.ones(width))
        distance = np.abs(offset[:, None] * block + delta[None, :]).astype(np.float64)
        entries = profile(distance).astype(kind).astype(np.float64)
        return np.sqrt(np.square(entries) @ count)

    offsets = np.arange(-(row_blocks - 1), column_blocks)
    full = norms(block, block, offsets)
    norm_map = np.lib.stride_tricks.sliding_window_view(full, column_blocks)[::-1].copy()
    norm_map[-1, :] = norms(last_height, block, offsets[:column_blocks])
    norm_map[:, -1] = norms(block, last_width, offsets[column_blocks - 1 :][::-1])
    norm_map[-1, -1] = norms(last_height, last_width, offsets[column_blocks - 1 : column_blocks])[0]
    return norm_map
