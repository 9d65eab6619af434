"""Groups of rows that share columns, V through shared memory (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.memory import free_bytes
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.boxed.groups import groups_of
from spectile.kpm.cuda.boxed.when import (
    BOXES_THREADS,
    MOST_GROUPED,
    BoxedRoom,
    BoxedShape,
    boxed_launch,
    boxed_room,
    boxed_shape,
    most_tiles,
)
from spectile.kpm.cuda.common import BULK, FULL, PACKAGE, REAL, mode_defines, number_defines
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.types import Array

#: What a kernel takes as the tensor map of V.
_MAP = np.dtype([("opaque", np.uint64, 16)])


@functools.cache
def boxed_unit(dtype: str, *, mode: int = FULL, shape: BoxedShape, room: BoxedRoom) -> Unit:
    """Return the unit of the step on groups (``kernel.cu``); `mode` is one of ``common.py``."""
    defines = number_defines(dtype) | mode_defines(mode) | {
        "DOUBLE": str(int(REAL[dtype] == "double")), "LANES": "8", "COLUMNS": str(shape.columns // 8),
        "UNROLL": str(shape.unroll), "THREADS": str(shape.threads), "BLOCKS": "1", "EXACT": "1",
        "TILE": str(shape.tile), "DEPTH": str(shape.depth), "BOX": str(shape.box), "SLOTS": str(room.slots),
        "LENGTH": str(room.length),
    }  # fmt: skip
    return Unit(PACKAGE, ("boxed/kernel.cu",), BULK, defines)


@functools.cache
def boxes_unit(*, wide: bool = False, shape: BoxedShape, room: BoxedRoom) -> Unit:
    """Return the unit of its inspector (``inspector.cu``)."""
    defines = {
        "TILE": str(shape.tile), "SLOTS": str(room.slots), "LENGTH": str(room.length), "WIDE": str(int(wide)),
        "BOX": str(shape.box), "PIECES": str(room.pieces), "THREADS": str(BOXES_THREADS),
    }  # fmt: skip
    return Unit(PACKAGE, ("boxed/inspector.cu",), PORTABLE, defines)


def halved(edges: Array, needed: Array, slots: int) -> Array | None:
    """Return the edges of tiles where those that need more boxes than there are slots become two.

    None where the columns of a single group lie in more boxes of adjacent rows than shared memory holds.
    """
    unfit, sizes = np.flatnonzero(needed > slots), np.diff(edges)
    if (sizes[unfit] == 1).any():
        return None
    return np.insert(edges, unfit + 1, edges[unfit] + sizes[unfit] // 2)


class BoxedOperator(StoredOperator):
    """A stored Hermitian matrix, canonical CSR of cupyx, whose adjacent rows couple the same columns.

    `first` is what :func:`spectile.kpm.cuda.boxed.groups.groups_of` returns of it.  The kernel's shape is that of
    `tuning`, or else :func:`spectile.kpm.cuda.boxed.when.boxed_shape`.
    """

    def __init__(self, matrix: Any, longest: int, first: Any = None, tuning: BoxedShape | None = None) -> None:
        super().__init__(matrix, longest)
        self.first = groups_of(matrix) if first is None else first
        self._shape = tuning
        self._tiles: dict[tuple[BoxedShape, BoxedRoom], tuple[Any, ...] | None] = {}

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return boxed_unit(str(self.dtype), mode=mode, shape=self._kernel(num_vectors), room=self._room(num_vectors))

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors on all rows; `rows` must be None, and :meth:`tiles` not.

        Raises MemoryError if the columns of too many tiles do not fit into shared memory, or the codes would take too
        much memory.
        """
        assert rows is None
        shape, room, tiled = self._kernel(num_vectors), self._room(num_vectors), self.tiles(num_vectors)
        if tiled is None:
            raise MemoryError("the columns of adjacent groups lie in more boxes than shared memory holds")
        places, starts, codes = tiled
        tiles = np.int32(len(starts))
        launched = boxed_launch(shape, room, len(starts), num_vectors, describe())

        def settings(v: Any) -> tuple[Any, ...]:
            return self._map(v, shape, room), tiles, np.int32(num_vectors)

        operands = places, starts, codes, self.data
        step = kernel(self.unit(num_vectors, mode), "boxed")
        return Step(step, launched, operands, settings, num_vectors, self.dtype, mode >= FULL)

    def _map(self, v: Any, shape: BoxedShape, room: BoxedRoom) -> Array:
        """Return the tensor map of V: in a box the rows' first pieces lie together, then their second ones."""
        from spectile.core.tensor_map import encode

        real = v.view(self.dtype.type(0).real.dtype)
        piece = shape.columns * self.dtype.itemsize // room.pieces
        pieces = real.reshape(len(v), -1, piece // real.itemsize).transpose(1, 0, 2)
        encoded = encode(pieces, (room.pieces, shape.box, piece // real.itemsize), piece)
        return np.frombuffer(encoded, _MAP).copy()

    def beyond(self, num_vectors: int) -> float | None:
        """Return 0, or None where the tiles do not fit."""
        return None if self.tiles(num_vectors) is None else 0.0

    def tiles(self, num_vectors: int) -> tuple[Any, ...] | None:
        """Return the groups' places, the boxes and the codes of all tiles for R vectors.

        None if the columns of too many tiles do not fit into shared memory, or the codes would take too much memory.
        """
        key = self._kernel(num_vectors), self._room(num_vectors)
        if key not in self._tiles:
            self._tiles[key] = self._tile(*key)
        return self._tiles[key]

    def _tile(self, shape: BoxedShape, room: BoxedRoom) -> tuple[Any, ...] | None:
        import cupy

        if room.slots == 0:
            return None
        groups = self.first.size - 1
        edges: Array | None = np.append(np.arange(0, groups, shape.tile, dtype=np.int32), np.int32(groups))
        most = most_tiles(shape, room, groups, self.data.nbytes)
        inspect = kernel(boxes_unit(wide=self.wide, shape=shape, room=room), "boxes_of")
        tile_bytes = shape.tile * (16 + 2 * (room.length + MOST_GROUPED)) + 4 * room.slots
        while edges is not None and edges.size - 1 <= most and edges.size * tile_bytes < free_bytes():
            tiles = edges.size - 1
            places = cupy.empty((tiles + 1, shape.tile, 2), np.int64)
            starts = cupy.empty((tiles, room.slots), np.int32)
            codes = cupy.empty((tiles, shape.tile, room.length + MOST_GROUPED), np.uint16)
            needed = cupy.empty(tiles, np.int32)
            blocks = min(ceil_div((tiles + 1) * 32, BOXES_THREADS), 8 * describe().multiprocessors)
            operands = self.first, self.indptr, self.indices, cupy.asarray(edges)
            inspect(Shape((blocks,), BOXES_THREADS), *operands, np.int32(tiles), places, starts, codes, needed)
            if int(needed.max()) <= room.slots:
                return places, starts, codes
            edges = halved(edges, needed.get(), room.slots)
        return None

    def _room(self, num_vectors: int) -> BoxedRoom:
        return boxed_room(self._kernel(num_vectors), self.dtype, self.longest, describe())

    def _kernel(self, num_vectors: int) -> BoxedShape:
        return self._shape or boxed_shape(num_vectors, self.dtype)
