"""Bulge chasing on several devices, which take some sweeps by turns.

What bounds a device at large orders is what passes between its multiprocessors and its L2 cache; several have several,
until the lag of each sweep behind the one before, which no number of devices shortens, is the bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device
from spectile.evd.cuda.chasing.chase import Sweeps, chase_shape
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.multi.team import Member, Team
from spectile.evd.cuda.multi.units import CHASING_BY_TURNS
from spectile.evd.types import Scalar, scalar_of


def pays(n: int, scalar: Scalar, bandwidth: int) -> bool:
    """Return whether more sweeps can be under way than the current device has blocks for."""
    on = device.describe()
    return n // (2 * bandwidth) + 2 > chase_shape(n, scalar, bandwidth, on).grid[0]


def chase_band(
    band: Any, n: int, bandwidth: int, reflectors: Matrix | None, team: Team, *, grid: int | None = None
) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form as `chasing.chase.chase_band`; all lies on the home of a connected team."""
    import cupy

    parts, d, e = len(team.members), cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    scalar = scalar_of(band.dtype)
    blocks = chase_shape(n, scalar, bandwidth, device.describe(), grid).grid[0]  # the same on all
    unit = CHASING_BY_TURNS[scalar.name, bandwidth]
    shares = []
    for member in team.members:
        with member.current():
            own = cupy.empty(band.shape, band.dtype) if member.number else band
            shares.append(Sweeps(own, n, bandwidth, blocks, unit, member.number, parts))
    team.meet()

    def begin(member: Member, own: Sweeps, following: Sweeps) -> None:
        with member.current():
            own.begin(following, reflectors)

    team.each(begin, shares, [*shares[1:], shares[0]])  # in threads: one that waits for its launch waits for the others
    team.meet()
    for member, own in zip(team.members, shares, strict=True):
        with member.current():
            own.write(d, e)
    team.join()
    return d, e
