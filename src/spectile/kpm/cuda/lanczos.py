"""Lanczos on the device: all steps on a stored matrix are one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import LANCZOS_BLOCKS, LANCZOS_THREADS, lanczos_unit
from spectile.kpm.types import Array


def tridiagonalize_csr(matrix: Any, steps: int) -> tuple[Array, Array]:
    """Return the diagonal, shape (k,), and the norms beside it, shape (k,), of k = `steps` Lanczos steps.

    They start from random vector number 0 of seed 1, lengthened; numbers behind a norm of zero mean nothing.
    """
    import cupy

    rows, wide = int(matrix.shape[0]), matrix.indptr.dtype.itemsize == 8
    # A thread has four entries of a row on their way, of a long one several times.
    lanes = min(32, 1 << max(0, (matrix.nnz // (4 * rows)).bit_length()))
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
