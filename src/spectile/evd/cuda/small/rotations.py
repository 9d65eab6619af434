"""Small matrices, one or a batch, by Jacobi rotations: one kernel from the caller's memory and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.small.report import Report
from spectile.evd.cuda.units import ROTATIONS
from spectile.evd.types import Options, Scalar, scalar_of


def rotate_shape(n: int, count: int, scalar: Scalar) -> Shape:
    """Launch of `rotate_small`: a thread for each pair of pairs of indices."""
    m = n + n % 2
    half = m // 2
    threads = max(1, -(-half * (half // 2) // 32)) * 32
    return Shape((count,), threads, scalar.itemsize * (2 * m * (m + 1) + n * (m + half)) + 4 * (m + 1))


def solve(batch: Any, options: Options) -> tuple[Any, Any]:
    """Return the eigenvalues, and the eigenvectors or None, of every matrix.

    The host hears of failures once, and not at all while the stream is captured in a graph: the results of a matrix
    that is not finite are NaN then.

    Parameters
    ----------
    batch : cupy.ndarray, shape (count, n, n)
        n from 1 to what `choose.ROTATED_ORDER` says.
    options : Options
        Without a subset by value.

    Returns
    -------
    w : cupy.ndarray, shape (count, m)
    v : cupy.ndarray, shape (count, n, m), or None

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If a triangle holds NaN or infinity, with and without `check_finite`; LinAlgError for no convergence, too.
    """
    import cupy

    count, n, _ = batch.shape
    size, scalar = batch.itemsize, scalar_of(batch.dtype)
    stride, along_i, along_j = (step // size for step in batch.strides)
    if not options.lower:
        along_i, along_j = along_j, along_i
    w = cupy.empty((count, n), scalar.real)
    v = cupy.empty(batch.shape, batch.dtype) if options.vectors else None
    report = Report()
    kernel(ROTATIONS[scalar.name], "rotate_small")(
        rotate_shape(n, count, scalar),
        *(np.uintp(batch.data.ptr), np.int64(stride), np.int64(along_i), np.int64(along_j), np.int32(n)),
        *(np.int32(not options.lower), np.int32(options.vectors), w, np.uintp(0) if v is None else v, report.address),
    )
    report.check(options)
    if options.subset is None:
        return w, v
    wanted = slice(options.subset.low, options.subset.high + 1)
    return w[:, wanted], None if v is None else v[:, :, wanted]


def shapes(n: int, count: int, scalar: Scalar) -> Iterator[tuple[str, Shape]]:
    """Yield every launch of this module, with the kernel's name."""
    yield "rotate_small", rotate_shape(n, count, scalar)
