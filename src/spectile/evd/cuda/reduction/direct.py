"""Direct tridiagonalization: a Hermitian matrix whose columns fit in shared memory, in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.choose import direct_blocks, direct_layout, direct_size
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.cuda.units import DIRECT
from spectile.evd.types import Scalar


def direct_shape(n: int, scalar: Scalar, on: Device) -> Shape:
    """Launch of `tridiagonalize`, whose blocks wait for each other."""
    return Shape((direct_blocks(n, on),), direct_size(n)[0], direct_layout(n, scalar, on)[1], cooperative=True)


def tridiagonalize(a: Matrix, n: int, *, keep: bool) -> tuple[Panels, Any, Any]:
    """Reduce a Hermitian matrix, both triangles given, to tridiagonal form by one reflector a column.

    Parameters
    ----------
    a : Matrix
        n x n, overwritten; with `keep` the reflectors come below its subdiagonal.
    n : int
        At most the product of the last of `choose.DIRECT_SIZES`.
    keep : bool
        Whether the reflectors are wanted.

    Returns
    -------
    panels : Panels
        Of one column each.
    d, e : cupy.ndarray of float64, shape (n,)
        Diagonal and subdiagonal (the last element of e is not set).
    """
    import cupy

    scalar, on = a.scalar, device.describe()
    d, e = cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    tau = cupy.empty((n, 1), a.owner.dtype)
    messages = cupy.zeros(4 * n * scalar.parts * 4, np.uint32)
    kernel(DIRECT[(scalar.name, *direct_size(n))], "tridiagonalize")(
        direct_shape(n, scalar, on),
        *(np.uintp(a.pointer), np.int64(a.ld), np.int32(n), np.int32(direct_layout(n, scalar, on)[0])),
        *(np.int32(keep), d, e, tau, messages),
    )
    return Panels(a, tau, 1, n), d, e
