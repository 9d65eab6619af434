"""Checks of arguments, before any work and without a copy of the operand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.evd.types import Subset


def require_square(a: Any) -> tuple[int, ...]:
    """Return the shape of `a`, and raise ValueError unless its last two axes have one length."""
    shape = tuple(int(length) for length in (a.shape if hasattr(a, "shape") else np.shape(a)))
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f'expected square "a" matrix, and not shape {shape}')
    return shape


def reads_lower(lower: bool, uplo: str | None) -> bool:
    """Return which triangle is read; NumPy's `uplo` wins over SciPy's `lower`."""
    if uplo is None:
        return bool(lower)
    if uplo not in ("L", "U", "l", "u"):
        raise ValueError(f"UPLO is 'L' or 'U', and not {uplo!r}")
    return uplo in ("L", "l")


def subset_of(shape: tuple[int, ...], by_index: Any, by_value: Any) -> Subset | None:
    """Return the wanted part of the spectra of matrices of `shape`, or None for all.

    Raises
    ------
    ValueError
        If the part is not valid.
    """
    n = shape[-1]
    if by_index is not None and by_value is not None:
        raise ValueError("Either index or value subset can be requested, not both")
    if by_index is not None:
        subset = Subset(True, *(int(x) for x in by_index))
        if not 0 <= subset.low <= subset.high < n:
            raise ValueError(
                f"Requested eigenvalue indices (subset_by_index) are not valid. Valid range is [0, {n - 1}] and "
                f"start <= end, but start={subset.low}, end={subset.high} is given"
            )
    elif by_value is not None:
        subset = Subset(False, *(float(x) for x in by_value))
        if not subset.low < subset.high:
            raise ValueError(
                "Requested eigenvalue bounds are not valid. Valid range is (-inf, inf) and low < high, but "
                f"low={subset.low}, high={subset.high} is given"
            )
        if len(shape) > 2:
            raise ValueError(
                "subset_by_value gives each matrix of a batch its own number of eigenvalues: loop over them"
            )
    else:
        return None
    return None if (subset.low, subset.high) in ((0, n - 1), (-math.inf, math.inf)) else subset
