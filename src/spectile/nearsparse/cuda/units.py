"""The CUDA units of SpAMM and their tuning: tiles, stages, lists, resident blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from spectile.core.compile import Unit

Kernel = Literal["portable", "blocks", "wgmma_small", "wgmma_pair", "wgmma_wide", "wgmma_wide_pair", "wgmma_tf32"]

ARCHS = ("sm_80", "sm_90a", "sm_100")


@dataclass(frozen=True)
class Tile:
    """Tuning of the portable kernel.

    Tile height, 32-blocks of a warp, pipeline stages, resident thread blocks, whether the list holds only the steps
    that some block needs, tile width, k of a stage, and how many k steps (32 wide) are listed at a time: a short list
    is made sooner, and a longer k takes several.
    """

    tile_m: int
    blocks_m: int
    blocks_n: int
    stages: int
    min_blocks: int
    compact: bool = True
    tile_n: int = 128
    stage_k: int = 32
    lists: tuple[int, ...] = (1024,)

    def list_steps(self, aligned: bool, k: int) -> int:
        """Return the length of the list for an inner dimension `k`: the shortest that holds it, or the longest."""
        lengths = self.lists if aligned else self.lists[-1:]
        return next((steps for steps in lengths if 32 * steps >= k), lengths[-1])

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.tile_m // (32 * self.blocks_m)) * (self.tile_n // (32 * self.blocks_n))


@dataclass(frozen=True)
class Precision:
    """Dtypes of a precision and its portable kernels, for large and for small products."""

    code: int
    dtype: str
    output: str
    #: Elements that pad the rows of A and B in shared memory.
    pads: tuple[int, int]
    large: Tile
    small: Tile
    #: Tiles of 128 x 128, a multiprocessor, from which on the large tile is faster.
    large_from: int = 4
    #: Most tiles of a product that are worth sorting: in a sorted order neighbours no longer share the L2.
    ordered_tiles: int = 4096
    #: Whether sorted tiles get their lists from the kernel that sorts them; float64 loses 1 % by the choice.
    given_lists: bool = False

    def shared_bytes(self, tile: Tile) -> int:
        """Return the dynamic shared memory of a block."""
        elements = tile.tile_m * (tile.stage_k + self.pads[0]) + tile.stage_k * (tile.tile_n + self.pads[1])
        return tile.stages * elements * np.dtype(self.dtype).itemsize

    def unit(self, tile: Tile, aligned: bool, list_steps: int = 1024) -> Unit:
        """Return the kernel of a tile, for operands whose rows are aligned to 16 bytes or not."""
        defines = {
            "PRECISION": self.code,
            "INPUT_BITS": 8 * np.dtype(self.dtype).itemsize,
            "OUTPUT_BITS": 8 * np.dtype(self.output).itemsize,
            "TILE_M": tile.tile_m,
            "TILE_N": tile.tile_n,
            "STAGE_K": tile.stage_k,
            "BLOCKS_M": tile.blocks_m,
            "BLOCKS_N": tile.blocks_n,
            "STAGES": tile.stages,
            "MIN_BLOCKS": tile.min_blocks,
            "COMPACT": int(tile.compact),
            "ALIGNED": int(aligned),
            "LIST_STEPS": list_steps,
            "GIVEN_LISTS": int(self.given_lists and tile.compact),
        }
        return Unit(
            __package__, ("operands.cu", "product.cu"), ARCHS, {name: str(value) for name, value in defines.items()}
        )

    def blocks_unit(self) -> Unit:
        """Return the kernel that is strict at blocks below 32."""
        bits = {"INPUT_BITS": str(8 * np.dtype(self.dtype).itemsize)}
        return Unit(
            __package__,
            ("operands.cu", "product_blocks.cu"),
            ARCHS,
            bits | {"OUTPUT_BITS": str(8 * np.dtype(self.output).itemsize)},
        )


_HALF_TILE = Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=4)
_TF32_TILE = Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=2)
PORTABLE = {
    "fp16": Precision(0, "float16", "float32", (8, 8), _HALF_TILE, _HALF_TILE),
    "fp16c16": Precision(0, "float16", "float16", (8, 8), _HALF_TILE, _HALF_TILE),
    "tf32x3": Precision(1, "float32", "float32", (4, 8), _TF32_TILE, _TF32_TILE),
    "fp64": Precision(
        2, "float64", "float64", (4, 4),
        large=Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=2, stage_k=16, lists=(256, 1024)),
        small=Tile(tile_m=64, blocks_m=1, blocks_n=1, stages=2, min_blocks=3, tile_n=64, lists=(256,)),
        large_from=256,
        ordered_tiles=2048,
    ),
    "fp32": Precision(
        3, "float32", "float32", (4, 0),
        large=Tile(tile_m=128, blocks_m=2, blocks_n=2, stages=3, min_blocks=2, lists=(256, 512, 1024)),
        small=Tile(tile_m=64, blocks_m=1, blocks_n=1, stages=3, min_blocks=4, tile_n=64, lists=(256, 512)),
        large_from=16,
        given_lists=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Hopper:
    """A shape of a kernel on ``hopper.cu``.

    `cluster` stacked tiles of 128 x `tile_n` in pieces of 64 x `group`; `listers` warps list, `stages` are loaded
    ahead, and `list_steps` is the most k steps (32 wide) of a product.  `schedule` says how clusters get their tiles.
    """

    tile_n: int
    group: int
    cluster: int
    listers: int
    stages: int
    list_steps: int
    schedule: str = "DRAWN"
    #: Most tiles of a product that are worth sorting.
    ordered_tiles = 0

    @property
    def lists_bytes(self) -> int:
        """Two lists in flight, and the barriers, generously."""
        return 2 * (12 + 4 * self.listers + 2 * self.list_steps) + 16 * self.stages + 256

    def defines(self, output: str) -> dict[str, str]:
        """Return the preprocessor constants for C of a dtype."""
        bits = 8 * np.dtype(output).itemsize
        values = {"TILE_N": self.tile_n, "GROUP_N": self.group, "CLUSTER": self.cluster, "LISTERS": self.listers}
        values |= {"STAGES": self.stages, "LIST_STEPS": self.list_steps, "OUTPUT_BITS": bits}
        return {name: str(value) for name, value in values.items()} | {"SCHEDULE": self.schedule}


@dataclass(frozen=True)
class Wgmma(Hopper):
    """A shape of the float16 kernel; a warpgroup keeps `rounds` stores of C under way, of `round_boxes` boxes each."""

    rounds: int = 2
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
        staging = 2 * (self.tile_n // self.group) * self.rounds * self.round_boxes * 64 * 128
        return self.stages * (128 + self.tile_n) * 64 + staging + self.lists_bytes

    def unit(self, output: str) -> Unit:
        """Return the kernel for C of a dtype."""
        defines = self.defines(output) | {"ROUNDS": str(self.rounds), "ROUND_BOXES": str(self.round_boxes)}
        return Unit(__package__, ("hopper.cu", "product_wgmma.cu"), ("sm_90a",), defines)


@dataclass(frozen=True)
class WgmmaTf32(Hopper):
    """The shape of the 3xTF32 kernel."""

    kernel = "product_tf32"
    ordered_tiles = 2048
    box_a, swizzle_a, box_b = (1, 64, 32), 128, (1, 32, 32)
    threads = 512
    resident = 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * 2 * 128 * 128 + 2 * 128 * 128 + 2 * 2 * 64 * 128 + self.lists_bytes

    def unit(self, output: str) -> Unit:
        """Return the kernel for C of a dtype."""
        return Unit(__package__, ("hopper.cu", "product_tf32.cu"), ("sm_90a",), self.defines("float32"))


WGMMA: dict[str, Wgmma | WgmmaTf32] = {
    "wgmma_small": Wgmma(tile_n=128, group=128, cluster=1, listers=1, stages=4, list_steps=1024),
    "wgmma_wide": Wgmma(tile_n=256, group=256, cluster=1, listers=3, stages=6, list_steps=1536, round_boxes=2),
    "wgmma_pair": Wgmma(tile_n=256, group=128, cluster=2, listers=3, stages=6, list_steps=1536),
    "wgmma_wide_pair": Wgmma(tile_n=256, group=256, cluster=2, listers=3, stages=7, list_steps=1536),
    "wgmma_tf32": WgmmaTf32(tile_n=128, group=64, cluster=1, listers=3, stages=4, list_steps=1152),
}

# How the lanes of a block are summed: by shuffles; in shared memory and by a matrix of ones for the ablation.
SHUFFLES, SHARED, ONES = "0", "1", "2"


def norm_unit(dtype: str, reduction: str = SHUFFLES) -> Unit:
    """Return the norm kernel of an input dtype."""
    bits = str(8 * np.dtype(dtype).itemsize)
    return Unit(__package__, ("norm_map.cu",), ARCHS, {"INPUT_BITS": bits, "REDUCTION": reduction})


NORM_UNITS = {dtype: norm_unit(dtype) for dtype in ("float16", "float32", "float64")}
SURVEY_UNITS = {
    name: Unit(__package__, ("survey.cu",), ARCHS, {"NORM_BITS": bits})
    for name, bits in (("float32", "32"), ("float64", "64"))
}
ORDER_UNITS = {
    name: Unit(__package__, ("order.cu",), ARCHS, {"NORM_BITS": bits})
    for name, bits in (("float32", "32"), ("float64", "64"))
}

UNITS: tuple[Unit, ...] = (
    *(norm_unit(dtype, reduction) for dtype in NORM_UNITS for reduction in (SHUFFLES, SHARED, ONES)),
    *SURVEY_UNITS.values(),
    *ORDER_UNITS.values(),
    *dict.fromkeys(
        precision.unit(tile, aligned, list_steps)
        for precision in PORTABLE.values()
        for tile, aligned in ((precision.large, True), (precision.small, True), (precision.small, False))
        for list_steps in (tile.lists if aligned else tile.lists[-1:])
    ),
    *dict.fromkeys(precision.blocks_unit() for precision in PORTABLE.values()),
    *dict.fromkeys(shape.unit(output) for shape in WGMMA.values() for output in ("float32", "float16")),
)
