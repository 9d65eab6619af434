"""Which kernel computes a product, with which tile and launch: plain arithmetic on sizes and on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from spectile.core.choice import Candidate, cheapest
from spectile.core.compile import Unit
from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.geometry import is_aligned, stride
from spectile.nearsparse.cuda.tuning import (
    BAND_ROWS,
    HOPPER_BAND_ROWS,
    JOINERS,
    PARTS,
    PARTS_OF_SMALL,
    PORTABLE,
    SEARCH_CHUNK,
    SHARED_STEPS,
    SLOWDOWN,
    THREADS,
    TILE_M,
    UNALIGNED_SLOWDOWN,
    WGMMA,
    HopperShape,
    Kernel,
    Portable,
    Wgmma,
    WgmmaTf32,
    rates,
)
from spectile.nearsparse.cuda.units import blocks_unit, fitting, hopper_unit, portable_unit
from spectile.nearsparse.types import PRECISIONS, Grain

# Products of a batch that one launch takes, and matrices whose norms it takes side by side: a grid has 65,535 layers,
# and the norm kernel two for each product.
LAUNCHED_ITEMS = 32767
# What the copy engine takes as a stride, in bytes.
_LARGEST_STRIDE = 2**40


@dataclass(frozen=True)
class Problem:
    """What of a product decides how it is computed."""

    #: Rows of A, inner dimension, columns of B, and how many products.
    m: int
    k: int
    n: int
    batches: int = 1
    block: int = 32  #: Tile size of the norm maps.
    precision: str = "fp32"  #: A key of ``PRECISIONS``.
    strict: bool = False  #: Whether exactly the valid products are multiplied.
    #: Whether all rows of A and B begin at multiples of 16 bytes, and the copy engine takes their strides.
    aligned: bool = True
    out_aligned: bool = True  #: The same for the rows of C.
    added: bool = False  #: Whether beta C is added.

    @classmethod
    def of(
        cls, a: Any, b: Any, out: Any, block: int, precision: str, strict: bool = False, added: bool = False
    ) -> Problem:
        """Return the problem of device arrays, shapes ([batch,] m, k), ([batch,] k, n) and ([batch,] m, n)."""
        return cls(
            a.shape[-2], a.shape[-1], b.shape[-1], out.shape[0] if out.ndim == 3 else 1, block, precision, strict,
            all(map(_copied_by_engine, (a, b))), _copied_by_engine(out), added,
        )  # fmt: skip

    @classmethod
    def of_parts(
        cls,
        shape: tuple[int, int, int],
        a: Sequence[Any],
        b: Sequence[Any],
        block: int,
        precision: str,
        strict: bool = False,
        batches: int = 1,
    ) -> Problem:
        """Return the problem whose operands lie in parts or copies: aligned where all of them are.

        Host arrays are taken for the contiguous copies of them that a device would hold.
        """
        itemsize = np.dtype(PRECISIONS[precision].dtype).itemsize
        aligned = [
            shape[axis] * itemsize % 16 == 0 if isinstance(part, np.ndarray) else _copied_by_engine(part)
            for axis, parts in ((1, a), (2, b))
            for part in parts
        ]
        return cls(*shape, batches, block, precision, strict, all(aligned), True)


def _copied_by_engine(array: Any) -> bool:
    if 0 in array.shape:
        return True  # nothing of it is copied: a part without entries decides nothing for the others
    steps = [abs(step) for step, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    forward = array.strides[-2] > 0 or array.shape[-2] <= 1
    return is_aligned(array) and forward and max(steps, default=0) < _LARGEST_STRIDE and stride(array) >= 0


@dataclass(frozen=True)
class Way:
    """What decides about the bits of a product: its parts on several GPUs are computed in the way of the whole."""

    kernel: Kernel
    splits: int = 1  #: Blocks that share the valid k steps of a tile of C.


@dataclass(frozen=True)
class Choice:
    """How a product is computed."""

    way: Way
    #: Its code.
    unit: Unit
    function: str
    launch: Shape  #: Its launch.
    tile: tuple[int, int]  #: Rows and columns of C that one thread block, or one cluster, computes at a time.
    band: int  #: Rows of tiles in a band of the numbering.
    grain: Grain  #: Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid.
    copies: bool = False  #: Whether C leaves through the copy engine.
    #: The launch that adds up what the blocks have that share a tile, and the bytes that they write.
    join: Shape | None = None
    scratch_bytes: int = 0

    @property
    def kernel(self) -> Kernel:
        """The kernel that multiplies."""
        return self.way.kernel


def candidates(problem: Problem, device: Device) -> list[Candidate]:
    """Return the kernels, with the time that each takes where every tile product is valid.

    A kernel takes so many times as long as the fastest (`SLOWDOWN`), and longer where C has too few tiles for all
    multiprocessors: of a piece of 256 x 256 of C, `PARTS` of them work on one part each, or several on one that they
    share.  Of less than all tile products it takes `time_share`.
    """
    hopper = device.compute_capability == (9, 0) and problem.precision in ("fp16", "fp16c16", "tf32x3")
    single = problem.strict and problem.block < 32
    refusal = (
        "not on this device in this precision" if not hopper
        else "A or C is empty" if 0 in (problem.m, problem.k, problem.n)
        else "rows are not aligned to 16 bytes" if not problem.aligned
        else "pieces of 32 k are multiplied as a whole" if problem.strict or problem.block < 32
        else None
    )  # fmt: skip
    tf32, tall = problem.precision == "tf32x3", problem.m > 128
    why_not: dict[Kernel, str | None] = {
        "wgmma_tf32": None if tf32 else "for tf32x3",
        "wgmma_wide_pair": "for float16" if tf32 else None if tall else "for more than 128 rows",
        "wgmma_wide": "for float16" if tf32 else "for up to 128 rows" if tall else None,
        "wgmma_small": "for float16" if tf32 else None,
    }
    for name, why in why_not.items():
        longest = 32 * WGMMA[name].list_steps
        why_not[name] = refusal or why or (f"k is above {longest:,}" if problem.k > longest else None)
    why_not["portable"] = "tiles of C below 32 are made one by one" if single else None
    why_not["blocks"] = None if single else "for strict products of tiles below 32"
    pieces = max(1, ceil_div(problem.m, 256) * ceil_div(problem.n, 256) * problem.batches)
    m, n = (TILE_M * ceil_div(size, TILE_M) for size in (problem.m, problem.n))
    work = 2.0 * m * problem.k * n * problem.batches / rates(device).executed[problem.precision]

    def seconds(kernel: Kernel) -> float:
        slowdown = SLOWDOWN.get((kernel, problem.precision), 1.0) if hopper else 1.0
        slowdown *= _unaligned(problem)
        parts = PARTS_OF_SMALL.get(problem.precision, PARTS[kernel]) * _splits(problem, device, kernel)
        return work * slowdown * max(1.0, device.multiprocessors / (parts * pieces))

    return [Candidate(name, None if why else seconds(name), why or "by its tiles") for name, why in why_not.items()]


def _unaligned(problem: Problem) -> float:
    return 1.0 if problem.aligned else UNALIGNED_SLOWDOWN[PRECISIONS[problem.precision].dtype]


def time_share(problem: Problem, share: float) -> float:
    """Return the part of its time that a kernel takes where a share of the tile products is executed.

    What unaligned rows take longer is loading, of every step in which any 32 x 32 block of a tile of C is valid: here
    as if blocks were valid independently of each other.
    """
    slowdown, blocks = _unaligned(problem), TILE_M * PORTABLE[problem.precision].tile_n // 32**2
    loaded = 1 - (1 - min(share, 1.0)) ** blocks
    return (share + (slowdown - 1) * loaded) / slowdown


def choose_way(problem: Problem, device: Device) -> Way:
    """Return the fastest way to compute a product."""
    kernel = cast(Kernel, cheapest("nearsparse", candidates(problem, device)).kernel)
    return Way(kernel, _splits(problem, device, kernel))


def _splits(problem: Problem, device: Device, kernel: Kernel) -> int:
    """Return how many blocks share a tile of C: as many as run at the same time, each with enough of k."""
    if kernel != "portable":
        return 1
    portable = PORTABLE[problem.precision]
    tiles = ceil_div(problem.m, TILE_M) * ceil_div(problem.n, portable.tile_n) * problem.batches
    resident = portable.min_blocks * device.multiprocessors
    return max(1, min(resident // max(1, tiles), ceil_div(problem.k, 32) // SHARED_STEPS))


def choose(
    problem: Problem,
    device: Device,
    way: Way | None = None,
    *,
    tuned: Portable | HopperShape | None = None,
    extra: tuple[str, ...] = (),
) -> Choice:
    """Return how a product is computed on a device, which need not be there.

    `way` is the fastest that applies if None.  `tuned` and `extra` are another tuning of the kernel, and constants
    defined for it: the study's variants.
    """
    way = way or choose_way(problem, device)
    kernel = way.kernel
    if kernel == "blocks":
        count = ceil_div(problem.m, 32) * ceil_div(problem.n, 32)
        launch = Shape((count, problem.batches), 512)
        unit = blocks_unit(problem.precision)
        return Choice(way, unit, "product_blocks", launch, (32, 32), 1, (1, 1, 1))
    if kernel == "portable":
        portable = tuned if isinstance(tuned, Portable) else PORTABLE[problem.precision]
        return _portable(problem, device, way, portable, extra)
    shape = tuned if isinstance(tuned, Wgmma | WgmmaTf32) else WGMMA[kernel]
    return _hopper(problem, device, way, shape, extra)


def _portable(problem: Problem, device: Device, way: Way, portable: Portable, extra: tuple[str, ...]) -> Choice:
    row = PRECISIONS[problem.precision]
    fitted = fitting(portable, row.dtype, device.shared_bytes)
    count = ceil_div(problem.m, TILE_M) * ceil_div(problem.n, fitted.tile_n)
    grain, blocks = max(1, 32 // problem.block), count * problem.batches * way.splits
    shared = way.splits > 1
    return Choice(
        way,
        portable_unit(problem.precision, fitted, problem.aligned and problem.out_aligned, extra),
        "product",
        Shape(
            (count, problem.batches, way.splits),
            THREADS,
            fitted.shared_bytes(row.dtype),
            # Where all blocks are resident at once, those that start early crowd where norms have ended.
            after_previous=blocks > fitted.min_blocks * device.multiprocessors,
        ),
        (TILE_M, fitted.tile_n),
        BAND_ROWS // TILE_M,
        (grain,) * 3,
        join=Shape((count, problem.batches, JOINERS), THREADS, after_previous=True) if shared else None,
        scratch_bytes=blocks * fitted.tile_elements * np.dtype(row.sums).itemsize if shared else 0,
    )


def _hopper(problem: Problem, device: Device, way: Way, shape: HopperShape, extra: tuple[str, ...]) -> Choice:
    rows = 128 * shape.cluster
    count = ceil_div(problem.m, rows) * ceil_div(problem.n, shape.tile_n)
    clusters = device.multiprocessors * shape.resident // shape.cluster
    copies = problem.out_aligned and not problem.added
    return Choice(
        way,
        hopper_unit(shape, PRECISIONS[problem.precision].output, *extra, copies=copies),
        shape.kernel,
        Shape(
            (min(count * problem.batches, clusters) * shape.cluster,),
            shape.threads,
            shape.shared_bytes,
            after_previous=True,
        ),
        (rows, shape.tile_n),
        HOPPER_BAND_ROWS // rows,
        (max(1, 64 // problem.block), max(1, shape.group // problem.block), 1),
        copies,
    )


def norms_launch(shape_a: tuple[int, ...], shape_b: tuple[int, ...], itemsize: int) -> Shape:
    """Return the launch that takes the norms of A and B, shapes ([batch,] m, k) and ([batch,] k, n)."""
    columns = max(128, 32 * 16 // itemsize)
    batches = max(math.prod(shape[:-2]) for shape in (shape_a, shape_b))
    blocks = max(ceil_div(shape[-2], 128) * ceil_div(shape[-1], columns) for shape in (shape_a, shape_b))
    return Shape((blocks, 1, 2 * min(batches, LAUNCHED_ITEMS)), 128)


def survey_launch(rows: int, columns: int) -> Shape:
    """Return the launch that surveys norm maps of so many rows of A and columns of B."""
    return Shape((ceil_div(columns, 64) * ceil_div(rows, 64),), 256)


def count_launch(rows: int, columns: int, depth: int, device: Device) -> Shape:
    """Return the launch that counts the valid products of norm maps of (rows, depth) and (depth, columns) tiles."""
    pieces = ceil_div(rows, 64) * ceil_div(columns, 32) * ceil_div(depth, 32)
    return Shape((min(pieces, 4 * device.multiprocessors),), 256, after_previous=True)


@dataclass(frozen=True)
class SearchPlan:
    """How thresholds are searched in norm maps."""

    function: str  #: The kernel.
    launch: Shape  #: The launch: blocks wait for each other, so that all are resident.
    #: For a valid ratio, pieces (a k and a chunk of columns) that a block keeps in shared memory; for an error,
    #: products that it lists there.
    held: int = 0
    slot: int = 0  #: Norms that such a piece takes: of B, sorted, with gaps and a tail, and of A.
    spilled: bool = False  #: Whether some pieces are kept in device memory.


def plan_search(kind: str, rows: int, columns: int, depth: int, itemsize: int, device: Device) -> SearchPlan:
    """Return how a threshold is searched in norm maps of (rows, depth) and (depth, columns) tiles.

    `kind` is "ratio" or "error", a norm takes `itemsize` bytes, and the device need not be there.
    """
    if kind == "error":
        # Norms of a piece of 32 + 16 rows and columns, twice, and partial sums; what is listed takes 24 bytes.
        fixed = 2 * 48 * (512 + 16) + 16 * 256 * 8
        # The kernel has less than 12 KiB of its own.
        listed = min(2048, (device.shared_bytes - fixed - 12 * 1024) // 24)
        blocks = min(device.multiprocessors, max(ceil_div(rows, 32) * ceil_div(columns, 16), depth))
        launch = Shape((blocks,), 512, fixed + 24 * listed, cooperative=True)
        return SearchPlan("search_error", launch, held=listed)
    pieces = depth * ceil_div(columns, SEARCH_CHUNK)
    blocks = min(device.multiprocessors, pieces)
    tail = 2 ** min(columns, SEARCH_CHUNK).bit_length()
    keys, each = tail + tail // 32, ceil_div(pieces, blocks)
    # The kernel has less than 2 KiB of its own.
    room, slot = (device.shared_bytes - 2048) // itemsize, keys + rows
    held = each if each * slot <= room else max(0, room - keys) // slot
    shared = (held * slot + (keys if held < each else 0)) * itemsize
    launch = Shape((blocks,), 1024, shared, cooperative=True)
    return SearchPlan("search_ratio", launch, held, slot, held < each)


def launches(problem: Problem, device: Device) -> list[Shape]:
    """Return the launches of one call of :func:`spectile.nearsparse.spamm`, as a device would get them."""
    choice = choose(problem, device)
    itemsize = np.dtype(PRECISIONS[problem.precision].dtype).itemsize
    batch = (problem.batches,) if problem.batches > 1 else ()
    shapes = [norms_launch((*batch, problem.m, problem.k), (*batch, problem.k, problem.n), itemsize), choice.launch]
    shapes += [] if choice.join is None else [choice.join]
    rows, columns, depth = (ceil_div(size, problem.block) for size in (problem.m, problem.n, problem.k))
    shapes += [survey_launch(rows, columns), count_launch(rows, columns, depth, device)]
    norms = np.dtype(PRECISIONS[problem.precision].norm).itemsize
    shapes += (plan_search(kind, rows, columns, depth, norms, device).launch for kind in ("ratio", "error"))
    return shapes
