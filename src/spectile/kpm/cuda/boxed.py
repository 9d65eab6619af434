"""Groups of rows that share columns, V through shared memory (``boxed.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.choose import (
    BOXES_THREADS,
    MOST_GROUPED,
    BoxedRoom,
    BoxedShape,
    boxed_launch,
    boxed_room,
    boxed_shape,
    most_tiles,
)
from spectile.kpm.cuda.grouped import groups_of
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.cuda.units import FULL, boxed_unit, boxes_unit
from spectile.kpm.types import Array

#: What a kernel takes as the tensor map of V.
_MAP = np.dtype([("opaque", np.uint64, 16)])


def halved(edges: Array, needed: Array, slots: int) -> Array:
    """Return the edges of tiles where those that need more boxes than there are slots become two.

    Raises
    ------
    MemoryError
        If a single group needs more.
    """
    unfit, sizes = np.flatnonzero(needed > slots), np.diff(edges)
    if (sizes[unfit] == 1).any():
        raise MemoryError("the columns of a group lie in more boxes of adjacent rows than shared memory holds")
    return np.insert(edges, unfit + 1, edges[unfit] + sizes[unfit] // 2)


class BoxedOperator(StoredOperator):
    """A stored Hermitian matrix in CSR form on the device, whose adjacent rows couple the same columns.

    Parameters
    ----------
    matrix : cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128; canonical.
    longest : int
        Entries of the longest row.
    first : cupy.ndarray or None
        What :func:`spectile.kpm.cuda.grouped.groups_of` returns of it.
    tuning : BoxedShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.boxed_shape`.
    """

    def __init__(self, matrix: Any, longest: int, first: Any = None, tuning: BoxedShape | None = None) -> None:
        super().__init__(matrix)
        self.first = groups_of(matrix) if first is None else first
        self._longest, self._shape = longest, tuning
        self._tiles: dict[tuple[BoxedShape, BoxedRoom], tuple[Any, ...]] = {}

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return boxed_unit(str(self.dtype), mode=mode, shape=self._kernel(num_vectors), room=self._room(num_vectors))

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors on all rows; `rows` must be None, and raises as :meth:`tiles`."""
        assert rows is None
        shape, room = self._kernel(num_vectors), self._room(num_vectors)
        places, starts, codes = self.tiles(num_vectors)
        tiles = np.int32(len(starts))
        launched = boxed_launch(shape, room, len(starts), num_vectors, describe())

        def settings(v: Any) -> tuple[Any, ...]:
            return self._map(v, shape, room), tiles, np.int32(num_vectors)

        operands = places, starts, codes, self.data
        step = kernel(self.unit(num_vectors, mode), "boxed")
        return Step(step, launched, operands, settings, num_vectors, self.dtype, mode == FULL)

    def _map(self, v: Any, shape: BoxedShape, room: BoxedRoom) -> Array:
        """Return the tensor map of V: in a box the rows' first pieces lie together, then their second ones."""
        from spectile.core.tensor_map import encode

        real = v.view(self.dtype.type(0).real.dtype)
        piece = shape.columns * self.dtype.itemsize // room.pieces
        pieces = real.reshape(len(v), -1, piece // real.itemsize).transpose(1, 0, 2)
        encoded = encode(pieces, (room.pieces, shape.box, piece // real.itemsize), piece)
        return np.frombuffer(encoded, _MAP).copy()

    def tiles(self, num_vectors: int) -> tuple[Any, ...]:
        """Return the groups' places, the boxes and the codes of all tiles for R vectors.

        Raises
        ------
        MemoryError
            If the columns of too many tiles do not fit into shared memory, or the codes would take too much memory.
        """
        import cupy

        shape, room = self._kernel(num_vectors), self._room(num_vectors)
        known = self._tiles.get((shape, room))
        if known is not None:
            return known
        if room.slots == 0:
            raise MemoryError("the values and columns of a tile of groups leave no shared memory for V")
        groups = self.first.size - 1
        edges = np.append(np.arange(0, groups, shape.tile, dtype=np.int32), np.int32(groups))
        most = most_tiles(shape, room, groups, self.data.nbytes)
        inspect = kernel(boxes_unit(wide=self.wide, shape=shape, room=room), "boxes_of")
        while True:
            tiles = edges.size - 1
            if tiles > most:
                raise MemoryError("the columns of adjacent groups lie in more boxes than shared memory holds")
            places = cupy.empty((tiles + 1, shape.tile, 2), np.int64)
            starts = cupy.empty((tiles, room.slots), np.int32)
            codes = cupy.empty((tiles, shape.tile, room.length + MOST_GROUPED), np.uint16)
            needed = cupy.empty(tiles, np.int32)
            blocks = min(-(-(tiles + 1) * 32 // BOXES_THREADS), 8 * describe().multiprocessors)
            operands = self.first, self.starts[0], self.indices, cupy.asarray(edges)
            inspect(Shape((blocks,), BOXES_THREADS), *operands, np.int32(tiles), places, starts, codes, needed)
            if int(needed.max()) <= room.slots:
                break
            edges = halved(edges, needed.get(), room.slots)
        self._tiles[shape, room] = places, starts, codes
        return self._tiles[shape, room]

    def _room(self, num_vectors: int) -> BoxedRoom:
        return boxed_room(self._kernel(num_vectors), self.dtype, self._longest, describe())

    def _kernel(self, num_vectors: int) -> BoxedShape:
        return self._shape or boxed_shape(num_vectors, self.dtype)
