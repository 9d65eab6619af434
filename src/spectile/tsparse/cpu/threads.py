"""Rows of a product over threads of the CPU: how many, which rows each takes, and the pool that stays."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numba
import numpy as np

WORTH_A_PIECE = 500_000  # entries that a thread checks at a time, at least

#: First row and end of each chunk of rows.
Chunks = list[tuple[np.uint64, np.uint64]]


def workspace_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of one thread's work space: bitmap, list of words, sums."""
    words = columns // 64 + 1
    return words * 16 + columns * (itemsize + 8)


def workers(columns: int, itemsize: int, room: float | None) -> int:
    """Return the number of threads: Numba's setting, fewer where their work space would not fit in `room` bytes."""
    threads = numba.get_num_threads()
    if room is None:
        return threads
    return max(1, int(min(threads, room // workspace_bytes(columns, itemsize))))


def unsigned(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return index arrays as views of their unsigned type; values pass as they are."""
    return tuple(a.view(f"u{a.itemsize}") if a.dtype.kind == "i" else a for a in arrays)


def pieces(indptr: np.ndarray) -> Chunks:
    """Return rows of like numbers of entries, one piece per thread: a single one where there are few."""
    rows, nnz = len(indptr) - 1, int(indptr[-1])
    threads = min(numba.get_num_threads(), nnz // WORTH_A_PIECE)
    if threads < 2:
        return [(np.uint64(0), np.uint64(rows))]
    cuts = np.searchsorted(indptr, np.linspace(0, nnz, threads + 1)[1:-1])
    return between(np.clip(cuts, 0, rows), rows)


def between(cuts: np.ndarray, rows: int) -> Chunks:
    """Return the chunks of `rows` rows that end at the given ones."""
    return list(itertools.pairwise(np.unique(np.concatenate(([0], cuts, [rows]))).astype(np.uint64)))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads beside the caller's, which stay for the next call."""
    config: Any = numba.config
    return ThreadPoolExecutor(max(config.NUMBA_NUM_THREADS - 1, 1), thread_name_prefix="spectile-tsparse")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has no threads


def over_rows(rows: Chunks, threads: int, work: Callable[[np.uint64, np.uint64], None]) -> None:
    """Call work(start, stop) for every chunk, on `threads` threads of which the caller is one.

    What one of them raises, KeyboardInterrupt in the caller's included, stops all at their next chunk and is raised
    once no thread is at work any more.
    """
    if len(rows) == 1:
        work(*rows[0])
        return
    left, ended = iter(rows), False
    others: list[Future[None]] = []

    def drain() -> None:
        nonlocal ended
        try:
            for start, stop in left:
                if ended:
                    return
                work(start, stop)
        except BaseException:
            ended = True
            raise

    try:
        others.extend(_pool().submit(drain) for _ in range(min(threads, len(rows)) - 1))
        drain()
    finally:
        ended = True  # no chunk is left, or none is wanted
        _wait(others)
    for other in others:
        if not other.cancelled():
            other.result()


def _wait(others: list[Future[None]]) -> None:
    """Wait until no thread is at work, even if interrupted meanwhile: what they write to is used again."""
    interrupt = None
    for other in others:
        while not (other.cancel() or other.done()):
            try:
                wait([other])
            except KeyboardInterrupt as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
