"""Eigenvalues of a tridiagonal matrix by Sturm counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.choose import sturm_lanes, sturm_threads
from spectile.evd.cuda.units import STURM

#: All eigenvalues over the bound are below; Sturm counts are right up to far less than the margin.
EDGE, MARGIN = 1 + 2.0**-40, 2.0**-40
#: The lanes of the fewest eigenvalues, whose unit counts, too.
FEWEST = 32
SCALE_SHAPE = Shape((1,), 256, 256 * 8)
COUNT_SHAPE = Shape((1,), 32)


def multisect_shape(count: int, lanes: int) -> Shape:
    """Launch of `multisect` for `count` eigenvalues; 512 pairs of the matrix are in shared memory at a time."""
    threads = sturm_threads(lanes)
    return Shape((-(-count * lanes // threads),), threads, 512 * 16)


def eigenvalues(d: Any, e: Any, wanted: slice = slice(None)) -> Any:
    """Return eigenvalues, ascending, of the tridiagonal matrix by multi-section on Sturm counts, without a word to the
    host.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    wanted : slice
        Which of them, at least one; by default all.
    """
    import cupy

    n = len(d)
    first, stop, _ = wanted.indices(n)
    count = stop - first
    lanes = sturm_lanes(count, device.describe())
    bound, matrix = _scaled(d, e, lanes)
    # 2 (1 + 2⁻⁵⁰) (lanes + 1)^-passes < 2⁻⁵⁷
    passes = math.ceil(58 / math.log2(lanes + 1))
    w = cupy.empty(count, np.float64)
    kernel(STURM[lanes], "multisect")(
        multisect_shape(count, lanes),
        *(*matrix, np.int32(n), np.int32(first), np.int32(count)),
        *(np.float64(-EDGE), np.float64(EDGE), np.int32(passes), w),
    )
    kernel(STURM[lanes], "ascend")(SCALE_SHAPE, w, np.int32(count), bound)
    return w


def near(d: Any, e: Any, low: float, high: float) -> slice:
    """Return which eigenvalues lie between two numbers, or so near to one that roundoff decides, without them.

    d and e are float64 of shape (n,); the numbers may be infinite.
    """
    import cupy

    n = len(d)
    found, matrix = _scaled(d, e, FEWEST)
    bound = float(found[0])
    if bound == 0:
        return slice(0, n)
    counts = cupy.empty(2, np.int32)
    ends = max(low / bound - MARGIN, -EDGE), min(high / bound + MARGIN, EDGE)
    kernel(STURM[FEWEST], "count_below")(COUNT_SHAPE, *matrix, np.int32(n), *map(np.float64, ends), counts)
    first, stop = counts.tolist()
    return slice(first, max(first, stop))


def _scaled(d: Any, e: Any, lanes: int) -> tuple[Any, tuple[Any, Any]]:
    """Return a bound of the spectrum, and the diagonal over it and the squares beside it for the kernels."""
    import cupy

    n = len(d)
    diagonal, squares, bound = (cupy.empty(size, np.float64) for size in (n, n, 1))
    kernel(STURM[lanes], "scale_tridiagonal")(SCALE_SHAPE, d, e, np.int32(n), diagonal, squares, bound)
    return bound, (diagonal, squares)
