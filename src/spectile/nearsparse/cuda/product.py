"""The product on one GPU: the kernel that applies, its parameters and its launches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core import device
from spectile.nearsparse.cuda.launch import blocks, fill, is_aligned, launch, layout, log2, pitch, stride
from spectile.nearsparse.cuda.norms import Norms
from spectile.nearsparse.cuda.units import ORDER_UNITS, PORTABLE, WGMMA, Hopper, Kernel, Precision, Wgmma, WgmmaTf32

PRODUCT = layout(
    "a:p b:p c:p out:p norms_a:p norms_b:p tau_device:p tau:d alpha:d beta:d lda:l ldb:l ldc:l ldo:l stride_a:l "
    "stride_b:l stride_c:l stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i "
    "tiles_n:i bins:p places:p lists:p"
)
ORDER = layout(
    "norms_a:p norms_b:p tau_device:p counts:p order:p finished:p bins:p places:p lists:p tau:d m:i n:i k:i norm_k:i "
    "log2_block:i tiles_m:i tiles_n:i tile_m:i tile_n:i band:i"
)
WGMMA_FIELDS = layout(
    "c:p out:p norms_a:p norms_b:p tau_device:p counter:p order:p tau:d alpha:d beta:d ldc:l ldo:l stride_c:l "
    "stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i tiles_n:i batches:i "
    "batch_a:i batch_b:i copy_stores:i"
)
WGMMA_PRODUCT = np.dtype(
    {
        "names": ["map_a", "map_b", "map_c", "fields"],
        "formats": ["V128", "V128", "V128", WGMMA_FIELDS],
        "offsets": [0, 128, 256, 384],
        "itemsize": -(-(384 + WGMMA_FIELDS.itemsize) // 64) * 64,
    }
)


# Bins of falling work in which sorted tiles of the portable kernels lie (order.cu).
BINS = 64


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
        Key of ``spectile.nearsparse.api.PRECISIONS``.
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
            "ldc": pitch(c) if c is not None else 0,
            "ldo": pitch(out),
            "stride_c": stride(c) if c is not None else 0,
            "stride_o": stride(out),
            "stride_norms_a": stride(maps.a),
            "stride_norms_b": stride(maps.b),
            "norm_k": maps.k_blocks,
            "log2_block": log2(maps.block),
        } | dict(zip("mkn", self.shape, strict=True))
        self._order: tuple[Any, tuple[int, ...], np.ndarray[Any, Any]] | None = None
        if self.kernel in WGMMA:
            self._prepare_wgmma(a, b, out, common, WGMMA[self.kernel], ordered)
        else:
            self._prepare_portable(a, b, out, common, PORTABLE[precision], ordered)

    def _prepare_order(
        self,
        common: dict[str, Any],
        tile: tuple[int, int],
        band: int,
        ordered: bool | None,
        tuned: Precision | Hopper,
    ) -> dict[str, int]:
        """Prepare sorting the tiles; return where their order will lie, and their lists where those are made, too."""
        import cupy

        m, _, n = self.shape
        tiles_m, tiles_n = blocks(m, tile[0]), blocks(n, tile[1])
        tiles = tiles_m * tiles_n
        if ordered is None:
            ordered = 3 * device.describe().multiprocessors < tiles <= tuned.ordered_tiles
        if not ordered or self.batches > 1 or self.maps.block < 32 or self.kernel == "blocks":
            return {}
        steps = blocks(self.shape[1], 32) if isinstance(tuned, Precision) and tuned.given_lists else 0
        if self.kernel == "portable":
            # Bins and how many blocks have ended; room for all tiles in each bin, two words a tile; the lists.
            buffer = cupy.empty(BINS + 2 + (2 * BINS + steps) * tiles, cupy.uint32)
            buffer[: BINS + 2] = 0
            words = {"bins": 0, "places": BINS + 2} | ({"lists": BINS + 2 + 2 * BINS * tiles} if steps else {})
        else:
            buffer = cupy.empty(2 * tiles + 1, cupy.uint32)
            buffer[2 * tiles] = 0
            words = {"order": 0, "counts": tiles, "finished": 2 * tiles}
        places = {name: int(buffer.data.ptr) + 4 * word for name, word in words.items()}
        names = ("norms_a", "norms_b", "tau_device", "tau", "m", "n", "k", "norm_k", "log2_block")
        parameters = fill(
            np.zeros((), ORDER),
            {name: common[name] for name in names}
            | {"tiles_m": tiles_m, "tiles_n": tiles_n}
            | {"tile_m": tile[0], "tile_n": tile[1], "band": band}
            | places,
        )
        self._order = (ORDER_UNITS[self.maps.a.dtype.name].function("order_tiles"), (blocks(tiles, 8),), parameters)
        self._keep = *self._keep, buffer
        return {name: place for name, place in places.items() if name not in ("counts", "finished")}

    def _prepare_portable(
        self, a: Any, b: Any, out: Any, common: dict[str, Any], precision: Precision, ordered: bool | None
    ) -> None:
        m, _, n = self.shape
        aligned = all(map(is_aligned, (a, b, out)))
        tile = precision.small
        tiles, multiprocessors = blocks(m, 128) * blocks(n, 128) * self.batches, device.describe().multiprocessors
        if aligned and tiles >= precision.large_from * multiprocessors:
            tile = precision.large
        rows, columns = (tile.tile_m, tile.tile_n) if self.kernel == "portable" else (32, 32)
        self._parameters = fill(
            np.zeros((), PRODUCT),
            common
            | {"a": a.data.ptr, "b": b.data.ptr, "lda": pitch(a), "ldb": pitch(b)}
            | {"stride_a": stride(a), "stride_b": stride(b)}
            | {"tiles_m": blocks(m, rows), "tiles_n": blocks(n, columns)}
            | self._prepare_order(common, (rows, columns), 512 // rows, ordered, precision),
        )
        self._grid: tuple[int, ...] = (blocks(m, rows) * blocks(n, columns), self.batches)
        if self.kernel == "portable":
            self._threads, self._shared = tile.threads, precision.shared_bytes(tile)
            # Where all blocks are resident at once, those that start early crowd where norms have ended.
            self._early = math.prod(self._grid) > tile.min_blocks * multiprocessors
            unit = precision.unit(tile, aligned, tile.list_steps(aligned, self.shape[1]))
            self._function = unit.function("product", self._shared)
        else:
            self._threads, self._shared, self._early = 512, 0, False
            self._function = precision.blocks_unit().function("product_blocks")

    def _prepare_wgmma(
        self, a: Any, b: Any, out: Any, common: dict[str, Any], shape: Wgmma | WgmmaTf32, ordered: bool | None
    ) -> None:
        import cupy

        from spectile.core.tensor_map import encode

        m, _, n = self.shape
        rows = 128 * shape.cluster
        tiles_m, tiles_n = blocks(m, rows), blocks(n, shape.tile_n)
        self._parameters = np.zeros((), WGMMA_PRODUCT)
        self._parameters["map_a"] = np.void(encode(a.reshape(-1, *a.shape[-2:]), shape.box_a, shape.swizzle_a))
        copy_stores = common["beta"] == 0 and is_aligned(out)
        if copy_stores:
            box = 1, 64, 128 // out.itemsize
            self._parameters["map_c"] = np.void(encode(out.reshape(-1, *out.shape[-2:]), box, 128))
        self._parameters["map_b"] = np.void(encode(b.reshape(-1, *b.shape[-2:]), shape.box_b, 128))
        fill(
            self._parameters["fields"],
            common
            | {"counter": self.maps.counter.data.ptr, "tiles_m": tiles_m, "tiles_n": tiles_n, "batches": self.batches}
            | {"batch_a": int(stride(a) > 0), "batch_b": int(stride(b) > 0)}
            | {"copy_stores": copy_stores}
            | self._prepare_order(common, (rows, shape.tile_n), 2048 // rows, ordered, shape),
        )
        waves = tiles_m * tiles_n * shape.cluster / (device.describe().multiprocessors * shape.resident)
        # A graph that is being captured takes no copy from the host.
        free = ordered is None and self.batches == 1 and not cupy.cuda.get_current_stream().is_capturing()
        # Runs of tiles, given out in advance, would have the first clusters do most of the work.
        in_turn = isinstance(shape, Wgmma) and shape.schedule != "RUNS"
        if free and in_turn and 1 < waves <= 4:
            diagonals = cupy.asarray(tiles_by_diagonal((tiles_m, tiles_n), (rows, shape.tile_n), 2048 // rows))
            self._parameters["fields"]["order"] = diagonals.data.ptr
            self._keep = *self._keep, diagonals
        self._threads, self._shared, self._early = shape.threads, shape.shared_bytes, True
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
            launch(function, grid, 256, parameters, waits=True)
        launch(self._function, self._grid, self._threads, self._parameters, self._shared, waits=self._early)


def tiles_by_diagonal(tiles: tuple[int, int], tile: tuple[int, int], band: int) -> np.ndarray[Any, Any]:
    """Return the numbers of all tiles, those on the diagonal first.

    Where entries decay from the diagonal, the last tiles to start are then the shortest, at no cost on the device; it
    pays while all tiles together fit the L2.

    Parameters
    ----------
    tiles : pair of int
        Rows and columns of tiles.
    tile : pair of int
        Rows and columns of C in a tile.
    band : int
        The kernels number tiles column by column in bands of so many rows of tiles.
    """
    row, column = np.divmod(np.arange(tiles[0] * tiles[1]), tiles[1])
    height = np.minimum(band, tiles[0] - row // band * band)
    number = row // band * band * tiles[1] + column * height + row % band
    # Twice the distance of their middles from the diagonal.
    distance = np.abs((2 * row + 1) * tile[0] - (2 * column + 1) * tile[1])
    return number[np.lexsort((row, distance))].astype(np.uint32)


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
        and is_aligned(a)
        and is_aligned(b)
    )
    if not suits:
        return "portable"
    if precision == "tf32x3":
        return "wgmma_tf32"
    tiles = blocks(a.shape[-2], 256) * blocks(b.shape[-1], 256) * batches
    if 3 * tiles < found.multiprocessors:
        return "wgmma_small"
    return "wgmma_wide_pair" if a.shape[-2] > 128 else "wgmma_wide"
