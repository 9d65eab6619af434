"""Lanczos steps on a matrix of dense blocks, whose values are rounded to 16 bits (``packed.cu``)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.bounds import FILL
from spectile.kpm.cuda import lanczos
from spectile.kpm.cuda.choose import packed_launch
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
    multiply, add = kernel(unit, "packed_product"), kernel(vectors_unit(narrow), "sum_partials")
    partial, blocks = cupy.empty(launched.grid[0]), np.int32(launched.grid[0])

    def product(v: Any, u: Any, etas: Any) -> None:
        multiply(launched, first, matrix.indptr, matrix.indices, values, v, u, partial, groups)
        add(Shape((1, 1), 1024), partial, etas[1:], blocks, np.int32(1), np.int32(1))

    start = cupy.empty((matrix.shape[0], 1), narrow)
    kernel(vectors_unit(narrow), "random_phases")(
        Shape((1024,), 256), start, np.uint64(0), np.int64(start.size), np.int32(1), np.uint64(1), np.uint64(0)
    )
    alphas, betas = lanczos.tridiagonalize(product, lanczos.lengthened(start), steps)
    if not (np.isfinite(alphas).all() and np.isfinite(betas).all() and betas.min() > 1e-5 * betas.max()):
        return None
    ritz = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas[:-1], -1))
    moved = half / scale * 2.0**-11 + longest * 2.0**-24
    if moved > MOST_MOVED * (ritz[-1] - ritz[0]) / 2:
        return None
    return center + scale * alphas, scale * betas
