"""Tensor maps of Hopper's bulk copy engine (TMA), encoded by the driver."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from spectile.core import pointers

_DATA_TYPES = {"float16": 6, "float32": 7, "float64": 8}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_256 = 3


@functools.cache
def _encode() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer = ctypes.c_void_p
    function.argtypes = [pointer, ctypes.c_int, ctypes.c_uint32, *(pointer,) * 5, *(ctypes.c_int,) * 4]
    return function


@functools.cache
def _replace() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapReplaceAddress
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return function


def replace_address(encoded: int, address: int) -> None:
    """Let the tensor map at `encoded`, a host address that is a multiple of 64, begin at another device address."""
    status = _replace()(encoded, address)
    if status != 0:
        raise ValueError(f"the driver refuses {address:#x} as base of a tensor map (error {status}): 16-byte multiples")


def encode(array: Any, box: tuple[int, ...], swizzle: int) -> bytes:
    """Return the 128 bytes of a tensor map of `array`.

    Parameters
    ----------
    array : cupy.ndarray
        Its last axis has unit stride; its base, and its other strides along axes of more than one element, are
        multiples of 16 bytes.
    box : tuple of int
        Elements copied at a time along each axis of `array`.
    swizzle : {0, 32, 64, 128}
        Span of the shared-memory swizzle in bytes; the last axis of the box fits into it.

    Raises
    ------
    ValueError
        If the driver refuses the layout.
    """
    rank = array.ndim
    sizes = (ctypes.c_uint64 * rank)(*reversed(array.shape))
    strides = (ctypes.c_uint64 * (rank - 1))(*reversed(_strides(array)))
    boxes = (ctypes.c_uint32 * rank)(*reversed(box))
    ones = (ctypes.c_uint32 * rank)(*(1,) * rank)
    # The driver wants 64-byte alignment of the map itself.
    space = ctypes.create_string_buffer(128 + 64)
    address = -(-ctypes.addressof(space) // 64) * 64
    status = _encode()(
        address,
        _DATA_TYPES[array.dtype.name],
        rank,
        pointers.address(array),
        ctypes.addressof(sizes),
        ctypes.addressof(strides),
        ctypes.addressof(boxes),
        ctypes.addressof(ones),
        0,
        _SWIZZLES[swizzle],
        _L2_PROMOTION_256,
        0,
    )
    if status != 0:
        raise ValueError(
            f"the driver refuses a tensor map of shape {array.shape}, strides {array.strides}, box {box} "
            f"(error {status}): base and row pitch must be multiples of 16 bytes"
        )
    return ctypes.string_at(address, 128)


def _strides(array: Any) -> tuple[int, ...]:
    """Return the strides in bytes but for the last; those of axes of one element are made what the driver takes."""
    extent, strides = array.shape[-1] * array.itemsize, []
    for size, stride in zip(array.shape[-2::-1], array.strides[-2::-1], strict=True):
        strides.append(stride if size > 1 else -(-extent // 16) * 16)
        extent = max(extent, size * strides[-1])
    return tuple(reversed(strides))
