"""One step of the recurrence on a stored matrix: its launch, once or often, and the sums of its scalar products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectile.core.launch import Kernel, Shape, kernel
from spectile.core.pointers import address
from spectile.kpm.cuda.common import vectors_unit
from spectile.kpm.types import Array

#: Steps whose scalar products are summed by one launch, and most of one launch.
SUMMED, WALKED = 16, 64
#: Sums of terms that a step can add to (``series.cuh``).
MOST_SUMS = 16
# What ``csr/kernel.cu`` takes of many steps; the first of it is what the others take of one.
_WALK = [("address", np.uint64), ("arrived", np.uint64), ("steps", np.int32), ("first", np.int32)]


class Step:
    """``W = scale H V + shift V − keep W`` and the scalar products ⟨V|V⟩ and Re ⟨W|V⟩ of each column.

    Parameters
    ----------
    launched : Kernel
        Takes `operands`, V, W, the blocks' scalar products, `settings`, scale, shift and keep, and sums of terms.
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
    walks : bool
        Whether a launch makes many steps, in which V and W take turns.
    before : (Step, cupy.ndarray) or None
        A product that comes before, and its W.
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
        walks: bool = False,
        before: tuple[Step, Any] | None = None,
    ) -> None:
        import cupy

        self.walks, self._before = walks, before
        self._launched, self._shape, self._operands, self._settings = launched, shape, operands, settings
        self._blocks, self._num_vectors, self._dots = shape.grid[0], num_vectors, dots
        self._sums = kernel(vectors_unit(str(dtype)), "sum_partials")
        self._once: Any = None
        self._arrived = cupy.zeros(1, np.uint64) if walks else None  # blocks that have met

    def __call__(self, v: Any, w: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
        """Enqueue the step; its scalar products go to `etas`, shape (2, R)."""
        if self._once is None:
            self._once = self.partials(1)
        if self._before:
            product, image = self._before
            product(v, image, 1.0, 0.0, 0.0, None)
        self._launched(self._shape, *self._arguments(v, w, self._once, scale, shift, keep))
        if self._dots:
            self.sum(self._once, etas)

    def bind(
        self, v: Any, w: Any, factors: tuple[float, float, float], series: tuple[Array, ...] = ()
    ) -> Callable[..., None]:
        """Return ``launch(address)``: the step on these arrays; the blocks' scalar products go to `address`.

        One that walks is ``launch(address, steps, first)``: `first` says whether the recurrence begins.

        `series` is what a kernel of that mode adds to, read at each launch.
        """
        shape = dataclasses.replace(self._shape, cooperative=self.walks)
        target = np.zeros(1, dtype=_WALK if self.walks else _WALK[:1])
        bound = self._launched.bind(shape, *self._arguments(v, w, target, *factors), *series)
        if self.walks:
            target["arrived"] = address(self._arrived)

        product = self._before and self._before[0].bind(v, self._before[1], (1.0, 0.0, 0.0))

        def launch(place: int) -> None:
            if product:
                product(0)
            target["address"] = place
            bound()

        def walk(place: int, steps: int, first: bool) -> None:
            target["address"], target["steps"], target["first"] = place, steps, first
            bound()

        return walk if self.walks else launch

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


class Steps:
    """Steps of one kernel on two arrays that take turns, enqueued one at a time; their scalar products, until read.

    The arrays are |ν_m−1⟩ and |ν_m⟩, or |ν₀⟩ and zeros; H̃ = a (H − b), and `series` is as for :meth:`Step.bind`.
    """

    def __init__(self, step: Step, v: Any, w: Any, a: float, b: float, series: tuple[Array, ...] = ()) -> None:
        self._step, self._pairs, self._series = step, ((v, w), (w, v)), series
        self._first, self._further = (a, -a * b, 0.0), (2 * a, -2 * a * b, 1.0)
        self._bound = [step.bind(*pair, self._further, series) for pair in self._pairs]
        self._room = WALKED if step.walks else SUMMED
        self._partials = step.partials(self._room)
        self._address, self._bytes = address(self._partials), self._partials[0].nbytes
        self._filled = 0
        self._sums: list[Any] = []

    def enqueue(self, turn: int, first: bool, left: int) -> int:
        """Enqueue a step, or up to `left` of them, on the arrays of this turn, and return how many."""
        place = self._address + self._filled * self._bytes
        made = 1
        if self._step.walks:
            made = min(left, self._room - self._filled)
            self._bound[turn](place, made, first)
        elif first:
            self._step.bind(*self._pairs[turn], self._first, self._series)(place)
        else:
            self._bound[turn](place)
        self._filled += made
        if self._filled == self._room:
            self.sum()
        return made

    def collect(self) -> list[Any]:
        """Return the scalar products of the steps since the last call, arrays of shape (steps, 2, R) on the device."""
        self.sum()
        found, self._sums = self._sums, []
        return found

    def sum(self) -> None:
        """Enqueue the sums of what the steps so far have left."""
        import cupy

        if self._filled:
            etas = cupy.empty((self._filled, *self._partials.shape[2:]))
            self._step.sum(self._partials[: self._filled], etas)
            self._sums.append(etas)
            self._filled = 0


class Series:
    """Sums of terms that steps add to, as ``series.cuh`` takes them.

    They are up to `MOST_SUMS` arrays like V; steps have `terms` at hand.
    """

    def __init__(self, totals: Sequence[Any], terms: int) -> None:
        real = np.empty(0, totals[0].dtype).real.dtype
        self._totals = list(totals)
        self._addresses = np.array([address(total) for total in totals], np.uint64)
        kind = [("count", np.int64), ("total", np.uint64, MOST_SUMS), ("weights", real, (MOST_SUMS, terms, 2))]
        self.argument = np.zeros(1, kind)

    def take(self, weights: Array) -> None:
        """Let the next step add to the sums its terms by these weights, shape (K, T), the oldest term first."""
        active = np.flatnonzero(weights.any(axis=1))
        mine = weights[active]
        self.argument["count"] = len(active)
        self.argument["total"][0, : len(active)] = self._addresses[active]
        self.argument["weights"][0, : len(active), :, 0] = mine.real
        self.argument["weights"][0, : len(active), :, 1] = mine.imag
