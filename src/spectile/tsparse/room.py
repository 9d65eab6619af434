"""What a memory limit leaves a product on the host: each phase says what it takes before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile.core.pointers import overlap
from spectile.core.threads import num_threads

_SMALL = 2**13  # bytes of objects, of lists and of parts that are worked on one at a time


class Room:
    """What a memory limit leaves beside the bytes held until the product is made; without one nothing is asked."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.held = limit, _SMALL

    def nested(self) -> Room:
        """Return what is left for one phase, of which not all stays."""
        part = Room(self.limit)
        part.held = self.held
        return part

    @property
    def left(self) -> int:
        """Bytes that are free; only where there is a limit."""
        return (self.limit or 0) - self.held

    def hold(self, *arrays: np.ndarray | None, beside: Sequence[Any] = ()) -> None:
        """Count arrays that stay, but for those that share memory with the ones `beside`."""
        if self.limit is not None:
            own = (x for x in arrays if x is not None and not any(overlap(x, other) for other in beside))
            self.held += sum(x.nbytes for x in own)

    def require(self, needed: float, what: str = "copies of A and B and the sums of one row") -> None:
        """Raise MemoryError where so many more bytes do not fit."""
        if self.limit is not None and needed > self.left:
            enough = int(self.held + needed) + 1
            raise MemoryError(
                f"memory_limit is {self.limit} bytes, and {what} take {enough}; raise it to at least {enough}"
            )

    def workers(self, each: int) -> int:
        """Return the number of threads that have room for so many bytes each: Numba's setting, or fewer."""
        threads = num_threads()
        if self.limit is None:
            return threads
        self.require(each)
        return int(min(threads, self.left // max(each, 1)))
