"""The four precisions of the product: how inputs are rounded, how the sum is kept, and the bound on each entry.

``float64`` and ``float32`` are IEEE throughout.  ``tf32`` and ``float16`` are the mixed precisions of tensor cores:
inputs rounded to 11 significant bits, products exact, sums in float32.  A backend without tensor cores gives the same
numbers up to the order of the sums, because the rounding of the inputs happens here, before any backend.

What float16 cannot hold is scaled by powers of two, a row of A and a column of B at a time, where an entry of either
factor asks for it.  Entry by entry (``method="rows"``, whose arithmetic is float32's) each entry keeps its own power as
it is, so that only entries beyond float32's normal range, or so large that sums could leave it, ask for more; in tiles,
as tensor cores read them, whatever float16 itself does not hold.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

HALF_MAX = 65504.0
HALF_NORMAL = 2.0**-14


@dataclass(frozen=True)
class HalfRange:
    """What a format for ``precision="float16"`` holds, and how rows and columns are scaled into it.

    Attributes
    ----------
    least, most : float
        Sizes between which nonzero entries need no scaling, as long as those of the other factor need none.
    top : int
        A scaled row has its largest entry in [2**(top - 1), 2**top).
    lost : float
        Scaled entries below this size would be lost.
    """

    least: float
    most: float
    top: int
    lost: float


#: Entry by entry: no sum of 2**31 products is above 2**127, and what a product loses below float32's normal range is
#: what float32 loses.  Once scaled, a loss would grow with the way back: no product of scaled entries is below 2**-124.
BY_ENTRY = HalfRange(2.0**-126, 2.0**48, 48, 2.0**-62)
#: Tiles, whose elements are float16.
IN_TILES = HalfRange(HALF_NORMAL, HALF_MAX, 15, 2.0**-24)


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


def fits_half(data: Any, half: HalfRange, xp: Any = np) -> bool:
    """Return whether `half` holds the stored entries `data` as they are."""
    size = xp.abs(data)
    nonzero = size[size > 0]
    return not nonzero.size or (float(nonzero.max()) <= half.most and float(nonzero.min()) >= half.least)


def half_exponents(data: Any, owner: Any, groups: int, what: str, half: HalfRange, xp: Any = np) -> Any:
    """Return the exponents e with which ``data * 2**-e[owner]`` fits `half`.

    Parameters
    ----------
    data : (nnz,) array
        Stored entries.
    owner : (nnz,) array
        Row (or column) of each entry.
    groups : int
        Number of rows (or columns).
    what : str
        Name for the message, for example ``"row of A"``.
    half : HalfRange
        `BY_ENTRY` or `IN_TILES`.
    xp : module
        NumPy or CuPy.

    Raises
    ------
    ValueError
        If an entry would be lost beside the largest of its row: the row spans more than `half` holds.
    """
    size = xp.abs(data)
    largest = xp.zeros(groups, size.dtype)
    xp.maximum.at(largest, owner, size)
    exponents = xp.where(largest > 0, xp.frexp(largest)[1] - half.top, 0).astype(np.int32)
    lost = (size > 0) & (xp.ldexp(size.astype(np.float64), -exponents[owner]) < half.lost)
    if bool(lost.any()):
        worst = int(owner[int(xp.argmax(lost))])
        raise ValueError(
            f"{what} {worst} holds entries further apart than float16 can scale "
            f"(a factor 2**{half.top - round(np.log2(half.lost))}), and the small ones would become zero; "
            + ('use method="rows"' if half is IN_TILES else 'use precision="tf32" or "float32"')
        )
    return exponents


def eleven_bits(values: Any) -> Any:
    """Round float64 to 11 significant bits, ties to even: float16 with the exponents of `values`; returns float32."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    even = (bits >> np.uint64(42)) & np.uint64(1)
    rounded = (bits + np.uint64(2**41 - 1) + even) & ~np.uint64(2**42 - 1)
    return rounded.view(np.float64).astype(np.float32)


def round_half(data: np.ndarray, half: HalfRange) -> np.ndarray:
    """Round to what `half` holds; returns float32."""
    return eleven_bits(data) if half is BY_ENTRY else data.astype(np.float16).astype(np.float32)
