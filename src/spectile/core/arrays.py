"""Arrays of any library: NumPy, CuPy, Numba, and any that supports DLPack, on the host or on a CUDA device.

Every function works on CuPy's current device and current stream and neither synchronises nor copies unless it says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.host import dlpack_importer, in_kind_of, refuse_masked

_DLPACK_CUDA = (2, 13)  # device memory, managed memory


def host_array(name: str, array: Any) -> np.ndarray:
    """Return a host array of any library as NumPy's, sharing its memory where that is possible.

    Parameters
    ----------
    name : str
        The argument's name, for messages.
    array : array
        NumPy array, anything that ``numpy.asarray`` accepts, or an object that has ``__dlpack__`` alone.  Tensors that
        PyTorch has yet to conjugate or negate are so first.

    Returns
    -------
    numpy.ndarray
        Of the class itself; it may be read-only.

    Raises
    ------
    TypeError
        If entries are masked, or `array` is sparse, on a GPU or part of a gradient, or if its library refuses to export
        it.
    """
    if type(array) is np.ndarray:
        return array
    refuse_masked(name, array)
    if not (hasattr(array, "__array__") or hasattr(array, "__dlpack__")):
        if hasattr(array, "tocsr"):
            raise TypeError(f"{name} is a sparse matrix, and a dense array is needed: pass {name}.toarray()")
        try:
            return np.asarray(array)
        except ValueError:  # of lists, which NumPy tells at length
            raise TypeError(f"{name} is no array: give numbers, in rows of one length") from None
    if on_device(array):
        raise TypeError(f"{name} is on a GPU, and an array on the host is needed: copy it there, as cupy.asnumpy does")
    array = _resolved(name, array)
    try:
        return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _refused(name, array, error) from error


def on_device(array: Any) -> bool:
    """Return whether `array` lives in CUDA memory (CuPy, ``__cuda_array_interface__`` or a DLPack CUDA tensor)."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in _DLPACK_CUDA
    if hasattr(array, "__cuda_array_interface__"):
        return True
    return _exports_only(array) and _Exporter(array).__dlpack_device__()[0] in _DLPACK_CUDA


def to_device(array: Any, name: str = "the array") -> tuple[Any, Callable[[Any], Any]]:
    """Return `array` as a CuPy array, and a function that converts a CuPy result to the kind of `array`.

    Parameters
    ----------
    array : array
        What :func:`host_array` accepts, CuPy array, object with ``__cuda_array_interface__`` (Numba), or DLPack
        exporter on CUDA (PyTorch, JAX).  The current stream waits for what its library's stream has yet to do.
    name : str
        The argument's name, for messages.

    Returns
    -------
    device_array : cupy.ndarray
        Shares the memory of a CUDA input, on whichever device that lies (see :func:`require_here`); a CPU input is
        copied to the current device.
    to_caller_kind : callable
        ``to_caller_kind(cupy_array)`` shares memory if `array` was on the device.  If it was on the CPU, the result is
        copied to the host, which synchronises the current stream.

    Raises
    ------
    TypeError
        As :func:`host_array`, or if the library of `array` cannot take a result back.
    """
    import cupy

    if isinstance(array, cupy.ndarray):
        return array, lambda result: result
    if isinstance(array, np.ndarray) or not on_device(array):
        in_kind = in_kind_of(array)
        try:
            copy = cupy.asarray(host_array(name, array))
        except ValueError as error:  # a dtype that no GPU has, of words or of objects
            raise _refused(name, array, error) from error
        # In the order that they have: another one takes a copy on the device first.
        return copy, lambda result: in_kind(cupy.asnumpy(result, order="A"))
    importer = _dlpack_importer(name, array) if hasattr(array, "__dlpack__") else None
    array = _resolved(name, array)
    try:
        if importer is not None:
            return cupy.from_dlpack(_Exporter(array) if _exports_only(array) else array), importer
        # Of the third version of the interface, CuPy waits for the stream that it names.
        found = cupy.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _refused(name, array, error) from error
    if type(array).__module__.startswith("numba."):
        from numba import cuda

        return found, cuda.as_cuda_array
    return found, lambda result: result


def require_here(name: str, array: Any) -> None:
    """Raise ValueError where a CuPy array lies on another device than the current one.

    Kernels would reach it there only where the devices are peers, and without waiting for the stream that fills it.
    """
    import cupy

    here, there = cupy.cuda.runtime.getDevice(), array.data.device_id
    if array.size and 0 <= there != here:
        raise ValueError(
            f"{name} is on device {there}, and the current device is {here}: call inside `with "
            f"cupy.cuda.Device({there}):`, or copy {name} to device {here}"
        )


class _Exporter:
    """An object that has ``__dlpack__`` alone, with the device that its tensor names."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        try:
            return self._array.__dlpack__(**keywords)
        except TypeError:  # it may take no keyword, or the stream alone, as the first versions of the protocol say
            stream = {"stream": keywords["stream"]} if "stream" in keywords else {}
            return self._array.__dlpack__(**stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device's kind and number, which follow the pointer to the data in the tensor that is exported."""
        capsule = self.__dlpack__(max_version=(1, 0))
        name, head = b"dltensor", 0
        if "dltensor_versioned" in repr(capsule):
            name, head = b"dltensor_versioned", 32  # version, context, deleter and flags
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        kind, number = (ctypes.c_int32 * 2).from_address(pointer(capsule, name) + head + ctypes.sizeof(ctypes.c_void_p))
        return kind, number


def _exports_only(array: Any) -> bool:
    """Return whether an object has ``__dlpack__`` and nothing that says where it lies."""
    return hasattr(array, "__dlpack__") and not (hasattr(array, "__dlpack_device__") or hasattr(array, "__array__"))


def _resolved(name: str, array: Any) -> Any:
    """Return a tensor with what PyTorch puts off, conjugates and signs; refuse one that a gradient goes through."""
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{name} requires a gradient, which the result would not have: pass {name}.detach()")
    for resolve in ("resolve_conj", "resolve_neg"):
        array = getattr(array, resolve)() if hasattr(array, resolve) else array
    return array


def _refused(name: str, array: Any, error: Exception) -> TypeError:
    said = str(error).partition("\n")[0].rstrip(".")
    return TypeError(f"{name}, of {_type_of(array)}, cannot be read ({said}): convert it")


def _type_of(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__name__}"


def _dlpack_importer(name: str, array: Any) -> Callable[[Any], Any]:
    """Return ``from_dlpack`` of the library that `array` comes from, or raise TypeError where it has none."""
    importer = dlpack_importer(array)
    if importer is None:
        raise TypeError(
            f"{name}, of {_type_of(array)}, exports DLPack but its library has no from_dlpack to give the result back: "
            "pass a CuPy view of it"
        )
    return importer
