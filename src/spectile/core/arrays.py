"""Arrays of any library: NumPy, CuPy, Numba, and any that supports DLPack, on the host or on a CUDA device.

Every function works on CuPy's current device and current stream and neither synchronises nor copies unless it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spectile.core.host import dlpack_importer

_DLPACK_CUDA = (2, 13)  # device memory, managed memory


def on_device(array: Any) -> bool:
    """Return whether `array` lives in CUDA memory (CuPy, ``__cuda_array_interface__`` or a DLPack CUDA tensor)."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in _DLPACK_CUDA
    return hasattr(array, "__cuda_array_interface__")


def to_device(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return `array` as a CuPy array, and a function that converts a CuPy result to the kind of `array`.

    Parameters
    ----------
    array : array
        NumPy array (or anything that ``numpy.asarray`` accepts), CuPy array, object with ``__cuda_array_interface__``
        (Numba), or DLPack exporter on the CPU or on CUDA (PyTorch, JAX).

    Returns
    -------
    device_array : cupy.ndarray
        Shares the memory of a CUDA input; a CPU input is copied to the current device.
    to_caller_kind : callable
        ``to_caller_kind(cupy_array)`` shares memory if `array` was on the device.  If it was on the CPU, the result is
        copied to the host, which synchronises the current stream.
    """
    import cupy
    import numpy as np

    if isinstance(array, cupy.ndarray):
        return array, lambda result: result
    if isinstance(array, np.ndarray) or not (
        hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")
    ):
        return cupy.asarray(np.asarray(array)), cupy.asnumpy
    if hasattr(array, "__dlpack_device__"):
        importer = _dlpack_importer(array)
        if on_device(array):
            return cupy.from_dlpack(array), importer
        return cupy.asarray(np.from_dlpack(array)), lambda result: importer(cupy.asnumpy(result))
    if type(array).__module__.startswith("numba."):
        from numba import cuda

        return cupy.asarray(array), cuda.as_cuda_array
    return cupy.asarray(array), lambda result: result


def _dlpack_importer(array: Any) -> Callable[[Any], Any]:
    """Return ``from_dlpack`` of the library that `array` comes from, or raise TypeError where it has none."""
    importer = dlpack_importer(array)
    if importer is None:
        raise TypeError(
            f"{type(array).__module__}.{type(array).__name__} exports DLPack but its library has no from_dlpack to "
            "give the result back: pass a CuPy view of it"
        )
    return importer
