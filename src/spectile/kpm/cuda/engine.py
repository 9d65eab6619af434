"""KPM on one CUDA device: the engines of a stored matrix and of the stencil."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from spectile.core.compile import prepare
from spectile.core.device import describe, require_device
from spectile.core.memory import free_bytes, require_free
from spectile.kpm.cuda import packed
from spectile.kpm.cuda.boxed import BoxedOperator
from spectile.kpm.cuda.choose import (
    LEAST_GROUPED,
    MOST_FILL,
    boxes,
    gathers,
    groups,
    most_steps_a_sweep,
    packs,
    sell_shape,
    slot_shape,
    slotted,
    stages,
    staging_pays,
)
from spectile.kpm.cuda.gather import GatherOperator, SlotsOperator
from spectile.kpm.cuda.grouped import GroupedOperator, groups_of
from spectile.kpm.cuda.inspection import inspect
from spectile.kpm.cuda.lanczos import lengthened, tridiagonalize
from spectile.kpm.cuda.sell import sell_starts
from spectile.kpm.cuda.staged import StagedOperator
from spectile.kpm.cuda.stencil import StencilOperator, StencilRecursion
from spectile.kpm.cuda.stored import StoredOperator, StoredRecursion
from spectile.kpm.cuda.units import slots_unit
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.stored import StoredMatrix, refuse_difference
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.operators.user import OperatorEngine
from spectile.kpm.types import NOT_FINITE, Array, Engine


def engine_of(operator: Operator, dtype: np.dtype[Any]) -> Engine:
    """Return the engine of an operator on the current device."""
    import cupy

    require_device()
    if isinstance(operator, StoredMatrix):
        return StoredEngine(operator, dtype)
    if isinstance(operator, TopologicalInsulator):
        try:
            return StencilEngine(operator, dtype)
        except MemoryError:
            # A line of the sample is too high for a block's shared memory.
            return StoredEngine(StoredMatrix(operator.matrix(dtype, xp=cupy)), dtype)
    return OperatorEngine(operator, dtype, cupy, free_bytes)


class StoredEngine:
    """A stored matrix on the GPU, an :class:`~spectile.kpm.types.Engine`.

    Parameters
    ----------
    operator : StoredMatrix
        H, on the host or on the device.
    dtype : dtype
        float32, float64, complex64 or complex128.
    """

    name = "cuda"

    def __init__(self, operator: StoredMatrix, dtype: np.dtype[Any]) -> None:
        import cupy

        self.xp = cupy
        self.num_rows, self.dtype = operator.shape[0], dtype
        self.matrix = operator.csr_on_gpu(dtype)
        self.seen = inspect(self.matrix)
        if not self.seen.canonical:
            self.matrix.sum_duplicates()
            self.seen = inspect(self.matrix)
        self._bounds = self.seen.bounds
        self.frame = Frame.around(self._bounds, dtype)
        if self.frame != Frame():
            difference, largest = self.seen.difference, self.seen.largest  # as large as rounding of H allows
            self.matrix = self.frame.inside(self.matrix)
            self.seen = inspect(self.matrix)._replace(difference=difference, largest=largest)
        self._prepare()
        self._formats: dict[str, StoredOperator] = {}
        # Widths of blocks that share too much of V for shared memory, of rows and of groups of rows.
        self._unstaged: set[int] = set()
        self._unboxed: set[int] = set()

    def _prepare(self) -> None:
        """Begin to compile the step of one vector, where it is known without a format of the matrix."""
        if slotted(1, self.dtype, self.seen.longest, self.num_rows, self.matrix.nnz):
            shape = slot_shape(1, self.dtype, self.seen.longest, self.num_rows, describe())
            prepare(slots_unit(str(self.dtype), 1, self.seen.longest, shape=shape))

    def _format(self, num_vectors: int) -> StoredOperator:
        """Return the matrix in the format that suits so many vectors."""
        if num_vectors not in self._unstaged and stages(num_vectors, self.dtype, self.seen.longest, describe()):
            try:
                return self._staged(num_vectors)
            except MemoryError:
                # Rows that couple too many others for shared memory: read V through the caches.
                self._unstaged.add(num_vectors)
        # One vector reads SELL coalesced, a row to a thread; wider blocks read a row's entries side by side in CSR.
        if slotted(num_vectors, self.dtype, self.seen.longest, self.num_rows, self.matrix.nnz):
            name = "slots"
        elif num_vectors == 1 and self._suits_sell:
            name = "sell"
        elif groups(num_vectors, self.dtype, self.seen.longest, describe()) and self._rows_of_a_group >= LEAST_GROUPED:
            if num_vectors not in self._unboxed and boxes(num_vectors, self.dtype, self.seen.longest, describe()):
                try:
                    return self._boxed(num_vectors)
                except MemoryError:
                    self._unboxed.add(num_vectors)
            name = "grouped"
        else:
            name = "gather" if gathers(num_vectors, self.seen.longest) else "csr"
        if name not in self._formats:
            self._formats[name] = self._make(name)
        return self._formats[name]

    def _staged(self, num_vectors: int) -> StagedOperator:
        """Return the matrix with V through shared memory; raises MemoryError where it does not fit, or does not pay."""
        operator = self._formats.get("staged") or StagedOperator(self.matrix)
        assert isinstance(operator, StagedOperator)
        if not staging_pays(self.seen.longest, operator.planned(num_vectors).plan.reuse):
            raise MemoryError("rows of V leave shared memory too often")
        self._formats["staged"] = operator
        return operator

    def _boxed(self, num_vectors: int) -> BoxedOperator:
        """Return groups of rows with V through shared memory; raises MemoryError where it does not fit."""
        operator = self._formats.get("boxed") or BoxedOperator(self.matrix, self.seen.longest, self._groups)
        assert isinstance(operator, BoxedOperator)
        operator.tiles(num_vectors)
        self._formats["boxed"] = operator
        return operator

    def _make(self, name: str) -> StoredOperator:
        if name == "gather":
            return GatherOperator(self.matrix, self.seen.longest, self._plane)
        if name == "grouped":
            return GroupedOperator(self.matrix, self._groups)
        if name == "slots":
            return SlotsOperator(self.matrix, self.seen.longest)
        tuning = sell_shape(self.seen.longest, self.dtype) if name == "sell" else None
        return StoredOperator(self.matrix, name, tuning=tuning)

    @functools.cached_property
    def _plane(self) -> int:
        """Rows between one in the middle and the farthest that it couples: a plane of a lattice in natural order."""
        middle = self.num_rows // 2
        first, last = self.matrix.indptr[middle : middle + 2].get().tolist()
        return int(np.abs(self.matrix.indices[first:last].get().astype(np.int64) - middle).max(initial=0))

    @functools.cached_property
    def _groups(self) -> Any:
        """The edges of groups of rows that share columns."""
        return groups_of(self.matrix)

    @property
    def _rows_of_a_group(self) -> float:
        """Rows of such a group on average."""
        return self.num_rows / (self._groups.size - 1)

    @functools.cached_property
    def _suits_sell(self) -> bool:
        """Whether rows that lie together are about as long as each other, so that SELL has little fill-in."""
        starts, _ = sell_starts(self.matrix)
        return int(starts[-1]) <= MOST_FILL * self.matrix.nnz

    def capacity(self) -> int:
        """Return how many vectors' states fit into the device's memory at once, with a reserve."""
        # The staged kernel's codes and values, the rows' slots or the boxes' codes are yet to be made.
        formats = max(2 * self.dtype.itemsize, MOST_FILL * (self.dtype.itemsize + 4)) * self.matrix.nnz
        room = int(0.95 * free_bytes() - formats)
        return max(1, room // self._state_bytes)

    @property
    def _state_bytes(self) -> int:
        """Bytes of a vector's |ν_m⟩ and |ν_m−1⟩."""
        return 2 * self.num_rows * self.dtype.itemsize

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self._bounds

    def check_hermitian(self) -> None:
        """Raise ValueError where the matrix differs from its adjoint, or is not finite."""
        if not self.seen.finite:
            raise ValueError(NOT_FINITE)
        refuse_difference(self.seen.difference, self.seen.largest, self.dtype)

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps."""
        if packs(self.seen.longest) and self._rows_of_a_group >= LEAST_GROUPED:
            found = packed.tridiagonalize(self.matrix, self._groups, self.seen.bounds, self.seen.longest, steps)
            if found is not None:
                return self.frame.energies(*found)
        step = self._format(1).launcher(1)

        def product(v: Any, u: Any, etas: Any) -> None:
            step(v, u, 1.0, 0.0, 0.0, etas)

        return self.frame.energies(*tridiagonalize(product, lengthened(self.vector(1)), steps))

    def vector(self, seed: int) -> Any:
        """Return one random vector on the device, shape (N,)."""
        return self._format(1).random_block(seed, 0, 1)[:, 0]

    def apply(self, x: Any) -> Any:
        """Return H x of one vector on the device."""
        import cupy

        v = cupy.ascontiguousarray(cupy.asarray(x, self.dtype).reshape(-1, 1))
        w = cupy.zeros_like(v)
        self._format(1).launcher(1)(v, w, self.frame.unit, self.frame.offset, 0.0, cupy.empty((2, 1)))
        return w[:, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> StoredRecursion:
        """Return the recursion of a block of random vectors."""
        operator = self._format(num_vectors)
        require_free(num_vectors * self._state_bytes, f"the block of {num_vectors} vectors")
        block = operator.random_block(seed, first_vector, num_vectors)
        return StoredRecursion(operator, *self.frame.scaling(a, b), block)

    def start(self, vectors: Array, a: float, b: float) -> StoredRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        operator = self._format(vectors.shape[1])
        return StoredRecursion(operator, *self.frame.scaling(a, b), operator.to_block(vectors))


class StencilEngine:
    """The topological insulator's stencil on the GPU, an :class:`~spectile.kpm.types.Engine`.

    Parameters
    ----------
    sample : TopologicalInsulator
        H.
    dtype : dtype
        complex64 or complex128.
    """

    name = "cuda"

    def __init__(self, sample: TopologicalInsulator, dtype: np.dtype[Any]) -> None:
        import cupy

        self.xp = cupy
        self.num_rows, self.dtype = sample.shape[0], dtype
        self._bounds = sample.bounds()
        self.frame = Frame(Frame.around(self._bounds, dtype).offset)
        self.operator = StencilOperator(sample.moved(self.frame.offset), dtype)
        self.steps_a_sweep = most_steps_a_sweep(sample.ny, sample.nz, dtype.itemsize, describe())

    def capacity(self) -> int:
        """Return how many vectors' states fit into the device's memory at once, with a reserve."""
        return max(1, int(0.95 * free_bytes()) // self._state_bytes)

    @property
    def _state_bytes(self) -> int:
        """Bytes of a vector's |ν_m⟩ and |ν_m−1⟩; two steps a sweep write into a second pair."""
        return 2 * self.steps_a_sweep * self.num_rows * self.dtype.itemsize

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self._bounds

    def check_hermitian(self) -> None:
        """Do nothing: every hop has its adjoint, and the potential is real."""

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps."""
        sweep = self.operator.launcher(1, 1)

        def product(v: Any, u: Any, etas: Any) -> None:
            sweep(v, u, u, u, 1.0, 0.0, 0.0, etas.reshape(1, 2, 1))

        start = self.operator.to_block(lengthened(self.vector(1)).reshape(-1, 1))
        return self.frame.energies(*tridiagonalize(product, start, steps))

    def vector(self, seed: int) -> Any:
        """Return one random vector on the device, shape (N,)."""
        return self.operator.from_block(self.operator.random_block(seed, 0, 1))[:, 0]

    def apply(self, x: Any) -> Any:
        """Return H x of one vector on the device."""
        import cupy

        v = self.operator.to_block(cupy.asarray(x, self.dtype).reshape(-1, 1))
        w = cupy.zeros_like(v)
        self.operator.launcher(1, 1)(v, w, w, w, 1.0, self.frame.offset, 0.0, cupy.empty((1, 2, 1)))
        return self.operator.from_block(w)[:, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> StencilRecursion:
        """Return the recursion of a block of random vectors."""
        require_free(num_vectors * self._state_bytes, f"the block of {num_vectors} vectors")
        block = self.operator.random_block(seed, first_vector, num_vectors)
        return StencilRecursion(self.operator, *self.frame.scaling(a, b), block, self.steps_a_sweep)

    def start(self, vectors: Array, a: float, b: float) -> StencilRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        block = self.operator.to_block(vectors)
        return StencilRecursion(self.operator, *self.frame.scaling(a, b), block, self.steps_a_sweep)
