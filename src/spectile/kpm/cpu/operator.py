"""KPM on the CPU: the three stages of the paper, threaded over row blocks and vectorised over the block vector.

A block vector of R complex vectors is stored row by row, real parts beside real parts: shape (N, 2, R); real ones are
(N, 1, R).  So a row of the block is a run of SIMD lanes, every matrix entry is a scalar broadcast, and no shuffles are
needed (``kernels.py``).

Dot products are summed in row blocks whose bounds depend on the matrix alone, then over the blocks in order: results
are bitwise the same with any number of threads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.threads import each, num_threads
from spectile.kpm.cpu.kernels import add_scaled, csr_rows, fill_phases, pattern_rows, stencil_rows
from spectile.kpm.cpu.patterns import RowPatterns, table
from spectile.kpm.cpu.threads import side_by_side
from spectile.kpm.operators.engine import Pair
from spectile.kpm.operators.topological_insulator import GAMMA_1, GAMMA_HOP, MASS, PARTNER, TopologicalInsulator
from spectile.kpm.types import Array

MAX_BLOCKS = 64
MIN_BLOCK_ROWS = 512
# Rows of a plane that are followed through all planes before the next: three such patches stay in a core's L2 cache.
PATCH_ROWS = 1024
# A plane is cut in patches where three of its like exceed the second-level cache.
CACHE_BYTES = 2 << 20


@dataclass(frozen=True)
class CpuOperator:
    """A Hermitian matrix as the CPU kernels take it."""

    #: Rows to update, and rows of the block vector that they read (more than `num_rows` where a halo follows).
    num_rows: int
    num_columns: int
    dtype: np.dtype[Any]  #: Of the matrix: complex128, complex64, float64 or float32.
    #: ``rows(v, w, scalars, blocks, partial)`` updates row blocks, shape (n, 2), and sums into `partial`, (n, 2, R).
    rows: Callable[..., None]
    plane_rows: int = 0  #: Rows of a lattice plane, where the rows are known to lie plane by plane; else zero.

    @classmethod
    def from_matrix(cls, matrix: Any) -> CpuOperator:
        """Take a ``scipy.sparse`` CSR matrix (rows <= columns): by patterns where its rows repeat, else by entries."""
        patterns = RowPatterns.from_csr(matrix)
        if patterns is None:
            return cls.from_csr(matrix)
        return cls.from_patterns(patterns, matrix.shape[1], _plane_rows(matrix.indptr, matrix.indices))

    @classmethod
    def from_patterns(cls, matrix: RowPatterns, num_columns: int, plane_rows: int = 0) -> CpuOperator:
        """Take a :class:`spectile.kpm.cpu.patterns.RowPatterns`."""
        rows = functools.partial(
            pattern_rows, matrix.first, matrix.offsets, matrix.values, matrix.number, matrix.diagonal
        )
        return cls(matrix.number.size, num_columns, matrix.values.dtype, rows, plane_rows=plane_rows)

    @classmethod
    def from_csr(cls, matrix: Any) -> CpuOperator:
        """Take a ``scipy.sparse`` CSR matrix (rows <= columns) by its entries."""
        rows = functools.partial(csr_rows, matrix.indptr, matrix.indices, matrix.data)
        plane = _plane_rows(matrix.indptr, matrix.indices)
        return cls(matrix.shape[0], matrix.shape[1], matrix.dtype, rows, plane_rows=plane)

    @classmethod
    def from_topological_insulator(cls, sample: TopologicalInsulator, dtype: Any = np.complex128) -> CpuOperator:
        """Take a topological insulator without storing its matrix."""
        mass = (MASS * GAMMA_1.diagonal().real).astype(np.empty(0, dtype).real.dtype)
        potential = sample.potential.ravel().astype(mass.dtype)
        sides = (sample.nx, sample.ny, sample.nz)
        lists = [
            _stencil_row(sample, position, orbital)
            for position in itertools.product(range(3), repeat=3)
            for orbital in range(4)
        ]
        rows = functools.partial(stencil_rows, *table(lists, dtype), sides, mass, potential)
        plane = 4 * sample.ny * sample.nz
        return cls(sample.shape[0], sample.shape[1], np.dtype(dtype), rows, plane_rows=plane)

    @property
    def parts(self) -> int:
        """Two real numbers an element of a complex matrix, else one."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def real_dtype(self) -> np.dtype[Any]:
        """Type of the block vector's numbers."""
        return np.empty(0, self.dtype).real.dtype

    def blocks(self, num_vectors: int = 64) -> list[tuple[int, int]]:
        """Return the row blocks, in the order of computation, in which dot products are summed.

        They depend on the matrix and the number of vectors alone, not on threads.
        """
        three_planes = 3 * self.plane_rows * num_vectors * self.dtype.itemsize
        if three_planes > CACHE_BYTES and 2 * PATCH_ROWS <= self.plane_rows <= self.num_rows // 3:
            planes = -(-self.num_rows // self.plane_rows)
            patch = np.linspace(0, self.plane_rows // 4, round(self.plane_rows / PATCH_ROWS) + 1).astype(int) * 4
            patch[-1] = self.plane_rows
            patches = (
                (plane * self.plane_rows + int(low), min(self.num_rows, plane * self.plane_rows + int(high)))
                for low, high in itertools.pairwise(patch)
                for plane in range(planes)
            )
            return [(start, stop) for start, stop in patches if start < stop]
        # Sums of a block are kept in the type of the vectors: shorter blocks where that is single precision.
        most = MAX_BLOCKS if self.real_dtype.itemsize == 8 else 16 * MAX_BLOCKS
        count = max(1, min(most, self.num_rows // MIN_BLOCK_ROWS))
        edges = np.linspace(0, self.num_rows // 4, count + 1).astype(int) * 4
        edges[-1] = self.num_rows
        return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    def update(self, v: Array, w: Array, scale: float, shift: float, keep: float, threads: int, blocks: Any) -> Array:
        """Do one ``aug_spmmv()``: w = scale H v + shift v − keep w on the rows of `blocks`.

        Parameters
        ----------
        v, w : ndarray, shape (num_columns, parts, R)
            Block vectors; w is overwritten.
        scale, shift, keep : float
            2a, −2ab and 1 in the recurrence; a, −ab and 0 in the first step.
        threads : int
            Threads to use.
        blocks : list of (start, stop) or ndarray of int64, shape (n, 2)
            Row blocks.

        Returns
        -------
        ndarray, float64, shape (2, R)
            ⟨v|v⟩ and Re ⟨w|v⟩ of each column, summed over these rows.
        """
        partial = np.zeros((len(blocks), 2, v.shape[2]), dtype=v.dtype)
        scalars = np.array([scale, shift, keep], dtype=v.dtype)
        edges = np.array(blocks, dtype=np.int64).reshape(-1, 2)
        if threads == 1 or len(blocks) <= 1:
            self.rows(v, w, scalars, edges, partial)
        else:
            # One call a thread: what it sums depends on the blocks, not on who does them.
            parts = np.linspace(0, len(blocks), threads + 1).astype(int)

            def work(n: int) -> None:
                mine = slice(parts[n], parts[n + 1])
                self.rows(v, w, scalars, edges[mine], partial[mine])

            each(range(threads), threads, work)
        return partial.sum(axis=0, dtype=np.float64)

    def random_block(self, seed: int, first_vector: int, num_vectors: int, first_row: int = 0) -> Array:
        """Return random start vectors as a block vector of this operator's layout."""
        block = np.zeros((self.num_columns, self.parts, num_vectors), dtype=self.real_dtype)
        fill_phases(block[: self.num_rows], np.uint64(seed), first_row, first_vector)
        return block

    def to_block(self, vectors: Array) -> Array:
        """Return vectors of shape (N, R) in this operator's layout."""
        if self.parts == 1:
            return np.ascontiguousarray(vectors[:, None, :], dtype=self.real_dtype)
        return np.ascontiguousarray(np.stack([vectors.real, vectors.imag], axis=1), dtype=self.real_dtype)

    def from_block(self, block: Array, rows: Any = None) -> Array:
        """Return a block of this operator's layout as vectors of shape (N, R), or as these rows of them.

        Real vectors share its memory.
        """
        block = block[: self.num_rows]
        block = block if rows is None else block[rows]
        if self.parts == 1:
            return block[:, 0]
        vectors = np.empty((len(block), block.shape[2]), self.dtype)
        vectors.real, vectors.imag = block[:, 0], block[:, 1]
        return vectors


def _stencil_row(sample: TopologicalInsulator, position: tuple[int, ...], orbital: int) -> tuple[Array, Array]:
    """Return offsets and values of a row without its diagonal, of a site first, between or last along each axis."""
    sides, strides = (sample.nx, sample.ny, sample.nz), (sample.ny * sample.nz, sample.nz, 1)
    offsets, values = [], []
    for axis, step in itertools.product(range(3), (1, -1)):
        leaves = position[axis] == (2 if step == 1 else 0)
        if leaves and axis == 2:
            continue
        sites = (step - step * sides[axis] * leaves) * strides[axis]
        # Towards n + e_j the entry is the adjoint of the hop from n.
        block = -sample.hopping * (GAMMA_1 + 1j * step * GAMMA_HOP[axis]) / 2
        for other in (orbital, PARTNER[axis][orbital]):
            offsets.append(4 * sites + other - orbital)
            values.append(block[orbital, other])
    return np.array(offsets, dtype=np.int64), np.array(values)


def _plane_rows(indptr: Array, indices: Array) -> int:
    """Return how far apart the farthest rows are that a row couples, in most rows, in whole sites of four orbitals."""
    num_rows = len(indptr) - 1
    rows = np.linspace(0, num_rows - 1, min(num_rows, 2001)).astype(np.int64)
    rows = rows[indptr[rows] < indptr[rows + 1]]
    # Columns ascend, so that the first or the last one is the farthest; a halo's, behind them all, is far in any case.
    ends = np.stack([indices[indptr[rows]], indices[indptr[rows + 1] - 1]])
    return 4 * int(np.median(np.abs(ends // 4 - rows // 4).max(axis=0))) if rows.size else 0


# Rows times (vectors and three for the matrix) that are worth a thread: about 0.15 ms, what it costs to begin and meet.
THREAD_WORK = 50_000


def useful_threads(num_rows: int, num_vectors: int) -> int:
    """Return how many threads a step of R vectors takes: all, or as many as have enough to do."""
    return max(1, min(num_threads(), num_rows * (num_vectors + 3) // THREAD_WORK))


def add_pair(a: Array, b: Array, x: Any, y: Any, total: Array) -> None:
    """Add x a + y b to a total, all flat and of one type, on as many threads as have enough to do."""
    threads = useful_threads(total.size, 0)
    if threads == 1:
        return add_scaled(a, b, x, y, total)  # short ones take less than to be shared out
    parts = [slice(total.size * n // threads, total.size * (n + 1) // threads) for n in range(threads)]
    return each(parts, threads, lambda part: add_scaled(a[part], b[part], x, y, total[part]))


class CpuRecursion(Pair):
    """The recurrence of a block of vectors, shape (num_columns, parts, R), which is taken over; H̃ = a (H − b).

    Threads are by default as many as :func:`useful_threads` says.
    """

    def __init__(self, operator: CpuOperator, a: float, b: float, block: Array, threads: int | None = None) -> None:
        self.operator, self.a, self.b = operator, a, b
        self.v, self.w = block, np.zeros_like(block)
        self.threads = threads or useful_threads(operator.num_rows, block.shape[2])
        self.steps = 0
        # What every step needs, made once: steps that are asked for one by one are short on small samples.
        self._edges = np.array(operator.blocks(self.num_vectors), dtype=np.int64).reshape(-1, 2)
        self._together = min(self.threads, len(self._edges))
        self._parts = np.linspace(0, len(self._edges), self._together + 1).astype(int)
        # Two sets of sums: one is added up while the next step begins.
        self._partial = np.zeros((2, len(self._edges), 2, self.num_vectors), dtype=block.dtype)
        self._scalars = np.array([[a, -a * b, 0.0], [2 * a, -2 * a * b, 1.0]], dtype=block.dtype)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        etas = np.empty((steps, 2, self.num_vectors))
        edges, parts, threads = self._edges, self._parts, self._together
        partial, scalars, first = self._partial, self._scalars, self.steps
        partial[...] = 0  # a call that was broken off leaves something

        def vectors(m: int) -> tuple[Array, Array]:
            swapped = (m + (first > 0)) % 2
            return (self.w, self.v) if swapped else (self.v, self.w)

        def work(n: int, m: int) -> None:
            mine = slice(parts[n], parts[n + 1])
            self.operator.rows(*vectors(m), scalars[int(first + m > 0)], edges[mine], partial[m % 2, mine])

        def after(m: int) -> None:
            etas[m] = partial[m % 2].sum(axis=0, dtype=np.float64)
            partial[m % 2] = 0

        if threads == 1:
            for m in range(steps):
                work(0, m)
                after(m)
        else:
            side_by_side(threads, steps, work, after)
        if steps:
            self.v, self.w = vectors(steps - 1)
        self.steps += steps
        return etas.reshape(2 * steps, self.num_vectors)

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block as vectors of shape (N, R), or as these rows of them."""
        return self.operator.from_block(blocks[0], rows)
