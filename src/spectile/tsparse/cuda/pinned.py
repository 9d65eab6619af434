"""Results on the host in pinned memory, which a device writes to at the rate of the link."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np


class Pinned:
    """Host memory for results that are read one after the other: pinned as long as few of them are held.

    CuPy keeps what is given back for the next, since pinning takes longer than a copy.  An array beyond `most_bytes` of
    those that are alive is of plain memory: a caller that keeps all results must not pin the host's memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left, self._lock = most_bytes, threading.Lock()

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy of an array of the current device, made on the current stream; waits for it."""
        return array.get(out=self._empty(array.size, array.dtype)) if array.size else array.get()

    def _empty(self, size: int, dtype: np.dtype) -> np.ndarray:
        import cupy

        nbytes = size * dtype.itemsize
        if not self._take(nbytes):
            return np.empty(size, dtype)
        try:
            pointer = cupy.cuda.alloc_pinned_memory(nbytes)
        except BaseException:
            self._take(-nbytes)
            raise
        weakref.finalize(pointer.mem, self._take, -nbytes).atexit = False  # views of the array hold the memory alone
        return np.frombuffer(pointer, dtype, size)

    def _take(self, nbytes: int) -> bool:
        with self._lock:
            held = nbytes <= self._left
            self._left -= nbytes if held else 0
        return held
