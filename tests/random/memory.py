"""Arrays as callers' programs hold them: of any layout, with a watched surrounding, on the host or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.random.draw import Draw

#: Bytes beside an array, of 1 bits: NaN for whoever reads them as numbers, and -1 for indices.
MARGIN = 64
LAYOUTS = ("C", "C", "F", "gaps", "backwards", "shifted", "broadcast", "read-only", "odd address")
#: Not of CuPy's arrays.
ON_HOST_ALONE = ("read-only", "odd address")


@dataclass(frozen=True)
class Place:
    """Where a call gets its arrays: a backend and the module whose arrays it takes."""

    backend: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether arrays lie on a GPU."""
        return self.backend == "cuda"

    @property
    def xp(self) -> Any:
        """NumPy or CuPy."""
        if not self.on_gpu:
            return np
        import cupy

        return cupy

    @property
    def sparse(self) -> Any:
        """Their module of sparse matrices."""
        if not self.on_gpu:
            return sp
        from cupyx.scipy import sparse

        return sparse


def host(array: Any) -> Any:
    """Return an array in the host's memory."""
    return array.get() if hasattr(array, "get") and hasattr(array, "dtype") else np.asarray(array)


@dataclass
class Laid:
    """An array and the memory that it lies in."""

    array: Any
    memory: Any

    def bits(self) -> bytes:
        """Return all bytes of the memory."""
        return bytes(host(self.memory).tobytes())


def lay(values: np.ndarray, layout: str, place: Place) -> Laid:
    """Return an array with these values in a layout; "broadcast" repeats the first row."""
    xp = place.xp if values.dtype.isnative else np
    itemsize = values.dtype.itemsize
    if values.ndim == 0 or (layout in ON_HOST_ALONE and place.on_gpu):
        layout = "C"
    shape = values.shape
    full = shape
    if layout == "gaps":
        full = (*shape[:-1], 3 * shape[-1] + 1) if values.ndim == 1 else (*shape[:-2], 2 * shape[-2], 2 * shape[-1] + 1)
    elif layout == "broadcast":
        full = shape[1:]
    elif layout == "shifted":
        full = (*shape[:-1], shape[-1] + 3)
    count = int(np.prod(full, dtype=int))
    offset = MARGIN + (1 if layout == "odd address" else itemsize if layout == "shifted" else 0)
    memory = xp.full(2 * MARGIN + itemsize * (count + 1), 0xFF, np.uint8)
    flat = memory[offset : offset + itemsize * count].view(values.dtype)
    if layout == "F":
        view = flat.reshape(full[::-1]).transpose()
        view[...] = xp.asarray(values)
    elif layout == "gaps":
        whole = flat.reshape(full)
        view = whole[..., 1::3][..., : shape[-1]] if values.ndim == 1 else whole[..., ::2, 1::2]
        view[...] = xp.asarray(values)
    elif layout == "backwards":
        view = flat.reshape(full)
        view = view[::-1] if values.ndim == 1 else view[..., ::-1, ::-1]
        view[...] = xp.asarray(values)
    elif layout == "broadcast":
        row = flat.reshape(full)
        if shape[0]:
            row[...] = xp.asarray(values[0])
        view = xp.broadcast_to(row, shape)
    else:
        view = flat.reshape(full)[..., : shape[-1]]
        view[...] = xp.asarray(values)
    if layout == "read-only":
        view.flags.writeable = False
    return Laid(view, memory)


def lay_drawn(draw: Draw, name: str, values: np.ndarray, place: Place) -> Laid:
    """Return an array with these values in a random layout."""
    return lay(values, draw(f"layout of {name}", LAYOUTS), place)


def exponents(dtype: Any) -> list[int]:
    """Return powers of two over the whole range of a dtype, the most ordinary first."""
    info = np.finfo(dtype)
    return [
        0,
        0,
        0,
        0,
        5,
        -7,
        info.minexp // 2,
        info.maxexp // 2,
        3 * info.minexp // 4,
        3 * info.maxexp // 4,
        info.maxexp - 12,
        info.maxexp - 3,
        info.minexp + 3,
        info.minexp - info.nmant // 2,
        info.minexp - info.nmant + 1,
    ]


KINDS = ("normal", "normal", "normal", "decay", "few", "zeros", "whole", "spread", "one large", "equal")


def numbers(draw: Draw, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return random numbers of a dtype: of many kinds and, where it is one of floating point, of all sizes."""
    dtype = np.dtype(dtype)
    rng = draw.rng(f"values of {name}")
    if dtype.kind == "b":
        return (rng.random(shape) < 0.4).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = draw(f"range of {name}", [(-9, 10), (-100, 101), (info.min, info.max)])
        low = max(low, info.min)
        return rng.integers(low, high, shape, dtype=dtype.newbyteorder("="), endpoint=True).astype(dtype)
    real = np.empty(0, dtype).real.dtype
    kind, exponent = draw(f"kind of {name}", KINDS), draw(f"exponent of {name}", exponents(real))
    wide = rng.standard_normal(shape)
    if dtype.kind == "c":
        wide = wide + 1j * rng.standard_normal(shape)
    wide = np.asarray(wide).astype(np.result_type(wide.dtype, np.longdouble))
    if kind == "decay" and len(shape) >= 2:
        distance = np.abs(np.subtract.outer(np.arange(shape[-2]), np.arange(shape[-1])))
        wide = wide * np.exp(-distance / max(1, max(shape) / 12))
    elif kind == "few":
        wide = wide * (rng.random(shape) < 0.05)
    elif kind == "zeros":
        wide = wide * 0
    elif kind == "whole":
        wide = np.rint(8 * wide.real) + (1j * np.rint(8 * wide.imag) if dtype.kind == "c" else 0)
    elif kind == "spread":
        wide = wide * np.exp2(rng.integers(-60, 2, shape))
    elif kind == "one large" and wide.size:
        wide.flat[rng.integers(wide.size)] *= 1000
    elif kind == "equal":
        wide = wide * 0 + 1
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        limit = np.longdouble(np.finfo(real).max)
        parts = [np.clip(np.ldexp(part, exponent), -limit, limit) for part in (wide.real, wide.imag)]
        return (parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]).astype(dtype)
