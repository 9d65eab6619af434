"""The four precisions of the product on the host: how inputs are rounded, and scaled where float16 asks for it.

``float64`` and ``float32`` are IEEE throughout.  ``tf32`` and ``float16`` are the mixed precisions of tensor cores:
inputs rounded to 11 significant bits, products exact, sums in float32.  A backend without tensor cores gives the same
numbers up to the order of the sums, because the rounding of the inputs happens here, before any backend.

What float16 cannot hold is scaled by powers of two, a row of A and a column of B at a time, where an entry of either
factor asks for it.  Each entry keeps its own power of two, since the arithmetic is float32's: only entries beyond
float32's normal range, or so large that sums could leave it, ask for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.tsparse import errors
from spectile.tsparse.room import Room
from spectile.tsparse.types import BY_ENTRY, HalfRange, Operand, Precision

_PART = 2**12  # entries that are converted or scaled back at a time

Exponents = tuple[np.ndarray, np.ndarray]  # of the rows of A and of the columns of B
Rounded = tuple[np.ndarray, np.ndarray, Exponents | None]  # values of A and of B, and what they were scaled by


def by_parts(values: np.ndarray, dtype: Any, convert: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return converted values; what the conversion takes beside them has the size of a part."""
    made = np.empty(len(values), dtype)
    for start in range(0, len(values), _PART):
        made[start : start + _PART] = convert(values[start : start + _PART])
    return made


def round_tf32(values: Any) -> Any:
    """Round float32 to 11 significant bits, ties away from zero: ``cvt.rna.tf32.f32``, and below its range as well."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    rounded = ((values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    small = np.abs(values) < np.float32(2.0**-126)  # whose stored bits are not their significant ones
    if bool(small.any()):
        bits = values[small].astype(np.float64).view(np.uint64)
        bits = (bits + np.uint64(2**41)) & np.uint64(2**64 - 2**42)
        rounded[small] = bits.view(np.float64).astype(np.float32)
    return np.where(np.isnan(values), values, rounded)


def fits_half(data: Any, half: HalfRange = BY_ENTRY, xp: Any = np) -> bool:
    """Return whether `half` holds the stored entries `data` as they are; it holds NaN and infinities."""
    size = xp.abs(data)
    nonzero = size[(size > 0) & (size < np.inf)]
    return not nonzero.size or (float(nonzero.max()) <= half.most and float(nonzero.min()) >= half.least)


def half_exponents(data: Any, owner: Any, groups: int, what: str, half: HalfRange = BY_ENTRY, xp: Any = np) -> Any:
    """Return the exponents e with which ``data * 2**-e[owner]`` fits the range `half`, of so many rows or columns.

    `what` names one in the message, for example ``"row of A"``.  Raises ValueError if an entry would be lost beside the
    largest of its row: the row spans more than `half` holds.
    """
    size = xp.abs(data)
    size[~xp.isfinite(size)] = 0  # these need no scaling
    largest = xp.zeros(groups, size.dtype)
    # Bits rise as the sizes do, and are compared as they are: CuPy compares float64 in single precision.
    bits = f"u{size.itemsize}"
    xp.maximum.at(largest.view(bits), owner, size.view(bits))
    exponents = xp.where(largest > 0, xp.frexp(largest)[1] - half.top, 0).astype(np.int32)
    lost = (size > 0) & (xp.ldexp(size.astype(np.float64), -exponents[owner]) < half.lost)
    if bool(lost.any()):
        worst = int(owner[int(xp.argmax(lost))])
        raise ValueError(
            f"{what} {worst} holds entries further apart than float16 can scale "
            f"(a factor 2**{half.top - round(np.log2(half.lost))}), and the small ones would become zero; "
            'use precision="tf32" or "float32"'
        )
    return exponents


def eleven_bits(values: Any) -> Any:
    """Round float64 to 11 significant bits, ties to even: float16 with the exponents of `values`; returns float32."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    even = (bits >> np.uint64(42)) & np.uint64(1)
    rounded = (bits + np.uint64(2**41 - 1) + even) & ~np.uint64(2**42 - 1)
    return np.where(np.isfinite(values), rounded.view(np.float64), values).astype(np.float32)


def rounded(A: Operand, B: Operand, precision: Precision, names: str = "AB", room: Room | None = None) -> Rounded:
    """Return the values of A and B as `precision` takes them, and the exponents they were scaled by.

    Errors call the factors by their `names`.  `room` is what is left of a limit.
    """
    if A.data.dtype == B.data.dtype == precision.dtype and precision.name not in ("tf32", "float16"):
        return A.data, B.data, None
    room = room or Room()
    room.require(sum(converted_bytes(A, B, precision)))
    if precision.name == "float16":
        values, exponents = _as_half(A, B, room)
    else:
        pairs = zip((A, B)[: 1 + (B is not A)], names, strict=False)
        values, exponents = [_as(precision, x, name) for x, name in pairs], None
    room.hold(*values, *(exponents or ()), beside=(A.data, B.data))
    return values[0], values[-1], exponents


def converted_bytes(A: Operand, B: Operand, precision: Precision) -> tuple[int, int]:
    """Return the bytes of values as `precision` takes them if none has to be scaled, and what a part takes beside."""
    always = precision.name in ("tf32", "float16")
    factors = (A,) if B is A and precision.name != "float16" else (A, B)
    sizes = [len(x.data) for x in factors if always or x.data.dtype != precision.dtype]
    return sum(sizes) * precision.dtype.itemsize, min(_PART, max(sizes, default=0)) * {"float16": 40, "tf32": 20}.get(
        precision.name, 10
    )


def _as(precision: Precision, operand: Operand, name: str) -> np.ndarray:
    """Return the values of a factor in a type that has their range, or raise."""
    data, tf32 = operand.data, precision.name == "tf32"
    single = data.dtype.char in "dD" and precision.name in ("float32", "tf32")

    def narrow(part: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            made = part.astype(precision.dtype)
        if single and (beyond := np.isinf(made)).any() and np.isfinite(part[beyond]).any():
            raise errors.beyond_float32(f"{name} holds entries")
        return round_tf32(made) if tf32 else made

    return data if data.dtype == precision.dtype and not tf32 else by_parts(data, precision.dtype, narrow)


def _as_half(A: Operand, B: Operand, room: Room) -> tuple[list[np.ndarray], Exponents | None]:
    """Return values of 11 significant bits, and what they were scaled by, where an entry asks for it."""
    parts = (x.data[start : start + _PART] for x in (A, B) for start in range(0, len(x.data), _PART))
    if all(fits_half(part) for part in parts):
        return [by_parts(x.data, np.float32, eleven_bits) for x in (A, B)], None
    most = max(len(x.data) * (48 + x.data.itemsize) for x in (A, B))
    room.require(most + 12 * (len(A.data) + len(B.data)) + 20 * max(A.shape[0], B.shape[1]))
    row = A.row_of_entries()
    exponents = (
        half_exponents(A.data, row, A.shape[0], "row of A"),
        half_exponents(B.data, B.indices, B.shape[1], "column of B"),
    )
    return [
        eleven_bits(np.ldexp(x.data.astype(np.float64), -powers[owner]))
        for x, owner, powers in zip((A, B), (row, B.indices), exponents, strict=True)
    ], exponents


def unscale(data: np.ndarray, indptr: np.ndarray, indices: np.ndarray, exponents: Exponents | None) -> np.ndarray:
    """Multiply C, in place, by the powers of two that the inputs were divided by."""
    if exponents is None:
        return data
    rows, columns = exponents
    for start in range(0, len(data), _PART):
        part = data[start : start + _PART]
        places = np.arange(start, start + len(part))
        exponent = rows[np.searchsorted(indptr, places, side="right") - 1] + columns[indices[places]]
        finite = np.isfinite(part)
        with np.errstate(over="ignore"):
            np.ldexp(part, exponent, out=part)
        if not np.isfinite(part[finite]).all():
            raise errors.beyond_float32("an entry of C is")
    return data
