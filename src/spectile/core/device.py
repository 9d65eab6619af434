"""The CUDA device: whether there is one, what it can do, and whether a call goes to it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

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
