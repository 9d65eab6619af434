"""Lanczos steps on a matrix of dense blocks, whose values are rounded to 16 bits (``packed.cu``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Kernel, Shape, kernel
from spectile.kpm.bounds import FILL
from spectile.kpm.cuda import lanczos
from spectile.kpm.cuda.choose import PACKED_THREADS, packed_launch
from spectile.kpm.cuda.units import packed_unit, vectors_unit
from spectile.kpm.types import Array

#: Share of the spectrum's half width that rounding may move an eigenvalue by: half of what `FILL` leaves.
MOST_MOVED = (1 / FILL - 1) / 2
# Widths of a matrix that scaling takes to about 1 and back.
_LEAST, _MOST = 1e-300, 1e300


def tridiagonalize(
    matrix: Any, first: Any, certain: tuple[float, float], longest: int, steps: int
) -> tuple[Array, Array] | None:
    """Return the numbers of Lanczos steps, or None where rounding might move the ends of the spectrum.

    Rounding to 11 bits moves no eigenvalue by more than 2⁻¹¹ of the largest sum of a row's magnitudes.  Where this is
    little beside the width that the steps find, the bounds hold as they do for the matrix itself, and need not widen.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        Hermitian, canonical and finite.
    first : cupy.ndarray
        Groups of its rows, :func:`spectile.kpm.cuda.grouped.groups_of`.
    certain : (float, float)
        Gershgorin's bounds.
    longest : int
        Entries of its longest row.
    steps : int
        k.
    """
    import cupy

    # Without its center the matrix has rows whose magnitudes sum to half the circles' width at most.
    low, high = certain
    dtype, wide = str(matrix.dtype), matrix.indptr.dtype.itemsize == 8
    parts = 2 if np.dtype(dtype).kind == "c" else 1
    groups = np.int32(first.size - 1)
    launched = packed_launch(int(groups), describe())
    values, diagonal = cupy.empty(parts * matrix.nnz, np.uint16), cupy.empty(1, np.int32)
    unit = packed_unit(dtype, wide=wide)
    for center, half in (((low + high) / 2, (high - low) / 2), (0.0, max(abs(low), abs(high)))):
        if not _LEAST < half < _MOST:
            return None
        scale = 2.0 ** math.ceil(math.log2(half))
        diagonal.fill(0)
        kernel(unit, "pack")(
            launched, first, matrix.indptr, matrix.indices, matrix.data, values, diagonal, groups, np.float64(center),
            np.float64(1 / scale),
        )  # fmt: skip
        if center == 0 or int(diagonal[0]) == matrix.shape[0]:
            break
    narrow = "complex64" if parts == 2 else "float32"
    multiply, step = kernel(unit, "packed_product"), kernel(unit, "packed_step")
    overlapping = dataclasses.replace(launched, after_previous=True)

    def product(v: Any, u: Any, dots: Any) -> None:
        multiply(overlapping, first, matrix.indptr, matrix.indices, values, v, u, dots, groups)

    start = cupy.empty((matrix.shape[0], 1), narrow)
    kernel(vectors_unit(narrow), "random_phases")(
        Shape((1024,), 256), start, np.uint64(0), np.int64(start.size), np.int32(1), np.uint64(1), np.uint64(0)
    )
    alphas, betas = steps_of(product, launched.grid[0], step, lanczos.lengthened(start), steps)
    if not (np.isfinite(alphas).all() and np.isfinite(betas).all() and betas.min() > 1e-5 * betas.max()):
        return None
    moved = half / scale * 2.0**-11 + longest * 2.0**-24
    if moved > MOST_MOVED * least_width(betas) / 2:
        return None
    return center + scale * alphas, scale * betas


def least_width(betas: Array) -> float:
    """Return a width that the spectrum of a tridiagonal matrix has at least, from the norms beside its diagonal.

    It is the difference of two Rayleigh quotients, those of half a sine and of the same with alternating signs.
    """
    wave = np.sin(np.pi * np.arange(1, betas.size + 1) / (betas.size + 1))
    return float(4 * (betas[:-1] * wave[:-1]) @ wave[1:] / (wave @ wave))


def steps_of(
    product: Callable[[Any, Any, Any], None], blocks: int, step: Kernel, start: Any, steps: int
) -> tuple[Array, Array]:
    """Return the numbers of Lanczos steps on a matrix of about unit size, as ``lanczos.tridiagonalize`` does.

    Vectors keep their length, so that a step is a product and one pass over three vectors.

    Parameters
    ----------
    product : callable
        ``product(v, u, dots)`` enqueues u = H v and writes parts of Re ⟨u|v⟩ to `dots`, as many as `blocks`.
    blocks : int
        Blocks of the product.
    step : Kernel
        ``packed_step``.
    start : cupy.ndarray
        Start vector, not zero; overwritten.
    steps : int
        k.
    """
    import cupy

    shape, size = Shape((8 * describe().multiprocessors,), PACKED_THREADS), np.int64(start.size)
    overlapping = dataclasses.replace(shape, after_previous=True)
    v, u, before = start, cupy.zeros_like(start), cupy.zeros_like(start)
    # Of each step alpha and beta, then the squares of the vectors of even and odd steps: read in one copy.
    numbers, dots = cupy.zeros(2 * steps + 2 * shape.grid[0]), cupy.empty(blocks)
    alphas, betas, squares = numbers[:steps], numbers[steps : 2 * steps], numbers[2 * steps :].reshape(2, -1)
    measure = kernel(vectors_unit(str(start.dtype)), "lanczos_subtract")
    zero = cupy.zeros(1)
    measure(shape, start, start, before, zero, zero, squares[0], size)
    v, before = before, v
    before.fill(0)
    for k in range(steps):
        product(v, u, dots)
        now, after = squares[k % 2], squares[(k + 1) % 2]
        step(overlapping, u, v, before, dots, np.int32(blocks), now, after, alphas, betas, np.int32(k), size)
        v, before = before, v
    found = numbers.get()
    last = np.sqrt(found[2 * steps :].reshape(2, -1)[steps % 2].sum())
    return found[:steps], np.append(found[steps + 1 : 2 * steps], last)
