"""Lanczos on the device: all steps are enqueued before the host reads a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import LANCZOS_BLOCKS, LANCZOS_THREADS, lanczos_unit, vectors_unit
from spectile.kpm.cuda.csr import when as csr
from spectile.kpm.cuda.problem import Problem, enqueued
from spectile.kpm.types import Array


def tridiagonalize(product: Callable[[Any, Any, Any], None], start: Any, steps: int) -> tuple[Array, Array]:
    """Return the diagonal, shape (k,), and the norms beside it, shape (k,), of k = `steps` Lanczos steps.

    Parameters
    ----------
    product : callable
        ``product(v, u, etas)`` enqueues u = H v and writes ⟨v|v⟩ and Re ⟨u|v⟩ to `etas`, two numbers.
    start : cupy.ndarray
        Start vector of any shape, in one piece, not zero; overwritten.
    steps : int
        k; numbers behind a norm of zero mean nothing.
    """
    import cupy

    unit, device = vectors_unit(str(start.dtype)), describe()
    subtract, normalize = kernel(unit, "lanczos_subtract"), kernel(unit, "lanczos_normalize")
    shape, size = Shape((4 * device.multiprocessors,), 256), np.int64(start.size)
    v, u, before = start, cupy.zeros_like(start), cupy.zeros_like(start)
    squares, zero = cupy.empty(shape.grid[0]), cupy.zeros(1)
    etas, betas = cupy.empty((steps, 2)), cupy.empty(steps + 1)

    def orthogonalize(vector: Any, alpha: Any, beta: Any, norm: Any) -> None:
        """Leave (vector − alpha v − beta before) / norm in `before`."""
        subtract(shape, vector, v, before, alpha, beta, squares, size)
        normalize(shape, before, squares, np.int32(squares.size), norm, size)

    orthogonalize(start, zero, zero, betas[:1])
    v, before = before, v
    for k in range(steps):
        product(v, u, etas[k])
        orthogonalize(u, etas[k, 1:], betas[k : k + 1] if k else zero, betas[k + 1 : k + 2])
        v, before = before, v
    return np.ascontiguousarray(etas.get()[:, 1]), betas.get()[1:]


def meets(problem: Problem, device: Device) -> bool:
    """Return whether all Lanczos steps on a stored matrix are one launch.

    Apart a step is four, and its product that of the recurrence's kernel, which pays once it takes twice as long as
    they take the host.
    """
    return csr.cost(problem._replace(vectors=1), device) <= 8 * enqueued(device)


def tridiagonalize_csr(matrix: Any, steps: int) -> tuple[Array, Array]:
    """Return the same of a stored matrix, from random vector number 0 of seed 1, lengthened: in one launch.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    steps : int
        As for :func:`tridiagonalize`.
    """
    import cupy

    rows, wide = int(matrix.shape[0]), matrix.indptr.dtype.itemsize == 8
    # A thread takes up to two entries of a row, and a warp the rest.
    lanes = min(32, 1 << max(0, (matrix.nnz // (2 * rows)).bit_length()))
    blocks = min(LANCZOS_BLOCKS * describe().multiprocessors, ceil_div(rows * lanes, LANCZOS_THREADS))
    shape = Shape((blocks,), LANCZOS_THREADS, cooperative=True)
    x, y = (cupy.empty(rows, matrix.dtype) for _ in range(2))
    numbers, sums, arrived = cupy.empty(2 * steps + 1), cupy.empty(2 * blocks), cupy.zeros(1, np.uint64)
    kernel(lanczos_unit(str(matrix.dtype), wide=wide), "lanczos")(
        shape, matrix.indptr, matrix.indices, matrix.data, x, y, np.int64(rows), np.int32(lanes), np.uint64(1),
        np.int32(steps), numbers[:steps], numbers[steps:], sums, arrived,
    )  # fmt: skip
    found = numbers.get()
    return found[:steps], found[steps + 1 :]
