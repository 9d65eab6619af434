"""When the topological insulator is multiplied without a matrix (``kernel.cu``), in which tile, and what that costs."""

from __future__ import annotations

import math
from typing import NamedTuple

from spectile.core.devices import Device
from spectile.core.launch import Shape
from spectile.core.tiling import ceil_div
from spectile.kpm.cuda.problem import STATIC_BYTES

# Part of the specified bandwidth that a sweep reaches.
_EFFICIENCY = 0.7
# More threads than this a block leave each too few registers.
_MOST_SWEEP_THREADS = {1: 480, 2: 380}
_MOST_LINES = 64


class SweepTile(NamedTuple):
    """Tile of the kernel: lines of a plane, planes ahead, and Chebyshev steps of a sweep."""

    lines: int
    ahead: int
    steps: int

    def threads(self, nz: int) -> int:
        """Return the threads of a block."""
        return -(-(self.lines + 2 * (self.steps - 1)) * nz // 32) * 32

    def shared_bytes(self, nz: int, item_bytes: int) -> int:
        """Return the dynamic shared memory of a block."""
        inner = self.lines + 2 * (self.steps - 1)
        planes = (self.ahead + 2) * (self.lines + 2 * self.steps)
        planes += (self.ahead + 1 + 2 * (self.steps - 1)) * inner
        return planes * 4 * nz * item_bytes


def sweep_tile(ny: int, nz: int, steps: int, item_bytes: int, device: Device) -> SweepTile | None:
    """Return the tile that makes the fewest lines be read, within one block; None if not even one line fits into it."""
    best, choice = math.inf, None
    for lines in range(1, min(ny, _MOST_LINES) + 1):
        if (lines + 2 * (steps - 1)) * nz > (_MOST_SWEEP_THREADS[steps] if lines > 1 else 1024):
            break
        # Two planes on their way where the sweep computes twice a plane and memory allows it.
        for ahead in (2, 1) if steps == 2 else (1,):
            tile = SweepTile(lines, ahead, steps)
            if tile.shared_bytes(nz, item_bytes) <= device.shared_bytes - STATIC_BYTES:
                # The last tile's idle threads cost nothing where the memory bus is the limit: lines read count.
                cost = ny / lines * (lines + 2 * steps)
                if cost <= best:
                    best, choice = cost, tile
                break
    return choice


def applies(ny: int, nz: int, item_bytes: int, device: Device) -> str:
    """Return why the kernel does not take a sample of these lines, in a few words; empty if it does."""
    return "" if sweep_tile(ny, nz, 1, item_bytes, device) else f"lines of {nz} sites do not fit into shared memory"


def most_steps_a_sweep(ny: int, nz: int, item_bytes: int, device: Device) -> int:
    """Return two Chebyshev steps for one pass over the vectors where a block holds their planes, else one."""
    return 2 if sweep_tile(ny, nz, 2, item_bytes, device) else 1


def cost(rows: int, num_vectors: int, item_bytes: int, steps: int, device: Device) -> float:
    """Return the seconds that a step should take: V and W are read and written once a sweep."""
    return 4 * rows * num_vectors * item_bytes / steps / (_EFFICIENCY * device.bytes_per_second)


def sweep_launch(tile: SweepTile, ny: int, nz: int, planes: int, item_bytes: int, device: Device) -> tuple[Shape, int]:
    """Return the launch of ``sweep``, and the groups into which the vectors' planes are divided."""
    shared, threads = tile.shared_bytes(nz, item_bytes), tile.threads(nz)
    resident = device.multiprocessors * max(1, min(device.shared_bytes // shared, 1024 // threads))
    tiles = ceil_div(ny, tile.lines)
    groups = sweep_groups(tiles, resident, planes)
    return Shape((groups * tiles,), threads, shared), groups


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
