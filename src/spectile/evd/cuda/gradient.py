"""The derivative of eigenpairs on CUDA, between its products: one pass where arrays would take dozens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


def divide_by_gaps(
    s: Any, w: Any, cluster: Any, w_bar: Any, norms: tuple[Any, Any, Any], limits: tuple[float, float, float]
) -> tuple[Any, Any]:
    """Return the anti-Hermitian parts of S over the gaps, with the cotangents of w on the diagonal, and a fault.

    Parameters
    ----------
    s : cupy.ndarray, shape (count, n, n), in rows
    w : cupy.ndarray, shape (count, n)
    cluster : cupy.ndarray of int32, shape (count, n)
        The number of the cluster of each eigenvalue; within one, the result is 0.
    w_bar : cupy.ndarray, shape (count, n), or None
    norms : tuple of cupy.ndarray, shape (count,)
        Of S, of the cotangents of w, and how far rounding moves an eigenvalue.
    limits : tuple of float
        Of anti-Hermitian parts within a cluster, as a share of the norm of S; of differences of the cotangents of w
        there, as a share of their norm; and of these times how far rounding turns one vector to the other.

    Returns
    -------
    inner : cupy.ndarray, shape (count, n, n)
    fault : cupy.ndarray of int32, shape (1,)
        Not 0 where a limit is passed.
    """
    import cupy

    count, n, _ = s.shape
    scalar, out, fault = scalar_of(s.dtype), cupy.empty(s.shape, s.dtype), cupy.zeros(1, np.int32)
    real = np.dtype(scalar.real).type
    for first in range(0, count, MOST_MATRICES):
        part = slice(first, min(first + MOST_MATRICES, count))
        kernel(GRADIENT[scalar.name], "divide_by_gaps")(
            gaps_shape(n, part.stop - first, scalar),
            *(np.uintp(address(x[part])) for x in (s, w, cluster)),
            np.uintp(0 if w_bar is None else address(w_bar[part])),
            *(np.uintp(address(x[part])) for x in norms),
            *(np.int32(n), *map(real, limits), np.uintp(address(out[part])), fault),
        )
    return out, fault


def shapes(n: int, scalar: Scalar) -> Iterator[tuple[str, Shape]]:
    """Yield the launch of this module for one matrix, with the kernel's name."""
    yield "divide_by_gaps", gaps_shape(n, 1, scalar)
