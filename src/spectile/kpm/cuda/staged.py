"""The stored matrix on Hopper and later: V staged through shared memory by an inspector's plan (``staged.cu``)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spectile.core.compile import Unit
from spectile.kpm.cuda.staging import PAGE, Plan, lattice_of, plan
from spectile.kpm.cuda.stored import StoredOperator
from spectile.kpm.cuda.units import FULL, StagedShape, staged_shape, staged_unit, sum_of_partials

#: Rows to compute, each (start, stop).
Runs = tuple[tuple[int, int], ...]
#: Values of a table, zero among them.
MOST_KINDS = 256
#: Slots that a code can name: 16 bits are a slot and one of its four rows.
MOST_SLOTS = 2**14 - 1
_STATIC_BYTES = 1024  # barriers, and what the driver keeps of a block's shared memory


def stages(num_vectors: int, dtype: Any) -> bool:
    """Return whether a block of R vectors goes through shared memory (``staged.cu``) on this device.

    Bulk copies need Hopper or later and rows of whole 16 bytes; rows of less than 128 are faster through the caches.
    """
    from spectile.core.device import describe

    row = num_vectors * np.dtype(dtype).itemsize
    return describe().compute_capability[0] >= 9 and row >= 128 and row % 16 == 0


class Planned(NamedTuple):
    """A plan for R vectors, ready to launch.

    Attributes
    ----------
    plan : Plan
        The schedule.
    slots : int
        Pages of V in shared memory.
    code_bytes, value_bytes : int
        Bytes of a stage's codes and values.
    workers : int
        Thread blocks that share the rows.
    arrays : list of cupy.ndarray
        The schedule and the values, as the kernel takes them.
    """

    plan: Plan
    slots: int
    code_bytes: int
    value_bytes: int
    workers: int
    arrays: list[Any]


class StagedOperator(StoredOperator):
    """A stored Hermitian matrix whose kernel stages V through shared memory.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N) or (N, K)
        float32, float64, complex64 or complex128.  Columns from N on are rows of V that others compute; N is then a
        multiple of four.
    dictionary : bool
        Store a number of the value in a table instead of each value.
    work : dtype or None
        Type of the arithmetic, if it is not the matrix's own.
    tuning : StagedShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.units.staged_shape`.

    Raises
    ------
    ValueError
        If the matrix has too many distinct values for a table, or own rows that are no multiple of four beside rows of
        others.
    """

    def __init__(
        self,
        matrix: Any,
        dictionary: bool = False,
        work: Any = None,
        tuning: StagedShape | None = None,
    ) -> None:
        import cupy

        self.num_rows, self.dtype, self.layout = int(matrix.shape[0]), np.dtype(matrix.dtype), "csr"
        self.num_columns = int(matrix.shape[1])
        if self.num_columns > self.num_rows and self.num_rows % PAGE:
            raise ValueError(f"{self.num_rows} own rows and rows of others beside them: give a multiple of {PAGE}")
        self.work, self._tuning, self.wide = np.dtype(work or matrix.dtype), tuning, False
        self.host = tuple(each.get() if hasattr(each, "get") else each for each in (matrix.indptr, matrix.indices))
        self.lattice = lattice_of(*self.host)
        self.data = cupy.asarray(matrix.data)
        self.table, self.kinds = cupy.zeros(1, self.dtype), np.empty(0, np.uint16)
        if dictionary:
            values, kinds = _kinds(self.data)
            self.table, self.kinds = values, kinds.get()
        self._plans: dict[tuple[StagedShape, int, Runs], Planned] = {}

    def planned(self, num_vectors: int, runs: Runs = ()) -> Planned:
        """Return the plan for R vectors.

        `runs` names the rows to compute, each (start, stop), multiples of four; all rows if empty.

        Raises
        ------
        MemoryError
            If the tiles in flight couple more rows than shared memory holds.
        """
        import cupy

        from spectile.core.device import describe

        shape = self._kernel(num_vectors)
        chunks = -(-num_vectors // shape.columns)
        key = (shape, chunks, runs)
        if key not in self._plans:
            indptr, indices = self.host
            parts = [(start // PAGE, stop // PAGE) for start, stop in runs]
            pages = sum(stop - start for start, stop in parts) or -(-self.num_rows // PAGE)
            workers = min(max(1, describe().multiprocessors // chunks), pages)
            longest = int(np.diff(indptr).max(initial=1))
            code_bytes = shape.tile * (16 + -(-longest // 4) * 32 * (2 if self.kinds.size else 1))
            value_bytes = 0 if self.kinds.size else shape.tile * PAGE * longest * self.dtype.itemsize
            left = describe().shared_bytes - _STATIC_BYTES - shape.depth * (code_bytes + value_bytes)
            left -= self.table.nbytes if self.kinds.size else 0
            slots = min(left // (PAGE * shape.row_bytes), MOST_SLOTS)
            wave, line = self.lattice
            # Three planes of a part, and what lies around it, fit into the slots.
            turns = max(1, math.ceil(wave / (workers * 0.3 * max(1, slots))))
            if not (4 * workers * turns <= wave <= pages // 2):
                wave, line, turns = pages, 0, 1
            made = slots > 0 and plan(
                indptr, indices, self.kinds, wave_pages=wave, line_pages=line, workers=workers, turns=turns,
                slots=slots, tile=shape.tile, depth=shape.depth, groups=shape.groups, runs=parts,
                num_columns=self.num_columns,
            )  # fmt: skip
            if not made:
                raise MemoryError("the rows of this matrix need more of V at a time than shared memory holds")
            if self.kinds.size:
                values = cupy.zeros(4, self.dtype)
            else:
                source = cupy.asarray(made.source)
                values = cupy.where(source < 0, self.dtype.type(0), self.data[cupy.maximum(source, 0)])
            arrays = [cupy.asarray(each) for each in (made.tiles, made.first, made.loads, made.codes)]
            self._plans[key] = Planned(made, slots, code_bytes, value_bytes, workers, [*arrays, values, self.table])
        return self._plans[key]

    def _kernel(self, num_vectors: int) -> StagedShape:
        return self._tuning or staged_shape(num_vectors, self.dtype)

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block of R vectors: (N, R), or (chunks, N, chunk), of which a page is one copy."""
        chunk = self._kernel(num_vectors).columns
        whole = num_vectors > chunk and num_vectors % chunk == 0
        return (num_vectors // chunk, self.num_rows, chunk) if whole else (self.num_rows, num_vectors)

    def to_block(self, vectors: Any) -> Any:
        """Return vectors of shape (N, R) as a block on the device."""
        import cupy

        block, shape = super().to_block(vectors), self.shape(vectors.shape[1])
        if len(shape) == 2:
            return block
        return cupy.ascontiguousarray(block.reshape(shape[1], shape[0], shape[2]).swapaxes(0, 1))

    def unit(self, num_vectors: int, mode: int = FULL, runs: Runs = ()) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        made = self.planned(num_vectors, runs)
        return staged_unit(
            str(self.dtype), num_vectors, slots=made.slots, code_bytes=made.code_bytes, value_bytes=made.value_bytes,
            dictionary=self.table.size if self.kinds.size else 0, work=str(self.work), mode=mode,
            shape=self._kernel(num_vectors),
        )  # fmt: skip

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None, runs: Runs = ()) -> Any:
        """Return ``launch(v, w, scale, shift, keep, etas)``: one step; FULL mode writes `etas`, shape (2, R).

        `rows` or `runs` name the rows to compute, as for :meth:`planned`.  Block vectors have :meth:`shape`, or (N, R).
        """
        import cupy

        runs = runs or (() if rows is None else (rows,))
        made = self.planned(num_vectors, runs)
        unit = self.unit(num_vectors, mode, runs)
        shape = self._kernel(num_vectors)
        chunk = shape.columns
        shared = made.slots * PAGE * shape.row_bytes + shape.depth * (made.code_bytes + made.value_bytes)
        shared += int(unit.defines["DICTIONARY"]) * self.dtype.itemsize
        shared = max(shared, 2 * chunk * 8 * shape.workers)
        kernel = unit.function("staged", shared)
        grid, threads = (made.workers, -(-num_vectors // chunk)), int(unit.defines["THREADS"])
        partial = cupy.empty((made.workers, 2, num_vectors))
        total = sum_of_partials(unit, partial)

        def launch(v: Any, w: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
            strides = np.int32(v.shape[-1]), np.int64(v[0].size if v.ndim == 3 else chunk)
            kernel(
                grid,
                (threads,),
                (
                    *made.arrays, v, w, partial, np.int64(self.num_columns), np.int32(num_vectors), *strides,
                    np.float64(scale), np.float64(shift), np.float64(keep),
                ),
                shared_mem=shared,
            )  # fmt: skip
            if mode == FULL:
                total(etas)

        return launch


def _kinds(data: Any) -> tuple[Any, Any]:
    """Return the distinct values, zero first, and the number of each entry's value among them."""
    import cupy

    # Complex numbers are compared through their parts.
    parts = data.view(data.real.dtype).reshape(data.size, -1)
    number = cupy.zeros(data.size, np.int64)
    for part in parts.T:
        values, index = cupy.unique(part, return_inverse=True)
        number = number * len(values) + index
    _, where, kinds = cupy.unique(number, return_index=True, return_inverse=True)
    if len(where) >= MOST_KINDS:
        raise ValueError(f"the matrix has {len(where)} distinct values: a table holds at most {MOST_KINDS - 1}")
    return cupy.concatenate([cupy.zeros(1, data.dtype), data[where]]), (kinds + 1).astype(np.uint16)
