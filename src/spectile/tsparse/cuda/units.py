"""The kernels of sparse products: their units, the counters they write, and how they are launched."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from spectile.core.compile import Unit

ARCHS = ("sm_80", "sm_90a", "sm_100")
_SOURCES = ("rows.cu", "check.cu", "analysis.cu", "symbolic.cu", "numeric.cu")
ROWS = {
    "float32": Unit(__package__, _SOURCES, ARCHS, {"VALUE": "float"}),
    "float64": Unit(__package__, _SOURCES, ARCHS, {"VALUE": "double"}),
}
_CODES = {"float16": "16", "tf32": "19", "float32": "32", "float64": "64"}
TILES = {name: Unit(__package__, ("tiles.cu",), ARCHS, {"PRECISION": code}) for name, code in _CODES.items()}
UNITS = (*ROWS.values(), *TILES.values())

# Places in the head of counters, and flags of bad input (rows.cu).
SYMBOLIC, NUMERIC, FLAGS, MAX_SPAN, MAX_BYTES, DESCENTS, HEAD = 0, 8, 20, 22, 24, 34, 64
PRODUCTS, ENTRIES = 15, 16  # of 64 bits
BAD_INDEX, UNSORTED, NOT_FINITE, HALF_RANGE, FLOAT_RANGE, LOST, BAD_POINTER = 1, 2, 4, 8, 16, 32, 64
BLOCK_BIN = 6  # of the symbolic phase
BINS_NUMERIC = 12
ANALYSTS = 512  # threads of a block of the analysis


def load(value: str, name: str, shared_bytes: int = 0) -> Any:
    """Return a kernel of `ROWS`, allowed to use `shared_bytes` of dynamic shared memory, for the current device."""
    import cupy

    return _function(value, name, shared_bytes, cupy.cuda.runtime.getDevice())


@functools.cache
def _function(value: str, name: str, shared_bytes: int, device: int) -> Any:
    """Return a kernel loaded on `device`, which launches with less ado than CuPy's wrapper of it."""
    return ROWS[value].function(name, shared_bytes).kernel


@functools.cache
def processors() -> int:
    """Return the number of multiprocessors."""
    from spectile.core.device import describe

    return describe().multiprocessors


@functools.cache
def shared_limit() -> int:
    """Return the dynamic shared memory that a block kernel may ask for, beside its static kilobytes."""
    from spectile.core.device import describe

    return describe().shared_bytes - 12 * 1024


class _Local(threading.local):
    """Streams, events and pinned memory of one host thread, by device."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[list[Any], list[Any], Any]] = {}

    def get(self) -> tuple[list[Any], list[Any], Any]:
        import cupy

        device = cupy.cuda.runtime.getDevice()
        if device not in self.kept:
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(BINS_NUMERIC - 1)]
            events = [cupy.cuda.Event(disable_timing=True) for _ in range(BINS_NUMERIC)]
            self.kept[device] = streams, events, cupy.cuda.alloc_pinned_memory(4 * HEAD)
        return self.kept[device]


_local = _Local()
Launch = tuple[Any, int, int, tuple[Any, ...], int]  # kernel, blocks, threads, arguments, shared bytes


def run(launches: list[Launch]) -> None:
    """Launch kernels that do not depend on each other side by side; the current stream waits for all."""
    import cupy

    if not launches:
        return
    main = cupy.cuda.get_current_stream()
    streams, events, _ = _local.get()
    begin = events[-1]
    if len(launches) > 1:
        begin.record(main)
    kernel, blocks, threads, arguments, shared = launches[0]
    kernel((blocks,), (threads,), arguments, shared)
    for (kernel, blocks, threads, arguments, shared), stream, event in zip(launches[1:], streams, events, strict=False):
        stream.wait_event(begin)
        kernel((blocks,), (threads,), arguments, shared, stream)
        event.record(stream)
        main.wait_event(event)


def read_head(counters: Any) -> np.ndarray:
    """Wait for the current stream and return the head."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    pinned = _local.get()[2]
    cupy.cuda.runtime.memcpyAsync(pinned.ptr, counters.data.ptr, 4 * HEAD, 2, stream.ptr)  # 2: device to host
    stream.synchronize()
    return np.frombuffer(pinned, np.int32, HEAD).copy()


def new_counters(rows: int) -> Any:
    """Return the cleared head and the states of the scan over `rows` rows."""
    import cupy

    return cupy.zeros(HEAD // 2 + -(-rows // 2048), np.uint64)
