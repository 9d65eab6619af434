"""Counts of a product of bitmap tiles: tiles of C, products of tiles, entries."""

from __future__ import annotations

import numba
import numpy as np

from spectile.core.jit import njit
from spectile.tsparse.cpu import threads
from spectile.tsparse.cpu.kernels import JIT, ZERO, popcount
from spectile.tsparse.cpu.work import WORTH_A_CHUNK, chunks, survey


@njit(**JIT)
def _count_tiles(first, stop, start_a, columns_a, bitmaps_a, start_b, columns_b, bitmaps_b, width):  # type: ignore[no-untyped-def]
    """Tiles of C, products of tiles that meet, and entries of C, of tile rows first to stop."""
    bits = np.zeros(width, np.uint64)
    touched = np.empty(width, np.int64)
    tiles, products, entries = 0, 0, np.uint64(0)
    for i in range(first, stop):
        count = 0
        for p in range(start_a[i], start_a[i + 1]):
            left = bitmaps_a[p]
            for q in range(start_b[columns_a[p]], start_b[columns_a[p] + 1]):
                right = bitmaps_b[q]
                product = ZERO
                for k in range(8):
                    # One bit a row of the left tile times a row of the right one: it lands in every row with the bit.
                    shift = np.uint64(k)
                    column = (left >> shift) & np.uint64(0x0101010101010101)
                    product |= column * ((right >> (np.uint64(8) * shift)) & np.uint64(0xFF))
                if product == ZERO:
                    continue
                products += 1
                j = columns_b[q]
                if bits[j] == ZERO:
                    touched[count] = j
                    count += 1
                bits[j] |= product
        tiles += count
        for t in range(count):
            entries += popcount(bits[touched[t]])
            bits[touched[t]] = ZERO
    return tiles, products, entries


def tile_counts(
    A: tuple[np.ndarray, np.ndarray, np.ndarray], B: tuple[np.ndarray, np.ndarray, np.ndarray], width: int
) -> tuple[int, int, int]:
    """Return the tiles of C, the products of tiles that meet, and the stored entries of C.

    Parameters
    ----------
    A, B : tuple of arrays
        Row pointer, columns and bitmaps of the 8x8 tiles of a factor.
    width : int
        Tile columns of C.
    """
    products = survey(A[0], A[1], B[0])
    totals: list[tuple[int, int, int]] = []

    def work(first: np.uint64, stop: np.uint64) -> None:
        totals.append(_count_tiles(int(first), int(stop), *A, *B, width))

    count = numba.get_num_threads()
    threads.over_rows(chunks(products, count, WORTH_A_CHUNK // 10), count, work)
    tiles, tasks, entries = (int(sum(part)) for part in zip(*totals, strict=True))
    return tiles, tasks, entries
