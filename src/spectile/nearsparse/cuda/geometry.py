"""How arrays lie in device memory, and structs as the C++ declares them."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.pointers import address

# Most rows and columns of a matrix.
LARGEST_SIZE = 2**31 - 2**16


def layout(fields: str) -> np.dtype[Any]:
    """Return the aligned struct of ``"name:code name:code"``, as the C++ declares it.

    Codes: p pointer, i int, l long long, d double.
    """
    pairs = [field.split(":") for field in fields.split()]
    codes = {"p": "u8", "i": "i4", "l": "i8", "d": "f8"}
    return np.dtype([(name, codes[code]) for name, code in pairs], align=True)


def record(dtype: np.dtype[Any]) -> Any:
    """Return a struct of zeros that begins at a multiple of 64 bytes, as tensor maps must."""
    buffer = np.zeros(dtype.itemsize + 64, np.uint8)
    first = -address(buffer) % 64
    return buffer[first : first + dtype.itemsize].view(dtype).reshape(())


def fill(struct: Any, values: dict[str, Any]) -> Any:
    """Set fields of a struct and return it."""
    for name, value in values.items():
        struct[name] = value
    return struct


def log2(block: int) -> int:
    """Return the logarithm of a tile size, or raise where the kernels have none of it."""
    if block not in (8, 16, 32, 64, 128):
        raise ValueError(
            f'block = {block} is not a tile size of the CUDA backend: take 8, 16, 32, 64 or 128, or backend="cpu"'
        )
    return block.bit_length() - 1


def stride(array: Any) -> int:
    """Return the elements from one matrix of a batch to the next; 0 for a single matrix, which all items share."""
    return array.strides[0] // array.itemsize if array.ndim == 3 and array.shape[0] > 1 else 0


def pitch(array: Any) -> int:
    """Return the elements from one row to the next."""
    return array.strides[-2] // array.itemsize


def is_aligned(array: Any) -> bool:
    """Return whether every row starts at a multiple of 16 bytes."""
    pitches = [stride for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    return address(array) % 16 == 0 and all(pitch % 16 == 0 for pitch in pitches)


def check_sizes(name: str, array: Any) -> None:
    """Raise for more rows or columns than the kernels count, which add the sizes of tiles to them in 32 bits."""
    if max(array.shape[-2:]) > LARGEST_SIZE:
        raise ValueError(
            f"{name} has {max(array.shape[-2:]):,} rows or columns, and the kernels take {LARGEST_SIZE:,}: cut the "
            "product into several"
        )


def row_major(name: str, array: Any, *, on_device: bool) -> Any:
    """Return `array` if its last axis has unit stride; copy it only if it was copied from the host anyway."""
    import cupy

    check_sizes(name, array)
    itemsize = array.itemsize
    good = array.size == 0 or (
        (array.shape[-1] == 1 or array.strides[-1] == itemsize)
        and (array.shape[-2] == 1 or array.strides[-2] >= itemsize * array.shape[-1])
        and array.strides[-2] % itemsize == 0
        and address(array) % itemsize == 0
    )
    if good and array.strides[-1] == itemsize:
        return array
    if good or not on_device:
        return cupy.ascontiguousarray(array)
    raise ValueError(
        f"{name} is not row-major (strides {array.strides}): pass cupy.ascontiguousarray({name}), "
        "a copy of a GPU array is never hidden"
    )
