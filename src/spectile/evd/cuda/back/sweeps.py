"""Back-transformation through the bulge chasing: Z = Q2 Z."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spectile.core import device
from spectile.core.compile import Unit
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.choose import SWEEP_GROUP, TILE_SWEEPS, TILES, tile_slots, tuning
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.units import SWEEP_TILES, SWEEPS
from spectile.evd.cuda.workspace import tile_bytes
from spectile.evd.types import Scalar


@dataclass(frozen=True)
class Sweeps:
    """How the reflectors of a chasing are applied to Z on one device: tiles, groups, and launches."""

    n: int
    bandwidth: int
    scalar: Scalar  #: Of the reflectors.
    columns: int  #: Of Z.
    device: Device

    @property
    def tile(self) -> int:
        """Bytes of Y and Y T of a tile's sweeps, one task."""
        return self.scalar.parts * 512 * (self.bandwidth + 14)

    @property
    def groups(self) -> int:
        """Groups of sweeps."""
        return -(-(self.n - 1) // SWEEP_GROUP)

    def tasks(self, group: int) -> int:
        """Tasks of a group's longest sweep."""
        return (self.n - 2 - group * SWEEP_GROUP) // self.bandwidth + 1

    @property
    def together(self) -> int:
        """Groups whose tiles are made at a time."""
        return max(1, min(self.groups, tile_bytes(self.n) // (self.tasks(0) * TILES * self.tile)))

    @property
    def fills(self) -> bool:
        """Whether one group fills the device: then it has a launch of its own.

        Its blocks are at the same task, and meet its tiles in the cache.  Else groups follow one another in a launch.
        """
        return self.columns * self.scalar.parts >= tuning(self.device).fill_columns * self.device.multiprocessors

    @property
    def warps(self) -> int:
        """Warps of a block: eight share what they read, if their columns fit into shared memory.

        Four spread a small Z over more multiprocessors.
        """
        columns = self.together * self.columns * self.scalar.parts
        many = columns >= tuning(self.device).share_columns * self.device.multiprocessors
        return 8 if (self.fills or many) and self._shared_bytes(8) <= self.device.shared_bytes - 1024 else 4

    @property
    def share(self) -> int:
        """Blocks of a group."""
        return -(-self.columns * self.scalar.parts // (16 * self.warps))

    def _shared_bytes(self, warps: int) -> int:
        slots = tile_slots(self.device)
        return slots * self.tile + 8 * (warps * 16 * self.bandwidth + 2 * slots)

    def tile_shape(self, last: int, count: int) -> Shape:
        """Launch that makes the tiles of groups `last`, `last` - 1, ..., `count` in all."""
        shared = 8 * self.scalar.parts * TILE_SWEEPS * (self.bandwidth + 2 * TILE_SWEEPS + 3)
        return Shape((self.tasks(last - count + 1), count, TILES), 128, shared)

    def apply_shape(self, count: int) -> tuple[str, Shape]:
        """Return the kernel that applies `count` groups, and its launch."""
        name = "apply_sweeps" if self.fills else "follow_sweeps"
        blocks = self.share if self.fills else count * self.share
        return name, Shape((blocks,), 32 * self.warps, self._shared_bytes(self.warps))

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yield the last group, and the number of groups, whose tiles are made at a time, in the order of their use."""
        for last in range(self.groups - 1, -1, -self.together):
            yield last, min(self.together, last + 1)


def units_of(scalar: Scalar, bandwidth: int, fills: bool) -> tuple[Unit, Unit]:
    """Return the units that make the tiles and that apply them; `fills` as in `Sweeps`."""
    return SWEEP_TILES[scalar.name, bandwidth], SWEEPS[scalar.is_complex, bandwidth, not fills]


def apply_chasing(reflectors: Matrix, n: int, bandwidth: int, z: int, ldz: int, columns: int) -> None:
    """Z = Q2 Z in place, in double precision, a group of neighbouring sweeps after the other (sweeps.cu).

    The reflectors are as `chase_band` leaves them; Z, of float64 or complex128, has an address that is a multiple of 16
    and an even leading dimension.
    """
    import cupy

    if n < 2:
        return
    sweeps = Sweeps(n, bandwidth, reflectors.scalar, columns, device.describe())
    make, unit = units_of(sweeps.scalar, bandwidth, sweeps.fills)
    vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    target = (np.uintp(z), np.int64(ldz), np.int32(n), np.int32(columns))
    tiles = cupy.empty(sweeps.together * sweeps.tasks(0) * TILES * sweeps.tile // 8, np.float64)
    for last, count in sweeps.batches():
        shape = sweeps.tile_shape(last, count)
        width = shape.grid[0]
        kernel(make, "sweep_tiles")(shape, *vectors, np.int32(n), np.int32(last), np.int32(width), tiles)
        name, shape = sweeps.apply_shape(1 if sweeps.fills else count)
        apply = kernel(unit, name)
        if not sweeps.fills:
            progress = 1 + count * sweeps.share * sweeps.warps
            given = np.int32(width), np.int32(last), np.int32(count)
            apply(shape, *target, tiles, *given, cupy.zeros(progress, np.int32))
            continue
        for group in range(last, last - count, -1):
            own = np.uintp(address(tiles) + (last - group) * width * TILES * sweeps.tile)
            apply(shape, *target, own, np.int32(sweeps.tasks(group)), np.int32(group * SWEEP_GROUP))
