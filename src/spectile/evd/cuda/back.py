"""Eigenvectors taken back through the chasing (Q2) and through the panels (Q1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.evd.cuda.band import Panels
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.divide import spare_elements
from spectile.evd.cuda.matrix import Matrix, empty_matrix
from spectile.evd.cuda.units import STAGES, SWEEPS, launch

SWEEP_GROUP = 64  # sweeps applied together: GROUP of sweeps.cu
TILE_SWEEPS = 32  # WIDTH of sweeps.cu
TILES = SWEEP_GROUP // TILE_SWEEPS


def tile_bytes(n: int) -> int:
    """Return how many bytes of tiles `apply_chasing` makes at a time, if one group of sweeps needs no more."""
    return 2**25 if n < 4096 else min(2**27, 8 * spare_elements(n))


def back_columns(n: int) -> tuple[int, int]:
    """Return how many reflectors of the band reduction `apply_panels` takes at a time, to how many columns of Z."""
    return 512 if n >= 8192 else 256, max(512, min(8192, n // 4))


def apply_chasing(reflectors: Matrix, n: int, bandwidth: int, z: int, ldz: int, columns: int) -> None:
    """Z = Q2 Z in place, in double precision, a group of neighbouring sweeps after the other (sweeps.cu).

    Parameters
    ----------
    reflectors : Matrix
        As `chase_band` leaves them.
    n, bandwidth : int
    z, ldz, columns : int
        Address (a multiple of 16), leading dimension (even) and columns of Z, of type float64 or complex128.
    """
    import cupy

    if n < 2:
        return
    dtype, b = reflectors.owner.dtype, bandwidth
    unit, parts = SWEEPS[dtype.name, b], 2 if dtype.kind == "c" else 1
    tile = parts * 512 * (b + 14)  # bytes of Y and Y T of a tile's sweeps, one task
    groups = -(-(n - 1) // SWEEP_GROUP)
    make_shared = 8 * parts * TILE_SWEEPS * (b + 2 * TILE_SWEEPS + 3)
    properties = device.describe()
    slots = 2 * TILES if properties.compute_capability >= (9, 0) else 1

    def tasks(group: int) -> int:
        return (n - 2 - group * SWEEP_GROUP) // b + 1

    vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    together = max(1, min(groups, tile_bytes(n) // (tasks(0) * TILES * tile)))
    tiles = cupy.empty(together * tasks(0) * TILES * tile // 8, np.float64)
    # A group that fills the device has a launch of its own: its blocks are at the same task, and find its tiles in the
    # cache.  Else groups follow one another within a launch.
    fills = columns * parts >= 120 * properties.multiprocessors
    # Eight warps share what they read; four spread a small Z over more multiprocessors.
    warps = 8 if fills or together * columns * parts >= 80 * properties.multiprocessors else 4
    share = -(-columns * parts // (16 * warps))  # blocks for a group
    apply_shared = slots * tile + 8 * (warps * 16 * b + 2 * slots)
    for last in range(groups - 1, -1, -together):
        count = min(together, last + 1)
        width = tasks(last - count + 1)
        sizes = (np.int32(n), np.int32(last), np.int32(width))
        launch(unit, "sweep_tiles", (width, count, TILES), 128, (*vectors, *sizes, tiles), make_shared)
        target = (np.uintp(z), np.int64(ldz), np.int32(n), np.int32(columns))
        if fills:
            for group in range(last, last - count, -1):
                place = np.uintp(tiles.data.ptr + (last - group) * width * TILES * tile)
                arguments: tuple[Any, ...] = (*target, place, np.int32(tasks(group)), np.int32(group * SWEEP_GROUP))
                launch(unit, "apply_sweeps", share, 32 * warps, arguments, apply_shared)
        else:
            progress = cupy.zeros(1 + count * share * warps, np.int32)
            arguments = (*target, tiles, np.int32(width), np.int32(last), np.int32(count), progress)
            launch(unit, "follow_sweeps", count * share, 32 * warps, arguments, apply_shared)


def apply_panels(panels: Panels, z: int, ldz: int, columns: int) -> None:
    """Z = Q1 Z in place, `back_columns` reflectors and columns at a time.

    Parameters
    ----------
    panels : Panels
    z, ldz, columns : int
        Address, leading dimension and columns of Z.
    """
    import cupy

    n, b, a = panels.n, panels.bandwidth, panels.a
    number = max(-(-(n - b) // b), 0)
    if number == 0:
        return
    dtype = a.owner.dtype
    unit, blas, size = STAGES[dtype.name, b], Blas(dtype), dtype.itemsize
    k, width = back_columns(n)
    while k > b and k >= 2 * number * b:
        k //= 2
    width = min(columns, width)
    y, s = empty_matrix(n - b, k, dtype), empty_matrix(k, 2 * width, dtype)
    t, gram, product = (cupy.empty(k * k, dtype) for _ in range(3))
    for first in range((number * b - 1) // k * k, -1, -k):
        rows, top = n - first - b, first + b
        matrix = (np.uintp(a.pointer), np.int64(a.ld), np.int32(n), np.int32(first))
        launch(unit, "gather_panels", (-(-rows // 256), k), 256, (*matrix, np.uintp(y.pointer), np.int64(y.ld)))
        factors = np.uintp(panels.t.data.ptr + first // b * b * b * size)
        here = min(k, number * b - first) // b
        launch(unit, "place_factors", -(-k * k // 256), 256, (factors, np.int32(here), np.int32(k), t))
        # T of neighbouring blocks: [[T1, -T1 (Y1^H Y2) T2], [0, T2]].
        blas.gemm(k, k, rows, 1.0, y.pointer, y.ld, y.pointer, y.ld, 0.0, gram.data.ptr, k, ops="CN")
        span = b
        while span < k:
            step, corner = 2 * span * (1 + k), span * k * size
            second = t.data.ptr + span * (1 + k) * size
            pairs = k // (2 * span)
            blas.batched(
                *(span, span, span, 1.0, gram.data.ptr + corner, k, step, second, k, step),
                *(0.0, product.data.ptr, k, step, pairs),
            )
            blas.batched(
                *(span, span, span, -1.0, t.data.ptr, k, step, product.data.ptr, k, step),
                *(0.0, t.data.ptr + corner, k, step, pairs),
            )
            span *= 2
        for start in range(0, columns, width):
            part, target = min(width, columns - start), z + (top + start * ldz) * size
            blas.gemm(k, part, rows, 1.0, y.pointer, y.ld, target, ldz, 0.0, s.at(0, 0), s.ld, ops="CN")
            blas.gemm(k, part, k, 1.0, t.data.ptr, k, s.at(0, 0), s.ld, 0.0, s.at(0, width), s.ld)
            blas.gemm(rows, part, k, -1.0, y.pointer, y.ld, s.at(0, width), s.ld, 1.0, target, ldz)
