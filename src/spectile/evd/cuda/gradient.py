"""The derivative of eigenpairs on CUDA, between its products, and their gauge: a launch where arrays would take dozens.

Matrices lie in rows, and are given by their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

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
    return Shape((tiles, tiles, count), 256, held * 32 * 33 * scalar.itemsize)


def rows_shape(n: int, count: int) -> Shape:
    """Launch of a kernel with a block for each row of `count` matrices."""
    return Shape((n, count), 256)


def clusters_shape(count: int) -> Shape:
    """Launch of `find_clusters` for `count` matrices."""
    return Shape((count,), 256, 2 * 256 * 8)


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


class Solved(NamedTuple):
    """Eigenpairs of `count` matrices of order n on the device, by their addresses.

    Attributes
    ----------
    scalar : Scalar
    n, count : int
    w : int
        Of real numbers, shape (count, n).
    """

    scalar: Scalar
    n: int
    count: int
    w: int

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield the first matrix of each launch, and how many it takes."""
        for first in range(0, self.count if self.n else 0, MOST_MATRICES):
            yield first, min(MOST_MATRICES, self.count - first)

    def launch(self, name: str, *arguments: Any) -> None:
        """Launch a kernel of this unit."""
        kernel(GRADIENT[self.scalar.name], name)(*arguments)

    def at(self, pointer: int, first: int, each: int, *, real: bool = False) -> np.uintp:
        """Return where a matrix's numbers are, of which every one has `each`; null stays null."""
        size = self.scalar.itemsize // (self.scalar.parts if real else 1)
        return np.uintp(pointer and pointer + first * each * size)

    def clusters(self, w_bar: int, resolution: float, unit: float, first: int, many: int, words: int = 0) -> list[Any]:
        """Return the clusters of some matrices, what rounding and cotangents are there, and whether any coincide."""
        import cupy

        real = np.dtype(self.scalar.real).type
        cluster, sizes = cupy.empty((many, self.n), np.int32), cupy.empty((many, 2), real)
        coinciding = cupy.empty(many, np.int32)
        self.launch(
            *("find_clusters", clusters_shape(many), self.at(self.w, first, self.n, real=True)),
            *(self.at(w_bar, first, self.n, real=True), np.int32(self.n), real(resolution), real(unit)),
            *(cluster, sizes, coinciding, np.uintp(words)),
        )
        return [cluster, sizes, coinciding]


def divide_by_gaps(solved: Solved, s: int, w_bar: int, limits: Limits) -> Word:
    """Make S - Sᴴ over the gaps, with twice the cotangents of w on the diagonal, of S in its place.

    Parameters
    ----------
    solved : Solved
    s : int
        Shape (count, n, n); 0 within a cluster.  Null where there are cotangents of w alone, which are judged.
    w_bar : int
        Of real numbers, shape (count, n), or null.
    limits : Limits

    Returns
    -------
    Word
        Not 0 where a limit is passed, or a norm is not finite; on its way to the host.
    """
    import cupy

    n, scalar, word, real = solved.n, solved.scalar, Word(2 * solved.count), np.dtype(solved.scalar.real).type
    for first, many in solved.parts():
        words, shape = address(word.device) + 8 * first, tiles_shape(n, many, scalar, 2)
        cluster, sizes, _ = solved.clusters(w_bar, limits.resolution, limits.unit, first, many, words)
        parts, own = cupy.empty((many, shape.grid[0] * (shape.grid[0] + 1))), solved.at(s, first, n * n)
        solved.launch(
            *("divide_by_gaps", shape, own, solved.at(solved.w, first, n, real=True), cluster),
            *(solved.at(w_bar, first, n, real=True), sizes, np.int32(n), real(limits.told), real(limits.turned)),
            *(np.float64(limits.anti), own, parts, np.uintp(words)),
        )
    word.fetch()
    return word


def multiply_triangle(solved: Solved, left: int, v: int, out: int, *, lower: bool) -> None:
    """Make a triangle of X Vᴴ of one matrix, which is Hermitian."""
    n = solved.n
    # In columns these are the transposes.
    Blas(solved.scalar.name).gram(n, n, v, n, left, n, out, n, lower=not lower)


def take_triangle(solved: Solved, a: int, *, lower: bool) -> None:
    """Leave one triangle of Hermitian matrices, with half of the diagonal, and 0 elsewhere."""
    n = solved.n
    for first, many in solved.parts():
        solved.launch("take_triangle", rows_shape(n, many), solved.at(a, first, n * n), np.int32(n), np.int32(lower))


def generic_basis(w: Any, v: Any, resolution: float) -> Any:
    """Return eigenvectors in rows of memory, with arbitrary phases, and bases of clusters; nothing is waited for.

    Parameters
    ----------
    w : cupy.ndarray, shape (..., n)
    v : cupy.ndarray, shape (..., n, n)
    resolution : float
        Neighbours with a smaller gap, as a share of the largest eigenvalue, are of one cluster.
    """
    import cupy

    n, out, scalar = v.shape[-1], cupy.empty(v.shape, v.dtype), scalar_of(v.dtype)
    given, values = v.reshape(-1, n, n), cupy.ascontiguousarray(w)
    solved = Solved(scalar, n, len(given), address(values))
    strides, words = [np.int64(one // v.itemsize) for one in given.strides], cupy.empty(2 * len(given), np.int32)
    for first, many in solved.parts():
        cluster, _, coinciding = solved.clusters(0, resolution, 0.0, first, many, address(words))
        own = solved.at(address(out), first, n * n)
        solved.launch(
            *("arrange", tiles_shape(n, many, scalar, 1), np.uintp(address(given[first:])), *strides, np.int32(n), own)
        )
        solved.launch("mix_clusters", rows_shape(n, many), own, np.int32(n), cluster, coinciding)
    return out
