"""The CUDA device: whether there is one, what it can do, and whether a call is computed on it."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Literal

from spectile.core import placement
from spectile.core.choice import Candidate, cheapest
from spectile.core.devices import Device, described_as
from spectile.core.options import word
from spectile.core.threads import cores

#: The backends of the public functions.
Backend = Literal["auto", "cpu", "cuda"]

#: The oldest compute capability that the kernels are written for.
OLDEST = (8, 0)


@functools.cache
def unavailable_reason() -> str | None:
    """Return why no CUDA device can be used, in one sentence, or None if one can."""
    if _forked_after_cuda:
        return (
            "this process was forked from one that had used CUDA, which does not survive a fork: start it with the "
            "multiprocessing method 'spawn' or 'forkserver'"
        )
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]' for drivers of CUDA 12"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "insufficient" in str(error).lower() and cupy.cuda.runtime.driverGetVersion() > 0:
            return f"the CUDA driver is too old for this CuPy: update the driver or install cupy-cuda12x ({error})"
        return "no CUDA driver or device was found"
    except (ImportError, RuntimeError, OSError) as error:
        return f"CUDA cannot be loaded ({error})"
    _remember_cuda()
    return None if count else "no CUDA device was found"


def refusal() -> str | None:
    """Return why the current device cannot be used, in one sentence, or None if it can.

    Other devices of the host may be usable, so the current one is examined in every call.
    """
    reason = unavailable_reason()
    if reason is not None:
        return reason
    current = describe()
    if current.compute_capability < OLDEST:
        return (
            "the kernels need compute capability {}.{} or later, ".format(*OLDEST)
            + f"and {current.name} has " + "{}.{}".format(*current.compute_capability)
        )  # fmt: skip
    return None


def available() -> bool:
    """Return whether CuPy is installed and the current device can be used."""
    return refusal() is None


#: What to do without a usable device where a call has a backend, and where it has devices.
BACKEND = 'use backend="cpu" with arrays on the host (cupy.asnumpy copies them there), or backend="auto"'
NO_DEVICES = 'leave out devices, and backend="cuda" where it is given, to compute on the host'


def require_device(instead: str = BACKEND) -> None:
    """Raise RuntimeError with one sentence, which says what to do instead, if the current device cannot be used."""
    reason = refusal()
    if reason is not None:
        raise RuntimeError(f"{reason}; {instead}")


def choose_backend(
    backend: str, on_gpu: bool = False, system: str = "core", work: Callable[[], placement.Work] | None = None
) -> Literal["cpu", "cuda"]:
    """Return the backend that computes a call of a public function.

    ``auto`` chooses CUDA for operands on a GPU, and for others if there is a usable device where `work` is predicted to
    take less, as the logger ``spectile.SYSTEM`` tells; without `work` any usable device is taken.  It warns once if
    there is a device that is too old.

    Raises ValueError if `backend` is another word, or "cpu" for operands on a GPU, and RuntimeError if it is "cuda" or
    the operands are on a GPU, and no device can be used.
    """
    word("backend", backend, "auto", "cpu", "cuda")
    if backend == "cpu":
        if on_gpu:
            raise ValueError(
                'the operands are on a GPU and backend is "cpu": copy them to the host with cupy.asnumpy, or use '
                'backend="auto"'
            )
        return "cpu"
    if backend == "cuda" or on_gpu:
        require_device()
        return "cuda"
    if available():
        if work is None:
            return "cuda"
        return "cuda" if cheapest(system, placement.candidates(work(), describe(), cores())).kernel == "cuda" else "cpu"
    if unavailable_reason() is None:
        _warn_once(f"computing on the CPU: {refusal()}")
    return "cpu"


def backends(backend: str, on_gpu: bool, work: Callable[[], placement.Work]) -> list[Candidate]:
    """Return the backends between which `choose_backend` chooses, none where there is no choice."""
    if backend != "auto" or on_gpu or not available():
        return []
    return placement.candidates(work(), describe(), cores())


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def describe() -> Device:
    """Return the properties of the current device.

    The environment variable ``SPECTILE_DEVICE`` names an entry of `spectile.core.devices.TABLE`, which the current
    device then stands in for, so that the choices for one device can be tested on another.
    """
    import cupy

    return _describe(cupy.cuda.runtime.getDevice())


@functools.cache
def _describe(index: int) -> Device:
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(index)

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), index))

    actual = Device(
        name=properties["name"].decode(),
        compute_capability=(properties["major"], properties["minor"]),
        multiprocessors=properties["multiProcessorCount"],
        threads=attribute("MaxThreadsPerMultiProcessor"),
        shared_bytes=properties["sharedMemPerBlockOptin"],
        multiprocessor_shared_bytes=attribute("MaxSharedMemoryPerMultiprocessor"),
        l2_bytes=properties["l2CacheSize"],
        memory_bytes=properties["totalGlobalMem"],
        # The clock is in kHz and the width in bits; data move twice in each cycle.
        bytes_per_second=2e3 * attribute("MemoryClockRate") * attribute("GlobalMemoryBusWidth") / 8,
        fp64_divisor=attribute("SingleToDoublePrecisionPerfRatio"),
    )
    other = os.environ.get("SPECTILE_DEVICE")
    return actual if other is None else described_as(other, actual)


def actual_arch() -> str:
    """Return the true architecture of the current device, whatever ``SPECTILE_DEVICE`` says."""
    import cupy

    return _actual_arch(cupy.cuda.runtime.getDevice())


@functools.cache
def _actual_arch(index: int) -> str:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    return f"sm_{properties['major']}{properties['minor']}"


# CUDA does not survive a fork, so `auto` must not choose it in the child.
_used_cuda = False
_forked_after_cuda = False


def _remember_cuda() -> None:
    global _used_cuda
    _used_cuda = True


def _after_fork() -> None:
    global _forked_after_cuda
    if _used_cuda:
        _forked_after_cuda = True
        unavailable_reason.cache_clear()


os.register_at_fork(after_in_child=_after_fork)
