"""The stored matrix on Hopper and later: V staged through shared memory by an inspector's plan (``kernel.cu``)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.common import BULK, FULL, PACKAGE, mode_defines, number_defines
from spectile.kpm.cuda.staged.inspector import Plan, lattice_of, likeness_of, plan, reach_of
from spectile.kpm.cuda.staged.when import (
    PAGE,
    StagedRoom,
    StagedShape,
    staged_launch,
    staged_room,
    staged_shapes,
    step_seconds,
    weighed,
)
from spectile.kpm.cuda.step import Step
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.operators.protocol import namespace
from spectile.kpm.types import Array

# Share of entries that rows of a page and of the next one have in like places, below which no plan is made.
_ALIKE = 0.5
# Pages that adjacent ones in flight name, over the slots, from which no plan is sought.
_STRIPS = 1.5
#: Rows to compute, each (start, stop).
Runs = tuple[tuple[int, int], ...]


@functools.cache
def staged_unit(
    dtype: str, num_vectors: int, *, slots: int, code_bytes: int, value_bytes: int, mode: int = FULL, shape: StagedShape
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
    mode : int
        One of ``common.py``.
    shape : StagedShape
        Shape of the kernel.
    """
    defines = number_defines(dtype) | mode_defines(mode) | {
        "LANES": "8", "COLUMNS": str(shape.pieces * shape.vector), "UNROLL": "1", "THREADS": str(shape.threads),
        "PRODUCERS": str(shape.producers), "BLOCKS": "1",
        "EXACT": str(int(num_vectors % shape.columns == 0)), "PIECES": str(shape.pieces), "TILE": str(shape.tile),
        "DEPTH": str(shape.depth), "SLOTS": str(slots), "CODE_BYTES": str(code_bytes),
        "VALUE_BYTES": str(value_bytes),
    }  # fmt: skip
    return Unit(PACKAGE, ("staged/kernel.cu",), BULK, defines)


class Planned(NamedTuple):
    """A plan for R vectors, ready to launch."""

    plan: Plan  #: The schedule.
    room: StagedRoom  #: How rows and shared memory are divided.
    launched: Shape  #: The launch.
    walks: int  #: How many parts of V are walked through: one where all workers are on a wave together.
    arrays: list[Any]  #: The schedule and the values, as the kernel takes them.


class StagedOperator(StoredOperator):
    """A stored Hermitian matrix whose kernel stages V through shared memory.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N) or (N, K)
        float32, float64, complex64 or complex128.  Columns from N on are rows of V that others compute; N is then a
        multiple of four.
    tuning : StagedShape or None
        Shape of the kernel; None takes one of :func:`spectile.kpm.cuda.staged.when.staged_shapes`.

    Raises
    ------
    ValueError
        If the matrix has own rows that are no multiple of four beside rows of others.
    """

    def __init__(self, matrix: Any, tuning: StagedShape | None = None, longest: int | None = None) -> None:
        super().__init__(matrix, longest)
        self.num_columns = int(matrix.shape[1])
        if self.num_columns > self.num_rows and self.num_rows % PAGE:
            raise ValueError(f"{self.num_rows} own rows and rows of others beside them: give a multiple of {PAGE}")
        self._tuning = tuning
        self._plans: dict[tuple[StagedShape, int, Runs], Planned | None] = {}
        self._shapes: dict[int, StagedShape] = {}

    def beyond(self, num_vectors: int) -> float | None:
        """Return the seconds of a step beyond those predicted, by its plan; None where there is or is sought none.

        The shape is the one of least cost whose tiles in flight find room.
        """
        if self._likeness < _ALIKE:
            return None
        problem, device = self.problem(num_vectors)._replace(longest=self.longest), describe()
        shapes = [self._tuning] if self._tuning else staged_shapes(num_vectors, self.dtype, self.longest)
        costs = {shape: step_seconds(problem, device, shape) for shape in shapes}
        for shape in sorted(costs, key=costs.__getitem__):
            in_flight = self._reach[min(shape.tile * shape.depth, len(self._reach) - 1)]
            self._shapes[num_vectors] = shape
            # Strips of lines hold fewer than adjacent pages name.
            if in_flight <= _STRIPS * self._room(shape, num_vectors).slots and (made := self.planned(num_vectors)):
                apart = made.walks * min(self.lattice[0], made.plan.pages // made.walks)
                count = weighed(made.plan.reuse, apart, num_vectors * self.dtype.itemsize, device)
                return step_seconds(problem, device, shape, made.plan.reuse, count) - min(costs.values())
        return None

    @functools.cached_property
    def _reach(self) -> Array:
        import cupy

        return reach_of(self.indptr, self.indices, cupy)

    @functools.cached_property
    def lattice(self) -> tuple[int, int]:
        """Pages of a wave and of a line."""
        import cupy

        return lattice_of(self.indptr, self.indices, cupy)

    @functools.cached_property
    def _likeness(self) -> float:
        import cupy

        return likeness_of(self.indptr, self.indices, cupy)

    def planned(self, num_vectors: int, runs: Runs = ()) -> Planned | None:
        """Return the plan for R vectors; None if the tiles in flight couple more rows than shared memory holds.

        `runs` names the rows to compute, each (start, stop), multiples of four; all rows if empty.
        """
        shape = self._kernel(num_vectors)
        key = (shape, -(-num_vectors // shape.columns), runs)
        if key not in self._plans:
            self._plans[key] = self._plan(shape, num_vectors, runs)
        return self._plans[key]

    def _plan(self, shape: StagedShape, num_vectors: int, runs: Runs) -> Planned | None:
        parts = [(start // PAGE, stop // PAGE) for start, stop in runs]
        pages = sum(stop - start for start, stop in parts) or -(-self.num_rows // PAGE)
        wave, line = self.lattice
        room = self._room(shape, num_vectors, pages)
        turns, walks = room.turns, 1
        if not (4 * room.workers * turns <= wave <= pages // 2):
            wave, line, turns, walks = pages, 0, 1, room.workers
        made = room.slots > 0 and plan(
            self.indptr, self.indices, self.data, wave_pages=wave, line_pages=line, workers=room.workers,
            turns=turns, slots=room.slots, tile=shape.tile, depth=shape.depth, groups=shape.groups, runs=parts,
            num_columns=self.num_columns,
        )  # fmt: skip
        if not made:
            return None
        arrays = [made.tiles, made.first, made.loads, made.codes, made.values]
        return Planned(made, room, staged_launch(shape, room, num_vectors), walks, arrays)

    def _room(self, shape: StagedShape, num_vectors: int, pages: int = 0) -> StagedRoom:
        """Return how rows and shared memory are divided, where so many pages are computed; all if zero."""
        pages, longest, wave = pages or -(-self.num_rows // PAGE), max(1, self.longest), self.lattice[0]
        return staged_room(shape, num_vectors, pages, longest, wave, self.dtype.itemsize, describe())

    def _ready(self, num_vectors: int, runs: Runs) -> Planned:
        made = self.planned(num_vectors, runs)
        if made is None:
            raise MemoryError("the rows of this matrix need more of V at a time than shared memory holds")
        return made

    def _kernel(self, num_vectors: int) -> StagedShape:
        if num_vectors not in self._shapes:
            self.beyond(num_vectors)
            first = self._tuning or staged_shapes(num_vectors, self.dtype, self.longest)[0]
            self._shapes.setdefault(num_vectors, first)
        return self._shapes[num_vectors]

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block of R vectors: (N, R), or (chunks, N, chunk), of which a page is one copy."""
        chunk = self._kernel(num_vectors).columns
        whole = num_vectors > chunk and num_vectors % chunk == 0
        return (num_vectors // chunk, self.num_rows, chunk) if whole else (self.num_rows, num_vectors)

    def to_block(self, vectors: Any, width: int | None = None) -> Any:
        """Return vectors of shape (N, R) as a block on the device, `width` wide with zeros behind them."""
        vectors = self._padded(vectors, width)
        shape = self.shape(vectors.shape[1])
        if len(shape) == 2:
            return super().to_block(vectors)
        chunks = namespace(vectors).ascontiguousarray(vectors.reshape(shape[1], shape[0], shape[2]).swapaxes(0, 1))
        return super().to_block(chunks)

    def from_block(self, block: Any, num_vectors: int) -> Any:
        """Return the first R vectors of a block, shape (N, R), where the block is."""
        whole = block if block.ndim == 2 else block.swapaxes(0, 1).reshape(self.num_rows, -1)
        return whole[:, :num_vectors]

    def unit(self, num_vectors: int, mode: int = FULL, runs: Runs = ()) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        room = self._ready(num_vectors, runs).room
        return staged_unit(
            str(self.dtype), num_vectors, slots=room.slots, code_bytes=room.code_bytes, value_bytes=room.value_bytes,
            mode=mode, shape=self._kernel(num_vectors),
        )  # fmt: skip

    def launcher(
        self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None, runs: Runs = ()
    ) -> Step:
        """Return the step of R vectors.

        `rows` or `runs` name the rows to compute, as for :meth:`planned`.  Block vectors have :meth:`shape`, or (N, R).

        Raises MemoryError if there is no plan.
        """
        runs = runs or (() if rows is None else (rows,))
        made, unit = self._ready(num_vectors, runs), self.unit(num_vectors, mode, runs)
        chunk, columns, width = self._kernel(num_vectors).columns, np.int64(self.num_columns), np.int32(num_vectors)

        def settings(v: Any) -> tuple[Any, ...]:
            return columns, width, np.int32(v.shape[-1]), np.int64(v[0].size if v.ndim == 3 else chunk)

        return Step(
            kernel(unit, "staged"), made.launched, tuple(made.arrays), settings, num_vectors, self.dtype, mode >= FULL
        )
