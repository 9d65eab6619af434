"""CUDA units of KPM: which kernel, of which type and shape, a block of R vectors takes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from spectile.core.compile import Unit

ARCHS = ("sm_80", "sm_90a", "sm_100")
BULK_ARCHS = ("sm_90a", "sm_100")
# Height of SELL chunks: rows of a warp when a thread has a row of its own.
SELL_CHUNK = 32
REAL = {np.dtype("complex128"): "double", np.dtype("complex64"): "float"} | {
    np.dtype("float64"): "double", np.dtype("float32"): "float"
}  # fmt: skip
PLAIN, NO_DOTS, FULL = 0, 1, 2


@functools.cache
def stored_unit(
    dtype: str,
    num_vectors: int,
    *,
    layout: str = "csr",
    wide: bool = False,
    mode: int = FULL,
    tuning: tuple[int, ...] = (),
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
    tuning : (lanes, columns, unroll, threads, blocks) or ()
        Shape of the kernel; empty takes :func:`stored_shape`.
    """
    lanes, columns, unroll, threads, blocks = tuning or stored_shape(num_vectors)
    defines = {
        "REAL": REAL[np.dtype(dtype)], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(lanes),
        "COLUMNS": str(columns), "UNROLL": str(unroll), "THREADS": str(threads), "BLOCKS": str(blocks),
        "WIDE": str(int(wide)), "SELL": str(SELL_CHUNK if layout == "sell" else 0),
        "MODE": str(mode), "EXACT": str(int(num_vectors % (lanes * columns) == 0)),
    }  # fmt: skip
    return Unit(__package__, ("block.cu", "rows.cu"), ARCHS, defines)


# Widest block vector and the shape that was fastest for it on an H200 (docs/performance/kpm.md).
_SHAPES = (
    (1, (1, 1, 7, 768, 1)),
    (2, (2, 1, 4, 512, 2)),
    (4, (4, 1, 4, 1024, 1)),
    (8, (8, 1, 4, 512, 2)),
    (16, (8, 2, 2, 1024, 1)),
    (32, (8, 4, 4, 512, 1)),
)


def stored_shape(num_vectors: int) -> tuple[int, int, int, int, int]:
    """Return (threads a row, vectors a thread, entries in flight, threads a block, blocks a multiprocessor)."""
    for most, shape in _SHAPES:
        if num_vectors <= most:
            return shape
    # Two columns a thread and passes of 32 vectors: wider ones leave the L1 cache (measured).
    return 16, 2, 4, 640, 1


@functools.cache
def sweep_unit(real: str, nz: int, lines: int, ahead: int, steps: int) -> Unit:
    """Return the unit of the matrix-free sweep: type, height of the sample, lines of a tile, planes ahead, steps."""
    defines = {"REAL": real, "NZ": str(nz), "TY": str(lines), "STEPS": str(steps), "AHEAD": str(ahead)}
    return Unit(__package__, ("stencil.cu",), ARCHS, defines)


# Tiles of a narrow block have many pages: a tile costs about 0.25 us, however short its rows are (measured).
_STAGED = ((1, (16, 4, 16, 8)), (2, (12, 4, 12, 8)), (4, (4, 5, 12, 4)))


class StagedShape(NamedTuple):
    """Shape of ``staged.cu`` for a width of the block vector.

    Attributes
    ----------
    vector : int
        Numbers of 16 bytes.
    pieces : int
        16-byte pieces of a row that a thread holds.
    tile, depth : int
        Pages of a tile, tiles in flight or at work.
    workers, producers : int
        Warps that compute, and warps that issue copies.
    """

    vector: int
    pieces: int
    tile: int
    depth: int
    workers: int
    producers: int

    @property
    def columns(self) -> int:
        """Vectors of a block."""
        return 8 * self.pieces * self.vector

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in shared memory."""
        return 128 * self.pieces

    @property
    def groups(self) -> int:
        """Tiles at work."""
        return self.workers // self.tile


def staged_shape(num_vectors: int, dtype: Any) -> StagedShape:
    """Return the shape that was fastest for R vectors on an H200 (docs/performance/kpm.md)."""
    vector = 16 // np.dtype(dtype).itemsize
    pieces, shape = next((each for each in _STAGED if num_vectors <= 8 * each[0] * vector), _STAGED[-1])
    return StagedShape(vector, pieces, *shape)


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
        Shape of the kernel; None takes :func:`staged_shape`.
    """
    shape = shape or staged_shape(num_vectors, dtype)
    defines = {
        "REAL": REAL[np.dtype(dtype)], "WORK": REAL[np.dtype(work or dtype)],
        "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": "8", "COLUMNS": str(shape.pieces * shape.vector),
        "UNROLL": "1", "THREADS": str(32 * (shape.workers + shape.producers)), "PRODUCERS": str(shape.producers),
        "BLOCKS": "1", "WIDE": "0", "SELL": "0", "MODE": str(mode),
        "EXACT": str(int(num_vectors % shape.columns == 0)), "PIECES": str(shape.pieces),
        "TILE": str(shape.tile), "DEPTH": str(shape.depth), "SLOTS": str(slots), "CODE_BYTES": str(code_bytes),
        "VALUE_BYTES": str(value_bytes), "DICTIONARY": str(dictionary),
    }  # fmt: skip
    return Unit(__package__, ("block.cu", "staged.cu"), BULK_ARCHS, defines)


def sum_of_partials(unit: Unit, partial: Any) -> Any:
    """Return ``total(etas)``, which sums the blocks' scalar products, shape (blocks, 2, R), in their order."""
    kernel, blocks, size = unit.function("sum_partials"), len(partial), partial[0].size

    def total(etas: Any) -> None:
        kernel((-(-size // 64),), (64,), (partial, etas, np.int32(blocks), np.int32(size)))

    return total


# What CI compiles: every type, every shape, both formats, every mode, both sweeps.
UNITS = (
    *(stored_unit("complex128", r) for r in (4, 8, 16, 31, 32, 64)),
    stored_unit("complex128", 1, layout="sell"),
    *(stored_unit("complex128", 32, mode=mode) for mode in (PLAIN, NO_DOTS)),
    stored_unit("complex128", 32, wide=True),
    *(stored_unit(dtype, 32) for dtype in ("complex64", "float64", "float32")),
    *(sweep_unit("double", 40, *tile) for tile in ((12, 1, 1), (7, 2, 2))),
    sweep_unit("float", 40, 7, 2, 2),
    *(
        staged_unit(
            dtype, width, slots=96, code_bytes=576, value_bytes=0 if table else 4096, dictionary=table, work=work,
            mode=mode,
        )
        for dtype, width, table, work, mode in (
            ("complex128", 32, 0, "", FULL), ("complex128", 32, 0, "", NO_DOTS), ("complex128", 32, 0, "", PLAIN),
            ("complex128", 45, 16, "", FULL), ("complex64", 32, 0, "complex128", FULL), ("complex64", 32, 0, "", FULL),
            ("float64", 40, 0, "", FULL), ("float32", 64, 2, "", FULL),
        )
    ),
)  # fmt: skip
