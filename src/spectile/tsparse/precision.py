"""The four precisions of the product: how inputs are rounded, how the sum is kept, and the bound on each entry.

``float64`` and ``float32`` are IEEE throughout.  ``tf32`` and ``float16`` are the mixed precisions of tensor cores:
inputs rounded to 11 significant bits, products exact, sums in float32.  A backend without tensor cores gives the same
numbers up to the order of the sums, because the rounding of the inputs happens here, before any backend.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

HALF_MAX = 65504.0
HALF_NORMAL = 2.0**-14
HALF_EXPONENT = 15  # a scaled row has its largest entry in [2**14, 2**15)


@dataclass(frozen=True)
class Precision:
    """One precision of the product.

    Attributes
    ----------
    name : str
    value : {"float32", "float64"}
        Name of the type of C and of the sums.
    unit : float
        Unit roundoff of one operation of the sum.  Tensor cores may truncate, which doubles float32's.
    """

    name: str
    value: str
    unit: float

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """Type of C and of the sums."""
        return np.dtype(self.value)


PRECISIONS = {
    "float64": Precision("float64", "float64", 2.0**-53),
    "float32": Precision("float32", "float32", 2.0**-24),
    "tf32": Precision("tf32", "float32", 2.0**-23),
    "float16": Precision("float16", "float32", 2.0**-23),
}


def lookup(name: str) -> Precision:
    """Return the precision called `name`; ValueError lists the names."""
    try:
        return PRECISIONS[name]
    except (KeyError, TypeError):
        raise ValueError(f"precision is {name!r}; choose one of {', '.join(PRECISIONS)}") from None


def round_tf32(values: Any, xp: Any = np) -> Any:
    """Round float32 to 10 stored bits of mantissa, ties away from zero (``cvt.rna.tf32.f32``)."""
    bits = xp.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def half_exponents(data: Any, group: Any, groups: int, what: str, xp: Any = np) -> Any:
    """Return the exponents e with which ``data * 2**-e[group]`` fits float16, or None where it fits as it is.

    Parameters
    ----------
    data : (nnz,) array
        Stored entries.
    group : callable
        Gives the (nnz,) row (or column) of each entry; called only where scaling is needed.
    groups : int
        Number of rows (or columns).
    what : str
        Name for the message, for example ``"row of A"``.
    xp : module
        NumPy or CuPy.

    Raises
    ------
    ValueError
        If an entry would be lost beside the largest of its row: the row spans more than float16 holds.
    """
    size = xp.abs(data)
    nonzero = size[size > 0]
    if not nonzero.size or (float(nonzero.max()) <= HALF_MAX and float(nonzero.min()) >= HALF_NORMAL):
        return None
    owner = group()
    largest = xp.zeros(groups, size.dtype)
    xp.maximum.at(largest, owner, size)
    exponents = xp.where(largest > 0, xp.frexp(largest)[1] - HALF_EXPONENT, 0).astype(np.int32)
    lost = (size > 0) & (xp.ldexp(size.astype(np.float64), -exponents[owner]) < 2.0**-24)
    if bool(lost.any()):
        worst = int(owner[int(xp.argmax(lost))])
        raise ValueError(
            f"{what} {worst} holds entries further apart than float16 can scale (a factor 2**39), and the small "
            'ones would become zero; use precision="tf32" or "float32"'
        )
    return exponents


def round_half(data: Any, exponents: Any | None, owner: Any | None, xp: Any = np) -> Any:
    """Return float32 values that float16 holds exactly, times ``2**-exponents[owner]`` if exponents are given."""
    if exponents is not None:
        data = xp.ldexp(data.astype(np.float64), -exponents[owner])
    return data.astype(np.float16).astype(np.float32)
