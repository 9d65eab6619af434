"""What the choice of a kernel needs to know about a CUDA device, and a table of common devices.

The table follows the vendor's specifications.  Tests on machines without a GPU check for each of these devices that
every kernel that is chosen fits.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

_KIB, _GIB = 2**10, 2**30
#: What a launch takes the hosts of the recorded H200s, and any host of which nothing is known.
LAUNCH_SECONDS = 3e-6


@dataclass(frozen=True)
class Device:
    """What the choice of a kernel and its launch need to know of a device."""

    name: str  #: The vendor's name, for example ``"NVIDIA H200"``.
    compute_capability: tuple[int, int]  #: Major and minor version.
    multiprocessors: int  #: Number of streaming multiprocessors.
    threads: int  #: Most resident threads of a multiprocessor.
    #: Most shared memory of one thread block (opt-in), and shared memory of a multiprocessor.
    shared_bytes: int
    multiprocessor_shared_bytes: int
    #: L2 cache and device memory.
    l2_bytes: int
    memory_bytes: int
    bytes_per_second: float  #: Peak bandwidth of the device memory.
    #: How many times slower float64 arithmetic is than float32's: 2 on data-center devices, 32 or 64 on others.
    fp64_divisor: int
    #: What its host takes to enqueue a launch; `spectile.core.launch.measured_device` has it measured.
    launch_seconds: float = LAUNCH_SECONDS

    @property
    def arch(self) -> str:
        """Architecture of its machine code, for example ``"sm_90"``."""
        return "sm_{}{}".format(*self.compute_capability)

    @property
    def fast_fp64(self) -> bool:
        """Whether float64 arithmetic runs at half of float32's rate."""
        return self.fp64_divisor <= 2

    @property
    def host_slowness(self) -> float:
        """How many times as long as `LAUNCH_SECONDS` its host takes for a launch; 1 at least."""
        return max(1.0, self.launch_seconds / LAUNCH_SECONDS)

    def product_rate(self, real: str) -> float:
        """Return about how many operations a second products of matrices reach, from the units at 1.7 GHz.

        `real` is the dtype of the parts of a number.
        """
        units = 64 if self.compute_capability == (8, 0) else 128
        float32 = 2 * units * 1.7e9 * self.multiprocessors
        # Tensor cores double the rate of fast float64.
        return float32 if real == "float32" else float32 / self.fp64_divisor * (2 if self.fast_fp64 else 1)


# Compute capability -> resident threads, and KiB of shared memory of a block and of a multiprocessor (CUDA programming
# guide, "Technical specifications per compute capability").
_LIMITS = {
    (8, 0): (2048, 163, 164),
    (8, 6): (1536, 99, 100),
    (8, 9): (1536, 99, 100),
    (9, 0): (2048, 227, 228),
    (10, 0): (2048, 227, 228),
    (10, 3): (2048, 227, 228),
    (12, 0): (1536, 99, 100),
    (12, 1): (1536, 99, 100),
}


def _device(
    name: str, capability: tuple[int, int], multiprocessors: int, l2_mib: int, memory_gib: int, gb_s: int, fp64: int
) -> Device:
    threads, shared, multiprocessor_shared = _LIMITS[capability]
    return Device(
        name=name,
        compute_capability=capability,
        multiprocessors=multiprocessors,
        threads=threads,
        shared_bytes=shared * _KIB,
        multiprocessor_shared_bytes=multiprocessor_shared * _KIB,
        l2_bytes=l2_mib * _KIB**2,
        memory_bytes=memory_gib * _GIB,
        bytes_per_second=gb_s * 1e9,
        fp64_divisor=fp64,
    )


TABLE = {
    "A100": _device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 40, 80, 2039, 2),
    "A10": _device("NVIDIA A10", (8, 6), 72, 6, 24, 600, 64),
    "RTX 3090": _device("NVIDIA GeForce RTX 3090", (8, 6), 82, 6, 24, 936, 64),
    "RTX 4090": _device("NVIDIA GeForce RTX 4090", (8, 9), 128, 72, 24, 1008, 64),
    "L40S": _device("NVIDIA L40S", (8, 9), 142, 96, 48, 864, 64),
    "H100 PCIe": _device("NVIDIA H100 PCIe", (9, 0), 114, 50, 80, 2039, 2),
    "H100": _device("NVIDIA H100 80GB HBM3", (9, 0), 132, 50, 80, 3352, 2),
    "H200": _device("NVIDIA H200", (9, 0), 132, 60, 141, 4917, 2),
    "GH200": _device("NVIDIA GH200 480GB", (9, 0), 132, 60, 96, 4023, 2),
    "B200": _device("NVIDIA B200", (10, 0), 148, 126, 180, 8000, 2),
    "B300": _device("NVIDIA B300 SXM6 AC", (10, 3), 148, 126, 268, 8000, 64),
    "RTX 5090": _device("NVIDIA GeForce RTX 5090", (12, 0), 170, 96, 32, 1792, 64),
    "RTX PRO 6000": _device("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 128, 96, 1792, 64),
    "DGX Spark": _device("NVIDIA GB10", (12, 1), 48, 24, 119, 273, 64),
}


def described_as(name: str, actual: Device) -> Device:
    """Return a device of the table, limited to what the actual device has.

    Raises ValueError if the table has no such device.
    """
    if name not in TABLE:
        raise ValueError(f"SPECTILE_DEVICE = {name!r} is not in the table of devices: choose one of {', '.join(TABLE)}")
    other = TABLE[name]
    return dataclasses.replace(
        other,
        multiprocessors=min(other.multiprocessors, actual.multiprocessors),
        shared_bytes=min(other.shared_bytes, actual.shared_bytes),
        memory_bytes=actual.memory_bytes,
    )
