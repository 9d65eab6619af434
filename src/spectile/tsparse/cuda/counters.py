"""What the kernels and the host share, read from ``shared.cuh``: counters, flags, bins; and the kernels of each bin."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import threading
from importlib import resources
from typing import NamedTuple

_TEXT = resources.files(__package__).joinpath("shared.cuh").read_text()


def _constants() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (-?\d+);", _TEXT)}


def _enumerators(name: str) -> dict[str, int]:
    body = re.search(rf"enum {name} \{{(.*?)\}}", _TEXT, re.S)
    assert body is not None
    return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body[1])}


class WindowKernel(NamedTuple):
    """A numeric kernel for rows with a narrow window: lanes of a row, words of its bitmap, sums."""

    bin: int
    lanes: int
    words: int
    sums: int

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"numeric_window_{self.lanes}_{self.words}_{self.sums}"

    @property
    def defines(self) -> dict[str, str]:
        """What its unit is compiled with."""
        return {"LANES": str(self.lanes), "WORDS": str(self.words), "SUMS": str(self.sums)}


class HashKernel(NamedTuple):
    """A numeric kernel for short rows with a wide window: lanes of a row, logarithm of its table, filled to a half."""

    bin: int
    lanes: int
    log: int

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"numeric_hash_{self.lanes}_{self.log}"

    @property
    def defines(self) -> dict[str, str]:
        """What its unit is compiled with."""
        return {"LANES": str(self.lanes), "TABLE_LOG": str(self.log)}


class SortKernel(NamedTuple):
    """A numeric kernel for rows of few products: lanes of a row."""

    bin: int
    lanes: int

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"numeric_sort_{self.lanes}"

    @property
    def defines(self) -> dict[str, str]:
        """What its unit is compiled with."""
        return {"LANES": str(self.lanes)}


class BlockKernel(NamedTuple):
    """A numeric kernel for long rows with a wide window: threads of a row, what lies in shared memory."""

    bin: int
    kind: str
    threads: int
    shared_words: bool
    shared_sums: bool

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"numeric_block_{self.kind}"

    @property
    def defines(self) -> dict[str, str]:
        """What its unit is compiled with."""
        return {
            "BLOCK_THREADS": str(self.threads),
            "SHARED_WORDS": str(int(self.shared_words)),
            "SHARED_SUMS": str(int(self.shared_sums)),
        }


CONSTANTS, HEAD, FLAGS, ROUNDING = _constants(), _enumerators("Head"), _enumerators("Flag"), _enumerators("Rounding")
UNSORTED = 2  # the host's own flag: the number of descents is not 0
WINDOW_KERNELS = (
    WindowKernel(0, 8, 64, 256),
    WindowKernel(0, 16, 64, 256),
    WindowKernel(0, 32, 64, 256),
    WindowKernel(1, 32, 64, 2048),
    WindowKernel(2, 32, 256, 1024),
)
HASH_KERNELS = (
    HashKernel(3, 8, 5),
    HashKernel(4, 8, 6),
    HashKernel(5, 32, 8),
    HashKernel(6, 32, 9),
    HashKernel(7, 32, 10),
)
SORT_KERNELS = (SortKernel(12, 4), SortKernel(13, 8), SortKernel(14, 16), SortKernel(15, 32))
BLOCK_KERNELS = (
    BlockKernel(8, "small", 128, True, True),
    BlockKernel(9, "large", 512, True, True),
    BlockKernel(10, "sums_global", 512, True, False),
    BlockKernel(11, "global", 256, False, False),
)

_SCAN_ROWS = CONSTANTS["SCAN_ROWS"]
_WORD, _WIDE, _BYTES = struct.Struct("i"), struct.Struct("Q"), 4 * CONSTANTS["HEAD"]
_FLAGS, _DESCENTS = (slice(4 * HEAD[name], 4 * HEAD[name] + 8) for name in ("FLAGS", "DESCENTS"))
_NOTHING = bytes(8)
_KEY = slice(4 * HEAD["NUMERIC"], 4 * HEAD["ENTRIES"])


#: Bins of the symbolic phase whose rows one kernel counts, long rows first.
FAMILIES = {
    "windows": slice(0, 2),
    "tables": slice(2, CONSTANTS["BLOCK_BIN"]),
    "block": slice(CONSTANTS["BLOCK_BIN"], CONSTANTS["SORT_BIN"]),
    "sorts": slice(CONSTANTS["SORT_BIN"], CONSTANTS["BINS_SYMBOLIC"]),
}
_SYMBOLIC = slice(4 * HEAD["SYMBOLIC"], 4 * (HEAD["SYMBOLIC"] + CONSTANTS["BINS_SYMBOLIC"]))


class Invalid(Exception):
    """The check of the factors found something; carries the flags of A and of B."""


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
        """Return which families of symbolic bins have rows: windows, tables, block, sorts."""
        rows = [self[HEAD["SYMBOLIC"] + number] for number in range(CONSTANTS["BINS_SYMBOLIC"])]
        return frozenset(name for name, bins in FAMILIES.items() if any(rows[bins]))

    def wide(self, name: str) -> int:
        """Return a counter of 64 bits."""
        return int(_WIDE.unpack_from(self._bytes, 4 * HEAD[name])[0])

    def bins(self) -> list[int]:
        """Return the rows in each bin of the numeric phase."""
        return [self[HEAD["NUMERIC"] + number] for number in range(CONSTANTS["BINS_NUMERIC"])]

    def flags(self) -> list[int]:
        """Return what the check found in A and in B."""
        unsorted = [UNSORTED if self[HEAD["DESCENTS"] + which] else 0 for which in range(2)]
        return [self[HEAD["FLAGS"] + which] | unsorted[which] for which in range(2)]

    def raise_invalid(self) -> None:
        """Raise `Invalid` where the check found something."""
        if self._bytes[_FLAGS] != _NOTHING or self._bytes[_DESCENTS] != _NOTHING:
            raise Invalid(*self.flags())


class Counters:
    """The head and the states of a scan, on the device, and the stream that works on them.

    Attributes
    ----------
    head, states : int
        The addresses of the head and of the states.
    stream : int
        The stream that was current when they were cleared, as the driver takes it.
    device : int
        The device.
    """

    __slots__ = ("_memory", "device", "head", "states", "stream")

    def __init__(self, rows: int) -> None:
        import cupy

        size = _BYTES + 8 * -(-rows // _SCAN_ROWS)
        runtime = cupy.cuda.runtime
        self.device, self.stream = runtime.getDevice(), cupy.cuda.get_current_stream().ptr
        self._memory = cupy.cuda.alloc(size)
        self.head = self._memory.ptr
        self.states = self.head + _BYTES
        runtime.memsetAsync(self.head, 0, size, self.stream)

    def read(self) -> Head:
        """Wait for the stream and return the head."""
        return read_head(self.head, self.stream)


class _Pinned(threading.local):
    """Pinned memory of one host thread for a head: its address, and as the host reads it."""

    def __init__(self) -> None:
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(_BYTES)
        self.address = self._memory.ptr
        self.bytes = memoryview((ctypes.c_char * _BYTES).from_address(self.address))


@functools.cache
def _pinned() -> _Pinned:
    return _Pinned()


def read_head(head: int, stream: int) -> Head:
    """Wait for a stream and return the head at an address."""
    import cupy

    pinned, runtime = _pinned(), cupy.cuda.runtime
    runtime.memcpyAsync(pinned.address, head, _BYTES, 2, stream)  # 2: device to host
    runtime.streamSynchronize(stream)
    return Head(pinned.bytes.tobytes())
