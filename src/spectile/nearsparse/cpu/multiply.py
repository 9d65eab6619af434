"""The product on the CPU: tiles packed once, and exactly the valid products.

A library's GEMM is slow on 32 x 32 tiles (it packs its operands again at each call), so A and B are packed once into
tiles, and each tile of C stays in the first-level cache while the valid k are multiplied into it.  The innermost loop
is LLVM vector code (kernel.py); the rest is plain Numba, run by threads without the GIL.
"""

from __future__ import annotations

import math
import queue
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.jit import njit
from spectile.core.pointers import without_read_only
from spectile.core.threads import blas_threads, results
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cpu.kernel import PAD, multiply_add, prefetch_tile, register_block
from spectile.nearsparse.cpu.norms import parts_of, real_view

# Tile rows of A that one thread holds packed (at most), and tile columns of B that it multiplies with them at a time.
PANEL, GROUP = 32, 8
PANEL_BYTES = 64 << 20
# How many tiles ahead of packing their rows are fetched.
AHEAD = 2
# Tile products below which starting threads costs more than it gains.
SERIAL = 64


@njit(nogil=True)
def _pack_a(a: Any, parts: int, block: int, i: int, k: int, tile: Any) -> None:
    """Copy tile (i, k) of A, transposed, so that k runs in the rows as in B's: the real parts, then the imaginary."""
    rows, columns = min(block, a.shape[0] - i * block), min(block, a.shape[1] // parts - k * block)
    if rows < tile.shape[1]:
        tile[:] = 0
    for r in range(rows):
        source = a[i * block + r, parts * k * block : parts * (k * block + columns)]
        if parts == 1:
            for s in range(columns):
                tile[s, r] = source[s]
        else:
            for s in range(columns):
                tile[s, r], tile[columns + s, r] = source[2 * s], source[2 * s + 1]


@njit(nogil=True)
def _pack_b(b: Any, parts: int, block: int, k: int, j: int, tile: Any) -> None:
    """Copy tile (k, j) of B: what A's rows are multiplied with for each part of C.

    (Re A, Im A) times (Re B, -Im B) is the real part of A B, and times (Im B, Re B) the imaginary one.
    """
    rows, columns = min(block, b.shape[0] - k * block), min(block, b.shape[1] // parts - j * block)
    if columns < tile.shape[2]:
        tile[:] = 0
    for r in range(rows):
        source = b[k * block + r, parts * j * block : parts * (j * block + columns)]
        if parts == 1:
            for s in range(columns):
                tile[0, r, s] = source[s]
        else:
            for s in range(columns):
                tile[0, r, s] = tile[1, rows + r, s] = source[2 * s]
                tile[0, rows + r, s] = -source[2 * s + 1]
                tile[1, r, s] = source[2 * s + 1]


@njit(nogil=True)
def _list_and_pack(
    a: Any, b: Any, parts: int, norms_a: Any, norms_bt: Any, tau: float, block: int, first: int, group: int, width: int,
    counts: Any, valid: Any, needed_a: Any, needed_b: Any, packed_a: Any, packed_b: Any,
) -> int:  # fmt: skip
    """List the valid k of each tile of C in a panel and a group, pack what they need, and return their number."""
    executed = 0
    for i in range(counts.shape[0]):
        for j in range(width):
            count = 0
            for k in range(norms_bt.shape[1]):
                # A product that is NaN is not below tau, so that NaN and infinity propagate.
                if not (norms_a[first + i, k] * norms_bt[group + j, k] < tau):
                    valid[i, j, count] = k
                    count += 1
            for t in range(count):
                k, ahead = valid[i, j, t], valid[i, j, min(t + AHEAD, count - 1)]
                if not needed_a[i, ahead]:
                    prefetch_tile(a, block, parts * block, first + i, ahead)
                if not needed_b[ahead, j]:
                    prefetch_tile(b, block, parts * block, ahead, group + j)
                if not needed_a[i, k]:
                    needed_a[i, k] = True
                    _pack_a(a, parts, block, first + i, k, packed_a[i, k])
                if not needed_b[k, j]:
                    needed_b[k, j] = True
                    _pack_b(b, parts, block, k, group + j, packed_b[k, j])
            counts[i, j] = count
            executed += count
    return executed


@njit(nogil=True)
def _sum_tile(
    valid: Any, count: int, i: int, j: int, height: int, breadth: int, inner: int, block: int, registers: Any,
    packed_a: Any, packed_b: Any, sums: Any,
) -> None:  # fmt: skip
    """Sum the valid products of tile (i, j) of a panel and a group: the parts of C below one another."""
    blocks, parts, ld = packed_b.shape[0], packed_b.shape[2], packed_b.shape[4]
    size, line = parts * block * ld, 64 // sums.itemsize
    sums[:] = 0
    for t in range(count):
        k, ahead = valid[t], valid[min(t + 1, count - 1)]
        length = parts * min(block, inner - k * block)
        for part in range(parts):
            tile_a, tile_b = (i * blocks + k) * size, ((k * GROUP + j) * parts + part) * size
            # The next product's tiles are fetched during this one: A's in its first half, B's in the other.
            ahead_a, ahead_b = (i * blocks + ahead) * size, ((ahead * GROUP + j) * parts + part) * size
            for r in range(0, height, registers[0]):
                for s in range(0, breadth, registers[1]):
                    at, from_a, from_b = (part * ld + r) * ld + s, tile_a + r, tile_b + s
                    if 2 * r < height:
                        multiply_add(  # type: ignore[call-arg]
                            sums, at, packed_a, from_a, packed_b, from_b, ld, length, packed_a, ahead_a
                        )
                        ahead_a += length * line
                    else:
                        multiply_add(  # type: ignore[call-arg]
                            sums, at, packed_a, from_a, packed_b, from_b, ld, length, packed_b, ahead_b
                        )
                        ahead_b += length * line


@njit(nogil=True)
def _store_tile(
    sums: Any, row: int, column: int, height: int, breadth: int, alpha: Any, beta: Any, c: Any, out: Any
) -> None:
    """Write alpha times the sums plus beta C."""
    ld = sums.shape[1]
    parts = sums.shape[0] // ld
    for r in range(height):
        target = out[row + r, parts * column : parts * (column + breadth)]
        if beta == 0 and parts == 1:
            for s in range(breadth):
                target[s] = alpha * sums[r, s]
        elif beta == 0:
            for s in range(breadth):
                target[2 * s], target[2 * s + 1] = alpha * sums[r, s], alpha * sums[ld + r, s]
        else:
            source = c[row + r, parts * column : parts * (column + breadth)]
            for part in range(parts):
                for s in range(breadth):
                    target[parts * s + part] = alpha * sums[part * ld + r, s] + beta * source[parts * s + part]


@njit(nogil=True)
def _multiply_panel(
    a: Any, b: Any, norms_a: Any, norms_bt: Any, tau: float, block: int, first: int, last: int, registers: Any,
    alpha: Any, beta: Any, c: Any, out: Any, packed_a: Any, packed_b: Any,
) -> int:  # fmt: skip
    """Compute tile rows first ... last - 1 of C; return the number of tile products.

    ``packed_a[i, k]`` and ``packed_b[k, j]`` are work space: this panel of A, and GROUP tile columns of B.
    """
    blocks, columns_b, parts, ld = norms_bt.shape[1], norms_bt.shape[0], packed_b.shape[2], packed_a.shape[3]
    sums = np.empty((parts * ld, ld), out.dtype)
    counts, valid = np.empty((last - first, GROUP), np.intp), np.empty((last - first, GROUP, blocks), np.intp)
    needed_a, needed_b = np.zeros((last - first, blocks), np.bool_), np.empty((blocks, GROUP), np.bool_)
    executed = 0
    for group in range(0, columns_b, GROUP):
        width = min(GROUP, columns_b - group)
        needed_b[:] = False
        executed += _list_and_pack(
            a, b, parts, norms_a, norms_bt, tau, block, first, group, width, counts, valid, needed_a, needed_b,
            packed_a, packed_b,
        )  # fmt: skip
        for i in range(last - first):
            for j in range(width):
                row, column = (first + i) * block, (group + j) * block
                height, breadth = min(block, out.shape[0] - row), min(block, out.shape[1] // parts - column)
                _sum_tile(
                    valid[i, j], counts[i, j], i, j, height, breadth, b.shape[0], block, registers,
                    packed_a, packed_b, sums,
                )  # fmt: skip
                _store_tile(sums, row, column, height, breadth, alpha, beta, c, out)
    return executed


@dataclass(frozen=True)
class Division:
    """How a product is divided among threads, and the packed tiles that they hold."""

    workers: int  #: Threads, 1 where starting them costs more than it gains.
    panel: int  #: Tile rows of A and C that a thread takes at a time.
    #: Tiles along k, their size, and the elements from one row of a packed tile to the next.
    blocks: int
    block: int
    leading: int
    parts: int  #: Real numbers in an entry.

    @classmethod
    def of(cls, rows: int, blocks: int, columns: int, block: int, itemsize: int, parts: int) -> Division:
        """Return the division of a product of (rows, blocks) and (blocks, columns) tiles."""
        parallel = rows * blocks * columns > SERIAL
        workers = blas_threads() if parallel else 1
        leading = ceil_div(block, PAD) * PAD
        # Several panels a thread, for balance, but tall enough that B is not packed too often, and of bounded size.
        affordable = PANEL_BYTES // max(1, blocks * parts * block * leading * itemsize)
        panel = max(1, min(PANEL, rows, max(GROUP, rows // (4 * workers)), affordable))
        return cls(min(workers, max(1, ceil_div(rows, panel))), panel, blocks, block, leading, parts)

    @property
    def packed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a thread's packed tiles: of a panel of A, and of a group of columns of B."""
        tile = self.parts * self.block, self.leading
        return (self.panel, self.blocks, *tile), (self.blocks, GROUP, self.parts, *tile)

    def memory_bytes(self, itemsize: int) -> int:
        """Return the bytes of all threads' packed tiles and lists of valid products."""
        packed = sum(map(math.prod, self.packed)) * itemsize
        lists = (8 * GROUP + 1) * self.panel * self.blocks
        return self.workers * (packed + lists)


def multiply(
    a: Any, b: Any, norms_a: Any, norms_b: Any, tau: float, block: int, alpha: float, beta: float, c: Any, out: Any
) -> int:
    """Compute alpha A B + beta C into `out`; return the number of tile products."""
    rows, blocks = norms_a.shape
    parts, source = parts_of(out), out if c is None else c
    a, b, source, out = (without_read_only(real_view(x)) for x in (a, b, source, out))
    register_rows, vectors, lanes = register_block(8 * out.itemsize)
    kind = out.dtype.type
    norms_bt = np.ascontiguousarray(norms_b.T)
    division = Division.of(rows, blocks, norms_b.shape[1], block, out.itemsize, parts)
    panel = division.panel
    spare: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(division.workers):
        spare.put(tuple(np.empty(shape, out.dtype) for shape in division.packed))

    def one_panel(first: int) -> int:
        packed_a, packed_b = spare.get()
        executed = _multiply_panel(
            a, b, norms_a, norms_bt, tau, block, first, min(first + panel, rows), (register_rows, vectors * lanes),
            kind(alpha), kind(beta), source, out, packed_a, packed_b,
        )  # fmt: skip
        spare.put((packed_a, packed_b))
        return int(executed)

    return sum(results(range(0, rows, panel), division.workers, one_panel))
