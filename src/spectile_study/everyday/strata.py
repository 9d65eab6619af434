"""Random numbers in strata: any number of the first draws is spread evenly over every parameter.

Each parameter has a sequence of its own.  It goes through its values, or through equal parts of its range, in blocks:
a block holds each part once, in random order.  A run that is cut short after any number of draws is then as fair a
sample as a whole one, and a draw depends on seed, system and number alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Value = TypeVar("Value")
#: Parts of the range of a number.
PARTS = 10


class Strata:
    """The random numbers of one draw.

    Parameters
    ----------
    seed : int
        Of the recording, not negative.
    system : str
        Whose draws; each system has its own sequences.
    index : int
        Number of the draw, from 0.

    Examples
    --------
    >>> sorted(Strata(1, "evd", index).one_of("dtype", "abcd") for index in range(4))
    ['a', 'b', 'c', 'd']
    """

    def __init__(self, seed: int, system: str, index: int) -> None:
        self.seed, self.system, self.index = seed, system, index

    def _rng(self, name: str, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.system}/{name}".encode()), number])

    def _part(self, name: str, parts: int) -> int:
        block, place = divmod(self.index, parts)
        return int(self._rng(name, block).permutation(parts)[place])

    def one_of(self, name: str, values: Sequence[Value]) -> Value:
        """Return one of `values`, each once in as many draws as there are values."""
        return values[self._part(name, len(values))]

    def share(self, name: str) -> float:
        """Return a number in [0, 1)."""
        within = self._rng(f"{name}, within its part", self.index).random()
        return (self._part(name, PARTS) + within) / PARTS

    def between(self, name: str, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self.share(name)

    def log_between(self, name: str, low: float, high: float) -> float:
        """Return a number in [low, high) whose logarithm is uniform."""
        return low * math.exp(math.log(high / low) * self.share(name))

    def log_integer(self, name: str, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included, whose logarithm is about uniform."""
        return min(high, int(self.log_between(name, low, high + 1)))

    def numbers(self) -> np.random.Generator:
        """Return the generator of what fills the arrays of this draw."""
        return self._rng("entries", self.index)
