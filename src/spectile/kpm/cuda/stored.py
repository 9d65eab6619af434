"""KPM on a stored matrix (CSR and SELL-C-sigma), V read through the caches (``rows.cu``).

Everything runs on CuPy's current device and stream; a recursion synchronises once at the end of ``advance``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.kpm.cuda.choose import SELL_CHUNK, RowShape, row_launch, row_shape
from spectile.kpm.cuda.sell import narrowed, sell_entries, sell_starts
from spectile.kpm.cuda.step import SUMMED, Step
from spectile.kpm.cuda.units import FULL, stored_unit, vectors_unit
from spectile.kpm.operators.protocol import lies_on_gpu
from spectile.kpm.operators.sell import SellMatrix
from spectile.kpm.types import Array

_FILL = Shape((1024,), 256)
#: Entries whose positions are kept in 32 bits: kernels count a little beyond the last one.
MOST_NARROW = 2**31 - 2**16


class StoredOperator:
    """A stored Hermitian matrix on the device.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    layout : {"csr", "sell"}
        Storage format: CSR, or SELL-32, which suits a row to a thread.
    wave_rows : int or None
        Rows of one wave (``rows.cu``): the rows of a lattice plane, where they are known.
    tuning : RowShape or None
        Shape of the kernel; None takes :func:`spectile.kpm.cuda.choose.row_shape`.
    """

    #: Whether steps of a recursion may begin before the one before them has ended (the kernels wait for V and W).
    overlaps = False

    def __init__(
        self, matrix: Any, layout: str = "csr", wave_rows: int | None = None, tuning: RowShape | None = None
    ) -> None:
        import cupy

        self.num_rows, self.dtype, self.layout = int(matrix.shape[0]), np.dtype(matrix.dtype), layout
        self.wave_rows, self.tuning = wave_rows, tuning
        if layout == "sell" and lies_on_gpu(matrix) and matrix.indices.dtype == np.int32:
            starts, lengths = sell_starts(matrix)
            self.starts = starts, lengths
            self.indices, self.data = sell_entries(matrix, starts, int(starts[-1]))
        elif layout == "sell":
            stored = SellMatrix.from_csr(matrix, SELL_CHUNK)
            self.starts = cupy.asarray(stored.chunk_start), cupy.asarray(stored.row_length)
            self.indices, self.data = cupy.asarray(stored.indices), cupy.asarray(stored.data)
        else:
            self.starts = cupy.asarray(matrix.indptr), cupy.zeros(1, np.int32)
            self.indices, self.data = cupy.asarray(matrix.indices), cupy.asarray(matrix.data)
        if self.data.size == 0:
            # Kernels read a first entry whose value they do not use.
            self.indices, self.data = cupy.zeros(1, np.int32), cupy.zeros(1, self.dtype)
        self.indices = self.indices.astype(np.int32, copy=False)
        if self.data.size <= MOST_NARROW:
            self.starts = self._narrow(self.starts[0]), self.starts[1]
        self.wide = self.starts[0].dtype.itemsize == 8

    @staticmethod
    def _narrow(starts: Any) -> Any:
        return starts if starts.dtype == np.int32 else narrowed(starts)

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return stored_unit(
            str(self.dtype), num_vectors, layout=self.layout, wide=self.wide, mode=mode, shape=self.tuning
        )

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors.

        `rows` (start, stop) names the rows to compute; None takes all.
        """
        unit, shape = self.unit(num_vectors, mode), self.tuning or row_shape(num_vectors)
        # All of the cache to L1, which holds the rows of V that come again.
        step, launched = kernel(unit, "aug_spmmv", beside_l1=1), row_launch(shape, num_vectors, describe())
        start, stop = rows or (0, self.num_rows)
        wave = max(1, (self.wave_rows or launched.grid[0] * shape.threads // shape.lanes) // (32 // shape.lanes))
        settings = np.int64(start), np.int64(stop), np.int64(wave), np.int32(num_vectors)
        operands = *self.starts, self.indices, self.data
        return Step(step, launched, operands, lambda _: settings, num_vectors, self.dtype, mode == FULL)

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return a block of random start vectors."""
        import cupy

        block = cupy.empty(self.shape(num_vectors), self.dtype)
        self.fill(block, seed, first_vector)
        return block

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block of R vectors, (N, R)."""
        return self.num_rows, num_vectors

    def to_block(self, vectors: Any) -> Any:
        """Return vectors of shape (N, R) as a block on the device."""
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(vectors, self.dtype))

    def fill(self, block: Any, seed: int, first_vector: int, order: Any = None) -> None:
        """Write random start vectors; `order` (int32) names the original row of each row, if rows are renumbered."""
        fill = kernel(vectors_unit(str(self.dtype)), "random_phases")
        for chunk in block if block.ndim == 3 else [block]:
            rows, width = chunk.shape
            fill(
                _FILL, chunk, np.uint64(0) if order is None else order, np.int64(rows), np.int32(width),
                np.uint64(seed), np.uint64(first_vector),
            )  # fmt: skip
            first_vector += width


class StoredRecursion:
    """The recurrence of a block of vectors on a stored matrix.

    Parameters
    ----------
    operator : StoredOperator
        H.
    a, b : float
        H̃ = a (H − b).
    block : cupy.ndarray, the operator's shape of R vectors
        |ν₀⟩, taken over.
    """

    def __init__(self, operator: StoredOperator, a: float, b: float, block: Any) -> None:
        import cupy

        self.operator, self.a, self.b = operator, a, b
        self.v, self.w = block, cupy.zeros_like(block)
        self.steps = 0
        self._begin()

    def _begin(self) -> None:
        """Prepare the steps on the two arrays, which take turns."""
        self._step = self.operator.launcher(self.num_vectors)
        factors = 2 * self.a, -2 * self.a * self.b, 1.0
        pairs = (self.v, self.w), (self.w, self.v)
        self._bound = [self._step.bind(*pair, *factors) for pair in pairs]
        overlaps = self.operator.overlaps
        self._overlapping = [self._step.bind(*pair, *factors, True) for pair in pairs] if overlaps else self._bound
        self._turn = 0  # which of them comes next, from the second step on

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.size // self.operator.num_rows)

    def enqueue(self, etas: Any) -> None:
        """Enqueue ``len(etas)`` steps that write their scalar products to `etas`, shape (steps, 2, R)."""
        done = 0
        # Behind the first step only: what wrote the matrix has ended then.
        bound = self._bound
        if self.steps == 0 and len(etas):
            self._step(self.v, self.w, self.a, -self.a * self.b, 0.0, etas[0])
            done = 1
        while done < len(etas):
            targets = etas[done : done + SUMMED]
            partials = self._step.partials(len(targets))
            first = address(partials)
            for partial in range(first, first + partials.nbytes, partials[0].nbytes):
                self.v, self.w = self.w, self.v
                self._turn ^= 1
                bound[self._turn](partial)
                bound = self._overlapping
            self._step.sum(partials, targets)
            done += len(targets)
        self.steps += len(etas)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        import cupy

        etas = cupy.empty((steps, 2, self.num_vectors))
        self.enqueue(etas)
        return np.asarray(etas.get().reshape(2 * steps, -1))

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"v": self.v.get(), "w": self.w.get(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.v, self.w, self.steps = cupy.asarray(state["v"]), cupy.asarray(state["w"]), int(state["steps"])
        self._begin()
