"""The tiles of one matrix on several GPUs of a host: each has those of its tile rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from spectile.core.places import connect


class Spread:
    """A flat array of tiles in parts, one a device; the host's arrays are parts, too, so that it works without a GPU.

    Attributes
    ----------
    parts : list of array
        Tiles of the tile rows ``cuts[p]`` to ``cuts[p + 1]``, on their device.
    cuts : tuple of int
        As many as there are parts, and the end.
    """

    __slots__ = ("cuts", "parts")

    def __init__(self, parts: Sequence[Any], cuts: Sequence[int]) -> None:
        self.parts, self.cuts = list(parts), tuple(map(int, cuts))

    @property
    def dtype(self) -> Any:
        """Dtype of all parts."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    def each(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what a function makes of the number of each part, whose device is the current one."""
        made = []
        for number, part in enumerate(self.parts):
            with there(part):
                made.append(function(number))
        return made

    def made(self, function: Callable[[int], Any]) -> Spread:
        """Return an array of the same cuts, whose parts a function makes of their numbers, each on its device."""
        return Spread(self.each(function), self.cuts)

    def astype(self, dtype: Any, copy: bool = True) -> Spread:
        """Return the array in another dtype."""
        return self.made(lambda number: self.parts[number].astype(dtype, copy=copy))

    def conj(self) -> Spread:
        """Return the conjugate."""
        return self.made(lambda number: self.parts[number].conj())

    def __neg__(self) -> Spread:
        return self.made(lambda number: -self.parts[number])

    def get(self) -> np.ndarray:
        """Return the whole array on the host."""
        return np.concatenate([part if type(part) is np.ndarray else part.get() for part in self.parts])

    def here(self) -> Any:
        """Return the whole array on the current device, or on the host if it is there."""
        if type(self.parts[0]) is np.ndarray:
            return self.get()
        import cupy

        with meeting(self.parts):
            return cupy.concatenate([part.copy() for part in self.parts])

    def reached(self, number: int, reader: int) -> Any:
        """Return a part as the device of another one, the current one, reads it: a copy where it cannot."""
        part = self.parts[number]
        return part if number == reader or _connected(*(one.device.id for one in self.parts)) else part.copy()


@functools.cache
def _connected(*devices: int) -> bool:
    return connect(devices)


def there(part: Any) -> contextlib.AbstractContextManager[Any]:
    """Return what makes the device of an array current."""
    return contextlib.nullcontext() if type(part) is np.ndarray else part.device


@contextlib.contextmanager
def meeting(parts: Sequence[Any]) -> Iterator[None]:
    """Let what devices are given inside begin after all that they were given before, and what comes next after that.

    Then they may read one another's memory inside: nothing is still being written, or given back before it is read.
    """
    if type(parts[0]) is np.ndarray:
        yield
        return
    import cupy

    devices = {device.id: device for device in (cupy.cuda.Device(), *(part.device for part in parts))}

    def meet() -> None:
        marks = []
        for device in devices.values():
            with device:
                marks.append(cupy.cuda.get_current_stream().record())
        for device in devices.values():
            with device:
                for mark in marks:
                    cupy.cuda.get_current_stream().wait_event(mark)

    meet()
    yield
    meet()
