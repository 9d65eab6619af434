"""One look at a stored matrix on the device: its form, its adjoint, its bounds."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from spectile.core.compile import Unit, is_compiling, prepare
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.common import inspect_unit, vectors_unit
from spectile.kpm.operators.stored import Inspection


@functools.cache
def _prepared(arch: str, dtype: str, wide: bool) -> Unit:
    """Return the unit that looks at a matrix, compiled beside what the steps after it need."""
    unit = inspect_unit(dtype, wide=wide)
    prepare(unit, vectors_unit(dtype))
    if is_compiling(unit):
        importlib.import_module("scipy.fft")  # the host needs it at the end, and waits here
    return unit


def inspect(matrix: Any) -> Inspection:
    """Look at a cupyx CSR matrix with indices of 32 bits."""
    import cupy

    rows, wide = int(matrix.shape[0]), matrix.indptr.dtype.itemsize == 8
    threads = 256
    shape = Shape((min(-(-rows // threads), 8 * describe().multiprocessors),), threads)
    look = kernel(_prepared(describe().arch, str(matrix.dtype), wide), "inspect")

    for partners_of_all in (0, 1):
        seen = cupy.zeros(9, np.uint64)
        operands = matrix.indptr, matrix.indices, matrix.data, np.int64(rows), np.int32(partners_of_all)
        look(shape, *operands, seen)
        words = seen.get()
        if not words[6] or words[0] & np.uint64(1):
            break  # every entry has a partner, or nothing can be said
    return seen_in(words)


def seen_in(words: Any) -> Inspection:
    """Return what ``inspect.cu`` has written."""
    difference, largest, minus_low, high = _from_ordered(words[1:5])
    flags = int(words[0])
    bounds, longest, slots, unlike = (-minus_low, high), int(words[5]), int(words[7]), int(words[8])
    return Inspection(not flags & 2, difference, largest, bounds, longest, not flags & 1, slots, unlike)


def _from_ordered(words: Any) -> list[float]:
    """Return the numbers that ``inspect.cu`` put in the order of unsigned integers."""
    sign = np.uint64(1 << 63)
    return [float(x) for x in np.where(words & sign, words ^ sign, ~words).view(np.float64)]
