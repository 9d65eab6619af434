"""Detached band reduction on several devices: panels on one, products and trailing updates on all.

Every device owns blocks of columns of the matrix (`partition.Cyclic`), both triangles of them.  A product A Y is that
of the conjugate transpose of the own columns with Y, whose rows are written into the memory of the device with the
panels; a trailing update is that of the own columns below the diagonal, and what is above it comes from their owners.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from spectile.core.device import describe
from spectile.core.devices import Device
from spectile.core.launch import Shape, kernel
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.choose import tuning
from spectile.evd.cuda.matrix import TILE, Matrix, empty_matrix
from spectile.evd.cuda.multi.partition import Cyclic
from spectile.evd.cuda.multi.team import Link, Member, Team
from spectile.evd.cuda.multi.units import EXCHANGE
from spectile.evd.cuda.reduction.band import _Reduction
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.types import Scalar


def mirror_shape(rows: int, columns: int, scalar: Scalar, on: Device) -> Shape:
    """Launch of `mirror` for so many rows and own columns: few blocks, beside those of products."""
    tiles = -(-columns // TILE) * -(-rows // TILE)
    return Shape((min(tiles, 2 * on.multiprocessors),), 256, TILE * (TILE + 1) * scalar.itemsize)


def place_shape(columns: int, bandwidth: int) -> Shape:
    """Launch of `place_rows` for so many own columns."""
    return Shape((-(-columns // 256), bandwidth), 256)


#: Strips of columns of a trailing update: a triangle's last one of so many is 1/64 of it.
STRIPS = 8
#: Seconds of a panel on one device beside the products.
PANEL_SECONDS = 1.7e-4
#: What the host does for a panel, in times that it takes to record an event and to let a stream wait for it: for home,
#: and for each other member.
HOME_CALLS, MEMBER_CALLS = 40, 28


def pays(n: int, scalar: Scalar, bandwidth: int, parts: int, device: Device, link: Link) -> bool:
    """Return whether `parts` devices, with a link between them, reduce a matrix faster than one.

    One device multiplies, and makes the panels; several share the products, and exchange vectors and triangles, as long
    as the host that begins all of it does not take longer.
    """
    products = 4 / 3 * n**3 * scalar.parts**2 / device.product_rate(scalar.real)
    # Of each panel Y and then [Y Z] go to all, and rows of a product come back; beside the updates, half of the
    # products, all devices at once read what of their other triangle others own.
    panels = n / bandwidth
    sent = scalar.itemsize * 2 * n * n / link.bytes_per_second
    mirrored = scalar.itemsize * n**3 / (6 * tuning(device).block) * (parts - 1) / parts**2 / link.bytes_per_second
    alone, half = products + panels * PANEL_SECONDS, products / parts / 2
    together = half + max(half, mirrored) + panels * PANEL_SECONDS + sent
    begun = panels * link.call_seconds * (HOME_CALLS + MEMBER_CALLS * (parts - 1))
    return max(together, begun) < alone


def band_reduction(a: Matrix, n: int, *, bandwidth: int, block: int, team: Team, vectors: bool = False) -> Panels:
    """Reduce a Hermitian matrix, both triangles given, to a band, as `reduction.band.band_reduction`.

    It lies on the home of a connected team, whose device and stream are current, and is overwritten: band, and
    reflectors below it.  With `vectors` the others take as much memory as the reflectors need, which come there next:
    what is freed in pieces is none for them.
    """
    reduction = _SharedReduction(a, n, bandwidth, block)
    reduction.share(team, n if vectors else 0)
    for first in range(0, n - bandwidth, reduction.block):
        columns = reduction.reduce_block(first)
        if first + reduction.block < n:
            reduction.update(first, columns)
    team.join()
    return reduction.panels


class _Share:
    """What a member has, in one matrix: its columns, all of V and X, and rows of a product.

    V and X are home's, which home itself uses; the matrix has at least `least` columns, but for home's.
    """

    def __init__(self, member: Member, columns: Cyclic, bandwidth: int, v: Matrix, x: Matrix, least: int) -> None:
        self.member, self._columns, self._bandwidth = member, columns, bandwidth
        self._count = columns.count(member.number)
        dtype, width = v.owner.dtype, len(v.owner) // v.ld
        *starts, stop = itertools.accumulate(
            (self._count, bandwidth, width, width)[: 4 if member.number else 2], initial=0
        )
        with member.current():
            self.a = empty_matrix(columns.n, max(stop, least if member.number else 0), dtype)
            self._blas = Blas(dtype)
        parts = [dataclasses.replace(self.a, pointer=self.a.at(0, start)) for start in starts[1:]]
        self._product, self.v, self.x = parts if member.number else (*parts, v, x)
        self._unit = EXCHANGE[self.a.scalar.name]
        self._owners: Any = None

    def know(self, shares: list[_Share]) -> None:
        """Take note of where the columns of all members are."""
        import cupy

        with self.member.current():
            self._owners = cupy.asarray(np.array([share.a.pointer for share in shares], np.uint64))

    def load(self, a: Matrix) -> None:
        """Copy the own columns from the whole matrix."""
        for column, width in self._columns.blocks(self.member.number):
            own = self._columns.before(self.member.number, column)
            self.member.fetch(self.a, a, self._columns.n, width, at=own, of=column)

    def multiply(self, top: int, y: int, ldy: int, out: int, ldo: int) -> None:
        """Write the own rows of A[top:, top:] Y, of those columns that are owned, to `out` on home."""
        first, b = self._columns.before(self.member.number, top), self._bandwidth
        count = self._count - first
        if count <= 0:
            return
        with self.member.current():
            own, product = self.a.at(top, first), self._product
            self._blas.gemm(
                *(count, b, self._columns.n - top, 1.0, own, self.a.ld, y, ldy, 0.0, product.pointer, product.ld),
                ops="CN",
            )
            kernel(self._unit, "place_rows")(
                place_shape(count, b),
                *(np.uintp(product.pointer), np.int64(product.ld), *self._place, np.int32(top), np.int32(first)),
                *(np.int32(self._count), np.uintp(out), np.int64(ldo)),
            )

    @property
    def _place(self) -> tuple[Any, ...]:
        return np.int32(self._columns.width), np.int32(self.member.number), np.int32(self._columns.parts)

    def update(self, first: int, columns: int, strip: range) -> None:
        """Subtract V Xᴴ, whose rows count from `first` on, from the own blocks in a strip, below the diagonal."""
        v, x, a, n = self.v, self.x, self.a, self._columns.n
        with self.member.current():
            for column, width in self._columns.blocks(self.member.number, strip):
                row, own = column - first, self._columns.before(self.member.number, column)
                self._blas.gemm(
                    *(n - column, width, columns, -1.0, v.at(row, 0), v.ld, x.at(row, 0), x.ld),
                    *(1.0, a.at(column, own), a.ld),
                    ops="NC",
                )

    def mirror(self, strip: range, made: list[Any]) -> None:
        """Fill a strip of rows above the diagonal in the own columns, once its columns are made."""
        first = self._columns.before(self.member.number, strip.start)
        beside = self.member.beside
        beside.wait(*made)
        if first < self._count:
            with beside.current():
                kernel(self._unit, "mirror")(
                    mirror_shape(len(strip), self._count - first, self.a.scalar, describe()),
                    *(self._owners, np.int64(self.a.ld), *self._place),
                    *(np.int32(strip.start), np.int32(strip.stop), np.int32(first), np.int32(self._count)),
                )


class _SharedReduction(_Reduction):
    """The panels of a block on home, and the products and updates of all members."""

    def share(self, team: Team, least: int = 0) -> None:
        """Deal the columns of the matrix to the members of a team; `least` as of `_Share`."""
        a = self.panels.a
        self._team, self._columns = team, Cyclic(self.panels.n, self.block, len(team.members))
        own = self._columns, self.panels.bandwidth, self.v, self.x, least
        self._shares = [_Share(member, *own) for member in team.members]
        self._others = self._shares[1:]
        team.meet()  # what home has written so far is there
        for share in self._shares:
            share.know(self._shares)
            share.load(a)  # home has the first block, which it writes over first

    def _reduce_panel(self, j: int, local: int, used: int) -> None:
        super()._reduce_panel(j, local, used)
        self._keep(local, used, self.panels.n - j - self.panels.bandwidth)

    def _multiply(self, top: int, local: int, used: int, product: int) -> None:
        """Make A Y: each member its rows of it."""
        b, home = self.panels.bandwidth, self._team.home
        size, ld, m = self.x.itemsize, self.x.ld, self.panels.n - top
        made = home.mark()
        for share in self._others:
            own = share.x.at(local, used + b)
            share.member.wait(made)
            share.member.copy(own, share.x.ld * size, self.x.at(local, used + b), ld * size, m * size, b)
            share.multiply(top, own, share.x.ld, product, self.v.ld)
        self._shares[0].multiply(top, self.x.at(local, used + b), ld, product, self.v.ld)
        home.wait(*(share.member.mark() for share in self._others))

    def _keep(self, local: int, used: int, m: int) -> None:
        """Copy [Y Z] to the members, and complete their X, while home goes on with the next panel."""
        b, v, made = self.panels.bandwidth, self.v, self._team.home.mark()
        width = m * v.itemsize
        for share in self._others:
            own, pitch = share.v.at(local, used), share.v.ld * v.itemsize
            share.member.wait(made)
            share.member.copy(own, pitch, v.at(local, used), v.ld * v.itemsize, width, 2 * b)
            share.member.copy(share.x.at(local, used), pitch, share.v.at(local, used + b), pitch, width, b)

    def update(self, first: int, columns: int) -> None:
        """Update what is right of the block at column `first`, and bring the next block to home.

        While columns of a strip are updated, what is above the diagonal is filled from those of the strips before, and
        the next block comes, which is of the first strip.
        """
        rest, n, team = first + self.block, self.panels.n, self._team
        for strip in self._columns.strips(rest, STRIPS):
            for share in self._shares:
                share.update(first, columns, strip)
            made = [member.mark() for member in team.members]
            for share in self._shares:
                share.mirror(strip, made)
            if strip.start == rest:  # what is above its diagonal is not read
                owner, a = self._shares[self._columns.owner(rest)], self.panels.a
                source = owner.a.at(rest, self._columns.before(owner.member.number, rest))
                pitch, own_pitch, rows = a.ld * a.itemsize, owner.a.ld * a.itemsize, (n - rest) * a.itemsize
                team.home.beside.copy(a.at(rest, rest), pitch, source, own_pitch, rows, min(self.block, n - rest))
        for member in team.members:
            member.wait(member.beside.mark())
