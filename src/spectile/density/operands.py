"""Matrices of a caller: tile matrices as they are, arrays and sparse matrices stored in tiles."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from spectile.core.arrays import host_array, on_device, to_device
from spectile.core.options import kind_of, number
from spectile.tiles import TileMatrix
from spectile.tiles.grid import GridMatrix
from spectile.tiles.layout import offsets
from spectile.tiles.types import DTYPES, held_dtype, roundoff

Tiles = TypeVar("Tiles", bound=TileMatrix | GridMatrix)


def hermitian_operand(name: str, given: Any, block: Any, permutation: Any) -> TileMatrix | GridMatrix:
    """Return the Hermitian part of a matrix as `in_tiles` does, a dense one on a GPU with room for every tile."""
    if block is None and not isinstance(given, TileMatrix) and not on_device(given):
        small = in_tiles(name, given, 16, permutation, hermitian=True)
        # So few in a row of F squared stay in a cache, and do less arithmetic.
        size = small.layout.grid[0]
        if size <= 12 or small.layout.squared().sum() <= 12 * size:
            return small
    block = 32 if block is None else block
    a = to_device(given, name)[0] if on_device(given) and not hasattr(given, "tocoo") else None
    if a is not None and a.ndim == 2 and len(set(a.shape)) == 1 and a.dtype.name in DTYPES:
        import cupy

        made = GridMatrix.of_dense(cupy.ascontiguousarray(a), offsets("block", a.shape[0], block), permutation, name)
        if made is not None:
            _refuse_skew(name, made[1], made[0])
            return made[0]
    return in_tiles(name, given, block, permutation, hermitian=True)


def _refuse_skew(name: str, norm: float, x: TileMatrix | GridMatrix) -> None:
    """Raise where half the difference from the transpose is more than rounding may leave."""
    if norm > 100 * x.shape[0] * roundoff(x.dtype) * x.norm():
        raise ValueError(
            f"{name} is not Hermitian, half the difference from its adjoint has norm {norm:.3g}: "
            f"pass ({name} + {name}.conj().T) / 2 if that is what you mean"
        )


def in_tiles(name: str, given: Any, block: Any, permutation: Any = None, hermitian: bool = False) -> TileMatrix:
    """Return a matrix in tiles of `block` rows; with `hermitian` its Hermitian part, what it is off by as its error.

    Raises
    ------
    TypeError, ValueError
        As `TileMatrix.from_dense`, or if it is not Hermitian to rounding but should be.
    """
    if isinstance(given, TileMatrix):
        if hermitian and not given.hermitian:
            raise ValueError(f"{name} is not stored as Hermitian: make it with hermitian=True")
        return given
    sparse = hasattr(given, "tocoo")
    if not sparse:
        given = to_device(given, name)[0] if on_device(given) else host_array(name, given)
    held_dtype(name, given.dtype)
    if given.ndim != 2 or (hermitian and given.shape[0] != given.shape[1]):
        raise ValueError(f"{name} has shape {given.shape}: pass a {'square ' * hermitian}matrix")
    if np.ndim(block) and given.shape[0] != given.shape[1]:
        raise ValueError(f"block has the rows of each tile, and {name} is not square: pass one number of rows")
    rows, columns = (np.diff(offsets("block", length, block)) for length in given.shape)
    make = TileMatrix._of_sparse if sparse else TileMatrix._of_dense
    whole = make(name, given, rows, columns, permutation=permutation)
    if not hermitian:
        return whole
    # What rounding left of a Fock matrix that was summed in two orders is part of its error.
    part = whole.hermitian_part()
    _refuse_skew(name, part.error.fro, part)
    return part


def hermitian(name: str, given: Any) -> TileMatrix:
    """Return a tile matrix that is stored as Hermitian, or raise where it is none."""
    if not isinstance(given, TileMatrix):
        raise TypeError(f"{name} is {kind_of(given)}: pass a TileMatrix, as TileMatrix.from_dense makes it")
    return in_tiles(name, given, None, hermitian=True)


def within_range(name: str, x: Tiles, *, small: bool = True) -> Tiles:
    """Return a matrix whose squares its dtype holds, or raise; those of a `small` one may be lost, and no digits."""
    held, norm = np.finfo(x.dtype), x.norm()
    least, most = float(held.tiny) / float(held.eps), math.sqrt(float(held.max) * float(held.eps))
    if norm > most or 0 < norm < (least if small else math.sqrt(least)):
        raise ValueError(f"{name} has norm {norm:.3g}, and {x.dtype} does not hold its squares: scale {name}")
    return x


def positive(name: str, value: Any) -> float:
    """Return a positive finite number, or raise where it is none."""
    value = number(name, value)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}: pass a positive number")
    return value
