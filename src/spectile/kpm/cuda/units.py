"""CUDA units of KPM: which kernel, of which type and shape, a block of R vectors takes."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.devices import TABLE
from spectile.kpm.cuda import kernels
from spectile.kpm.cuda.choose import (
    BOXES_THREADS,
    INSPECTOR_THREADS,
    PACKED_BLOCKS,
    PACKED_THREADS,
    SELL_CHUNK,
    BoxedRoom,
    BoxedShape,
    GatherShape,
    GroupedShape,
    RowShape,
    SlotShape,
    StagedShape,
    SweepTile,
    boxed_room,
    boxed_shape,
    boxes,
    gather_shape,
    grouped_shape,
    row_shape,
    sell_shape,
    slot_shape,
    staged_shape,
    strip_shape,
)

#: Bulk copies are Hopper's and later.
BULK = tuple(arch for arch in PORTABLE if int(arch[3:].rstrip("a")) >= 90)
REAL = {"complex128": "double", "complex64": "float", "float64": "double", "float32": "float"}
#: The product alone (W = H V), the augmented one without scalar products, and with them.
PLAIN, NO_DOTS, FULL = 0, 1, 2


@functools.cache
def stored_unit(
    dtype: str,
    num_vectors: int,
    *,
    layout: str = "csr",
    wide: bool = False,
    mode: int = FULL,
    shape: RowShape | None = None,
) -> Unit:
    """Return the unit of the stored-matrix kernel for a type and a width of the block vector.

    Parameters
    ----------
    dtype : str
        complex128, complex64, float64 or float32.
    num_vectors : int
        R.
    layout : {"csr", "sell"}
        Storage format.
    wide : bool
        64-bit row pointers.
    mode : int
        PLAIN (W = H V), NO_DOTS (augmented) or FULL.
    shape : RowShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.row_shape`.
    """
    shape = shape or row_shape(num_vectors)
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(shape.lanes),
        "COLUMNS": str(shape.columns), "UNROLL": str(shape.unroll), "THREADS": str(shape.threads),
        "BLOCKS": str(shape.blocks), "WIDE": str(int(wide)), "SELL": str(SELL_CHUNK if layout == "sell" else 0),
        "MODE": str(mode), "EXACT": str(int(num_vectors % (shape.lanes * shape.columns) == 0)),
    }  # fmt: skip
    return Unit(kernels.__name__, ("rows.cu",), PORTABLE, defines)


@functools.cache
def gather_unit(
    dtype: str,
    num_vectors: int,
    *,
    wide: bool = False,
    mode: int = FULL,
    shape: GatherShape,
) -> Unit:
    """Return the unit of the step on rows (``gather.cu``), or of one vector (``stream.cu``); arguments as above."""
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(shape.lanes),
        "COLUMNS": str(shape.pieces * shape.vector), "VECTOR": str(shape.vector), "PIECES": str(shape.pieces),
        "UNROLL": str(shape.unroll), "AHEAD": str(shape.ahead), "THREADS": str(shape.threads),
        "BLOCKS": str(shape.blocks), "WIDE": str(int(wide)), "SELL": "0", "MODE": str(mode),
        "EXACT": str(int(num_vectors % shape.columns == 0)),
    }  # fmt: skip
    return Unit(kernels.__name__, ("stream.cu" if num_vectors == 1 else "gather.cu",), PORTABLE, defines)


@functools.cache
def slots_unit(dtype: str, num_vectors: int, width: int, *, mode: int = FULL, shape: SlotShape) -> Unit:
    """Return the unit of the step on rows of `width` slots (``slots.cu``); arguments as above."""
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(shape.lanes),
        "COLUMNS": str(shape.pieces * shape.vector), "VECTOR": str(shape.vector), "PIECES": str(shape.pieces),
        "WIDTH": str(width), "KEEP": str(shape.keep), "THREADS": str(shape.threads), "BLOCKS": str(shape.blocks),
        "WIDE": "0", "MODE": str(mode), "EXACT": str(int(num_vectors % shape.columns == 0)),
    }  # fmt: skip
    return Unit(kernels.__name__, ("slots.cu",), PORTABLE, defines)


@functools.cache
def grouped_unit(
    dtype: str,
    num_vectors: int,
    *,
    wide: bool = False,
    mode: int = FULL,
    shape: GroupedShape,
) -> Unit:
    """Return the unit of the step on groups of rows (``grouped.cu``, ``thirds.cu``); arguments as above."""
    lanes = 8 if shape.thirds else 4
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(lanes),
        "COLUMNS": str(shape.columns // lanes), "UNROLL": str(shape.unroll),
        "THREADS": str(shape.threads),
        "BLOCKS": str(shape.blocks), "WIDE": str(int(wide)), "SELL": "0", "MODE": str(mode), "EXACT": "1",
    }  # fmt: skip
    return Unit(kernels.__name__, ("thirds.cu" if shape.thirds else "grouped.cu",), PORTABLE, defines)


@functools.cache
def boxed_unit(dtype: str, *, mode: int = FULL, shape: BoxedShape, room: BoxedRoom) -> Unit:
    """Return the unit of the step on groups with V through shared memory (``boxed.cu``); arguments as above."""
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")),
        "DOUBLE": str(int(REAL[dtype] == "double")), "LANES": "8", "COLUMNS": str(shape.columns // 8),
        "UNROLL": str(shape.unroll), "THREADS": str(shape.threads), "BLOCKS": "1", "WIDE": "0", "SELL": "0",
        "MODE": str(mode), "EXACT": "1", "TILE": str(shape.tile), "DEPTH": str(shape.depth),
        "BOX": str(shape.box), "SLOTS": str(room.slots), "LENGTH": str(room.length),
    }  # fmt: skip
    return Unit(kernels.__name__, ("boxed.cu",), BULK, defines)


@functools.cache
def boxes_unit(*, wide: bool = False, shape: BoxedShape, room: BoxedRoom) -> Unit:
    """Return the unit of its inspector (``boxes.cu``)."""
    defines = {
        "TILE": str(shape.tile), "SLOTS": str(room.slots), "LENGTH": str(room.length), "WIDE": str(int(wide)),
        "BOX": str(shape.box), "PIECES": str(room.pieces), "THREADS": str(BOXES_THREADS),
    }  # fmt: skip
    return Unit(kernels.__name__, ("boxes.cu",), PORTABLE, defines)


def _boxed_units() -> list[Unit]:
    units = []
    for dtype, r in itertools.product(REAL, (8, 16, 32)):
        if boxes(r, dtype, 63, TABLE["H200"]):
            shape = boxed_shape(r, dtype)
            room = boxed_room(shape, dtype, 63, TABLE["H200"])
            units += [boxed_unit(dtype, shape=shape, room=room), boxes_unit(shape=shape, room=room)]
    return [*units, boxes_unit(wide=True, shape=shape, room=room)]


@functools.cache
def sweep_unit(dtype: str, nz: int, tile: SweepTile) -> Unit:
    """Return the unit of the matrix-free sweep: type, height of the sample, tile."""
    defines = {
        "REAL": REAL[dtype], "NZ": str(nz), "TY": str(tile.lines), "STEPS": str(tile.steps), "AHEAD": str(tile.ahead)
    }  # fmt: skip
    return Unit(kernels.__name__, ("stencil.cu",), PORTABLE, defines)


@functools.cache
def staged_unit(
    dtype: str,
    num_vectors: int,
    *,
    slots: int,
    code_bytes: int,
    value_bytes: int,
    dictionary: int = 0,
    work: str = "",
    mode: int = FULL,
    shape: StagedShape | None = None,
) -> Unit:
    """Return the unit of the staged kernel.

    Parameters
    ----------
    dtype : str
        Storage type of matrix and vectors.
    num_vectors : int
        R.
    slots, code_bytes, value_bytes : int
        Pages of V in shared memory; bytes of a tile's codes and values at most.
    dictionary : int
        Values in the table, 0 where each entry's value is stored.
    work : str
        Storage type whose precision the arithmetic has; `dtype` if empty.
    mode : int
        As for :func:`stored_unit`.
    shape : StagedShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.staged_shape`.
    """
    shape = shape or staged_shape(num_vectors, dtype)
    defines = {
        "REAL": REAL[dtype], "WORK": REAL[work or dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")),
        "LANES": "8", "COLUMNS": str(shape.pieces * shape.vector), "UNROLL": "1", "THREADS": str(shape.threads),
        "PRODUCERS": str(shape.producers), "BLOCKS": "1", "WIDE": "0", "SELL": "0", "MODE": str(mode),
        "EXACT": str(int(num_vectors % shape.columns == 0)), "PIECES": str(shape.pieces), "TILE": str(shape.tile),
        "DEPTH": str(shape.depth), "SLOTS": str(slots), "CODE_BYTES": str(code_bytes),
        "VALUE_BYTES": str(value_bytes), "DICTIONARY": str(dictionary),
    }  # fmt: skip
    return Unit(kernels.__name__, ("staged.cu",), BULK, defines)


@functools.cache
def inspector_unit(value_bytes: int, *, wide: bool = False) -> Unit:
    """Return the unit of the staged kernel's inspector (``inspector.cu``) for values of so many bytes."""
    defines = {"BYTES": str(value_bytes), "THREADS": str(INSPECTOR_THREADS), "WIDE": str(int(wide))}
    return Unit(kernels.__name__, ("inspector.cu",), BULK, defines)


@functools.cache
def vectors_unit(dtype: str, *, wide: bool = False) -> Unit:
    """Return the unit of what comes before and beside the recurrence (``vectors.cu``)."""
    defines = {"REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "WIDE": str(int(wide))}
    return Unit(kernels.__name__, ("vectors.cu",), PORTABLE, defines)


@functools.cache
def inspect_unit(dtype: str, *, wide: bool = False, lanes: int = 1) -> Unit:
    """Return the unit of the look at a matrix (``inspect.cu``), with so many lanes for a row."""
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "WIDE": str(int(wide)),
        "LANES": str(lanes),
    }  # fmt: skip
    return Unit(kernels.__name__, ("inspect.cu",), PORTABLE, defines)


@functools.cache
def packed_unit(dtype: str, *, wide: bool = False) -> Unit:
    """Return the unit of the products of Lanczos steps on groups of rows (``packed.cu``)."""
    defines = {
        "REAL": REAL[dtype], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "WIDE": str(int(wide)),
        "THREADS": str(PACKED_THREADS), "BLOCKS": str(PACKED_BLOCKS),
    }  # fmt: skip
    return Unit(kernels.__name__, ("packed.cu",), PORTABLE, defines)


# What CI compiles: every type, every shape, both formats, both sweeps; the study compiles what only it launches.
UNITS = (
    *(
        gather_unit(dtype, r, shape=gather_shape(r, dtype, n))
        for dtype in REAL
        for r in (1, 2, 7, 8, 32, 64)
        for n in (3, 7)
    ),
    *(
        gather_unit(
            dtype, r, shape=strip_shape(gather_shape(r, dtype, 8), r, 1415, np.dtype(dtype).itemsize, TABLE["H200"])
        )
        for dtype in REAL
        for r in (32, 64)
    ),
    gather_unit("complex128", 32, wide=True, shape=gather_shape(32, "complex128", 3)),
    gather_unit("complex128", 1, wide=True, shape=gather_shape(1, "complex128", 3)),
    *(
        slots_unit(dtype, r, n, shape=slot_shape(r, dtype, n, 10**6, TABLE["H200"]))
        for dtype in REAL
        for r in (1, 2, 8)
        for n in (3, 7)
    ),
    *(grouped_unit(dtype, r, shape=grouped_shape(r, dtype)) for dtype in REAL for r in (8, 16, 32)),
    grouped_unit("float64", 32, wide=True, shape=grouped_shape(32, "float64")),
    *_boxed_units(),
    *(vectors_unit(dtype) for dtype in REAL),
    *(inspect_unit(dtype, lanes=lanes) for dtype in REAL for lanes in (1, 32)),
    *(inspect_unit("complex128", wide=True, lanes=lanes) for lanes in (1, 32)),
    *(inspector_unit(value_bytes) for value_bytes in (4, 8, 16)),
    inspector_unit(16, wide=True),
    vectors_unit("complex128", wide=True),
    *(packed_unit(dtype) for dtype in REAL),
    packed_unit("complex128", wide=True),
    *(stored_unit("complex128", r) for r in (4, 8, 16, 31, 32, 64)),
    stored_unit("complex128", 1, layout="sell"),
    *(stored_unit(dtype, 1, layout="sell", shape=sell_shape(n, dtype)) for dtype in REAL for n in (3, 7)),
    stored_unit("complex128", 32, wide=True),
    *(stored_unit(dtype, 32) for dtype in ("complex64", "float64", "float32")),
    *(sweep_unit("complex128", 40, SweepTile(*tile)) for tile in ((12, 1, 1), (7, 2, 2))),
    sweep_unit("complex64", 40, SweepTile(7, 2, 2)),
    *(
        staged_unit(dtype, width, slots=96, code_bytes=576, value_bytes=4096)
        for dtype, width in (
            ("complex128", 32),
            ("complex128", 45),
            ("complex64", 32),
            ("float64", 40),
            ("float32", 64),
        )
    ),
)
