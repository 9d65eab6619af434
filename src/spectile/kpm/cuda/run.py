"""KPM on one CUDA device: which operator a matrix takes, and the view of it that the public functions work with."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.kpm.cuda.staged import StagedOperator, stages
from spectile.kpm.cuda.stencil import StencilOperator, StencilRecursion
from spectile.kpm.cuda.stored import StoredOperator, StoredRecursion
from spectile.kpm.cuda.units import PLAIN
from spectile.kpm.reference import Array


class GpuEngine:
    """H on the GPU, as :class:`spectile.kpm.engine.CpuEngine` is on the CPU."""

    name = "cuda"

    def __init__(self, H: Any, dtype: np.dtype[Any]) -> None:
        import cupy
        from cupyx.scipy import sparse

        from spectile.core.device import require_device

        require_device()
        self.xp = cupy
        self.num_rows, self.dtype = int(H.shape[0]), dtype
        self.operator: Any
        if hasattr(H, "gershgorin"):
            self.operator = StencilOperator(H, dtype)
            return
        if isinstance(H, np.ndarray | cupy.ndarray) or type(H).__module__.startswith("cupy"):
            matrix = sparse.csr_matrix(cupy.asarray(H) if isinstance(H, np.ndarray) else H)
        else:
            matrix = H.tocsr()
        matrix = matrix.astype(dtype)
        matrix.sum_duplicates()
        self._matrix = matrix
        self._formats: dict[str, StoredOperator] = {}
        self._unstaged: set[int] = set()  # widths of blocks that share too much of V for shared memory

    @staticmethod
    def takes(H: Any) -> bool:
        """Return whether the GPU has a kernel for this kind of operator."""
        import scipy.sparse

        return hasattr(H, "gershgorin") or scipy.sparse.issparse(H) or hasattr(H, "get") or isinstance(H, np.ndarray)

    def _stored(self, num_vectors: int) -> StoredOperator:
        # A thread a row reads SELL coalesced; wider blocks read a row's entries side by side in CSR.
        layout = "sell" if num_vectors <= 2 else "csr"
        if num_vectors not in self._unstaged and stages(num_vectors, self.dtype):
            try:
                operator = self._formats.get("staged") or StagedOperator(self._matrix)
                operator.unit(num_vectors)
                self._formats["staged"] = operator
                return operator
            except MemoryError:
                # Rows that couple too many others for shared memory: read V through the caches.
                self._unstaged.add(num_vectors)
        if layout not in self._formats:
            self._formats[layout] = StoredOperator(self._matrix, layout)
        return self._formats[layout]

    def capacity(self) -> int:
        """Return how many vectors' states fit into the device's memory at once, with some room."""
        from spectile.core.memory import free_bytes

        room = int(0.95 * free_bytes())
        if hasattr(self, "_matrix"):
            room -= 3 * self._matrix.data.nbytes  # SELL, and the staged kernel's codes and values, are yet to be made
        return max(1, room // (self._arrays * self.num_rows * self.dtype.itemsize))

    @property
    def _arrays(self) -> int:
        """Block vectors of one recursion: two steps a sweep write into a second pair."""
        return 2 if hasattr(self, "_matrix") else 4

    def vector(self, seed: int) -> Any:
        """Return one random vector on the device, shape (N,)."""
        if hasattr(self, "_matrix"):
            return self._stored(1).random_block(seed, 0, 1)[:, 0]
        return self.operator.from_block(self.operator.random_block(seed, 0, 1))[:, 0]

    def apply(self, x: Any) -> Any:
        """Return H x of one vector on the device."""
        import cupy

        x = cupy.asarray(x, self.dtype)
        if hasattr(self, "_matrix"):
            w = cupy.zeros((self.num_rows, 1), self.dtype)
            operator = self._stored(1)
            operator.launcher(1, PLAIN)(cupy.ascontiguousarray(x.reshape(-1, 1)), w, 1.0, 0.0, 0.0, None)
            return w[:, 0]
        v = self.operator.to_block(x.reshape(-1, 1))
        w = cupy.zeros_like(v)
        self.operator.launcher(1, 1)(v, w, w, w, 1.0, 0.0, 0.0, cupy.empty((1, 2, 1)))
        return self.operator.from_block(w)[:, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> Any:
        """Return the recursion of a block of random vectors."""
        operator = self._stored(num_vectors) if hasattr(self, "_matrix") else self.operator
        self._require(num_vectors)
        block = operator.random_block(seed, first_vector, num_vectors)
        return self._recursion(operator, a, b, block)

    def start(self, vectors: Array, a: float, b: float) -> Any:
        """Return the recursion of given vectors, shape (N, R)."""
        operator = self._stored(vectors.shape[1]) if hasattr(self, "_matrix") else self.operator
        return self._recursion(operator, a, b, operator.to_block(vectors))

    def _recursion(self, operator: Any, a: float, b: float, block: Any) -> Any:
        kind = StoredRecursion if isinstance(operator, StoredOperator) else StencilRecursion
        return kind(operator, a, b, block)

    def _require(self, num_vectors: int) -> None:
        from spectile.core.memory import require_free

        require_free(
            self._arrays * self.num_rows * num_vectors * self.dtype.itemsize, f"the block of {num_vectors} vectors"
        )
