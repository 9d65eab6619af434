"""Counts of a product of bitmap tiles: tiles of C, products of tiles, entries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from spectile.core.jit import njit

ZERO = np.uint64(0)
_PIECES = 16  # of a thread, so that rows of more work even out


@njit(nogil=True, boundscheck=False)
def popcount(x):  # type: ignore[no-untyped-def]
    """Return the number of set bits."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(nogil=True, boundscheck=False)
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
    threads = numba.get_num_threads()
    edges = np.linspace(0, len(A[0]) - 1, threads * _PIECES + 1).astype(np.int64).tolist()
    with ThreadPoolExecutor(threads) as pool:
        totals = pool.map(lambda first, stop: _count_tiles(first, stop, *A, *B, width), edges[:-1], edges[1:])
        tiles, tasks, entries = (int(sum(part)) for part in zip(*totals, strict=True))
    return tiles, tasks, entries
