"""Bulge chasing of bands of 128 and 256 subdiagonals on CUDA: Algorithm 2 as printed, for Figure 4.

The library's kernels keep a window of the band in registers and end at 64 subdiagonals.  This one works in global
memory and shows what Algorithm 2 costs at the bandwidths of MAGMA's default.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.core.compile import PORTABLE, Unit
from spectile.core.launch import Shape, kernel

THREADS = 512
BANDWIDTHS = (128, 256)


def _unit(bandwidth: int) -> Unit:
    return Unit(__package__, ("wide.cu",), archs=PORTABLE, defines={"B": str(bandwidth), "THREADS": str(THREADS)})


UNITS = tuple(_unit(bandwidth) for bandwidth in BANDWIDTHS)


def shape(n: int, bandwidth: int, multiprocessors: int) -> Shape:
    """Launch of `chase_wide`: as many blocks as there can be sweeps under way, or as run at the same time."""
    return Shape((min(n // (2 * bandwidth) + 2, multiprocessors),), THREADS)


def chase(band: Any, bandwidth: int) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form by bulge chasing.

    Parameters
    ----------
    band : cupy.ndarray of float64, shape (n, 2 b), C order
        ``band[j, i - j]`` with zeros behind the band; overwritten.
    bandwidth : {128, 256}

    Returns
    -------
    d, e : cupy.ndarray of float64, shape (n,) and (n - 1,)
        Diagonal and subdiagonal.

    Raises
    ------
    ValueError
        For another bandwidth.
    """
    import cupy

    if bandwidth not in BANDWIDTHS:
        raise ValueError(f"bands of {bandwidth} subdiagonals are not chased here: choose one of {BANDWIDTHS}")
    n = band.shape[0]
    done = cupy.zeros(n + 1, np.int32)  # of each sweep; then the ticket
    kernel(_unit(bandwidth), "chase_wide")(
        shape(n, bandwidth, device.describe().multiprocessors), band, np.int32(n), done
    )
    return band[:, 0].copy(), band[: n - 1, 1].copy()
