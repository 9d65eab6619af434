"""Operators that users write, and the recurrence for any operator by its product alone."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from spectile.core.host import refuse_masked
from spectile.kpm import reference
from spectile.kpm.operators.engine import Pair, ProductEngine
from spectile.kpm.operators.protocol import Operator, lies_on_gpu, namespace, on_host
from spectile.kpm.types import Array


class ProductOperator:
    """Any object with ``shape``, ``dtype`` and ``@``, as a LinearOperator of SciPy or CuPy, as an operator of ours."""

    def __init__(self, H: Any) -> None:
        self.H = H
        self.shape, self.dtype = (int(H.shape[0]), int(H.shape[1])), np.dtype(H.dtype)
        self.on_gpu = lies_on_gpu(H)

    def matmat(self, block: Any, out: Any) -> None:
        """Write H times `block` to `out`.

        Raises ValueError if the product has another shape, or is complex where H is real.
        """
        image = self.H @ block
        refuse_masked("H @ x", image)
        shape = getattr(image, "shape", None)
        if shape != out.shape:
            raise ValueError(f"H @ x has shape {shape} for an x of shape {block.shape}: it must have the same")
        if np.dtype(image.dtype).kind == "c" and out.dtype.kind != "c":
            raise ValueError(f"H @ x is {image.dtype} and H.dtype is {self.dtype}: give H a complex dtype")
        out[...] = image

    def bounds(self) -> None:
        """Return None: nothing is known of the spectrum."""

    def memory_bytes(self, num_vectors: int) -> int:
        """Return the bytes of the product before it is written, and on a GPU of the copy that cuSPARSE makes of x."""
        blocks = 2 if self.on_gpu else 1
        return blocks * self.shape[0] * num_vectors * self.dtype.itemsize


# Numbers of a block that are scaled and summed at a time: they stay in a processor's cache, and fill a GPU.
_TOGETHER = {"numpy": 1 << 15, "cupy": 1 << 20}


class OperatorEngine(ProductEngine):
    """An operator without kernels of its own, which is given arrays of NumPy or CuPy, on the CPU or on a GPU."""

    lent = True

    def __init__(self, operator: Operator, dtype: np.dtype[Any], xp: ModuleType, free_bytes: Any) -> None:
        self.operator, self.dtype, self.xp, self._free_bytes = operator, dtype, xp, free_bytes
        self.num_rows = int(operator.shape[0])
        self.name = "cpu" if xp is np else "cuda"

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once, with a reserve."""
        # |ν_m⟩, |ν_m−1⟩, H |ν_m⟩ and what the operator takes.
        each = 3 * self.num_rows * self.dtype.itemsize + self.operator.memory_bytes(1)
        return max(1, int(0.9 * self._free_bytes()) // each)

    def bounds(self) -> tuple[float, float] | None:
        """Return what the operator knows of its spectrum."""
        return self.operator.bounds()

    def apply(self, x: Any) -> Any:
        """Return H x of one vector."""
        # Rows that the operator leaves out stay NaN.
        image = self.xp.full((x.size, 1), np.nan, x.dtype)
        self.operator.matmat(x.reshape(-1, 1), image)
        return image[:, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> OperatorRecursion:
        """Return the recursion of a block of random vectors."""
        block = reference.random_phases(seed, self.num_rows, num_vectors, first_vector=first_vector, dtype=self.dtype)
        return OperatorRecursion(self.operator, a, b, self.xp.asarray(block))

    def start(self, vectors: Array, a: float, b: float) -> OperatorRecursion:
        """Return the recursion of given vectors, shape (N, R)."""
        return OperatorRecursion(self.operator, a, b, self.xp.asarray(vectors, self.dtype))


class OperatorRecursion(Pair):
    """The recurrence of the paper's Figure 5 by an operator's product; the block, shape (N, R), is taken over."""

    def __init__(self, operator: Operator, a: float, b: float, block: Any) -> None:
        self.operator, self.a, self.b = operator, a, b
        self.v, self.w = block, namespace(block).zeros_like(block)
        self.steps = 0

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        xp = namespace(self.v)
        etas = xp.zeros((2 * steps, self.num_vectors))
        image, wide = xp.empty_like(self.v), np.result_type(self.v.dtype, np.float64)
        rows, together = len(self.v), max(1, _TOGETHER[xp.__name__] // self.num_vectors)
        # What single precision leaves of b would move all energies alike.
        near = float(self.v.real.dtype.type(self.b))
        for m in range(steps):
            if self.steps:
                self.v, self.w = self.w, self.v
            self.operator.matmat(self.v, image)
            for first in range(0, rows, together):
                v, w, fresh = (each[first : first + together] for each in (self.v, self.w, image))
                fresh -= near * v
                if near != self.b:
                    fresh -= (self.b - near) * v
                if self.steps:
                    fresh *= 2 * self.a
                    xp.subtract(fresh, w, out=w)
                else:
                    xp.multiply(fresh, self.a, out=w)
                # NumPy adds columns up one row after the other: in float32 that loses digits with the number of rows.
                etas[2 * m] += xp.sum(v.conj() * v, axis=0, dtype=wide).real
                etas[2 * m + 1] += xp.sum(w.conj() * v, axis=0, dtype=wide).real
            self.steps += 1
        return on_host(etas)
