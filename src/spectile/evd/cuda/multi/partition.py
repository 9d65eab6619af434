"""How columns are dealt to devices: those of A cyclically, block by block, and those of Z in one piece each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

#: Columns that a warp of the back-transformation owns: pieces of Z are multiples of it.
UNIT = 16


@dataclass(frozen=True)
class Cyclic:
    """Columns 0 ... n − 1 in blocks, of which device p of P owns blocks p, p + P, ... and stores them side by side.

    The matrix that is left shrinks from its left end, and all devices keep an even part of it.
    """

    #: Columns, columns of a block, and devices.
    n: int
    width: int
    parts: int

    def owner(self, column: int) -> int:
        """Return the device that owns a column."""
        return column // self.width % self.parts

    def before(self, part: int, column: int) -> int:
        """Return how many columns of a device come before `column`: also where it stores that one, if it owns it."""
        rounds, rest = divmod(min(column, self.n), self.width * self.parts)
        return rounds * self.width + min(max(rest - part * self.width, 0), self.width)

    def count(self, part: int) -> int:
        """Return how many columns a device owns."""
        return self.before(part, self.n)

    def blocks(self, part: int, columns: range | None = None) -> Iterator[tuple[int, int]]:
        """Yield first column and width of each block of a device, of those that begin among some columns."""
        for column in range(part * self.width, self.n, self.width * self.parts):
            if columns is None or column in columns:
                yield column, min(self.width, self.n - column)

    def strips(self, first: int, count: int) -> Iterator[range]:
        """Yield the columns from a block's first on, in at most so many pieces, even for every device."""
        step = self.width * self.parts
        step *= -(-(self.n - first) // (count * step))
        for column in range(first, self.n, step):
            yield range(column, min(column + step, self.n))


def pieces(columns: int, parts: int) -> list[slice]:
    """Return one piece of the columns for each device, in even multiples of `UNIT`; the last may be shorter, or empty.

    Parameters
    ----------
    columns, parts : int
    """
    units = -(-columns // UNIT)
    cuts = [min(UNIT * (number * units // parts), columns) for number in range(parts + 1)]
    return [slice(*ends) for ends in itertools.pairwise(cuts)]
