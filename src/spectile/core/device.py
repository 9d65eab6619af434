"""The CUDA device and the arrays on it: presence, size, memory, and array kinds in and out.

Every function works on CuPy's current device and current stream and neither synchronises nor copies unless it says so.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

_DLPACK_CUDA = (2, 13)  # device memory, managed memory
# Of every system's kernels; machine code runs on the devices of its own major architecture.
MAJOR_ARCHITECTURES = (8, 9, 10)


@dataclass(frozen=True)
class Device:
    """What a kernel's launch needs to know of the device.

    Attributes
    ----------
    name : str
        The vendor's name, for example ``"NVIDIA H200"``.
    compute_capability : tuple of int
        Major and minor version.
    multiprocessors : int
        Number of streaming multiprocessors.
    l2_bytes, memory_bytes, shared_bytes : int
        L2 cache, device memory, and the most dynamic shared memory of one block.
    driver : str
        Highest CUDA version of the driver, for example ``"13.0"``.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int
    driver: str


@functools.cache
def unavailable_reason() -> str | None:
    """Return why no CUDA device can be used, in one sentence, or None where one can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: install the extra cuda12 or cuda13 (pip install 'spectile[cuda13]')"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "insufficient" in str(error).lower() and cupy.cuda.runtime.driverGetVersion() > 0:
            return f"the CUDA driver is too old for this CuPy: update the driver or install another extra ({error})"
        return "no CUDA driver or device was found"
    except (ImportError, RuntimeError, OSError) as error:
        return f"CUDA cannot be loaded ({error})"
    if not count:
        return "no CUDA device was found"
    major, minor = describe().compute_capability
    if major not in MAJOR_ARCHITECTURES:
        return (
            f"the kernels are written for compute capability {', '.join(f'{one}.x' for one in MAJOR_ARCHITECTURES)}, "
            f"and {describe().name} has {major}.{minor}"
        )
    return None


def available() -> bool:
    """Return whether CuPy is installed and finds a CUDA device; the answer is kept for the process."""
    return unavailable_reason() is None


def require_device() -> None:
    """Raise RuntimeError with one sentence where no CUDA device can be used."""
    reason = unavailable_reason()
    if reason is not None:
        raise RuntimeError(f'{reason}; use backend="cpu" or backend="auto"')


def choose_backend(backend: str, on_gpu: bool = False) -> Literal["cpu", "cuda"]:
    """Return where a public function computes.

    Parameters
    ----------
    backend : {"auto", "cpu", "cuda"}
        ``auto`` takes CUDA for operands on a GPU and where a device is found, else the CPU.
    on_gpu : bool
        Whether the operands are on a GPU.

    Raises
    ------
    ValueError
        If `backend` is another word, or "cpu" for operands on a GPU.
    RuntimeError
        If `backend` is "cuda" and no device can be used.
    """
    if backend not in ("auto", "cpu", "cuda"):
        raise ValueError(f"backend = {backend!r} is unknown: choose 'auto', 'cpu' or 'cuda'")
    if backend == "cpu" and on_gpu:
        raise ValueError('the operands are on a GPU and backend is "cpu": copy them to the host, or use backend="auto"')
    if backend == "cuda":
        require_device()
    return "cuda" if backend == "cuda" or (backend == "auto" and (on_gpu or available())) else "cpu"


def describe() -> Device:
    """Return the properties of the current device."""
    import cupy

    return _describe(cupy.cuda.Device().id)


@functools.cache
def _describe(index: int) -> Device:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    driver = cupy.cuda.runtime.driverGetVersion()
    return Device(
        name=properties["name"].decode(),
        compute_capability=(properties["major"], properties["minor"]),
        multiprocessors=properties["multiProcessorCount"],
        l2_bytes=properties["l2CacheSize"],
        memory_bytes=properties["totalGlobalMem"],
        shared_bytes=properties["sharedMemPerBlockOptin"],
        driver=f"{driver // 1000}.{driver % 1000 // 10}",
    )


def free_bytes() -> int:
    """Return the device memory that an allocation can still get: the driver's free bytes and CuPy's idle pool."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free + cupy.get_default_memory_pool().free_bytes())


def require(memory_bytes: int, what: str) -> None:
    """Raise MemoryError, with the bytes, if the device has fewer than `memory_bytes` free for `what`."""
    if memory_bytes > free_bytes():
        raise _too_little(memory_bytes, what)


@contextmanager
def allocating(what: str, memory_bytes: int) -> Iterator[None]:
    """Turn CuPy's out-of-memory error inside the block into a MemoryError that names `what` and its bytes."""
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise _too_little(memory_bytes, what) from error


def _too_little(memory_bytes: int, what: str) -> MemoryError:
    return MemoryError(
        f"{what} needs {memory_bytes:,} bytes of device memory and {describe().name} has {free_bytes():,} free: "
        'free other arrays, take a smaller problem, or use backend="cpu"'
    )


def on_device(array: Any) -> bool:
    """Return whether `array` lives in CUDA memory (CuPy, ``__cuda_array_interface__`` or a DLPack CUDA tensor)."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in _DLPACK_CUDA
    return hasattr(array, "__cuda_array_interface__")


def to_device(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return `array` as a CuPy array, and the function that gives a CuPy result back in the kind of `array`.

    Parameters
    ----------
    array : array
        NumPy array (or what ``numpy.asarray`` takes), CuPy array, object with ``__cuda_array_interface__`` (Numba), or
        DLPack exporter on the CPU or on CUDA (PyTorch, JAX).

    Returns
    -------
    device_array : cupy.ndarray
        Shares the memory of a CUDA input; a CPU input is copied to the current device.
    give_back : callable
        ``give_back(cupy_array)``: shares memory where `array` was on the device; copies to the host, and so
        synchronises the current stream, where `array` was on the CPU.
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
    """Return ``from_dlpack`` of the library that `array` comes from."""
    root = type(array).__module__.partition(".")[0]
    if root == "jaxlib":
        return importlib.import_module("jax.numpy").from_dlpack
    importer = getattr(sys.modules[root], "from_dlpack", None)
    if importer is None:
        raise TypeError(
            f"{type(array).__module__}.{type(array).__name__} exports DLPack but its library {root} has no from_dlpack "
            "to give the result back: pass a CuPy view of it"
        )
    return importer
