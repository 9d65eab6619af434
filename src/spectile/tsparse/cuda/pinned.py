"""Arrays between host and device at the rate of the link: results in pinned memory, large arrays in pieces through it.

Fresh pages of the host, and copies by one thread of it, take longer than the link: several threads share them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.core.threads import num_threads
from spectile.core.tiling import ceil_div
from spectile.tsparse.cuda.streams import own_streams, pool

#: Bytes of an array from which it goes in pieces, those of a piece, threads of the host that copy, at most, and
#: pieces of each: one is copied by the host while the link takes the other.
_LARGE, _PIECE, _THREADS, _AT_ONCE = 2**24, 2**22, 8, 2


def to_device(array: np.ndarray) -> Any:
    """Return a copy of an array of the host on the current device."""
    import cupy

    if array.nbytes < _LARGE:
        return cupy.asarray(array)
    found = cupy.empty(array.shape, array.dtype)
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    begin, host_to_device = address(found), 1

    def move(first: int, piece: np.ndarray, stream: int) -> None:
        np.copyto(piece, source[first : first + piece.size])
        cupy.cuda.runtime.memcpyAsync(begin + first, address(piece), piece.size, host_to_device, stream)

    _in_pieces(source.size, move)
    return found


def to_host(array: Any, out: np.ndarray | None = None) -> np.ndarray:
    """Return a copy of an array of the current device on the host, made on the current stream; waits for it."""
    import cupy

    if array.size * array.dtype.itemsize < _LARGE:
        return array.get(out=out)
    out = np.empty(array.shape, array.dtype) if out is None else out
    target = out.reshape(-1).view(np.uint8)

    begin, device_to_host = address(array), 2

    def move(first: int, piece: np.ndarray, stream: int) -> None:
        cupy.cuda.runtime.memcpyAsync(address(piece), begin + first, piece.size, device_to_host, stream)
        cupy.cuda.runtime.streamSynchronize(stream)
        np.copyto(target[first : first + piece.size], piece)

    _in_pieces(target.size, move)
    return out


def _in_pieces(size: int, move: Callable[[int, np.ndarray, int], None]) -> None:
    """Call `move(first, piece, stream)` for pieces of so many bytes, each of pinned memory that is free by then."""
    import cupy

    device, ready = cupy.cuda.Device().id, cupy.cuda.get_current_stream().record()
    workers = min(_THREADS, num_threads(), ceil_div(size, _PIECE))

    def work(worker: int) -> None:
        with cupy.cuda.Device(device):
            streams = own_streams(_AT_ONCE)
            pieces = [np.frombuffer(cupy.cuda.alloc_pinned_memory(_PIECE), np.uint8, _PIECE) for _ in streams]
            for stream in streams:
                stream.wait_event(ready)  # the array is made, or its memory free, in the order of that stream
            for turn, first in enumerate(range(worker * _PIECE, size, workers * _PIECE)):
                stream, piece = streams[turn % _AT_ONCE], pieces[turn % _AT_ONCE]
                stream.synchronize()
                move(first, piece[: min(_PIECE, size - first)], stream.ptr)
            for stream in streams:
                stream.synchronize()

    under_way = [pool("copies", workers).submit(work, worker) for worker in range(workers)]
    try:
        for one in under_way:
            one.result()
    finally:
        wait(under_way)  # whatever ends this call, its memory is not given back before


class Pinned:
    """Host memory for results that are read one after the other: pinned as long as few of them are held.

    CuPy keeps what is given back for the next of that size, since pinning takes longer than a copy: sizes are rounded
    up to four between powers of two.  An array beyond `most_bytes` of those that are alive is of plain memory: a caller
    that keeps all results must not pin the host's memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left, self._lock = most_bytes, threading.Lock()

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy of an array of the current device, made on the current stream; waits for it."""
        import cupy

        nbytes = array.size * array.dtype.itemsize
        unit = 1 << max(nbytes.bit_length() - 3, 0)
        nbytes = ceil_div(nbytes, unit) * unit
        if not nbytes or not self._take(nbytes):
            return to_host(array)
        try:
            pointer = cupy.cuda.alloc_pinned_memory(nbytes)
        except BaseException:
            self._take(-nbytes)
            raise
        weakref.finalize(pointer.mem, self._take, -nbytes).atexit = False  # views of the array hold the memory alone
        return array.get(out=np.frombuffer(pointer, array.dtype, array.size))

    def _take(self, nbytes: int) -> bool:
        with self._lock:
            held = nbytes <= self._left
            self._left -= nbytes if held else 0
        return held
