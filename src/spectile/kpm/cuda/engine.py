"""KPM on one CUDA device: the engines of a stored matrix and of the stencil."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.choice import Candidate
from spectile.core.compile import prepare
from spectile.core.device import describe, require_device
from spectile.core.launch import measured_device
from spectile.core.memory import free_bytes, require_free
from spectile.kpm.bounds import lanczos_steps, tridiagonalize
from spectile.kpm.cuda.boxed.groups import groups_of
from spectile.kpm.cuda.boxed.launch import BoxedOperator
from spectile.kpm.cuda.boxed.when import LEAST_GROUPED, may_group
from spectile.kpm.cuda.choose import MOST_PADDED, Part, cheapest_way, choose, repays, ways
from spectile.kpm.cuda.common import FULL, WALK, lanczos_unit
from spectile.kpm.cuda.csr.launch import CsrOperator, csr_unit
from spectile.kpm.cuda.csr.when import shape as csr_shape
from spectile.kpm.cuda.csr.when import walks
from spectile.kpm.cuda.flat.launch import FlatOperator, flat_unit
from spectile.kpm.cuda.flat.when import shape as flat_shape
from spectile.kpm.cuda.inspection import inspect
from spectile.kpm.cuda.lanczos import tridiagonalize_by_products, tridiagonalize_csr
from spectile.kpm.cuda.problem import ORDINARY_STEPS, Problem, enqueued
from spectile.kpm.cuda.sliced.launch import SlicedOperator, sliced_unit
from spectile.kpm.cuda.sliced.when import MOST_FILL, even_slots, is_even
from spectile.kpm.cuda.sliced.when import shape as sliced_shape
from spectile.kpm.cuda.staged.launch import StagedOperator
from spectile.kpm.cuda.stencil import when as stencil
from spectile.kpm.cuda.stencil.launch import StencilOperator, StencilRecursion
from spectile.kpm.cuda.stored import MOST_NARROW, SplitRecursion, StoredOperator, StoredRecursion
from spectile.kpm.operators.engine import lengthened
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.operators.user import OperatorEngine
from spectile.kpm.types import MAX_BLOCK, Array, Engine


def engine_of(operator: Operator, dtype: np.dtype[Any], steps: int = 0) -> Engine:
    """Return the engine of an operator on the current device, for so many steps; 0 where they are not known."""
    import cupy

    require_device()
    if isinstance(operator, StoredMatrix):
        return StoredEngine(operator, dtype, steps)
    if isinstance(operator, TopologicalInsulator):
        if stencil.applies(operator.ny, operator.nz, dtype.itemsize, describe()) == "":
            return StencilEngine(operator, dtype)
        return StoredEngine(StoredMatrix(operator.matrix(dtype, xp=cupy)), dtype, steps)
    return OperatorEngine(operator, dtype, cupy, free_bytes)


class StoredEngine:
    """A stored matrix on the GPU, an :class:`~spectile.kpm.types.Engine`; the matrix may lie on the host."""

    name = "cuda"
    lent = False
    #: Whether steps add to sums of terms.
    adds_terms = True

    def __init__(self, operator: StoredMatrix, dtype: np.dtype[Any], steps: int = 0) -> None:
        import cupy

        self.xp = cupy
        self.num_rows, self.dtype, self._steps = operator.shape[0], dtype, steps or ORDINARY_STEPS
        self.matrix = operator.csr_on_gpu(dtype)
        self.seen = inspect(self.matrix)
        if not self.seen.canonical:
            self.matrix.sum_duplicates()
            self.seen = inspect(self.matrix)
        self._bounds = self.seen.bounds
        self.frame = Frame.around(self._bounds, dtype)
        if self.frame != Frame():
            difference, largest = self.seen.difference, self.seen.largest  # as large as rounding of H allows
            self.matrix = self.frame.inside(self.matrix, unlike=difference > 0)
            self.seen = inspect(self.matrix)._replace(difference=difference, largest=largest)
        self._device = measured_device()
        self._operators: dict[str, StoredOperator] = {}
        # What the inspectors of kernels have found, by kernel and width; the parts of blocks of so many vectors.
        self._found: dict[tuple[str, int], float | None] = {}
        self._chosen: dict[int, tuple[Part, ...]] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Begin to compile the step of one vector, before the matrix has the form that it takes."""
        problem, name = self.problem(1), str(self.dtype)
        prepare(lanczos_unit(name, wide=self.matrix.indptr.dtype.itemsize == 8))
        (part,) = choose(problem, self._device, {})
        if part.kernel == "csr":
            mode = WALK if walks(problem, self._device) else FULL
            prepare(csr_unit(name, 1, csr_shape(problem), wide=self.matrix.nnz > MOST_NARROW, mode=mode))
        elif part.kernel == "flat":
            prepare(flat_unit(name, 1, flat_shape(problem), wide=self.matrix.nnz > MOST_NARROW))
        elif part.kernel == "sliced":
            prepare(sliced_unit(name, 1, sliced_shape(problem, self._device), wide=problem.slots > MOST_NARROW))

    def problem(self, num_vectors: int) -> Problem:
        """Return what a kernel is chosen by; where no form can beat CSR, the others are not counted."""
        rows, entries = self.num_rows, self.matrix.nnz
        steps = self._steps + (lanczos_steps(rows) if num_vectors == 1 else 0)
        rough = Problem(rows, entries, self.seen.longest, entries, rows, str(self.dtype), num_vectors, steps)
        if walks(rough, self._device):
            return rough
        known = rough._replace(slots=self._slots)
        # Rows that are unlike the one before begin groups, as others may.
        alike = self.num_rows >= LEAST_GROUPED * self.seen.unlike
        if num_vectors > 1 and alike and may_group(self.seen.longest, self._device) and repays(known, self._device):
            return known._replace(groups=self._groups.size - 1)
        return known

    def candidates(self, num_vectors: int) -> list[Candidate]:
        """Return the ways to take a block of so many vectors, with what each is predicted to cost a step."""
        self._parts(num_vectors)
        return [way.candidate for way in ways(self.problem(num_vectors), self._device, self._found)]

    @functools.cached_property
    def _slots(self) -> int:
        """Slots of the sliced form."""
        if is_even(self.num_rows, self.matrix.nnz, self.seen.longest):
            return even_slots(self.num_rows, self.seen.longest)
        return self.seen.slots

    @functools.cached_property
    def _groups(self) -> Any:
        """The edges of groups of rows that share columns."""
        return groups_of(self.matrix)

    def _parts(self, num_vectors: int) -> tuple[Part, ...]:
        """Return how a block of so many vectors is taken, by kernels whose inspectors have agreed."""
        while num_vectors not in self._chosen:
            parts = choose(self.problem(num_vectors), self._device, self._found)
            asked = [(part.kernel, part.width) for part in parts if (part.kernel, part.width) not in self._found]
            for kernel, width in asked:
                self._found[kernel, width] = self._operator(kernel).beyond(width)
            if not asked:
                self._chosen[num_vectors] = parts
        # A form of the matrix that no block takes is let go.
        used = {part.kernel for parts in self._chosen.values() for part in parts}
        self._operators = {name: one for name, one in self._operators.items() if name in used}
        return self._chosen[num_vectors]

    def _operator(self, kernel: str) -> StoredOperator:
        """Return the matrix in the form that a kernel takes."""
        if kernel not in self._operators:
            longest = self.seen.longest
            self._operators[kernel] = {
                "csr": lambda: CsrOperator(self.matrix, longest),
                "flat": lambda: FlatOperator(self.matrix, longest),
                "sliced": lambda: SlicedOperator(self.matrix, longest),
                "staged": lambda: StagedOperator(self.matrix, longest=longest),
                "boxed": lambda: BoxedOperator(self.matrix, longest, self._groups),
            }[kernel]()
        return self._operators[kernel]

    def capacity(self) -> int:
        """Return how many vectors' states fit into the device's memory at once, with a reserve."""
        # A form that Lanczos steps took is let go where no block takes it.
        held = sum(operator.form_bytes for operator in self._operators.values())
        columns = int(0.95 * (free_bytes() + held) - self._form_bytes) // self._state_bytes
        return fitting(columns, lambda vectors: choose(self.problem(vectors), self._device, self._found))

    @property
    def _form_bytes(self) -> int:
        """Bytes of the slots, the staged kernel's codes and values, or the boxes' codes, at most."""
        item = self.dtype.itemsize
        return max(2 * item, math.ceil(MOST_FILL * (item + 4))) * int(self.matrix.nnz)

    @property
    def _state_bytes(self) -> int:
        """Bytes of a column's |ν_m⟩ and |ν_m−1⟩."""
        return 2 * self.num_rows * self.dtype.itemsize

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self._bounds

    def check_hermitian(self) -> None:
        """Raise ValueError where the matrix differs from its adjoint, or is not finite."""
        self.seen.require_hermitian(self.dtype)

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps."""
        largest = max(map(abs, self.seen.bounds))
        form = self._multiplying() if 0 < largest < math.inf else None
        if form is None:
            return self.frame.energies(*tridiagonalize_csr(self.matrix, steps))
        unit = 2.0 ** -math.frexp(largest)[1]
        return self.frame.energies(*tridiagonalize_by_products(self._operator(form), steps, unit))

    def _multiplying(self) -> str | None:
        """Return the kernel whose steps are a Lanczos step's products; None where all steps are one launch.

        That is where the host takes longer for two launches a step, or the kernel's form of the matrix has no room.
        """
        way = cheapest_way(self.problem(1), self._device, {})
        short = (way.candidate.seconds or 0.0) <= 2 * enqueued(self._device)
        room = self._form_bytes + 2 * self._state_bytes
        return None if short or free_bytes() < room else way.candidate.kernel

    def vector(self, seed: int) -> Any:
        """Return one random vector on the device, shape (N,)."""
        return self._one().random_block(seed, 0, 1)[:, 0]

    def apply(self, x: Any) -> Any:
        """Return H x of one vector on the device."""
        import cupy

        v = cupy.ascontiguousarray(cupy.asarray(x, self.dtype).reshape(-1, 1))
        w = cupy.zeros_like(v)
        self._one().launcher(1)(v, w, self.frame.unit, self.frame.offset, 0.0, cupy.empty((2, 1)))
        return w[:, 0]

    def _one(self) -> StoredOperator:
        """Return the matrix in the form that one vector takes."""
        return self._operator(self._parts(1)[0].kernel)

    def random(
        self, seed: int, first_vector: int, num_vectors: int, a: float, b: float
    ) -> StoredRecursion | SplitRecursion:
        """Return the recursion of a block of random vectors."""
        parts = self._parts(num_vectors)
        needed = sum(part.width for part in parts) * self._state_bytes
        require_free(needed, f"the block of {num_vectors} vectors")

        def block(part: Part, first: int) -> Any:
            return self._operator(part.kernel).random_block(seed, first_vector + first, part.vectors, part.width)

        return self._recursion(parts, block, a, b)

    def start(self, vectors: Array, a: float, b: float) -> StoredRecursion | SplitRecursion:
        """Return the recursion of given vectors, shape (N, R)."""

        def block(part: Part, first: int) -> Any:
            return self._operator(part.kernel).to_block(vectors[:, first : first + part.vectors], part.width)

        return self._recursion(self._parts(vectors.shape[1]), block, a, b)

    def _recursion(
        self, parts: tuple[Part, ...], block: Callable[[Part, int], Any], a: float, b: float
    ) -> StoredRecursion | SplitRecursion:
        """Return the recursion of parts, of which ``block(part, first)`` makes the vectors from number `first` on."""
        made, first = [], 0
        for part in parts:
            operator = self._operator(part.kernel)
            made.append(StoredRecursion(operator, *self.frame.scaling(a, b), block(part, first), part.vectors))
            first += part.vectors
        return made[0] if len(made) == 1 else SplitRecursion(made)


def fitting(columns: int, parts: Callable[[int], tuple[Part, ...]]) -> int:
    """Return how many vectors have parts with no more than so many columns together; one at least.

    The most where they are one block.  Of several whole ones have no other columns, and of the last that many.
    """
    whole, left = divmod(columns, MAX_BLOCK)
    if whole:
        return whole * MAX_BLOCK + max(0, left - MOST_PADDED)
    while left > 1 and sum(part.width for part in parts(left)) > columns:
        left -= 1
    return max(1, left)


class StencilEngine:
    """The topological insulator's stencil on the GPU, an :class:`~spectile.kpm.types.Engine` of complex numbers."""

    name = "cuda"
    lent = False

    def __init__(self, sample: TopologicalInsulator, dtype: np.dtype[Any]) -> None:
        import cupy

        self.xp = cupy
        self.num_rows, self.dtype = sample.shape[0], dtype
        self._bounds = sample.bounds()
        self.frame = Frame(Frame.around(self._bounds, dtype).offset)
        self.operator = StencilOperator(sample.moved(self.frame.offset), dtype)
        self.steps_a_sweep = stencil.most_steps_a_sweep(sample.ny, sample.nz, dtype.itemsize, describe())

    def candidates(self, num_vectors: int) -> list[Candidate]:
        """Return the sweep, with what it is predicted to cost a step."""
        steps = self.steps_a_sweep
        cost = stencil.cost(self.num_rows, num_vectors, self.dtype.itemsize, steps, describe())
        return [Candidate("stencil", cost, f"no stored matrix, {steps} steps a sweep")]

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
        start = lengthened(self.vector(1), 1, self.xp)
        return self.frame.energies(*tridiagonalize(lambda x: self._times(x, 0.0), start, steps, self.xp))

    def vector(self, seed: int) -> Any:
        """Return one random vector on the device, shape (N,)."""
        return self.operator.from_block(self.operator.random_block(seed, 0, 1))[:, 0]

    def apply(self, x: Any) -> Any:
        """Return H x of one vector on the device."""
        return self._times(x, self.frame.offset)

    def _times(self, x: Any, offset: float) -> Any:
        """Return (H' + offset) x of one vector on the device."""
        import cupy

        v = self.operator.to_block(cupy.asarray(x, self.dtype).reshape(-1, 1))
        w = cupy.zeros_like(v)
        self.operator.launcher(1, 1)(v, w, w, w, 1.0, offset, 0.0, cupy.empty((1, 2, 1)))
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
