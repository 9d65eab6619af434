"""The CUDA units of the eigensolver: what is compiled for which type and bandwidth, and how a kernel is launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.compile import Unit

ARCHS = ("sm_80", "sm_90a", "sm_100")
PANEL_THREADS = 512  # most threads, and rows, of a block in the panel kernel
STURM_THREADS = 64


def _scalar_defines(name: str) -> dict[str, str]:
    dtype = np.dtype(name)
    real_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return {
        "REAL": "double" if real_bytes == 8 else "float",
        "REAL_BYTES": str(real_bytes),
        "COMPLEX": "1" if dtype.kind == "c" else "0",
    }


def _stage_unit(name: str, bandwidth: int) -> Unit:
    """Panels, chasing and helpers for one scalar type and one bandwidth."""
    return Unit(
        __package__,
        ("scalar.cu", "sync.cu", "matrix.cu", "panel.cu", "chasing.cu", "back.cu"),
        archs=ARCHS,
        defines=_scalar_defines(name)
        | {
            "B": str(bandwidth),
            "W": str(panel_width(name, bandwidth)),
            "PANEL_THREADS": str(PANEL_THREADS),
            "CHASE_THREADS": str(chase_threads(bandwidth)),
            "CHASE_BLOCKS": str(chase_blocks(name, bandwidth)),
        },
    )


def chase_threads(bandwidth: int) -> int:
    """Threads of each of a chasing block's two groups: four columns a warp for b = 16, eight for more."""
    return {16: 128, 32: 128, 64: 256}[bandwidth]


def chase_blocks(name: str, bandwidth: int) -> int:
    """Chasing blocks that a multiprocessor has registers for."""
    return 1 if bandwidth == 64 or np.dtype(name).kind == "c" else 2


def panel_width(name: str, bandwidth: int) -> int:
    """Columns that the panel kernel holds in registers, 256 bytes of a row: a panel is this wide, or two of this."""
    return min(bandwidth, 256 // np.dtype(name).itemsize)


BANDWIDTHS = {"float64": (16, 32, 64), "float32": (32,), "complex128": (32,), "complex64": (32,)}
STAGES = {(name, b): _stage_unit(name, b) for name, widths in BANDWIDTHS.items() for b in widths}
# Alone, so that a matrix that goes to the vendor does not wait for the stages to compile.
HELPERS = {
    name: Unit(__package__, ("scalar.cu", "matrix.cu"), archs=ARCHS, defines=_scalar_defines(name))
    for name in BANDWIDTHS
}
STURM = {
    lanes: Unit(
        __package__, ("sturm.cu",), archs=ARCHS, defines={"LANES": str(lanes), "STURM_THREADS": str(STURM_THREADS)}
    )
    for lanes in (1, 4, 16)
}
DIVIDE = Unit(__package__, ("divide.cu",), archs=ARCHS)


def _sweep_unit(name: str, bandwidth: int) -> Unit:
    """Back-transformation by the reflectors of the chasing: these are of type `name`, Z is in double precision."""
    own = _scalar_defines(name)
    defines = {**own, "REAL": "double", "REAL_BYTES": "8", "SOURCE": own["REAL"], "B": str(bandwidth)}
    return Unit(__package__, ("scalar.cu", "sync.cu", "tensor.cu", "sweeps.cu"), archs=ARCHS, defines=defines)


SWEEPS = {(name, b): _sweep_unit(name, b) for name, widths in BANDWIDTHS.items() for b in widths}

UNITS = (*SWEEPS.values(), *STAGES.values(), *HELPERS.values(), *STURM.values(), DIVIDE)

# Hashing a Unit takes longer than a launch; every unit lives as long as the module, so its id is its own.
_KERNELS: dict[tuple[int, str, int, int], Any] = {}


def launch(unit: Unit, name: str, grid: Any, threads: int, arguments: tuple[Any, ...], shared_bytes: int = 0) -> None:
    """Launch a kernel of a unit on the current stream; `grid` is a number of blocks or a tuple."""
    import cupy

    key = (id(unit), name, shared_bytes, cupy.cuda.runtime.getDevice())
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _KERNELS[key] = unit.function(name, shared_bytes)
    kernel(grid if isinstance(grid, tuple) else (grid,), (threads,), arguments, shared_mem=shared_bytes)
