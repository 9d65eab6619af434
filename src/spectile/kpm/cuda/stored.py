"""A stored matrix on the device, whatever the kernel, and the recurrence on it.

Everything runs on CuPy's current device and stream; a recursion synchronises once at the end of ``advance``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.compile import Unit
from spectile.core.launch import Shape, kernel
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.common import FULL, SERIES, TERMS, vectors_unit
from spectile.kpm.cuda.problem import Problem
from spectile.kpm.cuda.step import MOST_SUMS, Series, Step, Steps
from spectile.kpm.operators.protocol import namespace
from spectile.kpm.types import Array

_FILL = Shape((1024,), 256)
#: Entries whose positions are kept in 32 bits: kernels count a little beyond the last one.
MOST_NARROW = 2**31 - 2**16


def narrowed(starts: Any) -> Any:
    """Return whole numbers on the device as int32."""
    import cupy

    if starts.dtype == np.int32:
        return starts
    numbers = cupy.empty(starts.size, np.int32)
    shape = Shape((ceil_div(starts.size, 256),), 256)
    kernel(vectors_unit("float64"), "narrowed")(shape, starts, numbers, np.int64(starts.size))
    return numbers


class StoredOperator(ABC):
    """A stored Hermitian matrix on the device, from CSR of SciPy or cupyx; each kernel has a subclass.

    Its shape is (N, N) or (N, K); the entries of its longest row are counted if `longest` is None.
    """

    def __init__(self, matrix: Any, longest: int | None = None) -> None:
        import cupy

        self.num_rows, self.dtype, self.entries = int(matrix.shape[0]), np.dtype(matrix.dtype), int(matrix.nnz)
        self._longest = longest
        self.indptr = cupy.asarray(matrix.indptr)
        self.indices, self.data = cupy.asarray(matrix.indices), cupy.asarray(matrix.data)
        if self.data.size == 0:
            # Kernels read a first entry whose value they do not use.
            self.indices, self.data = cupy.zeros(1, np.int32), cupy.zeros(1, self.dtype)
        self.indices = self.indices.astype(np.int32, copy=False)
        if self.data.size <= MOST_NARROW:
            self.indptr = narrowed(self.indptr)
        self.wide = self.indptr.dtype.itemsize == 8

    @abstractmethod
    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""

    @abstractmethod
    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Step:
        """Return the step of R vectors; `rows` (start, stop) names the rows to compute, None takes all."""

    @functools.cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int((self.indptr[1:] - self.indptr[:-1]).max()) if self._longest is None else self._longest

    @property
    def form_bytes(self) -> int:
        """Bytes of its own form of the matrix, beside the one that it was made from."""
        return 0

    def mode(self, num_vectors: int) -> int:
        """Return the mode of a recurrence's steps on R vectors."""
        return FULL

    def problem(self, num_vectors: int) -> Problem:
        """Return what shapes are chosen by: rows, entries, type and R."""
        return Problem(self.num_rows, self.entries, 0, self.entries, self.num_rows, str(self.dtype), num_vectors)

    def beyond(self, num_vectors: int) -> float | None:
        """Return the seconds of a step beyond those predicted; None where the device cannot hold what it needs."""
        return 0.0

    def random_block(self, seed: int, first_vector: int, num_vectors: int, width: int | None = None) -> Any:
        """Return a block of random start vectors, `width` wide with zeros behind them."""
        import cupy

        block = cupy.empty(self.shape(width or num_vectors), self.dtype)
        self.fill(block, seed, first_vector, held=num_vectors)
        return block

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block of R vectors, (N, R)."""
        return self.num_rows, num_vectors

    def to_block(self, vectors: Any, width: int | None = None) -> Any:
        """Return vectors of shape (N, R) as a block on the device, `width` wide with zeros behind them."""
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(self._padded(vectors, width), self.dtype))

    @staticmethod
    def _padded(vectors: Any, width: int | None) -> Any:
        """Return vectors, `width` wide with zeros behind them, where they are."""
        held = vectors.shape[1]
        if width in (None, held):
            return vectors
        block = namespace(vectors).zeros((len(vectors), width), vectors.dtype)
        block[:, :held] = vectors
        return block

    def from_block(self, block: Any, num_vectors: int) -> Any:
        """Return the first R vectors of a block, shape (N, R), where the block is."""
        return block[:, :num_vectors]

    def fill(self, block: Any, seed: int, first_vector: int, order: Any = None, held: int | None = None) -> None:
        """Write random start vectors, `held` of them and then zeros.

        `order` (int32) names the original row of each row, if rows are renumbered.
        """
        fill = kernel(vectors_unit(str(self.dtype)), "random_phases")
        left = held if held is not None else block.size // block.shape[-2]
        for chunk in block if block.ndim == 3 else [block]:
            rows, width = chunk.shape
            fill(
                _FILL, chunk, np.uint64(0) if order is None else order, np.int64(rows), np.int32(width),
                np.int32(min(width, max(0, left))), np.uint64(seed), np.uint64(first_vector),
            )  # fmt: skip
            first_vector += width
            left -= width


class StoredRecursion:
    """The recurrence of a block of vectors on a stored matrix, of which the first R count; H̃ = a (H − b).

    The block, taken over, has the operator's shape of a width of at least R, with zeros behind the first R.
    """

    #: Whether steps can be enqueued first and collected later; to how many sums each can add how many terms.
    enqueues = True
    most_sums, terms = MOST_SUMS, TERMS

    def __init__(
        self, operator: StoredOperator, a: float, b: float, block: Any, num_vectors: int | None = None
    ) -> None:
        import cupy

        self.operator, self.a, self.b = operator, a, b
        self.width = int(block.size // operator.num_rows)
        #: R
        self.num_vectors = num_vectors or self.width
        self.v, self.w = block, cupy.zeros_like(block)
        self.steps = 0
        self._begin()

    def _begin(self) -> None:
        """Prepare the steps on the two arrays, which take turns."""
        self._turn = 0  # which array is V
        self._plain = self._steps_of(self.operator.mode(self.width))
        self._summing: Steps | None = None  # those that add to sums

    def _steps_of(self, mode: int, series: tuple[Array, ...] = ()) -> Steps:
        step = self.operator.launcher(self.width, mode)
        pair = (self.w, self.v) if self._turn else (self.v, self.w)
        return Steps(step, *pair, self.a, self.b, series)

    def sum_into(self, totals: Sequence[Any]) -> None:
        """Let later steps add terms to sums: for each of :meth:`blocks` K arrays like it, at most ``MOST_SUMS``."""
        self._series = Series(totals[0], self.terms)
        self._summing = self._steps_of(SERIES, (self._series.argument,))

    def enqueue(self, steps: int, weights: Array | None = None) -> None:
        """Enqueue steps, whose scalar products :meth:`collect` returns; of single steps they are summed some at a time.

        `weights`, shape (K, 3), are those of T_m−1, T_m and T_m+1 with which each adds to the sums.
        """
        kind = self._plain
        if weights is not None:
            assert self._summing is not None, "sum_into comes before"
            self._series.take(weights)
            kind = self._summing
        left = steps
        while left:
            first = self.steps == 0
            turn = self._turn if first else self._turn ^ 1
            made = kind.enqueue(turn, first, left)
            self.steps += made
            left -= made
            if (made - first) % 2:
                self.v, self.w = self.w, self.v
                self._turn ^= 1
        if steps > 1:
            kind.sum()

    def collect(self) -> Array:
        """Wait for what was enqueued and return its scalar products, shape (2 * steps, R).

        Those of steps that added to sums stand behind the others.
        """
        import cupy

        etas = self._plain.collect() + (self._summing.collect() if self._summing else [])
        found = cupy.concatenate(etas).get() if etas else np.empty((0, 2, self.width))
        return np.asarray(found.reshape(2 * len(found), self.width)[:, : self.num_vectors])

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        self.enqueue(steps)
        return self.collect()

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step in the operator's layout."""
        return [self.w if self.steps else self.v]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block as vectors of shape (N, R), or as these rows of them."""
        vectors = self.operator.from_block(blocks[0], self.num_vectors)
        return vectors if rows is None else vectors[rows]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold, the same whatever the kernel: vectors of shape (N, R)."""
        # On the host: the device may have no memory left.
        v, w = (self.operator.from_block(block.get(), self.num_vectors) for block in (self.v, self.w))
        return {"v": v, "w": w, "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        self.v, self.w = (self.operator.to_block(state[name], self.width) for name in "vw")
        self.steps = int(state["steps"])
        self._begin()


class SplitRecursion:
    """The recurrence of a block of vectors in parts, in their order, each of a width that its kernel takes."""

    enqueues = True
    most_sums, terms = MOST_SUMS, TERMS

    def __init__(self, parts: list[StoredRecursion]) -> None:
        self.parts = parts
        self.num_vectors = sum(part.num_vectors for part in parts)

    def sum_into(self, totals: Sequence[Any]) -> None:
        """Let later steps add terms to sums: for each part K arrays like its block."""
        for part, mine in zip(self.parts, totals, strict=True):
            part.sum_into([mine])

    def enqueue(self, steps: int, weights: Array | None = None) -> None:
        """Enqueue steps of all parts."""
        for part in self.parts:
            part.enqueue(steps, weights)

    def collect(self) -> Array:
        """Wait for what was enqueued and return its scalar products, shape (2 * steps, R)."""
        return np.concatenate([part.collect() for part in self.parts], axis=1)

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        self.enqueue(steps)
        return self.collect()

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step, each part's in its layout."""
        return [block for part in self.parts for block in part.blocks()]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such blocks as vectors of shape (N, R), or as these rows of them."""
        import cupy

        parts = zip(self.parts, blocks, strict=True)
        return cupy.concatenate([part.vectors([block], rows) for part, block in parts], axis=1)

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        states = [part.state() for part in self.parts]
        joined = {name: np.concatenate([state[name] for state in states], axis=1) for name in "vw"}
        return joined | {"steps": states[0]["steps"]}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        first = 0
        for part in self.parts:
            mine = slice(first, first + part.num_vectors)
            part.restore({"v": state["v"][:, mine], "w": state["w"][:, mine], "steps": state["steps"]})
            first += part.num_vectors
