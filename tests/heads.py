"""Heads of a product's counters, as the device would have written them."""

from __future__ import annotations

import numpy as np

from spectile.tsparse.cuda.counters import Head
from spectile.tsparse.cuda.shared import HEAD, HEAD_WORDS


def head_of(**places: int) -> Head:
    """Return a head with these counters, ``NAME`` or ``NAME+offset``, and zeros elsewhere."""
    words = np.zeros(HEAD_WORDS, np.int32)
    for name, value in places.items():
        place, _, offset = name.partition("+")
        words[HEAD[place] + int(offset or 0)] = value
    return Head(words.tobytes())


class Cleared:
    """Counters in the host's memory, which are read."""

    device = stream = None

    def __init__(self, rows: int = 1) -> None:
        self.words, self.reads = np.zeros(HEAD_WORDS, np.int32), 0
        self.head = self.words.ctypes.data

    def read(self) -> Head:
        """Return the head as it is."""
        self.reads += 1
        return Head(self.words.tobytes())
