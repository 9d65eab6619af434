"""Eigenvalues of a tridiagonal matrix by Sturm counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.evd.cuda.units import STURM, STURM_THREADS, launch


def eigenvalues(d: Any, e: Any) -> Any:
    """Return all eigenvalues, ascending, of the tridiagonal matrix by multi-section on Sturm counts.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    """
    import cupy

    n = len(d)
    size = cupy.abs(d)
    size[1:] += cupy.abs(e[: n - 1])
    size[:-1] += cupy.abs(e[: n - 1])
    bound = float(size.max())
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError("the tridiagonal matrix holds NaN or infinity: no eigenvalues")
    if bound == 0:
        return cupy.zeros(n, np.float64)
    # Lanes that share an eigenvalue, while there are too few eigenvalues to fill the device (measured).
    lanes = 16 if n <= 10000 else (4 if n <= 24000 else 1)
    # 2 (1 + 2⁻⁵⁰) (lanes + 1)^-passes < 2⁻⁵⁷
    passes = math.ceil(58 / math.log2(lanes + 1))
    w = cupy.empty(n, np.float64)
    squares = cupy.maximum((e / bound) ** 2, 1e-60)  # not 0: after a zero of the recurrence all would be 0
    edge = 1 + 2.0**-40
    launch(
        STURM[lanes],
        "multisect",
        -(-n * lanes // STURM_THREADS),
        STURM_THREADS,
        (d / bound, squares, np.int32(n), np.float64(-edge), np.float64(edge), np.int32(passes), w),
        512 * 16,
    )
    w *= bound
    w.sort()
    return w
