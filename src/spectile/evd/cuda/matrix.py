"""Matrices in device memory by address and leading dimension.

Every matrix is column-major, because the products run on sub-matrices.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.units import MATRIX
from spectile.evd.types import Scalar, out_of_range, scalar_of

TILE = 32  # rows and columns that a block of matrix.cu transposes


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in device memory: where element (0, 0) is, the leading dimension, and what owns it."""

    pointer: int
    ld: int
    itemsize: int
    owner: Any

    def at(self, row: int, column: int) -> int:
        """Return the address of an element."""
        return self.pointer + (row + column * self.ld) * self.itemsize

    @property
    def scalar(self) -> Scalar:
        """The dtype."""
        return scalar_of(self.owner.dtype)


def empty_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """Allocate, with a leading dimension that keeps columns 128-byte aligned."""
    import cupy

    itemsize = np.dtype(dtype).itemsize
    step = 128 // itemsize
    ld = max(step, -(-rows // step) * step)
    owner = cupy.empty(ld * max(columns, 1), dtype)
    return Matrix(address(owner), ld, itemsize, owner)


def zero_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """As `empty_matrix`, filled with zeros, padding included."""
    matrix = empty_matrix(rows, columns, dtype)
    matrix.owner.fill(0)
    return matrix


def as_array(matrix: Matrix, rows: int, columns: int) -> Any:
    """Return the leading part as a CuPy array."""
    import cupy

    strides = (matrix.itemsize, matrix.ld * matrix.itemsize)
    start = matrix.owner.data + (matrix.pointer - address(matrix.owner))
    return cupy.ndarray((rows, columns), matrix.owner.dtype, memptr=start, strides=strides)


def triangle_shape(n: int, scalar: Scalar, held: int = 1) -> Shape:
    """Launch of a kernel that transposes a triangle of order n in square tiles, so many of which it holds at a time."""
    tiles = -(-n // TILE)
    return Shape((tiles, tiles), 256, held * TILE * (TILE + 1) * scalar.itemsize)


def symmetrize(a: Matrix, start: int, n: int) -> None:
    """Fill the upper triangle of A[start:start+n, start:start+n] from the lower one."""
    kernel(MATRIX[a.scalar.name], "symmetrize")(
        triangle_shape(n, a.scalar), np.uintp(a.at(start, start)), np.int64(a.ld), np.int32(n)
    )


def load_triangle(array: Any, lower: bool, out: int, ldo: int, word: int, *, wide: bool = False) -> None:
    """Copy one triangle of `array`, shape (n, n), into the lower triangle of `out`, with zeros for NaN and infinity.

    `out` is the address of a column-major matrix, with `wide` in double precision, and `word` that of an int32, 0
    before and then what `shift_of` and `is_finite` understand.
    """
    n, size, scalar = array.shape[0], array.itemsize, scalar_of(array.dtype)
    along_i, along_j = array.strides if lower else array.strides[::-1]
    kernel(MATRIX[scalar.name], "load_wide" if wide else "load_triangle")(
        triangle_shape(n, scalar),
        *(np.uintp(address(array)), np.int64(along_i // size), np.int64(along_j // size), np.int32(n)),
        *(np.int32(not lower), np.uintp(out), np.int64(ldo), np.uintp(word)),
    )


#: Of matrix.cu: what a word is larger than the exponent of the largest part, and the least of a matrix not finite.
BIAS, NOT_FINITE = 2048, 100_000
#: Matrices are brought below 2**TARGET, but for those within 2**SLACK of it.
TARGET, SLACK = 0, 16


class Word:
    """The word of a matrix on the device, int32, 0 before it is loaded, which the host reads while that goes on."""

    def __init__(self) -> None:
        import cupy

        self.device = cupy.zeros(1, np.int32)
        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._value = ctypes.c_int32.from_address(self._memory.ptr)
        self._copied = cupy.cuda.Event(disable_timing=True)

    def fetch(self) -> None:
        """Copy it to the host, in the order of the current stream."""
        import cupy

        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
        runtime.memcpyAsync(
            *(self._memory.ptr, address(self.device), self.device.nbytes), *(runtime.memcpyDeviceToHost, stream.ptr)
        )
        self._copied.record(stream)

    def get(self) -> int:
        """Wait for the copy and return it."""
        self._copied.synchronize()
        return self._value.value

    def clear(self) -> None:
        """Set it to 0."""
        import cupy

        cupy.cuda.runtime.memsetAsync(address(self.device), 0, self.device.nbytes, cupy.cuda.get_current_stream().ptr)


def is_finite(word: int) -> bool:
    """Return whether a matrix of this word holds neither NaN nor infinity."""
    return word < NOT_FINITE


def exponent_of(word: int) -> int:
    """Return the least exponent of a power of two that all parts of a finite matrix are below; 0 for zeros."""
    return word - BIAS if word else 0


def shift_of(word: int, target: int = TARGET, slack: int = SLACK) -> int:
    """Return by which power of two `scale_triangle` has multiplied a matrix of this word: an even number."""
    shift = target - exponent_of(word)
    return 0 if word == 0 or not is_finite(word) or abs(shift) <= slack else shift & ~1


def scale_triangle(name: str, a: int, lda: int, n: int, word: int, target: int = TARGET, slack: int = SLACK) -> None:
    """Multiply the lower triangle of a matrix of dtype `name` with 2**shift_of(word), without a word to the host.

    The largest part is then below 2**target, and at least a quarter of it; within 2**slack of it nothing is done.
    """
    kernel(MATRIX[name], "scale_triangle")(
        columns_shape(n), *(np.uintp(a), np.int64(lda), np.int32(n), np.uintp(word), np.int32(target), np.int32(slack))
    )


def parts_shape(count: int) -> Shape:
    """Launch of the kernels that take a list of numbers."""
    return Shape((max(1, min(-(-count // 256), 2048)),), 256)


def near_one(array: Any) -> int | None:
    """Multiply a contiguous array by the power of two that brings its largest part near 1.

    Returns the exponent, or None where a part is NaN or infinity.
    """
    import cupy

    scalar = scalar_of(array.dtype)
    word, count = cupy.zeros(1, np.int32), array.size * scalar.parts
    numbers = parts_shape(count), np.uintp(address(array)), np.int64(count)
    kernel(MATRIX[scalar.name], "find_word")(*numbers, word)
    found = int(word.item())
    if not is_finite(found):
        return None
    shift = shift_of(found)
    if shift:
        kernel(MATRIX[scalar.name], "scale_parts")(*numbers, np.int32(shift))
    return shift


def widened(array: Any) -> Any:
    """Return an array in double precision, exactly: CuPy's conversion takes small numbers of float32 for 0."""
    import cupy

    if array.dtype.char not in "fF" or not array.size:
        return array.astype(np.promote_types(array.dtype, np.float64), copy=False)
    scalar, given = scalar_of(array.dtype), cupy.ascontiguousarray(array)
    out, count = cupy.empty(given.shape, scalar.wide), given.size * scalar.parts
    kernel(MATRIX[scalar.real], "widen")(parts_shape(count), np.uintp(address(given)), np.int64(count), out)
    return out


def columns_shape(n: int) -> Shape:
    """Launch of `scale_triangle`."""
    return Shape((min(n, 1024),), 256)


def values_shape(n: int) -> Shape:
    """Launch of `scale_values`."""
    return Shape((-(-n // 256),), 256)


def scaled_values(w: Any, exponent: int, scalar: Scalar, word: Any = None) -> Any:
    """Return 2**exponent w, of float64, in the real dtype of `scalar`; with a word of `Word` over 2**shift_of(word)."""
    import cupy

    out = cupy.empty(w.shape, scalar.real)
    if w.size:
        kernel(MATRIX[scalar.name], "scale_values")(
            *(values_shape(w.size), w, np.int32(w.size), np.float64(1.0), np.int32(exponent)),
            *(np.uintp(0) if word is None else word, np.int32(TARGET), np.int32(SLACK), out),
        )
    return out


#: A power of two that no number of any dtype reaches.
EVER = 2**31


def require_in_range(w: Any, below: int) -> Any:
    """Return eigenvalues in their own dtype, which are below 2**below, or raise OverflowError where one is infinite.

    Where they may be too large, and only there, the host waits for them.
    """
    import cupy

    if below >= np.finfo(w.dtype).maxexp and not bool(cupy.isfinite(w).all()):
        raise out_of_range(w.dtype)
    return w
