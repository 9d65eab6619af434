"""KPM on the CPU: compiled kernels for matrices and the topological insulator, NumPy for any other operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.memory import host_free_bytes, require_host_free
from spectile.kpm import reference
from spectile.kpm.bounds import gershgorin
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion, useful_threads
from spectile.kpm.operators.engine import ProductEngine
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.stored import StoredMatrix, check_hermitian
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

    def __init__(self, operator: StoredMatrix | TopologicalInsulator, dtype: np.dtype[Any]) -> None:
        self.num_rows, self.dtype = operator.shape[0], dtype
        self._matrix: Any = None
        if isinstance(operator, StoredMatrix):
            self._matrix = operator.on_host().csr(dtype)
            self._bounds = gershgorin(self._matrix)
            self.frame = Frame.around(self._bounds, dtype)
            self.operator = CpuOperator.from_matrix(self.frame.inside(self._matrix))
        else:
            self._bounds = operator.bounds()
            self.frame = Frame(Frame.around(self._bounds, dtype).offset)
            self.operator = CpuOperator.from_topological_insulator(operator.moved(self.frame.offset), dtype)

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once, with a reserve."""
        return max(1, int(0.9 * host_free_bytes()) // self._state_bytes)

    @property
    def _state_bytes(self) -> int:
        """Bytes of a vector's |ν_m⟩ and |ν_m−1⟩."""
        return 2 * self.num_rows * self.dtype.itemsize

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return self._bounds

    def check_hermitian(self) -> None:
        """Compare a stored matrix with its adjoint; the topological insulator has one for every hop."""
        if self._matrix is not None:
            check_hermitian(self._matrix)

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        real = self.dtype.kind != "c"
        return reference.random_phases(seed, self.num_rows, 1, real=real, dtype=self.dtype)[:, 0]

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
        require_host_free(num_vectors * self._state_bytes, f"the block of {num_vectors} vectors")
        block = self.operator.random_block(seed, first_vector, num_vectors)
        return CpuRecursion(self.operator, *self.frame.scaling(a, b), block)

    def start(self, vectors: Array, a: float, b: float) -> CpuRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        require_host_free(vectors.shape[1] * self._state_bytes, f"the block of {vectors.shape[1]} vectors")
        return CpuRecursion(self.operator, *self.frame.scaling(a, b), self.operator.to_block(vectors))
