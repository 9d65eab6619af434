"""KPM on the topological insulator without a stored matrix: one or two steps a sweep (``kernel.cu``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.device import describe
from spectile.core.launch import Shape, kernel
from spectile.kpm.cuda.common import PACKAGE, REAL
from spectile.kpm.cuda.stencil.when import SweepTile, sweep_launch, sweep_tile
from spectile.kpm.operators.topological_insulator import MASS, TopologicalInsulator
from spectile.kpm.types import Array

_FILL = Shape((1024,), 256)


@functools.cache
def sweep_unit(dtype: str, nz: int, tile: SweepTile) -> Unit:
    """Return the unit of the matrix-free sweep: type, height of the sample, tile."""
    defines = {
        "REAL": REAL[dtype], "NZ": str(nz), "TY": str(tile.lines), "STEPS": str(tile.steps), "AHEAD": str(tile.ahead)
    }  # fmt: skip
    return Unit(PACKAGE, ("stencil/kernel.cu",), PORTABLE, defines)


@dataclass(frozen=True)
class Slab:
    """Planes x of the sample that one device holds."""

    #: Its own planes: `planes` from `first` on.
    first: int
    planes: int
    halo: int  #: Planes of the neighbours that it holds on either side: the steps of a sweep.


class StencilOperator:
    """The topological insulator without a stored matrix, the whole sample or a slab of it, which this device holds.

    Block vectors have the shape (R, nx, ny, 4, nz), or (R, halo + planes + halo, ny, 4, nz) with a slab.
    """

    def __init__(self, sample: TopologicalInsulator, dtype: Any = np.complex128, slab: Slab | None = None) -> None:
        import cupy

        self.sample, self.dtype, self.num_rows = sample, np.dtype(dtype), int(sample.shape[0])
        self.real = np.dtype(np.float64 if self.dtype == np.complex128 else np.float32)
        self.slab = slab
        self.held = np.arange(sample.nx)
        if slab is not None:
            self.held = np.arange(slab.first - slab.halo, slab.first + slab.planes + slab.halo) % sample.nx
        self.potential = cupy.asarray(sample.potential[self.held], self.real)

    def tile(self, steps: int) -> SweepTile:
        """Return the tile of a sweep of so many steps on the current device.

        Raises MemoryError if a line of the sample does not fit into a block's shared memory.
        """
        tile = sweep_tile(self.sample.ny, self.sample.nz, steps, self.dtype.itemsize, describe())
        if tile is None:
            raise MemoryError(
                f"nz={self.sample.nz} is too high for the matrix-free kernel: pass sample.matrix() instead"
            )
        return tile

    def unit(self, steps: int) -> Unit:
        """Return the unit that this operator launches for so many steps a sweep."""
        return sweep_unit(str(self.dtype), self.sample.nz, self.tile(steps))

    @property
    def strides(self) -> tuple[int, int]:
        """Return the distances, in numbers, of adjacent planes and of adjacent vectors."""
        plane = 4 * self.sample.ny * self.sample.nz
        return plane, plane * len(self.held)

    def launcher(self, num_vectors: int, steps: int) -> Any:
        """Return ``launch(v, w, v_out, w_out, scale, shift, keep, etas)``: one sweep of one or two steps."""
        import cupy

        sample, tile, unit = self.sample, self.tile(steps), self.unit(steps)
        sweep, sums = kernel(unit, "sweep"), kernel(unit, "sum_sweeps")
        first, planes = (0, sample.nx) if self.slab is None else (self.slab.halo, self.slab.planes)
        launched, groups = sweep_launch(
            tile, sample.ny, sample.nz, num_vectors * planes, self.dtype.itemsize, describe()
        )
        tiles = launched.grid[0] // groups
        partial = cupy.zeros((num_vectors, groups, tiles, 2 * steps))
        strides = [np.int64(stride) for stride in self.strides]
        summed = Shape((-(-2 * steps * num_vectors // 4),), 128)

        def launch(v: Any, w: Any, v_out: Any, w_out: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
            sweep(
                launched, v, w, v_out, w_out, self.potential, partial, np.int32(len(self.held)), np.int32(sample.ny),
                np.int32(tiles), np.int32(groups), np.int32(num_vectors), np.float64(scale), np.float64(shift),
                np.float64(keep), np.float64(sample.hopping), np.float64(MASS), *strides, np.int32(first),
                np.int32(planes),
            )  # fmt: skip
            sums(summed, partial, etas, np.int32(groups * tiles), np.int32(num_vectors))

        return launch

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return random start vectors in the kernel's layout."""
        block = self.empty(num_vectors)
        self.fill(block, seed, first_vector)
        return block

    def fill(self, block: Any, seed: int, first_vector: int) -> None:
        """Write random start vectors, on the planes of a slab's halo, too."""
        strides = [np.int64(stride) for stride in self.strides]
        kernel(self.unit(1), "random_spinors")(
            _FILL, block, np.int32(len(self.held)), np.int32(self.sample.ny), np.int32(len(block)), *strides,
            np.int64(self.held[0]), np.int64(self.sample.nx), np.uint64(seed), np.uint64(first_vector),
        )  # fmt: skip

    def empty(self, num_vectors: int) -> Any:
        """Return an unset block vector in the kernel's layout."""
        import cupy

        return cupy.empty(self.shape(num_vectors), self.dtype)

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block vector in the kernel's layout."""
        return num_vectors, len(self.held), self.sample.ny, 4, self.sample.nz

    def to_block(self, vectors: Any) -> Any:
        """Return vectors of shape (N, R) in the kernel's layout; a slab takes its planes of them."""
        import cupy

        sample = self.sample
        sites = vectors.reshape(sample.nx, sample.ny, sample.nz, 4, -1)
        if self.slab is not None:
            sites = sites[self.held]
        return cupy.ascontiguousarray(cupy.asarray(sites, self.dtype).transpose(4, 0, 1, 3, 2))

    def from_block(self, block: Any) -> Any:
        """Return a block vector of the kernel's layout as vectors of shape (N, R); a slab gives its own planes."""
        if self.slab is not None:
            block = block[:, self.slab.halo : self.slab.halo + self.slab.planes]
        return block.transpose(0, 1, 2, 4, 3).reshape(len(block), -1).T


class StencilRecursion:
    """The recurrence of a block, shape (R, nx, ny, 4, nz), on the topological insulator, one or two steps a sweep.

    The block is taken over; H̃ = a (H − b).  Steps are paired by their number, (1, 2), (3, 4), ..., so that results do
    not depend on how ``advance`` is called: a step that was computed ahead waits in `pending`.
    """

    def __init__(self, operator: StencilOperator, a: float, b: float, block: Any, steps_a_sweep: int = 2) -> None:
        import cupy

        self.operator, self.a, self.b, self.steps_a_sweep = operator, a, b, steps_a_sweep
        self.v, self.w = block, cupy.zeros_like(block)
        self.v_out = self.w_out = None
        self.steps = 0
        self.pending: Any = None
        self._launchers: dict[int, Any] = {}

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[0])

    def sweep(self, etas: Any) -> None:
        """Enqueue one sweep of ``len(etas)`` steps (1 or 2) that writes `etas`, shape (steps, 2, R)."""
        steps = len(etas)
        if steps not in self._launchers:
            self._launchers[steps] = self.operator.launcher(self.num_vectors, steps)
        launch = self._launchers[steps]
        factors = (2 * self.a, -2 * self.a * self.b, 1.0) if self.steps else (self.a, -self.a * self.b, 0.0)
        if steps == 1:
            if self.steps:
                self.v, self.w = self.w, self.v
            launch(self.v, self.w, self.w, self.w, *factors, etas)
        else:
            if self.v_out is None:
                self.v_out, self.w_out = (self.operator.empty(self.num_vectors) for _ in range(2))
            # v = ν_m (so far in w), w = ν_m−1 (so far in v); afterwards w_out = ν_m+1 and v_out = ν_m+2.
            launch(self.w, self.v, self.v_out, self.w_out, *factors, etas)
            self.v, self.w, self.v_out, self.w_out = self.w_out, self.v_out, self.v, self.w
        self.steps += steps

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        import cupy

        etas = cupy.empty((steps + 1, 2, self.num_vectors))
        done = 0
        if self.pending is not None and steps:
            etas[0] = cupy.asarray(self.pending)
            self.pending, done = None, 1
        while done < steps:
            count = 1 if self.steps == 0 else self.steps_a_sweep
            self.sweep(etas[done : done + count])
            done += count
        result = etas.get()
        if done > steps:
            self.pending = result[steps]
        return np.asarray(result[:steps].reshape(2 * steps, -1))

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step in the kernel's layout; where a step was done ahead it is the one before."""
        return [self.v if self.steps == 0 or self.pending is not None else self.w]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block as vectors of shape (N, R), or as these rows of them."""
        vectors = self.operator.from_block(blocks[0])
        return vectors if rows is None else vectors[rows]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        pending = np.empty((0, self.num_vectors)) if self.pending is None else self.pending
        return {"v": self.v.get(), "w": self.w.get(), "steps": np.array(self.steps), "pending": pending}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.v, self.w, self.steps = cupy.asarray(state["v"]), cupy.asarray(state["w"]), int(state["steps"])
        self.pending = state["pending"] if len(state["pending"]) else None
        self._launchers, self.v_out, self.w_out = {}, None, None
