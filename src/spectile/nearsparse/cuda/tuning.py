"""Everything of SpAMM's kernels that was tuned: tiles, stages, lists, thresholds, and the rates of devices.

Tiles and thresholds were tuned on one H200; on a device with less shared memory, ``units.fitting`` uses fewer stages.
`RATES` holds, by device and with a rule for others, what several GPUs are planned with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from spectile.core.devices import Device

Kernel = Literal["portable", "blocks", "wgmma_small", "wgmma_wide", "wgmma_wide_pair", "wgmma_tf32"]

# Tiles are numbered column by column in bands of so many rows of C, whose panels stay in the L2.
BAND_ROWS, HOPPER_BAND_ROWS = 512, 2048
# Norms that a search sorts together, two for each of its threads.
SEARCH_CHUNK = 1024


@dataclass(frozen=True)
class Portable:
    """Tuning of the portable kernel for one precision: tiles of 64 rows, a block of four warps each."""

    #: Of the arithmetic in fragments.cuh.
    code: int
    #: Elements that pad the rows of A and B in shared memory.
    pads: tuple[int, int]
    #: Blocks of 32 x 32 that a warp has side by side.
    blocks: int
    #: Stages of the pipeline, and thread blocks of a multiprocessor.
    stages: int
    min_blocks: int
    #: How many k steps (32 wide) are listed at a time; a longer k takes several lists.
    list_steps: int = 1024

    @property
    def tile_n(self) -> int:
        """Columns of a tile."""
        return 64 * self.blocks

    @property
    def tile_elements(self) -> int:
        """Entries of a tile of C."""
        return TILE_M * self.tile_n

    def shared_bytes(self, dtype: str) -> int:
        """Return the dynamic shared memory of a block."""
        elements = TILE_M * (32 + self.pads[0]) + 32 * (self.tile_n + self.pads[1])
        return self.stages * elements * np.dtype(dtype).itemsize

    @property
    def static_bytes(self) -> int:
        """The shared memory that the kernel itself declares: the list, its bits, and a count for each warp."""
        return 6 * self.list_steps + 16


# Rows of a tile of the portable kernel, and threads of its blocks.
TILE_M, THREADS = 64, 128
# Of the blocks that share a tile of C: the fewest k steps (32 wide) of each, and how many blocks add up their sums.
SHARED_STEPS, JOINERS = 8, 8
_HALF = Portable(0, (8, 8), blocks=2, stages=4, min_blocks=4)
PORTABLE: dict[str, Portable] = {
    "fp16": _HALF,
    "fp16c16": _HALF,
    "tf32x3": Portable(1, (4, 8), blocks=2, stages=4, min_blocks=2),
    "fp64": Portable(2, (4, 4), blocks=1, stages=2, min_blocks=3, list_steps=256),
    "fp32": Portable(3, (4, 0), blocks=1, stages=3, min_blocks=4, list_steps=512),
}


@dataclass(frozen=True)
class Hopper:
    """A shape of a kernel on ``hopper.cuh``.

    `cluster` stacked tiles of 128 x `tile_n` in pieces of 64 x `group`; `listers` warps list, `stages` are loaded
    ahead, and `list_steps` is the most k steps (32 wide) of a product.
    """

    tile_n: int
    group: int
    cluster: int
    listers: int
    stages: int
    list_steps: int

    @property
    def lists_bytes(self) -> int:
        """Two lists in flight, and the barriers, generously."""
        return 2 * (12 + 4 * self.listers + 2 * self.list_steps) + 16 * self.stages + 256


@dataclass(frozen=True)
class Wgmma(Hopper):
    """A shape of the float16 kernel; a warpgroup keeps two stores of C under way, of `round_boxes` boxes each."""

    round_boxes: int = 1
    kernel = "product_wgmma"
    box_a, swizzle_a, box_b = (1, 128, 32), 64, (1, 32, 64)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 256 * (self.tile_n // self.group) + 32 * (1 + self.listers)

    @property
    def resident(self) -> int:
        """Thread blocks on a multiprocessor."""
        return 2 if self.tile_n == 128 else 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        staging = 2 * (self.tile_n // self.group) * 2 * self.round_boxes * 64 * 128
        return self.stages * (128 + self.tile_n) * 64 + staging + self.lists_bytes


@dataclass(frozen=True)
class WgmmaTf32(Hopper):
    """The shape of the 3xTF32 kernel."""

    kernel = "product_tf32"
    box_a, swizzle_a, box_b = (1, 64, 32), 128, (1, 32, 32)
    threads = 512
    resident = 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * 2 * 128 * 128 + 2 * 128 * 128 + 2 * 2 * 64 * 128 + self.lists_bytes


HopperShape = Wgmma | WgmmaTf32

WGMMA: dict[str, HopperShape] = {
    "wgmma_small": Wgmma(tile_n=128, group=128, cluster=1, listers=1, stages=4, list_steps=1024),
    "wgmma_wide": Wgmma(tile_n=256, group=256, cluster=1, listers=3, stages=6, list_steps=1536, round_boxes=2),
    "wgmma_wide_pair": Wgmma(tile_n=256, group=256, cluster=2, listers=3, stages=7, list_steps=1536),
    "wgmma_tf32": WgmmaTf32(tile_n=128, group=64, cluster=1, listers=3, stages=4, list_steps=1152),
}

# How many times as long a kernel takes as the fastest of its precision on Hopper, and of a piece of 256 x 256 of C the
# parts that multiprocessors work on side by side.  Measured at N = 8,192 with 30 % valid (the study's ablation).
SLOWDOWN: dict[tuple[Kernel, str], float] = {
    ("wgmma_small", "fp16"): 1.5,
    ("wgmma_small", "fp16c16"): 1.5,
    ("portable", "fp16"): 2.9,
    ("portable", "fp16c16"): 2.9,
    ("portable", "tf32x3"): 2.0,
}
# How many times as long the portable kernel takes where rows are not aligned to 16 bytes: elements come one by one,
# those of float16 through registers.
UNALIGNED_SLOWDOWN = {"float16": 2.8, "float32": 1.2, "float64": 1.2}
PARTS: dict[Kernel, int] = {
    "wgmma_wide_pair": 2, "wgmma_wide": 2, "wgmma_small": 4, "wgmma_tf32": 4, "portable": 4, "blocks": 64
}  # fmt: skip
# The same of precisions that have the portable kernel alone, in tiles of 64 x 64.
PARTS_OF_SMALL = {"fp32": 16, "fp64": 16}


@dataclass(frozen=True)
class Rates:
    """What weighs transfers against products over several GPUs, and SpAMM against the dense product."""

    peer_bytes: float  #: Bytes a second of a copy between two of them.
    executed: dict[str, float]  #: Multiplications and additions a second over executed tiles, by precision.
    dense: dict[str, float]  #: The same of cuBLAS's dense product, by dtype.


# Measured: peer copies over NVLink 4, products from N = 4,096 to 32,768, dense products at N = 8,192.
RATES = {
    "NVIDIA H200": Rates(
        394e9,
        {"fp16": 860e12, "fp16c16": 860e12, "fp32": 45e12, "tf32x3": 125e12, "fp64": 50e12},
        {"float16": 832e12, "float32": 50.3e12, "float64": 60.3e12},
    )
}
# Measured on an H200: what a call of SpAMM takes beside reading, writing and multiplying, what reading one number back
# and launching anew takes, and the share of a device's peak bandwidth that a copy reaches.
FIXED_SECONDS, READ_SECONDS, COPY_SHARE = 16e-6, 20e-6, 0.82
# Of counting valid products: what the kernel takes after the norm map even where there are few, and products a second.
COUNT_SECONDS, COUNT_RATE = 18e-6, 8e12
# Of a search for a ratio or an error: seconds for up to 32 x 32 x 32 tile products, seconds more for each 8 times as
# many, and tile products a second.
SEARCH_SECONDS = {"ratio": (10e-6, 7e-6, 2e12), "error": (60e-6, 20e-6, 0.55e12)}
# Runs of a layout among which the cost of counting is divided when it is weighed.
KEPT = 4
# What cuBLAS reaches of its rate where rows are not aligned to 16 bytes, measured on an H100.
UNALIGNED = {"float16": 1 / 7, "float32": 0.8, "float64": 0.7}
# The least inner dimension of the parts into which cuBLAS splits a product of few tiles of C.
SPLIT_DEPTH = 256
# NVLink generations by major architecture of data-center devices (NVLink 3, 4, 5), at the H200's share of the peak;
# others are taken for PCIe 4.
_NVLINK_BYTES = {8: 260e9, 9: 394e9, 10: 788e9}
_PCIE_BYTES = 22e9
# Tensor-core work of a multiprocessor and clock, relative to Hopper's, by major architecture.
_TENSOR_SHARE = {8: 0.4, 9: 1.0, 10: 1.6, 12: 0.5}


def rates(device: Device) -> Rates:
    """Return the rates of a device: measured, or by the H200's with the number of multiprocessors and the FP64 rate."""
    if device.name in RATES:
        return RATES[device.name]
    known = RATES["NVIDIA H200"]
    share = device.multiprocessors / 132
    tensor = share * _TENSOR_SHARE.get(device.compute_capability[0], 1.0)
    executed = {name: rate * (share if name == "fp32" else tensor) for name, rate in known.executed.items()}
    dense = {name: rate * (tensor if name == "float16" else share) for name, rate in known.dense.items()}
    if not device.fast_fp64:
        executed["fp64"] = executed["fp32"] / device.fp64_divisor
        dense["float64"] = dense["float32"] / device.fp64_divisor
    # Data-center devices have the fast FP64 units and NVLink alike.
    link = _NVLINK_BYTES.get(device.compute_capability[0], _PCIE_BYTES) if device.fast_fp64 else _PCIE_BYTES
    return Rates(link, executed, dense)
