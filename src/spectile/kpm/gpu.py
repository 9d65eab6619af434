"""KPM on a CUDA device: stored matrices (CSR and SELL-C-sigma) and the matrix-free topological insulator.

Everything runs on CuPy's current device and stream; a recursion synchronises once at the end of ``advance``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spectile.gpu.compile import Unit
from spectile.kpm.reference import Array
from spectile.kpm.sell import SellMatrix

ARCHS = ("sm_80", "sm_90a", "sm_100")
BULK_ARCHS = ("sm_90a", "sm_100")
# Height of SELL chunks: rows of a warp when a thread has a row of its own.
SELL_CHUNK = 32
#: Sites of a strip of the plane (``TopologicalInsulator.matrix``): the patch that one multiprocessor works on.
STRIP = 8
# More threads than this a block leave each too few registers.
_MOST_SWEEP_THREADS = {1: 480, 2: 380}
_REAL = {np.dtype("complex128"): "double", np.dtype("complex64"): "float"} | {
    np.dtype("float64"): "double", np.dtype("float32"): "float"
}  # fmt: skip
PLAIN, NO_DOTS, FULL = 0, 1, 2


@functools.cache
def stored_unit(
    dtype: str,
    num_vectors: int,
    *,
    layout: str = "csr",
    wide: bool = False,
    mode: int = FULL,
    tuning: tuple[int, ...] = (),
) -> Unit:
    """Return the unit of the stored-matrix kernel for a type and a width of the block vector.

    Parameters
    ----------
    dtype : str
        complex128, complex64, float64 or float32.
    num_vectors : int
        R.
    layout : {"csr", "sell"}
        Storage format.
    wide : bool
        64-bit row pointers.
    mode : int
        PLAIN (W = H V), NO_DOTS (augmented) or FULL.
    tuning : (lanes, columns, unroll, threads, blocks) or ()
        Shape of the kernel; empty takes :func:`stored_shape`.
    """
    lanes, columns, unroll, threads, blocks = tuning or stored_shape(num_vectors)
    defines = {
        "REAL": _REAL[np.dtype(dtype)], "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": str(lanes),
        "COLUMNS": str(columns), "UNROLL": str(unroll), "THREADS": str(threads), "BLOCKS": str(blocks),
        "WIDE": str(int(wide)), "SELL": str(SELL_CHUNK if layout == "sell" else 0),
        "MODE": str(mode), "EXACT": str(int(num_vectors % (lanes * columns) == 0)),
    }  # fmt: skip
    return Unit("kpm", ("block.cu", "rows.cu"), ARCHS, defines)


# Widest block vector and the shape that was fastest for it on an H200 (docs/performance/kpm.md).
_SHAPES = (
    (1, (1, 1, 7, 768, 1)),
    (2, (2, 1, 4, 512, 2)),
    (4, (4, 1, 4, 1024, 1)),
    (8, (8, 1, 4, 512, 2)),
    (16, (8, 2, 2, 1024, 1)),
    (32, (8, 4, 4, 512, 1)),
)


def stored_shape(num_vectors: int) -> tuple[int, int, int, int, int]:
    """Return (threads a row, vectors a thread, entries in flight, threads a block, blocks a multiprocessor)."""
    for most, shape in _SHAPES:
        if num_vectors <= most:
            return shape
    # Two columns a thread and passes of 32 vectors: wider ones leave the L1 cache (measured).
    return 16, 2, 4, 640, 1


@functools.cache
def sweep_unit(real: str, nz: int, lines: int, ahead: int, steps: int) -> Unit:
    """Return the unit of the matrix-free sweep: type, height of the sample, lines of a tile, planes ahead, steps."""
    defines = {"REAL": real, "NZ": str(nz), "TY": str(lines), "STEPS": str(steps), "AHEAD": str(ahead)}
    return Unit("kpm", ("stencil.cu",), ARCHS, defines)


# Pages of a tile, tiles in flight, warps that compute and warps that issue copies of ``staged.cu``.
TUNING = (4, 5, 12, 4)
#: Bytes of a row that eight threads of ``staged.cu`` hold, 16 bytes each.
PIECE_BYTES = 128


def staged_shape(num_vectors: int, dtype: Any) -> tuple[int, int]:
    """Return (16-byte pieces a thread, columns of a chunk) for R vectors."""
    vector = 16 // np.dtype(dtype).itemsize
    for pieces in (1, 2, 4):
        if num_vectors <= 8 * pieces * vector:
            break
    return pieces, 8 * pieces * vector


@functools.cache
def staged_unit(
    dtype: str,
    num_vectors: int,
    *,
    slots: int,
    code_bytes: int,
    value_bytes: int,
    dictionary: int = 0,
    work: str = "",
    mode: int = FULL,
    tuning: tuple[int, int, int, int] = TUNING,
) -> Unit:
    """Return the unit of the staged kernel.

    Parameters
    ----------
    dtype : str
        Storage type of matrix and vectors.
    num_vectors : int
        R.
    slots, code_bytes, value_bytes : int
        Pages of V in shared memory; bytes of a tile's codes and values at most.
    dictionary : int
        Values in the table, 0 where each entry's value is stored.
    work : str
        Storage type whose precision the arithmetic has; `dtype` if empty.
    mode : int
        As for :func:`stored_unit`.
    tuning : (tile, depth, workers, producers)
        Pages of a tile, tiles in flight, warps that compute, warps that issue copies.
    """
    pieces, chunk = staged_shape(num_vectors, dtype)
    tile, depth, workers, producers = tuning
    defines = {
        "REAL": _REAL[np.dtype(dtype)], "WORK": _REAL[np.dtype(work or dtype)],
        "COMPLEX": str(int(np.dtype(dtype).kind == "c")), "LANES": "8", "COLUMNS": str(chunk // 8),
        "UNROLL": "1", "THREADS": str(32 * (workers + producers)), "PRODUCERS": str(producers),
        "BLOCKS": "1", "WIDE": "0", "SELL": "0", "MODE": str(mode),
        "EXACT": str(int(num_vectors % chunk == 0)), "PIECES": str(pieces), "TILE": str(tile), "DEPTH": str(depth),
        "SLOTS": str(slots), "CODE_BYTES": str(code_bytes), "VALUE_BYTES": str(value_bytes),
        "DICTIONARY": str(dictionary),
    }  # fmt: skip
    return Unit("kpm", ("block.cu", "staged.cu"), BULK_ARCHS, defines)


# What CI compiles: every type, every shape, both formats, every mode, both sweeps.
UNITS = (
    *(stored_unit("complex128", r) for r in (4, 8, 16, 31, 32, 64)),
    stored_unit("complex128", 1, layout="sell"),
    *(stored_unit("complex128", 32, mode=mode) for mode in (PLAIN, NO_DOTS)),
    stored_unit("complex128", 32, wide=True),
    *(stored_unit(dtype, 32) for dtype in ("complex64", "float64", "float32")),
    *(sweep_unit("double", 40, *tile) for tile in ((12, 1, 1), (7, 2, 2))),
    sweep_unit("float", 40, 7, 2, 2),
    *(
        staged_unit(
            dtype, width, slots=96, code_bytes=576, value_bytes=0 if table else 4096, dictionary=table, work=work,
            mode=mode,
        )
        for dtype, width, table, work, mode in (
            ("complex128", 32, 0, "", FULL), ("complex128", 32, 0, "", NO_DOTS), ("complex128", 32, 0, "", PLAIN),
            ("complex128", 45, 16, "", FULL), ("complex64", 32, 0, "complex128", FULL), ("complex64", 32, 0, "", FULL),
            ("float64", 40, 0, "", FULL), ("float32", 64, 2, "", FULL),
        )
    ),
    Unit("kpm", ("peak.cu",), ARCHS),
)  # fmt: skip


def sum_of_partials(unit: Unit, partial: Any) -> Any:
    """Return ``total(etas)``, which sums the blocks' scalar products, shape (blocks, 2, R), in their order."""
    kernel, blocks, size = unit.function("sum_partials"), len(partial), partial[0].size

    def total(etas: Any) -> None:
        kernel((-(-size // 64),), (64,), (partial, etas, np.int32(blocks), np.int32(size)))

    return total


class StoredOperator:
    """A stored Hermitian matrix on the device.

    Parameters
    ----------
    matrix : scipy or cupyx CSR matrix, shape (N, N)
        float32, float64, complex64 or complex128.
    layout : {"csr", "sell"}
        Storage format: CSR, or SELL-32, which suits a row to a thread.
    wave_rows : int or None
        Rows of one wave (``kernels.cu``): the rows of a lattice plane, where they are known.
    tuning : tuple
        As for :func:`stored_unit`.
    """

    def __init__(self, matrix: Any, layout: str = "csr", wave_rows: int | None = None, tuning: Any = ()) -> None:
        import cupy

        self.num_rows, self.dtype, self.layout = int(matrix.shape[0]), np.dtype(matrix.dtype), layout
        self.wave_rows, self.tuning = wave_rows, tuning
        if layout == "sell":
            stored = SellMatrix.from_csr(matrix, SELL_CHUNK)
            self.starts = cupy.asarray(stored.chunk_start), cupy.asarray(stored.row_length)
            self.indices, self.data = cupy.asarray(stored.indices), cupy.asarray(stored.data)
        else:
            self.starts = cupy.asarray(matrix.indptr), cupy.zeros(1, np.int32)
            self.indices, self.data = cupy.asarray(matrix.indices), cupy.asarray(matrix.data)
        self.indices = self.indices.astype(np.int32, copy=False)
        self.wide = self.starts[0].dtype.itemsize == 8

    def unit(self, num_vectors: int, mode: int = FULL) -> Unit:
        """Return the unit that this operator launches for R vectors."""
        return stored_unit(
            str(self.dtype), num_vectors, layout=self.layout, wide=self.wide, mode=mode, tuning=tuple(self.tuning)
        )

    def launcher(self, num_vectors: int, mode: int = FULL, rows: tuple[int, int] | None = None) -> Any:
        """Return ``launch(v, w, scale, shift, keep, etas)``: one step; FULL mode writes `etas`, shape (2, R).

        `rows` (start, stop) names the rows to compute; None takes all.
        """
        import cupy

        from spectile.gpu.device import describe

        unit = self.unit(num_vectors, mode)
        lanes, columns, threads = (int(unit.defines[key]) for key in ("LANES", "COLUMNS", "THREADS"))
        kernel = unit.function("aug_spmmv")
        kernel.preferred_shared_memory_carveout = 0  # all of it to L1, which holds the rows of V that come again
        blocks = describe().multiprocessors * int(unit.defines["BLOCKS"])
        grid = (blocks, -(-num_vectors // (lanes * columns)))
        start, stop = rows or (0, self.num_rows)
        wave = max(1, (self.wave_rows or blocks * threads // lanes) // (32 // lanes))
        partial = cupy.empty((blocks, 2, num_vectors))
        total = sum_of_partials(unit, partial)

        def launch(v: Any, w: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
            kernel(
                grid,
                (threads,),
                (
                    *self.starts, self.indices, self.data, v, w, partial, np.int64(start), np.int64(stop),
                    np.int64(wave), np.int32(num_vectors), np.float64(scale), np.float64(shift), np.float64(keep),
                ),
            )  # fmt: skip
            if mode == FULL:
                total(etas)

        return launch

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return a block of random start vectors."""
        import cupy

        block = cupy.empty(self.shape(num_vectors), self.dtype)
        self.fill(block, seed, first_vector)
        return block

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block of R vectors, (N, R)."""
        return self.num_rows, num_vectors

    def to_block(self, vectors: Any) -> Any:
        """Return vectors of shape (N, R) as a block on the device."""
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(vectors, self.dtype))

    def fill(self, block: Any, seed: int, first_vector: int, order: Any = None) -> None:
        """Write random start vectors; `order` (int32) names the original row of each row, if rows are renumbered."""
        kernel = self.unit(block.size // block.shape[-2]).function("random_phases")
        for part in block if block.ndim == 3 else [block]:
            rows, width = part.shape
            kernel(
                (1024,), (256,),
                (
                    part, np.uint64(0) if order is None else order, np.int64(rows), np.int32(width), np.uint64(seed),
                    np.uint64(first_vector),
                ),
            )  # fmt: skip
            first_vector += width


def rows_in_strips(sample: Any, planes: Any, strip: int, xp: Any) -> Any:
    """Return the natural number of each row of planes that are numbered in strips (``TopologicalInsulator.matrix``).

    Parameters
    ----------
    sample : TopologicalInsulator
        The sample.
    planes : sequence of int
        Planes, in their order.
    strip : int
        Sites of a strip.
    xp : module
        numpy or cupy.

    Returns
    -------
    ndarray, int32
    """
    site = xp.arange(sample.ny * sample.nz, dtype=np.int32).reshape(sample.ny, sample.nz // strip, strip)
    in_plane = site.transpose(1, 0, 2).reshape(-1, 1) * 4 + xp.arange(4, dtype=np.int32)
    first = xp.asarray(np.asarray(planes, dtype=np.int32) * np.int32(4 * sample.ny * sample.nz))
    return (first[:, None] + in_plane.ravel()).ravel()


class StoredRecursion:
    """The recurrence of a block of vectors on a stored matrix.

    Parameters
    ----------
    operator : StoredOperator
        H.
    a, b : float
        H̃ = a (H − b).
    block : cupy.ndarray, the operator's shape of R vectors
        |ν₀⟩, taken over.
    """

    def __init__(self, operator: StoredOperator, a: float, b: float, block: Any) -> None:
        import cupy

        self.operator, self.a, self.b = operator, a, b
        self.v, self.w = block, cupy.zeros_like(block)
        self.steps = 0
        self._launch = operator.launcher(self.num_vectors)

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.size // self.operator.num_rows)

    def enqueue(self, etas: Any) -> None:
        """Enqueue ``len(etas)`` steps that write their scalar products to `etas`, shape (steps, 2, R)."""
        for target in etas:
            if self.steps == 0:
                self._launch(self.v, self.w, self.a, -self.a * self.b, 0.0, target)
            else:
                self.v, self.w = self.w, self.v
                self._launch(self.v, self.w, 2 * self.a, -2 * self.a * self.b, 1.0, target)
            self.steps += 1

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""
        import cupy

        etas = cupy.empty((steps, 2, self.num_vectors))
        self.enqueue(etas)
        return np.asarray(etas.get().reshape(2 * steps, -1))

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"v": self.v.get(), "w": self.w.get(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        import cupy

        self.v, self.w, self.steps = cupy.asarray(state["v"]), cupy.asarray(state["w"]), int(state["steps"])
        self._launch = self.operator.launcher(self.num_vectors)


@dataclass(frozen=True)
class Slab:
    """Planes x of the sample that one device holds.

    Attributes
    ----------
    first, planes : int
        Its own planes: `planes` from `first` on.
    halo : int
        Planes of the neighbours that it holds on either side: the steps of a sweep.
    """

    first: int
    planes: int
    halo: int

    @property
    def edge(self) -> int:
        """Planes on either side that are computed first: a quarter, since few planes at a time are read many times."""
        return max(self.halo, self.planes // 4)


Part = Literal["all", "boundary", "interior"]


class StencilOperator:
    """The topological insulator without a stored matrix.

    Parameters
    ----------
    sample : spectile.inputs.topological_insulator.TopologicalInsulator
        The Hamiltonian.
    dtype : dtype
        complex128 or complex64.
    slab : Slab or None
        Planes that this device holds; None holds the whole periodic sample.  Block vectors of a slab have the shape
        (halo + planes + halo, R, ny, 4, nz), so that planes of all vectors are contiguous; else (R, nx, ny, 4, nz).
    """

    def __init__(self, sample: Any, dtype: Any = np.complex128, slab: Slab | None = None) -> None:
        import cupy

        self.sample, self.dtype, self.num_rows = sample, np.dtype(dtype), int(sample.shape[0])
        self.real = np.dtype(np.float64 if self.dtype == np.complex128 else np.float32)
        self.slab = slab
        self.held = np.arange(sample.nx)
        if slab is not None:
            self.held = np.arange(slab.first - slab.halo, slab.first + slab.planes + slab.halo) % sample.nx
        self.potential = cupy.asarray(sample.potential[self.held], self.real)

    def tile(self, steps: int) -> tuple[int, int]:
        """Return (lines of a tile, planes ahead) that make the fewest lines be read, within one block.

        Raises
        ------
        MemoryError
            If not even one line fits into shared memory.
        """
        from spectile.gpu.device import describe

        ny, nz = self.sample.ny, self.sample.nz
        best, choice = math.inf, (0, 0)
        for lines in range(1, min(ny, 64) + 1):
            threads = (lines + 2 * (steps - 1)) * nz
            if threads > (_MOST_SWEEP_THREADS[steps] if lines > 1 else 1024):
                break
            # Two planes on their way where the sweep computes twice a plane and memory allows it.
            for ahead in (2, 1) if steps == 2 else (1,):
                if self.shared_bytes(lines, steps, ahead) <= describe().shared_bytes - 1024:
                    # The last tile's idle threads cost nothing where the memory bus is the limit: lines read count.
                    cost = ny / lines * (lines + 2 * steps)
                    if cost <= best:
                        best, choice = cost, (lines, ahead)
                    break
        if choice == (0, 0):
            raise MemoryError(f"nz={nz} is too high for the matrix-free kernel: pass sample.matrix() instead")
        return choice

    def unit(self, steps: int) -> Unit:
        """Return the unit that this operator launches for so many steps a sweep."""
        return sweep_unit(_REAL[self.dtype], self.sample.nz, *self.tile(steps), steps)

    def shared_bytes(self, lines: int, steps: int, ahead: int) -> int:
        """Return the dynamic shared memory of a block."""
        inner = lines + 2 * (steps - 1)
        planes = (ahead + 2) * (lines + 2 * steps) + (ahead + 1 + 2 * (steps - 1)) * inner
        return planes * 4 * self.sample.nz * self.dtype.itemsize

    def strides(self, num_vectors: int) -> tuple[int, int]:
        """Return the distances, in numbers, of adjacent planes and of adjacent vectors."""
        plane = 4 * self.sample.ny * self.sample.nz
        return (plane, plane * len(self.held)) if self.slab is None else (plane * num_vectors, plane)

    def pieces(self, part: Part) -> tuple[int, int, int, int]:
        """Return (first plane, planes, pieces, their distance) of a part of the planes held.

        The boundary of a slab holds what its neighbours wait for; its interior needs nothing of theirs.
        """
        if self.slab is None:
            return 0, self.sample.nx, 1, 0
        halo, edge, planes = self.slab.halo, self.slab.edge, self.slab.planes
        if part == "all" or (part == "boundary" and planes <= 2 * edge):
            return halo, planes, 1, 0
        if part == "boundary":
            return halo, edge, 2, planes - edge
        return halo + edge, max(0, planes - 2 * edge), 1, 0

    def launcher(self, num_vectors: int, steps: int, part: Part = "all") -> Any:
        """Return ``launch(v, w, v_out, w_out, scale, shift, keep, etas)``: one sweep of one or two steps."""
        import cupy

        from spectile.gpu.device import describe

        sample = self.sample
        lines, ahead = self.tile(steps)
        unit = self.unit(steps)
        shared = self.shared_bytes(lines, steps, ahead)
        kernel, total = unit.function("sweep", shared), unit.function("sum_sweeps")
        threads = -(-(lines + 2 * (steps - 1)) * sample.nz // 32) * 32
        resident = describe().multiprocessors * max(1, min(describe().shared_bytes // shared, 1024 // threads))
        tiles = -(-sample.ny // lines)
        first, planes, pieces, distance = self.pieces(part)
        groups = sweep_groups(tiles, resident, num_vectors * pieces * planes)
        partial = cupy.zeros((num_vectors, pieces, groups, tiles, 2 * steps))
        strides = [np.int64(stride) for stride in self.strides(num_vectors)]
        size = 2 * steps * num_vectors

        def launch(v: Any, w: Any, v_out: Any, w_out: Any, scale: float, shift: float, keep: float, etas: Any) -> None:
            kernel(
                (groups * tiles,),
                (threads,),
                (
                    v, w, v_out, w_out, self.potential, partial, np.int32(len(self.held)), np.int32(sample.ny),
                    np.int32(tiles), np.int32(groups), np.int32(num_vectors), np.float64(scale), np.float64(shift),
                    np.float64(keep), np.float64(sample.hopping), np.float64(2.0), *strides, np.int32(first),
                    np.int32(planes), np.int32(pieces), np.int32(distance),
                ),
                shared_mem=shared,
            )  # fmt: skip
            total(
                (-(-size // 4),), (128,), (partial, etas, np.int32(pieces * groups * tiles), np.int32(num_vectors))
            )  # fmt: skip

        return launch

    def random_block(self, seed: int, first_vector: int, num_vectors: int) -> Any:
        """Return random start vectors in the kernel's layout."""
        block = self.empty(num_vectors)
        self.fill(block, seed, first_vector)
        return block

    def fill(self, block: Any, seed: int, first_vector: int) -> None:
        """Write random start vectors, on the planes of a slab's halo, too."""
        num_vectors = block.shape[0 if self.slab is None else 1]
        strides = [np.int64(stride) for stride in self.strides(num_vectors)]
        self.unit(1).function("random_spinors")(
            (1024,), (256,),
            (
                block, np.int32(len(self.held)), np.int32(self.sample.ny), np.int32(num_vectors), *strides,
                np.int64(self.held[0]), np.int64(self.sample.nx), np.uint64(seed), np.uint64(first_vector),
            ),
        )  # fmt: skip

    def empty(self, num_vectors: int) -> Any:
        """Return an unset block vector in the kernel's layout."""
        import cupy

        return cupy.empty(self.shape(num_vectors), self.dtype)

    def shape(self, num_vectors: int) -> tuple[int, ...]:
        """Return the shape of a block vector in the kernel's layout."""
        line = (self.sample.ny, 4, self.sample.nz)
        return (num_vectors, self.sample.nx, *line) if self.slab is None else (len(self.held), num_vectors, *line)

    def to_block(self, vectors: Any) -> Any:
        """Return vectors of shape (N, R) in the kernel's layout; a slab takes its planes of them."""
        import cupy

        sample = self.sample
        sites = vectors.reshape(sample.nx, sample.ny, sample.nz, 4, -1)
        if self.slab is None:
            return cupy.ascontiguousarray(cupy.asarray(sites, self.dtype).transpose(4, 0, 1, 3, 2))
        return cupy.ascontiguousarray(cupy.asarray(sites[self.held], self.dtype).transpose(0, 4, 1, 3, 2))

    def from_block(self, block: Any) -> Any:
        """Return a block vector of the kernel's layout as vectors of shape (N, R); a slab gives its own planes."""
        if self.slab is None:
            return block.transpose(0, 1, 2, 4, 3).reshape(block.shape[0], -1).T
        own = block[self.slab.halo : len(block) - self.slab.halo]
        return own.transpose(0, 2, 4, 3, 1).reshape(-1, block.shape[1])


def sweep_groups(tiles: int, resident: int, planes: int) -> int:
    """Return into how many groups of blocks the vectors' planes are divided.

    Whole rounds of resident blocks, and segments much longer than the three planes that each reads before it writes.
    """
    best, choice = 0.0, 1
    for groups in range(1, max(2, 8 * resident // tiles + 2)):
        blocks = groups * tiles
        length = planes / groups
        if length < 1:
            break
        score = blocks / (-(-blocks // resident) * resident) * length / (length + 3)
        if score > best + 1e-9:
            best, choice = score, groups
    return choice


class StencilRecursion:
    """The recurrence of a block of vectors on the topological insulator, two steps a sweep.

    Steps are paired by their number, (1, 2), (3, 4), ..., so that results do not depend on how ``advance`` is called: a
    step that was computed ahead waits in `pending`.

    Parameters
    ----------
    operator : StencilOperator
        H.
    a, b : float
        H̃ = a (H − b).
    block : cupy.ndarray, shape (R, nx, ny, 4, nz)
        |ν₀⟩, taken over.
    steps_a_sweep : {1, 2}
        Chebyshev steps for one pass over the vectors.
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


class GpuEngine:
    """H on the GPU, as :class:`spectile.kpm.engine.CpuEngine` is on the CPU."""

    name = "cuda"

    def __init__(self, H: Any, dtype: np.dtype[Any]) -> None:
        import cupy
        from cupyx.scipy import sparse

        from spectile.gpu.device import require_device

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
        self._may_stage = True

    @staticmethod
    def takes(H: Any) -> bool:
        """Return whether the GPU has a kernel for this kind of operator."""
        import scipy.sparse

        return hasattr(H, "gershgorin") or scipy.sparse.issparse(H) or hasattr(H, "get") or isinstance(H, np.ndarray)

    def _stored(self, num_vectors: int) -> StoredOperator:
        # A thread a row reads SELL coalesced; wider blocks read a row's entries side by side in CSR.
        layout = "sell" if num_vectors <= 2 else "csr"
        if self._may_stage and stages(num_vectors, self.dtype):
            from spectile.kpm.gpu_staged import StagedOperator

            try:
                operator = self._formats.get("staged") or StagedOperator(self._matrix)
                operator.unit(num_vectors)
                self._formats["staged"] = operator
                return operator
            except MemoryError:
                # Rows that couple too many others for shared memory: read V through the caches.
                self._may_stage = False
        if layout not in self._formats:
            self._formats[layout] = StoredOperator(self._matrix, layout)
        return self._formats[layout]

    def capacity(self) -> int:
        """Return how many vectors' states fit into the device's memory at once, with some room."""
        from spectile.gpu.device import free_bytes

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
        from spectile.gpu.device import require

        require(self._arrays * self.num_rows * num_vectors * self.dtype.itemsize, f"the block of {num_vectors} vectors")


def stages(num_vectors: int, dtype: Any) -> bool:
    """Return whether a block of R vectors goes through shared memory (``staged.cu``) on this device.

    Bulk copies need Hopper or later and rows of whole 16 bytes; narrower blocks are faster through the caches.
    """
    from spectile.gpu.device import describe

    whole = num_vectors * np.dtype(dtype).itemsize % 16 == 0
    return describe().compute_capability[0] >= 9 and num_vectors >= 32 and whole


def peak_unit() -> Unit:
    """Return the unit that measures the rate of independent double-precision multiply-adds."""
    return Unit("kpm", ("peak.cu",), ARCHS)


def fill_columns(block: Any, seed: int) -> None:
    """Write random start vectors one after the other: row r of `block`, shape (R, N), is vector r."""
    for r in range(block.shape[0]):
        stored_unit(str(block.dtype), 1).function("random_phases")(
            (1024,), (256,),
            (block[r], np.uint64(0), np.int64(block.shape[1]), np.int32(1), np.uint64(seed), np.uint64(r)),
        )  # fmt: skip


def etas_naive(matrix: Any, start: Any, steps: int, a: float, b: float) -> Any:
    """Run Figure 3 through cuSPARSE and cuBLAS, vector by vector: the vendor's chain to compare with.

    Parameters
    ----------
    matrix : cupyx.scipy.sparse.csr_matrix, shape (N, N)
        H.
    start : cupy.ndarray, shape (N, R), Fortran order
        |ν₀⟩.
    steps : int
        Applications of H̃, M/2.
    a, b : float
        Scaling.

    Returns
    -------
    cupy.ndarray, shape (2 * steps, R)
    """
    import cupy
    from cupy import cublas
    from cupyx import cusparse

    etas = cupy.empty((2 * steps, start.shape[1]), matrix.dtype)
    dot = cublas.dotc if matrix.dtype.kind == "c" else cublas.dot
    minus_one = cupy.array(-1, matrix.dtype)
    for r in range(start.shape[1]):
        v, w = cupy.ascontiguousarray(start[:, r]), cupy.zeros(start.shape[0], matrix.dtype)
        u = cupy.empty_like(v)
        for m in range(steps):
            if m:
                v, w = w, v
            cusparse.spmv(matrix, v, u)
            cublas.axpy(-b, v, u)
            cublas.scal(minus_one, w)
            cublas.axpy(2 * a if m else a, u, w)
            dot(v, v, out=etas[2 * m, r : r + 1].reshape(()))
            dot(w, v, out=etas[2 * m + 1, r : r + 1].reshape(()))
    return etas.real
