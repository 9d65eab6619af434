"""What the kernels on stored matrices share: how types, modes and shapes become defines, and what each kernel needs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit

#: Where the sources lie.
PACKAGE = "spectile.kpm.cuda"
#: Bulk copies are Hopper's and later.
BULK = tuple(arch for arch in PORTABLE if int(arch[3:].rstrip("a")) >= 90)
REAL = {"complex128": "double", "complex64": "float", "float64": "double", "float32": "float"}
#: The product alone, each vector of it in one piece or W = H V; the augmented one without scalar products, with them,
#: with sums of terms too; and many steps with scalar products in one launch.
TURNED, PLAIN, NO_DOTS, FULL, SERIES, WALK = -1, 0, 1, 2, 3, 4
#: Threads of a block of Lanczos steps, blocks of a multiprocessor, and entries of a thread before its warp helps.
LANCZOS_THREADS, LANCZOS_BLOCKS, LANCZOS_TURNS = 512, 2, 16
#: Terms that a step has at hand.
TERMS = 3


def number_defines(dtype: Any, wide: bool = False) -> dict[str, str]:
    """Return what ``number.cuh`` reads: the type of a number, and whether row pointers have 64 bits."""
    name = str(np.dtype(dtype))
    return {"REAL": REAL[name], "COMPLEX": str(int(name.startswith("complex"))), "WIDE": str(int(wide))}


def mode_defines(mode: int) -> dict[str, str]:
    """Return what ``block.cuh`` reads of a mode."""
    return {"MODE": str(max(PLAIN, min(mode, FULL))), "SERIES": str(TERMS if mode == SERIES else 0)}


def row_defines(num_vectors: int, shape: Any) -> dict[str, str]:
    """Return what ``block.cuh`` and ``piece.cuh`` read of the shape of a kernel whose threads share rows of V."""
    lanes = shape.lanes
    return {
        "LANES": str(lanes.lanes), "COLUMNS": str(lanes.vector * lanes.pieces), "VECTOR": str(lanes.vector),
        "PIECES": str(lanes.pieces), "UNROLL": str(shape.unroll), "THREADS": str(shape.threads), "BLOCKS": "1",
        "EXACT": str(int(num_vectors % lanes.columns == 0)),
    }  # fmt: skip


@functools.cache
def vectors_unit(dtype: str, *, wide: bool = False) -> Unit:
    """Return the unit of what comes before and beside the recurrence (``vectors.cu``)."""
    return Unit(PACKAGE, ("vectors.cu",), PORTABLE, number_defines(dtype, wide))


@functools.cache
def lanczos_unit(dtype: str, *, wide: bool = False) -> Unit:
    """Return the unit of Lanczos steps (``lanczos.cu``)."""
    defines = {"THREADS": str(LANCZOS_THREADS), "BLOCKS": str(LANCZOS_BLOCKS), "TURNS": str(LANCZOS_TURNS)}
    return Unit(PACKAGE, ("lanczos.cu",), PORTABLE, number_defines(dtype, wide) | defines)


@functools.cache
def inspect_unit(dtype: str, *, wide: bool = False) -> Unit:
    """Return the unit of the look at a matrix (``inspect.cu``)."""
    return Unit(PACKAGE, ("inspect.cu",), PORTABLE, number_defines(dtype, wide))
