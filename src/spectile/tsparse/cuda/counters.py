"""What the kernels and the host share, read from ``shared.cuh``: counters, flags, bins and the kernels of each bin."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

_TEXT = resources.files(__package__).joinpath("shared.cuh").read_text()


def _constants() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (-?\d+);", _TEXT)}


def _enumerators(name: str) -> dict[str, int]:
    body = re.search(rf"enum {name} \{{(.*?)\}}", _TEXT, re.S)
    assert body is not None
    return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body[1])}


def _kernels(macro: str) -> list[list[str]]:
    body = re.search(rf"#define {macro}\(KERNEL\)(.*?[^\\])\n", _TEXT, re.S)
    assert body is not None
    return [row.split(", ") for row in re.findall(r"KERNEL\((.*?)\)", body[1])]


class WindowKernel(NamedTuple):
    """A numeric kernel for rows with a narrow window."""

    bin: int
    lanes: int
    words: int
    sums: int


class HashKernel(NamedTuple):
    """A numeric kernel for short rows with a wide window."""

    bin: int
    lanes: int
    log: int


class SortKernel(NamedTuple):
    """A numeric kernel for rows of few products."""

    bin: int
    lanes: int


class BlockKernel(NamedTuple):
    """A numeric kernel for long rows with a wide window."""

    bin: int
    name: str
    threads: int
    shared_words: bool
    shared_sums: bool


CONSTANTS, HEAD, FLAGS, ROUNDING = _constants(), _enumerators("Head"), _enumerators("Flag"), _enumerators("Rounding")
UNSORTED = 2  # the host's own flag: the number of descents is not 0
WINDOW_KERNELS = [WindowKernel(*map(int, row)) for row in _kernels("NUMERIC_WINDOWS")]
HASH_KERNELS = [HashKernel(*map(int, row)) for row in _kernels("NUMERIC_HASHES")]
SORT_KERNELS = [SortKernel(*map(int, row)) for row in _kernels("NUMERIC_SORTS")]
BLOCK_KERNELS = [
    BlockKernel(int(number), name, int(threads), words == "true", sums == "true")
    for number, name, threads, words, sums in _kernels("NUMERIC_BLOCKS")
]


_WORDS, _WIDE = struct.Struct(f"{CONSTANTS['HEAD']}i"), struct.Struct("Q")
_FLAGS, _DESCENTS = HEAD["FLAGS"], HEAD["DESCENTS"]


class Invalid(Exception):
    """The check of the factors found something; carries the flags of A and of B."""


class Head:
    """The head of counters, on the host."""

    def __init__(self, words: bytes) -> None:
        self._bytes = words
        self._words = _WORDS.unpack(words)

    @classmethod
    def empty(cls) -> Head:
        """Return the head of a product without rows."""
        return cls(bytes(_WORDS.size))

    @property
    def key(self) -> bytes:
        """What decides about the launches of the numeric phase."""
        return self._bytes[4 * HEAD["NUMERIC"] : 4 * HEAD["ENTRIES"]]

    def __getitem__(self, place: int) -> int:
        return self._words[place]

    def wide(self, name: str) -> int:
        """Return a counter of 64 bits."""
        return int(_WIDE.unpack_from(self._bytes, 4 * HEAD[name])[0])

    def bins(self) -> list[int]:
        """Return the rows in each bin of the numeric phase."""
        return list(self._words[HEAD["NUMERIC"] : HEAD["NUMERIC"] + CONSTANTS["BINS_NUMERIC"]])

    def flags(self) -> list[int]:
        """Return what the check found in A and in B."""
        unsorted = [UNSORTED if self[HEAD["DESCENTS"] + which] else 0 for which in range(2)]
        return [self[HEAD["FLAGS"] + which] | unsorted[which] for which in range(2)]

    def raise_invalid(self) -> None:
        """Raise `Invalid` where the check found something."""
        words = self._words
        if words[_FLAGS] or words[_FLAGS + 1] or words[_DESCENTS] or words[_DESCENTS + 1]:
            raise Invalid(*self.flags())


def new_counters(rows: int) -> Any:
    """Return the cleared head and the states of the scan over `rows` rows."""
    import cupy

    return cupy.zeros(CONSTANTS["HEAD"] // 2 + -(-rows // CONSTANTS["SCAN_ROWS"]), np.uint64)


class _Pinned(threading.local):
    """Pinned memory of one host thread for a head."""

    memory: Any = None


_pinned = _Pinned()


def read_head(counters: Any) -> Head:
    """Wait for the current stream and return the head."""
    import cupy

    size = 4 * CONSTANTS["HEAD"]
    if _pinned.memory is None:
        _pinned.memory = cupy.cuda.alloc_pinned_memory(size)
    stream = cupy.cuda.get_current_stream()
    cupy.cuda.runtime.memcpyAsync(_pinned.memory.ptr, counters.data.ptr, size, 2, stream.ptr)  # 2: device to host
    stream.synchronize()
    return Head(ctypes.string_at(_pinned.memory.ptr, size))
