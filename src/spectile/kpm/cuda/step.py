"""One step of the recurrence on a stored matrix: its launch, once or often, and the sums of its scalar products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.launch import Kernel, Shape, kernel
from spectile.kpm.cuda.common import vectors_unit

#: Steps whose scalar products are summed by one launch.
SUMMED = 16


class Step:
    """``W = scale H V + shift V − keep W`` and the scalar products ⟨V|V⟩ and Re ⟨W|V⟩ of each column.

    Parameters
    ----------
    launched : Kernel
        Takes `operands`, V, W, the blocks' scalar products, `settings`, scale, shift and keep.
    shape : Shape
        Its launch; a row of its grid is the blocks that share the rows of the matrix.
    operands : tuple
        The matrix.
    settings : callable
        ``settings(v)`` returns what is said of rows and columns.
    num_vectors : int
        R.
    dtype : dtype
        Type of V and W.
    dots : bool
        Whether the kernel writes scalar products.
    """

    def __init__(
        self,
        launched: Kernel,
        shape: Shape,
        operands: tuple[Any, ...],
        settings: Callable[[Any], tuple[Any, ...]],
        num_vectors: int,
        dtype: Any,
        dots: bool = True,
    ) -> None:
        self._launched, self._shape, self._operands, self._settings = launched, shape, operands, settings
        self._blocks, self._num_vectors, self._dots = shape.grid[0], num_vectors, dots
        self._sums = kernel(vectors_unit(str(dtype)), "sum_partials")
        self._once: Any = None

    def __call__(self, v: Any, w: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
        """Enqueue the step; its scalar products go to `etas`, shape (2, R)."""
        if self._once is None:
            self._once = self.partials(1)
        self._launched(self._shape, *self._arguments(v, w, self._once, scale, shift, keep))
        if self._dots:
            self.sum(self._once, etas)

    def bind(
        self, v: Any, w: Any, scale: float, shift: float, keep: float, overlaps: bool = False
    ) -> Callable[[int], None]:
        """Return ``launch(address)``: the step on these arrays; the blocks' scalar products go to `address`.

        With `overlaps` it may read the matrix before what comes before it in the stream has ended.
        """
        target = np.zeros(1, dtype=[("address", np.uint64)])
        shape = dataclasses.replace(self._shape, after_previous=overlaps)
        bound = self._launched.bind(shape, *self._arguments(v, w, target, scale, shift, keep))

        def launch(address: int) -> None:
            target["address"] = address
            bound()

        return launch

    def partials(self, steps: int) -> Any:
        """Return room for the scalar products of each block in so many steps."""
        import cupy

        return cupy.empty((steps, self._blocks, 2, self._num_vectors))

    def sum(self, partials: Any, etas: Any) -> None:
        """Enqueue the sums over the blocks, in their order: `etas` has the shape (steps, 2, R)."""
        size = 2 * self._num_vectors
        across = min(32, 1 << (size - 1).bit_length())
        shape = Shape((-(-size // across), len(partials)), 1024)
        self._sums(shape, partials, etas, np.int32(self._blocks), np.int32(size), np.int32(across))

    def _arguments(self, v: Any, w: Any, partial: Any, scale: float, shift: float, keep: float) -> tuple[Any, ...]:
        factors = np.float64(scale), np.float64(shift), np.float64(keep)
        return (*self._operands, v, w, partial, *self._settings(v), *factors)
