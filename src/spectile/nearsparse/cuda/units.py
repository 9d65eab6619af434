"""The CUDA units of SpAMM: every source with every set of constants that some device may need."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.nearsparse.cuda import kernels
from spectile.nearsparse.cuda.tuning import (
    BAND_ROWS,
    HOPPER_BAND_ROWS,
    PORTABLE,
    SEARCH_CHUNK,
    WGMMA,
    HopperShape,
    Portable,
    Tile,
    Wgmma,
)
from spectile.nearsparse.types import PRECISIONS

ARCHS = ("sm_80", "sm_90a", "sm_100")


def _unit(source: str, archs: tuple[str, ...], defines: Mapping[str, object]) -> Unit:
    return Unit(kernels.__name__, (source,), archs, {name: str(value) for name, value in defines.items()})


def _bits(dtype: str) -> int:
    return 8 * np.dtype(dtype).itemsize


def norm_unit(dtype: str) -> Unit:
    """Return the norm kernel of an input dtype."""
    return _unit("norm_map.cu", ARCHS, {"INPUT_BITS": _bits(dtype)})


@functools.cache
def portable_unit(
    precision: str, portable: Portable, tile: Tile, aligned: bool, list_steps: int, extra: tuple[str, ...] = ()
) -> Unit:
    """Return the portable kernel of a tile.

    Parameters
    ----------
    precision : str
        A key of ``PRECISIONS``.
    portable, tile : Portable, Tile
        Its tuning.
    aligned : bool
        Whether all rows of the operands and of C begin at multiples of 16 bytes.
    list_steps : int
        How many k steps are listed at a time.
    extra : tuple of str
        Further constants that are defined, as the study's variants need them.
    """
    row = PRECISIONS[precision]
    defines = {
        "PRECISION": portable.code,
        "INPUT_BITS": _bits(row.dtype),
        "OUTPUT_BITS": _bits(row.output),
        "TILE_M": tile.tile_m,
        "TILE_N": tile.tile_n,
        "STAGE_K": tile.stage_k,
        "BLOCKS_M": tile.blocks_m,
        "BLOCKS_N": tile.blocks_n,
        "STAGES": tile.stages,
        "MIN_BLOCKS": tile.min_blocks,
        "PAD_A": portable.pads[0],
        "PAD_B": portable.pads[1],
        "ALIGNED": int(aligned),
        "LIST_STEPS": list_steps,
        "BAND_ROWS": BAND_ROWS,
    }
    return _unit("product.cu", ARCHS, defines | {name: 1 for name in extra})


@functools.cache
def blocks_unit(precision: str) -> Unit:
    """Return the kernel that is strict at blocks below 32."""
    row = PRECISIONS[precision]
    return _unit("product_blocks.cu", ARCHS, {"INPUT_BITS": _bits(row.dtype), "OUTPUT_BITS": _bits(row.output)})


@functools.cache
def hopper_unit(shape: HopperShape, output: str, schedule: str = "", *, copies: bool = True) -> Unit:
    """Return a kernel for Hopper and C of a dtype; `schedule` gives tiles to clusters another way (the study's).

    `copies` tells whether C leaves through the copy engine, else it is stored element by element.
    """
    defines: dict[str, object] = {
        "TILE_N": shape.tile_n,
        "GROUP_N": shape.group,
        "CLUSTER": shape.cluster,
        "LISTERS": shape.listers,
        "STAGES": shape.stages,
        "LIST_STEPS": shape.list_steps,
        "COPY_STORES": int(copies),
        "OUTPUT_BITS": _bits(output),
        "BAND_ROWS": HOPPER_BAND_ROWS,
    }
    if isinstance(shape, Wgmma):
        defines |= {"ROUNDS": shape.rounds, "ROUND_BOXES": shape.round_boxes}
    return _unit(f"{shape.kernel}.cu", ("sm_90a",), defines | ({"SCHEDULE": schedule} if schedule else {}))


def _outputs(shape: HopperShape) -> tuple[str, ...]:
    return ("float32", "float16") if isinstance(shape, Wgmma) else ("float32",)


def fitting_tiles(portable: Portable, dtype: str, shared_bytes: int) -> tuple[Tile, Tile]:
    """Return the large and the small tile that a block's shared memory holds: with fewer stages, or the small for both.

    Two stages are the least of a pipeline.
    """
    tiles = []
    for tile in (portable.large, portable.small):
        static = portable.static_bytes(tile, tile.lists[-1])
        stages = [
            stages
            for stages in range(min(2, tile.stages), tile.stages + 1)
            if static + portable.shared_bytes(replace(tile, stages=stages), dtype) <= shared_bytes
        ]
        tiles.append(replace(tile, stages=max(stages)) if stages else None)
    large, small = tiles
    if small is None:
        raise ValueError(f"no tile of SpAMM's product fits {shared_bytes:,} bytes of shared memory a block")
    return large or small, small


COMPLEX_UNITS = {dtype: _unit("complex.cu", ARCHS, {"INPUT_BITS": _bits(dtype)}) for dtype in ("float32", "float64")}
NORM_UNITS = {dtype: norm_unit(dtype) for dtype in ("float16", "float32", "float64")}
SURVEY_UNITS = {name: _unit("survey.cu", ARCHS, {"NORM_BITS": _bits(name)}) for name in ("float32", "float64")}
#: By what is wanted, and the dtype of the norms.
SEARCH_UNITS = {
    (kind, name): _unit(f"search_{kind}.cu", ARCHS, {"NORM_BITS": _bits(name)} | constants)
    for kind, constants in (("ratio", {"CHUNK": SEARCH_CHUNK}), ("error", {}))
    for name in ("float32", "float64")
}


def _portable_units() -> list[Unit]:
    """Return the portable kernels that the devices of the table take."""
    units = []
    for shared_bytes in sorted({device.shared_bytes for device in TABLE.values()}, reverse=True):
        for name, portable in PORTABLE.items():
            large, small = fitting_tiles(portable, PRECISIONS[name].dtype, shared_bytes)
            for tile, aligned in ((large, True), (small, True), (small, False)):
                for list_steps in tile.lists if aligned else tile.lists[-1:]:
                    units.append(portable_unit(name, portable, tile, aligned, list_steps))
    return units


UNITS: tuple[Unit, ...] = (
    *NORM_UNITS.values(),
    *COMPLEX_UNITS.values(),
    *SURVEY_UNITS.values(),
    *SEARCH_UNITS.values(),
    *dict.fromkeys(_portable_units()),
    *dict.fromkeys(blocks_unit(name) for name in PRECISIONS),
    *dict.fromkeys(
        hopper_unit(shape, output, copies=copies)
        for shape in WGMMA.values()
        for output in _outputs(shape)
        for copies in (True, False)
    ),
)
