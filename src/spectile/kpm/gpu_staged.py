"""The stored matrix on Hopper and later: V staged through shared memory by an inspector's plan (``staged.cu``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.gpu.compile import Unit
from spectile.kpm.gpu import FULL, TUNING, StoredOperator, staged_shape, staged_unit
from spectile.kpm.staging import PAGE, lattice_of, plan

#: Values of a table, zero among them.
MOST_KINDS = 256
_STATIC_BYTES = 1024  # barriers, and what the driver keeps of a block's shared memory


class StagedOperator(StoredOperator):
    """A stored Hermitian matrix whose kernel stages V through shared memory.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    dictionary : bool
        Store a number of the value in a table instead of each value.
    work : dtype or None
        Type of the arithmetic, if it is not the matrix's own.
    """

    def __init__(
        self,
        matrix: Any,
        dictionary: bool = False,
        work: Any = None,
        tuning: tuple[int, int, int, int] = TUNING,
    ) -> None:
        import cupy

        self.num_rows, self.dtype, self.layout = int(matrix.shape[0]), np.dtype(matrix.dtype), "csr"
        self.work, self.tuning, self.wide = np.dtype(work or matrix.dtype), tuning, False
        self.host = tuple(each.get() if hasattr(each, "get") else each for each in (matrix.indptr, matrix.indices))
        self.lattice = lattice_of(*self.host)
        self.data = cupy.asarray(matrix.data)
        self.table, self.kinds = cupy.zeros(1, self.dtype), np.empty(0, np.uint16)
        if dictionary:
            values, kinds = _kinds(self.data)
            self.table, self.kinds = values, kinds.get()
        self._plans: dict[tuple[int, int], Any] = {}

    def planned(self, num_vectors: int) -> Any:
        """Return (plan, slots, bytes of a stage's codes and values, workers, arrays on the device) for R vectors.

        Raises
        ------
        MemoryError
            If the tiles in flight couple more rows than shared memory holds.
        """
        import cupy

        from spectile.gpu.device import describe

        pieces, chunk = staged_shape(num_vectors, self.dtype)
        chunks = -(-num_vectors // chunk)
        key = (pieces, chunks)
        if key not in self._plans:
            tile, depth, compute, _ = self.tuning
            indptr, indices = self.host
            pages = -(-self.num_rows // PAGE)
            workers = min(max(1, describe().multiprocessors // chunks), pages)
            longest = int(np.diff(indptr).max(initial=1))
            code_bytes = tile * (16 + -(-longest // 4) * 32 * (2 if self.kinds.size else 1))
            value_bytes = 0 if self.kinds.size else tile * PAGE * longest * self.dtype.itemsize
            left = describe().shared_bytes - _STATIC_BYTES - depth * (code_bytes + value_bytes)
            left -= self.table.nbytes if self.kinds.size else 0
            slots = min(left // (PAGE * 128 * pieces), 2**14 - 1)
            wave, line = self.lattice
            if not 4 * workers * chunks <= wave <= pages // 2:
                wave, line = pages, 0
            made = slots > 0 and plan(
                indptr, indices, self.kinds, wave_pages=wave, line_pages=line, workers=workers, turns=chunks,
                slots=slots, tile=tile, depth=depth, groups=compute // tile,
            )  # fmt: skip
            if not made:
                raise MemoryError("the rows of this matrix need more of V at a time than shared memory holds")
            if self.kinds.size:
                values = cupy.zeros(4, self.dtype)
            else:
                source = cupy.asarray(made.source)
                values = cupy.where(source < 0, self.dtype.type(0), self.data[cupy.maximum(source, 0)])
            arrays = [cupy.asarray(each) for each in (made.tiles, made.first, made.loads, made.codes)]
            self._plans[key] = (made, slots, code_bytes, value_bytes, workers, [*arrays, values, self.table])
        return self._plans[key]

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        _, slots, code_bytes, value_bytes, *_ = self.planned(num_vectors)
        return staged_unit(
            str(self.dtype), num_vectors, slots=slots, code_bytes=code_bytes, value_bytes=value_bytes,
            dictionary=self.table.size if self.kinds.size else 0, work=str(self.work), mode=mode, tuning=self.tuning,
        )  # fmt: skip

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Any:
        """Return ``launch(v, w, scale, shift, keep, etas)``: one step; FULL mode writes `etas`, shape (2, R).

        Raises
        ------
        ValueError
            If only some rows are asked for: the plan is one for the whole matrix.
        """
        if rows is not None:
            raise ValueError("a staged operator computes all rows: use StoredOperator for some of them")
        import cupy

        _, slots, code_bytes, value_bytes, workers, arrays = self.planned(num_vectors)
        unit = self.unit(num_vectors, mode)
        pieces, chunk = staged_shape(num_vectors, self.dtype)
        shared = slots * PAGE * 128 * pieces + self.tuning[1] * (code_bytes + value_bytes)
        shared += int(unit.defines["DICTIONARY"]) * self.dtype.itemsize
        shared = max(shared, 2 * chunk * 8 * self.tuning[2])
        kernel, total = unit.function("staged", shared), unit.function("sum_partials")
        grid, threads = (workers, -(-num_vectors // chunk)), int(unit.defines["THREADS"])
        partial = cupy.empty((workers, 2, num_vectors))
        size = 2 * num_vectors

        def launch(v: Any, w: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
            kernel(
                grid,
                (threads,),
                (
                    *arrays, v, w, partial, np.int64(self.num_rows), np.int32(num_vectors), np.float64(scale),
                    np.float64(shift), np.float64(keep),
                ),
                shared_mem=shared,
            )  # fmt: skip
            if mode == FULL:
                total((-(-size // 64),), (64,), (partial, etas, np.int32(workers), np.int32(size)))

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
