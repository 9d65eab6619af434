"""The counters of a product on the device, and as the host reads them."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading

from spectile.core.launch import NOT_READY, stream_query
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda import bins
from spectile.tsparse.cuda.shared import CONSTANTS, HEAD, HEAD_WORDS, UNSORTED

_WORD, _WIDE, _BYTES = struct.Struct("i"), struct.Struct("Q"), 4 * HEAD_WORDS
_FLAGS, _DESCENTS = (slice(4 * HEAD[name], 4 * HEAD[name] + 12) for name in ("FLAGS", "DESCENTS"))
_NOTHING = bytes(12)
_LARGEST_CALL = 2**31 - 1
_KEY = slice(4 * (HEAD["SYMBOLIC"] + bins.SYMBOLIC_PLACES["FEW"]), 4 * HEAD["ENTRIES"])


#: Bins of the symbolic phase whose rows one kernel counts, long rows first; hub rows are counted when they are known.
FAMILIES = {family: bins.family_places(family) for family in ("window", "table", "block", "block_table", "sort")}
_HUB = HEAD["SYMBOLIC"] + bins.SYMBOLIC_PLACES["HUB"]
_SYMBOLIC = slice(4 * HEAD["SYMBOLIC"], 4 * (HEAD["SYMBOLIC"] + len(bins.SYMBOLIC)))


class Invalid(Exception):
    """The check of the factors found something; carries the flags of A, of B and of the mask."""


class Head:
    """The head of counters, on the host."""

    __slots__ = ("_bytes",)

    def __init__(self, words: bytes) -> None:
        self._bytes = words

    @classmethod
    def empty(cls) -> Head:
        """Return the head of a product without rows."""
        return cls(bytes(_BYTES))

    @property
    def key(self) -> bytes:
        """What decides about the launches of the numeric phase."""
        return self._bytes[_KEY]

    def __getitem__(self, place: int) -> int:
        return int(_WORD.unpack_from(self._bytes, 4 * place)[0])

    @property
    def symbolic(self) -> bytes:
        """Rows in each bin of the symbolic phase, as they stand there."""
        return self._bytes[_SYMBOLIC]

    def families(self) -> frozenset[str]:
        """Return which families of symbolic bins have rows: window, table, block, sort."""
        rows = [self[HEAD["SYMBOLIC"] + number] for number in range(len(bins.SYMBOLIC))]
        return frozenset(name for name, places in FAMILIES.items() if any(rows[places]))

    @property
    def hubs(self) -> int:
        """Hub rows."""
        return self[_HUB]

    def wide(self, name: str) -> int:
        """Return a counter of 64 bits."""
        return int(_WIDE.unpack_from(self._bytes, 4 * HEAD[name])[0])

    def bins(self) -> list[int]:
        """Return the rows in each bin of the numeric phase."""
        return [self[HEAD["NUMERIC"] + number] for number in range(len(bins.NUMERIC))]

    def flags(self) -> list[int]:
        """Return what the check found in A, in B and in the mask."""
        unsorted = [UNSORTED if self[HEAD["DESCENTS"] + which] else 0 for which in range(3)]
        return [self[HEAD["FLAGS"] + which] | unsorted[which] for which in range(3)]

    def raise_invalid(self) -> None:
        """Raise `Invalid` where the check found something."""
        if self._bytes[_FLAGS] != _NOTHING or self._bytes[_DESCENTS] != _NOTHING:
            raise Invalid(*self.flags())


class Counters:
    """The head and the states of a scan, by their addresses on the device, and the stream that works on them.

    It is the one that was current when they were cleared, as the driver takes it.
    """

    __slots__ = ("_memory", "device", "head", "states", "stream")

    def __init__(self, rows: int) -> None:
        import cupy

        size = _BYTES + 8 * ceil_div(rows, CONSTANTS["SCAN_ROWS"])
        runtime = cupy.cuda.runtime
        self.device, self.stream = runtime.getDevice(), cupy.cuda.get_current_stream().ptr
        self._memory = cupy.cuda.alloc(size)
        self.head = self._memory.ptr
        self.states = self.head + _BYTES
        runtime.memsetAsync(self.head, 0, size, self.stream)

    def read(self) -> Head:
        """Wait for the stream and return the head."""
        import cupy

        pinned, runtime = _pinned(), cupy.cuda.runtime
        runtime.memcpyAsync(pinned.address, self.head, _BYTES, 2, self.stream)  # 2: device to host
        runtime.streamSynchronize(self.stream)
        return Head(pinned.bytes.tobytes())

    def ask(self) -> tuple[int, int]:
        """Return the address in host memory where a kernel is to write the head, and the number to write after it."""
        import cupy

        pinned = _pinned()
        if pinned.asked:  # by a call that was stopped before its kernel had written
            cupy.cuda.runtime.deviceSynchronize()
        pinned.asked, pinned.call = True, pinned.call % _LARGEST_CALL + 1
        return pinned.address, pinned.call

    def told(self) -> Head:
        """Return the head that a kernel was asked to write, once it is there, before the stream ends."""
        import cupy

        pinned, query = _pinned(), stream_query()
        while pinned.told.value != pinned.call:
            if query(self.stream) != NOT_READY:  # it ended meanwhile, or failed
                cupy.cuda.runtime.streamSynchronize(self.stream)
                break
        pinned.asked = False
        return Head(pinned.bytes.tobytes())


class _Pinned(threading.local):
    """Pinned memory of one host thread for a head and a number: its address, and as the host reads it."""

    def __init__(self) -> None:
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(_BYTES + 4)
        self.address = self._memory.ptr
        self.bytes = memoryview((ctypes.c_char * _BYTES).from_address(self.address))
        self.told = ctypes.c_int.from_address(self.address + _BYTES)
        self.told.value = self.call = 0
        self.asked = False  #: Whether a kernel may still write.


@functools.cache
def _pinned() -> _Pinned:
    return _Pinned()
