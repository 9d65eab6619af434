"""The derivative of eigenpairs on CUDA, between its products: three launches where arrays would take dozens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import Scalar, scalar_of


def gaps_shape(n: int, count: int, scalar: Scalar) -> Shape:
    """Launch of `divide_by_gaps` for `count` matrices."""
    tiles = -(-n // 32)
    return Shape((tiles, tiles, count), 256, 2 * 32 * 33 * scalar.itemsize)


#: Matrices of one launch: a grid has at most 65,535 blocks along z.
MOST_MATRICES = 65_535


class Limits(NamedTuple):
    """What rounding makes of eigenvalues and of cotangents.

    Attributes
    ----------
    resolution : float
        Neighbours with a smaller gap, as a share of the largest eigenvalue, are of one cluster.
    unit : float
        How far rounding moves an eigenvalue, as a share of the largest.
    anti : float
        Of anti-Hermitian parts within a cluster, as a share of the norm of S.
    told, turned : float
        Of differences of the cotangents of w there, as a share of their norm; and of these times how far rounding turns
        one vector to the other.
    """

    resolution: float
    unit: float
    anti: float
    told: float
    turned: float


def divide_by_gaps(s: Any, w: Any, w_bar: Any, limits: Limits) -> tuple[Any, Any]:
    """Return S - Sᴴ over the gaps, with twice the cotangents of w on the diagonal, and a fault; nothing is waited for.

    Parameters
    ----------
    s : cupy.ndarray, shape (count, n, n), in rows
    w : cupy.ndarray, shape (count, n)
    w_bar : cupy.ndarray, shape (count, n), or None
    limits : Limits

    Returns
    -------
    inner : cupy.ndarray, shape (count, n, n)
        0 within a cluster.
    fault : cupy.ndarray of int32, shape (1,)
        Not 0 where a limit is passed, or a norm is not finite.
    """
    import cupy

    count, n, _ = s.shape
    scalar, out, fault = scalar_of(s.dtype), cupy.empty(s.shape, s.dtype), cupy.zeros(1, np.int32)
    unit, real = GRADIENT[scalar.name], np.dtype(scalar.real).type
    for first in range(0, count if n else 0, MOST_MATRICES):
        part = slice(first, min(first + MOST_MATRICES, count))
        many = part.stop - first
        shape, block = gaps_shape(n, many, scalar), block_shape(many)
        cluster, sizes = cupy.empty((many, n), np.int32), cupy.empty((many, 2), scalar.real)
        parts = cupy.empty((many, *shape.grid[:2], 2))
        values, cotangents = np.uintp(address(w[part])), np.uintp(0 if w_bar is None else address(w_bar[part]))
        kernel(unit, "number_clusters")(
            block, values, cotangents, np.int32(n), real(limits.resolution), real(limits.unit), cluster, sizes
        )
        kernel(unit, "divide_by_gaps")(
            *(shape, np.uintp(address(s[part])), values, cluster, cotangents, sizes, np.int32(n)),
            *(real(limits.told), real(limits.turned), np.uintp(address(out[part])), parts, fault),
        )
        kernel(unit, "judge_gauge")(block, parts, sizes, np.int32(shape.grid[0]), np.float64(limits.anti), fault)
    return out, fault


def block_shape(count: int) -> Shape:
    """Launch of a kernel with a block for each of `count` matrices."""
    return Shape((count,), 256, 2 * 256 * 8)


def shapes(n: int, scalar: Scalar) -> Iterator[tuple[str, Shape]]:
    """Yield the launches of this module for one matrix, with the kernel's name."""
    yield "number_clusters", block_shape(1)
    yield "divide_by_gaps", gaps_shape(n, 1, scalar)
    yield "judge_gauge", block_shape(1)
