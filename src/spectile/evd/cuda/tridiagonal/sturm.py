"""Eigenvalues of a tridiagonal matrix by Sturm counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.choose import STURM_THREADS, sturm_lanes
from spectile.evd.cuda.matrix import scaled_values
from spectile.evd.cuda.units import STURM
from spectile.evd.types import SCALARS


def multisect_shape(n: int, lanes: int) -> Shape:
    """Launch of `multisect`; a chunk of 512 pairs of the matrix is in shared memory at a time."""
    return Shape((-(-n * lanes // STURM_THREADS),), STURM_THREADS, 512 * 16)


def norm_bound(d: Any, e: Any, what: str) -> float:
    """Return the largest absolute row sum of the tridiagonal matrix, a bound of its spectrum.

    Parameters
    ----------
    d, e : numpy.ndarray or cupy.ndarray, shape (n,)
        The last element of e is not read.
    what : str
        What cannot be had of a matrix that holds NaN or infinity.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix holds NaN or infinity.
    """
    size = abs(d)
    size[1:] += abs(e[: len(d) - 1])
    size[:-1] += abs(e[: len(d) - 1])
    bound = float(size.max())
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError(f"the tridiagonal matrix holds NaN or infinity: no {what}")
    return bound


def eigenvalues(d: Any, e: Any) -> Any:
    """Return all eigenvalues, ascending, of the tridiagonal matrix by multi-section on Sturm counts.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix holds NaN or infinity.
    """
    import cupy

    n = len(d)
    # On the host: a few numbers there and back take less time than as many launches.
    d, e = cupy.asnumpy(d), cupy.asnumpy(e)[: n - 1]
    bound = norm_bound(d, e, "eigenvalues")
    if bound == 0:
        return cupy.zeros(n, np.float64)
    lanes = sturm_lanes(n, device.describe())
    # 2 (1 + 2⁻⁵⁰) (lanes + 1)^-passes < 2⁻⁵⁷
    passes = math.ceil(58 / math.log2(lanes + 1))
    w = cupy.empty(n, np.float64)
    squares = np.maximum((e / bound) ** 2, 1e-60)  # not 0: after a zero of the recurrence all would be 0
    edge = 1 + 2.0**-40
    kernel(STURM[lanes], "multisect")(
        multisect_shape(n, lanes),
        *(cupy.asarray(d / bound), cupy.asarray(squares), np.int32(n)),
        *(np.float64(-edge), np.float64(edge), np.int32(passes), w),
    )
    w = scaled_values(w, 0, SCALARS["float64"], bound)
    w.sort()
    return w


def shapes(n: int, on: Device) -> Iterator[tuple[str, Shape]]:
    """Yield every launch of this module for order n, with the kernel's name."""
    yield "multisect", multisect_shape(n, sturm_lanes(n, on))
