"""The derivative of eigenpairs on CUDA, between its products, and their gauge: a launch where arrays would take dozens.

Matrices lie in rows, and are given by their addresses.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Word
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import Scalar, scalar_of


def tiles_shape(n: int, count: int, scalar: Scalar, held: int) -> Shape:
    """Launch of a kernel over tiles of `count` matrices that holds so many in shared memory."""
    tiles = -(-n // 32)
    return Shape((count, tiles, tiles), 256, held * 32 * 33 * scalar.itemsize)


def rows_shape(n: int, count: int) -> Shape:
    """Launch of a kernel with a block for each row of `count` matrices."""
    return Shape((n * count,), 256)


def clusters_shape(count: int) -> Shape:
    """Launch of `find_clusters` for `count` matrices."""
    return Shape((count,), 256, 2 * 256 * 8)


@dataclass(frozen=True)
class Solved:
    """Eigenpairs of `count` matrices of order n on the device, by their addresses."""

    scalar: Scalar
    n: int
    count: int
    w: int  #: Of real numbers, shape (count, n).

    def launch(self, name: str, *arguments: Any) -> None:
        """Launch a kernel of this unit."""
        kernel(GRADIENT[self.scalar.name], name)(*arguments)

    def clusters(self, w_bar: int, resolution: float, unit: float, parts: int = 0) -> tuple[Any, ...]:
        """Return memory with two words a matrix in front, which become 0, and where it has room for so many float64.

        Then where it has what rounding and cotangents are, the clusters, and whether any coincide.
        """
        import cupy

        real, n, count = np.dtype(self.scalar.real), self.n, self.count
        lengths = 8 * count, 8 * parts, 2 * count * real.itemsize, 4 * n * count, 4 * count
        room = cupy.empty(sum(lengths) // 4, np.int32)
        told, sizes, cluster, coinciding = map(
            np.uintp, list(itertools.accumulate(lengths, initial=address(room)))[1:5]
        )
        self.launch(
            *("find_clusters", clusters_shape(count), np.uintp(self.w), np.uintp(w_bar), np.int32(n)),
            *(real.type(resolution), real.type(unit), cluster, sizes, coinciding, room),
        )
        return room, told, sizes, cluster, coinciding


def divide_by_gaps(solved: Solved, s: int, w_bar: int, limits: tuple[float, ...]) -> Word:
    """Make S - Sᴴ over the gaps, with twice the cotangents of w on the diagonal, of S in its place.

    Parameters
    ----------
    solved : Solved
    s : int
        Shape (count, n, n); 0 within a cluster.  Null where there are cotangents of w alone, which are judged.
    w_bar : int
        Of real numbers, shape (count, n), or null.
    limits : tuple of float
        Neighbours with a smaller gap, as a share of the largest eigenvalue, are of one cluster; how far rounding moves
        an eigenvalue, likewise; the most of anti-Hermitian parts within a cluster, as a share of the norm of S; and of
        differences of the cotangents of w there, as a share of their norm: of these, and of these times how far
        rounding turns one vector to the other.

    Returns
    -------
    Word
        Not 0 where a limit is passed, or a norm is not finite; on its way to the host.
    """
    n, count, real = solved.n, solved.count, np.dtype(solved.scalar.real).type
    resolution, unit, anti, told, turned = limits
    shape = tiles_shape(n, count, solved.scalar, 2)
    room, parts, sizes, cluster, _ = solved.clusters(
        w_bar, resolution, unit, count * shape.grid[1] * (shape.grid[1] + 1)
    )
    solved.launch(
        *("divide_by_gaps", shape, np.uintp(s), np.uintp(solved.w), cluster, np.uintp(w_bar), sizes, np.int32(n)),
        *(real(told), real(turned), np.float64(anti), np.uintp(s), parts, room),
    )
    word = Word(2 * count, room)
    word.fetch()
    return word


def multiply_triangle(solved: Solved, left: int, v: int, out: int, *, lower: bool) -> None:
    """Make a triangle of X Vᴴ of one matrix, which is Hermitian."""
    n = solved.n
    # In columns these are the transposes.
    Blas(solved.scalar.name).gram(n, n, v, n, left, n, out, n, lower=not lower)


def take_triangle(solved: Solved, a: int, *, lower: bool) -> None:
    """Leave one triangle of Hermitian matrices, with half of the diagonal, and 0 elsewhere."""
    shape = rows_shape(solved.n, solved.count)
    solved.launch("take_triangle", shape, np.uintp(a), np.int32(solved.n), np.int32(lower))


def generic_basis(w: Any, v: Any, resolution: float) -> Any:
    """Return eigenvectors in rows of memory, with arbitrary phases, and bases of clusters; nothing is waited for.

    w has the shape (..., n) and V (..., n, n); neighbours with a gap below `resolution`, as a share of the largest
    eigenvalue, are of one cluster.
    """
    import cupy

    n, out, scalar = v.shape[-1], cupy.empty(v.shape, v.dtype), scalar_of(v.dtype)
    if not v.size:
        return out
    given, values = v.reshape(-1, n, n), cupy.ascontiguousarray(w)
    solved = Solved(scalar, n, len(given), address(values))
    _room, _, _, cluster, coinciding = solved.clusters(0, resolution, 0.0)
    strides = (np.int64(one // v.itemsize) for one in given.strides)
    solved.launch("arrange", tiles_shape(n, len(given), scalar, 1), given, *strides, np.int32(n), out)
    solved.launch("mix_clusters", rows_shape(n, len(given)), out, np.int32(n), cluster, coinciding)
    return out
