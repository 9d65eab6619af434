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
def portable_unit(precision: str, portable: Portable, aligned: bool, extra: tuple[str, ...] = ()) -> Unit:
    """Return the portable kernel.

    Parameters
    ----------
    precision : str
        A key of ``PRECISIONS``.
    portable : Portable
        Its tuning.
    aligned : bool
        Whether all rows of the operands and of C begin at multiples of 16 bytes.
    extra : tuple of str
        Further constants that are defined, as the study's variants need them.
    """
    row = PRECISIONS[precision]
    defines = {
        "PRECISION": portable.code,
        "INPUT_BITS": _bits(row.dtype),
        "OUTPUT_BITS": _bits(row.output),
        "BLOCKS": portable.blocks,
        "STAGES": portable.stages,
        "MIN_BLOCKS": portable.min_blocks,
        "PAD_A": portable.pads[0],
        "PAD_B": portable.pads[1],
        "ALIGNED": int(aligned),
        "LIST_STEPS": portable.list_steps,
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
        defines["ROUND_BOXES"] = shape.round_boxes
    return _unit(f"{shape.kernel}.cu", ("sm_90a",), defines | ({"SCHEDULE": schedule} if schedule else {}))


def fitting(portable: Portable, dtype: str, shared_bytes: int) -> Portable:
    """Return the tuning with as many stages as a block's shared memory holds; two are the least of a pipeline."""
    for stages in range(portable.stages, 0, -1):
        fewer = replace(portable, stages=stages)
        if fewer.static_bytes + fewer.shared_bytes(dtype) <= shared_bytes and stages >= min(2, portable.stages):
            return fewer
    raise ValueError(f"no tile of SpAMM's product fits {shared_bytes:,} bytes of shared memory a block")


COMPLEX_UNITS = {dtype: _unit("complex.cu", ARCHS, {"INPUT_BITS": _bits(dtype)}) for dtype in ("float32", "float64")}
NORM_UNITS = {dtype: norm_unit(dtype) for dtype in ("float16", "float32", "float64")}
SURVEY_UNITS = {name: _unit("survey.cu", ARCHS, {"NORM_BITS": _bits(name)}) for name in ("float32", "float64")}
#: By what is wanted, and the dtype of the norms.
SEARCH_UNITS = {
    (kind, name): _unit(f"search_{kind}.cu", ARCHS, {"NORM_BITS": _bits(name)} | constants)
    for kind, constants in (("ratio", {"CHUNK": SEARCH_CHUNK}), ("error", {}))
    for name in ("float32", "float64")
}


UNITS: tuple[Unit, ...] = (
    *NORM_UNITS.values(),
    *COMPLEX_UNITS.values(),
    *SURVEY_UNITS.values(),
    *SEARCH_UNITS.values(),
    *dict.fromkeys(
        portable_unit(name, fitting(portable, PRECISIONS[name].dtype, shared_bytes), aligned)
        for shared_bytes in sorted({device.shared_bytes for device in TABLE.values()}, reverse=True)
        for name, portable in PORTABLE.items()
        for aligned in (True, False)
    ),
    *dict.fromkeys(blocks_unit(name) for name in PRECISIONS),
    *dict.fromkeys(
        hopper_unit(shape, output, copies=copies)
        for shape in WGMMA.values()
        for output in (("float32", "float16") if isinstance(shape, Wgmma) else ("float32",))
        for copies in (True, False)
    ),
)
