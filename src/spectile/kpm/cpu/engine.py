"""KPM on the CPU: compiled kernels for matrices and the topological insulator, NumPy for any other operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.memory import host_free_bytes, require_host_free
from spectile.kpm.bounds import scaling
from spectile.kpm.cpu.inspection import inspect
from spectile.kpm.cpu.kernels import subtract
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion, useful_threads
from spectile.kpm.operators.engine import ProductEngine, lengthened
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.stored import Inspection, StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.operators.user import OperatorEngine
from spectile.kpm.types import Array, Engine


def engine_of(operator: Operator, dtype: np.dtype[Any]) -> Engine:
    """Return the engine of an operator on the CPU; a matrix on a GPU is copied."""
    if isinstance(operator, StoredMatrix | TopologicalInsulator):
        return CpuEngine(operator, dtype)
    return OperatorEngine(operator, dtype, np, host_free_bytes)


class CpuEngine(ProductEngine):
    """A stored matrix or the topological insulator on the CPU, an :class:`~spectile.kpm.types.Engine`."""

    name = "cpu"
    xp = np
    _fitting = 0  # vectors of which the system said that their states fit

    def __init__(self, operator: StoredMatrix | TopologicalInsulator, dtype: np.dtype[Any]) -> None:
        self.num_rows, self.dtype = operator.shape[0], dtype
        self._seen: Inspection | None = None
        if isinstance(operator, StoredMatrix):
            given = operator.on_host()
            matrix = given.csr(dtype)
            self.lent = getattr(given.matrix, "format", "") == "csr" and np.may_share_memory(
                matrix.data, given.matrix.data
            )
            self._seen = inspect(matrix)
            self._bounds = self._seen.bounds
            self.frame = Frame.around(self._bounds, dtype)
            self.operator = CpuOperator.from_matrix(self.frame.inside(matrix, unlike=self._seen.difference > 0))
        else:
            self._bounds = operator.bounds()
            self.frame = Frame(Frame.around(self._bounds, dtype).offset)
            self.operator = CpuOperator.from_topological_insulator(operator.moved(self.frame.offset), dtype)

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once, with a reserve."""
        self._fitting = int(0.9 * host_free_bytes()) // self._state_bytes
        return max(1, self._fitting)

    def _require(self, vectors: int) -> None:
        """Raise MemoryError where a block is not held; the system is asked where its last answer does not say so."""
        if vectors > self._fitting:
            require_host_free(vectors * self._state_bytes, f"the block of {vectors} vectors")

    @property
    def _state_bytes(self) -> int:
        """Bytes of a vector's |ν_m⟩ and |ν_m−1⟩."""
        return 2 * self.num_rows * self.dtype.itemsize

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self._bounds

    def check_hermitian(self) -> None:
        """Compare a stored matrix with its adjoint; the topological insulator has one for every hop."""
        if self._seen is not None:
            self._seen.require_hermitian(self.dtype)

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        vector: Array = self.operator.from_block(self.operator.random_block(seed, 0, 1))[:, 0]
        return vector

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps, by the recurrence's own kernel and one pass behind it.

        Vectors keep their lengths, which the next step divides by, and energies are scaled as the certain bounds say:
        so nothing leaves the range of single precision.
        """
        a, b = scaling(self._bounds) if np.isfinite(self._bounds).all() else (1.0, 0.0)
        scale, shift = self.frame.scaling(a, b)
        v = self.operator.to_block(lengthened(self.vector(1), 1, np)[:, None])
        w = np.zeros_like(v)
        threads, blocks = useful_threads(self.num_rows, 1), np.array(self.operator.blocks(1))
        alphas: list[float] = []
        lengths = [1.0, float(np.linalg.norm(v))]
        while len(alphas) < steps and lengths[-1]:
            factor = scale / lengths[-1]
            factors = factor, -factor * shift, lengths[-1] / lengths[-2] if alphas else 0.0
            alphas.append(float(self.operator.update(v, w, *factors, threads, blocks)[1, 0]) / lengths[-1])
            lengths.append(subtract(v.reshape(-1), w.reshape(-1), alphas[-1] / lengths[-1]) ** 0.5)
            v, w = w, v
        return b + np.array(alphas) / a, np.array(lengths[2:]) / a

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        v = self.operator.to_block(x.reshape(-1, 1))
        w = np.zeros_like(v)
        factors = self.frame.unit, self.frame.offset, 0.0
        self.operator.update(v, w, *factors, useful_threads(self.num_rows, 1), self.operator.blocks())
        image: Array = (w[:, 0, 0] + 1j * w[:, 1, 0]) if self.operator.parts == 2 else w[:, 0, 0]
        return image

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> CpuRecursion:
        """Return the recursion of a block of random vectors."""
        self._require(num_vectors)
        block = self.operator.random_block(seed, first_vector, num_vectors)
        return CpuRecursion(self.operator, *self.frame.scaling(a, b), block)

    def start(self, vectors: Array, a: float, b: float) -> CpuRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        self._require(vectors.shape[1])
        return CpuRecursion(self.operator, *self.frame.scaling(a, b), self.operator.to_block(vectors))
