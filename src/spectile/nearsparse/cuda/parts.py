"""Complex products on a GPU, as real ones of real and imaginary parts.

A complex matrix lies in memory as a real one, the parts of an entry side by side.  Where each entry b of B becomes
((Re b, Im b), (-Im b, Re b)), the real product of A with it is C, parts side by side again: A and C are not copied.

A tile of A is a pair of real ones along k, and a tile of B four of them, which are valid or not all together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.nearsparse.cuda.geometry import check_sizes
from spectile.nearsparse.cuda.norms import NormMaps, Norms


def real_view(x: Any) -> Any:
    """Return a row-major complex matrix, or a batch, as a real one of twice as many columns that shares its memory."""
    import cupy

    dtype = np.empty(0, x.dtype).real.dtype
    strides = (*x.strides[:-1], dtype.itemsize)
    view = cupy.ndarray((*x.shape[:-1], 2 * x.shape[-1]), dtype, memptr=x.data, strides=strides)
    check_sizes("a complex operand, as parts,", view)
    return view


def expanded(b: Any) -> Any:
    """Return the real matrix of twice as many rows and columns with which a real view of A is multiplied."""
    import cupy

    real = cupy.empty((*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1]), np.empty(0, b.dtype).real.dtype)
    check_sizes("b, as parts,", real)
    real[..., 0::2, 0::2] = real[..., 1::2, 1::2] = b.real
    real[..., 0::2, 1::2] = b.imag
    cupy.negative(b.imag, out=real[..., 1::2, 0::2])
    return real


def norm_maps(a: Any, b: Any, block: int) -> Norms:
    """Return the norm maps of two complex matrices, or batches, computed on the current stream."""
    import cupy

    real_a, real_b = real_view(a), real_view(b)
    pairs = (
        (real_a, cupy.empty((real_a.shape[-1], 0), real_a.dtype)),
        (cupy.empty((0, real_b.shape[-2]), real_b.dtype), real_b),
    )
    maps = [NormMaps(*pair, block) for pair in pairs]
    for one, x in zip(maps, (a, b), strict=True):
        if x.size:
            one()
    return Norms(_paired(maps[0].a, -1), _paired(maps[1].b, -2), block)


def _paired(norms: Any, axis: int) -> Any:
    """Return the norms of pairs of neighbouring real tiles, of which the last may have none."""
    import cupy

    along = cupy.moveaxis(norms, axis, 0)
    first, second = along[0::2], along[1::2]
    found = first.copy()
    cupy.hypot(first[: len(second)], second, out=found[: len(second)])
    return cupy.ascontiguousarray(cupy.moveaxis(found, 0, axis))


def of_real_tiles(maps: Norms) -> Norms:
    """Return the norm maps by which the real product is made: each norm for all real tiles of its complex one."""
    import cupy

    norms_b = cupy.repeat(cupy.repeat(maps.b, 2, axis=-1), 2, axis=-2)
    return Norms(cupy.repeat(maps.a, 2, axis=-1), norms_b, maps.block)
