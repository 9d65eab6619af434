"""Lanczos steps on the device: of small matrices all in one launch, of large ones by steps of the recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import LANCZOS_BLOCKS, LANCZOS_THREADS, lanczos_unit
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.types import Array

_SEED = np.uint64(1)


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
        shape, matrix.indptr, matrix.indices, matrix.data, x, y, np.int64(rows), np.int32(lanes), _SEED,
        np.int32(steps), numbers[:steps], numbers[steps:], sums, arrived,
    )  # fmt: skip
    found = numbers.get()
    return found[:steps], found[steps + 1 :]


def tridiagonalize_by_products(operator: StoredOperator, steps: int, unit: float) -> tuple[Array, Array]:
    """Return what :func:`tridiagonalize_csr` does, from an operator's own products; the host makes two launches a step.

    `unit` is a power of two with which H is multiplied, so that its norm is about one: products of vectors that are as
    long as H is large stay within the range of their type.
    """
    import cupy

    rows, dtype = operator.num_rows, operator.dtype
    step, kernels = operator.launcher(1), lanczos_unit(str(dtype))
    shape = Shape((min(LANCZOS_BLOCKS * describe().multiprocessors, ceil_div(rows, LANCZOS_THREADS)),), LANCZOS_THREADS)
    x, y = (cupy.empty(operator.shape(1), dtype) for _ in range(2))
    w = cupy.zeros_like(x)  # which a step reads
    kernel(kernels, "first_vector")(shape, x, y, np.int64(rows), _SEED)
    partials, numbers = step.partials(1), cupy.empty((2, steps + 1))
    turn = np.array([(0, steps)], [("step", np.int32), ("last", np.int32)])
    pairs = (x, y), (y, x)
    products = [step.bind(v, w, (unit, 0.0, 0.0)) for v, _ in pairs]
    further = [
        kernel(kernels, "next_vector").bind(
            shape, w, v, old, np.int64(rows), partials, np.int32(partials.shape[1]), *numbers, turn
        )
        for v, old in pairs
    ]
    for number in range(steps + 1):  # the last one for its norm
        turn["step"] = number
        products[number % 2](address(partials))
        further[number % 2]()
    alphas, betas = numbers.get() / unit
    return alphas[:steps], betas[1:]
