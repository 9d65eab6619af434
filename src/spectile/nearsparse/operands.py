"""Arrays of the host or of a device, as every backend handles them: overlaps and batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.pointers import address, overlap


def copy_if_overlapping(c: Any, out: Any, direct: bool) -> Any:
    """Return C, copied where writing `out` would overwrite entries of it that are still to be read.

    Where the product writes to `out` itself, `direct`, an entry of C is read just before the same one of `out` is
    written, so that the two may be one array.
    """
    return c.copy() if must_be_copied(c, out, direct) else c


def must_be_copied(c: Any, out: Any, direct: bool) -> bool:
    """Return whether :func:`copy_if_overlapping` copies C."""
    if c is None or out is None or not overlap(c, out):
        return False
    return not (direct and address(c) == address(out) and c.strides == out.strides)


def flat_batch(array: Any, batch: tuple[int, ...]) -> Any:
    """Return `array` as one matrix or one flat batch, or None where broadcasting is more involved.

    A device array is never copied for it: None, too.
    """
    if array is None or array.ndim == 2:
        return array
    if array.shape[:-2] != batch:
        return array.reshape(array.shape[-2:]) if math.prod(array.shape[:-2]) == 1 else None
    flat = array.reshape(math.prod(batch), *array.shape[-2:])  # which -1 does not say of arrays without entries
    return flat if isinstance(flat, np.ndarray) or address(flat) == address(array) else None


def each_product(a: Any, b: Any, c: Any, out: Any, batch: tuple[int, ...]) -> list[tuple[Any, Any, Any, Any]]:
    """Return A, B, C and the result of each product of a batch, broadcast without copies."""
    if batch == ():
        return [(a, b, c, out)]
    if isinstance(a, np.ndarray):
        broadcast: Any = np.broadcast_to
    else:
        import cupy

        broadcast = cupy.broadcast_to
    wide_a, wide_b = (broadcast(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return [(wide_a[i], wide_b[i], None if c is None else c[i], out[i]) for i in np.ndindex(batch)]
