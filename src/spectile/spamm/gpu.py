"""The CUDA backend of SpAMM: norm maps, threshold search, product; buffers, launches, streams.

Kernels: ``norm_map.cu``, ``survey.cu`` (counts, bound, search), ``order.cu`` (tiles by falling work), ``product.cu``
(mma.sync and FFMA, every precision, sm_80 and later), ``product_wgmma.cu`` (float16) and ``product_tf32.cu`` (3xTF32),
both on ``hopper.cu``, ``product_blocks.cu`` (strict at blocks below 32).
Everything runs on CuPy's current stream; nothing is read back before a number of the result is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spectile.gpu import device
from spectile.gpu.compile import Unit

from .bounds import rounding_bound
from .result import SpammResult

_ARCHS = ("sm_80", "sm_90a", "sm_100")
# The norms are float32 sums of at most 128 squares a lane and a few shuffles: their rounding, generously.
NORM_SLACK = {"float32": 1 + 2e-5, "float64": 1 + 1e-12}
# 3xTF32 drops low*low and the last bits of both lows: below 3 * 2^-21 of a product; the tensor core truncates its sums
# of 32 k.
TF32X3_ROUNDOFF = 2.0**-19


@dataclass(frozen=True)
class _Tile:
    """Tuning of the portable kernel.

    Tile height, 32-blocks of a warp, pipeline stages, resident thread blocks, and whether the list holds only the steps
    that some block needs.
    """

    tile_m: int
    blocks_m: int
    blocks_n: int
    stages: int
    min_blocks: int
    compact: bool = True

    @property
    def threads(self) -> int:
        return 32 * (self.tile_m // (32 * self.blocks_m)) * (4 // self.blocks_n)


@dataclass(frozen=True)
class _Precision:
    """Dtypes of a precision and its portable kernels, for large and for small products."""

    code: int
    dtype: str
    output: str
    stage_k: int
    pitches: tuple[int, int]
    large: _Tile
    small: _Tile
    #: k steps (32 wide) listed at a time: a short list is made sooner, and a longer k takes several.
    lists: tuple[int, ...] = (1024,)

    def shared_bytes(self, tile: _Tile) -> int:
        elements = tile.tile_m * self.pitches[0] + self.stage_k * self.pitches[1]
        return tile.stages * elements * np.dtype(self.dtype).itemsize

    def list_steps(self, aligned: bool, k: int) -> int:
        """Return the length of the list for an inner dimension `k`: the shortest that holds it, or the longest."""
        lengths = self.lists if aligned else self.lists[-1:]
        return next((steps for steps in lengths if 32 * steps >= k), lengths[-1])

    def unit(self, tile: _Tile, aligned: bool, list_steps: int = 1024) -> Unit:
        defines = {
            "PRECISION": self.code,
            "INPUT_BITS": 8 * np.dtype(self.dtype).itemsize,
            "OUTPUT_BITS": 8 * np.dtype(self.output).itemsize,
            "TILE_M": tile.tile_m,
            "BLOCKS_M": tile.blocks_m,
            "BLOCKS_N": tile.blocks_n,
            "STAGES": tile.stages,
            "MIN_BLOCKS": tile.min_blocks,
            "COMPACT": int(tile.compact),
            "ALIGNED": int(aligned),
            "DMMA_K": 8,
            "LIST_STEPS": list_steps,
        }
        return Unit(
            "spamm", ("operands.cu", "product.cu"), _ARCHS, {name: str(value) for name, value in defines.items()}
        )

    def blocks_unit(self) -> Unit:
        bits = {"INPUT_BITS": str(8 * np.dtype(self.dtype).itemsize)}
        return Unit(
            "spamm",
            ("operands.cu", "product_blocks.cu"),
            _ARCHS,
            bits | {"OUTPUT_BITS": str(8 * np.dtype(self.output).itemsize)},
        )


_HALF_TILE = _Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=4)
_TF32_TILE = _Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=2)
_DOUBLE_TILE = _Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=4, min_blocks=2)
_PRECISIONS = {
    "fp16": _Precision(0, "float16", "float32", 32, (40, 136), _HALF_TILE, _HALF_TILE),
    "fp16c16": _Precision(0, "float16", "float16", 32, (40, 136), _HALF_TILE, _HALF_TILE),
    "tf32x3": _Precision(1, "float32", "float32", 32, (36, 136), _TF32_TILE, _TF32_TILE),
    "fp64": _Precision(2, "float64", "float64", 16, (20, 132), _DOUBLE_TILE, _DOUBLE_TILE, (256, 1024)),
    "fp32": _Precision(
        3, "float32", "float32", 32, (36, 128),
        large=_Tile(tile_m=128, blocks_m=2, blocks_n=2, stages=3, min_blocks=2),
        small=_Tile(tile_m=64, blocks_m=1, blocks_n=2, stages=3, min_blocks=2),
        lists=(256, 1024),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Hopper:
    """A shape of a kernel on ``hopper.cu``.

    `cluster` stacked tiles of 128 x `tile_n` in pieces of 64 x `group`; `listers` warps list, `stages` are loaded
    ahead, and `list_steps` is the most k steps (32 wide) of a product.  `schedule` says how clusters get their tiles.
    """

    tile_n: int
    group: int
    cluster: int
    listers: int
    stages: int
    list_steps: int
    schedule: str = "DRAWN"

    @property
    def lists_bytes(self) -> int:
        """Two lists in flight, and the barriers, generously."""
        return 2 * (4 + 4 * self.listers + 2 * self.list_steps) + 16 * self.stages + 256

    def defines(self, output: str) -> dict[str, str]:
        bits = 8 * np.dtype(output).itemsize
        values = {"TILE_N": self.tile_n, "GROUP_N": self.group, "CLUSTER": self.cluster, "LISTERS": self.listers}
        values |= {"STAGES": self.stages, "LIST_STEPS": self.list_steps, "OUTPUT_BITS": bits}
        return {name: str(value) for name, value in values.items()} | {"SCHEDULE": self.schedule}


@dataclass(frozen=True)
class _Wgmma(_Hopper):
    """A shape of the float16 kernel; a warpgroup keeps `rounds` stores of C under way, of `round_boxes` boxes each."""

    rounds: int = 2
    round_boxes: int = 1
    kernel = "product_wgmma"
    box_a, swizzle_a, box_b = (1, 128, 32), 64, (1, 32, 64)

    @property
    def threads(self) -> int:
        return 256 * (self.tile_n // self.group) + 32 * (1 + self.listers)

    @property
    def resident(self) -> int:
        """Thread blocks on a multiprocessor."""
        return 2 if self.tile_n == 128 else 1

    @property
    def shared_bytes(self) -> int:
        staging = 2 * (self.tile_n // self.group) * self.rounds * self.round_boxes * 64 * 128
        return self.stages * (128 + self.tile_n) * 64 + staging + self.lists_bytes

    def unit(self, output: str) -> Unit:
        defines = self.defines(output) | {"ROUNDS": str(self.rounds), "ROUND_BOXES": str(self.round_boxes)}
        return Unit("spamm", ("hopper.cu", "product_wgmma.cu"), ("sm_90a",), defines)


@dataclass(frozen=True)
class _WgmmaTf32(_Hopper):
    """The shape of the 3xTF32 kernel."""

    kernel = "product_tf32"
    box_a, swizzle_a, box_b = (1, 64, 32), 128, (1, 32, 32)
    threads = 512
    resident = 1

    @property
    def shared_bytes(self) -> int:
        return self.stages * 2 * 128 * 128 + 2 * 128 * 128 + 2 * 2 * 64 * 128 + self.lists_bytes

    def unit(self, output: str) -> Unit:
        return Unit("spamm", ("hopper.cu", "product_tf32.cu"), ("sm_90a",), self.defines("float32"))


WGMMA: dict[str, _Wgmma | _WgmmaTf32] = {
    "wgmma_small": _Wgmma(tile_n=128, group=128, cluster=1, listers=1, stages=4, list_steps=1024),
    "wgmma_wide": _Wgmma(tile_n=256, group=256, cluster=1, listers=3, stages=6, list_steps=1536, round_boxes=2),
    "wgmma_pair": _Wgmma(tile_n=256, group=128, cluster=2, listers=3, stages=6, list_steps=1536),
    "wgmma_wide_pair": _Wgmma(tile_n=256, group=256, cluster=2, listers=3, stages=7, list_steps=1536),
    "wgmma_tf32": _WgmmaTf32(tile_n=128, group=64, cluster=1, listers=3, stages=4, list_steps=1152),
}

# Most tiles of a product that are worth sorting, for the kernels where it pays: in a sorted order neighbours no longer
# share the L2.
_ORDERED_TILES = {"portable": 4096, "wgmma_tf32": 2048}

# How the lanes of a block are summed: by shuffles; in shared memory and by a matrix of ones for the ablation.
SHUFFLES, SHARED, ONES = "0", "1", "2"


def norm_unit(dtype: str, reduction: str = SHUFFLES) -> Unit:
    """Return the norm kernel of an input dtype."""
    bits = str(8 * np.dtype(dtype).itemsize)
    return Unit("spamm", ("norm_map.cu",), _ARCHS, {"INPUT_BITS": bits, "REDUCTION": reduction})


_NORM_UNITS = {dtype: norm_unit(dtype) for dtype in ("float16", "float32", "float64")}
_SURVEY_UNITS = {
    name: Unit("spamm", ("survey.cu",), _ARCHS, {"NORM_BITS": bits})
    for name, bits in (("float32", "32"), ("float64", "64"))
}
_ORDER_UNITS = {
    name: Unit("spamm", ("order.cu",), _ARCHS, {"NORM_BITS": bits})
    for name, bits in (("float32", "32"), ("float64", "64"))
}

UNITS: tuple[Unit, ...] = (
    *(norm_unit(dtype, reduction) for dtype in _NORM_UNITS for reduction in (SHUFFLES, SHARED, ONES)),
    *_SURVEY_UNITS.values(),
    *_ORDER_UNITS.values(),
    *dict.fromkeys(
        precision.unit(tile, aligned, list_steps)
        for precision in _PRECISIONS.values()
        for tile, aligned in ((precision.large, True), (precision.small, True), (precision.small, False))
        for list_steps in (precision.lists if aligned else precision.lists[-1:])
    ),
    *dict.fromkeys(precision.blocks_unit() for precision in _PRECISIONS.values()),
    *dict.fromkeys(shape.unit(output) for shape in WGMMA.values() for output in ("float32", "float16")),
)

_P, _I, _L, _D = "u8", "i4", "i8", "f8"


def _layout(fields: str) -> np.dtype[Any]:
    """Return the aligned struct of ``"name:code name:code"``, as the C++ declares it."""
    pairs = [field.split(":") for field in fields.split()]
    codes = {"p": _P, "i": _I, "l": _L, "d": _D}
    return np.dtype([(name, codes[code]) for name, code in pairs], align=True)


_NORM_TASK = _layout(
    "matrix:p norms:p stride_matrix:l stride_norms:l leading:l rows:i columns:i norm_rows:i norm_columns:i batches:i "
    "transposed:i aligned:i"
)
_NORM_TASKS = np.dtype([("task", _NORM_TASK, (2,)), ("counter", _P), ("log2_block", _I)], align=True)
_SEARCH = _layout(
    "tau:d low:d high:d best_tau:d best_ratio:d wanted:d tolerance:d total:d count:p blocks:i iterations:i growing:i "
    "done:i"
)
_SURVEY = _layout(
    "norms_a:p norms_b:p weights_a:p weights_b:p count:p squares:p tau:p search:p rows:i columns:i depth:i k_group:i"
)
_PRODUCT = _layout(
    "a:p b:p c:p out:p norms_a:p norms_b:p tau_device:p tau:d alpha:d beta:d lda:l ldb:l ldc:l ldo:l stride_a:l "
    "stride_b:l stride_c:l stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i "
    "tiles_n:i order:p"
)
_ORDER = _layout(
    "norms_a:p norms_b:p tau_device:p counts:p order:p finished:p tau:d m:i n:i k:i norm_k:i log2_block:i tiles_m:i "
    "tiles_n:i tile_m:i tile_n:i band:i"
)
_WGMMA_FIELDS = _layout(
    "c:p out:p norms_a:p norms_b:p tau_device:p counter:p order:p tau:d alpha:d beta:d ldc:l ldo:l stride_c:l "
    "stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i tiles_n:i batches:i "
    "batch_a:i batch_b:i copy_stores:i"
)
_WGMMA_PRODUCT = np.dtype(
    {
        "names": ["map_a", "map_b", "map_c", "fields"],
        "formats": ["V128", "V128", "V128", _WGMMA_FIELDS],
        "offsets": [0, 128, 256, 384],
        "itemsize": -(-(384 + _WGMMA_FIELDS.itemsize) // 64) * 64,
    }
)

Kernel = Literal["portable", "blocks", "wgmma_small", "wgmma_pair", "wgmma_wide", "wgmma_wide_pair", "wgmma_tf32"]


def _launch(
    kernel: Any,
    grid: tuple[int, ...],
    threads: int,
    parameters: np.ndarray[Any, Any],
    shared: int = 0,
    *,
    waits: bool = False,
) -> None:
    """Launch with one struct passed by value.

    A kernel that `waits` itself for the one before it in the stream may start before that one has ended.
    """
    import cupy

    if waits and device.describe().compute_capability >= (9, 0):
        attribute = _LaunchAttribute(_PROGRAMMATIC_SERIALIZATION, 0, 1)
        x, y, z = (*grid, 1, 1)[:3]
        stream = cupy.cuda.get_current_stream().ptr
        config = _LaunchConfig(x, y, z, threads, 1, 1, shared, stream, ctypes.addressof(attribute), 1)
        pointers = (ctypes.c_void_p * 1)(parameters.ctypes.data)
        status = _launch_extended()(ctypes.byref(config), kernel.kernel.ptr, pointers, None)
        if status != 0:
            raise RuntimeError(f"the driver refuses to launch {kernel.name} (error {status}): update the driver")
        return
    from cupy.cuda.function import CNumpyArray

    kernel(grid, (threads,), (CNumpyArray(parameters),), shared_mem=shared)


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


_PROGRAMMATIC_SERIALIZATION = 6


@functools.cache
def _launch_extended() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    return function


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _log2(block: int) -> int:
    if block not in (8, 16, 32, 64, 128):
        raise ValueError(
            f'block = {block} is not a tile size of the CUDA backend: take 8, 16, 32, 64 or 128, or backend="cpu"'
        )
    return block.bit_length() - 1


def _stride(array: Any) -> int:
    """Elements from one matrix of a batch to the next; 0 for a single matrix, which all items share."""
    return array.strides[0] // array.itemsize if array.ndim == 3 and array.shape[0] > 1 else 0


def _pitch(array: Any) -> int:
    return array.strides[-2] // array.itemsize


def _is_aligned(array: Any) -> bool:
    """Whether every row starts at a multiple of 16 bytes."""
    pitches = [stride for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    return array.data.ptr % 16 == 0 and all(pitch % 16 == 0 for pitch in pitches)


@dataclass(eq=False)
class Norms:
    """Norm maps of A and B in the layout that the product reads: both with k blocks along the last axis."""

    a: Any
    b: Any
    block: int
    #: Next tile of the persistent product, zero before each; None where nothing is multiplied.
    counter: Any = None

    @property
    def k_blocks(self) -> int:
        """Blocks along k."""
        return int(self.a.shape[-1])


class NormMaps(Norms):
    """Norm maps computed from A and B by each call.

    Parameters
    ----------
    a, b : cupy.ndarray
        Shapes ([batch,] m, k) and ([batch,] k, n) with unit stride along the last axis.
    block : int
        Tile size (LoNum).
    into : pair of cupy.ndarray, optional
        Where to write the maps of `a` and `b`: contiguous, so that a panel of B fills a part of the map of all of B.
    """

    def __init__(self, a: Any, b: Any, block: int, into: tuple[Any, Any] | None = None) -> None:
        import cupy

        dtype = "float64" if a.dtype == np.float64 else "float32"
        self.block, k_blocks = block, _blocks(a.shape[-1], block)
        if into is None:
            shapes = [(*x.shape[:-2], _blocks(x.shape[axis], block), k_blocks) for x, axis in ((a, -2), (b, -1))]
            into = cupy.empty(shapes[0], dtype), cupy.empty(shapes[1], dtype)
        self.a, self.b = into
        # The norm kernel sets it to zero.
        self.counter = cupy.zeros(1, cupy.uint32)
        self._parameters = parameters = np.zeros((), _NORM_TASKS)
        parameters["counter"], parameters["log2_block"] = (self.counter.data.ptr, _log2(block))
        for task, matrix, norms, transposed in zip(parameters["task"], (a, b), (self.a, self.b), (0, 1), strict=True):
            task["matrix"], task["norms"] = matrix.data.ptr, norms.data.ptr
            task["stride_matrix"], task["stride_norms"] = (_stride(matrix), _stride(norms))
            task["leading"], task["rows"], task["columns"] = (_pitch(matrix), matrix.shape[-2], matrix.shape[-1])
            shape = norms.shape[-2:][::-1] if transposed else norms.shape[-2:]
            task["norm_rows"], task["norm_columns"] = shape
            task["batches"] = matrix.shape[0] if matrix.ndim == 3 else 1
            task["transposed"], task["aligned"] = transposed, _is_aligned(matrix)
        columns = max(128, 32 * 16 // a.itemsize)
        self._grid = (
            _blocks(max(a.shape[-1], b.shape[-1]), columns),
            _blocks(max(a.shape[-2], b.shape[-2]), 128),
            2 * int(max(parameters["task"]["batches"])),
        )
        self._kernel = _NORM_UNITS[a.dtype.name].function("norm_map")
        self._keep = a, b

    def __call__(self) -> None:
        """Compute both maps on the current stream."""
        _launch(self._kernel, self._grid, 128, self._parameters)


class Product:
    """C = alpha A B + beta C over the valid tile products, prepared once and launched as often as wanted.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        Shapes ([batch,] m, k), ([batch,] k, n), ([batch,] m, n); a two-dimensional operand is shared by the batch.
        Unit stride along the last axis.
    maps : Norms
        Of `a` and `b`.
    tau : float or cupy.ndarray
        Threshold, or one float64 on the device for each item of the batch.
    precision : str
        Key of ``spectile.spamm.api.PRECISIONS``.
    alpha, beta, c : float, float, cupy.ndarray
        `c` is read where `beta` is not 0; it may be `out`.
    strict : bool
        Multiply exactly the valid products.
    kernel : str, optional
        "portable", "blocks", or a key of ``WGMMA``; by default the fastest that applies.
    ordered : bool, optional
        Start the tiles by falling work; by default where it pays: for several tiles a multiprocessor, but not many.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out: Any,
        maps: Norms,
        tau: Any,
        *,
        precision: str,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        strict: bool = False,
        kernel: Kernel | None = None,
        ordered: bool | None = None,
    ) -> None:
        self.maps, self.shape = maps, (a.shape[-2], a.shape[-1], b.shape[-1])
        self.batches = out.shape[0] if out.ndim == 3 else 1
        self.kernel = kernel or choose_kernel(a, b, self.batches, maps.block, precision, strict)
        self._keep: tuple[Any, ...] = a, b, c, out, tau
        common = {
            "c": c.data.ptr if c is not None else 0,
            "out": out.data.ptr,
            "norms_a": maps.a.data.ptr,
            "norms_b": maps.b.data.ptr,
            "tau_device": 0 if isinstance(tau, float) else tau.data.ptr,
            "tau": tau if isinstance(tau, float) else 0.0,
            "alpha": alpha,
            "beta": beta,
            "ldc": _pitch(c) if c is not None else 0,
            "ldo": _pitch(out),
            "stride_c": _stride(c) if c is not None else 0,
            "stride_o": _stride(out),
            "stride_norms_a": _stride(maps.a),
            "stride_norms_b": _stride(maps.b),
            "norm_k": maps.k_blocks,
            "log2_block": _log2(maps.block),
        } | dict(zip("mkn", self.shape, strict=True))
        self._order: tuple[Any, tuple[int, ...], np.ndarray[Any, Any]] | None = None
        if self.kernel in WGMMA:
            self._prepare_wgmma(a, b, out, common, WGMMA[self.kernel], ordered)
        else:
            self._prepare_portable(a, b, out, common, _PRECISIONS[precision], ordered)

    def _prepare_order(self, common: dict[str, Any], tile: tuple[int, int], band: int, ordered: bool | None) -> int:
        """Prepare sorting the tiles and return where their order will lie, or 0."""
        import cupy

        m, _, n = self.shape
        tiles_m, tiles_n = _blocks(m, tile[0]), _blocks(n, tile[1])
        tiles = tiles_m * tiles_n
        if ordered is None:
            ordered = 3 * device.describe().multiprocessors < tiles <= _ORDERED_TILES.get(self.kernel, 0)
        if not ordered or self.batches > 1 or self.maps.block < 32 or self.kernel == "blocks":
            return 0
        buffer = cupy.zeros(2 * tiles + 1, cupy.uint32)
        counts, order, finished = (buffer.data.ptr + 4 * i for i in (0, tiles, 2 * tiles))
        names = ("norms_a", "norms_b", "tau_device", "tau", "m", "n", "k", "norm_k", "log2_block")
        parameters = _fill(
            np.zeros((), _ORDER),
            {name: common[name] for name in names}
            | {"counts": counts, "order": order, "finished": finished, "tiles_m": tiles_m, "tiles_n": tiles_n}
            | {"tile_m": tile[0], "tile_n": tile[1], "band": band},
        )
        self._order = (_ORDER_UNITS[self.maps.a.dtype.name].function("order_tiles"), (_blocks(tiles, 8),), parameters)
        self._keep = *self._keep, buffer
        return int(order)

    def _prepare_portable(
        self, a: Any, b: Any, out: Any, common: dict[str, Any], precision: _Precision, ordered: bool | None
    ) -> None:
        m, _, n = self.shape
        aligned = all(map(_is_aligned, (a, b, out)))
        tile = precision.small
        tiles, multiprocessors = _blocks(m, 128) * _blocks(n, 128) * self.batches, device.describe().multiprocessors
        # Several waves of large tiles, or one row of them, which reads B once.
        if aligned and (tiles >= 4 * multiprocessors or (tiles >= multiprocessors and m <= 128)):
            tile = precision.large
        rows, columns = (tile.tile_m, 128) if self.kernel == "portable" else (32, 32)
        self._parameters = _fill(
            np.zeros((), _PRODUCT),
            common
            | {"a": a.data.ptr, "b": b.data.ptr, "lda": _pitch(a), "ldb": _pitch(b)}
            | {"stride_a": _stride(a), "stride_b": _stride(b)}
            | {"tiles_m": _blocks(m, rows), "tiles_n": _blocks(n, columns)}
            | {"order": self._prepare_order(common, (rows, columns), 512 // rows, ordered)},
        )
        self._grid: tuple[int, ...] = (_blocks(m, rows) * _blocks(n, columns), self.batches)
        if self.kernel == "portable":
            self._threads, self._shared = tile.threads, precision.shared_bytes(tile)
            unit = precision.unit(tile, aligned, precision.list_steps(aligned, self.shape[1]))
            self._function = unit.function("product", self._shared)
        else:
            self._threads, self._shared = 512, 0
            self._function = precision.blocks_unit().function("product_blocks")

    def _prepare_wgmma(
        self, a: Any, b: Any, out: Any, common: dict[str, Any], shape: _Wgmma | _WgmmaTf32, ordered: bool | None
    ) -> None:
        from spectile.gpu.tensor_map import encode

        m, _, n = self.shape
        rows = 128 * shape.cluster
        tiles_m, tiles_n = _blocks(m, rows), _blocks(n, shape.tile_n)
        self._parameters = np.zeros((), _WGMMA_PRODUCT)
        self._parameters["map_a"] = np.void(encode(a.reshape(-1, *a.shape[-2:]), shape.box_a, shape.swizzle_a))
        copy_stores = common["beta"] == 0 and _is_aligned(out)
        if copy_stores:
            box = 1, 64, 128 // out.itemsize
            self._parameters["map_c"] = np.void(encode(out.reshape(-1, *out.shape[-2:]), box, 128))
        self._parameters["map_b"] = np.void(encode(b.reshape(-1, *b.shape[-2:]), shape.box_b, 128))
        _fill(
            self._parameters["fields"],
            common
            | {"counter": self.maps.counter.data.ptr, "tiles_m": tiles_m, "tiles_n": tiles_n, "batches": self.batches}
            | {"batch_a": int(_stride(a) > 0), "batch_b": int(_stride(b) > 0)}
            | {"copy_stores": copy_stores}
            | {"order": self._prepare_order(common, (rows, shape.tile_n), 2048 // rows, ordered)},
        )
        self._threads, self._shared = shape.threads, shape.shared_bytes
        resident = device.describe().multiprocessors * shape.resident // shape.cluster
        self._grid = (min(tiles_m * tiles_n * self.batches, resident) * shape.cluster,)
        self._function = shape.unit(out.dtype.name).function(shape.kernel, self._shared)

    @property
    def grain(self) -> tuple[int, int, int]:
        """Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid."""
        block = self.maps.block
        if self.kernel == "blocks":
            return 1, 1, 1
        if self.kernel == "portable":
            return (max(1, 32 // block),) * 3
        return max(1, 64 // block), max(1, WGMMA[self.kernel].group // block), 1

    def __call__(self) -> None:
        """Multiply on the current stream; the norm maps must be there.

        The norm kernel also resets the counter of the persistent product, so each call follows a call of `maps`.
        """
        if self._order is not None:
            function, grid, parameters = self._order
            _launch(function, grid, 256, parameters, waits=True)
        # Where every multiprocessor gets one block at most, blocks that start early crowd where norms have ended.
        spread = math.prod(self._grid) > device.describe().multiprocessors
        waits = self.kernel in WGMMA or (self.kernel == "portable" and spread)
        _launch(self._function, self._grid, self._threads, self._parameters, self._shared, waits=waits)


def _fill(record: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        record[name] = value
    return record


def choose_kernel(a: Any, b: Any, batches: int, block: int, precision: str, strict: bool) -> Kernel:
    """Return the fastest kernel that computes a product as asked."""
    if strict and block < 32:
        return "blocks"
    found = device.describe()
    suits = (
        precision in ("fp16", "fp16c16", "tf32x3")
        and found.compute_capability == (9, 0)
        and not strict
        and block >= 32
        and 0 < a.shape[-1] <= 32 * WGMMA["wgmma_small"].list_steps
        and min(a.shape[-2], b.shape[-1]) > 0
        and _is_aligned(a)
        and _is_aligned(b)
    )
    if not suits:
        return "portable"
    if precision == "tf32x3":
        return "wgmma_tf32"
    tiles = _blocks(a.shape[-2], 256) * _blocks(b.shape[-1], 256) * batches
    if 3 * tiles < found.multiprocessors:
        return "wgmma_small"
    return "wgmma_wide_pair" if a.shape[-2] > 128 else "wgmma_wide"


def count_products(maps: Norms, item: tuple[int, int], tau: Any, grain: tuple[int, int, int] = (1, 1, 1)) -> Any:
    """Return, on the device, how many tile products are valid, or executed at a coarser grain.

    Parameters
    ----------
    maps : Norms
        Already computed.
    item : tuple of int
        Indices of the matrices of A and B in their batches.
    tau : cupy.ndarray
        One float64.
    grain : tuple of int
        Tiles in rows, columns and depth that are executed together when one of their products is valid.
    """
    import cupy

    count = cupy.zeros(1, cupy.uint64)
    _survey(maps, item, tau, count=count, grain=grain)
    return count


def skipped_bound(maps: Norms, item: tuple[int, int], tau: Any) -> Any:
    """Return, on the device, sqrt(sum_ij (sum of the skipped ||A_ik|| ||B_kj||)^2)."""
    import cupy

    norms_a, norms_b = _item(maps, item)
    squares = cupy.zeros(_blocks(norms_a.shape[0], 64) * _blocks(norms_b.shape[0], 64), cupy.float64)
    _survey(maps, item, tau, count=cupy.zeros(1, cupy.uint64), squares=squares)
    return cupy.sqrt(squares.sum()) * NORM_SLACK[norms_a.dtype.name]


def _item(maps: Norms, item: tuple[int, int]) -> tuple[Any, Any]:
    return tuple(
        norms[index] if norms.ndim == 3 else norms for norms, index in zip((maps.a, maps.b), item, strict=True)
    )


def _survey(
    maps: Norms,
    item: tuple[int, int],
    tau: Any,
    *,
    count: Any = None,
    squares: Any = None,
    search: Any = None,
    grain: tuple[int, int, int] = (1, 1, 1),
) -> None:
    import cupy

    norms, weights = list(_item(maps, item)), []
    for side, (map_, size) in enumerate(zip(tuple(norms), grain[:2], strict=True)):
        rows = map_.shape[0]
        if size > 1:
            padded = cupy.full((_blocks(rows, size) * size, map_.shape[1]), -1, map_.dtype)
            padded[:rows] = map_
            norms[side] = padded.reshape(-1, size, map_.shape[1]).max(axis=1)
        lengths = np.minimum(size, rows - size * np.arange(_blocks(rows, size)))
        weights.append(cupy.asarray(lengths.astype(np.int32)) if size > 1 else None)
    if not (norms[0].shape[0] and norms[1].shape[0]):
        return
    parameters = _fill(
        np.zeros((), _SURVEY),
        {
            "norms_a": norms[0].data.ptr,
            "norms_b": norms[1].data.ptr,
            "weights_a": weights[0].data.ptr if weights[0] is not None else 0,
            "weights_b": weights[1].data.ptr if weights[1] is not None else 0,
            "count": count.data.ptr if count is not None else 0,
            "squares": squares.data.ptr if squares is not None else 0,
            "tau": tau.data.ptr if tau is not None else 0,
            "search": search.data.ptr if search is not None else 0,
            "rows": norms[0].shape[0],
            "columns": norms[1].shape[0],
            "depth": maps.k_blocks,
            "k_group": grain[2],
        },
    )
    grid = _blocks(norms[1].shape[0], 64), _blocks(norms[0].shape[0], 64)
    _launch(_SURVEY_UNITS[norms[0].dtype.name].function("survey"), grid, 256, parameters)


def _search(
    maps: Norms, item: tuple[int, int], valid_ratio: float, iterations: int, tolerance: float
) -> tuple[Any, Any]:
    """Enqueue the paper's search; return tau and the found ratio, one float64 on the device each."""
    import cupy

    norms_a, norms_b = _item(maps, item)
    total = norms_a.size * norms_b.shape[0]
    if valid_ratio == 1 or total == 0:
        return cupy.zeros(1), cupy.ones(1)
    start = _fill(
        np.zeros((), _SEARCH),
        {"best_ratio": 1.0, "wanted": valid_ratio, "tolerance": tolerance, "total": total, "iterations": iterations},
    )
    start["growing"] = 1
    state = cupy.asarray(np.frombuffer(start.tobytes(), np.float64))
    mean = (norms_a.sum(axis=0, dtype=np.float64) * norms_b.sum(axis=0, dtype=np.float64)).sum() / total
    state[_word("tau")] = state[_word("high")] = mean
    # A launch after the end of the search returns at once; 64 doublings reach the largest product from any mean.
    for _ in range(iterations + 64):
        _survey(maps, item, None, search=state)
    return tuple(state[_word(name) : _word(name) + 1] for name in ("tau", "best_ratio"))


def _word(name: str) -> int:
    """Return where a field of the search's state lies, in float64."""
    fields = _SEARCH.fields
    assert fields is not None
    return int(fields[name][1]) // 8


def search_tau(maps: Norms, item: tuple[int, int], valid_ratio: float) -> tuple[Any, Any]:
    """Search the threshold of a wanted valid ratio to a tenth of it, and to 0.01 at most.

    More bisections than the paper's 20 are allowed, so that small ratios are met; those not needed return at once.
    """
    return _search(maps, item, valid_ratio, 60, min(0.01, valid_ratio / 10))


def _largest_tau(maps: Norms, item: tuple[int, int], limit: float) -> float:
    """Return the largest tau, to a relative 1e-6 and never above it, whose skipped bound is at most `limit`."""
    import cupy

    def bound(tau: float) -> float:
        return float(skipped_bound(maps, item, cupy.asarray([tau])))

    if bound(math.inf) <= limit:
        return math.inf
    norms_a, norms_b = _item(maps, item)
    high = 2 * float((norms_a.max(axis=0).astype(np.float64) * norms_b.max(axis=0)).max())
    low = high * 2.0**-80
    if bound(low) > limit:
        return 0.0
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low) * math.sqrt(high)
        if bound(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def norm_map_cuda(a: Any, block: int) -> Any:
    """Return the norm map of one matrix, float32 (float64 for float64), of the kind of `a`."""
    import cupy

    matrix, give_back = device.to_device(a)
    if matrix.ndim != 2:
        raise ValueError(f"a norm map is of a matrix, not of an array with {matrix.ndim} dimensions: pass one matrix")
    matrix = _row_major("a", matrix, on_device=True)
    maps = NormMaps(matrix, cupy.empty((matrix.shape[1], 0), matrix.dtype), block)
    if matrix.size:
        maps()
    return give_back(maps.a)


def tune_tau_cuda(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int, tolerance: float
) -> tuple[float, float]:
    """Search tau on the device from two norm maps; see :func:`spectile.spamm.tune_tau`.  Reads the result back."""
    import cupy

    norms_a, norms_b = device.to_device(norms_a)[0], device.to_device(norms_b)[0]
    if norms_a.ndim != 2 or norms_b.ndim != 2 or norms_a.shape[1] != norms_b.shape[0]:
        raise ValueError(
            f"norm maps of shapes {norms_a.shape} and {norms_b.shape} do not multiply: the columns of the first must "
            "be the rows of the second"
        )
    dtype = np.result_type(norms_a.dtype, norms_b.dtype)
    maps = Norms(cupy.ascontiguousarray(norms_a, dtype=dtype), cupy.ascontiguousarray(norms_b.T, dtype=dtype), 32)
    tau, ratio = _search(maps, (0, 0), valid_ratio, iterations, tolerance)
    return float(tau[0]), float(ratio[0])


def _row_major(name: str, array: Any, *, on_device: bool) -> Any:
    """Return `array` if its last axis has unit stride; copy it only if it was copied from the host anyway."""
    import cupy

    itemsize = array.itemsize
    good = array.size == 0 or (
        (array.shape[-1] == 1 or array.strides[-1] == itemsize)
        and (array.shape[-2] == 1 or array.strides[-2] >= itemsize * array.shape[-1])
        and array.strides[-2] % itemsize == 0
    )
    if good and array.strides[-1] == itemsize:
        return array
    if good or not on_device:
        return cupy.ascontiguousarray(array)
    raise ValueError(
        f"{name} is not row-major (strides {array.strides}): pass cupy.ascontiguousarray({name}), "
        "a copy of a GPU array is never hidden"
    )


def _flat(array: Any, batch: tuple[int, ...]) -> Any:
    """Return `array` as one matrix or one flat batch without copying, or None where broadcasting is more involved."""
    if math.prod(array.shape[:-2]) == 1:
        return array.reshape(array.shape[-2:])
    if array.shape[:-2] != batch:
        return None
    flat = array.reshape(-1, *array.shape[-2:])
    return flat if flat.data.ptr == array.data.ptr else None


@dataclass(frozen=True)
class _Options:
    """How a product is asked for; see :func:`spectile.spamm.spamm`."""

    tau: float | None
    valid_ratio: float | None
    rtol: float | None
    block: int
    alpha: float
    beta: float
    strict: bool
    precision: str
    check_finite: bool


def spamm_cuda(a: Any, b: Any, *, c: Any, out: Any, **options: Any) -> SpammResult:
    """Multiply on the current device and stream; see :func:`spectile.spamm.spamm`."""
    import cupy

    asked = _Options(**options)
    precision = asked.precision
    device.require_device()
    _log2(asked.block)
    (a_, give_back), (b_, _) = device.to_device(a), device.to_device(b)
    a_, b_ = (_row_major(n, x, on_device=device.on_device(y)) for n, x, y in (("a", a_, a), ("b", b_, b)))
    c_ = None
    dtype = np.dtype(_PRECISIONS[precision].output)
    if c is not None:
        # Another dtype of C is converted: the kernels read beta C in the dtype of the result.
        c_ = _row_major("c", cupy.asarray(device.to_device(c)[0], dtype=dtype), on_device=device.on_device(c))
    batch = np.broadcast_shapes(a_.shape[:-2], b_.shape[:-2])
    shape = (*batch, a_.shape[-2], b_.shape[-1])
    direct = out is not None and device.on_device(out)
    target = device.to_device(out)[0] if direct else None
    if target is not None and not target.flags.c_contiguous:
        raise ValueError(f"out has strides {target.strides}: pass a C-contiguous array")
    # Blocks of `out` would overwrite operands that others still read.
    fresh = target is None or any(cupy.may_share_memory(target, x) for x in (a_, b_))
    size = math.prod(shape) * dtype.itemsize
    with device.allocating(f"the product of shape {shape}", size):
        result: Any = cupy.empty(shape, dtype) if fresh else target
        parts = _multiply(a_, b_, c_, result, batch, asked)
    if asked.check_finite and precision == "fp16c16" and result.size and bool(cupy.isinf(result).any()):
        raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
    if target is not None and result is not target:
        target[...] = result
    if out is not None and not direct:
        out[...] = cupy.asnumpy(result)
    returned = out if out is not None else give_back(result)

    def collect(number: Callable[[_Item], float]) -> Callable[[], Any]:
        def read() -> Any:
            values = np.array([number(part) for part in parts]).reshape(batch)
            return float(values) if values.ndim == 0 else values

        return read

    return SpammResult(
        returned,
        tau=collect(_Item.threshold),
        valid_ratio=collect(_Item.valid_ratio),
        executed_ratio=collect(_Item.executed_ratio),
        error_bound=collect(_Item.error_bound),
        norm_c=collect(_Item.norm_c),
    )


@dataclass
class _Item:
    """One product of a batch: where its numbers are on the device."""

    product: Product
    item: tuple[int, int]
    tau: Any
    precision: str
    alpha: float
    beta: float
    c: Any
    out: Any

    def _device_tau(self) -> Any:
        import cupy

        return cupy.asarray([self.tau]) if isinstance(self.tau, float) else self.tau

    def threshold(self) -> float:
        return self.tau if isinstance(self.tau, float) else float(self.tau[0])

    def _ratio(self, grain: tuple[int, int, int]) -> float:
        norms_a, norms_b = _item(self.product.maps, self.item)
        total = norms_a.size * norms_b.shape[0]
        if total == 0:
            return 1.0
        return float(count_products(self.product.maps, self.item, self._device_tau(), grain)[0]) / total

    def valid_ratio(self) -> float:
        return self._ratio((1, 1, 1))

    def executed_ratio(self) -> float:
        return self._ratio(self.product.grain)

    def error_bound(self) -> float:
        norms_a, norms_b = _item(self.product.maps, self.item)
        skipped = float(skipped_bound(self.product.maps, self.item, self._device_tau()))
        norm_c = _frobenius(self.c) if self.c is not None else 0.0
        lost = _rounding(self.product.shape, norms_a, norms_b, self.precision, self.alpha, self.beta, norm_c)
        return abs(self.alpha) * skipped + lost

    def norm_c(self) -> float:
        return _frobenius(self.out)


def _frobenius(array: Any) -> float:
    """Frobenius norm with float64 sums."""
    return math.sqrt(float((array.astype(np.float64) ** 2).sum())) if array.size else 0.0


def _rounding(
    shape: tuple[int, int, int],
    norms_a: Any,
    norms_b: Any,
    precision: str,
    alpha: float = 1.0,
    beta: float = 0.0,
    norm_c: float = 0.0,
) -> float:
    slack = NORM_SLACK[norms_a.dtype.name]
    return rounding_bound(
        shape,
        _frobenius(norms_a) * slack,
        _frobenius(norms_b) * slack,
        precision,
        alpha=alpha,
        beta=beta,
        norm_c=norm_c,
        product_roundoff=TF32X3_ROUNDOFF if precision == "tf32x3" else 0.0,
    )


def _multiply(a: Any, b: Any, c: Any, out: Any, batch: tuple[int, ...], asked: _Options) -> list[_Item]:
    """Launch everything; return one entry for each product of the batch."""
    import cupy

    tau, precision, alpha, beta = asked.tau, asked.precision, asked.alpha, asked.beta
    flat_a, flat_b = _flat(a, batch), _flat(b, batch)
    if flat_a is None or flat_b is None:
        # Involved broadcasting: one product at a time, still without copies.
        wide_a, wide_b = (cupy.broadcast_to(a, (*batch, *a.shape[-2:])), cupy.broadcast_to(b, (*batch, *b.shape[-2:])))
        return list(
            itertools.chain.from_iterable(
                _multiply(wide_a[i], wide_b[i], None if c is None else c[i], out[i], (), asked)
                for i in np.ndindex(batch)
            )
        )
    flat_out = out.reshape(-1, *out.shape[-2:]) if batch else out
    flat_c = None if c is None else (c.reshape(flat_out.shape) if batch else c)
    count = flat_out.shape[0] if batch else 1
    items = [(i if flat_a.ndim == 3 else 0, i if flat_b.ndim == 3 else 0) for i in range(count)]
    maps = NormMaps(flat_a, flat_b, asked.block)
    if flat_a.size or flat_b.size:
        maps()
    if asked.check_finite or tau is None:
        _check_norms(maps, flat_a, flat_b)
    taus: Any = tau
    if asked.valid_ratio is not None:
        searches = [search_tau(maps, item, asked.valid_ratio)[0] for item in items]
        taus = cupy.concatenate(searches) if items else cupy.empty(0)
    elif asked.rtol is not None:
        shape = (a.shape[-2], a.shape[-1], b.shape[-1])
        taus = cupy.asarray([_tau_for_error(maps, item, asked.rtol, shape, precision) for item in items], np.float64)
    else:
        assert tau is not None
        taus = float(tau)
    product = Product(
        flat_a, flat_b, flat_out, maps, taus,
        precision=precision, alpha=alpha, beta=beta, c=flat_c, strict=asked.strict,
    )  # fmt: skip
    if flat_out.size:
        product()
    return [
        _Item(
            product, item, taus if isinstance(taus, float) else taus[i : i + 1], precision, alpha, beta,
            None if flat_c is None else (flat_c[i] if batch else flat_c), flat_out[i] if batch else flat_out,
        )
        for i, item in enumerate(items)
    ]  # fmt: skip


def _tau_for_error(
    maps: Norms, item: tuple[int, int], rtol: float, shape: tuple[int, int, int], precision: str
) -> float:
    norms_a, norms_b = _item(maps, item)
    lost = _rounding(shape, norms_a, norms_b, precision)
    # The norms may be too large by their rounding: the limit takes them too small.
    scale = _frobenius(norms_a) * _frobenius(norms_b) / NORM_SLACK[norms_a.dtype.name] ** 2
    if lost > rtol * scale:
        raise ValueError(
            f"rtol = {rtol} is below what rounding alone is bounded by, {lost / scale:.3g} for this inner "
            "dimension and precision: take a larger rtol or float64"
        )
    return _largest_tau(maps, item, rtol * scale - lost)


def _check_norms(maps: Norms, a: Any, b: Any) -> None:
    """Raise where an operand, here or on the host, holds NaN or infinity; a norm that overflows alone is no sign."""
    import cupy

    for name, norms, matrix in (("a", maps.a, a), ("b", maps.b, b)):
        finite = cupy.get_array_module(matrix).isfinite
        if norms.size and not bool(cupy.isfinite(norms).all()) and not bool(finite(matrix).all()):
            raise ValueError(
                f"{name} holds NaN or infinity: mend {name}, or give tau with check_finite=False to let them propagate "
                "as in a dense product"
            )
