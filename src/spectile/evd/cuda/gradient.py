"""The derivative of eigenpairs on CUDA, its products included, and their gauge, in as few launches as there can be.

Matrices lie in rows, and are given by their addresses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.small.report import Word, told
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import SCALARS, Scalar, scalar_of

#: Bytes beside its tiles that `divide_by_gaps` adds up in, and has where clusters begin.
SUMS = 2 * 256 * 8 + 32 * 4


def tiles_shape(n: int, count: int, scalar: Scalar, held: int, more: int = 0) -> Shape:
    """Launch of a kernel over tiles of `count` matrices that holds so many, and `more` bytes, in shared memory."""
    tiles = -(-n // 32)
    return Shape((count, tiles, tiles), 256, held * 32 * 33 * scalar.itemsize + more)


def rows_shape(n: int, count: int = 1) -> Shape:
    """Launch of a kernel with a block for each row of `count` matrices, or each of n."""
    return Shape((n * count,), 256)


class _Pass(Word):
    """What gradients of one shape need beside their operands, launches included; one call at a time has it."""

    def __init__(self, name: str, n: int, count: int, limits: tuple[float, ...], lower: bool) -> None:
        import cupy

        scalar, unit = SCALARS[name], GRADIENT[name]
        shape, real = tiles_shape(n, count, scalar, 2, SUMS), np.dtype(scalar.real).type
        parts, arrivals = cupy.empty(count * shape.grid[1] * (shape.grid[1] + 1)), cupy.zeros(count, np.int32)
        super().__init__()
        #: Where S, w, its cotangents and the result are, which a launch reads.
        self.places = np.zeros(4, np.uintp)
        s, w, w_bar, out = np.split(self.places, 4)
        self.divide = kernel(unit, "divide_by_gaps").bind(
            *(shape, s, w, w_bar, np.int32(n), *map(real, limits[:-1]), np.float64(limits[-1])),
            *(out, parts, arrivals, self.address, self.arrived),
        )
        self.triangle = kernel(unit, "take_triangle").bind(rows_shape(n, count), out, np.int32(n), np.int32(lower))


class Solved(NamedTuple):
    """Eigenpairs of a batch of matrices of order n on the current device, by their addresses."""

    name: str  #: Of the dtype.
    n: int
    batch: int
    w: int  #: Of real numbers, shape (batch, n).
    v: int  #: Shape (batch, n, n).

    def pull_back(
        self, w_bar: int, v_bar: int, left: int, out: int, limits: tuple[float, ...], *, lower: bool, stream: int
    ) -> bool:
        """Write the gradient of a triangle; return whether the cotangents are well, else it is of no use.

        The host waits for that when all is on its way.

        Parameters
        ----------
        w_bar : int
            Of real numbers, shape (batch, n), or null.
        v_bar : int
            Shape (batch, n, n), or null: then `left` is V with columns times twice the cotangents of w.
        left, out : int
            Shape (batch, n, n); `left` is overwritten.
        limits : tuple of float
            Neighbours with a smaller gap, as a share of the largest eigenvalue, are of one cluster; how far rounding
            moves an eigenvalue, likewise; the most of differences of the cotangents of w within a cluster, as a share
            of their norm: of these, and of these times how far rounding turns one vector to the other; and of
            anti-Hermitian parts there, as a share of the norm of Vᴴ times the cotangent of V.
        lower : bool
        stream : int
            Of the device.
        """
        n, blas = self.n, Blas(self.name, stream)
        if v_bar:  # first of all, so that the device is at work; in columns these are the transposes, here and below
            self._multiply(blas, v_bar, self.v, out, "NC")

        def rest(one: _Pass) -> None:
            one.places[:] = out if v_bar else 0, self.w, w_bar, out
            one.divide(stream)
            if v_bar:
                self._multiply(blas, out, self.v, left, "NN")
            if self.batch == 1:
                blas.gram(n, n, self.v, n, left, n, out, n, lower=not lower)
            else:
                self._multiply(blas, self.v, left, out, "CN")
            one.triangle(stream)

        return told(rest, stream, _Pass, self.name, n, self.batch, limits, lower)

    def _multiply(self, blas: Blas, a: int, b: int, out: int, ops: str) -> None:
        n, each = self.n, self.n**2
        if self.batch == 1:
            blas.gemm(n, n, n, 1.0, a, n, b, n, 0.0, out, n, ops)
        else:
            blas.batched(n, n, n, 1.0, a, n, each, b, n, each, 0.0, out, n, each, self.batch, ops)


def generic_basis(w: Any, v: Any, resolution: float) -> Any:
    """Return eigenvectors in rows of memory, with arbitrary phases, and bases of clusters; nothing is waited for.

    w has the shape (..., n) and V (..., n, n); neighbours with a gap below `resolution`, as a share of the largest
    eigenvalue, are of one cluster.
    """
    import cupy

    n, out, scalar = v.shape[-1], cupy.empty(v.shape, v.dtype), scalar_of(v.dtype)
    if not v.size:
        return out
    given, values, order = v.reshape(-1, n, n), cupy.ascontiguousarray(w), np.int32(n)
    count, unit = len(given), GRADIENT[scalar.name]
    find, arrange, mix = (kernel(unit, name) for name in ("find_clusters", "arrange", "mix_clusters"))
    cluster, coinciding = cupy.empty(count * n, np.int32), cupy.empty(count, np.int32)
    find(rows_shape(count), values, order, values.dtype.type(resolution), cluster, coinciding)
    strides = (np.int64(one // v.itemsize) for one in given.strides)
    arrange(tiles_shape(n, count, scalar, 1), given, *strides, order, out)
    mix(rows_shape(n, count), out, order, cluster, coinciding)
    return out
