"""The door of every compiled kernel: what an array must be before its address is read, and the address itself.

Kernels of Numba and CUDA take what they are given: an address, a stride that they assume, a length that they trust.
Each system passes what its callers give through :func:`operand`, :func:`output` and :func:`apart` once, when the call
begins; arrays that a system allocates itself need no check.  No other module reads an address, which a test of the
sources' syntax trees sees to.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Container
from typing import Any

import numpy as np

from spectile.core.arrays import host_array, on_device, require_here, to_device


def address(array: Any) -> int:
    """Return where an array of NumPy or CuPy begins."""
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else array.data.ptr


def address_of_tensor(tensor: Any) -> int:
    """Return where a tensor of PyTorch begins; null for None."""
    return 0 if tensor is None else tensor.data_ptr()


def beyond_vectors(*arrays: Any) -> tuple[int, ...]:
    """Return how many bytes beyond a multiple of 16, a vector of kernels, CuPy's arrays begin; None has no place."""
    return tuple([array.data.ptr & 15 for array in arrays if array is not None])


def passed(argument: Any) -> Any:
    """Return a ctypes object that holds an argument of a launch: an array's address, or a number or struct itself."""
    if hasattr(argument, "data") and hasattr(argument.data, "ptr"):
        return ctypes.c_void_p(address(argument))
    held = np.ascontiguousarray(argument)
    return (ctypes.c_char * held.nbytes).from_buffer(held.data)


def readable(types: Container[Any], *arrays: Any) -> bool:
    """Return whether CuPy arrays have one of these types and :func:`operand` would return them as they are."""
    import cupy

    here = cupy.cuda.runtime.getDevice()
    for array in arrays:
        memory, dtype = array.data, array.dtype
        there = dtype in types and memory.device_id == here and array.flags.c_contiguous
        if not there or memory.ptr % dtype.itemsize:
            return False
    return True


def overlap(x: Any, y: Any) -> bool:
    """Return whether two arrays of one kind, NumPy's or CuPy's, may share memory, by the bounds of their memory."""
    if isinstance(x, np.ndarray) != isinstance(y, np.ndarray):
        return False
    if isinstance(x, np.ndarray):
        return bool(np.may_share_memory(x, y))
    import cupy

    return bool(cupy.may_share_memory(x, y))


def overwritable(array: Any) -> bool:
    """Return whether a NumPy or CuPy array can be worked in: it is writeable, and no two entries share memory.

    Strides tell, from the shortest on; they also say no to layouts whose axes interleave and never meet.
    """
    reached = array.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1 and stride < reached:
            return False
        reached += stride * (length - 1)
    return getattr(array.flags, "writeable", True)


def apart(out: Any, *inputs: Any) -> tuple[Any, ...]:
    """Return the inputs, copied on their own device where they may share memory with `out`.

    All are arrays of any library, or lists of them, parts on devices; None stays None.
    """
    targets = [_array(part) for part in (out if isinstance(out, list | tuple) else [out]) if part is not None]

    def own(given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [own(part) for part in given]
        if given is None or not any(overlap(array := _array(given), target) for target in targets):
            return given
        with contextlib.nullcontext() if isinstance(array, np.ndarray) else array.device:
            return array.copy()

    return tuple(map(own, inputs)) if targets else inputs


def _array(given: Any) -> Any:
    """Return an array of any library as NumPy's or CuPy's of the same memory."""
    if isinstance(given, np.ndarray) or hasattr(getattr(given, "data", None), "ptr"):
        return given
    return to_device(given)[0] if on_device(given) else host_array("an operand", given)


def operand(
    name: str, array: Any, dtype: Any = None, *, shape: tuple[int | None, ...] | None = None, copy: bool = False
) -> Any:
    """Return an input as kernels read it: of `dtype`, in native byte order, aligned and C-contiguous.

    Parameters
    ----------
    name : str
        The argument's name, for messages.
    array : numpy.ndarray or cupy.ndarray
        Copied only where it is not yet what kernels read, or where `copy` says so.
    dtype : dtype, optional
        By default the array's own in native byte order.  The caller decides before whether a conversion is allowed.
    shape : tuple, optional
        What the shape must be; None stands for any length.
    copy : bool, default False
        Whether the result must not share memory with `array`.

    Raises
    ------
    ValueError
        If the shape is another, or a CuPy array is on another device than the current one.
    """
    _check_shape(name, array, shape)
    if not isinstance(array, np.ndarray):
        require_here(name, array)
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    wanted = wanted if wanted.isnative else wanted.newbyteorder("=")
    good = array.dtype == wanted and array.flags.c_contiguous and _aligned(array)
    if good and not copy:
        return array
    if isinstance(array, np.ndarray):
        return np.array(array, wanted, order="C", copy=True)
    return array.astype(wanted, order="C", copy=True)


def without_read_only(array: np.ndarray) -> np.ndarray:
    """Return an array for kernels that do not write to it: Numba compiles anew for those that are read-only."""
    return array if array.flags.writeable else np.asarray(_Unmarked(array))


def read_only(array: Any) -> Any:
    """Return a view of a NumPy array, of what is kept, that cannot be written to; what else there is, as it is."""
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


class _Unmarked:
    """The memory of a read-only array, without that mark."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # which keeps the memory
        self.__array_interface__ = {**array.__array_interface__, "data": (address(array), False)}


def output(name: str, out: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return `out` unchanged, which a kernel is to write, or raise where it cannot be written as it is.

    Raises TypeError if the dtype, or its byte order, is another, and ValueError if the shape is another, it is not
    C-contiguous, aligned and writeable, or a CuPy array is on another device than the current one.
    """
    _check_shape(name, out, shape)
    if not isinstance(out, np.ndarray):
        require_here(name, out)
    if out.dtype != np.dtype(dtype) or not out.dtype.isnative:
        raise TypeError(f"{name} is {out.dtype.str}, and the result is {np.dtype(dtype)}: pass an array of that dtype")
    if not (out.flags.c_contiguous and _aligned(out) and getattr(out.flags, "writeable", True)):
        raise ValueError(f"{name} is not C-contiguous, aligned and writeable: pass one made by empty(shape, dtype)")
    return out


def _aligned(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return bool(array.flags.aligned)
    return address(array) % array.dtype.itemsize == 0


def _check_shape(name: str, array: Any, shape: tuple[int | None, ...] | None) -> None:
    if shape is None:
        return
    same = len(array.shape) == len(shape) and all(
        wanted is None or own == wanted for own, wanted in zip(array.shape, shape, strict=True)
    )
    if not same:
        wanted = " x ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} has shape {tuple(array.shape)}, and {wanted} is needed")
