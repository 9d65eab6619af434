"""Named random choices: a call is repeated from its seed, and made simpler choice by choice."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Draw:
    """The choices of one call.

    Each choice has a name and random numbers of its own, made from the seed and the name: to fix one leaves all others.

    Parameters
    ----------
    seed : int
        Of all choices.
    fixed : mapping
        Number of the option of choices that are not left to chance.

    Attributes
    ----------
    made : dict
        Number of the option of each choice so far.
    called : dict of sets
        By the names of public functions that were called, the arguments that they got.
    """

    def __init__(self, seed: int, fixed: Mapping[str, int] | None = None) -> None:
        self.seed, self.fixed = seed, dict(fixed or {})
        self.made: dict[str, int] = {}
        self.words: dict[str, str] = {}
        self.called: dict[str, set[str]] = {}

    def __call__(self, name: str, options: Sequence[Any]) -> Any:
        """Return one of the options, of which the first are the simplest."""
        number = self.fixed.get(name)
        if number is None:
            number = int(self.rng(name).integers(len(options)))
        number = min(number, len(options) - 1)
        self.made[name] = number
        self.words[name] = repr(options[number])[:60]
        return options[number]

    def rarely(self, name: str, one_in: int = 8) -> bool:
        """Return True once in so many calls."""
        return bool(self(name, [False] * (one_in - 1) + [True]))

    def rng(self, name: str) -> np.random.Generator:
        """Return random numbers that depend on the seed and the name alone."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])
