"""Where a call on host arrays is computed: what it is predicted to take on the host's cores and on a GPU.

The host's rates are those of one core of a server with OpenBLAS, as measured with the eigensolver from 1 to 16 threads;
a GPU's follow from its description.  They decide between places that are far apart, and are no promise of a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spectile.core.choice import Candidate
from spectile.core.devices import Device

#: Operations a second of products of matrices on one core, by the real dtype.
CORE_RATES = {"float64": 44e9, "float32": 88e9}
#: Bytes a second that one core reads from memory, and how many cores do before the memory can no more.
CORE_BYTES, MOST_CORES = 20e9, 4
#: Dependent scalar operations a second of one core.
SCALAR_RATE = 1e9
#: Bytes a second between pageable host memory and a GPU: the driver copies it once more, on one core, whatever the link
#: is, or where both have one memory.
LINK_BYTES = 10e9
#: Share of the bandwidth of a GPU's memory that is left where short pieces are read here and there.
GATHERED_SHARE = 0.14
#: Seconds of a call on a GPU that does nothing, and of a step that waits for the one before.
CALL_SECONDS, STEP_SECONDS = 50e-6, 10e-6


class Work(NamedTuple):
    """What a call costs, wherever it is computed."""

    real: str  #: Dtype of the arithmetic, for complex numbers that of their parts: {"float32", "float64"}.
    flops: float  #: Operations of products of matrices.
    streamed: float  #: Bytes read from memory, of matrices that lie in no cache.
    scalar: float  #: Dependent scalar operations, which one core does in a row and a GPU side by side.
    steps: float  #: Steps on a GPU of which each waits for the one before.
    moved: float  #: Bytes of operands and results between the host and a GPU.
    #: Scalar operations that the cores of a host share as far as they share its memory; on a GPU they hide behind
    #: the bytes.
    split: float = 0
    gathered: float = 0  #: Bytes that a GPU reads and writes here and there; what a host does meanwhile is in `split`.


def candidates(work: Work, device: Device, cores: int) -> list[Candidate]:
    """Return the backends for a call on host arrays, with what each is predicted to take.

    Float64 stays on the host where a GPU has it at 1/32 or 1/64 of float32's rate, which is that of a few cores, unless
    the arithmetic hides behind the bytes anyway: where neither `flops` nor `scalar` counts any.

    Parameters
    ----------
    work : Work
        What the call costs.
    device : Device
        The GPU.
    cores : int
        Those of the host that the process may use.

    Returns
    -------
    list of Candidate
        ``cpu``, and ``cuda`` (seconds None where it is not taken for host arrays).

    Examples
    --------
    >>> from spectile.core.devices import TABLE
    >>> work = Work("float64", flops=1e12, streamed=0, scalar=0, steps=100, moved=1e9)
    >>> [one.seconds for one in candidates(work, TABLE["RTX 4090"], 16)][1] is None
    True
    >>> cpu, cuda = candidates(work, TABLE["H200"], 16)
    >>> cuda.seconds < cpu.seconds
    True
    """
    cpu = Candidate("cpu", on_host(work, cores), f"{cores} cores, {work.real}")
    if not _takes(work.real, device) and (work.flops or work.scalar):
        return [cpu, Candidate("cuda", None, f"{device.name} has float64 at 1/{device.fp64_divisor} of float32's rate")]
    return [cpu, Candidate("cuda", on_gpu(work, device), f"{device.name}, with {work.moved:.3g} bytes there and back")]


def on_host(work: Work, cores: int) -> float:
    """Return the seconds that so many cores of a host are predicted to take."""
    return (
        work.flops / (cores * CORE_RATES[work.real])
        + work.streamed / (min(cores, MOST_CORES) * CORE_BYTES)
        + work.scalar / SCALAR_RATE
        + work.split / (min(cores, MOST_CORES) * SCALAR_RATE)
    )


def on_gpu(work: Work, device: Device) -> float:
    """Return the seconds that a GPU is predicted to take."""
    return (
        CALL_SECONDS
        + work.steps * STEP_SECONDS
        + work.flops / device.product_rate(work.real)
        + (work.streamed + work.gathered / GATHERED_SHARE) / device.bytes_per_second
        + work.moved / LINK_BYTES
    )


def rates(device: Device | None, cores: int) -> dict[str, Any]:
    """Return the operations and bytes a second that the predictions rest on, as of `spectile.show_config`."""
    found: dict[str, Any] = {"cpu": {real: cores * rate for real, rate in CORE_RATES.items()}}
    if device is not None:
        found["cuda"] = {real: device.product_rate(real) if _takes(real, device) else None for real in CORE_RATES}
        found["link"] = LINK_BYTES
    return found


def _takes(real: str, device: Device) -> bool:
    """Return whether a GPU takes arrays of the host for arithmetic in a real dtype."""
    return real != "float64" or device.fast_fp64
